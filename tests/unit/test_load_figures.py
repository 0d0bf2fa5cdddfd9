"""Medians, ratios, verdicts, and the JSON of a comparison."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from load.figures import Check, Reading, Round, comparison, goals, judge, ratios_of, side_figures, table

QUIET = Reading(
    calls=1000,
    errors=0,
    rps=500.0,
    p50_ms=2.0,
    p99_ms=4.0,
    cpu_us_per_call=100.0,
    rss_mb=60.0,
    triton_cpu_us_per_call=150.0,
    generator_cpu_us_per_call=30.0,
    others_cores=0.02,
    timer_late_p99_ms=1.0,
)
LOW = Check("at most one", "cpu", True, 1.0)
HIGH = Check("at least one", "rps", False, 1.0)


def _rounds(*pairs: tuple[float, float]) -> list[Round]:
    return [
        Round(replace(QUIET, cpu_us_per_call=ours), replace(QUIET, cpu_us_per_call=theirs), 1.0)
        for ours, theirs in pairs
    ]


def test_a_side_adds_up_calls_and_takes_medians_of_the_rest() -> None:
    readings = [
        replace(QUIET, rps=100.0, p99_ms=None, errors=2, error_kinds={"status 503": 2}),
        replace(QUIET, rps=900.0, p99_ms=7.0),
        replace(QUIET, rps=200.0, p99_ms=5.0, errors=1, error_kinds={"status 503": 1}),
    ]
    figures = side_figures(readings)
    assert (figures["calls"], figures["errors"], figures["rps"], figures["p99_ms"]) == (3000, 3, 200.0, 6.0)
    assert figures["error_kinds"] == {"status 503": 3}


def test_ratios_are_made_within_a_round_so_a_machine_that_slows_down_does_not_move_them() -> None:
    rounds = _rounds((100, 50), (200, 100), (400, 200))
    assert ratios_of(rounds, "cpu") == [2.0, 2.0, 2.0]
    assert comparison("envoy", "http", 16, rounds, {})["ratios"]["cpu"] == 2.0


def test_the_ratio_is_the_median_and_one_outlier_does_not_move_it() -> None:
    result = comparison("envoy", "http", 16, _rounds((90, 100), (95, 100), (900, 100)), {})
    assert result["ratios"]["cpu"] == 0.95
    assert result["ratios_min_max"]["cpu"] == [0.9, 9.0]


def test_the_json_has_the_shape_that_the_design_fixes() -> None:
    result = json.loads(json.dumps(comparison("envoy", "grpc", 16, _rounds((100, 100)), {"concurrency": 1})))
    assert result["protocol"] == "grpc"
    assert set(result["sides"]) == {"sluice", "envoy"}
    for side in result["sides"].values():
        assert {"calls", "errors", "rps", "p50_ms", "p99_ms", "cpu_us_per_call", "rss_mb"} <= set(side)
    assert set(result["ratios"]) == {"cpu", "p50", "p99", "rps"}
    assert {"name", "limit", "measured", "pass"} == set(result["checks"][0])


def test_calls_without_a_proxy_have_no_proxy_figures_and_no_ratio_of_them() -> None:
    direct = replace(QUIET, cpu_us_per_call=None, rss_mb=None, rps=400.0)
    result = comparison("direct", "grpc", 16, [Round(QUIET, direct, 1.0)], {})
    assert result["sides"]["direct"]["cpu_us_per_call"] is None
    assert result["ratios"]["cpu"] is None
    assert result["ratios"]["rps"] == 1.25
    assert result["verdict"] == "pass"
    assert "nan" not in table(result).lower()


@pytest.mark.parametrize(
    ("check", "values", "disturbed", "verdict"),
    [
        (LOW, [0.9, 0.95, 1.2], 0, "pass"),
        (LOW, [1.0, 1.0, 1.0], 0, "pass"),
        (LOW, [1.1, 1.2, 1.3, 1.1], 0, "fail"),
        (LOW, [0.9, 0.95, 1.05, 1.1, 1.2], 0, "inconclusive"),
        (HIGH, [1.2, 1.1, 0.8], 0, "pass"),
        (HIGH, [0.5, 0.6, 0.7], 0, "fail"),
        (HIGH, [0.5, 0.6, 0.7], 1, "fail"),
        (HIGH, [0.5, 0.6, 0.7], 2, "inconclusive"),
        (LOW, [], 0, "inconclusive"),
    ],
)
def test_a_goal_is_failed_only_when_it_is_clear(
    check: Check, values: list[float], disturbed: int, verdict: str
) -> None:
    assert judge(check, values, disturbed) == verdict


@pytest.mark.parametrize("side", ["sluice", "peer"])
def test_one_wrong_answer_on_either_side_fails_whatever_the_figures_say(side: str) -> None:
    wrong = replace(QUIET, errors=1, error_kinds={"wrong answer": 1})
    readings: dict[str, Any] = {"sluice": QUIET, "peer": QUIET, side: wrong}
    result = comparison("envoy", "http", 16, [Round(**readings, load_average=1.0)], {})
    assert result["verdict"] == "fail"
    assert "wrong answer" in table(result)


@pytest.mark.parametrize("noise", [{"others_cores": 0.5}, {"timer_late_p99_ms": 11.0}])
def test_other_work_on_the_machine_makes_a_comparison_inconclusive(noise: dict[str, float]) -> None:
    noisy: Any = noise
    result = comparison("envoy", "http", 16, [Round(QUIET, replace(QUIET, **noisy), 1.0)] * 3, {})
    assert (result["verdict"], result["disturbed_rounds"]) == ("inconclusive", 3)
    assert result["checks"][-1]["pass"] is None


def test_goals_stand_where_the_design_sets_them() -> None:
    assert [check.ratio for check in goals("envoy", "http", 1)] == ["cpu"]
    assert [check.ratio for check in goals("envoy", "grpc", 16)] == ["cpu"]
    assert [check.ratio for check in goals("direct", "grpc", 16)] == ["rps"]
    assert not goals("direct", "grpc", 15)
    assert not goals("direct", "http", 16)


def test_without_a_goal_right_answers_are_the_verdict() -> None:
    slow = replace(QUIET, rps=1.0)
    assert comparison("direct", "http", 16, [Round(slow, QUIET, 1.0)], {})["verdict"] == "pass"
    wrong = replace(slow, errors=1)
    assert comparison("direct", "http", 16, [Round(wrong, QUIET, 1.0)], {})["verdict"] == "fail"
