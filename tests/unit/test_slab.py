"""The memory of a large message."""

from __future__ import annotations

import tracemalloc

from gateway.wire.slab import PLACE_BYTES, Slab

MIB = 1024 * 1024


def test_what_was_put_and_received_is_the_value() -> None:
    slab = Slab(10)
    slab.put(b"abc")
    place = slab.place(3)
    place[:2] = b"de"
    slab.placed(2)
    slab.put(memoryview(b"fghij"))
    assert slab.take() == b"abcdefghij"


def test_a_place_is_bounded() -> None:
    assert len(Slab(MIB).place(MIB)) == PLACE_BYTES
    assert len(Slab(MIB).place(7)) == 7


def test_the_value_is_no_copy_unless_somebody_holds_a_place() -> None:
    for held in (False, True):
        slab = Slab(8 * MIB)
        place = slab.place(1) if held else None
        slab.put(bytes(8 * MIB))
        tracemalloc.start()
        try:
            value = slab.take()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(value) == 8 * MIB
        assert (peak > 8 * MIB) is (place is not None)
