"""From windows to figures: readings, medians over rounds, ratios, the verdict, and the JSON of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from load.verdict import ROUNDS_MIN, UNJUDGED, Limit, Verdict, judge_why, passed, spread, worst

TIMER_LATE_MS_MAX = 10.0
"""A window in which the generator's own timers came later than this at p99 says nothing about the servers."""
OTHERS_CORES_MAX = 0.25
"""Nor does one in which other processes of the machine took more CPUs than this."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One side in one round. CPU is per call that ended in the window; `None` where there is no proxy, or no right
    answer to take a time from.
    """

    calls: int
    errors: int
    rps: float
    p50_ms: float | None
    p99_ms: float | None
    cpu_us_per_call: float | None
    rss_mb: float | None
    triton_cpu_us_per_call: float
    generator_cpu_us_per_call: float
    others_cores: float
    timer_late_p99_ms: float
    error_kinds: dict[str, int] = field(default_factory=dict)
    sent: int = 0
    """All calls of the round, those outside the window included."""
    inferences: int = 0
    """What Triton counted meanwhile."""
    executions: int = 0
    """And in how many executions: inferences over executions is the size of its batches."""

    @property
    def disturbed(self) -> bool:
        """True if the machine or the generator was too busy with something else."""
        return self.timer_late_p99_ms > TIMER_LATE_MS_MAX or self.others_cores > OTHERS_CORES_MAX


@dataclass(frozen=True, slots=True)
class Round:
    """Both sides, one right after the other."""

    sluice: Reading
    peer: Reading
    load_average: float

    @property
    def disturbed(self) -> bool:
        return self.sluice.disturbed or self.peer.disturbed


RATIOS: dict[str, Callable[[Reading], float | None]] = {
    "cpu": lambda reading: reading.cpu_us_per_call,
    "p50": lambda reading: reading.p50_ms,
    "p99": lambda reading: reading.p99_ms,
    "rps": lambda reading: reading.rps,
}
"""Ratio to the figure that it is made from."""

AT_LEAST = frozenset({"rps"})
"""Ratios of which more is better; of the others, less is."""


def limit_of(ratio: str, value: float) -> Limit:
    """The limit of a ratio: at least for rates, at most for costs and times."""
    return Limit(value, at_most=ratio not in AT_LEAST)


_MEDIANS = (
    "rps", "p50_ms", "p99_ms", "cpu_us_per_call", "rss_mb", "triton_cpu_us_per_call", "generator_cpu_us_per_call",
    "others_cores", "timer_late_p99_ms",
)  # fmt: skip


def side_figures(readings: Sequence[Reading]) -> dict[str, Any]:
    """One side over all rounds: calls and errors added up, medians of the rest."""
    kinds: dict[str, int] = {}
    for reading in readings:
        for kind, count in reading.error_kinds.items():
            kinds[kind] = kinds.get(kind, 0) + count
    figures: dict[str, Any] = {
        name: sum(getattr(reading, name) for reading in readings)
        for name in ("calls", "errors", "sent", "inferences", "executions")
    }
    figures["batch"] = round(figures["inferences"] / figures["executions"], 3) if figures["executions"] else None
    for name in _MEDIANS:
        values = [value for reading in readings if (value := getattr(reading, name)) is not None]
        figures[name] = round(median(values), 3) if values else None
    return {**figures, "error_kinds": kinds}


def ratios_of(rounds: Sequence[Round], name: str) -> list[float]:
    """Sluice's figure over the peer's, for each round that has both."""
    figure = RATIOS[name]
    pairs = [(figure(each.sluice), figure(each.peer)) for each in rounds]
    return [ours / theirs for ours, theirs in pairs if ours is not None and theirs]


def doubt(values: Sequence[float], disturbed: int) -> str | None:
    """Why a ratio is inconclusive by itself, whatever it is compared with; None if it is not."""
    if len(values) < ROUNDS_MIN:
        return f"{len(values)} rounds have it; {ROUNDS_MIN} are needed"
    if disturbed * 2 > len(values):
        return "more than half of the rounds were disturbed by other work"
    found = spread(values)
    return f"the rounds disagree: {found.low:.2f} to {found.high:.2f}" if found.disagree else None


def comparison(
    peer: str,
    protocol: str,
    concurrency: int,
    rounds: Sequence[Round],
    setting: dict[str, Any],
    limits: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """The JSON of a comparison.

    `ratios` are medians of each round's own ratio, so that a machine that slows down over the rounds does not move
    them; so they need not be exactly the ratios of the two sides' medians. `spread` says how much the rounds agree, and
    `inconclusive` names the ratios that say nothing, with the reason. The verdict: an error or a wrong answer anywhere
    fails, and so does a call that Triton did not execute once; else it is that of `limits` (ratio to its limit), and
    `UNJUDGED` without any. A check that is inconclusive has the reason as `why`.
    """
    sides = {
        "sluice": side_figures([each.sluice for each in rounds]),
        peer: side_figures([each.peer for each in rounds]),
    }
    disturbed = sum(each.disturbed for each in rounds)
    ratios: dict[str, float | None] = {}
    spreads: dict[str, dict[str, float] | None] = {}
    inconclusive: dict[str, str] = {}
    for name in RATIOS:
        values = ratios_of(rounds, name)
        ratios[name] = round(median(values), 3) if values else None
        spreads[name] = _spread_figures(values) if values else None
        reason = doubt(values, disturbed) if values else None
        if reason is not None:
            inconclusive[name] = reason
    errors = sum(side["errors"] for side in sides.values())
    checks: list[dict[str, Any]] = [
        {"name": "every call answered, and right", "limit": 0, "measured": errors, "pass": not errors}
    ]
    verdicts: list[Verdict] = ["fail" if errors else "pass"]
    if not errors:  # a call that failed may have been executed or not
        extra = sum(abs(each.inferences - each.sent) for pair in rounds for each in (pair.sluice, pair.peer))
        name = "Triton executed every call, and each once"
        checks.append({"name": name, "limit": 0, "measured": extra, "pass": not extra})
        verdicts.append("fail" if extra else "pass")
    for name, value in (limits or {}).items():
        limit = limit_of(name, value)
        verdict, why = judge_why(ratios_of(rounds, name), limit, rounds_min=ROUNDS_MIN, disturbed=disturbed)
        verdicts.append(verdict)
        words = f"{name} ratio at {'most' if limit.at_most else 'least'} {value:g}"
        check = {"name": words, "limit": value, "measured": ratios[name], "pass": passed(verdict)}
        checks.append({**check, "why": why} if why else check)
    return {
        "protocol": protocol,
        "concurrency": concurrency,
        "sides": sides,
        "ratios": ratios,
        "spread": spreads,
        "inconclusive": inconclusive,
        "verdict": worst(verdicts) if limits or "fail" in verdicts else UNJUDGED,
        "checks": checks,
        "disturbed_rounds": disturbed,
        "setting": setting,
        "rounds": [asdict(each) for each in rounds],
    }


def _spread_figures(values: Sequence[float]) -> dict[str, float]:
    found = spread(values)
    figures = {"mad": found.mad, "low": found.low, "high": found.high, "min": min(values), "max": max(values)}
    return {name: round(value, 3) for name, value in figures.items()}


def table(result: dict[str, Any]) -> str:
    """A comparison for people."""
    (ours, sluice), (peer, theirs) = result["sides"].items()
    rows: list[tuple[str, ...]] = [("", ours, peer, "ratio", "95 % interval", "min..max", "")]
    for label, name, ratio, form in (
        ("calls", "calls", "", "{:.0f}"),
        ("errors", "errors", "", "{:.0f}"),
        ("calls/s", "rps", "rps", "{:.0f}"),
        ("p50 ms", "p50_ms", "p50", "{:.2f}"),
        ("p99 ms", "p99_ms", "p99", "{:.2f}"),
        ("proxy CPU us/call", "cpu_us_per_call", "cpu", "{:.0f}"),
        ("proxy RSS MB", "rss_mb", "", "{:.0f}"),
        ("Triton's batches", "batch", "", "{:.2f}"),
        ("Triton CPU us/call", "triton_cpu_us_per_call", "", "{:.0f}"),
        ("generator CPU us/call", "generator_cpu_us_per_call", "", "{:.0f}"),
        ("others' CPUs", "others_cores", "", "{:.2f}"),
    ):
        value, around = result["ratios"].get(ratio), result["spread"].get(ratio)
        rows.append(
            (
                label,
                *("-" if side[name] is None else form.format(side[name]) for side in (sluice, theirs)),
                "" if value is None else f"{value:.2f}",
                "" if around is None else f"{around['low']:.2f}..{around['high']:.2f}",
                "" if around is None else f"{around['min']:.2f}..{around['max']:.2f}",
                "inconclusive" if ratio in result["inconclusive"] else "",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) if column == 0 else cell.rjust(width) for column, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in rows)
    ]
    kinds = {name: side["error_kinds"] for name, side in result["sides"].items() if side["error_kinds"]}
    if kinds:
        lines.append(f"errors: {kinds}")
    lines += [f"{name} is inconclusive: {reason}" for name, reason in result["inconclusive"].items()]
    for check in result["checks"]:
        word = {True: "pass", False: "fail", None: "inconclusive"}[check["pass"]]
        why = f": {check['why']}" if "why" in check else ""
        lines.append(f"{word}: {check['name']} (measured {check['measured']}, limit {check['limit']}){why}")
    count, disturbed = len(result["rounds"]), result["disturbed_rounds"]
    unjudged = ", for no --limit was set: no ratio was judged" if result["verdict"] == UNJUDGED else ""
    lines.append(f"verdict: {result['verdict']}{unjudged}; {count} rounds, {disturbed} of them disturbed by other work")
    return "\n".join(line.rstrip() for line in lines)
