"""JSON requests that come again: from call to call a client's documents differ in the elements of their tensor, and
mostly in nothing else.

A document with one input, and no id, is remembered as its `JsonForm`: what stands before the elements and behind them,
and what that comes to. Of a document that has the same text around its elements these alone are read. As soon as
anything is not as it mostly is the whole document is decoded, and what is wrong with it is said there.
"""

from __future__ import annotations

import json
from typing import Any, Generic, TypeVar

import orjson

from gateway.wire.kserve.http_input import TensorHead, encode_elements, head_of_entry

T = TypeVar("T")

DATA = b'"data":'
AROUND_BYTES_MAX = 2048
_TEXT_BYTES_MAX = 16 * 1024
"""Of the document from which a form is learned; where it is known it may be larger."""
_FORMS_MAX = 512
_OFTEN_UNKNOWN, _THEN_EACH = 256, 32
"""After so many documents that had no form yet only each so manieth is given one: clients whose documents never repeat
do not pay for it."""
_DECODER = json.JSONDecoder()


class JsonForm(Generic[T]):
    """Documents with the same text around the elements. `opening` is the message but for its last field, which is the
    raw bytes; `rest` whatever else the document came to.
    """

    __slots__ = ("after", "head", "name", "opening", "rest")

    def __init__(self, after: bytes, name: str, head: TensorHead, opening: bytes, rest: T) -> None:
        self.after = after
        self.name = name
        self.head = head
        self.opening = opening
        self.rest = rest


class JsonForms(Generic[T]):
    """The forms of documents seen before, by the text in front of their elements; bounded."""

    __slots__ = ("_forms", "_unknown")

    def __init__(self) -> None:
        self._forms: dict[bytes, JsonForm[T]] = {}
        self._unknown = 0

    def __len__(self) -> int:
        return len(self._forms)

    def read(self, document: bytes) -> tuple[JsonForm[T], bytes] | None:
        """The form of `document` and the bytes of its elements; None if it must be read as a whole. Raises
        `GatewayError` (BAD_REQUEST) as reading it would.
        """
        at = document.find(DATA) + len(DATA)
        form = self._forms.get(document[:at])
        if form is None or not document.endswith(form.after):
            return None
        try:
            elements = orjson.loads(document[at : len(document) - len(form.after)])
        except orjson.JSONDecodeError:
            return None
        return (form, encode_elements(form.name, form.head, elements)) if type(elements) is list else None

    def learn(self, text: bytes, document: dict[str, Any], message: bytes, rest: T) -> None:
        """Remember the form of `text`, which was read as `document` and came to `message` and `rest`."""
        if len(text) > _TEXT_BYTES_MAX:
            return
        self._unknown += 1
        if self._unknown > _OFTEN_UNKNOWN and self._unknown % _THEN_EACH:
            return
        inputs = document["inputs"]
        at = text.find(DATA) + len(DATA)
        if len(inputs) != 1 or document.get("id", "") != "" or not len(DATA) <= at <= AROUND_BYTES_MAX:
            return
        after = _behind_value(text, at)
        if not after or len(after) > AROUND_BYTES_MAX or not _all_that_varies(text, at, after):
            return
        head = head_of_entry(inputs[0])
        if head.byte_size is None or not message.endswith(encode_elements(inputs[0]["name"], head, inputs[0]["data"])):
            return
        if len(self._forms) >= _FORMS_MAX:
            self._forms.clear()
        self._forms[text[:at]] = JsonForm(
            after, inputs[0]["name"], head, message[: len(message) - head.byte_size], rest
        )


def _all_that_varies(text: bytes, at: int, after: bytes) -> bool:
    """Whether the elements, and all of them, are what stands between `at` and `after`: with others there the document
    is the same but for them.
    """
    try:
        document = orjson.loads(text)
        others = [orjson.loads(b"%b%b%b" % (text[:at], elements, after)) for elements in (b"[]", b"[7]")]
    except orjson.JSONDecodeError:
        return False  # what only the slower parser reads
    (entry,) = document["inputs"]
    try:
        return others == [{**document, "inputs": [{**entry, "data": elements}]} for elements in ([], [7])]
    except RecursionError:
        return False  # the fast parser goes deeper than comparing does


def _behind_value(text: bytes, at: int) -> bytes:
    """What stands in `text` behind the JSON value at `at`; nothing if that cannot be told."""
    try:
        shown = text[at:].decode("ascii").lstrip()
        return shown[_DECODER.raw_decode(shown)[1] :].encode()
    except (ValueError, RecursionError):  # the fast parser, which has read it, goes deeper
        return b""
