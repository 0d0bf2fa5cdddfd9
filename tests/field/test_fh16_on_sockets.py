"""FH-16 once more on real sockets: a gateway process whose resolver the test controls, before fakes on 127.0.0.1 to .5.

The rules in all their cases stand in `test_fh16_addresses.py`, on the virtual clock. Here is what that has not: real
connections, streams that run over a change, the time of the loop, threads and memory. A change is taken up within the
pool's `refresh_s`; the forms with the case's own two seconds, and the long ones, are for `make field`.

Not yet applicable: the state of a breaker and an ejector, which do not exist; what the directory knows of an address
stands for it in (7).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from tests.support.fake_fleet import FakeFleet, Traffic, fleet_of, request, until, until_async
from tests.support.fake_triton import Act, Exchange, FakeModel, FakeTriton, obey
from tests.support.ports import free_port
from tests.support.resolving_gateway import answer, lookups

LIMIT_S = 300
NAME = "pool.test"
M, MANY, OTHER = FakeModel("m"), FakeModel("many", decoupled=True), FakeModel("other")
ROOMY: dict[str, Any] = {"admission": {"slots_per_replica": 32, "queue_max": 4096}}
"""So that neither a test nor a gateway which stands still for a moment fills a queue."""
refreshes = pytest.mark.parametrize("refresh_s", [0.5, pytest.param(2.0, marks=pytest.mark.field)])


@asynccontextmanager
async def running(count: int, *models: FakeModel) -> AsyncIterator[list[FakeTriton]]:
    """So many fakes, on one address each and the same ports."""
    ports = (free_port(), free_port(), free_port())
    fakes = [FakeTriton(*models, host=f"127.0.0.{number}", ports=ports) for number in range(1, count + 1)]
    try:
        for fake in fakes:
            await fake.start()
        yield fakes
    finally:
        for fake in fakes:
            await fake.stop()


@asynccontextmanager
async def before(
    directory: Path, fakes: Sequence[FakeTriton], named: Sequence[FakeTriton], refresh_s: float, *models: str
) -> AsyncIterator[FakeFleet]:
    """A gateway that knows the fakes as those to which the name resolves; begins with `named`, and waits until they all
    take calls of what all of them have.
    """
    http, rpc, metrics = fakes[0].ports
    dns = {"host": NAME, "grpc_port": rpc, "http_port": http, "metrics_port": metrics, "refresh_s": refresh_s}
    resolve(directory, *named)
    async with fleet_of(
        directory,
        fakes,
        dict.fromkeys(models, ROOMY),
        pool={"replicas": {"dns": dns}},
        module="tests.support.resolving_gateway",
        wait_for=(),
    ) as fleet:
        await asyncio.to_thread(fleet.gateway.wait_ready)
        await fleet.serving(*(model for model in models if all(model in fake.models for fake in named)), fakes=named)
        yield fleet


def resolve(directory: Path, *fakes: FakeTriton, delay_s: float = 0.0) -> None:
    answer(directory, {NAME: {"addresses": [fake.host for fake in fakes], "delay_s": delay_s}})


@refreshes
async def test_1_an_added_address_gets_its_share_and_no_call_fails(refresh_s: float, tmp_path: Path) -> None:
    async with asyncio.timeout(LIMIT_S), running(3, M) as fakes:
        async with before(tmp_path, fakes, fakes[:2], refresh_s, "m") as fleet, Traffic(fleet, "m") as load:
            resolve(tmp_path, *fakes)
            await until(lambda: bool(fakes[2].requests("load")), "the new one is called")
            for fake in fakes:
                fake.seen.clear()
            await until(lambda: sum(len(fake.requests("load")) for fake in fakes) > 300, "300 calls more")
            share = len(fakes[2].requests("load"))
            assert share > 60, "a third, by and large"
        assert not load.failed


@refreshes
async def test_2_a_whole_new_list_gets_all_new_calls_and_streams_on_the_old_one_finish(
    refresh_s: float, tmp_path: Path
) -> None:
    held = asyncio.Event()
    async with asyncio.timeout(LIMIT_S), running(5, M, MANY) as fakes:
        a, b, _, d, e = fakes
        async with before(tmp_path, fakes, [a, b], refresh_s, "m", "many") as fleet:
            for fake in (a, b):
                fake.acts["many"] = two_halves(held)
            call = fleet.stream("running")
            await call.write(request("many", "stream"))
            assert (await call.read()).infer_response.raw_output_contents[0][4:] == b"first"
            events = asyncio.ensure_future(fleet.http("many", "events", path="generate_stream"))
            await until(lambda: bool(a.requests("events") or b.requests("events")), "the events have begun")
            async with Traffic(fleet, "m") as load:
                resolve(tmp_path, d, e)

                async def only_new() -> bool:
                    return set(await fleet.replicas()) == {d.addresses["grpc"], e.addresses["grpc"]}

                await until_async(only_new, "the old addresses are gone")
                await load.those_out()  # one of them may have been sent just before
                a.seen.clear()
                b.seen.clear()
                d.seen.clear()
                e.seen.clear()
                await until(lambda: len(d.requests("load")) > 50 and len(e.requests("load")) > 50, "both get calls")
                # A new call on the caller's old stream: it goes where calls go now.
                await call.write(request("many", "new"))
                assert (await call.read()).infer_response.id == "new"
                assert not a.seen
                assert not b.seen
            assert not load.failed
            held.set()
            last = await call.read()
            assert (last.infer_response.id, last.infer_response.raw_output_contents[0][4:]) == ("stream", b"second")
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF
            told = await events
            assert told.code == 200
            assert '"second"' in told.text
            for record in [*await fleet.records("running", 2), *await fleet.records("events", 1)]:
                assert record["outcome"] == "ok"

            async def closed() -> bool:
                status, body = await fleet.get("admin", "/v1/fleet")
                leaving: Any = json.loads(body)["statistics"]
                return status == 200 and '"connections_leaving": 0' in json.dumps(leaving)

            await until_async(closed, "the old connections are closed once nothing is out on them")


def two_halves(held: asyncio.Event) -> Act:
    async def act(exchange: Exchange) -> None:
        if not exchange.request.id:
            await obey(exchange)
            return
        await exchange.respond(b"first", final=False)
        await held.wait()
        await exchange.respond(b"second")

    return act


@refreshes
async def test_3_a_whole_new_list_when_the_old_ones_are_dead_costs_calls_inside_one_refresh_only(
    refresh_s: float, tmp_path: Path
) -> None:
    async with asyncio.timeout(LIMIT_S), running(5, M) as fakes:
        a, b, _, d, e = fakes
        async with before(tmp_path, fakes, [a, b], refresh_s, "m") as fleet:
            async with Traffic(fleet, "m") as load:
                resolve(tmp_path, d, e)
                await a.stop()
                await b.stop()
                await fleet.serving("m", fakes=[d, e])
                begun, good = load.begun, load.good
                await until(lambda: load.good > good + 200, "200 good calls more")
            # Those that were out when the new ones came in may still be told of the old ones' end.
            assert not [number for number in load.failed_numbers if number > begun]
            assert {told.reason for told in load.failed} <= {"upstream_lost", "no_replica", "upstream_broken"}
            assert set(await fleet.replicas()) == {d.addresses["grpc"], e.addresses["grpc"]}


@refreshes
async def test_7_an_address_that_comes_back_as_another_models_server_has_no_history(
    refresh_s: float, tmp_path: Path
) -> None:
    async with asyncio.timeout(LIMIT_S), running(2, M) as fakes:
        a, b = fakes
        async with before(tmp_path, fakes, [a, b], refresh_s, "m", "other") as fleet:
            await a.stop()

            async def down() -> bool:
                return bool((await fleet.replicas())[a.addresses["grpc"]]["times_down"] == 1)

            await until_async(down, "a is down")
            resolve(tmp_path, b)

            async def left() -> bool:
                return a.addresses["grpc"] not in await fleet.replicas()

            await until_async(left, "a is gone")
            a.models = {"other": OTHER}
            a.seen.clear()
            await a.start()
            async with Traffic(fleet, "m") as load:
                resolve(tmp_path, a, b)
                await fleet.serving("other", fakes=[a])
                assert await fleet.takers("m") == {b.addresses["grpc"]}
            assert not load.failed
            assert not a.requests("load"), "it was asked first what it has"
            replica = (await fleet.replicas())[a.addresses["grpc"]]
            assert (replica["times_down"], replica["last_error"]) == (0, "")
            assert [model["model"] for model in replica["models"]] == ["other"]
            assert (await fleet.grpc("other", "o-1")).ok


async def test_5_names_whose_server_does_not_answer_hold_up_no_other_and_nothing_else(tmp_path: Path) -> None:
    async with asyncio.timeout(LIMIT_S), running(2, M) as fakes:
        a, b = fakes
        http, rpc, metrics = a.ports
        ports = {"grpc_port": rpc, "http_port": http, "metrics_port": metrics, "refresh_s": 0.5}
        silent = [f"silent-{number}.test" for number in range(8)]
        pools = {name.partition(".")[0]: {"replicas": {"dns": {"host": name, **ports}}} for name in silent}
        pools["cpu"] = {"replicas": {"dns": {"host": NAME, **ports}}}
        never: dict[str, Any] = {name: {"delay_s": 60.0} for name in silent}
        answer(tmp_path, {NAME: {"addresses": [a.host]}, **never})
        models: dict[str, dict[str, Any]] = {
            "m": ROOMY,
            **{f"m-{pool}": {"pool": pool} for pool in pools if pool != "cpu"},
        }
        async with fleet_of(
            tmp_path, fakes, models, more={"pools": pools}, module="tests.support.resolving_gateway", wait_for=()
        ) as fleet:

            async def serves() -> bool:
                try:
                    return (await fleet.get("http", "/v2/models/m/ready"))[0] == 200
                except OSError:
                    return False  # not listening yet; the whole gateway is not ready as long as the silent pools are

            await until_async(serves, "the good name is taken up")
            async with Traffic(fleet, "m") as load:
                answer(tmp_path, {NAME: {"addresses": [a.host, b.host]}, **never})
                await until(lambda: bool(b.requests("load")), "the change of the one good name is taken up")
                assert await fleet.metric("sluice_calls_total", model="m") > 0
            assert not load.failed
            assert lookups(tmp_path, *silent) == len(silent), "each is asked once, however often it is due"


# --- long forms ------------------------------------------------------------------------------------------------------


@pytest.mark.field
async def test_4_a_name_that_does_not_exist_for_thirty_seconds_and_then_is_empty_changes_nothing(
    tmp_path: Path,
) -> None:
    async with asyncio.timeout(LIMIT_S), running(2, M) as fakes:
        async with before(tmp_path, fakes, fakes, 2.0, "m") as fleet, Traffic(fleet, "m") as load:
            answer(tmp_path, {NAME: {}})
            await asyncio.sleep(30)
            assert "Name or service not known" in (await addresses_of(fleet))["alarm"]
            answer(tmp_path, {NAME: {"addresses": []}})
            await asyncio.sleep(10)
            assert "no replicas" in (await addresses_of(fleet))["alarm"]
            assert len(await fleet.takers("m")) == 2
        assert load.good > 1000
        assert not load.failed


async def addresses_of(fleet: FakeFleet) -> dict[str, Any]:
    """What the admin port says of how the pool's addresses are found."""
    _, body = await fleet.get("admin", "/v1/fleet")
    found: dict[str, Any] = json.loads(body)["pools"]["cpu"]["addresses"]
    return found


async def late(fleet: FakeFleet) -> tuple[float, float]:
    """How many of the loop's timers so far were over 50 ms late, and how many over a second."""
    name = "sluice_event_loop_lag_seconds"
    await asyncio.sleep(0.6)  # the page may be half a second old
    count = await fleet.metric(f"{name}_count")
    return count - await fleet.metric(f"{name}_bucket", le="0.05"), count - await fleet.metric(
        f"{name}_bucket", le="1.0"
    )


@pytest.mark.field
async def test_5_a_resolver_that_takes_eight_seconds_does_not_hold_up_the_loop(tmp_path: Path) -> None:
    async with asyncio.timeout(LIMIT_S), running(3, M) as fakes:
        a, b, c = fakes
        async with before(tmp_path, fakes, [a, b], 2.0, "m") as fleet, Traffic(fleet, "m") as load:
            windows = []
            for delay_s in (0.0, 8.0):
                resolve(tmp_path, a, b, delay_s=delay_s)
                start, good = await late(fleet), load.good
                await asyncio.sleep(25)
                end = await late(fleet)
                windows.append([after - begun for after, begun in zip(end, start, strict=True)])
                assert load.good > good + 500
            (control, _), (slow, blocked) = windows
            assert blocked == 0, "a look-up on the loop would be eight seconds late"
            assert slow <= control + 2, f"{slow:g} timers over 50 ms late, {control:g} without the slow resolver"
            # An answer that comes late is taken up all the same.
            resolve(tmp_path, a, b, c, delay_s=8.0)
            await until(lambda: bool(c.requests("load")), "the third one is called", 40)
        assert not load.failed


@pytest.mark.field
async def test_6_a_list_that_flips_each_second_for_two_minutes_leaves_nothing_behind(tmp_path: Path) -> None:
    async with asyncio.timeout(LIMIT_S), running(4, M) as fakes:
        async with before(tmp_path, fakes, fakes[:2], 0.5, "m") as fleet, Traffic(fleet, "m") as load:
            begun = lookups(tmp_path, NAME)
            sizes = []
            for turn in range(120):
                resolve(tmp_path, *(fakes[2:] if turn % 2 == 0 else fakes[:2]))
                await asyncio.sleep(1)
                if turn in (19, 119):
                    sizes.append(await size(fleet))
            asked = lookups(tmp_path, NAME) - begun
            resolve(tmp_path, *fakes[:2])
            await fleet.serving("m", fakes=fakes[:2])
            await until_async(lambda: settled(fleet), "nothing but the two is left", 90)
        assert not load.failed
        assert load.good > 5000
        early, end = sizes
        assert len(end["replicas"]) <= 4, "one label per address"
        assert end["series"] <= early["series"] + 20
        assert end["rss_bytes"] - early["rss_bytes"] < 20 * 1024 * 1024
        assert end["fds"] <= early["fds"] + 12
        assert end["tasks"] <= early["tasks"] + 60
        assert asked <= 120 * 2.5, "one look-up per refresh, whatever the answers say"


async def size(fleet: FakeFleet) -> dict[str, Any]:
    await asyncio.sleep(0.6)
    samples = await fleet.samples()
    return {
        "replicas": {sample.labels["replica"] for sample in samples if "replica" in sample.labels},
        "series": len(samples),
        "rss_bytes": await fleet.metric("process_resident_memory_bytes"),
        "fds": await fleet.metric("process_open_fds"),
        "tasks": await fleet.metric("sluice_event_loop_tasks"),
    }


async def settled(fleet: FakeFleet) -> bool:
    _, body = await fleet.get("admin", "/v1/fleet")
    document = json.loads(body)
    shown = json.dumps(document["statistics"])
    return (
        len(document["pools"]["cpu"]["replicas"]) == 2
        and '"connections_leaving": 0' in shown
        and '"replicas_kept": 0' in shown
    )
