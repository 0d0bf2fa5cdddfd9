"""What must hold of the adaptive limit at any moment, reckoned from the scenario and not from what the product says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from gateway.decide.slot_limit import CAP_FACTOR
from gateway.policy.schema import AdaptiveLimit, ModelPolicy, PolicySet

if TYPE_CHECKING:
    from tests.simulation.batcher import ModelSpec

SHARE = (0, 1)
"""Seeds with these remainders by 7 let the limit move; in those with the second it may rise. Not drawn, for the sake of
the pinned seeds: none of them is such a one.
"""


def let_move(seed: int, policies: PolicySet) -> None:
    """The limit moves in some of the seeds, and stands still in the others."""

    for name, policy in policies.models.items():
        limit = AdaptiveLimit(adaptive=False)
        if seed % 7 in SHARE:
            slots = policy.admission.slots_per_replica
            cap = None if slots is None or seed % 7 == SHARE[0] else 3 * slots
            limit = AdaptiveLimit(cap_per_replica=cap)
        policies.models[name] = replace(policy, admission=replace(policy.admission, limit=limit))


def declared_slots(policy: ModelPolicy, spec: ModelSpec) -> int:
    """What a replica starts with."""
    return policy.admission.slots_per_replica or 2 * places(spec)


def places(spec: ModelSpec) -> int:
    """Calls that fill a batch on each instance."""
    return spec.instances * (spec.max_batch_size if spec.dynamic_batching or spec.sequences else 1)


def faults(policy: ModelPolicy, spec: ModelSpec, state: Mapping[str, Any]) -> Iterator[str]:
    """Of one model version, as its admission shows itself."""
    limit, adaptive = state["limit"], state["adaptive"]
    if adaptive is None:
        if policy.admission.limit.adaptive and limit:
            yield "its policy lets the limit move, and it has none"
        return
    if not policy.admission.limit.adaptive:
        yield "its policy holds the slots still, and it has a limit"
        return
    slots: Mapping[str, int] = adaptive["slots_by_replica"]
    if sum(slots.values()) != limit:
        yield f"the slots {dict(slots)} do not add up to the limit {limit}"
    if slots and limit != adaptive["limit"]:
        yield f"{limit} slots are given out, the limit is {adaptive['limit']}"
    start, fills = declared_slots(policy, spec), places(spec)
    least, most = min(start, fills), policy.admission.limit.cap_per_replica
    if most is None:
        named = policy.admission.slots_per_replica is not None
        most = start if named or spec.decoupled else max(start, CAP_FACTOR * fills)
    if not least * len(slots) <= limit <= most * len(slots):
        yield f"the limit {limit} of {len(slots)} replicas is not from {least} to {most} for each"
    if any(each < 1 for each in slots.values()):
        yield f"a replica is left without a slot: {dict(slots)}"
