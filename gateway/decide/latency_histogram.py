"""How long the calls of one window took: counts in buckets of equal ratio, for quantiles, and the mean."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from math import ceil, exp, isfinite, log

LEAST_S = 1e-5
MOST_S = 1e5
PER_E = 50
"""Buckets for each factor of e: 2 % from edge to edge, so that a quantile is off by 1 %."""
BUCKETS = ceil(log(MOST_S / LEAST_S) * PER_E)


class LatencyHistogram:
    """At most 1,152 counts, however many samples. Durations outside [10 us, 100,000 s] count in the outermost
    buckets and as such a duration, so that neither quantile nor mean is ever zero or infinite.
    """

    __slots__ = ("_counts", "_sum_s", "count")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._sum_s = 0.0
        self.count = 0
        """Samples. For reading."""

    def add(self, duration_s: float) -> None:
        """O(1)."""
        if duration_s <= LEAST_S:
            index, duration_s = 0, LEAST_S
        elif duration_s < MOST_S:
            index = int(log(duration_s / LEAST_S) * PER_E)
        else:
            index, duration_s = BUCKETS - 1, MOST_S
        self._sum_s += duration_s
        self._counts[index] = self._counts.get(index, 0) + 1
        self.count += 1

    def add_all(self, durations_s: Iterable[float]) -> None:
        """Several. Sorted, what falls into one bucket is one step."""
        ordered = sorted(durations_s)
        if not ordered or not (ordered[0] > LEAST_S and ordered[-1] < MOST_S and isfinite(sum(ordered))):
            for duration_s in ordered:
                self.add(duration_s)
            return
        counts, at = self._counts, 0
        while at < len(ordered):
            index = int(log(ordered[at] / LEAST_S) * PER_E)
            end = max(at + 1, bisect_left(ordered, LEAST_S * exp((index + 1) / PER_E), at))
            counts[index] = counts.get(index, 0) + end - at
            at = end
        self._sum_s += sum(ordered)
        self.count += len(ordered)

    def quantile(self, share: float) -> float:
        """Seconds; `share` of the samples took no longer. O(buckets in use). Raises ValueError without a sample:
        the largest number there is would be a poor answer (Envoy once gave it, and blocked all traffic).
        """
        if not self.count:
            raise ValueError("a quantile of nothing")
        rank = min(max(1, ceil(share * self.count)), self.count)
        index = -1
        for index in sorted(self._counts):
            rank -= self._counts[index]
            if rank <= 0:
                break
        return LEAST_S * exp((index + 0.5) / PER_E)

    def mean(self) -> float:
        """Seconds. Raises ValueError without a sample."""
        if not self.count:
            raise ValueError("a mean of nothing")
        return self._sum_s / self.count

    def clear(self) -> None:
        self._counts.clear()
        self._sum_s = 0.0
        self.count = 0
