"""From a seed, a whole scenario: fleet, models, policies, calls, faults. Pure data; nothing here runs.

Every choice is drawn from one generator in a fixed order, so a seed means the same scenario for as long as this file
is not changed. The time line, in virtual seconds: machines and gateway start at 0, so that the first calls meet a fleet
that is still loading; calls come until `calls_end_s`; every fault is over by `calm_s`; five seconds later come calls
that must all be answered; then the gateway shuts down.
"""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass, field

from msgspec.structs import replace

from gateway.policy.schema import (
    Admission,
    Affinity,
    Deadline,
    DnsReplicas,
    Ejection,
    FleetPolicy,
    Health,
    Limits,
    ModelPolicy,
    ModelRecords,
    Objective,
    PolicySet,
    Pool,
    RecordsPolicy,
    Replicas,
    Scrape,
    Stages,
    StaticReplica,
    Warmup,
)
from tests.simulation.batcher import ModelSpec
from tests.simulation.bounds import bound_tags, with_bounds
from tests.simulation.class_plans import ClassPlans
from tests.simulation.limit_checks import let_move
from tests.simulation.plans import KEY_PARAMETER, CallPlan, Event, SequencePlan, SessionPlan, with_key
from tests.simulation.quotas import quotas_policy
from tests.simulation.states import Lie, Metrics
from tests.simulation.stream_plans import StreamPlans, stream_policy, stream_specs

POOL = "main"
HOST = "fleet.sim"
RECOVERY_S = 5.0
"""After the last fault, good calls must be answered again within this time."""
AFTER_SHUTDOWN_S = 0.2
"""Clients go on asking for this long after the gateway was told to shut down."""
BODY_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that a run needs."""

    seed: int
    machines: tuple[str, ...]
    """Addresses, `host:port` of the gRPC port."""
    listed: tuple[str, ...]
    """Those of the machines that the gateway can find at the start."""
    specs: tuple[ModelSpec, ...]
    policies: PolicySet
    calls: tuple[CallPlan, ...]
    events: tuple[Event, ...]
    calm_s: float
    shutdown_s: float | None
    """The gateway is told to shut down at this time, in the middle of the calls; None: at the end."""
    lateness_s: float
    latency_s: float
    as_bytes: bool
    """The calls enter and leave as HTTP bytes over in-memory connections, where the house has an edge for that."""
    codecs: bool = False
    """Streams, and those calls that do not come over HTTP, enter as gRPC on HTTP/2, and all leave so: as bytes through
    the product's own codecs, where the house has them.
    """
    sessions: tuple[SessionPlan, ...] = ()
    """Streams of clients; their messages are `calls` too."""
    sequences: tuple[SequencePlan, ...] = ()
    drain_s: float = 5.0
    """How long streams may go on after the shutdown began; more than every limit of a call, or next to nothing."""
    tags: tuple[str, ...] = field(default=())
    """What is special about it, for the summary."""

    @property
    def detection_s(self) -> float:
        """After this long without a model or without answering, a replica must get no new call of it: a probe must have
        come round and failed as often as the policy says, each time after its whole timeout.
        """
        health = self.policies.fleet.pools[POOL].health
        tries = max(health.failures_to_down, health.failures_to_unready)
        return (health.interval_ms + tries * (health.timeout_ms + health.recheck_ms)) / 1000 + 0.1


def scenario(seed: int, calls: int | None = None) -> Scenario:
    """The scenario of `seed`; `calls` overrides how many single calls are planned, and scales what streams."""
    draw = random.Random(f"scenario/{seed}")
    streams = random.Random(f"streams/{seed}")
    machines = tuple(f"10.0.0.{number + 1}:8001" for number in range(draw.randint(1, 4)))
    dns = draw.random() < 0.4
    plain = tuple(_spec(draw, f"model-{letter}") for letter in "abc"[: draw.choice((1, 1, 2, 2, 3))])
    if seed % 5 == 2:  # not drawn, for the sake of the pinned seeds: none of them is such a one
        plain = tuple(dataclasses.replace(spec, straggler_share=0.15) for spec in plain)
    streaming = stream_specs(streams)
    specs = (*plain, *streaming)
    listed = machines[: draw.randint(1, len(machines))] if dns else machines
    loaded_s = sum(spec.load_s for spec in specs) + 0.3
    calls_end_s = loaded_s + 1.0 + draw.random() * 3.0
    events, calm_s, tags = _events(draw, machines, listed, plain, loaded_s, calls_end_s, dns)
    calm_s = max(calm_s, _stream_events(streams, machines, streaming, loaded_s, calls_end_s, events, tags))
    shutdown_s = loaded_s + draw.random() * (calls_end_s - loaded_s) if draw.random() < 0.15 else None
    classes = ClassPlans(seed)
    plans = _calls(draw, plain, calls if calls is not None else draw.randint(40, 170), loaded_s, calls_end_s)
    if classes.on:
        plans += classes.crowd(plain, len(plans), loaded_s, calls_end_s)
        tags.append("classes")
    if shutdown_s is None:
        plans += _recovery(draw, plain, len(plans), calm_s + RECOVERY_S)
    else:
        plans = [plan for plan in plans if plan.at_s < shutdown_s + AFTER_SHUTDOWN_S]
        tags.append("shutdown")
    tags += bound_tags(seed)
    if dns:
        tags.append("dns")
    as_bytes, codecs = seed % 2 == 1, seed % 4 in (1, 2)
    if codecs:
        tags.append("codecs")
    if seed % 7 < 2:
        tags.append("stages")
    come_until_s = calls_end_s if shutdown_s is None else min(calls_end_s, shutdown_s + AFTER_SHUTDOWN_S)
    drawn = StreamPlans(streams, specs, max((plan.number for plan in plans), default=-1) + 1, (loaded_s, come_until_s))
    drawn.draw_all(generate=as_bytes, share=1.0 if calls is None else min(1.0, calls / 100))
    if shutdown_s is None:
        # Behind the others: a policy may leave a model one slot and no queue.
        drawn.recovery(calm_s + RECOVERY_S + 2.2)
    policies = with_bounds(_policies(draw, seed, machines, plain, dns), plain, seed, POOL)
    if not policies.fleet.quotas.limits_nothing():
        tags.append("quotas")
    # Not drawn either: of the pinned seeds none is 0 or 1 modulo 7.
    if seed % 7 == 1:
        tags.append("affinity")
        plans = [with_key(plan) for plan in plans]
        keyed = Affinity(by="parameter", name=KEY_PARAMETER)
        policies.models.update((each.name, replace(policies.models[each.name], affinity=keyed)) for each in plain)
    elif seed % 7 == 0:
        tags.append("ejection")
        for machine in machines:  # all of them at once
            events.append(Event(loaded_s + 0.2, "lie", machine, (Lie.FAST_ERRORS,)))
            events.append(Event(loaded_s + 0.7, "lie", machine, (Lie.NONE,)))
        eager = Ejection(failures_in_row=2, pause_ms=100, pause_max_ms=400, slow_start_ms=500, enabled=seed % 3 != 0)
        policies.models.update((each.name, replace(policies.models[each.name], ejection=eager)) for each in plain)
    policies.models.update((each.name, stream_policy(streams, each, POOL, BODY_BYTES_MAX)) for each in streaming)
    made, sessions = (*plans, *drawn.calls), tuple(drawn.sessions)
    if classes.on:
        policies, made, sessions = classes.policies(policies), classes.wishes(made), classes.sessions(sessions)
    let_move(seed, policies)
    return Scenario(
        seed=seed,
        machines=machines,
        listed=listed,
        specs=specs,
        policies=policies,
        calls=made,
        events=tuple(sorted(events, key=lambda event: event.at_s)),
        calm_s=calm_s,
        shutdown_s=shutdown_s,
        lateness_s=draw.choice((0.0, 0.0, 0.0005, 0.003)),
        latency_s=draw.choice((0.0001, 0.0003, 0.002)),
        as_bytes=as_bytes,
        codecs=codecs,
        sessions=sessions,
        sequences=tuple(drawn.sequences),
        drain_s=streams.choice((5.0, 5.0, 0.02)),
        tags=tuple(tags),
    )


def _spec(draw: random.Random, name: str) -> ModelSpec:
    dynamic = draw.random() < 0.75
    return ModelSpec(
        name,
        versions=draw.choice((("1",), ("1", "2"), ("9", "10"))),
        max_batch_size=draw.choice((1, 2, 4, 8)),
        instances=draw.choice((1, 1, 2)),
        dynamic_batching=dynamic,
        max_queue_delay_s=draw.choice((0.0, 0.0, 0.002)),
        max_queue_size=draw.choice((0, 0, 4, 16)) if dynamic else 0,
        default_timeout_s=draw.choice((0.0, 0.2)) if dynamic else 0.0,
        allow_timeout_override=draw.random() < 0.5,
        s0_s=draw.choice((0.002, 0.005, 0.02)),
        s1_s=draw.choice((0.0, 0.0005, 0.002)),
        straggler_share=draw.choice((0.0, 0.0, 0.02)),
        load_s=draw.choice((0.05, 0.2, 0.6)),
    )


def _policies(
    draw: random.Random, seed: int, machines: tuple[str, ...], specs: tuple[ModelSpec, ...], dns: bool
) -> PolicySet:
    health = Health(
        interval_ms=draw.choice((250, 500, 1000, 1000)),
        timeout_ms=draw.choice((100, 250)),
        recheck_ms=draw.choice((50, 100, 250)),
        failures_to_down=draw.choice((1, 2)),
        failures_to_unready=draw.choice((1, 2)),
    )
    replicas = (
        Replicas(dns=DnsReplicas(host=HOST, refresh_s=0.5))
        if dns
        else Replicas(
            static=tuple(
                StaticReplica(grpc=machine, http=_port(machine, 8000), metrics=_port(machine, 8002))
                for machine in machines
            )
        )
    )
    pool = Pool(replicas=replicas, health=health, scrape=Scrape(interval_ms=draw.choice((500, 1000)), timeout_ms=200))
    models = {spec.name: _model_policy(draw, spec) for spec in specs}
    # Not drawn, so that the seeds that once found something still mean what they meant.
    for number, (name, policy) in enumerate(models.items()):
        models[name] = replace(policy, read_only=(seed + number) % 3 != 0)
        if seed % 7 < 2:
            models[name] = replace(models[name], deadline=replace(policy.deadline, stages=_stages(seed, number)))
    records = RecordsPolicy()
    if draw.random() < 0.1:
        records = RecordsPolicy(queue_records_max=draw.choice((2, 12)))
    fleet = FleetPolicy(pools={POOL: pool}, records=records, quotas=quotas_policy(seed, specs[0].name))
    return PolicySet(revision=f"{seed:012x}", base_dir="/sim", fleet=fleet, models=models)


def _stages(seed: int, number: int) -> Stages:
    """A split that now and then is too short for somebody."""
    draw = random.Random(f"stages/{seed}/{number}")
    return Stages(
        ingress_ms=draw.choice((None, 5.0, 20.0)),
        features_ms=draw.choice((None, None, 40.0)),
        inference_ms=draw.choice((10.0, 45.0, 200.0)),
        postprocessing_ms=draw.choice((None, 2.0, 20.0, 150.0)),
    )


def _model_policy(draw: random.Random, spec: ModelSpec) -> ModelPolicy:
    limited = draw.random() < 0.2
    split = None
    if draw.random() < 0.25:
        split = {version: draw.choice((1.0, 5.0, 94.0)) for version in spec.versions}
    return ModelPolicy(
        model=spec.name,
        pool=POOL,
        objective=Objective(p99_ms=draw.choice((20.0, 100.0, 500.0))),
        ladder="none",
        impact="the caller sees an error",
        deadline=Deadline(max_ms=3000),
        limits=Limits(body_bytes_max=BODY_BYTES_MAX),
        versions=spec.versions if limited else None,
        split=split,
        admission=Admission(
            slots_per_replica=draw.choice((None, 1, 2, 6)),
            queue_max=draw.choice((None, 0, 3, 20)),
        ),
        warmup=Warmup(calls=draw.choice((0, 1, 3)), timeout_ms=1000),
        records=ModelRecords(tensors=draw.choice(("none", "summary", "full")), mandatory=draw.random() < 0.2),
    )


def _calls(
    draw: random.Random, specs: tuple[ModelSpec, ...], count: int, loaded_s: float, end_s: float
) -> list[CallPlan]:
    """Bursts over a steady stream that begins while the fleet still loads; a tenth of the calls is odd in some way."""

    def instant_s() -> float:
        return draw.random() * loaded_s if draw.random() < 0.12 else loaded_s + draw.random() * (end_s - loaded_s)

    times = [instant_s() for _ in range(count)]
    for _ in range(draw.randint(0, 3)):
        burst_s, size = instant_s(), draw.randint(5, 40)
        for index in draw.sample(range(count), min(size, count)):
            times[index] = burst_s + draw.choice((0.0, 0.001 * draw.random()))
    plans = []
    for number, at_s in enumerate(sorted(times)):
        spec = draw.choice(specs)
        kind = draw.choices(("good", "no-model", "no-version", "too-many", "oversize"), (90, 3, 3, 2, 2))[0]
        plans.append(
            CallPlan(
                number=number,
                at_s=at_s,
                kind=kind,
                model="model-unheard-of" if kind == "no-model" else spec.name,
                version="77" if kind == "no-version" else draw.choice(("", "", "", *spec.versions)),
                rows=spec.max_batch_size + 1 if kind == "too-many" else draw.randint(1, min(2, spec.max_batch_size)),
                width=BODY_BYTES_MAX if kind == "oversize" else draw.choice((16, 16, 24)),
                timeout_s=draw.choice((None, None, 0.01, 0.05, 0.3, 1.0)),
                leaves_after_s=draw.random() * 0.08 if draw.random() < 0.08 else None,
                body_after_s=draw.random() * 0.05 if draw.random() < 0.1 else 0.0,
                queue_timeout_us=draw.choice((0, 0, 0, 1_000, 50_000)),
            )
        )
    return plans


def _recovery(draw: random.Random, specs: tuple[ModelSpec, ...], first: int, at_s: float) -> list[CallPlan]:
    """Spaced calls that nothing disturbs: further apart than the longest straggler lasts."""
    return [
        CallPlan(number=first + index, at_s=at_s + index * 0.5, kind="must", model=spec.name, timeout_s=3.0)
        for index, spec in enumerate(draw.choice(specs) for _ in range(4))
    ]


def _events(
    draw: random.Random,
    machines: tuple[str, ...],
    listed: tuple[str, ...],
    specs: tuple[ModelSpec, ...],
    loaded_s: float,
    end_s: float,
    dns: bool,
) -> tuple[list[Event], float, list[str]]:
    """Faults with their ends, each machine suffering one at a time, and changes of the fleet's size."""
    events: list[Event] = []
    tags: list[str] = []
    free_at_s = dict.fromkeys(machines, loaded_s)
    for _ in range(draw.choice((0, 1, 2, 3, 4))):
        machine = draw.choice(machines)
        at_s = free_at_s[machine] + draw.random()
        lasts_s = draw.choice((0.05, 0.3, 1.0))
        name = draw.choice(_WHOLE_MACHINE)
        model = draw.choice(specs).name
        for offset_s, what, arguments in _FAULTS[name](draw, model, lasts_s):
            events.append(Event(at_s + offset_s, what, machine, arguments))
        free_at_s[machine] = at_s + lasts_s + 0.2
        tags.append(name)
    if dns and len(machines) > 1:
        shown = list(listed)
        for at_s in sorted(draw.random() * end_s for _ in range(draw.randint(1, 3))):
            other = draw.choice(machines)
            shown = [machine for machine in shown if machine != other] if other in shown else [*shown, other]
            shown = shown or [other]
            events.append(Event(at_s, "list", "", tuple(shown)))
        tags.append("scale")
    calm_s = max([end_s, *(event.at_s for event in events)])
    return events, calm_s, tags


def _stream_events(
    draw: random.Random,
    machines: tuple[str, ...],
    specs: tuple[ModelSpec, ...],
    loaded_s: float,
    end_s: float,
    events: list[Event],
    tags: list[str],
) -> float:
    """Faults of the models that stream, and of the streams themselves; returns when the last one is over."""
    over_s = 0.0
    for _ in range(draw.choice((0, 0, 1, 2)) if specs else 0):
        name = draw.choice(("cut-streams", "unload", "rollout", "bad-rollout"))
        machine, model, lasts_s = draw.choice(machines), draw.choice(specs).name, draw.choice((0.05, 0.3, 1.0))
        at_s = loaded_s + draw.random() * (end_s - loaded_s)
        for offset_s, what, arguments in _FAULTS[name](draw, model, lasts_s):
            events.append(Event(at_s + offset_s, what, machine, arguments))
            over_s = max(over_s, at_s + offset_s)
        tags.append(name)
    return over_s


_Steps = list[tuple[float, str, tuple[object, ...]]]


def _crash(draw: random.Random, model: str, lasts_s: float) -> _Steps:
    return [(0.0, "crash", ()), (lasts_s, "start", ())]


def _stop(draw: random.Random, model: str, lasts_s: float) -> _Steps:
    return [(0.0, "stop", ()), (lasts_s, "crash", ()), (lasts_s + 0.01, "start", ())]


def _freeze(draw: random.Random, model: str, lasts_s: float) -> _Steps:
    return [(0.0, "freeze", ()), (lasts_s, "thaw", ())]


def _black_hole(draw: random.Random, model: str, lasts_s: float) -> _Steps:
    return [(0.0, "black_hole", ()), (lasts_s, "heal", ())]


def _vanish(draw: random.Random, model: str, lasts_s: float) -> _Steps:
    """The machine dies behind a black hole; another life comes back with the same address."""
    return [(0.0, "black_hole", ()), (0.0, "crash", ()), (lasts_s, "start", ()), (lasts_s, "heal", ())]


def _slow(draw: random.Random, model: str, lasts_s: float) -> _Steps:
    return [(0.0, "slow", (draw.choice((3.0, 30.0)),)), (lasts_s, "slow", (1.0,))]


def _lie(draw: random.Random, model: str, lasts_s: float) -> _Steps:
    lie = draw.choice((Lie.GONE, Lie.WRONG_VERSION, Lie.WRONG_MODEL, Lie.FAST_ERRORS, Lie.NOT_READY))
    return [(0.0, "lie", (lie,)), (lasts_s, "lie", (Lie.NONE,))]


def _metrics(draw: random.Random, model: str, lasts_s: float) -> _Steps:
    return [(0.0, "metrics", (draw.choice((Metrics.GONE, Metrics.GARBAGE)),)), (lasts_s, "metrics", (Metrics.GOOD,))]


def _unload(draw: random.Random, model: str, lasts_s: float) -> _Steps:
    return [(0.0, "unload", (model,)), (lasts_s, "reload", (model,))]


def _rollout(draw: random.Random, model: str, lasts_s: float) -> _Steps:
    """A new version that takes the old one's place, then the old ones again."""
    return [(0.0, "load", (model, "11", False, draw.random() < 0.5)), (lasts_s, "reload", (model,))]


def _bad_rollout(draw: random.Random, model: str, lasts_s: float) -> _Steps:
    return [(0.0, "load", (model, "11", True, True)), (lasts_s, "reload", (model,))]


def _cut_streams(draw: random.Random, model: str, lasts_s: float) -> _Steps:
    """Something on the way ends the streams that are open: in order, as if all had been said, or not."""
    return [(0.0, "cut_streams", (draw.random() < 0.5,))]


_FAULTS = {
    "crash": _crash,
    "stop": _stop,
    "freeze": _freeze,
    "black-hole": _black_hole,
    "vanish": _vanish,
    "slow": _slow,
    "lie": _lie,
    "metrics": _metrics,
    "unload": _unload,
    "rollout": _rollout,
    "bad-rollout": _bad_rollout,
    "cut-streams": _cut_streams,
}
_WHOLE_MACHINE = tuple(name for name in _FAULTS if name != "cut-streams")


def _port(address: str, port: int) -> str:
    return f"{address.rsplit(':', 1)[0]}:{port}"
