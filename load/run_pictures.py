"""The pictures of an open-loop run, from its JSON: latency over time, its distribution, offered against done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from load.histogram import Histogram
from load.svg import COLOURS, Axis, Band, Line, chart, fitting_scale, nice_range, write_charts


def write_pictures(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the pictures of a result, named after its scenario, into `folder`, which is made if it is not there.

    A picture that would be empty is left out. Raises LoadError if the folder cannot be written to.
    """
    made = {
        "latency": latency_over_time(result),
        "distribution": distribution(result),
        "throughput": offered_and_done(result),
    }
    return write_charts({f"{result['scenario']}-{kind}": picture for kind, picture in made.items()}, folder)


def latency_over_time(result: Mapping[str, Any]) -> str:
    """Median, p99 and largest latency of the calls that were meant to be sent in each second; "" without any."""
    rows = [row for row in result["seconds"] if row["offered"]]
    kinds = (("max", "max_ms"), ("p99", "p99_ms"), ("p50", "p50_ms"))
    values = [row[name] for row in rows for _, name in kinds if row[name] is not None]
    if not values:
        return ""
    scale = fitting_scale(values)
    lines = [
        Line(label, [(row["at_s"] + 0.5, row[name]) for row in rows], COLOURS[place])
        for place, (label, name) in zip((1, 5, 0), kinds, strict=True)
    ]
    y = Axis("latency from the intended send time, ms", *nice_range(values, scale), scale)
    title = f"{result['scenario']}: latency over time"
    return chart(title, _about(result), _time(result), y, lines, _bands(result))


def distribution(result: Mapping[str, Any]) -> str:
    """Latency by percentile, each step to the right a tenth of the calls of the one before; dashed that of the
    baseline, if there is one; "" without answers.
    """
    lines = [
        (f"{name} ({data['count']:,})", Histogram.from_json(data), COLOURS[place % len(COLOURS)], False)
        for place, (name, data) in enumerate(result["distribution"].items())
    ]
    before = (result.get("baseline") or {}).get("distribution", {})
    lines += [
        (f"{name}, baseline ({data['count']:,})", Histogram.from_json(data), COLOURS[place % len(COLOURS)], True)
        for place, (name, data) in enumerate((name, before[name]) for name in result["distribution"] if name in before)
    ]
    return percentiles(f"{result['scenario']}: distribution of latency", _about(result), lines)


def percentiles(title: str, about: Sequence[str], lines: Sequence[tuple[str, Histogram, str, bool]]) -> str:
    """Latency by percentile. A line is its label, its latencies, its colour and whether it is dashed; one without
    latencies is left out. "" if none is left.
    """
    known = [line for line in lines if line[1].count]
    if not known:
        return ""
    curves = [_curve(latency) for _, latency, _, _ in known]
    values = [value for curve in curves for _, value in curve if value is not None]
    scale = fitting_scale(values)
    rarest = max(100.0, *(latency.count for _, latency, _, _ in known))
    ticks = [(1.0, "0 %"), (2.0, "50 %"), (10.0, "90 %"), (100.0, "99 %"), (1e3, "99.9 %"), (1e4, "99.99 %")]
    ticks += [(1e5, "99.999 %"), (1e6, "99.9999 %")]
    x = Axis("percentile of right answers", 1.0, rarest, "log", ticks)
    y = Axis("latency from the intended send time, ms", *nice_range(values, scale), scale)
    drawn = [
        Line(label, _thinned(curve, x, y), colour, dashed)
        for (label, _, colour, dashed), curve in zip(known, curves, strict=True)
    ]
    return chart(title, about, x, y, drawn)


PIXELS = 600
"""Points of a curve that are nearer to one another than this part of both axes are one: a picture stays small."""


def _thinned(curve: Sequence[tuple[float, float | None]], x: Axis, y: Axis) -> list[tuple[float, float | None]]:
    kept: list[tuple[float, float | None]] = []
    last: tuple[int, int] | None = None
    for place, (at, value) in enumerate(curve):
        here = (int(x.share(at) * PIXELS), int(y.share(value or y.low) * PIXELS))
        if here != last or place + 1 == len(curve):
            kept.append((at, value))
            last = here
    return kept


def offered_and_done(result: Mapping[str, Any]) -> str:
    """Calls per second: meant to be sent, answered right, failed; "" for a run without calls."""
    rows = result["seconds"]
    if not rows:
        return ""
    lines = [
        Line("offered", [(row["at_s"] + 0.5, row["offered"]) for row in rows], COLOURS[0]),
        Line("done", [(row["at_s"] + 0.5, row["ended"] - row["failed"]) for row in rows], COLOURS[2]),
        Line("failed", [(row["at_s"] + 0.5, row["failed"]) for row in rows], COLOURS[1], dashed=True),
    ]
    top = [float(row[name]) for row in rows for name in ("offered", "ended")]
    y = Axis("calls per second", *nice_range(top, "linear"))
    return chart(f"{result['scenario']}: offered against done", _about(result), _time(result), y, lines, _bands(result))


def _curve(histogram: Histogram) -> list[tuple[float, float | None]]:
    """(1 / (1 - share), milliseconds): a point where each bucket begins and ends, so that the curve is a staircase of
    the buckets. The largest value stands at the end.
    """
    points: list[tuple[float, float | None]] = []
    seen, count = 0, histogram.count
    for lowest, highest, inside in histogram.buckets():
        value = min((lowest + highest) / 2, float(histogram.largest_ns)) / 1e6
        points.append((count / (count - seen), value))
        seen += inside
        points.append((count / max(1, count - seen), value))
    points.append((float(count), histogram.largest_ns / 1e6))
    return points


def _bands(result: Mapping[str, Any]) -> list[Band]:
    return bands(result["setting"], len(result["seconds"]))


def bands(setting: Mapping[str, Any], seconds: int) -> list[Band]:
    """The faults of a run that took so many seconds; what befell several replicas at once is one band."""
    found: dict[int, list[Mapping[str, Any]]] = {}
    for span in setting.get("faults", ()):
        found.setdefault(span["index"], []).append(span)
    return [
        Band(
            f"{spans[0]['kind']} of {', '.join(str(span['replica']) for span in spans)}",
            min(span["begin_s"] for span in spans),
            max(float(seconds) if span["end_s"] is None else span["end_s"] for span in spans),
        )
        for spans in found.values()
    ]


def _time(result: Mapping[str, Any]) -> Axis:
    return time_axis(result["seconds"])


def time_axis(rows: Sequence[Mapping[str, Any]]) -> Axis:
    """The axis of a picture over these seconds."""
    return Axis("time since the start of the measured part, s", 0.0, float(max(1, len(rows))))


def _about(result: Mapping[str, Any]) -> list[str]:
    setting, figures = result["setting"], result["figures"]
    traffic = ", ".join(f"{name} ({each['model']}, {each['protocol']})" for name, each in setting["traffic"].items())
    return [
        f"{setting['target']}; {traffic}; {figures['offered']:,} calls in {setting['duration_s']:g} s; "
        f"verdict {result['verdict']}",
        f"{setting['started']}; {setting['machine']}; sends over 5 ms late: {figures['late_share']:.2%}",
    ]
