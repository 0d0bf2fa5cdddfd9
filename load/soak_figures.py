"""From samples to a soak's verdict: is memory flat, do descriptors and tasks stay, do calls take as long as before?

A run is cut into quarters. The first warms up: caches fill, pools open their connections, the allocator finds its size.
The second is what the last is compared with; memory's slope is taken over the second half.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from load.stand import GatewayReading
from load.tallies import Second, TrafficTally
from load.verdict import Limit, Verdict, judge, passed, slope, worst

SAMPLES_MIN = 16
"""Fewer readings say nothing about a slope."""
RESOLUTION_MB = 1.0
"""Memory that may come or go by chance within a run: the allocator's arenas, a collection that is due or not."""
BLOCKS = 7
"""Each quarter is cut into so many blocks, whose medians are compared in pairs."""
OTHERS_CORES_MAX = 0.25
LOST_SHARE_MAX = 0.001
STAYS_SLACK = 5
"""Descriptors and tasks vary by a few with what is in flight at the moment of a reading."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at everything."""

    at_s: float
    """Since the measured part began."""
    gateway: GatewayReading
    others_cores: float
    """CPUs that the machine spent since the last sample on what is not ours."""


@dataclass(frozen=True, slots=True)
class SoakLimits:
    """What a soak may grow by."""

    rss_mb_per_hour: float = 10.0
    rss_mb_growth: float = 10.0
    """Last quarter over second quarter."""
    drift: float = 1.25
    """Latency of the last quarter over the second's."""


Check = tuple[dict[str, Any], Verdict]


def document(
    duration_s: float,
    samples: Sequence[Sample],
    seconds: Sequence[Second],
    tallies: Sequence[TrafficTally],
    endings: Mapping[str, frozenset[str]],
    end: GatewayReading,
    idle: GatewayReading,
    limits: SoakLimits,
    setting: Mapping[str, Any],
) -> dict[str, Any]:
    """The JSON of a soak. `idle` is the gateway before the load, `end` after it, with all connections closed;
    `endings` are the right endings of each kind of traffic besides a right answer.
    """
    checks = [
        _slope_check(duration_s, samples, limits),
        _growth_check(duration_s, samples, limits),
        _stays("own_descriptors", duration_s, samples),
        _stays("tasks", duration_s, samples),
        _stays("metrics_series", duration_s, samples),
        *(_drift_check(name, duration_s, seconds, samples, limits) for name in ("p50_ms", "p99_ms")),
        *_end_checks(end, idle),
        _unexpected_check(tallies, endings),
    ]
    return {
        "scenario": "soak",
        "verdict": worst(verdict for _, verdict in checks),
        "checks": [check for check, _ in checks],
        "figures": {
            "duration_s": duration_s,
            "calls": sum(tally.offered for tally in tallies),
            "rss_mb_idle": _mb(idle),
            "rss_mb_by_quarter": [_quarter_mb(duration_s, samples, number) for number in range(4)],
            "rss_mb_end": _mb(end),
            "rss_mb_per_hour": _per_hour(duration_s, samples),
            "gateway_cores": _cores(samples),
            "others_cores": round(median(each.others_cores for each in samples), 3) if samples else None,
            "p50_ms_by_quarter": [_quarter_latency(duration_s, seconds, number, "p50_ms") for number in range(4)],
            "p99_ms_by_quarter": [_quarter_latency(duration_s, seconds, number, "p99_ms") for number in range(4)],
            "descriptors": _range(samples, "descriptors"),
            "own_descriptors": _range(samples, "own_descriptors"),
            "connections": _range(samples, "connections"),
            "tasks": _range(samples, "tasks"),
            "threads": _range(samples, "threads"),
            "records_written": end.records_written,
            "records_dropped": end.records_dropped,
            "traffic": {
                tally.name: {
                    "offered": tally.offered,
                    "right": tally.right,
                    "wrong": tally.wrong,
                    "not_sent": tally.not_sent,
                    "endings": tally.errors,
                    "unexpected": unexpected(tally, endings.get(tally.name, frozenset())),
                }
                for tally in tallies
            },
        },
        "setting": dict(setting),
        "samples": [{"at_s": each.at_s, "others_cores": each.others_cores, **asdict(each.gateway)} for each in samples],
        "seconds": [asdict(each) for each in seconds],
    }


def unexpected(tally: TrafficTally, endings: frozenset[str]) -> int:
    """Calls that ended neither in a right answer nor as this kind of traffic is meant to."""
    return tally.wrong + tally.not_sent + sum(count for kind, count in tally.errors.items() if kind not in endings)


def _quarter(duration_s: float, at_s: float) -> int:
    return min(3, int(4 * at_s / duration_s))


def _in_quarter(duration_s: float, samples: Sequence[Sample], number: int) -> list[Sample]:
    return [each for each in samples if _quarter(duration_s, each.at_s) == number]


def _mb(reading: GatewayReading) -> float:
    return round(reading.rss_bytes / 1e6, 2)


def _quarter_mb(duration_s: float, samples: Sequence[Sample], number: int) -> float | None:
    found = [each.gateway.rss_bytes / 1e6 for each in _in_quarter(duration_s, samples, number)]
    return round(median(found), 2) if found else None


def _quarter_latency(duration_s: float, seconds: Sequence[Second], number: int, name: str) -> float | None:
    found = [value for each in seconds if _quarter(duration_s, each.at_s) == number and (value := getattr(each, name))]
    return round(median(found), 3) if found else None


def _second_half(duration_s: float, samples: Sequence[Sample]) -> list[tuple[float, float]]:
    return [(each.at_s, each.gateway.rss_bytes / 1e6) for each in samples if each.at_s >= duration_s / 2]


def _per_hour(duration_s: float, samples: Sequence[Sample]) -> dict[str, float] | None:
    points = _second_half(duration_s, samples)
    if len(points) < 2:
        return None
    found = slope(points)
    return {name: round(3600 * value, 2) for name, value in asdict(found).items()}


def _check(name: str, limit: float, measured: float | None, verdict: Verdict) -> Check:
    shown = None if measured is None else round(measured, 3)
    return {"name": name, "limit": limit, "measured": shown, "pass": passed(verdict)}, verdict


def _slope_check(duration_s: float, samples: Sequence[Sample], limits: SoakLimits) -> Check:
    """Pass or fail if the whole interval of the slope is on one side of the limit, give or take the resolution over
    half of the run: a short run can show a large leak, and no small one.
    """
    name = "memory, MB per hour over the second half"
    points = _second_half(duration_s, samples)
    if len(points) < SAMPLES_MIN:
        return _check(name, limits.rss_mb_per_hour, None, "inconclusive")
    found = slope(points)
    span_s = points[-1][0] - points[0][0]
    allowed_mb = limits.rss_mb_per_hour * span_s / 3600 + RESOLUTION_MB
    low_mb, high_mb = found.low * span_s, found.high * span_s
    verdict: Verdict = "inconclusive"
    if low_mb > allowed_mb:
        verdict = "fail"
    elif high_mb <= allowed_mb and found.per_x * 3600 <= limits.rss_mb_per_hour:
        verdict = "pass"
    return _check(name, limits.rss_mb_per_hour, found.per_x * 3600, verdict)


def _growth_check(duration_s: float, samples: Sequence[Sample], limits: SoakLimits) -> Check:
    name = "memory, MB of the last quarter over the second"
    second, last = (_quarter_mb(duration_s, samples, number) for number in (1, 3))
    if second is None or last is None:
        return _check(name, limits.rss_mb_growth, None, "inconclusive")
    return _check(
        name, limits.rss_mb_growth, last - second, "pass" if last - second <= limits.rss_mb_growth else "fail"
    )


def _stays(what: str, duration_s: float, samples: Sequence[Sample]) -> Check:
    name = f"{what.replace('_', ' ')} of the last quarter over the second"
    groups = [[getattr(each.gateway, what) for each in _in_quarter(duration_s, samples, number)] for number in (1, 3)]
    if not all(groups):
        return _check(name, STAYS_SLACK, None, "inconclusive")
    second, last = map(median, groups)
    slack = max(STAYS_SLACK, 0.05 * second)
    return _check(name, round(slack, 1), last - second, "pass" if last - second <= slack else "fail")


def _drift_check(
    figure: str, duration_s: float, seconds: Sequence[Second], samples: Sequence[Sample], limits: SoakLimits
) -> Check:
    """Medians of blocks of the last quarter over those of the second, pair by pair. A pair is disturbed if other work
    took more CPU than it should in either quarter.
    """
    name = f"{figure.removesuffix('_ms')} of the last quarter over the second's"
    blocks = [_blocks(duration_s, seconds, number, figure) for number in (1, 3)]
    ratios = [last / second for second, last in zip(*blocks, strict=True) if second and last]
    busy = [
        median(found) if (found := [each.others_cores for each in _in_quarter(duration_s, samples, number)]) else 0.0
        for number in (1, 3)
    ]
    disturbed = len(ratios) if max(busy) > OTHERS_CORES_MAX else 0
    verdict = judge(ratios, Limit(limits.drift), rounds_min=BLOCKS, disturbed=disturbed)
    return _check(name, limits.drift, median(ratios) if ratios else None, verdict)


def _blocks(duration_s: float, seconds: Sequence[Second], number: int, figure: str) -> list[float | None]:
    quarter_s = duration_s / 4
    found: list[list[float]] = [[] for _ in range(BLOCKS)]
    for each in seconds:
        value = getattr(each, figure)
        within = (each.at_s - number * quarter_s) / quarter_s
        if value is not None and 0 <= within < 1:
            found[int(within * BLOCKS)].append(value)
    return [median(values) if values else None for values in found]


def _end_checks(end: GatewayReading, idle: GatewayReading) -> list[Check]:
    """What must be as it was once the load has gone."""
    wanted = (
        ("calls in flight after the end", 0, end.in_flight + end.queued),
        ("connections left after the end", 0, end.connections - idle.connections),
        ("own descriptors after the end over before", STAYS_SLACK, end.own_descriptors - idle.own_descriptors),
        ("tasks after the end over before", STAYS_SLACK, end.tasks - idle.tasks),
        ("prediction records dropped", 0, end.records_dropped),
        ("calls without a prediction record", 0, end.calls - end.records_written - end.records_dropped),
        ("internal faults", 0, end.internal_faults),
    )
    return [_check(name, limit, measured, "pass" if measured <= limit else "fail") for name, limit, measured in wanted]


def _unexpected_check(tallies: Sequence[TrafficTally], endings: Mapping[str, frozenset[str]]) -> Check:
    offered = sum(tally.offered for tally in tallies)
    lost = sum(unexpected(tally, endings.get(tally.name, frozenset())) for tally in tallies)
    share = lost / max(1, offered)
    verdict: Verdict = "fail" if share > LOST_SHARE_MAX or any(tally.wrong for tally in tallies) else "pass"
    return _check("share of calls that ended otherwise than meant", LOST_SHARE_MAX, share, verdict)


def _cores(samples: Sequence[Sample]) -> float | None:
    if len(samples) < 2:
        return None
    first, last = samples[0], samples[-1]
    return round((last.gateway.cpu_s - first.gateway.cpu_s) / (last.at_s - first.at_s), 3)


def _range(samples: Sequence[Sample], what: str) -> list[int] | None:
    found = [getattr(each.gateway, what) for each in samples]
    return [min(found), max(found)] if found else None


def summary(result: Mapping[str, Any]) -> str:
    """The result for people."""
    figures = result["figures"]

    def row(values: Sequence[float | None], form: str) -> str:
        return " ".join("-" if value is None else format(value, form) for value in values)

    lines = [
        f"{figures['calls']} calls in {figures['duration_s']:g} s; gateway {figures['gateway_cores']} CPUs, others' "
        f"{figures['others_cores']}",
        f"memory MB: idle {figures['rss_mb_idle']}, by quarter {row(figures['rss_mb_by_quarter'], '.1f')}, "
        f"at the end {figures['rss_mb_end']}; slope {figures['rss_mb_per_hour']} MB/h",
        f"latency by quarter: p50 {row(figures['p50_ms_by_quarter'], '.2f')} ms, "
        f"p99 {row(figures['p99_ms_by_quarter'], '.2f')} ms",
        f"descriptors {figures['descriptors']} (without client connections {figures['own_descriptors']}), "
        f"tasks {figures['tasks']}, threads {figures['threads']}",
    ]
    for name, kind in figures["traffic"].items():
        endings = "".join(f", {count} {ending}" for ending, count in sorted(kind["endings"].items()))
        note = f"; UNEXPECTED: {kind['unexpected']}" if kind["unexpected"] else ""
        lines.append(f"  {name}: {kind['offered']} offered, {kind['right']} right{endings}{note}")
    for check in result["checks"]:
        word = {True: "pass", False: "fail", None: "inconclusive"}[check["pass"]]
        measured = "-" if check["measured"] is None else f"{check['measured']:g}"
        lines.append(f"{word}: {check['name']} (measured {measured}, limit {check['limit']:g})")
    return "\n".join([*lines, f"verdict: {result['verdict']}"])
