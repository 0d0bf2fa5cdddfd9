"""Heads that come again: from request to request a client's heads differ in a few values, and in nothing else.

A head that was read and found good is remembered as its `HeadForm`: the bytes around the values of `VARYING` headers,
and where those stand. A head of the same size that has the same bytes around values of the right kind is as good, and
says the same but for them. That is seen by comparing bytes, at a fifth of what reading a head costs.
"""

from __future__ import annotations

import struct
from itertools import pairwise

from gateway.core.header_names import REQUEST_ID, TIMEOUT_MS, TRACEPARENT
from gateway.wire.http1.events import RequestHead

CONTENT_LENGTH = b"content-length"
VARYING = frozenset({CONTENT_LENGTH, REQUEST_ID.encode(), TIMEOUT_MS.encode(), TRACEPARENT.encode()})
"""Headers whose values differ from request to request. Here they are visible ASCII, not empty and without a space;
heads in which they are not go the long way."""
HEAD_BYTES_MAX = 2048
HEADERS_MAX = 32
"""Heads of more headers or more bytes have no form: anybody can send them, and what is remembered counts against no
budget. So many forms as there can be take 16 MB."""
_FORMS_MAX = 2048
_OF_LINE_MAX = 16
_OFTEN_UNKNOWN, _THEN_EACH = 16, 32
"""After so many heads with one request line that had no form yet only each so manieth is given one: a client whose
heads never repeat does not pay for it, nor push the others' forms out each time."""
_VISIBLE = bytes(range(0x21, 0x7F))


class HeadForm:
    """What heads of one form have in common. `index` are the headers that do not vary, by their names in lower case;
    `places` is where each that varies has its value in a list of those, and `sample` are those of the first head.
    """

    __slots__ = (
        *("_constants", "_cut", "_gaps", "_length_at"),
        *("count", "index", "method", "names", "places", "sample", "size", "target"),
    )

    def __init__(self, request: RequestHead, slots: list[tuple[bytes, int, int]], head: bytes) -> None:
        """`slots` are the names of varying headers, and where their values start and stop in `head`."""
        self.method, self.target = request.method, request.target
        self.size = len(head)
        self.names = [name for name, _ in request.headers]
        """Of all headers, in order."""
        self.count = len(self.names)
        self.places = {name: place for place, (name, _, _) in enumerate(slots)}
        self.index = {name: value for name, value in request.headers if name not in self.places}
        marks = [0, *(mark for _, start, stop in slots for mark in (start, stop)), len(head)]
        self._cut = struct.Struct("".join(f"{stop - start}s" for start, stop in pairwise(marks))).unpack_from
        """A head to its pieces: constant ones, and values in between."""
        pieces = self._cut(head)
        self._constants: tuple[bytes, ...] = pieces[::2]
        self._gaps = b" " * (len(slots) - 1)
        self._length_at = self.places[CONTENT_LENGTH]
        self.sample = [value.decode("ascii") for value in pieces[1::2]]

    def values(self, data: bytes) -> list[str] | None:
        """The varying values, if `data` is one whole request with a head of this form; else None."""
        size = self.size
        length = len(data) - size
        if length < 0:
            return None
        pieces = self._cut(data)
        if pieces[::2] != self._constants:
            return None
        values = pieces[1::2]
        if values[self._length_at] != b"%d" % length:
            return None
        joined = b" ".join(values)
        if joined.translate(None, _VISIBLE) != self._gaps:
            return None
        return joined.decode("ascii").split(" ")

    def request(self, values: list[str], body: bytes | memoryview) -> RequestHead:
        """The request that has this form and these values."""
        varied = iter(values)
        index = self.index
        headers = [(name, index[name] if name in index else next(varied).encode("ascii")) for name in self.names]
        request = RequestHead(self.method, self.target, 1, headers, dict(headers), len(body), False, False, True)
        request.body = body
        return request


class HeadForms:
    """The forms of heads seen before, by their request lines; bounded in number and size."""

    __slots__ = ("_count", "_of_line", "_unknown")

    def __init__(self) -> None:
        self._of_line: dict[bytes, list[HeadForm]] = {}
        self._unknown: dict[bytes, int] = {}
        """How many heads with this line had none of its forms."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def find(self, data: bytes, size: int) -> tuple[HeadForm, list[str]] | None:
        """The form and the values of the request that `data` is, whole, with a head of `size` bytes; None if no such
        head was seen before.
        """
        for form in self._of_line.get(data[: data.find(b"\r\n")], ()):
            if form.size == size:
                values = form.values(data)
                if values is not None:
                    return form, values
        return None

    def learn(self, head: bytes, request: RequestHead) -> None:
        """Remember the form of `head`, which was read as `request`, if more of it can be expected."""
        if len(head) > HEAD_BYTES_MAX:
            return
        line = head[: head.find(b"\r\n")]
        if line not in self._of_line:
            if len(self._of_line) >= _FORMS_MAX:
                self._clear()
            self._of_line[line], self._unknown[line] = [], 0
        forms = self._of_line[line]
        self._unknown[line] = unknown = self._unknown[line] + 1
        if unknown > _OFTEN_UNKNOWN and unknown % _THEN_EACH:
            return
        form = form_of(head, request)
        if form is None:
            return
        if self._count >= _FORMS_MAX:
            self._clear()
            self._of_line[line], self._unknown[line] = forms, unknown
            self._count = len(forms)
        if len(forms) >= _OF_LINE_MAX:
            del forms[0]
            self._count -= 1
        forms.append(form)
        self._count += 1

    def _clear(self) -> None:
        self._of_line.clear()
        self._unknown.clear()
        self._count = 0


def form_of(head: bytes, request: RequestHead) -> HeadForm | None:
    """The form of `head`, which was read as `request`; None if there is anything unusual about it."""
    if request.http_minor != 1 or request.chunked or request.expect_continue or not request.keep_alive:
        return None
    if request.method == b"HEAD" or len(request.headers) > HEADERS_MAX:
        return None
    slots: list[tuple[bytes, int, int]] = []
    names: set[bytes] = set()
    at = head.find(b"\r\n") + 2
    for name, value in request.headers:
        start = head.find(b":", at) + 1
        stop = head.find(b"\r\n", start)
        if head[at : start - 1].lower() != name or head[start:stop].strip(b" \t") != value or name in names:
            return None
        names.add(name)
        if name in VARYING:
            if not value or value.translate(None, _VISIBLE):
                return None
            start = head.index(value, start)
            slots.append((name, start, start + len(value)))
        at = stop + 2
    if head[at:] != b"\r\n" or CONTENT_LENGTH not in names:
        return None
    return HeadForm(request, slots, head)
