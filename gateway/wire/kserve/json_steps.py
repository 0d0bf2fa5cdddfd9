"""Large JSON requests, decoded in steps between which the event loop can serve others.

Almost all of a large document is the elements of its tensors. They are cut out of it; what is left is small and read
as usual; and the elements are read a slice at a time, into the bytes that the message needs. A slice at a time also
takes a third of the time and a tenth of the memory: the numbers of a whole tensor as Python objects do not fit into
any cache.

This is a way round and never a verdict: as soon as anything is not as it mostly is (strings, bare words, a wrong count,
an array that ends where it should not), the whole document is decoded in one go, and what is wrong with it is said
there.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Generator, Iterator
from typing import Any

import orjson

from gateway.core.errors import GatewayError
from gateway.wire.kserve.http_input import MAX_DEPTH, Packed, TensorHead, flatten, head_of_entry
from gateway.wire.kserve.http_request import HttpInferRequest, decode_document, decode_http_infer

STEP_BYTES = 128 * 1024
"""So much text is decoded in one go, about 0.7 ms; and a document that is not longer."""
_CUT_BYTES = 4096
"""Arrays shorter than that stay where they are."""
_ARRAYS_MAX, _DEPTH_MAX = 32, 8
"""What has more, or nests more deeply, is not cut: looking for the places would take too long."""

_DATA = re.compile(rb'"data"[ \t\r\n]*:[ \t\r\n]*(?=\[)')
_OPENING = re.compile(rb"(?:\[[ \t\r\n]*)+")
_SPACE = b" \t\r\n"

Span = tuple[int, int]


def decode_in_steps(text: bytes) -> Generator[None, None, HttpInferRequest]:
    """`decode_http_infer` of a document without binary tensors. What it returns is the generator's value.

    Raises `GatewayError` as that does.
    """
    document = _without(text, spans) if (spans := _arrays(text)) else None
    if document is None:
        return decode_http_infer(text)
    for (start, stop), entry in document[1]:
        raw: list[bytes] = []
        try:
            head = head_of_entry(entry)
            count = 0
            for piece in _slices(text, start, stop):
                count += _pack(head, piece, raw)
                yield
        except (GatewayError, ValueError, struct.error, OverflowError):
            return decode_http_infer(text)
        if count != head.count:
            return decode_http_infer(text)
        entry["data"] = Packed(b"".join(raw))
    return decode_document(document[0])


def _arrays(text: bytes) -> list[Span]:
    """Where long arrays of numbers seem to stand as the value of `data`."""
    found: list[Span] = []
    at = 0
    for _ in range(_ARRAYS_MAX + 1):
        match = _DATA.search(text, at)
        if match is None:
            return found
        start = match.end()
        # Behind an array of numbers comes another key, or the end of the object.
        at = text.find(b"}", start)
        if at < 0:
            return []
        quote = text.find(b'"', start, at)
        stop = text.rfind(b"]", start, quote if quote >= 0 else at) + 1
        if stop - start > _CUT_BYTES:
            found.append((start, stop))
        at = max(stop, start)
    return []


def _without(text: bytes, spans: list[Span]) -> tuple[dict[str, Any], list[tuple[Span, dict[str, Any]]]] | None:
    """The document without the arrays, and the input whose `data` each of them is; None if one is not that.

    A mark stands for each array, and another in a second reading: what changes with the mark, and nothing that the
    caller wrote can, is where the array stands.
    """
    marked = [_marked(text, spans, mark) for mark in (b"a", b"b")]
    try:
        documents = [orjson.loads(each) for each in marked]
    except ValueError:
        return None
    if type(documents[0]) is not dict:
        return None
    inputs = [document.get("inputs") for document in documents]
    if type(inputs[0]) is not list:
        return None
    owners: dict[int, dict[str, Any]] = {}
    for entry, other in zip(*inputs, strict=True):
        data = entry.get("data") if type(entry) is dict else None
        if type(data) is str and data != other["data"]:
            owners[int(data[1:])] = entry
    if len(owners) != len(spans):
        return None
    return documents[0], [(spans[index], entry) for index, entry in owners.items()]


def _marked(text: bytes, spans: list[Span], mark: bytes) -> bytes:
    parts: list[bytes] = []
    at = 0
    for index, (start, stop) in enumerate(spans):
        parts += (text[at:start], b'"%b%d"' % (mark, index))
        at = stop
    parts.append(text[at:])
    return b"".join(parts)


def _slices(text: bytes, start: int, stop: int) -> Iterator[bytes]:
    """The array as shorter ones that hold its elements, one after the other. Raises ValueError if it cannot be cut."""
    opening = _OPENING.match(text, start, stop)
    assert opening is not None, "an array begins with a bracket"
    depth = opening[0].count(b"[")
    first, last = opening.end(), stop
    if text.find(b"[", first, stop) < 0 and depth <= MAX_DEPTH:  # one row of numbers
        for _ in range(depth):
            last = _before(text, first, last)
        comma = re.compile(b",")
    elif depth <= _DEPTH_MAX:
        first, last = start + 1, _before(text, start, stop)
        comma = re.compile(rb"\][ \t\r\n]*" * (depth - 1) + b",")
    else:
        raise ValueError("nested too deeply")
    while True:
        cut = comma.search(text, first + STEP_BYTES, last)
        end = last if cut is None else cut.end() - 1
        yield b"".join((b"[", memoryview(text)[first:end], b"]"))
        if cut is None:
            return
        first = end + 1


def _before(text: bytes, start: int, stop: int) -> int:
    """Where the bracket stands that closes what lies between `start` and `stop`."""
    while stop > start and text[stop - 1] in _SPACE:
        stop -= 1
    if stop <= start or text[stop - 1] != 0x5D:
        raise ValueError("no closing bracket")
    return stop - 1


def _pack(head: TensorHead, array: bytes, raw: list[bytes]) -> int:
    """Append the bytes of the elements of one slice to `raw`; their number. Raises if there is anything wrong with
    them.
    """
    elements = flatten("", orjson.loads(array))
    datatype = head.datatype
    if not elements or not set(map(type, elements)) <= datatype.accepts:
        raise ValueError("no elements, or of a wrong type")
    if datatype.code:
        raw.append(struct.pack(f"<{len(elements)}{datatype.code}", *elements))
    elif datatype.name == "BOOL":
        raw.append(bytes(elements))
    else:
        raise ValueError("not a type of numbers")
    return len(elements)
