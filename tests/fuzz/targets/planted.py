"""Not a codec of the gateway: records behind lengths, and a fault that only the right sequence of them reaches."""

from __future__ import annotations

import random

from tests.fuzz.mutations import change
from tests.fuzz.target import Target

ORDER = b"open", b"shut"


class PlantedFault(Exception):
    """What is to be found."""


def check(data: bytes) -> None:
    """Records: one byte of length, and so many bytes. They must come in an order, with something large at the end."""
    step = at = 0
    while at < len(data):
        record = data[at + 1 : at + 1 + data[at]]
        at += 1 + data[at]
        if step < len(ORDER) and record == ORDER[step]:
            step += 1
        elif step == len(ORDER) and len(record) > 100:
            raise PlantedFault


def seeds() -> list[bytes]:
    """Records that do not come in order."""
    return [b"\x04shut\x04open", b"\x03abc"]


def mutate(data: bytes, chance: random.Random) -> bytes:
    return change(data, chance, (b"\x04open", b"\x04shut", b"\xff"))


TARGET = Target(seeds, check, mutate)
