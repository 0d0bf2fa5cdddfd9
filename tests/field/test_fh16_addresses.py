"""FH-16: new replicas behind the same name are used, old ones are left, and there is always somebody to call.

On the virtual clock, over the directory and the transport: what needs no layer above them. What needs real sockets,
threads and memory stands in `test_fh16_on_sockets.py`: streams that run over a change (2), the resolver that takes long
(5), and (6) once more with the size of the process.
"""

from __future__ import annotations

import asyncio
import logging

import pytest

from gateway.core.errors import GatewayError, Reason
from gateway.core.snapshot import ReplicaState
from gateway.fleet.departure import KEPT_S
from tests.simulation.batcher import ModelSpec
from tests.unit.fleet_world import POOL, FleetWorld, Load, dns, run, watched

A, B, C, D, E = HOSTS = ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5")
NAME = "pool.test"
FILE = "/policies/replicas.yaml"


def resolve(world: FleetWorld, *hosts: str) -> None:
    world.network.names[NAME] = hosts


def write(world: FleetWorld, *hosts: str) -> None:
    lines = (f"- {{grpc: '{host}:8001', http: '{host}:8000'}}\n" for host in hosts)
    world.files.contents[FILE] = "".join(lines).encode()


def kept(world: FleetWorld) -> int:
    count = world.directory.statistics(world.loop.time())["replicas_kept"]
    assert isinstance(count, int)
    return count


def open_connections(world: FleetWorld) -> int:
    return sum(not client.closed for client in world.network.clients)


def test_1_an_added_address_gets_its_share_within_five_seconds_and_no_call_fails() -> None:
    async def main(world: FleetWorld) -> None:
        resolve(world, A, B)
        await world.until(lambda: world.takers("m") == {A, B})
        async with Load(world, "m") as load:
            resolve(world, A, B, C)
            await world.until(lambda: C in load.answered, 5)
            before = load.answered.copy()
            await asyncio.sleep(5)
            share = load.answered - before
            assert share[C] > 0.3 * share.total()
            assert not load.failed

    run(main, hosts=HOSTS, replicas=dns())


def test_2_a_whole_new_list_has_all_calls_after_five_seconds_and_no_call_fails() -> None:
    async def main(world: FleetWorld) -> None:
        resolve(world, A, B)
        await world.until(lambda: world.takers("m") == {A, B})
        async with Load(world, "m") as load:
            await asyncio.sleep(1)
            changed_s = world.loop.time()
            resolve(world, D, E)
            await asyncio.sleep(8)
            assert not load.failed
            assert max(load.sent_s[A], load.sent_s[B]) < changed_s + 5
            assert load.answered[D]
            assert load.answered[E]
            assert {each.address for each in world.directory.snapshot.replicas} == {f"{D}:8001", f"{E}:8001"}

    run(main, hosts=HOSTS, replicas=dns())


def test_2_the_old_replicas_leave_in_the_very_snapshot_that_shows_the_first_new_one() -> None:
    async def main(world: FleetWorld) -> None:
        resolve(world, A, B)
        await world.until(lambda: world.takers("m") == {A, B})
        seen = len(world.snapshots)
        resolve(world, D, E)
        await world.until(lambda: world.takers("m") == {D, E}, 5)
        takers = [
            {each.replica.removeprefix(f"{POOL}/").removesuffix(":8001") for each in shot.candidates(POOL, "m", "1")}
            for shot in world.snapshots[seen:]
        ]
        assert all(takers)
        assert not [each for each in takers if each & {A, B} and each & {D, E}]
        assert kept(world) == 0
        await asyncio.sleep(1)
        assert open_connections(world) == 2

    run(main, hosts=HOSTS, replicas=dns())


def test_2_a_call_that_is_out_on_an_old_replica_finishes() -> None:
    async def main(world: FleetWorld) -> None:
        resolve(world, A, B)
        await world.until(lambda: world.takers("m") == {A, B}, 60)
        out = asyncio.ensure_future(world.transport.send(world.call(A, "m", timeout_s=30.0)))
        await asyncio.sleep(0.1)
        resolve(world, D, E)
        await world.until(lambda: world.state(A) is None, 30)
        assert (await out).message

    run(main, ModelSpec("m", s0_s=4.0), hosts=HOSTS, replicas=dns())


def test_3_old_replicas_that_are_dead_are_left_and_calls_fail_inside_the_first_refresh_only() -> None:
    async def main(world: FleetWorld) -> None:
        resolve(world, A, B)
        await world.until(lambda: world.takers("m") == {A, B})
        async with Load(world, "m") as load:
            await asyncio.sleep(1)
            changed_s = world.loop.time()
            resolve(world, D, E)
            world.tritons[A].crash()
            world.tritons[B].crash()
            await world.until(lambda: world.takers("m") == {D, E}, 5)
            await asyncio.sleep(3)
            assert load.failed, "both were dead before anybody knew"
            assert max(sent_s for sent_s, _, _ in load.failed) < changed_s + 4
            assert kept(world) == 0
            assert world.state(A) is None

    run(main, hosts=HOSTS, replicas=dns())


def test_3_a_kept_replica_that_dies_leaves_at_once() -> None:
    async def main(world: FleetWorld) -> None:
        resolve(world, A)
        await world.until(lambda: world.takers("m") == {A})
        world.tritons[D].crash()
        resolve(world, D)
        await world.until(lambda: kept(world) == 1, 3)
        assert world.takers("m") == {A}
        world.tritons[A].crash()
        assert await world.until(lambda: world.state(A) is None) < 2
        assert world.state(D) is ReplicaState.SEEN
        assert kept(world) == 0

    run(main, hosts=HOSTS, replicas=dns())


def test_4_a_failed_and_then_an_empty_answer_keep_the_last_good_set_and_no_call_fails() -> None:
    async def main(world: FleetWorld) -> None:
        resolve(world, A, B)
        await world.until(lambda: world.takers("m") == {A, B})
        async with Load(world, "m", every_s=0.02) as load:
            del world.network.names[NAME]
            await asyncio.sleep(30)
            assert world.directory.pools(world.loop.time())[POOL]["alarm"]
            resolve(world)
            await asyncio.sleep(30)
            assert world.takers("m") == {A, B}
            assert kept(world) == 0
            assert not load.failed

    run(main, hosts=HOSTS, replicas=dns())


def test_6_a_list_that_flips_each_second_fails_no_call_and_leaves_nothing_behind() -> None:
    async def main(world: FleetWorld) -> None:
        resolve(world, A, B)
        await world.until(lambda: world.takers("m") == {A, B})
        async with Load(world, "m", every_s=0.02) as load:
            for turn in range(120):
                resolve(world, *((D, E) if turn % 2 == 0 else (A, B)))
                await asyncio.sleep(1)
                assert len(world.directory.snapshot.replicas) <= 4
                assert open_connections(world) <= 8
            assert not load.failed
        await asyncio.sleep(5)
        running = world.supervisor.statistics(0.0)["running"]
        assert len(running) <= 5, running
        assert not [name for name in world.directory._jobs if name not in running]
        assert kept(world) == world.directory.statistics(0.0)["connections_leaving"] == 0
        assert open_connections(world) == 2

    run(main, hosts=HOSTS, replicas=dns())


@pytest.mark.parametrize("answers", [(A, B), (), None])
def test_6_the_resolver_is_asked_once_per_refresh_whatever_it_says(answers: tuple[str, ...] | None) -> None:
    """`refresh_s` alone decides it: not how long the answers are said to live, and not how many calls fail."""

    async def main(world: FleetWorld) -> None:
        resolve(world, A, B)
        await world.until(lambda: world.takers("m") == {A, B})
        if answers is None:
            del world.network.names[NAME]
        else:
            resolve(world, *answers)
        for triton in world.tritons.values():
            triton.crash()
        before = world.directory.pools(world.loop.time())[POOL]["lookups"]
        async with Load(world, "m", every_s=0.02) as load:
            await asyncio.sleep(60)
            assert load.failed
        looked = world.directory.pools(world.loop.time())[POOL]["lookups"] - before
        assert 29 <= looked <= 35

    run(main, hosts=(A, B), replicas=dns())


@pytest.mark.parametrize("every_s", [0.22, 0.6, 1.1])
def test_6_a_file_that_flaps_faster_than_servers_warm_never_leaves_nobody(every_s: float) -> None:
    """An attacker's finding: {A}, {B}, {A, B} every 0.22 s gave `no_replica` to every third call."""

    async def main(world: FleetWorld) -> None:
        write(world, A)
        await world.until(lambda: world.takers("m") == {A})
        async with Load(world, "m") as load:
            for turn in range(90):
                write(world, *((A,), (B,), (A, B))[turn % 3])
                await asyncio.sleep(every_s)
            assert not load.failed
            assert load.answered.total() > 3000

    run(main, ModelSpec("m", s0_s=0.02), hosts=(A, B), replicas=watched(refresh_s=0.2))


def test_7_an_address_that_comes_back_as_another_server_has_no_history_and_is_checked_first() -> None:
    async def main(world: FleetWorld) -> None:
        resolve(world, A, B)
        await world.until(lambda: world.takers("m") == {A, B})
        await world.transport.send(world.call(A, "m"))
        world.tritons[A].crash()
        resolve(world, B)
        await world.until(lambda: world.state(A) is None, 3)
        world.add(A, specs=(ModelSpec("m", versions=("3",)),))
        resolve(world, A, B)
        await world.until(lambda: world.takers("m", "3") == {A}, 5)
        replica = world.replica(A)
        assert replica is not None
        assert set(replica.models) == {("m", "3")}
        assert (replica.times_down, replica.last_error, replica.phases.first_answer_s) == (0, "", None)
        assert world.takers("m", "1") == {B}

    run(main, hosts=HOSTS, replicas=dns())


def test_7_an_answer_of_who_was_there_before_is_no_answer_of_who_is_there_now() -> None:
    async def main(world: FleetWorld) -> None:
        resolve(world, A, B)
        await world.until(lambda: world.takers("m") == {A, B}, 60)
        out = asyncio.ensure_future(world.transport.send(world.call(A, "m", timeout_s=60.0)))
        await asyncio.sleep(0.1)
        resolve(world, B)
        await world.until(lambda: world.state(A) is None, 3)
        resolve(world, A, B)
        await world.until(lambda: world.state(A) is ReplicaState.LIVE, 3)
        world.tritons[A].slowness = 100.0
        assert (await out).message
        member = world.directory._members[f"{POOL}/{A}:8001"].replica
        assert all(record.last_answer_s == float("-inf") for record in member.models.values())

    run(main, ModelSpec("m", s0_s=8.0), hosts=HOSTS, replicas=dns())


def test_a_replica_that_nobody_replaces_leaves_when_its_time_is_over() -> None:
    async def main(world: FleetWorld) -> None:
        resolve(world, A, B)
        await world.until(lambda: world.takers("m") == {A, B})
        world.tritons[D].crash()
        resolve(world, D)
        await world.until(lambda: kept(world) == 2, 3)
        stayed_s = await world.until(lambda: not world.takers("m"), KEPT_S + 5)
        assert KEPT_S - 1 < stayed_s < KEPT_S + 0.1
        assert world.state(A) is world.state(B) is None
        with pytest.raises(GatewayError) as caught:
            world.catalogue.model_metadata("m", "")
        assert caught.value.reason is Reason.NO_REPLICA
        await asyncio.sleep(1)
        assert open_connections(world) == 1

    run(main, hosts=HOSTS, replicas=dns())


def test_an_old_replica_stays_only_for_the_models_that_no_new_one_serves() -> None:
    async def main(world: FleetWorld) -> None:
        resolve(world, A)
        await world.until(lambda: world.takers("quick") == world.takers("slow") == {A}, 60)
        resolve(world, D)
        await world.until(lambda: world.takers("quick") == {D}, 5)
        assert world.takers("slow") == {A}
        assert world.catalogue.model_ready("slow", "")
        world.tritons[D].unload("quick")
        await world.until(lambda: world.takers("quick") == {A}, 3)
        world.tritons[D].load("quick", "1")
        await world.until(lambda: world.takers("quick") == {D}, 5)
        await world.until(lambda: world.takers("slow") == {D}, 60)
        assert world.state(A) is None

    run(main, ModelSpec("quick"), ModelSpec("slow", s0_s=9.0), hosts=HOSTS, replicas=dns())


def test_a_kept_replica_whose_address_comes_back_stays_and_is_whole_again(caplog: pytest.LogCaptureFixture) -> None:
    async def main(world: FleetWorld) -> None:
        resolve(world, A)
        await world.until(lambda: world.takers("m") == {A})
        world.tritons[D].crash()
        resolve(world, D)
        await world.until(lambda: kept(world) == 1, 3)
        assert world.directory.members()[f"{POOL}/{A}:8001"]["address_gone"]
        resolve(world, A, D)
        await world.until(lambda: kept(world) == 0, 3)
        assert not world.directory.members()[f"{POOL}/{A}:8001"]["address_gone"]
        await asyncio.sleep(KEPT_S + 5)
        assert world.takers("m") == {A}

    caplog.set_level(logging.INFO, "sluice.fleet")
    run(main, hosts=HOSTS, replicas=dns())
    said = [record.getMessage() for record in caplog.records if "address is" in record.getMessage()]
    assert [f"{POOL}/{A}:8001" in each for each in said] == [True, True]
    assert "stays at most 60 s" in said[0]
    assert said[1].endswith("its address is back")


def test_no_more_old_replicas_are_kept_than_a_pool_may_have() -> None:
    async def main(world: FleetWorld) -> None:
        resolve(world, A, B)
        await world.until(lambda: world.takers("m", "1") == {A, B})
        for host in (C, D):
            world.add(host, specs=(ModelSpec("m", versions=("2",)),))
        world.tritons[E].crash()
        resolve(world, C, D)
        await world.until(lambda: world.takers("m", "2") == {C, D}, 5)
        assert world.takers("m", "1") == {A, B}, "nobody new serves version 1"
        resolve(world, E)
        await world.until(lambda: world.state(E) is not None, 3)
        assert kept(world) == 2
        assert world.takers("m", "2") == {C, D}, "those that went first are let go first"
        assert not world.takers("m", "1")

    run(main, hosts=(A, B, E), replicas=dns(), replicas_max=2)


def test_a_look_that_is_cut_short_by_the_end_of_its_loop_leaves_no_job_behind() -> None:
    async def main(world: FleetWorld) -> None:
        resolve(world, A, B)
        await world.until(lambda: world.takers("m") == {A, B})
        for turn in range(6):
            gone = turn % 2 == 0
            resolve(world, *((B,) if gone else (A, B)))
            await world.until(lambda gone=gone: (world.state(A) is None) == gone, 40)  # type: ignore[misc]
            for task in asyncio.all_tasks():
                if task.get_name().startswith(("sluice:addresses", "sluice:end")):
                    task.cancel()
        await asyncio.sleep(40)
        running = world.supervisor.statistics(0.0)["running"]
        assert sorted(world.directory._jobs) == running
        assert len(running) == 5, running

    run(main, hosts=(A, B), replicas=dns(refresh_s=0.5))
