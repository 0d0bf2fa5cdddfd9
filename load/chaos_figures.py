"""The figures that only `load chaos` has, and what its checks measure: in windows, beside a baseline, after a fault."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from load.attempts import ATTEMPT_FIGURES, Recorded, attempt_figures
from load.executions import EXECUTION_FIGURES, Calls, Execution, execution_figures
from load.fault_schema import Recovery
from load.faults import Span
from load.replica_figures import replica_figures
from load.run_figures import figure_in
from load.scenario_schema import CheckSpec
from load.tallies import Second

RECOVERY = "recovery_s"
SHARE_FIGURES = {
    "goodput_share": "`goodput_rps` as a share of `capacity_rps`.",
}
"""Figures of one kind of traffic, and of all traffic together."""

CHAOS_FIGURES = {
    **SHARE_FIGURES,
    **ATTEMPT_FIGURES,
    **EXECUTION_FIGURES,
    "capacity_rps": "What the target can give at most, by the scenario's `capacity`: stated or measured.",
    RECOVERY: "Seconds from what `recovery` names to the first second of the run from which on, to the end, each "
    "second's p99 (of calls meant to be sent in it) stays under a limit and no call fails in it.",
}
"""Figures of a run, to their meaning, beside those of `load run`."""
WHOLE_RUN = frozenset({"capacity_rps", RECOVERY})
"""Of these, the figures that no window has."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What others say of a run than its generator."""

    executions: Sequence[Execution]
    records: Sequence[Recorded]
    counted: Sequence[int | None]
    """Inferences of each replica, by its own statistics."""
    calls: Calls


def add_evidence(figures: dict[str, Any], evidence: Evidence, capacity_rps: float | None) -> None:
    """Add the figures of `load chaos` to those of a run, and to those of each of its windows."""
    figures["capacity_rps"] = capacity_rps
    for part, (from_s, to_s), whole in _parts(figures):
        executions = [each for each in evidence.executions if from_s <= each.began_s < to_s]
        records = [each for each in evidence.records if from_s <= each.began_s < to_s]
        part |= attempt_figures(records)
        part |= execution_figures(executions, evidence.calls)
        for each in (part, *part["traffic"].values()):
            each["goodput_share"] = None if capacity_rps is None else round(each["goodput_rps"] / capacity_rps, 6)
        part["replicas"] = replica_figures(
            executions, evidence.records, evidence.counted if whole else None, len(evidence.counted), (from_s, to_s)
        )


def _parts(figures: dict[str, Any]) -> Iterator[tuple[dict[str, Any], tuple[float, float], bool]]:
    yield figures, (0.0, figures["duration_s"]), True
    for name, part in figures["windows"].items():
        from_s, _, to_s = name.partition("-")
        yield part, (float(from_s), float(to_s)), False


@dataclass(frozen=True, slots=True)
class Reading:
    """A run that is judged."""

    figures: Mapping[str, Any]
    seconds: Sequence[Second]
    spans: Sequence[Span]
    baseline: Mapping[str, Any] | None = None
    """The figures of the run before."""

    def measure(self, check: CheckSpec) -> float | None:
        """What a check is about; None if there is nothing to measure."""
        if check.recovery is not None:
            return recovery_s(check.recovery, self.seconds, self.spans)
        found = figure_in(self.figures, check)
        if not check.times_baseline:
            return found
        before = None if self.baseline is None else figure_in(self.baseline, check)
        return None if found is None or not before else round(found / before, 4)


def recovery_s(recovery: Recovery, seconds: Sequence[Second], spans: Sequence[Span]) -> float | None:
    """How long after the fault all was well again and stayed so; 0 if it was at once. None if it never was, or if the
    fault never ended.
    """
    after_s = recovery.after_s
    if after_s is None:
        ends = [span.end_s for span in spans if span.index == recovery.after_fault]
        known = [end for end in ends if end is not None]
        if not known or len(known) < len(ends):
            return None
        after_s = max(known)
    limit_ms = recovery.p99_ms
    if limit_ms is None:
        before_s, times = recovery.before_s or 0.0, recovery.times or 1.0
        highest = max((row.p99_ms for row in seconds if row.at_s + 1 <= before_s and row.p99_ms), default=None)
        if highest is None:
            return None
        limit_ms = times * highest
    offered = [row for row in seconds if row.offered]
    well_from_s: float | None = None
    for row in reversed(offered):
        if row.failed or row.p99_ms is None or row.p99_ms > limit_ms:
            break
        well_from_s = float(row.at_s)
    return None if well_from_s is None else round(max(0.0, well_from_s - after_s), 3)
