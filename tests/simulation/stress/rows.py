"""The rows: which scenario, how much of it a seed plays, and beside what."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from load.scenario import LoadedScenario, find_scenario, load_scenario
from tests.simulation.stress.timeline import Cut, cut_short


@dataclass(frozen=True, slots=True)
class Row:
    """One row. Its scenario has its name. `warm_up_s`: calls that are made and not counted, at the first rate."""

    name: str
    cut: Cut
    warm_up_s: float
    capacity_s: float = 0.0
    """So long the best goodput is measured with closed loops on each seed; 0: not at all, nothing is judged by it."""

    def scenario(self) -> LoadedScenario:
        """What a seed plays."""
        return _scenario(self)


@functools.cache
def _scenario(row: Row) -> LoadedScenario:
    return cut_short(load_scenario(find_scenario(row.name)), row.cut, row.warm_up_s)


ROWS: tuple[Row, ...] = (
    Row("stragglers", Cut(((0, 2),)), 2.0),
    Row("busy", Cut(((0, 3),)), 3.0),
    Row("slow-replica", Cut(((0, 3),)), 5.0),
    # Of the two bursts at each base the first.
    Row("burst", Cut(((3, 8), (23, 28), (43, 48))), 1.0),
    Row("overload", Cut(((9, 15), (29, 33))), 2.0, capacity_s=2.0),
    Row("oversize", Cut(((0, 4),)), 1.0),
    Row("kill", Cut(((7, 11.5), (15.5, 18.5))), 1.0),
    Row("freeze", Cut(((7, 11.5), (15.5, 18.5))), 1.0),
    Row("blackhole", Cut(((7, 11.5), (15.5, 18.5))), 1.0),
    Row("all-down", Cut(((7, 10), (12, 19))), 1.0),
    Row("expired", Cut(((3, 8),)), 1.0),
)
"""In the order of the design's table."""


def row_of(name: str) -> Row:
    """The row of this name. Raises KeyError if there is none."""
    return {row.name: row for row in ROWS}[name]
