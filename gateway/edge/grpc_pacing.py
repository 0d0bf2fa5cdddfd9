"""The pace of one connection of the gRPC port: when it reads, and how long it waits for its client.

One timer serves all time-outs. It stands at most `keepalive_ms` ahead, so an RPC that comes and goes in time never
touches it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.edge.lazy_timer import FOREVER, LazyTimer
from gateway.edge.slow_reader import owed
from gateway.wire.http2 import ErrorCode, Http2Server, Stream
from gateway.wire.http2.stream import OVER as STREAM_OVER
from gateway.wire.http2.stream import QUEUED

if TYPE_CHECKING:
    from gateway.edge.grpc_port import GrpcPort
    from gateway.edge.grpc_rpc import Rpc

LINGER_S = 2.0
"""A client gets this long to close after our last word: a close with input unread resets the connection, and the reset
can overtake the last answer."""
DRAIN_ANSWER_S = 5.0
"""And so long to answer that it has heard of the end; then what it sends is not waited for any more."""
SWEEP_S = 0.1
"""While many answers wait for their clients' windows, it is looked this often which of them have gone."""
SWEPT_AT_ONCE = 32
_KEEPALIVE = b"sluice\x00\x00"


class Lag:
    """An answer that waits for the client's window: bytes reserved for it, and those that have to go yet before the
    client gets time anew, and since when.
    """

    __slots__ = ("owed", "reserved", "since_s")

    def __init__(self, owed: int, since_s: float) -> None:
        self.owed = owed
        self.reserved = 0
        self.since_s = since_s


class PacedGrpcConnection(asyncio.BufferedProtocol):
    """Sees to the time-outs, and to what slow clients leave here. Who derives from it moves the bytes."""

    __slots__ = (
        "_began_s",
        "_drain_s",
        "_linger_until_s",
        "_looked_s",
        "_mark_bytes",
        "_pinged_s",
        "_resumed_s",
        "_swept_s",
        "_write_deadline_s",
        "active_s",
        "awaiting",
        "codec",
        "finished",
        "kit",
        "lagging",
        "loop",
        "now_s",
        "port",
        "reading_paused",
        "timer",
        "transport",
        "window_bytes",
        "write_paused",
    )

    def __init__(self, port: GrpcPort, make_stream: Callable[[], Stream]) -> None:
        self.port = port
        self.kit = port.kit
        self.codec = Http2Server(port.http2_limits, make_stream)
        self.window_bytes = port.http2_limits.window_bytes
        self.loop: asyncio.AbstractEventLoop
        self.transport: asyncio.Transport | None = None
        self.now_s = 0.0
        """When the bytes came that were read last."""
        self.active_s = 0.0
        """When the last RPC ended."""
        self.awaiting: dict[Rpc, float] = {}
        """RPCs whose client is to send a message or the rest of one, and since when; the longest wait first."""
        self.lagging: dict[Rpc, Lag] = {}
        self.finished = False
        """Nothing is read or written any more, but for what the transport holds."""
        self.reading_paused = False
        self.write_paused = False
        self.timer = LazyTimer(port.wheel, self._next_deadline_s, self._look)
        self._began_s = 0.0
        self._drain_s = FOREVER
        self._linger_until_s = FOREVER
        self._looked_s = 0.0
        self._mark_bytes = 0
        self._pinged_s = 0.0
        self._resumed_s = 0.0
        self._swept_s = 0.0
        self._write_deadline_s = FOREVER

    # What the deriving class does.

    def abort(self) -> None:
        raise NotImplementedError

    def drain(self) -> None:
        raise NotImplementedError

    def _flush_soon(self) -> None:
        raise NotImplementedError

    # ------------------------------------------------------------ the timer

    def begin_pacing(self) -> None:
        """The connection is made."""
        self._began_s = self._looked_s = self.active_s = self.now_s

    def stop_pacing(self) -> None:
        """Nothing is waited for any more."""
        self._write_deadline_s = self._linger_until_s = FOREVER
        self.timer.cancel()

    def _open(self) -> bool:
        """Whether the client has taken up HTTP/2."""
        return self.codec.settings_acknowledged or self.codec.streams_open > 0

    def _next_deadline_s(self) -> float:
        limits = self.kit.limits
        if self.finished:
            return min(self._linger_until_s, self._write_deadline_s)
        due_s = min(self._looked_s + limits.keepalive_ms / 1000, self._write_deadline_s)
        due_s = min(due_s, self._drain_s + DRAIN_ANSWER_S)
        if not self._open():
            return min(due_s, self._began_s + limits.handshake_timeout_ms / 1000)
        if self.awaiting and not self.reading_paused:
            since_s = max(next(iter(self.awaiting.values())), self._resumed_s)
            due_s = min(due_s, since_s + limits.message_idle_timeout_ms / 1000)
        if self.lagging:
            due_s = min(due_s, next(iter(self.lagging.values())).since_s + limits.write_timeout_ms / 1000)
        return min(due_s, self._silent_s())

    def _silent_s(self) -> float:
        """When the silence of a client that has taken up HTTP/2 has lasted too long."""
        limits = self.kit.limits
        if not self.codec.streams_open:
            return self.active_s + limits.idle_timeout_ms / 1000 if self._drain_s == FOREVER else FOREVER
        if self.reading_paused:
            return FOREVER  # it may have said something
        if self._pinged_s > self.now_s:
            return max(self._pinged_s, self._resumed_s) + limits.keepalive_timeout_ms / 1000
        return self.now_s + limits.keepalive_ms / 1000

    def _look(self) -> None:
        """Is anything overdue?"""
        if self.transport is None:
            return
        now_s = self._looked_s = self.kit.clock.now_s()
        self._look_at_writing(now_s)
        if self.finished:
            if now_s >= self._linger_until_s and self.transport is not None:
                self.transport.abort()
            if self.transport is not None:
                self.timer.watch()
            return
        self._look_at_drain(now_s)
        if not self._open():
            if now_s >= self._began_s + self.kit.limits.handshake_timeout_ms / 1000:
                self.give_up("slow_head")
        else:
            self._look_at_messages(now_s)
            self._look_at_lagging(now_s)
            self._look_at_silence(now_s)
        if self.transport is not None:
            self.timer.watch()

    def watch_messages(self) -> None:
        """Those that this read has left unfinished get their last instant; the others have theirs."""
        for rpc, since_s in reversed(self.awaiting.items()):
            if since_s < self.now_s:
                break
            rpc.watch_message()

    def _look_at_messages(self, now_s: float) -> None:
        timeout_ms = self.kit.limits.message_idle_timeout_ms
        if self.reading_paused or now_s < self._resumed_s + timeout_ms / 1000:
            return
        for rpc, since_s in tuple(self.awaiting.items()):
            if now_s < since_s + timeout_ms / 1000:
                break
            del self.awaiting[rpc]
            rpc.slow(timeout_ms)

    def _look_at_drain(self, now_s: float) -> None:
        if now_s >= self._drain_s + DRAIN_ANSWER_S:
            self._drain_s = FOREVER
            self.codec.finish_drain()
            self._flush_soon()

    def _look_at_silence(self, now_s: float) -> None:
        if now_s < self._silent_s():
            return
        if not self.codec.streams_open:
            self.drain()
        elif self._pinged_s > self.now_s:
            self.give_up("silent")
        else:
            self._pinged_s = now_s
            self.codec.ping(_KEEPALIVE)

    def begin_draining(self) -> None:
        """The codec has begun to drain."""
        if self._drain_s == FOREVER:
            self._drain_s = self.kit.clock.now_s()
            self.timer.watch()

    def give_up(self, kind: str) -> None:
        """End the connection: the client is too slow for it."""
        self.kit.observer.protocol_fault("grpc", kind)
        self.abort()

    # ----------------------------------------------------------- slow clients

    def pause_reading(self, pause: bool) -> None:
        if pause is self.reading_paused or self.transport is None:
            return
        self.reading_paused = pause
        if pause:
            self.transport.pause_reading()
        else:
            self._resumed_s = self.kit.clock.now_s()
            self.transport.resume_reading()

    def watch_writing(self) -> None:
        """The transport holds more than it likes to."""
        if self.transport is None:
            return
        self._mark_bytes = self.transport.get_write_buffer_size()
        self._write_deadline_s = self.kit.clock.now_s() + self.kit.limits.write_timeout_ms / 1000
        self.timer.watch()

    def written_all(self) -> None:
        """And now no more."""
        self._write_deadline_s = FOREVER

    def _look_at_writing(self, now_s: float) -> None:
        if now_s < self._write_deadline_s or self.transport is None:
            return
        left = self.transport.get_write_buffer_size()
        if left > self._mark_bytes - owed(self._mark_bytes):
            self.give_up("slow_reader")
        elif left:
            self.watch_writing()
        else:
            self._write_deadline_s = FOREVER

    def written(self, rpc: Rpc) -> None:
        """Something was sent on `rpc`. What of it must wait is counted."""
        if rpc.state & QUEUED:
            lag = self.lagging.get(rpc)
            if lag is None:
                lag = self.lagging[rpc] = Lag(owed(rpc.queued), self.kit.clock.now_s())
            if self._count(rpc, lag):
                self.timer.watch()

    def _count(self, rpc: Rpc, lag: Lag) -> bool:
        """Reserve what waits on `rpc` now; False if there is no memory for it, and the RPC is cut off."""
        more = rpc.queued - lag.reserved
        if more > 0 and not self.kit.budget.try_reserve(more):
            self._cut_off(rpc)
            return False
        lag.reserved += more
        if more < 0:
            self.kit.budget.release(-more)
            lag.owed += more
            if lag.owed <= 0:
                lag.owed = owed(rpc.queued)
                lag.since_s = self.kit.clock.now_s()
        return True

    def count_lagging(self) -> None:
        """Output has left: which of those that wait have got on?"""
        now_s = self.kit.clock.now_s()
        if len(self.lagging) > SWEPT_AT_ONCE and now_s < self._swept_s + SWEEP_S:
            return
        self._swept_s = now_s
        for rpc, lag in tuple(self.lagging.items()):
            if not rpc.state & QUEUED or rpc.state & STREAM_OVER:
                self._caught_up(rpc)
            elif rpc.queued != lag.reserved:
                self._count(rpc, lag)

    def _look_at_lagging(self, now_s: float) -> None:
        if not self.lagging:
            return
        self._swept_s = 0.0
        self.count_lagging()
        timeout_s = self.kit.limits.write_timeout_ms / 1000
        for rpc, lag in tuple(self.lagging.items()):
            if now_s >= lag.since_s + timeout_s:
                self._cut_off(rpc)

    def _cut_off(self, rpc: Rpc) -> None:
        """The client takes nothing of this answer."""
        self.kit.observer.protocol_fault("grpc", "slow_reader")
        self._caught_up(rpc)
        self.codec.reset(rpc, ErrorCode.ENHANCE_YOUR_CALM)
        rpc.cut_off()

    def _caught_up(self, rpc: Rpc) -> None:
        lag = self.lagging.pop(rpc)
        if lag.reserved:
            self.kit.budget.release(lag.reserved)

    def forget(self, rpc: Rpc) -> None:
        """The stream of `rpc` is gone, with what was queued on it."""
        if rpc in self.lagging:
            self._caught_up(rpc)

    def drop_lagging(self) -> None:
        """Nothing waits any more."""
        for rpc in tuple(self.lagging):
            self._caught_up(rpc)

    # ---------------------------------------------------------------- the end

    def end_transport(self) -> None:
        """Our last word is in the transport: send it, and give the client time to read it."""
        transport = self.transport
        if transport is None:
            return
        if transport.can_write_eof() and not transport.is_closing():
            transport.write_eof()
            self.pause_reading(False)
            self._linger_until_s = self.kit.clock.now_s() + LINGER_S
        else:
            transport.close()
        if transport.get_write_buffer_size():
            self.watch_writing()
        self.timer.watch()
