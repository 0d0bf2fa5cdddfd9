"""The receiving half, and what both roles share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gateway.wire.hpack import HeaderBlock, HeaderListTooLarge, HpackDecoder, HpackEncoder, HpackError
from gateway.wire.http2 import frames
from gateway.wire.http2.control import DRAIN_PING
from gateway.wire.http2.data import LARGE, DataFrames
from gateway.wire.http2.ending import FIRST_SETTINGS
from gateway.wire.http2.errors import ErrorCode, Http2Fault, Http2UsageError
from gateway.wire.http2.frames import (
    FRAME_BYTES_LEAST,
    PREFACE,
    STREAM_ID_MAX,
    TABLE_DEFAULT,
    WINDOW_MAX,
    unpack_head,
)
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


class Http2Connection(DataFrames):
    """One connection; `Http2Server` and `Http2Client` are its two roles.

    For the driver: `receive`, `place` and `placed`, `take`, `wants_write`, `on_output`, `closed`, `fault`, `lost`,
    `mid_frame`, `ping` and `on_pong`, `drain`, `goaway`, `statistics`. For the user of a stream: `send_headers`,
    `send_data`, `send_message`, `reset`, `acknowledge`, `grow_window`.
    """

    __slots__ = (
        "_block_bytes",
        "_block_end",
        "_decode",
        "_decoder",
        "_preface_due",
        "_stream_return_at",
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
            if self.rest_bytes:
                self._run(data, self._take_rest(data, 0))
            elif not self._need:
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
        return self._need != 0 or self._expects > 0 or self.rest_bytes > 0

    def _run(self, data: bytes, pos: int) -> None:
        """Handle the whole frames in data[pos:], and keep the rest."""
        size = len(data)
        streams = self._streams
        usual = not self._expects
        while size - pos >= 9 and not self.closed:  # what comes behind the last frame that counts is nobody's
            word, flags, stream_id = unpack_head(data, pos)
            if word >= LARGE:
                self._check_large(word)
            start = pos + 9
            pos = start + (word >> 8)
            if pos > size:
                if word >= LARGE and not word & 0xFF:
                    self._begin_rest(word >> 8, flags, stream_id & STREAM_ID_MAX)
                    pos = self._take_rest(data, start)
                else:
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
        word: int = unpack_head(self._partial)[0]
        if word >= LARGE:
            self._check_large(word)
        return word >> 8

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
                if length > FRAME_BYTES_LEAST and not partial[3]:
                    _, flags, stream_id = unpack_head(partial)
                    partial.clear()
                    self._need = 0
                    self._begin_rest(length, flags, stream_id & STREAM_ID_MAX)
                    return -1 if self.closed else self._take_rest(data, pos)
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
        if self._expects:
            self._check_expected(kind, flags, stream_id)
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

    # -------------------------------------------------------------- blocks

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
