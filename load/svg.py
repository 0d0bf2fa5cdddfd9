"""Line charts as plain SVG: two axes with ticks and titles, lines, a legend. Nothing else, and no library.

The colours are Okabe and Ito's, which people with any kind of colour vision tell apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Literal

from load.errors import LoadError

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
WIDTH, HEIGHT = 900, 480
LOG_FROM = 30.0
Scale = Literal["linear", "log"]
_LEFT, _RIGHT, _BOTTOM = 80, 24, 62
_LEGEND_ROW = 20
_FONT = "font-family='DejaVu Sans, Verdana, sans-serif'"
_INK, _FAINT, _GRID, _SHADE = "#222222", "#555555", "#e2e2e2", "#fdf1d8"


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis: its title with the unit, its range, its scale, and where it is labelled (None: at round numbers)."""

    title: str
    low: float
    high: float
    scale: Scale = "linear"
    ticks: Sequence[tuple[float, str]] | None = None

    def __post_init__(self) -> None:
        if not self.high > self.low or (self.scale == "log" and self.low <= 0):
            raise ValueError(f"no axis goes from {self.low} to {self.high} on a {self.scale} scale")

    def share(self, value: float) -> float:
        """Where a value lies between the ends, 0 to 1; values beyond an end lie on it."""
        value = min(max(value, self.low), self.high)
        if self.scale == "log":
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def labels(self) -> Sequence[tuple[float, str]]:
        """Values to be labelled, and their labels."""
        if self.ticks is not None:
            return [tick for tick in self.ticks if self.low <= tick[0] <= self.high]
        made = _log_ticks(self.low, self.high) if self.scale == "log" else _linear_ticks(self.low, self.high)
        return [(value, f"{value:,.10g}") for value in made]


@dataclass(frozen=True, slots=True)
class Line:
    """Points joined by a line; None as a value interrupts it."""

    label: str
    points: Sequence[tuple[float, float | None]]
    colour: str
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Band:
    """A part of the x axis that is shaded, with words at its top."""

    label: str
    low: float
    high: float


def chart(
    title: str, subtitles: Sequence[str], x: Axis, y: Axis, lines: Sequence[Line], bands: Sequence[Band] = ()
) -> str:
    """The picture as the text of an SVG file. Lines that lie on one another are seen because later ones are thinner."""
    right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM
    legend = _legend_places(lines, right)
    legend_top = 52 + 15 * len(subtitles)
    top = legend_top + _LEGEND_ROW * (1 + max((row for _, row in legend), default=0))

    def across(value: float) -> float:
        return round(_LEFT + x.share(value) * (right - _LEFT), 2)

    def down(value: float) -> float:
        return round(bottom - y.share(value) * (bottom - top), 2)

    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{HEIGHT}' viewBox='0 0 {WIDTH} {HEIGHT}' "
        f"role='img' aria-label='{escape(title, quote=True)}'>",
        f"<rect width='{WIDTH}' height='{HEIGHT}' fill='#ffffff'/>",
        _text(_LEFT, 28, title, size=18, weight="bold"),
        *(_text(_LEFT, 48 + 15 * row, line, size=11, fill=_FAINT) for row, line in enumerate(subtitles)),
    ]
    for row, band in enumerate(bands):
        left, wide = across(band.low), across(band.high) - across(band.low)
        parts.append(f"<rect x='{left:g}' y='{top}' width='{wide:g}' height='{bottom - top}' fill='{_SHADE}'/>")
        parts.append(_text(left + 4, top + 14 + 14 * row, band.label, fill=_FAINT))
    for value, label in y.labels():
        at = down(value)
        parts.append(f"<line x1='{_LEFT}' y1='{at}' x2='{right}' y2='{at}' stroke='{_GRID}'/>")
        parts.append(_text(_LEFT - 8, at + 4, label, anchor="end"))
    for value, label in x.labels():
        at = across(value)
        parts.append(f"<line x1='{at}' y1='{top}' x2='{at}' y2='{bottom}' stroke='{_GRID}'/>")
        parts.append(_text(at, bottom + 18, label, anchor="middle"))
    parts.append(f"<path d='M{_LEFT} {top}V{bottom}H{right}' fill='none' stroke='{_FAINT}'/>")
    parts.append(_text((_LEFT + right) / 2, HEIGHT - 18, x.title, size=13, anchor="middle"))
    middle = (top + bottom) / 2
    turned = f" transform='rotate(-90 20 {middle})'"
    parts.append(_text(20, middle, y.title, size=13, anchor="middle", more=turned))
    for place, line in enumerate(lines):
        dash = " stroke-dasharray='6 4'" if line.dashed else ""
        width = max(1.4, 2.6 - 0.5 * place)
        path = "".join(_path(line.points, across, down))
        parts.append(
            f"<path d='{path}' fill='none' stroke='{line.colour}' stroke-width='{width:g}' stroke-linejoin='round' "
            f"stroke-linecap='round'{dash}/>"
        )
    for line, (at, row) in zip(lines, legend, strict=True):
        parts.extend(_legend_entry(line, at, legend_top + _LEGEND_ROW * row))
    return "\n".join([*parts, "</svg>\n"])


def write_charts(charts: Mapping[str, str], folder: Path) -> list[Path]:
    """Write charts as `<name>.svg` into `folder`, which is made if it is not there. An empty one is left out. Raises
    LoadError if the folder cannot be written to.
    """
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in charts.items():
            if text:
                path = folder / f"{name}.svg"
                path.write_text(text, encoding="utf-8")
                written.append(path)
    except OSError as error:
        raise LoadError(f"the pictures cannot be written: {error}; name another folder with --pictures") from error
    return written


def fitting_scale(values: Iterable[float | None]) -> Scale:
    """Logarithmic if the largest of these values is `LOG_FROM` times the smallest that is over 0, or more."""
    positive = [value for value in values if value]
    return "log" if positive and max(positive) / min(positive) >= LOG_FROM else "linear"


def nice_range(values: Sequence[float], scale: Scale) -> tuple[float, float]:
    """The ends of an axis that shows these values: from 0 for a linear one, else 1, 2 or 5 times a power of ten."""
    positive = [value for value in values if value > 0]
    if scale == "log":
        low, high = (min(positive), max(positive)) if positive else (1.0, 10.0)
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        round_ones = [factor * 10.0**power for power in range(first, last + 1) for factor in (1, 2, 5)]
        low = max(value for value in round_ones if value <= low)
        return low, min(value for value in [*round_ones, 10.0 ** (last + 1)] if value >= high and value > low)
    top = max(positive, default=1.0)
    step = _step(top)
    return 0.0, math.ceil(top / step) * step


def _path(
    points: Sequence[tuple[float, float | None]], across: Callable[[float], float], down: Callable[[float], float]
) -> Iterator[str]:
    drawing = False
    for place, (x, y) in enumerate(points):
        if y is None:
            drawing = False
            continue
        yield f"{'L' if drawing else 'M'}{across(x):g} {down(y):g}"
        alone = place + 1 == len(points) or points[place + 1][1] is None
        if alone and not drawing:
            yield "h0"  # with round ends it is a dot
        drawing = True


def _legend_places(lines: Sequence[Line], right: float) -> list[tuple[float, int]]:
    """Where each line's entry begins, and in which row; widths of text are estimated from above."""
    places: list[tuple[float, int]] = []
    at, row = float(_LEFT), 0
    for line in lines:
        width = 30 + 7.6 * len(line.label) + 20
        if at > _LEFT and at + width > right:
            at, row = float(_LEFT), row + 1
        places.append((at, row))
        at += width
    return places


def _legend_entry(line: Line, at: float, y: float) -> Iterator[str]:
    dash = " stroke-dasharray='6 4'" if line.dashed else ""
    yield f"<path d='M{at:g} {y - 4:g}h24' fill='none' stroke='{line.colour}' stroke-width='3'{dash}/>"
    yield _text(at + 30, y, line.label, size=12)


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: int = 11,
    anchor: str = "start",
    weight: str = "normal",
    fill: str = _INK,
    more: str = "",
) -> str:
    return (
        f"<text x='{x:g}' y='{y:g}' {_FONT} font-size='{size}' font-weight='{weight}' text-anchor='{anchor}' "
        f"fill='{fill}'{more}>{escape(text)}</text>"
    )


def _step(span: float) -> float:
    """The distance of about five to ten round numbers within a span."""
    rough = span / 8
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)


def _linear_ticks(low: float, high: float) -> list[float]:
    step = _step(high - low)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 10) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    decades = math.log10(high / low)
    factors = (1, 2, 5) if decades <= 3 else (1,)
    found = [
        factor * 10.0**power
        for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for factor in factors
    ]
    return [round(value, 12) for value in found if low <= value * (1 + 1e-9) and value <= high * (1 + 1e-9)]
