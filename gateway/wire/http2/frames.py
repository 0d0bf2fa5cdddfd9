"""Frames: their types, flags, and how they are written (RFC 9113 sections 4 and 6)."""

from __future__ import annotations

import struct
from typing import Final

DATA: Final = 0x0
HEADERS: Final = 0x1
PRIORITY: Final = 0x2
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PUSH_PROMISE: Final = 0x5
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
WITH_PRIORITY: Final = 0x20

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEAD_BYTES: Final = 9
FRAME_BYTES_LEAST: Final = 16_384  # SETTINGS_MAX_FRAME_SIZE cannot be lower
FRAME_BYTES_MOST: Final = 0xFFFFFF
STREAM_ID_MAX: Final = 0x7FFFFFFF
WINDOW_MAX: Final = 0x7FFFFFFF
WINDOW_DEFAULT: Final = 65_535
TABLE_DEFAULT: Final = 4096

FRAME_HEAD: Final = struct.Struct(">IBI")
"""Length and type in one number (length << 8 | type), flags, stream id with the reserved bit."""

pack_head = FRAME_HEAD.pack
unpack_head = FRAME_HEAD.unpack_from

_HEAD_AND_NUMBER: Final = struct.Struct(">IBII")
_GOAWAY: Final = struct.Struct(">IBIII")
UINT32: Final = struct.Struct(">I")

SETTINGS_ACK: Final = pack_head(SETTINGS, ACK, 0)


def rst_stream(stream_id: int, code: int) -> bytes:
    """An RST_STREAM frame."""
    return _HEAD_AND_NUMBER.pack(4 << 8 | RST_STREAM, 0, stream_id, code)


def window_update(stream_id: int, increment: int) -> bytes:
    """A WINDOW_UPDATE frame; `increment` in 1..2^31-1 bytes."""
    return _HEAD_AND_NUMBER.pack(4 << 8 | WINDOW_UPDATE, 0, stream_id, increment)


def ping(payload: bytes, ack: bool) -> bytes:
    """A PING frame; the payload is 8 bytes."""
    return pack_head(8 << 8 | PING, ACK if ack else 0, 0) + payload


def goaway(last_stream_id: int, code: int, text: str) -> bytes:
    """A GOAWAY frame with `text` as its debug data."""
    debug = text.encode()
    return _GOAWAY.pack(8 + len(debug) << 8 | GOAWAY, 0, 0, last_stream_id, code) + debug


def header_frames(stream_id: int, block: bytes, end: int, frame_max: int) -> bytes:
    """HEADERS and as many CONTINUATION frames as a block needs; `end` is END_STREAM or 0."""
    if len(block) <= frame_max:
        return pack_head(len(block) << 8 | HEADERS, END_HEADERS | end, stream_id) + block
    parts = [pack_head(frame_max << 8 | HEADERS, end, stream_id), block[:frame_max]]
    for start in range(frame_max, len(block), frame_max):
        piece = block[start : start + frame_max]
        last = END_HEADERS if start + frame_max >= len(block) else 0
        parts.append(pack_head(len(piece) << 8 | CONTINUATION, last, stream_id))
        parts.append(piece)
    return b"".join(parts)
