"""The server's role."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.wire.hpack import HeaderListTooLarge, HpackEncoder
from gateway.wire.http2 import frames, settings
from gateway.wire.http2.blocks import GOOD_REQUEST, GOOD_TRAILERS, judge_request, trailers_fault
from gateway.wire.http2.connection import Http2Connection
from gateway.wire.http2.control import DRAIN_PING
from gateway.wire.http2.errors import ErrorCode, Http2Fault
from gateway.wire.http2.flood import Allowance
from gateway.wire.http2.frames import PREFACE, STREAM_ID_MAX
from gateway.wire.http2.limits import Http2Limits
from gateway.wire.http2.stream import HEAD_IN, OVER, REMOTE_DONE, Stream

_SKIPS_KEPT: Final = 16


class Http2Server(Http2Connection):
    """The codec of one client's connection. `make_stream` gives the object that a new request's callbacks go to.

    The answer's END_STREAM ends a stream for both sides: if the client has not finished its request then, the server
    adds RST_STREAM(NO_ERROR), as RFC 9113 section 8.1 allows and gRPC expects; there is no callback.
    """

    __slots__ = (
        "_last_id",
        "_make_stream",
        "_refuses_new",
        "_resets",
        "_resets_seen",
        "_skipped",
        "_streams_max",
        "_told_id",
    )

    def __init__(
        self, limits: Http2Limits, make_stream: Callable[[], Stream], encoder: HpackEncoder | None = None
    ) -> None:
        super().__init__(limits, encoder, settings.opening(limits, is_client=False), True)
        self._make_stream = make_stream
        self._streams_max = limits.streams_max
        self._last_id = 0
        self._refuses_new = False  # the last id has been told to the client
        self._told_id = 0
        self._resets = Allowance(limits.resets_burst, limits.resets_per_s, 1)
        self._resets_seen = 0
        self._skipped: list[tuple[int, int]] = []  # ids that the client has left out, lately

    def _headers(self, stream_id: int, raw: bytes, end: int) -> None:
        if stream_id <= self._last_id or not stream_id & 1:
            self._late_headers(stream_id, raw, end)
            return
        if self.closed:
            return
        if stream_id > self._last_id + 2:
            self._skipped = [*self._skipped[1 - _SKIPS_KEPT :], (self._last_id, stream_id)]
        self._last_id = stream_id
        decode, make_stream = self._decode, self._make_stream
        try:
            block = decode(raw)
        except HeaderListTooLarge:
            self._head_too_large(stream_id, end)
            return
        if block.verdict is not GOOD_REQUEST and judge_request(block):
            if not self._refuses_new:
                self._refuse(stream_id, ErrorCode.PROTOCOL_ERROR)
            return
        streams = self._streams
        if len(streams) >= self._streams_max or self._refuses_new:
            self._refuse_new(stream_id)
            return
        stream = make_stream()
        stream.id = stream_id
        stream.state = HEAD_IN | end
        stream.window_in = self._initial_window_in
        stream.window_out = self._initial_window_out
        stream.unacknowledged = 0
        streams[stream_id] = stream
        stream.on_headers(block, end == 1)

    def _refuse_new(self, stream_id: int) -> None:
        """Over `streams_max`, or behind the last GOAWAY: those the client must send elsewhere anyway."""
        if self._refuses_new:
            self._charge(1)
        elif self.settings_acknowledged:
            self._refuse(stream_id, ErrorCode.REFUSED_STREAM)
        else:  # the client cannot know the bound yet: that is no fault
            self._charge(1)
            self._remember_ended(stream_id, False)
            self._acknowledged(frames.rst_stream(stream_id, ErrorCode.REFUSED_STREAM))

    def _head_too_large(self, stream_id: int, end: int) -> None:
        if len(self._streams) >= self._streams_max or self._refuses_new:
            self._refuse_new(stream_id)
            return
        stream = self._make_stream()
        stream.id = stream_id
        stream.state = HEAD_IN | end
        stream.window_in = self._initial_window_in
        stream.window_out = self._initial_window_out
        stream.unacknowledged = 0
        self._streams[stream_id] = stream
        if not stream.on_head_too_large(end == 1) and not stream.state & OVER:
            self._forget(stream)
            self._refuse(stream_id, ErrorCode.ENHANCE_YOUR_CALM)
            self._slots_changed()

    def _late_headers(self, stream_id: int, raw: bytes, end: int) -> None:
        """HEADERS that open no stream: trailers, or a fault."""
        if not stream_id & 1:
            raise Http2Fault(ErrorCode.PROTOCOL_ERROR, "a client's stream has an odd id")
        block = self._decode_or_none(raw)
        stream = self._streams.get(stream_id)
        if stream is None:
            if any(before < stream_id < after for before, after in self._skipped):
                raise Http2Fault(ErrorCode.PROTOCOL_ERROR, "a new stream's id is not higher than the last one")
            self._charge(1)
            self._frame_for_no_stream(stream_id, "HEADERS")
            return
        if stream.state & REMOTE_DONE:
            self._stream_fault(stream, ErrorCode.STREAM_CLOSED, "headers after the end of the stream")
        elif not end:
            self._stream_fault(stream, ErrorCode.PROTOCOL_ERROR, "trailers do not end the stream")
        elif block is None:
            self._stream_fault(stream, ErrorCode.ENHANCE_YOUR_CALM, "the trailers are too large")
        else:
            if block.verdict is not GOOD_TRAILERS:
                fault = trailers_fault(block.fields)
                if fault:
                    self._stream_fault(stream, ErrorCode.PROTOCOL_ERROR, fault)
                    return
                block.verdict = GOOD_TRAILERS
            stream.state |= REMOTE_DONE
            stream.on_trailers(block)

    def _frame_for_no_stream(self, stream_id: int, what: str) -> None:
        self._check_not_idle(stream_id, what)
        by_peer = self._ended.get(stream_id)
        if by_peer:
            self._refuse(stream_id, ErrorCode.STREAM_CLOSED)
        elif by_peer is None and stream_id > self._forgotten and not self._refuses_new:
            raise Http2Fault(ErrorCode.STREAM_CLOSED, f"{what} on a stream that has ended")

    def _check_not_idle(self, stream_id: int, what: str) -> None:
        if stream_id > self._last_id or not stream_id & 1:
            raise Http2Fault(ErrorCode.PROTOCOL_ERROR, f"{what} on a stream that is not open")

    def _remote_done(self, stream: Stream) -> None:
        stream.state |= REMOTE_DONE

    def _local_done(self, stream: Stream) -> None:
        stream_id = stream.id
        self._streams.pop(stream_id, None)
        stream.state |= OVER
        if not stream.state & REMOTE_DONE:
            self._remember_ended(stream_id, False)
            self._emit(frames.rst_stream(stream_id, ErrorCode.NO_ERROR))
        if self._draining:
            self._slots_changed()

    def _check_opening(self) -> bool:
        if not self._preface_due:
            return False
        partial = self._partial
        if not PREFACE.startswith(bytes(partial)):
            raise Http2Fault(ErrorCode.PROTOCOL_ERROR, "the connection does not begin with the preface of HTTP/2")
        if len(partial) < len(PREFACE):
            return False
        partial.clear()
        self._need = 0
        self._preface_due = False
        return True

    def _apply_settings(self, body: bytes) -> None:
        self._apply_common(settings.read_settings(body, is_client=False))

    def _start_clocks(self) -> None:
        super()._start_clocks()
        self._resets.start(self._now_s)

    def _count_reset(self) -> None:
        """A stream that came to nothing: it costs credit, and each answered stream earns some."""
        self._resets_seen += 1
        credit = self._resets
        credit.left -= 1
        if credit.left < 0:
            answered = (self._last_id + 1 >> 1) - self._resets_seen - len(self._streams)
            if not credit.refill(self._now_s, max(answered, 0)):
                raise Http2Fault(ErrorCode.ENHANCE_YOUR_CALM, "too many streams that come to nothing")

    def _peer_goes(self, last_id: int) -> None:
        """The client opens no more streams; those that run go on."""

    def drain(self) -> None:
        """Begin a graceful end: GOAWAY with the highest id, and a PING; at its answer GOAWAY with the true last id.

        So requests under way are served, none is refused by surprise. If the client does not answer the PING, call
        `finish_drain()` after a while. `closed` becomes true when the last stream is over.
        """
        if self._draining or self.closed:
            return
        self._draining = True
        self._emit(frames.goaway(STREAM_ID_MAX, ErrorCode.NO_ERROR, ""))
        self._emit(frames.ping(DRAIN_PING, False))

    def finish_drain(self) -> None:
        """The second GOAWAY of `drain()`: what the client opened since is not processed, and it knows."""
        if not self._draining or self._refuses_new or self.closed:
            return
        self._refuses_new = True
        self._told_id = self._last_id
        self._emit(frames.goaway(self._last_id, ErrorCode.NO_ERROR, ""))
        self._slots_changed()

    def _slots_changed(self) -> None:
        if self._refuses_new and not self._streams:
            self.closed = True

    def _streams_opened(self) -> int:
        return self._last_id + 1 >> 1

    def _last_peer_stream(self) -> int:
        return self._told_id if self._refuses_new else self._last_id
