"""The figures of many seeds together, in the words of the load lab, in memory that does not grow with them."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from load.fault_schema import Recovery
from load.faults import Span
from load.histogram import Histogram
from load.run_figures import total, traffic_figures, window_name
from load.scenario import LoadedScenario
from load.scenario_faults import windows
from load.tallies import NS, TrafficTally, quantile_ms
from tests.simulation.stress.invariants import late
from tests.simulation.stress.play import Played


@dataclass(slots=True)
class Part:
    """What was sent, and what began, in a part of the time; `from_s` to `to_s` of each seed."""

    from_s: float
    to_s: float
    traffic: list[TrafficTally]
    sent_to: list[int]
    """By replica."""
    ran_on: list[int]
    late: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    """Of the sends."""
    executed_calls: int = 0
    busy_s: float = 0.0
    expired_s: float = 0.0

    @property
    def recorded(self) -> int:
        return sum(tally.offered for tally in self.traffic)

    def merge(self, other: Part) -> None:
        for mine, theirs in zip(self.traffic, other.traffic, strict=True):
            _merge_tally(mine, theirs)
        for replica, _ in enumerate(self.sent_to):
            self.sent_to[replica] += other.sent_to[replica]
            self.ran_on[replica] += other.ran_on[replica]
        self.kinds.update(other.kinds)
        self.late += other.late
        self.executed_calls += other.executed_calls
        self.busy_s += other.busy_s
        self.expired_s += other.expired_s

    def figures(self, seeds: int, capacity_rps: float | None) -> dict[str, Any]:
        """As `load chaos` names them."""
        seconds = (self.to_s - self.from_s) * seeds
        executions, sends = sum(self.ran_on), self.kinds.total()
        found: dict[str, Any] = {
            **traffic_figures(total(self.traffic), seconds),
            "traffic": {tally.name: traffic_figures(tally, seconds) for tally in self.traffic},
            "attempts": sends,
            "attempts_per_call": _share(sends, self.recorded),
            "hedge_share": _share(self.kinds["hedge"], self.recorded),
            "retry_share": _share(self.kinds["retry"], self.recorded),
            "late_answers": self.late,
            "executions": executions,
            "executed_calls": self.executed_calls,
            "extra_execution_share": _share(executions - self.executed_calls, self.executed_calls),
            "expired_work_share": _share(self.expired_s, self.busy_s),
            "replicas": {
                f"replica-{index}": {
                    "attempts": self.sent_to[index],
                    "executions": self.ran_on[index],
                    "execution_share": _share(self.ran_on[index], executions),
                }
                for index, _ in enumerate(self.ran_on)
            },
        }
        for each in (found, *found["traffic"].values()):
            each["goodput_share"] = None if capacity_rps is None else round(each["goodput_rps"] / capacity_rps, 6)
        return found


def _share(part: float, whole: float) -> float | None:
    return round(part / whole, 6) if whole else None


def _merge_tally(mine: TrafficTally, theirs: TrafficTally) -> None:
    for name in ("offered", "right", "wrong", "overdue"):
        setattr(mine, name, getattr(mine, name) + getattr(theirs, name))
    for kind, count in theirs.errors.items():
        mine.errors[kind] = mine.errors.get(kind, 0) + count
    for name in ("latency", "failure", "refusal"):
        getattr(mine, name).merge(getattr(theirs, name))


BIN_S = 0.25
"""How finely recovery is told."""


@dataclass(slots=True)
class Bin:
    """The calls of all seeds that were sent in a quarter of a second."""

    offered: int = 0
    latency: Histogram = field(default_factory=Histogram)
    """Of right answers."""

    @property
    def failed(self) -> int:
        return self.offered - self.latency.count

    def merge(self, other: Bin) -> None:
        self.offered += other.offered
        self.latency.merge(other.latency)

    def p99_ms(self) -> float:
        """Of all calls: one that failed took for ever. Infinite, too, without calls."""
        if self.failed >= 0.01 * self.offered:
            return math.inf
        return self.latency.quantile_ns(0.99 * self.offered / self.latency.count) / 1e6


@dataclass(slots=True)
class Pooled:
    """Everything of one scenario. `parts`: the whole run, then the windows of its checks."""

    parts: list[Part]
    bins: list[Bin]
    deadlines_s: list[float]
    seeds: int = 0
    spans: list[Span] = field(default_factory=list)
    """The same in every seed, but for what a machine's restart adds."""

    @classmethod
    def of(cls, scenario: LoadedScenario) -> Pooled:
        """Nothing yet."""
        spec = scenario.spec
        replicas = spec.target.replicas
        times = [(0.0, spec.duration_s), *windows(spec)]
        return cls(
            [
                Part(*time, [TrafficTally(each.name) for each in spec.traffic], [0] * replicas, [0] * replicas)
                for time in times
            ],
            [Bin() for _ in range(math.ceil(spec.duration_s / BIN_S))],
            [each.deadline_ms / 1000 for each in spec.traffic],
        )

    def add(self, played: Played) -> None:
        """One seed more. Calls of the warm-up do not count."""
        self.seeds += 1
        self.spans = played.spans
        for part in self.parts:
            self._calls(part, played)
            self._executions(part, played)
        for each in played.ended:
            if each.offset_s >= 0:
                bin_ = self.bins[int(each.offset_s / BIN_S)]
                bin_.offered += 1
                if not each.error:
                    bin_.latency.record(round(each.took_s * NS))

    def _calls(self, part: Part, played: Played) -> None:
        replicas = {address: index for index, address in enumerate(played.addresses)}
        for each in played.ended:
            if part.from_s <= each.offset_s < part.to_s:
                tally, deadline_s = part.traffic[each.traffic], self.deadlines_s[each.traffic]
                tally.offered += 1
                tally.ended(each.error, round(each.took_s * NS), round(deadline_s * NS))
                part.late += late(each, deadline_s)
                part.kinds.update(sent.kind for sent in each.attempts)
            for sent in each.attempts:
                if part.from_s <= sent.started_s - played.start_s < part.to_s:
                    part.sent_to[replicas[sent.replica]] += 1

    def _executions(self, part: Part, played: Played) -> None:
        over_s = {each.number: each.offset_s + self.deadlines_s[each.traffic] for each in played.ended}
        seen: set[str] = set()
        for run in played.executions:
            if part.from_s <= run.began_s < part.to_s:
                part.ran_on[run.replica] += 1
                seen.add(run.body_id)
                share_s = run.took_s / run.requests
                part.busy_s += share_s
                if run.began_s > over_s[int(run.body_id.rpartition("/")[2])]:
                    part.expired_s += share_s
        part.executed_calls += len(seen)

    def merge(self, other: Pooled) -> None:
        """Those of other seeds too."""
        self.seeds += other.seeds
        self.spans = other.spans
        for mine, theirs in zip(self.parts, other.parts, strict=True):
            mine.merge(theirs)
        for here, there in zip(self.bins, other.bins, strict=True):
            here.merge(there)

    def figures(self, capacity_rps: float | None = None) -> dict[str, Any]:
        """All figures; `windows` has those of the windows by name."""
        whole, *others = self.parts
        return {
            **whole.figures(self.seeds, capacity_rps),
            "duration_s": whole.to_s,
            "capacity_rps": capacity_rps,
            "windows": {window_name(part.from_s, part.to_s): part.figures(self.seeds, capacity_rps) for part in others},
        }

    def recovery_s(self, recovery: Recovery) -> float | None:
        """How long after the fault, or the time, all was well and stayed so: the p99 of the calls of each quarter of a
        second within the limit, with calls that failed beyond any. None if it never was.
        """
        after_s = recovery.after_s
        if after_s is None:
            ends = [span.end_s for span in self.spans if span.index == recovery.after_fault]
            after_s = max(end for end in ends if end is not None)
        limit_ms = recovery.p99_ms
        if limit_ms is None:
            before = self.bins[: int((recovery.before_s or 0.0) / BIN_S)]
            limit_ms = (recovery.times or 1.0) * max(each.p99_ms() for each in before)
        well_from_s: float | None = None
        for number, each in reversed(list(enumerate(self.bins))):
            if each.p99_ms() > limit_ms:
                break
            well_from_s = number * BIN_S
        return None if well_from_s is None else round(max(0.0, well_from_s - after_s), 3)

    def rows(self) -> list[dict[str, Any]]:
        """Each quarter of a second."""
        return [
            {
                "at_s": number * BIN_S,
                "offered": each.offered,
                "failed": each.failed,
                "p50_ms": quantile_ms(each.latency, 0.5),
                "p99_ms": quantile_ms(each.latency, 0.99),
            }
            for number, each in enumerate(self.bins)
        ]
