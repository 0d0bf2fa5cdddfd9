"""From windows to figures: readings, medians over rounds, ratios, the verdict, and the JSON of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Literal

Verdict = Literal["pass", "fail", "inconclusive"]

TIMER_LATE_MS_MAX = 10.0
"""A window in which the generator's own timers came later than this at p99 says nothing about the servers."""
OTHERS_CORES_MAX = 0.25
"""Nor does one in which other processes of the machine took more CPUs than this."""
CLEAR_SHARE = 0.75
"""Rounds that must be beyond a limit before a median beyond it is a failure and not noise."""


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


@dataclass(frozen=True, slots=True)
class Check:
    """A goal: a ratio of Sluice to the peer that has to be at most, or at least, `limit`."""

    name: str
    ratio: str
    at_most: bool
    limit: float

    def beyond(self, value: float) -> bool:
        """True if this value misses the goal."""
        return value > self.limit if self.at_most else value < self.limit


RATIOS: dict[str, Callable[[Reading], float | None]] = {
    "cpu": lambda reading: reading.cpu_us_per_call,
    "p50": lambda reading: reading.p50_ms,
    "p99": lambda reading: reading.p99_ms,
    "rps": lambda reading: reading.rps,
}
"""Ratio to the figure that it is made from."""

CALLERS_FOR_RATE = 16
"""With fewer callers a hop more can only cost rate; with so many, what one connection to Triton saves can outweigh it.
"""


def goals(peer: str, protocol: str, concurrency: int) -> tuple[Check, ...]:
    """The goals of the project's design for a comparison; none where the design sets none."""
    if peer == "envoy":
        return (Check("CPU per call at or below the peer's", "cpu", True, 1.0),)
    if protocol == "grpc" and concurrency >= CALLERS_FOR_RATE:
        return (Check("at least as many calls per second as direct", "rps", False, 1.0),)
    return ()


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
    figures: dict[str, Any] = {"calls": sum(r.calls for r in readings), "errors": sum(r.errors for r in readings)}
    for name in _MEDIANS:
        values = [value for reading in readings if (value := getattr(reading, name)) is not None]
        figures[name] = round(median(values), 3) if values else None
    return {**figures, "error_kinds": kinds}


def ratios_of(rounds: Sequence[Round], name: str) -> list[float]:
    """Sluice's figure over the peer's, for each round that has both."""
    figure = RATIOS[name]
    pairs = [(figure(each.sluice), figure(each.peer)) for each in rounds]
    return [ours / theirs for ours, theirs in pairs if ours is not None and theirs]


def judge(check: Check, values: Sequence[float], disturbed: int) -> Verdict:
    """Whether a goal is reached. `values` has one ratio per round, of which `disturbed` rounds were disturbed.

    Inconclusive: more than half of the rounds disturbed, no ratio at all, or a median beyond the limit while fewer
    than three rounds in four are.
    """
    if not values or disturbed * 2 > len(values):
        return "inconclusive"
    if not check.beyond(median(values)):
        return "pass"
    return "fail" if sum(map(check.beyond, values)) >= CLEAR_SHARE * len(values) else "inconclusive"


def comparison(
    peer: str, protocol: str, concurrency: int, rounds: Sequence[Round], setting: dict[str, Any]
) -> dict[str, Any]:
    """The JSON of a comparison.

    `ratios` are medians of each round's own ratio, so that a machine that slows down over the rounds does not move
    them; so they need not be exactly the ratios of the two sides' medians. The verdict: an error or a wrong answer
    anywhere fails; else it is that of the goals.
    """
    sides = {
        "sluice": side_figures([each.sluice for each in rounds]),
        peer: side_figures([each.peer for each in rounds]),
    }
    ratios: dict[str, float | None] = {}
    spread: dict[str, list[float] | None] = {}
    for name in RATIOS:
        values = ratios_of(rounds, name)
        ratios[name] = round(median(values), 3) if values else None
        spread[name] = [round(min(values), 3), round(max(values), 3)] if values else None
    disturbed = sum(each.disturbed for each in rounds)
    errors = sum(side["errors"] for side in sides.values())
    checks: list[dict[str, Any]] = [
        {"name": "every call answered, and right", "limit": 0, "measured": errors, "pass": not errors}
    ]
    verdicts: list[Verdict] = ["fail" if errors else "pass"]
    for check in goals(peer, protocol, concurrency):
        verdict = judge(check, ratios_of(rounds, check.ratio), disturbed)
        verdicts.append(verdict)
        measured = ratios[check.ratio]
        passed = None if verdict == "inconclusive" else verdict == "pass"
        checks.append({"name": check.name, "limit": check.limit, "measured": measured, "pass": passed})
    verdict = next((each for each in ("fail", "inconclusive") if each in verdicts), "pass")
    return {
        "protocol": protocol,
        "concurrency": concurrency,
        "sides": sides,
        "ratios": ratios,
        "ratios_min_max": spread,
        "verdict": verdict,
        "checks": checks,
        "disturbed_rounds": disturbed,
        "setting": setting,
        "rounds": [asdict(each) for each in rounds],
    }


def table(result: dict[str, Any]) -> str:
    """A comparison for people."""
    (ours, sluice), (peer, theirs) = result["sides"].items()
    rows: list[tuple[str, ...]] = [("", ours, peer, "ratio", "min..max")]
    for label, name, ratio, form in (
        ("calls", "calls", "", "{:.0f}"),
        ("errors", "errors", "", "{:.0f}"),
        ("calls/s", "rps", "rps", "{:.0f}"),
        ("p50 ms", "p50_ms", "p50", "{:.2f}"),
        ("p99 ms", "p99_ms", "p99", "{:.2f}"),
        ("proxy CPU us/call", "cpu_us_per_call", "cpu", "{:.0f}"),
        ("proxy RSS MB", "rss_mb", "", "{:.0f}"),
        ("Triton CPU us/call", "triton_cpu_us_per_call", "", "{:.0f}"),
        ("generator CPU us/call", "generator_cpu_us_per_call", "", "{:.0f}"),
        ("others' CPUs", "others_cores", "", "{:.2f}"),
    ):
        value, spread = (result["ratios"].get(ratio), result["ratios_min_max"].get(ratio))
        rows.append(
            (
                label,
                *("-" if side[name] is None else form.format(side[name]) for side in (sluice, theirs)),
                "" if value is None else f"{value:.2f}",
                "" if spread is None else f"{spread[0]:.2f}..{spread[1]:.2f}",
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
    for check in result["checks"]:
        word = {True: "pass", False: "fail", None: "inconclusive"}[check["pass"]]
        lines.append(f"{word}: {check['name']} (measured {check['measured']}, limit {check['limit']})")
    count, disturbed = len(result["rounds"]), result["disturbed_rounds"]
    lines.append(f"verdict: {result['verdict']}; {count} rounds, {disturbed} of them disturbed by other work")
    return "\n".join(line.rstrip() for line in lines)
