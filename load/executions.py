"""What the replicas executed, by the execution logs of `accel`: how much, for which calls, and when."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Execution:
    """One call's part in one execution. Times are seconds from the start of what is measured."""

    replica: int
    body_id: str
    began_s: float
    took_s: float
    """Of the whole batch."""
    requests: int
    """Calls in the batch."""


@dataclass(frozen=True, slots=True)
class Calls:
    """When calls were meant to be sent, by traffic and row, and how long each traffic's deadline is, in seconds.

    `rows` is after how many calls the inputs begin anew, so the call with a row is the last one before the execution.
    """

    intended_s: Mapping[str, Sequence[float]]
    deadline_s: Mapping[str, float]
    rows: Mapping[str, int]

    def deadline_of(self, execution: Execution) -> float | None:
        """When the executed call was over; None if it is none of this run's."""
        traffic, _, row = execution.body_id.rpartition("/")
        times = self.intended_s.get(traffic)
        if times is None or not row.isdecimal():
            return None
        rows = self.rows[traffic]
        found: float | None = None
        for number in range(int(row) or rows, len(times) + 1, rows):  # the first call has number 1
            if times[number - 1] > execution.began_s:
                break
            found = times[number - 1]
        return None if found is None else found + self.deadline_s[traffic]


def read_log(path: Path, replica: int, start_s: float) -> Iterator[Execution]:
    """The executions of one replica, the part of the log that was moved aside included. `start_s` is the monotonic time
    of the start of what is measured. Passed over: a line that a kill left torn, and what has no id (a model's warm-up).
    """
    for file in (path.with_name(path.name + ".1"), path):
        if not file.exists():
            continue
        with file.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                try:
                    each = json.loads(line)
                except ValueError:
                    continue
                if not each["id"]:  # Triton warms the model up
                    continue
                began_s = each["start_s"] - start_s
                took_s = each["end_s"] - each["start_s"]
                yield Execution(replica, each["id"], began_s, took_s, each["requests"])


EXECUTION_FIGURES = {
    "executions": "Calls that the replicas executed, by the execution logs of `accel`, begun in the time.",
    "executed_calls": "Different calls among them.",
    "extra_execution_share": "Executions beyond the first of a call, as a share of `executed_calls`.",
    "expired_work_share": "Of the replicas' execution time, the share spent on calls whose deadline had passed (from "
    "the intended send time) when the execution began.",
}
"""Figures of the run, or of a window; all None for a run without `accel`, or with its inputs in the form `binary`."""


def execution_figures(executions: Iterable[Execution], calls: Calls) -> dict[str, Any]:
    """The figures of these executions."""
    seen: Counter[str] = Counter()
    busy_s = expired_s = 0.0
    for each in executions:
        seen[each.body_id] += 1
        share_s = each.took_s / each.requests
        busy_s += share_s
        deadline_s = calls.deadline_of(each)
        if deadline_s is not None and each.began_s > deadline_s:
            expired_s += share_s
    if not seen:
        return dict.fromkeys(EXECUTION_FIGURES)
    total = seen.total()
    return {
        "executions": total,
        "executed_calls": len(seen),
        "extra_execution_share": round((total - len(seen)) / len(seen), 6),
        "expired_work_share": round(expired_s / busy_s, 6) if busy_s else None,
    }
