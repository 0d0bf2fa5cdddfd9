"""How streams and connections end: by a fault, by the user, by the transport; and what is remembered of them."""

from __future__ import annotations

from collections import deque
from typing import Final

from gateway.wire.hpack import HpackEncoder
from gateway.wire.http2 import frames
from gateway.wire.http2.errors import CONNECTION_LOST, ErrorCode, Http2Fault
from gateway.wire.http2.flood import Allowance
from gateway.wire.http2.limits import Http2Limits
from gateway.wire.http2.sending import SendHalf
from gateway.wire.http2.stream import OVER, REMOTE_DONE, Stream

FIRST_SETTINGS: Final = -1


class Endings(SendHalf):
    """What a connection does when something is over, or must be."""

    __slots__ = (
        "_block_parts",
        "_draining",
        "_ended",
        "_ended_ids",
        "_expects",
        "_forgotten",
        "_idle_frames",
        "_need",
        "_now_s",
        "_partial",
        "fault",
    )

    def __init__(self, limits: Http2Limits, encoder: HpackEncoder, opening: bytes) -> None:
        super().__init__(limits, encoder, opening)
        self.fault: Http2Fault | None = None
        self._now_s = 0.0  # of the last read
        self._draining = False
        self._partial = bytearray()  # of the preface or of one frame
        self._need = 0  # length that makes `_partial` worth a look; 0 if nothing is partial
        self._expects = FIRST_SETTINGS  # that, or the stream whose header block is incomplete, or 0: anything
        self._block_parts: list[bytes] = []
        self._ended: dict[int, bool] = {}  # streams ended early; True: by the peer's RST_STREAM
        self._ended_ids: deque[int] = deque()
        self._forgotten = 0  # the highest id that was dropped from `_ended`
        self._idle_frames = Allowance(
            limits.idle_frames_burst, limits.idle_frames_per_s, limits.idle_frames_per_message
        )

    def _start_clocks(self) -> None:
        """The peer's first frame is here; before it nothing costs credit."""
        self._idle_frames.start(self._now_s)

    def _charge(self, cost: int) -> None:
        """A frame that carries nothing. Raises Http2Fault when there are too many."""
        credit = self._idle_frames
        credit.left -= cost
        if credit.left < 0 and not credit.refill(self._now_s, self._streams_opened() + self.data_frames_sent):
            raise Http2Fault(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that carry nothing")

    def _acknowledged(self, answer: bytes) -> None:
        """Queue an answer to a control frame. Raises Http2Fault when too many wait to be written."""
        self._acks_waiting += 1
        if self._acks_waiting > self._limits.acks_waiting_max:
            raise Http2Fault(ErrorCode.ENHANCE_YOUR_CALM, "too many control frames wait for their answer to be read")
        self._emit(answer)

    def _fail(self, fault: Http2Fault) -> None:
        """The connection ends by a fault of the peer."""
        self.fault = fault
        self._close(fault.code, fault.text)

    def _close(self, code: int, text: str) -> None:
        """GOAWAY, and the end of all streams."""
        self._emit(frames.goaway(self._last_peer_stream(), code, text))
        self._end_all(code, text)

    def _end_all(self, code: int, text: str) -> None:
        self.closed = True
        self._need = self._expects = 0
        self._partial.clear()
        self._block_parts = []
        streams = list(self._streams.values())
        self._streams.clear()
        self._quick.clear()
        self._bulk.clear()
        for stream in streams:
            self._drop_queue(stream)
            stream.state |= OVER
        for stream in streams:
            stream.on_reset(code, text, False, False)

    def _stream_fault(self, stream: Stream, code: int, text: str) -> None:
        """The peer broke a rule on one stream: RST_STREAM, and the user is told."""
        stream_id = stream.id
        self._forget(stream)
        try:
            self._refuse(stream_id, code)
            self._slots_changed()
        finally:  # that may have been one too many
            stream.on_reset(code, text, False, False)

    def _refuse(self, stream_id: int, code: int) -> None:
        """RST_STREAM that the peer provoked."""
        self._count_reset()
        self._remember_ended(stream_id, False)
        self._acknowledged(frames.rst_stream(stream_id, code))

    def _forget(self, stream: Stream) -> None:
        """The stream is over: nothing is kept of it. `_slots_changed` is due, but only once the peer can know."""
        self._streams.pop(stream.id, None)
        self._drop_queue(stream)
        stream.state |= OVER

    def _remember_ended(self, stream_id: int, by_peer: bool) -> None:
        """Frames of this stream may be under way, though it ended early."""
        ids = self._ended_ids
        if len(ids) >= self._limits.ended_streams_kept:
            oldest = ids.popleft()
            del self._ended[oldest]
            self._forgotten = max(self._forgotten, oldest)
        if stream_id not in self._ended:
            ids.append(stream_id)
            self._ended[stream_id] = by_peer

    def reset(self, stream: Stream, code: int) -> None:
        """End a stream by RST_STREAM; what is queued on it is dropped. No callback; nothing if it is over."""
        if stream.state & OVER:
            return
        self._forget(stream)
        if not stream.state & REMOTE_DONE:
            self._remember_ended(stream.id, False)
        self._emit(frames.rst_stream(stream.id, code))
        self._slots_changed()

    def goaway(self, code: int, text: str = "") -> None:
        """End the connection now: GOAWAY; all streams get on_reset with this code. For a graceful end: `drain()`."""
        if not self.closed:
            self._close(code, text)

    def lost(self, text: str) -> None:
        """The transport is gone: every stream gets on_reset(CONNECTION_LOST). Output is dropped."""
        self._out.clear()
        if not self.closed:
            self._end_all(CONNECTION_LOST, text)

    def drain(self) -> None:
        """Begin a graceful end: no new streams, those that run go on; `closed` when the last is over."""
        raise NotImplementedError

    def finish_drain(self) -> None:
        """Do not wait any longer for the peer's answer to `drain()`."""

    def _check_not_idle(self, stream_id: int, what: str) -> None:
        """Raises Http2Fault if that stream has not been opened yet."""
        raise NotImplementedError

    def _slots_changed(self) -> None:
        """A stream is over, or the peer allows more: others may open, or a drain be complete."""

    def _count_reset(self) -> None:
        """A stream came to nothing, by the peer's doing."""

    def _streams_opened(self) -> int:
        raise NotImplementedError

    def _streams_waiting(self) -> int:
        return 0

    def _last_peer_stream(self) -> int:
        return 0
