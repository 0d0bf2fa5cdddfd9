"""The schema of what decides between the replicas of a model: who is taken out, and which calls stay together."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from gateway.policy.strict import Strict


class Ejection(Strict, frozen=True, kw_only=True):
    """How a replica that fails, or is many times slower than the others, loses its calls for a while."""

    enabled: Annotated[
        bool,
        Meta(
            description="false: whatever its calls come to, a replica that is up gets calls. A slow one or one that "
            "fails is still asked less, and one that is down is not asked at all."
        ),
    ] = True
    share_max: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Share of the replicas that are up which may be out at one time, rounded down; never all of "
            "them. 0: none.",
        ),
    ] = 0.5
    panic_below: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="With a smaller share of the replicas in order all that are up get calls, those that are out "
            "too: the few good ones could not carry the load. 0: never.",
        ),
    ] = 0.5
    failures_in_row: Annotated[
        int, Meta(ge=1, le=1000, description="So many failed calls without a good one between them take a replica out.")
    ] = 5
    success_min: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="So does a lower share of good calls in the last ten seconds, of ten calls at least. 0: never.",
        ),
    ] = 0.8
    slow_factor: Annotated[
        float,
        Meta(
            ge=1,
            le=1_000_000,
            description="And so does it if more than half of its calls take more than this many times the median of "
            "the pool, and twice as many as on the others.",
        ),
    ] = 5.0
    pause_ms: Annotated[
        int,
        Meta(
            ge=10,
            le=3_600_000,
            description="How long it gets no calls the first time, less up to half by chance; doubled each time that "
            "it fails again. Then three single calls must go well.",
        ),
    ] = 1000
    pause_max_ms: Annotated[int, Meta(ge=10, le=3_600_000, description="What the doubling ends at.")] = 60_000
    slow_start_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=3_600_000,
            description="How long a replica that comes back takes to its full share, also one that was down. 0: at "
            "once.",
        ),
    ] = 10_000


class Affinity(Strict, frozen=True, kw_only=True):
    """Calls with the same key go to the same replica, as long as that one is not much busier than the others."""

    by: Annotated[
        Literal["header", "parameter", "sequence"],
        Meta(
            description="Where a call's key is: in a `header` (over gRPC: metadata), in a `parameter` of the request, "
            "or its sequence's id, for models whose sequences Triton knows nothing of. Calls without a key go where "
            "there is least to do."
        ),
    ]
    name: Annotated[
        str,
        Meta(
            max_length=256,
            description="Of the header, in lower case, or of the parameter. Not with `sequence`.",
        ),
    ] = ""
    load_factor: Annotated[
        float,
        Meta(
            ge=1,
            le=100,
            description="A replica that has this many times its share of the calls in flight gets no more for the sake "
            "of their key: they go to the next in the key's own order. 1: spread evenly; large: stay at any price.",
        ),
    ] = 1.25
