"""The rows: which scenario, how much of it a seed plays, and beside what."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import msgspec

from load.scenario import LoadedScenario, find_scenario, load_scenario
from load.scenario_schema import CheckSpec
from tests.simulation.stress.timeline import Cut, cut_short

NOT_HERE = frozenset({"gateway_cpu_us_per_call"})
"""Figures that do not exist on a virtual clock, which stands still while code runs."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row. Its scenario has its name. `warm_up_s`: calls that are made and not counted, at the first rate, at
    random times: what a gateway learns from evenly spaced ones, a minute of the scenario forgets, but not two seconds.
    """

    name: str
    cut: Cut
    warm_up_s: float
    capacity_s: float = 0.0
    """So long the best goodput is measured with closed loops on each seed; 0: not at all, nothing is judged by it."""

    def scenario(self) -> LoadedScenario:
        """What a seed plays, with those of the checks that can be judged here."""
        return _scenario(self)

    def not_here(self) -> tuple[CheckSpec, ...]:
        """The other checks of its scenario."""
        return tuple(check for check in _whole(self.name).spec.checks if check.figure in NOT_HERE)


@functools.cache
def _whole(name: str) -> LoadedScenario:
    return load_scenario(find_scenario(name))


@functools.cache
def _scenario(row: Row) -> LoadedScenario:
    whole = _whole(row.name)
    kept = tuple(check for check in whole.spec.checks if check.figure not in NOT_HERE)
    return cut_short(replace(whole, spec=msgspec.structs.replace(whole.spec, checks=kept)), row.cut, row.warm_up_s)


ROWS: tuple[Row, ...] = (
    Row("stragglers", Cut(((0, 1),)), 2.0),
    # The load by which it is hedged is a mean of some seconds.
    Row("busy", Cut(((0, 1),)), 3.0),
    # Two batches of the slow one are counted: they take 1.2 s each.
    Row("slow-replica", Cut(((0, 2.4),)), 4.0),
    # Of the two bursts at each base the first. Before fifty calls are known the gateway tells nobody how long it takes.
    Row("burst", Cut(((3.5, 6), (23.5, 26), (43.5, 46))), 3.0),
    # The best goodput is taken over whole batches, of 60 ms.
    Row("overload", Cut(((9.5, 13), (29.5, 32.5))), 1.0, capacity_s=1.2),
    Row("oversize", Cut(((0, 1.5),)), 1.0),
    # Before the fault come the calls from which a gateway learns when to hedge: over a hundred, and a second.
    Row("kill", Cut(((7.5, 10.75), (15.75, 17.75))), 1.0),
    Row("freeze", Cut(((7.5, 10.75), (15.75, 17.75))), 1.0),
    Row("blackhole", Cut(((7.5, 10.75), (15.75, 17.75))), 1.0),
    Row("all-down", Cut(((7, 9.5), (12.5, 17))), 1.0),
    Row("expired", Cut(((3.5, 7.5),)), 1.0),
)
"""In the order of the design's table."""


def row_of(name: str) -> Row:
    """The row of this name. Raises KeyError if there is none."""
    return {row.name: row for row in ROWS}[name]
