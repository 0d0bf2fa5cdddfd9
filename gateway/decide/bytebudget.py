"""ByteBudget: how many bytes of request bodies may be held at one time, over all calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ByteBudget:
    """Counts bytes against a fixed total. Never over it; giving back more than was taken is an error of ours and
    raises.
    """

    __slots__ = ("_high_bytes", "_refusals", "_total_bytes", "_used_bytes")

    def __init__(self, total_bytes: int) -> None:
        if total_bytes <= 0:
            raise ValueError(f"total_bytes must be positive, not {total_bytes}")
        self._total_bytes = total_bytes
        self._used_bytes = 0
        self._high_bytes = 0
        self._refusals = 0

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def try_reserve(self, size: int) -> bool:
        """Take `size` bytes, all or nothing."""
        used = self._used_bytes + size
        if used > self._total_bytes:
            self._refusals += 1
            return False
        self._used_bytes = used
        if used > self._high_bytes:
            self._high_bytes = used
        return True

    def release(self, size: int) -> None:
        """Give `size` bytes back."""
        if size > self._used_bytes:
            raise ValueError(f"{size} bytes given back, but only {self._used_bytes} are taken")
        self._used_bytes -= size

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        return {
            "total_bytes": self._total_bytes,
            "used_bytes": self._used_bytes,
            "high_bytes": self._high_bytes,
            "refusals": self._refusals,
        }
