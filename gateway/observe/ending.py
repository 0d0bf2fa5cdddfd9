"""How a call ended, in the two words that metrics, records and headers share: canonical code and reason."""

from __future__ import annotations

from gateway.core.call import Call
from gateway.core.codes import Code
from gateway.core.errors import GatewayError
from gateway.core.outcome import Outcome

_CODES = {
    Outcome.OK: Code.OK,
    Outcome.ABANDONED: Code.CANCELLED,
    Outcome.EXPIRED: Code.DEADLINE_EXCEEDED,
}


def ending(call: Call, outcome: Outcome, error: GatewayError | None) -> tuple[Code, str]:
    """(code, reason label); the label is "" where there is none. The error speaks first, then the outcome."""
    if error is not None:
        return error.code, error.reason.label
    if outcome is Outcome.OK:
        return Code.OK, ""
    reason = call.trail.reason
    return _CODES.get(outcome, Code.INTERNAL), "" if reason is None else reason.label
