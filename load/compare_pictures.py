"""The pictures of a comparison on a scenario: both sides' latency over time, its distribution, and good answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from load.histogram import Histogram
from load.run_pictures import bands, percentiles, time_axis
from load.svg import COLOURS, Axis, Line, chart, fitting_scale, nice_range, write_charts

SIDES = (("sluice", COLOURS[0]), ("envoy", COLOURS[1]))


def write_comparison(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the pictures into `folder`, which is made if it is not there. Raises LoadError if it cannot be written."""
    made = {
        "latency": latency_over_time(result),
        "distribution": distribution(result),
        "goodput": goodput(result),
    }
    return write_charts({f"{result['scenario']}-envoy-{kind}": picture for kind, picture in made.items()}, folder)


def latency_over_time(result: Mapping[str, Any]) -> str:
    """p99 of each second, of both; dashed the median. "" without answers."""
    lines = []
    for label, name, dashed in (("p99", "p99_ms", False), ("p50", "p50_ms", True)):
        for side, colour in SIDES:
            points = [(row["at_s"] + 0.5, row[name]) for row in result["seconds"][side] if row["offered"]]
            lines.append(Line(f"{side} {label}", points, colour, dashed))
    values = [value for line in lines for _, value in line.points if value is not None]
    if not values:
        return ""
    scale = fitting_scale(values)
    y = Axis("latency from the intended send time, ms", *nice_range(values, scale), scale)
    title = f"{result['scenario']}: latency over time, Sluice beside Envoy"
    return chart(
        title, _about(result), time_axis(_rows(result)), y, lines, bands(result["setting"], len(_rows(result)))
    )


def distribution(result: Mapping[str, Any]) -> str:
    """Latency by percentile, of both; "" without answers."""
    known = {side: Histogram.from_json(result["distribution"][side]) for side, _ in SIDES}
    lines = [(f"{side} ({known[side].count:,})", known[side], colour, False) for side, colour in SIDES]
    return percentiles(f"{result['scenario']}: distribution of latency, Sluice beside Envoy", _about(result), lines)


def goodput(result: Mapping[str, Any]) -> str:
    """Right answers per second of both, beside what was offered; dashed what failed."""
    rows = _rows(result)
    if not rows:
        return ""
    lines = [Line("offered", [(row["at_s"] + 0.5, row["offered"]) for row in rows], COLOURS[6])]
    for side, colour in SIDES:
        each = result["seconds"][side]
        lines.append(Line(f"{side} done", [(row["at_s"] + 0.5, row["ended"] - row["failed"]) for row in each], colour))
    for side, colour in SIDES:
        each = result["seconds"][side]
        lines.append(Line(f"{side} failed", [(row["at_s"] + 0.5, row["failed"]) for row in each], colour, dashed=True))
    y = Axis("calls per second", *nice_range([value or 0.0 for line in lines for _, value in line.points], "linear"))
    title = f"{result['scenario']}: offered against done, Sluice beside Envoy"
    return chart(title, _about(result), time_axis(rows), y, lines, bands(result["setting"], len(rows)))


def _rows(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(result["seconds"]["sluice"])


def _about(result: Mapping[str, Any]) -> list[str]:
    setting, ratios = result["setting"], result["ratios"]
    traffic = ", ".join(f"{name} ({each['model']}, {each['protocol']})" for name, each in setting["traffic"].items())
    known = ", ".join(f"{name} {value:g}" for name, value in ratios.items() if value is not None)
    return [
        f"{traffic}; {len(result['rounds'])} rounds of {setting['duration_s']:g} s each; Sluice over Envoy: {known}",
        f"{setting['started']}; {setting['machine']}; verdict {result['verdict']}",
    ]
