"""Openers: calls that begin a sequence may take at most half of their replica's slots.

Triton lets a new sequence wait until a running one ends, and it waits inside a slot; were all slots taken by such, the
calls that end the running ones would find none.
"""

from __future__ import annotations


class Openers:
    """How many slots openers hold, by replica. O(1). Memory: a count for each replica that has some."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[str, int] = {}
        """None is 0."""

    def room(self, replica: str, slots: int) -> bool:
        """Whether one more may start there. One always may."""
        return self._held.get(replica, 0) < max(1, slots // 2)

    def take(self, replica: str) -> None:
        """One has a slot."""
        self._held[replica] = self._held.get(replica, 0) + 1

    def give_back(self, replica: str) -> None:
        """Its call has ended. Raises KeyError if there was none."""
        left = self._held[replica] - 1
        if left:
            self._held[replica] = left
        else:
            del self._held[replica]
