"""`/v1/fleet`: the whole fleet as one JSON document, made in a worker from an immutable snapshot."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.core.snapshot import FleetSnapshot, GpuView, ModelView, Phases, ReplicaView


@dataclass(frozen=True, slots=True)
class FleetState:
    """What the document is made from, taken at one instant on the loop. `pools`, `members` and `statistics` are
    ready-made mappings of plain values; they must not change after they were handed over.
    """

    snapshot: FleetSnapshot
    now_s: float
    """Monotonic seconds."""
    wall_s: float
    state: str
    """Of the gateway: `starting`, `serving`, `draining`."""
    policy_revision: str
    version: str
    pools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By pool: how its addresses are found."""
    members: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By replica: what does not stand in the snapshot."""
    statistics: Mapping[str, Any] = field(default_factory=dict)
    """By subject: `admission`, `records`, `background`, …"""


def fleet_document(state: FleetState, metrics_id: Callable[[str], str]) -> bytes:
    """Strict JSON. Phases are ages: seconds since the phase was reached, null where it was not. `metrics_id` gives the
    replica label of the metrics page.
    """
    pools: dict[str, list[dict[str, Any]]] = {pool: [] for pool in state.pools}
    for replica in state.snapshot.replicas:
        shown = _replica(replica, state.now_s, metrics_id(replica.id), state.members.get(replica.id, {}))
        pools.setdefault(replica.pool, []).append(shown)
    models: dict[tuple[str, str, str], dict[str, int]] = {}
    for replica in state.snapshot.replicas:
        for model in replica.models.values():
            counts = models.setdefault((replica.pool, model.name, model.version), {})
            counts[model.state.value] = counts.get(model.state.value, 0) + 1
    document = {
        "gateway": {
            "state": state.state,
            "version": state.version,
            "policy_revision": state.policy_revision,
            "time_s": state.wall_s,
        },
        "snapshot": state.snapshot.number,
        "pools": {
            pool: {"addresses": state.pools.get(pool), "replicas": replicas} for pool, replicas in sorted(pools.items())
        },
        "models": [
            {"pool": pool, "model": model, "version": version, "replicas": counts}
            for (pool, model, version), counts in sorted(models.items())
        ],
        "statistics": state.statistics,
    }
    return json_bytes(document)


def json_bytes(document: Any) -> bytes:
    """Strict JSON and a line break; numbers that JSON does not have become null."""
    options = orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS
    try:
        return orjson.dumps(document, default=_plain, option=options)
    except orjson.JSONEncodeError:
        # Lone surrogates out of somebody's names: escaped by the slow encoder.
        return json.dumps(_finite(document), allow_nan=False, default=_plain).encode() + b"\n"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    return str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value


def _replica(replica: ReplicaView, now_s: float, metrics_id: str, more: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": replica.id,
        "metrics_id": metrics_id,
        "address": replica.address,
        "state": replica.state.value,
        "times_down": replica.times_down,
        "server_version": replica.server_version,
        "last_error": replica.last_error,
        "phases_age_s": _phases(replica.phases, now_s),
        "scrape_age_s": _age(replica.scraped_s, now_s),
        **more,
        "gpus": [_gpu(gpu) for gpu in replica.gpus],
        "models": [_model(model, now_s) for _, model in sorted(replica.models.items())],
    }


def _model(model: ModelView, now_s: float) -> dict[str, Any]:
    return {
        "model": model.name,
        "version": model.version,
        "state": model.state.value,
        "reason": model.reason,
        "warmup": model.warmup,
        "slots": model.slots,
        "pending": model.pending,
        "queue_us": model.queue_us,
        "compute_us": model.compute_us,
        "batch_fill": model.batch_fill,
        "phases_age_s": _phases(model.phases, now_s),
    }


def _gpu(gpu: GpuView) -> dict[str, Any]:
    return {
        "uuid": gpu.uuid,
        "utilisation": gpu.utilisation,
        "memory_used_bytes": gpu.memory_used_bytes,
        "memory_total_bytes": gpu.memory_total_bytes,
    }


def _phases(phases: Phases, now_s: float) -> dict[str, float | None]:
    return {
        "seen": _age(phases.seen_s, now_s),
        "connected": _age(phases.connected_s, now_s),
        "live": _age(phases.live_s, now_s),
        "ready": _age(phases.ready_s, now_s),
        "warmed": _age(phases.warmed_s, now_s),
        "first_answer": _age(phases.first_answer_s, now_s),
    }


def _age(at_s: float | None, now_s: float) -> float | None:
    return None if at_s is None else round(now_s - at_s, 3)
