"""A clock in a test's hand."""

from __future__ import annotations


class ManualClock:
    """Stands still until `advance`."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self._now_s = now_s

    def now_s(self) -> float:
        return self._now_s

    def wall_s(self) -> float:
        return 1_700_000_000.0 + self._now_s

    def advance(self, seconds: float) -> None:
        assert seconds >= 0, "time never goes back"
        self._now_s += seconds
