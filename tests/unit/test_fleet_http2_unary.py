"""Unary calls on our own HTTP/2, against replicas on the same codec, on the virtual clock."""

from __future__ import annotations

import asyncio
import gc
import gzip
import random
import struct
import zlib
from collections.abc import Callable

import pytest

from gateway.core.codes import Code
from gateway.core.faults import UpstreamFault, classify
from gateway.core.outcome import Outcome
from gateway.fleet.replica_calls import ROUTED_NAMES_BYTES
from gateway.wire.grpc import message_prefix
from gateway.wire.http2 import ErrorCode
from tests.unit.http2_world import HEAD, ReplicaInMemory, ServerStream, World, end_block, run

SEEDS = range(5)
MIB = 1024 * 1024


def deaf(stream: ServerStream) -> None:
    """Takes the call and does nothing for it."""


# --- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_each_of_many_calls_gets_its_own_answer_whatever_the_order_and_over_one_connection(seed: int) -> None:
    async def main(world: World) -> None:
        held: list[ServerStream] = []

        def on_end(stream: ServerStream) -> None:
            held.append(stream)
            if len(held) == 50:
                for each in reversed(held):
                    each.answer(each.messages[0][::-1])

        world.replica.on_end = on_end
        answers = await asyncio.gather(*(world.infer(b"call %03d" % number) for number in range(50)))
        assert answers == [(b"call %03d" % number)[::-1] for number in range(50)]
        assert len(world.dials) == 1

    run(main, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_messages_of_every_size_arrive_whole_both_ways(seed: int) -> None:
    async def main(world: World) -> None:
        for size in (0, 1, 16_379, 16_380, 65_536, 256 * 1024, 3 * MIB):
            message = bytes(range(256)) * (size // 256) + bytes(size % 256)
            assert await world.infer(message) == message
            assert world.replica.streams[-1].messages == [message]

    run(main, seed=seed)


def test_what_starts_in_one_turn_of_the_loop_leaves_in_one_write() -> None:
    async def main(world: World) -> None:
        await world.infer()
        pipe = world.pipes[0]
        before = pipe.writes
        tasks = [asyncio.ensure_future(world.infer(b"%d" % number)) for number in range(200)]
        await asyncio.gather(*tasks)
        assert pipe.writes - before == 1

    run(main)


def test_a_call_says_what_it_is_how_long_it_may_take_and_what_it_was_given() -> None:
    async def main(world: World) -> None:
        metadata = (
            ("x-request-id", "abc"),
            ("traceparent", "00-ab"),
            ("accept", " blanks "),
            ("data-bin", "AAE"),
            ("broken-bin", "$$$"),
            ("umlaut", "ü"),
            ("line", "a\nb"),
            ("te", "gzip"),
            ("grpc-timeout", "1n"),
            ("Upper", "x"),
            ("", "x"),
            ("long", "v" * 500),
        )
        for _ in range(4):  # as literals, then by the connection's table
            await world.client.infer(b"", metadata, 2.0)
        for stream in world.replica.streams:
            assert stream.fields == {
                b":method": b"POST",
                b":scheme": b"http",
                b":path": b"/inference.GRPCInferenceService/ModelInfer",
                b":authority": b"10.0.0.1:8001",
                b"te": b"trailers",
                b"content-type": b"application/grpc",
                b"user-agent": b"sluice",
                b"grpc-accept-encoding": b"identity, deflate, gzip",
                b"grpc-timeout": stream.fields[b"grpc-timeout"],
                b"x-request-id": b"abc",
                b"traceparent": b"00-ab",
                b"accept": b"blanks",
                b"data-bin": b"AAE",
                b"long": b"v" * 500,
            }
        await world.infer()
        assert b"grpc-timeout" not in world.replica.streams[-1].fields

    run(main)


def test_the_replica_is_told_no_less_than_the_limit_and_at_most_a_millisecond_more() -> None:
    """Or it would end calls, and streams, whose answers come in time."""

    async def main(world: World) -> None:
        await world.infer()
        chance = random.Random(1)
        limits = [0.005, 0.0299, 0.1, 0.29, 0.7777, 1.0, 9.999, 10.0, 33.3, 999.0, 2000.06, 5000.0]
        for timeout_s in (*limits, *(10 ** chance.uniform(-2.2, 4) for _ in range(1000))):
            await world.infer(timeout_s=timeout_s)
            told = world.replica.streams[-1].fields[b"grpc-timeout"]
            told_s = int(told[:-1]) * {b"n": 1e-9, b"u": 1e-6, b"m": 1e-3, b"S": 1.0}[told[-1:]]
            assert timeout_s - 1e-9 <= told_s <= timeout_s + 0.001

    run(main)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_compressed_answer_is_unpacked(encoding: str) -> None:
    async def main(world: World) -> None:
        def on_end(stream: ServerStream) -> None:
            stream.head((b"grpc-encoding", encoding.encode()))
            pack: Callable[[bytes], bytes] = gzip.compress if encoding == "gzip" else zlib.compress
            stream.send(pack(stream.messages[0]), compressed=True)
            stream.end()

        world.replica.on_end = on_end
        for message in (bytes(10), bytes(range(256)) * 20, bytes(2 * MIB)):
            assert await world.infer(message) == message

    run(main)


def test_a_compressed_answer_that_is_too_large_unpacked_is_the_gateways_own_fault() -> None:
    async def main(world: World) -> None:
        def on_end(stream: ServerStream) -> None:
            stream.head((b"grpc-encoding", b"gzip"))
            stream.send(gzip.compress(bytes(3 * MIB)), compressed=True)
            stream.end()

        world.replica.on_end = on_end
        fault = await world.fault()
        assert (fault.code, fault.from_peer, fault.sent) == (Code.RESOURCE_EXHAUSTED, False, True)
        assert classify(fault).outcome is Outcome.GATEWAY_FAULT

    run(main, message_bytes_max=2 * MIB)


# --- answers that are none -------------------------------------------------------------------------------------------


def says(*steps: Callable[[ServerStream], object]) -> Callable[[ServerStream], None]:
    def on_end(stream: ServerStream) -> None:
        for step in steps:
            step(stream)

    return on_end


def block(data: bytes, end: bool) -> Callable[[ServerStream], object]:
    return lambda stream: stream.connection.codec.send_headers(stream, data, end)


HTML = b"\x88\x5f\x09text/html"
GOOD_END = end_block(0)

NOT_ANSWERS: dict[str, tuple[Callable[[ServerStream], None], Code, bool]] = {
    "an error": (says(lambda s: s.refuse(5, "Request for unknown model")), Code.NOT_FOUND, True),
    "an error behind the head": (says(lambda s: s.head(), lambda s: s.end(13, "x")), Code.INTERNAL, True),
    "an error behind the message": (
        says(lambda s: s.head(), lambda s: s.send(b"good"), lambda s: s.end(10)),
        Code.ABORTED,
        True,
    ),
    "a status that is none": (
        says(block(HEAD + b"\x00\x0bgrpc-status\x03abc", True)),
        Code.INTERNAL,
        True,
    ),
    "OK without a message": (says(lambda s: s.head(), lambda s: s.end()), Code.INTERNAL, True),
    "OK in the head": (says(lambda s: s.refuse(0)), Code.INTERNAL, True),
    "OK inside a message": (
        says(lambda s: s.head(), lambda s: s.raw(b"\0\0\0\0\5abc"), lambda s: s.end()),
        Code.INTERNAL,
        True,
    ),
    "OK inside a second message": (
        says(lambda s: s.head(), lambda s: s.send(b"good"), lambda s: s.raw(b"\0\0"), lambda s: s.end()),
        Code.INTERNAL,
        True,
    ),
    "two messages": (
        says(lambda s: s.head(), lambda s: s.send(b"a"), lambda s: s.send(b"b"), lambda s: s.end()),
        Code.INTERNAL,
        True,
    ),
    "two messages in one frame": (
        says(lambda s: s.head(), lambda s: s.raw(b"\0\0\0\0\1a\0\0\0\0\1b"), lambda s: s.end()),
        Code.INTERNAL,
        True,
    ),
    "no message": (says(lambda s: s.head(), lambda s: s.raw(b"\7\0\0\0\1a"), lambda s: s.end()), Code.INTERNAL, True),
    "an end without trailers": (says(lambda s: s.head(), lambda s: s.raw(b"\0\0\0\0\1a", True)), Code.UNKNOWN, False),
    "an end in two frames without trailers": (
        says(lambda s: s.head(), lambda s: s.raw(b"\0\0\0\0"), lambda s: s.raw(b"\1a", True)),
        Code.UNKNOWN,
        False,
    ),
    "trailers without a status": (
        says(lambda s: s.head(), lambda s: s.send(b"a"), block(b"\x00\x01x\x01y", True)),
        Code.UNKNOWN,
        False,
    ),
    "an unknown compression": (
        says(lambda s: s.head((b"grpc-encoding", b"zstd")), lambda s: s.send(b"a", True), lambda s: s.end()),
        Code.INTERNAL,
        True,
    ),
    "compressed in no way that was told": (
        says(lambda s: s.head(), lambda s: s.send(b"abc", True), lambda s: s.end()),
        Code.INTERNAL,
        True,
    ),
    "badly compressed": (
        says(lambda s: s.head((b"grpc-encoding", b"gzip")), lambda s: s.send(b"abc", True), lambda s: s.end()),
        Code.INTERNAL,
        True,
    ),
    "a page": (says(block(HTML, False), lambda s: s.raw(b"<html>", True)), Code.UNKNOWN, False),
    "a page that is refused": (says(block(b"\x08\x03503" + HTML[1:], True)), Code.UNAVAILABLE, False),
    "a page that is forbidden, with a body": (
        says(block(b"\x08\x03403" + HTML[1:], False), lambda s: s.raw(b"<html>", True)),
        Code.PERMISSION_DENIED,
        False,
    ),
    "a refusal that is gRPC all the same": (
        says(block(b"\x08\x03503" + HEAD[1:] + end_block(7, "no"), True)),
        Code.PERMISSION_DENIED,
        True,
    ),
    "a size over the bound": (
        says(lambda s: s.head(), lambda s: s.raw(message_prefix(65 * MIB))),
        Code.RESOURCE_EXHAUSTED,
        False,
    ),
    "more words than can be read": (
        says(block(HEAD + end_block(3, "y" * (4 * MIB)), True)),
        Code.INVALID_ARGUMENT,
        True,
    ),
    "a reset": (says(lambda s: s.reset(ErrorCode.INTERNAL_ERROR)), Code.INTERNAL, False),
    "a reset for calm": (says(lambda s: s.reset(ErrorCode.ENHANCE_YOUR_CALM)), Code.UNAVAILABLE, False),
    "a reset behind the message": (
        says(lambda s: s.head(), lambda s: s.send(b"a"), lambda s: s.reset(ErrorCode.CANCEL)),
        Code.CANCELLED,
        False,
    ),
    "an early deadline": (says(lambda s: s.refuse(4, "Deadline Exceeded")), Code.DEADLINE_EXCEEDED, True),
}


@pytest.mark.parametrize("what", NOT_ANSWERS)
def test_what_is_no_answer_is_a_fault_that_says_whose_and_the_next_call_is_answered(what: str) -> None:
    on_end, code, from_peer = NOT_ANSWERS[what]

    async def main(world: World) -> None:
        await world.infer()
        good, world.replica.on_end = world.replica.on_end, on_end
        fault = await world.fault(timeout_s=30.0)
        assert (fault.code, fault.from_peer, fault.sent) == (code, from_peer, True), fault
        world.replica.on_end = good
        assert await world.infer(b"after") == b"after"
        assert len(world.dials) == 1, "the connection is as good as before"

    run(main)


def test_a_deadline_that_the_replica_declares_when_it_has_passed_is_the_callers_own() -> None:
    async def main(world: World) -> None:
        async def late(stream: ServerStream) -> None:
            await asyncio.sleep(0.992)
            stream.refuse(4, "Deadline Exceeded")

        tasks: list[asyncio.Task[None]] = []
        world.replica.on_end = lambda stream: tasks.append(asyncio.ensure_future(late(stream)))
        await asyncio.sleep(0)
        fault = await world.fault(timeout_s=1.0)
        assert (fault.code, fault.from_peer) == (Code.DEADLINE_EXCEEDED, False)
        await asyncio.gather(*tasks)

    run(main)


# --- the end of patience ---------------------------------------------------------------------------------------------


def test_silence_ends_at_the_deadline_and_the_replica_is_told() -> None:
    async def main(world: World) -> None:
        await world.infer()
        world.replica.on_end = deaf
        begin_s = world.now_s()
        fault = await world.fault(timeout_s=0.5)
        assert (fault.code, fault.from_peer, fault.sent) == (Code.DEADLINE_EXCEEDED, False, True)
        assert 0.5 <= world.now_s() - begin_s <= 0.502
        await world.until(lambda: world.replica.streams[-1].reset_code == ErrorCode.CANCEL)

    run(main)


def test_no_answer_comes_after_the_deadline_and_none_reaches_another_call() -> None:
    async def main(world: World) -> None:
        await world.infer()
        held: list[ServerStream] = []
        world.replica.on_end = held.append
        first, second = await asyncio.gather(world.fault(b"1", 0.1), world.fault(b"2", 0.2))
        assert {first.code, second.code} == {Code.DEADLINE_EXCEEDED}
        third = asyncio.ensure_future(world.infer(b"3"))
        await world.until(lambda: len(held) == 3)
        held[0].answer(b"late 1")
        held[1].answer(b"late 2")
        held[2].answer(b"in time")
        assert await third == b"in time"

    run(main)


@pytest.mark.parametrize("timeout_s", [0.0, -1.0])
def test_no_time_is_over_at_once_and_nothing_is_sent(timeout_s: float) -> None:
    async def main(world: World) -> None:
        fault = await world.fault(timeout_s=timeout_s)
        assert (fault.code, fault.from_peer, fault.sent) == (Code.DEADLINE_EXCEEDED, False, False)
        assert not world.dials

    run(main)


def test_a_deadline_that_passes_before_there_is_a_connection_was_not_sent() -> None:
    async def main(world: World) -> None:
        world.replica.mode = "hang"
        fault = await world.fault(timeout_s=0.3)
        assert (fault.code, fault.from_peer, fault.sent) == (Code.DEADLINE_EXCEEDED, False, False)

    run(main)


def test_a_message_over_its_bound_is_not_sent() -> None:
    async def main(world: World) -> None:
        fault = await world.fault(bytes(4096 + ROUTED_NAMES_BYTES + 1))
        assert (fault.code, fault.from_peer, fault.sent) == (Code.RESOURCE_EXHAUSTED, False, False)
        assert f"({4096 + ROUTED_NAMES_BYTES + 1} vs. 4096)" in fault.text
        assert not world.dials
        world.replica.on_end = lambda stream: stream.answer(b"it came")
        assert await world.infer(bytes(4096 + ROUTED_NAMES_BYTES)) == b"it came"

    run(main, message_bytes_max=4096)


@pytest.mark.parametrize("size", [10, 200_000, 2 * MIB])
def test_a_call_can_be_cancelled_at_every_await_and_leaves_nothing(size: int) -> None:
    async def main(world: World) -> None:
        world.replica.on_end = lambda stream: stream.answer(stream.messages[0])

        channels = (world.client._links.main, world.client._links.bulk)
        delay_s, finished = 0.0, False
        while not finished:
            task = asyncio.ensure_future(world.infer(bytes(size), 60.0))
            await asyncio.sleep(delay_s)
            finished = task.done()
            task.cancel()
            await asyncio.wait((task,))
            assert finished or task.cancelled()
            for channel in channels:
                assert not channel._waiting
                assert not any(link.codec.streams_open for link in channel._links)
            delay_s += 0.00005
        assert delay_s > 0.0002
        await world.infer(bytes(size))
        assert len(world.client._links.wheel) <= len(world.replica.open) * 2, "no call's timer is left"

    run(main)


def test_cancelling_resets_the_stream_on_the_replica() -> None:
    async def main(world: World) -> None:
        world.replica.on_end = deaf
        task = asyncio.ensure_future(world.infer(b"x", 60.0))
        await world.until(lambda: world.replica.streams)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await world.until(lambda: world.replica.streams[0].reset_code == ErrorCode.CANCEL)

    run(main)


def test_a_large_request_that_is_cancelled_under_way_stops_and_others_go_on() -> None:
    async def main(world: World) -> None:
        task = asyncio.ensure_future(world.infer(bytes(8 * MIB)))
        await world.until(lambda: world.replica.streams)
        task.cancel()
        await asyncio.wait((task,))
        assert await world.infer(bytes(MIB)) == bytes(MIB)
        assert world.replica.streams[0].reset_code == ErrorCode.CANCEL
        assert not world.replica.streams[0].messages

    run(main, replica=ReplicaInMemory(window_bytes=65_536))


def test_a_large_request_that_is_refused_under_way_is_not_sent_to_its_end() -> None:
    async def main(world: World) -> None:
        world.replica.on_call = lambda stream: stream.refuse(8, "too much")
        fault = await world.fault(bytes(8 * MIB))
        assert (fault.code, fault.text, fault.from_peer) == (Code.RESOURCE_EXHAUSTED, "too much", True)
        world.replica.on_call = deaf
        assert await world.infer(b"x") == b"x"

    run(main, replica=ReplicaInMemory(window_bytes=65_536))


def test_a_small_call_is_not_held_up_by_a_large_one_that_the_replica_does_not_take() -> None:
    async def main(world: World) -> None:
        await world.infer()
        stuck = asyncio.ensure_future(world.infer(bytes(8 * MIB)))
        await world.until(lambda: len(world.replica.streams) == 2)
        connection = world.replica.streams[1].connection
        assert connection is not world.replica.connections[0], "what is large has a connection of its own"
        connection.deaf = True
        assert await world.infer(b"small", 1.0) == b"small"
        stuck.cancel()
        await asyncio.wait((stuck,))

    run(main)


# --- calls that did not run, and calls that may have -----------------------------------------------------------------


def test_a_refused_call_is_sent_again_and_nobody_notices() -> None:
    async def main(world: World) -> None:
        refused = 0

        def on_end(stream: ServerStream) -> None:
            nonlocal refused
            refused += 1
            if refused <= 2:
                stream.reset(ErrorCode.REFUSED_STREAM)
            else:
                stream.answer(b"done")

        world.replica.on_end = on_end
        assert await world.infer() == b"done"
        assert world.client.statistics(0.0)["moved"] == 2

    run(main)


def test_a_call_that_is_refused_again_and_again_fails_as_one_that_did_not_run() -> None:
    async def main(world: World) -> None:
        world.replica.on_end = lambda stream: stream.reset(ErrorCode.REFUSED_STREAM)
        fault = await world.fault()
        assert (fault.code, fault.from_peer, fault.sent) == (Code.UNAVAILABLE, False, False)
        assert len(world.replica.streams) == 3
        with pytest.raises(UpstreamFault) as caught:
            await world.client.server_live(1.0)
        assert caught.value.sent, "a probe must not take it for a replica that cannot be reached"

    run(main)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_replica_that_goes_away_answers_what_it_took_and_the_rest_goes_over_a_new_connection(seed: int) -> None:
    async def main(world: World) -> None:
        await world.infer()
        held: list[ServerStream] = []
        world.replica.on_end = held.append
        calls = [asyncio.ensure_future(world.infer(b"%d" % number)) for number in range(6)]
        await world.until(lambda: len(held) == 6)
        last, left_out = held[2].id, [stream.messages for stream in held[3:]]
        connection = world.replica.connections[0]
        connection.write(struct.pack(">IBIII", 8 << 8 | 7, 0, 0, last, 0))
        await world.until(lambda: len(held) == 9)
        assert [stream.messages for stream in held[6:]] == left_out
        assert {stream.connection for stream in held[6:]} == {world.replica.connections[1]}
        for stream in (*held[:3], *held[6:]):
            stream.answer(stream.messages[0])
        assert await asyncio.gather(*calls) == [b"%d" % number for number in range(6)]
        await world.until(lambda: connection.lost)
        figures = world.client.statistics(0.0)
        assert (figures["moved"], figures["goaways"], figures["connections"]) == (3, 1, 1)

    run(main, seed=seed)


def test_a_graceful_end_of_the_replica_costs_no_call() -> None:
    async def main(world: World) -> None:
        async def work(number: int) -> None:
            for step in range(40):
                message = b"%d/%d" % (number, step)
                assert await world.infer(message, 5.0) == message

        async def slowly(stream: ServerStream) -> None:
            await asyncio.sleep(0.002)
            stream.answer(stream.messages[0])

        tasks: set[asyncio.Task[None]] = set()

        def on_end(stream: ServerStream) -> None:
            task = asyncio.ensure_future(slowly(stream))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        world.replica.on_end = on_end
        workers = [asyncio.ensure_future(work(number)) for number in range(8)]
        for _ in range(3):
            await asyncio.sleep(0.02)
            await world.until(lambda: [each for each in world.replica.open if each.codec.settings_acknowledged])
            world.replica.open[-1].codec.drain()
        await asyncio.gather(*workers)
        assert len(world.replica.connections) >= 3

    run(main)


@pytest.mark.parametrize("how", ["abort", "close"])
def test_a_connection_that_breaks_fails_each_call_on_it_once(how: str) -> None:
    async def main(world: World) -> None:
        await world.infer()
        world.replica.on_end = deaf
        calls = [asyncio.ensure_future(world.fault()) for _ in range(5)]
        await world.until(lambda: len(world.replica.streams) == 6)
        transport = world.replica.connections[0].transport
        assert transport is not None
        transport.abort() if how == "abort" else transport.close()
        for fault in await asyncio.gather(*calls):
            assert (fault.code, fault.from_peer, fault.sent) == (Code.UNAVAILABLE, False, True)
        assert len(world.replica.streams) == 6, "what may have run is not sent again"
        world.replica.on_end = lambda stream: stream.answer(b"back")
        assert await world.infer() == b"back"

    run(main)


def test_a_call_whose_bytes_never_left_is_sent_over_the_next_connection() -> None:
    async def main(world: World) -> None:
        await world.infer()
        (link,) = world.client._links.main._links
        link.pause_writing()
        call = asyncio.ensure_future(world.infer(b"kept"))
        await asyncio.sleep(0.01)
        world.replica.connections[0].abort()
        assert await call == b"kept"
        assert [stream.messages for stream in world.replica.streams] == [[b"x"], [b"kept"]]

    run(main)


def test_a_peer_that_breaks_the_protocol_loses_its_connection_and_the_gateway_tells_it_why() -> None:
    async def main(world: World) -> None:
        await world.infer()
        world.replica.on_end = deaf
        call = asyncio.ensure_future(world.fault())
        await world.until(lambda: len(world.replica.streams) == 2)
        world.replica.connections[0].write(struct.pack(">IBI", 1 << 8 | 6, 0, 0) + b"x")
        fault = await call
        assert (fault.code, fault.from_peer, fault.sent) == (Code.UNAVAILABLE, False, True)
        assert "broke the protocol" in fault.text

    run(main)


def test_calls_that_are_out_when_the_client_is_closed_fail_and_later_ones_too() -> None:
    async def main(world: World) -> None:
        world.replica.on_end = deaf
        calls = [asyncio.ensure_future(world.fault(bytes(size))) for size in (10, MIB)]
        await world.until(lambda: len(world.replica.streams) == 2)
        await world.client.aclose()
        for fault in await asyncio.gather(*calls):
            assert (fault.code, fault.from_peer, fault.sent) == (Code.UNAVAILABLE, False, True)
        later = await world.fault()
        assert (later.code, later.from_peer, later.sent) == (Code.UNAVAILABLE, False, False)
        assert len(world.dials) == 2

    run(main)


def test_calls_leave_nothing_to_the_collector_of_cycles() -> None:
    async def main(world: World) -> None:
        async def some(act: Callable[[ServerStream], None], timeout_s: float) -> None:
            world.replica.on_end = act
            for _ in range(50):
                try:
                    await world.infer(b"x", timeout_s)
                except UpstreamFault:
                    pass

        await world.infer()
        for act, timeout_s in (
            (lambda stream: stream.answer(b"good"), 60.0),
            (lambda stream: stream.refuse(5, "no"), 60.0),
            (lambda stream: stream.reset(ErrorCode.INTERNAL_ERROR), 60.0),
            (deaf, 0.01),
        ):
            await some(act, timeout_s)
            world.replica.streams.clear()
            gc.collect()
            await some(act, timeout_s)
            world.replica.streams.clear()
            found = gc.collect()
            assert found < 50, f"{found} objects in cycles after 50 calls"

    run(main)
