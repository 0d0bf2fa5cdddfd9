"""What a change of one model on one replica costs the fleet's snapshot: not the whole fleet anew."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.snapshot import FleetSnapshot, ReplicaView
from gateway.fleet.connection import Connection
from gateway.fleet.directory import SHOWN_WITHIN_S
from gateway.fleet.model_record import ModelRecord
from gateway.fleet.replica import Replica
from tests.simulation.batcher import ModelSpec
from tests.unit.fleet_world import POOL, FleetWorld, run

HOSTS = tuple(f"10.0.0.{number}" for number in range(1, 5))
NAMES = tuple(f"m{number:02}" for number in range(20))
SPECS = tuple(ModelSpec(name) for name in NAMES)


async def ready(world: FleetWorld) -> None:
    await world.until(lambda: all(world.takers(name) == set(HOSTS) for name in NAMES))
    await asyncio.sleep(2 * SHOWN_WITHIN_S)


def views(world: FleetWorld) -> dict[str, ReplicaView]:
    return {each.id: each for each in world.directory.snapshot.replicas}


def answered(world: FleetWorld, host: str, name: str) -> None:
    replica = f"{POOL}/{host}:8001"
    connection = world.directory.connection(replica)
    assert connection is not None
    world.directory.note_answer(replica, connection, name, "1", world.loop.time())


def test_the_first_answers_of_many_models_make_one_snapshot_and_tell_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(world: FleetWorld) -> None:
        await ready(world)
        made: list[str] = []
        real = Replica.view

        def view(self: Replica) -> ReplicaView:
            made.append(self.id)
            return real(self)

        monkeypatch.setattr(Replica, "view", view)
        number, told = world.directory.snapshot.number, len(world.snapshots)
        for host in HOSTS:
            for name in NAMES:
                answered(world, host, name)
                await asyncio.sleep(0)  # each in a turn of its own
        assert world.directory.snapshot.number - number <= 1
        await asyncio.sleep(SHOWN_WITHIN_S + 0.01)
        # Probes and scrapes have things of their own to show in that time.
        assert len(made) <= 3 * len(HOSTS) < len(HOSTS) * len(NAMES)
        assert len(world.snapshots) == told, "no call is steered by a first answer"
        for each in world.directory.snapshot.replicas:
            assert each.phases.first_answer_s is not None
            assert all(model.phases.first_answer_s is not None for model in each.models.values())

    run(main, *SPECS, hosts=HOSTS)


def test_an_answer_over_a_connection_that_is_not_the_replica_s_any_more_says_nothing_of_it() -> None:
    async def main(world: FleetWorld) -> None:
        await ready(world)
        replica = f"{POOL}/{HOSTS[0]}:8001"
        connection = world.directory.connection(replica)
        assert connection is not None
        other = Connection(connection.client)
        world.directory.note_answer(replica, other, NAMES[0], "1", world.loop.time())
        world.directory.note_answer("nobody", connection, NAMES[0], "1", world.loop.time())
        world.directory._publish()
        assert views(world)[replica].phases.first_answer_s is None

    run(main, *SPECS, hosts=HOSTS)


def test_only_the_model_that_changed_is_viewed_anew() -> None:
    async def main(world: FleetWorld) -> None:
        await ready(world)
        replica = f"{POOL}/{HOSTS[0]}:8001"
        before = views(world)
        answered(world, HOSTS[0], NAMES[3])
        world.directory._publish()
        after = views(world)
        assert all(after[each] is before[each] for each in before if each != replica)
        changed = [key for key, each in after[replica].models.items() if each is not before[replica].models[key]]
        assert changed == [(NAMES[3], "1")]

    run(main, *SPECS, hosts=HOSTS)


def test_a_first_answer_is_shown_with_the_next_change_if_that_comes_sooner() -> None:
    async def main(world: FleetWorld) -> None:
        await ready(world)
        answered(world, HOSTS[0], NAMES[0])
        world.directory.refused(f"{POOL}/{HOSTS[1]}:8001", NAMES[1], "1", world.loop.time(), "not here")
        assert world.takers(NAMES[1]) == {HOSTS[0], *HOSTS[2:]}
        assert views(world)[f"{POOL}/{HOSTS[0]}:8001"].phases.first_answer_s is not None

    run(main, *SPECS, hosts=HOSTS)


def test_a_directory_that_stops_leaves_no_timer_for_what_was_to_be_shown() -> None:
    async def main(world: FleetWorld) -> None:
        await ready(world)
        answered(world, HOSTS[0], NAMES[0])
        number = world.directory.snapshot.number
        await world.directory.stop()
        answered(world, HOSTS[0], NAMES[1])
        await asyncio.sleep(2 * SHOWN_WITHIN_S)
        assert world.directory.snapshot.number == number

    run(main, *SPECS, hosts=HOSTS)


def test_a_change_that_steers_calls_is_told_at_once_and_over_what_was_there() -> None:
    async def main(world: FleetWorld) -> None:
        await ready(world)
        before, told = world.directory.snapshot, len(world.snapshots)
        world.directory.refused(f"{POOL}/{HOSTS[1]}:8001", NAMES[1], "1", world.loop.time(), "not here")
        after = world.directory.snapshot
        assert world.snapshots[told:] == [after]
        assert isinstance(after, FleetSnapshot)
        same = [name for name in NAMES if after.candidates(POOL, name, "1") is before.candidates(POOL, name, "1")]
        assert same == [name for name in NAMES if name != NAMES[1]]

    run(main, *SPECS, hosts=HOSTS)


def test_a_record_gives_the_same_view_until_something_is_new() -> None:
    record = ModelRecord(1.0)
    first = record.view(("m", "1"))
    assert record.view(("m", "1")) is first
    record.reason = "why"
    record.stale()
    assert record.view(("m", "1")).reason == "why"
