"""unsent: a second attempt for a call that certainly never left, of a model whose calls may not go twice.

Where the policy does not say `read_only` there is no layer for second attempts: a call that may have run is not sent
again. But one whose replica refused the connection, or told that it has not looked at it, is still sent for the first
time when it goes elsewhere (field case FH-08). This is no layer either, for a layer costs every call: admission asks it
when a call has failed.
"""

from __future__ import annotations

from typing import Any

from gateway.core.call import Call
from gateway.core.outcome import TEACHINGS
from gateway.core.permit import Desk
from gateway.core.reply import Reply
from gateway.core.service import Service
from gateway.decide.attempt_budget import AttemptBudget
from gateway.decide.retry import RetrySettings, RetryView, retry_verdict
from gateway.layers.attempt_tally import AttemptTally, speaks_for_itself
from gateway.runtime.clock import Clock


class Unsent:
    """Of one model. `inner` is what one attempt is sent to."""

    __slots__ = ("_inner", "_now_s", "_settings", "budget", "tally")

    def __init__(self, inner: Service, *, retries: RetrySettings, budget: AttemptBudget, clock: Clock) -> None:
        self._inner = inner
        self._now_s = clock.now_s
        self._settings = retries
        self.budget = budget
        self.tally = AttemptTally()

    async def again(self, call: Call, desk: Desk) -> Reply | None:
        """A call has failed: its reply from another replica, None if it may not be sent again. Raises the other
        attempt's own error.
        """
        attempts = call.trail.attempts
        if len(attempts) != 1 or attempts[0].outcome is None or call.session is not None or call.message is None:
            return None
        first, now_s = attempts[0], self._now_s()
        tried = (first.replica,)
        view = RetryView(
            elsewhere=TEACHINGS[attempts[0].outcome].elsewhere,
            answered=False,
            sent=first.sent,
            read_only=False,
            replayable=True,
            stateful=call.sequence is not None,
            decoupled=call.decoupled,
            tried=tried,
            target="another",
            remaining_s=call.deadline_s - now_s,
            delay_s=0.0,
            p50_s=desk.median_s(),
        )
        word: str = retry_verdict(view, self._settings)
        permit = desk.another("retry", tried, call.work) if word == "retry" else None
        if permit is not None:
            word = self._pay(desk)
        elif word == "retry":
            word = "no_replica"
        if permit is None or word != "granted":
            if permit is not None:
                desk.give_back(permit)
            if call.explain or not (word == "not_read_only" or speaks_for_itself(first)):
                saw = {
                    "failed_as": attempts[0].outcome.value,
                    "attempts": 1,
                    "remaining_s": round(view.remaining_s, 6),
                    "median_s": round(view.p50_s, 6),
                    "tokens": self.budget.tokens(),
                }
                self.tally.retry_refused(call.trail, word, saw)
            return None
        call.permit = permit
        call.trail.answered_s = 0.0
        self.tally.sent["retry"] += 1
        reply = await self._inner.send(call)
        self.tally.won["retry"] += 1
        return reply

    def _pay(self, desk: Desk) -> str:
        self.budget.primaries(max(0, desk.fresh_grants() - 1))
        return self.budget.retry()

    def statistics(self, now_s: float) -> dict[str, Any]:
        return {"budget": self.budget.statistics(now_s), **self.tally.statistics()}
