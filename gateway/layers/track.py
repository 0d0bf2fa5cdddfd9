"""track: one attempt from its first byte to its end, always closed, with the outcome that the table of outcomes gives
it.
"""

from __future__ import annotations

import asyncio

from gateway.core.call import Attempt, Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply
from gateway.core.service import Service
from gateway.runtime.clock import Clock


class TrackLayer:
    """Opens an `Attempt` on the call's trail and closes it. The transport below says how the replica answered."""

    __slots__ = ("_inner", "_now_s")

    def __init__(self, inner: Service, clock: Clock) -> None:
        self._inner = inner
        self._now_s = clock.now_s

    async def send(self, call: Call) -> Reply:
        trail = call.trail
        attempts = trail.attempts
        # The first attempt begins when the permit is there: nothing has been awaited since.
        started_s = self._now_s() if attempts or not trail.admitted_s else trail.admitted_s
        attempt = Attempt(call.permit, started_s)
        attempts.append(attempt)
        try:
            reply = await self._inner.send(call)
        except GatewayError:
            self._close(attempt, Outcome.GATEWAY_FAULT)
            raise
        except asyncio.CancelledError:
            given_up = _given_up(call)
            if given_up is not None:
                self._close(attempt, given_up)
            elif self._now_s() >= min(call.deadline_s, call.first_response_by_s):
                self._close(attempt, Outcome.EXPIRED)
            else:
                self._close(attempt, Outcome.GATEWAY_FAULT)
            raise
        except BaseException:
            self._close(attempt, Outcome.GATEWAY_FAULT)
            raise
        trail.rung = "full"
        if reply.streaming:
            # The attempt is out until the last response; the transport closes it there, or the reply's end does.
            self._close_later(reply, call, attempt)
        elif attempt.outcome is None:
            self._close(attempt, Outcome.OK)
        return reply

    def _close_later(self, reply: Reply, call: Call, attempt: Attempt) -> None:
        reply.on_close(lambda outcome: self._close(attempt, _given_up(call) or outcome))

    def _close(self, attempt: Attempt, otherwise: Outcome) -> None:
        if attempt.outcome is None:
            attempt.outcome = otherwise
            attempt.ended_s = self._now_s()


def _given_up(call: Call) -> Outcome | None:
    """What an attempt's end is called that the edge brought about."""
    if call.cut is not None and call.cut.reason is Reason.DEADLINE:
        return Outcome.EXPIRED
    return Outcome.ABANDONED if call.abandoned or call.cut is not None else None
