"""Streams on our own HTTP/2, against replicas on the same codec, on the virtual clock."""

from __future__ import annotations

import asyncio
import gzip
import math
import struct
from collections.abc import Callable

import pytest

from gateway.core.codes import Code
from gateway.core.faults import UpstreamFault
from gateway.fleet.http2_stream import KEPT_BYTES_MAX, Http2ReplicaStream
from gateway.fleet.replica_calls import ROUTED_NAMES_BYTES, UNREAD_BYTES_MAX
from gateway.wire.grpc import message_prefix
from gateway.wire.http2 import ErrorCode
from tests.unit.http2_world import HEAD, ReplicaInMemory, ServerStream, World, end_block, run

SEEDS = range(5)
MIB = 1024 * 1024


def echoing(replica: ReplicaInMemory) -> None:
    """Each message is sent back as it comes; the stream ends when the caller has said its last."""
    replica.on_call = lambda stream: stream.head()
    replica.on_message = lambda stream, message: stream.send(message)
    replica.on_end = lambda stream: stream.end()


def silent(replica: ReplicaInMemory) -> None:
    replica.on_end = lambda stream: None


async def fault_of(stream: Http2ReplicaStream) -> UpstreamFault:
    with pytest.raises(UpstreamFault) as caught:
        await stream.read()
    with pytest.raises(UpstreamFault) as again:
        await stream.read()
    assert str(again.value) == str(caught.value), "who asks again is told again"
    return caught.value


# --- messages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_messages_go_and_come_in_order_and_whole_and_the_stream_ends_in_order(seed: int) -> None:
    async def main(world: World) -> None:
        echoing(world.replica)
        stream = world.client.open_stream((("x-request-id", "abc"),), math.inf)
        sizes = (0, 1, 16_379, 16_380, 300_000, 3 * MIB, 5)
        for number, size in enumerate(sizes):
            stream.write(bytes([number]) * size)
        for number, size in enumerate(sizes):
            assert await stream.read() == bytes([number]) * size
        stream.half_close()
        stream.write(b"nobody hears it")
        stream.half_close()
        assert await stream.read() is None
        assert await stream.read() is None
        (served,) = world.replica.streams
        assert len(served.messages) == len(sizes)
        assert served.fields[b":path"] == b"/inference.GRPCInferenceService/ModelStreamInfer"
        assert served.fields[b"x-request-id"] == b"abc"
        assert b"grpc-timeout" not in served.fields
        assert served.reset_code is None
        stream.cancel()

    run(main, seed=seed)


def test_many_streams_share_a_connection() -> None:
    async def main(world: World) -> None:
        echoing(world.replica)

        async def talk(number: int) -> None:
            stream = world.client.open_stream((), 60.0)
            for step in range(20):
                stream.write(b"%d/%d" % (number, step))
                assert await stream.read() == b"%d/%d" % (number, step)
            stream.half_close()
            assert await stream.read() is None

        await asyncio.gather(*(talk(number) for number in range(50)))
        assert len(world.dials) == 1

    run(main)


def test_a_caller_may_say_all_and_leave_before_there_is_a_connection() -> None:
    async def main(world: World) -> None:
        echoing(world.replica)
        stream = world.client.open_stream((), 60.0)
        stream.write(b"a")
        stream.write(b"b")
        stream.half_close()
        assert [await stream.read(), await stream.read(), await stream.read()] == [b"a", b"b", None]
        gone = world.client.open_stream((), 60.0)
        gone.write(b"c")
        gone.cancel()
        gone.cancel()
        assert (await fault_of(gone)).from_peer is False
        empty = world.client.open_stream((), 60.0)
        empty.half_close()
        assert await empty.read() is None

    run(main)


def test_a_compressed_message_is_unpacked_and_a_bad_one_ends_the_stream() -> None:
    async def main(world: World) -> None:
        def on_message(stream: ServerStream, message: bytes) -> None:
            stream.send(gzip.compress(message) if message != b"bad" else b"bad", compressed=True)

        world.replica.on_call = lambda stream: stream.head((b"grpc-encoding", b"gzip"))
        world.replica.on_message = on_message
        stream = world.client.open_stream((), 60.0)
        for message in (b"small", bytes(range(256)) * 100, bytes(2 * MIB)):
            stream.write(message)
            assert await stream.read() == message
        stream.write(b"bad")
        fault = await fault_of(stream)
        assert (fault.code, fault.from_peer) == (Code.INTERNAL, True)
        await world.until(lambda: world.replica.streams[0].reset_code == ErrorCode.CANCEL)

    run(main)


# --- ends ------------------------------------------------------------------------------------------------------------

Act = Callable[[ServerStream], None]


def then(*steps: Act) -> Act:
    def act(stream: ServerStream) -> None:
        for step in steps:
            step(stream)

    return act


def head(stream: ServerStream) -> None:
    stream.head()


ENDS: dict[str, tuple[Act, Code, bool]] = {
    "an error at once": (lambda s: s.refuse(14, "Server is stopping"), Code.UNAVAILABLE, True),
    "an error later": (then(head, lambda s: s.end(13, "x")), Code.INTERNAL, True),
    "inside a message": (then(head, lambda s: s.raw(b"\0\0\0\0\5ab"), lambda s: s.end()), Code.INTERNAL, True),
    "no status": (then(head, lambda s: s.raw(b"", True)), Code.UNKNOWN, False),
    "a page": (
        lambda s: s.connection.codec.send_headers(s, b"\x08\x03502\x5f\x09text/html", True),
        Code.UNAVAILABLE,
        False,
    ),
    "an unknown compression": (lambda s: s.head((b"grpc-encoding", b"br")), Code.INTERNAL, True),
    "no message": (then(head, lambda s: s.raw(b"\x09\0\0\0\0")), Code.INTERNAL, True),
    "a size over the bound": (then(head, lambda s: s.raw(message_prefix(65 * MIB))), Code.RESOURCE_EXHAUSTED, False),
    "too many words": (
        lambda s: s.connection.codec.send_headers(s, HEAD + end_block(3, "y" * (2 * MIB)), True),
        Code.INVALID_ARGUMENT,
        True,
    ),
    "a reset": (lambda s: s.reset(ErrorCode.CANCEL), Code.CANCELLED, False),
    "a lost connection": (lambda s: s.connection.abort(), Code.UNAVAILABLE, False),
}


@pytest.mark.parametrize("what", ENDS)
def test_an_end_that_is_none_is_a_fault_that_says_whose(what: str) -> None:
    act, code, from_peer = ENDS[what]

    async def main(world: World) -> None:
        await world.infer()
        world.replica.on_message = lambda stream, message: act(stream)
        stream = world.client.open_stream((), 60.0)
        stream.write(b"x")
        fault = await fault_of(stream)
        assert (fault.code, fault.from_peer, fault.sent) == (code, from_peer, True), fault
        stream.write(b"nobody hears it")
        stream.half_close()
        stream.cancel()

    run(main)


@pytest.mark.parametrize("how", ["end", "abort"])
def test_what_came_before_a_bad_end_is_read_first(how: str) -> None:
    async def main(world: World) -> None:
        def on_message(stream: ServerStream, message: bytes) -> None:
            stream.head()
            for number in range(3):
                stream.send(b"%d" % number)
            if how == "end":
                stream.end(13, "x")

        world.replica.on_message = on_message
        stream = world.client.open_stream((), 60.0)
        stream.write(b"x")
        await asyncio.sleep(1)
        if how == "abort":
            world.replica.connections[0].abort()
            await asyncio.sleep(1)
        assert [await stream.read() for _ in range(3)] == [b"0", b"1", b"2"]
        assert (await fault_of(stream)).from_peer is (how == "end")

    run(main)


def test_the_caller_s_time_limit_ends_it_and_nothing_is_read_after_it() -> None:
    async def main(world: World) -> None:
        def on_message(stream: ServerStream, message: bytes) -> None:
            stream.head()
            stream.send(b"too late to be read")

        world.replica.on_message = on_message
        stream = world.client.open_stream((), 2.0)
        stream.write(b"x")
        await asyncio.sleep(2.1)
        fault = await fault_of(stream)
        assert (fault.code, fault.from_peer, fault.sent) == (Code.DEADLINE_EXCEEDED, False, True)
        await world.until(lambda: world.replica.streams[0].reset_code == ErrorCode.CANCEL)
        assert world.replica.streams[0].fields[b"grpc-timeout"]
        late = await fault_of(world.client.open_stream((), 0.0))
        assert (late.code, late.from_peer, late.sent) == (Code.DEADLINE_EXCEEDED, False, False)

    run(main)


def test_giving_up_resets_the_stream_on_the_replica() -> None:
    async def main(world: World) -> None:
        silent(world.replica)
        for reading in (False, True):
            world.replica.streams.clear()
            stream = world.client.open_stream((), 60.0)
            stream.write(b"x")
            await world.until(lambda: world.replica.streams)
            if reading:
                task = asyncio.ensure_future(stream.read())
                await asyncio.sleep(0.1)
                task.cancel()
                await asyncio.wait((task,))
            else:
                stream.cancel()
            await world.until(lambda: world.replica.streams[0].reset_code == ErrorCode.CANCEL)
        assert world.client.statistics(0.0)["cancelled"] == 2

    run(main)


def test_a_message_over_its_bound_ends_the_stream_and_is_not_sent() -> None:
    async def main(world: World) -> None:
        silent(world.replica)
        stream = world.client.open_stream((), 60.0)
        stream.write(b"x")
        stream.write(bytes(4096 + ROUTED_NAMES_BYTES + 1))
        fault = await fault_of(stream)
        assert (fault.code, fault.from_peer, fault.sent) == (Code.RESOURCE_EXHAUSTED, False, False)
        assert "vs. 4096" in fault.text

    run(main, message_bytes_max=4096)


def test_a_closed_client_opens_no_stream_and_ends_those_that_are_open() -> None:
    async def main(world: World) -> None:
        silent(world.replica)
        stream = world.client.open_stream((), 60.0)
        stream.write(b"x")
        await world.until(lambda: world.replica.streams)
        await world.client.aclose()
        fault = await fault_of(stream)
        assert (fault.code, fault.from_peer, fault.sent) == (Code.UNAVAILABLE, False, True)
        late = world.client.open_stream((), 60.0)
        late.write(b"x")
        fault = await fault_of(late)
        assert (fault.code, fault.from_peer, fault.sent) == (Code.UNAVAILABLE, False, False)

    run(main)


def test_without_a_connection_a_stream_fails_like_a_call() -> None:
    async def main(world: World) -> None:
        world.replica.mode = "refuse"
        for _ in range(2):
            stream = world.client.open_stream((), 60.0)
            stream.write(b"x")
            fault = await fault_of(stream)
            assert (fault.code, fault.from_peer, fault.sent) == (Code.UNAVAILABLE, False, False)

    run(main)


# --- bounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("size", [50, 70_000])
def test_what_a_replica_sends_ahead_of_the_reader_is_bounded_and_nothing_is_lost(size: int, seed: int) -> None:
    async def main(world: World) -> None:
        await world.infer()
        count = 8 * MIB // size

        def on_message(stream: ServerStream, message: bytes) -> None:
            stream.head()
            for number in range(count):
                stream.send(number.to_bytes(4, "big") + bytes(size - 4))

        world.replica.on_message = on_message
        stream = world.client.open_stream((), math.inf)
        stream.write(b"x")
        await asyncio.sleep(2)
        (served,) = world.replica.streams[1:]
        held = sum(len(message) + 5 for _, message in stream._messages)
        assert held <= UNREAD_BYTES_MAX
        assert count * (size + 5) - served.queued <= UNREAD_BYTES_MAX
        world.replica.on_message = lambda stream, message: None
        assert await world.infer(b"another call") == b"another call"
        for number in range(count):
            message = await stream.read()
            assert message is not None
            assert message[:4] == number.to_bytes(4, "big")
        stream.cancel()

    run(main, seed=seed)


def test_a_message_that_is_larger_than_the_window_waits_for_its_reader() -> None:
    async def main(world: World) -> None:
        await world.infer()

        def on_message(stream: ServerStream, message: bytes) -> None:
            stream.head()
            stream.send(bytes(5 * MIB))
            stream.send(b"behind it")

        world.replica.on_message = on_message
        stream = world.client.open_stream((), math.inf)
        stream.write(b"x")
        await asyncio.sleep(2)
        assert world.replica.streams[-1].queued >= 4 * MIB
        assert await stream.read() == bytes(5 * MIB)
        assert await stream.read() == b"behind it"
        stream.cancel()

    run(main)


def test_a_stream_s_small_messages_are_not_held_up_by_large_ones_on_the_same_connection() -> None:
    async def main(world: World) -> None:
        echoing(world.replica)
        world.replica.on_message = lambda stream, message: None
        large, small = world.client.open_stream((), math.inf), world.client.open_stream((), math.inf)
        large.write(bytes(16 * MIB))
        await asyncio.sleep(0.002)
        small.write(b"small")
        await world.until(lambda: len(world.replica.streams) == 2 and world.replica.streams[1].messages)
        assert not world.replica.streams[0].messages, "the large one is still on its way"
        await world.until(lambda: world.replica.streams[0].messages)
        large.cancel()
        small.cancel()

    run(main, replica=ReplicaInMemory(window_bytes=65_536))


# --- streams that did not begin --------------------------------------------------------------------------------------


def test_a_stream_that_the_replica_did_not_take_is_begun_again_with_all_that_was_said() -> None:
    async def main(world: World) -> None:
        echoing(world.replica)
        echo = world.replica.on_call
        refusals = 0

        def on_call(stream: ServerStream) -> None:
            nonlocal refusals
            refusals += 1
            if refusals <= 2:
                stream.reset(ErrorCode.REFUSED_STREAM)
            else:
                echo(stream)

        world.replica.on_call = on_call
        stream = world.client.open_stream((), 60.0)
        stream.write(b"a")
        stream.write(b"b")
        assert [await stream.read(), await stream.read()] == [b"a", b"b"]
        stream.write(b"c")
        stream.half_close()
        assert [await stream.read(), await stream.read()] == [b"c", None]

    run(main)


def test_a_stream_of_which_too_much_was_said_is_not_begun_again() -> None:
    async def main(world: World) -> None:
        await world.infer()
        world.replica.on_message = lambda stream, message: stream.reset(ErrorCode.REFUSED_STREAM)
        stream = world.client.open_stream((), 60.0)
        stream.write(bytes(KEPT_BYTES_MAX + 1))
        fault = await fault_of(stream)
        assert (fault.code, fault.from_peer, fault.sent) == (Code.UNAVAILABLE, False, False)
        assert len(world.replica.streams) == 2

    run(main)


def test_a_stream_goes_on_over_a_connection_whose_replica_goes_away() -> None:
    async def main(world: World) -> None:
        echoing(world.replica)
        stream = world.client.open_stream((), math.inf)
        stream.write(b"a")
        assert await stream.read() == b"a"
        connection = world.replica.connections[0]
        connection.write(struct.pack(">IBIII", 8 << 8 | 7, 0, 0, 2**31 - 1, 0))
        await asyncio.sleep(1)
        stream.write(b"b")
        assert await stream.read() == b"b"
        other = world.client.open_stream((), math.inf)
        other.write(b"c")
        assert await other.read() == b"c"
        assert len(world.replica.open) == 2
        stream.half_close()
        assert await stream.read() is None
        await world.until(lambda: connection.lost)
        other.cancel()

    run(main)
