"""Calls through the whole gateway on real Tritons: deadlines, callers who leave, identity, records, replicas that
die.
"""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import os
import re
import socket
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from tritonclient.grpc import service_pb2

from deploy.local import LocalFleet, TritonServer
from gateway.decide.cancel_cap import CancelCapSettings
from tests.conftest import replicas_of
from tests.support.gateway_process import MODEL_POLICIES, GatewayProcess, write_policies
from tests.support.waiting import wait_until

INFER = "/inference.GRPCInferenceService/ModelInfer"


def post(
    gateway: GatewayProcess, model: str, body: dict[str, Any], headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], Any]:
    host, _, port = gateway.http.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    connection.request("POST", f"/v2/models/{model}/infer", body=json.dumps(body), headers=headers or {})
    response = connection.getresponse()
    result = response.status, {k.lower(): v for k, v in response.getheaders()}, json.loads(response.read())
    connection.close()
    return result


def accel(work: float, rows: int = 1) -> dict[str, Any]:
    return {"inputs": [{"name": "work", "datatype": "FP32", "shape": [rows, 1], "data": [work] * rows}]}


def triton_counts(server: TritonServer) -> dict[str, float]:
    """What Triton counted of accel: executions, and failures by reason."""
    with urllib.request.urlopen(server.spec.metrics_url, timeout=10) as page:
        text = page.read().decode()
    counts: dict[str, float] = {"executed": 0.0, "canceled": 0.0}
    for line in text.splitlines():
        if 'model="accel"' not in line:
            continue
        if line.startswith("nv_inference_count{"):
            counts["executed"] += float(line.rsplit(" ", 1)[1])
        if line.startswith("nv_inference_request_failure{") and 'reason="CANCELED"' in line:
            counts["canceled"] += float(line.rsplit(" ", 1)[1])
    return counts


@pytest.fixture
def bounded(bounded_fleet: LocalFleet, tmp_path: Path) -> Iterator[GatewayProcess]:
    """A gateway that lets 20 calls at a time through to one Triton whose queued work can be cancelled."""
    policy = {**MODEL_POLICIES["accel"], "admission": {"slots_per_replica": 20, "queue_max": 4}}
    listen = write_policies(tmp_path, replicas_of(bounded_fleet), models={"accel": policy})
    with GatewayProcess(tmp_path, listen) as gateway:
        yield gateway.wait_ready()
        assert gateway.stop() == 0, gateway.log_text()


LEAVING = CancelCapSettings().burst
"""Of more that leave at once the rest would be left to run."""


@pytest.mark.parametrize("how", ["http", "grpc"])
async def test_work_of_callers_who_left_is_cancelled_in_tritons_queue(
    bounded: GatewayProcess, bounded_fleet: LocalFleet, how: str
) -> None:
    server = bounded_fleet["triton-0"]
    before = triton_counts(server)
    # Shorter than the 5 s that this Triton lets a call wait: what ends the others must be their callers' leaving.
    blocker = asyncio.create_task(asyncio.to_thread(post, bounded, "accel", accel(4000.0)))
    await until_in_flight(bounded, 1)
    if how == "http":
        await leave_over_http(bounded, LEAVING)
    else:
        await leave_over_grpc(bounded, LEAVING)
    assert (await blocker)[0] == 200
    await asyncio.to_thread(wait_until, lambda: len(bounded.records()) >= LEAVING + 1)
    # Triton counts a cancelled call when its batcher next looks at the queue, not when the cancel arrives.
    await asyncio.to_thread(wait_until, lambda: triton_counts(server)["canceled"] - before["canceled"] >= LEAVING - 1)
    after = triton_counts(server)
    records = [record for record in bounded.records() if record["outcome"] == "abandoned"]
    assert len(records) == LEAVING, "one record for each caller who left"
    assert after["executed"] - before["executed"] <= 2, "the blocker, and at most one that was prefetched"
    assert {record["attempts"][0]["outcome"] for record in records} == {"abandoned"}


async def until_in_flight(gateway: GatewayProcess, count: int) -> None:
    """Wait until so many calls of accel are out at Triton, and a moment more for the last one to get there."""

    def out() -> int:
        rows = fleet_page(gateway)["statistics"]["admission"]["accel"]
        return sum(row["in_flight"] for row in rows.values())

    await asyncio.to_thread(wait_until, lambda: out() == count)
    await asyncio.sleep(0.4)


async def leave_over_http(gateway: GatewayProcess, count: int) -> None:
    host, _, port = gateway.http.rpartition(":")
    body = json.dumps(accel(1.0)).encode()
    writers = []
    for _ in range(count):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /v2/models/accel/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        await writer.drain()
        writers.append(writer)
    await until_in_flight(gateway, count + 1)
    for writer in writers:
        writer.transport.abort()


async def leave_over_grpc(gateway: GatewayProcess, count: int) -> None:
    request = service_pb2.ModelInferRequest(model_name="accel")
    request.inputs.add(name="work", datatype="FP32", shape=[1, 1])
    request.raw_input_contents.append(b"\x00\x00\x80\x3f")
    async with grpc.aio.insecure_channel(gateway.grpc) as channel:
        calls = [channel.unary_unary(INFER)(request.SerializeToString()) for _ in range(count)]
        codes = [asyncio.ensure_future(call.code()) for call in calls]
        await until_in_flight(gateway, count + 1)
        for call in calls:
            call.cancel()
        assert {code.name for code in await asyncio.gather(*codes)} == {"CANCELLED"}


def test_a_deadline_is_kept_and_its_work_cancelled(bounded: GatewayProcess, bounded_fleet: LocalFleet) -> None:
    server = bounded_fleet["triton-0"]
    before = triton_counts(server)

    async def many() -> list[tuple[int, dict[str, str], Any]]:
        blocker = asyncio.create_task(asyncio.to_thread(post, bounded, "accel", accel(4000.0)))
        await until_in_flight(bounded, 1)
        header = {"x-request-timeout-ms": "500"}
        short = [asyncio.to_thread(post, bounded, "accel", accel(1.0), header) for _ in range(5)]
        return [*await asyncio.gather(*short), await blocker]

    *short, blocker = asyncio.run(many())
    assert blocker[0] == 200
    for status, headers, body in short:
        assert (status, headers["x-sluice-reason"]) == (504, "deadline")
        assert "500 ms" in body["error"] or "deadline" in body["error"]
    wait_until(lambda: triton_counts(server)["canceled"] - before["canceled"] >= 4)
    wait_until(lambda: len([r for r in bounded.records() if r["outcome"] == "expired"]) == 5)


async def test_a_full_waiting_place_refuses_at_once_with_a_hint(bounded: GatewayProcess) -> None:
    # Nothing of the others ends before this one does, however long it takes until they are all there.
    blocker = asyncio.create_task(asyncio.to_thread(post, bounded, "accel", accel(3000.0)))
    await until_in_flight(bounded, 1)
    with ThreadPoolExecutor(64) as threads:
        send = [
            asyncio.get_running_loop().run_in_executor(threads, post, bounded, "accel", accel(1.0)) for _ in range(64)
        ]
        results = [await blocker, *await asyncio.gather(*send)]
    refused = [(headers, body) for status, headers, body in results if status == 503]
    assert refused, "20 slots and 4 places cannot take 65 calls at once"
    reasons = {headers["x-sluice-reason"] for headers, _ in refused}
    assert "queue_full" in reasons
    # Of those that a busy machine sends after the first have ended some may be told that they would wait too long.
    assert reasons <= {"queue_full", "shed"}
    assert all(int(headers["retry-after"]) >= 1 for headers, _ in refused)
    assert len([status for status, _, _ in results if status == 200]) == 65 - len(refused)


def test_three_things_that_look_alike_get_three_answers(gateway: GatewayProcess) -> None:
    features = {"inputs": [{"name": "features", "datatype": "FP32", "shape": [1, 12], "data": [0.0] * 12}]}
    unknown_model = post(gateway, "nosuch", features)
    unknown_version = post(gateway, "fraud/versions/77", features)
    assert (unknown_model[0], unknown_model[1]["x-sluice-reason"]) == (404, "unknown_model")
    assert (unknown_version[0], unknown_version[1]["x-sluice-reason"]) == (404, "unknown_version")
    assert "77" in unknown_version[2]["error"]


def test_an_explanation_tells_the_path_and_hides_the_address(gateway: GatewayProcess) -> None:
    status, headers, _ = post(gateway, "accel", accel(1.0), {"x-sluice-explain": "1"})
    story = json.loads(headers["x-sluice-explain"])
    assert status == 200
    assert story["model"] == "accel"
    assert story["attempts"][0]["outcome"] == "ok"
    assert "127.0.0.1" not in headers["x-sluice-explain"]


@pytest.fixture
def keyed(fleet: LocalFleet, tmp_path: Path) -> Iterator[GatewayProcess]:
    """A gateway that wants keys: `all` opens everything, `some` opens accel."""
    write_keys(tmp_path, {"all": None, "some": ["accel"]})
    identity = {"identity": {"mode": "api_key", "keys_file": "keys.yaml", "refresh_s": 0.2}}
    listen = write_policies(tmp_path, replicas_of(fleet), fleet=identity)
    with GatewayProcess(tmp_path, listen) as gateway:
        gateway.wait_ready()  # which it is with any model
        with_key = {"x-api-key": "all"}
        wait_until(lambda: gateway.get("http", "/v2/models/accel/ready", with_key)[0] == 200)
        yield gateway
        assert gateway.stop() == 0, gateway.log_text()


def write_keys(directory: Path, keys: dict[str, list[str] | None]) -> None:
    entries = [
        {"tenant": f"tenant-{key}", "sha256": hashlib.sha256(key.encode()).hexdigest(), "may_explain": key == "all"}
        | ({} if models is None else {"models": models})
        for key, models in keys.items()
    ]
    (directory / "keys.new").write_text(json.dumps(entries))
    (directory / "keys.new").rename(directory / "keys.yaml")


def test_keys_open_what_they_may_and_changes_are_taken_up(keyed: GatewayProcess) -> None:
    def status(key: str | None, model: str = "accel") -> int:
        return post(keyed, model, accel(1.0), {} if key is None else {"authorization": f"Bearer {key}"})[0]

    assert [status("all"), status("some"), status("wrong"), status(None)] == [200, 200, 401, 401]
    assert status("some", "fraud") == 403
    assert status(None, "nosuch") == 401, "without a key nobody learns which models exist"
    _, headers, _ = post(keyed, "accel", accel(1.0), {"x-api-key": "all", "x-sluice-explain": "1"})
    assert "127.0.0.1" in headers["x-sluice-explain"], "this key may see the fleet"
    assert keyed.get("http", "/v2/health/ready")[0] == 200
    assert keyed.get("http", "/v2/models/accel")[0] == 401
    assert keyed.get("http", "/v2/models/accel", {"x-api-key": "some"})[0] == 200

    write_keys(keyed.directory, {"new": None})
    wait_until(lambda: status("new") == 200)
    assert status("all") == 401
    (keyed.directory / "keys.yaml").write_text("- tenant: broken")
    wait_until(lambda: "cannot be used" in keyed.log_text())
    assert status("new") == 200, "the keys of before stay in force"
    expected = {"tenant-all", "tenant-some", "tenant-new"}
    wait_until(lambda: {record["tenant"] for record in keyed.records() if record["status"] == "OK"} == expected)
    assert not any("Bearer" in line or '"all"' in line for line in keyed.log_text().splitlines())


def test_every_call_leaves_exactly_one_record(fleet: LocalFleet, tmp_path: Path) -> None:
    listen = write_policies(tmp_path, replicas_of(fleet))
    with GatewayProcess(tmp_path, listen) as gateway:
        gateway.wait_ready().wait_models("accel")
        sent = []
        for number in range(60):
            request_id = f"call-{number}"
            sent.append(request_id)
            headers = {"x-request-id": request_id}
            if number % 6 == 0:
                post(gateway, "nosuch", accel(1.0), headers)
            elif number % 6 == 1:
                post(gateway, "accel", {"inputs": [{"name": "work", "datatype": "FP32", "shape": [1, 1]}]}, headers)
            elif number % 6 == 2:
                post(gateway, "accel", accel(200.0), {**headers, "x-request-timeout-ms": "1"})
            elif number % 6 == 3:
                post(gateway, "accel/versions/9", accel(1.0), headers)
            else:
                post(gateway, "accel", accel(1.0), headers)
        assert gateway.stop() == 0, gateway.log_text()
        records = {record["request_id"]: record for record in gateway.records()}
        assert sorted(record["request_id"] for record in gateway.records()) == sorted(sent)
    for number, request_id in enumerate(sent):
        record = records[request_id]
        expected = {0: "NOT_FOUND", 1: "INVALID_ARGUMENT", 2: "DEADLINE_EXCEEDED", 3: "NOT_FOUND"}.get(number % 6, "OK")
        assert record["status"] == expected, record
        if expected == "OK":
            assert record["version"] == "1"
            assert record["attempts"][0]["outcome"] == "ok"


def test_a_replica_that_dies_takes_no_more_calls_and_comes_back(breakable_fleet: LocalFleet, tmp_path: Path) -> None:
    models = {"accel": MODEL_POLICIES["accel"]}
    listen = write_policies(tmp_path, replicas_of(breakable_fleet), models=models)
    with GatewayProcess(tmp_path, listen) as gateway:
        gateway.wait_ready()
        wait_until(lambda: ready_replicas(gateway) == 2)
        breakable_fleet["triton-1"].kill()
        wait_until(lambda: ready_replicas(gateway) == 1)
        assert {post(gateway, "accel", accel(1.0))[0] for _ in range(20)} == {200}
        assert gateway.get("http", "/v2/health/ready")[0] == 200
        breakable_fleet["triton-1"].start()
        wait_until(lambda: ready_replicas(gateway) == 2, 60)
        replicas = fleet_page(gateway)["pools"]["cpu"]["replicas"]
        phases = [replica["phases_age_s"] for replica in replicas]
        for each in phases:
            order = [each[name] for name in ("seen", "connected", "live")]
            assert order == sorted(order, reverse=True), "each phase is younger than the one before"
        assert gateway.stop() == 0, gateway.log_text()


def test_a_frozen_replica_is_found_and_left_out(breakable_fleet: LocalFleet, tmp_path: Path) -> None:
    listen = write_policies(tmp_path, replicas_of(breakable_fleet), models={"accel": MODEL_POLICIES["accel"]})
    with GatewayProcess(tmp_path, listen) as gateway:
        gateway.wait_ready()
        wait_until(lambda: ready_replicas(gateway) == 2)
        breakable_fleet["triton-0"].freeze()
        wait_until(lambda: ready_replicas(gateway) == 1)
        assert {post(gateway, "accel", accel(1.0))[0] for _ in range(20)} == {200}
        breakable_fleet["triton-0"].thaw()
        wait_until(lambda: ready_replicas(gateway) == 2, 30)
        assert gateway.stop() == 0, gateway.log_text()


def fleet_page(gateway: GatewayProcess) -> Any:
    token_file = gateway.directory / "state" / "admin-token"
    assert os.stat(token_file).st_mode & 0o777 == 0o600
    headers = {"authorization": f"Bearer {token_file.read_text().strip()}"}
    status, body = gateway.get("admin", "/v1/fleet", headers)
    assert status == 200
    return json.loads(body)


def ready_replicas(gateway: GatewayProcess) -> int:
    document = fleet_page(gateway)
    return sum(
        replica["state"] == "live" and any(m["model"] == "accel" and m["state"] == "warmed" for m in replica["models"])
        for replica in document["pools"]["cpu"]["replicas"]
    )


def test_the_admin_port_wants_its_token_and_this_machines_name(gateway: GatewayProcess) -> None:
    assert gateway.get("admin", "/v1/fleet")[0] == 401
    assert gateway.get("admin", "/v1/fleet", {"authorization": "Bearer wrong"})[0] == 401
    token = (gateway.directory / "state" / "admin-token").read_text().strip()
    good = {"authorization": f"Bearer {token}"}
    assert gateway.get("admin", "/v1/fleet", good)[0] == 200
    assert gateway.get("admin", "/v1/fleet", {**good, "host": "evil.example"})[0] == 403
    assert gateway.get("admin", "/v1/fleet", {**good, "origin": "http://evil.example"})[0] == 403
    assert gateway.get("metrics", "/v1/fleet")[0] == 404, "the public port shows no fleet"


def test_an_h2_preface_on_the_http_port_is_refused_cleanly(gateway: GatewayProcess) -> None:
    host, _, port = gateway.http.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 505")


@pytest.mark.parametrize("length", [1_000, 20_000, 400_000])
def test_a_long_name_that_triton_quotes_in_its_error_is_the_callers_fault(gateway: GatewayProcess, length: int) -> None:
    name = "x" * length
    body = {"inputs": [{"name": name, "datatype": "FP32", "shape": [1, 1], "data": [1.0]}]}
    status, headers, answer = post(gateway, "accel", body)
    assert (status, headers["x-sluice-reason"]) == (400, "upstream_invalid"), answer
    assert len(answer["error"]) < 2000


def test_json_over_its_own_limit_is_refused_with_the_way_out(gateway: GatewayProcess) -> None:
    body = {"inputs": [{"name": "work", "datatype": "FP32", "shape": [600_000, 1], "data": [1.5] * 600_000}]}
    status, headers, answer = post(gateway, "accel", body)
    assert (status, headers["x-sluice-reason"]) == (413, "too_large")
    assert "binary" in answer["error"]
    document = json.dumps(body).encode()
    mixed = raw_post(gateway, document + b"tail", {"Inference-Header-Content-Length": str(len(document))})
    assert mixed.startswith(b"HTTP/1.1 413 "), mixed[:300]
    assert b"JSON part" in mixed


def raw_post(gateway: GatewayProcess, body: bytes, headers: dict[str, str]) -> bytes:
    """POST to accel and read until the gateway closes."""
    host, _, port = gateway.http.rpartition(":")
    lines = [f"{name}: {value}" for name, value in {**headers, "Content-Length": str(len(body))}.items()]
    head = "\r\n".join(["POST /v2/models/accel/infer HTTP/1.1", "Host: x", "Connection: close", *lines, "", ""])
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(head.encode() + body)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_the_connections_to_the_replicas_are_on_the_metrics_page(gateway: GatewayProcess, fleet: LocalFleet) -> None:
    pattern = r'^sluice_upstream_(connections|connects_total)\{pool="cpu",replica="([^"]+)"\} ([0-9.e+]+)$'

    def all_connected() -> bool:
        page = gateway.get("metrics", "/metrics")[1].decode()
        found = {(name, replica): float(value) for name, replica, value in re.findall(pattern, page, re.MULTILINE)}
        assert len({replica for _, replica in found}) == len(list(fleet))
        return len(found) == 2 * len(list(fleet)) and all(value >= 1 for value in found.values())

    # Tests before this one end servers of this fleet and start them again.
    wait_until(all_connected)
