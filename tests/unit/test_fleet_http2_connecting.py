"""How connections to a replica come, are replaced, and go: attempts and their pauses, bounds, pings."""

from __future__ import annotations

import asyncio
import struct

import pytest

from gateway.core.codes import Code
from gateway.core.faults import UpstreamFault
from gateway.fleet.http2_channel import LINKS_MAX
from gateway.wire.http2 import ErrorCode
from tests.simulation.pipe import PipeTransport
from tests.unit.http2_world import ADDRESS, PORT, ReplicaInMemory, ServerStream, World, run

SEEDS = range(5)
MIB = 1024 * 1024


def deaf(stream: ServerStream) -> None:
    """Takes the call and does nothing for it."""


# --- the first connection --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_many_first_calls_share_one_attempt_to_connect(seed: int) -> None:
    async def main(world: World) -> None:
        await asyncio.gather(*(world.infer(b"%d" % number) for number in range(100)))
        assert len(world.dials) == 1

    run(main, seed=seed)


@pytest.mark.parametrize("mode", ["refuse", "close"])
def test_calls_that_wait_fail_together_and_unsent_when_no_connection_can_be_made(mode: str) -> None:
    async def main(world: World) -> None:
        world.replica.mode = mode
        begin_s = world.now_s()
        for fault in await asyncio.gather(*(world.fault() for _ in range(20))):
            assert (fault.code, fault.from_peer, fault.sent) == (Code.UNAVAILABLE, False, False)
            assert f"{ADDRESS}:{PORT}" in fault.text
        assert world.now_s() - begin_s < 0.01
        assert len(world.dials) == 1

    run(main)


@pytest.mark.parametrize("mode", ["hang", "mute"])
def test_an_attempt_that_is_not_answered_is_given_up_after_its_time(mode: str) -> None:
    async def main(world: World) -> None:
        world.replica.mode = mode
        begin_s = world.now_s()
        fault = await world.fault()
        assert (fault.code, fault.from_peer, fault.sent) == (Code.UNAVAILABLE, False, False)
        assert "1000 ms" in fault.text
        assert 1.0 <= world.now_s() - begin_s < 1.01

    run(main)


def test_while_no_connection_can_be_made_calls_fail_at_once_and_attempts_go_on_with_growing_pauses() -> None:
    async def main(world: World) -> None:
        world.replica.mode = "refuse"
        await world.fault()
        end_s = world.now_s() + 30.0
        while world.now_s() < end_s:
            begin_s = world.now_s()
            fault = await world.fault()
            assert (fault.sent, world.now_s()) == (False, begin_s)
            await asyncio.sleep(0.05)
        pauses = [after - before for before, after in zip(world.dials, world.dials[1:], strict=False)]
        assert 0.08 <= pauses[0] <= 0.121
        assert all(pause <= 1.201 for pause in pauses)
        assert all(pause >= 0.799 for pause in pauses[8:])
        assert len({round(pause, 4) for pause in pauses[8:]}) > 5, "they vary"

    run(main)


def test_the_pauses_of_two_gateways_differ() -> None:
    dials: list[list[float]] = []

    async def main(world: World) -> None:
        world.replica.mode = "refuse"
        await world.fault()
        await asyncio.sleep(10)
        dials.append(world.dials)

    run(main, seed=1)
    run(main, seed=2)
    assert dials[0][1:] != dials[1][1:]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_replica_that_comes_back_is_found_without_anybody_calling(seed: int) -> None:
    async def main(world: World) -> None:
        world.replica.mode = "refuse"
        await world.fault()
        await asyncio.sleep(20)
        world.replica.mode = "serve"
        await asyncio.sleep(1.3)
        begin_s = world.now_s()
        assert await world.infer() == b"x"
        assert world.now_s() - begin_s < 0.01, "the connection stood already"

    run(main, seed=seed)


def test_a_connection_that_is_lost_is_made_again_by_the_next_call_without_a_pause() -> None:
    async def main(world: World) -> None:
        await world.infer()
        await asyncio.sleep(5)
        world.replica.connections[0].abort()
        await asyncio.sleep(5)
        assert len(world.dials) == 1, "nobody has asked"
        begin_s = world.now_s()
        await world.infer()
        assert world.now_s() - begin_s < 0.01

    run(main)


def test_a_replica_that_ends_each_connection_at_once_is_not_stormed() -> None:
    async def main(world: World) -> None:
        world.replica.on_call = lambda stream: stream.connection.abort()
        end_s = world.now_s() + 10.0
        while world.now_s() < end_s:
            assert not (await world.fault()).from_peer
        assert len(world.dials) < 25

    run(main)


def test_no_attempt_begins_after_the_end_and_one_under_way_is_given_up() -> None:
    async def main(world: World) -> None:
        world.replica.mode = "hang"
        waiting = [asyncio.ensure_future(world.fault()) for _ in range(3)]
        await asyncio.sleep(0.1)
        assert world.dialling == 1
        await world.client.aclose()
        assert world.dialling == 0
        for fault in await asyncio.gather(*waiting):
            assert (fault.code, fault.from_peer, fault.sent) == (Code.UNAVAILABLE, False, False)
        await asyncio.sleep(60)
        assert not (await world.fault()).sent
        assert len(world.dials) == 1

    run(main)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_end_may_come_at_any_moment_of_the_first_call(seed: int) -> None:
    async def main(world: World) -> None:
        for step in range(60):
            client = world.connect(f"{ADDRESS}:{PORT}")
            calls = [asyncio.ensure_future(client.infer(bytes(size), (), 60.0)) for size in (1, MIB)]
            await asyncio.sleep(step * 0.00005)
            await client.aclose()
            for result in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(result, bytes | UpstreamFault)
            await asyncio.sleep(0.01)
            assert not world.replica.open

    run(main, seed=seed)


def test_the_end_while_attempts_pause_leaves_nothing() -> None:
    async def main(world: World) -> None:
        world.replica.mode = "refuse"
        await world.fault()
        await world.client.aclose()
        await world.client.aclose()
        await asyncio.sleep(60)
        assert len(world.dials) == 1

    run(main)


def test_the_end_does_not_wait_for_a_replica_that_reads_nothing() -> None:
    async def main(world: World) -> None:
        await world.infer()
        assert world.pipes
        world.replica.on_end = deaf
        transport = world.replica.connections[0].transport
        assert transport is not None
        transport.pause_reading()
        call = asyncio.ensure_future(world.fault(bytes(200_000)))
        await asyncio.sleep(0.1)
        begin_s = world.now_s()
        await world.client.aclose()
        assert world.now_s() - begin_s <= 1.1
        assert not (await call).from_peer

    run(main)


# --- names and addresses ---------------------------------------------------------------------------------------------


def test_the_addresses_of_a_name_are_tried_in_turn() -> None:
    async def main(world: World) -> None:
        world.names["pool.test"] = ("10.0.0.8", "10.0.0.9", ADDRESS)
        client = world.connect("pool.test:8001")
        assert await client.infer(b"x", (), 5.0) == b"x"
        assert world.dialled == ["10.0.0.8", "10.0.0.9", ADDRESS]
        assert world.replica.streams[0].fields[b":authority"] == b"pool.test:8001"

    run(main)


def test_an_address_that_hangs_does_not_hide_the_one_behind_it() -> None:
    async def main(world: World) -> None:
        world.replicas["10.0.0.8"] = hanging = ReplicaInMemory()
        hanging.mode = "hang"
        world.names["pool.test"] = ("10.0.0.8", ADDRESS)
        client = world.connect("pool.test:8001")
        with pytest.raises(UpstreamFault):
            await client.infer(b"x", (), 5.0)
        await asyncio.sleep(0.2)
        assert await client.infer(b"x", (), 5.0) == b"x"
        world.replica.connections[0].abort()
        await asyncio.sleep(5)
        assert await client.infer(b"x", (), 5.0) == b"x"
        assert world.dialled == ["10.0.0.8", ADDRESS, ADDRESS], "the one that answered comes first"

    run(main)


@pytest.mark.parametrize("answer", [None, ()])
def test_a_name_without_an_address_is_a_lost_connection_until_it_has_one(answer: tuple[str, ...] | None) -> None:
    async def main(world: World) -> None:
        if answer is not None:
            world.names["pool.test"] = answer
        client = world.connect("pool.test:8001")
        with pytest.raises(UpstreamFault) as caught:
            await client.infer(b"x", (), 5.0)
        assert (caught.value.code, caught.value.from_peer, caught.value.sent) == (Code.UNAVAILABLE, False, False)
        world.names["pool.test"] = (ADDRESS,)
        await asyncio.sleep(1.5)
        assert await client.infer(b"x", (), 5.0) == b"x"

    run(main)


@pytest.mark.parametrize("target", ["[2001:db8::1]:8001", "[fe80::1%eth0]:8001"])
def test_ipv6_addresses_lose_their_brackets_on_the_way_to_the_network(target: str) -> None:
    async def main(world: World) -> None:
        bare = target[1 : target.index("]")]
        world.replicas[bare] = replica = ReplicaInMemory()
        assert await world.connect(target).infer(b"x", (), 5.0) == b"x"
        authority = replica.streams[0].fields[b":authority"]
        assert authority in (b"[2001:db8::1]:8001", b"[fe80::1]:8001")

    run(main)


# --- bounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_calls_over_the_replicas_bound_take_further_connections_and_then_wait_in_order(seed: int) -> None:
    async def main(world: World) -> None:
        await world.infer()
        held: list[ServerStream] = []
        world.replica.on_end = held.append
        calls = [asyncio.ensure_future(world.infer(b"%03d" % number)) for number in range(40)]
        most = 0
        answered: list[bytes] = []
        while len(answered) < 40:
            await asyncio.sleep(0.05)
            assert len(world.replica.open) <= LINKS_MAX
            most = max(most, len(held))
            assert len(held) <= 2 * LINKS_MAX
            for stream in held[:]:
                held.remove(stream)
                answered.append(stream.messages[0])
                stream.answer(stream.messages[0])
        assert await asyncio.gather(*calls) == [b"%03d" % number for number in range(40)]
        assert most > 2
        refused = [stream for stream in world.replica.streams if stream.reset_code is not None]
        assert not refused

    run(main, seed=seed, replica=ReplicaInMemory(streams_max=2))


def test_a_call_that_waits_for_its_turn_can_expire_and_be_cancelled() -> None:
    async def main(world: World) -> None:
        await world.infer()
        world.replica.on_end = deaf
        out = [asyncio.ensure_future(world.fault()) for _ in range(LINKS_MAX)]
        await asyncio.sleep(1.0)
        expired = asyncio.ensure_future(world.fault(timeout_s=0.5))
        cancelled = asyncio.ensure_future(world.infer())
        await asyncio.sleep(0.2)
        cancelled.cancel()
        fault = await expired
        assert (fault.code, fault.sent) == (Code.DEADLINE_EXCEEDED, False)
        assert len(world.replica.streams) == 1 + LINKS_MAX
        await world.client.aclose()
        await asyncio.gather(*out)
        await asyncio.wait((cancelled,))

    run(main, replica=ReplicaInMemory(streams_max=1))


def test_a_connection_that_has_no_numbers_left_for_calls_is_replaced() -> None:
    async def main(world: World) -> None:
        held: list[ServerStream] = []
        await world.infer()
        world.replica.on_end = held.append
        out = asyncio.ensure_future(world.infer(b"on the old one"))
        await world.until(lambda: held)
        world.replica.on_end = lambda stream: stream.answer(stream.messages[0])
        (link,) = world.client._links.main._links
        link.codec._next_id = 2**31 - 1
        for number in range(5):
            assert await world.infer(b"%d" % number) == b"%d" % number
        assert len(world.dials) == 2
        held[0].answer(b"answered")
        assert await out == b"answered"
        await world.until(lambda: len(world.replica.open) == 1)

    run(main)


def test_further_connections_are_closed_when_they_are_not_used() -> None:
    async def main(world: World) -> None:
        await world.infer()
        await asyncio.gather(*(world.infer(b"%d" % number) for number in range(40)))
        await asyncio.sleep(0.1)
        await asyncio.gather(*(world.infer(b"%d" % number) for number in range(40)))
        assert len(world.replica.open) > 1
        await asyncio.sleep(30)
        assert len(world.replica.open) == 1
        assert await world.infer() == b"x"

    run(main, replica=ReplicaInMemory(streams_max=2))


def test_a_replica_that_allows_no_calls_gets_none_and_the_callers_deadlines_hold() -> None:
    async def main(world: World) -> None:
        fault = await world.fault(timeout_s=1.0)
        assert (fault.code, fault.from_peer, fault.sent) == (Code.DEADLINE_EXCEEDED, False, False)
        assert not world.replica.streams

    replica = ReplicaInMemory()
    replica.further_settings = struct.pack(">IBIHI", 6 << 8 | 4, 0, 0, 3, 0)
    run(main, replica=replica)


# --- what is large ---------------------------------------------------------------------------------------------------


def test_large_messages_have_a_connection_of_their_own_while_there_are_some() -> None:
    async def main(world: World) -> None:
        await world.infer()
        assert len(world.replica.open) == 1
        await asyncio.gather(*(world.infer(bytes(MIB)) for _ in range(3)))
        assert len(world.replica.open) == 2
        assert {stream.connection for stream in world.replica.streams[1:]} == {world.replica.connections[1]}
        await asyncio.sleep(30)
        assert world.replica.open == [world.replica.connections[0]]
        await world.infer(bytes(MIB))
        assert len(world.replica.open) == 2

    run(main)


def test_where_a_second_connection_cannot_be_had_large_messages_go_with_the_others() -> None:
    async def main(world: World) -> None:
        await world.infer()
        world.replica.mode = "refuse"
        assert await world.infer(bytes(MIB)) == bytes(MIB)
        dials = len(world.dials)
        assert await world.infer(bytes(MIB)) == bytes(MIB), "and for a while it is not tried again"
        assert len(world.dials) == dials
        await asyncio.sleep(5)
        world.replica.mode = "serve"
        assert await world.infer(bytes(MIB)) == bytes(MIB)
        assert len(world.replica.open) == 2

    run(main)


# --- pings -----------------------------------------------------------------------------------------------------------


def test_an_idle_connection_is_never_pinged() -> None:
    async def main(world: World) -> None:
        await world.infer()
        await asyncio.sleep(3000)
        assert world.replica.connections[0].pings == 0
        assert await world.infer() == b"x"
        assert len(world.dials) == 1

    run(main)


def test_a_long_silent_call_is_pinged_once_and_then_as_rarely_as_servers_allow() -> None:
    async def main(world: World) -> None:
        await world.infer()
        world.replica.on_end = deaf
        call = asyncio.ensure_future(world.infer())
        await asyncio.sleep(29)
        assert world.replica.connections[0].pings == 0
        await asyncio.sleep(10)
        assert world.replica.connections[0].pings == 1
        await asyncio.sleep(290)
        assert world.replica.connections[0].pings == 1
        await asyncio.sleep(3000)
        assert world.replica.connections[0].pings <= 1 + 3300 // 300
        world.replica.streams[-1].answer(b"at last")
        assert await call == b"at last"

    run(main)


def test_a_peer_that_is_silent_even_to_a_ping_is_given_up() -> None:
    async def main(world: World) -> None:
        await world.infer()
        world.replica.on_end = deaf
        begin_s = world.now_s()
        call = asyncio.ensure_future(world.fault())
        await asyncio.sleep(1)
        world.replica.connections[0].deaf = True
        fault = await call
        assert (fault.code, fault.from_peer, fault.sent) == (Code.UNAVAILABLE, False, True)
        assert "keepalive" in fault.text
        assert 45 <= world.now_s() - begin_s <= 75
        world.replica.on_end = lambda stream: stream.answer(b"new")
        assert await world.infer() == b"new"

    run(main)


def test_a_peer_that_minds_pings_gets_fewer() -> None:
    async def main(world: World) -> None:
        for complaint in range(1, 4):
            await world.infer()
            codec = world.replica.open[-1].codec
            codec.goaway(ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings")
            await asyncio.sleep(2)
            figures = world.client.statistics(0.0)
            assert (figures["ping_complaints"], figures["keepalive_s"]) == (complaint, 30.0 * 2**complaint)

    run(main)


# --- backpressure ----------------------------------------------------------------------------------------------------


def test_what_a_transport_cannot_take_waits_in_the_codec() -> None:
    async def main(world: World) -> None:
        await world.infer()
        transport = world.replica.connections[0].transport
        assert isinstance(transport, PipeTransport)
        transport.pause_reading()
        calls = [asyncio.ensure_future(world.infer(bytes(200_000))) for _ in range(20)]
        await asyncio.sleep(0.1)
        assert transport.peer is not None
        assert transport.peer.get_write_buffer_size() <= 1.5 * MIB
        transport.resume_reading()
        await asyncio.gather(*calls)

    run(main)
