"""`ModelInferResponse` bytes to the flat JSON object with which `generate` answers.

As Triton 2.51 writes it: outputs and response parameters by name, one element as a scalar, any other number as a flat
array; all members in the order of their names' bytes. Of equal names the protocol's own counts, then the parameter.
"""

from __future__ import annotations

import re
import struct

import orjson

from gateway.wire.kserve.http_response import json_elements
from gateway.wire.kserve.json_text import bad_request, quoted
from gateway.wire.kserve.parameters import Kind, to_json
from gateway.wire.kserve.response_view import OutputHead, broken, read_response
from gateway.wire.kserve.stream_message import FINAL

_LENGTH = struct.Struct("<I")
_ESCAPED = re.compile(rb'["\\\x00-\x1f]')
_ESCAPES = {bytes((value,)): b"\\u%04x" % value for value in range(0x20)} | {
    b'"': b'\\"',
    b"\\": b"\\\\",
    b"\b": b"\\b",
    b"\f": b"\\f",
    b"\n": b"\\n",
    b"\r": b"\\r",
    b"\t": b"\\t",
}


def encode_generate(message: bytes, request_id: str) -> bytes:
    """Render a serialized `ModelInferResponse` for the caller whose request had `request_id`.

    The text is JSON on one line, but for the spellings that `infer` has too: NaN, Infinity, -Infinity; and the bytes of
    a BYTES element that are no UTF-8 stand as they are, for a model may well stream half a character at a time.
    `triton_final_response`, which belongs to gRPC, is left out.

    Raises `GatewayError`: UPSTREAM_BROKEN if the message is not one; BAD_REQUEST for an output that has no JSON form.
    """
    view = read_response(message)
    members: dict[str, bytes] = {}
    for output, (start, stop) in zip(view.outputs, view.raws, strict=True):
        # Of an output named twice the first counts, as of members of different kinds.
        if output.name not in members:
            members[output.name] = _value(output, message, start, stop)
    for name, parameter in view.parameters.items():
        if name != FINAL and parameter.kind is not Kind.UNSET:
            members[name] = to_json({"": parameter})[4:-1]
    if request_id:
        members["id"] = orjson.dumps(request_id)
    members["model_name"] = orjson.dumps(view.model_name)
    members["model_version"] = orjson.dumps(view.model_version)
    # Code points sort as the bytes of their UTF-8 do.
    return b"{" + b",".join([orjson.dumps(name) + b":" + members[name] for name in sorted(members)]) + b"}"


def _value(output: OutputHead, message: bytes, start: int, stop: int) -> bytes:
    if output.datatype.name == "BYTES":
        texts = [_string(element) for element in _elements(output, message, start, stop)]
        return texts[0] if len(texts) == 1 else b"[" + b",".join(texts) + b"]"
    if not output.datatype.json:
        raise bad_request(
            f"output {quoted(output.name)}: {output.datatype.name} cannot be sent as JSON; call infer and ask for it "
            "as binary data"
        )
    array = json_elements(output, message, start, stop)
    return array[1:-1] if output.count == 1 else array


def _elements(output: OutputHead, message: bytes, start: int, stop: int) -> list[bytes]:
    elements: list[bytes] = []
    pos = start
    while pos < stop:
        after = pos + 4
        if after <= stop:
            after += _LENGTH.unpack_from(message, pos)[0]
        if after > stop:
            break
        elements.append(message[pos + 4 : after])
        pos = after
    if pos != stop or len(elements) != output.count:
        raise broken(f"the bytes of output {quoted(output.name)} are not {output.count} length-prefixed elements")
    return elements


def _string(element: bytes) -> bytes:
    try:
        return orjson.dumps(element.decode())
    except UnicodeDecodeError:
        return b'"' + _ESCAPED.sub(lambda match: _ESCAPES[match[0]], element) + b'"'
