"""PredictionRecord: what is kept of a finished call until its line is made.

Made on the request path, so it only takes references; digests, tensor views and JSON are made afterwards (`render.py`),
mostly in the same turn of the event loop. A record that has to wait longer refers to neither the call nor the error: a
call holds its headers and an error its traceback, and either would keep far more memory alive than `size_bytes` admits
to.
"""

from __future__ import annotations

from typing import Literal

from gateway.core.call import Call
from gateway.core.codes import Code
from gateway.core.errors import GatewayError
from gateway.core.outcome import Outcome
from gateway.observe.ending import ending

Tensors = Literal["none", "summary", "full"]

FIXED_BYTES = 2048
"""What a record is reckoned to take without bodies: its objects, its trail and its short strings, or its line."""

TEXT_MAX = 512
"""Characters kept of any text that a caller or a replica chose."""

_OK, _OK_CODE = Outcome.OK, Code.OK


class Kept:
    """What of a call its record needs, under the call's own names."""

    __slots__ = (
        "arrived_s",
        "arrived_wall_s",
        "body_id",
        "deadline_s",
        "identity",
        "model",
        "protocol",
        "request_id",
        "sequence",
        "stream_position",
        "timeout_s",
        "trace_id",
        "trail",
        "version",
    )

    def __init__(self, call: Call) -> None:
        self.arrived_s = call.arrived_s
        self.arrived_wall_s = call.arrived_wall_s
        self.body_id = call.body_id[:TEXT_MAX]
        self.deadline_s = call.deadline_s
        self.identity = call.identity
        self.model = call.model[:TEXT_MAX]
        self.protocol = call.protocol
        self.request_id = call.request_id[:TEXT_MAX]
        self.sequence = call.sequence
        self.stream_position = call.stream_position
        self.timeout_s = call.timeout_s
        self.trace_id = call.trace_id
        self.trail = call.trail
        self.version = call.version[:TEXT_MAX]
        for attempt in self.trail.attempts:
            if len(attempt.text) > TEXT_MAX:
                attempt.text = attempt.text[:TEXT_MAX]


class PredictionRecord:
    """One finished call. Bodies are referred to, not copied; `thin` and `rendered` let go of them, `keep` and
    `rendered` of the call.
    """

    __slots__ = (
        "answered",
        "call",
        "code",
        "ended_s",
        "impact",
        "input_bytes",
        "line",
        "message",
        "omitted",
        "outcome",
        "output_bytes",
        "reason",
        "reply",
        "size_bytes",
        "tensors",
        "text",
    )

    def __init__(
        self,
        call: Call,
        outcome: Outcome,
        error: GatewayError | None,
        reply: bytes | None,
        ended_s: float,
        *,
        tensors: Tensors = "summary",
        impact: str = "",
    ) -> None:
        """`reply` is the answer's message, None if there was none. `ended_s` is monotonic seconds. `impact` is what
        users feel, in the policy's words, where this was not the first rung's answer.
        """
        self.call: Call | Kept | None = call
        """None once its line is made."""
        self.outcome = outcome
        self.ended_s = ended_s
        if error is None and outcome is _OK:
            self.code, self.reason, self.text = _OK_CODE, "", ""
        else:
            self.code, self.reason = ending(call, outcome, error)
            self.text = "" if error is None else error.message[:TEXT_MAX]
        self.tensors = tensors
        self.impact = impact
        self.message = message = call.message
        self.reply = reply
        self.answered = reply is not None
        self.input_bytes = 0 if message is None else len(message)
        self.output_bytes = 0 if reply is None else len(reply)
        self.omitted = ""
        self.line = b""
        if tensors == "none":
            self.message = self.reply = None
            self.size_bytes = FIXED_BYTES
        else:
            self.size_bytes = FIXED_BYTES + self.input_bytes + self.output_bytes

    def keep(self) -> None:
        """The record has to wait: let go of the call but for what the line needs."""
        if isinstance(self.call, Call):
            self.call = Kept(self.call)

    def thin(self, why: str) -> None:
        """Let go of the bodies. The record says `why` in their place."""
        if self.message is not None or self.reply is not None:
            self.message = self.reply = None
            self.omitted = why
            self.size_bytes = FIXED_BYTES

    def rendered(self, line: bytes) -> int:
        """This is its line; nothing else of it is needed any more. Returns by how many bytes it is smaller now."""
        self.line = line
        self.call = self.message = self.reply = None
        before, self.size_bytes = self.size_bytes, max(FIXED_BYTES, len(line))
        return before - self.size_bytes
