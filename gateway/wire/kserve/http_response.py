"""`ModelInferResponse` bytes to HTTP inference responses: JSON, or JSON with binary tensors behind it.

A rendering belongs to one caller: the same message can be rendered again with another plan and another id.
"""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import orjson

from gateway.core.errors import GatewayError, Reason
from gateway.wire.kserve.http_request import OutputPlan
from gateway.wire.kserve.json_text import bad_request, quoted
from gateway.wire.kserve.parameters import to_json
from gateway.wire.kserve.response_view import OutputHead, ResponseView, broken, read_response

JSON_TYPE = "application/json"
BINARY_TYPE = "application/octet-stream"

_CACHE_MAX = 1024
_CACHED_NAME_MAX = 256
_LENGTH = struct.Struct("<I")


class HttpInferResponse:
    """A response body in pieces, to be written one after the other.

    `chunks[0]` is the JSON, the others are views of the message that was rendered. `header_length` is the value of
    `Inference-Header-Content-Length`, None where that header must not stand. With a `content_coding` (`gzip`,
    `deflate`) `chunks` and `content_length` are the encoded body, and `header_length` still counts the JSON before.
    """

    __slots__ = ("chunks", "content_coding", "content_length", "content_type", "header_length")

    def __init__(
        self,
        chunks: list[bytes | memoryview],
        content_length: int,
        content_type: str,
        header_length: int | None,
        content_coding: str = "",
    ) -> None:
        self.chunks = chunks
        self.content_coding = content_coding
        self.content_length = content_length
        self.content_type = content_type
        self.header_length = header_length

    @property
    def body(self) -> bytes:
        """The whole body in one piece."""
        chunks = self.chunks
        return b"".join(chunks) if len(chunks) > 1 else bytes(chunks[0])


def encode_http_infer(message: bytes, plan: OutputPlan, request_id: str) -> HttpInferResponse:
    """Render a serialized `ModelInferResponse` as `plan` wants it, for the caller whose request had `request_id`.

    Raises `GatewayError`: UPSTREAM_BROKEN if the message is not one; BAD_REQUEST if the caller asked in JSON for an
    output that has no JSON form (FP16, BF16, BYTES that are not UTF-8).
    """
    view = read_response(message)
    parts: list[bytes] = [_opening(view, request_id)]
    tails: list[bytes | memoryview] = []
    binary_bytes = 0
    separator = b""
    for output, (start, stop) in zip(view.outputs, view.raws, strict=True):
        parts.append(separator)
        parts.append(output.json_start)
        separator = b","
        if plan.is_binary(output.name):
            size = stop - start
            parts.append(b',"parameters":{"binary_data_size":%d}}' % size)
            if size:
                binary_bytes += size
                tails.append(memoryview(message)[start:stop])
        else:
            parts.append(b',"data":')
            parts.append(json_elements(output, message, start, stop))
            parts.append(b"}")
    parts.append(b"]}")
    document = b"".join(parts)
    length = len(document)
    if not binary_bytes:
        # Also where binary outputs exist but all are empty: so does Triton.
        return HttpInferResponse([document], length, JSON_TYPE, None)
    return HttpInferResponse([document, *tails], length + binary_bytes, BINARY_TYPE, length)


_openings: dict[tuple[str, str], bytes] = {}


def _opening(view: ResponseView, request_id: str) -> bytes:
    """The document up to the first output."""
    key = (view.model_name, view.model_version)
    models = _openings.get(key)
    if models is None:
        models = orjson.dumps({"model_name": view.model_name, "model_version": view.model_version})[1:-1]
        if len(_openings) >= _CACHE_MAX:
            _openings.clear()
        if len(view.model_name) + len(view.model_version) <= _CACHED_NAME_MAX:
            _openings[key] = models
    if not request_id and not view.parameters:
        return b"{" + models + b',"outputs":['
    parts = [b"{"]
    if request_id:
        parts += (b'"id":', orjson.dumps(request_id), b",")
    parts.append(models)
    if view.parameters:
        parts += (b',"parameters":', to_json(view.parameters))
    parts.append(b',"outputs":[')
    return b"".join(parts)


def json_elements(output: OutputHead, message: bytes, start: int, stop: int) -> bytes:
    """The flat JSON array of an output's elements. Raises `GatewayError`, as `encode_http_infer` does."""
    datatype = output.datatype
    if output.unpack is not None:
        values = output.unpack(message, start)
        if datatype.code in ("f", "d") and not math.isfinite(sum(values)):
            return _floats(values)
        return orjson.dumps(values)
    if datatype.name == "BOOL":
        return orjson.dumps(list(map(bool, message[start:stop])))
    if datatype.name == "BYTES":
        return _strings(output, message, start, stop)
    raise bad_request(
        f"output {quoted(output.name)}: {datatype.name} cannot be sent as JSON; ask for it as binary data "
        '("parameters":{"binary_data":true} on the output, or "binary_data_output":true on the request)'
    )


def _floats(values: tuple[Any, ...]) -> bytes:
    """Floats of which one may not be finite: written as NaN, Infinity and -Infinity, which is not JSON but is what
    Triton writes.
    """
    if all(map(math.isfinite, values)):
        return orjson.dumps(values)  # only their sum was too large
    return json.dumps(values, separators=(",", ":")).encode()


def _strings(output: OutputHead, message: bytes, start: int, stop: int) -> bytes:
    elements: list[str] = []
    pos = start
    while pos < stop:
        after = pos + 4
        if after > stop:
            raise _bytes_broken(output)
        after += _LENGTH.unpack_from(message, pos)[0]
        if after > stop:
            raise _bytes_broken(output)
        try:
            elements.append(message[pos + 4 : after].decode())
        except UnicodeDecodeError:
            raise _not_text(output, len(elements)) from None
        pos = after
    if len(elements) != output.count:
        raise _bytes_broken(output)
    return orjson.dumps(elements)


def _bytes_broken(output: OutputHead) -> GatewayError:
    return broken(f"the bytes of output {quoted(output.name)} are not {output.count} length-prefixed elements")


def _not_text(output: OutputHead, index: int) -> GatewayError:
    return GatewayError(
        Reason.BAD_REQUEST,
        f"output {quoted(output.name)}: element {index} is not UTF-8 and cannot be sent as JSON; ask for it as binary "
        'data ("parameters":{"binary_data":true} on the output, or "binary_data_output":true on the request)',
    )
