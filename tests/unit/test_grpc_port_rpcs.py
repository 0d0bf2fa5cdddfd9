"""Our own gRPC server: what becomes of each RPC, whatever its client sends, and that nothing stays behind."""

from __future__ import annotations

import asyncio
import gc
import gzip
import zlib

import msgspec
import pytest
from tritonclient.grpc import service_pb2 as pb

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply
from gateway.edge.grpc_connection import TURN_RPCS_MAX, GrpcConnection
from gateway.edge.grpc_greeting import TLS_ANSWER
from gateway.edge.grpc_port import STREAM_WINDOW_BYTES
from gateway.edge.grpc_stream import ClientStream
from gateway.edge.grpc_streaming import ServerStream
from gateway.edge.grpc_unary import ServedRpc
from gateway.policy.schema import GrpcLimits
from gateway.wire.hpack import HeaderBlock
from tests.support.clock import ManualClock
from tests.support.grpc_edge import ANSWER
from tests.support.service import ScriptedService
from tests.unit.edge_driving import turns
from tests.unit.grpc_driving import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    INFER,
    PING,
    RST_STREAM,
    STREAM_INFER,
    WINDOW_UPDATE,
    Bench,
    Got,
    HandClient,
    frame,
    head_block,
    infer_message,
    prefixed,
)

MESSAGE = infer_message()
LIVE = b"/inference.GRPCInferenceService/ServerLive"
INDEX = b"/inference.GRPCInferenceService/RepositoryIndex"


def answering() -> ScriptedService:
    return ScriptedService(lambda call: Reply(ANSWER))


class Receiving(ScriptedService):
    """Asks for the message before it goes on, as the deadline layer does."""

    async def send(self, call: Call) -> Reply:
        if call.message is None:
            self.seen.append(call)
            assert call.receive is not None
            await call.receive()
        return await super().send(call)


async def ended(client: HandClient) -> list[tuple[int, str]]:
    """The streams that ended with a status since this was asked last."""
    await turns()
    return [(got.stream, got.fields["grpc-status"]) for got in client.frames(HEADERS) if "grpc-status" in got.fields]


async def one(client: HandClient) -> Got:
    """The one block of an answer that is nothing but an error."""
    await turns()
    (got,) = client.frames(HEADERS)
    assert got.flags & END_STREAM
    return got


# --- requests that are none ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"HTTP/1.1 400 "),
        (b"POST /v2 HTTP/1.1\r\n\r\n", b"HTTP/1.1 400 "),
        (b"P", b""),
        (b"\x16\x03\x01\x00\xa5\x01", TLS_ANSWER),
        (b"\x00\x01\x02", b""),
    ],
    ids=["HTTP/1.1", "HTTP/1.1 with the preface's letter", "too little to tell", "TLS", "garbage"],
)
async def test_who_does_not_speak_http2_is_told_and_closed(said: bytes, answer: bytes) -> None:
    bench = Bench(answering())
    client = bench.connect()
    for octet in said:
        client.feed(bytes((octet,)))
        if client.ended():
            break
    await turns()
    assert client.sent.startswith(answer)
    assert bool(client.sent) == bool(answer)
    assert client.ended() == (said != b"P")
    await bench.nothing_is_left()


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (head_block(method=b"GET"), "405"),
        (head_block(method=b"PUT"), "405"),
        (head_block(content_type=b"application/json"), "415"),
        (head_block(content_type=b"application/grpc-web+proto"), "415"),
        (head_block(content_type=b""), "415"),
    ],
)
async def test_who_does_not_speak_grpc_is_told_in_plain_http(head: bytes, status: str) -> None:
    bench = Bench(answering())
    client = bench.connect()
    client.greet()
    client.open(1, head)
    await turns()
    told, text, reset = client.frames(HEADERS, DATA, RST_STREAM)
    assert told.fields[":status"] == status
    assert told.fields.get("allow") == ("POST" if status == "405" else None)
    assert int(told.fields["content-length"]) == len(text.payload)
    assert text.flags & END_STREAM
    assert reset.code == 0, "the rest of the request is not wanted"
    assert bench.events.requests == [("grpc", "", status)]
    await bench.nothing_is_left()


@pytest.mark.parametrize(
    ("head", "payload", "status", "word"),
    [
        (head_block(INFER, (b"grpc-timeout", b"5")), prefixed(MESSAGE), "13", "grpc-timeout"),
        (head_block(INFER, (b"grpc-timeout", b"-5S")), prefixed(MESSAGE), "13", "grpc-timeout"),
        (head_block(INFER, (b"grpc-encoding", b"zstd")), prefixed(MESSAGE), "13", "grpc-encoding"),
        (head_block(), prefixed(MESSAGE, 1), "13", "Compression bit set"),
        (head_block(), prefixed(MESSAGE, 2), "13", "neither 0 nor 1"),
        (head_block(), b"\0\xff\xff\xff\xff", "8", "SERVER: Received message larger than max (4294967295 vs. 1000000)"),
        (head_block(), b"\0\0", "13", "inside a message"),
        (head_block(), b"", "13", "no message"),
        (head_block(INFER, (b"grpc-encoding", b"gzip")), prefixed(b"xxxx", 1), "13", "not one whole gzip"),
        (head_block(INFER, (b"grpc-encoding", b"deflate")), prefixed(gzip.compress(b"x"), 1), "13", "deflate"),
        (head_block(INFER, (b"grpc-encoding", b"gzip")), prefixed(gzip.compress(MESSAGE)[:-3], 1), "13", "cut short"),
        (
            head_block(INFER, (b"grpc-encoding", b"gzip")), prefixed(gzip.compress(bytes(1_000_001)), 1), "8",
            "larger than max",
        ),
        (head_block(b"/inference.GRPCInferenceService/Nope"), prefixed(b""), "12", ""),
        (head_block(b"/other.Service/Method"), prefixed(b""), "12", ""),
        (head_block(b"/a/\xff"), prefixed(b""), "12", ""),
    ],
)  # fmt: skip
async def test_a_request_that_breaks_grpc_ends_with_a_status_and_a_word(
    head: bytes, payload: bytes, status: str, word: str
) -> None:
    service = answering()
    bench = Bench(service, receive_bytes_max=1_000_000, memory_bytes=1 << 22)
    client = bench.connect()
    client.greet(frame(HEADERS, END_HEADERS, 1, head), frame(DATA, END_STREAM, 1, payload))
    told = await one(client)
    assert (told.fields["grpc-status"], word in told.fields["grpc-message"]) == (status, True), told
    assert told.fields["x-request-id"]
    assert told.fields["x-sluice-reason"]
    assert service.seen == []
    assert [(protocol, code) for protocol, _, code in bench.events.requests] == [
        ("grpc", {"13": "INTERNAL", "8": "RESOURCE_EXHAUSTED", "12": "UNIMPLEMENTED"}[status])
    ]
    assert bench.events.faults == 0
    client.call(3, MESSAGE)
    assert await ended(client) == [(3, "0")], "the connection lives on"
    await bench.nothing_is_left()


async def test_more_metadata_than_is_allowed_is_refused_and_the_connection_lives_on() -> None:
    bench = Bench(answering(), limits=msgspec.convert({"header_list_bytes_max": 2048}, GrpcLimits))
    client = bench.connect()
    client.greet()
    client.call(1, MESSAGE, head_block(INFER, (b"x-large", bytes(2000).replace(b"\0", b"a"))))
    told = await one(client)
    assert (told.fields["grpc-status"], told.fields["x-sluice-reason"]) == ("8", "too_large")
    assert "2048" in told.fields["grpc-message"]
    assert bench.events.requests == [("grpc", "", "RESOURCE_EXHAUSTED")]
    client.call(3, MESSAGE, head_block(INFER, (b"x-large", b"a" * 1000)))
    assert await ended(client) == [(3, "0")]
    await bench.nothing_is_left()


@pytest.mark.parametrize("flag", ["identity", "gzip", "deflate"])
@pytest.mark.parametrize("cut", [1, 3, 5, 6, 40])
async def test_a_message_may_come_in_any_pieces_and_codings(flag: str, cut: int) -> None:
    service = answering()
    bench = Bench(service)
    client = bench.connect()
    client.greet()
    message = infer_message(size=300)
    coded = {"identity": message, "gzip": gzip.compress(message), "deflate": zlib.compress(message)}[flag]
    client.open(1, head_block(INFER, (b"grpc-encoding", flag.encode())))
    payload = prefixed(coded, int(flag != "identity"))
    for at in range(0, len(payload), cut):
        client.feed(frame(DATA, 0, 1, payload[at : at + cut]))
    client.feed(frame(DATA, END_STREAM, 1))
    assert await ended(client) == [(1, "0")]
    assert [call.message for call in service.seen] == [message]
    assert bench.budget.used_bytes == 0
    await bench.nothing_is_left()


async def test_trailers_of_a_client_end_its_request() -> None:
    bench = Bench(answering())
    client = bench.connect()
    client.greet()
    client.open(1)
    client.say(1, prefixed(MESSAGE))
    client.feed(frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x00\x01x\x01y"))
    assert await ended(client) == [(1, "0")]
    client.open(3)
    client.feed(frame(HEADERS, END_HEADERS | END_STREAM, 3, b"\x00\x01x\x01y"))
    assert await ended(client) == [(3, "13")]
    await bench.nothing_is_left()


async def test_blocks_that_come_again_are_new_calls_with_ids_of_their_own() -> None:
    service = answering()
    bench = Bench(service)
    client = bench.connect()
    client.greet()
    named = head_block(INFER, (b"x-request-id", b"given"), (b"x-user", b"u"))
    for stream, head in enumerate([head_block(), named] * 3):
        client.call(2 * stream + 1, MESSAGE, head)
    await turns()
    ids = [got.fields["x-request-id"] for got in client.frames(HEADERS) if "x-request-id" in got.fields]
    assert ids == [call.request_id for call in service.seen]
    assert ids[1::2] == ["given"] * 3
    assert len({*ids[0::2]}) == 3
    assert [("x-user", "u") in call.metadata for call in service.seen] == [False, True] * 3
    await bench.nothing_is_left()


async def test_binary_metadata_stays_here() -> None:
    service = answering()
    bench = Bench(service)
    client = bench.connect()
    client.greet()
    client.call(1, MESSAGE, head_block(INFER, (b"x-trace-bin", b"AAEC"), (b"x-b-bin", b"AAE="), (b"x-odd-bin", b"%%")))
    assert await ended(client) == [(1, "0")]
    assert dict(service.seen[0].metadata) == {}
    await bench.nothing_is_left()


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


# --- many at once --------------------------------------------------------------------------------------------------


async def test_a_read_full_of_calls_begins_them_in_turns() -> None:
    service = ScriptedService()
    bench = Bench(service)
    client = bench.connect()
    client.greet()
    many = 3 * TURN_RPCS_MAX - 10
    client.feed(
        *(
            frame(HEADERS, END_HEADERS, 2 * n + 1, head_block()) + frame(DATA, END_STREAM, 2 * n + 1, prefixed(MESSAGE))
            for n in range(many)
        ),
        frame(RST_STREAM, 0, 2 * many - 1, b"\0\0\0\x08"),
    )
    assert len(bench.port.tasks) == TURN_RPCS_MAX
    assert not client.reads()
    await asyncio.sleep(0)
    assert len(bench.port.tasks) == 2 * TURN_RPCS_MAX
    await turns()
    assert client.reads()
    assert len(service.seen) == many - 1, "the last one was taken back before its turn came"
    assert bench.events.requests == [("grpc", "ModelInfer", "CANCELLED")]
    for _ in range(many - 1):
        service.arrivals.get_nowait().answer(ANSWER)
    assert len(await ended(client)) == many - 1
    assert bench.budget.used_bytes == 0
    await bench.nothing_is_left()


async def test_a_connection_that_needs_long_lets_the_others_have_their_turn() -> None:
    class Slow(ManualClock):
        """Whatever is done takes a while."""

        def now_s(self) -> float:
            self.advance(0.001)
            return super().now_s()

    bench = Bench(answering(), clock=Slow())
    client = bench.connect()
    client.greet()
    await turns()
    client.feed(*(frame(HEADERS, END_HEADERS | END_STREAM, n, head_block(LIVE)) for n in range(1, 21, 2)))
    assert not client.reads()
    await asyncio.sleep(0)
    assert client.reads()
    assert [code for _, code in await ended(client)] == ["13"] * 10
    await bench.nothing_is_left()


async def test_requests_that_are_refused_wait_for_their_turn_too() -> None:
    bench = Bench(answering())
    client = bench.connect()
    client.greet()
    many = 2 * TURN_RPCS_MAX
    client.feed(*(frame(HEADERS, END_HEADERS, 2 * n + 1, head_block(b"/no.Such/Method")) for n in range(many)))
    assert len(bench.events.requests) == TURN_RPCS_MAX
    assert not client.reads()
    assert [code for _, code in await ended(client)] == ["12"] * many
    assert client.reads()
    await bench.nothing_is_left()


async def test_over_the_limit_of_one_connection_a_stream_is_refused_in_a_way_that_is_safe_to_repeat() -> None:
    service = ScriptedService()
    bench = Bench(service, limits=msgspec.convert({"streams_per_connection_max": 2}, GrpcLimits))
    client = bench.connect()
    client.greet()
    for stream in (1, 3, 5):
        client.call(stream, MESSAGE)
    await turns()
    (reset,) = client.frames(RST_STREAM)
    assert (reset.stream, reset.code) == (5, 7)
    assert len(service.seen) == 2
    await bench.nothing_is_left()


async def test_connections_over_the_limit_are_closed() -> None:
    bench = Bench(answering(), limits=msgspec.convert({"connections_max": 2}, GrpcLimits))
    first, second, third = (bench.connect() for _ in range(3))
    assert [client.ended() for client in (first, second, third)] == [False, False, True]
    assert bench.port.statistics(0.0)["connections_refused"] == 1
    first.leave()
    await turns()
    assert not bench.connect().ended()
    await bench.nothing_is_left()


async def test_a_flood_ends_its_connection_and_no_other() -> None:
    service = answering()
    bench = Bench(service)
    client, other = bench.connect(), bench.connect()
    client.greet()
    other.greet()
    for n in range(0, 8000, 2):
        client.feed(frame(HEADERS, END_HEADERS, n + 1, head_block()), frame(RST_STREAM, 0, n + 1, b"\0\0\0\x08"))
        if client.ended():
            break
    await turns()
    assert [got.code for got in client.frames(GOAWAY)] == [11]
    assert bench.events.broken == ["flood"]
    other.call(1, MESSAGE)
    assert await ended(other) == [(1, "0")]
    await bench.nothing_is_left()


# --- questions -----------------------------------------------------------------------------------------------------


async def test_questions_are_answered_at_once_and_in_any_coding() -> None:
    bench = Bench(ScriptedService())
    client = bench.connect()
    client.greet()
    client.call(1, b"", head_block(LIVE, (b"x-request-id", b"abc")))
    await turns()
    head, data, end = client.frames(HEADERS, DATA)
    assert head.fields["x-request-id"] == "abc"
    assert (data.payload, end.fields) == (prefixed(b"\x08\x01"), {"grpc-status": "0"})
    about = pb.ModelMetadataRequest(name="mine").SerializeToString()
    coded = head_block(b"/inference.GRPCInferenceService/ModelMetadata", (b"grpc-encoding", b"gzip"))
    client.feed(frame(HEADERS, END_HEADERS, 3, coded), frame(DATA, END_STREAM, 3, prefixed(gzip.compress(about), 1)))
    assert await ended(client) == [(3, "0")]
    assert bench.events.requests == [("grpc", "ServerLive", "OK"), ("grpc", "ModelMetadata", "OK")]
    await bench.nothing_is_left()


async def test_a_question_to_the_fleet_ends_with_its_caller_its_deadline_or_the_gateway() -> None:
    bench = Bench(ScriptedService())
    bench.catalogue.heard.clear()
    client = bench.connect()
    client.greet()
    client.call(1, b"", head_block(INDEX))
    client.call(3, b"", head_block(INDEX, (b"grpc-timeout", b"1m")))
    client.call(5, b"", head_block(INDEX))
    await turns()
    client.reset(1)
    async with asyncio.timeout(10):
        while bench.catalogue.out > 1:
            await asyncio.sleep(0.001)
    assert await ended(client) == [(3, "4")]
    bench.catalogue.heard.set()
    assert await ended(client) == [(5, "0")]
    codes = [code for _, _, code in bench.events.requests]
    assert sorted(codes) == ["CANCELLED", "DEADLINE_EXCEEDED", "OK"]
    await bench.nothing_is_left()


async def test_a_question_that_is_cancelled_inside_the_gateway_is_a_fault_of_ours() -> None:
    """Field case FH-14."""
    bench = Bench(ScriptedService())
    bench.catalogue.heard.clear()
    client = bench.connect()
    client.greet()
    client.call(1, b"", head_block(INDEX))
    await turns()
    (task,) = bench.port.tasks
    task.cancel()
    assert await ended(client) == [(1, "13")]
    assert bench.events.faults == 1
    await bench.nothing_is_left()


async def test_a_fault_in_the_begin_of_one_rpc_leaves_the_others_of_its_connection_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = ScriptedService()
    bench = Bench(service)
    client = bench.connect()
    client.greet()
    client.call(1, MESSAGE)
    with monkeypatch.context() as patched:
        patched.setattr("gateway.edge.grpc_unary.read_call", lambda call, message: 1 / 0)
        client.call(3, MESSAGE)
    with monkeypatch.context() as patched:
        patched.setattr(bench.kit.authenticator, "identify", lambda credentials: 1 / 0)
        client.open(5, head_block(STREAM_INFER))
    assert await ended(client) == [(3, "13"), (5, "13")]
    assert bench.events.faults == 2
    service.arrivals.get_nowait().answer(ANSWER)
    assert await ended(client) == [(1, "0")]
    assert bench.budget.used_bytes == 0
    await bench.nothing_is_left()


async def test_work_that_is_cancelled_before_its_first_step_is_a_fault_of_ours() -> None:
    bench = Bench(ScriptedService())
    client = bench.connect()
    client.greet()
    client.call(1, MESSAGE)
    (task,) = bench.port.tasks
    task.cancel()
    assert await ended(client) == [(1, "13")]
    assert bench.events.faults == 1
    assert bench.events.requests == [("grpc", "ModelInfer", "INTERNAL")]
    await bench.nothing_is_left()


# --- the end of the gateway ----------------------------------------------------------------------------------------


async def test_draining_serves_what_the_client_sent_before_it_heard_of_it() -> None:
    service = ScriptedService()
    bench = Bench(service)
    client = bench.connect()
    client.greet()
    client.call(1, MESSAGE)
    await turns()
    client.frames()
    bench.port.begin_drain()
    assert bench.connect().ended(), "nothing new comes in"
    client.call(3, MESSAGE)
    await turns()
    first, asked = client.frames(GOAWAY, PING)
    assert first.payload[:4] == b"\x7f\xff\xff\xff"
    client.feed(frame(PING, ACK, 0, asked.payload))
    await turns()
    (last,) = client.frames(GOAWAY)
    assert (int.from_bytes(last.payload[:4], "big"), last.code) == (3, 0)
    client.call(5, MESSAGE)
    await turns()
    assert len(service.seen) == 2, "what the client opened after that it must send elsewhere"
    for _ in range(2):
        assert not client.ended()
        service.arrivals.get_nowait().answer(ANSWER)
        await turns()
    assert [got.fields.get("grpc-status") for got in client.frames(HEADERS)] == [None, "0"] * 2
    assert client.ended()
    assert not client.cut_off()
    client.leave()
    assert await bench.port.wait_closed(10)
    await bench.nothing_is_left()


async def test_calls_left_at_the_end_of_draining_are_told() -> None:
    service = ScriptedService()
    bench = Bench(service)
    client = bench.connect()
    client.greet()
    client.call(1, MESSAGE)
    client.open(3)
    await turns()
    client.frames()
    closing = asyncio.ensure_future(bench.port.wait_closed(0.0))
    async with asyncio.timeout(20):
        while not client.sent or bench.port.statistics(0.0)["calls"]:
            await asyncio.sleep(0.001)
    await turns()
    told = {got.stream: got.fields for got in client.frames(HEADERS)}
    assert {stream: fields["x-sluice-reason"] for stream, fields in told.items()} == {1: "draining", 3: "draining"}
    assert service.arrivals.get_nowait().cancelled
    client.leave()
    async with asyncio.timeout(20):
        assert not await closing
    await bench.nothing_is_left()


async def test_a_fault_of_the_client_ends_its_calls_as_abandoned() -> None:
    service = ScriptedService()
    bench = Bench(service)
    client = bench.connect()
    client.greet()
    client.call(1, MESSAGE)
    await turns()
    client.feed(frame(DATA, 0, 0, b"x"))
    await turns()
    assert [got.code for got in client.frames(GOAWAY)] == [1]
    arrival = service.arrivals.get_nowait()
    assert arrival.cancelled
    assert arrival.call.abandoned
    assert bench.events.broken == ["malformed"]
    assert client.ended()
    await bench.nothing_is_left()


async def test_an_error_of_the_service_is_told_once_and_carries_its_metadata() -> None:
    def refuse(call: Call) -> Reply:
        raise GatewayError(Reason.QUEUE_FULL, "voll ✓ 100%", retry_after_s=2.0)

    bench = Bench(ScriptedService(refuse))
    client = bench.connect()
    client.greet()
    client.call(1, MESSAGE, head_block(INFER, (b"x-sluice-explain", b"1")))
    told = await one(client)
    assert told.fields["grpc-message"] == "voll %E2%9C%93 100%25"
    assert told.fields["x-sluice-reason"] == "queue_full"
    assert '"model": "mine"' in told.fields["x-sluice-explain"]
    assert 2000 <= int(told.fields["grpc-retry-pushback-ms"]) <= 3000
    await bench.nothing_is_left()
