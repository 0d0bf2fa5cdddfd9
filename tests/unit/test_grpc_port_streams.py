"""ModelStreamInfer on our own gRPC server: windows and memory, in place and in order, and every way to end."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

import msgspec
import pytest
from tritonclient.grpc import service_pb2 as pb

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply, Response, StreamReply
from gateway.edge.grpc_port import STREAM_WINDOW_BYTES
from gateway.policy.schema import GrpcLimits
from tests.unit.edge_driving import turns
from tests.unit.grpc_driving import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    RST_STREAM,
    STREAM_INFER,
    WINDOW_MOST,
    WINDOW_UPDATE,
    Bench,
    HandClient,
    frame,
    head_block,
    infer_message,
    prefixed,
)

OPEN = head_block(STREAM_INFER)


class Flight:
    """A call that reached the service; the test answers it."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.outcome: Outcome | None = None
        self._pieces: asyncio.Queue[Response | BaseException | None] = asyncio.Queue()

    def respond(self, size: int = 1) -> None:
        message = pb.ModelInferResponse(model_name=self.call.model, model_version="1", id=self.call.body_id)
        message.raw_output_contents.append(bytes(size))
        self._pieces.put_nowait(Response(message.SerializeToString()))

    def end(self, error: BaseException | None = None) -> None:
        self._pieces.put_nowait(error)

    async def next(self) -> Response | None:
        piece = await self._pieces.get()
        if isinstance(piece, BaseException):
            raise piece
        return piece

    def closed(self, outcome: Outcome) -> None:
        self.outcome = outcome


class Service:
    def __init__(self) -> None:
        self.flights: list[Flight] = []
        self.cancelled = 0

    async def send(self, call: Call) -> Reply:
        if call.receive is not None:
            await call.receive()
        flight = Flight(call)
        self.flights.append(flight)
        try:
            first = await flight.next()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        reply = StreamReply(first, flight.next, ordered=True)
        reply.on_close(flight.closed)
        return reply


class Scene:
    """A stream that is open."""

    def __init__(self, *, head: bytes = OPEN, window: int = WINDOW_MOST, **options: Any) -> None:
        self.service = Service()
        self.bench = Bench(self.service, **options)
        self.client: HandClient = self.bench.connect()
        self.client.greet(window=window)
        self.client.open(1, head)

    def say(self, *messages: bytes, end: bool = False) -> None:
        self.client.say(1, b"".join(map(prefixed, messages)), end=end)

    async def got(self) -> list[pb.ModelStreamInferResponse]:
        """The messages that came since this was asked last."""
        await turns()
        data = b"".join(got.payload for got in self.client.frames(DATA))
        messages = []
        while data:
            size = int.from_bytes(data[1:5], "big")
            messages.append(pb.ModelStreamInferResponse.FromString(data[5 : 5 + size]))
            data = data[5 + size :]
        return messages

    async def ending(self) -> dict[str, str]:
        """The fields of the block that ended the stream."""
        await turns(40)
        ends = [got.fields for got in self.client.frames(HEADERS) if got.flags & END_STREAM]
        assert len(ends) == 1, ends
        return ends[0]


def limits(**values: int) -> GrpcLimits:
    return msgspec.convert(values, GrpcLimits)


async def test_messages_are_answered_in_their_order_and_the_end_is_ok() -> None:
    scene = Scene()
    scene.say(infer_message(id="a"), infer_message(id="b"), end=True)
    await turns()
    first, second = scene.service.flights
    for flight in (second, first):
        flight.respond()
        flight.end()
    await turns()
    head, one, two, end = scene.client.frames(HEADERS, DATA)
    assert head.fields["x-sluice-model"] == "mine"
    assert "x-sluice-attempts" not in head.fields
    ids = [pb.ModelStreamInferResponse.FromString(got.payload[5:]).infer_response.id for got in (one, two)]
    assert ids == ["a", "b"]
    assert end.fields == {"grpc-status": "0"}
    assert [flight.outcome for flight in scene.service.flights] == [Outcome.OK] * 2
    assert scene.bench.budget.used_bytes == 0
    await scene.bench.nothing_is_left()


async def test_a_stream_that_says_nothing_ends_well() -> None:
    scene = Scene()
    scene.client.feed(frame(DATA, END_STREAM, 1))
    assert (await scene.ending())["grpc-status"] == "0"
    scene.client.feed(frame(HEADERS, END_HEADERS | END_STREAM, 3, OPEN))
    assert (await scene.ending())["grpc-status"] == "0"
    await scene.bench.nothing_is_left()


async def test_a_client_that_is_not_read_from_fills_its_window_and_no_more() -> None:
    scene = Scene(limits=limits(stream_calls_max=2), memory_bytes=8 << 20)
    message = infer_message(size=STREAM_WINDOW_BYTES // 8)
    scene.say(*[message] * 7)
    await turns()
    assert len(scene.service.flights) == 2
    # Two are calls; the window of the five behind them is not returned.
    updates = sum(got.code for got in scene.client.frames(WINDOW_UPDATE) if got.stream == 1)
    assert updates <= 2 * (len(message) + 5)
    assert scene.bench.budget.used_bytes == 7 * len(message)
    for flight in scene.service.flights:
        flight.respond()
        flight.end()
    await turns()
    assert len(scene.service.flights) == 4
    await scene.bench.nothing_is_left()
    assert scene.service.cancelled == 2


async def test_a_large_message_gets_room_only_when_none_waits_in_front_of_it() -> None:
    scene = Scene(limits=limits(stream_calls_max=1), memory_bytes=8 << 20)
    large = infer_message(size=1 << 20)
    scene.say(infer_message(), infer_message(id="waits"))
    await turns()
    scene.client.frames()
    scene.client.say(1, prefixed(large)[:10_000])
    await turns()
    assert [got for got in scene.client.frames(WINDOW_UPDATE) if got.stream] == []
    scene.service.flights[0].end()
    await turns()
    assert scene.service.flights[1].call.body_id == "waits"
    (grown,) = (got for got in scene.client.frames(WINDOW_UPDATE) if got.stream)
    assert grown.code >= len(large)
    scene.client.say(1, prefixed(large)[10_000:])
    scene.service.flights[1].end()
    await turns()
    assert scene.service.flights[2].call.message == large
    # What was lent is paid back: the window is what it was.
    scene.say(*[infer_message(size=1000)] * 10)
    await turns()
    assert sum(got.code for got in scene.client.frames(WINDOW_UPDATE) if got.stream) < STREAM_WINDOW_BYTES
    await scene.bench.nothing_is_left()


async def test_a_message_without_memory_is_refused_in_its_place_and_the_stream_lives_on() -> None:
    scene = Scene(memory_bytes=100_000)
    scene.say(infer_message(id="small"))
    scene.say(infer_message("mine", 200_000, id="large"), infer_message(id="next"), end=True)
    await turns()
    assert [flight.call.body_id for flight in scene.service.flights] == ["small", "next"]
    for flight in scene.service.flights:
        flight.respond()
        flight.end()
    small, large, after = await scene.got()
    assert (small.infer_response.id, after.infer_response.id) == ("small", "next")
    assert "memory" in large.error_message
    assert large.infer_response.id == "large"
    assert scene.bench.budget.used_bytes == 0
    await scene.bench.nothing_is_left()


async def test_compressed_messages_are_read_and_bad_ones_end_the_stream() -> None:
    scene = Scene(head=head_block(STREAM_INFER, (b"grpc-encoding", b"gzip")))
    scene.client.say(1, prefixed(gzip.compress(infer_message(id="packed")), 1) + prefixed(infer_message(id="plain")))
    await turns()
    assert [flight.call.body_id for flight in scene.service.flights] == ["packed", "plain"]
    scene.client.say(1, prefixed(b"xx", 1))
    assert (await scene.ending())["grpc-status"] == "13"
    assert scene.service.cancelled == 2
    await scene.bench.nothing_is_left()


@pytest.mark.parametrize(
    ("payload", "status", "word"),
    [
        (b"\x02\0\0\0\0", "13", "neither 0 nor 1"),
        (b"\0\xff\xff\xff\xff", "8", "SERVER: Received message larger than max"),
        (prefixed(b"\xff\xff"), "13", "unable to parse"),
    ],
)
async def test_what_breaks_the_rules_ends_the_stream_behind_what_was_good(
    payload: bytes, status: str, word: str
) -> None:
    scene = Scene()
    scene.client.say(1, prefixed(infer_message(id="good")) + payload)
    await turns()
    assert [flight.call.body_id for flight in scene.service.flights] == ["good"]
    ending = await scene.ending()
    assert (ending["grpc-status"], word in ending["grpc-message"]) == (status, True), ending
    await scene.bench.nothing_is_left()


async def test_an_end_inside_a_message_is_told() -> None:
    scene = Scene()
    scene.client.say(1, prefixed(infer_message())[:-2], end=True)
    ending = await scene.ending()
    assert (ending["grpc-status"], ending["x-sluice-reason"]) == ("13", "bad_request")
    await scene.bench.nothing_is_left()


@pytest.mark.parametrize("how", ["resets the stream", "closes the connection"])
async def test_a_client_that_leaves_takes_its_calls_along(how: str) -> None:
    scene = Scene(limits=limits(stream_calls_max=2))
    scene.say(*[infer_message(size=1000)] * 5)
    scene.client.say(1, prefixed(infer_message(size=1000))[:500])
    await turns()
    assert len(scene.service.flights) == 2
    if how == "resets the stream":
        scene.client.reset(1)
    else:
        scene.client.leave()
    await turns()
    assert scene.service.cancelled == 2
    assert scene.bench.budget.used_bytes == 0
    assert scene.bench.events.faults == 0
    await scene.bench.nothing_is_left()


async def test_the_deadline_of_the_rpc_ends_the_stream_and_its_calls() -> None:
    scene = Scene(head=head_block(STREAM_INFER, (b"grpc-timeout", b"2S")))
    scene.say(infer_message())
    await turns()
    scene.bench.advance(1.9)
    await turns()
    assert scene.service.cancelled == 0
    scene.bench.advance(0.2)
    ending = await scene.ending()
    assert (ending["grpc-status"], ending["grpc-message"]) == ("4", "Deadline Exceeded")
    assert scene.service.cancelled == 1
    await scene.bench.nothing_is_left()


async def test_a_slow_client_holds_up_its_calls_and_is_cut_off_in_the_end() -> None:
    scene = Scene(window=1000, memory_bytes=8 << 20, limits=limits(write_timeout_ms=5000))
    scene.say(infer_message())
    await turns()
    (flight,) = scene.service.flights
    for _ in range(40):
        flight.respond(100_000)
    await turns()
    assert 90_000 < scene.bench.budget.used_bytes < 400_000, "one message waits here, the others in the call"
    scene.client.feed(frame(WINDOW_UPDATE, 0, 1, (50_000).to_bytes(4, "big")))
    await turns()
    scene.client.frames()
    scene.bench.advance(5.1)
    await turns()
    (reset,) = scene.client.frames(RST_STREAM)
    assert (reset.stream, reset.code) == (1, 11)
    assert flight.outcome is Outcome.ABANDONED
    assert "slow_reader" in scene.bench.events.broken
    await scene.bench.nothing_is_left()


async def test_a_full_transport_holds_the_writer_up() -> None:
    scene = Scene()
    scene.say(infer_message())
    await turns()
    (flight,) = scene.service.flights
    scene.client.stop_taking()
    flight.respond()
    flight.respond()
    assert await scene.got() == []
    scene.client.take_again()
    assert len(await scene.got()) == 2
    await scene.bench.nothing_is_left()


async def test_a_draining_gateway_answers_what_is_out_and_sends_the_client_elsewhere() -> None:
    scene = Scene()
    scene.say(infer_message())
    await turns()
    scene.bench.port.begin_drain()
    scene.say(infer_message(id="too late"))
    await turns()
    (flight,) = scene.service.flights
    flight.respond()
    flight.end()
    ending = await scene.ending()
    assert (ending["grpc-status"], ending["x-sluice-reason"]) == ("14", "draining")
    scene.client.open(3, OPEN)
    ending = await scene.ending()
    assert (ending["grpc-status"], ending["x-sluice-reason"]) == ("14", "draining")
    await scene.bench.nothing_is_left()


async def test_at_the_end_of_draining_a_stream_is_cut() -> None:
    scene = Scene()
    scene.say(infer_message(id="out"))
    await turns()
    closing = asyncio.ensure_future(scene.bench.port.wait_closed(0.0))
    async with asyncio.timeout(20):
        while scene.bench.port.statistics(0.0)["calls"]:
            await asyncio.sleep(0.001)
    (told,) = await scene.got()
    assert "shutting down" in told.error_message
    scene.client.leave()
    async with asyncio.timeout(20):
        assert not await closing
    assert scene.service.cancelled == 1
    await scene.bench.nothing_is_left()


@pytest.mark.parametrize("raised", [RuntimeError("x"), asyncio.CancelledError(), KeyboardInterrupt(), MemoryError()])
async def test_whatever_a_call_raises_the_stream_says_so_and_lives_on(raised: BaseException) -> None:
    """Field case FH-14."""
    scene = Scene()
    scene.say(infer_message(id="bad"), infer_message(id="good"), end=True)
    await turns()
    bad, good = scene.service.flights
    bad.end(raised)
    good.respond()
    good.end()
    first, second = await scene.got()
    assert first.error_message.startswith("an internal fault")
    assert second.infer_response.id == "good"
    assert scene.bench.events.faults == 1
    await scene.bench.nothing_is_left()


async def test_a_stream_whose_task_is_cancelled_inside_the_gateway_ends_with_a_status() -> None:
    """Field case FH-14."""
    scene = Scene()
    scene.say(infer_message())
    await turns()
    task = next(task for task in scene.bench.port.tasks if task.get_name() == "stream")
    task.cancel()
    assert (await scene.ending())["grpc-status"] == "13"
    assert scene.bench.events.faults == 1
    await scene.bench.nothing_is_left()


async def test_true_statuses_end_a_stream_with_the_models_own() -> None:
    scene = Scene(head=head_block(STREAM_INFER, (b"triton_grpc_error", b"true")))
    scene.say(infer_message())
    await turns()
    scene.service.flights[0].end(GatewayError(Reason.NO_REPLICA, "nobody"))
    ending = await scene.ending()
    assert (ending["grpc-status"], ending["grpc-message"]) == ("14", "nobody")
    await scene.bench.nothing_is_left()


async def test_a_stream_with_bad_metadata_is_refused_at_once() -> None:
    scene = Scene(head=head_block(STREAM_INFER, (b"x-request-timeout-ms", b"never")))
    ending = await scene.ending()
    assert (ending["grpc-status"], ending["x-sluice-reason"]) == ("3", "bad_request")
    assert scene.bench.events.requests == [("grpc", "ModelStreamInfer", "INVALID_ARGUMENT")]
    scene.say(infer_message())
    await scene.bench.nothing_is_left()
