"""The control frames of the peer: SETTINGS, WINDOW_UPDATE, RST_STREAM, PING, PRIORITY, GOAWAY."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.wire.hpack import HpackEncoder
from gateway.wire.http2 import frames, settings
from gateway.wire.http2.ending import FIRST_SETTINGS, Endings
from gateway.wire.http2.errors import ErrorCode, Http2Fault
from gateway.wire.http2.frames import STREAM_ID_MAX, UINT32, WINDOW_DEFAULT, WINDOW_MAX
from gateway.wire.http2.limits import Http2Limits
from gateway.wire.http2.stream import QUEUED

_PROTOCOL_ERROR: Final = ErrorCode.PROTOCOL_ERROR
_TEXT_MAX: Final = 256  # bytes of a peer's GOAWAY text that are kept
DRAIN_PING: Final = b"\x00drain\x00\x00"


class ControlFrames(Endings):
    """What the peer's control frames do."""

    __slots__ = (
        "_initial_window_in",
        "on_pong",
        "peer_goaway",
        "peer_header_list_max",
        "settings_acknowledged",
    )

    def __init__(self, limits: Http2Limits, encoder: HpackEncoder, opening: bytes) -> None:
        super().__init__(limits, encoder, opening)
        self.on_pong: Callable[[bytes], None] | None = None
        self.peer_goaway: tuple[int, str] | None = None  # code and text of the last GOAWAY that came
        self.peer_header_list_max: int | None = None  # advice: a larger list may be refused
        self.settings_acknowledged = False  # the peer has seen our limits
        # Until our SETTINGS are acknowledged the peer may go by the default.
        self._initial_window_in = max(limits.window_bytes, WINDOW_DEFAULT)

    def _window_update_frame(self, stream_id: int, data: bytes, start: int, stop: int) -> None:
        if stop - start != 4:
            raise Http2Fault(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE is not four bytes long")
        self._charge(1)
        increment = UINT32.unpack_from(data, start)[0] & WINDOW_MAX
        if not stream_id:
            if not increment:
                raise Http2Fault(_PROTOCOL_ERROR, "a window update of nothing")
            window = self._window_out + increment
            if window > WINDOW_MAX:
                raise Http2Fault(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window is over 2^31-1")
            could_pump = self._can_pump()
            self._window_out = window
            if window > self._window_out_peak:
                self._window_out_peak = window
                self._reserve = min(self._limits.reserve_bytes, window >> 3)
            if self._reserve_given_up and window >= 2 * self._reserve:
                self._reserve_given_up = False
            if not could_pump and self._can_pump():
                self._notify()
            return
        stream = self._streams.get(stream_id)
        if stream is None:
            self._check_not_idle(stream_id, "WINDOW_UPDATE")
        elif not increment:
            self._stream_fault(stream, _PROTOCOL_ERROR, "a window update of nothing")
        elif stream.window_out + increment > WINDOW_MAX:
            self._stream_fault(stream, ErrorCode.FLOW_CONTROL_ERROR, "the stream's window is over 2^31-1")
        else:
            stream.window_out += increment
            if stream.state & QUEUED and stream.window_out > 0:
                self._stand_in_line(stream)

    def _rst_stream_frame(self, stream_id: int, data: bytes, start: int, stop: int) -> None:
        if stop - start != 4:
            raise Http2Fault(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM is not four bytes long")
        stream = self._streams.get(stream_id)
        if stream is None:
            self._check_not_idle(stream_id, "RST_STREAM")
            self._charge(1)
            return
        code: int = UINT32.unpack_from(data, start)[0]
        self._count_reset()
        self._forget(stream)
        self._remember_ended(stream_id, True)
        self._slots_changed()
        unprocessed = code == ErrorCode.REFUSED_STREAM
        stream.on_reset(code, "the peer reset the stream", True, unprocessed)

    def _ping_frame(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise Http2Fault(_PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != 8:
            raise Http2Fault(ErrorCode.FRAME_SIZE_ERROR, "PING is not eight bytes long")
        self._charge(1)
        if not flags & frames.ACK:
            self._acknowledged(frames.ping(payload, True))
        elif payload == DRAIN_PING:
            self.finish_drain()
        elif self.on_pong is not None:
            self.on_pong(payload)

    def _settings_frame(self, flags: int, stream_id: int, body: bytes) -> None:
        if stream_id:
            raise Http2Fault(_PROTOCOL_ERROR, "SETTINGS on a stream")
        if self._expects == FIRST_SETTINGS:
            self._start_clocks()
        # What they cost this side: a look at each setting, and at each open stream.
        self._charge(1 + len(body) // 60 + len(self._streams) // 20)
        if flags & frames.ACK:
            if body:
                raise Http2Fault(ErrorCode.FRAME_SIZE_ERROR, "an acknowledgement of SETTINGS is not empty")
            self._settings_acknowledged()
            return
        if len(body) % 6:
            raise Http2Fault(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS is not a multiple of six bytes long")
        self._apply_settings(body)
        self._expects = 0
        self._acknowledged(frames.SETTINGS_ACK)
        self._slots_changed()

    def _settings_acknowledged(self) -> None:
        if self.settings_acknowledged:
            return
        self.settings_acknowledged = True
        surplus = self._initial_window_in - self._limits.window_bytes
        if surplus:
            self._initial_window_in -= surplus
            for stream in self._streams.values():
                stream.window_in -= surplus

    def _apply_settings(self, body: bytes) -> None:
        raise NotImplementedError

    def _apply_common(self, values: dict[int, int]) -> None:
        """The settings that mean the same to both roles."""
        for name, value in values.items():
            if name == settings.INITIAL_WINDOW_SIZE:
                self._set_initial_window_out(value)
            elif name == settings.MAX_FRAME_SIZE:
                self._set_peer_frame_max(value)
            elif name == settings.MAX_HEADER_LIST_SIZE:
                self.peer_header_list_max = value
            elif name == settings.HEADER_TABLE_SIZE:
                self._set_peer_table(values[settings.HEADER_TABLE_SIZE_LEAST], value)

    def _priority_frame(self, stream_id: int, length: int) -> None:
        if not stream_id:
            raise Http2Fault(_PROTOCOL_ERROR, "PRIORITY on stream 0")
        self._charge(1)
        if length != 5:
            stream = self._streams.get(stream_id)
            if stream is None:
                raise Http2Fault(ErrorCode.FRAME_SIZE_ERROR, "PRIORITY is not five bytes long")
            self._stream_fault(stream, ErrorCode.FRAME_SIZE_ERROR, "PRIORITY is not five bytes long")

    def _goaway_frame(self, stream_id: int, body: bytes) -> None:
        if stream_id:
            raise Http2Fault(_PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(body) < 8:
            raise Http2Fault(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY is too short")
        self._charge(1)
        last_id, code = UINT32.unpack_from(body)[0] & STREAM_ID_MAX, UINT32.unpack_from(body, 4)[0]
        self.peer_goaway = (code, body[8 : 8 + _TEXT_MAX].decode("utf-8", "replace"))
        self._peer_goes(last_id)

    def _peer_goes(self, last_id: int) -> None:
        raise NotImplementedError
