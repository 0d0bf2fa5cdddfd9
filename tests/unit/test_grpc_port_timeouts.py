"""Our own gRPC server and clients that are slow, silent or gone."""

from __future__ import annotations

import asyncio

import msgspec

from gateway.core.call import Call
from gateway.core.reply import Reply
from gateway.policy.schema import GrpcLimits
from tests.support.grpc_edge import ANSWER
from tests.support.service import ScriptedService
from tests.unit.edge_driving import turns
from tests.unit.grpc_driving import (
    ACK,
    DATA,
    END_HEADERS,
    GOAWAY,
    HEADERS,
    INFER,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    STREAM_INFER,
    WINDOW_UPDATE,
    Bench,
    frame,
    head_block,
    infer_message,
    prefixed,
)

MESSAGE = infer_message()


def limits(**values: int) -> GrpcLimits:
    return msgspec.convert(values, GrpcLimits)


async def test_a_client_that_says_nothing_is_closed() -> None:
    bench = Bench(ScriptedService(), limits=limits(handshake_timeout_ms=3000))
    client = bench.connect()
    bench.advance(2.9)
    assert not client.ended()
    bench.advance(0.2)
    assert client.cut_off()
    assert bench.events.broken == ["slow_head"]
    await bench.nothing_is_left()


async def test_a_client_that_does_not_finish_taking_up_http2_is_closed() -> None:
    for said in (PREFACE[:10], PREFACE, PREFACE + frame(SETTINGS, 0, 0)[:5]):
        bench = Bench(ScriptedService(), limits=limits(handshake_timeout_ms=3000))
        client = bench.connect()
        client.feed(said)
        bench.advance(3.1)
        assert client.cut_off(), said
        await bench.nothing_is_left()


async def test_bytes_that_come_one_by_one_make_a_connection_all_the_same() -> None:
    bench = Bench(ScriptedService(lambda call: Reply(ANSWER)))
    client = bench.connect()
    said = PREFACE + frame(SETTINGS, 0, 0) + frame(SETTINGS, ACK, 0)
    said += frame(HEADERS, END_HEADERS, 1, head_block()) + frame(DATA, 1, 1, prefixed(MESSAGE))
    for octet in said:
        client.feed(bytes((octet,)))
    await turns()
    assert [got.fields.get("grpc-status") for got in client.frames(HEADERS)] == [None, "0"]
    await bench.nothing_is_left()


async def test_a_call_whose_message_does_not_come_ends() -> None:
    bench = Bench(ScriptedService(), limits=limits(message_idle_timeout_ms=5000))
    client = bench.connect()
    client.greet()
    client.open(1)
    client.open(3)
    client.say(3, prefixed(MESSAGE)[:7])
    bench.advance(3)
    client.say(3, prefixed(MESSAGE)[7:8])
    bench.advance(2.5)
    await turns()
    (told,) = client.frames(HEADERS)
    assert (told.stream, told.fields["grpc-status"], told.fields["x-sluice-reason"]) == (1, "4", "slow_body")
    bench.advance(3)
    await turns()
    (told,) = client.frames(HEADERS)
    assert (told.stream, told.fields["grpc-status"]) == (3, "4")
    assert bench.events.broken == ["slow_body", "slow_body"]
    assert bench.events.requests == [("grpc", "ModelInfer", "DEADLINE_EXCEEDED")] * 2
    assert bench.budget.used_bytes == 0
    await bench.nothing_is_left()


async def test_a_stream_may_be_silent_between_messages_and_not_inside_one() -> None:
    bench = Bench(ScriptedService(), limits=limits(message_idle_timeout_ms=5000))
    client = bench.connect()
    client.greet()
    client.open(1, head_block(STREAM_INFER))
    await turns()
    bench.advance(30)
    await turns()
    assert client.frames(HEADERS) == []
    client.say(1, prefixed(MESSAGE)[:9])
    bench.advance(5.1)
    await turns()
    (told,) = client.frames(HEADERS)
    assert (told.fields["grpc-status"], told.fields["x-sluice-reason"]) == ("4", "slow_body")
    await bench.nothing_is_left()


async def test_an_idle_connection_is_closed_in_a_way_that_loses_no_call() -> None:
    bench = Bench(ScriptedService(lambda call: Reply(ANSWER)), limits=limits(idle_timeout_ms=60_000))
    client = bench.connect()
    client.greet()
    client.call(1, MESSAGE)
    await turns()
    for _ in range(6):  # pings are answered, and keep nothing open
        bench.advance(9)
        client.feed(frame(PING, 0, 0, b"12345678"))
    await turns()
    assert len(client.frames(PING)) == 6
    bench.advance(7)
    await turns()
    told, asked = client.frames(GOAWAY, PING)
    assert (told.kind, told.payload[:4], told.code) == (GOAWAY, b"\x7f\xff\xff\xff", 0)
    client.call(3, MESSAGE)  # the client had not read it yet
    client.feed(frame(PING, ACK, 0, asked.payload))
    await turns()
    frames = client.frames(HEADERS, GOAWAY)
    assert [got.fields.get("grpc-status") for got in frames if got.kind == HEADERS] == [None, "0"]
    assert [int.from_bytes(got.payload[:4], "big") for got in frames if got.kind == GOAWAY] == [3]
    assert client.ended()
    assert not client.cut_off()
    await bench.nothing_is_left()


async def test_a_drained_client_that_says_nothing_more_is_not_waited_for() -> None:
    bench = Bench(ScriptedService())
    client = bench.connect()
    client.greet()
    bench.port.begin_drain()
    bench.advance(4.9)
    await turns()
    assert not client.ended()
    bench.advance(0.2)
    await turns()
    assert [got.code for got in client.frames(GOAWAY)] == [0, 0]
    assert client.ended()
    bench.advance(2.1)
    assert client.cut_off(), "it did not close when it was told that nothing more comes"
    await bench.nothing_is_left()


async def test_a_client_that_does_not_answer_a_ping_is_gone() -> None:
    service = ScriptedService()
    bench = Bench(service, limits=limits(keepalive_ms=10_000, keepalive_timeout_ms=4000))
    client = bench.connect()
    client.greet()
    client.call(1, MESSAGE)
    await turns()
    client.frames()
    for _ in range(3):
        bench.advance(10.2)
        await turns()
        (asked,) = client.frames(PING)
        client.feed(frame(PING, ACK, 0, asked.payload))
    bench.advance(10.2)
    await turns()
    assert len(client.frames(PING)) == 1
    bench.advance(3.5)
    assert not client.cut_off()
    bench.advance(0.7)
    assert client.cut_off()
    assert bench.events.broken == ["silent"]
    await turns()
    arrival = service.arrivals.get_nowait()
    assert arrival.cancelled
    assert arrival.call.abandoned
    await bench.nothing_is_left()


async def test_a_client_that_takes_nothing_is_cut_off() -> None:
    service = ScriptedService()
    bench = Bench(service, limits=limits(write_timeout_ms=5000))
    client = bench.connect()
    client.greet()
    for stream in (1, 3):
        client.call(stream, MESSAGE)
    await turns()
    client.stop_taking()
    assert not client.reads(), "what it can provoke could not be sent"
    service.arrivals.get_nowait().answer(ANSWER)
    await turns()
    assert bench.port.statistics(0.0)["calls"] == 2, "the answer waits with its call"
    bench.advance(3)
    client.stuck_bytes -= 20_000
    bench.advance(3)
    assert not client.cut_off(), "it took something"
    bench.advance(5.1)
    assert client.cut_off()
    assert bench.events.broken == ["slow_reader"]
    await turns()
    assert service.arrivals.get_nowait().cancelled
    await bench.nothing_is_left()


async def test_an_answer_that_waited_for_the_client_leaves_when_it_takes_again() -> None:
    service = ScriptedService()
    bench = Bench(service)
    client = bench.connect()
    client.greet()
    client.call(1, MESSAGE)
    await turns()
    client.frames()
    client.stop_taking()
    service.arrivals.get_nowait().answer(ANSWER)
    await turns()
    assert client.frames() == []
    client.take_again()
    assert client.reads()
    await turns()
    assert [got.fields.get("grpc-status") for got in client.frames(HEADERS)] == [None, "0"]
    await bench.nothing_is_left()


async def test_an_answer_that_waited_past_its_deadline_is_not_written() -> None:
    class Dated(ScriptedService):
        async def send(self, call: Call) -> Reply:
            call.deadline_s = call.arrived_s + 1.0
            return await super().send(call)

    service = Dated()
    bench = Bench(service)
    client = bench.connect()
    client.greet()
    client.call(1, MESSAGE)
    await turns()
    client.frames()
    client.stop_taking()
    service.arrivals.get_nowait().answer(ANSWER)
    await turns()
    bench.advance(2)
    client.take_again()
    await turns()
    (told,) = client.frames(HEADERS, DATA)
    assert (told.fields["grpc-status"], told.fields["x-sluice-reason"]) == ("4", "deadline")
    await bench.nothing_is_left()


async def test_an_answer_for_which_the_client_gives_no_window_is_dropped_in_time() -> None:
    bench = Bench(ScriptedService(lambda call: Reply(bytes(30_000))), limits=limits(write_timeout_ms=5000))
    client = bench.connect()
    client.greet(window=400)
    client.call(1, MESSAGE)
    client.call(3, MESSAGE)
    await turns()
    assert sum(len(got.payload) for got in client.frames(DATA)) == 800
    held = bench.budget.used_bytes
    assert held == 2 * 29_605, "what waits is counted"
    bench.advance(4)
    client.feed(frame(WINDOW_UPDATE, 0, 3, (20_000).to_bytes(4, "big")))
    await turns()
    assert bench.budget.used_bytes == held - 20_000
    bench.advance(1.5)
    await turns()
    (reset,) = client.frames(RST_STREAM)
    assert (reset.stream, reset.code) == (1, 11)
    client.feed(frame(WINDOW_UPDATE, 0, 3, (9605).to_bytes(4, "big")))
    await turns()
    assert [got.fields.get("grpc-status") for got in client.frames(HEADERS) if got.stream == 3] == ["0"]
    assert bench.budget.used_bytes == 0
    assert bench.events.broken == ["slow_reader"]
    await bench.nothing_is_left()


async def test_answers_that_wait_for_a_slow_client_have_a_bound() -> None:
    service = ScriptedService(lambda call: Reply(bytes(600_000)))
    bench = Bench(service, memory_bytes=1 << 20)
    client = bench.connect()
    client.greet()
    client.call(1, MESSAGE)
    client.call(3, MESSAGE)
    await turns()
    (reset,) = client.frames(RST_STREAM)
    assert (reset.stream, reset.code) == (3, 11), "there is no memory for the second"
    client.leave()
    await bench.nothing_is_left()


async def test_answers_that_wait_in_their_calls_have_the_same_bound() -> None:
    service = ScriptedService()
    bench = Bench(service, memory_bytes=1 << 20)
    client = bench.connect()
    client.greet()
    client.call(1, MESSAGE)
    client.call(3, MESSAGE)
    await turns()
    client.stop_taking()
    held = bench.budget.used_bytes
    first, second = (service.arrivals.get_nowait().answer(bytes(600_000)) for _ in range(2))
    await turns()
    assert (first.closed, second.closed) == (False, True), "there is no memory for the second"
    assert bench.budget.used_bytes == held - len(MESSAGE) + 600_000
    assert not client.cut_off(), "the first may still leave"
    client.take_again()
    await turns()
    told = {got.stream: got.fields for got in client.frames(HEADERS)}
    assert ":status" in told[1]
    assert (told[3]["grpc-status"], told[3]["x-sluice-reason"]) == ("8", "body_memory")
    await bench.nothing_is_left()


async def test_a_keepalive_of_the_client_is_answered_however_long_the_silence() -> None:
    """Field case FH-15."""
    service = ScriptedService()
    bench = Bench(service)
    client = bench.connect()
    client.greet()
    client.call(1, MESSAGE)
    await turns()
    client.frames()
    for _ in range(60):
        bench.advance(10)
        client.feed(frame(PING, 0, 0, b"abcdefgh"))
        await turns()
        assert [got.flags for got in client.frames()] == [ACK]
    service.arrivals.get_nowait().answer(ANSWER)
    await turns()
    assert [got.fields.get("grpc-status") for got in client.frames(HEADERS)] == [None, "0"]
    await bench.nothing_is_left()


async def test_the_head_alone_keeps_a_client_for_no_longer_than_its_message_may_take() -> None:
    bench = Bench(ScriptedService(), limits=limits(message_idle_timeout_ms=5000, streams_max=3))
    client = bench.connect()
    client.greet(*(frame(HEADERS, END_HEADERS, stream, head_block(INFER)) for stream in (1, 3, 5, 7)))
    await turns()
    (told,) = client.frames(HEADERS)
    assert (told.stream, told.fields["grpc-status"]) == (7, "8")
    bench.advance(5.1)
    await asyncio.sleep(0)
    await turns()
    assert [got.stream for got in client.frames(HEADERS)] == [1, 3, 5]
    await bench.nothing_is_left()
