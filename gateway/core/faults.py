"""What an upstream error means: one table from (code, Triton's text) to (outcome, reason, code for the caller).

Triton's codes alone are not enough: UNAVAILABLE means four different things, told apart only by English prose that
carries no promise of stability. The prose stands in this table and nowhere else, and the integration tests provoke
each row on the pinned server.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome


class UpstreamFault(Exception):
    """A replica did not answer a call with an answer.

    `code` and `text` are what the peer said, or the transport on its behalf (`from_peer` False: nothing that the
    replica wrote). `sent` False means that not a byte of the request left: it certainly did not run.
    """

    def __init__(self, code: Code, text: str, *, from_peer: bool, sent: bool = True) -> None:
        super().__init__(f"{code.name}: {text}")
        self.code = code
        self.text = text
        self.from_peer = from_peer
        self.sent = sent


@dataclass(frozen=True, slots=True)
class Row:
    """One row: for `code` (any if None), a text that contains `text` (any if empty)."""

    code: Code | None
    text: str
    outcome: Outcome
    reason: Reason
    as_code: Code | None = None
    """The code for the caller; None keeps the peer's own."""


_C, _O, _R = Code, Outcome, Reason

ROWS: tuple[Row, ...] = (
    Row(
        _C.UNAVAILABLE,
        "Exceeds maximum queue size",
        _O.OVERLOAD,
        _R.UPSTREAM_QUEUE_FULL,
        _C.RESOURCE_EXHAUSTED,
    ),
    Row(
        _C.UNAVAILABLE,
        "Request timeout expired",
        _O.OVERLOAD,
        _R.UPSTREAM_QUEUE_TIMEOUT,
        _C.DEADLINE_EXCEEDED,
    ),
    Row(_C.UNAVAILABLE, "is not at ready state", _O.NOT_LOADED, _R.UPSTREAM_NOT_LOADED),
    Row(_C.UNAVAILABLE, "is not ready", _O.NOT_LOADED, _R.UPSTREAM_NOT_LOADED),
    Row(_C.UNAVAILABLE, "Server is stopping", _O.NOT_LOADED, _R.UPSTREAM_NOT_LOADED),
    Row(_C.UNAVAILABLE, "Server exiting", _O.NOT_LOADED, _R.UPSTREAM_NOT_LOADED),
    Row(_C.UNAVAILABLE, "protocol is restricted", _O.REFUSED, _R.UPSTREAM_REFUSED, _C.INTERNAL),
    Row(_C.NOT_FOUND, "Request for unknown model", _O.NOT_LOADED, _R.UPSTREAM_NOT_LOADED, _C.UNAVAILABLE),
    Row(_C.UNAVAILABLE, "Request for unknown model", _O.NOT_LOADED, _R.UPSTREAM_NOT_LOADED, _C.UNAVAILABLE),
    Row(_C.INTERNAL, "Unable to parse request", _O.CALLER_FAULT, _R.UPSTREAM_INVALID),
    Row(_C.NOT_FOUND, "", _O.CALLER_FAULT, _R.UPSTREAM_INVALID),
    Row(_C.INVALID_ARGUMENT, "", _O.CALLER_FAULT, _R.UPSTREAM_INVALID),
    Row(_C.UNIMPLEMENTED, "", _O.CALLER_FAULT, _R.UPSTREAM_INVALID),
    Row(_C.ALREADY_EXISTS, "", _O.CALLER_FAULT, _R.UPSTREAM_INVALID),
    Row(_C.OUT_OF_RANGE, "", _O.CALLER_FAULT, _R.UPSTREAM_INVALID),
    Row(_C.FAILED_PRECONDITION, "", _O.CALLER_FAULT, _R.UPSTREAM_INVALID),
    Row(_C.DEADLINE_EXCEEDED, "", _O.EXPIRED, _R.DEADLINE),
    Row(_C.RESOURCE_EXHAUSTED, "", _O.OVERLOAD, _R.UPSTREAM_QUEUE_FULL),
    Row(_C.PERMISSION_DENIED, "", _O.REFUSED, _R.UPSTREAM_REFUSED, _C.INTERNAL),
    Row(_C.UNAUTHENTICATED, "", _O.REFUSED, _R.UPSTREAM_REFUSED, _C.INTERNAL),
    Row(None, "", _O.BROKEN, _R.UPSTREAM_BROKEN),
)
"""First match wins. Rows for texts come before the bare code; the last row catches what is left (INTERNAL, UNKNOWN,
CANCELLED, …).
"""

STOPPING = "Server exiting"
"""What a server that was told to stop answers to control calls, liveness included, while it finishes its last
requests.
"""

_TRANSPORT = Row(None, "", Outcome.TRANSPORT, Reason.UPSTREAM_LOST, Code.UNAVAILABLE)
_EXPIRED = Row(None, "", Outcome.EXPIRED, Reason.DEADLINE)
_TOO_LARGE = Row(None, "", Outcome.CALLER_FAULT, Reason.TOO_LARGE)
_ANSWER_TOO_LARGE = Row(None, "", Outcome.GATEWAY_FAULT, Reason.ANSWER_TOO_LARGE)
"""The gateway's own gRPC library refused a message for its size, on the way out or back: the replica is well, and any
other would be asked for the same bytes.
"""

_TEXT_ROWS = tuple(row for row in ROWS if row.code is not None and row.text)


def known_nowhere(text: str) -> bool:
    """Whether a replica that has not got a model said so in words that any other would use, too (field case FH-08): it
    does not know it. One where it is only not ready, or unloaded, begins in the same way and ends otherwise; one that
    stops says something else.
    """
    return "unknown model" in text and "is not found" in text


def in_stream_fault(text: str, *, reached_model: bool) -> UpstreamFault:
    """The fault that an error message inside a stream stands for. It has no code: that is recovered from the texts of
    `ROWS`. Of others, what a model reported counts as INTERNAL, and what was refused before it got there as the
    request's own fault.
    """
    for row in _TEXT_ROWS:
        if reached_model and row.outcome is not Outcome.OVERLOAD:
            continue  # the model's own words, which callers may choose, say nothing about the replica
        if row.text in text and row.code is not None:
            return UpstreamFault(row.code, text, from_peer=True)
    return UpstreamFault(Code.INTERNAL if reached_model else Code.INVALID_ARGUMENT, text, from_peer=True)


_TOKEN = r"[^\s'\"<>|()\[\]{},;]"
_ADDRESS = re.compile(
    rf"""
    (?<![\w+.-])[A-Za-z][\w+.-]*+://{_TOKEN}*+                             # a URL, of a bucket or a file too
    | \[(?=[0-9a-fA-F]*:[0-9a-fA-F]*:)[0-9a-fA-F:.]++(?:%\w++)?\](?::\d{{1,5}})?   # [2001:db8::1]:8001
    | %5B[0-9a-fA-F:.]++(?:%\w*?)??%5D(?::\d{{1,5}})?                     # the same as gRPC writes it
    | (?<![\w:.])(?=[0-9a-fA-F:]*::|(?:[0-9a-fA-F]{{1,4}}:){{7}})[0-9a-fA-F:.]++(?:%\w++)?(?!\w)    # 2001:db8::1
    | (?<![\d.])\d{{1,3}}(?:\.\d{{1,3}}){{3}}(?!\d)(?::\d{{1,5}})?           # 10.0.0.1:8001
    | (?<![\w.-])(?=[\w.-]*[A-Za-z])[\w.-]++:\d{{2,5}}\b(?!\.\d|:\d)      # host:8001
    | (?<![\w.-])(?:[\w-]++\.)+
      (?:com|net|org|local|localdomain|localhost|internal|intranet|lan|corp|svc|consul)(?![\w-])
    """,
    re.VERBOSE,
)
_PATH = re.compile(
    rf"""
    (?<![A-Za-z0-9_/])/++{_TOKEN}{{3,}}+        # /opt/models/fraud, //host/share
    | (?<!\w)[A-Za-z]:[\\/]{_TOKEN}++            # C:\\models
    | \\\\[\w.-]++\\{_TOKEN}*+                   # \\\\host\\share
    """,
    re.VERBOSE,
)
"""Both in time linear in the text: callers can have models write what they like into it."""
_TEXT_MAX = 1024
_VERSUS = re.compile(r"\((\d{1,12}) vs\. (\d{1,12})\)")


def classify(fault: UpstreamFault) -> Row:
    """The row for `fault`. Never raises."""
    if not fault.from_peer:
        if fault.code is Code.RESOURCE_EXHAUSTED:
            return _ANSWER_TOO_LARGE if fault.sent else _TOO_LARGE
        return _EXPIRED if fault.code is Code.DEADLINE_EXCEEDED else _TRANSPORT
    for row in ROWS:
        if (row.code is None or row.code is fault.code) and row.text in fault.text:
            return row
    raise AssertionError("the last row of ROWS matches everything")


def public_text(text: str) -> str:
    """Triton's error text as a caller may see it: up to the first line break, without addresses and file paths, at
    most 1024 characters. A host's name alone is known by its last label only, a relative path not at all.
    """
    lines = text.splitlines()
    line = lines[0] if lines else ""
    line = _PATH.sub("(path)", _ADDRESS.sub("(address)", line))
    return line[:_TEXT_MAX]


def _sizes(text: str, what: str) -> str:
    """What is too large, and for which limit. gRPC's library says the numbers: `... larger than max (12 vs. 10)`."""
    found = _VERSUS.search(text)
    size, limit = (f" of {found[1]} bytes", f" ({found[2]} bytes)") if found else ("", "")
    return f"the {what}{size} is larger than `message_bytes_max` of the model's pool allows{limit}"


def to_error(fault: UpstreamFault, row: Row, responses: int = 0) -> GatewayError:
    """What the caller gets for an attempt that ended in `row`, after so many responses of a stream."""
    code = fault.code if row.as_code is None else row.as_code
    if row is _TOO_LARGE or row is _ANSWER_TOO_LARGE:
        return GatewayError(row.reason, _sizes(fault.text, "answer" if row is _ANSWER_TOO_LARGE else "request"))
    if row.outcome is Outcome.TRANSPORT:
        when = f"after {responses} response{'s' * (responses > 1)}" if responses else "before it answered"
        return GatewayError(row.reason, f"the connection to the model server broke {when}", code)
    if row.outcome is Outcome.REFUSED:
        return GatewayError(row.reason, "the model server refused the gateway; its operator must look", code)
    return GatewayError(row.reason, public_text(fault.text) or code.name, code)
