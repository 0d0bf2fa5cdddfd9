"""SETTINGS: what this side says, and what the peer says (RFC 9113 section 6.5)."""

from __future__ import annotations

import struct
from typing import Final

from gateway.wire.http2.errors import ErrorCode, Http2Fault
from gateway.wire.http2.frames import (
    FRAME_BYTES_LEAST,
    FRAME_BYTES_MOST,
    SETTINGS,
    WINDOW_DEFAULT,
    WINDOW_MAX,
    pack_head,
    window_update,
)
from gateway.wire.http2.limits import Http2Limits

HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6
HEADER_TABLE_SIZE_LEAST: Final = -1  # no setting of the protocol

_PAIR: Final = struct.Struct(">HI")


def opening(limits: Http2Limits, is_client: bool) -> bytes:
    """This side's SETTINGS frame, and the WINDOW_UPDATE that gives the connection its full window."""
    pairs = [
        (HEADER_TABLE_SIZE, limits.header_table_bytes),
        (INITIAL_WINDOW_SIZE, limits.window_bytes),
        (MAX_FRAME_SIZE, limits.frame_max_bytes),
        (MAX_HEADER_LIST_SIZE, limits.header_list_max_bytes),
        (ENABLE_PUSH, 0) if is_client else (MAX_CONCURRENT_STREAMS, limits.streams_max),
    ]
    body = b"".join(_PAIR.pack(*pair) for pair in pairs)
    frame = pack_head(len(body) << 8 | SETTINGS, 0, 0) + body
    growth = limits.connection_window_bytes - WINDOW_DEFAULT
    return frame + window_update(0, growth) if growth else frame


def read_settings(body: bytes, is_client: bool) -> dict[int, int]:
    """The last value of each setting that this side knows. Raises Http2Fault for a value out of range.

    `body` is a multiple of six bytes long; `is_client` is the role of the side that reads. HEADER_TABLE_SIZE_LEAST is
    there if HEADER_TABLE_SIZE is: the encoder must pass through it (RFC 7541 section 4.2).
    """
    settings: dict[int, int] = {}
    for name, value in _PAIR.iter_unpack(body):
        if name == INITIAL_WINDOW_SIZE:
            if value > WINDOW_MAX:
                raise Http2Fault(ErrorCode.FLOW_CONTROL_ERROR, "SETTINGS_INITIAL_WINDOW_SIZE is over 2^31-1")
        elif name == MAX_FRAME_SIZE:
            if not FRAME_BYTES_LEAST <= value <= FRAME_BYTES_MOST:
                raise Http2Fault(ErrorCode.PROTOCOL_ERROR, "SETTINGS_MAX_FRAME_SIZE is out of range")
        elif name == ENABLE_PUSH:
            if value > 1 or (value and is_client):
                raise Http2Fault(ErrorCode.PROTOCOL_ERROR, "SETTINGS_ENABLE_PUSH has a value that is not allowed")
        elif not HEADER_TABLE_SIZE <= name <= MAX_HEADER_LIST_SIZE:
            continue
        if name == HEADER_TABLE_SIZE:
            settings[HEADER_TABLE_SIZE_LEAST] = min(value, settings.get(HEADER_TABLE_SIZE_LEAST, value))
        settings[name] = value
    return settings
