"""FailingShare: which share of a pool's attempts fail, over some dozens of them."""

from __future__ import annotations

FAILING_MAX = 0.1
"""With a greater share nothing is hedged: more load is no remedy for a pool in trouble."""
MEMORY = 64
"""Attempts over which the share is taken."""


class FailingShare:
    """A mean that forgets. O(1)."""

    __slots__ = ("share",)

    def __init__(self) -> None:
        self.share = 0.0

    def good(self) -> None:
        """An attempt was answered. Where `share` is 0 it changes nothing."""
        self.share -= self.share / MEMORY

    def bad(self) -> None:
        """An attempt failed by its replica's fault."""
        self.share += (1.0 - self.share) / MEMORY

    @property
    def too_many(self) -> bool:
        return self.share > FAILING_MAX
