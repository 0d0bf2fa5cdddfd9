"""How a model may be called, out of its configuration's protobuf form, and a request of zeros for it.

The protobuf form is there for every model; the JSON form is not (`grpcio_client.model_config`). Field numbers are
those of `inference.ModelConfig` in Triton 2.51; the tests compare them with the classes of tritonclient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gateway.wire.kserve import protobuf as pb
from gateway.wire.kserve.datatypes import BY_NAME
from gateway.wire.kserve.metadata import TensorMetadata

ZEROS_BYTES_MAX = 16 * 1024 * 1024
_KIND_GPU = 1


@dataclass(frozen=True, slots=True)
class ConfigSummary:
    """What of a model's configuration decides how it may be called. `instances` counts those that take requests;
    `optional_inputs` may be missing in a request. `batches`: Triton merges several calls into one execution.
    """

    max_batch_size: int = 0
    instances: int = 1
    batches: bool = False
    decoupled: bool = False
    sequence: bool = False
    ensemble: bool = False
    optional_inputs: frozenset[str] = frozenset()


def read_config(response: bytes) -> ConfigSummary:
    """The summary of a serialized `ModelConfigResponse`. Raises `WireError`."""
    for number, wire, start, stop in pb.fields(response, 0, len(response)):
        if number == 1:
            pb.expect(wire, pb.LEN, 1, start)
            return _read_config(response, start, stop)
    return ConfigSummary()


def _read_config(message: bytes, start: int, stop: int) -> ConfigSummary:
    batch = instances = 0
    batches = decoupled = sequence = ensemble = False
    optional: set[str] = set()
    for number, wire, a, b in pb.fields(message, start, stop):
        if number == 4 and wire == pb.VARINT:
            batch = max(0, pb.signed(a))
        elif wire != pb.LEN:
            continue
        elif number == 5:
            name, is_optional = _read_input(message, a, b)
            if is_optional:
                optional.add(name)
        elif number == 7:
            instances += _count_instances(message, a, b)
        elif number == 11:
            batches = True
        elif number == 13:
            batches = sequence = True
        elif number == 15:
            ensemble = True
        elif number == 19:
            decoupled = _is_decoupled(message, a, b)
    return ConfigSummary(batch, max(1, instances), batches, decoupled, sequence, ensemble, frozenset(optional))


def _is_decoupled(message: bytes, start: int, stop: int) -> bool:
    return any(number == 1 and wire == pb.VARINT and a != 0 for number, wire, a, _ in pb.fields(message, start, stop))


def _read_input(message: bytes, start: int, stop: int) -> tuple[str, bool]:
    name, optional = "", False
    for number, wire, a, b in pb.fields(message, start, stop):
        if number == 1 and wire == pb.LEN:
            name = pb.text(message, a, b)
        elif number == 8 and wire == pb.VARINT:
            optional = a != 0
    return name, optional


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


def zeros_request(
    inputs: tuple[TensorMetadata, ...], config: ConfigSummary, bytes_max: int = 16 * 1024 * 1024
) -> bytes:
    """A ModelInferRequest without model name: each input that must be there, zeros, free dimensions 1, BYTES elements
    empty. Raises ValueError if a type is unknown or the tensors would take more than `bytes_max`.
    """
    wanted = [each for each in inputs if each.name not in config.optional_inputs] or list(inputs)
    tensors: list[bytes] = []
    raw: list[bytes] = []
    total = 0
    for each in wanted:
        row = BY_NAME.get(each.datatype)
        if row is None:
            raise ValueError(f"input {each.name!r} has the unknown type {each.datatype!r}")
        shape = tuple(size if size >= 0 else 1 for size in each.shape)
        # An empty string is its length prefix alone: four zero bytes.
        size = math.prod(shape) * (row.size or 4)
        total += size
        if total > bytes_max:
            raise ValueError(f"zeros for all inputs would take more than {bytes_max} bytes")
        packed = b"".join(pb.varint(dimension) for dimension in shape)
        tensors.append(
            pb.len_field(5, pb.text_field(1, each.name) + pb.text_field(2, each.datatype) + pb.len_field(3, packed))
        )
        raw.append(pb.len_field(7, bytes(size)))
    return b"".join((*tensors, *raw))
