"""FH-09: each model version counts by its own readiness; the server's flag says too much or too little.

On the virtual clock, over directory, catalogue and transport. That the two protocols say the same (f) is a matter of
the edges: both ask the catalogue, whose answers are held to the same flags here; over real ports, with both protocols
asked, the case stands once more in `test_fh09_on_ports.py`.
"""

from __future__ import annotations

import asyncio
import logging

import pytest

from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason
from gateway.core.faults import UpstreamFault
from gateway.core.snapshot import ModelState
from gateway.policy.schema import Health
from tests.simulation.batcher import ModelSpec
from tests.simulation.triton import Lie
from tests.unit.fleet_world import POOL, FleetWorld, Load, run

A, B = "10.0.0.1", "10.0.0.2"
M1, M2, M3 = ModelSpec("m1"), ModelSpec("m2"), ModelSpec("m3", load_s=20.0, named_at_start=False)


class Flags:
    """The answers to `ModelReady`, by host and model; who is not named here is ready. Inference works all the while."""

    def __init__(self, world: FleetWorld) -> None:
        self.not_ready: set[tuple[str, str]] = set()
        for client in world.network.clients:
            self._turn(client, client.address.partition(":")[0])

    def _turn(self, client: object, host: str) -> None:
        async def model_ready(model: str, version: str, timeout_s: float) -> bool:
            await asyncio.sleep(0.0005)
            return (host, model) not in self.not_ready

        client.model_ready = model_ready  # type: ignore[attr-defined]


async def all_ready(world: FleetWorld, *models: str) -> None:
    await world.until(lambda: all(world.takers(model) == {A, B} for model in models))


def changes(caplog: pytest.LogCaptureFixture, model: str) -> list[str]:
    said = [record.getMessage() for record in caplog.records if record.name == "sluice.fleet"]
    return [each for each in said if " -> " in each and f"model {model!r}" in each]


def test_a_a_model_that_is_not_ready_on_a_ready_server_is_called_elsewhere_only() -> None:
    async def main(world: FleetWorld) -> None:
        await all_ready(world, "m1", "m2")
        Flags(world).not_ready.add((A, "m1"))
        assert await world.until(lambda: world.takers("m1") == {B}) < 2
        async with Load(world, "m1") as m1, Load(world, "m2") as m2:
            await asyncio.sleep(5)
            assert set(m1.answered) == {B}
            assert set(m2.answered) == {A, B}
            assert not m1.failed
            assert not m2.failed
        assert world.catalogue.model_ready("m1", "")

    run(main, M1, M2)


def test_b_a_server_that_is_not_ready_while_a_model_loads_keeps_the_traffic_of_its_others() -> None:
    async def main(world: FleetWorld) -> None:
        await all_ready(world, "m1", "m2")
        async with Load(world, "m1") as m1, Load(world, "m2") as m2:
            world.tritons[A].lie = Lie.NOT_READY
            world.tritons[A].load("m3", "1")
            await asyncio.sleep(20)
            assert m1.answered[A] > 1000
            assert m2.answered[A] > 1000
            assert not m1.failed
            assert not m2.failed
        world.tritons[A].lie = Lie.NONE
        await world.until(lambda: world.takers("m3") == {A}, 3)

    run(main, M1, M2, M3)


def test_c_a_fleet_whose_servers_all_say_not_ready_still_serves() -> None:
    async def main(world: FleetWorld) -> None:
        for triton in world.tritons.values():
            triton.lie = Lie.NOT_READY
        await all_ready(world, "m1")
        async with Load(world, "m1") as load:
            await asyncio.sleep(10)
            assert load.answered.total() > 1500
            assert not load.failed
        assert world.catalogue.server_ready()

    run(main, M1)


@pytest.mark.parametrize("interval_ms", [200, 300, 400, 500, 1000])
def test_d_a_flag_that_toggles_costs_no_call_and_changes_the_state_less_than_ten_times(
    interval_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(world: FleetWorld) -> None:
        await all_ready(world, "m1")
        flags = Flags(world)
        caplog.clear()
        async with Load(world, "m1") as load:
            for turn in range(50):
                (flags.not_ready.add if turn % 2 == 0 else flags.not_ready.discard)((A, "m1"))
                await asyncio.sleep(0.2)
            assert not load.failed
            assert load.answered[B]
        assert len(changes(caplog, "m1")) < 10

    caplog.set_level(logging.INFO, "sluice.fleet")
    run(main, M1, health=Health(interval_ms=interval_ms))


@pytest.mark.parametrize("interval_ms", [200, 300, 400, 500, 1000])
def test_d_the_same_on_all_replicas_at_once_never_leaves_nobody(
    interval_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(world: FleetWorld) -> None:
        await all_ready(world, "m1")
        flags = Flags(world)
        caplog.clear()
        async with Load(world, "m1") as load:
            for turn in range(50):
                flags.not_ready = {(A, "m1"), (B, "m1")} if turn % 2 == 0 else set()
                await asyncio.sleep(0.2)
            assert not load.failed
        assert len(changes(caplog, "m1")) < 10

    caplog.set_level(logging.INFO, "sluice.fleet")
    run(main, M1, health=Health(interval_ms=interval_ms))


def test_e_a_model_that_is_ready_nowhere_is_not_ready_and_the_gateway_lives() -> None:
    async def main(world: FleetWorld) -> None:
        await all_ready(world, "m1", "m2")
        Flags(world).not_ready = {(A, "m1"), (B, "m1")}
        await world.until(lambda: not world.catalogue.model_ready("m1", ""), 3)
        assert world.catalogue.server_live()
        assert world.catalogue.model_ready("m2", "")
        assert not world.catalogue.model_ready("m1", "1")
        for triton in world.tritons.values():
            triton.crash()
        await world.until(lambda: not world.catalogue.model_ready("m2", ""), 3)
        assert world.catalogue.server_live()
        assert not world.catalogue.server_ready()

    run(main, M1, M2)


def test_f_every_answer_of_the_catalogue_follows_the_flags_of_the_models_alone() -> None:
    async def main(world: FleetWorld) -> None:
        await all_ready(world, "m1", "m2")
        flags = Flags(world)
        for nobody in (set(), {"m1"}, {"m1", "m2"}, {"m2"}, set[str]()):
            flags.not_ready = {(host, model) for host in (A, B) for model in nobody}
            for host in (A, B):
                world.tritons[host].lie = Lie.NOT_READY if "m2" in nobody else Lie.NONE
            await asyncio.sleep(5)
            for model in ("m1", "m2"):
                assert world.catalogue.model_ready(model, "") == (model not in nobody)
                assert world.catalogue.model_ready(model, "1") == (model not in nobody)

    run(main, M1, M2)


def test_a_version_that_a_call_finds_gone_gets_no_call_sent_after_that_answer() -> None:
    async def main(world: FleetWorld) -> None:
        await all_ready(world, "m1", "m2")
        async with Load(world, "m1", every_s=0.0005) as load:
            await asyncio.sleep(0.5)
            unloaded_s = world.loop.time()
            world.tritons[A].unload("m1")
            await world.until(lambda: world.takers("m1") == {B}, 0.05)
            await asyncio.sleep(3)
            assert 1 <= len(load.failed) <= 10, "those that were out when the first answer came"
            first_s = min(sent_s for sent_s, _, _ in load.failed)
            assert all(sent_s < first_s + 0.005 for sent_s, _, _ in load.failed)
            assert load.sent_s[A] < unloaded_s + 0.01
            assert {reason for _, _, reason in load.failed} == {Reason.UPSTREAM_NOT_LOADED}
        assert world.takers("m2") == {A, B}
        replica = world.replica(A)
        assert replica is not None
        assert replica.models["m1", "1"].reason == "unloaded", "Triton's own word, from the probe that followed"
        world.tritons[A].load("m1", "1")
        await all_ready(world, "m1")

    run(main, M1, M2)


@pytest.mark.parametrize("period_s", [0.3, 1.0, 3.0])
def test_an_unload_and_load_loop_on_one_of_two_replicas_costs_the_calls_that_are_out_and_few_changes(
    period_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    """An attacker's finding: 780 of 4677 calls failed with `upstream_not_loaded`."""

    async def main(world: FleetWorld) -> None:
        await all_ready(world, "m1")
        caplog.clear()
        async with Load(world, "m1") as load:
            for _ in range(int(24 / period_s)):
                world.tritons[A].unload("m1")
                await asyncio.sleep(period_s / 2)
                world.tritons[A].load("m1", "1")
                await asyncio.sleep(period_s / 2)
            assert load.answered.total() > 4500
            assert len(load.failed) <= 12
            assert {reason for _, _, reason in load.failed} <= {Reason.UPSTREAM_NOT_LOADED}
        assert len([each for each in changes(caplog, "m1") if "warmed" in each]) < 10
        await world.until(lambda: world.takers("m1") == {A, B}, 60)

    caplog.set_level(logging.INFO, "sluice.fleet")
    run(main, ModelSpec("m1", load_s=0.05))


def test_a_version_that_was_held_out_is_taken_in_at_once_when_nobody_else_has_it() -> None:
    async def main(world: FleetWorld) -> None:
        await all_ready(world, "m1")
        triton = world.tritons[A]
        for _ in range(4):
            await world.until(lambda: A in world.takers("m1"), 60)
            triton.unload("m1")
            with pytest.raises(GatewayError):
                await world.transport.send(world.call(A, "m1"))
            assert world.takers("m1") == {B}
            triton.load("m1", "1")
        await asyncio.sleep(3)
        assert world.takers("m1") == {B}, "held out"
        world.tritons[B].crash()
        await world.until(lambda: world.takers("m1") == {A}, 4)

    run(main, ModelSpec("m1", load_s=0.05))


def test_the_last_replica_of_a_version_stays_when_a_call_is_refused_and_leaves_by_probes() -> None:
    async def main(world: FleetWorld) -> None:
        await all_ready(world, "m1")
        world.tritons[B].crash()
        await world.until(lambda: world.takers("m1") == {A}, 3)
        world.tritons[A].unload("m1")
        with pytest.raises(GatewayError):
            await world.transport.send(world.call(A, "m1"))
        assert world.takers("m1") == {A}
        await world.until(lambda: not world.takers("m1"), 3)

    run(main, M1)


def test_a_refusal_over_a_connection_that_was_given_up_says_nothing_of_who_is_there_now() -> None:
    async def main(world: FleetWorld) -> None:
        await all_ready(world, "m1")
        client = next(each for each in world.network.clients if each.address == f"{A}:8001")
        answer = asyncio.get_running_loop().create_future()

        async def infer(
            message: bytes, metadata: object, timeout_s: float, tail: bytes = b"", attempt: object = None
        ) -> bytes:
            await answer
            raise UpstreamFault(Code.NOT_FOUND, "Request for unknown model: 'm1' is not found", from_peer=True)

        client.infer = infer  # type: ignore[method-assign]
        out = asyncio.ensure_future(world.transport.send(world.call(A, "m1", timeout_s=60.0)))
        await asyncio.sleep(0.1)
        world.network.black_hole(f"{A}:8001")
        await world.until(lambda: world.takers("m1") == {B}, 4)
        world.network.heal(f"{A}:8001")
        await all_ready(world, "m1")
        answer.set_result(None)
        with pytest.raises(GatewayError) as caught:
            await out
        assert caught.value.reason is Reason.UPSTREAM_NOT_LOADED
        await asyncio.sleep(2)
        assert world.takers("m1") == {A, B}

    run(main, M1)


def test_a_server_that_says_ready_and_refuses_every_call_is_held_out_by_its_warm_up() -> None:
    async def main(world: FleetWorld) -> None:
        await all_ready(world, "m1")
        async with Load(world, "m1") as load:
            world.tritons[A].lie = Lie.GONE
            await asyncio.sleep(20)
            assert world.model_state(A, "m1") is ModelState.READY
            assert len(load.failed) <= 3
        world.tritons[A].lie = Lie.NONE
        await world.until(lambda: world.takers("m1") == {A, B}, 15)
        assert world.directory.snapshot.candidates(POOL, "m1", "1")

    run(main, M1)
