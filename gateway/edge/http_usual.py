"""The usual inference request: all of it came in one read, and its head has the form of others before it.

What such a head comes to is the same each time but for the request's id, its time-out and its trace. It is worked out
once, in the way of every other request, and remembered with the form.
"""

from __future__ import annotations

from gateway.core.credentials import NO_PEER
from gateway.core.header_names import REQUEST_ID, TIMEOUT_MS, TRACEPARENT
from gateway.edge.headers import PLAIN_PARENT_TEXT, ClientHeaders, HeaderReader
from gateway.edge.http_control import ControlDesk
from gateway.edge.http_words import HeadWords
from gateway.wire.http1 import HeadForm
from gateway.wire.http_path import PathMatch, Route

_FORMS_MAX = 2048


class UsualCall:
    """What inference requests of one form come to."""

    __slots__ = (
        *("_credentials", "_id_at", "_metadata", "_parent_at", "_priority", "_reader"),
        *("_timeout_at", "_timeout_s", "_timeouts_s", "match", "words"),
    )

    def __init__(
        self, reader: HeaderReader, form: HeadForm, sample: ClientHeaders, match: PathMatch, words: HeadWords
    ) -> None:
        """`sample` is what `reader` made of the form's sample."""
        self.match = match
        self.words = words
        places = form.places
        self._reader = reader
        self._id_at = places.get(REQUEST_ID.encode(), -1)
        self._parent_at = places.get(TRACEPARENT.encode(), -1)
        self._timeout_at = places.get(TIMEOUT_MS.encode(), -1)
        self._timeouts_s = reader.timeouts_s
        self._timeout_s = sample.timeout_s
        self._credentials = sample.credentials
        self._priority = sample.priority  # which does not vary within a form
        self._metadata = [(pair, pair[0], places.get(pair[0].encode(), -1)) for pair in sample.metadata]
        """What goes on: the whole pair, or its name and the place of its value."""

    def client(self, values: list[str]) -> ClientHeaders | None:
        """What a head with these values says of its caller; None if there is anything unusual about it."""
        if self._parent_at >= 0 and PLAIN_PARENT_TEXT.fullmatch(values[self._parent_at]) is None:
            return None
        timeout_s = self._timeout_s
        if self._timeout_at >= 0:
            value = values[self._timeout_at]
            timeout_s = self._timeouts_s.get(value)
            if timeout_s is None and (timeout_s := self._reader.usual_timeout_s(value)) is None:
                return None
        return ClientHeaders(
            values[self._id_at] if self._id_at >= 0 else self._reader.new_request_id(),
            timeout_s,
            self._credentials,
            False,
            tuple([pair if place < 0 else (name, values[place]) for pair, name, place in self._metadata]),
            self._priority,
        )


class UsualCalls:
    """By form, under one `reader`."""

    __slots__ = ("_desk", "_of_form", "_reader")

    def __init__(self, desk: ControlDesk, reader: HeaderReader) -> None:
        self._desk = desk
        self.use(reader)

    def use(self, reader: HeaderReader) -> None:
        """Read heads with this one from now on."""
        self._reader = reader
        self._of_form: dict[HeadForm, UsualCall | None] = {}

    def of(self, form: HeadForm) -> UsualCall | None:
        """None if requests of this form are no inference calls, or no usual ones."""
        found = self._of_form.get(form)
        if found is None and form not in self._of_form:
            if len(self._of_form) >= _FORMS_MAX:
                self._of_form.clear()
            found = self._of_form[form] = self._worked_out(form)
        return found

    def _worked_out(self, form: HeadForm) -> UsualCall | None:
        head = form.request(form.sample, b"")
        client = self._reader.usual(head.headers, NO_PEER, for_a_call=False)
        match = self._desk.match(head)
        if client is None or match.route is not Route.MODEL_INFER or self._desk.refuse(head, match, client) is not None:
            return None
        if self._desk.fault(head, match, client) is not None:
            return None
        words = HeadWords(head)
        return None if words.deflated else UsualCall(self._reader, form, client, match, words)
