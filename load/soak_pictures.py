"""The pictures of a soak, from its JSON: memory with descriptors and tasks, and latency, over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from load.svg import COLOURS, Axis, Line, chart, fitting_scale, nice_range, write_charts

POINTS_MAX = 150
"""Of a line of latencies: medians over equal pieces of the run."""
_MARGIN_SHARE = 0.1


def write_pictures(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write soak-memory.svg, soak-counts.svg and soak-latency.svg into `folder`, which is made if it is not there. One
    without anything to show is left out. Raises LoadError if the folder cannot be written to.
    """
    made = {"memory": memory(result), "counts": counts(result), "latency": latency(result)}
    return write_charts({f"soak-{kind}": picture for kind, picture in made.items()}, folder)


def memory(result: Mapping[str, Any]) -> str:
    """The gateway's resident memory; the axis is cut to what it was, so that a small slope shows."""
    samples = result["samples"]
    if not samples:
        return ""
    points = [(each["at_s"], each["rss_bytes"] / 1e6) for each in samples]
    values = [value for _, value in points]
    room = max(1.0, _MARGIN_SHARE * (max(values) - min(values)))
    y = Axis("resident memory of the gateway, MB", min(values) - room, max(values) + room)
    return chart("soak: memory", _about(result), _time(result), y, [Line("resident memory", points, COLOURS[0])])


def counts(result: Mapping[str, Any]) -> str:
    """Descriptors, client connections, tasks and threads."""
    samples = result["samples"]
    if not samples:
        return ""
    lines = [
        Line(name, [(each["at_s"], each[name]) for each in samples], colour)
        for name, colour in zip(("descriptors", "connections", "tasks", "threads"), COLOURS, strict=False)
    ]
    top = [float(value) for line in lines for _, value in line.points if value is not None]
    return chart(
        "soak: what must stay", _about(result), _time(result), Axis("count", *nice_range(top, "linear")), lines
    )


def latency(result: Mapping[str, Any]) -> str:
    """Median and p99 of the calls of each second, smoothed to `POINTS_MAX` points."""
    lines = [
        Line(label, smoothed([(each["at_s"] + 0.5, each[name]) for each in result["seconds"]], POINTS_MAX), colour)
        for label, name, colour in (("p99", "p99_ms", COLOURS[1]), ("p50", "p50_ms", COLOURS[0]))
    ]
    values = [value for line in lines for _, value in line.points if value]
    if not values:
        return ""
    scale = fitting_scale(values)
    y = Axis("latency from the intended send time, ms", *nice_range(values, scale), scale)
    return chart("soak: latency over time", _about(result), _time(result), y, lines)


def smoothed(points: Sequence[tuple[float, float | None]], most: int) -> list[tuple[float, float | None]]:
    """Medians over equal numbers of neighbours, so many points at most."""
    size = -(-len(points) // most)
    found: list[tuple[float, float | None]] = []
    for at in range(0, len(points), max(1, size)):
        piece = points[at : at + size]
        values = [value for _, value in piece if value is not None]
        found.append((median(x for x, _ in piece), median(values) if values else None))
    return found


def _time(result: Mapping[str, Any]) -> Axis:
    return Axis("time since the start of the measured part, s", 0.0, max(1.0, float(result["figures"]["duration_s"])))


def _about(result: Mapping[str, Any]) -> list[str]:
    setting, figures = result["setting"], result["figures"]
    slope = figures["rss_mb_per_hour"]
    words = "" if slope is None else f"; slope of the second half {slope['per_x']:g} MB/h"
    return [
        f"{figures['calls']:,} calls in {figures['duration_s']:g} s, {setting['rps']:g}/s; verdict {result['verdict']}",
        f"{setting['machine']}; others' CPUs {figures['others_cores']}{words}",
    ]
