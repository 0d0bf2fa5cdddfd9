"""The client's role."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from gateway.wire.hpack import HeaderListTooLarge, HpackEncoder
from gateway.wire.http2 import frames, settings
from gateway.wire.http2.blocks import GOOD_RESPONSE, GOOD_TRAILERS, is_interim, response_fault, trailers_fault
from gateway.wire.http2.connection import Http2Connection
from gateway.wire.http2.ending import FIRST_SETTINGS
from gateway.wire.http2.errors import ErrorCode, Http2Fault, StreamUnavailable
from gateway.wire.http2.frames import FRAME_BYTES_LEAST, PREFACE, STREAM_ID_MAX, pack_head
from gateway.wire.http2.limits import Http2Limits
from gateway.wire.http2.stream import HEAD_IN, HEAD_OUT, LOCAL_DONE, OVER, QUEUED, REMOTE_DONE, WAITING, Stream

Block = bytes | Callable[[], bytes]


class Http2Client(Http2Connection):
    """The codec of one connection to a server. Streams are made by the user and handed to `open`.

    The answer's END_STREAM ends a stream for both sides: if the client has not finished its request then, it adds
    RST_STREAM(NO_ERROR); there is no further callback. Whatever a server sends for a stream that is over is ignored
    (its header blocks are decoded): Triton repeats its trailers and RST_STREAM.
    """

    __slots__ = ("_next_id", "_streams_max", "_waiting")

    def __init__(self, limits: Http2Limits, encoder: HpackEncoder | None = None) -> None:
        super().__init__(limits, encoder, PREFACE + settings.opening(limits, is_client=True), False)
        self._next_id = 1
        self._streams_max = limits.streams_before_settings
        self._waiting: OrderedDict[Stream, Block] = OrderedDict()

    # -------------------------------------------------------------- opening

    @property
    def available(self) -> bool:
        """Whether `open` would take a stream, at once or to wait."""
        return not self._why_unavailable()

    @property
    def slots_free(self) -> int:
        """How many streams would leave at once."""
        return 0 if self._waiting else max(0, self._streams_max - len(self._streams))

    @property
    def streams_waiting(self) -> int:
        """How many streams wait for a slot."""
        return len(self._waiting)

    def _why_unavailable(self) -> str:
        if self.closed:
            return "the connection is closed"
        if self._draining:
            return "the connection is going away"
        if self._next_id + 2 * len(self._waiting) > STREAM_ID_MAX:
            return "the connection has no stream ids left"
        must_wait = bool(self._waiting) or len(self._streams) >= self._streams_max
        if must_wait and len(self._waiting) >= self._limits.waiting_max:
            return "too many streams wait for a slot"
        return ""

    def open(self, stream: Stream, block: Block, data: bytes | memoryview = b"", end: bool = True) -> bool:
        """Begin a request: its head, and its only message or the first part of it.

        True if it was sent; False if it waits for the server's MAX_CONCURRENT_STREAMS, in order, as a stream with id 0
        (`send_data` and `reset` work as usual). `block` may be a function that makes the block when the stream begins:
        a must for blocks of `encoder`, which is to encode in the order of sending.

        Raises StreamUnavailable when the server or this side is going away, the connection is closed, no stream ids
        are left, or `waiting_max` streams wait.
        """
        streams = self._streams
        if len(streams) >= self._streams_max or self._waiting or self._draining or self.closed:
            why = self._why_unavailable()
            if why:
                stream.state = OVER
                raise StreamUnavailable(why)
            self._wait(stream, block, data, end)
            return False
        stream_id = self._next_id
        if stream_id > STREAM_ID_MAX:
            stream.state = OVER
            raise StreamUnavailable("the connection has no stream ids left")
        self._next_id = stream_id + 2
        stream.id = stream_id
        stream.window_in = self._initial_window_in
        stream.window_out = window = self._initial_window_out
        stream.unacknowledged = 0
        streams[stream_id] = stream
        if not isinstance(block, bytes):
            block = block()
        size = len(data)
        if (
            size > self._direct_max
            or size > window
            or size > self._window_out
            or self._quick
            or self._table_update
            or not size
            or len(block) > FRAME_BYTES_LEAST
        ):
            stream.state = 0
            self.send_headers(stream, block, end and not size)
            if size:
                self.send_data(stream, data, end)
            return True
        stream.window_out = window - size
        self._window_out -= size
        self.data_frames_sent += 1
        if self._bulk:
            self._overtaken += size
        if end:
            stream.state = HEAD_OUT | LOCAL_DONE
        else:
            stream.state = HEAD_OUT
        out = self._out
        if not out and self.on_output is not None:
            self.on_output()
        out.append(
            b"".join((pack_head(len(block) << 8 | 1, 4, stream_id), block, pack_head(size << 8, end, stream_id), data))
        )
        return True

    def _wait(self, stream: Stream, block: Block, data: bytes | memoryview, end: bool) -> None:
        stream.id = 0
        stream.state = WAITING
        stream.window_in = self._initial_window_in
        stream.window_out = -1
        stream.unacknowledged = 0
        self._waiting[stream] = block
        self._queue_data(stream, data, len(data), end)

    def _open_waiting(self) -> None:
        """Slots are free: those that wait longest begin."""
        waiting, streams = self._waiting, self._streams
        while waiting and len(streams) < self._streams_max:
            stream, block = waiting.popitem(last=False)
            stream.id = self._next_id
            self._next_id += 2
            lent = -stream.unacknowledged
            stream.window_in = self._initial_window_in + lent
            stream.window_out = self._initial_window_out
            stream.state &= ~WAITING
            streams[stream.id] = stream
            queued = stream.state & (QUEUED | LOCAL_DONE)
            has_data = bool(stream.queued)
            stream.state &= ~(QUEUED | LOCAL_DONE)
            head = block if isinstance(block, bytes) else block()
            self.send_headers(stream, head, bool(queued & LOCAL_DONE) and not has_data)
            if lent:
                self._emit(frames.window_update(stream.id, lent))
            if has_data:
                stream.state |= queued
                if stream.window_out > 0:
                    self._stand_in_line(stream)

    # ------------------------------------------------------------ receiving

    def _headers(self, stream_id: int, raw: bytes, end: int) -> None:
        stream, decode = self._streams.get(stream_id), self._decode
        try:
            block = decode(raw)
        except HeaderListTooLarge:
            if stream is None:
                self._ignored_headers(stream_id)
            else:
                self._stream_fault(stream, ErrorCode.ENHANCE_YOUR_CALM, "the server's header list is too large")
            return
        if stream is None:
            self._ignored_headers(stream_id)
            return
        if stream.state & HEAD_IN:
            if block.verdict is not GOOD_TRAILERS:
                fault = trailers_fault(block.fields)
                if fault:
                    self._stream_fault(stream, ErrorCode.PROTOCOL_ERROR, fault)
                    return
                block.verdict = GOOD_TRAILERS
            if not end:
                self._stream_fault(stream, ErrorCode.PROTOCOL_ERROR, "trailers do not end the stream")
                return
            self._remote_done(stream)
            stream.on_trailers(block)
            return
        if block.verdict is not GOOD_RESPONSE:
            fault = response_fault(block.fields)
            if fault:
                self._stream_fault(stream, ErrorCode.PROTOCOL_ERROR, fault)
                return
            if is_interim(block):
                self._charge(1)
                if end:
                    self._stream_fault(stream, ErrorCode.PROTOCOL_ERROR, "an interim response ends the stream")
                return
            block.verdict = GOOD_RESPONSE
        stream.state |= HEAD_IN
        if end:
            self._remote_done(stream)
            stream.on_headers(block, True)
        else:
            stream.on_headers(block, False)

    def _ignored_headers(self, stream_id: int) -> None:
        self._charge(1)
        self._frame_for_no_stream(stream_id, "HEADERS")

    def _frame_for_no_stream(self, stream_id: int, what: str) -> None:
        self._check_not_idle(stream_id, what)

    def _check_not_idle(self, stream_id: int, what: str) -> None:
        if stream_id >= self._next_id or not stream_id & 1:
            raise Http2Fault(ErrorCode.PROTOCOL_ERROR, f"{what} on a stream that is not open")

    def _remote_done(self, stream: Stream) -> None:
        del self._streams[stream.id]
        state = stream.state
        stream.state = state | REMOTE_DONE | OVER
        if state & (LOCAL_DONE | QUEUED) != LOCAL_DONE:
            self._drop_queue(stream)
            self._emit(frames.rst_stream(stream.id, ErrorCode.NO_ERROR))
        if self._waiting or self._draining:
            self._slots_changed()

    def _local_done(self, stream: Stream) -> None:
        """The stream stays until the server has answered."""

    def _apply_settings(self, body: bytes) -> None:
        first = self._expects == FIRST_SETTINGS
        values = settings.read_settings(body, is_client=True)
        self._apply_common(values)
        if settings.MAX_CONCURRENT_STREAMS in values:
            self._streams_max = values[settings.MAX_CONCURRENT_STREAMS]
        elif first:
            self._streams_max = STREAM_ID_MAX

    # ------------------------------------------------------------ the end

    def reset(self, stream: Stream, code: int) -> None:
        """As the base says; a stream that waits for a slot is just forgotten."""
        if self._waiting.pop(stream, None) is not None:
            self._drop_queue(stream)
            stream.state |= OVER
            return
        super().reset(stream, code)

    def _peer_goes(self, last_id: int) -> None:
        """The server is going away: what it has not processed can be sent again elsewhere; the rest goes on."""
        self._draining = True
        code, text = self.peer_goaway or (0, "")
        unprocessed = [stream for stream_id, stream in self._streams.items() if stream_id > last_id]
        for stream in unprocessed:
            del self._streams[stream.id]
        self._drop_unprocessed(unprocessed, f"the server is going away (code {code}) {text}".rstrip(), True)
        self._slots_changed()

    def _drop_unprocessed(self, streams: list[Stream], text: str, from_peer: bool) -> None:
        """The end of these streams and of all that wait: nobody has done anything for them."""
        streams += self._waiting
        self._waiting.clear()
        for stream in streams:
            self._drop_queue(stream)
            stream.state |= OVER
        for stream in streams:
            stream.on_reset(ErrorCode.REFUSED_STREAM, text, from_peer, True)

    def _end_all(self, code: int, text: str) -> None:
        super()._end_all(code, text)
        self._drop_unprocessed([], text, False)

    def drain(self) -> None:
        """Begin a graceful end: nothing opens any more; `closed` when the last stream is over.

        Streams that wait for a slot get on_reset(REFUSED_STREAM, unprocessed=True).
        """
        if self.closed or self._draining:
            return
        self._draining = True
        self._emit(frames.goaway(0, ErrorCode.NO_ERROR, ""))
        self._drop_unprocessed([], "the connection is going away", False)
        self._slots_changed()

    def _slots_changed(self) -> None:
        if self._waiting:
            self._open_waiting()
        if self._draining and not self._streams:
            self.closed = True

    def _streams_opened(self) -> int:
        return self._next_id >> 1

    def _streams_waiting(self) -> int:
        return len(self._waiting)
