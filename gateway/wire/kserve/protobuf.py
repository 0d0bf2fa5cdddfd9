"""Protobuf wire primitives: just enough to walk a message without building it, and to write one.

Reading is stricter than the reference parsers in two ways: groups (wire types 3 and 4) and a known field with
another wire type are errors, not unknown fields. An unclosed group would swallow fields that are appended to a
message, and appending is how model name and version are overridden.

Format: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT = 0
FIXED64 = 1
LEN = 2
FIXED32 = 5

MAX_FIELD_NUMBER = (1 << 29) - 1
MAX_FIELDS = 1 << 14
"""Fields in one message. Real ones have a few; what repeats without bound in them is packed."""

_MASK64 = (1 << 64) - 1
_HIGH_BYTES = bytes(range(128, 256))
_ONE_BYTE = tuple(bytes((value,)) for value in range(128))
_DOUBLE = struct.Struct("<d")


class WireError(ValueError):
    """Bytes that are not a well-formed message. `offset` counts from the start of the outermost buffer."""

    def __init__(self, problem: str, offset: int) -> None:
        super().__init__(f"{problem} at byte {offset}")
        self.problem = problem
        self.offset = offset


def read_varint(buffer: bytes, pos: int, end: int) -> tuple[int, int]:
    """The unsigned 64-bit varint at `pos` and the position after it. Bits above the 64th are dropped, as parsers do."""
    value = 0
    for index in range(10):
        at = pos + index
        if at >= end:
            raise WireError("truncated varint", pos)
        byte = buffer[at]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value & _MASK64, at + 1
    raise WireError("varint longer than 10 bytes", pos)


def read_length(buffer: bytes, pos: int, end: int) -> tuple[int, int]:
    """The length prefix at `pos`: where the payload starts and where it stops."""
    if pos < end and buffer[pos] < 0x80:
        size = buffer[pos]
        start = pos + 1
    else:
        size, start = read_varint(buffer, pos, end)
    stop = start + size
    if stop > end:
        raise WireError(f"field of {size} bytes runs past the end of its message", pos)
    return start, stop


def fields(buffer: bytes, pos: int, end: int, limit: int = MAX_FIELDS) -> Iterator[tuple[int, int, int, int]]:
    """Walk the fields between `pos` and `end`: (field number, wire type, a, b).

    For a varint `a` is its value and `b` the position after it; for every other type the payload is
    `buffer[a:b]`. Nothing is copied. Raises `WireError`, also for more than `limit` fields: a walk costs time per
    field, and two bytes make one.
    """
    for _ in range(limit):
        if pos >= end:
            return
        tag_at = pos
        tag = buffer[pos]
        if tag < 0x80:
            pos += 1
        else:
            tag, pos = read_varint(buffer, pos, end)
        number = tag >> 3
        wire = tag & 7
        if number == 0 or number > MAX_FIELD_NUMBER:
            raise WireError(f"invalid field number {number}", tag_at)
        if wire == LEN:
            start, pos = read_length(buffer, pos, end)
            yield number, wire, start, pos
        elif wire == VARINT:
            value, pos = read_varint(buffer, pos, end)
            yield number, wire, value, pos
        elif wire in (FIXED32, FIXED64):
            start = pos
            pos += 4 if wire == FIXED32 else 8
            if pos > end:
                raise WireError("truncated fixed-width field", tag_at)
            yield number, wire, start, pos
        else:
            raise WireError(f"wire type {wire} is not supported", tag_at)
    if pos < end:
        raise WireError(f"more than {limit} fields in one message", pos)


def field_at(buffer: bytes, pos: int, end: int) -> tuple[int, int, int, int]:
    """The one field whose tag is at `pos`, as `fields` gives it. Raises `WireError`."""
    for field in fields(buffer, pos, end):
        return field
    raise WireError("no field", pos)


def expect(wire: int, wanted: int, number: int, at: int) -> None:
    """Raise `WireError` unless a known field, which ends at `at`, has the wire type that its declaration asks for."""
    if wire != wanted:
        raise WireError(f"field {number} has wire type {wire}, expected {wanted}", at)


def text(buffer: bytes, start: int, stop: int) -> str:
    """A proto3 string, which must be UTF-8."""
    try:
        return buffer[start:stop].decode()
    except UnicodeDecodeError:
        raise WireError("string is not valid UTF-8", start) from None


def signed(value: int) -> int:
    """The int64 that the unsigned varint `value` stands for."""
    return value - (1 << 64) if value >> 63 else value


def count_varints(buffer: bytes, start: int, stop: int) -> int:
    """How many varints a packed field holds."""
    if stop > start and buffer[stop - 1] >= 0x80:
        raise WireError("truncated varint in a packed field", start)
    return len(buffer[start:stop].translate(None, _HIGH_BYTES))


def read_double(buffer: bytes, start: int) -> float:
    """The little-endian double at `start`."""
    value: float = _DOUBLE.unpack_from(buffer, start)[0]
    return value


def varint(value: int) -> bytes:
    """`value` as a varint; a negative int64 takes its two's complement."""
    if 0 <= value < 128:
        return _ONE_BYTE[value]
    value &= _MASK64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def tag(number: int, wire: int) -> bytes:
    """The tag of a field."""
    return varint(number << 3 | wire)


def len_field(number: int, payload: bytes) -> bytes:
    """A length-delimited field."""
    return b"".join((tag(number, LEN), varint(len(payload)), payload))


def text_field(number: int, value: str) -> bytes:
    """A string field. The caller has made sure that `value` can be encoded as UTF-8."""
    return len_field(number, value.encode())


def varint_field(number: int, value: int) -> bytes:
    """A varint field (bool, int64, uint64, enum)."""
    return tag(number, VARINT) + varint(value)


def double_field(number: int, value: float) -> bytes:
    """A double field."""
    return tag(number, FIXED64) + _DOUBLE.pack(value)
