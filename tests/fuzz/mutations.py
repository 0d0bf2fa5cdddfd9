"""Changes to plain bytes, for the targets whose input has no frames; and what the others build on."""

from __future__ import annotations

import random
from collections.abc import Sequence

NUMBERS = (
    0,
    1,
    2,
    3,
    4,
    5,
    8,
    9,
    127,
    128,
    255,
    256,
    16383,
    16384,
    65535,
    65536,
    2**24 - 1,
    2**31 - 1,
    2**31,
    2**32 - 1,
)


def change(data: bytes, chance: random.Random, tokens: Sequence[bytes]) -> bytes:
    """A few places changed: bits flipped, pieces repeated, moved, left out or cut off, tokens put in."""
    mutated = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(mutated) + 1)
        kind = chance.randrange(8)
        if kind == 0 and at < len(mutated):
            mutated[at] ^= 1 << chance.randrange(8)
        elif kind == 1 and at < len(mutated):
            mutated[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        elif kind == 2:
            mutated[at : at + chance.choice((0, 0, 1, 4, 16))] = chance.choice(tokens)
        elif kind == 3:
            del mutated[at : at + chance.choice((1, 2, 5, 40))]
        elif kind == 4:
            mutated[at:at] = mutated[at : at + chance.choice((1, 5, 20, 100))] * chance.choice((1, 1, 2, 10))
        elif kind == 5:
            other = chance.randrange(len(mutated) + 1)
            mutated[at:at] = mutated[other : other + chance.choice((3, 10, 50))]
        elif kind == 6:
            del mutated[at:]
        else:
            mutated[at : at + 4] = chance.choice(NUMBERS).to_bytes(4, chance.choice(("big", "little")))
    return bytes(mutated)
