"""What the gateway reads of a `ModelInferRequest` before it routes it."""

from __future__ import annotations

from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason
from gateway.wire.kserve import protobuf as pb
from gateway.wire.kserve.json_text import quoted
from gateway.wire.kserve.parameters import NO_PARAMETERS, Parameter, read_entry, with_entry

MAX_TENSORS = 4096
_MAX_TENSOR_FIELDS = 128

_SHARED_MEMORY = "shared_memory_region"
_SHARED_MEMORY_BYTES = _SHARED_MEMORY.encode()
_CLASSIFICATION = "classification"
_CLASSIFICATION_BYTES = _CLASSIFICATION.encode()
_PARAMETERS_OF = {5: 4, 6: 2}
"""Fields of the request that hold inputs and requested outputs, to the field of their parameters."""
_TENSORS = {5: "input", 6: "output"}


class RequestHead:
    """What routing needs. Of a field given more than once the last one counts, as protobuf has it."""

    __slots__ = ("classified", "id", "model_name", "model_version", "parameters", "shared_memory")

    def __init__(
        self,
        model_name: str,
        model_version: str,
        id: str,
        parameters: dict[str, Parameter],
        shared_memory: str,
        classified: tuple[str, ...] = (),
    ) -> None:
        self.classified = classified
        """Names of the requested outputs that are wanted as classes."""
        self.shared_memory = shared_memory
        """The first input or requested output that refers to a shared-memory region, for `shared_memory_refused`; ""
        if none does.
        """
        self.model_name = model_name
        self.model_version = model_version
        self.id = id
        self.parameters = parameters


def unparseable(what: str, error: pb.WireError) -> GatewayError:
    """The error for bytes that are no message: the caller's fault, with the code that Triton gives (INTERNAL)."""
    return GatewayError(
        Reason.BAD_REQUEST, f"unable to parse {what}: {error}; send a serialized inference.{what}", Code.INTERNAL
    )


def read_head(message: bytes) -> RequestHead:
    """The head of a serialized `ModelInferRequest`. Walks the top-level fields only: tensors are skipped by length.

    Raises `GatewayError` (BAD_REQUEST, code INTERNAL) if the bytes are no such message.
    """
    try:
        return _read_head(message)
    except pb.WireError as error:
        raise unparseable("ModelInferRequest", error) from None


def _read_head(message: bytes) -> RequestHead:
    name = version = request_id = b""
    parameters = NO_PARAMETERS
    suspicious = classes = False
    pos = 0
    end = len(message)
    for _ in range(pb.MAX_FIELDS):
        if pos >= end:
            break
        tag = message[pos]
        if tag & 0x87 != 0x02 or tag < 0x0A or tag > 0x3A:
            # Not one of fields 1 to 7 with a length: skipped if unknown, refused if known under another type.
            number, wire, _, after = pb.field_at(message, pos, end)
            if 1 <= number <= 7:
                pb.expect(wire, pb.LEN, number, after)
                raise pb.WireError("overlong tag", pos)
            pos = after
            continue
        at = pos
        pos += 1
        if pos < end and (size := message[pos]) < 0x80:
            start = pos + 1
            pos = start + size
            if pos > end:
                raise pb.WireError(f"field of {size} bytes runs past the end of its message", at)
        else:
            start, pos = pb.read_length(message, pos, end)
        if tag > 0x22:
            if tag != 0x3A and message.find(_SHARED_MEMORY_BYTES, start, pos) >= 0:
                suspicious = True
            if tag == 0x32 and message.find(_CLASSIFICATION_BYTES, start, pos) >= 0:
                classes = True
            continue
        if tag == 0x0A:
            name = message[start:pos]
        elif tag == 0x12:
            version = message[start:pos]
        elif tag == 0x1A:
            request_id = message[start:pos]
        else:
            parameters = with_entry(parameters, message, start, pos)
    if pos < end:
        raise pb.WireError(f"more than {pb.MAX_FIELDS} fields in one message", pos)
    try:
        return RequestHead(
            name.decode(),
            version.decode(),
            request_id.decode(),
            parameters,
            _in_shared_memory(message) if suspicious else "",
            _classified(message) if classes else (),
        )
    except UnicodeDecodeError:
        raise pb.WireError("model name, version or id is not valid UTF-8", 0) from None


def _classified(message: bytes) -> tuple[str, ...]:
    """The requested outputs with a parameter `classification`, whatever its value."""
    found: list[str] = []
    for number, wire, start, stop in pb.fields(message, 0, len(message)):
        if number != 6:
            continue
        pb.expect(wire, pb.LEN, number, stop)
        if len(found) >= MAX_TENSORS:
            raise pb.WireError(f"more than {MAX_TENSORS} tensors", start)
        name, wanted = "", False
        for inner, inner_wire, a, b in pb.fields(message, start, stop, _MAX_TENSOR_FIELDS):
            if inner == 1:
                pb.expect(inner_wire, pb.LEN, inner, b)
                name = pb.text(message, a, b)
            elif inner == 2:
                pb.expect(inner_wire, pb.LEN, inner, b)
                wanted = wanted or read_entry(message, a, b)[0] == _CLASSIFICATION
        if wanted:
            found.append(name)
    return tuple(found)


def _in_shared_memory(message: bytes) -> str:
    """The first tensor whose own parameters name a region, as an error calls it; the same text anywhere else means
    nothing.
    """
    tensors = 0
    for number, wire, start, stop in pb.fields(message, 0, len(message)):
        if number not in _PARAMETERS_OF:
            continue
        pb.expect(wire, pb.LEN, number, stop)
        tensors += 1
        if tensors > MAX_TENSORS:
            raise pb.WireError(f"more than {MAX_TENSORS} tensors", start)
        name, region = "", False
        for inner, inner_wire, a, b in pb.fields(message, start, stop, _MAX_TENSOR_FIELDS):
            if inner == 1:
                pb.expect(inner_wire, pb.LEN, inner, b)
                name = pb.text(message, a, b)
            elif inner == _PARAMETERS_OF[number]:
                pb.expect(inner_wire, pb.LEN, inner, b)
                region = region or read_entry(message, a, b)[0] == _SHARED_MEMORY
        if region:
            return f"{_TENSORS[number]} {quoted(name)}"
    return ""


def shared_memory_refused(tensor: str) -> GatewayError:
    """The error for a tensor in shared memory."""
    return GatewayError(
        Reason.UNSUPPORTED,
        f"{tensor} refers to shared memory, which is not served through the gateway: send the tensor in the request "
        "and take outputs from the response, or call the model server on its own host directly",
    )


def model_override(model: str, version: str) -> bytes:
    """The bytes that, put behind a serialized `ModelInferRequest`, make it name `model` and `version`: of a proto3
    field the last occurrence counts. "" as version takes a version named before it away.
    """
    return pb.text_field(1, model) + pb.text_field(2, version)


def override_model(message: bytes, model: str, version: str) -> bytes:
    """`message` for `model` and `version`. The message must have passed `read_head`: behind truncated bytes the
    appended fields would be read as part of the last one.
    """
    return message + model_override(model, version)
