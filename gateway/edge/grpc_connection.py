"""One HTTP/2 connection of the gRPC port: bytes to the codec, its output to the transport once per turn, flow control.

*Reading* goes by pieces of `READ_BYTES`, and pauses where one connection has had its share of the loop's turn: it has
taken long, or RPCs wait for their turn to begin. It pauses too while the client takes nothing: so it can provoke
nothing that cannot be sent. *Writing*: while the transport is over its high-water mark the codec keeps what it
has, and answers wait in their calls. What a slow client leaves here is counted against the memory for bodies.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, cast

from gateway.core.credentials import NO_PEER
from gateway.edge.grpc_greeting import greeting_fault
from gateway.edge.grpc_head import HeadReader
from gateway.edge.grpc_pacing import PacedGrpcConnection
from gateway.edge.grpc_rpc import OVER, Rpc
from gateway.edge.grpc_unary import ServedRpc
from gateway.wire.http2 import ErrorCode

if TYPE_CHECKING:
    from gateway.edge.grpc_port import GrpcPort

_log = logging.getLogger("sluice.edge.grpc")

READ_BYTES = 64 * 1024
"""One read: at the worst 3,000 requests that are refused, or 6,000 pieces of a message. (Event loops read four times as
much at once, and up to 32 times before they look at another connection.)"""
BEHIND_REST_BYTES = 4096
"""So much is read of what stands behind a large frame: of the next one only the beginning is to be copied."""
TURN_S = 0.005
"""A connection that has needed so long goes on when the others have had their turn."""
TURN_RPCS_MAX = 64
"""RPCs of one connection that begin in one turn; what each costs its services comes in the next."""
JOIN_BYTES_MAX = 64 * 1024
"""Output up to this size leaves in one piece; of larger no byte is copied here."""


class GrpcConnection(PacedGrpcConnection):
    """Drives one codec. Made by `GrpcPort` for each accepted connection."""

    __slots__ = (
        "_begun",
        "_deferred",
        "_greeted",
        "_greeting",
        "_placed",
        "_scheduled",
        "_waiters",
        "_yielded",
        "heads",
    )

    def __init__(self, port: GrpcPort) -> None:
        super().__init__(port, partial(ServedRpc, self))
        self.heads = HeadReader(port.kit.reader, NO_PEER)
        self._greeted = False
        self._greeting = b""
        """What has come of the client's preface."""
        self._placed = False
        """The codec knows where the next bytes are to be."""
        self._scheduled = True
        """A flush is under way, or must wait: so it is until the client has shown that it speaks HTTP/2."""
        self._begun = 0
        self._deferred: deque[tuple[Rpc, bytes]] = deque()
        """RPCs whose message is there and whose turn to begin has not come."""
        self._yielded = False
        """What else the client has sent waits for this connection's next turn."""
        self._waiters: deque[asyncio.Future[None]] = deque()
        self.codec.on_output = self._schedule

    # -------------------------------------------------- asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one without being derived from it
        self.loop = asyncio.get_running_loop()
        self.now_s = self.port.kit.clock.now_s()
        self.begin_pacing()
        if not self.port.admit_connection(self):
            self.finished = True
            self.transport.close()
            return
        if self.port.peers is not None:
            self.heads = HeadReader(self.port.kit.reader, self.port.peers.of(transport))
        self.timer.watch()

    def get_buffer(self, sizehint: int) -> memoryview:
        # All share the buffer: it is read from before anything else happens.
        codec, buffer = self.codec, self.port.read_buffer
        rest = codec.rest_bytes
        if not rest or self.finished:
            self._placed = False
            return buffer
        place = codec.place()
        self._placed = place is not None
        return buffer[: rest + BEHIND_REST_BYTES] if place is None else place

    def buffer_updated(self, nbytes: int) -> None:
        if not self._placed:
            self.data_received(self.port.read_buffer[:nbytes].tobytes())
            return
        self.now_s = now_s = self.port.kit.clock.now_s()
        try:
            self.codec.placed(nbytes, now_s)
        except Exception as fault:
            self._broken(fault)
            return
        self._regulate()

    def data_received(self, data: bytes) -> None:
        if self.finished:
            return
        clock_s = self.kit.clock.now_s
        self.now_s = now_s = clock_s()
        self._begun = 0
        if not self._greeted:
            data = self._greet(data)
            if not data:
                return
        try:
            self.codec.receive(data, now_s)
        except Exception as fault:
            self._broken(fault)
            return
        if self.codec.closed:
            self._closed()
        elif clock_s() - now_s > TURN_S:
            self._yield_turn()
        elif self.awaiting or self._deferred:
            self._regulate()

    def eof_received(self) -> bool:
        """HTTP/2 has no use for a connection that is closed to one side."""
        self._leave("the client closed the connection")
        return False  # the transport sends what it holds, and closes

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave("the connection was lost")
        self.transport = None
        self.timer.close()
        # It knows this connection: a circle. Work that still goes on sends what it likes to one that is closed.
        self.codec = self.port.closed_codec
        self.port.connection_closed(self)

    def pause_writing(self) -> None:
        self.write_paused = True
        self._regulate()
        self.watch_writing()

    def resume_writing(self) -> None:
        self.write_paused = False
        if self.finished:
            self.watch_writing()  # what is left of the last answers may still get stuck
            return
        self.written_all()
        self._regulate()
        self._flush_soon()
        self._wake_writers()

    # --------------------------------------------------------------- input

    def _greet(self, data: bytes) -> bytes:
        """The client's first bytes: what the codec is to have of them."""
        data = self._greeting + data
        answer = greeting_fault(data)
        if answer is None:
            if len(data) < 24:
                self._greeting = data
                return b""
            self._greeted, self._greeting = True, b""
            self._scheduled = False
            self._flush_soon()  # our own settings have waited
            return data
        self.port.kit.observer.protocol_fault("grpc", "malformed")
        self.finished = True
        transport = self.transport
        if transport is not None:
            if answer:
                transport.write(answer)
            self.end_transport()
        return b""

    def may_begin(self) -> bool:
        """Whether one more RPC may begin in this turn."""
        self._begun += 1
        return self._begun <= TURN_RPCS_MAX and not self._deferred

    def defer(self, rpc: Rpc, message: bytes) -> None:
        """Let it begin in a later turn."""
        self._deferred.append((rpc, message))
        self._yield_turn()

    def _yield_turn(self) -> None:
        if not self._yielded:
            self._yielded = True
            self.loop.call_soon(self._go_on)
        self._regulate()

    def _go_on(self) -> None:
        """The next turn."""
        self._yielded = False
        if self.finished:
            return
        deferred = self._deferred
        try:
            for _ in range(min(TURN_RPCS_MAX, len(deferred))):
                rpc, message = deferred.popleft()
                if rpc.phase != OVER:
                    rpc.begin(message)
        except Exception as fault:
            self._broken(fault)
            return
        if deferred:
            self._yield_turn()
        else:
            self._regulate()

    def _regulate(self) -> None:
        """Read on, or do not; see to the time-outs."""
        if self.finished:
            return
        pause = self._yielded or self.write_paused
        if pause is not self.reading_paused:
            self.pause_reading(pause)
        if self.awaiting:
            self.watch_messages()
        self.timer.watch()

    # -------------------------------------------------------------- output

    def _schedule(self) -> None:
        """The codec has something to write."""
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._flush)

    def _flush_soon(self) -> None:
        if self.codec.wants_write or self.codec.closed:
            self._schedule()

    def _flush(self) -> None:
        self._scheduled = False
        codec, transport = self.codec, self.transport
        if transport is None or self.write_paused:
            return
        pieces = codec.take()
        if len(pieces) == 1:
            transport.write(pieces[0])
        elif pieces:
            if sum(map(len, pieces)) <= JOIN_BYTES_MAX:
                transport.write(b"".join(pieces))
            else:
                transport.writelines(pieces)
        if codec.closed:
            self._closed()
            return
        if self.lagging:
            self.count_lagging()
        if codec.wants_write or codec.closed:
            self._schedule()

    def writable(self) -> asyncio.Future[None]:
        """To be awaited while `write_paused`; ask again afterwards."""
        waiter: asyncio.Future[None] = self.loop.create_future()
        self._waiters.append(waiter)
        return waiter

    def _wake_writers(self) -> None:
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # -------------------------------------------------------------- ending

    def _closed(self) -> None:
        """The codec has said its last word: write it, and close."""
        if self.finished:
            return
        fault = self.codec.fault
        if fault is not None:
            self.port.kit.observer.protocol_fault("grpc", _FAULT_KINDS.get(fault.code, "malformed"))
            _log.debug("a client broke HTTP/2: %s", fault.text)
        self.finished = True
        transport = self.transport
        if transport is None:
            return
        pieces = self.codec.take()
        if pieces:
            transport.write(b"".join(pieces))
        self._wake_writers()
        self.end_transport()

    def _leave(self, text: str) -> None:
        """Nothing will reach the client any more."""
        self.finished = True
        self.codec.lost(text)
        self._deferred.clear()
        self._wake_writers()
        self.drop_lagging()

    def _broken(self, fault: Exception) -> None:
        self.port.kit.observer.internal_fault("grpc")
        _log.error("an internal fault ended a connection", exc_info=fault)
        self.abort()

    def abort(self) -> None:
        """End the connection at once: its state can no longer be trusted, or its client."""
        transport = self.transport
        self._leave("the connection was cut off")
        self.stop_pacing()
        if transport is not None:
            transport.abort()

    @property
    def owes(self) -> bool:
        """Whether an answer, or a part of one, has not left yet."""
        transport = self.transport
        return self.codec.streams_open > 0 or (transport is not None and transport.get_write_buffer_size() > 0)

    def drain(self) -> None:
        """Nothing new; the connection closes with its last answer."""
        if self.finished:
            return
        if not self._greeted:
            self.abort()
            return
        self.codec.drain()
        self.begin_draining()


_FAULT_KINDS = {int(ErrorCode.ENHANCE_YOUR_CALM): "flood"}
