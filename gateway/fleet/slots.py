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
    return min(SLOTS_MAX, 2 * places(config))


def places(config: ModelConfigSummary) -> int:
    """How many calls fill one batch on each instance of the replica: what runs there at once."""
    return max(1, config.instances) * max(1, batch_max(config))


def batch_max(config: ModelConfigSummary) -> int:
    """The largest number of calls that Triton merges into one execution; 0 if it merges none."""
    return config.max_batch_size if config.batches else 0


def slots_of(policy: ModelPolicy, config: ModelConfigSummary) -> int:
    """The policy's number if it names one."""
    return policy.admission.slots_per_replica or default_slots(config)


def guessed(policy: ModelPolicy, config: ModelConfigSummary) -> bool:
    """Whether neither the policy nor Triton says how many calls a replica can run at once."""
    return config.decoupled and policy.admission.slots_per_replica is None
