"""The order of the layers, each position with its reason.

From outside in. A layer that does not exist yet has its place and its reason here all the same, so that it cannot be
put elsewhere later; nothing stands in for it. A model's stack holds only the layers that its policy uses.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.core.call import Call
from gateway.core.faces import Authenticator, BodyLimits, SnapshotSource
from gateway.core.service import Service
from gateway.core.snapshot import FleetSnapshot
from gateway.decide.attempt_budget import AttemptBudget
from gateway.decide.lanes import LaneSettings, LanesSettings
from gateway.decide.memory_budget import ModelMemory
from gateway.decide.quota import TenantQuota
from gateway.decide.quota_table import MakeQuota, Quotas
from gateway.decide.retry import RetrySettings
from gateway.decide.shared_bounds import SharedBounds
from gateway.decide.slot_limit import LimitRule
from gateway.decide.split import Split
from gateway.decide.stage_budget import StageBudget, StageSettings
from gateway.decide.tuning import Tuning
from gateway.decide.work import WorkSettings
from gateway.layers.admit import AdmitLayer
from gateway.layers.affinity import key_of
from gateway.layers.attempts import AttemptsLayer
from gateway.layers.bounds import Bounds, Commons
from gateway.layers.cancels import Cancels
from gateway.layers.deadline import DeadlineLayer, StreamLimits
from gateway.layers.gate import GateLayer
from gateway.layers.quota import Leases, QuotaLayer, settings_of
from gateway.layers.record import CallSink, RecordLayer
from gateway.layers.route import CurrentRoutes, ModelRoute, RouteLayer, RouteTable
from gateway.layers.sequence import SequenceLayer
from gateway.layers.sizes import SizeLimits, Sizes
from gateway.layers.stages import StagesLayer
from gateway.layers.track import TrackLayer
from gateway.layers.unsent import Unsent
from gateway.policy.schema import Admission, ModelPolicy, PolicySet
from gateway.runtime.clock import Clock
from gateway.runtime.wheel import TimerWheel
from gateway.tuned import tuned


@dataclass(frozen=True, slots=True)
class Position:
    """One place in the stack. `built` is False for a layer that is still to come."""

    name: str
    built: bool
    reason: str


POSITIONS: tuple[Position, ...] = (
    Position("edge", True, "Outermost: bytes become calls and errors become responses here and nowhere else."),
    Position("record", True, "Outside of everything that can refuse, so that a refused call has its record too."),
    Position(
        "gate",
        True,
        "Before the body and before any budget: who calls and how much they send is known from headers, and a call "
        "that must be refused should cost nothing. Quotas of tenants, where there are any, come last in it: what is "
        "refused for another reason costs its tenant none.",
    ),
    Position(
        "deadline",
        True,
        "Outside of all that takes time, the upload included: one absolute budget that nothing below can restart.",
    ),
    Position("route", True, "Version and pool are needed by every layer below, and all must see the same choice."),
    Position(
        "sequence",
        True,
        "Directly below route, which hands it the calls of sequences; from here they go straight to admission, past "
        "all that may send twice, answer for another, or from a store. A step waits here until the one before it is "
        "over: the one wait outside of admission, because a step in admission's queue could overtake its predecessor.",
    ),
    Position("ladder", False, "Outside of what can fail, so that each rung has a whole stack of its own below it."),
    Position("cache", False, "Before anything that costs: a hit needs neither features nor a slot."),
    Position(
        "coalesce",
        False,
        "Below the cache, so that only misses share a flight; above features, so that a flight fetches once.",
    ),
    Position(
        "features", False, "After coalescing, before the call takes a slot: a slot must not idle while a store answers."
    ),
    Position(
        "shadow",
        False,
        "Where the inputs are final and the call is certain to run: a copy of what the real attempt used.",
    ),
    Position(
        "stages",
        True,
        "Directly around all that infers: below it, inference's point is the deadline. Calls of sequences come "
        "through it too.",
    ),
    Position(
        "admit",
        True,
        "The one waiting place, as far in as it can be: everything above is done before a scarce slot is held, and "
        "what is below runs at once.",
    ),
    Position(
        "attempts",
        True,
        "Inside admission: a retry or a hedge takes an idle slot at once or is not sent; it never queues again.",
    ),
    Position(
        "track",
        True,
        "Around one attempt and nothing else, so that in-flight counts and samples are the replica's own.",
    ),
    Position("transport", True, "Innermost: bytes to one replica and back."),
)


@dataclass(slots=True)
class Stack:
    """The assembled house: `service` is what the edge sends to."""

    service: Service
    routes: CurrentRoutes
    admissions: Mapping[str, AdmitLayer]
    sequences: Mapping[str, SequenceLayer]
    stages: Mapping[str, StagesLayer]
    """Of the models whose policies split the deadline."""
    attempts: Mapping[str, AttemptsLayer | Unsent]
    """Of the models that have second attempts of some kind."""
    commons: Mapping[str, Commons]
    """What the models of a pool share, by pool; without those whose models share nothing."""
    quota: QuotaLayer | None = None
    """None where no policy limits a tenant."""


def quotas_of(policies: PolicySet, make: MakeQuota = TenantQuota) -> Quotas | None:
    """The quotas that the policies declare; None if there are none. `make` makes leased ones, where a store is
    shared.
    """
    quotas = policies.fleet.quotas
    if quotas.limits_nothing():
        return None
    return Quotas(settings_of(quotas), 1.0 / quotas.gateways, entries_max=quotas.entries_max, make=make)


def build_model_stack(
    policy: ModelPolicy,
    *,
    transport: Service,
    fleet: SnapshotSource,
    cancels: Cancels,
    clock: Clock,
    wheel: TimerWheel,
    chance: random.Random,
    limit_chance: random.Random,
    tuning: Tuning,
    seconds: dict[str, AttemptsLayer | Unsent],
    bounds: Bounds | None = None,
) -> AdmitLayer:
    """The layers below `route` for one model: admit, attempts (where the policy says that calls may go twice), track,
    transport. What makes second attempts is put into `seconds`.
    """
    tuning = tuned(policy, tuning)
    inner: Service = TrackLayer(transport, clock)
    attempts: AttemptsLayer | None = None
    unsent: Unsent | None = None
    if not policy.read_only and policy.retries.max:
        seconds[policy.model] = unsent = Unsent(
            inner,
            retries=RetrySettings(retries_max=policy.retries.max),
            budget=AttemptBudget(tuning.budget.cap(0), tuning.budget),
            clock=clock,
        )
    elif policy.read_only and (policy.hedging.enabled or policy.retries.max):
        inner = seconds[policy.model] = attempts = AttemptsLayer(
            inner,
            model=policy.model,
            pool=policy.pool,
            hedging=policy.hedging.enabled,
            retries=RetrySettings(retries_max=policy.retries.max),
            budget=AttemptBudget(tuning.budget.cap(0), tuning.budget),
            cancels=cancels,
            clock=clock,
            wheel=wheel,
            chance=chance,
        )
    admission = AdmitLayer(
        inner,
        model=policy.model,
        pool=policy.pool,
        fleet=fleet,
        queue_max=policy.admission.queue_max,
        objective_s=policy.objective.p99_ms / 1000,
        clock=clock,
        wheel=wheel,
        chance=chance,
        tuning=tuning,
        key_of=None if policy.affinity is None else key_of(policy.affinity),
        unsent=unsent,
        limit=limit_rule(policy.admission, tuning),
        limit_chance=limit_chance,
        bounds=bounds,
    )
    if attempts is not None:
        fleet.subscribe(attempts.on_snapshot)
    return admission


def build_stages(policy: ModelPolicy, inner: Service, clock: Clock, wheel: TimerWheel) -> StagesLayer | None:
    """None where the policy names no stages."""
    stages = policy.deadline.stages
    return None if stages is None else StagesLayer(inner, StageBudget(StageSettings(stages.seconds)), clock, wheel)


def limit_rule(admission: Admission, tuning: Tuning) -> LimitRule | None:
    """What a policy says of the limit; None: the slots are fixed."""
    limit = admission.limit
    if not limit.adaptive:
        return None
    return LimitRule(
        floor=limit.floor_per_replica,
        cap=limit.cap_per_replica,
        named=admission.slots_per_replica is not None,
        settings=tuning.limit,
    )


def build_sequences(policy: ModelPolicy, inner: Service, *, fleet: SnapshotSource, clock: Clock) -> SequenceLayer:
    """What stands beside the stack of a model, for calls that belong to sequences."""
    sequences = policy.sequences
    return SequenceLayer(
        inner,
        model=policy.model,
        pool=policy.pool,
        fleet=fleet,
        live_max=sequences.live_max,
        waiting_max=sequences.waiting_max,
        idle_s=None if sequences.idle_ms is None else sequences.idle_ms / 1000,
        clock=clock,
    )


def measure_of(policy: ModelPolicy) -> Callable[[Call, FleetSnapshot, str], None] | None:
    """What looks at the size of the model's calls; None where nobody asks for it."""
    limits, work = policy.limits, policy.work
    if limits.batch_max is None and limits.input_length_max is None and work is None:
        return None
    return Sizes(
        model=policy.model,
        pool=policy.pool,
        limits=SizeLimits(limits.batch_max, limits.input_length_max, limits.input_length_of),
        work=None
        if work is None
        else WorkSettings(work.by, work.input, work.parameter, work.unit, work.default, work.max),
    ).measure


def commons_of(policies: PolicySet) -> dict[str, Commons]:
    """Of each pool whose models share a ceiling or memory, or have lanes."""
    found: dict[str, Commons] = {}
    for name, pool in policies.fleet.pools.items():
        models = {model: policy for model, policy in policies.models.items() if policy.pool == name}
        shared = None
        if pool.in_flight_max is not None or pool.memory_bytes is not None:
            shared = SharedBounds(
                in_flight_max=pool.in_flight_max,
                memory_bytes=pool.memory_bytes,
                models={
                    model: ModelMemory(policy.memory.fixed_bytes, policy.memory.bytes_per_unit)
                    for model, policy in models.items()
                },
            )
        if shared is not None or any(policy.admission.lanes is not None for policy in models.values()):
            found[name] = Commons(name, shared)
    return found


def bounds_of(policy: ModelPolicy, commons: Mapping[str, Commons]) -> Bounds | None:
    """What holds the model's calls back beside slots; None if nothing does."""
    lanes, common = policy.admission.lanes, commons.get(policy.pool)
    if common is None or (common.shared is None and lanes is None):
        return None
    settings = None
    if lanes is not None:
        larger = tuple(LaneSettings(each.name, each.work_above, each.share) for each in lanes.larger)
        settings = LanesSettings(larger, lanes.apart, lanes.large_per_replica)
    return Bounds(model=policy.model, queue_max=policy.admission.queue_max, lanes=settings, commons=common)


def model_route(
    policy: ModelPolicy,
    service: Service,
    sequences: SequenceLayer,
    stages: StagesLayer | None,
    reserve_record: Callable[[], object],
) -> ModelRoute:
    """A model's row of the routing table."""
    return ModelRoute(
        model=policy.model,
        pool=policy.pool,
        service=service,
        default_deadline_s=policy.default_deadline_s,
        max_deadline_s=policy.deadline.max_ms / 1000,
        limits=BodyLimits(policy.limits.body_bytes_max, policy.limits.json_bytes_max),
        stream=StreamLimits(
            first_response_s=policy.deadline.first_response_s or policy.default_deadline_s,
            idle_s=policy.deadline.idle_s,
            total_s=policy.deadline.total_s or float("inf"),
        ),
        allowed=None if policy.versions is None else frozenset(policy.versions),
        split=None if policy.split is None else Split(policy.split),
        sequences=sequences,
        default_class=policy.default_class,
        never_routed=None if stages is None else stages.never_routed,
        measure=measure_of(policy),
        reserve_record=reserve_record if policy.records.mandatory else None,
    )


def build_stack(
    policies: PolicySet,
    *,
    transport: Service,
    fleet: SnapshotSource,
    authenticator: Authenticator,
    sinks: tuple[CallSink, ...],
    reserve_record: Callable[[], object],
    clock: Clock,
    wheel: TimerWheel,
    pick_chance: random.Random,
    split_chance: random.Random,
    limit_chance: random.Random,
    tuning: Tuning | None = None,
    quotas: Quotas | None = None,
    leases: Leases | None = None,
    cancels: Cancels | None = None,
) -> Stack:
    """Assemble all of it, from the inside out. `cancels` is what the clients of the replicas ask, too."""
    tuning = tuning or Tuning()
    cancels = cancels or Cancels(clock, tuning.cancels)
    fleet.subscribe(cancels.on_snapshot)
    seconds: dict[str, AttemptsLayer | Unsent] = {}
    commons = commons_of(policies)
    for each in commons.values():
        each.on_snapshot(fleet.snapshot)
        fleet.subscribe(each.on_snapshot)  # before admission, which asks what stands there
    admissions = {
        name: build_model_stack(
            policy,
            transport=transport,
            fleet=fleet,
            cancels=cancels,
            clock=clock,
            wheel=wheel,
            chance=pick_chance,
            limit_chance=limit_chance,
            tuning=tuning,
            seconds=seconds,
            bounds=bounds_of(policy, commons),
        )
        for name, policy in policies.models.items()
    }
    for each in commons.values():
        fleet.subscribe(each.after_snapshot)
    stages: dict[str, StagesLayer] = {}
    sequences: dict[str, SequenceLayer] = {}
    rows: dict[str, ModelRoute] = {}
    for name, policy in policies.models.items():
        service: Service = admissions[name]
        split = build_stages(policy, service, clock, wheel)
        if split is not None:
            service = stages[name] = split
        sequences[name] = build_sequences(policy, service, fleet=fleet, clock=clock)
        rows[name] = model_route(policy, service, sequences[name], split, reserve_record)
    table = RouteTable(policies.revision, rows)
    routes = CurrentRoutes(table)
    route = RouteLayer(routes, fleet, clock, split_chance)
    deadline = DeadlineLayer(route, clock, wheel, routes)
    quota = (
        None
        if quotas is None
        else QuotaLayer(deadline, quotas, clock, leases, by_model=policies.fleet.quotas.limits_models())
    )
    gate = GateLayer(deadline if quota is None else quota, authenticator, routes)
    record = RecordLayer(gate, clock, sinks)
    return Stack(
        service=record,
        routes=routes,
        admissions=admissions,
        sequences=sequences,
        stages=stages,
        attempts=seconds,
        commons=commons,
        quota=quota,
    )
