"""The few things that the gateway must know of a model's configuration, from Triton's JSON form of it.

The configuration itself is not translated: it is fetched over both protocols when a model appears, and each protocol
is served its own bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from gateway.wire.kserve.datatypes import BY_CONFIG_NAME
from gateway.wire.kserve.http_raw import TensorSpec
from gateway.wire.kserve.response_view import broken


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """Triton's own queue in front of the model. 0: no bound (`max_queue_size`, in requests), no timeout."""

    max_queue_size: int
    default_timeout_us: int
    allow_timeout_override: bool
    timeout_action: str


@dataclass(frozen=True, slots=True)
class DynamicBatching:
    """Present only where the model batches dynamically; only such a model's queued requests can be cancelled."""

    preferred_batch_sizes: tuple[int, ...]
    max_queue_delay_us: int
    preserve_ordering: bool
    priority_levels: int
    queue: QueuePolicy


@dataclass(frozen=True, slots=True)
class ModelConfigSummary:
    """`instances` is how many executions one replica runs at once: over all groups, per listed GPU, passive ones left
    out, at least 1 (an ensemble has no groups of its own). `inputs` and `outputs` lack the batch dimension, which
    exists where `max_batch_size` is at least 1.
    """

    name: str
    platform: str
    backend: str
    max_batch_size: int
    instances: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    optional_inputs: frozenset[str]
    decoupled: bool
    sequence: bool
    ensemble: bool
    response_cache: bool
    dynamic_batching: DynamicBatching | None

    @property
    def stateless(self) -> bool:
        """Whether each call stands for itself and has exactly one answer."""
        return not (self.decoupled or self.sequence)

    @property
    def slots(self) -> int:
        """How many calls of one element each a replica can work on at once: instances times batch size."""
        batching = self.dynamic_batching is not None or self.sequence
        return self.instances * (max(1, self.max_batch_size) if batching else 1)


def summarise_config(document: bytes | str) -> ModelConfigSummary:
    """Summarise a model configuration in Triton's JSON. Numbers may be JSON strings, as protobuf's own JSON has them;
    absent keys have their defaults. Raises `GatewayError` (UPSTREAM_BROKEN).
    """
    try:
        config = orjson.loads(document)
        if type(config) is not dict:
            raise TypeError("it is not an object")
        return _summarise(config)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise broken(f"model configuration: {str(error)[:200]}") from None


def _summarise(config: dict[str, Any]) -> ModelConfigSummary:
    inputs = config.get("input") or []
    batching = config.get("dynamic_batching")
    policy = config.get("model_transaction_policy") or {}
    cache = config.get("response_cache") or {}
    return ModelConfigSummary(
        name=str(config["name"]),
        platform=str(config.get("platform", "")),
        backend=str(config.get("backend", "")),
        max_batch_size=int(config.get("max_batch_size", 0)),
        instances=_instances(config.get("instance_group") or []),
        inputs=tuple(map(_spec, inputs)),
        outputs=tuple(map(_spec, config.get("output") or [])),
        optional_inputs=frozenset(str(each["name"]) for each in inputs if each.get("optional", False)),
        decoupled=bool(policy.get("decoupled", False)),
        sequence="sequence_batching" in config,
        ensemble="ensemble_scheduling" in config,
        response_cache=bool(cache.get("enable", False)),
        dynamic_batching=None if batching is None else _batching(batching),
    )


def _instances(groups: list[dict[str, Any]]) -> int:
    total = 0
    for group in groups:
        if not group.get("passive", False):
            total += int(group.get("count", 1)) * max(1, len(group.get("gpus") or []))
    return max(1, total)


def _spec(tensor: dict[str, Any]) -> TensorSpec:
    config_name = str(tensor["data_type"])
    row = BY_CONFIG_NAME.get(config_name)
    name = row.name if row is not None else config_name
    return TensorSpec(str(tensor["name"]), name, tuple(map(int, tensor.get("dims") or [])))


def _batching(batching: dict[str, Any]) -> DynamicBatching:
    queue = batching.get("default_queue_policy") or {}
    return DynamicBatching(
        preferred_batch_sizes=tuple(map(int, batching.get("preferred_batch_size") or [])),
        max_queue_delay_us=int(batching.get("max_queue_delay_microseconds", 0)),
        preserve_ordering=bool(batching.get("preserve_ordering", False)),
        priority_levels=int(batching.get("priority_levels", 0)),
        queue=QueuePolicy(
            max_queue_size=int(queue.get("max_queue_size", 0)),
            default_timeout_us=int(queue.get("default_timeout_microseconds", 0)),
            allow_timeout_override=bool(queue.get("allow_timeout_override", False)),
            timeout_action=str(queue.get("timeout_action", "REJECT")),
        ),
    )
