"""The operators' ports: what they show to whom, and what they refuse."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.parser import text_string_to_metric_families

from gateway.admin import listen
from gateway.admin.fleet import FleetState, fleet_document
from gateway.admin.health import MetricsPage, metrics_app
from gateway.admin.server import AdminServers, admin_app, host_allowed, start
from gateway.admin.token import FILE, TokenError, ensure_token, read_token
from gateway.core.snapshot import FleetSnapshot, ModelState, ModelView, Phases, ReplicaState, ReplicaView
from gateway.observe.metrics import Metrics
from gateway.runtime.listen import ListenError
from gateway.runtime.workers import InlineWorkers, ThreadWorkers
from tests.support.clock import ManualClock
from tests.support.ports import free_port

TOKEN = "t" * 43
BEARER = {"authorization": f"Bearer {TOKEN}"}


def fleet_state() -> FleetState:
    model = ModelView(
        "fraud", "2", ModelState.WARMED, slots=4, batch_fill=float("nan"), phases=Phases(seen_s=100.0, warmed_s=101.5)
    )
    replica = ReplicaView(
        id="default/10.0.0.1:8001",
        pool="default",
        address="10.0.0.1:8001",
        state=ReplicaState.LIVE,
        models=MappingProxyType({("fraud", "2"): model}),
        phases=Phases(seen_s=99.0),
    )
    return FleetState(
        snapshot=FleetSnapshot(7, (replica,)),
        now_s=102.0,
        wall_s=1_800_000_000.0,
        state="serving",
        policy_revision="0123456789ab",
        version="0.1.0",
        pools={"default": {"lookups": 4}, "empty": {"alarm": "no such name"}},
        members={"default/10.0.0.1:8001": {"in_flight": 2}, "default/gone:8001": {"in_flight": 1}},
        statistics={"admission": {"in_flight": 3}, "jobs": MappingProxyType({"restarts": 1})},
    )


@pytest.fixture
async def admin() -> AsyncIterator[TestClient[Any, Any]]:
    app = admin_app(
        token=TOKEN,
        listen_host="127.0.0.1",
        fleet=fleet_state,
        metrics_id=lambda replica: "0a1b2c3d",
        workers=InlineWorkers(),
    )
    async with asyncio.timeout(30), TestClient(TestServer(app)) as client:
        yield client


def page_of(metrics: Metrics, clock: ManualClock) -> MetricsPage:
    return MetricsPage(metrics, clock, InlineWorkers())


def metrics() -> Metrics:
    return Metrics({"fraud": 0.1}, ["default"], version="0.1.0", revision="r", replica_key=b"")


# --- the metrics port -------------------------------------------------------------------------------------------------


async def test_health_and_readiness_follow_the_gateway() -> None:
    ready = True
    app = metrics_app(page_of(metrics(), ManualClock()).get, lambda: ready)
    async with asyncio.timeout(30), TestClient(TestServer(app)) as client:
        assert (await client.get("/healthz")).status == 200
        assert (await client.get("/readyz")).status == 200
        ready = False
        answer = await client.get("/readyz")
        assert (answer.status, await answer.text()) == (503, "not ready\n")
        assert (await client.get("/healthz")).status == 200


async def test_the_page_parses_and_names_the_process() -> None:
    app = metrics_app(page_of(metrics(), ManualClock()).get, lambda: True)
    async with asyncio.timeout(30), TestClient(TestServer(app)) as client:
        answer = await client.get("/metrics")
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        names = {family.name for family in text_string_to_metric_families(await answer.text())}
    assert {"sluice_build_info", "process_resident_memory_bytes", "process_open_fds"} <= names


async def test_other_paths_and_methods_are_refused_without_a_word_about_the_inside() -> None:
    app = metrics_app(page_of(metrics(), ManualClock()).get, lambda: True)
    async with asyncio.timeout(30), TestClient(TestServer(app)) as client:
        assert (await client.get("/v1/fleet")).status == 404
        assert (await client.post("/metrics", data=b"x")).status == 405
        answer = await client.get("/metrics/../../etc/passwd%00")
        assert answer.status == 404
        assert await answer.text() == "not found\n"


async def test_the_page_is_made_once_for_all_who_wait_and_kept_for_half_a_second() -> None:
    of, clock = metrics(), ManualClock()
    made = 0

    def count(_: float) -> list[Any]:
        nonlocal made
        made += 1
        return []

    of.add_source("count", count)
    workers = ThreadWorkers(1, "test-page")
    try:
        page = MetricsPage(of, clock, workers)
        async with asyncio.timeout(30):
            first, second = await asyncio.gather(page.get(), page.get())
            assert first is second
            assert made == 1
            clock.advance(0.4)
            assert await page.get() is first
            clock.advance(0.2)
            await page.get()
            assert made == 2
    finally:
        await workers.aclose(5.0)


async def test_a_scraper_that_leaves_does_not_take_the_page_from_the_others() -> None:
    gate = threading.Event()

    def hold() -> None:
        gate.wait(10)

    workers = ThreadWorkers(1, "test-page")
    try:
        page = MetricsPage(metrics(), ManualClock(), workers, breathe=hold)
        async with asyncio.timeout(30):
            leaver = asyncio.create_task(page.get())
            stayer = asyncio.create_task(page.get())
            await asyncio.sleep(0)
            leaver.cancel()
            await asyncio.gather(leaver, return_exceptions=True)
            gate.set()
            assert b"sluice_build_info" in await stayer
    finally:
        gate.set()
        await workers.aclose(5.0)


# --- the admin port ---------------------------------------------------------------------------------------------------


async def test_the_fleet_is_shown_to_whoever_has_the_token(admin: TestClient[Any, Any]) -> None:
    answer = await admin.get("/v1/fleet", headers=BEARER)
    assert answer.status == 200
    shown = json.loads(await answer.text())
    assert shown["gateway"]["state"] == "serving"
    (replica,) = shown["pools"]["default"]["replicas"]
    assert (replica["id"], replica["metrics_id"]) == ("default/10.0.0.1:8001", "0a1b2c3d")
    assert (replica["in_flight"], replica["times_down"]) == (2, 0)
    assert shown["pools"]["default"]["addresses"] == {"lookups": 4}
    assert shown["pools"]["empty"] == {"addresses": {"alarm": "no such name"}, "replicas": []}
    assert replica["phases_age_s"]["seen"] == 3.0
    assert replica["models"][0]["phases_age_s"] == {
        "seen": 2.0,
        "connected": None,
        "live": None,
        "ready": None,
        "warmed": 0.5,
        "first_answer": None,
    }
    assert replica["models"][0]["batch_fill"] is None
    assert shown["models"] == [{"pool": "default", "model": "fraud", "version": "2", "replicas": {"warmed": 1}}]
    assert shown["statistics"]["admission"] == {"in_flight": 3}
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer "},
        {"authorization": f"Bearer {TOKEN}x"},
        {"authorization": f"Bearer {TOKEN[:-1]}"},
        {"authorization": f"Basic {TOKEN}"},
        {"authorization": TOKEN},
        {"cookie": f"token={TOKEN}"},
    ],
)
async def test_without_the_token_there_is_401_on_every_path(
    admin: TestClient[Any, Any], headers: dict[str, str]
) -> None:
    for path in ("/v1/fleet", "/", "/nowhere"):
        answer = await admin.get(path, headers=headers)
        assert answer.status == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert "admin-token" in (await answer.json())["error"]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8003", "127.0.0.1.evil.example", "", "[::1", "a:b:c"])
async def test_a_host_of_another_name_is_refused_even_with_the_token(admin: TestClient[Any, Any], host: str) -> None:
    answer = await admin.get("/v1/fleet", headers=BEARER | {"host": host})
    assert answer.status == 403


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:8003", 200),
        ("http://evil.example", 403),
        ("http://localhost:9999", 403),
        ("https://localhost:8003", 403),
        ("null", 403),
    ],
)
async def test_only_pages_of_the_port_itself_may_ask(admin: TestClient[Any, Any], origin: str, status: int) -> None:
    headers = BEARER | {"host": "localhost:8003", "origin": origin}
    assert (await admin.get("/v1/fleet", headers=headers)).status == status


async def test_unknown_paths_methods_and_large_bodies_get_json_errors(admin: TestClient[Any, Any]) -> None:
    missing = await admin.get("/v2/fleet", headers=BEARER)
    assert (missing.status, "error" in await missing.json()) == (404, True)
    method = await admin.delete("/v1/fleet", headers=BEARER)
    assert (method.status, "error" in await method.json()) == (405, True)
    assert "GET" in method.headers["allow"]
    large = await admin.post("/v1/fleet", headers=BEARER, data=b"x" * 1_000_000)
    assert large.status in (405, 413)


async def test_a_failure_inside_says_nothing_of_it() -> None:
    def broken() -> FleetState:
        raise ZeroDivisionError("10.0.0.1 secret")

    app = admin_app(
        token=TOKEN, listen_host="127.0.0.1", fleet=broken, metrics_id=lambda _: "", workers=InlineWorkers()
    )
    async with asyncio.timeout(30), TestClient(TestServer(app)) as client:
        answer = await client.get("/v1/fleet", headers=BEARER)
        assert answer.status == 500
        assert "secret" not in await answer.text()


@pytest.mark.parametrize(
    ("host", "listening", "allowed"),
    [
        ("127.0.0.1:8003", "127.0.0.1", True),
        ("127.9.9.9", "127.0.0.1", True),
        ("LOCALHOST:1", "127.0.0.1", True),
        ("[::1]:8003", "127.0.0.1", True),
        ("10.0.0.5:8003", "127.0.0.1", False),
        ("10.0.0.5:8003", "10.0.0.5", True),
        ("10.0.0.5:8003", "0.0.0.0", True),
        ("[fe80::1]", "::", True),
        ("gateway.internal", "gateway.internal", True),
        ("gateway.internal", "0.0.0.0", False),
        ("localhost.evil.example", "0.0.0.0", False),
        ("localhost:80x", "127.0.0.1", False),
        ("[::1]x", "127.0.0.1", False),
    ],
)
def test_which_hosts_are_this_machine(host: str, listening: str, allowed: bool) -> None:
    assert host_allowed(host, listening) is allowed


def test_the_document_survives_names_that_are_no_text() -> None:
    state = fleet_state()
    odd = FleetState(
        state.snapshot,
        1.0,
        1.0,
        "serving\ud800",
        "",
        "",
        statistics={"nan": float("nan"), "set": frozenset({"b", "a"})},
    )
    shown = json.loads(fleet_document(odd, lambda _: ""))
    assert shown["statistics"] == {"nan": None, "set": ["a", "b"]}


# --- the ports themselves ---------------------------------------------------------------------------------------------


async def open_ports(metrics_address: str = "127.0.0.1:0", admin_address: str = "127.0.0.1:0") -> AdminServers:
    return await start(
        metrics_address=metrics_address,
        admin_address=admin_address,
        token=TOKEN,
        page=page_of(metrics(), ManualClock()).get,
        ready=lambda: True,
        fleet=fleet_state,
        metrics_id=lambda _: "",
        workers=InlineWorkers(),
    )


async def test_both_ports_open_serve_and_close() -> None:
    async with asyncio.timeout(30):
        servers = await open_ports()
        async with aiohttp.ClientSession() as session:
            base = f"http://127.0.0.1:{servers.metrics_port}"
            async with session.get(f"{base}/readyz") as answer:
                assert answer.status == 200
            async with session.get(f"http://127.0.0.1:{servers.admin_port}/v1/fleet", headers=BEARER) as answer:
                assert answer.status == 200
            port = servers.metrics_port
            await servers.aclose()
            with pytest.raises(aiohttp.ClientConnectorError):
                await session.get(f"http://127.0.0.1:{port}/healthz")


async def test_a_port_in_use_is_named_with_its_key_and_nothing_stays_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port, free = taken.getsockname()[1], free_port()
        async with asyncio.timeout(30):
            with pytest.raises(ListenError, match=rf"127\.0\.0\.1:{port} .*gateway\.listen\.metrics.*in use"):
                await open_ports(metrics_address=f"127.0.0.1:{port}")
            with pytest.raises(ListenError, match=rf"127\.0\.0\.1:{port} .*gateway\.listen\.admin.*in use"):
                await open_ports(f"127.0.0.1:{free}", f"127.0.0.1:{port}")
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", free)


async def test_connections_over_the_bound_are_closed_and_old_ones_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen, "CONNECTIONS_MAX", 2)
    monkeypatch.setattr(listen, "CONNECTION_AGE_S", 0.3)
    async with asyncio.timeout(30):
        servers = await open_ports()
        silent = [await asyncio.open_connection("127.0.0.1", servers.metrics_port) for _ in range(2)]
        reader, writer = await asyncio.open_connection("127.0.0.1", servers.metrics_port)
        assert await reader.read() == b"", "one too many"
        writer.close()
        for reader, writer in silent:
            writer.write(b"GET /healthz HTT")
            try:
                assert await reader.read() == b"", "cut at its age, whatever it does"
            except ConnectionResetError:
                pass
            writer.close()
        monkeypatch.setattr(listen, "CONNECTION_AGE_S", 30.0)
        reader, writer = await asyncio.open_connection("127.0.0.1", servers.metrics_port)
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200"), "and there is room again"
        writer.close()
        await servers.aclose()


# --- the token --------------------------------------------------------------------------------------------------------


def test_a_token_is_made_once_private_and_read_back(tmp_path: Path) -> None:
    state = tmp_path / "a" / "state"
    token = ensure_token(state)
    assert len(token) >= 43
    assert ensure_token(state) == read_token(state) == token
    assert stat.S_IMODE((state / FILE).stat().st_mode) == 0o600
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert os.listdir(state) == [FILE]


def test_starts_at_the_same_time_agree_on_one_token(tmp_path: Path) -> None:
    tokens: set[str] = set()
    barrier = threading.Barrier(8)

    def first_start() -> None:
        barrier.wait(10)
        tokens.add(ensure_token(tmp_path / "state"))

    threads = [threading.Thread(target=first_start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(tokens) == 1


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_token_that_others_can_read_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    ensure_token(tmp_path / "state")
    (tmp_path / "state" / FILE).chmod(mode)
    with pytest.raises(TokenError, match="remove it"):
        ensure_token(tmp_path / "state")


def test_a_directory_that_others_can_write_is_refused(tmp_path: Path) -> None:
    ensure_token(tmp_path / "state")
    (tmp_path / "state").chmod(0o777)
    with pytest.raises(TokenError, match="chmod go-w"):
        read_token(tmp_path / "state")


@pytest.mark.parametrize("content", ["", "short", "x" * 20 + " " + "y" * 20, "ü" * 50, "x" * 40 + "\x00"])
def test_a_damaged_token_is_refused(tmp_path: Path, content: str) -> None:
    ensure_token(tmp_path / "state")
    (tmp_path / "state" / FILE).write_text(content)
    with pytest.raises(TokenError, match="damaged"):
        read_token(tmp_path / "state")


def test_a_link_a_pipe_or_a_directory_is_no_token(tmp_path: Path) -> None:
    state = tmp_path / "state"
    token = ensure_token(state)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text(token)
    elsewhere.chmod(0o600)
    (state / FILE).unlink()
    (state / FILE).symlink_to(elsewhere)
    with pytest.raises(TokenError):
        ensure_token(state)
    (state / FILE).unlink()
    os.mkfifo(state / FILE, 0o600)
    with pytest.raises(TokenError, match="not a plain file"):
        ensure_token(state)
    (state / FILE).unlink()
    (state / FILE).mkdir()
    with pytest.raises(TokenError):
        ensure_token(state)


def test_a_missing_token_says_who_makes_it(tmp_path: Path) -> None:
    with pytest.raises(TokenError, match="when it starts"):
        read_token(tmp_path / "nowhere")
    (tmp_path / "state").mkdir(mode=0o700)
    with pytest.raises(TokenError, match="when it starts"):
        read_token(tmp_path / "state")
