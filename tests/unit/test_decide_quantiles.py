"""Quantiles: right to two per cent, of values that are not older than half a minute, and honest about those that are
known from below only.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.decide.quantiles import QuantileSettings, QuantileWindow

NEARLY = 0.02 + 1e-6
"""The error that is promised, and rounding."""
SHARES = (0.0, 0.01, 0.25, 0.5, 0.9, 0.97, 0.99, 1.0)
WITHIN = st.floats(20e-6, 3600.0)


def fresh() -> QuantileWindow:
    return QuantileWindow(QuantileSettings())


def filled(values: Sequence[float]) -> QuantileWindow:
    subject = fresh()
    for value in values:
        subject.record(value, 0.0)
    return subject


def nearest_rank(values: Sequence[float], q: float) -> float:
    """The smallest value that a share `q` of all does not exceed."""
    return sorted(values)[max(1, math.ceil(q * len(values) - 1e-6)) - 1]


def redistributed(full: Sequence[float], at_least: Sequence[float], q: float) -> float:
    """The same with values known from below, by Efron's rule: each of those hands its weight on to all that are
    longer. The last has nobody to hand it to and counts as it is.
    """
    rows = sorted([(value, 0) for value in full] + [(value, 1) for value in at_least])
    weights = [1.0] * len(rows)
    for place, (_, kind) in enumerate(rows[:-1]):
        if kind:
            share = weights[place] / (len(rows) - place - 1)
            weights[place + 1 :] = [weight + share for weight in weights[place + 1 :]]
            weights[place] = 0.0
    reached = 0.0
    for (value, _), weight in zip(rows, weights, strict=True):
        reached += weight
        if weight and reached >= q * len(rows) - 1e-6:
            return value
    return rows[-1][0]


def test_without_values_there_is_no_quantile() -> None:
    subject = fresh()
    assert subject.quantile(0.5, 7.0) is None
    assert subject.quantiles((0.5, 0.9), 7.0) is None
    assert subject.count(7.0) == 0
    assert subject.statistics(7.0) == {"count": 0, "p50_s": None, "p95_s": None, "p99_s": None}


@given(st.lists(WITHIN, min_size=1, max_size=300))
def test_every_quantile_is_right_to_two_per_cent(values: list[float]) -> None:
    subject = filled(values)
    found = subject.quantiles(SHARES, 0.0)
    assert found is not None
    for q, value in zip(SHARES, found, strict=True):
        assert value == pytest.approx(nearest_rank(values, q), rel=NEARLY), q
        assert subject.quantile(q, 0.0) == value


@pytest.mark.parametrize(
    ("q", "expected_s"), [(0.0, 0.001), (0.9, 0.001), (0.96, 0.001), (0.97, 0.001), (0.9701, 1.0), (1.0, 1.0)]
)
def test_a_quantile_is_the_smallest_value_that_such_a_share_does_not_exceed(q: float, expected_s: float) -> None:
    assert filled([0.001] * 97 + [1.0] * 3).quantile(q, 0.0) == pytest.approx(expected_s, rel=NEARLY)


TENS = st.lists(st.integers(0, 14).map(lambda power: 1e-4 * 2.0**power), max_size=40)
"""Values of which no two different ones share a bucket."""


@given(TENS, TENS)
def test_values_known_from_below_speak_for_slowness_until_they_were_cut_short(
    full: list[float], at_least: list[float]
) -> None:
    subject = filled(full)
    for value in at_least:
        subject.record(value, 0.0, at_least=True)
    assert subject.count(0.0) == len(full) + len(at_least)
    for q in SHARES[1:]:
        found = subject.quantile(q, 0.0)
        if not full and not at_least:
            assert found is None
        else:
            assert found == pytest.approx(redistributed(full, at_least, q), rel=NEARLY), q


def test_callers_with_little_time_do_not_make_a_model_look_quick() -> None:
    chance = random.Random(11)
    taken_for_true, honest = fresh(), fresh()
    for _ in range(5000):
        takes_s, has_s = chance.uniform(0.010, 0.030), chance.uniform(0.005, 0.040)
        taken_for_true.record(min(takes_s, has_s), 0.0)
        if takes_s <= has_s:
            honest.record(takes_s, 0.0)
        else:
            honest.record(has_s, 0.0, at_least=True)
    assert honest.quantile(0.5, 0.0) == pytest.approx(0.020, rel=0.05)
    assert (taken_for_true.quantile(0.5, 0.0) or 0.0) < 0.017, "or the other way to count would do as well"


@pytest.mark.parametrize(
    ("value_s", "expected_s"),
    [
        (0.0, 20e-6),
        (-1.0, 20e-6),
        (-math.inf, 20e-6),
        (1e-9, 20e-6),
        (20e-6, 20e-6),
        (math.nextafter(20e-6, 1), 20e-6),
        (math.nextafter(3600.0, 0), 3600.0),
        (3600.0, 3600.0),
        (5000.0, 3600.0),
        (1e9, 3600.0),
        (math.inf, 3600.0),
    ],
)
@pytest.mark.parametrize("at_least", [False, True])
def test_what_lies_outside_counts_as_the_bound(value_s: float, expected_s: float, at_least: bool) -> None:
    subject = fresh()
    subject.record(value_s, 0.0, at_least=at_least)
    assert subject.quantile(1.0, 0.0) == pytest.approx(expected_s, rel=NEARLY)


def test_what_is_no_number_is_refused_and_leaves_no_trace() -> None:
    subject = filled([0.01])
    for at_least in (False, True):
        with pytest.raises(ValueError):
            subject.record(math.nan, 0.0, at_least=at_least)
    assert subject.count(0.0) == 1
    assert subject.quantile(1.0, 0.0) == pytest.approx(0.01, rel=NEARLY)


@pytest.mark.parametrize("q", [-0.01, 1.01, math.nan, math.inf])
def test_a_share_outside_of_none_and_all_is_refused(q: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        filled([0.01]).quantile(q, 0.0)
    with pytest.raises(ValueError, match="between 0 and 1"):
        fresh().quantiles((0.5, q), 0.0)


def test_windows_go_one_by_one() -> None:
    subject = fresh()
    for second in range(30):
        subject.record(0.001 * (1 + second // 5), 100.0 + second)
    left = [(subject.count(now_s), subject.quantile(0.0, now_s)) for now_s in (129.9, 130.0, 134.9, 135.0, 154.9)]
    assert [count for count, _ in left] == [30, 25, 25, 20, 5]
    assert [value for _, value in left] == pytest.approx([0.001, 0.002, 0.002, 0.003, 0.006], rel=NEARLY)
    assert subject.count(155.0) == 0
    assert subject.quantile(0.5, 155.0) is None


def test_a_long_silence_is_not_stepped_through() -> None:
    subject = filled([0.01] * 3)
    assert subject.count(1e15) == 0  # 2e14 windows later: one by one, this test would not end
    subject.record(0.02, 1e15)
    assert subject.quantile(0.5, 1e15) == pytest.approx(0.02, rel=NEARLY)


MOMENTS = st.lists(st.tuples(st.integers(0, 80), st.booleans()), max_size=60)
"""Half seconds that pass, and whether a value comes then."""


@given(MOMENTS)
def test_values_count_for_25_seconds_and_never_for_30(moments: list[tuple[int, bool]]) -> None:
    subject = fresh()
    now_s = 1000.0
    recorded_s: list[float] = []
    for half_seconds, comes in moments:
        now_s += half_seconds / 2
        if comes:
            subject.record(0.01, now_s)
            recorded_s.append(now_s)
        ages = [now_s - at_s for at_s in recorded_s]
        count = subject.count(now_s)
        assert sum(age <= 25 for age in ages) <= count <= sum(age < 30 for age in ages)
        assert (subject.quantile(0.5, now_s) is None) == (count == 0)


@given(st.lists(WITHIN, min_size=1, max_size=40))
def test_it_does_not_matter_in_which_window_a_value_fell(values: list[float]) -> None:
    spread = fresh()
    for place, value in enumerate(values):
        spread.record(value, 24.0 * place / len(values))
    assert spread.quantiles(SHARES, 24.0) == filled(values).quantiles(SHARES, 0.0)


def test_a_window_of_one() -> None:
    subject = QuantileWindow(QuantileSettings(windows=1, window_s=1.0))
    subject.record(0.01, 0.0)
    assert subject.count(0.9) == 1
    subject.record(0.02, 1.0)
    assert subject.count(1.0) == 1
    assert subject.quantile(0.0, 1.0) == pytest.approx(0.02, rel=NEARLY)


def counters(subject: QuantileWindow) -> int:
    return sum(len(window) for window in subject._ring)


def test_memory_is_bounded_whatever_is_recorded() -> None:
    chance = random.Random(5)
    subject = fresh()
    for number in range(30_000):
        subject.record(math.exp(chance.uniform(-20, 20)), number * 0.002, at_least=chance.random() < 0.5)
    settings = subject.settings
    assert settings.buckets == 476
    assert counters(subject) <= settings.windows * 2 * settings.buckets
    subject.count(1e6)
    assert counters(subject) == 0


def test_a_quiet_model_costs_next_to_nothing() -> None:
    assert counters(filled([0.01, 0.01, 0.02])) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"relative_error": 0.0},
        {"relative_error": 1.0},
        {"relative_error": math.nan},
        {"lowest_s": 0.0},
        {"lowest_s": 3600.0},
        {"highest_s": math.inf},
        {"windows": 0},
        {"window_s": 0.0},
        {"window_s": math.inf},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        QuantileSettings(**wrong)  # type: ignore[arg-type]


def test_statistics_are_those_of_the_values_that_count() -> None:
    subject = fresh()
    subject.record(9.0, 0.0)
    for _ in range(100):
        subject.record(0.01, 6.0)
    subject.record(0.04, 6.0, at_least=True)
    statistics = subject.statistics(31.0)
    assert statistics["count"] == 101
    assert [statistics[name] for name in ("p50_s", "p95_s", "p99_s")] == pytest.approx([0.01] * 3, rel=NEARLY)
