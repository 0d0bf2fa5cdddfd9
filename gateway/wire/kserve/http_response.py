"""`ModelInferResponse` bytes to HTTP inference responses: JSON, or JSON with binary tensors behind it.

A rendering belongs to one caller: the same message can be rendered again with another plan and another id.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Generator, Iterator
from typing import Any

import orjson

from gateway.core.errors import GatewayError, Reason
from gateway.wire.kserve.http_request import ALL_JSON, OutputPlan
from gateway.wire.kserve.json_text import bad_request, quoted
from gateway.wire.kserve.response_layout import STEP_ELEMENTS, Rendering, layout_of, single_of
from gateway.wire.kserve.response_view import OutputHead, broken

JSON_TYPE = "application/json"
BINARY_TYPE = "application/octet-stream"

_LENGTH = struct.Struct("<I")


class HttpInferResponse:
    """A response body in pieces, to be written one after the other.

    First comes the JSON, mostly in one piece, then views of the message that was rendered. `header_length` is the value
    of `Inference-Header-Content-Length`, None where that header must not stand. With a `content_coding` (`gzip`,
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
    if plan is ALL_JSON and not request_id:
        single = single_of(message)
        if single is not None:
            before, unpack, at, after = single
            written = b"%b%b%b" % (before, _numbers(unpack(message, at)), after)
            return HttpInferResponse([written], len(written), JSON_TYPE, None)
    layout, base = layout_of(message, request_id)
    rendering = layout.rendering(plan)
    parts = [_opening(request_id)] if request_id else [b"{"]
    for text, (output, start, stop) in zip(rendering.texts, rendering.shown, strict=True):
        parts.append(text)
        parts.append(json_elements(output, message, base + start, base + stop))
    parts.append(rendering.last)
    document = b"".join(parts)
    if not rendering.tail_bytes:
        return HttpInferResponse([document], len(document), JSON_TYPE, None)
    return _response(message, base, rendering, [document])


def encode_in_steps(message: bytes, plan: OutputPlan, request_id: str) -> Generator[None, None, HttpInferResponse]:
    """The same, in steps of about a millisecond if it takes longer. The response is the generator's value; its JSON
    may be in several pieces.
    """
    layout, base = layout_of(message, request_id)
    rendering = layout.rendering(plan)
    pieces: list[bytes] = []
    parts = [_opening(request_id)]
    step_bytes = 0
    for text, (output, start, stop) in zip(rendering.texts, rendering.shown, strict=True):
        parts.append(text)
        for part in _array(_slices(output, message, base + start, base + stop)):
            parts.append(part)
            step_bytes += len(part)
            if step_bytes > _STEP_TEXT_BYTES:
                pieces.append(b"".join(parts))
                parts, step_bytes = [], 0
                yield
    parts.append(rendering.last)
    pieces.append(b"".join(parts))
    return _response(message, base, rendering, pieces)


def _opening(request_id: str) -> bytes:
    return b'{"id":' + orjson.dumps(request_id) + b"," if request_id else b"{"


def _response(message: bytes, base: int, rendering: Rendering, document: list[bytes]) -> HttpInferResponse:
    length = sum(map(len, document))
    tail_bytes = rendering.tail_bytes
    chunks: list[bytes | memoryview] = [*document]
    if not tail_bytes:
        # Also where binary outputs exist but all are empty: so does Triton.
        return HttpInferResponse(chunks, length, JSON_TYPE, None)
    whole = memoryview(message)
    for _, start, stop in rendering.tails:
        chunks.append(whole[base + start : base + stop])
    return HttpInferResponse(chunks, length + tail_bytes, BINARY_TYPE, length)


_STEP_TEXT_BYTES = 128 * 1024


def json_elements(output: OutputHead, message: bytes, start: int, stop: int) -> bytes:
    """The flat JSON array of an output's elements. Raises `GatewayError`, as `encode_http_infer` does."""
    if output.unpack is not None and output.count <= STEP_ELEMENTS:
        return _numbers(output.unpack(message, start))
    return b"".join(_array(_slices(output, message, start, stop)))


def _array(slices: Iterator[bytes]) -> Iterator[bytes]:
    """One JSON array, in pieces, of several, of which none is empty if there is more than one."""
    yield b"["
    comma = b""
    for text in slices:
        # At once: what the library returns holds on to ten times its size.
        yield b"".join((comma, memoryview(text)[1:-1]))
        comma = b","
    yield b"]"


def _slices(output: OutputHead, message: bytes, start: int, stop: int) -> Iterator[bytes]:
    """The elements as JSON arrays, one after the other; an empty one if there are none."""
    datatype = output.datatype
    if datatype.name == "BYTES":
        for strings in _strings(output, message, start, stop):
            yield orjson.dumps(strings)
        return
    if not datatype.json:
        raise bad_request(
            f"output {quoted(output.name)}: {datatype.name} cannot be sent as JSON; ask for it as binary data "
            '("parameters":{"binary_data":true} on the output, or "binary_data_output":true on the request)'
        )
    size = datatype.size
    if start == stop:
        yield b"[]"
    for at in range(start, stop, STEP_ELEMENTS * size):
        count = min(STEP_ELEMENTS, (stop - at) // size)
        if datatype.code:
            yield _numbers(struct.unpack_from(f"<{count}{datatype.code}", message, at))
        else:
            yield orjson.dumps(list(map(bool, message[at : at + count])))


def _numbers(values: tuple[Any, ...]) -> bytes:
    text = orjson.dumps(values)
    # What is not finite it writes as null, and no number has an n. Triton writes NaN, Infinity and -Infinity, which is
    # not JSON.
    return json.dumps(values, separators=(",", ":")).encode() if b"n" in text else text


def _strings(output: OutputHead, message: bytes, start: int, stop: int) -> Iterator[list[str]]:
    """The elements of BYTES, some at a time; an empty list if there are none."""
    elements: list[str] = []
    count = text_bytes = 0
    pos = start
    while pos < stop:
        after = pos + 4
        if after > stop:
            raise _bytes_broken(output)
        size = _LENGTH.unpack_from(message, pos)[0]
        after += size
        if after > stop:
            raise _bytes_broken(output)
        try:
            elements.append(message[pos + 4 : after].decode())
        except UnicodeDecodeError:
            raise _not_text(output, count) from None
        count += 1
        text_bytes += size
        pos = after
        if pos < stop and (len(elements) >= STEP_ELEMENTS or text_bytes >= _STEP_TEXT_BYTES):
            yield elements
            elements, text_bytes = [], 0
    if count != output.count:
        raise _bytes_broken(output)
    yield elements


def _bytes_broken(output: OutputHead) -> GatewayError:
    return broken(f"the bytes of output {quoted(output.name)} are not {output.count} length-prefixed elements")


def _not_text(output: OutputHead, index: int) -> GatewayError:
    return GatewayError(
        Reason.BAD_REQUEST,
        f"output {quoted(output.name)}: element {index} is not UTF-8 and cannot be sent as JSON; ask for it as binary "
        'data ("parameters":{"binary_data":true} on the output, or "binary_data_output":true on the request)',
    )
