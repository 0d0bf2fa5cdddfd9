"""PredictionRecord: what is kept of a finished call until the writer renders it.

Made on the request path, so it only takes references; digests, tensor views and JSON are made by `render.py` in a
worker. It refers to neither the call nor the error: a call holds its headers and an error its traceback, and either
would keep far more memory alive than `size_bytes` admits to.
"""

from __future__ import annotations

from typing import Literal

from gateway.core.call import Call
from gateway.core.errors import GatewayError
from gateway.core.outcome import Outcome
from gateway.observe.ending import ending

Tensors = Literal["none", "summary", "full"]

FIXED_BYTES = 2048
"""What a record is reckoned to take without bodies: its objects, its trail and its short strings."""

TEXT_MAX = 512
"""Characters kept of any text that a caller or a replica chose."""


class PredictionRecord:
    """One finished call. Bodies are referred to, not copied; `thin` lets go of them."""

    __slots__ = (
        "answered",
        "arrived_s",
        "arrived_wall_s",
        "body_id",
        "budget_s",
        "code",
        "ended_s",
        "impact",
        "input_bytes",
        "message",
        "model",
        "omitted",
        "outcome",
        "output_bytes",
        "protocol",
        "reason",
        "reply",
        "request_id",
        "sequence",
        "size_bytes",
        "stream_position",
        "tenant",
        "tensors",
        "text",
        "timeout_s",
        "trace_id",
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
        *,
        tensors: Tensors = "summary",
        impact: str = "",
    ) -> None:
        """`reply` is the answer's message, None if there was none. `ended_s` is monotonic seconds. `impact` is what
        users feel, in the policy's words, where this was not the first rung's answer.
        """
        message = call.message
        text = "" if error is None else error.message
        body_id = call.body_id
        self.arrived_s = call.arrived_s
        self.arrived_wall_s = call.arrived_wall_s
        self.ended_s = ended_s
        self.request_id = call.request_id[:TEXT_MAX]
        self.trace_id = call.trace_id
        self.protocol = call.protocol
        self.tenant = call.identity.tenant
        self.model = call.model[:TEXT_MAX]
        self.version = call.version[:TEXT_MAX]
        self.timeout_s = call.timeout_s
        self.budget_s = call.deadline_s - call.arrived_s
        self.trail = call.trail
        self.outcome = outcome
        self.code, self.reason = ending(call, outcome, error)
        self.text = text[:TEXT_MAX]
        self.impact = impact
        self.body_id = body_id[:TEXT_MAX]
        self.stream_position = call.stream_position
        self.sequence = call.sequence
        self.tensors = tensors
        self.answered = reply is not None
        self.input_bytes = 0 if message is None else len(message)
        self.output_bytes = 0 if reply is None else len(reply)
        self.omitted = ""
        if tensors == "none":
            self.message: bytes | None = None
            self.reply: bytes | None = None
            self.size_bytes = FIXED_BYTES
        else:
            self.message = message
            self.reply = reply
            self.size_bytes = FIXED_BYTES + self.input_bytes + self.output_bytes
        for attempt in call.trail.attempts:
            if len(attempt.text) > TEXT_MAX:
                attempt.text = attempt.text[:TEXT_MAX]

    def thin(self, why: str) -> None:
        """Let go of the bodies. The record says `why` in their place."""
        if self.message is not None or self.reply is not None:
            self.message = None
            self.reply = None
            self.omitted = why
            self.size_bytes = FIXED_BYTES
