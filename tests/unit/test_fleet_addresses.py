"""Where replicas are: fixed lists, DNS names, watched files; what a changed, failed or senseless answer does."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.faces import Endpoints
from gateway.core.snapshot import ReplicaState
from gateway.fleet.dns import DnsSource, SystemResolver
from gateway.fleet.roster import Roster
from gateway.fleet.sources import source_of
from gateway.fleet.watched_file import FILE_BYTES_MAX, parse_replicas
from gateway.policy.problems import PolicyError
from gateway.policy.schema import DnsReplicas, Pool, Replicas
from gateway.runtime.workers import InlineWorkers, ThreadWorkers
from tests.simulation.batcher import ModelSpec
from tests.unit.fleet_world import FleetWorld, MemoryFiles, dns, run, static, watched

A, B, C, D, E = "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"
NAME = "pool.test"


def test_an_added_address_gets_traffic_and_a_removed_one_none_within_the_refresh_time() -> None:
    async def main(world: FleetWorld) -> None:
        world.network.names[NAME] = (A, B)
        await world.until(lambda: world.takers("m") == {A, B})
        world.network.names[NAME] = (A, B, C)
        assert await world.until(lambda: world.takers("m") == {A, B, C}) < 2.5
        world.network.names[NAME] = (D, E)
        assert await world.until(lambda: world.takers("m") == {D, E}) < 2.5
        assert {each.address for each in world.directory.snapshot.replicas} == {f"{D}:8001", f"{E}:8001"}

    run(main, hosts=(A, B, C, D, E), replicas=dns())


def test_calls_out_on_a_removed_replica_finish_and_no_new_ones_start() -> None:
    async def main(world: FleetWorld) -> None:
        world.network.names[NAME] = (A, B)
        await world.until(lambda: world.takers("m") == {A, B}, 60)
        out = asyncio.ensure_future(world.transport.send(world.call(A, "m", timeout_s=30.0)))
        await asyncio.sleep(0.1)
        world.network.names[NAME] = (B,)
        await world.until(lambda: world.state(A) is None, 3)
        with pytest.raises(Exception, match="connection"):
            await world.transport.send(world.call(A, "m"))
        assert world.directory.statistics(world.loop.time())["connections_leaving"] == 1
        reply = await out
        assert reply.message
        await world.until(lambda: world.directory.statistics(0.0)["connections_leaving"] == 0, 1)
        assert all(client.closed for client in world.network.clients if client.address == f"{A}:8001")

    run(main, ModelSpec("m", s0_s=5.0), replicas=dns())


def test_a_call_that_never_ends_does_not_hold_a_removed_connection_for_ever() -> None:
    async def main(world: FleetWorld) -> None:
        world.network.names[NAME] = (A, B)
        await world.until(lambda: world.takers("m") == {A, B})
        world.tritons[A].freeze()
        out = asyncio.ensure_future(world.transport.send(world.call(A, "m", timeout_s=500.0)))
        await asyncio.sleep(0.1)
        world.network.names[NAME] = (B,)
        await world.until(lambda: world.state(A) is None, 3)
        await asyncio.sleep(50)
        assert not out.done()
        with pytest.raises(Exception, match="connection"):
            await out
        assert world.directory.statistics(0.0)["calls_cut_off"] == 1

    run(main, replicas=dns())


def test_a_failed_or_empty_answer_keeps_the_last_good_set_and_raises_an_alarm() -> None:
    async def main(world: FleetWorld) -> None:
        world.network.names[NAME] = (A, B)
        await world.until(lambda: world.takers("m") == {A, B})
        del world.network.names[NAME]
        await asyncio.sleep(30)
        assert world.takers("m") == {A, B}
        pool = world.directory.pools(world.loop.time())["gpu"]
        assert pool["lookups_failed"] >= 14
        assert f"{NAME}: Name or service not known" in pool["alarm"]
        world.network.names[NAME] = ()
        await asyncio.sleep(5)
        assert world.takers("m") == {A, B}
        pool = world.directory.pools(world.loop.time())["gpu"]
        assert pool["lookups_empty"] >= 2
        assert "no replicas" in pool["alarm"]
        world.network.names[NAME] = (B,)
        await world.until(lambda: world.takers("m") == {B}, 3)
        assert not world.directory.pools(world.loop.time())["gpu"]["alarm"]

    run(main, replicas=dns())


def test_an_address_that_comes_back_has_no_history_and_is_looked_at_first() -> None:
    async def main(world: FleetWorld) -> None:
        world.network.names[NAME] = (A, B)
        await world.until(lambda: world.takers("m") == {A, B})
        await world.transport.send(world.call(A, "m"))
        world.tritons[A].crash()
        world.network.names[NAME] = (B,)
        await world.until(lambda: world.state(A) is None, 3)
        world.add(A, specs=(ModelSpec("other"),))
        world.network.names[NAME] = (A, B)
        await world.until(lambda: world.state(A) is ReplicaState.LIVE, 4)
        await asyncio.sleep(3)
        replica = world.replica(A)
        assert replica is not None
        assert not replica.models, "it has another model, which no policy gives to this pool"
        assert replica.phases.first_answer_s is None
        assert not replica.last_error
        assert world.takers("m") == {B}

    run(main, replicas=dns())


def test_more_addresses_than_allowed_are_not_used_and_those_in_use_stay() -> None:
    async def main(world: FleetWorld) -> None:
        world.network.names[NAME] = (C, D)
        await world.until(lambda: world.takers("m") == {C, D})
        world.network.names[NAME] = (E, A, D, C, B)
        await asyncio.sleep(5)
        assert world.takers("m") == {C, D}
        pool = world.directory.pools(world.loop.time())["gpu"]
        assert pool["addresses_unused"] == 3
        assert "replicas_max" in pool["alarm"]

    run(main, hosts=(A, B, C, D, E), replicas=dns(), replicas_max=2)


def test_addresses_that_flip_for_long_leave_nothing_behind() -> None:
    async def main(world: FleetWorld) -> None:
        for turn in range(120):
            world.network.names[NAME] = (A, B) if turn % 2 else (B, C)
            await asyncio.sleep(1)
        running = world.supervisor.statistics(0.0)["running"]
        assert len(running) <= 12, running
        assert world.directory.statistics(0.0)["connections_leaving"] <= 1
        assert sum(not client.closed for client in world.network.clients) <= 3
        assert not [name for name in world.directory._jobs if name not in running]
        assert B in world.takers("m")

    run(main, hosts=(A, B, C), replicas=dns(refresh_s=0.5))


def test_a_watched_file_is_taken_up_and_a_bad_one_keeps_the_last_good_set() -> None:
    path = "/policies/replicas.yaml"

    async def main(world: FleetWorld) -> None:
        await asyncio.sleep(3)
        assert world.directory.pools(world.loop.time())["gpu"]["alarm"], "there is no file yet"
        world.files.contents[path] = f"- {{grpc: '{A}:8001', http: '{A}:8000'}}\n".encode()
        assert await world.until(lambda: world.takers("m") == {A}) < 1.5
        world.files.contents[path] = f"- {{grcp: '{B}:8001', http: '{B}:8000'}}\n".encode()
        await asyncio.sleep(3)
        assert world.takers("m") == {A}
        alarm = world.directory.pools(world.loop.time())["gpu"]["alarm"]
        assert "replicas.yaml:1:" in alarm
        assert "did you mean `grpc`" in alarm
        world.files.contents[path] = f'[{{"grpc": "{B}:8001", "http": "{B}:8000"}}]'.encode()
        assert await world.until(lambda: world.takers("m") == {B}) < 1.5

    run(main, replicas=watched())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"grpc: a:1", "write a list"),
        (b"- {grpc: 'a:1'}", "http"),
        (b"- {grpc: 'a', http: 'a:1'}", "port"),
        (b"- {grpc: 'a:99999', http: 'a:1'}", "port"),
        (b"- {grpc: 'a:1', http: 'a:2'}\n- {grpc: 'a:1', http: 'b:2'}", "second time"),
        (b"\xff\xfe", "UTF-8"),
        (b"- [", "YAML"),
        (b"- x\n" * FILE_BYTES_MAX, "larger"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_with_a_place_and_a_remedy(content: bytes, said: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_replicas("r.yaml", content)
    text = str(caught.value)
    assert text.startswith("r.yaml")
    assert said in text


@given(st.binary(max_size=200))
def test_any_bytes_as_a_file_give_replicas_or_a_clear_error(content: bytes) -> None:
    said = "r.yaml"
    try:
        parse_replicas("r.yaml", content)
    except PolicyError as error:
        said = str(error)
    assert said.startswith("r.yaml")


class Answers:
    """A resolver with set answers."""

    def __init__(self, *answer: str) -> None:
        self.answer = answer

    async def resolve(self, host: str) -> tuple[str, ...]:
        return self.answer


async def test_dns_answers_are_sorted_without_duplicates_and_ipv6_stands_in_brackets() -> None:
    answers = Answers("10.0.0.2", "fe80::0:1%eth0", "2001:db8:0::1", "10.0.0.1", "10.0.0.2", "2001:db8::1")
    source = DnsSource(DnsReplicas(host="h", grpc_port=1, http_port=2, metrics_port=0), answers)
    assert await source.addresses() == (
        Endpoints("10.0.0.1:1", "10.0.0.1:2"),
        Endpoints("10.0.0.2:1", "10.0.0.2:2"),
        Endpoints("[2001:db8::1]:1", "[2001:db8::1]:2"),
        Endpoints("[fe80::1%eth0]:1", "[fe80::1%eth0]:2"),
    )


async def test_an_answer_that_is_no_address_is_an_error_and_not_a_crash() -> None:
    source = DnsSource(DnsReplicas(host="h"), Answers("not-an-address"))
    assert await Roster("p", 4, source).look((), 0.0) is None


async def test_a_resolver_that_hangs_holds_one_thread_and_not_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    release, asked = threading.Event(), []

    def hang(host: str, *args: object, **kwargs: object) -> list[object]:
        asked.append(host)
        release.wait(60)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.1.1.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    workers = ThreadWorkers(2, "test")
    resolver = SystemResolver(workers)
    source = DnsSource(DnsReplicas(host="slow.test"), resolver, lookup_timeout_s=0.05)
    try:
        async with asyncio.timeout(40):
            for _ in range(5):
                turn_s = time.monotonic()
                await asyncio.sleep(0)
                assert time.monotonic() - turn_s < 20.0, "the loop itself waits for the answer, of which there is none"
                with pytest.raises(OSError, match=r"slow\.test: no answer"):
                    await source.addresses()
            assert asked == ["slow.test"], "later questions wait for the first"
            waiting = asyncio.ensure_future(resolver.resolve("slow.test"))
            await asyncio.sleep(0)
            release.set()
            assert await waiting == ("10.1.1.1",)
    finally:
        release.set()
        await workers.aclose(5.0)


async def test_the_system_resolver_knows_this_machine_and_not_an_invented_name() -> None:
    workers = ThreadWorkers(1, "test")
    try:
        async with asyncio.timeout(30):
            found = await SystemResolver(workers).resolve("localhost")
            assert set(found) <= {"127.0.0.1", "::1"}
            assert found
            with pytest.raises(OSError, match=r"."):
                await SystemResolver(workers).resolve("no-such-host.invalid")
    finally:
        await workers.aclose(5.0)


def test_a_pool_must_name_exactly_one_source() -> None:
    for replicas in (Replicas(), Replicas(static=static(A).static, dns=DnsReplicas(host="h"))):
        with pytest.raises(ValueError, match="exactly one"):
            source_of(Pool(replicas=replicas), "/", Answers(), MemoryFiles(), InlineWorkers())
