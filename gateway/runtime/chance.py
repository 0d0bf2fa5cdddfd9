"""Chance: seeded generators, one stream per named component, so that one component's draws never shift another's."""

from __future__ import annotations

import hashlib
import os
import random


class Chance:
    """Derives independent generators from one seed.

    The same seed and name give the same stream, whatever else was drawn. Not for secrets (`secrets` is, in
    `admin/token.py`).
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    @classmethod
    def from_system(cls) -> Chance:
        """A seed from the operating system."""
        return cls(int.from_bytes(os.urandom(16), "big"))

    def stream(self, name: str) -> random.Random:
        """A new generator for the component `name`."""
        digest = hashlib.sha256(f"{self._seed}/{name}".encode()).digest()
        return random.Random(int.from_bytes(digest[:16], "big"))
