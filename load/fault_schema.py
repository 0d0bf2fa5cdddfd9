"""The part of the schema of scenarios that is about faults, and about what the checks of such a run need."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from gateway.policy.strict import Strict

REPLICAS_MAX = 16
Offset = Annotated[float, Meta(ge=0, le=86_400)]
Replica = Annotated[int, Meta(ge=0, lt=REPLICAS_MAX)]
At = Annotated[
    Offset, Meta(description="When it begins, seconds from the start of what is measured (the warm-up comes before).")
]
Which = Annotated[Replica | None, Meta(description="Which replica, from 0. Exactly one of `replica` and `all`.")]
All = Annotated[bool, Meta(description="true: all replicas at once.")]
Length = Annotated[float, Meta(ge=0.1, le=86_400, description="How long it lasts.")]
Factor = Annotated[float, Meta(gt=1, le=10_000, description="So many times slower.")]
OpenEnd = Annotated[
    Annotated[float, Meta(ge=0.1, le=86_400)] | None, Meta(description="How long it lasts. Default: to the end.")
]
FromStart = Annotated[
    Offset,
    Meta(description="When it begins, seconds from the start of what is measured; 0: already before the warm-up."),
]


class KillFault(Strict, frozen=True, kw_only=True):
    at_s: At
    replica: Which = None
    all: All = False
    restart_after_s: Annotated[
        Annotated[float, Meta(ge=0.1, le=86_400)] | None,
        Meta(description="So long after the kill it is started again. Default: never."),
    ] = None


class FreezeFault(Strict, frozen=True, kw_only=True):
    at_s: At
    for_s: Length
    replica: Which = None
    all: All = False


class BlackholeFault(Strict, frozen=True, kw_only=True):
    at_s: At
    for_s: Length
    replica: Which = None
    all: All = False


class SlowFault(Strict, frozen=True, kw_only=True):
    factor: Factor
    at_s: FromStart = 0.0
    for_s: OpenEnd = None
    replica: Which = None
    all: All = False


class StragglersFault(Strict, frozen=True, kw_only=True):
    share: Annotated[float, Meta(gt=0, le=1, description="Of this share of the executions each is slower.")]
    factor: Factor
    at_s: FromStart = 0.0
    for_s: OpenEnd = None
    replica: Which = None
    all: All = False


class FaultSpec(Strict, frozen=True, kw_only=True):
    kill: Annotated[
        KillFault | None, Meta(description="SIGKILL of the whole process group: connections are reset, ports closed.")
    ] = None
    freeze: Annotated[
        FreezeFault | None,
        Meta(description="SIGSTOP of the whole process group, then SIGCONT: connections stay, nothing answers."),
    ] = None
    blackhole: Annotated[
        BlackholeFault | None,
        Meta(
            description="Packets to and from the replica vanish without a reset, on the ports of gRPC, HTTP and "
            "metrics: a forwarder stands before it, whose sockets the kernel filters."
        ),
    ] = None
    slow: Annotated[SlowFault | None, Meta(description="Executions of `accel` take so many times longer.")] = None
    stragglers: Annotated[
        StragglersFault | None, Meta(description="Some executions of `accel`, by chance, take so many times longer.")
    ] = None


FAULT_KINDS: tuple[str, ...] = FaultSpec.__struct_fields__
Fault = KillFault | FreezeFault | BlackholeFault | SlowFault | StragglersFault


def fault_of(spec: FaultSpec) -> tuple[str, Fault]:
    """The kind and the fault of an entry that the loader has found good."""
    return next((kind, fault) for kind in FAULT_KINDS if (fault := getattr(spec, kind)) is not None)


def end_s(fault: Fault) -> float | None:
    """When the fault is meant to end; None if it does not before the run."""
    length = fault.restart_after_s if isinstance(fault, KillFault) else fault.for_s
    return None if length is None else fault.at_s + length


class Window(Strict, frozen=True, kw_only=True):
    from_s: Annotated[Offset, Meta(description="From the start of what is measured.")] = 0.0
    to_s: Annotated[
        Annotated[float, Meta(gt=0, le=86_400)] | None, Meta(description="Up to here. Default: to the end.")
    ] = None


class Recovery(Strict, frozen=True, kw_only=True):
    after_s: Annotated[
        Offset | None,
        Meta(description="From when on it counts. Exactly one of `after_s` and `after_fault`."),
    ] = None
    after_fault: Annotated[
        Annotated[int, Meta(ge=0, le=1000)] | None,
        Meta(
            description="The fault, from 0, from whose real end on it counts: replicas go on, or are ready again after "
            "a restart."
        ),
    ] = None
    p99_ms: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="What the p99 of each second has to stay under. Exactly one of `p99_ms` and `times`."),
    ] = None
    times: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="The same, as so many times the highest p99 of the seconds before `before_s`."),
    ] = None
    before_s: Annotated[Offset | None, Meta(description="With `times`: up to when all was well.")] = None


class Capacity(Strict, frozen=True, kw_only=True):
    rps: Annotated[
        float, Meta(gt=0, le=1_000_000, description="Right answers per second that the target can give at most.")
    ]
    callers: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=1000)], ...] | None,
        Meta(
            description="Measure it instead, with closed loops of so many callers one after the other (the first "
            "traffic's calls); the best one counts, and all rates of the file, which are then meant for `rps`, change "
            "in proportion. Default: not measured."
        ),
    ] = None
    each_s: Annotated[float, Meta(ge=0.2, le=60, description="How long each of these loops is measured.")] = 3.0
