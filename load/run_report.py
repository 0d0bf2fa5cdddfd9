"""The result of an open-loop run: as JSON for programs, as a table for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from load.open_loop import OpenLoopResult
from load.run_figures import total
from load.scenario import LoadedScenario
from load.verdict import Verdict


def result_json(
    scenario: LoadedScenario,
    verdict: Verdict,
    checks: list[dict[str, Any]],
    figures: Mapping[str, Any],
    found: OpenLoopResult,
    setting: Mapping[str, Any],
) -> dict[str, Any]:
    """The JSON of a run: what DESIGN.md section 5 says, the setting, each second, and the whole distributions."""
    return {
        "scenario": scenario.name,
        "verdict": verdict,
        "checks": checks,
        "figures": dict(figures),
        "setting": dict(setting),
        "seconds": [asdict(row) for row in found.seconds.rows],
        "distribution": distributions(found),
    }


def distributions(found: OpenLoopResult) -> dict[str, Any]:
    """The latencies of right answers of each kind of traffic, those of the single calls of tasks, and of all traffic if
    there are several kinds.
    """
    latencies = {tally.name: tally.latency for tally in found.traffic}
    latencies |= {f"single calls of {tally.name}": tally.leaf for tally in found.traffic if tally.leaf.count}
    if len(found.traffic) > 1:
        latencies["all"] = total(found.traffic).latency
    return {name: latency.to_json() for name, latency in latencies.items()}


_ROWS = (
    ("offered calls/s", "offered_rps", "{:.1f}"),
    ("good answers/s", "goodput_rps", "{:.1f}"),
    ("right", "right", "{}"),
    ("wrong", "wrong", "{}"),
    ("errors", "errors", "{}"),
    ("not sent", "not_sent", "{}"),
    ("held", "held", "{}"),
    ("overdue", "overdue", "{}"),
    ("p50 ms", "p50_ms", "{:.2f}"),
    ("p90 ms", "p90_ms", "{:.2f}"),
    ("p99 ms", "p99_ms", "{:.2f}"),
    ("p99.9 ms", "p999_ms", "{:.2f}"),
    ("p99.99 ms", "p9999_ms", "{:.2f}"),
    ("max ms", "max_ms", "{:.2f}"),
    ("single calls p50 ms", "leaf_p50_ms", "{:.2f}"),
    ("single calls p99 ms", "leaf_p99_ms", "{:.2f}"),
    ("to first response p50 ms", "first_p50_ms", "{:.2f}"),
    ("to first response p99 ms", "first_p99_ms", "{:.2f}"),
    ("between responses p50 ms", "between_p50_ms", "{:.2f}"),
    ("between responses p99 ms", "between_p99_ms", "{:.2f}"),
)
_WHERE_KNOWN = {"first_p50_ms", "first_p99_ms", "between_p50_ms", "between_p99_ms", "leaf_p50_ms", "leaf_p99_ms"}


def text(result: Mapping[str, Any]) -> str:
    """A run for people."""
    figures, setting = result["figures"], result["setting"]
    columns: dict[str, Mapping[str, Any]] = dict(figures["traffic"])
    if len(columns) > 1:
        columns = {"all": figures, **columns}
    table: list[tuple[str, ...]] = [("", *columns)]
    for label, name, form in _ROWS:
        values = [column[name] for column in columns.values()]
        if name not in _WHERE_KNOWN or any(value is not None for value in values):
            table.append((label, *("-" if value is None else form.format(value) for value in values)))
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = [f"{result['scenario']}: {setting['duration_s']:g} s on {setting['target']}"]
    lines += [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width) for place, (cell, width) in enumerate(cells)
        ).rstrip()
        for cells in (list(zip(row, widths, strict=True)) for row in table)
    ]
    if figures["error_kinds"]:
        lines.append("errors: " + ", ".join(f"{count} x {kind}" for kind, count in figures["error_kinds"].items()))
    lines.append(
        f"generator: {figures['late_share']:.2%} of the sends over 5 ms late, "
        f"p99 {_ms(figures['send_late_p99_ms'])}, at most {_ms(figures['send_late_max_ms'])}; "
        f"timers p99 {_ms(figures['timer_late_p99_ms'])}; {figures['generator_cpu_us_per_call']:.0f} us CPU per call"
    )
    if figures["gateway_cpu_us_per_call"] is not None:
        lines.append(
            f"gateway: {figures['gateway_cpu_us_per_call']:.0f} us CPU per call, {figures['gateway_rss_mb']:.0f} MB"
            + ("" if figures["others_cores"] is None else f"; other work took {figures['others_cores']:.2f} CPUs")
        )
    lines += [_fault(span) for span in setting.get("faults", ())]
    if (baseline := result.get("baseline")) is not None:
        before = baseline["figures"]
        kinds = (("p50", "p50_ms"), ("p99", "p99_ms"), ("p99.9", "p999_ms"))
        parts = [f"{label} {_ms(before[name])}" for label, name in kinds]
        lines.append(f"baseline: {before['right']} right of {before['offered']}, {', '.join(parts)}")
    for check in result["checks"]:
        word = {True: "pass", False: "fail", None: "inconclusive"}[check["pass"]]
        lines.append(
            f"{word}: {check['name']} ({check['figure']} measured {check['measured']}, limit {check['limit']:g})"
        )
    why = f": {setting['disturbed']}" if result["verdict"] == "inconclusive" else ""
    lines.append(f"verdict: {result['verdict']}{why}")
    return "\n".join(lines)


def _fault(span: Mapping[str, Any]) -> str:
    end = "to the end" if span["end_s"] is None else f"to {span['end_s']:.2f} s"
    return f"fault: {span['kind']} of replica {span['replica']} from {span['begin_s']:.2f} s {end}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} ms"
