"""One call, or a few, through the whole gateway in virtual time: bytes in, bytes out, one machine that takes as long as
the test says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gateway.policy.schema import (
    Admission,
    Deadline,
    FleetPolicy,
    Limits,
    ModelPolicy,
    Objective,
    PolicySet,
    Pool,
    Replicas,
    Scrape,
    StaticReplica,
    Warmup,
)
from tests.simulation.batcher import ModelSpec
from tests.simulation.checks import violations
from tests.simulation.house import build
from tests.simulation.plans import CallPlan, SessionPlan
from tests.simulation.report import Ending, Report
from tests.simulation.run import House, World, run
from tests.simulation.scenario import BODY_BYTES_MAX, POOL, Scenario
from tests.simulation.streamer import StreamOrder

MACHINE = "10.0.0.1:8001"
MODEL, STREAMER = "timed", "timed-stream"
LOADED_S = 2.0
"""Calls may come from here on."""
ENTRANCES = ("objects", "http", "grpc")

SLOW = ModelSpec(MODEL, max_batch_size=8, s0_s=0.0, s1_s=0.1, noise=0.0, load_s=0.05)
"""Takes a tenth of a second for each row, one call after the other."""
STREAMS = ModelSpec(STREAMER, max_batch_size=1, instances=4, dynamic_batching=False, load_s=0.05, decoupled=True)


def played(
    calls: Sequence[CallPlan],
    *,
    entrance: str = "http",
    deadline: Deadline | None = None,
    slots: int = 1,
    sessions: Sequence[SessionPlan] = (),
    seed: int = 1,
    house: Callable[[World], House] = build,
) -> Report:
    """The report of a run in which these calls come, by one of `ENTRANCES`. Every check of the simulation holds."""
    deadline = deadline or Deadline(max_ms=30_000, idle_s=30.0)
    models = {spec.name: _policy(spec, deadline, slots if spec is SLOW else 4) for spec in (SLOW, STREAMS)}
    replica = StaticReplica(grpc=MACHINE, http=MACHINE[:-4] + "8000")
    pool = Pool(replicas=Replicas(static=(replica,)), scrape=Scrape(interval_ms=1000))
    last_s = max(plan.at_s for plan in calls) + 5.0
    scenario = Scenario(
        seed=seed,
        machines=(MACHINE,),
        listed=(MACHINE,),
        specs=(SLOW, STREAMS),
        policies=PolicySet(revision="0" * 12, base_dir="/sim", fleet=FleetPolicy(pools={POOL: pool}), models=models),
        calls=tuple(calls),
        events=(),
        calm_s=last_s,
        shutdown_s=None,
        lateness_s=0.0,
        latency_s=0.0001,
        as_bytes=entrance == "http",
        codecs=entrance == "grpc",
        sessions=tuple(sessions),
    )
    report = run(scenario, house)
    assert violations(report) == [], violations(report)[:5]
    return report


def one_ending(report: Report, number: int) -> Ending:
    (ending,) = report.endings[number]
    return ending


def took_s(report: Report, number: int) -> float:
    """From the call's first byte at the gateway to its answer there."""
    return one_ending(report, number).at_s - report.calls[number].arrived_s


def call(
    number: int, *, rows: int = 1, timeout_s: float | None = 0.6, after_s: float = 0.0, **more: object
) -> CallPlan:
    """One that takes `rows` tenths of a second on the machine."""
    plan = CallPlan(number, LOADED_S + after_s, "good", MODEL, rows=rows, timeout_s=timeout_s)
    return replace(plan, **more)  # type: ignore[arg-type]


def stream(number: int, order: StreamOrder, *, timeout_s: float | None, **more: object) -> CallPlan:
    plan = CallPlan(
        number, LOADED_S, "good", STREAMER, width=40, timeout_s=timeout_s, route="generate_stream", order=order
    )
    return replace(plan, **more)  # type: ignore[arg-type]


def _policy(spec: ModelSpec, deadline: Deadline, slots: int) -> ModelPolicy:
    return ModelPolicy(
        model=spec.name,
        pool=POOL,
        objective=Objective(p99_ms=100.0),
        ladder="none",
        impact="the caller sees an error",
        deadline=deadline,
        admission=Admission(slots_per_replica=slots),
        limits=Limits(body_bytes_max=BODY_BYTES_MAX),
        warmup=Warmup(calls=0),
    )
