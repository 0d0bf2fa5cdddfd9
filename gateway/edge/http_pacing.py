"""The pace of one HTTP/1.1 connection: when it reads, and how long it waits for its client."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gateway.core.errors import GatewayError, Reason
from gateway.edge.http_question import Exchange
from gateway.edge.lazy_timer import FOREVER, LazyTimer
from gateway.edge.slow_reader import owed
from gateway.wire.http1 import Http1Server, Phase

if TYPE_CHECKING:
    from gateway.edge.http_server import HttpServer

UNWANTED_BODY_BYTES = 256 * 1024
LINGER_S = 2.0
"""After an answer that ends a connection with input unread, the client gets this long to read it, or to send more: a
close with unread input resets the connection, and the reset can overtake the answer."""
LINGER_BYTES_MAX = 64 * 1024 * 1024
"""So much of that input is read on and dropped (RFC 9112 section 9.6): many clients send all of a body before they read
the first byte of an answer. Beyond it the client is left to wait for the end."""
LINGER_TOTAL_S = 30.0
"""And so long at most: who sends in drips does not hold a connection for ever."""


class PacedConnection(asyncio.BufferedProtocol):
    """Pauses reading and sees to the time-outs. Who derives from it says what is read and written, and calls
    `_regulate` after each step.
    """

    __slots__ = (
        "_codec",
        "_drain_s",
        "_finished",
        "_head_s",
        "_held_s",
        "_linger_until_s",
        "_lingering",
        "_mark_bytes",
        "_read_s",
        "_reading",
        "_reading_paused",
        "_server",
        "_timer",
        "_transport",
        "_write_deadline_s",
    )

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._codec = Http1Server(server.http1_limits)
        self._transport: asyncio.Transport | None = None
        self._reading: Exchange | None = None
        """Whose body arrives."""
        self._finished = False
        self._lingering = False
        self._linger_until_s = FOREVER
        self._reading_paused = False
        self._read_s = 0.0
        self._head_s = 0.0
        """When the first byte of the head in work came; 0.0 if none is."""
        self._held_s = 0.0
        self._drain_s = 0.0
        self._write_deadline_s = FOREVER
        self._mark_bytes = 0
        self._timer = LazyTimer(server.wheel, self._next_deadline_s, self._look)

    def abort(self) -> None:
        self._finished = True
        if self._transport is not None:
            self._transport.abort()

    def _finish(self, *, linger: bool) -> None:
        """Send what was written, and close."""
        raise NotImplementedError

    def _regulate(self, now_s: float) -> None:
        """Pause or resume reading, and see to the timer. `now_s` is when what was handled last had come."""
        codec, reading = self._codec, self._reading
        held = codec.held_bytes
        self._held_s = (self._held_s or now_s) if held else 0.0
        pause = (held > 0 and codec.paused) or (reading is not None and reading.held_bytes >= UNWANTED_BODY_BYTES)
        if pause is not self._reading_paused:
            self._pause_reading(pause)
        phase = codec.phase
        if phase is Phase.ANSWER:
            return  # nothing is waited for from the client
        if phase is Phase.HEAD and not self._head_s:
            self._head_s = self._read_s
        self._timer.watch()

    def _pause_reading(self, pause: bool) -> None:
        if pause is self._reading_paused or self._transport is None:
            return
        self._reading_paused = pause
        if pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _watch_writing(self) -> None:
        assert self._transport is not None
        self._mark_bytes = self._transport.get_write_buffer_size()
        self._write_deadline_s = self._server.clock.now_s() + self._server.limits.write_timeout_ms / 1000
        self._timer.watch()

    def _read_deadline_s(self) -> float:
        """When what is waited for from the client is overdue."""
        limits = self._server.limits
        if self._lingering:
            return min(self._read_s + LINGER_S, self._linger_until_s)
        if self._finished:
            return FOREVER
        phase = self._codec.phase
        if phase is Phase.IDLE:
            return self._read_s + limits.keepalive_idle_ms / 1000
        if phase is Phase.BODY:
            reading = self._reading
            if reading is None or self._reading_paused or not reading.waits_for_client:
                return FOREVER
            return self._read_s + limits.body_idle_timeout_ms / 1000
        if phase is Phase.HEAD:
            return self._head_s + limits.header_timeout_ms / 1000
        return self._drain_s + limits.body_idle_timeout_ms / 1000 if phase is Phase.DRAIN else FOREVER

    def _next_deadline_s(self) -> float:
        return min(self._read_deadline_s(), self._write_deadline_s)

    def _look(self) -> None:
        """Is anything overdue?"""
        transport = self._transport
        if transport is None:
            return
        now_s = self._server.clock.now_s()
        if now_s >= self._write_deadline_s:
            left = transport.get_write_buffer_size()
            if left > self._mark_bytes - owed(self._mark_bytes):
                self._give_up("slow_reader")
                return
            if left:
                self._watch_writing()
            else:
                self._write_deadline_s = FOREVER
        if now_s >= self._read_deadline_s():
            self._overdue(transport)
        if self._transport is not None:
            self._timer.watch()

    def _overdue(self, transport: asyncio.Transport) -> None:
        phase = self._codec.phase
        if self._lingering:
            transport.abort()
            self._lingering = False
        elif phase is Phase.IDLE:
            if transport.get_write_buffer_size():
                self._give_up("slow_reader")
            else:
                self._finish(linger=False)
        elif phase is Phase.HEAD:
            self._give_up("slow_head")
        elif phase is Phase.DRAIN:
            self._give_up("slow_drain")
        elif self._reading is not None:
            self._server.observer.protocol_fault("http", "slow_body")
            idle_ms = self._server.limits.body_idle_timeout_ms
            self._reading.fail_body(
                GatewayError(Reason.SLOW_BODY, f"no part of the request body arrived for {idle_ms} ms")
            )

    def _give_up(self, kind: str) -> None:
        self._server.observer.protocol_fault("http", kind)
        self.abort()
