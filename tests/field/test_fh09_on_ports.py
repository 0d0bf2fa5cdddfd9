"""FH-09 once more on real ports: a gateway process before fakes with flags per model, asked over both protocols.

Whatever is asked here is asked over HTTP and gRPC, which must agree throughout (f): `FakeFleet.ready` and `live` hold
them together. The rules in all their cases stand in `test_fh09_readiness.py`, on the virtual clock; here the long forms
of (b) and (d) are for `make field`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.fake_fleet import PATIENT, Traffic, fleet_of, until_async
from tests.support.fake_triton import FakeModel, FakeTriton

LIMIT_S = 120
M1, M2, M3 = FakeModel("m1"), FakeModel("m2"), FakeModel("m3")
ROOMY = {"admission": {"slots_per_replica": 32, "queue_max": 4096}}
"""So that neither a test nor a gateway which stands still for a moment fills a queue."""
SELDOM = {**PATIENT, "interval_ms": 1000}
"""Between two probes there are surely answers, even on a busy machine."""


async def test_a_a_model_that_is_not_ready_on_a_ready_server_is_called_elsewhere_only(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(LIMIT_S),
        FakeTriton(M1, M2) as a,
        FakeTriton(M1, M2) as b,
        fleet_of(tmp_path, [a, b], {"m1": {}, "m2": {}}) as fleet,
    ):
        a.unready.add("m1")
        await fleet.serving("m1", fakes=[b])
        a.seen.clear()
        for number in range(40):
            for model in ("m1", "m2"):
                told = await fleet.call(("http", "grpc")[number % 2], model, fleet.next_id(model))
                assert told.ok, told
        assert not a.requests("m1")
        assert a.requests("m2")
        assert b.requests("m2")
        assert await fleet.ready("m1")
        assert await fleet.ready("m2")
        assert await fleet.ready()
        a.unready.clear()
        await fleet.serving("m1")


async def test_c_a_fleet_whose_servers_all_say_not_ready_still_serves(tmp_path: Path) -> None:
    async with asyncio.timeout(LIMIT_S), FakeTriton(M1) as a, FakeTriton(M1) as b:
        a.ready = b.ready = False
        async with fleet_of(tmp_path, [a, b], {"m1": {}}) as fleet:
            for number in range(20):
                assert (await fleet.call(("http", "grpc")[number % 2], "m1", fleet.next_id("c"))).ok
            assert await fleet.ready("m1")
            assert await fleet.ready(), "the gateway can serve"
            assert await fleet.live()


async def test_e_and_f_a_model_that_is_ready_nowhere_is_not_ready_and_the_gateway_lives(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(LIMIT_S),
        FakeTriton(M1, M2) as a,
        FakeTriton(M1, M2) as b,
        fleet_of(tmp_path, [a, b], {"m1": {}, "m2": {}}) as fleet,
    ):
        a.unready.add("m1")
        b.unready.add("m1")

        async def gone() -> bool:
            return not await fleet.ready("m1")

        await until_async(gone, "m1 is ready nowhere")
        assert await fleet.ready("m2")
        assert await fleet.ready()
        assert await fleet.live()
        for protocol in ("http", "grpc"):
            told = await fleet.call(protocol, "m1", fleet.next_id("e"))
            assert (told.code in (503, "UNAVAILABLE"), told.reason) == (True, "no_replica")
        await a.stop()
        await b.stop()

        async def all_gone() -> bool:
            return not await fleet.ready()

        await until_async(all_gone, "the gateway cannot serve")
        assert not await fleet.ready("m2")
        assert await fleet.live(), "whoever restarts it for that restarts the wrong one"
        await a.start()
        await until_async(lambda: fleet.ready("m2"), "m2 is back")
        assert await fleet.ready()


async def test_the_last_replica_is_kept_while_requests_on_it_succeed(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(LIMIT_S),
        FakeTriton(M1) as a,
        fleet_of(tmp_path, [a], {"m1": ROOMY}, pool={"health": SELDOM}) as fleet,
    ):
        async with Traffic(fleet, "m1") as load:
            a.unready.add("m1")
            asked = a.asked["ModelReady"]
            while a.asked["ModelReady"] < asked + 6:
                await asyncio.sleep(0.05)
            assert not await fleet.ready("m1"), "a last resort is not what it calls ready (e)"
            assert await fleet.takers("m1") == {a.addresses["grpc"]}
        assert load.good
        assert not load.failed

        async def gone() -> bool:
            return not await fleet.takers("m1")

        await until_async(gone, "nobody calls any more, so nothing speaks for it")


@pytest.mark.field
async def test_b_a_server_that_is_not_ready_for_twenty_seconds_keeps_the_traffic_of_its_others(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(LIMIT_S),
        FakeTriton(M1, M2) as a,
        FakeTriton(M1, M2) as b,
        fleet_of(tmp_path, [a, b], {"m1": ROOMY, "m2": ROOMY, "m3": {}}, wait_for=["m1", "m2"]) as fleet,
    ):
        a.ready = False
        a.models["m3"] = M3
        a.loading.add("m3")
        a.seen.clear()
        async with Traffic(fleet, "m1") as m1, Traffic(fleet, "m2") as m2:
            for _ in range(20):
                await asyncio.sleep(1)
                assert await fleet.ready("m1")
                assert await fleet.ready("m2")
                assert not await fleet.ready("m3")
                assert await fleet.ready()
        assert not m1.failed
        assert not m2.failed
        for model, load in (("m1", m1), ("m2", m2)):
            assert len(a.requests(f"load-{model}")) > load.good / 4, "half of it goes to a"
        a.loading.clear()
        a.ready = True
        await fleet.serving("m3", fakes=[a])


@pytest.mark.field
@pytest.mark.parametrize("everywhere", [False, True])
async def test_d_a_flag_that_toggles_for_ten_seconds_costs_no_call_and_few_changes(
    everywhere: bool, tmp_path: Path
) -> None:
    async with (
        asyncio.timeout(LIMIT_S),
        FakeTriton(M1) as a,
        FakeTriton(M1) as b,
        fleet_of(tmp_path, [a, b], {"m1": ROOMY}) as fleet,
    ):
        before = changes(fleet.gateway.log.read_text())
        async with Traffic(fleet, "m1", every_s=0.02) as load:
            for turn in range(50):
                for fake in (a, b) if everywhere else (a,):
                    (fake.unready.add if turn % 2 == 0 else fake.unready.discard)("m1")
                await asyncio.sleep(0.2)
                assert await fleet.ready("m1") or everywhere
        assert load.good > 100
        assert not load.failed
        assert changes(fleet.gateway.log.read_text()) - before < 10


def changes(log: str) -> int:
    """State changes of m1 that the log tells of."""
    return sum("model 'm1'" in line and " -> " in line for line in log.splitlines())
