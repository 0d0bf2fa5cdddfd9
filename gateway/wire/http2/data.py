"""The DATA frames of the peer: its windows, padding, and frames that are longer than any peer may send unasked.

Those are not kept until they are whole: what has come of one is handed on, or it is received to the place that its
stream has for it (`place`), where nobody copies it again.
"""

from __future__ import annotations

from typing import Final

from gateway.wire.hpack import HpackEncoder
from gateway.wire.http2 import frames
from gateway.wire.http2.control import ControlFrames
from gateway.wire.http2.ending import FIRST_SETTINGS
from gateway.wire.http2.errors import ErrorCode, Http2Fault
from gateway.wire.http2.frames import FRAME_BYTES_LEAST
from gateway.wire.http2.limits import Http2Limits
from gateway.wire.http2.stream import HEAD_IN, OVER, REMOTE_DONE, Stream

_PROTOCOL_ERROR: Final = ErrorCode.PROTOCOL_ERROR
LARGE: Final = FRAME_BYTES_LEAST + 1 << 8
"""From here on, in the first four bytes of a frame, it is one that only our SETTINGS allow. Of those none is kept until
it is whole: DATA is handed on as it comes, header blocks have a bound of their own, and nothing else needs the length.
"""
_BLOCKS: Final = (frames.HEADERS, frames.CONTINUATION)


class DataFrames(ControlFrames):
    """What the peer's DATA frames do."""

    __slots__ = (
        "_padding",
        "_rest_end",
        "_rest_padding",
        "_rest_stream",
        "_return_at",
        "_unreturned",
        "rest_bytes",
    )

    def __init__(self, limits: Http2Limits, encoder: HpackEncoder, opening: bytes) -> None:
        super().__init__(limits, encoder, opening)
        self._padding: dict[Stream, int] = {}  # bytes that this read has brought, not returned yet
        # To come of a large DATA frame, whose beginning was handed on. A driver that gets no place for it takes few
        # bytes more: behind it may begin another one that has.
        self.rest_bytes = 0
        self._rest_stream: Stream | None = None  # to whom; None for a frame that is nobody's
        self._rest_end = 0
        self._rest_padding = 0  # at its end; -1 until that is known
        self._unreturned = 0  # of the connection's window
        self._return_at = limits.connection_window_bytes >> 1

    def place(self) -> memoryview | None:
        """Where the next bytes can be received to, so that they need not be copied; None: wherever the driver likes,
        and `receive` takes them. Means nothing until `placed`, and nothing after the next `receive`.
        """
        stream = self._rest_stream
        # The last byte of a frame is received with what stands behind it.
        size = self.rest_bytes - self._rest_padding - 1
        if stream is None or size < 1 or self._rest_padding < 0 or stream.state & OVER:
            return None
        return stream.place(size)

    def placed(self, size: int, now_s: float) -> None:
        """So many bytes have been received to the place that `place` gave. Else as `receive`."""
        stream = self._rest_stream
        assert stream is not None
        self._now_s = now_s
        self.rest_bytes -= size
        stream.on_placed(size)
        if self._bulk:
            self._check_held(now_s)

    def _check_large(self, word: int) -> None:
        """A frame longer than any peer may send without being told so. Raises Http2Fault if it may not be."""
        length, kind = word >> 8, word & 0xFF
        if length > self._limits.frame_max_bytes:
            raise Http2Fault(ErrorCode.FRAME_SIZE_ERROR, "a frame is longer than SETTINGS_MAX_FRAME_SIZE")
        if kind and (kind not in _BLOCKS or length > self._limits.header_block_max_bytes):
            raise Http2Fault(ErrorCode.ENHANCE_YOUR_CALM, "a frame is large, and not for its data")

    def _begin_rest(self, length: int, flags: int, stream_id: int) -> None:
        """The head of a large DATA frame that has not come whole."""
        self._check_expected(frames.DATA, flags, stream_id)
        if not stream_id:
            raise Http2Fault(_PROTOCOL_ERROR, "DATA on stream 0")
        self._unreturned += length
        if self._unreturned >= self._return_at:
            self._unreturned = self._return_window(self._unreturned)
        self._rest_stream = self._stream_of(stream_id, length)
        self.rest_bytes = length
        self._rest_end = flags & frames.END_STREAM
        self._rest_padding = -1 if flags & frames.PADDED else 0

    def _take_rest(self, data: bytes, pos: int) -> int:
        """Hand on what has come of the large frame in work, `data` from `pos`. Where that ends."""
        stream, end = self._rest_stream, self._rest_end
        if self._rest_padding < 0:
            if pos == len(data):
                return pos
            self._rest_padding = padding = data[pos]  # never longer than a large frame
            pos += 1
            self.rest_bytes -= 1
            if stream is not None and not end:
                self._padding[stream] = self._padding.get(stream, 0) + padding + 1
        stop = min(len(data), pos + self.rest_bytes)
        self.rest_bytes = rest = self.rest_bytes - (stop - pos)
        if not rest:
            self._rest_stream = None
        if stream is not None and not stream.state & OVER:
            payload = max(pos, stop - max(0, self._rest_padding - rest))
            if end and not rest:
                self._remote_done(stream)
                stream.on_data(data, pos, payload, True)
            elif pos < payload:
                stream.on_data(data, pos, payload, False)
        return stop

    def _check_expected(self, kind: int, flags: int, stream_id: int) -> None:
        """Raises Http2Fault for a frame that may not come now."""
        if self._expects == FIRST_SETTINGS:
            if kind != frames.SETTINGS or flags & frames.ACK:
                raise Http2Fault(_PROTOCOL_ERROR, "the connection does not begin with SETTINGS")
        elif self._expects and (kind != frames.CONTINUATION or stream_id != self._expects):
            raise Http2Fault(_PROTOCOL_ERROR, "a header block is interrupted by another frame")

    def _forget(self, stream: Stream) -> None:
        super()._forget(stream)
        if stream is self._rest_stream:
            self._rest_stream = None  # the rest of its frame is nobody's, and may never come

    def _end_all(self, code: int, text: str) -> None:
        self._rest_stream = None
        self.rest_bytes = 0
        super()._end_all(code, text)

    def _return_window(self, unreturned: int) -> int:
        """Half of the connection's window has come: give it back, whoever may read the bytes."""
        if unreturned > self._limits.connection_window_bytes:
            raise Http2Fault(ErrorCode.FLOW_CONTROL_ERROR, "more data than the connection's window allows")
        self._emit(frames.window_update(0, unreturned))
        return 0

    def _return_padding(self) -> None:
        """Nobody takes it, and a message that the window just fits, or that was lent one, waits for it: it goes back
        with the read that brought it. Once for all frames of a stream, or many small ones would count as a flood.
        """
        padding, self._padding = self._padding, {}
        if self.closed:
            return
        for stream, size in padding.items():
            if not stream.state & (REMOTE_DONE | OVER):
                stream.window_in += size
                self._acknowledged(frames.window_update(stream.id, size))

    def _data_frame(self, flags: int, stream_id: int, data: bytes, start: int, stop: int) -> None:
        if not stream_id:
            raise Http2Fault(_PROTOCOL_ERROR, "DATA on stream 0")
        length = stop - start
        self._unreturned += length
        if self._unreturned >= self._return_at:
            self._unreturned = self._return_window(self._unreturned)
        if flags & frames.PADDED:
            if not length or data[start] >= length:
                raise Http2Fault(_PROTOCOL_ERROR, "padding is longer than its frame")
            stop -= data[start]
            start += 1
        end = flags & frames.END_STREAM
        if start == stop and not end:
            self._charge(1)
        if start == stop and end and stream_id not in self._streams:
            self._charge(1)
        stream = self._stream_of(stream_id, length)
        if stream is None:
            return
        padding = length - (stop - start)
        if padding and not end:
            self._padding[stream] = self._padding.get(stream, 0) + padding
        if end:
            self._remote_done(stream)
            stream.on_data(data, start, stop, True)
        elif start < stop:
            stream.on_data(data, start, stop, False)

    def _stream_of(self, stream_id: int, length: int) -> Stream | None:
        """Whose a DATA frame of `length` bytes is, which its window has now let in; None if it is nobody's."""
        stream = self._streams.get(stream_id)
        if stream is None:
            self._frame_for_no_stream(stream_id, "DATA")
            return None
        if stream.state & REMOTE_DONE:
            self._stream_fault(stream, ErrorCode.STREAM_CLOSED, "data after the end of the stream")
            return None
        if not stream.state & HEAD_IN:
            self._stream_fault(stream, _PROTOCOL_ERROR, "data before the head")
            return None
        stream.window_in -= length
        if stream.window_in < 0 and length:
            self._stream_fault(stream, ErrorCode.FLOW_CONTROL_ERROR, "more data than the window allows")
            return None
        return stream

    def _remote_done(self, stream: Stream) -> None:
        """The peer's END_STREAM has come."""
        raise NotImplementedError

    def _frame_for_no_stream(self, stream_id: int, what: str) -> None:
        """DATA or HEADERS for a stream that is not open; its header block has been decoded."""
        raise NotImplementedError
