"""Quantiles of the last half minute: how long does an attempt take, at the median and far out in the tail?

Values are counted in logarithmic buckets, so that every quantile is known to the same relative error whatever the scale
(DDSketch: Masson, Rim and Lee, VLDB 2019), and in a ring of short windows of which the oldest is thrown away, so that
what is known is never old. Buckets are kept only where something fell: a quiet model costs next to nothing.

Some values are known only from below: an attempt that was cut short would have taken longer still. They count as what
they are (the product-limit estimate: Kaplan and Meier, 1958): until they were cut short they speak for slowness, and
afterwards for nothing. To drop them would hide just the slow ones; to take them for the truth would make a model look
quick whose callers have little time.

Bounds: at most `windows` times twice `buckets` counters, whatever is recorded. A record costs one logarithm and one
increment; a reading walks over the buckets in use (some dozens as a rule), and its owner keeps what it read.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ROUNDING = 1e-9
"""Shares that differ by less are the same share: 97 of 100 values are 0.97 of them."""

FRESH_MAX = 512
"""Values that wait to be counted together: one step a value less, and it takes well under a millisecond."""

AT_LEAST = 1
"""The lowest bit of a counter's key: the values are known from below. Sorted, those of a bucket come after the full
ones, as the product-limit estimate wants it.
"""


@dataclass(frozen=True, slots=True)
class QuantileSettings:
    """How exactly, over which range and over how long. Raises ValueError where a value makes no sense."""

    relative_error: float = 0.02
    """A quantile is off by at most this share of itself (notes 2.5)."""
    lowest_s: float = 20e-6
    """What is shorter counts as this, seconds: no call over a network is."""
    highest_s: float = 3600.0
    """What is longer counts as this, seconds."""
    windows: int = 6
    """Windows in the ring (notes 2.5)."""
    window_s: float = 5.0
    """Length of one, seconds (notes 2.5). A value counts for `windows` of these, less the part of its own that had
    passed.
    """

    def __post_init__(self) -> None:
        if not 0 < self.relative_error < 1:
            raise ValueError(f"relative_error must lie between 0 and 1, not at {self.relative_error}")
        if not 0 < self.lowest_s < self.highest_s < math.inf:
            raise ValueError(f"0 < lowest_s < highest_s must hold, not with {self.lowest_s} and {self.highest_s}")
        if self.windows < 1:
            raise ValueError(f"windows must be at least 1, not {self.windows}")
        if not 0 < self.window_s < math.inf:
            raise ValueError(f"window_s must be positive and finite, not {self.window_s}")

    @property
    def buckets(self) -> int:
        """How many there are between the two bounds."""
        return 1 + int(math.log(self.highest_s) * self.per_log - math.log(self.lowest_s) * self.per_log)

    @property
    def per_log(self) -> float:
        """Buckets for each factor of e. A bucket ends at (1 + error) / (1 - error) times its beginning."""
        return 1.0 / (math.log1p(self.relative_error) - math.log1p(-self.relative_error))


class QuantileWindow:
    """Counts values, forgets the old ones, and tells quantiles of the rest."""

    __slots__ = (
        "_count",
        "_current",
        "_offset",
        "_per_log",
        "_ring",
        "_top",
        "_total_s",
        "fresh",
        "highest_s",
        "lowest_s",
        "settings",
        "until_s",
    )

    def __init__(self, settings: QuantileSettings) -> None:
        self.settings = settings
        self.lowest_s = settings.lowest_s
        self.highest_s = settings.highest_s
        self._per_log = settings.per_log
        self._offset = -math.log(settings.lowest_s) * self._per_log
        self._top = settings.buckets - 1
        self._current: dict[int, int] = {}
        self._ring: deque[dict[int, int]] = deque([self._current], maxlen=settings.windows)
        self._count = 0
        self._total_s = 0.0
        self.until_s = -math.inf
        """When the current window is over; what is recorded first opens one."""
        self.fresh: list[float] = []
        """Values of the current window that are in no bucket yet. A hot path may append here what is known in full,
        before `until_s`, and has to call `fold` at `FRESH_MAX` of them.
        """

    def record(self, value_s: float, now_s: float, *, at_least: bool = False) -> None:
        """A value, seconds; `at_least`: it is known only to be this long or longer. O(1), now and then O(buckets in
        use). Raises ValueError for NaN.
        """
        if now_s >= self.until_s:
            self._turn(now_s)
        self._add(value_s, at_least)

    def _add(self, value_s: float, at_least: int) -> None:
        if value_s <= self.lowest_s:
            key = at_least
        elif value_s >= self.highest_s:
            key = self._top << 1 | at_least
        else:
            key = self._bucket(value_s) << 1 | at_least
        current = self._current
        current[key] = current.get(key, 0) + 1
        self._count += 1
        self._total_s += max(0.0, min(value_s, self.highest_s))

    def _bucket(self, value_s: float) -> int:
        return int(math.log(value_s) * self._per_log + self._offset)

    def fold(self) -> None:
        """Count what is fresh, as `record` would have. Sorted, what falls into one bucket is one step."""
        fresh = self.fresh
        if not fresh:
            return
        lowest_s, highest_s, current = self.lowest_s, self.highest_s, self._current
        fresh.sort()
        begin, end = bisect_right(fresh, lowest_s), bisect_left(fresh, highest_s)
        if begin or end < len(fresh):
            for value_s in fresh[:begin] + fresh[end:]:
                self._add(value_s, 0)
            del fresh[end:], fresh[:begin]
        self._total_s += sum(fresh)
        self._count += len(fresh)
        at = 0
        while at < len(fresh):
            bucket = self._bucket(fresh[at])
            end_s = math.exp((bucket + 1 - self._offset) / self._per_log)
            end = max(at + 1, bisect_left(fresh, end_s, at))
            current[bucket << 1] = current.get(bucket << 1, 0) + end - at
            at = end
        fresh.clear()

    @property
    def total_s(self) -> float:
        """The sum of all values that were ever recorded, seconds; what is longer than `highest_s` counts as this, what
        is below 0 as 0.
        """
        self.fold()
        return self._total_s

    def _turn(self, now_s: float) -> None:
        """Open the window that `now_s` falls into, and forget those that are too old."""
        self.fold()
        width_s, ring = self.settings.window_s, self._ring
        late_s = now_s - self.until_s
        if late_s >= (self.settings.windows - 1) * width_s:  # after a long silence nothing is left to step through
            ring.clear()
            self._count = 0
            steps, self.until_s = 1, now_s + width_s
        else:
            steps = 1 + int(late_s / width_s)
            self.until_s += steps * width_s
        for _ in range(steps):
            if len(ring) == self.settings.windows:
                self._count -= sum(ring[0].values())
            ring.append({})
        self._current = ring[-1]

    def count(self, now_s: float) -> int:
        """Values that still count, those known from below among them. O(1), but for what is fresh."""
        self.fold()
        if now_s >= self.until_s:
            self._turn(now_s)
        return self._count

    def quantile(self, q: float, now_s: float) -> float | None:
        """The value, seconds, that a share `q` of all values does not exceed; None where there are no values."""
        found = self.quantiles((q,), now_s)
        return None if found is None else found[0]

    def quantiles(self, qs: Sequence[float], now_s: float) -> tuple[float, ...] | None:
        """Several at the price of one: O(buckets in use). Where what is known from below leaves a quantile open, the
        longest value stands for it. Raises ValueError for a `q` outside of [0, 1].
        """
        for q in qs:
            if not 0 <= q <= 1:
                raise ValueError(f"a quantile lies between 0 and 1, not at {q}")
        if not self.count(now_s):  # which folds
            return None
        shares, buckets = self._curve()
        return tuple(self._middle(buckets[bisect_left(shares, q - ROUNDING)]) for q in qs)

    def _curve(self) -> tuple[list[float], list[int]]:
        """The share of all values up to the end of a bucket, and the bucket, both ascending. There is one bucket more
        than shares: the last of all.
        """
        merged: dict[int, int] = {}
        for window in self._ring:
            for key, count in window.items():
                merged[key] = merged.get(key, 0) + count
        shares: list[float] = []
        buckets: list[int] = []
        longer, left = 1.0, self._count
        key = 0
        for key in sorted(merged):
            count = merged[key]
            if not key & AT_LEAST:
                longer *= 1.0 - count / left
                shares.append(1.0 - longer)
                buckets.append(key >> 1)
            left -= count
        buckets.append(key >> 1)
        return shares, buckets

    def _middle(self, bucket: int) -> float:
        """The value from which both ends of the bucket are equally far, by their own measure."""
        settings = self.settings
        return settings.lowest_s * math.exp(bucket / self._per_log) * (1.0 + settings.relative_error)

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        """Of the values that still count; None for the quantiles where there are none."""
        p50_s, p95_s, p99_s = self.quantiles((0.5, 0.95, 0.99), now_s) or (None, None, None)
        return {"count": self._count, "p50_s": p50_s, "p95_s": p95_s, "p99_s": p99_s}
