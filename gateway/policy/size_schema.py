"""The part of the schema that tells calls apart by size: how work is measured, lanes, memory. Belongs to `schema.py`,
and to a module of its own only for its length.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from gateway.policy.strict import Strict

LANE_NAME = r"^[a-z][a-z0-9-]{0,30}$"
INPUT_MAX = 255
LANES_MAX = 4
BYTES_MAX = 1 << 50


class Work(Strict, frozen=True, kw_only=True):
    by: Annotated[
        Literal["batch", "elements", "bytes", "parameter", "value"],
        Meta(
            description="What is measured: `batch`, the rows of an input; `elements`, all numbers or texts of its "
            "shape; `bytes`, of its data as it goes to the replica; `parameter`, a number among the request's "
            "parameters; `value`, the sum of an input's numbers. The last two are the caller's word: a caller that "
            "says too little is served before its turn."
        ),
    ]
    input: Annotated[
        str,
        Meta(
            max_length=INPUT_MAX,
            description="Of which input. Default: the first for `batch`, all together for `elements` and `bytes`; "
            "`value` needs it.",
        ),
    ] = ""
    parameter: Annotated[
        str, Meta(max_length=INPUT_MAX, description="Name of the parameter, for `by: parameter` alone.")
    ] = ""
    unit: Annotated[
        float,
        Meta(
            gt=0,
            le=1e15,
            description="So much of it, up to 5 % more or less, is one unit of work: that of a usual call.",
        ),
    ] = 1.0
    default: Annotated[
        float, Meta(ge=0.01, le=1e9, description="Units of a call that does not tell, or tells less than nothing.")
    ] = 1.0
    max: Annotated[float, Meta(ge=0.01, le=1e9, description="No call counts as more units.")] = 1_000_000.0


class Lane(Strict, frozen=True, kw_only=True):
    name: Annotated[
        str,
        Meta(pattern=LANE_NAME, description="As records and figures call it; `small` is that of all smaller calls."),
    ]
    work_above: Annotated[
        float, Meta(gt=0, le=1e9, description="Calls of more units of work than this, up to the next lane's, use it.")
    ]
    share: Annotated[
        float,
        Meta(
            gt=0,
            le=0.5,
            description="Of the replicas (`apart: slots`: of the slots), at least one; and of `queue_max`.",
        ),
    ] = 0.1


class Lanes(Strict, frozen=True, kw_only=True):
    larger: Annotated[
        tuple[Lane, ...],
        Meta(min_length=1, max_length=LANES_MAX, description="The lanes beside the first, by rising `work_above`."),
    ]
    apart: Annotated[
        Literal["replica", "slots"],
        Meta(
            description="`replica`: a replica runs calls of one lane at a time, so that they never share a batch. "
            "`slots`: only the number of slots is bounded. Steps of sequences belong to no lane."
        ),
    ] = "replica"
    large_per_replica: Annotated[
        int,
        Meta(
            ge=1,
            le=65_536,
            description="`apart: replica`: calls of a lane beside the first on one replica; with more than one they "
            "may share a batch with each other.",
        ),
    ] = 1


class ModelMemory(Strict, frozen=True, kw_only=True):
    fixed_bytes: Annotated[
        int,
        Meta(ge=0, le=BYTES_MAX, description="On each replica that has the model, calls or not; per loaded version."),
    ] = 0
    bytes_per_unit: Annotated[
        float, Meta(ge=0, le=BYTES_MAX, description="For each unit of work in flight (see `work`).")
    ] = 0.0
