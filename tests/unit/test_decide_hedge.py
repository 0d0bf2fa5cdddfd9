"""Hedging: the delay follows the tail and nothing else, every reason against a hedge is looked at in its order, and
learning from attempts that were cut short does not feed on itself. `test_decide_hedge_model` shows what it brings.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.decide.hedge import PASSING, HedgeDelay, HedgeSettings, HedgeView, HedgeWord, hedge_verdict

SETTINGS = HedgeSettings()
NEARLY = 0.02 + 1e-6


class Fixed:
    """Chance that always draws the same."""

    def __init__(self, draw: float) -> None:
        self._draw = draw

    def random(self) -> float:
        return self._draw


LEAST, MOST = Fixed(0.0), Fixed(math.nextafter(1.0, 0.0))


def fed(durations_s: Iterable[float], settings: HedgeSettings = SETTINGS) -> HedgeDelay:
    subject = HedgeDelay(settings)
    for duration_s in durations_s:
        subject.observe(duration_s, 0.0)
    return subject


# ---- the delay


def test_with_too_few_samples_nothing_is_hedged() -> None:
    subject = fed([0.01] * 99)
    assert subject.delay_s(60.0, 0.0, LEAST) is None
    assert subject.why_none() == "too_few_samples"
    subject.observe(0.01, 0.5)
    assert subject.delay_s(60.0, 1.0, LEAST) == pytest.approx(0.01, rel=2 * NEARLY)


def test_what_was_cut_short_is_a_sample_too() -> None:
    subject = fed([0.01] * 50)
    for _ in range(50):
        subject.observe_at_least(0.02, 0.0)
    assert subject.delay_s(60.0, 0.0, LEAST) == pytest.approx(0.02, rel=2 * NEARLY)


def test_quantiles_are_read_anew_once_a_second_and_not_more_often() -> None:
    subject = fed([0.01] * 100)
    before = subject.delay_s(60.0, 5.0, LEAST)
    for _ in range(100):
        subject.observe(0.1, 5.1)
    assert subject.delay_s(60.0, 5.999, LEAST) == before
    assert subject.delay_s(60.0, 6.0, LEAST) == pytest.approx(0.1, rel=2 * NEARLY)


def test_after_a_silence_too_little_is_known_again() -> None:
    subject = fed([0.01] * 1000)
    assert subject.delay_s(60.0, 1.0, LEAST) is not None
    assert subject.delay_s(60.0, 61.0, LEAST) is None
    assert subject.why_none() == "too_few_samples"


@settings(max_examples=50)
@given(st.integers(100, 400), st.floats(-12.0, 6.0), st.floats(0.0, 4.0), st.randoms(use_true_random=False))
def test_no_more_than_three_of_a_hundred_take_longer_than_the_delay(
    samples: int, log_median: float, deviation: float, chance: random.Random
) -> None:
    draws = random.Random(chance.getrandbits(32))
    durations_s = [min(3000.0, draws.lognormvariate(log_median, deviation)) for _ in range(samples)]
    subject = fed(durations_s, replace(SETTINGS, early_ratio=math.inf))
    delay_s = subject.delay_s(math.inf, 0.0, LEAST)
    assert delay_s is not None
    assert sum(duration_s > delay_s * (1 + 1e-9) for duration_s in durations_s) <= 0.03 * len(durations_s)
    assert delay_s <= max(0.002, 1.05 * sorted(durations_s)[math.ceil(0.97 * len(durations_s) - 1e-6) - 1])


@pytest.mark.parametrize(
    ("slow_of_1000", "slow_s", "expected_s"),
    [
        (20, 0.200, 0.010),
        (31, 0.200, 0.010),  # the trigger itself would lie in the tail
        (50, 0.200, 0.010),
        (51, 0.200, 0.200),  # more than the budget pays for: the cause is not the tail
        (31, 0.015, 0.015),  # not far enough out to be one
    ],
)
def test_where_the_tail_begins_before_the_trigger_the_delay_ends_before_the_tail(
    slow_of_1000: int, slow_s: float, expected_s: float
) -> None:
    subject = fed([0.010] * (1000 - slow_of_1000) + [slow_s] * slow_of_1000)
    assert subject.delay_s(60.0, 0.0, LEAST) == pytest.approx(expected_s, rel=2 * NEARLY)


@pytest.mark.parametrize("service_s", [0.0021 * 1.017**step for step in range(60)])
def test_a_model_that_always_takes_the_same_time_is_never_hedged(service_s: float) -> None:
    subject = fed([service_s] * 200)
    chance = random.Random(3)
    for _ in range(20):
        delay_s = subject.delay_s(60.0, 0.0, chance)
        assert delay_s is not None
        assert delay_s >= service_s * (1 - 1e-9)


def test_chance_makes_a_delay_up_to_a_tenth_longer() -> None:
    subject = fed([0.01] * 100)
    least, most = subject.delay_s(60.0, 0.0, LEAST), subject.delay_s(60.0, 0.0, MOST)
    assert least is not None
    assert most == pytest.approx(1.1 * least)


def test_a_quick_models_delay_is_the_minimum() -> None:
    subject = fed([0.0003] * 100)
    assert subject.delay_s(60.0, 0.0, LEAST) == 0.002


@pytest.mark.parametrize(
    ("remaining_s", "expected_s"),
    [
        (math.inf, 0.041),  # the trigger
        (0.090, 0.041),
        (0.060, 0.030),  # half of what is left
        (0.024, 0.012),
        (0.019, None),  # half of it is gone then, and the other half is less than the median
        (0.0035, None),
        (0.0, None),
        (-1.0, None),
        (-math.inf, None),
    ],
)
def test_the_delay_keeps_half_of_the_deadline_and_a_median_attempt(
    remaining_s: float, expected_s: float | None
) -> None:
    subject = fed([0.010] * 90 + [0.040] * 10)
    found = subject.delay_s(remaining_s, 0.0, LEAST)
    if expected_s is None:
        assert found is None
        assert subject.why_none() == "deadline_near"
    else:
        assert found == pytest.approx(expected_s, rel=0.03)


def test_a_call_that_has_no_time_for_the_minimum_is_not_hedged_however_quick_the_model() -> None:
    subject = fed([0.0003] * 100)
    assert subject.delay_s(0.0039, 0.0, LEAST) is None
    assert subject.delay_s(0.0041, 0.0, LEAST) == 0.002


def test_short_deadlines_are_not_hedged_to_be_cancelled_a_moment_later() -> None:
    """FH-11: 20 ms +- 10 ms of service, deadlines of 5 to 40 ms, all that expire learned from."""
    chance = random.Random(7)
    subject = HedgeDelay(SETTINGS)
    for number in range(6000):
        now_s = number / 300
        has_s, takes_s = chance.uniform(0.005, 0.040), chance.uniform(0.010, 0.030)
        delay_s = subject.delay_s(has_s, now_s, chance)
        assert delay_s is None or now_s < 5 or has_s - delay_s > 0.0185, (number, has_s, delay_s)
        if takes_s <= has_s:
            subject.observe(takes_s, now_s)
        else:
            subject.observe_at_least(has_s, now_s)
    assert subject.statistics(20.0)["deadline_near"] > 5000


def test_what_is_no_number_is_refused_and_leaves_no_trace() -> None:
    subject = fed([0.01] * 100)
    for observe in (subject.observe, subject.observe_at_least):
        with pytest.raises(ValueError):
            observe(math.nan, 0.0)
    subject.delay_s(1.0, 0.0, LEAST)
    subject.delay_s(1.0, 2.0, LEAST)
    subject.delay_s(1.0, 4.0, LEAST)
    assert all(math.isfinite(value) for value in subject.statistics(4.0).values())


# ---- asking again


@pytest.mark.parametrize(
    ("elapsed_s", "remaining_s", "expected_s"),
    [
        (0.011, 10.0, 0.011),  # as long as it has been out: it asks again at twice, four times, eight times the delay
        (0.5, 1.0, 0.5),
        (0.5, 0.505, None),  # less than a median attempt would be left
        (0.0, 1.0, 0.002),
        (0.5, 0.1, None),
    ],
)
def test_after_a_refusal_that_passes_a_call_asks_again_later_and_later(
    elapsed_s: float, remaining_s: float, expected_s: float | None
) -> None:
    subject = fed([0.01] * 100)
    subject.delay_s(1.0, 0.0, LEAST)
    assert subject.again_s(elapsed_s, remaining_s) == expected_s


def test_a_call_asks_a_handful_of_times_at_most() -> None:
    subject = fed([0.0001] * 100)
    elapsed_s = subject.delay_s(60.0, 0.0, LEAST)
    asked = 0
    while elapsed_s is not None:
        asked += 1
        wait_s = subject.again_s(elapsed_s, 60.0 - elapsed_s)
        elapsed_s = None if wait_s is None else elapsed_s + wait_s
    assert 10 <= asked <= 16


# ---- the load


def test_the_load_is_the_time_that_primaries_took_over_the_time_that_passed() -> None:
    subject = HedgeDelay(SETTINGS)
    for tenth in range(100):
        subject.delay_s(1.0, tenth / 10, LEAST)
        subject.observe(0.3, tenth / 10)
        subject.observe_at_least(0.2, tenth / 10)
    assert subject.mean_in_flight == pytest.approx(5.0, rel=0.02)
    subject.delay_s(1.0, 60.0, LEAST)
    assert subject.mean_in_flight < 0.2


def test_while_the_clock_stands_still_no_load_is_measured_and_none_is_lost() -> None:
    subject = HedgeDelay(replace(SETTINGS, refresh_s=1e-12))
    for now_s in (1000.0, 1000.0, 1000.0, 1001.0):  # so far on that the interval adds nothing to it
        subject.delay_s(1.0, now_s, LEAST)
        subject.observe(0.5, now_s)
    subject.delay_s(1.0, 1002.0, LEAST)
    assert subject.mean_in_flight == pytest.approx(1.5 + (0.5 - 1.5) * (1 - math.exp(-1 / 5)))


def test_the_load_before_the_first_question_is_nobodys() -> None:
    subject = fed([100.0] * 1000)
    assert subject.mean_in_flight == 0.0
    subject.delay_s(1.0, 0.0, LEAST)
    assert subject.mean_in_flight == 0.0
    subject.delay_s(1.0, 1.0, LEAST)
    assert subject.mean_in_flight == 0.0


def test_the_load_follows_within_seconds_and_not_at_once() -> None:
    subject = HedgeDelay(SETTINGS)
    means = []
    for second in range(40):
        subject.delay_s(1.0, float(second), LEAST)
        means.append(subject.mean_in_flight)
        for _ in range(10):
            subject.observe(0.1 if second < 20 else 0.9, second + 0.5)
    assert means[20] == pytest.approx(1.0)
    assert 2.0 < means[21] < 3.0
    assert means[30] > 7.5
    assert means[39] == pytest.approx(9.0, rel=0.03)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["full", "cut short", "ask", "ask", "burst"]),
        st.floats(0.0, allow_nan=False),
        st.sampled_from([0.0, 0.0, 0.01, 0.5, 1.0, 4.0, 29.0, 1e9]),
        st.floats(0.0, 1.0, exclude_max=True),
    ),
    max_size=60,
)


@given(EVENTS)
def test_whatever_comes_a_delay_is_none_or_within_its_bounds(events: list[tuple[str, float, float, float]]) -> None:
    subject = HedgeDelay(SETTINGS)
    now_s = 0.0
    for kind, value, passes_s, draw in events:
        now_s += passes_s
        if kind == "full":
            subject.observe(value, now_s)
        elif kind == "cut short":
            subject.observe_at_least(value, now_s)
        elif kind == "burst":
            for _ in range(120):
                subject.observe(value, now_s)
        else:
            delay_s = subject.delay_s(value, now_s, Fixed(draw))
            assert delay_s is None or 0.002 <= delay_s <= value / 2
            assert delay_s is None or math.isfinite(delay_s)
        for number in subject.statistics(now_s).values():
            assert number is None or (math.isfinite(number) and number >= 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"trigger_quantile": 0.0},
        {"trigger_quantile": 1.1},
        {"delay_min_s": 0.0},
        {"early_quantile": 0.98},
        {"early_quantile": 0.0},
        {"early_ratio": 0.9},
        {"early_ratio": math.nan},
        {"samples_min": 0},
        {"refresh_s": 0.0},
        {"refresh_s": math.inf},
        {"jitter_share": -0.1},
        {"jitter_share": math.nan},
        {"remaining_share": 0.0},
        {"outstanding_share": 2.0},
        {"outstanding_min": 0},
        {"load_max": math.nan},
        {"load_tau_s": -1.0},
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        HedgeSettings(**wrong)


def test_statistics_say_what_was_asked_and_what_came_of_it() -> None:
    subject = HedgeDelay(SETTINGS)
    subject.delay_s(1.0, 0.0, LEAST)
    for _ in range(100):
        subject.observe(0.01, 0.5)
    for remaining_s in (1.0, 1.0, 0.01):
        subject.delay_s(remaining_s, 1.0, LEAST)
    assert subject.statistics(1.0) == {
        "samples": 100,
        "trigger_s": pytest.approx(0.01, rel=2 * NEARLY),
        "median_s": pytest.approx(0.01, rel=NEARLY),
        "mean_in_flight": pytest.approx(1.0),
        "asked": 4,
        "too_few_samples": 1,
        "deadline_near": 1,
    }


# ---- learning from what was cut short


def hedged_share(cut_short: Callable[[HedgeDelay, float, float], None]) -> float:
    """Of the last quarter of calls, the share that was hedged, with no bound on hedges. The model's times have a heavy
    tail, so that a hedge nearly always wins; `cut_short` is told how long the primaries were out that lost.
    """
    chance = random.Random(23)
    subject = HedgeDelay(SETTINGS)
    calls, hedges = 24_000, 0
    for number in range(calls):
        now_s = number / 400
        delay_s = subject.delay_s(math.inf, now_s, LEAST)
        primary_s, other_s = (0.01 * chance.lognormvariate(0.0, 2.0) for _ in range(2))
        if delay_s is None or primary_s <= delay_s:
            subject.observe(primary_s, now_s)
            continue
        hedges += number >= 0.75 * calls
        if delay_s + other_s < primary_s:
            cut_short(subject, delay_s + other_s, now_s)
        else:
            subject.observe(primary_s, now_s)
    return hedges / (0.25 * calls)


def test_learning_from_attempts_that_were_cut_short_keeps_hedges_at_three_of_a_hundred() -> None:
    assert 0.02 < hedged_share(HedgeDelay.observe_at_least) <= 0.035


def test_to_leave_them_out_would_spiral() -> None:
    assert hedged_share(lambda subject, elapsed_s, now_s: None) > 0.08


# ---- the verdict

FINE = HedgeView(
    answered=False,
    read_only=True,
    replayable=True,
    cancel_works=True,
    cancels_capped=False,
    errors_climbing=False,
    limit_shrinking=False,
    waiting=0,
    slots=16,
    mean_in_flight=8.0,
    in_flight=8,
    hedges_out=0,
    other_in_flight=0,
    median_in_flight=1.0,
)
AGAINST: dict[HedgeWord, dict[str, Any]] = {
    "answered": {"answered": True},
    "not_read_only": {"read_only": False},
    "not_replayable": {"replayable": False},
    "no_cancel": {"cancel_works": False},
    "cancels_capped": {"cancels_capped": True},
    "errors_climbing": {"errors_climbing": True},
    "limit_shrinking": {"limit_shrinking": True},
    "queue": {"waiting": 1},
    "busy": {"mean_in_flight": 8.9},
    "hedges_out": {"hedges_out": 2},
    "no_other": {"other_in_flight": None},
    "others_busy": {"other_in_flight": 1},
}
"""Every reason, in the order in which it is to be looked at, and what makes it."""


def test_where_nothing_speaks_against_it_a_call_is_hedged() -> None:
    assert hedge_verdict(FINE, SETTINGS) == "hedge"


@pytest.mark.parametrize("word", AGAINST)
def test_each_reason_alone_is_enough(word: HedgeWord) -> None:
    assert hedge_verdict(replace(FINE, **AGAINST[word]), SETTINGS) == word


def test_of_two_reasons_the_first_is_told() -> None:
    # Two reasons about the same field cannot be had at once.
    for first, second in itertools.combinations(AGAINST, 2):
        changes = {**AGAINST[second], **AGAINST[first]}
        assert hedge_verdict(replace(FINE, **changes), SETTINGS) == first, (first, second)


def test_every_word_has_a_reason_and_every_reason_is_a_fact_of_the_call_or_passes() -> None:
    assert get_args(HedgeWord) == ("hedge", *AGAINST)
    assert set(AGAINST) - PASSING == {"answered", "not_read_only", "not_replayable", "no_cancel"}
    assert set(AGAINST) >= PASSING


@pytest.mark.parametrize(
    ("other", "median", "word"),
    [
        (0, 0.0, "hedge"),  # all others are idle: then nobody is below the median, and any will do
        (0, 3.0, "hedge"),
        (2, 3.0, "hedge"),
        (2, 2.5, "hedge"),
        (3, 3.0, "others_busy"),
        (4, 3.0, "others_busy"),
        (1, 0.5, "others_busy"),
    ],
)
def test_the_other_replica_is_idle_or_below_the_median(other: int, median: float, word: HedgeWord) -> None:
    view = replace(FINE, other_in_flight=other, median_in_flight=median)
    assert hedge_verdict(view, SETTINGS) == word


@pytest.mark.parametrize(
    ("in_flight", "hedges_out", "word"),
    [
        (1, 0, "hedge"),
        (1, 1, "hedge"),
        (1, 2, "hedges_out"),
        (59, 2, "hedges_out"),
        (60, 2, "hedge"),
        (60, 3, "hedges_out"),
        (1000, 49, "hedge"),
        (1000, 50, "hedges_out"),
    ],
)
def test_a_twentieth_of_what_is_in_flight_may_be_hedges_and_two_always(
    in_flight: int, hedges_out: int, word: HedgeWord
) -> None:
    assert hedge_verdict(replace(FINE, in_flight=in_flight, hedges_out=hedges_out), SETTINGS) == word
