"""The Huffman code itself (RFC 7541 appendix B), and a decoder that takes it four bits at a time."""

from __future__ import annotations

from typing import Final

from gateway.wire.hpack.errors import HpackError

# The code is canonical, so the lengths say it all. Octets 0 to 255, then the end of string.
# fmt: off
CODE_LENGTHS: Final = (
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28,
    28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11,
    10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8,
    15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5,
    6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7,
    7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23,
    23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21,
    23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25,
    26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26,
    28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
)
# fmt: on

_END_OF_STRING: Final = 256


def _codes() -> tuple[str, ...]:
    codes = [""] * len(CODE_LENGTHS)
    code = length = 0
    for symbol in sorted(range(len(CODE_LENGTHS)), key=lambda symbol: (CODE_LENGTHS[symbol], symbol)):
        code <<= CODE_LENGTHS[symbol] - length
        length = CODE_LENGTHS[symbol]
        codes[symbol] = f"{code:0{length}b}"
        code += 1
    return tuple(codes)


CODES: Final = _codes()
"""Symbol to its code, written in zeros and ones."""


def _tree() -> list[list[int]]:
    """The code as a tree: node to its two successors, a node or -1 - symbol. Node 0 is the root."""
    tree = [[0, 0]]
    for symbol, code in enumerate(CODES):
        node = 0
        for bit in code[:-1]:
            if not tree[node][int(bit)]:
                tree[node][int(bit)] = len(tree)
                tree.append([0, 0])
            node = tree[node][int(bit)]
        tree[node][int(code[-1])] = -1 - symbol
    return tree


def _steps(tree: list[list[int]]) -> list[tuple[int, bytes] | None]:
    """16 * node + four bits to (16 * next node, the octets they complete); None where they complete the EOS."""
    steps: list[tuple[int, bytes] | None] = []
    for start in range(len(tree)):
        for bits in range(16):
            node = start
            octets = bytearray()
            for shift in (3, 2, 1, 0):
                node = tree[node][bits >> shift & 1]
                if node == -1 - _END_OF_STRING:
                    break
                if node < 0:
                    octets.append(-1 - node)
                    node = 0
            steps.append(None if node < 0 else (node * 16, bytes(octets)))
    return steps


def _ends(tree: list[list[int]]) -> frozenset[int]:
    """16 * node of those that may be the last: the root and what up to seven ones lead to, the padding."""
    nodes = [0]
    while len(nodes) < 8:
        nodes.append(tree[nodes[-1]][1])
    return frozenset(node * 16 for node in nodes)


_TREE: Final = _tree()
_STEPS: Final = _steps(_TREE)
_ENDS: Final = _ends(_TREE)


def decode_by_nibbles(coded: bytes) -> bytes:
    """The string that `coded` stands for.

    Raises HpackError if it holds the end-of-string symbol, or if its padding is not ones or longer than seven bits.
    """
    steps = _STEPS
    node = 0
    parts: list[bytes] = []
    for octet in coded:
        step = steps[node + (octet >> 4)]
        if step is not None:
            parts.append(step[1])
            step = steps[step[0] + (octet & 15)]
        if step is None:
            raise HpackError("a Huffman string holds the end-of-string symbol")
        node, part = step
        parts.append(part)
    if node not in _ENDS:
        raise HpackError("the padding of a Huffman string is wrong")
    return b"".join(parts)
