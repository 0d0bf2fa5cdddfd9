"""CoDel: a queue that stands is seen and cut, one that drains is left alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.decide.codel import Codel, CodelSettings

BATCH_S = 0.002
"""Below the targets of the defaults: 5 ms and 100 ms hold."""


def standing(codel: Codel, wait_s: float, *, start_s: float = 0.0, until_s: float, batch_s: float = BATCH_S) -> None:
    """Every 10 ms somebody comes out who waited `wait_s`."""
    steps = round((until_s - start_s) / 0.01)
    for step in range(steps):
        codel.drops(wait_s, start_s + 0.01 * step, batch_s)


def test_before_the_first_sample_there_is_no_overload() -> None:
    assert not Codel().overloaded(0.0)
    assert not Codel().overloaded(1e9)


def test_one_short_wait_in_an_interval_is_enough_for_a_good_verdict() -> None:
    codel = Codel()
    standing(codel, 0.05, until_s=0.09)
    codel.drops(0.004, 0.095, BATCH_S)
    assert not codel.overloaded(0.1)
    assert not codel.drops(0.05, 0.101, BATCH_S)
    assert not codel.drops(0.05, 0.102, BATCH_S)


def test_a_whole_interval_above_the_target_is_overload_and_then_long_waits_are_dropped() -> None:
    codel = Codel()
    standing(codel, 0.0051, until_s=0.1)
    assert not codel.overloaded(0.099), "the interval has not ended"
    assert codel.overloaded(0.1)
    assert not codel.drops(0.5, 0.1, BATCH_S), "the first of an interval is never dropped"
    assert codel.drops(0.0101, 0.11, BATCH_S), "more than twice the target"
    assert not codel.drops(0.01, 0.12, BATCH_S)
    assert codel.statistics(0.12)["drops"] == 1


def test_a_wait_of_exactly_the_target_is_no_overload() -> None:
    codel = Codel()
    standing(codel, 0.005, until_s=0.1)
    assert not codel.overloaded(0.1)


def test_target_and_interval_follow_the_batch_time() -> None:
    codel = Codel()
    standing(codel, 0.045, until_s=0.5, batch_s=0.05)
    assert not codel.overloaded(0.5), "a wait below a batch time is what every batching server has"
    codel = Codel()
    standing(codel, 0.055, until_s=0.5, batch_s=0.05)
    assert not codel.overloaded(0.45), "ten batches are an interval"
    assert codel.overloaded(0.5)
    codel.drops(0.055, 0.5, 0.05)
    assert not codel.drops(0.1, 0.51, 0.05)
    assert codel.drops(0.101, 0.52, 0.05)


def test_the_verdict_is_taken_back_when_an_interval_was_good() -> None:
    codel = Codel()
    standing(codel, 0.05, until_s=0.1)
    codel.drops(0.05, 0.1, BATCH_S)
    assert codel.overloaded(0.15)
    codel.drops(0.001, 0.16, BATCH_S)
    assert codel.overloaded(0.19), "the verdict of the interval before"
    assert not codel.overloaded(0.2)
    assert not codel.drops(0.5, 0.21, BATCH_S)
    assert not codel.drops(0.5, 0.22, BATCH_S)


def test_an_empty_queue_does_not_stand() -> None:
    codel = Codel()
    standing(codel, 0.05, until_s=0.1)
    codel.emptied()
    assert not codel.overloaded(0.1)


def test_the_verdict_ends_when_the_queue_is_empty_however_long_the_interval() -> None:
    codel = Codel()
    standing(codel, 50.0, until_s=100.0, batch_s=10.0)
    codel.drops(50.0, 100.0, 10.0)
    assert codel.overloaded(101.0)
    codel.emptied()
    assert not codel.overloaded(101.0)
    assert not codel.drops(50.0, 102.0, 10.0)


def test_nobody_for_an_interval_ends_the_overload() -> None:
    codel = Codel()
    standing(codel, 0.05, until_s=0.1)
    assert codel.overloaded(0.199)
    assert not codel.overloaded(0.2)
    codel.drops(0.05, 5.0, BATCH_S)
    assert not codel.drops(0.5, 5.01, BATCH_S), "what was long ago says nothing"


@pytest.mark.parametrize(("target_s", "interval_s"), [(0.0, 1.0), (0.1, 0.1), (0.1, float("nan")), (0.1, 1e9)])
def test_settings_out_of_range_are_refused(target_s: float, interval_s: float) -> None:
    with pytest.raises(ValueError, match="target_s"):
        CodelSettings(target_s, interval_s)


def served(arrivals: list[float]) -> tuple[int, float]:
    """A server of one call at a time and 10 ms each: how many it dropped, and the longest wait of those that it served
    in the second half.
    """
    codel, free_s, dropped, longest = Codel(), 0.0, 0, 0.0
    for number, came_s in enumerate(arrivals):
        if free_s <= came_s:
            codel.emptied()
        start_s = max(free_s, came_s)
        if codel.drops(start_s - came_s, start_s, 0.01):
            dropped += 1
            continue
        free_s = start_s + 0.01
        if number > len(arrivals) // 2:
            longest = max(longest, start_s - came_s)
    return dropped, longest


def test_bursts_that_drain_within_an_interval_lose_nobody() -> None:
    dropped, longest = served([0.11 * burst for burst in range(50) for _ in range(10)])
    assert dropped == 0
    assert longest > 0.08, "though some waited for long"


def test_at_nine_tenths_load_nobody_is_dropped() -> None:
    assert served([0.0111 * number for number in range(2000)]) == (0, 0.0)


def test_at_twice_the_load_half_is_dropped_and_the_rest_waits_little() -> None:
    dropped, longest = served([number * 0.005 for number in range(4000)])
    assert 0.45 < dropped / 4000 < 0.55
    assert longest <= 0.035, "twice the target of one batch time, and one service"


SAMPLES = st.lists(
    st.tuples(st.floats(0, 0.3), st.floats(0, 2.0), st.sampled_from([0.0, 0.002, 0.02, 0.05])), max_size=200
)


@given(SAMPLES)
@settings(max_examples=200, deadline=None)
def test_whatever_comes_only_long_waits_are_dropped_and_never_the_first(
    samples: list[tuple[float, float, float]],
) -> None:
    codel, now_s, end_s = Codel(), 0.0, -1.0
    bad = False
    waits: list[float] = []
    target_s, last_length_s = 0.005, 0.0
    for gap_s, wait_s, batch_s in samples:
        now_s += gap_s
        seen = codel.overloaded(now_s)
        first = now_s >= end_s
        if first:
            length_s = max(0.1, 10 * batch_s)
            bad = bool(waits) and min(waits) > target_s and now_s < end_s + last_length_s
            target_s, last_length_s, end_s, waits = max(0.005, batch_s), length_s, now_s + length_s, []
        waits.append(wait_s)
        assert seen == bad
        assert codel.drops(wait_s, now_s, batch_s) == (not first and bad and wait_s > 2 * target_s)
        assert codel.overloaded(now_s) == bad


def test_a_wait_that_leaves_the_objective_within_reach_is_no_overload() -> None:
    """Sixty-four callers who each wait for their answer stood in a queue of 35 ms at a model of 5 s objective, and half
    of their calls were turned away.
    """
    codel = Codel()
    for step in range(200):
        assert not codel.drops(0.035, 0.01 * step, BATCH_S, bearable_s=0.2)
        assert not codel.overloaded(0.01 * step)


def test_who_would_miss_the_objective_is_dropped_from_a_queue_that_stands() -> None:
    codel = Codel()
    for step in range(21):
        codel.drops(0.15, 0.01 * step, BATCH_S, bearable_s=0.2)
    assert codel.overloaded(0.2)
    assert not codel.drops(0.2, 0.211, BATCH_S, bearable_s=0.2)
    assert codel.drops(0.2001, 0.212, BATCH_S, bearable_s=0.2)


@pytest.mark.parametrize("bearable_s", [-1.0, 0.0, 1e-9])
def test_an_objective_out_of_reach_leaves_the_targets_of_the_batch(bearable_s: float) -> None:
    codel = Codel()
    for step in range(11):
        codel.drops(0.0051, 0.01 * step, BATCH_S, bearable_s)
    assert codel.overloaded(0.1)
    assert codel.drops(0.0101, 0.11, BATCH_S, bearable_s)
