"""Protobuf as far as the lab needs it: fields that hold a varint or bytes.

Written from the protocol's definition, without the gateway's codecs: a mistake in those must show.
"""

from __future__ import annotations

from typing import Any


def varint_field(number: int, value: int) -> bytes:
    """A field of a number that is not negative, or of a bool."""
    return _varint(number << 3) + _varint(value)


def bytes_field(number: int, value: bytes) -> bytes:
    """A field of bytes, of text or of a message."""
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def read_fields(message: bytes) -> list[tuple[int, Any]]:
    """Number and value of each field of a message that holds only varints and length-delimited fields, as answers do.
    Raises ValueError or IndexError for anything else.
    """
    found: list[tuple[int, Any]] = []
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        value, at = _read_varint(message, at)
        if tag & 7 == 2:
            end = at + value
            if end > len(message):
                raise ValueError("a field reaches beyond its message")
            found.append((tag >> 3, message[at:end]))
            at = end
        elif tag & 7 == 0:
            found.append((tag >> 3, value))
        else:
            raise ValueError(f"wire type {tag & 7}")
    return found


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
