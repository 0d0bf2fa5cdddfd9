"""The adaptive limit: what moves it and what does not, window by window, and what holds whatever happens."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.outcome import Verdict
from gateway.decide.limit import AdaptiveLimit
from tests.unit.limit_world import statistics_bounds

FLOOR, START, CAP = 8, 16, 64
SERVICE_S = 0.05


def adaptive(floor: int = FLOOR, start: int = START, cap: int = CAP, seed: int = 18) -> AdaptiveLimit:
    return AdaptiveLimit(floor, start, cap, Random(seed).random, 0.0)


def window(
    subject: AdaptiveLimit,
    now_s: float,
    *,
    latency_s: float = 0.05,
    in_flight: int | None = None,
    samples: int = 100,
    drops: int = 0,
) -> float:
    """One window of one second (of three latencies if that is longer), with `samples` endings of which `drops` are
    drops. Returns its end.
    """
    length_s = max(1.0, 3 * latency_s * 1.02)
    for number in range(1, samples + 1):
        at_s = now_s + length_s * number / samples
        verdict = Verdict.FAILURE if number <= drops else Verdict.SUCCESS
        subject.ended(verdict, at_s - latency_s, latency_s, subject.limit if in_flight is None else in_flight, at_s)
    return now_s + length_s


def calm(subject: AdaptiveLimit, now_s: float = 0.0) -> float:
    """The baseline becomes known: 50 ms."""
    for _ in range(3):
        now_s = window(subject, now_s, in_flight=4)
    assert subject.baseline_s == pytest.approx(SERVICE_S, rel=0.02)
    return now_s


def test_a_window_with_too_few_samples_changes_nothing() -> None:
    subject = adaptive()
    now_s = calm(subject)
    before = subject.statistics(now_s)["windows"]
    window(subject, now_s, samples=49, drops=49)
    assert (subject.limit, subject.statistics(now_s)["windows"]) == (START, before)


def test_a_window_that_never_fills_is_thrown_away() -> None:
    subject = adaptive()
    for second in range(300):
        subject.ended(Verdict.FAILURE, second - 1.0, 1.0, 1, float(second))
    assert (subject.limit, subject.statistics(300.0)["windows"]) == (START, 0)


def test_a_window_lasts_three_times_as_long_as_its_calls_so_that_most_of_them_are_seen() -> None:
    subject = adaptive()
    for number in range(6000):
        now_s = number / 200
        subject.ended(Verdict.SUCCESS, now_s - 0.5, 0.5, 4, now_s)
    assert 17 <= subject.statistics(30.0)["windows"] <= 20, "a second and a half each, in 30 s"


def test_successes_sent_before_the_window_teach_no_latency() -> None:
    subject = adaptive()
    now_s = calm(subject)
    for number in range(1, 200):
        subject.ended(Verdict.SUCCESS, now_s - 1.0, 9.0, 4, now_s + number / 20)
    assert subject.statistics(now_s)["recent_s"] == pytest.approx(SERVICE_S, rel=0.02)
    assert subject.baseline_s == pytest.approx(SERVICE_S, rel=0.02)


@pytest.mark.parametrize(("drops", "limit", "why"), [(9, START, "unused"), (10, 14, "drops"), (100, 14, "drops")])
def test_a_tenth_of_drops_lowers_the_limit_by_a_quarter_of_what_is_above_the_floor(
    drops: int, limit: int, why: str
) -> None:
    subject = adaptive()
    now_s = window(subject, calm(subject), in_flight=10, drops=drops)
    assert (subject.limit, subject.why) == (limit, why)
    assert subject.shrinking(now_s) == (why == "drops")


@pytest.mark.parametrize(("drops", "recent_s"), [(0, 0.05), (6, 0.5)])
def test_drops_count_as_the_slowest_of_calls(drops: int, recent_s: float) -> None:
    subject = adaptive()
    for number in range(500):  # six of a hundred are slow: with as many drops, the 90th percentile is among them
        now_s = number / 100
        verdict = Verdict.FAILURE if number % 100 < drops else Verdict.SUCCESS
        duration_s = 0.5 if number % 100 >= 94 else 0.05
        subject.ended(verdict, now_s, duration_s, 4, now_s)
    assert subject.statistics(5.0)["recent_s"] == pytest.approx(recent_s, rel=0.02)


def test_drops_never_bring_it_under_the_floor_and_it_comes_back_when_they_cease() -> None:
    subject = adaptive()
    now_s = calm(subject)
    for _ in range(30):
        now_s = window(subject, now_s, drops=50)
    assert subject.limit == FLOOR
    assert not subject.shrinking(now_s), "it has not fallen for long"
    for _ in range(6):
        now_s = window(subject, now_s)
    assert (subject.limit, subject.why) == (START, "recover")


def test_it_does_not_come_back_while_less_than_half_is_in_use() -> None:
    subject = adaptive()
    now_s = calm(subject)
    while subject.limit > FLOOR:
        now_s = window(subject, now_s, drops=50)
    for _ in range(5):
        now_s = window(subject, now_s, in_flight=3)
    assert (subject.limit, subject.why) == (FLOOR, "unused")
    now_s = window(subject, now_s, in_flight=4)
    assert subject.limit > FLOOR


def test_latency_alone_does_not_take_the_room_in_which_batches_fill() -> None:
    subject = adaptive()
    now_s = calm(subject)
    for _ in range(20):
        now_s = window(subject, now_s, latency_s=0.3)
        statistics_bounds(subject)
        assert subject.limit in {FLOOR, START}, "the floor is a measurement"
    assert subject.statistics(now_s)["queue"] <= START - FLOOR


def earn(subject: AdaptiveLimit, now_s: float, latency_s: float = 0.05, steps: int = 30) -> float:
    """Windows of a server that runs any number at once."""
    for _ in range(steps):
        now_s = window(subject, now_s, latency_s=latency_s, samples=10 * subject.limit)
    return now_s


def test_where_each_slot_does_work_the_limit_climbs_to_its_cap_and_falls_by_latency_to_its_start() -> None:
    subject = adaptive()
    now_s = earn(subject, calm(subject), steps=40)
    assert subject.limit == CAP
    seen = [CAP]
    for _ in range(20):
        now_s = window(subject, now_s, latency_s=0.4, samples=200)
        seen.append(subject.limit)
    assert subject.limit == START or subject.why == "probe"
    falls = [a - b for a, b in pairwise(seen) if a > b]
    assert max(falls) >= 15, "far too much goes fast"


def test_a_limit_that_brings_no_throughput_is_not_kept_even_where_latency_does_not_object() -> None:
    # A batch takes as long as one call: at the floor, where none waits, a call finds half a batch running, and takes
    # as long as at the start. So the baseline is twice what it should be.
    subject = adaptive()
    now_s, seen = 0.0, []
    for _ in range(400):
        now_s = window(subject, now_s, latency_s=max(2.0, subject.limit / FLOOR) * SERVICE_S, samples=160)
        seen.append(subject.limit)
    assert subject.baseline_s == pytest.approx(2 * SERVICE_S, rel=0.02)
    assert max(seen) == START * 9 // 8, "it was tried"
    assert sum(limit > START for limit in seen) <= 12, "more and more seldom"


def test_a_limit_above_its_start_that_does_no_more_work_is_given_up_though_latency_does_not_object() -> None:
    subject = adaptive()
    now_s = 0.0
    while subject.limit < 1.4 * START:
        now_s = window(subject, now_s, latency_s=2 * SERVICE_S, samples=10 * subject.limit)
        assert now_s < 60
    spared = []
    for _ in range(200):
        now_s = window(subject, now_s, latency_s=max(2.0, subject.limit / FLOOR) * SERVICE_S, samples=160)
        spared += [subject.limit] if subject.why == "spared" else []
    assert spared == [18, START]
    assert START <= subject.limit <= START * 9 // 8


def test_one_slow_window_is_no_trend() -> None:
    subject = adaptive()
    now_s = earn(subject, calm(subject))
    while subject._trial is not None:
        now_s = earn(subject, now_s, steps=1)
    grown = subject.limit
    assert grown > 2 * START
    now_s = window(subject, now_s, latency_s=0.3, samples=200)
    for _ in range(3):
        now_s = window(subject, now_s, samples=10 * subject.limit)
        assert subject.why != "queue"
    assert subject.limit >= grown * 7 // 8
    for _ in range(2):
        now_s = window(subject, now_s, latency_s=0.3, samples=200)
    assert subject.why == "queue"


def test_a_trial_whose_slots_are_not_taken_proves_nothing_and_is_taken_back() -> None:
    subject = adaptive()
    now_s = calm(subject)
    while subject.why != "trial_up":
        now_s = window(subject, now_s, samples=160)
    assert subject.limit == START * 9 // 8
    now_s = window(subject, now_s, latency_s=0.03, in_flight=14)
    assert (subject.limit, subject.why) == (START, "unused")
    for _ in range(3):
        now_s = window(subject, now_s, samples=160)
    assert subject.limit > START, "nor does the next wait for it"


def test_what_was_answered_under_another_limit_is_no_measure() -> None:
    subject = adaptive()
    now_s = window(subject, calm(subject), samples=160)
    assert subject._full is not None
    window(subject, now_s, drops=50)
    assert subject._full is None


def test_a_limit_above_its_start_that_does_work_is_kept() -> None:
    subject = adaptive()
    now_s = calm(subject)
    seen = []
    for _ in range(300):  # 32 at once
        now_s = window(subject, now_s, latency_s=max(1.0, subject.limit / 32) * SERVICE_S, samples=10 * subject.limit)
        seen += [subject.limit] if subject.why not in {"probe", "trial_up", "trial_down"} else []
    assert all(29 <= limit <= 42 for limit in seen[60:])
    assert subject.statistics(now_s)["probes"] >= 2


def test_what_is_not_in_use_does_not_grow() -> None:
    subject = adaptive()
    now_s = calm(subject)
    for _ in range(60):
        now_s = window(subject, now_s, in_flight=START // 2, samples=300)
    assert (subject.limit, subject.why) == (START, "unused")


def test_neutral_endings_teach_nothing() -> None:
    plain, mixed = adaptive(), adaptive()
    chance = Random(1)
    now_s = 0.0
    for _ in range(3000):
        now_s += chance.expovariate(150)
        latency_s = chance.uniform(0.02, 0.08)
        verdict = Verdict.FAILURE if chance.random() < 0.12 else Verdict.SUCCESS
        for subject in (plain, mixed):
            subject.ended(verdict, now_s - latency_s, latency_s, 6, now_s)
        for _ in range(chance.randrange(4)):
            mixed.ended(Verdict.NEUTRAL, now_s - 0.001, 0.001, 60, now_s)
    assert plain.statistics(now_s) == mixed.statistics(now_s)
    assert plain.limit < START


def test_a_measurement_holds_the_limit_at_the_floor_and_ends_though_only_neutral_endings_come() -> None:
    subject = adaptive()
    now_s = 0.0
    while subject.why != "probe":
        now_s = window(subject, now_s)
        assert now_s < 10
    assert subject.limit == FLOOR
    assert subject.shrinking(now_s)
    assert subject.statistics(now_s)["probing"]
    subject.ended(Verdict.NEUTRAL, now_s, 0.001, FLOOR, now_s + 1000)
    assert (subject.limit, subject.shrinking(now_s + 1000)) == (START, False)


def test_a_fleet_that_changes_scales_the_limit_as_its_start() -> None:
    subject = adaptive()
    now_s = earn(subject, calm(subject), steps=7)
    grown = subject._limit
    assert grown > START
    baseline_s = subject.baseline_s
    subject.update(4 * FLOOR, 4 * START, 4 * CAP, now_s)
    assert subject._limit == 4 * grown
    assert (subject.why, subject.baseline_s) == ("fleet", baseline_s)
    subject.update(1, 2, 8, now_s)
    assert 2 <= subject.limit <= 8
    now_s = window(subject, now_s, drops=50)
    subject.update(3, 3, 3, now_s)
    assert (subject.limit, subject.statistics(now_s)["queue"]) == (3, 0)
    statistics_bounds(subject)


def test_an_update_that_changes_nothing_disturbs_no_window() -> None:
    subject = adaptive()
    now_s = calm(subject)
    for number in range(1, 101):
        at_s = now_s + number / 100
        subject.ended(Verdict.FAILURE, at_s, 0.05, 8, at_s)
        subject.update(FLOOR, START, CAP, at_s)
    assert subject.why == "drops"


@pytest.mark.parametrize("bounds", [(0, 1, 1), (2, 1, 3), (1, 3, 2)])
def test_bounds_that_make_no_sense_are_refused(bounds: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="floor <= start <= cap"):
        adaptive(*bounds)
    with pytest.raises(ValueError, match="floor <= start <= cap"):
        adaptive().update(*bounds, 0.0)


# Properties.

DURATIONS = st.one_of(
    st.sampled_from([0.0, 1e-12, 1e-5, 0.05, 20.0, 1e5, 1e12, math.inf, math.nan, -1.0]), st.floats(0, 1e6)
)
ENDED = st.tuples(
    st.sampled_from(Verdict),
    DURATIONS,
    st.sampled_from([0.0, 0.0, 0.01, 0.02, 0.5, 400.0, 1e7]),  # seconds from one to the next
    st.integers(1, 120),  # how often
    st.sampled_from([0.0, 0.4, 1.0, 3.0]),  # in flight, as a share of the limit
)
FLEET = st.tuples(st.integers(1, 40), st.integers(0, 40), st.integers(0, 400))


@given(FLEET, st.lists(st.tuples(ENDED, st.one_of(st.none(), FLEET)), max_size=30), st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_whatever_happens_the_limit_stays_within_its_bounds_and_every_number_is_one(
    fleet: tuple[int, int, int],
    events: list[tuple[tuple[Verdict, float, float, int, float], tuple[int, int, int] | None]],
    seed: int,
) -> None:
    low, middle, high = fleet[0], fleet[0] + fleet[1], sum(fleet)
    subject = AdaptiveLimit(low, middle, high, Random(seed).random, 0.0)
    now_s = 0.0
    for (verdict, duration_s, pause_s, times, share), changed in events:
        for _ in range(times):
            now_s += pause_s
            started_s = now_s - duration_s if math.isfinite(duration_s) else 0.0
            subject.ended(verdict, started_s, duration_s, int(share * subject.limit), now_s)
            assert low <= subject.limit <= high
        if changed is not None:
            low, middle, high = changed[0], changed[0] + changed[1], sum(changed)
            subject.update(low, middle, high, now_s)
        statistics_bounds(subject)
        assert low <= subject.limit <= high
        statistics = subject.statistics(now_s)
        assert all(isinstance(value, str) or math.isfinite(value) for value in statistics.values())
        assert 0 <= statistics["queue"] <= statistics["cap"]


@given(st.integers(1, 300), st.floats(1e-5, 100), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_successes_without_drops_never_bring_it_under_its_start(floor: int, latency_s: float, seed: int) -> None:
    subject = AdaptiveLimit(floor, 2 * floor, 8 * floor, Random(seed).random, 0.0)
    chance = Random(seed)
    now_s = 0.0
    for _ in range(12):
        now_s = window(
            subject,
            now_s,
            latency_s=min(1e4, latency_s * chance.choice([0.1, 1, 10])),
            in_flight=chance.choice([1, None]),
        )
        assert subject.limit >= 2 * floor or subject.why == "probe"
