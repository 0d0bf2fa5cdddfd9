"""FH-03 over HTTP/2: an early refusal, while the message is still on its way, leaves the connection clean.

What is already on its way is read and dropped, its share of the connection's window comes back, no byte of it is
taken for a frame or a call, and the next call is served. On a port without a socket, so that what the client knows
when is the test's to say.
"""

from __future__ import annotations

import pytest

from gateway.core.reply import Reply
from tests.support.grpc_edge import ANSWER
from tests.support.service import ScriptedService
from tests.unit.edge_driving import ReceivingService, turns
from tests.unit.grpc_driving import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    RST_STREAM,
    WINDOW_UPDATE,
    Bench,
    HandClient,
    frame,
    head_block,
    infer_message,
    prefixed,
)

MESSAGE = infer_message()
HIDDEN = frame(HEADERS, END_HEADERS, 1001, head_block()) + frame(DATA, END_STREAM, 1001, prefixed(MESSAGE))
"""Bytes of a message that look like a whole call."""
LARGE = 10_000_000
ON_THE_WAY = 64_000
TRIES = 400


def refused_for(cause: str, service: ReceivingService) -> tuple[Bench, bytes, str]:
    """A port, the begin of a message that it refuses, and for which reason."""
    if cause == "too large":
        return Bench(service, memory_bytes=1 << 26), (1 << 31).to_bytes(5, "big") + HIDDEN, "too_large"
    # Without memory it is read as far as the model's name, because the call gets a record.
    begin = prefixed(infer_message("mine", LARGE))[:6000]
    return Bench(service, memory_bytes=LARGE // 2), begin, "body_memory"


def returned(client: HandClient) -> int:
    """What the server has given back of the connection's window since this was asked last, and no end of it all."""
    frames = client.frames(WINDOW_UPDATE, GOAWAY)
    assert not [got for got in frames if got.kind == GOAWAY]
    return sum(int.from_bytes(got.payload, "big") for got in frames if got.stream == 0)


@pytest.mark.parametrize("cause", ["too large", "no memory"])
async def test_the_rest_of_a_refused_message_is_dropped_and_the_connection_lives_on(cause: str) -> None:
    service = ReceivingService(lambda call: Reply(ANSWER))
    bench, begin, reason = refused_for(cause, service)
    client = bench.connect()
    client.greet()
    await turns()
    window = 65_535 + returned(client)
    sent = given = 0
    for number in range(TRIES):
        stream = 2 * number + 1
        client.open(stream)
        client.say(stream, begin)
        await turns()
        frames = client.frames(HEADERS, RST_STREAM, WINDOW_UPDATE, GOAWAY)
        given += sum(int.from_bytes(got.payload, "big") for got in frames if got.kind == WINDOW_UPDATE)
        told, *rest = [got for got in frames if got.kind != WINDOW_UPDATE]
        assert told.stream == stream
        assert (told.fields["grpc-status"], told.fields["x-sluice-reason"]) == ("8", reason)
        assert [(got.kind, got.code) for got in rest] in ([(RST_STREAM, 0)], []), (
            "an end without a fault, if it is told"
        )
        # The client had not heard of it when it sent these.
        client.say(stream, HIDDEN * (ON_THE_WAY // len(HIDDEN)))
        sent += len(begin) + len(HIDDEN) * (ON_THE_WAY // len(HIDDEN))
        given += returned(client)
        assert sent - given < window, "the client could not have sent this"
    assert sent > 1.5 * window
    assert bench.budget.used_bytes == 0
    client.call(2 * TRIES + 1, MESSAGE)
    await turns()
    assert [got.fields.get("grpc-status") for got in client.frames(HEADERS)] == [None, "0"]
    assert len(service.outcomes) == 1, "no byte of a message was run as a call"
    await bench.nothing_is_left()


async def test_calls_beside_a_refused_message_go_on() -> None:
    service = ScriptedService()
    bench = Bench(service)
    client = bench.connect()
    client.greet()
    client.call(1, MESSAGE)
    await turns()
    client.open(3)
    client.say(3, (1 << 31).to_bytes(5, "big") + b"x" * 30_000)
    await turns()
    told = {got.stream: got.fields for got in client.frames(HEADERS)}
    assert list(told) == [3]
    client.say(3, b"x" * 30_000)
    service.arrivals.get_nowait().answer(ANSWER)
    await turns()
    assert [(got.stream, got.fields.get("grpc-status")) for got in client.frames(HEADERS)] == [(1, None), (1, "0")]
    await bench.nothing_is_left()


async def test_a_withheld_message_holds_no_call_and_ends_in_time() -> None:
    service = ScriptedService()
    bench = Bench(service)
    client = bench.connect()
    client.greet()
    client.open(1)
    client.say(1, prefixed(MESSAGE)[:8])
    await turns()
    assert service.arrivals.empty(), "no slot is held and nothing was sent upstream"
    bench.advance(bench.limits.message_idle_timeout_ms / 1000 + 0.1)
    await turns()
    (told,) = client.frames(HEADERS)
    assert (told.fields["grpc-status"], told.fields["x-sluice-reason"]) == ("4", "slow_body")
    client.say(1, prefixed(MESSAGE)[8:], end=True)
    client.call(3, MESSAGE)
    await turns()
    service.arrivals.get_nowait().answer(ANSWER)
    await turns()
    assert service.arrivals.empty()
    assert [(got.stream, got.fields.get("grpc-status")) for got in client.frames(HEADERS)] == [(3, None), (3, "0")]
    await bench.nothing_is_left()
