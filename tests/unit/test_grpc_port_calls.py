"""Our own gRPC server: what one call holds while it lasts, and that nothing is left of it, whoever ends it first."""

from __future__ import annotations

import asyncio
import gc

import msgspec
import pytest

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply
from gateway.edge.grpc_connection import GrpcConnection
from gateway.edge.grpc_port import STREAM_WINDOW_BYTES
from gateway.edge.grpc_stream import ClientStream
from gateway.edge.grpc_streaming import ServerStream
from gateway.edge.grpc_unary import ServedRpc
from gateway.policy.schema import GrpcLimits
from gateway.wire.hpack import HeaderBlock
from tests.support.grpc_edge import ANSWER
from tests.support.service import ScriptedService
from tests.unit.edge_driving import turns
from tests.unit.grpc_driving import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INFER,
    RST_STREAM,
    STREAM_INFER,
    WINDOW_UPDATE,
    Bench,
    frame,
    head_block,
    infer_message,
    prefixed,
)
from tests.unit.grpc_port_kit import MESSAGE, answering, ended, one


class Receiving(ScriptedService):
    """Asks for the message before it goes on, as the deadline layer does."""

    async def send(self, call: Call) -> Reply:
        if call.message is None:
            self.seen.append(call)
            assert call.receive is not None
            await call.receive()
        return await super().send(call)


# --- memory --------------------------------------------------------------------------------------------------------


async def test_a_message_without_memory_is_refused_before_it_has_come_and_its_call_has_a_record() -> None:
    service = Receiving()
    bench = Bench(service, memory_bytes=1_000_000)
    client = bench.connect()
    client.greet()
    client.call(1, MESSAGE)
    await turns()
    client.open(3)
    large = prefixed(infer_message("mine", 1_000_000, model_version="3"))
    client.feed(frame(DATA, 0, 3, large[:3]), frame(DATA, 0, 3, large[3:6000]))
    told = await one(client)
    assert (told.stream, told.fields["grpc-status"], told.fields["x-sluice-reason"]) == (3, "8", "body_memory")
    assert int(told.fields["grpc-retry-pushback-ms"]) > 0
    assert told.fields["x-sluice-model"] == "mine"
    call = service.seen[-1]
    assert (call.model, call.version, call.body_bytes) == ("mine", "3", len(large) - 5)
    client.say(3, large[6000:])  # under way already, and dropped
    await turns()
    assert client.reads()
    assert bench.budget.used_bytes == len(MESSAGE)
    service.arrivals.get_nowait().answer(ANSWER)
    assert await ended(client) == [(1, "0")]
    await bench.nothing_is_left()


async def test_a_large_message_is_reserved_when_its_length_is_known_and_given_room_at_once() -> None:
    service = ScriptedService()
    bench = Bench(service, memory_bytes=8 << 20)
    client = bench.connect()
    client.greet()
    await turns()
    client.frames()
    message = infer_message(size=2 << 20)
    client.open(1)
    client.say(1, prefixed(message)[:100])
    await turns()
    (grown,) = client.frames(WINDOW_UPDATE)
    assert (grown.stream, grown.code) == (1, len(message) + 5 - STREAM_WINDOW_BYTES)
    assert bench.budget.used_bytes == len(message)
    client.say(1, prefixed(message)[100:], end=True)
    await turns()
    assert all(got.stream == 0 for got in client.frames(WINDOW_UPDATE))
    arrival = service.arrivals.get_nowait()
    assert arrival.call.message == message
    arrival.answer(ANSWER)
    assert await ended(client) == [(1, "0")]
    assert bench.budget.used_bytes == 0
    await bench.nothing_is_left()


@pytest.mark.parametrize("leaves", ["resets the stream", "closes the connection"])
async def test_a_client_that_leaves_inside_a_message_leaves_no_memory_behind(leaves: str) -> None:
    bench = Bench(answering())
    client = bench.connect()
    client.greet()
    client.open(1)
    client.say(1, prefixed(infer_message(size=100_000))[:50_000])
    assert bench.budget.used_bytes > 100_000
    if leaves == "resets the stream":
        client.reset(1)
    else:
        client.leave()
    assert bench.budget.used_bytes == 0
    await bench.nothing_is_left()


async def test_a_large_answer_leaves_as_the_client_gives_windows() -> None:
    answer = bytes(range(256)) * 2000
    service = ScriptedService(lambda call: Reply(answer))
    bench = Bench(service)
    client = bench.connect()
    client.greet()
    client.call(1, MESSAGE)
    await turns()
    frames = client.frames(HEADERS, DATA)
    got = b"".join(each.payload for each in frames if each.kind == DATA)
    assert 30_000 < len(got) <= 65_535
    while len(got) < len(answer) + 5:
        update = (30_000).to_bytes(4, "big")
        client.feed(frame(WINDOW_UPDATE, 0, 0, update), frame(WINDOW_UPDATE, 0, 1, update))
        await turns()
        new = client.frames(HEADERS, DATA)
        got += b"".join(each.payload for each in new if each.kind == DATA)
        frames += new
    assert got == prefixed(answer)
    assert [each.fields.get("grpc-status") for each in frames if each.kind == HEADERS] == [None, "0"]
    assert bench.budget.used_bytes == 0
    await bench.nothing_is_left()


async def test_an_answer_over_the_limit_is_an_error_and_no_answer() -> None:
    outcomes: list[Outcome] = []

    def respond(call: Call) -> Reply:
        reply = Reply(bytes(3000))
        reply.on_close(outcomes.append)
        return reply

    bench = Bench(ScriptedService(respond), limits=msgspec.convert({"message_bytes_max": 2000}, GrpcLimits))
    client = bench.connect()
    client.greet()
    client.call(1, MESSAGE)
    told = await one(client)
    assert (told.fields["grpc-status"], told.fields["x-sluice-reason"]) == ("8", "answer_too_large")
    assert "(3000 vs. 2000)" in told.fields["grpc-message"]
    assert outcomes == [Outcome.GATEWAY_FAULT]
    await bench.nothing_is_left()


# --- cancellation --------------------------------------------------------------------------------------------------


async def test_a_reset_cancels_the_call_and_a_second_one_means_nothing() -> None:
    service = ScriptedService()
    bench = Bench(service)
    client = bench.connect()
    client.greet()
    client.call(1, MESSAGE)
    await turns()
    arrival = service.arrivals.get_nowait()
    client.reset(1)
    await turns()
    assert arrival.cancelled
    assert arrival.call.abandoned
    assert bench.budget.used_bytes == 0
    client.reset(1)
    client.call(3, MESSAGE)
    await turns()
    service.arrivals.get_nowait().answer(ANSWER)
    assert await ended(client) == [(3, "0")]
    client.reset(3)
    assert bench.events.faults == 0
    await bench.nothing_is_left()


async def test_a_reset_in_the_same_breath_leaves_a_count_and_no_call() -> None:
    service = ScriptedService()
    bench = Bench(service)
    client = bench.connect()
    client.greet()
    client.feed(
        frame(HEADERS, END_HEADERS, 1, head_block()),
        frame(DATA, END_STREAM, 1, prefixed(MESSAGE)),
        frame(RST_STREAM, 0, 1, b"\0\0\0\x08"),
    )
    await turns()
    assert service.seen == []
    assert bench.events.requests == [("grpc", "ModelInfer", "CANCELLED")]
    assert bench.events.faults == 0
    await bench.nothing_is_left()


async def test_a_reset_while_the_answer_waits_for_windows_frees_it() -> None:
    bench = Bench(ScriptedService(lambda call: Reply(bytes(500_000))))
    client = bench.connect()
    client.greet()
    client.call(1, MESSAGE)
    await turns()
    assert bench.budget.used_bytes > 400_000
    client.reset(1)
    assert bench.budget.used_bytes == 0
    await bench.nothing_is_left()


async def test_an_answer_that_comes_when_the_client_has_left_is_closed_as_abandoned() -> None:
    outcomes: list[Outcome] = []

    class Stubborn:
        """Answers although it is cancelled."""

        def __init__(self) -> None:
            self.go = asyncio.Event()

        async def send(self, call: Call) -> Reply:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await self.go.wait()
            reply = Reply(ANSWER)
            reply.on_close(outcomes.append)
            return reply

    service = Stubborn()
    bench = Bench(service)
    client = bench.connect()
    client.greet()
    client.call(1, MESSAGE)
    await turns()
    client.frames()
    client.reset(1)
    await turns()
    service.go.set()
    await turns()
    assert outcomes == [Outcome.ABANDONED]
    assert client.frames() == []
    await bench.nothing_is_left()


async def test_the_time_limit_counts_from_the_head_however_long_the_message_takes() -> None:
    service = ScriptedService()
    bench = Bench(service)
    client = bench.connect()
    client.greet()
    began_s, began_wall_s = bench.clock.now_s(), bench.clock.wall_s()
    client.open(1, head_block(INFER, (b"grpc-timeout", b"9S")))
    bench.advance(3)
    client.say(1, prefixed(MESSAGE)[:8])
    bench.advance(3)
    client.say(1, prefixed(MESSAGE)[8:], end=True)
    await turns()
    call = service.arrivals.get_nowait().call
    assert (call.arrived_s, call.timeout_s) == (began_s, 9.0)
    assert call.arrived_wall_s == pytest.approx(began_wall_s)
    await bench.nothing_is_left()


async def test_a_client_that_leaves_at_its_deadline_ran_out_of_time() -> None:
    class Dated(ScriptedService):
        async def send(self, call: Call) -> Reply:
            assert call.timeout_s is not None
            call.deadline_s = call.arrived_s + call.timeout_s
            return await super().send(call)

    service = Dated()
    bench = Bench(service)
    client = bench.connect()
    client.greet()
    for stream in (1, 3):
        client.call(stream, MESSAGE, head_block(INFER, (b"grpc-timeout", b"1S")))
    await turns()
    early, late = service.arrivals.get_nowait(), service.arrivals.get_nowait()
    bench.advance(0.5)
    client.reset(1)
    await turns()
    assert early.call.abandoned
    bench.advance(0.49)
    client.reset(3)
    await turns()
    assert not late.call.abandoned, "the deadline's own scope ends it, and is right about the reason"
    assert not late.cancelled
    outcomes: list[Outcome] = []
    late.answer(ANSWER).on_close(outcomes.append)
    await turns()
    assert outcomes == [Outcome.EXPIRED]
    await bench.nothing_is_left()


async def test_what_is_over_is_gone_without_the_collector_of_cycles() -> None:
    def refuse(call: Call) -> Reply:
        raise GatewayError(Reason.QUEUE_FULL, "full")

    def kinds() -> list[str]:
        kinds = (GrpcConnection, ServedRpc, ServerStream, ClientStream, Call, HeaderBlock, GatewayError)
        return [type(thing).__name__ for thing in gc.get_objects() if isinstance(thing, kinds)]

    gc.collect()
    before = kinds()
    gc.disable()
    try:
        for service in (answering(), ScriptedService(refuse), ScriptedService()):
            bench = Bench(service)
            client = bench.connect()
            client.greet()
            client.call(1, MESSAGE)
            client.call(3, MESSAGE, head_block(INFER, (b"x-request-timeout-ms", b"never")))
            client.open(5)
            client.say(5, prefixed(MESSAGE)[:7])
            client.open(7, head_block(STREAM_INFER))
            client.say(7, prefixed(MESSAGE)[:7])
            await turns(20)
            client.reset(1)
            await bench.nothing_is_left()
            bench.forget_clients()
            service.seen.clear()
            while not service.arrivals.empty():
                service.arrivals.get_nowait()
            del client, bench, service
        assert kinds() == before
    finally:
        gc.enable()
