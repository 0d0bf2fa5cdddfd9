"""Link: one HTTP/2 connection to a replica, between the event loop's transport and the codec.

What the calls of one turn of the loop send leaves in one write at its end. What a transport cannot take stays in the
codec, where it keeps its order and its fairness, until the transport has room again.

Pings: a gRPC server counts those it gets while it has nothing to send, and says GOAWAY after two of them; one that it
gets after an answer is free. So a link pings only when a call is out and nothing has come for `keepalive_s`, once after
each answer, and again only after `PING_UNANSWERED_S`. Dead machines are found by TCP's own probes (`http2_dial`), dead
servers by the fleet's liveness calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

from gateway.fleet.http2_dial import ALPN
from gateway.fleet.http2_faults import name
from gateway.fleet.http2_head import HeadEncoder
from gateway.fleet.replica_calls import METADATA_BYTES_MAX, UNREAD_BYTES_MAX
from gateway.runtime.clock import Clock
from gateway.runtime.wheel import Timer, TimerWheel
from gateway.wire.http2 import ErrorCode, Http2Client, Http2Limits, Stream, StreamUnavailable

_log = logging.getLogger("sluice.fleet")

READ_BYTES = 256 * 1024
BEHIND_REST_BYTES = 4096
"""So much is read of what stands behind a large frame: of the next one only the beginning is to be copied."""
JOIN_BYTES_MAX = 64 * 1024
"""What leaves in one turn is joined for one write up to this size; larger pieces are handed over as they are."""
WRITE_HIGH_BYTES = 256 * 1024
"""What the transport may hold before it says that it has enough."""
PING_UNANSWERED_S = 330.0
"""gRPC servers allow a ping each five minutes to those who have calls out and get no data."""
KEEPALIVE_MAX_S = 7200.0
TOO_MANY_PINGS = "too_many_pings"

HEADER_BLOCK_BYTES_MAX = 16 * 1024 * 1024
"""As sent; of it at most `METADATA_BYTES_MAX` are read."""

LIMITS = Http2Limits(
    window_bytes=UNREAD_BYTES_MAX,
    # A large frame is received straight to its place in the message.
    frame_max_bytes=256 * 1024,
    connection_window_bytes=64 * 1024 * 1024,
    header_list_max_bytes=METADATA_BYTES_MAX,
    # More than what is kept of it: a caller can have Triton quote him at any length, which must not end the connection.
    header_block_max_bytes=HEADER_BLOCK_BYTES_MAX,
    continuations_max=HEADER_BLOCK_BYTES_MAX // 16_384,
    waiting_max=0,
    # Frames that carry nothing are a replica's, which nobody needs to overload to get rid of it; the bounds are for
    # one that has gone mad.
    idle_frames_burst=100_000,
    idle_frames_per_s=10_000.0,
)


@dataclass(slots=True)
class Keepalive:
    """How often the links of one replica ask whether the other end is there. Grows when the replica minds."""

    every_s: float
    answer_s: float
    """So long an answer may take."""
    complaints: int = 0

    def complained(self) -> None:
        self.complaints += 1
        self.every_s = min(KEEPALIVE_MAX_S, self.every_s * 2)


class LinkOwner(Protocol):
    """What a link tells. Synchronous."""

    def link_opened(self, link: Http2Link) -> None:
        """The replica has answered: calls can begin."""
        ...

    def link_has_room(self, link: Http2Link) -> None:
        """Calls may have ended on a link that is `wanted`."""
        ...

    def link_leaves(self, link: Http2Link) -> None:
        """Nothing can begin on it any more; what is out goes on."""
        ...

    def link_lost(self, link: Http2Link) -> None:
        """It is gone; all that was out has been told."""
        ...


class Http2Link(asyncio.BufferedProtocol):
    """Made for one attempt to connect; `owner` hears of it what `LinkOwner` says."""

    __slots__ = (
        "_answers_at_look",
        "_answers_at_ping",
        "_authority",
        "_encoder",
        "_keepalive",
        "_loop",
        "_now_s",
        "_owner",
        "_paused",
        "_ping_sent_s",
        "_placed",
        "_read_buffer",
        "_received_s",
        "_scheduled",
        "_settled",
        "_timer",
        "_tls_socket",
        "_transport",
        "_wheel",
        "answers",
        "codec",
        "flushes",
        "gone",
        "heads",
        "idle_since_s",
        "leaving",
        "opened",
        "opened_s",
        "text",
        "wanted",
    )

    def __init__(
        self,
        owner: LinkOwner,
        authority: bytes,
        scheme: bytes,
        keepalive: Keepalive,
        clock: Clock,
        wheel: TimerWheel,
        read_buffer: memoryview,
    ) -> None:
        """Inside the event loop. Links may share a `read_buffer`: it is read from before anything else happens."""
        self._owner = owner
        self._authority = authority
        self._keepalive = keepalive
        self._now_s: Callable[[], float] = clock.now_s
        self._wheel = wheel
        self._read_buffer = read_buffer
        self._placed = False
        """The codec knows where the next bytes are to be."""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._scheduled = False
        self._settled = False
        """Opened, and nothing special has happened since."""
        self._timer: Timer | None = None
        self._tls_socket: socket.socket | None = None
        self._ping_sent_s: float | None = None
        """Of a ping that has not been answered."""
        self._answers_at_ping = -1
        self._answers_at_look = 0
        self._received_s = 0.0
        self._encoder = HeadEncoder(authority, scheme)
        self.heads = self._encoder.heads
        """Those that need not be asked for by `head`, by path."""
        self.codec = Http2Client(LIMITS, self._encoder)
        self.codec.on_output = self._wake
        self.codec.on_pong = self._pong
        self.answers = 0
        """Frames with something in them that have come for calls: counted by the calls."""
        self.flushes = 0
        """Writes so far: whether a call's bytes have left is seen by it."""
        self.opened_s: float | None = None
        self.opened: asyncio.Future[str] = self._loop.create_future()
        """Of the attempt to connect: "" when the replica has answered, else what went wrong."""
        self.wanted = False
        """Calls wait for room on it."""
        self.leaving = False
        self.gone = False
        self.idle_since_s: float | None = None
        self.text = ""
        """Why it is gone."""

    # -- the loop's callbacks ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one without being derived from it
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        tls = transport.get_extra_info("ssl_object")
        self._tls_socket = None if tls is None else transport.get_extra_info("socket")
        if tls is not None and tls.selected_alpn_protocol() != ALPN:
            self.abort("the server did not choose HTTP/2 in its TLS handshake (ALPN)")
            return
        self._received_s = self._now_s()
        self._timer = self._wheel.call_later(self._keepalive.every_s, self._look_alive)
        self._flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        codec = self.codec
        rest = codec.rest_bytes
        if not rest:
            self._placed = False
            return self._read_buffer
        place = codec.place()
        self._placed = place is not None
        return self._read_buffer[: rest + BEHIND_REST_BYTES] if place is None else place

    def buffer_updated(self, nbytes: int) -> None:
        if not self._placed:
            self.data_received(bytes(self._read_buffer[:nbytes]))
            return
        self._received_s = now_s = self._now_s()
        self.codec.placed(nbytes, now_s)

    def data_received(self, data: bytes) -> None:
        codec = self.codec
        self._received_s = now_s = self._now_s()
        codec.receive(data, now_s)
        if codec.closed or codec.peer_goaway is not None or not self._settled:
            self._look()
        if self.wanted:
            self._owner.link_has_room(self)

    def eof_received(self) -> None:
        """Half a connection is of no use: the transport closes itself."""
        self.text = self.text or "the replica closed the connection"

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None and not self.text:
            self.text = f"the connection broke: {error}"
        self._transport = None
        self._end()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._flush()

    # -- writing -------------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        transport = self._transport
        if transport is None or self._paused:
            return
        codec = self.codec
        pieces = codec.take()
        if pieces:
            self.flushes += 1
            if len(pieces) == 1:
                transport.write(pieces[0])
            elif sum(map(len, pieces)) <= JOIN_BYTES_MAX:
                transport.write(b"".join(pieces))
            else:
                transport.writelines(pieces)
        if codec.closed:
            self._close()
        elif codec.wants_write and not self._paused:
            self._wake()  # in the next turn: others have something to send, too

    # -- what has come -------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Something besides answers has come."""
        codec = self.codec
        if not self.opened.done() and codec.settings_acknowledged:
            self.opened_s = self._now_s()
            self.opened.set_result("")
            self._settled = True
            self._owner.link_opened(self)
        if codec.peer_goaway is not None and not self.leaving:
            code, text = codec.peer_goaway
            if code == ErrorCode.ENHANCE_YOUR_CALM and text.startswith(TOO_MANY_PINGS):
                self._keepalive.complained()
                _log.warning(
                    "replica %s ended a connection for too many pings; from now on one each %g s at the most",
                    self._authority.decode(),
                    self._keepalive.every_s,
                )
            self.text = f"the replica ended the connection (GOAWAY, {name(code)}{', ' if text else ''}{text})"
            self._leave()
        if codec.closed:
            if codec.fault is not None:
                self.text = f"the replica broke the protocol: {codec.fault.text}"
            self._leave()
            if self._paused:
                self.abort(self.text)  # it reads nothing, and would not read why
            else:
                self._flush()

    def _leave(self) -> None:
        if not self.leaving:
            self.leaving = True
            self._owner.link_leaves(self)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _end(self) -> None:
        if self.gone:
            return
        self.gone = True
        self.text = self.text or "the connection was closed"
        if self._timer is not None:
            self._timer.cancel()
        self._leave()
        self.codec.lost(self.text)
        self.codec.on_output = self.codec.on_pong = None
        if not self.opened.done():
            self.opened.set_result(self.text)
        self._owner.link_lost(self)

    # -- for the owner -------------------------------------------------------------------------------------------------

    def head(self, path: str) -> str:
        """The shared fields of a request, for `request_block`. Must be sent at once, and in front of all others' heads.
        Raises `StreamUnavailable` where that cannot be.
        """
        if not self.codec.available:
            raise StreamUnavailable("no call can begin on the connection now")
        return self._encoder.head(path)

    def used_since_look(self) -> bool:
        """Whether anything has come for calls since this was asked last."""
        used = self.answers != self._answers_at_look
        self._answers_at_look = self.answers
        return used

    def reset(self, stream: Stream, code: int) -> None:
        """Give a stream up, if it is not over: the replica is told."""
        self.codec.reset(stream, code)
        if self.wanted:
            self._owner.link_has_room(self)

    def retire(self) -> None:
        """Nothing begins on it any more; it ends when what is out has ended."""
        self._leave()
        self.codec.drain()
        self._settled = False

    def shut(self, text: str) -> None:
        """End it in order: what is out is told `text`, the replica gets a GOAWAY."""
        self.text = self.text or text
        self._leave()
        self.codec.goaway(ErrorCode.NO_ERROR, text)
        self._flush()

    def abort(self, text: str) -> None:
        """End it at once. May be called again."""
        self.text = self.text or text
        transport, self._transport = self._transport, None
        if transport is not None:
            try:
                transport.abort()
            except AttributeError:
                # asyncio's TLS transport (Python 3.11) has forgotten its protocol once it was closed, and would wait
                # for the peer's farewell. The socket below it can still be ended.
                if self._tls_socket is None:
                    raise
                with contextlib.suppress(OSError):  # the peer was faster
                    self._tls_socket.shutdown(socket.SHUT_RDWR)
        self._end()

    # -- keepalive -----------------------------------------------------------------------------------------------------

    def _look_alive(self) -> None:
        now_s, keepalive = self._now_s(), self._keepalive
        sent_s = self._ping_sent_s
        quiet_s = now_s - self._received_s
        if sent_s is not None and self._received_s > sent_s:
            self._ping_sent_s = sent_s = None  # not its answer perhaps, but a sign of life
        if sent_s is not None:
            if now_s - sent_s >= keepalive.answer_s:
                self.abort(f"keepalive: nothing came for {quiet_s:.0f} s, and no answer to a ping")
                return
            next_s = sent_s + keepalive.answer_s - now_s
        elif not self.codec.streams_open:
            next_s = keepalive.every_s
        elif quiet_s < keepalive.every_s:
            next_s = keepalive.every_s - quiet_s
        elif self.answers != self._answers_at_ping or quiet_s >= PING_UNANSWERED_S:
            self._answers_at_ping = self.answers
            self._ping_sent_s = now_s
            self.codec.ping(b"sluice\0\0")
            next_s = keepalive.answer_s
        else:
            next_s = max(keepalive.every_s, PING_UNANSWERED_S - quiet_s)
        self._timer = self._wheel.call_later(next_s, self._look_alive)

    def _pong(self, payload: bytes) -> None:
        self._ping_sent_s = None
