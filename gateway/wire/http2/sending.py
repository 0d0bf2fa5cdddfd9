"""The sending half: the peer's windows, and whose turn it is.

Everything that may leave at once goes straight to the output: control frames, header blocks, and messages of up to
`small_bytes` for which the windows have room. Only data that is larger, or that must wait, is queued on its stream, and
given out by `take()`, one frame per stream in turn and `burst_bytes` at most: the rest follows when the transport has
taken that much. So a small message never stands behind more than one burst.

**Fairness.** Streams with data to send and room in their own window stand in one of two lines: `_quick` (at most
`small_bytes` left) and `_bulk`. Quick ones go first. A large message leaves the last part of the connection's window
(`reserve_bytes`, at most an eighth of the largest window seen) to small ones: a peer that returns the connection's
window only as its readers take the bytes could otherwise be blocked by one slow reader. An eighth, because a peer may
well wait for half or three quarters of its window before it returns any. Nobody starves: when small ones have
overtaken a waiting large one by `overtake_max_bytes` it gets one frame, out of the reserve too.

There is no reserve before the peer has opened the window to twice as much, be it at its start or as it returns what was
used: some peers return nothing before nearly all is used up (nghttp2 with a window below the default), and each large
answer would wait for ever. A reserve that has held a large message up for `_HELD_MAX_S` all the same, noticed at the
next read (an answer to the driver's PING is enough), is given up until then, too.

A stream whose own window is used up stands in no line until the peer's WINDOW_UPDATE.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

from gateway.wire.hpack import HpackEncoder
from gateway.wire.http2.errors import ErrorCode, Http2Fault, Http2UsageError
from gateway.wire.http2.frames import (
    END_STREAM,
    FRAME_BYTES_LEAST,
    WINDOW_DEFAULT,
    WINDOW_MAX,
    header_frames,
    pack_head,
)
from gateway.wire.http2.limits import Http2Limits
from gateway.wire.http2.stream import FULL, HEAD_OUT, LOCAL_DONE, OVER, QUEUED, WAITING, Stream

_HELD_MAX_S: Final = 1.0
_STOPPED: Final = LOCAL_DONE | OVER
_NOT_FRESH: Final = HEAD_OUT | LOCAL_DONE | QUEUED | WAITING | OVER
_PLAIN: Final = HEAD_OUT | LOCAL_DONE | QUEUED | WAITING | OVER
"""Bits of which only HEAD_OUT may be set where data can go straight to the output."""


class SendHalf:
    """What a connection sends. Both roles build on it."""

    __slots__ = (
        "_acks_waiting",
        "_bulk",
        "_burst_bytes",
        "_direct_max",
        "_frame_out_max",
        "_held_since_s",
        "_high_water",
        "_initial_window_out",
        "_limits",
        "_out",
        "_overtaken",
        "_peer_frame_max",
        "_quick",
        "_reserve",
        "_reserve_given_up",
        "_streams",
        "_table_update",
        "_wakes",
        "_window_out",
        "_window_out_peak",
        "closed",
        "data_frames_sent",
        "encoder",
        "on_output",
    )

    def __init__(self, limits: Http2Limits, encoder: HpackEncoder, opening: bytes) -> None:
        self._limits = limits
        self.encoder = encoder
        self.on_output: Callable[[], None] | None = None
        self.closed = False
        self.data_frames_sent = 0
        self._streams: dict[int, Stream] = {}
        self._out: list[bytes | memoryview] = [opening]
        self._acks_waiting = 0  # answers to control frames in the output
        self._window_out = self._window_out_peak = WINDOW_DEFAULT
        self._initial_window_out = WINDOW_DEFAULT
        self._peer_frame_max = FRAME_BYTES_LEAST
        self._frame_out_max = min(FRAME_BYTES_LEAST, limits.frame_out_max_bytes)
        self._direct_max = min(FRAME_BYTES_LEAST, limits.small_bytes)
        self._reserve = min(limits.reserve_bytes, WINDOW_DEFAULT >> 3)
        self._reserve_given_up = True
        self._high_water = limits.high_water_bytes
        self._burst_bytes = limits.burst_bytes
        self._quick: OrderedDict[Stream, None] = OrderedDict()
        self._bulk: OrderedDict[Stream, None] = OrderedDict()
        self._overtaken = 0  # bytes, by small messages, since a large one had its turn
        self._held_since_s: float | None = None
        self._wakes: list[Stream] = []
        self._table_update = False  # the next header block may have to begin with one

    # --------------------------------------------------------------- output

    @property
    def wants_write(self) -> bool:
        """Whether `take()` would give anything."""
        return bool(self._out) or (bool(self._quick or self._bulk) and self._can_pump())

    def take(self) -> list[bytes | memoryview]:
        """What is to be written now, in order; at most `burst_bytes` of what was queued.

        Ask `wants_write` afterwards: if true there is more at once, to be taken when the transport has room. A driver
        that was told by its transport to pause does not call it; a server's driver then stops reading, too.
        """
        out = self._out
        self._out = []
        self._acks_waiting = 0
        if self._quick or self._bulk:
            self._pump(out)
            if self._wakes:
                wakes = self._wakes
                self._wakes = []
                for stream in wakes:
                    if stream.state & (OVER | LOCAL_DONE | FULL) == FULL:
                        stream.state &= ~FULL
                        stream.on_writable()
        return out

    def _emit(self, piece: bytes) -> None:
        out = self._out
        if not out and self.on_output is not None:
            self.on_output()
        out.append(piece)

    def _notify(self) -> None:
        """Queued data can leave: tell the driver, unless it knows."""
        if not self._out and self.on_output is not None:
            self.on_output()

    def _can_pump(self) -> bool:
        if self._window_out <= 0:
            return False
        return bool(self._quick) or (bool(self._bulk) and self._bulk_room() > 0)

    def _bulk_room(self) -> int:
        """How much of the connection's window a large message may have."""
        if self._overtaken < self._limits.overtake_max_bytes and not self._reserve_given_up:
            return self._window_out - self._reserve
        return self._window_out

    def _check_held(self, now_s: float) -> None:
        """If a large message waits for the reserve alone, and has for long, the reserve is given up."""
        if not self._bulk or self._quick or not 0 < self._window_out <= self._reserve:
            self._held_since_s = None
        elif self._held_since_s is None:
            self._held_since_s = now_s
        elif now_s - self._held_since_s >= _HELD_MAX_S:
            self._held_since_s = None
            self._reserve_given_up = True
            self._notify()

    # -------------------------------------------------------------- sending

    def send_message(self, stream: Stream, head: bytes, data: bytes | memoryview, tail: bytes) -> bool:
        """The whole of what a stream sends: head, one message, and trailers; `tail` b"" ends it with the data.

        An empty `head` was sent before. The three leave as one piece if nothing holds them up. As `send_headers`
        and `send_data` else; so `tail` must touch no HPACK table (make it of `literal()`).
        """
        size = len(data)
        if (
            size > self._direct_max
            or size > stream.window_out
            or size > self._window_out
            or stream.state & _NOT_FRESH
            or self._quick
            or self._table_update
            or not size
            or not head
            or len(head) + len(tail) > FRAME_BYTES_LEAST
        ):
            return self._send_message_in_parts(stream, head, data, tail)
        stream_id = stream.id
        stream.window_out -= size
        self._window_out -= size
        self.data_frames_sent += 1
        if self._bulk:
            self._overtaken += size
        if tail:
            piece = b"".join(
                (
                    pack_head(len(head) << 8 | 1, 4, stream_id),
                    head,
                    pack_head(size << 8, 0, stream_id),
                    data,
                    pack_head(len(tail) << 8 | 1, 5, stream_id),
                    tail,
                )
            )
        else:
            piece = b"".join(
                (pack_head(len(head) << 8 | 1, 4, stream_id), head, pack_head(size << 8, 1, stream_id), data)
            )
        out = self._out
        if not out and self.on_output is not None:
            self.on_output()
        out.append(piece)
        stream.state |= HEAD_OUT | LOCAL_DONE
        self._local_done(stream)
        return True

    def _send_message_in_parts(self, stream: Stream, head: bytes, data: bytes | memoryview, tail: bytes) -> bool:
        if head:
            self.send_headers(stream, head, not len(data) and not tail)
        if not tail:
            return self.send_data(stream, data, True) if len(data) or not head else True
        roomy = self.send_data(stream, data, False) if len(data) else True
        self.send_headers(stream, tail, True)
        return roomy

    def send_headers(self, stream: Stream, block: bytes, end: bool) -> None:
        """An encoded block: the head, or with `end` the trailers (or a head with nothing behind it).

        The head leaves at once, so it may come from `encoder`. Trailers wait behind queued data, so they must touch no
        HPACK table (make them of `literal()`). Dropped if the stream is over. Raises Http2UsageError after the end,
        and for a second block without `end`.
        """
        state = stream.state
        if state & (_STOPPED | WAITING):
            if state & OVER:
                return
            raise Http2UsageError("headers after the end of the stream, or before it is open")
        if state & HEAD_OUT and not end:
            raise Http2UsageError("trailers end the stream")
        if state & QUEUED:
            stream.finish = block
            stream.state |= LOCAL_DONE
            return
        if self._table_update:
            block = self._with_table_update(block)
        self._emit(header_frames(stream.id, block, END_STREAM if end else 0, self._peer_frame_max))
        if end:
            stream.state |= HEAD_OUT | LOCAL_DONE
            self._local_done(stream)
        else:
            stream.state |= HEAD_OUT

    def send_data(self, stream: Stream, data: bytes | memoryview, end: bool) -> bool:
        """Payload. It must not change until it has been written; a memoryview must be of bytes ("B").

        False if more than `high_water_bytes` wait on the stream now: go on after `on_writable()`. It is queued all the
        same. Dropped (and True) if the stream is over. Raises Http2UsageError before the head and after the end.
        """
        size = len(data)
        if (
            stream.state & _PLAIN != HEAD_OUT
            or size > self._direct_max
            or size > stream.window_out
            or size > self._window_out
            or self._quick
            or not size
        ):
            return self._queue_data(stream, data, size, end)
        stream.window_out -= size
        self._window_out -= size
        self.data_frames_sent += 1
        if self._bulk:
            self._overtaken += size
        out = self._out
        if not out and self.on_output is not None:
            self.on_output()
        out.append(pack_head(size << 8, end, stream.id) + data)
        if end:
            stream.state |= LOCAL_DONE
            self._local_done(stream)
        return True

    def _queue_data(self, stream: Stream, data: bytes | memoryview, size: int, end: bool) -> bool:
        state = stream.state
        if state & _STOPPED:
            if state & OVER:
                return True
            raise Http2UsageError("data after the end of the stream")
        if not state & (HEAD_OUT | WAITING):
            raise Http2UsageError("data before the head")
        if not state & QUEUED:
            if not size and not state & WAITING:
                if end:
                    self._emit(pack_head(0, END_STREAM, stream.id))
                    stream.state |= LOCAL_DONE
                    self._local_done(stream)
                return True
            stream.queue = deque()
            stream.queued = 0
            stream.finish = None
            stream.state |= QUEUED
        if size:
            stream.queue.append(data)
            stream.queued += size
        if end:
            stream.finish = b""
            stream.state |= LOCAL_DONE
        if state & WAITING:
            pass
        elif stream.window_out > 0:
            self._stand_in_line(stream)
        if stream.queued <= self._high_water:
            return True
        stream.state |= FULL
        return False

    # ------------------------------------------------------------- queueing

    def _stand_in_line(self, stream: Stream) -> None:
        """A stream with queued data and room in its own window takes its place; one in line keeps it."""
        if stream.queued <= self._limits.small_bytes:
            if stream in self._bulk:
                return
            self._quick[stream] = None
        else:
            # What was small may have grown.
            self._quick.pop(stream, None)
            self._bulk[stream] = None
        if not self._out and self._can_pump():
            self._notify()

    def _pump(self, out: list[bytes | memoryview]) -> None:
        """Move queued data to the output: whose turn it is, until the burst or the window ends."""
        budget = self._burst_bytes
        quick, bulk = self._quick, self._bulk
        overtake_max = self._limits.overtake_max_bytes
        while budget > 0 and self._window_out > 0:
            if quick and (self._overtaken < overtake_max or not bulk):
                stream = quick.popitem(last=False)[0]
                sent = self._send_piece(stream, self._window_out, out)
                if bulk:
                    self._overtaken += sent
            elif bulk:
                room = self._bulk_room()
                if room <= 0:
                    break
                stream = bulk.popitem(last=False)[0]
                sent = self._send_piece(stream, room, out)
                self._overtaken = 0
            else:
                break
            budget -= sent

    def _send_piece(self, stream: Stream, room: int, out: list[bytes | memoryview]) -> int:
        """One frame of a stream that has queued data and an open window; `room` bytes of the connection's window."""
        queue = stream.queue
        room = min(room, stream.window_out, self._frame_out_max)
        at = len(out)
        size = 0
        while queue and size < room:
            piece = queue[0]
            length = len(piece)
            if size + length <= room:
                out.append(queue.popleft())
                size += length
            else:
                view = memoryview(piece)
                cut = room - size
                out.append(view[:cut])
                queue[0] = view[cut:]
                size = room
        stream.window_out -= size
        self._window_out -= size
        stream.queued -= size
        self.data_frames_sent += 1
        flags = 0
        if queue:
            if stream.window_out > 0:
                line = self._quick if stream.queued <= self._limits.small_bytes else self._bulk
                line[stream] = None
        else:
            stream.state &= ~QUEUED
            if stream.finish == b"":
                flags = END_STREAM
        out.insert(at, pack_head(size << 8, flags, stream.id))
        if stream.state & FULL and stream.queued * 2 < self._high_water:
            self._wakes.append(stream)
        if not queue and stream.finish is not None:
            if stream.finish:
                block = self._with_table_update(stream.finish) if self._table_update else stream.finish
                out.append(header_frames(stream.id, block, END_STREAM, self._peer_frame_max))
            self._local_done(stream)
        return size

    def _drop_queue(self, stream: Stream) -> None:
        """Forget what a stream has queued."""
        if stream.state & QUEUED:
            stream.queue.clear()
            stream.queued = 0
            stream.state &= ~QUEUED
            self._quick.pop(stream, None)
            self._bulk.pop(stream, None)

    # ------------------------------------------------- what the peer allows

    def _set_initial_window_out(self, size: int) -> None:
        """SETTINGS_INITIAL_WINDOW_SIZE: open streams follow, below zero if need be (RFC 9113 section 6.9.2)."""
        change = size - self._initial_window_out
        if not change:
            return
        self._initial_window_out = size
        for stream in self._streams.values():
            stream.window_out += change
            if stream.window_out > WINDOW_MAX:
                raise Http2Fault(ErrorCode.FLOW_CONTROL_ERROR, "a stream's window is over 2^31-1")
            if stream.state & QUEUED:
                if stream.window_out > 0:
                    self._stand_in_line(stream)
                else:
                    self._quick.pop(stream, None)
                    self._bulk.pop(stream, None)

    def _set_peer_table(self, least: int, size: int) -> None:
        """SETTINGS_HEADER_TABLE_SIZE: its smallest value in a frame, and the last.

        The next block must begin with the change, even if it touches no table and comes from no encoder.
        """
        self.encoder.set_table_bytes(least)
        self.encoder.set_table_bytes(size)
        self._table_update = True

    def _with_table_update(self, block: bytes) -> bytes:
        self._table_update = False
        return self.encoder.take_update() + block

    def _set_peer_frame_max(self, size: int) -> None:
        self._peer_frame_max = size
        self._frame_out_max = min(size, self._limits.frame_out_max_bytes)
        self._direct_max = min(size, self._limits.small_bytes)

    # ----------------------------------------------------------- by the role

    def _local_done(self, stream: Stream) -> None:
        """This side's END_STREAM has gone to the output."""
        raise NotImplementedError
