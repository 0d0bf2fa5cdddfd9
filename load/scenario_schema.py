"""The schema of scenarios: every key, its unit, its range, its default and its meaning, in one place.

`scenario.py` decodes files strictly into these structs, and `docs/load.md` is rendered from them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from gateway.core.criticality import ClassName
from gateway.policy.schema import ModelName
from gateway.policy.strict import Strict
from gateway.policy.words import name_pattern
from load.fault_schema import REPLICAS_MAX, Capacity, FaultSpec, Recovery, Window

NAME = name_pattern(
    r"^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$",
    "a name of lower-case letters, digits and inner dashes",
    "use lower-case letters, digits and inner dashes, at most 32 characters",
)
Name = Annotated[str, Meta(pattern=NAME)]
FIGURE = name_pattern(
    r"^[a-z0-9-]+(\.[a-z0-9_]+)?$|^[a-z0-9_]+$", "a figure's name", "write as in `p99_ms`, or `reads.p99_ms`"
)
DEADLINE_MS_MAX = 600_000
Rps = Annotated[float, Meta(ge=0, le=1_000_000)]


class ConstantArrivals(Strict, frozen=True, kw_only=True):
    rps: Annotated[Rps, Meta(description="Calls per second, evenly spaced.")]


class PoissonArrivals(Strict, frozen=True, kw_only=True):
    rps: Annotated[Rps, Meta(description="Calls per second on average, each independent of the others.")]


class BurstArrivals(Strict, frozen=True, kw_only=True):
    base_rps: Annotated[Rps, Meta(description="Calls per second between bursts.")]
    burst_rps: Annotated[Rps, Meta(description="Calls per second within a burst (in all, not on top).")]
    burst_s: Annotated[float, Meta(ge=0.01, le=86_400, description="How long a burst lasts.")]
    every_s: Annotated[float, Meta(ge=0.01, le=86_400, description="From the start of one burst to that of the next.")]
    first_s: Annotated[float, Meta(ge=0, le=86_400, description="When the first burst begins.")] = 1.0
    spacing: Annotated[
        Literal["random", "even"], Meta(description="Whether calls are independent or evenly spaced.")
    ] = "random"


class StepRate(Strict, frozen=True, kw_only=True):
    start_s: Annotated[float, Meta(ge=0, le=86_400, description="From when on; the first step begins at 0.")]
    rps: Annotated[Rps, Meta(description="Calls per second until the next step.")]


class StepArrivals(Strict, frozen=True, kw_only=True):
    steps: Annotated[tuple[StepRate, ...], Meta(min_length=1, description="The rates, in order of time.")]
    spacing: Annotated[
        Literal["random", "even"], Meta(description="Whether calls are independent or evenly spaced.")
    ] = "random"


class TraceArrivals(Strict, frozen=True, kw_only=True):
    file: Annotated[
        str,
        Meta(
            min_length=1,
            description="CSV with a head line, or JSON lines (`.jsonl`), relative to the scenario. Columns: "
            "`offset_s`, seconds from the start; optional: `traffic`, the name of the traffic that the row belongs to "
            "(otherwise it belongs to every traffic that names the file); `row`, the row of inputs that the call has "
            "(otherwise the next).",
        ),
    ]


class ArrivalsSpec(Strict, frozen=True, kw_only=True):
    constant: Annotated[ConstantArrivals | None, Meta(description="An even stream.")] = None
    poisson: Annotated[PoissonArrivals | None, Meta(description="Many independent users.")] = None
    burst: Annotated[BurstArrivals | None, Meta(description="A base rate with bursts at intervals.")] = None
    step: Annotated[StepArrivals | None, Meta(description="Rates that change at given times.")] = None
    trace: Annotated[TraceArrivals | None, Meta(description="Times from a file.")] = None


class TrafficSpec(Strict, frozen=True, kw_only=True):
    name: Annotated[Name, Meta(description="How its figures are named; distinct within the scenario, and not `all`.")]
    model: Annotated[
        Literal["identity", "accel", "streamer"],
        Meta(
            description="`identity` gives back twelve values; `accel` does so with its work and takes as long as that "
            "says; `streamer` answers with several responses, over ModelStreamInfer or generate_stream."
        ),
    ]
    arrivals: Annotated[ArrivalsSpec, Meta(description="When calls are meant to be sent: exactly one kind.")]
    protocol: Annotated[Literal["http", "grpc"], Meta(description="What the callers speak.")] = "http"
    body: Annotated[
        Literal["json", "binary"], Meta(description="HTTP only: tensors as JSON, or by the binary extension.")
    ] = "json"
    connections: Annotated[
        int,
        Meta(
            ge=1,
            le=1000,
            description="gRPC only: connections that the calls share. Over HTTP each call in flight has one of its "
            "own, kept for the next.",
        ),
    ] = 4
    deadline_ms: Annotated[
        int, Meta(ge=1, le=DEADLINE_MS_MAX, description="Sent with each call; counts from the intended send time.")
    ] = 1000
    priority: Annotated[
        ClassName | None,
        Meta(
            description="The class of its calls, sent as `x-sluice-priority`. A gateway that is started for the run "
            "lets everybody have every class; Triton itself (`--target direct`) overlooks it. Default: not sent."
        ),
    ] = None
    fan_out: Annotated[
        int,
        Meta(
            ge=1,
            le=1000,
            description="Calls that are sent at once at each arrival: a task, which is done with the last of them, "
            "and fails with one of them. Rates, latencies and counts are of tasks then, `leaf_p99_ms` is of its calls; "
            "what gateway and replicas tell is of calls.",
        ),
    ] = 1
    work: Annotated[float, Meta(gt=0, le=100_000, description="`accel` only: work per call, in the model's units.")] = (
        1.0
    )
    responses: Annotated[int, Meta(ge=1, le=1000, description="`streamer` only: responses per call.")] = 6
    response_gap_ms: Annotated[
        float, Meta(ge=0, le=60_000, description="`streamer` only: how long the model waits before each response.")
    ] = 0.0
    distinct_inputs: Annotated[
        int,
        Meta(ge=1, le=1 << 40, description="After so many calls the inputs begin anew. `accel` has 16,384 at most."),
    ] = 1_000_000
    check_share: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Of this share of the answers every value is compared; 1: of all. Of streams all responses are "
            "counted.",
        ),
    ] = 1.0


class PolicyOverride(Strict, frozen=True, kw_only=True):
    """Whatever a model's policy may say; checked by the gateway's own schema, see `scenario.py`."""


class TargetModel(Strict, frozen=True, kw_only=True):
    policy: Annotated[
        PolicyOverride,
        Meta(
            description="Keys of the model's policy (docs/policies.md) that differ from the lab's, which is: `ladder: "
            "none`, and the longest `deadline_ms` of its traffic as default and maximum."
        ),
    ] = PolicyOverride()


class Target(Strict, frozen=True, kw_only=True):
    replicas: Annotated[int, Meta(ge=1, le=REPLICAS_MAX, description="Tritons behind the gateway.")] = 1
    models: Annotated[
        dict[ModelName, TargetModel] | None,
        Meta(description="Models that are loaded beside those of the traffic, and what their policies say."),
    ] = None
    server_environment: Annotated[
        dict[str, str] | None,
        Meta(description="Variables of the Tritons' environment, as `SLUICE_ACCEL_S0_MS` for the model `accel`."),
    ] = None


class CheckSpec(Strict, frozen=True, kw_only=True):
    figure: Annotated[
        str,
        Meta(
            pattern=FIGURE,
            description="A figure of the run, `<traffic>.<figure>` for one kind of traffic alone, or "
            "`replica-<index>.<figure>` for one replica.",
        ),
    ]
    name: Annotated[
        Annotated[str, Meta(min_length=1, max_length=200)] | None,
        Meta(description="What it promises, in words. Default: from the rest."),
    ] = None
    max: Annotated[float | None, Meta(description="The figure is at most this. Exactly one of `max` and `min`.")] = None
    min: Annotated[float | None, Meta(description="The figure is at least this.")] = None
    window: Annotated[
        Window | None, Meta(description="Only calls that were meant to be sent in this time, and what began in it.")
    ] = None
    times_baseline: Annotated[
        bool, Meta(description="true: the limit is for the figure divided by that of the `baseline`.")
    ] = False
    recovery: Annotated[Recovery | None, Meta(description="For the figure `recovery_s` alone, which needs it.")] = None


class Baseline(Strict, frozen=True, kw_only=True):
    """The same run, done before the one that is judged, with what stands here different."""

    without_faults: Annotated[bool, Meta(description="true: no fault is made.")] = False
    without_traffic: Annotated[tuple[Name, ...], Meta(description="Kinds of traffic that are left out, by name.")] = ()
    models: Annotated[
        dict[ModelName, TargetModel] | None,
        Meta(description="What policies of models say differently, on top of `target.models`."),
    ] = None


class Scenario(Strict, frozen=True, kw_only=True):
    description: Annotated[str, Meta(min_length=1, max_length=1000, description="What it is for, for `--list`.")]
    traffic: Annotated[tuple[TrafficSpec, ...], Meta(min_length=1, description="The kinds of calls, side by side.")]
    duration_s: Annotated[float, Meta(gt=0, le=86_400, description="How long calls are sent and counted.")]
    target: Annotated[Target, Meta(description="What is started for it.")] = Target()
    warm_up_s: Annotated[
        float,
        Meta(
            ge=0,
            le=3600,
            description="Before that, calls at each traffic's first rate (a trace's mean rate) are sent and not "
            "counted.",
        ),
    ] = 2.0
    in_flight_max: Annotated[
        int,
        Meta(
            ge=1,
            le=100_000,
            description="Calls out at a time, of all traffic. Those beyond it wait for their turn or their deadline "
            "and are counted as `held` and `not_sent`: set it so high that only a stalled target reaches it.",
        ),
    ] = 1024
    faults: Annotated[
        tuple[FaultSpec, ...],
        Meta(description="What goes wrong, and when: each entry has exactly one kind. For `load chaos` only."),
    ] = ()
    baseline: Annotated[
        Baseline | None,
        Meta(description="A run before, for checks with `times_baseline`. For `load chaos` only. Default: none."),
    ] = None
    capacity: Annotated[
        Capacity | None,
        Meta(description="For `goodput_share`. For `load chaos` only. Default: unknown, and so is that figure."),
    ] = None
    seed: Annotated[int, Meta(ge=0, le=2**32 - 1, description="Of all chance in the arrivals.")] = 1
    checks: Annotated[tuple[CheckSpec, ...], Meta(description="What has to hold for the verdict `pass`.")] = ()
