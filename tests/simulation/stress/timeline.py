"""Scenarios cut short: of the load lab's minute, the seconds in which something happens."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import msgspec

from load.arrivals import Arrivals, Burst, Constant, Poisson, Step
from load.fault_schema import FaultSpec, KillFault, Recovery, Window, end_s, fault_of
from load.scenario import LoadedScenario
from load.scenario_faults import require_fit
from load.scenario_schema import CheckSpec


@dataclass(frozen=True, slots=True)
class Cut:
    """The pieces of a time line that are kept, (from_s, to_s) in order; the rest is left out, and what is kept moves
    together. Raises ValueError for pieces that are none, or out of order.
    """

    pieces: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        edges = [edge for piece in self.pieces for edge in piece]
        if not edges or any(a >= b for a, b in self.pieces) or any(a > b for a, b in pairwise(edges)):
            raise ValueError(f"{self.pieces} are no pieces of a time line, in order")

    @property
    def length_s(self) -> float:
        return sum(to_s - from_s for from_s, to_s in self.pieces)

    def at(self, whole_s: float) -> float:
        """Where a moment of the whole time line is; one that is left out is where the next piece begins."""
        return sum(min(max(whole_s - from_s, 0.0), to_s - from_s) for from_s, to_s in self.pieces)

    def words(self) -> str:
        """The pieces, for people."""
        return ", ".join(f"{from_s:g}-{to_s:g}" for from_s, to_s in self.pieces)


def cut_short(scenario: LoadedScenario, cut: Cut, warm_up_s: float) -> LoadedScenario:
    """The same scenario, with nothing but these pieces of it after another warm-up: arrivals, faults, windows of checks
    and what recovery counts from are moved. Raises UsageError if a check's window is left out as a whole.
    """
    spec = msgspec.structs.replace(
        scenario.spec,
        duration_s=cut.length_s,
        warm_up_s=warm_up_s,
        faults=tuple(_fault(each, cut) for each in scenario.spec.faults),
        checks=tuple(_check(each, cut) for each in scenario.spec.checks),
    )
    require_fit(spec)
    return replace(scenario, spec=spec, arrivals=tuple(_arrivals(each, cut) for each in scenario.arrivals))


def _fault(spec: FaultSpec, cut: Cut) -> FaultSpec:
    kind, fault = fault_of(spec)
    ends_s = end_s(fault)
    changes: dict[str, float | None] = {"at_s": cut.at(fault.at_s)}
    if ends_s is not None:
        length = "restart_after_s" if isinstance(fault, KillFault) else "for_s"
        changes[length] = cut.at(ends_s) - cut.at(fault.at_s)
    return msgspec.structs.replace(spec, **{kind: msgspec.structs.replace(fault, **changes)})


def _check(check: CheckSpec, cut: Cut) -> CheckSpec:
    window, recovery = check.window, check.recovery
    if window is not None:
        window = Window(from_s=cut.at(window.from_s), to_s=None if window.to_s is None else cut.at(window.to_s))
    if recovery is not None:
        recovery = Recovery(
            after_s=None if recovery.after_s is None else cut.at(recovery.after_s),
            after_fault=recovery.after_fault,
            p99_ms=recovery.p99_ms,
            times=recovery.times,
            before_s=None if recovery.before_s is None else cut.at(recovery.before_s),
        )
    return msgspec.structs.replace(check, window=window, recovery=recovery)


def _arrivals(process: Arrivals, cut: Cut) -> Arrivals:
    if isinstance(process, Constant | Poisson):
        return process
    if isinstance(process, Step):
        return Step(tuple(_moved(process.steps, cut)), process.spacing)
    if isinstance(process, Burst):
        return Step(tuple(_moved(_steps(process, cut.pieces[-1][1]), cut)), process.spacing)
    raise ValueError(f"arrivals of the kind {type(process).__name__} cannot be cut")


def _steps(burst: Burst, until_s: float) -> list[tuple[float, float]]:
    """Bursts as steps of the rate."""
    steps = [(0.0, burst.base_rps)] if burst.first_s > 0 else []
    for number in range(math.ceil(max(0.0, until_s - burst.first_s) / burst.every_s)):
        begin_s = burst.first_s + number * burst.every_s
        steps += [(begin_s, burst.burst_rps), (begin_s + burst.burst_s, burst.base_rps)]
    return steps


def _moved(steps: Sequence[tuple[float, float]], cut: Cut) -> Iterator[tuple[float, float]]:
    for from_s, to_s in cut.pieces:
        before = [rps for start_s, rps in steps if start_s <= from_s]
        yield cut.at(from_s), before[-1]
        yield from ((cut.at(start_s), rps) for start_s, rps in steps if from_s < start_s < to_s)
