"""Medians, ratios, verdicts, and the JSON of a comparison."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from load.figures import RATIOS, Reading, Round, comparison, limit_of, ratios_of, side_figures, table

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
    assert (result["spread"]["cpu"]["min"], result["spread"]["cpu"]["max"]) == (0.9, 9.0)


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
    assert "nan" not in table(result).lower()


def test_a_limit_is_judged_only_when_it_is_asked_for() -> None:
    dear = _rounds(*[(400, 100)] * 7)
    unasked = comparison("envoy", "http", 16, dear, {})
    assert unasked["verdict"] == "none"
    assert "verdict: none, for no --limit was set: no ratio was judged; 7 rounds" in table(unasked)
    asked = comparison("envoy", "http", 16, dear, {}, {"cpu": 1.0})
    assert asked["verdict"] == "fail"
    assert asked["checks"][-1] == {"name": "cpu ratio at most 1", "limit": 1.0, "measured": 4.0, "pass": False}


def test_more_is_better_for_rates_and_less_for_all_else() -> None:
    assert {name: limit_of(name, 1.0).beyond(2.0) for name in RATIOS} == {
        "cpu": True, "p50": True, "p99": True, "rps": False,
    }  # fmt: skip
    faster = [Round(replace(QUIET, rps=700.0), QUIET, 1.0)] * 7
    assert comparison("direct", "grpc", 16, faster, {}, {"rps": 1.0})["verdict"] == "pass"
    slower = [Round(replace(QUIET, rps=300.0), QUIET, 1.0)] * 7
    assert comparison("direct", "grpc", 16, slower, {}, {"rps": 1.0})["verdict"] == "fail"


def test_fewer_than_seven_rounds_leave_every_ratio_and_every_limit_open() -> None:
    result = comparison("envoy", "http", 16, _rounds(*[(50, 100)] * 6), {}, {"cpu": 1.0})
    assert (result["verdict"], result["ratios"]["cpu"], result["checks"][-1]["pass"]) == ("inconclusive", 0.5, None)
    assert set(result["inconclusive"]) == set(RATIOS)
    assert not comparison("envoy", "http", 16, _rounds(*[(50, 100)] * 7), {})["inconclusive"]


def test_a_ratio_whose_rounds_disagree_is_marked_and_the_others_are_not() -> None:
    rounds = _rounds((50, 100), (90, 100), (130, 100), (60, 100), (140, 100), (100, 100), (70, 100))
    result = comparison("envoy", "http", 16, rounds, {}, {"cpu": 1.0, "p99": 1.0})
    assert set(result["inconclusive"]) == {"cpu"}
    assert [check["pass"] for check in result["checks"]] == [True, True, None, True]
    assert result["verdict"] == "inconclusive"
    assert "cpu is inconclusive: the rounds disagree" in table(result)
    assert "limit 1.0): the rounds disagree, with the limit between them" in table(result)
    assert "verdict: inconclusive; 7 rounds" in table(result)


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
    result = comparison("envoy", "http", 16, [Round(QUIET, replace(QUIET, **noisy), 1.0)] * 7, {}, {"cpu": 1.0})
    assert (result["verdict"], result["disturbed_rounds"]) == ("inconclusive", 7)
    assert result["checks"][-1]["pass"] is None


def test_a_call_that_was_not_executed_once_fails_the_comparison() -> None:
    good = replace(QUIET, sent=100, inferences=100, executions=25)
    result = comparison("direct", "grpc", 16, [Round(good, good, 1.0)] * 7, {})
    assert result["verdict"] == "none"
    assert (result["sides"]["sluice"]["batch"], result["sides"]["direct"]["inferences"]) == (4.0, 700)
    assert "Triton's batches" in table(result)
    for wrong in (99, 101):  # answered from somewhere else, or sent twice
        rounds = [Round(replace(good, inferences=wrong), good, 1.0)] + [Round(good, good, 1.0)] * 6
        result = comparison("direct", "grpc", 16, rounds, {})
        assert (result["verdict"], result["checks"][1]["pass"]) == ("fail", False)
    failed = replace(good, errors=1, inferences=99, error_kinds={"code UNAVAILABLE": 1})
    result = comparison("direct", "grpc", 16, [Round(failed, good, 1.0)] * 7, {})
    assert len(result["checks"]) == 1, "whether a call that failed was executed is not known"
