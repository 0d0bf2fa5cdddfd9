"""The parts of the adaptive limit by themselves: histogram, baseline, probe, trial, settings."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.outcome import Verdict
from gateway.decide.latency_histogram import LEAST_S, MOST_S, LatencyHistogram
from gateway.decide.limit_baseline import Baseline
from gateway.decide.limit_probe import SAMPLES_MAX, Probe, Progress
from gateway.decide.limit_settings import LimitSettings
from gateway.decide.limit_trial import Finding, Trial


@given(st.lists(st.floats(LEAST_S, MOST_S * 0.999), min_size=1, max_size=200), st.floats(0.001, 1.0))
@settings(max_examples=100, deadline=None)
def test_a_quantile_of_the_histogram_is_the_true_one_within_a_percent(samples: list[float], share: float) -> None:
    subject = LatencyHistogram()
    for sample in samples:
        subject.add(sample)
    true = sorted(samples)[max(1, math.ceil(share * len(samples))) - 1]
    assert subject.quantile(share) == pytest.approx(true, rel=0.0102)


@given(
    st.lists(st.one_of(st.floats(0.0, 1e7), st.sampled_from([0.05, 0.051, LEAST_S, MOST_S, math.inf, -1.0, math.nan])))
)
@settings(max_examples=200, deadline=None)
def test_many_at_once_count_as_each_would(samples: list[float]) -> None:
    one, many = LatencyHistogram(), LatencyHistogram()
    for sample in samples:
        one.add(sample)
    many.add_all(samples)
    assert many.count == one.count == len(samples)
    if samples:
        assert many.mean() == pytest.approx(one.mean())
        for share in (0.1, 0.5, 0.9, 1.0):
            assert many.quantile(share) == pytest.approx(one.quantile(share), rel=0.0201), (
                "an edge may round either way"
            )


@pytest.mark.parametrize(
    ("duration_s", "expected_s"),
    [
        (0.0, LEAST_S),
        (-1.0, LEAST_S),
        (math.nextafter(MOST_S, 0.0), MOST_S),
        (1e9, MOST_S),
        (math.inf, MOST_S),
        (math.nan, MOST_S),
    ],
)
def test_durations_beyond_the_histogram_count_at_its_edges(duration_s: float, expected_s: float) -> None:
    subject = LatencyHistogram()
    subject.add(duration_s)
    assert subject.quantile(0.9) == pytest.approx(expected_s, rel=0.02)


def test_a_quantile_of_nothing_is_an_error_and_no_number() -> None:
    subject = LatencyHistogram()
    subject.add(1.0)
    subject.clear()
    with pytest.raises(ValueError, match="nothing"):
        subject.quantile(0.9)
    with pytest.raises(ValueError, match="nothing"):
        subject.mean()


def test_the_mean_is_of_what_was_added_since_the_last_clear() -> None:
    subject = LatencyHistogram()
    subject.add(9.0)
    subject.clear()
    for duration_s in (0.1, 0.2, 0.6):
        subject.add(duration_s)
    assert subject.mean() == pytest.approx(0.3)
    subject.add(math.inf)
    assert math.isfinite(subject.mean())


def baseline(chance: Callable[[], float] = lambda: 0.0) -> Baseline:
    return Baseline(LimitSettings(), chance, 0.0)


def feed(subject: Baseline, value_s: float, now_s: float, *, calm: bool) -> float:
    subject.window(value_s, value_s, 1.0, calm=calm, now_s=now_s + 1.0)
    return now_s + 1.0


@pytest.mark.parametrize(("old_s", "new_s"), [(0.05, 0.5), (0.5, 0.05)])
def test_calm_windows_are_followed_both_ways_within_thirty_seconds(old_s: float, new_s: float) -> None:
    subject = baseline()
    now_s = feed(subject, old_s, 0.0, calm=True)
    assert (subject.value_s, subject.guessed) == (old_s, False)
    now_s = feed(subject, new_s, now_s, calm=True)
    assert abs(subject.value_s - old_s) < abs(new_s - old_s) / 4, "one window is no change of speed"
    for _ in range(28):
        now_s = feed(subject, new_s, now_s, calm=True)
    assert subject.value_s == pytest.approx(new_s, rel=0.05)


def test_a_busy_window_never_raises_it_and_what_it_lowers_is_a_guess() -> None:
    subject = baseline()
    now_s = feed(subject, 0.05, 0.0, calm=True)
    for latency_s in (0.1, 1.0, 10.0, 0.046):
        now_s = feed(subject, latency_s, now_s, calm=False)
        assert (subject.value_s, subject.guessed) == (0.05, False)
    feed(subject, 0.03, now_s, calm=False)
    assert subject.value_s == pytest.approx(0.04)
    assert subject.guessed


def test_what_a_busy_window_gave_at_the_beginning_is_a_guess_until_it_is_measured() -> None:
    subject = baseline()
    now_s = feed(subject, 0.1, 0.0, calm=False)
    assert (subject.value_s, subject.guessed) == (0.1, True)
    subject.measured(0.05, now_s)
    assert (subject.value_s, subject.guessed, subject.age_s(now_s + 2)) == (0.05, False, 2)


@pytest.mark.parametrize(("draw", "share"), [(0.0, 0.5), (0.5, 0.75), (0.999999, 1.0)])
def test_when_it_is_measured_again_is_drawn_between_half_the_time_and_the_whole(draw: float, share: float) -> None:
    numbers = LimitSettings()

    def wait_s(subject: Baseline, least_s: float) -> float:
        now_s = begin_s = 1.0
        while not subject.due(least_s, now_s):
            now_s += 0.01
        return now_s - begin_s

    known = baseline(lambda: draw)
    feed(known, 0.05, 0.0, calm=True)
    assert wait_s(known, 0.05) == pytest.approx(share * numbers.remeasure_s, abs=0.02)
    too_low = baseline(lambda: draw)
    feed(too_low, 0.05, 0.0, calm=True)
    assert wait_s(too_low, 0.101) == pytest.approx(share * numbers.remeasure_soon_s, abs=0.02)
    guess = baseline(lambda: draw)
    feed(guess, 0.05, 0.0, calm=False)
    assert wait_s(guess, 0.05) == pytest.approx(share * numbers.remeasure_soon_s, abs=0.02)


def test_a_measurement_that_came_to_nothing_is_not_tried_again_at_once() -> None:
    subject = baseline()
    feed(subject, 0.05, 0.0, calm=False)
    assert not subject.due(0.05, 1.0)
    assert subject.due(0.05, 3.0)
    subject.not_measured(3.0)
    assert subject.guessed
    assert not subject.due(0.05, 10.9)
    assert subject.due(0.05, 11.0)


def test_a_probe_waits_until_no_more_than_the_floor_is_out_and_measures_what_was_sent_since() -> None:
    probe = Probe(4, 10.0, 5.0, 0.1)

    def success(started_s: float, duration_s: float, in_flight: int, now_s: float) -> Progress:
        return probe.ended(Verdict.SUCCESS, started_s, duration_s, in_flight, now_s)

    assert success(10.0, 9.0, 6, 10.1) == "more"
    assert success(10.0, 9.0, 5, 10.2) == "more", "four are left: now it begins"
    assert success(10.1, 9.0, 4, 10.3) == "more", "sent while too many were out"
    for number in range(1, 20):
        assert success(10.2, number / 100, 4, 10.4) == "more"
    assert success(10.2, 0.2, 4, 10.5) == "measured"
    assert probe.latency_s(0.9) == 0.18


@pytest.mark.parametrize(("floor", "samples"), [(1, 20), (10, 20), (11, 22), (10_000, SAMPLES_MAX)])
def test_a_probe_takes_two_waves_within_bounds(floor: int, samples: int) -> None:
    probe = Probe(floor, 0.0, 5.0, 0.1)
    probe.ended(Verdict.SUCCESS, 0.0, 0.1, 1, 0.0)
    found = [probe.ended(Verdict.SUCCESS, 0.0, math.inf, 1, 1.0) for _ in range(samples)]
    assert found == ["more"] * (samples - 1) + ["measured"]
    assert probe.latency_s(0.9) == MOST_S


def test_a_probe_gives_up_when_it_takes_too_long_or_calls_are_dropped() -> None:
    late = Probe(4, 0.0, 5.0, 0.1)
    assert late.ended(Verdict.NEUTRAL, 0.0, 0.1, 9, 5.0) == "more"
    assert late.ended(Verdict.NEUTRAL, 0.0, 0.1, 9, 5.1) == "given_up"
    dropped = Probe(4, 0.0, 5.0, 0.1)
    found = [dropped.ended(Verdict.FAILURE, 0.0, 0.1, 9, 1.0) for _ in range(3)]
    assert found == ["more", "more", "given_up"]


@pytest.mark.parametrize(
    ("before", "tried", "rates", "findings"),
    [
        (16, 18, (180, 180), ["more", "keep"]),  # each slot did work
        (16, 18, (160,), ["back"]),  # none did
        (16, 18, (168, 172), ["more", "keep"]),  # elasticity 0.4, then half
        (16, 18, (168, 170), ["more", "back"]),
        (16, 18, (140,), ["back"]),
        (18, 16, (160, 160), ["more", "keep"]),  # nothing was lost (of 160)
        (18, 16, (142,), ["back"]),  # all was
        (18, 16, (150, 156), ["more", "keep"]),
        (18, 16, (150, 150), ["more", "back"]),
    ],
)
def test_a_trial(before: float, tried: float, rates: tuple[int, ...], findings: list[Finding]) -> None:
    trial = Trial(before, tried, 160.0)
    assert [trial.window(each) for each in rates] == findings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("window_s", 0.0), ("window_s", math.nan), ("window_max_s", 0.5), ("calm_s", -1.0), ("remeasure_s", math.inf),
        ("remeasure_soon_s", 0.0), ("idle_s", 0.0), ("trial_step", 0.0),
        ("quantile", 1.0), ("quantile", math.nan), ("drop_share", 0.0),
        ("samples_min", 0), ("trial_wait", 0),
    ],
)  # fmt: skip
def test_a_setting_out_of_range_is_named(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        LimitSettings(**{name: value})  # type: ignore[arg-type]
