"""Figures of an open-loop run, and what verdict they come to."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from load.connection import WRONG_ANSWER
from load.errors import LoadError
from load.histogram import Histogram
from load.open_loop import OpenLoopResult
from load.run_figures import (
    RUN_FIGURES,
    TRAFFIC_FIGURES,
    Machine,
    disturbed,
    figure_of,
    judge_run,
    run_figures,
    total,
)
from load.run_pictures import distribution, latency_over_time, offered_and_done, write_pictures
from load.run_report import result_json, text
from load.scenario import find_scenario, load_scenario
from load.scenario_schema import CheckSpec
from load.svg import Axis, Line, chart, nice_range
from load.tallies import NS, TrafficTally

MACHINE = Machine(generator_cpu_s=0.1, gateway_cpu_s=0.4, gateway_rss_bytes=80_000_000, others_cores=0.02)


def result(*, late_sends: int = 0, timer_late_ms: float = 0.5, right: int = 990, wrong: int = 0) -> OpenLoopResult:
    """1000 calls in 10 s, each right answer after 5 ms but for one that took 2 s."""
    tally = TrafficTally("reads")
    made = OpenLoopResult(10.0, [tally], sends=1000, late_sends=late_sends, in_flight_most=7)
    for number in range(1000):
        offset_ns = number * NS // 100
        tally.offered += 1
        made.seconds.row(offset_ns).offered += 1
        made.send_late.record(50_000)
        latency_ns = 2 * NS if number == 500 else 5_000_000
        error = "" if number < right else WRONG_ANSWER if number < right + wrong else "status 503"
        tally.ended(error, latency_ns, NS)
        row = made.seconds.row(offset_ns + latency_ns)
        row.ended += 1
        row.failed += bool(error)
        if not error:
            made.seconds.answered(offset_ns, latency_ns)
    made.timer_late.record(int(timer_late_ms * 1e6))
    made.seconds.settle(1 << 62)
    return made


def test_the_gateways_cpu_in_a_window_is_that_of_its_whole_seconds_per_call_offered_in_it() -> None:
    looks = [(at_s + 0.02, cpu_s) for at_s, cpu_s in enumerate((1.0, 1.1, 1.6, 2.6, 2.7))]
    machine = Machine(generator_cpu_s=0.1, gateway_looks=looks)
    assert machine.gateway_cpu_us_per_call(1.0, 3.0, 1000) == 1500.0
    assert machine.gateway_cpu_us_per_call(1.0, 3.0, 0) is None
    assert machine.gateway_cpu_us_per_call(3.0, 9.0, 1000) is None, "nobody looked after it"


def test_every_figure_that_is_promised_is_there_and_no_other() -> None:
    figures = run_figures(result(), MACHINE)
    assert set(figures) == set(RUN_FIGURES) | {"traffic", "error_kinds", "windows"}
    assert set(figures["traffic"]["reads"]) == set(TRAFFIC_FIGURES) | {"error_kinds"}


def test_figures_add_up() -> None:
    figures = run_figures(result(right=980, wrong=5), MACHINE)
    assert (figures["offered"], figures["right"], figures["wrong"], figures["errors"]) == (1000, 980, 5, 15)
    assert figures["error_kinds"] == {"status 503": 15}
    assert (figures["refused"], figures["refused_p99_ms"]) == (15, pytest.approx(5.0, rel=0.01))
    assert (figures["offered_rps"], figures["goodput_rps"]) == (100.0, 97.9), "an overdue answer is no good answer"
    assert (figures["error_share"], figures["overdue"], figures["overdue_share"]) == (0.02, 1, 0.001)
    assert figures["p50_ms"] == pytest.approx(5.0, rel=0.01)
    assert figures["p99_ms"] == pytest.approx(5.0, rel=0.01)
    assert figures["p9999_ms"] == pytest.approx(2000, rel=0.01)
    assert figures["max_ms"] == 2000.0
    assert (figures["generator_cpu_us_per_call"], figures["gateway_cpu_us_per_call"]) == (100.0, 400.0)
    assert figures["traffic"]["reads"]["p99_ms"] == figures["p99_ms"]
    assert figures["first_p50_ms"] is None


def test_several_kinds_of_traffic_are_one_in_total() -> None:
    one, two = (result(right=right).traffic[0] for right in (900, 1000))
    whole = total([one, two])
    assert (whole.offered, whole.right, whole.failed) == (2000, 1900, 100)
    assert whole.latency.count == 1900
    assert one.latency.count == 900, "what was added is as it was"


def test_a_run_passes_or_fails_by_its_checks() -> None:
    figures = run_figures(result(), MACHINE)
    kept = [CheckSpec(figure="p99_ms", max=50), CheckSpec(figure="goodput_rps", min=90, name="enough")]
    verdict, rows = judge_run(kept, figures)
    assert verdict == "pass"
    assert [(row["name"], row["limit"], row["pass"]) for row in rows] == [
        ("no wrong answer", 0, True),
        ("p99_ms at most 50", 50, True),
        ("enough", 90, True),
    ]
    assert judge_run([CheckSpec(figure="reads.error_share", max=0)], figures)[0] == "fail"
    assert judge_run([CheckSpec(figure="goodput_rps", min=99)], figures)[0] == "fail"


def test_a_figure_that_does_not_exist_keeps_no_promise() -> None:
    figures = run_figures(result(right=0), MACHINE)
    verdict, rows = judge_run([CheckSpec(figure="p99_ms", max=50)], figures)
    assert (verdict, rows[1]["measured"], rows[1]["pass"]) == ("fail", None, False)


@pytest.mark.parametrize(
    ("late_sends", "timer_late_ms", "why"),
    [(10, 9.0, ""), (11, 0.5, "1.1% of the sends were more than 5 ms late"), (0, 11.0, "timers came 10.9")],
)
def test_a_generator_that_was_late_makes_a_run_inconclusive(late_sends: int, timer_late_ms: float, why: str) -> None:
    figures = run_figures(result(late_sends=late_sends, timer_late_ms=timer_late_ms), MACHINE)
    assert why in disturbed(figures)
    assert bool(disturbed(figures)) is bool(why)
    verdict, rows = judge_run([CheckSpec(figure="error_share", max=0)], figures)
    assert verdict == ("inconclusive" if why else "fail")
    assert rows[1]["pass"] is (None if why else False)


def test_a_wrong_answer_is_wrong_however_late_the_generator_was() -> None:
    figures = run_figures(result(wrong=1, late_sends=500), MACHINE)
    verdict, rows = judge_run([CheckSpec(figure="p99_ms", max=1)], figures)
    assert (verdict, rows[0]["pass"], rows[1]["pass"]) == ("fail", False, None)


def test_figures_are_found_by_the_names_that_checks_use() -> None:
    figures = run_figures(result(), MACHINE)
    assert figure_of(figures, "reads.offered") == figure_of(figures, "offered") == 1000.0
    assert figure_of(figures, "first_p50_ms") is None


# --- the report and the pictures ------------------------------------------------------------------------------------


def report(found: OpenLoopResult) -> dict[str, Any]:
    scenario = load_scenario(find_scenario("steady"))
    figures = run_figures(found, MACHINE)
    verdict, checks = judge_run(scenario.spec.checks, figures)
    setting = {
        "target": "sluice",
        "started": "2026-01-02T03:04:05+00:00",
        "machine": "2 x Some <CPU>",
        "duration_s": 10.0,
        "disturbed": disturbed(figures),
        "traffic": {"reads": {"model": "identity", "protocol": "http"}},
    }
    made = result_json(scenario, verdict, checks, figures, found, setting)
    return json.loads(json.dumps(made, allow_nan=False))  # type: ignore[no-any-return]


def test_the_json_has_the_designs_shape_and_whole_distributions() -> None:
    made = report(result())
    assert made["scenario"] == "steady"
    assert made["verdict"] == "fail"
    assert all({"name", "limit", "measured", "pass"} <= set(check) for check in made["checks"])
    assert len(made["seconds"]) == 10
    assert made["seconds"][5]["max_ms"] == 2000.0
    again = Histogram.from_json(made["distribution"]["reads"])
    assert (again.count, again.largest_ns) == (990, 2 * NS)
    assert again.quantile_ns(0.5) == pytest.approx(5e6, rel=0.01)


def test_the_table_names_what_failed_and_why_nothing_can_be_said() -> None:
    failed = text(report(result()))
    assert "fail: every call has its answer (error_share measured 0.01, limit 0)" in failed
    assert "errors: 10 x status 503" in failed
    assert failed.endswith("verdict: fail")
    assert text(report(result(late_sends=100))).endswith(
        "verdict: inconclusive: 10.0% of the sends were more than 5 ms late"
    )
    assert "-" in text(report(result(right=0)))


def texts(picture: str) -> list[str]:
    root = ElementTree.fromstring(picture)
    return ["".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize(
    ("draw", "title", "axes", "legend"),
    [
        (latency_over_time, "steady: latency over time", ["measured part, s", "send time, ms"], ["max", "p99", "p50"]),
        (distribution, "steady: distribution of latency", ["percentile of", "send time, ms"], ["reads (990)"]),
        (
            offered_and_done,
            "steady: offered against done",
            ["measured part, s", "calls per second"],
            ["offered", "done", "failed"],
        ),
    ],
)
def test_each_picture_says_what_it_shows(draw: Any, title: str, axes: list[str], legend: list[str]) -> None:
    found = texts(draw(report(result())))
    assert found[0] == title
    assert any("2026-01-02T03:04:05+00:00" in each and "2 x Some <CPU>" in each for each in found)
    assert any("sluice; reads (identity, http); 1,000 calls in 10 s; verdict fail" in each for each in found)
    for wanted in axes:
        assert any(wanted in each for each in found), wanted
    for wanted in legend:
        assert wanted in found


def test_the_distribution_ends_at_the_largest_value_and_is_a_rising_staircase() -> None:
    picture = distribution(report(result()))
    (path,) = re.findall(r"<path d='(M[^']*)' fill='none' stroke='#0072b2' stroke-width='2", picture)
    points = [tuple(map(float, point.split())) for point in re.split("[ML]", path)[1:]]
    assert points == sorted(points, key=lambda point: (point[0], -point[1]))
    assert points[-1][1] < points[0][1], "down is up in SVG"


def test_pictures_are_written_under_the_scenarios_name_and_empty_ones_are_left_out(tmp_path: Path) -> None:
    names = [path.name for path in write_pictures(report(result()), tmp_path / "new")]
    assert names == ["steady-latency.svg", "steady-distribution.svg", "steady-throughput.svg"]
    assert [path.name for path in write_pictures(report(result(right=0)), tmp_path)] == ["steady-throughput.svg"]
    (tmp_path / "file").write_text("")
    with pytest.raises(LoadError, match=r"cannot be written.*--pictures"):
        write_pictures(report(result()), tmp_path / "file")


def test_a_chart_breaks_its_line_where_there_is_no_value_and_shows_a_lone_point() -> None:
    x, y = Axis("x", 0, 10), Axis("y", 0, 10)
    points = [(0, 1), (1, 2), (2, None), (3, 4), (4, None), (5, 1), (6, 1)]
    picture = chart("t", [], x, y, [Line("l", points, "#123456")])
    (path,) = re.findall(r"<path d='([^']*)' fill='none' stroke='#123456' stroke-width='2", picture)
    assert path.count("M") == 3
    assert path.count("h0") == 1


@pytest.mark.parametrize(
    ("low", "high", "scale", "labels"),
    [
        (0, 10, "linear", ["0", "2", "4", "6", "8", "10"]),
        (0, 1000, "linear", ["0", "200", "400", "600", "800", "1,000"]),
        (0, 0.3, "linear", ["0", "0.05", "0.1", "0.15", "0.2", "0.25", "0.3"]),
        (1, 100, "log", ["1", "2", "5", "10", "20", "50", "100"]),
        (0.01, 1000, "log", ["0.01", "0.1", "1", "10", "100", "1,000"]),
    ],
)
def test_axes_are_labelled_at_round_numbers(low: float, high: float, scale: Any, labels: list[str]) -> None:
    assert [label for _, label in Axis("a", low, high, scale).labels()] == labels


def test_ranges_hold_their_values_and_are_never_empty() -> None:
    assert nice_range([3.0, 87.0], "linear") == (0.0, 100.0)
    assert nice_range([3.0, 87.0], "log") == (2, 100)
    assert nice_range([0.66, 1001.0], "log") == (0.5, 2000)
    assert nice_range([], "linear")[1] > 0
    low, high = nice_range([10.0], "log")
    assert low <= 10.0 <= high
    assert low < high
    with pytest.raises(ValueError, match="no axis"):
        Axis("a", 1.0, 1.0)
