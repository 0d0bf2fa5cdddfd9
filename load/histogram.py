"""Counts of durations in log-linear buckets, as HdrHistogram has them: constant relative error, constant size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

SUB_BUCKET_BITS = 7
_SUB_BUCKETS = 1 << SUB_BUCKET_BITS
_OCTAVES = 40 - SUB_BUCKET_BITS
"""Up to 2**40 ns, about 18 minutes."""


class Histogram:
    """Durations in nanoseconds, each bucket at most 1/128 of its value wide; exact below 256 ns.

    Recording costs an index and an addition. Values above `highest_ns` count in the last bucket and in `clipped`.
    After: Tene, HdrHistogram; the layout with powers of two split evenly is its own.
    """

    __slots__ = ("_buckets", "clipped", "count", "largest_ns")

    highest_ns = (1 << 40) - 1

    def __init__(self) -> None:
        self._buckets = [0] * ((_OCTAVES + 1) * _SUB_BUCKETS)
        self.count = 0
        self.clipped = 0
        self.largest_ns = 0

    def record(self, duration_ns: int) -> None:
        """Count one duration; a negative one counts as 0."""
        value = duration_ns if duration_ns > 0 else 0
        if value > self.largest_ns:
            self.largest_ns = value
        if value > self.highest_ns:
            self.clipped += 1
            value = self.highest_ns
        self._buckets[_index(value)] += 1
        self.count += 1

    def merge(self, other: Histogram) -> None:
        """Add the counts of `other`."""
        for index, count in enumerate(other._buckets):
            if count:
                self._buckets[index] += count
        self.count += other.count
        self.clipped += other.clipped
        self.largest_ns = max(self.largest_ns, other.largest_ns)

    def to_json(self) -> dict[str, Any]:
        """All of it as plain data; `from_json` makes the same again. A bucket is [its lowest value, its count]."""
        return {
            "unit": "ns",
            "count": self.count,
            "clipped": self.clipped,
            "largest": self.largest_ns,
            "buckets": [[lowest, count] for lowest, _, count in self.buckets()],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Histogram:
        """What `to_json` gave. Raises ValueError for data that no histogram gave."""
        made = cls()
        for lowest, count in data["buckets"]:
            if not 0 <= lowest <= cls.highest_ns or count < 1:
                raise ValueError(f"no histogram has a bucket of {count} at {lowest}")
            made._buckets[_index(lowest)] += count
        made.count, made.clipped, made.largest_ns = data["count"], data["clipped"], data["largest"]
        if sum(made._buckets) != made.count:
            raise ValueError(f"its buckets do not hold the {made.count} durations that it claims")
        return made

    def quantile_ns(self, share: float) -> float:
        """The duration that `share` of the counts (above 0, at most 1) do not exceed: the middle of its bucket, and
        never above the largest value seen. Raises ValueError without any counts.
        """
        if not 0.0 < share <= 1.0:
            raise ValueError(f"a share is above 0 and at most 1, not {share}")
        if not self.count:
            raise ValueError("no durations were recorded")
        rank = math.ceil(share * self.count)
        seen = 0
        for lowest, highest, count in self.buckets():
            seen += count
            if seen >= rank:
                return min((lowest + highest) / 2, float(self.largest_ns))
        raise AssertionError("the buckets hold fewer counts than `count`")

    def buckets(self) -> Iterator[tuple[int, int, int]]:
        """Lowest value, highest value and count of each bucket that has counts, upwards."""
        for index, count in enumerate(self._buckets):
            if count:
                octave, within = divmod(index, _SUB_BUCKETS)
                shift = max(0, octave - 1)
                lowest = within if octave == 0 else (_SUB_BUCKETS + within) << shift
                yield lowest, lowest + (1 << shift) - 1, count


def _index(value: int) -> int:
    if value < _SUB_BUCKETS:
        return value
    shift = value.bit_length() - SUB_BUCKET_BITS - 1
    return ((shift + 1) << SUB_BUCKET_BITS) + (value >> shift) - _SUB_BUCKETS
