"""Credit for what costs this side work and brings nobody anything."""

from __future__ import annotations


class Allowance:
    """A credit that is refilled by time and by useful work; at most `burst` of it is kept.

    Whoever spends takes from `left` and asks `refill` only when that is below zero: so spending is one subtraction.
    Deterministic: time comes in as an argument.
    """

    __slots__ = ("_burst", "_per_s", "_per_work", "_refilled_at_s", "_work_seen", "left")

    def __init__(self, burst: int, per_s: float, per_work: int) -> None:
        self._burst = burst
        self._per_s = per_s
        self._per_work = per_work
        self._refilled_at_s = 0.0
        self._work_seen = 0
        self.left: float = burst

    def start(self, now_s: float) -> None:
        """Start the clock: before the first `refill`."""
        self._refilled_at_s = now_s

    def refill(self, now_s: float, work: int) -> bool:
        """Add what has been earned since the last refill; False if that leaves the credit below zero.

        `work` counts useful things since the connection began. Time and work never go backwards.
        """
        earned = (now_s - self._refilled_at_s) * self._per_s + (work - self._work_seen) * self._per_work
        self._refilled_at_s = now_s
        self._work_seen = work
        self.left = min(self.left + earned, self._burst)
        return self.left >= 0
