"""track: one attempt from its first byte to its end, always closed, with the outcome that the table of outcomes gives
it.
"""

from __future__ import annotations

import asyncio

from gateway.core.call import Attempt, Call
from gateway.core.errors import GatewayError
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply
from gateway.core.service import Service
from gateway.runtime.clock import Clock


class TrackLayer:
    """Opens an `Attempt` on the call's trail and closes it. The transport below says how the replica answered."""

    __slots__ = ("_clock", "_inner")

    def __init__(self, inner: Service, clock: Clock) -> None:
        self._inner = inner
        self._clock = clock

    async def send(self, call: Call) -> Reply:
        attempt = Attempt(call.permit, self._clock.now_s())
        trail = call.trail
        trail.attempts.append(attempt)
        try:
            reply = await self._inner.send(call)
        except GatewayError:
            self._close(attempt, Outcome.GATEWAY_FAULT)
            raise
        except asyncio.CancelledError:
            if call.abandoned or call.cut is not None:
                self._close(attempt, Outcome.ABANDONED)
            elif self._clock.now_s() >= call.deadline_s:
                self._close(attempt, Outcome.EXPIRED)
            else:
                self._close(attempt, Outcome.GATEWAY_FAULT)
            raise
        except BaseException:
            self._close(attempt, Outcome.GATEWAY_FAULT)
            raise
        self._close(attempt, Outcome.OK)
        trail.rung = "full"
        return reply

    def _close(self, attempt: Attempt, otherwise: Outcome) -> None:
        attempt.ended_s = self._clock.now_s()
        if attempt.outcome is None:
            attempt.outcome = otherwise
