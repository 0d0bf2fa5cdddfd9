"""`generate` requests (one flat JSON object) to `ModelInferRequest` bytes.

Every member, at the top or inside `parameters`, goes by its name: an input of the model becomes a tensor, anything
else a request parameter. A member has no shape: it is made from the model's configuration and the number of elements.

The outcome is what Triton 2.51 makes of the same request, but for the rows of the table of deviations. One of them
begins here: Triton hands a member named like a reserved parameter (`timeout`, `sequence_id`, …) to the model as it is,
while a call that goes on over gRPC cannot carry it so; it means there what it means on `infer`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gateway.core.call import SequenceStep
from gateway.wire.kserve import protobuf as pb
from gateway.wire.kserve.datatypes import BY_NAME
from gateway.wire.kserve.http_input import encode_elements, head_of
from gateway.wire.kserve.http_request import typed_parameter
from gateway.wire.kserve.json_text import bad_request, load_object, quoted
from gateway.wire.kserve.metadata import TensorMetadata
from gateway.wire.kserve.model_config import ModelConfigSummary
from gateway.wire.kserve.parameters import MAX_PARAMETERS, entry_field
from gateway.wire.kserve.sequence import sequence_step_of_json

_NESTED = "parameters"
_SEQUENCE = frozenset({"sequence_id", "sequence_start", "sequence_end"})


@dataclass(slots=True)
class GenerateRequest:
    """A decoded request: `message` is a serialized `ModelInferRequest` without model name and version, `id` the
    protocol's own request id ("" if none), `sequence` the step of a sequence that it is.
    """

    message: bytes
    id: str
    sequence: SequenceStep | None = None


def decode_generate(body: bytes | bytearray | memoryview, config: ModelConfigSummary) -> GenerateRequest:
    """Decode a request to a model with `config`. Raises `GatewayError` (BAD_REQUEST)."""
    document = load_object(body if type(body) is bytes else memoryview(body))
    try:
        return _decode(document, config)
    except UnicodeEncodeError:
        # Only the standard library's parser lets an unpaired surrogate through.
        raise bad_request("a string of the request holds an unpaired surrogate, which is not Unicode text") from None


def tensor_shape(tensor: TensorMetadata, batches: bool, count: int) -> list[int] | None:
    """The shape for `count` elements: what is left when the fixed dimensions have divided the number is the innermost
    variable dimension, and other variable ones are 1. `batches` puts a variable dimension in front, so twice as many
    elements as a fixed shape takes are a batch of two. None if the elements do not fill any such shape.
    """
    shape = [-1, *tensor.shape] if batches else list(tensor.shape)
    left = count
    variable = -1
    for index, size in enumerate(shape):
        if size < 0:
            variable, shape[index] = index, 1
        elif size == 0 or left % size:
            return None
        else:
            left //= size
    if variable >= 0:
        shape[variable] = left
    elif left != 1:
        return None
    return shape


class _Encoder:
    """Collects what the members become. `raws` come behind everything else, in the order of the tensors."""

    __slots__ = ("batches", "given", "head", "inputs", "parameters", "raws", "sequence")

    def __init__(self, config: ModelConfigSummary) -> None:
        self.inputs = {tensor.name: tensor for tensor in config.inputs}
        self.batches = config.max_batch_size > 0
        self.given: set[str] = set()
        self.parameters = 0
        self.sequence: dict[str, Any] = {}
        self.head: list[bytes] = []
        self.raws: list[bytes] = []

    def member(self, name: str, value: Any) -> None:
        tensor = self.inputs.get(name)
        if tensor is None:
            self.parameters += 1
            if self.parameters > MAX_PARAMETERS:
                raise bad_request(f"the request has more than {MAX_PARAMETERS} members that are no inputs of the model")
            kind, checked = typed_parameter(name, value)
            self.head.append(entry_field(4, name, kind, checked))
            if name in _SEQUENCE:
                self.sequence[name] = checked
            return
        if name in self.given:
            raise bad_request(f"input {quoted(name)} is given twice")
        self.given.add(name)
        self._tensor(tensor, value if type(value) is list else [value])

    def _tensor(self, tensor: TensorMetadata, elements: list[Any]) -> None:
        row = BY_NAME.get(tensor.datatype)
        if row is not None and not row.json:
            raise bad_request(
                f"input {quoted(tensor.name)}: {tensor.datatype} cannot be sent as JSON; call infer with binary data"
            )
        # As Triton counts: the elements of the outer array, whatever stands in them.
        shape = tensor_shape(tensor, self.batches, len(elements))
        if shape is None:
            declared = [-1, *tensor.shape] if self.batches else list(tensor.shape)
            raise bad_request(
                f"input {quoted(tensor.name)}: {len(elements)} elements do not fill its shape {declared}; send one "
                "flat array in row-major order"
            )
        head = head_of(tensor.name, tensor.datatype, shape)
        raw = encode_elements(tensor.name, head, elements)
        self.head.append(head.field)
        self.raws += (b"\x3a", pb.varint(len(raw)), raw)


def _decode(document: dict[str, Any], config: ModelConfigSummary) -> GenerateRequest:
    request_id = document.get("id", "")
    if type(request_id) is not str:
        raise bad_request("'id' must be a string")
    encoder = _Encoder(config)
    if request_id:
        encoder.head.append(pb.text_field(3, request_id))
    for name, value in document.items():
        if name != _NESTED:
            encoder.member(name, value)
        elif _NESTED in encoder.inputs:
            raise bad_request(f"'{_NESTED}' is a keyword of generate and an input of this model as well; call infer")
        elif type(value) is not dict:
            raise bad_request(f"'{_NESTED}' must be an object")
        else:
            for inner, inner_value in value.items():
                encoder.member(inner, inner_value)
    message = b"".join((*encoder.head, *encoder.raws))
    return GenerateRequest(message, request_id, sequence_step_of_json(encoder.sequence))
