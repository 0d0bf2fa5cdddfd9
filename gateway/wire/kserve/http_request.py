"""HTTP inference requests (JSON, or JSON with binary tensors behind it) to `ModelInferRequest` bytes.

The outcome is what Triton 2.51 makes of the same request; where it differs is said in the comments marked
"deviation". Model name and version are not in the message: the path decides them, and the transport appends them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.core.call import SequenceStep
from gateway.wire.kserve import protobuf as pb
from gateway.wire.kserve.http_input import encode_input
from gateway.wire.kserve.json_forms import JsonForms
from gateway.wire.kserve.json_text import bad_request, load_object, quoted
from gateway.wire.kserve.parameters import MAX_PARAMETERS, Kind, entry_field
from gateway.wire.kserve.request_view import MAX_TENSORS, shared_memory_refused
from gateway.wire.kserve.sequence import sequence_step_of_json

_INT64_MAX = (1 << 63) - 1
_UINT64_MAX = (1 << 64) - 1
_UINT32_MAX = (1 << 32) - 1
_CACHE_MAX = 4096
_NAME_CACHED_MAX = 128


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """Which outputs the caller wants in binary form: `explicit` by name, `default` for all others."""

    default: bool
    explicit: dict[str, bool]

    def is_binary(self, output: str) -> bool:
        return self.explicit.get(output, self.default)


NOTHING_EXPLICIT: dict[str, bool] = {}
ALL_JSON = OutputPlan(False, NOTHING_EXPLICIT)
ALL_BINARY = OutputPlan(True, NOTHING_EXPLICIT)


@dataclass(slots=True)
class HttpInferRequest:
    """A decoded request: `message` is a serialized `ModelInferRequest` without model name and version, `id` the
    protocol's own request id ("" if none), `plan` what the response must look like, `sequence` the step of a sequence
    that it is, `classified` the outputs that are asked for as classes.
    """

    message: bytes
    id: str
    plan: OutputPlan
    sequence: SequenceStep | None = None
    classified: tuple[str, ...] = ()


def parse_header_length(value: str | bytes, body_bytes: int | None = None) -> int:
    """The value of `Inference-Header-Content-Length`. `body_bytes` is the length of the uncompressed body, where known.

    Raises `GatewayError` (BAD_REQUEST) unless it is a plain decimal number within the body. Deviation: Triton 2.51
    takes what is not a number as 0, newer releases refuse it too.
    """
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    text = text.strip(" \t")
    if not text.isascii() or not text.isdigit() or len(text) > 10:
        raise bad_request(f"Inference-Header-Content-Length must be a number of bytes, got {quoted(text)}")
    length = int(text)
    if body_bytes is not None and length > body_bytes:
        raise bad_request(f"Inference-Header-Content-Length is {length}, but the body has only {body_bytes} bytes")
    return length


def is_raw(body_bytes: int, header_length: int | None) -> bool:
    """Whether the body is the bytes of a single tensor: header length 0, or no body at all (`decode_raw_infer`)."""
    return header_length == 0 or not body_bytes


Piece = bytes | bytearray | memoryview


def decode_http_infer(body: Piece, header_length: int | None = None) -> HttpInferRequest:
    """Decode a request whose first `header_length` bytes are JSON (None: all of it).

    Raises `GatewayError`: BAD_REQUEST for whatever is malformed, UNSUPPORTED for shared memory.
    """
    if header_length is not None:
        return decode_in_pieces((body,), header_length)
    if type(body) is not bytes:
        return decode_document(load_object(memoryview(body)))
    known = _json_forms.read(body)
    if known is not None:
        form, raw = known
        plan, sequence, classified = form.rest
        return HttpInferRequest(form.opening + raw, "", plan, sequence, classified)
    document = load_object(body)
    request = decode_document(document)
    _json_forms.learn(body, document, request.message, (request.plan, request.sequence, request.classified))
    return request


_json_forms: JsonForms[tuple[OutputPlan, SequenceStep | None, tuple[str, ...]]] = JsonForms()


def decode_document(document: dict[str, Any]) -> HttpInferRequest:
    """The same for its JSON, read, with nothing behind it."""
    texts, _, request_id, plan, sequence, classified = _decode(document, 0)
    # Several texts if tensors without a byte stand "behind" the JSON.
    message = texts[0] if len(texts) == 1 else b"".join(texts)
    return HttpInferRequest(message, request_id, plan, sequence, classified)


def decode_in_pieces(pieces: Sequence[Piece], header_length: int) -> HttpInferRequest:
    """The same for a body in pieces, at least one, as it arrived: what is not JSON is copied once, into the message."""
    form, tail = form_in_pieces(pieces, header_length, sum(map(len, pieces)))
    return form.request(tail)


def form_in_pieces(pieces: Sequence[Piece], header_length: int, body_bytes: int) -> tuple[Form, Sequence[Piece]]:
    """The form of a request of which `pieces`, at least one, have come, the JSON all of it; and what has come behind
    the JSON. Raises as `decode_http_infer` does.
    """
    tail_bytes = body_bytes - header_length
    if tail_bytes < 0:
        raise bad_request(
            f"Inference-Header-Content-Length is {header_length}, but the body has only {body_bytes} bytes"
        )
    first = memoryview(pieces[0])
    if len(first) < header_length:
        first, pieces = memoryview(b"".join(pieces)), ()
    tail = (first[header_length:], *pieces[1:])
    if header_length > _FORM_BYTES_MAX:
        return Form(*_decode(load_object(first[:header_length]), tail_bytes)), tail
    text = bytes(first[:header_length])
    form = _forms.get(text)
    if form is None or form.tail_bytes != tail_bytes:
        form = Form(*_decode(load_object(text), tail_bytes))
        if tail_bytes:
            if len(_forms) >= _FORMS_MAX:
                _forms.clear()
            _forms[text] = form
    return form, tail


class Form:
    """A request but for its binary tensors: `texts[i]` stands before binary tensor i, which has `sizes[i]` bytes, and
    the last text behind them all.
    """

    __slots__ = ("classified", "id", "plan", "sequence", "sizes", "tail_bytes", "texts")

    def __init__(
        self,
        texts: list[bytes],
        sizes: list[int],
        request_id: str,
        plan: OutputPlan,
        sequence: SequenceStep | None,
        classified: tuple[str, ...],
    ) -> None:
        self.texts = texts
        self.sizes = sizes
        self.tail_bytes = sum(sizes)
        self.id = request_id
        self.plan = plan
        self.sequence = sequence
        self.classified = classified

    def request(self, tail: Sequence[Piece]) -> HttpInferRequest:
        """The request with the tensors that `tail` holds, `tail_bytes` in all."""
        texts = self.texts
        if not self.sizes:
            message = texts[0]
        elif len(self.sizes) == 1:
            message = b"".join((texts[0], *tail, texts[1]))
        else:
            parts: list[Piece] = []
            for text, cut in zip(texts, _cut(tail, self.sizes), strict=False):
                parts.append(text)
                parts += cut
            parts.append(texts[-1])
            message = b"".join(parts)
        return self.made(message)

    def made(self, message: bytes) -> HttpInferRequest:
        """The request whose message this is."""
        return HttpInferRequest(message, self.id, self.plan, self.sequence, self.classified)


def _cut(pieces: Sequence[Piece], sizes: list[int]) -> Iterator[list[memoryview]]:
    """The bytes of `pieces`, `sizes` of them at a time."""
    rest = iter(pieces)
    left = memoryview(b"")
    for size in sizes:
        cut: list[memoryview] = []
        while size:
            if not left:
                left = memoryview(next(rest))
            cut.append(left[:size])
            left = left[size:]
            size -= len(cut[-1])
        yield cut


_forms: dict[bytes, Form] = {}
"""By the JSON of the request, which a client with binary tensors sends again and again."""
_FORM_BYTES_MAX = 2048
_FORMS_MAX = 512


Parts = tuple[list[bytes], list[int], str, OutputPlan, SequenceStep | None, tuple[str, ...]]


def _decode(document: dict[str, Any], tail_bytes: int) -> Parts:
    """What `Form` is made of, for the request that `document` is, with so many bytes behind it."""
    try:
        return _parts(document, tail_bytes)
    except UnicodeEncodeError:
        # Only the standard library's parser lets an unpaired surrogate through.
        raise bad_request("a string of the request holds an unpaired surrogate, which is not Unicode text") from None


def _parts(document: dict[str, Any], tail_bytes: int) -> Parts:
    chunks: list[bytes] = []
    request_id = document.get("id", "")
    if request_id != "":
        if type(request_id) is not str:
            raise bad_request("'id' must be a string")
        if "\0" in request_id:
            request_id = request_id.partition("\0")[0]  # Triton's strings end there
        encoded = request_id.encode()
        chunks += (b"\x1a", pb.varint(len(encoded)), encoded)

    default = False
    sequence = None
    if "parameters" in document:
        default = _encode_parameters(document["parameters"], chunks)
        sequence = sequence_step_of_json(document["parameters"])

    inputs = document.get("inputs")
    if type(inputs) is not list:
        raise bad_request("'inputs' must be an array of tensors" if "inputs" in document else "'inputs' is missing")
    if len(inputs) > MAX_TENSORS:
        raise bad_request(f"{len(inputs)} inputs are more than {MAX_TENSORS}")
    raws: list[bytes] = []
    texts: list[bytes] = []
    sizes: list[int] = []
    used = 0
    for entry in inputs:
        head, raw = encode_input(entry, tail_bytes, used)
        chunks.append(head)
        if type(raw) is int:
            raws += (b"\x3a", pb.varint(raw))
            texts.append(b"".join(raws))
            sizes.append(raw)
            raws = []
            used += raw
        else:
            assert type(raw) is bytes
            raws += (b"\x3a", pb.varint(len(raw)), raw)
    if used != tail_bytes:
        raise bad_request(f"{tail_bytes - used} bytes are left behind the binary tensors of the request")
    if len(inputs) > 1:
        _refuse_duplicates(inputs)

    plan = ALL_BINARY if default else ALL_JSON
    classified: list[str] = []
    if "outputs" in document:
        plan = _encode_outputs(document["outputs"], default, chunks, classified)
    if texts:
        texts[0] = b"".join(chunks) + texts[0]
        texts.append(b"".join(raws))
    else:
        texts.append(b"".join(chunks + raws))
    return texts, sizes, request_id, plan, sequence, tuple(classified)


def _refuse_duplicates(inputs: list[dict[str, Any]]) -> None:
    names = {entry["name"] for entry in inputs}
    if len(names) == len(inputs):
        return
    for entry in inputs:
        if entry["name"] not in names:
            raise bad_request(f"input {quoted(entry['name'])} is given twice")
        names.discard(entry["name"])


def _is_uint64(value: object) -> bool:
    return type(value) is int and 0 <= value <= _UINT64_MAX


def _encode_parameters(parameters: Any, chunks: list[bytes]) -> bool:
    """Encode the request's parameters; returns `binary_data_output`."""
    if type(parameters) is not dict:
        raise bad_request("'parameters' must be an object")
    if len(parameters) > MAX_PARAMETERS:
        raise bad_request(f"{len(parameters)} parameters are more than {MAX_PARAMETERS}")
    binary = False
    for key, value in parameters.items():
        if key == "binary_data_output":
            if type(value) is not bool:
                raise bad_request("parameter 'binary_data_output' must be true or false")
            binary = value
        else:
            kind, checked = typed_parameter(key, value)
            chunks.append(entry_field(4, key, kind, checked))
    return binary


def typed_parameter(key: str, value: Any) -> tuple[Kind, bool | int | str | float]:
    """The member of `InferParameter` in which Triton wants the parameter `key`. Raises `GatewayError` (BAD_REQUEST)."""
    if key == "sequence_id":
        if type(value) is str:
            return Kind.STRING, value
        if not _is_uint64(value):
            raise bad_request(f"parameter 'sequence_id' must be an integer from 0 to {_UINT64_MAX}, or a string")
        return Kind.INT64, value  # above int64 its two's complement, which Triton reads back as unsigned
    if key == "sequence_start" or key == "sequence_end":
        if type(value) is not bool:
            raise bad_request(f"parameter '{key}' must be true or false")
        return Kind.BOOL, value
    if key == "priority":
        if not _is_uint64(value):
            raise bad_request(f"parameter 'priority' must be an integer from 0 to {_UINT64_MAX}")
        return Kind.UINT64, value
    if key == "timeout":
        if not _is_uint64(value):
            raise bad_request(f"parameter 'timeout' must be an integer from 0 to {_UINT64_MAX}, in microseconds")
        return Kind.INT64, value  # as for sequence_id
    if key.startswith("triton_"):
        raise bad_request(f"parameter {quoted(key)}: names that start with 'triton_' are reserved")
    kind = type(value)
    if kind is bool:
        return Kind.BOOL, value
    if kind is str:
        return Kind.STRING, value
    if kind is float:
        return Kind.DOUBLE, value
    if kind is int:
        if -_INT64_MAX - 1 <= value <= _INT64_MAX:
            return Kind.INT64, value
        try:
            return Kind.DOUBLE, float(value)  # as Triton does
        except OverflowError:
            raise bad_request(f"parameter {quoted(key)} is out of range") from None
    raise bad_request(f"parameter {quoted(key)} must be a string, an integer, a number, true or false")


_plain_outputs: dict[str, bytes] = {}


def _encode_outputs(outputs: Any, default: bool, chunks: list[bytes], classified: list[str]) -> OutputPlan:
    """Encode the requested outputs; returns which of them are binary. Those asked for as classes go to `classified`.

    Deviation (the protocol's text over Triton 2.51): a listed output that does not say `binary_data` inherits the
    request's `binary_data_output`. Triton takes it as JSON.
    """
    if type(outputs) is not list:
        raise bad_request("'outputs' must be an array")
    if len(outputs) > MAX_TENSORS:
        raise bad_request(f"{len(outputs)} outputs are more than {MAX_TENSORS}")
    explicit: dict[str, bool] = {}
    listed: set[str] = set()
    for entry in outputs:
        name = entry.get("name") if type(entry) is dict else None
        if type(name) is not str:
            raise bad_request("each entry of 'outputs' must be an object with a string 'name'")
        parameters = entry.get("parameters")
        if parameters and type(parameters) is dict:  # Triton overlooks what is no object
            if "shared_memory_region" in parameters:
                raise shared_memory_refused(f"output {quoted(name)}")
            binary = parameters.get("binary_data", default)
            if type(binary) is not bool:
                raise bad_request(f"'binary_data' of output {quoted(name)} must be true or false")
            classes = parameters.get("classification", 0)
            if not _is_uint64(classes):
                raise bad_request(
                    f"'classification' of output {quoted(name)} must be an integer from 0 to {_UINT64_MAX}"
                )
            if name in listed:
                continue  # of an output listed twice the first counts, as in Triton over HTTP (over gRPC the last)
            listed.add(name)
            if binary is not default:
                explicit[name] = binary
            if classes := classes & _UINT32_MAX:  # all that Triton keeps of it
                classified.append(name)
                field = entry_field(2, "classification", Kind.INT64, classes)
                chunks.append(pb.len_field(6, pb.text_field(1, name) + field))
                continue
        elif name in listed:
            continue
        else:
            listed.add(name)
        plain = _plain_outputs.get(name)
        if plain is None:
            plain = pb.len_field(6, pb.text_field(1, name))
            if len(name) <= _NAME_CACHED_MAX:
                if len(_plain_outputs) >= _CACHE_MAX:
                    _plain_outputs.clear()
                _plain_outputs[name] = plain
        chunks.append(plain)
    if explicit:
        return OutputPlan(default, explicit)
    return ALL_BINARY if default else ALL_JSON
