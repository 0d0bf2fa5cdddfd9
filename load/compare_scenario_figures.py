"""From the runs of both sides to figures: medians over rounds, ratios, what the scenario's checks measure, verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from load.attempts import ATTEMPT_FIGURES
from load.chaos import Done
from load.chaos_figures import Reading
from load.histogram import Histogram
from load.run_figures import limit_of, total
from load.scenario import LoadedScenario
from load.scenario_schema import CheckSpec
from load.tallies import Second
from load.verdict import UNJUDGED, Limit, Verdict, judge_why, passed, spread, worst

ROUNDS_MIN = 3
"""A round is a whole run of a scenario, with thousands of calls; of those of `compare` alone seven are needed."""

RATIOS: Mapping[str, Callable[[Mapping[str, Any]], float | None]] = {
    "cpu": lambda figures: figures["gateway_cpu_us_per_call"],
    "p50": lambda figures: figures["p50_ms"],
    "p99": lambda figures: figures["p99_ms"],
    "p999": lambda figures: figures["p999_ms"],
    "rps": lambda figures: figures["goodput_rps"],
}
"""Ratio to the figure that it is made from."""
AT_LEAST = frozenset({"rps"})

SIDE: Mapping[str, str] = {
    "rps": "goodput_rps",
    "p50_ms": "p50_ms",
    "p99_ms": "p99_ms",
    "p999_ms": "p999_ms",
    "max_ms": "max_ms",
    "error_share": "error_share",
    "refused_p99_ms": "refused_p99_ms",
    "cpu_us_per_call": "gateway_cpu_us_per_call",
    "rss_mb": "gateway_rss_mb",
    "attempts_per_call": "attempts_per_call",
    "hedge_share": "hedge_share",
    "retry_share": "retry_share",
    "extra_execution_share": "extra_execution_share",
    "expired_work_share": "expired_work_share",
    "goodput_share": "goodput_share",
}
"""Medians over the rounds, by the names that `compare` has for them, to the figure of a run."""


@dataclass(frozen=True, slots=True)
class ScenarioRound:
    """Both sides, one right after the other."""

    sluice: Done
    envoy: Done

    @property
    def disturbed(self) -> bool:
        return bool(self.sluice.disturbed or self.envoy.disturbed)


def without_records(figures: dict[str, Any]) -> None:
    """Envoy writes no prediction records: what is read from them is not 0 but unknown."""
    for part in (figures, *figures["windows"].values()):
        part |= dict.fromkeys(ATTEMPT_FIGURES)
        for replica in part["replicas"].values():
            replica["attempts"] = None


def side(runs: Sequence[Done]) -> dict[str, Any]:
    """One side over all rounds: calls and errors added up, medians of the rest."""
    kinds: dict[str, int] = {}
    counters: dict[str, float] = {}
    for each in runs:
        for kind, count in each.figures["error_kinds"].items():
            kinds[kind] = kinds.get(kind, 0) + count
        for name, value in each.counters.items():
            counters[name] = counters.get(name, 0) + value
    return {
        "calls": sum(each.figures["offered"] for each in runs),
        "errors": sum(each.figures["errors"] + each.figures["not_sent"] + each.figures["wrong"] for each in runs),
        "wrong": sum(each.figures["wrong"] for each in runs),
        "refused": sum(each.figures["refused"] for each in runs),
        **{name: _median(each.figures[figure] for each in runs) for name, figure in SIDE.items()},
        "traffic": {
            name: {
                figure: _median(each.figures["traffic"][name][figure] for each in runs)
                for figure in ("goodput_rps", "error_share", "p50_ms", "p99_ms", "p999_ms")
            }
            for name in runs[0].figures["traffic"]
        },
        "error_kinds": kinds,
        "counters": counters,
    }


def _median(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return round(median(known), 6) if known else None


def checks_of(scenario: LoadedScenario, rounds: Sequence[ScenarioRound]) -> list[dict[str, Any]]:
    """What the scenario's own checks measure on both sides, medians over the rounds. Those beside a baseline are left
    out, for there is none; null is what a side cannot tell, or what never came about (a recovery).
    """
    rows: list[dict[str, Any]] = []
    for check in scenario.spec.checks:
        if check.times_baseline:
            continue
        limit = limit_of(check)
        row: dict[str, Any] = {"name": check.name or check.figure, "figure": check.figure, "limit": limit.value}
        row["at_most"] = limit.at_most
        for name in ("sluice", "envoy"):
            found = [_measured(check, getattr(each, name)) for each in rounds]
            row[name] = _median(found) if None not in found else None
        rows.append(row)
    return rows


def _measured(check: CheckSpec, done: Done) -> float | None:
    return Reading(done.figures, done.found.seconds.rows, done.spans).measure(check)


def document(
    scenario: LoadedScenario,
    rounds: Sequence[ScenarioRound],
    setting: Mapping[str, Any],
    limits: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """The JSON of a comparison on a scenario.

    The verdict: a wrong answer on either side fails; else it is that of `limits` (ratio to its limit), and `UNJUDGED`
    without any: what the scenario promises is judged by `load chaos`, and here only shown for both sides. If the run
    that Envoy was tuned by was spoiled, no round says anything.
    """
    sides = {name: side([getattr(each, name) for each in rounds]) for name in ("sluice", "envoy")}
    disturbed = len(rounds) if setting.get("calibration_disturbed") else sum(each.disturbed for each in rounds)
    ratios: dict[str, float | None] = {}
    spreads: dict[str, Any] = {}
    for name, figure in RATIOS.items():
        values = _ratios(rounds, figure)
        ratios[name] = round(median(values), 3) if values else None
        around = spread(values) if values else None
        spreads[name] = None if around is None else {"low": round(around.low, 3), "high": round(around.high, 3)}
    wrong = sides["sluice"]["wrong"] + sides["envoy"]["wrong"]
    checks: list[dict[str, Any]] = [{"name": "no wrong answer", "limit": 0, "measured": wrong, "pass": not wrong}]
    verdicts: list[Verdict] = ["fail" if wrong else "pass"]
    for name, value in (limits or {}).items():
        limit = Limit(value, at_most=name not in AT_LEAST)
        verdict, why = judge_why(_ratios(rounds, RATIOS[name]), limit, rounds_min=ROUNDS_MIN, disturbed=disturbed)
        verdicts.append(verdict)
        words = f"{name} ratio at {'most' if limit.at_most else 'least'} {value:g}"
        check = {"name": words, "limit": value, "measured": ratios[name], "pass": passed(verdict)}
        checks.append({**check, "why": why} if why else check)
    last = rounds[-1]
    return {
        "scenario": scenario.name,
        "protocol": "+".join(scenario.protocols),
        "sides": sides,
        "ratios": ratios,
        "spread": spreads,
        "verdict": worst(verdicts) if limits or "fail" in verdicts else UNJUDGED,
        "checks": checks,
        "scenario_checks": checks_of(scenario, rounds),
        "disturbed_rounds": disturbed,
        "setting": {**setting, "faults": [asdict(span) for span in last.sluice.spans]},
        "rounds": [
            {
                name: {
                    **{each: done.figures[figure] for each, figure in SIDE.items()},
                    "attempts": done.attempts,
                    "disturbed": done.disturbed,
                    "counters": dict(done.counters),
                }
                for name, done in (("sluice", pair.sluice), ("envoy", pair.envoy))
            }
            for pair in rounds
        ],
        "seconds": {name: _seconds([getattr(each, name) for each in rounds]) for name in ("sluice", "envoy")},
        "distribution": {name: _distribution([getattr(each, name) for each in rounds]) for name in ("sluice", "envoy")},
    }


def _ratios(rounds: Sequence[ScenarioRound], figure: Callable[[Mapping[str, Any]], float | None]) -> list[float]:
    pairs = [(figure(each.sluice.figures), figure(each.envoy.figures)) for each in rounds]
    return [ours / theirs for ours, theirs in pairs if ours is not None and theirs]


def _seconds(runs: Sequence[Done]) -> list[dict[str, Any]]:
    """Each second of the run: medians over the rounds."""
    length = min(len(each.found.seconds.rows) for each in runs)
    names = [name for name in Second.__dataclass_fields__ if name != "at_s"]
    return [
        {"at_s": at, **{name: _median(getattr(each.found.seconds.rows[at], name) for each in runs) for name in names}}
        for at in range(length)
    ]


def _distribution(runs: Sequence[Done]) -> dict[str, Any]:
    """The latencies of right answers of all rounds together."""
    whole = Histogram()
    for each in runs:
        whole.merge(total(each.found.traffic).latency)
    return whole.to_json()


_ROWS = (
    ("calls", "calls", "", "{:.0f}"),
    ("errors", "errors", "", "{:.0f}"),
    ("of them refused", "refused", "", "{:.0f}"),
    ("good answers/s", "rps", "rps", "{:.1f}"),
    ("p50 ms", "p50_ms", "p50", "{:.2f}"),
    ("p99 ms", "p99_ms", "p99", "{:.2f}"),
    ("p99.9 ms", "p999_ms", "p999", "{:.2f}"),
    ("max ms", "max_ms", "", "{:.2f}"),
    ("proxy CPU us/call", "cpu_us_per_call", "cpu", "{:.0f}"),
    ("proxy RSS MB", "rss_mb", "", "{:.0f}"),
    ("extra executions", "extra_execution_share", "", "{:.2%}"),
    ("expired work", "expired_work_share", "", "{:.2%}"),
)


def table(result: Mapping[str, Any]) -> str:
    """A comparison for people."""
    sides, setting = result["sides"], result["setting"]
    rows: list[tuple[str, ...]] = [("", "sluice", "envoy", "ratio", "95 % interval")]
    for label, name, ratio, form in _ROWS:
        value, around = result["ratios"].get(ratio), result["spread"].get(ratio)
        cells = ["-" if each[name] is None else form.format(each[name]) for each in (sides["sluice"], sides["envoy"])]
        interval = "" if around is None else f"{around['low']:.2f}..{around['high']:.2f}"
        rows.append((label, *cells, "" if value is None else f"{value:.2f}", interval))
    for check in result["scenario_checks"]:
        cells = ["-" if check[name] is None else f"{check[name]:g}" for name in ("sluice", "envoy")]
        rows.append((f"{check['name']} ({'<=' if check['at_most'] else '>='} {check['limit']:g})", *cells, "", ""))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    timeout_ms = setting["envoy_per_try_timeout_ms"]
    lines = [
        f"{result['scenario']}: {setting['duration_s']:g} s on {setting['replicas']} replicas, "
        f"{len(result['rounds'])} rounds; Envoy "
        + ("does not hedge" if timeout_ms is None else f"hedges after {timeout_ms} ms")
        + f", its breakers let {setting['envoy_calls_max']} calls through"
        + (
            f" (class {setting['envoy_top_class']}: {setting['envoy_top_calls_max']})"
            if setting["envoy_top_class"]
            else ""
        )
    ]
    lines += [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width) for place, (cell, width) in enumerate(pairs)
        ).rstrip()
        for pairs in (list(zip(row, widths, strict=True)) for row in rows)
    ]
    for name, each in sides.items():
        if each["error_kinds"]:
            lines.append(f"errors of {name}: " + ", ".join(f"{n} x {kind}" for kind, n in each["error_kinds"].items()))
        if each["counters"]:
            lines.append(f"{name} counted: " + ", ".join(f"{n:.0f} {words}" for words, n in each["counters"].items()))
    for check in result["checks"]:
        word = {True: "pass", False: "fail", None: "inconclusive"}[check["pass"]]
        why = f": {check['why']}" if "why" in check else ""
        lines.append(f"{word}: {check['name']} (measured {check['measured']}, limit {check['limit']:g}){why}")
    unjudged = ", for no --limit was set: no ratio was judged" if result["verdict"] == UNJUDGED else ""
    disturbed = result["disturbed_rounds"]
    if setting.get("calibration_disturbed"):
        lines.append(f"Envoy was tuned by a run that says nothing: {setting['calibration_disturbed']}")
    lines.append(f"verdict: {result['verdict']}{unjudged}; {len(result['rounds'])} rounds, {disturbed} of them spoiled")
    return "\n".join(lines)
