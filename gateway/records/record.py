"""PredictionRecord: what is kept of a finished call until its line is made.

Made on the request path, so it only takes references; digests, tensor views and JSON are made afterwards (`render.py`),
many at a time. It refers to neither the call nor the error: a call holds what its connection gave it and an error its
traceback, and either would keep far more memory alive than `size_bytes` admits to.
"""

from __future__ import annotations

from typing import Literal

from gateway.core.call import Call, Metadata
from gateway.core.codes import Code
from gateway.core.errors import GatewayError
from gateway.core.header_names import TRACEPARENT
from gateway.core.outcome import Outcome
from gateway.observe.ending import ending

Tensors = Literal["none", "summary", "full"]

FIXED_BYTES = 2048
"""What a record is reckoned to take without bodies: its objects, its trail and its short strings, or its line."""

TEXT_MAX = 512
"""Characters kept of any text that a caller or a replica chose."""

_TRACEPARENT_MAX = 55
_OK, _OK_CODE = Outcome.OK, Code.OK


class PredictionRecord:
    """One finished call. Bodies are referred to, not copied; `thin` lets go of them."""

    __slots__ = (
        "answered",
        "arrived_s",
        "arrived_wall_s",
        "body_id",
        "code",
        "criticality",
        "deadline_s",
        "ended_s",
        "identity",
        "impact",
        "input_bytes",
        "message",
        "metadata",
        "model",
        "omitted",
        "outcome",
        "output_bytes",
        "plain",
        "protocol",
        "reason",
        "reply",
        "request_id",
        "sequence",
        "size_bytes",
        "stream_position",
        "tensors",
        "text",
        "timeout_s",
        "trail",
        "version",
    )

    def __init__(
        self,
        call: Call,
        outcome: Outcome,
        error: GatewayError | None,
        reply: bytes | None,
        ended_s: float,
        tensors: Tensors = "summary",
        impact: str = "",
    ) -> None:
        """`reply` is the answer's message, None if there was none. `ended_s` is monotonic seconds. `impact` is what
        users feel, in the policy's words, where this was not the first rung's answer. `plain`: all went well, and there
        is nothing out of the ordinary to tell.
        """
        self.arrived_s = call.arrived_s
        self.arrived_wall_s = call.arrived_wall_s
        # Texts out of the body may be as long as the body.
        body_id, model, version = call.body_id, call.model, call.version
        self.body_id = body_id if len(body_id) <= TEXT_MAX else body_id[:TEXT_MAX]
        self.criticality = call.criticality
        self.deadline_s = call.deadline_s
        self.identity = call.identity
        self.metadata = call.metadata
        self.model = model if len(model) <= TEXT_MAX else model[:TEXT_MAX]
        self.protocol = call.protocol
        self.request_id = call.request_id
        self.sequence = call.sequence
        self.stream_position = call.stream_position
        self.timeout_s = call.timeout_s
        self.trail = call.trail
        self.version = version if len(version) <= TEXT_MAX else version[:TEXT_MAX]
        self.outcome = outcome
        self.ended_s = ended_s
        if error is None and outcome is _OK:
            self.code, self.reason, self.text = _OK_CODE, "", ""
            self.plain = not impact and tensors != "full"
        else:
            self.plain = False
            self.code, self.reason = ending(call, outcome, error)
            self.text = "" if error is None else error.message[:TEXT_MAX]
        self.tensors = tensors
        self.impact = impact
        message = call.message
        self.answered = reply is not None
        self.input_bytes = taken = 0 if message is None else len(message)
        self.output_bytes = given = 0 if reply is None else len(reply)
        self.omitted = ""
        if tensors == "none":
            self.message: bytes | None = None
            self.reply: bytes | None = None
            self.size_bytes = FIXED_BYTES
        else:
            self.message = message
            self.reply = reply
            self.size_bytes = FIXED_BYTES + taken + given

    def keep(self) -> None:
        """The record has to wait: let go of all that its line does not show."""
        self.request_id = self.request_id[:TEXT_MAX]
        self.metadata = tuple((name, value[:_TRACEPARENT_MAX]) for name, value in self.metadata if name == TRACEPARENT)
        for attempt in self.trail.attempts:
            if len(attempt.text) > TEXT_MAX:
                attempt.text = attempt.text[:TEXT_MAX]

    def thin(self, why: str) -> None:
        """Let go of the bodies. The record says `why` in their place."""
        if self.message is not None or self.reply is not None:
            self.message = self.reply = None
            self.omitted = why
            self.size_bytes = FIXED_BYTES


def trace_id(metadata: Metadata) -> str:
    """The 32 hex digits of `traceparent` in there, or ""."""
    for name, value in metadata:
        if name == TRACEPARENT:
            return value[3:35] if len(value) >= 35 else ""
    return ""
