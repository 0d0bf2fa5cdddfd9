"""What noisy figures allow to say: medians with their spread, slopes that outliers do not move, and three verdicts.

The machines that the lab runs on are shared and noisy, so a verdict has a third word: `inconclusive` means that what
was measured can be neither called good nor bad. It is chosen by rule, from the figures alone, never by a second look.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

Verdict = Literal["pass", "fail", "inconclusive"]

EXIT_CODES: dict[Verdict, int] = {"pass": 0, "fail": 1, "inconclusive": 3}

UNCHANGED_RATIO_MAX = 1.10
"""The design's "unchanged": a median ratio of at most this, over at least `PAIRS_MIN` interleaved pairs."""
PAIRS_MIN = 5
ROUNDS_MIN = 7
"""The design's least number of interleaved rounds for a comparison."""
CLEAR_SHARE = 0.75
"""Rounds that must be beyond a limit before a median beyond it is a failure and not noise."""
SPREAD_MAX = 0.25
"""Rounds disagree too much if the interval of their median is wider than this share of the median."""
CONFIDENCE = 0.95
UNJUDGED = "none"
"""The verdict of a comparison without limits in which no call went wrong: no ratio was judged."""

_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and how sure it is. `low` to `high` is the 95 % bootstrap interval of the median."""

    median: float
    mad: float
    """Median absolute deviation from the median, not scaled."""
    low: float
    high: float

    @property
    def disagree(self) -> bool:
        """True if the values disagree too much for the median to mean much."""
        return self.high - self.low > SPREAD_MAX * abs(self.median)


@dataclass(frozen=True, slots=True)
class Limit:
    """What a figure has to be at most, or at least."""

    value: float
    at_most: bool = True

    def beyond(self, figure: float) -> bool:
        """True if this figure misses the limit."""
        return figure > self.value if self.at_most else figure < self.value


def spread(values: Sequence[float]) -> Spread:
    """Median, deviation and interval of one value or more. The same values give the same answer.

    The interval is the percentile bootstrap (Efron, 1979): medians of resamples with replacement. Raises ValueError
    without values.
    """
    if not values:
        raise ValueError("a spread needs at least one value")
    middle = median(values)
    dice = random.Random(len(values))
    medians = sorted(median(dice.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    tail = (1 - CONFIDENCE) / 2
    return Spread(
        median=middle,
        mad=median(abs(value - middle) for value in values),
        low=medians[int(tail * _RESAMPLES)],
        high=medians[int((1 - tail) * _RESAMPLES) - 1],
    )


def judge(values: Sequence[float], limit: Limit, *, rounds_min: int, disturbed: int = 0) -> Verdict:
    """Whether the median of `values`, one per round, is within the limit. `disturbed` of the rounds were disturbed.

    Inconclusive: fewer than `rounds_min` rounds; more than half of them disturbed; a median beyond the limit while
    fewer than three rounds in four are; or rounds that disagree too much with the limit inside their interval.
    """
    return judge_why(values, limit, rounds_min=rounds_min, disturbed=disturbed)[0]


def judge_why(
    values: Sequence[float], limit: Limit, *, rounds_min: int, disturbed: int = 0, noun: str = "rounds"
) -> tuple[Verdict, str]:
    """The same, with the reason in words if it is inconclusive, else "". `noun` is what there is one value of."""
    if len(values) < max(1, rounds_min):
        return "inconclusive", f"{len(values)} {noun} have it; {max(1, rounds_min)} are needed"
    if disturbed * 2 > len(values):
        return "inconclusive", f"more than half of the {noun} were disturbed by other work"
    found = spread(values)
    beyond = limit.beyond(found.median)
    if found.disagree and limit.beyond(found.low) != limit.beyond(found.high):
        return "inconclusive", f"the {noun} disagree, with the limit between them: {found.low:.2f} to {found.high:.2f}"
    if not beyond:
        return "pass", ""
    missed = sum(map(limit.beyond, values))
    if missed >= CLEAR_SHARE * len(values):
        return "fail", ""
    return "inconclusive", (
        f"too near the limit: only {missed} of {len(values)} {noun} miss it, and {CLEAR_SHARE:.0%} make a failure"
    )


def unchanged(ratios: Sequence[float]) -> tuple[Verdict, str]:
    """The design's "unchanged", over the ratios after/before of interleaved pairs, with the reason as `judge_why`."""
    return judge_why(ratios, Limit(UNCHANGED_RATIO_MAX), rounds_min=PAIRS_MIN, noun="pairs")


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict of several: one failure fails all, else one inconclusive leaves all open."""
    found = set(verdicts)
    return "fail" if "fail" in found else "inconclusive" if "inconclusive" in found else "pass"


def passed(verdict: Verdict) -> bool | None:
    """A verdict as the `pass` of a check in JSON; null is inconclusive."""
    return None if verdict == "inconclusive" else verdict == "pass"


@dataclass(frozen=True, slots=True)
class Slope:
    """A straight line through noise. `low` to `high` is the 95 % interval of the slope."""

    per_x: float
    low: float
    high: float


def slope(points: Sequence[tuple[float, float]]) -> Slope:
    """The Theil-Sen slope of (x, y): the median of the slopes of all pairs, which up to 29 % outliers do not move, with
    Sen's interval (1968), normal approximation. Raises ValueError with fewer than two different x.

    Its points count as independent; samples of a process's memory are not quite, so the interval is somewhat narrow.
    """
    ordered = sorted(points)
    slopes = sorted(
        (y2 - y1) / (x2 - x1) for at, (x1, y1) in enumerate(ordered) for x2, y2 in ordered[at + 1 :] if x2 > x1
    )
    if not slopes:
        raise ValueError("a slope needs points at two different x at least")
    count = len(ordered)
    half = 1.96 * (count * (count - 1) * (2 * count + 5) / 18) ** 0.5 / 2
    middle = (len(slopes) - 1) / 2
    low, high = max(0, round(middle - half)), min(len(slopes) - 1, round(middle + half))
    return Slope(median(slopes), slopes[low], slopes[high])
