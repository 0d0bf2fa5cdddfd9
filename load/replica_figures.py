"""Figures of each replica: what Triton itself counted, what its model executed, what the gateway sent to it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Sequence
from typing import Any

from load.attempts import Recorded, attempts_to
from load.executions import Execution

STATISTICS_TIMEOUT_S = 5.0
REPLICA_FIGURES = {
    "inferences": "Inferences of all models by Triton's own statistics, from its last start or that of the run on; "
    "whole run only.",
    "inference_share": "Its share of all replicas' `inferences`; whole run only.",
    "executions": "Calls that it executed, by the execution log of `accel`, begun in the time.",
    "execution_share": "Its share of all replicas' `executions`.",
    "attempts": "Sends to it, by the gateway's prediction records, begun in the time.",
}
"""Figures of one replica to their meaning."""
WHOLE_RUN = frozenset({"inferences", "inference_share"})


def inferences(http_address: str) -> int | None:
    """How many inferences this Triton counts so far, all its models together; None if it does not answer."""
    try:
        with urllib.request.urlopen(f"http://{http_address}/v2/models/stats", timeout=STATISTICS_TIMEOUT_S) as response:
            return sum(int(each["inference_count"]) for each in json.load(response)["model_stats"])
    except OSError:
        return None


def since(before: int | None, after: int | None) -> int | None:
    """What was counted in a run; a Triton that was started meanwhile counts from 0."""
    if before is None or after is None:
        return after
    return after - before if after >= before else after


def replica_figures(
    executions: Sequence[Execution],
    records: Sequence[Recorded],
    counted: Sequence[int | None] | None,
    replicas: int,
    time: tuple[float, float],
) -> dict[str, dict[str, Any]]:
    """The figures by name, as `replica-0`. `executions` are those of the time; `counted` is None for a window."""
    from_s, to_s = time
    ran = [sum(each.replica == replica for each in executions) for replica in range(replicas)]
    known = [each or 0 for each in counted] if counted is not None else []
    found: dict[str, dict[str, Any]] = {}
    for replica in range(replicas):
        found[f"replica-{replica}"] = {
            "inferences": counted[replica] if counted is not None else None,
            "inference_share": _share(known, replica) if known else None,
            "executions": ran[replica],
            "execution_share": _share(ran, replica),
            "attempts": attempts_to(records, replica, from_s, to_s),
        }
    return found


def _share(counts: Sequence[int], which: int) -> float | None:
    return round(counts[which] / sum(counts), 6) if sum(counts) else None
