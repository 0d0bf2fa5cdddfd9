"""When calls are meant to be sent: arrival processes as pure, seeded objects, and their merging into one schedule.

All but the trace are one idea: a rate that is constant over pieces of time, and the spacing of arrivals along it,
either even or random. Both come from unit steps (of 1, or exponentially distributed with mean 1) along the integral of
the rate, turned back into time: the inhomogeneous Poisson process by time change (Cinlar, Introduction to Stochastic
Processes, 1975, section 4.7).
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Literal, NamedTuple, Protocol

Spacing = Literal["even", "random"]

Piece = tuple[float, float]
"""Where a piece of constant rate ends, in seconds from the start, and its rate in arrivals per second."""

NEXT_ROW = -1
"""An arrival that leaves it to the run which row of inputs it takes."""


class Arrival(NamedTuple):
    """One call that is meant to be sent. Arrivals compare by time first, so schedules can be merged."""

    offset_s: float
    """Seconds from the start of what is measured; negative while the target warms up."""
    traffic: int = 0
    """Which of the run's kinds of traffic it belongs to."""
    row: int = NEXT_ROW
    """Which row of inputs it carries."""


class Arrivals(Protocol):
    """An arrival process. It holds no state: `offsets` starts anew each time, and gives the same for the same seed."""

    def offsets(self, seed: str, until_s: float = math.inf) -> Iterator[tuple[float, int]]:
        """Offset in seconds, upwards, below `until_s`, and row of each arrival; may be endless without `until_s`."""

    def initial_rps(self) -> float:
        """The rate with which the target is warmed up."""

    def faster(self, factor: float) -> Arrivals:
        """The same with `factor` times the rate."""


@dataclass(frozen=True, slots=True)
class Constant:
    """Evenly spaced arrivals, so many per second."""

    rps: float

    def offsets(self, seed: str, until_s: float = math.inf) -> Iterator[tuple[float, int]]:
        return _along([(math.inf, self.rps)], "even", seed, until_s)

    def initial_rps(self) -> float:
        return self.rps

    def faster(self, factor: float) -> Constant:
        return Constant(self.rps * factor)


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent arrivals, as of many users who know nothing of one another."""

    rps: float

    def offsets(self, seed: str, until_s: float = math.inf) -> Iterator[tuple[float, int]]:
        return _along([(math.inf, self.rps)], "random", seed, until_s)

    def initial_rps(self) -> float:
        return self.rps

    def faster(self, factor: float) -> Poisson:
        return Poisson(self.rps * factor)


@dataclass(frozen=True, slots=True)
class Burst:
    """A base rate, and from `first_s` on, every `every_s`, another rate for `burst_s` seconds."""

    base_rps: float
    burst_rps: float
    burst_s: float
    every_s: float
    first_s: float = 0.0
    spacing: Spacing = "random"

    def __post_init__(self) -> None:
        if not 0 < self.burst_s <= self.every_s:
            raise ValueError(f"a burst of {self.burst_s} s does not fit into every {self.every_s} s")

    def offsets(self, seed: str, until_s: float = math.inf) -> Iterator[tuple[float, int]]:
        return _along(self._pieces(), self.spacing, seed, until_s)

    def _pieces(self) -> Iterator[Piece]:
        if self.base_rps <= 0 and self.burst_rps <= 0:
            return
        begin_s, count = self.first_s, 0
        if begin_s > 0:
            yield begin_s, self.base_rps
        while True:
            yield begin_s + self.burst_s, self.burst_rps
            count += 1
            begin_s = self.first_s + count * self.every_s
            yield begin_s, self.base_rps

    def initial_rps(self) -> float:
        return self.base_rps

    def faster(self, factor: float) -> Burst:
        return Burst(
            self.base_rps * factor, self.burst_rps * factor, self.burst_s, self.every_s, self.first_s, self.spacing
        )


@dataclass(frozen=True, slots=True)
class Step:
    """Rates that hold from a given second on: (start_s, rps), the first at 0."""

    steps: tuple[tuple[float, float], ...]
    spacing: Spacing = "random"

    def __post_init__(self) -> None:
        starts = [start_s for start_s, _ in self.steps]
        if not starts or starts[0] != 0 or any(a >= b for a, b in pairwise(starts)):
            raise ValueError("steps begin at 0 s and each begins after the one before")

    def offsets(self, seed: str, until_s: float = math.inf) -> Iterator[tuple[float, int]]:
        ends = [start_s for start_s, _ in self.steps[1:]]
        rates = [rps for _, rps in self.steps]
        return _along(zip([*ends, math.inf], rates, strict=True), self.spacing, seed, until_s)

    def initial_rps(self) -> float:
        return self.steps[0][1]

    def faster(self, factor: float) -> Step:
        return Step(tuple((start_s, rps * factor) for start_s, rps in self.steps), self.spacing)


@dataclass(frozen=True, slots=True)
class Trace:
    """Arrivals as they were written down: (offset_s, row), sorted by time."""

    rows: tuple[tuple[float, int], ...]

    def offsets(self, seed: str, until_s: float = math.inf) -> Iterator[tuple[float, int]]:
        return takewhile(lambda row: row[0] < until_s, self.rows)

    def initial_rps(self) -> float:
        length_s = self.rows[-1][0] if self.rows else 0.0
        return len(self.rows) / length_s if length_s > 0 else 0.0

    def faster(self, factor: float) -> Trace:
        return Trace(tuple((offset_s / factor, row) for offset_s, row in self.rows))


def schedule(
    traffic: Sequence[tuple[str, Arrivals]], *, seed: int, warm_up_s: float = 0.0, until_s: float = math.inf
) -> Iterator[Arrival]:
    """The arrivals of all kinds of traffic (name, process) in order of time, up to `until_s`.

    Before offset 0 come `warm_up_s` seconds of evenly spaced arrivals at each process's initial rate. Each kind draws
    from a stream of chance of its own, made from `seed` and its name, so that adding one does not move another.
    """
    return heapq.merge(
        *(_one(index, process, f"{seed}/{name}", warm_up_s, until_s) for index, (name, process) in enumerate(traffic))
    )


def _one(index: int, process: Arrivals, seed: str, warm_up_s: float, until_s: float) -> Iterator[Arrival]:
    for offset_s, _ in Constant(process.initial_rps()).offsets(f"{seed}/warm-up", warm_up_s):
        yield Arrival(offset_s - warm_up_s, index)
    for offset_s, row in process.offsets(seed, until_s):
        yield Arrival(offset_s, index, row)


def _along(pieces: Iterable[Piece], spacing: Spacing, seed: str, until_s: float) -> Iterator[tuple[float, int]]:
    chance = random.Random(seed)
    # Even arrivals begin somewhere in their first interval, so that two kinds of one rate do not always coincide.
    target = chance.random() if spacing == "even" else chance.expovariate(1.0)
    start_s = reached = 0.0
    for end_s, rps in pieces:
        if start_s >= until_s:
            return
        if rps > 0:
            beyond = reached + rps * (end_s - start_s)
            while target < beyond:
                offset_s = min(end_s, start_s + (target - reached) / rps)  # rounding must not put it out of order
                if offset_s >= until_s:
                    return
                yield offset_s, NEXT_ROW
                target += 1.0 if spacing == "even" else chance.expovariate(1.0)
            reached = beyond
        start_s = end_s
