"""The representations of a field (RFC 7541 section 6), as bytes."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from gateway.wire.hpack.huffman import encode_huffman
from gateway.wire.hpack.integers import encode_integer
from gateway.wire.hpack.static_table import STATIC_FIELDS, STATIC_NAMES

# Kinds of literals: the flags of their first octet.
NOT_INDEXED: Final = 0x00
NEVER_INDEXED: Final = 0x10
INSERTED: Final = 0x40

SHORT_LENGTHS: Final = tuple(bytes((length,)) for length in range(0x7F))
"""The length octet of plain strings that need only one."""


def indexed(index: int) -> bytes:
    """A field that is in a table."""
    return encode_integer(index, 0x7F, 0x80)


def size_update(size: int) -> bytes:
    """From here on the dynamic table has `size` bytes."""
    return encode_integer(size, 0x1F, 0x20)


def string(text: bytes, huffman: bool = False) -> bytes:
    """A string, Huffman coded if that is asked for and shorter."""
    if huffman:
        coded = encode_huffman(text)
        if len(coded) < len(text):
            return encode_integer(len(coded), 0x7F, 0x80) + coded
    return encode_integer(len(text), 0x7F, 0x00) + text


def literal_head(name: bytes, kind: int, huffman: bool = False) -> bytes:
    """All of a literal but its value; the name by its index if it is in the static table."""
    index = STATIC_NAMES.get(name, 0)
    head = encode_integer(index, 0x3F if kind == INSERTED else 0x0F, kind)
    return head if index else head + string(name, huffman)


def literal(name: bytes, value: bytes, *, never_index: bool = False) -> bytes:
    """A field for a block that uses no dynamic table: an entry of the static one, or a plain literal.

    In a block these may follow what `HpackEncoder.encode` gave; a block of them alone starts with what
    `HpackEncoder.take_update` gives.
    """
    if never_index:
        return literal_head(name, NEVER_INDEXED) + string(value)
    head, entries = _plain(name)
    if entries and value in entries:
        return entries[value]
    if len(value) < 0x7F:
        return head + SHORT_LENGTHS[len(value)] + value
    return head + string(value)


@lru_cache(maxsize=128)
def _plain(name: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """A literal with this name up to its value; and the static table's entries of this name, by value."""
    entries = {value: indexed(index) for (other, value), index in STATIC_FIELDS.items() if other == name}
    return literal_head(name, NOT_INDEXED), entries
