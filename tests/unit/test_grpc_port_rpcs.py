"""Our own gRPC server: many calls at once, questions to the gateway, faults inside it, and its end."""

from __future__ import annotations

import asyncio
import gzip

import msgspec
import pytest
from tritonclient.grpc import service_pb2 as pb

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.reply import Reply
from gateway.edge.grpc_connection import TURN_RPCS_MAX
from gateway.policy.schema import GrpcLimits
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
    Bench,
    frame,
    head_block,
    prefixed,
)
from tests.unit.grpc_port_kit import MESSAGE, answering, ended, one

LIVE = b"/inference.GRPCInferenceService/ServerLive"
INDEX = b"/inference.GRPCInferenceService/RepositoryIndex"


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
        patched.setattr("gateway.edge.grpc_call_reader.read_call", lambda call, message: 1 / 0)
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
