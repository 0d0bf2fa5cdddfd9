"""What the tests of the header codec share: strategies of fields and blocks, and outcomes that can be compared."""

from __future__ import annotations

from typing import NamedTuple

import hpack
from hpack.exceptions import HPACKError
from hypothesis import strategies as st

from gateway.wire.hpack import HeaderListTooLarge, HpackDecoder, HpackError

Fields = tuple[tuple[bytes, bytes], ...]

LIST_MAX = 1 << 20

# A few names and values that repeat, so that tables and memos have something to do, and any others.
NAMES = st.one_of(
    st.sampled_from(
        [b":method", b":path", b":status", b"content-type", b"grpc-timeout", b"x-request-id", b"authorization", b"te"]
    ),
    st.binary(max_size=8),
)
VALUES = st.one_of(
    st.sampled_from([b"POST", b"GET", b"/", b"200", b"trailers", b"application/grpc", b"Bearer abc", b"v" * 150, b""]),
    st.integers(0, 9999).map(lambda number: b"%dm" % number),
    st.text("0123456789abcdef-", min_size=36, max_size=36).map(str.encode),
    st.binary(max_size=40),
)
FIELD_LISTS = st.lists(st.tuples(NAMES, VALUES), max_size=10).map(tuple)
"""Fields of one block."""

# Representations, whole and damaged, of which blocks are made.
PIECES = st.sampled_from(
    [
        *(b"\x82", b"\x86", b"\x88", b"\xbe", b"\xbf", b"\xc0", b"\xc1", b"\xff\x00", b"\xff\x01", b"\x80"),
        *(b"\x20", b"\x3f\x01", b"\x3f\xe1\x01", b"\x3f\xe1\x1f", b"\x3f\xe2\x1f"),
        *(b"@\x01a\x01b", b"@\x01a\x01c", b"A\x03q.r", b"\x7e\x02zz", b"\x7f\x00\x01y", b"@\x01l\x7f\x49" + b"l" * 200),
        *(
            b"\x00\x01a\x01b",
            b"\x00\x01a\x01d",
            b"\x00\x01b\x03xyz",
            b"\x0f\x2f\x01q",
            b"\x0f\x30\x01q",
            b"\x00\x00\x00",
        ),
        *(b"\x10\x01a\x03ccc", b"\x11\x01s", b"\x00\x01h\x82\x64\x02", b"@\x82\x1c\x64\x82\x64\x02"),
        *(
            b"\x00\x01h\xff",
            b"\x00\x01h\x81\x00",
            b"\x00\x01h\x84\xff\xff\xff\xff",
            b"\x7f\xff\xff\xff\x7f",
            b"\x00\x05a",
        ),
    ]
)
BLOCKS = st.one_of(
    st.lists(PIECES, max_size=6).map(b"".join),
    st.binary(max_size=12),
    st.tuples(st.lists(PIECES, max_size=4).map(b"".join), st.binary(max_size=4)).map(b"".join),
)
"""Blocks of any kind, most of them malformed."""


class Decoded(NamedTuple):
    """What a block was taken for."""

    fields: Fields
    size: int
    never_indexed: frozenset[bytes]


def by_ours(decoder: HpackDecoder, block: bytes) -> Decoded | str:
    """What our decoder makes of a block: the fields, or the name of the error."""
    try:
        decoded = decoder.decode(block)
    except (HpackError, HeaderListTooLarge) as error:
        return type(error).__name__
    return Decoded(decoded.fields, decoded.size, decoded.never_indexed)


def by_hpack(decoder: hpack.Decoder, block: bytes) -> Fields | None:
    """What the hpack package makes of it; None for an error."""
    try:
        return tuple((bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True))
    except HPACKError:
        return None


def literal_block(*fields: tuple[bytes, bytes]) -> bytes:
    """A block of plain short literals without indexing; written here, not by the code under test."""
    return b"".join(b"\x00%c%b%c%b" % (len(name), name, len(value), value) for name, value in fields)
