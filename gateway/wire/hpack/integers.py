"""Integers with a prefix (RFC 7541 section 5.1)."""

from __future__ import annotations

from gateway.wire.hpack.errors import HpackError

# 28 bits are more than any length inside a header block; whoever sends more octets, even empty ones, means harm.
CONTINUATION_OCTETS_MAX = 4


def encode_integer(value: int, prefix_max: int, flags: int) -> bytes:
    """The representation of `value`, whose first octet also carries `flags`.

    `prefix_max` is the largest number that the prefix holds: 2**N - 1 for a prefix of N bits.
    """
    if value < prefix_max:
        return bytes((flags | value,))
    octets = bytearray((flags | prefix_max,))
    value -= prefix_max
    while value >= 0x80:
        octets.append(0x80 | value & 0x7F)
        value >>= 7
    octets.append(value)
    return bytes(octets)


def decode_rest(block: bytes, pos: int, prefix_max: int) -> tuple[int, int]:
    """An integer whose prefix is full: from its second octet at `pos`. Returns the value and where it ends.

    Raises HpackError if it is longer than any integer in a header block can be, IndexError if the block ends before it.
    """
    value = prefix_max
    for shift in range(0, 7 * CONTINUATION_OCTETS_MAX, 7):
        octet = block[pos]
        pos += 1
        value += (octet & 0x7F) << shift
        if octet < 0x80:
            return value, pos
    raise HpackError("an integer is too large")
