"""Faults that a review found in the pace of our own gRPC server: its end, its timer, readers that trickle, padding."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from gateway.core.reply import Reply
from gateway.edge import grpc_port
from gateway.edge.grpc_pacing import PacedGrpcConnection
from gateway.policy.schema import GrpcLimits
from tests.support.grpc_edge import ANSWER
from tests.support.service import ScriptedService
from tests.unit.edge_driving import turns
from tests.unit.grpc_driving import (
    ACK,
    DATA,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    WINDOW_UPDATE,
    Bench,
    frame,
    infer_message,
    prefixed,
    settings,
)

MESSAGE = infer_message()
PADDED = 8


def limits(**values: int) -> GrpcLimits:
    return msgspec.convert(values, GrpcLimits)


def window(stream: int, size: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, size.to_bytes(4, "big"))


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When a connection's timer has fired."""
    seen: list[float] = []
    look = PacedGrpcConnection._look_at_writing

    def counted(self: PacedGrpcConnection, now_s: float) -> None:
        seen.append(now_s)
        look(self, now_s)

    monkeypatch.setattr(PacedGrpcConnection, "_look_at_writing", counted)
    return seen


# -------------------------------------------------------------------- the end


async def test_a_client_that_is_silent_at_the_end_is_no_call_cut_off() -> None:
    bench = Bench(ScriptedService(lambda call: Reply(ANSWER)))
    client = bench.connect()
    client.greet()
    client.call(1, MESSAGE)
    await turns()
    assert await bench.port.wait_closed(0.01)
    assert client.cut_off()
    await bench.nothing_is_left()


async def test_a_client_that_only_does_not_close_its_end_is_no_call_cut_off() -> None:
    bench = Bench(ScriptedService(lambda call: Reply(ANSWER)))
    client = bench.connect()
    client.greet()
    client.call(1, MESSAGE)
    await turns()
    closing = asyncio.ensure_future(bench.port.wait_closed(0.05))
    await turns()
    (asked,) = client.frames(PING)
    client.feed(frame(PING, ACK, 0, asked.payload))
    await turns()
    assert client.eof_sent
    assert await closing
    await bench.nothing_is_left()


async def test_an_answer_that_its_client_has_not_taken_is_a_call_cut_off() -> None:
    """Whether it waits for the client's window, or in the transport."""
    for in_transport in (False, True):
        bench = Bench(ScriptedService(lambda call: Reply(bytes(1000))))
        client = bench.connect()
        client.greet(window=65_535 if in_transport else 400)
        client.call(1, MESSAGE)
        await turns()
        if in_transport:
            client.stuck_bytes = 1000
        assert bench.port.tasks == {}
        async with asyncio.timeout(20):
            assert not await bench.port.wait_closed(0.01), in_transport
        client.stuck_bytes = 0
        await bench.nothing_is_left()


async def test_a_client_that_never_acknowledged_our_settings_does_not_hold_the_end() -> None:
    bench = Bench(ScriptedService(), limits=limits(handshake_timeout_ms=60_000))
    client = bench.connect()
    client.feed(PREFACE, settings(window=65_535))
    bench.port.begin_drain()
    bench.advance(4.9)
    await turns()
    assert not client.ended()
    bench.advance(0.3)
    await turns()
    assert [got.code for got in client.frames(GOAWAY)] == [0, 0]
    assert client.eof_sent
    bench.advance(2.1)
    assert client.cut_off()
    assert bench.events.broken == []
    await bench.nothing_is_left()


async def test_the_end_of_the_port_does_not_prolong_the_wait_for_an_idle_client() -> None:
    bench = Bench(ScriptedService(), limits=limits(idle_timeout_ms=10_000))
    client = bench.connect()
    client.greet()
    bench.advance(10.2)
    await turns()
    assert [got.code for got in client.frames(GOAWAY)] == [0]
    bench.advance(4)
    bench.port.begin_drain()
    bench.advance(1.2)
    await turns()
    assert client.ended()
    client.leave()
    await bench.nothing_is_left()


async def test_a_service_that_does_not_heed_its_cancellation_does_not_hold_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grpc_port, "CUT_GRACE_S", 0.05)
    bench, heard = Bench(ScriptedService()), asyncio.Event()

    async def stuck() -> None:
        while not heard.is_set():
            try:
                await heard.wait()
            except asyncio.CancelledError:
                continue

    task = asyncio.ensure_future(stuck())
    bench.port.tasks[task] = None  # type: ignore[assignment]
    async with asyncio.timeout(20):
        await bench.port.aclose()
        assert not task.done(), "it heeded its cancellation"
        heard.set()
        await task


# ---------------------------------------------------------- trickling readers


async def test_a_client_that_gives_window_byte_by_byte_does_not_keep_its_answer() -> None:
    bench = Bench(ScriptedService(lambda call: Reply(bytes(500_000))), limits=limits(write_timeout_ms=5000))
    client = bench.connect()
    client.greet(window=0)
    client.call(1, MESSAGE)
    await turns()
    assert bench.budget.used_bytes >= 500_000
    for _ in range(6):
        bench.advance(1)
        client.feed(window(1, 1))
        await turns()
    assert bench.budget.used_bytes == 0
    (reset,) = client.frames(RST_STREAM)
    assert (reset.stream, reset.code) == (1, 11)
    assert bench.events.broken == ["slow_reader"]
    await bench.nothing_is_left()


async def test_a_client_that_takes_its_answer_slowly_but_steadily_gets_it() -> None:
    bench = Bench(ScriptedService(lambda call: Reply(bytes(100_000))), limits=limits(write_timeout_ms=5000))
    client = bench.connect()
    client.greet(window(0, 1 << 20), window=0)
    client.call(1, MESSAGE)
    await turns()
    taken = 0
    for _ in range(22):
        bench.advance(1)
        client.feed(window(1, 5000))
        await turns()
        taken += sum(len(got.payload) for got in client.frames(DATA))
    assert taken == 100_005
    assert bench.events.broken == []
    await bench.nothing_is_left()


async def test_a_socket_that_takes_byte_by_byte_is_cut_off() -> None:
    bench = Bench(ScriptedService(), limits=limits(write_timeout_ms=5000))
    client = bench.connect()
    client.greet()
    client.call(1, MESSAGE)
    await turns()
    client.stop_taking(100_000)
    bench.advance(4)
    client.stuck_bytes -= 16_384
    bench.advance(2)
    assert not client.cut_off()
    client.stuck_bytes -= 1
    bench.advance(5)
    assert client.cut_off()
    assert bench.events.broken == ["slow_reader"]
    await turns()
    await bench.nothing_is_left()


# ------------------------------------------------------------------ the timer


async def test_the_timer_does_not_spin_while_reading_is_paused(looks: list[float]) -> None:
    bench = Bench(ScriptedService(), limits=limits(keepalive_ms=10_000, write_timeout_ms=60_000))
    client = bench.connect()
    client.greet()
    client.call(1, MESSAGE)
    await turns()
    client.stop_taking()
    looks.clear()
    bench.advance(40)
    assert len(looks) <= 8
    client.take_again()
    await bench.nothing_is_left()


async def test_the_timer_does_not_spin_while_an_idle_client_is_asked_to_go(looks: list[float]) -> None:
    bench = Bench(ScriptedService(), limits=limits(idle_timeout_ms=10_000))
    client = bench.connect()
    client.greet()
    bench.advance(10.2)
    looks.clear()
    bench.advance(4.5)
    assert len(looks) <= 2
    client.leave()
    await bench.nothing_is_left()


async def test_the_answer_to_a_ping_gets_its_time_after_a_pause_in_reading() -> None:
    """It may have lain in the socket all the while."""
    bench = Bench(ScriptedService(), limits=limits(keepalive_ms=10_000, keepalive_timeout_ms=4000))
    client = bench.connect()
    client.greet()
    client.call(1, MESSAGE)
    await turns()
    bench.advance(10.2)
    await turns()
    (asked,) = client.frames(PING)
    client.stop_taking()
    bench.advance(20)
    client.take_again()
    bench.advance(1)
    await turns()
    assert not client.cut_off()
    client.feed(frame(PING, ACK, 0, asked.payload))
    bench.advance(5)
    await turns()
    assert not client.cut_off()
    await bench.nothing_is_left()


# -------------------------------------------------------------------- padding


async def test_many_small_padded_frames_are_no_flood() -> None:
    bench = Bench(ScriptedService(lambda call: Reply(ANSWER)))
    client = bench.connect()
    client.greet()
    client.open(1)
    body = prefixed(infer_message(size=5000))
    *rest, last = (b"\1" + body[at : at + 1] + b"\0" for at in range(len(body)))
    client.feed(*(frame(DATA, PADDED, 1, piece) for piece in rest))
    await turns()
    assert [got.stream for got in client.frames(WINDOW_UPDATE) if got.stream] == [1], "all padding at once"
    client.feed(frame(DATA, PADDED | 1, 1, last))
    await turns()
    assert [got.fields.get("grpc-status") for got in client.frames(HEADERS)] == [None, "0"]
    assert bench.events.broken == []
    await bench.nothing_is_left()
