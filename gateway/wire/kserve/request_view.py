"""What the gateway reads of a `ModelInferRequest`: the head for routing, and a fuller view for records and limits."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason
from gateway.wire.kserve import protobuf as pb
from gateway.wire.kserve.datatypes import BY_NAME
from gateway.wire.kserve.parameters import Parameter, read_entry

NO_PARAMETERS: dict[str, Parameter] = {}
"""Shared by every head without parameters; nobody writes to it."""

MAX_PARAMETERS = 1024
MAX_TENSORS = 4096
MAX_SHAPE_RANK = 64
_MAX_TENSOR_FIELDS = 128
_MAX_ELEMENT_FIELDS = 1 << 16

_SHARED_MEMORY = "shared_memory_region"
_SHARED_MEMORY_BYTES = _SHARED_MEMORY.encode()


class RequestHead:
    """What routing needs. Of a field given more than once the last one counts, as protobuf has it."""

    __slots__ = ("id", "model_name", "model_version", "parameters", "shared_memory")

    def __init__(
        self, model_name: str, model_version: str, id: str, parameters: dict[str, Parameter], shared_memory: bool
    ) -> None:
        self.shared_memory = shared_memory
        """Whether an input or a requested output refers to a shared-memory region (`shared_memory_refused`)."""
        self.model_name = model_name
        self.model_version = model_version
        self.id = id
        self.parameters = parameters


@dataclass(frozen=True, slots=True)
class InputView:
    """One input tensor. `byte_length` is what its elements take in raw form, also where they came as typed contents;
    0 for a tensor in shared memory. `shape` is as sent: it may be negative or not fit the bytes.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: dict[str, Parameter]
    byte_length: int


@dataclass(frozen=True, slots=True)
class OutputRequestView:
    """One requested output."""

    name: str
    parameters: dict[str, Parameter]


@dataclass(frozen=True, slots=True)
class RequestView:
    """Names, types, shapes and sizes of a request's tensors; no tensor is copied."""

    inputs: tuple[InputView, ...]
    outputs: tuple[OutputRequestView, ...]
    tensor_bytes: int
    """Bytes of all tensors together, raw entries beyond the inputs included."""


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
    suspicious = False
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
            continue
        if tag == 0x0A:
            name = message[start:pos]
        elif tag == 0x12:
            version = message[start:pos]
        elif tag == 0x1A:
            request_id = message[start:pos]
        else:
            if parameters is NO_PARAMETERS:
                parameters = {}
            key, value = read_entry(message, start, pos)
            parameters[key] = value
            if len(parameters) > MAX_PARAMETERS:
                raise pb.WireError(f"more than {MAX_PARAMETERS} parameters", at)
    if pos < end:
        raise pb.WireError(f"more than {pb.MAX_FIELDS} fields in one message", pos)
    try:
        return RequestHead(
            name.decode(),
            version.decode(),
            request_id.decode(),
            parameters,
            suspicious and _uses_shared_memory(message),
        )
    except UnicodeDecodeError:
        raise pb.WireError("model name, version or id is not valid UTF-8", 0) from None


def _uses_shared_memory(message: bytes) -> bool:
    view = _read_view(message, measure=False)
    maps = [tensor.parameters for tensor in view.inputs] + [output.parameters for output in view.outputs]
    return any(_SHARED_MEMORY in parameters for parameters in maps)


def read_view(message: bytes) -> RequestView:
    """The tensors of a serialized `ModelInferRequest`, for records and limits. Raises as `read_head` does."""
    try:
        return _read_view(message, measure=True)
    except pb.WireError as error:
        raise unparseable("ModelInferRequest", error) from None


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


def _read_view(message: bytes, measure: bool) -> RequestView:
    """Without `measure` typed contents have the size of their encoded form, which is cheaper to know."""
    inputs: list[tuple[str, str, tuple[int, ...], dict[str, Parameter], int]] = []
    outputs: list[OutputRequestView] = []
    raw: list[int] = []
    end = len(message)
    for number, wire, start, stop in pb.fields(message, 0, end):
        if number < 5 or number > 7:
            continue
        pb.expect(wire, pb.LEN, number, stop)
        if number == 5:
            inputs.append(_read_input(message, start, stop, measure))
        elif number == 6:
            outputs.append(_read_output(message, start, stop))
        else:
            raw.append(stop - start)
        if len(inputs) > MAX_TENSORS or len(outputs) > MAX_TENSORS or len(raw) > MAX_TENSORS:
            raise pb.WireError(f"more than {MAX_TENSORS} tensors", start)
    sizes = iter(raw)
    views: list[InputView] = []
    total = sum(raw)
    for name, datatype, shape, parameters, contents in inputs:
        if _SHARED_MEMORY in parameters:
            size = 0  # such an input takes no raw entry
        elif raw:
            size = next(sizes, 0)
        else:
            size = contents
            total += contents
        views.append(InputView(name, datatype, shape, parameters, size))
    return RequestView(tuple(views), tuple(outputs), total)


def read_shape(message: bytes, wire: int, a: int, b: int, shape: list[int]) -> None:
    """Append the dimensions of one occurrence of a `repeated int64 shape` field, packed or not."""
    if wire == pb.VARINT:
        shape.append(pb.signed(a))
    else:
        pb.expect(wire, pb.LEN, 3, b)
        while a < b:
            value, a = pb.read_varint(message, a, b)
            shape.append(pb.signed(value))
            if len(shape) > MAX_SHAPE_RANK:
                break
    if len(shape) > MAX_SHAPE_RANK:
        raise pb.WireError(f"shape with more than {MAX_SHAPE_RANK} dimensions", a)


def _read_input(
    message: bytes, start: int, stop: int, measure: bool
) -> tuple[str, str, tuple[int, ...], dict[str, Parameter], int]:
    name = datatype = ""
    shape: list[int] = []
    parameters = NO_PARAMETERS
    contents: list[tuple[int, int]] = []
    for number, wire, a, b in pb.fields(message, start, stop, _MAX_TENSOR_FIELDS):
        if number == 3:
            read_shape(message, wire, a, b, shape)
        elif number <= 5:
            pb.expect(wire, pb.LEN, number, b)
            if number == 1:
                name = pb.text(message, a, b)
            elif number == 2:
                datatype = pb.text(message, a, b)
            elif number == 4:
                parameters = _add(message, a, b, parameters)
            else:
                contents.append((a, b))
    if measure:
        size = sum(_contents_bytes(message, a, b, datatype) for a, b in contents)
    else:
        size = sum(b - a for a, b in contents)
    return name, datatype, tuple(shape), parameters, size


def _read_output(message: bytes, start: int, stop: int) -> OutputRequestView:
    name = ""
    parameters = NO_PARAMETERS
    for number, wire, a, b in pb.fields(message, start, stop, _MAX_TENSOR_FIELDS):
        if number == 1:
            pb.expect(wire, pb.LEN, number, b)
            name = pb.text(message, a, b)
        elif number == 2:
            pb.expect(wire, pb.LEN, number, b)
            parameters = _add(message, a, b, parameters)
    return OutputRequestView(name, parameters)


def _add(message: bytes, a: int, b: int, parameters: dict[str, Parameter]) -> dict[str, Parameter]:
    if parameters is NO_PARAMETERS:
        parameters = {}
    key, value = read_entry(message, a, b)
    parameters[key] = value
    if len(parameters) > MAX_PARAMETERS:
        raise pb.WireError(f"more than {MAX_PARAMETERS} parameters", a)
    return parameters


def _contents_bytes(message: bytes, start: int, stop: int, datatype: str) -> int:
    """Raw size of the typed elements in an `InferTensorContents`, of all its fields. Of elements that are encoded one
    by one only the first 65,536 are measured; the rest counts as the bytes that it takes in the message.
    """
    row = BY_NAME.get(datatype)
    element = row.size if row is not None else 0
    total = 0
    for count, (number, wire, a, b) in enumerate(pb.fields(message, start, stop, 1 << 31)):
        if count == _MAX_ELEMENT_FIELDS:
            total += stop - b
            break
        if number == 8:
            pb.expect(wire, pb.LEN, number, b)
            total += 4 + b - a
        elif number in (6, 7):
            width = pb.FIXED32 if number == 6 else pb.FIXED64
            if wire != width:
                pb.expect(wire, pb.LEN, number, b)
            total += b - a
        elif number <= 5:
            if wire == pb.VARINT:
                total += element
            else:
                pb.expect(wire, pb.LEN, number, b)
                total += element * pb.count_varints(message, a, b)
    return total
