"""Reading the JSON of a request: strict, as Triton is, with the bare words that Triton takes besides JSON.

Triton reads `NaN`, `Infinity` and `Inf`, each with or without a minus, in a request (seen on 2.51), and clients send
them: Python's `json` and tritonclient with `binary_data=False` write missing values that way. The fast parser refuses
them, so a document that it refuses and that holds such a word is read again by the standard library's.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import orjson

from gateway.core.errors import GatewayError, Reason

_BOM = b"\xef\xbb\xbf"
_STRING_OR_WORD = re.compile(rb'"(?:[^"\\]|\\.)*+"?|-NaN|Inf(?!inity)', re.DOTALL)
_RESPELT = {b"-NaN": b"NaN", b"Inf": b"Infinity"}
"""What Triton takes and the standard library does not. The end of a string is optional, which keeps it linear."""


def bad_request(message: str) -> GatewayError:
    """The error for a malformed request."""
    return GatewayError(Reason.BAD_REQUEST, message)


def quoted(text: object) -> str:
    """`text`, which a caller wrote, as it may stand in an error: on one line and not longer than 80 characters."""
    shown = str(text)
    if len(shown) > 80:
        shown = shown[:77] + "..."
    return "'" + "".join(char if char.isprintable() else "?" for char in shown) + "'"


def load_object(document: bytes | memoryview) -> dict[str, Any]:
    """The JSON object in `document`. Raises `GatewayError` (BAD_REQUEST) if it is not one, or not JSON."""
    try:
        value = orjson.loads(document)
    except orjson.JSONDecodeError as error:
        value = _load_again(bytes(document), error)
    if type(value) is not dict:
        raise bad_request("the request's JSON must be an object")
    return value


def _load_again(document: bytes, error: orjson.JSONDecodeError) -> Any:
    if document.startswith(_BOM):  # Triton skips one
        document = document[len(_BOM) :]
        try:
            return orjson.loads(document)
        except orjson.JSONDecodeError as again:
            error = again
    if b"NaN" not in document and b"Inf" not in document:
        raise bad_request(f"the request is not valid JSON: {error}") from None
    try:
        respelt = _STRING_OR_WORD.sub(lambda found: _RESPELT.get(found[0], found[0]), document)
        return json.loads(respelt.decode(), parse_float=_finite)
    except RecursionError:
        raise bad_request("the request's JSON is nested too deeply") from None
    except ValueError as again:
        raise bad_request(f"the request is not valid JSON: {_one_line(again)}") from None


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:20]} is too big for a double")
    return value


def _one_line(error: ValueError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8"
    return str(error).splitlines()[0][:200]
