"""Slab: the memory of one large message, filled as its bytes come; it becomes bytes without a copy."""

from __future__ import annotations

from io import BytesIO
from typing import Final

PLACE_BYTES: Final = 64 * 1024
"""Received in one go. Event loops read up to 32 times before they look at another connection: 2 MiB, a millisecond."""
PLACE_BYTES_LEAST: Final = 32 * 1024
"""For less the usual way of receiving, which takes along what stands behind it, is the quicker one."""


class Slab:
    """`size` bytes. Its pages take memory as they are written to, not before.

    Whoever received to a `place` says so by `placed`. The last place must be let go of before `take`, or that copies:
    event loops hold on to a place until their callback has returned, so the last byte is to come in another way.
    """

    __slots__ = ("_memory", "_view", "at")

    def __init__(self, size: int) -> None:
        # A zeroed bytes object that nobody else refers to: the buffer is that object, and so is the value.
        self._memory = BytesIO(bytes(size))
        self._view = self._memory.getbuffer()
        self.at = 0
        """Where the next bytes go."""

    def put(self, data: bytes | memoryview) -> None:
        """The next bytes."""
        at = self.at
        self.at = stop = at + len(data)
        self._view[at:stop] = data

    def place(self, size: int) -> memoryview:
        """Where to receive some of the next `size` bytes."""
        at = self.at
        return self._view[at : at + min(size, PLACE_BYTES)]

    def placed(self, size: int) -> None:
        """So many bytes have been received to the last place."""
        self.at += size

    def take(self) -> bytes:
        """All of it, once; nothing is put into it afterwards."""
        self._view.release()
        return self._memory.getvalue()
