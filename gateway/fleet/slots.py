"""How many calls one replica may have in flight for one model version."""

from __future__ import annotations

from gateway.policy.schema import ModelPolicy
from gateway.wire.kserve.model_config import ModelConfigSummary

SLOTS_MAX = 65_536


def default_slots(config: ModelConfigSummary) -> int:
    """Twice what the replica can run at once: one batch running and one filling on each instance. More would only
    lengthen the replica's own queue. Where Triton does not merge calls, a batch is one call.

    Of a decoupled model this is a guess on the safe side. Its backend may serve hundreds of streams on one instance or
    one after the other, and Triton tells neither; too few slots are seen at once (calls wait here, where they are
    counted), too many hide the waiting inside the replica. `guessed` says so, and the prober tells the operator.
    """
    batch = config.max_batch_size if config.batches else 1
    return min(SLOTS_MAX, 2 * max(1, config.instances) * max(1, batch))


def slots_of(policy: ModelPolicy, config: ModelConfigSummary) -> int:
    """The policy's number if it names one."""
    return policy.admission.slots_per_replica or default_slots(config)


def guessed(policy: ModelPolicy, config: ModelConfigSummary) -> bool:
    """Whether neither the policy nor Triton says how many calls a replica can run at once."""
    return config.decoupled and policy.admission.slots_per_replica is None
