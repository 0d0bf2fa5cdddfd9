"""The figures of `load chaos`: from what is on disk, in windows, beside a baseline, after a fault; and its verdicts."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from array import array
from pathlib import Path
from typing import Any

import pytest

from load.__main__ import main
from load.attempts import ATTEMPT_FIGURES, Attempt, Recorded, attempt_figures, read_records
from load.chaos import Done, document
from load.chaos_figures import CHAOS_FIGURES, RECOVERY, Evidence, Reading, add_evidence, recovery_s
from load.executions import EXECUTION_FIGURES, Calls, Execution, execution_figures, read_log
from load.fault_schema import Recovery, Window
from load.faults import Span
from load.open_loop import OpenLoopResult
from load.replica_figures import REPLICA_FIGURES, replica_figures, since
from load.run_figures import run_figures
from load.run_pictures import latency_over_time
from load.run_report import text
from load.scenario import find_scenario, load_scenario
from load.scenario_schema import CheckSpec
from load.tallies import NS, Second, TrafficTally, WindowTally
from tests.unit.test_load_run_figures import MACHINE

START_S = 1_000.0
CALLS = Calls({"reads": [0.0, 1.0, 2.0, 3.0]}, {"reads": 0.5}, {"reads": 1_000_000})


def executed(body_id: str, began_s: float, took_s: float = 0.1, requests: int = 1, replica: int = 0) -> Execution:
    return Execution(replica, body_id, began_s, took_s, requests)


# --- the execution log ------------------------------------------------------------------------------------------------


def line(body_id: str, start_s: float, end_s: float) -> str:
    return json.dumps({"id": body_id, "start_s": start_s, "end_s": end_s, "requests": 2, "outcome": "ok"}) + "\n"


def test_the_execution_log_is_read_with_the_part_that_was_moved_aside_and_a_torn_line_is_passed_over(
    tmp_path: Path,
) -> None:
    log = tmp_path / "triton-0.accel.jsonl"
    Path(f"{log}.1").write_text(line("reads/1", START_S + 0.5, START_S + 0.75))
    log.write_text(
        line("reads/2", START_S + 1, START_S + 1.5) + line("", START_S + 2, START_S + 3) + '{"id": "reads/3", "sta'
    )
    assert list(read_log(log, 2, START_S)) == [
        executed("reads/1", 0.5, 0.25, 2, replica=2),
        executed("reads/2", 1.0, 0.5, 2, replica=2),
    ]
    assert list(read_log(tmp_path / "none.jsonl", 0, START_S)) == []


def test_a_call_that_was_executed_twice_is_an_extra_execution() -> None:
    ran = [executed("reads/1", 0.1), executed("reads/2", 1.1), executed("reads/2", 1.2, replica=1)]
    figures = execution_figures(ran, CALLS)
    assert set(figures) == set(EXECUTION_FIGURES)
    assert (figures["executions"], figures["executed_calls"], figures["extra_execution_share"]) == (3, 2, 0.5)
    assert figures["expired_work_share"] == 0.0


def test_work_on_a_call_whose_deadline_has_passed_is_expired_work() -> None:
    ran = [executed("reads/1", 0.4, 0.3), executed("reads/2", 1.6, 0.1), executed("other/9", 50.0, 0.1)]
    assert execution_figures(ran, CALLS)["expired_work_share"] == 0.2
    shared = [executed("reads/2", 1.6, 0.4, requests=2), executed("reads/3", 2.1, 0.4, requests=2)]
    assert execution_figures(shared, CALLS)["expired_work_share"] == 0.5, "each has its part of the batch"


def test_rows_that_begin_anew_belong_to_the_last_call_before_the_execution() -> None:
    calls = Calls({"reads": [0.0, 1.0, 2.0, 3.0]}, {"reads": 0.5}, {"reads": 2})
    assert calls.deadline_of(executed("reads/1", 2.2)) == 2.5
    assert calls.deadline_of(executed("reads/0", 1.9)) == 1.5
    assert calls.deadline_of(executed("reads/0", 3.1)) == 3.5
    assert calls.deadline_of(executed("", 3.1)) is None
    assert calls.deadline_of(executed("reads/1", 9.0, replica=1)) == 2.5, "the run has made no later one"


def test_no_executions_say_nothing() -> None:
    assert set(execution_figures([], CALLS).values()) == {None}


# --- the gateway's records --------------------------------------------------------------------------------------------


def record(request_id: str, second: float, attempts: list[tuple[str, str, float]], **more: Any) -> str:
    whole = {
        "request_id": request_id,
        "time": f"2026-01-01T00:00:{second:09.6f}Z",
        "status": "OK",
        "deadline_ms": 100.0,
        "duration_ms": 20.0,
        "stages_ms": {"write": 5.0},
        "attempts": [
            {"replica": f"cpu/{address}", "kind": kind, "start_ms": start_ms} for address, kind, start_ms in attempts
        ],
        **more,
    }
    return json.dumps(whole) + "\n"


UNIX_S = 1_767_225_600.0
"""2026-01-01, 00:00 UTC."""


def test_records_of_the_run_are_read_and_no_others(tmp_path: Path) -> None:
    one = record("load-0000000a-1", 1.0, [("h:1", "primary", 1.0), ("h:2", "hedge", 51.0)])
    other = record("load-0000000b-1", 1.0, [])
    dropped = json.dumps({"schema": 1, "dropped": 3}) + "\n"
    (tmp_path / "records-20260101-1.jsonl").write_text(one + other + dropped + '{"request_id": "load-0000000a-2')
    late = record("load-0000000a-3", 3.0, [("x:9", "primary", 0.0)], duration_ms=106.0)
    (tmp_path / "records-20260101-2.jsonl").write_text(late)
    found = list(read_records(tmp_path, {"h:1": 0, "h:2": 1}, UNIX_S, ("load-0000000a-",)))
    assert [each.began_s for each in found] == pytest.approx([1.0, 3.0])
    assert [(sent.replica, sent.kind) for sent in found[0].attempts] == [(0, "primary"), (1, "hedge")]
    assert found[0].attempts[1].began_s == pytest.approx(1.051)
    assert [each.late for each in found] == [False, True], "the time to write the answer is none of the gateway's"
    assert found[1].attempts[0].replica == -1
    figures = attempt_figures(found)
    assert set(figures) == set(ATTEMPT_FIGURES)
    assert (figures["attempts"], figures["attempts_per_call"]) == (3, 1.5)
    assert (figures["hedge_share"], figures["retry_share"], figures["late_answers"]) == (0.5, 0.0, 1)
    assert set(attempt_figures([]).values()) == {None}


def test_a_replica_has_its_share_and_what_was_sent_to_it_in_the_time() -> None:
    ran = [executed("reads/1", 0.1), executed("reads/2", 1.1, replica=1), executed("reads/3", 1.2, replica=1)]
    sent = (Attempt(1, "primary", 0.5), Attempt(1, "primary", 2.5), Attempt(0, "primary", 1.0))
    records = [Recorded(0.0, False, sent)]
    figures = replica_figures(ran, records, [30, 10], 2, (0.0, 2.0))
    assert set(figures["replica-0"]) == set(REPLICA_FIGURES)
    assert figures["replica-1"] == {
        "inferences": 10,
        "inference_share": 0.25,
        "executions": 2,
        "execution_share": round(2 / 3, 6),
        "attempts": 1,
    }
    window = replica_figures([], records, None, 2, (0.0, 2.0))["replica-1"]
    assert (window["inferences"], window["inference_share"], window["execution_share"]) == (None, None, None)


@pytest.mark.parametrize(("before", "after", "counted"), [(5, 12, 7), (5, 2, 2), (None, 4, 4), (5, None, None)])
def test_a_triton_that_was_started_again_counts_from_nothing(
    before: int | None, after: int | None, counted: int | None
) -> None:
    assert since(before, after) == counted


# --- what a check measures --------------------------------------------------------------------------------------------


def result() -> OpenLoopResult:
    """Ten seconds of one call each, with a window over the last five; the first traffic is the only one."""
    tally, part = TrafficTally("reads"), TrafficTally("reads")
    made = OpenLoopResult(10.0, [tally], windows=[WindowTally(5.0, 10.0, [part])], sends=10)
    made.intended = [array("q", range(10))]
    for number in range(10):
        for each in (tally, part) if number >= 5 else (tally,):
            each.offered += 1
            each.ended("", (number + 1) * 1_000_000, NS)
        made.seconds.row(number * NS).offered += 1
        made.seconds.row(number * NS).ended += 1
        made.seconds.answered(number * NS, (number + 1) * 1_000_000)
        made.send_late.record(1)
    made.timer_late.record(1)
    made.seconds.settle(1 << 62)
    return made


def figures_of(made: OpenLoopResult, capacity_rps: float | None = None) -> dict[str, Any]:
    figures = run_figures(made, MACHINE)
    records = [Recorded(float(at_s), False, (Attempt(0, "primary", float(at_s)),)) for at_s in range(10)]
    executions = [executed(f"reads/{at_s + 1}", float(at_s)) for at_s in range(10)]
    calls = Calls({"reads": [float(at_s) for at_s in range(10)]}, {"reads": 1.0}, {"reads": 100})
    add_evidence(figures, Evidence(executions, records, [10], calls), capacity_rps)
    return figures


def test_every_figure_that_is_promised_is_there_in_the_run_and_in_its_windows() -> None:
    figures = figures_of(result(), 2.0)
    assert set(CHAOS_FIGURES) - {RECOVERY} <= set(figures)
    window = figures["windows"]["5-10"]
    assert (figures["attempts"], window["attempts"], window["executions"]) == (10, 5, 5)
    assert (figures["goodput_share"], window["traffic"]["reads"]["goodput_share"]) == (0.5, 0.5)
    assert (figures["replicas"]["replica-0"]["inferences"], window["replicas"]["replica-0"]["attempts"]) == (10, 5)
    assert figures_of(result())["goodput_share"] is None


def test_a_check_is_measured_in_its_window_and_beside_the_baseline() -> None:
    figures = figures_of(result())
    before = {**figures, "p99_ms": 5.0}
    reading = Reading(figures, [], [], before)
    assert reading.measure(CheckSpec(figure="p99_ms", times_baseline=True, max=1.0)) == pytest.approx(2.0, rel=0.01)
    assert reading.measure(CheckSpec(figure="replica-0.attempts", window=Window(from_s=5), max=1.0)) == 5.0
    nothing = Reading(figures, [], [], {**figures, "p99_ms": None})
    assert nothing.measure(CheckSpec(figure="p99_ms", times_baseline=True, max=1.0)) is None


def seconds(*p99s: float | None, failed: tuple[int, ...] = ()) -> list[Second]:
    return [Second(at_s, 10, 10, int(at_s in failed), p99, p99, p99) for at_s, p99 in enumerate(p99s)]


@pytest.mark.parametrize(
    ("rows", "recovery", "found"),
    [
        (seconds(5, 5, 90, 90, 5, 5), Recovery(after_s=2, p99_ms=10), 2.0),
        (seconds(5, 5, 90, 90, 5, 5), Recovery(after_s=4.5, p99_ms=10), 0.0),
        (seconds(5, 5, 90, 5, 90, 5), Recovery(after_s=2, p99_ms=10), 3.0),
        (seconds(5, 5, 90, 90, 90, 90), Recovery(after_s=2, p99_ms=10), None),
        (seconds(5, 5, 90, 5, 5, 5, failed=(3,)), Recovery(after_s=2, p99_ms=10), 2.0),
        (seconds(5, 5, None, 5, 5, 5), Recovery(after_s=2, p99_ms=10), 1.0),
        (seconds(5, 8, 90, 9, 9, 9), Recovery(after_s=2, times=1.2, before_s=2), 1.0),
        (seconds(5, 8, 90, 10, 9, 9), Recovery(after_s=2, times=1.2, before_s=2), 2.0),
        (seconds(5, 5, 90, 90, 5, 5), Recovery(after_s=2, times=1.2, before_s=0.5), None),
    ],
)
def test_recovery_is_the_first_second_from_which_on_all_is_well(
    rows: list[Second], recovery: Recovery, found: float | None
) -> None:
    assert recovery_s(recovery, rows, []) == found


def test_recovery_after_a_fault_counts_from_its_real_end_on_all_replicas() -> None:
    rows, after = seconds(5, 5, 90, 90, 5, 5), Recovery(after_fault=1, p99_ms=10)
    spans = [Span(0, "slow", 0, 0.0), Span(1, "kill", 0, 1.0, 2.5), Span(1, "kill", 1, 1.0, 3.5)]
    assert recovery_s(after, rows, spans) == 0.5
    assert recovery_s(after, rows, [*spans, Span(1, "kill", 2, 1.0)]) is None, "one did not come back"
    assert recovery_s(after, rows, spans[:1]) is None


# --- the whole --------------------------------------------------------------------------------------------------------


def done(made: OpenLoopResult) -> Done:
    return Done(made, figures_of(made), [Span(0, "kill", 1, 2.0, 4.0)], [])


SETTING: dict[str, Any] = {
    "target": "sluice",
    "duration_s": 10.0,
    "machine": "",
    "started": "",
    "traffic": {"reads": {"model": "accel", "protocol": "grpc"}},
}


def made_document(*, before: OpenLoopResult | None = None) -> dict[str, Any]:
    """The JSON of a run, beside a baseline if one is given."""
    scenario = load_scenario(find_scenario("steady"))
    return document(scenario, done(result()), None if before is None else done(before), SETTING)


def test_the_result_shows_the_fault_and_the_baseline_to_people_and_in_the_picture() -> None:
    shown = made_document(before=result())
    assert shown["verdict"] == "pass"
    words = text(shown)
    assert "fault: kill of replica 1 from 2.00 s to 4.00 s" in words
    assert "baseline: 10 right of 10, p50 " in words
    picture = latency_over_time(shown)
    ElementTree.fromstring(picture)
    assert "kill of 1" in picture


def test_a_baseline_that_the_generator_spoiled_leaves_the_verdict_open() -> None:
    spoiled = result()
    spoiled.late_sends = 5
    shown = made_document(before=spoiled)
    assert shown["verdict"] == "inconclusive"
    assert shown["setting"]["disturbed"].startswith("in the baseline 50.0% of the sends")


def test_a_replica_that_ended_by_itself_leaves_the_verdict_open() -> None:
    made = result()
    died = Done(made, figures_of(made), [], [1])
    shown = document(load_scenario(find_scenario("steady")), died, None, SETTING)
    assert (shown["verdict"], shown["setting"]["disturbed"][:26]) == ("inconclusive", "replica 1 ended by itself ")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["chaos"], 2, "name a scenario; python -m load chaos --list shows them"),
        (["chaos", "kil"], 2, "did you mean kill?"),
        (["chaos", "kill", "--seconds", "5"], 2, "faults[0]: it begins at 8 s, and the run ends at 5 s"),
        (["run", "kill"], 2, "kill: it has faults, which takes: python -m load chaos kill"),
        (["run", "expired"], 2, "expired: it checks late_answers, which takes: python -m load chaos expired"),
    ],
)
def test_wrong_usage_ends_with_2_and_a_remedy(
    words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == code
    assert said in capsys.readouterr().err
