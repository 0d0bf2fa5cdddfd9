"""Blocks that differ from an earlier one only in the values of plain literals: deadlines, ids, trace contexts.

How a block is read is decided by its control octets: indices, lengths, names. Two blocks of one length that agree in
all octets but those of the values of plain literals have, while the table stays as it is, the same fields but for these
values. A layout is the outline of a block: one `struct` call cuts a later block by it, instead of a step for each
octet.
"""

from __future__ import annotations

import struct
from operator import itemgetter
from typing import Final

from gateway.wire.hpack.header_block import HeaderBlock
from gateway.wire.hpack.integers import decode_rest
from gateway.wire.hpack.static_table import Field

_VALUES_MAX: Final = 16


class Layout:
    """The outline of a block, with all that is the same in the blocks that have it. Good until the table changes.

    `varying` are the places in `HeaderBlock.fields` of what is not the same, `names` the names there. All values have
    the lengths that they had in the first block. `note` and `verdict` are for the users of blocks.
    """

    __slots__ = ("_fixed", "_fixed_fields", "_order", "_unpack", "names", "never_indexed", "note", "size", "varying",
                 "verdict")  # fmt: skip

    def __init__(self, block: bytes, decoded: HeaderBlock, cuts: list[tuple[int, int, int]]) -> None:
        """`cuts`: of each varying field its place, and where in the block its value starts and stops."""
        fields = decoded.fields
        self.never_indexed = decoded.never_indexed
        self.size = decoded.size
        self.note: object = None
        self.verdict: object = None
        self.varying = tuple(place for place, _, _ in cuts)
        self.names = tuple(fields[place][0] for place in self.varying)
        form = []
        at = 0
        for _, start, stop in cuts:
            form.append(f"{start - at}s{stop - start}s")
            at = stop
        self._unpack = struct.Struct(f"{''.join(form)}{len(block) - at}s").unpack
        self._fixed: tuple[bytes, ...] = self._unpack(block)[::2]
        fixed_places = [place for place in range(len(fields)) if place not in self.varying]
        self._fixed_fields = tuple(fields[place] for place in fixed_places)
        places = [*fixed_places, *self.varying]
        self._order = None
        if places != sorted(places):
            self._order = itemgetter(*(places.index(place) for place in range(len(places))))

    def read(self, block: bytes) -> HeaderBlock | None:
        """A block of the same length, if it has this layout."""
        pieces = self._unpack(block)
        if pieces[::2] != self._fixed:
            return None
        decoded = HeaderBlock()
        decoded._fields = None  # most users want no more than the values
        decoded.values = pieces[1::2]
        decoded.size = self.size
        decoded.never_indexed = self.never_indexed
        decoded.layout = self
        decoded.note = decoded.verdict = None
        return decoded

    def fields(self, values: tuple[bytes, ...]) -> tuple[Field, ...]:
        """All fields of a block of this layout with these values."""
        fields = self._fixed_fields + tuple(zip(self.names, values, strict=True))
        return fields if self._order is None else self._order(fields)


def layout_of(block: bytes, decoded: HeaderBlock) -> Layout | None:
    """The layout of a block that has just been decoded without a change of the table, which gets it; None if nothing in
    it varies.
    """
    cuts: list[tuple[int, int, int]] = []
    place = pos = 0
    while pos < len(block):
        octet = block[pos]
        pos += 1
        if octet >= 0x80:
            if octet == 0xFF:
                pos = decode_rest(block, pos, 0x7F)[1]
        elif 0x20 <= octet < 0x40:
            if octet == 0x3F:
                pos = decode_rest(block, pos, 0x1F)[1]
            continue
        else:
            full = 0x3F if octet >= 0x40 else 0x0F
            if octet & full == full:
                pos = decode_rest(block, pos, full)[1]
            elif not octet & full:
                pos = _string(block, pos)[1]
            plain = block[pos] < 0x80
            start, pos = _string(block, pos)
            if plain:
                cuts.append((place, start, pos))
        place += 1
    if not 0 < len(cuts) <= _VALUES_MAX:
        return None
    decoded.layout = layout = Layout(block, decoded, cuts)
    decoded.values = tuple([block[start:stop] for _, start, stop in cuts])
    return layout


def _string(block: bytes, pos: int) -> tuple[int, int]:
    """Where the octets of the string at `pos` start and stop."""
    length = block[pos] & 0x7F
    pos += 1
    if length == 0x7F:
        length, pos = decode_rest(block, pos, 0x7F)
    return pos, pos + length
