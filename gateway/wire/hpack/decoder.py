"""Header blocks to fields."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gateway.wire.hpack.errors import HeaderListTooLarge, HpackError
from gateway.wire.hpack.header_block import HeaderBlock
from gateway.wire.hpack.huffman import decode_huffman
from gateway.wire.hpack.integers import decode_rest
from gateway.wire.hpack.layout import Layout, layout_of
from gateway.wire.hpack.static_table import STATIC_SIZE, STATIC_TABLE, TABLE_BYTES_DEFAULT, Field, entry_size

_INDEXED_RUN: Final = re.compile(rb"[\x80-\xfe]*")
_NONE: Final[frozenset[bytes]] = frozenset()
_STATIC: Final = tuple((field, entry_size(field)) for field in STATIC_TABLE)

_MEMO_ENTRIES_MAX: Final = 128
_MEMO_BYTES_MAX: Final = 32768  # of blocks and of their fields
_LAYOUTS_MAX: Final = 16
_LAYOUT_BYTES_MAX: Final = 2048  # of a block that gets a layout

# Learning a layout costs as much as a few of its uses save. It is paid for by uses, and a little by each block that
# had none, so that a client whose blocks never repeat their form costs little more than without layouts.
_CREDIT_MAX: Final = 128
_CREDIT_OF_USE: Final = 4
_CREDIT_OF_LOSS: Final = 1
_PRICE: Final = 16


@dataclass(frozen=True, slots=True)
class DecoderStatistics:
    """What a decoder holds: the dynamic table, and blocks and layouts that it remembers."""

    table_entries: int
    table_bytes: int
    blocks: int
    block_bytes: int
    layouts: int


class HpackDecoder:
    """Decodes the blocks of one connection, in order.

    `table_bytes_max` is the SETTINGS_HEADER_TABLE_SIZE that this side advertises; `list_bytes_max` is the most that the
    fields of one block may count, as `HeaderBlock.size`. `remember` is for tests: without it every block is decoded
    field by field.
    """

    __slots__ = (
        "_allowed",
        "_capacity",
        "_credit",
        "_dead",
        "_entries",
        "_guarded",
        "_layouts",
        "_list_max",
        "_memo",
        "_memo_bytes",
        "_remembers",
        "_table_max",
        "_used",
    )

    def __init__(
        self, table_bytes_max: int = TABLE_BYTES_DEFAULT, list_bytes_max: int = 65536, *, remember: bool = True
    ) -> None:
        self._table_max = table_bytes_max
        self._list_max = list_bytes_max
        self._allowed = max(table_bytes_max, TABLE_BYTES_DEFAULT)  # the peer may not know better yet
        # The dynamic table, its oldest entry first, each with its size: index i is [61 - i], the newest [-1].
        self._entries: list[tuple[Field, int]] = []
        self._capacity = TABLE_BYTES_DEFAULT
        self._used = 0
        self._guarded = False  # the next block needs a check first: the table must shrink, or it is not known any more
        self._dead = False
        self._remembers = remember
        self._memo: dict[bytes, HeaderBlock] = {}  # good until the table changes
        self._memo_bytes = 0
        self._layouts: dict[int, Layout | None] = {}  # by length of the block; None: one has been seen
        self._credit = _CREDIT_MAX

    def settings_acknowledged(self) -> None:
        """The peer knows `table_bytes_max`. Only of interest where that is less than the protocol's 4096."""
        self._allowed = self._table_max
        if self._capacity > self._allowed:
            self._guarded = True
            self._forget()

    def statistics(self) -> DecoderStatistics:
        return DecoderStatistics(
            table_entries=len(self._entries),
            table_bytes=self._used,
            blocks=len(self._memo),
            block_bytes=self._memo_bytes,
            layouts=len(self._layouts),
        )

    def decode(self, block: bytes) -> HeaderBlock:
        """The fields of a whole block.

        Raises HpackError (once and for all: the connection is over), or HeaderListTooLarge, with the table up to date.
        """
        known = self._memo.get(block)
        if known is not None:
            return known
        if self._layouts:
            layout = self._layouts.get(len(block))
            if layout is not None:
                decoded = layout.read(block)
                if decoded is not None:
                    self._credit += _CREDIT_OF_USE
                    return decoded
        try:
            return self._decode(block)
        except HpackError:
            self._die()
            raise
        except IndexError:
            self._die()
            raise HpackError("the block is truncated, or an index is beyond the table") from None

    def _decode(self, block: bytes) -> HeaderBlock:
        """Decode field by field. Raises IndexError for a block that ends too early and an index that is too large."""
        if self._guarded:
            self._check(block)
        # Written for speed: this is what a block costs that is like none before it, as all those are whose sender puts
        # varying values into the table.
        entries, capacity, used = self._entries, self._capacity, self._used
        list_max = self._list_max
        fields: list[Field] = []
        never: list[bytes] | None = None
        stop = len(block)
        pos = size = 0
        changed = too_large = False
        while pos < stop:
            octet = block[pos]
            pos += 1
            if octet > 0xBD:  # indexed: 10111110 is index 62, the newest entry of the dynamic table
                if octet == 0xFF:
                    index, pos = decode_rest(block, pos, 0x7F)
                    field, entry_bytes = entries[STATIC_SIZE - 1 - index]
                else:
                    field, entry_bytes = entries[0xBD - octet]
            elif octet > 0x80:
                field, entry_bytes = _STATIC[octet - 0x80]
            else:
                if octet > 0x3F:
                    if octet == 0x80:
                        raise HpackError("index 0 is no field")
                    index = octet - 0x40
                    if index == 0x3F:
                        index, pos = decode_rest(block, pos, 0x3F)
                else:
                    if octet > 0x1F:
                        if fields or too_large:
                            raise HpackError("a table size update is not at the start of a block")
                        pos = self._resize(block, octet, pos)
                        capacity, used = self._capacity, self._used
                        continue
                    index = octet & 0x0F
                    if index == 0x0F:
                        index, pos = decode_rest(block, pos, 0x0F)
                if index >= STATIC_SIZE:
                    name = entries[STATIC_SIZE - 1 - index][0][0]
                elif index:
                    name = STATIC_TABLE[index][0]
                else:
                    length = block[pos]
                    pos += 1
                    if length < 0x7F:
                        end = pos + length
                        name = block[pos:end]
                        pos = end
                    else:
                        name, pos = _string(block, pos, length)
                length = block[pos]
                pos += 1
                if length < 0x7F:
                    end = pos + length
                    value = block[pos:end]
                    pos = end
                else:
                    value, pos = _string(block, pos, length)
                field = (name, value)
                entry_bytes = len(name) + len(value) + 32
                if octet > 0x3F:
                    changed = True
                    used += entry_bytes
                    while used > capacity and entries:
                        used -= entries[0][1]
                        del entries[0]
                    if used <= capacity:
                        entries.append((field, entry_bytes))
                    else:  # larger than the table: that is empty now
                        used = 0
                elif octet > 0x0F:
                    if never is None:
                        never = []
                    never.append(name)
            fields.append(field)
            size += entry_bytes
            if size > list_max:  # go on for the table's sake, but keep nothing
                too_large = True
                fields.clear()
                never = None
                size = 0
                if pos < stop and 0x80 <= block[pos] < 0xFF:
                    pos = self._skip_indexed(block, pos)
        if pos > stop:  # the last value ends too early
            raise IndexError
        if changed:
            self._used = used
            if self._layouts:
                self._forget()
        if too_large:
            raise HeaderListTooLarge(f"the fields of a block are over the limit of {list_max} bytes")
        decoded = HeaderBlock()
        decoded._fields = tuple(fields)
        decoded.values = ()
        decoded.layout = None
        decoded.size = size
        decoded.never_indexed = _NONE if never is None else frozenset(never)
        decoded.note = decoded.verdict = None
        if not changed and self._remembers:
            self._remember(block, decoded)
        return decoded

    def _resize(self, block: bytes, octet: int, pos: int) -> int:
        """A table size update; returns where it ends."""
        capacity = octet & 0x1F
        if capacity == 0x1F:
            capacity, pos = decode_rest(block, pos, 0x1F)
        if capacity > self._allowed:
            raise HpackError("a table size update is over the size that was advertised")
        if capacity != self._capacity:
            self._capacity = capacity
            while self._used > capacity:
                self._used -= self._entries[0][1]
                del self._entries[0]
            self._forget()
        return pos

    def _skip_indexed(self, block: bytes, pos: int) -> int:
        """Where a run of indexed fields ends, which nobody wants but which must be valid all the same."""
        run = _INDEXED_RUN.match(block, pos)
        assert run is not None
        octets = run.group()
        if min(octets) == 0x80:
            raise HpackError("index 0 is no field")
        if max(octets) - 0x80 >= STATIC_SIZE + len(self._entries):
            raise HpackError("an index is beyond the table")
        return run.end()

    def _check(self, block: bytes) -> None:
        """What is seldom so, and forbids a block or asks something of it."""
        if self._dead:
            raise HpackError("an earlier block was malformed: the table is not known any more")
        if not block or block[0] & 0xE0 != 0x20:
            raise HpackError("the table must shrink to the size that was advertised")
        self._guarded = False

    def _die(self) -> None:
        self._dead = self._guarded = True
        self._forget()

    def _remember(self, block: bytes, decoded: HeaderBlock) -> None:
        """Keep what a block means while the table stays as it is; and its layout, if that seems worth it."""
        length = len(block)
        cost = length + decoded.size
        if cost > _MEMO_BYTES_MAX >> 2:
            return
        if self._memo_bytes + cost > _MEMO_BYTES_MAX or len(self._memo) >= _MEMO_ENTRIES_MAX:
            self._forget()
        self._memo[block] = decoded
        self._memo_bytes += cost
        layouts = self._layouts
        if length not in layouts:
            if len(layouts) >= _LAYOUTS_MAX:
                layouts.clear()
            layouts[length] = None
        elif self._credit >= _PRICE and length <= _LAYOUT_BYTES_MAX:
            self._credit = min(self._credit, _CREDIT_MAX) - _PRICE
            layouts[length] = layout_of(block, decoded)
        else:
            self._credit += _CREDIT_OF_LOSS

    def _forget(self) -> None:
        if self._layouts:  # else there is no block either
            self._memo.clear()
            self._memo_bytes = 0
            self._layouts.clear()


def _string(block: bytes, pos: int, octet: int) -> tuple[bytes, int]:
    """A string that is Huffman coded or long, from its first octet on; and where it ends."""
    if octet == 0x7F or octet == 0xFF:
        length, pos = decode_rest(block, pos, 0x7F)
    else:
        length = octet & 0x7F
    end = pos + length
    text = block[pos:end]
    return (decode_huffman(text) if octet & 0x80 else text), end
