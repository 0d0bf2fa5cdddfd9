"""Readings for the page from what others show: the fleet's snapshot, admission's rows, background jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from gateway.core.snapshot import FleetSnapshot
from gateway.observe import labels
from gateway.observe.metrics import Metrics
from gateway.observe.table import Reading


def fleet_readings(snapshot: FleetSnapshot, metrics: Metrics, now_s: float) -> Iterable[Reading]:
    """States, and what Triton says of itself. Models without a policy are summed up as `other`."""
    states: Counter[tuple[str, str, str, str]] = Counter()
    pending: Counter[tuple[str, str, str, str]] = Counter()
    names: dict[tuple[str, str], tuple[str, str]] = {}
    for replica in snapshot.replicas:
        pool = labels.text(replica.pool)
        here = (pool, metrics.replica_label(replica.id))
        yield "sluice_replica_state", (*here, replica.state.value), 1.0
        if replica.scraped_s is not None:
            yield "sluice_triton_scrape_age_seconds", here, max(0.0, now_s - replica.scraped_s)
        for number, gpu in enumerate(replica.gpus):
            for name, value in (
                ("sluice_gpu_utilisation_ratio", gpu.utilisation),
                ("sluice_gpu_memory_used_bytes", gpu.memory_used_bytes),
                ("sluice_gpu_memory_total_bytes", gpu.memory_total_bytes),
            ):
                if value is not None:
                    yield name, (*here, str(number)), value
        for named, model in replica.models.items():
            what = names.get(named)
            if what is None:
                what = names[named] = (
                    metrics.model_label(model.name),
                    metrics.version_label(model.name, model.version),
                )
            states[(pool, *what, model.state.value)] += 1
            if model.pending is not None:
                pending[(*here, *what)] += model.pending
            if labels.OTHER in what or model.queue_us is model.compute_us is model.batch_fill is None:
                continue
            for name, value in (
                ("sluice_triton_queue_seconds", _seconds(model.queue_us)),
                ("sluice_triton_compute_seconds", _seconds(model.compute_us)),
                ("sluice_triton_batch_size", model.batch_fill),
            ):
                if value is not None:
                    yield name, (*here, *what), value
    for key, count in states.items():
        yield "sluice_model_replicas", key, count
    for key, count in pending.items():
        yield "sluice_triton_pending_requests", key, count


AdmissionRow = tuple[str, str, str, int, int, int, Mapping[str, Any] | None]
"""Pool, model, version, in flight, queued, slots, what the adaptive limit says of itself (None: there is none)."""

_LIMIT = (("floor", "sluice_slots_floor"), ("cap", "sluice_slots_cap"), ("drops", "sluice_limit_drops_total"))


def admission_readings(rows: Iterable[AdmissionRow], metrics: Metrics) -> Iterable[Reading]:
    sums: dict[tuple[str, str, str], list[int]] = {}
    limits: dict[tuple[str, str, str], Counter[str]] = {}
    for pool, model, version, in_flight, queued, slots, limit in rows:
        key = (labels.text(pool), metrics.model_label(model), metrics.version_label(model, version))
        if limit is not None:
            counts = limits.setdefault(key, Counter())
            counts.update({name: limit[name] for name, _ in _LIMIT})
            counts[f"why {limit['why']}"] += 1
        total = sums.setdefault(key, [0, 0, 0])
        total[0] += in_flight
        total[1] += queued
        total[2] += slots
    for key, (in_flight, queued, slots) in sums.items():
        yield "sluice_calls_in_flight", key, in_flight
        yield "sluice_calls_queued", key, queued
        yield "sluice_slots", key, slots
    for key, counts in limits.items():
        for name, metric in _LIMIT:
            yield metric, key, counts[name]
        for name, count in counts.items():
            if name.startswith("why "):
                yield "sluice_limit_why", (*key, name.removeprefix("why ")), count


def quota_readings(counts: Mapping[str, Any]) -> Iterable[Reading]:
    """From what a table of quotas counts."""
    yield "sluice_quota_granted_total", (), counts["granted"]
    for limit in labels.QUOTA_REFUSALS:
        yield "sluice_quota_refused_total", (limit,), counts["refused"][limit]
    yield "sluice_quota_entries", (), counts["entries"]
    yield "sluice_quota_forgotten_total", (), counts["forgotten_early"]


def store_readings(figures: Mapping[str, Any]) -> Iterable[Reading]:
    """From the statistics of a shared store."""
    store = labels.closed(figures["kind"], labels.STORES)
    yield "sluice_store_up", (store,), figures["up"]
    for outcome in labels.STORE_OUTCOMES:
        yield "sluice_store_questions_total", (store, outcome), figures["questions"].get(outcome, 0)


def balance_readings(rows: Iterable[tuple[str, str, str, Mapping[str, Any]]], metrics: Metrics) -> Iterable[Reading]:
    """From (pool, model, version, `Balance.judgements`). Versions that have no label of their own are added up."""
    sums: dict[tuple[str, str, str], Counter[tuple[str, str]]] = {}
    for pool, model, version, row in rows:
        key = (labels.text(pool), metrics.model_label(model), metrics.version_label(model, version))
        total = sums.setdefault(key, Counter())
        total["panic", ""] += int(row["panic"])
        total["panics", ""] += row["panics"]
        for name in ("standings", "moves", "affinity"):
            for word, count in row[name].items():
                total[name, word] += count
    for key, total in sums.items():
        yield "sluice_ejection_panic", key, float(total["panic", ""] > 0)
        yield "sluice_ejection_panics_total", key, total["panics", ""]
        for (name, word), count in total.items():
            if word:
                yield _JUDGEMENTS[name], (*key, word), count


_JUDGEMENTS = {
    "standings": "sluice_ejection_replicas",
    "moves": "sluice_ejection_moves_total",
    "affinity": "sluice_affinity_picks_total",
}


def lane_readings(rows: Iterable[tuple[str, Mapping[str, Mapping[str, int]]]], metrics: Metrics) -> Iterable[Reading]:
    """From (model, what each lane of one of its versions counts)."""
    sums: Counter[tuple[str, str, str]] = Counter()
    for model, lanes in rows:
        for name, counts in lanes.items():
            for state in ("in_flight", "waiting"):
                sums[metrics.model_label(model), labels.text(name), state] += counts[state]
    for (model, lane, state), count in sums.items():
        yield f"sluice_lane_calls_{'in_flight' if state == 'in_flight' else 'queued'}", (model, lane), count


def shared_readings(rows: Iterable[tuple[str, Mapping[str, Any]]], metrics: Metrics) -> Iterable[Reading]:
    """From (pool, `SharedBounds.statistics`)."""
    for pool, told in rows:
        here = labels.text(pool)
        for replica, count in told["in_flight"].items():
            yield "sluice_shared_calls_in_flight", (here, metrics.replica_label(replica)), count
        limit = 0
        for replica, account in told["memory"].items():
            limit = max(limit, account["limit_bytes"])
            taken = account["fixed_bytes"] + account["in_flight_bytes"]
            yield "sluice_shared_memory_bytes", (here, metrics.replica_label(replica)), taken
        if limit:
            yield "sluice_shared_memory_limit_bytes", (here,), limit


_SEQUENCE_EVENTS = ("started", "adopted", "ended", "lost", "expired", "evicted")


def sequence_readings(rows: Iterable[tuple[str, Mapping[str, int]]], metrics: Metrics) -> Iterable[Reading]:
    """From (model, what its table of sequences counts). A model that never had one is left out."""
    sums: dict[str, Counter[str]] = {}
    for model, counts in rows:
        if counts["started"] or counts["adopted"]:
            sums.setdefault(metrics.model_label(model), Counter()).update(counts)
    for label, total in sums.items():
        yield "sluice_sequences_live", (label,), total["live"]
        yield "sluice_sequence_steps_waiting", (label,), total["waiting"]
        for event in _SEQUENCE_EVENTS:
            yield "sluice_sequence_events_total", (label, event), total[event]


def stage_readings(rows: Iterable[tuple[str, Mapping[str, Any]]], metrics: Metrics) -> Iterable[Reading]:
    """From (model, what its stages count: `StageOverruns.statistics`)."""
    for model, counts in rows:
        label = metrics.model_label(model)
        for stage, row in counts["stages"].items():
            yield "sluice_stage_overruns_total", (label, stage), row["overruns"]
            yield "sluice_stage_overrun_seconds_total", (label, stage), row["over_s"]


_UPSTREAM = (
    ("connections", "sluice_upstream_connections"),
    ("connects", "sluice_upstream_connects_total"),
    ("connect_failures", "sluice_upstream_connect_failures_total"),
    ("goaways", "sluice_upstream_goaways_total"),
    ("moved", "sluice_upstream_calls_moved_total"),
    ("cancelled", "sluice_upstream_calls_cancelled_total"),
    ("left", "sluice_upstream_calls_left_total"),
    ("left_now", "sluice_upstream_calls_left"),
    ("ping_complaints", "sluice_upstream_ping_complaints_total"),
    ("keepalive_s", "sluice_upstream_keepalive_seconds"),
)


def upstream_readings(rows: Iterable[tuple[str, str, Mapping[str, float]]], metrics: Metrics) -> Iterable[Reading]:
    """From (pool, replica's id, what its client counts: `Http2ReplicaClient.statistics`)."""
    for pool, replica, counts in rows:
        here = (labels.text(pool), metrics.replica_label(replica))
        for name, metric in _UPSTREAM:
            yield metric, here, counts[name]


def job_readings(restarts: Mapping[str, int]) -> Iterable[Reading]:
    """From the supervisor's count of restarts by job."""
    sums: Counter[str] = Counter()
    for name, count in restarts.items():
        sums[labels.job(name)] += count
    for name, count in sums.items():
        yield "sluice_background_restarts_total", (name,), count


def file_readings(rows: Iterable[tuple[str, int, bool, float]]) -> Iterable[Reading]:
    """From (file, loads, failing, when its certificate expires or 0.0)."""
    for name, loads, failing, expires_s in rows:
        key = (labels.text(name),)
        yield "sluice_watched_file_loads_total", key, loads
        yield "sluice_watched_file_failing", key, float(failing)
        if expires_s:
            yield "sluice_tls_certificate_expiry_timestamp_seconds", key, expires_s


def _seconds(microseconds: float | None) -> float | None:
    return None if microseconds is None else microseconds / 1e6
