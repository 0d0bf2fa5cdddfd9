"""Service times: peaks at once, decay slowly, reading changes nothing; and what a duration says about service."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.decide.service_time import (
    COST_MAX_S,
    COST_MIN_S,
    KEEP_MAX,
    KEEP_TRY,
    PeakEwma,
    ServiceTimeSettings,
    per_unit,
)

TAU_S = 10.0


def told(*observations: tuple[float, float]) -> PeakEwma:
    """An estimate that was told these (cost, instant)."""
    subject = PeakEwma(TAU_S)
    for cost_s, now_s in observations:
        subject.observe(cost_s, now_s)
    return subject


def known(value: float | None) -> float:
    assert value is not None
    return value


# --- the estimate -----------------------------------------------------------------------------------------------------


def test_nothing_is_known_at_first_and_the_first_observation_is_believed() -> None:
    subject = PeakEwma(TAU_S)
    assert subject.cost_s is None
    assert subject.at(5.0, 1.0) is None
    subject.observe(0.02, 5.0)
    assert subject.at(5.0) == 0.02


def test_a_seed_stands_in_and_counts_as_history() -> None:
    subject = PeakEwma(TAU_S, seed_s=0.1)
    assert subject.at(1000.0, 5.0) == 0.1, "nobody has looked: there is nothing that could grow old"
    subject.observe(0.02, 1000.0)
    assert subject.at(1000.0) == pytest.approx(0.02 + 0.08 * KEEP_MAX)


def test_a_peak_is_taken_at_once_and_forgotten_with_tau() -> None:
    subject = told((1.0, 0.0), (8.0, 1.0))
    assert subject.cost_s == 8.0
    subject.observe(1.0, 1.0 + TAU_S)
    assert subject.cost_s == pytest.approx(1.0 + 7.0 / math.e)


def test_many_observations_outweigh_little_time() -> None:
    subject = told((20.0, 0.0))
    for number in range(44):
        subject.observe(1.0, number * 1e-3)
    assert known(subject.cost_s) == pytest.approx(1.0 + 19.0 * KEEP_MAX**44)
    assert known(subject.cost_s) < 2.2


def test_the_good_answer_to_a_try_takes_three_quarters() -> None:
    subject = told((9.0, 0.0))
    subject.observe(1.0, 0.0, keep_max=KEEP_TRY)
    assert subject.cost_s == pytest.approx(3.0)


def test_the_reading_drifts_to_the_pools_from_both_sides_and_reading_changes_nothing() -> None:
    slow, fast = told((10.0, 0.0)), told((0.1, 0.0))
    for _ in range(3):
        assert slow.at(TAU_S, 1.0) == pytest.approx(1.0 + 9.0 / math.e)
        assert fast.at(TAU_S, 1.0) == pytest.approx(1.0 - 0.9 / math.e)
    assert (slow.cost_s, fast.cost_s) == (10.0, 0.1)
    assert slow.at(TAU_S) == 10.0, "without a pool there is nowhere to drift to"
    assert slow.at(1e9, 1.0) == pytest.approx(1.0)


def test_after_a_silence_what_is_above_the_reading_is_a_peak_though_the_last_evidence_was_higher() -> None:
    subject = told((10.0, 0.0))
    subject.observe(4.0, 3 * TAU_S, toward_s=1.0)
    assert subject.cost_s == 4.0
    subject = told((10.0, 0.0))
    subject.observe(1.2, 3 * TAU_S, toward_s=1.0)
    assert subject.cost_s == pytest.approx(1.0 + 9.0 * math.exp(-3)), "an observation below the reading never raises it"


def test_a_lower_bound_only_raises_and_does_not_renew_what_is_old() -> None:
    subject = told((2.0, 0.0))
    assert not subject.raise_to(1.9, 1.0)
    assert subject.at(TAU_S, 1.0) == pytest.approx(1.0 + 1.0 / math.e)
    assert subject.raise_to(1.9, TAU_S, toward_s=1.0), "it is more than what the reading has drifted to"
    assert subject.cost_s == 1.9
    unknown = PeakEwma(TAU_S)
    assert unknown.raise_to(3.0, 0.0)
    assert unknown.cost_s == 3.0


def test_between_the_calls_of_a_busy_replica_nothing_fades() -> None:
    subject = told((10.0, 5.0))
    assert subject.at(5.0 + 0.0099 * TAU_S, 1.0) == 10.0
    assert subject.at(5.0 + 0.0101 * TAU_S, 1.0) == pytest.approx(1.0 + 9.0 * math.exp(-0.0101))


def test_time_that_stands_still_or_seems_to_go_back_lets_nothing_fade() -> None:
    subject = told((10.0, 5.0))
    assert subject.at(3.0, 1.0) == 10.0
    subject.observe(1.0, 3.0)
    assert subject.cost_s == pytest.approx(1.0 + 9.0 * KEEP_MAX)
    assert subject.raise_to(20.0, 2.0)
    assert subject.at(5.05, 1.0) == 20.0, "it is known since 5, and no older"


ANY = st.floats(allow_nan=True, allow_infinity=True)


@given(
    events=st.lists(
        st.tuples(
            st.sampled_from(("observe", "raise")), ANY, st.floats(0, 1e6), st.none() | st.floats(COST_MIN_S, COST_MAX_S)
        ),
        max_size=40,
    )
)
def test_whatever_is_told_the_estimate_is_a_number_between_what_was_told_and_what_was_believed(events: Any) -> None:
    subject = PeakEwma(TAU_S)
    now_s = 0.0
    for what, cost_s, gap_s, pool_s in events:
        now_s += gap_s
        before_s, reading_s = subject.cost_s, subject.at(now_s, pool_s)
        clear_s = min(max(cost_s, COST_MIN_S), COST_MAX_S) if cost_s > COST_MIN_S else COST_MIN_S
        if what == "observe":
            subject.observe(cost_s, now_s, toward_s=pool_s)
            after_s = known(subject.cost_s)
            assert after_s >= clear_s, "never below the last observation"
            if before_s is not None and reading_s is not None:
                assert after_s <= max(clear_s, before_s, reading_s) * (1 + 1e-9)
                if clear_s < reading_s:
                    assert known(subject.at(now_s, pool_s)) <= reading_s * (1 + 1e-9)
        else:
            raised = subject.raise_to(cost_s, now_s, toward_s=pool_s)
            after_s = known(subject.cost_s)
            assert raised == (reading_s is None or clear_s > reading_s)
            assert known(subject.at(now_s, pool_s)) >= clear_s * (1 - 1e-9)
        assert COST_MIN_S <= after_s <= COST_MAX_S
        assert 0 < known(subject.at(now_s + 1.0, pool_s)) <= COST_MAX_S


# --- what a duration says ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("elapsed_s", "work", "in_flight", "slots", "expected_s"),
    [
        (0.03, 1.0, 1, 16, 0.03),
        (0.03, 3.0, 1, 16, 0.01),
        (0.03, 0.5, 1, 16, 0.03),  # work below one is one
        (0.03, 1.0, 9, 16, 0.02),  # half a round stood before it
        (0.031, 1.0, 16, 16, 0.016),  # nearly a whole one
        (0.03, 1.0, 1, 1, 0.03),
        (0.03, 1.0, 0, 4, 0.03),  # nobody counted
        (0.03, 1.0, 5, 0, 0.03),  # the slots have gone meanwhile
        (0.0, 1.0, 1, 4, COST_MIN_S),
        (-1.0, 1.0, 1, 4, COST_MIN_S),
        (math.nan, 1.0, 1, 4, COST_MIN_S),
        (math.inf, 1.0, 1, 4, COST_MAX_S),
        (0.03, math.nan, 1, 4, 0.03),
        (0.03, math.inf, 1, 4, 0.03),
    ],
)
def test_a_duration_is_divided_by_its_work_and_by_the_line_before_it(
    elapsed_s: float, work: float, in_flight: int, slots: int, expected_s: float
) -> None:
    assert per_unit(elapsed_s, work=work, in_flight=in_flight, slots=slots) == pytest.approx(expected_s)


def test_two_rounds_make_a_call_that_waited_for_a_full_batch_as_costly_as_one_that_found_the_replica_idle() -> None:
    """A batch of eight takes as long as one of one here; slots are twice eight."""
    alone = per_unit(0.02, in_flight=1, slots=16)
    last = per_unit(0.02 + 0.02, in_flight=16, slots=16)
    assert 1.0 <= last / alone < 1.04


def test_a_penalty_is_five_seconds_or_ten_times_the_pools_or_the_hint_whichever_is_most() -> None:
    settings = ServiceTimeSettings()
    assert settings.penalty(0.01) == 5.0
    assert settings.penalty(2.0) == 20.0
    assert settings.penalty(0.01, hint_s=30.0) == 30.0
    assert settings.penalty(0.01, hint_s=1.0) == 5.0
    assert settings.penalty(0.01, hint_s=1e9) == 300.0
    assert settings.penalty(0.01, hint_s=math.nan) == 5.0
    assert settings.penalty(1e9) == COST_MAX_S


@pytest.mark.parametrize(
    ("name", "value"),
    [("tau_s", 0.0), ("seed_s", -1.0), ("penalty_s", math.nan), ("penalty_ratio", 0.5), ("hint_max_s", math.inf)],
)
def test_settings_that_make_no_sense_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        ServiceTimeSettings(**{name: value})
