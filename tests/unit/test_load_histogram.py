"""The histogram of the load lab."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from load.histogram import SUB_BUCKET_BITS, Histogram

DURATIONS = st.lists(st.integers(min_value=0, max_value=Histogram.highest_ns), min_size=1, max_size=200)


def _filled(values: list[int]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    return histogram


@given(DURATIONS, st.floats(min_value=0.001, max_value=1.0))
def test_a_quantile_is_within_a_bucket_of_the_exact_one(values: list[int], share: float) -> None:
    exact = sorted(values)[math.ceil(share * len(values)) - 1]
    found = _filled(values).quantile_ns(share)
    assert abs(found - exact) <= exact / 2**SUB_BUCKET_BITS


@given(DURATIONS)
def test_the_buckets_hold_every_value_and_do_not_overlap(values: list[int]) -> None:
    buckets = list(_filled(values).buckets())
    for lowest, highest, count in buckets:
        assert sum(lowest <= value <= highest for value in values) == count
    assert sum(count for *_, count in buckets) == len(values)
    assert all(before[1] < after[0] for before, after in pairwise(buckets))


@given(DURATIONS, DURATIONS)
def test_merging_is_the_same_as_recording_in_one(left: list[int], right: list[int]) -> None:
    merged = _filled(left)
    merged.merge(_filled(right))
    together = _filled(left + right)
    assert list(merged.buckets()) == list(together.buckets())
    assert (merged.count, merged.largest_ns) == (together.count, together.largest_ns)


def test_small_durations_are_exact() -> None:
    for value in range(256):
        assert _filled([value]).quantile_ns(1.0) == value


def test_a_quantile_is_never_above_the_largest_value_seen() -> None:
    assert _filled([1_000_000, 1_000_001]).quantile_ns(1.0) <= 1_000_001


def test_a_duration_beyond_the_range_is_counted_and_marked() -> None:
    histogram = _filled([Histogram.highest_ns + 1, Histogram.highest_ns, -5])
    assert (histogram.count, histogram.clipped) == (3, 1)
    assert histogram.largest_ns == Histogram.highest_ns + 1
    assert histogram.quantile_ns(0.1) == 0


def test_no_quantile_is_made_up() -> None:
    with pytest.raises(ValueError, match="no durations"):
        Histogram().quantile_ns(0.5)
    for share in (0.0, 1.1, -1.0, math.nan):
        with pytest.raises(ValueError, match="a share"):
            _filled([1]).quantile_ns(share)


@given(DURATIONS)
def test_it_survives_being_written_as_json(values: list[int]) -> None:
    histogram = _filled(values)
    again = Histogram.from_json(json.loads(json.dumps(histogram.to_json())))
    assert list(again.buckets()) == list(histogram.buckets())
    assert (again.count, again.clipped, again.largest_ns) == (len(values), histogram.clipped, max(values))


@pytest.mark.parametrize("buckets", [[[5, 1], [7, 1]], [[-1, 3]], [[1 << 60, 3]], [[5, 0], [6, 3]]])
def test_json_that_no_histogram_wrote_is_refused(buckets: list[list[int]]) -> None:
    with pytest.raises(ValueError, match=r"histogram has a bucket|do not hold"):
        Histogram.from_json({"count": 3, "clipped": 0, "largest": 9, "buckets": buckets})


def test_the_99_99th_percentile_of_a_hundred_thousand_is_the_tenth_largest() -> None:
    found = _filled([1_000_000] * 99_990 + [50_000_000 + number for number in range(10)])
    assert found.quantile_ns(0.9999) == pytest.approx(1_000_000, rel=0.01)
    assert found.quantile_ns(0.99991) == pytest.approx(50_000_000, rel=0.01)
    assert found.largest_ns == 50_000_009
