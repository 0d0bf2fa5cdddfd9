"""The directory over in-memory Tritons: what gets traffic, when it stops getting it, and how soon."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Any

import pytest

from gateway.core.codes import Code
from gateway.core.errors import GatewayError
from gateway.core.faces import IndexEntry, SilentFleetObserver
from gateway.core.faults import UpstreamFault
from gateway.core.snapshot import ModelState, ReplicaState
from gateway.fleet.directory import SHOWN_WITHIN_S
from gateway.fleet.nudge import Nudge
from gateway.policy.schema import Admission, Health
from tests.simulation.batcher import ModelSpec
from tests.simulation.triton import Lie, Metrics
from tests.unit.fleet_world import FleetWorld, Warmup, run, static

A, B = "10.0.0.1", "10.0.0.2"


def test_a_replica_gets_traffic_only_after_every_start_phase_in_order() -> None:
    async def main(world: FleetWorld) -> None:
        await world.until(lambda: world.takers("m") == {A, B})
        replica = world.replica(A)
        assert replica is not None
        phases = replica.phases
        times = [phases.seen_s, phases.connected_s, phases.live_s, phases.ready_s, phases.warmed_s]
        assert None not in times
        assert times == sorted(times)  # type: ignore[type-var]
        assert phases.first_answer_s is None
        reply = await world.transport.send(world.call(A, "m"))
        assert reply.message
        await asyncio.sleep(SHOWN_WITHIN_S)
        await asyncio.sleep(0)
        replica = world.replica(A)
        assert replica is not None
        assert replica.phases.first_answer_s is not None
        assert replica.models["m", "1"].phases.first_answer_s == replica.phases.first_answer_s

    run(main)


def test_no_snapshot_ever_shows_a_replica_that_was_not_warmed() -> None:
    async def main(world: FleetWorld) -> None:
        executed_at_first: dict[str, int] = {}

        def listen(snapshot: object) -> None:
            for host in world.takers("m"):
                executed_at_first.setdefault(host, sum(world.tritons[host].executed.values()))

        world.directory.subscribe(listen)
        await world.until(lambda: world.takers("m") == {A, B})
        assert executed_at_first == {A: 3, B: 3}

    run(main, policies={"m": {"warmup": Warmup(calls=3)}})


def test_warm_up_that_fails_is_tried_again_and_no_traffic_comes_before() -> None:
    async def main(world: FleetWorld) -> None:
        world.tritons[A].lie = Lie.FAST_ERRORS
        await world.until(lambda: world.takers("m") == {B})
        await asyncio.sleep(3)
        assert world.model_state(A, "m") is ModelState.READY
        replica = world.replica(A)
        assert replica is not None
        assert "warm-up" in replica.models["m", "1"].reason
        world.tritons[A].lie = Lie.NONE
        await world.until(lambda: world.takers("m") == {A, B}, 15)

    run(main)


def test_a_model_that_the_policy_does_not_warm_gets_traffic_and_says_so() -> None:
    async def main(world: FleetWorld) -> None:
        await world.until(lambda: world.takers("m") == {A, B})
        assert not world.tritons[A].executed
        replica = world.replica(A)
        assert replica is not None
        assert replica.models["m", "1"].warmup.startswith("not warmed: the policy wants no")

    run(main, policies={"m": {"warmup": Warmup(calls=0)}})


def test_the_log_tells_of_a_replica_that_goes_down_and_of_one_that_never_came(caplog: pytest.LogCaptureFixture) -> None:
    async def main(world: FleetWorld) -> None:
        await world.until(lambda: len(world.takers("m")) == 1)
        await asyncio.sleep(5.0)
        world.tritons[A].crash()
        await world.until(lambda: world.state(A) is ReplicaState.DOWN)
        await asyncio.sleep(30.0)

    with caplog.at_level("INFO", logger="sluice.fleet"):
        run(main, hosts=(A,), replicas=static(A, B))
    lines = [record.getMessage() for record in caplog.records]
    assert len([line for line in lines if f"{A}:8001 is down" in line]) == 1
    never = [record for record in caplog.records if f"{B}:8001 has not answered yet" in record.getMessage()]
    assert len(never) == 1, "once, not with every probe"
    assert never[0].levelname == "WARNING"
    formats = {record.msg for record in caplog.records if "model" in record.msg}
    assert not any("is down" in text for text in formats), "model lines must not use up the limit of replica lines"


@pytest.mark.parametrize(("slots", "warned"), [(None, 2), (64, 0)])
def test_the_log_tells_of_decoupled_models_whose_slots_are_a_guess(
    slots: int | None, warned: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(world: FleetWorld) -> None:
        await world.until(lambda: len(world.takers("m")) == 2)
        await asyncio.sleep(120.0)  # described again meanwhile

    policies = {"m": {"admission": Admission(slots_per_replica=slots)}}
    with caplog.at_level("WARNING", logger="sluice.fleet"):
        run(main, ModelSpec("m", decoupled=True), policies=policies)
    told = [text for record in caplog.records if "slots_per_replica" in (text := record.getMessage())]
    assert len(told) == warned, "once for each replica"


def test_failed_probes_and_warm_up_calls_are_reported() -> None:
    class Counts(SilentFleetObserver):
        def __init__(self) -> None:
            self.seen: Counter[str] = Counter()

        def probe_failed(self, replica: str, probe: str) -> None:
            assert replica.endswith("10.0.0.1:8001")
            self.seen[probe] += 1

        def warmup_call(self, model: str, *, ok: bool) -> None:
            self.seen[f"{model} {'ok' if ok else 'failed'}"] += 1

    counts = Counts()

    async def main(world: FleetWorld) -> None:
        await world.until(lambda: len(world.takers("m")) == 2)
        world.tritons["10.0.0.1"].crash()
        await world.until(lambda: world.state("10.0.0.1") is ReplicaState.DOWN)
        await asyncio.sleep(2.0)

    run(main, observer=counts, policies={"m": {"warmup": Warmup(calls=2)}})
    assert counts.seen["m ok"] == 4
    assert counts.seen["liveness"] >= 2
    assert counts.seen["scrape"] >= 1


def test_a_slow_warm_up_delays_neither_probes_nor_other_models() -> None:
    async def main(world: FleetWorld) -> None:
        await world.until(lambda: world.takers("quick") == {A, B}, 2)
        assert not world.takers("slow")
        world.tritons[A].crash()
        await world.until(lambda: world.state(A) is ReplicaState.DOWN, 2)
        await world.until(lambda: world.takers("slow") == {B}, 60)

    run(main, ModelSpec("slow", s0_s=10.0), ModelSpec("quick"))


def test_a_killed_replica_is_down_within_two_seconds_and_starts_anew_when_it_returns() -> None:
    async def main(world: FleetWorld) -> None:
        await world.until(lambda: world.takers("m") == {A, B})
        before = world.replica(A)
        world.tritons[A].crash()
        assert await world.until(lambda: world.state(A) is ReplicaState.DOWN) < 2.0
        assert world.takers("m") == {B}
        executed = sum(world.tritons[A].executed.values())
        world.tritons[A].start()
        await world.until(lambda: world.takers("m") == {A, B}, 5)
        after = world.replica(A)
        assert before is not None
        assert after is not None
        assert before.phases.warmed_s is not None
        for name in ("connected_s", "live_s", "ready_s", "warmed_s"):
            assert getattr(after.phases, name) > before.phases.warmed_s, name
        assert sum(world.tritons[A].executed.values()) >= executed + 3, "it was warmed again"

    run(main)


def test_a_failed_call_shows_a_lost_connection_long_before_the_next_probe() -> None:
    async def main(world: FleetWorld) -> None:
        await world.until(lambda: world.takers("m") == {A, B})
        await asyncio.sleep(2)
        world.tritons[A].crash()
        with pytest.raises(Exception, match="connection"):
            await world.transport.send(world.call(A, "m"))
        assert await world.until(lambda: world.state(A) is ReplicaState.DOWN) < 0.6

    run(main, health=Health(interval_ms=30_000))


def test_a_frozen_replica_is_down_after_two_unanswered_liveness_calls_and_no_sooner() -> None:
    async def main(world: FleetWorld) -> None:
        await world.until(lambda: world.takers("m") == {A, B})
        world.tritons[A].freeze()
        took_s = await world.until(lambda: world.state(A) is ReplicaState.DOWN)
        assert 0.25 < took_s < 2.0, "a probe's interval, its time limit, and a re-check's distance"
        world.tritons[A].thaw()
        await world.until(lambda: world.takers("m") == {A, B}, 5)

    run(main, health=Health(interval_ms=500))


def test_one_unanswered_liveness_call_takes_nothing_away() -> None:
    async def main(world: FleetWorld) -> None:
        await world.until(lambda: world.takers("m") == {A, B})
        before = len(world.snapshots)
        for _ in range(20):
            world.tritons[A].freeze()
            await asyncio.sleep(0.35)
            world.tritons[A].thaw()
            await asyncio.sleep(1.3)
        assert all(s.candidates("gpu", "m", "1")[0].replica == f"gpu/{A}:8001" for s in world.snapshots[before:])
        assert world.state(A) is ReplicaState.LIVE

    run(main, health=Health(timeout_ms=400))


def test_a_black_hole_that_heals_is_used_again_soon() -> None:
    async def main(world: FleetWorld) -> None:
        await world.until(lambda: world.takers("m") == {A, B})
        world.network.black_hole(f"{A}:8001")
        await world.until(lambda: world.state(A) is ReplicaState.DOWN, 4)
        await asyncio.sleep(5)
        world.network.heal(f"{A}:8001")
        assert await world.until(lambda: world.takers("m") == {A, B}) < 2.5

    run(main)


def test_a_connection_that_does_not_answer_is_replaced_and_closed_when_its_last_call_has_ended() -> None:
    async def main(world: FleetWorld) -> None:
        await world.until(lambda: world.takers("m") == {A, B})
        old = next(client for client in world.network.clients if client.address == f"{A}:8001")
        out = asyncio.ensure_future(world.transport.send(world.call(A, "m", timeout_s=20.0)))
        world.tritons[A].freeze()
        await world.until(lambda: world.state(A) is ReplicaState.DOWN, 4)
        await asyncio.sleep(1)
        assert not old.closed
        world.tritons[A].thaw()
        await out
        await world.until(lambda: old.closed, 1)
        await world.until(lambda: world.takers("m") == {A, B}, 4)

    run(main)


@pytest.mark.parametrize("stopping", [False, True])
def test_one_refused_connection_or_a_word_of_stopping_is_enough(stopping: bool) -> None:
    async def main(world: FleetWorld) -> None:
        await world.until(lambda: world.takers("m") == {A, B})
        await asyncio.sleep(1)
        if stopping:
            client = next(client for client in world.network.clients if client.address == f"{A}:8001")

            async def exiting(timeout_s: float) -> bool:
                raise UpstreamFault(Code.UNAVAILABLE, "Server exiting", from_peer=True)

            client.server_live = exiting  # type: ignore[method-assign]
        else:
            world.tritons[A].crash()
        world.directory.hint(f"gpu/{A}:8001", "", "")
        assert await world.until(lambda: world.state(A) is ReplicaState.DOWN) < 0.3

    run(main, health=Health(interval_ms=30_000, failures_to_down=10))


def test_a_change_that_changes_nothing_is_not_published() -> None:
    async def main(world: FleetWorld) -> None:
        await world.until(lambda: world.takers("m") == {A, B})
        before = len(world.snapshots)
        for member in world.directory._members.values():
            world.directory._member_changed(member)
        await asyncio.sleep(0.001)
        assert len(world.snapshots) == before

    run(main)


def test_stopping_the_directory_twice_ends_nobody_elses_jobs() -> None:
    async def main(world: FleetWorld) -> None:
        async def wait() -> None:
            await asyncio.sleep(3600)

        world.supervisor.start("another", wait)
        await world.until(lambda: world.takers("m") == {A, B})
        await world.directory.stop()
        await world.directory.stop()
        assert world.supervisor.statistics(0.0)["running"] == ["another"]
        await world.supervisor.stop("another")

    run(main)


async def test_a_nudge_ends_a_sleep_at_once_also_one_that_has_not_begun() -> None:
    nudge = Nudge()
    async with asyncio.timeout(5):
        nudge.give()
        assert await nudge.sleep(3600)
        assert not await nudge.sleep(0.001)
        sleeping = asyncio.ensure_future(nudge.sleep(3600))
        await asyncio.sleep(0)
        nudge.give()
        nudge.give()
        assert await sleeping
        assert not await nudge.sleep(0.001)


def test_the_servers_own_readiness_changes_nothing() -> None:
    async def main(world: FleetWorld) -> None:
        world.tritons[A].lie = Lie.NOT_READY
        await world.until(lambda: world.takers("m") == {A, B})
        await asyncio.sleep(20)
        assert world.takers("m") == {A, B}
        assert world.takers("n") == {A, B}

    run(main, ModelSpec("m"), ModelSpec("n"))


def test_a_model_that_is_unloaded_leaves_within_an_interval_and_its_neighbour_stays() -> None:
    async def main(world: FleetWorld) -> None:
        await world.until(lambda: world.takers("m") == {A, B} and world.takers("n") == {A, B})
        world.tritons[A].unload("m")
        assert await world.until(lambda: world.takers("m") == {B}) < 1.6
        assert world.takers("n") == {A, B}
        assert world.state(A) is ReplicaState.LIVE
        world.tritons[A].load("m", "1")
        await world.until(lambda: world.takers("m") == {A, B}, 4)

    run(main, ModelSpec("m"), ModelSpec("n"))


def test_a_new_version_appears_next_to_the_old_one() -> None:
    async def main(world: FleetWorld) -> None:
        await world.until(lambda: world.takers("m", "1") == {A, B})
        world.tritons[A].load("m", "2", keep_old=True)
        await world.until(lambda: world.takers("m", "2") == {A}, 4)
        assert world.takers("m", "1") == {A, B}
        assert world.directory.snapshot.ready_versions("gpu", "m") == ("1", "2")

    run(main)


def test_a_readiness_that_flaps_makes_few_changes_and_never_empties_the_set() -> None:
    async def main(world: FleetWorld) -> None:
        await world.until(lambda: world.takers("m") == {A, B})
        before, changes, last = len(world.snapshots), 0, world.model_state(A, "m")

        def listen(snapshot: object) -> None:
            nonlocal changes, last
            if world.model_state(A, "m") is not last:
                changes, last = changes + 1, world.model_state(A, "m")

        world.directory.subscribe(listen)
        triton, steady = world.tritons[A], world.tritons[A].models["m"]["1"]
        for turn in range(50):
            steady.state = "UNAVAILABLE" if turn % 2 else "READY"
            await asyncio.sleep(0.2)
        steady.state = "READY"
        assert changes < 10
        assert all(snapshot.candidates("gpu", "m", "1") for snapshot in world.snapshots[before:])
        await world.until(lambda: world.takers("m") == {A, B})
        assert triton.listening

    run(main)


def test_the_last_replica_of_a_model_stays_while_calls_to_it_succeed_and_goes_when_they_stop() -> None:
    async def main(world: FleetWorld) -> None:
        await world.until(lambda: world.takers("m") == {A})
        client = world.network.clients[-1]

        async def never_ready(model: str, version: str, timeout_s: float) -> bool:
            return False

        client.model_ready = never_ready  # type: ignore[method-assign]
        for _ in range(50):
            await world.transport.send(world.call(A, "m"))
            await asyncio.sleep(0.1)
            assert world.takers("m") == {A}
        assert not world.catalogue.model_ready("m", ""), "it is kept, not recommended"
        await world.until(lambda: not world.takers("m"), 5)

    run(main, hosts=(A,))


def test_a_model_whose_calls_fail_although_it_says_ready_is_taken_off_and_comes_back() -> None:
    async def main(world: FleetWorld) -> None:
        await world.until(lambda: world.takers("m") == {A, B})
        world.tritons[A].lie = Lie.FAST_ERRORS
        with pytest.raises(Exception, match="out of luck"):
            await world.transport.send(world.call(A, "m"))
        await world.until(lambda: world.takers("m") == {B}, 2)
        assert world.model_state(A, "m") is ModelState.READY
        world.tritons[A].lie = Lie.NONE
        await world.until(lambda: world.takers("m") == {A, B}, 15)

    run(main)


def test_a_model_that_fails_some_calls_stays_in_service() -> None:
    async def main(world: FleetWorld) -> None:
        await world.until(lambda: world.takers("m") == {A, B})
        for turn in range(40):
            world.tritons[A].lie = Lie.FAST_ERRORS if turn % 4 == 0 else Lie.NONE
            with pytest.raises(GatewayError) if turn % 4 == 0 else contextlib.nullcontext():
                await world.transport.send(world.call(A, "m"))
            await asyncio.sleep(0.05)
            assert A in world.takers("m")

    run(main)


def test_hints_without_end_do_not_flood_a_replica_with_probes() -> None:
    async def main(world: FleetWorld) -> None:
        await world.until(lambda: world.takers("m") == {A, B})
        asked = 0
        client = next(c for c in world.network.clients if c.address == f"{A}:8001")
        real = client.server_live

        async def counted(timeout_s: float) -> bool:
            nonlocal asked
            asked += 1
            return await real(timeout_s)

        client.server_live = counted  # type: ignore[method-assign]
        for _ in range(2000):
            world.directory.hint(f"gpu/{A}:8001", "m", "1")
            world.directory.hint(f"gpu/{A}:8001", "", "")
            await asyncio.sleep(0.001)
        assert 4 <= asked <= 10, "one in 250 ms"

    run(main)


def test_figures_come_from_the_metrics_page_and_go_when_it_is_gone() -> None:
    async def main(world: FleetWorld) -> None:
        await world.until(lambda: world.takers("m") == {A, B})
        for _ in range(200):
            await world.transport.send(world.call(A, "m"))
        await world.until(lambda: _figures(world)[2] is not None, 3)
        pending, compute_us, fill = _figures(world)
        assert pending == 0
        assert compute_us is not None
        assert 3_000 < compute_us < 8_000
        assert fill == 1.0
        world.tritons[A].metrics = Metrics.GONE
        await world.until(lambda: _figures(world) == (None, None, None), 4)
        world.tritons[A].metrics = Metrics.GARBAGE
        await asyncio.sleep(3)
        assert world.state(A) is ReplicaState.LIVE

    run(main)


def _figures(world: FleetWorld) -> tuple[int | None, float | None, float | None]:
    replica = world.replica(A)
    assert replica is not None
    view = replica.models["m", "1"]
    return view.pending, view.compute_us, view.batch_fill


def test_a_warm_up_that_is_cancelled_or_hangs_does_not_keep_a_replica_out() -> None:
    async def main(world: FleetWorld) -> None:
        await world.until(lambda: world.model_state(A, "m") is ModelState.READY)
        for task in asyncio.all_tasks():
            if task.get_name().startswith("sluice:warm"):
                task.cancel()
        await asyncio.sleep(0.3)
        world.network.black_hole(f"{A}:8001")
        await world.until(lambda: world.state(A) is ReplicaState.DOWN, 5)
        world.network.heal(f"{A}:8001")
        await world.until(lambda: world.takers("m") == {A, B}, 10)

    run(main, ModelSpec("m", s0_s=0.5))


def test_a_server_that_refuses_its_index_is_asked_for_its_models_metadata() -> None:
    async def main(world: FleetWorld) -> None:
        async def refused(timeout_s: float) -> tuple[IndexEntry, ...]:
            raise UpstreamFault(Code.UNAVAILABLE, "This protocol is restricted", from_peer=True)

        await world.until(lambda: len(world.network.clients) == 2)
        for client in world.network.clients:
            client.repository_index = refused  # type: ignore[method-assign]
        await world.until(lambda: world.takers("m", "2") == {A, B} and world.takers("m", "1") == {A, B})
        world.tritons[A].models["m"]["2"].state = "UNAVAILABLE"
        await world.until(lambda: world.takers("m", "2") == {B}, 4)
        assert world.takers("m", "1") == {A, B}

    run(main, ModelSpec("m", versions=("1", "2")))


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("question", ["model_ready", "model_metadata", "model_config"])
def test_a_model_about_which_the_server_answers_nonsense_or_nothing_keeps_no_other_out(
    question: str, silent: bool
) -> None:
    async def main(world: FleetWorld) -> None:
        await world.until(lambda: len(world.network.clients) == 2)
        ill = {"a", "b"}
        for client in world.network.clients:
            real = getattr(client, question)

            async def answer(model: str, version: str, timeout_s: float, real: Any = real) -> Any:
                if model not in ill:
                    return await real(model, version, timeout_s)
                if silent:
                    await asyncio.sleep(timeout_s)
                    raise UpstreamFault(Code.DEADLINE_EXCEEDED, "nothing", from_peer=False)
                raise UpstreamFault(Code.INTERNAL, "Internal: cannot say", from_peer=True)

            setattr(client, question, answer)
        await world.until(lambda: world.takers("y") == world.takers("z") == {A, B}, 8)
        world.tritons[A].unload("y")
        assert await world.until(lambda: world.takers("y") == {B}) < 4
        if question != "model_ready" or silent:
            assert not world.takers("a")
        # The one that got well must not wait for the other, whoever of them was silent first or last.
        for well in ("b", "a"):
            ill = {"a", "b"} - {well}
            await world.until(lambda well=well: world.takers(well) == {A, B}, 8)  # type: ignore[misc]

    run(main, *(ModelSpec(name) for name in ("a", "b", "y", "z")))


def test_a_member_that_was_removed_makes_no_new_connection() -> None:
    async def main(world: FleetWorld) -> None:
        await world.until(lambda: world.takers("m") == {A, B})
        member = world.directory._members[f"gpu/{A}:8001"]
        world.directory._remove(member)
        before = len(world.network.clients)
        member.reconnect()
        assert len(world.network.clients) == before

    run(main)


def test_a_connection_that_cannot_be_closed_keeps_no_other_open(caplog: pytest.LogCaptureFixture) -> None:
    async def main(world: FleetWorld) -> None:
        await world.until(lambda: world.takers("m") == {A, B})
        first = world.directory._members[f"gpu/{A}:8001"].connection.client
        real = first.aclose

        async def broken() -> None:
            await real()
            raise RuntimeError("already gone")

        first.aclose = broken  # type: ignore[method-assign]

    run(main)
    assert "could not be closed" in caplog.text


def test_a_quiet_fleet_publishes_next_to_nothing() -> None:
    async def main(world: FleetWorld) -> None:
        await world.until(lambda: world.takers("m") == {A, B})
        await asyncio.sleep(5)
        before, told = world.directory.snapshot.number, len(world.snapshots)
        await asyncio.sleep(60)
        published = world.directory.snapshot.number - before
        assert published <= 2 * 7, "only the scrape's age, once in ten seconds per replica"
        assert len(world.snapshots) == told, "and no call is steered by that"

    run(main)


def test_a_background_loop_that_is_cancelled_comes_back_and_no_call_suffers() -> None:
    async def main(world: FleetWorld) -> None:
        await world.until(lambda: world.takers("m") == {A, B})
        out = [asyncio.ensure_future(world.transport.send(world.call(A, "m"))) for _ in range(20)]
        await asyncio.sleep(0.0005)
        for task in asyncio.all_tasks():
            if task.get_name().startswith("sluice:"):
                task.cancel()
        await asyncio.gather(*out)
        await asyncio.sleep(3)
        running = world.supervisor.statistics(0.0)["running"]
        assert sum(name.startswith("probe/") for name in running) == 2
        assert sum(name.startswith("scrape/") for name in running) == 2
        world.tritons[A].crash()
        await world.until(lambda: world.takers("m") == {B}, 3)

    run(main)


@pytest.mark.parametrize("seed", range(8))
def test_the_same_seed_makes_the_same_history(seed: int) -> None:
    histories = []

    async def main(world: FleetWorld) -> None:
        await world.until(lambda: world.takers("m") == {A, B})
        world.tritons[A].crash()
        await asyncio.sleep(1)
        world.tritons[A].start()
        await asyncio.sleep(3)
        histories.append([(s.number, s.replicas) for s in world.snapshots])

    run(main, seed=seed)
    run(main, seed=seed)
    assert histories[0] == histories[1]
