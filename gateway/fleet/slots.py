"""How many calls one replica may have in flight for one model version."""

from __future__ import annotations

from gateway.policy.schema import ModelPolicy
from gateway.wire.kserve.model_config import ModelConfigSummary

SLOTS_MAX = 65_536


def default_slots(config: ModelConfigSummary) -> int:
    """Twice what the replica can run at once: one batch running and one filling on each instance. More would only
    lengthen the replica's own queue. Where Triton does not merge calls, a batch is one call.
    """
    batch = config.max_batch_size if config.batches else 1
    return min(SLOTS_MAX, 2 * max(1, config.instances) * max(1, batch))


def slots_of(policy: ModelPolicy, config: ModelConfigSummary) -> int:
    """The policy's number if it names one."""
    return policy.admission.slots_per_replica or default_slots(config)
