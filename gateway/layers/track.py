"""track: one attempt from its first byte to its end, always closed, with the outcome that the table of outcomes gives
it; and its permit, which always goes back to where it came from.
"""

from __future__ import annotations

import asyncio

from gateway.core.call import Attempt, Call
from gateway.core.errors import Reason
from gateway.core.outcome import Outcome
from gateway.core.permit import Permit
from gateway.core.reply import Reply, StreamReply
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
        permit, call.permit = call.permit, None
        assert permit is not None, "admission hands one down with every call"
        # The first attempt begins when the permit is there: nothing has been awaited since.
        started_s = self._now_s() if attempts or not trail.admitted_s else trail.admitted_s
        special = permit.special
        if special is None:
            permit.attempt = attempt = Attempt(permit.replica, started_s)
            attempts.append(attempt)
        else:
            permit.attempt = attempt = Attempt(permit.replica, started_s, special.kind)
            attempts.append(attempt)
            if special.doubt is not None:
                doubt = special.doubt
                saw: dict[str, float | str] = {"replica": permit.replica, "attempt": len(attempts), **doubt.numbers}
                trail.note("breaker", doubt.word, saw)
        try:
            reply = await self._inner.send(call)
        except BaseException as error:
            cancelled = isinstance(error, asyncio.CancelledError)
            self._end(permit, attempt, why_cancelled(call, self._now_s()) if cancelled else Outcome.GATEWAY_FAULT)
            raise
        trail.rung = "full"
        if reply.streaming:
            attempt.answered_s = trail.answered_s
            if isinstance(reply, StreamReply) and not reply.finished:
                # The replica still works on it: attempt and slot are out until the last response. The transport closes
                # the attempt there, or the reply's end does.
                if permit.desk is not None:
                    permit.desk.answered(permit)
                self._end_later(reply, call, permit, attempt)
                return reply
        desk = permit.desk
        if desk is not None and attempt.outcome is not None:
            desk.give_back(permit)
        else:
            self._end(permit, attempt, Outcome.OK)
        return reply

    def _end_later(self, reply: Reply, call: Call, permit: Permit, attempt: Attempt) -> None:
        reply.on_close(lambda outcome: self._end(permit, attempt, _given_up(call) or outcome))

    def _end(self, permit: Permit, attempt: Attempt, otherwise: Outcome) -> None:
        if attempt.outcome is None:
            attempt.outcome = otherwise
            attempt.ended_s = self._now_s()
        desk, rest = permit.desk, attempt.rest
        if desk is None:
            return
        if rest is None:
            desk.give_back(permit)
        else:
            rest.on_end(lambda: desk.give_back(permit))  # the replica is still busy with it


def why_cancelled(call: Call, now_s: float) -> Outcome:
    """What the end of an attempt is called that is cancelled from above, if nothing better is known of it."""
    given_up = _given_up(call)
    if given_up is not None:
        return given_up
    return Outcome.EXPIRED if now_s >= min(call.deadline_s, call.first_response_by_s) else Outcome.GATEWAY_FAULT


def _given_up(call: Call) -> Outcome | None:
    """What an attempt's end is called that the edge brought about."""
    if call.cut is not None and call.cut.reason is Reason.DEADLINE:
        return Outcome.EXPIRED
    return Outcome.ABANDONED if call.abandoned or call.cut is not None else None
