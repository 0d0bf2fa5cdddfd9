"""Our own gRPC server and time that passes before an RPC's work begins, or after it: a message that is late, an answer
that the client is late to take.
"""

from __future__ import annotations

import msgspec
import pytest

from gateway.core.call import Call
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply
from gateway.edge.headers import ClientHeaders
from gateway.policy.schema import GrpcLimits
from tests.support.grpc_edge import ANSWER
from tests.support.service import ScriptedService
from tests.unit.edge_driving import turns
from tests.unit.grpc_driving import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INFER,
    Bench,
    frame,
    head_block,
    infer_message,
    prefixed,
)
from tests.unit.grpc_port_kit import MESSAGE, answering, ended, one

LIVE = b"/inference.GRPCInferenceService/ServerLive"
INDEX = b"/inference.GRPCInferenceService/RepositoryIndex"
HALF_A_SECOND = (b"grpc-timeout", b"500m")
A_SECOND = (b"grpc-timeout", b"1S")
AN_HOUR = (b"grpc-timeout", b"1H")


class Dated(ScriptedService):
    """Gives each call its deadline, as the deadline layer does."""

    async def send(self, call: Call) -> Reply:
        if call.timeout_s is not None:
            call.deadline_s = call.arrived_s + call.timeout_s
        return await super().send(call)


# --- the message ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [INFER, LIVE, INDEX])
async def test_an_rpc_whose_message_does_not_come_ends_at_its_deadline(path: bytes) -> None:
    service = ScriptedService()
    bench = Bench(service)
    client = bench.connect()
    client.greet()
    client.open(1, head_block(path, HALF_A_SECOND))
    bench.advance(0.4)
    assert await ended(client) == []
    bench.advance(0.2)
    told = await one(client)
    assert (told.fields["grpc-status"], told.fields["x-sluice-reason"]) == ("4", "deadline")
    assert "500 ms" in told.fields["grpc-message"]
    assert bench.events.requests == [("grpc", path.decode().rpartition("/")[2], "DEADLINE_EXCEEDED")]
    assert bench.events.broken == [], "the client broke no rule"
    assert service.seen == []
    await bench.nothing_is_left()


async def test_a_message_that_comes_byte_by_byte_does_not_outlive_its_deadline() -> None:
    bench = Bench(ScriptedService())
    client = bench.connect()
    client.greet()
    client.open(1, head_block(INFER, HALF_A_SECOND))
    body = prefixed(infer_message(size=900_000))
    client.say(1, body[:100])
    assert bench.budget.used_bytes > 900_000
    for n in range(6):
        bench.advance(0.1)
        client.say(1, body[100 + n : 101 + n])
    assert await ended(client) == [(1, "4")]
    assert bench.budget.used_bytes == 0
    await bench.nothing_is_left()


@pytest.mark.parametrize("more", [(), (AN_HOUR,)], ids=["no deadline", "a far one"])
async def test_a_message_that_comes_byte_by_byte_has_a_limit_without_a_deadline_too(
    more: tuple[tuple[bytes, bytes], ...],
) -> None:
    limits = msgspec.convert({"message_idle_timeout_ms": 5000, "message_timeout_ms": 20_000}, GrpcLimits)
    bench = Bench(ScriptedService(), limits=limits)
    client = bench.connect()
    client.greet()
    client.open(1, head_block(INFER, *more))
    body = prefixed(infer_message(size=900_000))
    for n in range(7):
        assert await ended(client) == []
        client.say(1, body[n : n + 1])
        bench.advance(3)
    told = await one(client)
    assert (told.fields["grpc-status"], told.fields["x-sluice-reason"]) == ("4", "slow_body")
    assert "20000 ms" in told.fields["grpc-message"]
    assert bench.events.broken == ["slow_body"]
    assert bench.budget.used_bytes == 0
    await bench.nothing_is_left()


async def test_every_head_of_a_read_gets_its_deadline_whatever_else_the_read_brings() -> None:
    bench = Bench(ScriptedService())
    client = bench.connect()
    client.greet()
    first, dated = head_block(INFER, A_SECOND), head_block(INFER, HALF_A_SECOND)
    client.open(1, first)
    bench.advance(0.1)
    client.feed(
        frame(HEADERS, END_HEADERS, 3, dated),
        frame(DATA, 0, 1, prefixed(MESSAGE)[:7]),  # of one that has its deadline already
        frame(HEADERS, END_HEADERS, 5, dated),
        frame(HEADERS, END_HEADERS, 7, dated) + frame(DATA, END_STREAM, 7, prefixed(MESSAGE)),
    )
    bench.advance(0.6)
    assert sorted(await ended(client)) == [(3, "4"), (5, "4")]
    bench.advance(0.4)
    assert await ended(client) == [(1, "4")]
    await bench.nothing_is_left()


async def test_a_message_that_comes_with_its_head_sets_no_timer() -> None:
    bench = Bench(answering())
    client = bench.connect()
    client.greet()
    timers = len(bench.wheel)
    head = frame(HEADERS, END_HEADERS, 1, head_block(INFER, A_SECOND))
    client.feed(head, frame(DATA, END_STREAM, 1, prefixed(MESSAGE)))
    assert len(bench.wheel) == timers
    assert await ended(client) == [(1, "0")]
    await bench.nothing_is_left()


@pytest.mark.parametrize("cut", [0, 7], ids=["whole", "in pieces"])
async def test_a_message_that_came_in_time_is_not_waited_for_any_more(cut: int) -> None:
    service = ScriptedService()
    bench = Bench(service)
    client = bench.connect()
    client.greet()
    timers = len(bench.wheel)
    client.open(1, head_block(INFER, A_SECOND))
    assert len(bench.wheel) == timers + 1
    if cut:
        client.say(1, prefixed(MESSAGE)[:cut])
    client.say(1, prefixed(MESSAGE)[cut:], end=True)
    assert len(bench.wheel) == timers
    await turns()
    bench.advance(2)
    assert await ended(client) == [], "from here the service sees to the deadline"
    service.arrivals.get_nowait().answer(ANSWER)
    assert await ended(client) == [(1, "0")]
    await bench.nothing_is_left()


async def test_a_client_that_takes_its_call_back_leaves_no_timer() -> None:
    bench = Bench(ScriptedService())
    client = bench.connect()
    client.greet()
    timers = len(bench.wheel)
    for stream in (1, 3):
        client.open(stream, head_block(INFER, A_SECOND))
    client.reset(1)
    client.say(3, b"", end=False)
    client.feed(frame(DATA, END_STREAM, 3))
    assert len(bench.wheel) == timers
    assert await ended(client) == [(3, "13")]
    bench.advance(2)
    assert await ended(client) == []
    await bench.nothing_is_left()


@pytest.mark.parametrize("path", [LIVE, INDEX])
async def test_a_question_whose_message_comes_after_its_deadline_is_not_answered(path: bytes) -> None:
    bench = Bench(ScriptedService())
    client = bench.connect()
    client.greet()
    client.open(1, head_block(path, A_SECOND))
    bench.clock.advance(1.5)  # the wheel has not turned yet
    client.say(1, prefixed(b""), end=True)
    told = await one(client)
    assert (told.fields["grpc-status"], told.fields["x-sluice-reason"]) == ("4", "deadline")
    assert bench.catalogue.questions == 0
    assert bench.events.requests == [("grpc", path.decode().rpartition("/")[2], "DEADLINE_EXCEEDED")]
    await bench.nothing_is_left()


async def test_a_question_to_the_model_servers_has_what_is_left_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(ScriptedService())
    asked: list[float | None] = []

    async def ask(method: str, message: bytes, headers: ClientHeaders, timeout_s: float | None) -> bytes:
        asked.append(timeout_s)
        return b""

    monkeypatch.setattr(bench.kit.desk, "ask", ask)
    client = bench.connect()
    client.greet()
    client.open(1, head_block(INDEX, A_SECOND))
    client.open(3, head_block(INDEX))
    bench.advance(0.75)
    for stream in (1, 3):
        client.say(stream, prefixed(b""), end=True)
    assert await ended(client) == [(1, "0"), (3, "0")]
    assert asked == [pytest.approx(0.25), None]
    await bench.nothing_is_left()


# --- the answer ----------------------------------------------------------------------------------------------------


async def test_an_answer_that_waits_for_a_full_socket_is_given_up_at_its_deadline() -> None:
    service = Dated()
    bench = Bench(service)
    client = bench.connect()
    client.greet()
    client.call(1, MESSAGE, head_block(INFER, A_SECOND))
    client.call(3, MESSAGE)
    await turns()
    client.frames()
    dated, other = service.arrivals.get_nowait(), service.arrivals.get_nowait()
    client.stop_taking()
    outcomes: list[Outcome] = []
    reply = dated.answer(b"x" * 5000)
    reply.on_close(outcomes.append)
    await turns()
    assert bench.budget.used_bytes == 5000 + 2 * len(MESSAGE)
    bench.advance(0.9)
    await turns()
    assert not reply.closed
    bench.advance(0.2)
    await turns()
    assert outcomes == [Outcome.EXPIRED], "the slot of its replica is free"
    assert bench.budget.used_bytes == len(MESSAGE)
    client.take_again()
    told = await one(client)
    assert (told.stream, told.fields["grpc-status"], told.fields["x-sluice-reason"]) == (1, "4", "deadline")
    other.answer(ANSWER)
    assert await ended(client) == [(3, "0")]
    await bench.nothing_is_left()


async def test_an_answer_that_waits_when_its_client_leaves_at_the_deadline_is_closed_then() -> None:
    service = Dated()
    bench = Bench(service)
    client = bench.connect()
    client.greet()
    client.call(1, MESSAGE, head_block(INFER, A_SECOND))
    await turns()
    client.stop_taking()
    outcomes: list[Outcome] = []
    service.arrivals.get_nowait().answer(ANSWER).on_close(outcomes.append)
    await turns()
    bench.advance(0.99)
    client.reset(1)
    bench.advance(0.02)
    await turns()
    assert outcomes == [Outcome.EXPIRED]
    assert not bench.port.tasks
    assert bench.budget.used_bytes == 0
    client.take_again()
    await bench.nothing_is_left()


async def test_memory_that_others_use_up_ends_an_answer_that_must_wait_and_no_other_call_of_its_connection() -> None:
    service = ScriptedService()
    bench = Bench(service, memory_bytes=1 << 20)
    client = bench.connect()
    client.greet()
    for stream in (1, 3):
        client.call(stream, MESSAGE)
    await turns()
    client.frames()
    first, second = service.arrivals.get_nowait(), service.arrivals.get_nowait()
    client.stop_taking()
    others = (1 << 20) - bench.budget.used_bytes
    assert bench.budget.try_reserve(others)
    reply = first.answer(b"x" * 100)
    await turns()
    assert reply.closed
    assert not client.cut_off()
    assert not second.cancelled
    assert bench.events.broken == [], "no client is at fault"
    bench.budget.release(others)
    client.take_again()
    told = await one(client)
    assert (told.stream, told.fields["grpc-status"], told.fields["x-sluice-reason"]) == (1, "8", "body_memory")
    second.answer(ANSWER)
    assert await ended(client) == [(3, "0")]
    await bench.nothing_is_left()
