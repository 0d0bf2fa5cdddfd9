"""Stage budgets: points on a call's line, time that passes on, and blame for the stage that took it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.decide.stage_budget import STAGES, CallLine, Stage, StageBudget, StageOverruns, StageSettings

SPLIT: dict[Stage, float] = {"ingress": 0.015, "features": 0.040, "inference": 0.045, "postprocessing": 0.020}


def line(deadline_s: float, split: dict[Stage, float] | None = None, arrived_s: float = 0.0) -> CallLine:
    budget = StageBudget(StageSettings(SPLIT if split is None else split))
    return budget.line(arrived_s, arrived_s + deadline_s)


def points(subject: CallLine) -> list[float]:
    return [subject.by_s(stage) for stage in STAGES]


def test_a_deadline_equal_to_the_sum_is_split_as_the_policy_says() -> None:
    assert points(line(0.120)) == pytest.approx([0.015, 0.055, 0.100, 0.120])


def test_a_shorter_deadline_shrinks_all_stages_in_proportion() -> None:
    assert points(line(0.060)) == pytest.approx([0.0075, 0.0275, 0.050, 0.060])


def test_the_rest_of_a_longer_deadline_is_inferences() -> None:
    subject = line(1.120)
    assert points(subject) == pytest.approx([0.015, 0.055, 1.100, 1.120])
    assert subject.own_s("inference") == pytest.approx(1.045)
    assert subject.own_s("features") == pytest.approx(0.040)


def test_the_points_lie_on_the_clock_of_the_call() -> None:
    assert points(line(0.120, arrived_s=5000.0)) == pytest.approx([5000.015, 5000.055, 5000.100, 5000.120])


def test_a_stage_that_was_quick_leaves_its_time_to_the_next() -> None:
    subject = line(0.120)
    assert subject.overrun_s("features", 0.002, 0.055) == 0.0, "40 ms and the 13 that ingress left"
    assert subject.overrun_s("features", 0.002, 0.056) == pytest.approx(0.001)


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ({}, [0.0, 0.0, 0.1, 0.1]),
        ({"features": 0.04}, [0.0, 0.04, 0.1, 0.1]),
        ({"postprocessing": 0.02}, [0.0, 0.0, 0.08, 0.1]),
        ({"features": 0.15, "postprocessing": 0.05}, [0.0, 0.075, 0.075, 0.1]),
    ],
)
def test_stages_without_seconds_have_no_time_of_their_own_but_inference_has_the_rest(
    split: dict[Stage, float], expected: list[float]
) -> None:
    assert points(line(0.1, split)) == pytest.approx(expected)


def test_an_overrun_is_the_stages_own_and_not_that_of_those_behind_it() -> None:
    subject = line(0.120)
    assert subject.overrun_s("ingress", 0.0, 0.010) == 0.0
    assert subject.overrun_s("features", 0.010, 0.054) == 0.0, "it had what ingress left"
    assert subject.overrun_s("features", 0.010, 0.080) == pytest.approx(0.025)
    assert subject.overrun_s("inference", 0.080, 0.124) == 0.0, "late, but through no fault of its own"
    assert subject.overrun_s("inference", 0.080, 0.130) == pytest.approx(0.005)


def test_on_a_short_deadline_the_shrunken_seconds_count() -> None:
    assert line(0.060).overrun_s("features", 0.0075, 0.0375) == pytest.approx(0.010)


def test_a_stage_without_seconds_never_overruns() -> None:
    assert line(0.1, {"features": 0.04}).overrun_s("inference", 0.0, 99.0) == 0.0


def test_a_deadline_in_the_past_leaves_nothing() -> None:
    subject = StageBudget(StageSettings(SPLIT)).line(5.0, 4.0)
    assert points(subject) == [5.0] * 4
    assert subject.overrun_s("features", 5.0, 5.5) == pytest.approx(0.5)


def test_a_stream_without_a_limit_has_points_before_inference_only() -> None:
    subject = StageBudget(StageSettings(SPLIT)).line(0.0, math.inf)
    assert points(subject) == [0.015, pytest.approx(0.055), math.inf, math.inf]
    assert subject.overrun_s("inference", 0.1, 1000.0) == 0.0
    assert subject.overrun_s("features", 0.0, 0.155) == pytest.approx(0.1)


def test_overruns_are_counted_by_stage_and_the_one_with_most_is_named() -> None:
    subject = StageOverruns()
    assert subject.statistics(0.0)["most"] == ""
    for over_s in (0.0, 0.010, 0.030, 0.0):
        subject.note("features", over_s)
    subject.note("inference", 0.035)
    figures = subject.statistics(0.0)
    features = figures["stages"]["features"]
    assert (features["calls"], features["overruns"], features["worst_s"]) == (4, 2, 0.030)
    assert features["over_s"] == pytest.approx(0.040)
    assert figures["stages"]["ingress"] == {"calls": 0, "overruns": 0, "cut": 0, "over_s": 0.0, "worst_s": 0.0}
    assert figures["most"] == "features"
    for _ in range(2):
        subject.note("inference", 0.0, cut=True)
    figures = subject.statistics(0.0)
    inference = figures["stages"]["inference"]
    assert (inference["calls"], inference["overruns"], inference["cut"]) == (3, 3, 2)
    assert figures["most"] == "inference", "of what was cut short nobody knows how long it would have been"


def test_only_names_of_the_schema_are_counted() -> None:
    subject = StageOverruns(("features",))
    with pytest.raises(ValueError, match="not one of the stages features"):
        subject.note("inference", 0.1)
    with pytest.raises(ValueError):
        StageOverruns().note("x" * 99, 0.1)  # type: ignore[arg-type]
    assert set(subject.statistics(0.0)["stages"]) == {"features"}


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"seconds": {"inference": 0.0}}, "budget of inference"),
        ({"seconds": {"inference": math.nan}}, "budget of inference"),
        ({"seconds": {"features": math.inf}}, "budget of features"),
        ({"seconds": {"feature": 0.1}}, "'feature' is no stage"),
    ],
)
def test_settings_that_mean_nothing_are_refused_by_name(settings: dict[str, object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        StageSettings(**settings)  # type: ignore[arg-type]


SECONDS = st.floats(1e-6, 100)


@given(
    st.dictionaries(st.sampled_from(STAGES), SECONDS),
    st.floats(0, 1e6),
    st.floats(-1, 1000),
    st.lists(st.floats(0, 50), min_size=5, max_size=5),
)
@settings(max_examples=200, deadline=None)
def test_on_any_line_the_points_are_in_order_and_the_last_is_the_deadline(
    split: dict[Stage, float], arrived_s: float, deadline_s: float, spans: list[float]
) -> None:
    budget = StageBudget(StageSettings(split))
    end_s = arrived_s + deadline_s
    subject = budget.line(arrived_s, end_s)
    found = points(subject)
    assert found == sorted(found)
    assert found[0] >= arrived_s
    assert found[-1] == max(end_s, arrived_s)
    owned = [subject.own_s(stage) for stage in STAGES]
    assert math.fsum(own for own in owned if own is not None) <= max(0.0, deadline_s) + 1e-6
    if "inference" in split:
        assert math.fsum(own for own in owned if own is not None) == pytest.approx(max(0.0, deadline_s), abs=1e-6)
    # A call that takes so long for each stage: it ends late exactly if some stage is to blame, where all have seconds.
    now_s, blamed_s = arrived_s, 0.0
    for stage, span_s in zip(STAGES, spans[1:], strict=True):
        started_s, now_s = now_s, now_s + span_s
        over_s = subject.overrun_s(stage, started_s, now_s)
        assert 0.0 <= over_s <= span_s + 1e-6
        blamed_s += over_s
    if len(split) == len(STAGES):
        late_s = now_s - max(end_s, arrived_s)
        assert blamed_s >= late_s - 1e-6
