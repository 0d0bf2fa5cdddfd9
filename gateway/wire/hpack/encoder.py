"""Fields to header blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from gateway.wire.hpack.literals import (
    INSERTED,
    NEVER_INDEXED,
    NOT_INDEXED,
    SHORT_LENGTHS,
    indexed,
    literal_head,
    size_update,
    string,
)
from gateway.wire.hpack.static_table import STATIC_FIELDS, STATIC_SIZE, TABLE_BYTES_DEFAULT, Field, entry_size

SENSITIVE: Final = (b"authorization", b"cookie", b"proxy-authorization", b"set-cookie")
"""Names whose values nobody on the way may index unless the caller knows better (RFC 7541 section 7.1.3)."""

_NONE: Final[frozenset[bytes]] = frozenset()

_MEMO_ENTRIES_MAX: Final = 64
_MEMO_FIELDS_BYTES_MAX: Final = 4096  # of one block
_SEEN_MAX: Final = 32
_CANDIDATE_SHARE: Final = 4  # a field is inserted only if this many of its size fit into the table
_CALM_BLOCKS: Final = 64  # between insertions into a full table


class HpackEncoder:
    """Encodes the blocks of one connection, in order.

    A field is put into the table when it is seen for the second time, so that values that differ each time cannot drive
    out those that repeat; into a full table only now and then. `varying` names fields that are not even tried. Fields
    named in `sensitive` are written as never to be indexed.

    `table_bytes_max` bounds the table whatever the peer allows. With `huffman` strings are coded where that is shorter;
    without, encoding and the peer's decoding are faster.
    """

    __slots__ = (
        "_blocks",
        "_calm_until",
        "_capacity",
        "_codes",
        "_heads",
        "_huffman",
        "_inserted",
        "_memo",
        "_numbers",
        "_seen",
        "_settled",
        "_smallest",
        "_table_max",
        "_used",
    )

    def __init__(
        self,
        table_bytes_max: int = TABLE_BYTES_DEFAULT,
        varying: Iterable[bytes] = (),
        sensitive: Iterable[bytes] = SENSITIVE,
        *,
        huffman: bool = False,
    ) -> None:
        self._table_max = table_bytes_max
        self._huffman = huffman
        # By name, of fields that are never tried: the literal up to its value.
        self._heads = {name: literal_head(name, NOT_INDEXED, huffman) for name in varying}
        self._heads.update({name: literal_head(name, NEVER_INDEXED, huffman) for name in sensitive})
        self._capacity = TABLE_BYTES_DEFAULT
        self._smallest = -1  # of the sizes since the last block that the peer must be told of; -1: none
        self._numbers: dict[Field, int] = {}  # the dynamic table, its oldest entry first, and its number in order
        self._inserted = 0
        self._used = 0
        self._seen: dict[Field, None] = {}  # once, lately
        self._settled = True
        self._blocks = 0
        self._calm_until = 0
        # Both are good until the table changes. Blocks by the identity of their fields, which are kept with them.
        self._codes: dict[Field, bytes] = {}
        self._memo: dict[int, tuple[Sequence[Field], bytes]] = {}
        self._resize(min(table_bytes_max, TABLE_BYTES_DEFAULT))

    def set_table_bytes(self, size: int) -> None:
        """The peer's SETTINGS_HEADER_TABLE_SIZE, in bytes. To be called when its SETTINGS are acknowledged."""
        self._resize(min(size, self._table_max))

    def take_update(self) -> bytes:
        """The size updates that must start the next block; mostly none.

        `encode` does that itself. This is for a block without anything that `encode` gave.
        """
        if self._smallest < 0:
            return b""
        update = size_update(self._capacity)
        if self._smallest < self._capacity:
            update = size_update(self._smallest) + update
        self._smallest = -1
        return update

    def encode(self, fields: Sequence[Field], never_indexed: frozenset[bytes] = _NONE) -> bytes:
        """The block of these fields; those named in `never_indexed` are sensitive in this block.

        Costs nearly nothing for the same tuple, by identity, once all its fields are in a table. So it pays to keep the
        tuple of what never varies, and to put what does behind its block as literals (`literal`), which touch no table.
        """
        known = self._memo.get(id(fields))
        if known is not None and not never_indexed:
            return known[1]
        self._blocks += 1
        self._settled = self._smallest < 0 and not never_indexed and type(fields) is tuple
        parts = [] if self._smallest < 0 else [self.take_update()]
        codes, heads = self._codes, self._heads
        if never_indexed:
            codes = {}
            heads = heads | {name: literal_head(name, NEVER_INDEXED, self._huffman) for name in never_indexed}
        for field in fields:
            code = codes.get(field)
            if code is None:
                name, value = field
                head = heads.get(name)
                if head is None:
                    code = self._code(field)
                else:
                    self._settled = False
                    if self._huffman or len(value) >= 0x7F:
                        code = head + string(value, self._huffman)
                    else:
                        code = head + SHORT_LENGTHS[len(value)] + value
            parts.append(code)
        block = b"".join(parts)
        if self._settled:
            self._remember(fields, block)
        return block

    def _code(self, field: Field) -> bytes:
        """A field that may be indexed."""
        index = STATIC_FIELDS.get(field)
        if index is None:
            number = self._numbers.get(field)
            if number is None:
                kind = INSERTED if self._try_insert(field) else NOT_INDEXED
                return literal_head(field[0], kind, self._huffman) + string(field[1], self._huffman)
            index = STATIC_SIZE + self._inserted - 1 - number
        code = indexed(index)
        self._codes[field] = code
        return code

    def _try_insert(self, field: Field) -> bool:
        """Put a field into the dynamic table if that seems worth it."""
        size = entry_size(field)
        if size * _CANDIDATE_SHARE > self._capacity:
            return False
        self._settled = False
        seen = self._seen
        if field not in seen:
            if len(seen) >= _SEEN_MAX:
                del seen[next(iter(seen))]
            seen[field] = None
            return False
        if self._used + size > self._capacity:
            if self._blocks < self._calm_until:
                return False
            self._calm_until = self._blocks + _CALM_BLOCKS
        del seen[field]
        self._evict(self._capacity - size)
        self._numbers[field] = self._inserted
        self._inserted += 1
        self._used += size
        self._codes.clear()
        self._memo.clear()
        return True

    def _evict(self, size: int) -> None:
        """Drop the oldest entries until the others have at most this size."""
        while self._used > size:
            oldest = next(iter(self._numbers))
            del self._numbers[oldest]
            self._used -= entry_size(oldest)

    def _resize(self, capacity: int) -> None:
        if capacity == self._capacity:
            return
        self._smallest = capacity if self._smallest < 0 else min(capacity, self._smallest)
        self._capacity = capacity
        self._evict(capacity)
        self._codes.clear()
        self._memo.clear()

    def _remember(self, fields: Sequence[Field], block: bytes) -> None:
        if sum(map(entry_size, fields)) > _MEMO_FIELDS_BYTES_MAX:
            return
        if len(self._memo) >= _MEMO_ENTRIES_MAX:
            self._memo.clear()
        self._memo[id(fields)] = (fields, block)
