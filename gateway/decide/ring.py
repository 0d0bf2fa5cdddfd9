"""Ring: exact counts of calls, failures and slow calls over the last seconds, in buckets.

Exact, and not an average weighted by time: that under-weighs tight bursts (linkerd2-proxy, `breaker/unified.rs`, 2026).
Nearly every call is good. Such a one may be counted by `good += 1` alone, while the present bucket lasts (`until_s`);
the ring takes them in with the next `add` or `read`.

Memory: three integers a bucket. O(1); each bucket is turned over once.
"""

from __future__ import annotations


class Ring:
    """Exact counts of the last `buckets` spans of `bucket_s`, the present one included."""

    __slots__ = ("_at", "_calls", "_failures", "_slow", "_width_s", "calls", "failures", "good", "slow", "until_s")

    def __init__(self, buckets: int, bucket_s: float) -> None:
        self._width_s = bucket_s
        self._at = 0
        self._calls, self._failures, self._slow = [0] * buckets, [0] * buckets, [0] * buckets
        self.calls = self.failures = self.slow = 0
        """Sums over the ring, as of the last `turn`."""
        self.good = 0
        """Good calls of the present bucket that are in no sum yet."""
        self.until_s = bucket_s
        """When the present bucket ends."""

    def add(self, now_s: float, failed: bool, slow: bool) -> None:
        self.turn(now_s)
        place = self._at % len(self._calls)
        self.calls += 1
        self._calls[place] += 1
        if failed:
            self.failures += 1
            self._failures[place] += 1
        if slow:
            self.slow += 1
            self._slow[place] += 1

    def turn(self, now_s: float) -> None:
        """Brings the sums up to `now_s`."""
        self._take_in()
        if now_s >= self.until_s:
            self._turn(int(now_s / self._width_s))

    def _take_in(self) -> None:
        if self.good:
            self.calls += self.good
            self._calls[self._at % len(self._calls)] += self.good
            self.good = 0

    def _turn(self, at: int) -> None:
        size = len(self._calls)
        for number in range(max(self._at, at - size) + 1, at + 1):
            place = number % size
            self.calls -= self._calls[place]
            self.failures -= self._failures[place]
            self.slow -= self._slow[place]
            self._calls[place] = self._failures[place] = self._slow[place] = 0
        self._at = at
        self.until_s = (at + 1) * self._width_s

    def read(self, now_s: float) -> tuple[int, int, int]:
        """Calls, failures and slow calls as of `now_s`, or of the latest instant told, if that is later."""
        self._take_in()
        size = len(self._calls)
        first = max(int(now_s / self._width_s), self._at) - size + 1
        places = [number % size for number in range(first, self._at + 1)]
        return (
            sum(self._calls[place] for place in places),
            sum(self._failures[place] for place in places),
            sum(self._slow[place] for place in places),
        )
