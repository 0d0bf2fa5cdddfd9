"""When each fault begins and ends on each replica: a plan, made before anything is broken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from load.fault_schema import Fault, FaultSpec, end_s, fault_of

OUTAGES = frozenset({"kill", "freeze", "blackhole"})
"""Faults of which a replica can have one at a time."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault on one replica. `index` is that of the entry under `faults`; `end_s` None: not before the run ends."""

    index: int
    kind: str
    replica: int
    begin_s: float
    end_s: float | None
    fault: Fault

    @property
    def from_start(self) -> bool:
        """Whether it is there already while the target warms up."""
        return self.kind not in OUTAGES and self.begin_s == 0


@dataclass(slots=True)
class Span:
    """What became of a planned fault: when it really began and ended, seconds from the start of what is measured."""

    index: int
    kind: str
    replica: int
    begin_s: float
    end_s: float | None = None


def plan(faults: Sequence[FaultSpec], replicas: int) -> list[Planned]:
    """All faults on all replicas, in order of time; those that begin together in the order of the file."""
    planned: list[Planned] = []
    for index, spec in enumerate(faults):
        kind, fault = fault_of(spec)
        which = range(replicas) if fault.all else [0 if fault.replica is None else fault.replica]
        planned += [Planned(index, kind, replica, fault.at_s, end_s(fault), fault) for replica in which]
    return sorted(planned, key=lambda each: each.begin_s)


def blackholed(faults: Sequence[FaultSpec], replicas: int) -> list[int]:
    """The replicas that need a forwarder before them."""
    return sorted({each.replica for each in plan(faults, replicas) if each.kind == "blackhole"})


def clash(planned: Iterable[Planned]) -> tuple[Planned, Planned] | None:
    """Two faults that one replica cannot have at once: two outages, or two of the same kind; None if there are none."""
    before: list[Planned] = []
    for each in planned:
        for other in before:
            same = other.kind == each.kind or {other.kind, each.kind} <= OUTAGES
            if same and other.replica == each.replica and (other.end_s is None or other.end_s > each.begin_s):
                return other, each
        before.append(each)
    return None
