"""The receiving half, and what both roles share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gateway.wire.hpack import HeaderBlock, HeaderListTooLarge, HpackDecoder, HpackEncoder, HpackError
from gateway.wire.http2 import frames
from gateway.wire.http2.control import DRAIN_PING, ControlFrames
from gateway.wire.http2.ending import FIRST_SETTINGS
from gateway.wire.http2.errors import ErrorCode, Http2Fault, Http2UsageError
from gateway.wire.http2.frames import PREFACE, STREAM_ID_MAX, TABLE_DEFAULT, WINDOW_MAX, unpack_head
from gateway.wire.http2.limits import Http2Limits
from gateway.wire.http2.stream import HEAD_IN, OVER, QUEUED, REMOTE_DONE, WAITING, Stream

_PROTOCOL_ERROR: Final = ErrorCode.PROTOCOL_ERROR


@dataclass(frozen=True, slots=True)
class Http2Statistics:
    """What a connection holds now, and what it has seen. Bytes are payload, without frame heads."""

    streams_open: int
    streams_opened: int
    streams_waiting: int
    streams_in_line: int
    queued_bytes: int
    output_pieces: int
    acks_waiting: int
    ended_kept: int
    partial_bytes: int
    data_frames_sent: int
    window_out: int


class Http2Connection(ControlFrames):
    """One connection; `Http2Server` and `Http2Client` are its two roles.

    For the driver: `receive`, `take`, `wants_write`, `on_output`, `closed`, `fault`, `lost`, `mid_frame`, `ping` and
    `on_pong`, `drain`, `goaway`, `statistics`. For the user of a stream: `send_headers`, `send_data`, `send_message`,
    `reset`, `acknowledge`, `grow_window`.
    """

    __slots__ = (
        "_block_bytes",
        "_block_end",
        "_decode",
        "_decoder",
        "_padding",
        "_preface_due",
        "_return_at",
        "_stream_return_at",
        "_too_long",
        "_unreturned",
    )

    def __init__(self, limits: Http2Limits, encoder: HpackEncoder | None, opening: bytes, preface_due: bool) -> None:
        super().__init__(limits, encoder or HpackEncoder(TABLE_DEFAULT), opening)
        self._decoder = HpackDecoder(limits.header_table_bytes, limits.header_list_max_bytes)
        self._decode = self._decoder.decode
        self._preface_due = preface_due
        if preface_due:
            self._need = len(PREFACE)
        self._block_end = 0
        self._block_bytes = 0
        self._padding: dict[Stream, int] = {}  # bytes that this read has brought, not returned yet
        self._too_long = limits.frame_max_bytes + 1 << 8  # as in the first four bytes of a frame
        self._unreturned = 0  # of the connection's window
        self._return_at = limits.connection_window_bytes >> 1
        self._stream_return_at = max(1, limits.window_bytes >> 1)

    # ------------------------------------------------------------ receiving

    def receive(self, data: bytes, now_s: float) -> None:
        """Take the bytes of one read, and call the streams. `now_s` is monotonic, in seconds.

        Raises nothing for whatever a peer sends: a fault of the connection is recorded in `fault`, GOAWAY is queued,
        all streams get on_reset, and `closed` is true: write what `take()` gives, and close. Bytes after that are
        dropped.
        """
        if self.closed:
            return
        self._now_s = now_s
        try:
            if not self._need:
                self._run(data, 0)
            elif (start := self._complete(data)) >= 0:
                self._run(data, start)
            if self._padding:
                self._return_padding()
            if self._bulk or self._held_since_s is not None:
                self._check_held(now_s)
        except Http2Fault as fault:
            self._fail(fault)
        except HpackError as error:
            self._fail(Http2Fault(ErrorCode.COMPRESSION_ERROR, str(error)))

    @property
    def mid_frame(self) -> bool:
        """Whether the peer owes the rest of the preface, of a frame or of a header block: a time-out applies."""
        return self._need != 0 or self._expects > 0

    def _run(self, data: bytes, pos: int) -> None:
        """Handle the whole frames in data[pos:], and keep the rest."""
        size = len(data)
        streams = self._streams
        too_long = self._too_long
        usual = not self._expects
        while size - pos >= 9 and not self.closed:  # what comes behind the last frame that counts is nobody's
            word, flags, stream_id = unpack_head(data, pos)
            if word >= too_long:
                raise Http2Fault(ErrorCode.FRAME_SIZE_ERROR, "a frame is longer than SETTINGS_MAX_FRAME_SIZE")
            start = pos + 9
            pos = start + (word >> 8)
            if pos > size:
                pos = start - 9
                break
            kind = word & 0xFF
            if kind == 0 and usual and flags < 2 and pos > start:
                stream = streams.get(stream_id)
                if stream is not None and stream.state & 3 == HEAD_IN:  # and REMOTE_DONE not set
                    unreturned = self._unreturned + pos - start
                    if unreturned >= self._return_at:
                        unreturned = self._return_window(unreturned)
                    self._unreturned = unreturned
                    window = stream.window_in + start - pos
                    if window < 0:
                        self._stream_fault(stream, ErrorCode.FLOW_CONTROL_ERROR, "more data than the window allows")
                        continue
                    stream.window_in = window
                    if flags:
                        self._remote_done(stream)
                        stream.on_data(data, start, pos, True)
                    else:
                        stream.on_data(data, start, pos, False)
                    continue
            elif kind == 1 and usual and flags & 0x2C == 4:
                self._headers(stream_id & STREAM_ID_MAX, data[start:pos], flags & 1)
                continue
            self._other_frame(kind, flags, stream_id & STREAM_ID_MAX, data, start, pos)
            usual = not self._expects
        if pos < size:
            self._keep(data, pos)

    def _keep(self, data: bytes, pos: int) -> None:
        """Remember the start of a frame."""
        if self.closed:
            return
        self._partial += memoryview(data)[pos:]
        self._need = 9
        if len(self._partial) >= 9:
            self._need = 9 + self._partial_length()

    def _partial_length(self) -> int:
        length: int = unpack_head(self._partial)[0] >> 8
        if length > self._limits.frame_max_bytes:
            raise Http2Fault(ErrorCode.FRAME_SIZE_ERROR, "a frame is longer than SETTINGS_MAX_FRAME_SIZE")
        return length

    def _complete(self, data: bytes) -> int:
        """Add to what is partial. Where whole frames begin in `data`, or -1 if all of it was used up.

        Each byte is looked at once, however small the pieces are: nothing is parsed before it can be whole.
        """
        partial = self._partial
        pos = 0
        while True:
            stop = pos + self._need - len(partial)
            if stop > len(data):
                partial += memoryview(data)[pos:]
                if self._expects == FIRST_SETTINGS:
                    self._check_opening()
                return -1
            partial += memoryview(data)[pos:stop]
            pos = stop
            if self._expects == FIRST_SETTINGS and self._check_opening():
                return pos
            if len(partial) == 9:
                length = self._partial_length()
                if length:
                    self._need = 9 + length
                    continue
            frame = bytes(partial)
            partial.clear()
            self._need = 0
            self._run(frame, 0)
            return -1 if self.closed else pos

    def _check_opening(self) -> bool:
        """Look at a partial preface. True if it is whole, and gone."""
        return False

    def _other_frame(self, kind: int, flags: int, stream_id: int, data: bytes, start: int, stop: int) -> None:
        """A frame that is not the usual DATA or HEADERS, or at an unusual time."""
        if self.closed:  # by a callback
            return
        if self._expects == FIRST_SETTINGS:
            if kind != frames.SETTINGS or flags & frames.ACK:
                raise Http2Fault(_PROTOCOL_ERROR, "the connection does not begin with SETTINGS")
        elif self._expects and (kind != frames.CONTINUATION or stream_id != self._expects):
            raise Http2Fault(_PROTOCOL_ERROR, "a header block is interrupted by another frame")
        if kind == frames.WINDOW_UPDATE:
            self._window_update_frame(stream_id, data, start, stop)
        elif kind == frames.DATA:
            self._data_frame(flags, stream_id, data, start, stop)
        elif kind == frames.HEADERS:
            self._headers_frame(flags, stream_id, data, start, stop)
        elif kind == frames.RST_STREAM:
            self._rst_stream_frame(stream_id, data, start, stop)
        elif kind == frames.PING:
            self._ping_frame(flags, stream_id, data[start:stop])
        elif kind == frames.SETTINGS:
            self._settings_frame(flags, stream_id, data[start:stop])
        elif kind == frames.CONTINUATION:
            self._continuation_frame(flags, data[start:stop])
        elif kind == frames.GOAWAY:
            self._goaway_frame(stream_id, data[start:stop])
        elif kind == frames.PRIORITY:
            self._priority_frame(stream_id, stop - start)
        elif kind == frames.PUSH_PROMISE:
            raise Http2Fault(_PROTOCOL_ERROR, "PUSH_PROMISE is not allowed here")
        else:
            self._charge(1)

    # --------------------------------------------------------- data, blocks

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
        stream = self._streams.get(stream_id)
        if stream is None:
            if start == stop and end:
                self._charge(1)
            self._frame_for_no_stream(stream_id, "DATA")
            return
        if stream.state & REMOTE_DONE:
            self._stream_fault(stream, ErrorCode.STREAM_CLOSED, "data after the end of the stream")
            return
        if not stream.state & HEAD_IN:
            self._stream_fault(stream, _PROTOCOL_ERROR, "data before the head")
            return
        stream.window_in -= length
        if stream.window_in < 0 and length:
            self._stream_fault(stream, ErrorCode.FLOW_CONTROL_ERROR, "more data than the window allows")
            return
        padding = length - (stop - start)
        if padding and not end:
            self._padding[stream] = self._padding.get(stream, 0) + padding
        if end:
            self._remote_done(stream)
            stream.on_data(data, start, stop, True)
        elif start < stop:
            stream.on_data(data, start, stop, False)

    def _headers_frame(self, flags: int, stream_id: int, data: bytes, start: int, stop: int) -> None:
        if not stream_id:
            raise Http2Fault(_PROTOCOL_ERROR, "HEADERS on stream 0")
        padding = 0
        if flags & frames.PADDED:
            if start == stop:
                raise Http2Fault(ErrorCode.FRAME_SIZE_ERROR, "HEADERS is too short")
            padding = data[start]
            start += 1
        if flags & frames.WITH_PRIORITY:
            if stop - start < 5:
                raise Http2Fault(ErrorCode.FRAME_SIZE_ERROR, "HEADERS is too short")
            start += 5
        if padding > stop - start:
            raise Http2Fault(_PROTOCOL_ERROR, "padding is longer than its frame")
        block = data[start : stop - padding]
        if flags & frames.END_HEADERS:
            self._headers(stream_id, block, flags & 1)
            return
        self._expects = stream_id
        self._block_end = flags & 1
        self._block_parts = [block]
        self._block_bytes = len(block)

    def _continuation_frame(self, flags: int, piece: bytes) -> None:
        if not self._expects:
            raise Http2Fault(_PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        parts = self._block_parts
        parts.append(piece)
        self._block_bytes += len(piece)
        if len(parts) > self._limits.continuations_max + 1 or self._block_bytes > self._limits.header_block_max_bytes:
            raise Http2Fault(ErrorCode.ENHANCE_YOUR_CALM, "a header block is too long, or in too many frames")
        if flags & frames.END_HEADERS:
            stream_id = self._expects
            self._expects = 0
            self._block_parts = []
            self._headers(stream_id, b"".join(parts), self._block_end)

    def _settings_acknowledged(self) -> None:
        super()._settings_acknowledged()
        self._decoder.settings_acknowledged()

    def _decode_or_none(self, raw: bytes) -> HeaderBlock | None:
        """A block, or None if its list is too large. The table follows in both cases."""
        try:
            return self._decode(raw)
        except HeaderListTooLarge:
            return None

    # ------------------------------------------------------- user and driver

    def acknowledge(self, stream: Stream, size: int) -> None:
        """The user has taken `size` bytes of the stream's payload: the peer may send as many more.

        Returned to the peer in halves of the window; bytes that `grow_window` granted are not returned.
        """
        if stream.state & (REMOTE_DONE | OVER):
            return
        size += stream.unacknowledged
        if size >= self._stream_return_at:
            stream.window_in += size
            if stream.window_in > WINDOW_MAX:
                raise Http2UsageError("more was acknowledged than has come")
            self._emit(frames.window_update(stream.id, size))
            size = 0
        stream.unacknowledged = size

    def grow_window(self, stream: Stream, size: int) -> None:
        """Let the peer send `size` (over 0) bytes of this stream at once, besides what its window allows.

        For a large message: without, it would come in steps of half a window. Lent once: what is acknowledged pays the
        loan back first, so the window is the usual one again when the message has been taken.
        """
        if stream.state & (REMOTE_DONE | OVER):
            return
        if size <= 0 or stream.window_in + size > WINDOW_MAX:
            raise Http2UsageError(f"a window cannot grow by {size}")
        stream.window_in += size
        stream.unacknowledged -= size
        if not stream.state & WAITING:
            self._emit(frames.window_update(stream.id, size))

    def ping(self, payload: bytes) -> None:
        """Send PING with 8 bytes; `on_pong(payload)` is called when the peer has answered."""
        if len(payload) != 8 or payload == DRAIN_PING:
            raise Http2UsageError("a ping carries eight bytes, which are not those of drain()")
        if not self.closed:
            self._emit(frames.ping(payload, False))

    @property
    def streams_open(self) -> int:
        """How many streams are open now."""
        return len(self._streams)

    def statistics(self) -> Http2Statistics:
        """A snapshot; costs a walk over the open streams."""
        return Http2Statistics(
            streams_open=len(self._streams),
            streams_opened=self._streams_opened(),
            streams_waiting=self._streams_waiting(),
            streams_in_line=len(self._quick) + len(self._bulk),
            queued_bytes=sum(s.queued for s in self._streams.values() if s.state & QUEUED),
            output_pieces=len(self._out),
            acks_waiting=self._acks_waiting,
            ended_kept=len(self._ended_ids),
            partial_bytes=len(self._partial) + (self._block_bytes if self._expects > 0 else 0),
            data_frames_sent=self.data_frames_sent,
            window_out=self._window_out,
        )

    # ----------------------------------------------------------- by the role

    def _headers(self, stream_id: int, raw: bytes, end: int) -> None:
        """A whole header block; `end` is 1 with END_STREAM."""
        raise NotImplementedError

    def _remote_done(self, stream: Stream) -> None:
        """The peer's END_STREAM has come."""
        raise NotImplementedError

    def _frame_for_no_stream(self, stream_id: int, what: str) -> None:
        """DATA or HEADERS for a stream that is not open; its header block has been decoded."""
        raise NotImplementedError
