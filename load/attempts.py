"""What the gateway sent to its replicas, by its own prediction records: how often, where to, when, and why."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Recorded:
    """A call as its record shows it. Times are seconds from the start of what is measured."""

    began_s: float
    late: bool
    """Its answer began after its deadline, on the gateway's clock."""
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One send. `replica` is -1 for an address that is none of the run's."""

    replica: int
    kind: str
    began_s: float


def read_records(
    folder: Path, replicas: Mapping[str, int], start_unix_s: float, prefixes: tuple[str, ...]
) -> Iterator[Recorded]:
    """The calls of a run: those whose request id begins with one of `prefixes`. `replicas` is by host:port of gRPC;
    `start_unix_s` is the wall clock's time at the start of what is measured.
    """
    for path in sorted(folder.glob("records-*.jsonl")):
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                try:
                    each = json.loads(line)
                except ValueError:  # the last line, if the gateway was killed
                    continue
                if str(each.get("request_id", "")).startswith(prefixes):
                    yield _recorded(each, replicas, start_unix_s)


def _recorded(each: Mapping[str, Any], replicas: Mapping[str, int], start_unix_s: float) -> Recorded:
    began_s = datetime.fromisoformat(each["time"]).timestamp() - start_unix_s
    deadline_ms = each["deadline_ms"]
    answered_ms = each["duration_ms"] - each["stages_ms"].get("write", 0.0)
    return Recorded(
        began_s,
        each["status"] == "OK" and deadline_ms is not None and answered_ms > deadline_ms,
        tuple(
            Attempt(
                replicas.get(sent["replica"].rpartition("/")[2], -1), sent["kind"], began_s + sent["start_ms"] / 1000
            )
            for sent in each["attempts"]
        ),
    )


ATTEMPT_FIGURES = {
    "attempts": "Sends to replicas, by the gateway's prediction records (at most 32 of a call).",
    "attempts_per_call": "The same per call.",
    "hedge_share": "Hedges per call.",
    "retry_share": "Retries per call.",
    "late_answers": "Answers that began after their call's deadline, on the gateway's clock.",
}
"""Figures of the calls that reached the gateway in the run, or in a window."""


def attempt_figures(records: Sequence[Recorded]) -> dict[str, Any]:
    """The figures of these calls; None for all without any."""
    if not records:
        return dict.fromkeys(ATTEMPT_FIGURES)
    kinds = [sent.kind for each in records for sent in each.attempts]
    return {
        "attempts": len(kinds),
        "attempts_per_call": round(len(kinds) / len(records), 6),
        "hedge_share": round(kinds.count("hedge") / len(records), 6),
        "retry_share": round(kinds.count("retry") / len(records), 6),
        "late_answers": sum(each.late for each in records),
    }


def attempts_to(records: Iterable[Recorded], replica: int, from_s: float, to_s: float) -> int:
    """Sends to one replica that began in this time."""
    return sum(sent.replica == replica and from_s <= sent.began_s < to_s for each in records for sent in each.attempts)
