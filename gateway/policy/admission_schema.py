"""The part of the schema that says how large a call may be, and how many run and wait. Belongs to `schema.py`, and to a
module of its own only for its length.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from gateway.policy.port_schema import MIB
from gateway.policy.size_schema import Lanes
from gateway.policy.strict import Strict


class Limits(Strict, frozen=True, kw_only=True):
    body_bytes_max: Annotated[
        int, Meta(ge=1, le=2**31 - 1, description="Largest request body, bytes; beyond it 413.")
    ] = 16 * MIB
    json_bytes_max: Annotated[
        int,
        Meta(
            ge=1,
            le=2**31 - 1,
            description="Largest JSON in a request over HTTP: the whole body where no tensor is binary. It is decoded "
            "on the loop that serves everybody, about 0.2 s per MiB at the worst.",
        ),
    ] = 2 * MIB
    batch_max: Annotated[
        Annotated[int, Meta(ge=1, le=2**31 - 1)] | None,
        Meta(
            description="Most rows (first dimension of an input) of a call; beyond it 413. Says nothing of models "
            "without batching (`max_batch_size` 0). Default: Triton's own limit."
        ),
    ] = None
    input_length_max: Annotated[
        Annotated[int, Meta(ge=1, le=2**53)] | None,
        Meta(
            description="Longest row of an input; beyond it 413. The length of a row is the product of the shape "
            "without the batch dimension (tokens of a prompt, samples of a sound); of BYTES the number of bytes. "
            "Default: none."
        ),
    ] = None
    input_length_of: Annotated[
        str, Meta(max_length=255, description="The input that `input_length_max` is about. Default: each of them.")
    ] = ""


class AdaptiveLimit(Strict, frozen=True, kw_only=True):
    adaptive: Annotated[
        bool,
        Meta(
            description="true: the slots of a version follow what its replicas can take, between floor and cap: fewer "
            "when calls time out or replicas refuse for load, more where more of them get more done. false: they stay "
            "as `slots_per_replica` says."
        ),
    ] = True
    floor_per_replica: Annotated[
        Annotated[int, Meta(ge=1, le=65_536)] | None,
        Meta(
            description="Slots of one replica below which the limit never falls. Default: instances x max_batch_size "
            "of the model's configuration, what fills the batches; at most `slots_per_replica`."
        ),
    ] = None
    cap_per_replica: Annotated[
        Annotated[int, Meta(ge=1, le=65_536)] | None,
        Meta(
            description="Slots of one replica above which the limit never rises. Default: `slots_per_replica` where "
            "that is given, and for decoupled models the slots that they start with; else eight times what fills the "
            "batches."
        ),
    ] = None


class Admission(Strict, frozen=True, kw_only=True):
    slots_per_replica: Annotated[
        Annotated[int, Meta(ge=1, le=65_536)] | None,
        Meta(
            description="Calls that one replica may have in flight for one version. Default: twice instances x "
            "max_batch_size of the model's configuration (one batch running, one filling). A stream holds its slot "
            "until it ends: for a decoupled model write how many streams its backend serves side by side, which Triton "
            "does not tell.",
        ),
    ] = None
    queue_max: Annotated[
        Annotated[int, Meta(ge=0, le=1_000_000)] | None,
        Meta(
            description="Calls that may wait for a slot, per version. Default: four times the slots of the pool, at "
            "least 64.",
        ),
    ] = None
    limit: Annotated[AdaptiveLimit, Meta(description="How the slots follow what the replicas can take.")] = (
        AdaptiveLimit()
    )
    lanes: Annotated[
        Lanes | None,
        Meta(description="Calls of much more work than most, kept apart from the others. Needs `work`. Default: none."),
    ] = None
