"""Readings for the page of second attempts and of cancels, from what their layers show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from gateway.core.snapshot import FleetSnapshot
from gateway.observe import labels
from gateway.observe.metrics import Metrics
from gateway.observe.table import Reading


def attempt_readings(rows: Iterable[tuple[str, Mapping[str, Any]]], metrics: Metrics) -> Iterable[Reading]:
    """From (model, `statistics` of its attempts)."""
    for model, figures in rows:
        label = metrics.model_label(model)
        for kind in labels.SECOND_KINDS:
            if kind in figures["sent"]:
                yield "sluice_second_attempts_total", (label, kind), figures["sent"][kind]
                yield "sluice_second_attempts_won_total", (label, kind), figures["won"].get(kind, 0)
        for kind, words in figures["refused"].items():
            sums: Counter[str] = Counter()
            for word, count in words.items():
                sums[labels.closed(word, labels.REFUSALS)] += count
            for word, count in sums.items():
                yield "sluice_second_attempts_refused_total", (label, kind, word), count
        budget = figures["budget"]
        yield "sluice_attempt_budget_tokens", (label, "hedge"), budget["hedge_tokens"]
        yield "sluice_attempt_budget_tokens", (label, "retry"), budget["hedge_tokens"] + budget["retry_tokens"]
        quarantine = figures.get("quarantine")
        if quarantine is not None:
            yield "sluice_quarantined_inputs", (label,), quarantine["quarantined"]
            yield "sluice_quarantine_refusals_total", (label,), quarantine["refused"]


def cancel_readings(
    snapshot: FleetSnapshot, figures: Mapping[str, Mapping[str, Any]], metrics: Metrics
) -> Iterable[Reading]:
    """Of the replicas of the fleet on which a call was ever cancelled; `figures` by replica's id."""
    for replica in snapshot.replicas:
        row = figures.get(replica.id)
        if row is not None:
            here = (labels.text(replica.pool), metrics.replica_label(replica.id))
            yield "sluice_upstream_cancels_per_second", here, row["rate_per_s"]
            yield "sluice_upstream_cancels_capped_total", here, row["let_run"]
