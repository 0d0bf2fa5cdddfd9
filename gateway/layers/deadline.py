"""deadline: one absolute budget over everything below, the arrival of the body included.

The deadline counts from the first byte of the call's headers and never restarts: upload, queue, and work upstream all
come out of it (field case FH-19). A caller can only shorten what the policy allows.
"""

from __future__ import annotations

from typing import Protocol

from gateway.core.call import Call, Trail
from gateway.core.errors import GatewayError, Reason
from gateway.core.reply import Reply
from gateway.core.service import Service
from gateway.runtime.clock import Clock
from gateway.runtime.scope import DeadlinePassed, DeadlineScope
from gateway.runtime.wheel import TimerWheel


class DeadlineRules(Protocol):
    """What the deadline layer asks of the policies in force."""

    def deadline_s(self, model: str) -> tuple[float, float]:
        """(default, maximum), seconds."""
        ...


class DeadlineLayer:
    """Sets the call's deadline, waits for its body, and cuts everything below short when the deadline passes."""

    __slots__ = ("_clock", "_inner", "_rules", "_wheel")

    def __init__(self, inner: Service, clock: Clock, wheel: TimerWheel, rules: DeadlineRules) -> None:
        self._inner = inner
        self._clock = clock
        self._wheel = wheel
        self._rules = rules

    async def send(self, call: Call) -> Reply:
        default_s, max_s = self._rules.deadline_s(call.model)
        budget_s = default_s if call.timeout_s is None else min(call.timeout_s, max_s)
        call.deadline_s = call.arrived_s + budget_s
        if self._clock.now_s() >= call.deadline_s:
            raise passed(call, budget_s)
        try:
            with DeadlineScope(self._wheel, call.deadline_s):
                if call.message is None:
                    if call.receive is None:
                        raise RuntimeError("a call without a message must say how to receive it")
                    await call.receive()
                call.trail.received_s = self._clock.now_s()
                return await self._inner.send(call)
        except DeadlinePassed:
            raise passed(call, budget_s) from None


def passed(call: Call, budget_s: float) -> GatewayError:
    """The error for a deadline that passed, naming the stage in which it did."""
    return GatewayError(Reason.DEADLINE, f"the deadline of {budget_s * 1000:.0f} ms passed {_stage(call.trail)}")


def _stage(trail: Trail) -> str:
    if trail.attempts:
        return "while the model server worked on the call"
    if trail.queued_s:
        return "while the call waited for a free slot"
    if trail.received_s:
        return "before the call was sent to a model server"
    return "before the request body had arrived"
