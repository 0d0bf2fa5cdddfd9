"""The few things that the gateway must know of a model's configuration: how the model may be called.

Read from the protobuf form, which is there for every model; Triton's HTTP cannot reach every name. The configuration
itself is not translated: it is fetched over both protocols, and each is served its own bytes. Field numbers are those
of `inference.ModelConfig` in Triton 2.51; the tests compare them with the classes of tritonclient.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.wire.kserve import protobuf as pb
from gateway.wire.kserve.datatypes import BY_CONFIG_NUMBER
from gateway.wire.kserve.metadata import TensorMetadata
from gateway.wire.kserve.response_view import broken
from gateway.wire.kserve.tensor_message import read_shape

_KIND_GPU = 1
_CONTROL_SEQUENCE_CORRID = 3
_TYPE_STRING = 13
_SEQUENCE_IDLE_S = 1.0
"""Triton's default."""
_ENSEMBLE_IDLE_S = 60.0
"""An ensemble's own configuration does not say whether its parts are stateful, nor how long they keep a sequence."""


@dataclass(frozen=True, slots=True)
class ModelConfigSummary:
    """What of a model's configuration decides how it may be called.

    `instances` is how many executions one replica runs at once: over all groups, per listed GPU, passive ones left out,
    at least 1 (an ensemble has no groups of its own). `batches`: Triton merges several calls into one execution.
    `inputs` lack the batch dimension, which exists where `max_batch_size` is at least 1; `optional_inputs` are those
    that may be missing in a request; `text_outputs` are those of datatype BYTES. `sequence`: calls belong to sequences;
    `corrid_is_text`: the model wants their ids as strings; `sequence_idle_s`: a sequence that is silent for longer is
    dropped, None for a model that has none (calls to an ensemble may belong to sequences of its parts).
    """

    max_batch_size: int = 0
    instances: int = 1
    batches: bool = False
    decoupled: bool = False
    sequence: bool = False
    corrid_is_text: bool = False
    sequence_idle_s: float | None = None
    inputs: tuple[TensorMetadata, ...] = ()
    optional_inputs: frozenset[str] = frozenset()
    text_outputs: frozenset[str] = frozenset()


def summarise_config(response: bytes) -> ModelConfigSummary:
    """The summary of a replica's `ModelConfigResponse`. Raises `GatewayError` (UPSTREAM_BROKEN)."""
    try:
        for number, wire, start, stop in pb.fields(response, 0, len(response)):
            if number == 1:
                pb.expect(wire, pb.LEN, 1, stop)
                return _summarise(response, start, stop)
    except pb.WireError as error:
        raise broken(f"model configuration: {error}") from None
    return ModelConfigSummary()


def _summarise(message: bytes, start: int, stop: int) -> ModelConfigSummary:
    batch = instances = 0
    batches = decoupled = sequence = corrid_is_text = False
    sequence_idle_s: float | None = None
    inputs: list[TensorMetadata] = []
    optional: set[str] = set()
    text_outputs: set[str] = set()
    for number, wire, a, b in pb.fields(message, start, stop):
        if number == 4 and wire == pb.VARINT:
            batch = max(0, pb.signed(a))
        elif wire != pb.LEN:
            continue
        elif number == 5:
            tensor, is_optional = _read_input(message, a, b)
            inputs.append(tensor)
            if is_optional:
                optional.add(tensor.name)
        elif number == 6:
            name, datatype = _read_output(message, a, b)
            if datatype == _TYPE_STRING:
                text_outputs.add(name)
        elif number == 7:
            instances += _count_instances(message, a, b)
        elif number == 11:
            batches = True
        elif number == 13:
            batches = sequence = True
            corrid_is_text = corrid_is_text or _has_text_corrid(message, a, b)
            sequence_idle_s = _sequence_idle_s(message, a, b)
        elif number == 15:
            sequence_idle_s = _ENSEMBLE_IDLE_S
        elif number == 19:
            decoupled = _is_decoupled(message, a, b)
    return ModelConfigSummary(
        max_batch_size=batch,
        instances=max(1, instances),
        batches=batches,
        decoupled=decoupled,
        sequence=sequence,
        corrid_is_text=corrid_is_text,
        sequence_idle_s=sequence_idle_s,
        inputs=tuple(inputs),
        optional_inputs=frozenset(optional),
        text_outputs=frozenset(text_outputs),
    )


def _is_decoupled(message: bytes, start: int, stop: int) -> bool:
    return any(number == 1 and wire == pb.VARINT and a != 0 for number, wire, a, _ in pb.fields(message, start, stop))


def _sequence_idle_s(batching: bytes, start: int, stop: int) -> float:
    """`max_sequence_idle_microseconds` of a `ModelSequenceBatching`; 0 stands for Triton's default."""
    microseconds = 0
    for number, wire, a, _ in pb.fields(batching, start, stop):
        if number == 1 and wire == pb.VARINT:
            microseconds = a
    return microseconds / 1e6 if microseconds else _SEQUENCE_IDLE_S


def _has_text_corrid(batching: bytes, start: int, stop: int) -> bool:
    """Whether a `ModelSequenceBatching` hands the correlation id to the model as a string."""
    for number, wire, a, b in pb.fields(batching, start, stop):
        if number != 2 or wire != pb.LEN:
            continue
        for inner, inner_wire, c, d in pb.fields(batching, a, b):
            if inner == 2 and inner_wire == pb.LEN and _is_text_corrid(batching, c, d):
                return True
    return False


def _is_text_corrid(control: bytes, start: int, stop: int) -> bool:
    kind = datatype = 0
    for number, wire, a, _ in pb.fields(control, start, stop):
        if number == 1 and wire == pb.VARINT:
            kind = a
        elif number == 4 and wire == pb.VARINT:
            datatype = a
    return kind == _CONTROL_SEQUENCE_CORRID and datatype == _TYPE_STRING


def _read_input(message: bytes, start: int, stop: int) -> tuple[TensorMetadata, bool]:
    name, datatype, optional = "", 0, False
    shape: list[int] = []
    for number, wire, a, b in pb.fields(message, start, stop):
        if number == 1 and wire == pb.LEN:
            name = pb.text(message, a, b)
        elif number == 2 and wire == pb.VARINT:
            datatype = a
        elif number == 4:
            read_shape(message, wire, a, b, shape, number)
        elif number == 8 and wire == pb.VARINT:
            optional = a != 0
    row = BY_CONFIG_NUMBER.get(datatype)
    return TensorMetadata(name, row.name if row is not None else f"type {datatype}", tuple(shape)), optional


def _read_output(message: bytes, start: int, stop: int) -> tuple[str, int]:
    """An output's name and the number of its datatype."""
    name, datatype = "", 0
    for number, wire, a, b in pb.fields(message, start, stop):
        if number == 1 and wire == pb.LEN:
            name = pb.text(message, a, b)
        elif number == 2 and wire == pb.VARINT:
            datatype = a
    return name, datatype


def _count_instances(message: bytes, start: int, stop: int) -> int:
    """`count` of one instance group; per listed GPU for a GPU group; 0 for a passive one, which takes no requests."""
    count, kind, gpus, passive = 1, 0, 0, False
    for number, wire, a, b in pb.fields(message, start, stop):
        if number == 2 and wire == pb.VARINT:
            count = max(0, pb.signed(a))
        elif number == 3:
            gpus += 1 if wire == pb.VARINT else pb.count_varints(message, a, b)
        elif number == 4 and wire == pb.VARINT:
            kind = a
        elif number == 7 and wire == pb.VARINT:
            passive = a != 0
    if passive:
        return 0
    return count * max(1, gpus) if kind == _KIND_GPU else count
