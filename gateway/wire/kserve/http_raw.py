"""Raw HTTP inference requests: the body is the bytes of the model's only input (binary tensor data extension)."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from gateway.wire.kserve import protobuf as pb
from gateway.wire.kserve.datatypes import BY_NAME
from gateway.wire.kserve.http_input import make_head
from gateway.wire.kserve.http_request import ALL_BINARY, HttpInferRequest
from gateway.wire.kserve.json_text import bad_request, quoted
from gateway.wire.kserve.metadata import TensorMetadata

_SIZE = struct.Struct("<I")


def decode_raw_infer(
    body: bytes | bytearray | memoryview, inputs: Sequence[TensorMetadata], max_batch_size: int
) -> HttpInferRequest:
    """The request for a raw body: all outputs, in binary form, batch 1 where the model batches.

    `inputs` are the model's from its configuration, without batch dimension. Raises `GatewayError` (BAD_REQUEST) if
    there is more than one, its shape has more than one variable dimension, or the bytes do not fill it.
    """
    if len(inputs) != 1:
        raise bad_request(
            f"a raw request is only possible for a model with one input, this one has {len(inputs)}: send JSON, or set "
            "Inference-Header-Content-Length to the length of the JSON part"
        )
    spec = inputs[0]
    row = BY_NAME.get(spec.datatype)
    variable = spec.shape.count(-1)
    if row is None or variable > 1:
        raise bad_request(
            f"a raw request is not possible for input {quoted(spec.name)}: its shape "
            f"{list(spec.shape)} cannot be told from the size of the body"
        )
    raw: bytes | memoryview = memoryview(body)
    fixed = 1
    for dim in spec.shape:
        fixed *= dim if dim >= 0 else 1
    if row.size:
        wanted = len(raw) // (row.size * fixed) if fixed else 0
    else:
        # A BYTES body is one element; its length prefix is added.
        raw = _SIZE.pack(len(raw)) + bytes(raw)
        wanted = 1
    shape = [wanted if dim < 0 else dim for dim in spec.shape]
    if max_batch_size > 0:
        shape.insert(0, 1)
    head = make_head(spec.name, spec.datatype, shape)
    if head.byte_size is not None and head.byte_size != len(raw):
        raise bad_request(
            f"the raw body has {len(raw)} bytes, which does not fill input {quoted(spec.name)} of shape "
            f"{list(spec.shape)} and datatype {spec.datatype}"
        )
    if head.byte_size is None and head.count != 1:
        raise bad_request(f"a raw BYTES request needs an input of one element, {quoted(spec.name)} has {head.count}")
    return HttpInferRequest(b"".join((head.field, b"\x3a", pb.varint(len(raw)), raw)), "", ALL_BINARY)
