"""Chance, as deciders are given it."""

from __future__ import annotations

from typing import Protocol


class Chance(Protocol):
    """`random.Random` is one. Deciders do not import it: who seeds it decides what a run can repeat."""

    def random(self) -> float:
        """A uniform draw from [0, 1)."""
        ...
