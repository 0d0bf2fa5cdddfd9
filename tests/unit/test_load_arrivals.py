"""Arrival processes: their rates, their order, and that a seed decides everything."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from load.arrivals import Arrival, Arrivals, Burst, Constant, Poisson, Spacing, Step, Trace, schedule

SEEDS = st.text(max_size=8)
RATES = st.floats(min_value=0.0, max_value=300.0)
SPACINGS: st.SearchStrategy[Spacing] = st.sampled_from(["even", "random"])


def _steps(rates: list[float], lengths: list[float]) -> tuple[tuple[float, float], ...]:
    starts = [0.0]
    for length in lengths[: len(rates) - 1]:
        starts.append(starts[-1] + length)
    return tuple(zip(starts, rates, strict=False))


LENGTHS = st.floats(min_value=0.1, max_value=2.0)
STEPS = st.builds(
    lambda rates, lengths, spacing: Step(_steps(rates, lengths), spacing),
    st.lists(RATES, min_size=1, max_size=4),
    st.lists(LENGTHS, min_size=4, max_size=4),
    SPACINGS,
)
BURSTS = st.builds(
    lambda base, burst, length, rest, first, spacing: Burst(base, burst, length, length + rest, first, spacing),
    RATES,
    RATES,
    LENGTHS,
    LENGTHS,
    st.floats(min_value=0.0, max_value=3.0),
    SPACINGS,
)
PROCESSES: st.SearchStrategy[Arrivals] = st.one_of(st.builds(Constant, RATES), st.builds(Poisson, RATES), STEPS, BURSTS)


def within(process: Arrivals, seconds: float, seed: str = "1") -> list[float]:
    return [offset_s for offset_s, _ in process.offsets(seed, seconds)]


def count(offsets: list[float], low_s: float, high_s: float) -> int:
    return sum(low_s <= offset_s < high_s for offset_s in offsets)


@given(PROCESSES, SEEDS)
def test_offsets_go_upwards_from_zero_and_follow_from_the_seed(process: Arrivals, seed: str) -> None:
    offsets = within(process, 4.0, seed)
    assert all(offset_s >= 0 for offset_s in offsets)
    assert all(before <= after for before, after in pairwise(offsets))
    assert offsets == within(process, 4.0, seed)


@given(st.integers(min_value=1, max_value=500), st.integers(min_value=1, max_value=8), SEEDS)
def test_a_constant_rate_gives_exactly_so_many_evenly_spaced(rps: int, seconds: int, seed: str) -> None:
    offsets = within(Constant(float(rps)), float(seconds), seed)
    assert abs(len(offsets) - rps * seconds) <= 1  # a last one may fall on the edge by rounding
    assert all(math.isclose(after - before, 1 / rps, rel_tol=1e-6) for before, after in pairwise(offsets))


@given(st.floats(min_value=1.0, max_value=300.0), SEEDS)
def test_poisson_arrivals_come_at_their_rate_and_as_irregularly_as_they_should(rps: float, seed: str) -> None:
    seconds = 2000 / rps
    offsets = within(Poisson(rps), seconds, seed)
    assert abs(len(offsets) - 2000) < 6 * math.sqrt(2000)
    gaps = [after - before for before, after in pairwise(offsets)]
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert 0.8 < deviation / mean < 1.2, "the gaps of a Poisson process deviate as much as their mean"


@given(STEPS, SEEDS)
def test_each_step_has_its_own_rate(process: Step, seed: str) -> None:
    ends = [start_s for start_s, _ in process.steps[1:]]
    length_s = (ends[-1] if ends else 0.0) + 2.0
    offsets = within(process, length_s, seed)
    for (start_s, rps), end_s in zip(process.steps, [*ends, length_s], strict=True):
        meant = rps * (end_s - start_s)
        allowed = 1.001 if process.spacing == "even" else 6 * math.sqrt(meant) + 6
        assert abs(count(offsets, start_s, end_s) - meant) <= allowed


@given(BURSTS, SEEDS)
def test_bursts_come_at_their_times_with_their_rate_and_the_base_between_them(process: Burst, seed: str) -> None:
    offsets = within(process, process.first_s + 3 * process.every_s, seed)

    def close(low_s: float, high_s: float, rps: float) -> bool:
        meant = rps * (high_s - low_s)
        allowed = 1.001 if process.spacing == "even" else 6 * math.sqrt(meant) + 6
        return abs(count(offsets, low_s, high_s) - meant) <= allowed

    assert close(0.0, process.first_s, process.base_rps)
    for number in range(3):
        begin_s = process.first_s + number * process.every_s
        assert close(begin_s, begin_s + process.burst_s, process.burst_rps)
        assert close(begin_s + process.burst_s, begin_s + process.every_s, process.base_rps)


@given(st.one_of(st.builds(Constant, RATES), st.builds(Poisson, RATES)), SEEDS)
def test_faster_is_the_same_in_less_time(process: Arrivals, seed: str) -> None:
    slow, fast = within(process, 6.0, seed), within(process.faster(3.0), 2.0, seed)
    assert abs(len(slow) - len(fast)) <= 1  # one may fall on the edge by rounding
    assert all(math.isclose(one, 3 * other, rel_tol=1e-9) for one, other in zip(slow, fast, strict=False))


@given(STEPS, BURSTS)
def test_faster_steps_and_bursts_come_at_the_same_times_with_more_calls(step: Step, burst: Burst) -> None:
    assert step.faster(3.0) == Step(tuple((start_s, 3 * rps) for start_s, rps in step.steps), step.spacing)
    assert burst.faster(3.0) == replace(burst, base_rps=3 * burst.base_rps, burst_rps=3 * burst.burst_rps)


def test_a_trace_is_played_as_it_is_written_and_faster_by_shrinking_its_times() -> None:
    trace = Trace(((0.5, 7), (1.0, -1), (4.0, 2)))
    assert list(trace.offsets("any")) == [(0.5, 7), (1.0, -1), (4.0, 2)]
    assert list(trace.offsets("any", 4.0)) == [(0.5, 7), (1.0, -1)]
    assert list(trace.faster(2.0).offsets("any")) == [(0.25, 7), (0.5, -1), (2.0, 2)]
    assert trace.initial_rps() == 0.75


def test_times_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        Burst(1.0, 2.0, burst_s=3.0, every_s=2.0)
    for steps in ((), ((1.0, 5.0),), ((0.0, 1.0), (2.0, 1.0), (2.0, 3.0))):
        with pytest.raises(ValueError, match="steps begin at 0 s"):
            Step(steps)


def _first_seconds(names: list[tuple[str, Arrivals]], seconds: float, warm_up_s: float = 0.0) -> list[Arrival]:
    return list(schedule(names, seed=1, warm_up_s=warm_up_s, until_s=seconds))


def test_a_schedule_has_all_kinds_in_order_and_one_more_moves_none_of_the_others() -> None:
    reads, writes = ("reads", Poisson(200.0)), ("writes", Poisson(50.0))
    both = _first_seconds([reads, writes], 5.0)
    assert both == sorted(both)
    assert {each.traffic for each in both} == {0, 1}
    alone = _first_seconds([reads], 5.0)
    assert [each for each in both if each.traffic == 0] == alone
    assert alone != _first_seconds([("others", Poisson(200.0))], 5.0), "another name draws another chance"


def test_the_warm_up_lies_before_zero_at_the_first_rate() -> None:
    process = Step(((0.0, 100.0), (1.0, 500.0)), "even")
    made = _first_seconds([("a", process)], 2.0, warm_up_s=2.0)
    before = [each for each in made if each.offset_s < 0]
    assert len(before) == 200
    assert before[0].offset_s >= -2.0
    assert [each.offset_s for each in made if each.offset_s >= 0] == within(process, 2.0, "1/a")


def test_nothing_comes_at_a_rate_of_zero_and_nothing_hangs() -> None:
    assert within(Constant(0.0), 10.0) == []
    assert within(Step(((0.0, 0.0), (5.0, 0.0))), 10.0) == []
    assert within(Burst(0.0, 0.0, 1.0, 2.0), 10.0) == []
    assert _first_seconds([("a", Constant(0.0))], 10.0, warm_up_s=2.0) == []


def test_without_an_end_they_go_on() -> None:
    endless = [offset_s for offset_s, _ in islice(Burst(0.0, 10.0, 1.0, 2.0).offsets("1"), 10_000)]
    assert endless[-1] == pytest.approx(2000, rel=0.1)


def test_a_rate_that_brings_no_arrival_in_the_time_does_not_search_beyond_it() -> None:
    assert within(Burst(0.0, 1e-300, 1.0, 2.0), 10.0) == []
