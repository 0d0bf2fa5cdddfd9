"""A row's figures beside the numbers that it has to reach, as data, as text and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from load import accounting
from load.chaos_figures import Reading
from load.run_figures import judge_run
from load.scenario_schema import CheckSpec
from load.verdict import Verdict, worst
from tests.simulation.stress.battery import Tried

KEPT = ("offered", "right", "errors", "refused", "goodput_rps", "p50_ms", "p99_ms", "p999_ms", "max_ms", "capacity_rps",
        "attempts_per_call", "hedge_share", "retry_share", "extra_execution_share", "expired_work_share")  # fmt: skip
SEEDS_NAMED_MAX = 10


def judged(tried: Tried) -> dict[str, Any]:
    """A row with its checks: name, limit, measured, pass. One seed that broke what must hold in each fails the row."""
    scenario = tried.row.scenario()
    capacity_rps = tried.best_rps
    figures = tried.pooled.figures(capacity_rps)
    before = None if tried.baseline is None else tried.baseline.figures()
    reading = Reading(figures, (), (), before)

    def measure(check: CheckSpec) -> float | None:
        return reading.measure(check) if check.recovery is None else tried.pooled.recovery_s(check.recovery)

    verdict, rows = judge_run(scenario.spec.checks, figures, measure, void=False)
    in_each = {
        "name": "in every seed: what must never happen",
        "figure": "broken_seeds",
        "limit": 0,
        "measured": len(tried.broken),
        "pass": not tried.broken,
    }
    return {
        "row": tried.row.name,
        "seeds": tried.seeds,
        "calls": tried.calls,
        "played": f"{tried.row.cut.words()} s of the scenario, after {tried.row.warm_up_s:g} s of warm-up",
        "verdict": worst([verdict, "fail" if tried.broken else "pass"]),
        "checks": [in_each, *rows],
        "not_here": [check.name or check.figure for check in tried.row.not_here()],
        "figures": {name: figures.get(name) for name in KEPT},
        "traffic": figures["traffic"],
        "windows": figures["windows"],
        "replicas": figures["replicas"],
        "quarters": tried.pooled.rows(),
        "baseline": None if before is None else {name: before.get(name) for name in KEPT},
        "best_rps": {callers: round(loops.rps, 2) for callers, loops in sorted(tried.loops.items())},
        "broken": {str(seed): texts for seed, texts in sorted(tried.broken.items())},
    }


def document(rows: Sequence[Mapping[str, Any]], command: str, took_s: float) -> dict[str, Any]:
    """The JSON of all rows."""
    verdicts: list[Verdict] = [row["verdict"] for row in rows]
    return {
        "verdict": worst(verdicts),
        "command": command,
        "machine": accounting.machine_name(),
        "took_s": round(took_s, 1),
        "rows": [dict(row) for row in rows],
    }


def lines(row: Mapping[str, Any]) -> list[str]:
    """A row for a terminal, and how to run again the seeds that broke something."""
    found = [f"{row['row']}: {row['verdict']}; {row['seeds']} seeds, {row['calls']} calls"]
    for check in row["checks"]:
        word = "kept" if check["pass"] else "MISSED"
        found.append(f"  {word}: {check['name']} (measured {_number(check['measured'])}, limit {check['limit']:g})")
    found += [f"  not on a virtual clock: {name}" for name in row["not_here"]]
    for seed, texts in list(row["broken"].items())[:3]:
        found.append(f"  seed {seed}: {'; '.join(texts[:3])}")
        found.append(f"    again: python -m tests.simulation stress --only {row['row']} --seed {seed}")
    more = list(row["broken"])[3:SEEDS_NAMED_MAX]
    if more:
        found.append(f"  and seeds {', '.join(more)}{', and more' if len(row['broken']) > SEEDS_NAMED_MAX else ''}")
    return found


def markdown(result: Mapping[str, Any]) -> str:
    """All rows as a table: a line for each check."""
    out = ["| row | what | limit | measured | verdict | p50 / p99 ms | seeds, calls |", "|---|---|---|---|---|---|---|"]
    for row in result["rows"]:
        shown = _pair(row["figures"]) + ("" if row["baseline"] is None else f" (baseline {_pair(row['baseline'])})")
        first = (f"`{row['row']}`", shown, f"{row['seeds']:,}, {row['calls']:,}")
        for check in row["checks"]:
            if check["figure"] == "wrong" and check["pass"]:
                continue
            word = "kept" if check["pass"] else "**missed**"
            name, measured = check["name"].replace("|", "/"), _number(check["measured"])
            out.append(f"| {first[0]} | {name} | {check['limit']:g} | {measured} | {word} | {first[1]} | {first[2]} |")
            first = ("", "", "")
        out += [f"| | {name} | | not on a virtual clock | | | |" for name in row["not_here"]]
    out += ["", f"`{result['command']}` took {result['took_s']:.0f} s on {result['machine']}."]
    return "\n".join([*out, ""])


def _pair(figures: Mapping[str, Any]) -> str:
    return " / ".join("-" if figures[name] is None else f"{figures[name]:.1f}" for name in ("p50_ms", "p99_ms"))


def _number(value: float | None) -> str:
    return "nothing" if value is None else f"{value:.4g}"
