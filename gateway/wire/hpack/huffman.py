"""Huffman coded strings (RFC 7541 section 5.2).

Decoding bit by bit costs Python some 0.1 us per octet, for values that differ from call to call (ids, deadlines, trace
contexts) and so cannot be remembered. But zlib decodes Huffman codes too, and this one can be told to it:

* HPACK's code is canonical, as those of deflate must be. Codes are at most 15 bits long there; here those of all
  printable octets but the backslash are. The prefix of all longer codes is fifteen ones, and it is exactly what is
  left over: it goes to deflate's end-of-block symbol, and the code is complete.
* Deflate fills its octets from the lowest bit, HPACK from the highest: `bytes.translate` turns them round.

So one inflater is fed the header of a deflate block with that code; each string is given to a copy of it, followed by
fifteen ones and a zero. The padding before them, k ones, belongs to the first fifteen, so the block ends if and only if
what is left behind the last symbol is ones; anything else swallows some of them as part of a symbol, and the end cannot
come. Where in the two last octets the block ended tells k apart: up to six ones leave no octet over, seven leave one,
but so do eight to fourteen, which are too many. A code of more than fifteen bits ends the block inside the string. All
that is not plainly good is left to the decoder by nibbles, which judges it.
"""

from __future__ import annotations

import zlib
from typing import Final

from gateway.wire.hpack.huffman_code import CODE_LENGTHS, CODES, decode_by_nibbles

_DEFLATE_BITS_MAX: Final = 15
_SHORT_BYTES: Final = 5  # below this the nibbles are faster

_TURNED: Final = bytes(int(f"{octet:08b}"[::-1], 2) for octet in range(256))
_ONES: Final = b"\xff\xfe".translate(_TURNED)
_LENGTHS: Final = bytes(CODE_LENGTHS[:256])


def _deflate_header() -> bytes:
    """A deflate block (RFC 1951 section 3.2.7) up to its data, with HPACK's code for literals and no distances."""
    lengths = [length if length <= _DEFLATE_BITS_MAX else 0 for length in CODE_LENGTHS[:256]]
    lengths.append(_DEFLATE_BITS_MAX)  # the end of block
    lengths.append(0)  # the only distance
    # These lengths are coded in turn, each as itself. A complete code for the values 0 to 15 has four bits for each.
    order = (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15)
    parts = [
        "1" + _low_first(2, 2),  # the last block, with its own codes
        _low_first(0, 5) + _low_first(0, 5) + _low_first(len(order) - 4, 4),  # 257 literals, 1 distance, 19 lengths
        *(_low_first(4 if value < 16 else 0, 3) for value in order),
        *(f"{length:04b}" for length in lengths),
    ]
    bits = "".join(parts)
    # The data must start on an octet: empty blocks of the fixed code, ten bits each, fill up.
    while len(bits) % 8:
        bits = "0" + _low_first(1, 2) + "0000000" + bits
    return bytes(int(bits[at : at + 8][::-1], 2) for at in range(0, len(bits), 8))


def _low_first(value: int, width: int) -> str:
    return f"{value:0{width}b}"[::-1]


_INFLATER: Final = zlib.decompressobj(-9)
_INFLATER.decompress(_deflate_header())
_new_inflater: Final = _INFLATER.copy


def encode_huffman(text: bytes) -> bytes:
    """The coded string, padded with ones."""
    if not text:
        return b""
    bits = "".join([CODES[octet] for octet in text])
    size = (len(bits) + 7) // 8
    return int(bits.ljust(size * 8, "1"), 2).to_bytes(size, "big")


def decode_huffman(coded: bytes) -> bytes:
    """The string that `coded` stands for. Raises HpackError as `decode_by_nibbles`."""
    if len(coded) < _SHORT_BYTES:
        return decode_by_nibbles(coded)
    inflater = _new_inflater()
    text = inflater.decompress(coded.translate(_TURNED) + _ONES)
    if inflater.eof:
        left = len(inflater.unused_data)
        if not left or (left == 1 and (coded[-1] != 0xFF or 8 * len(coded) - sum(text.translate(_LENGTHS)) < 8)):
            return text
    return decode_by_nibbles(coded)
