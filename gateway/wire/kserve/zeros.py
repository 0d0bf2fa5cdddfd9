"""A request of zeros: the least that a model can be called with when nobody has named a better one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gateway.wire.kserve import protobuf as pb
from gateway.wire.kserve.datatypes import BY_NAME
from gateway.wire.kserve.metadata import TensorMetadata
from gateway.wire.kserve.tensor_message import encode_tensor

BYTES_MAX = 16 * 1024 * 1024
"""What the tensors may take together."""


def zeros_request(inputs: Sequence[TensorMetadata], optional: frozenset[str] = frozenset()) -> bytes:
    """A ModelInferRequest without model name: each input that must be there, zeros, free dimensions 1, BYTES elements
    empty. Raises ValueError if a type is unknown or the tensors would take more than `BYTES_MAX`.
    """
    tensors: list[bytes] = []
    raw: list[bytes] = []
    total = 0
    for each in [each for each in inputs if each.name not in optional] or inputs:
        row = BY_NAME.get(each.datatype)
        if row is None:
            raise ValueError(f"input {each.name!r} has the unknown type {each.datatype!r}")
        shape = tuple(size if size >= 0 else 1 for size in each.shape)
        # An empty string is its length prefix alone: four zero bytes.
        size = math.prod(shape) * (row.size or 4)
        total += size
        if total > BYTES_MAX:
            raise ValueError(f"zeros for all inputs would take more than {BYTES_MAX} bytes")
        tensors.append(pb.len_field(5, encode_tensor(each.name, each.datatype, shape)))
        raw.append(pb.len_field(7, bytes(size)))
    return b"".join((*tensors, *raw))
