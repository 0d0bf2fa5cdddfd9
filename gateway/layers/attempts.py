"""attempts: a second attempt for a call that failed, or is slow, where that is safe.

A retry and a hedge take an idle slot on another replica at once or are not sent; neither queues. Both are paid for from
one budget per model (`decide/attempt_budget.py`). Only calls go twice that may: single ones (no step of a sequence, no
stream), to a model whose policy says `read_only`, with a body that is held. Whether and when is decided in
`decide/retry.py` and `decide/hedge.py`; here they are carried out.

On the plain path there is no task and no timer but one entry on the wheel. The first attempt runs in the call's own
task. When it has been out for as long as nearly all attempts take, the wheel starts a task for the second; whichever
is answered first is the answer. If that is the hedge, the call's task is cancelled inside of its first attempt, as a
deadline would do it (`runtime/scope.py`), and takes the hedge's answer instead. The loser is closed as superseded at
that moment, and the cancellation reaches its replica.

A call whose connection broke while its replica had it is sent again once, alone, beside the budget, from an allowance
that equals the replica's slots; where no other has an idle slot, it waits for one with the others. Its input is
remembered: if it was in flight at two deaths it is refused from then on. A replica that is found down without that,
because it has frozen, tells its calls nothing. They get their second attempt in that moment, as a hedge, from the same
allowance, and whatever else speaks against hedges; the first one stays out, for the replica may come to, or only have
said that it stops.
"""

from __future__ import annotations

import asyncio
import hashlib
from asyncio import current_task
from collections.abc import Callable, Collection
from typing import Any

from gateway.core.call import Attempt, Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.core.permit import Desk, Permit
from gateway.core.reply import Reply
from gateway.core.service import Service
from gateway.core.snapshot import Candidate, FleetSnapshot, ReplicaState
from gateway.decide.attempt_budget import AttemptBudget, DownAllowance
from gateway.decide.chance import Chance
from gateway.decide.hedge import PASSING
from gateway.decide.quarantine import Quarantine
from gateway.decide.retry import RetrySettings, RetryView, backoff_s, retry_verdict
from gateway.layers.attempt_tally import AttemptTally, is_final, speaks_for_itself
from gateway.layers.cancels import Cancels
from gateway.layers.gate import shown
from gateway.layers.track import why_cancelled
from gateway.runtime.clock import Clock
from gateway.runtime.wheel import NOWHERE, TimerWheel, Waiting

REPLAY_MAX_BYTES = 1024 * 1024
"""A larger body is sent once: to hold it for a second send would double what slow replicas cost in memory."""

DEATH_S = 1.0
"""Attempts that are lost with one replica within this time were lost by one death."""

DEATHS_REMEMBERED_MAX = 256
"""Replicas whose deaths are counted; beyond it the first of them is forgotten."""

DESERTED_S = 0.05
"""How often a call looks for an idle slot whose replica has been found down."""

_ANOTHER = "another"
"""Stands for the target where it is asked whether there may be one: which one, the desk says."""


class AttemptsLayer:
    """Second attempts of the calls of one model."""

    def __init__(
        self,
        inner: Service,
        *,
        model: str,
        pool: str,
        hedging: bool,
        retries: RetrySettings,
        budget: AttemptBudget,
        cancels: Cancels,
        clock: Clock,
        wheel: TimerWheel,
        chance: Chance,
    ) -> None:
        self._inner = inner
        self._model = model
        self._pool = pool
        self._declared: tuple[tuple[Candidate, ...], ...] = ()
        """Of each version that is ready, those who run it."""
        self._hedging = hedging
        self._retries = retries
        self.budget = budget
        self.cancels = cancels
        self.allowance = DownAllowance()
        self.tally = AttemptTally()
        self.quarantine = Quarantine()
        self._suspected = self.quarantine.entries
        self.now_s = clock.now_s
        self.wheel = wheel
        self._chance = chance
        self._deaths: dict[str, tuple[int, float]] = {}
        """Of each replica that took attempts with it: how many times, and when the last time began."""
        self.races: dict[_Race, None] = {}
        """Calls whose first attempt is out."""
        self._down: frozenset[str] = frozenset()
        self._hedges: set[asyncio.Task[None]] = set()
        """The loop holds tasks weakly."""

    async def send(self, call: Call) -> Reply:
        message, permit = call.message, call.permit
        assert permit is not None
        desk = permit.desk
        if (
            desk is None
            or message is None
            or call.session is not None
            or call.sequence is not None
            or call.decoupled
            or len(message) > REPLAY_MAX_BYTES
        ):
            return await self._inner.send(call)
        digest = b""
        if self._suspected:
            digest = _digest(call, message)
            self._refuse_if_quarantined(call, digest)
        self.budget.fresh += 1
        race = _Race(self, self._inner, call, desk)
        if self._hedging:
            now_s = call.trail.admitted_s or self.now_s()  # nothing has been awaited since
            delay_s = desk.hedge_delay_s(call.deadline_s - now_s, now_s, call.work)
            if delay_s is not None:
                self.wheel.place(race, now_s + delay_s)
            elif call.explain:
                call.trail.note("hedge", desk.hedge_none(), desk.hedge_saw())
        self.races[race] = None
        try:
            try:
                reply = await self._inner.send(call)
            except BaseException as error:
                rival = await race.failed(error)
                if rival is None:
                    raise
                reply = rival
                self.tally.won["hedge"] += 1
            else:
                race.bucket.pop(race, None)
                if race.hedge is not None:
                    race.drop_hedge(Outcome.SUPERSEDED)
            finally:
                del self.races[race]
        except GatewayError as error:
            if not call.trail.attempts:
                raise
            reply = await self._again(call, desk, error, message)
        if self._suspected:
            self.quarantine.note_success(digest or _digest(call, message))
        return reply

    # --- after a failure ----------------------------------------------------------------------------------------------

    async def _again(self, call: Call, desk: Desk, error: GatewayError, message: bytes) -> Reply:
        """The call's attempts have all failed, the last with `error`: send it once more while that is allowed."""
        attempts = call.trail.attempts
        lost: list[Attempt] = []
        deaths = seen = 0
        resent = False
        while True:
            last = attempts[-1]
            now_s = self.now_s()
            for each in attempts[seen:]:
                if each.outcome is Outcome.TRANSPORT and each.sent:
                    lost.append(each)
                    deaths = max(deaths, self._note_death(call, desk, each, message, now_s))
            seen = len(attempts)
            died = bool(lost) and not resent
            tried = tuple(each.replica for each in attempts)
            view = RetryView(
                elsewhere=not any(map(is_final, attempts)),
                answered=False,
                sent=last.sent,
                read_only=True,
                replayable=True,
                stateful=False,
                decoupled=False,
                tried=tried,
                target=_ANOTHER,
                remaining_s=call.deadline_s - now_s,
                # Those that were lost together have nobody to come back to at the same time.
                delay_s=0.0 if died else backoff_s(1, self._chance, sent=last.sent, settings=self._retries),
                p50_s=desk.median_s(),
                died=died,
                resent=resent,
                deaths=deaths,
            )
            word: str = retry_verdict(view, self._retries)
            kind = "retry"
            permit = None
            if word == "retry":
                if view.wait_s > 0:
                    await asyncio.sleep(view.wait_s)
                    now_s = self.now_s()
                permit = desk.another("retry", tried, call.work)
                if permit is None and not died:
                    word = "no_replica"
                else:
                    kind, word = self._pay(lost[0].replica if died else "", now_s)
                    if permit is None and word == "granted":
                        # The rest of the pool is at its fullest just now.
                        permit = await desk.wait_again(call, tried)
                        word = "no_replica" if permit is None else word
            if permit is None or word != "granted":
                if permit is not None:
                    desk.give_back(permit)
                if call.explain or not speaks_for_itself(last):
                    self.tally.retry_refused(call.trail, word, self._retry_saw(call, view, now_s))
                break
            resent = resent or died
            call.permit = permit
            call.trail.answered_s = 0.0  # what has come was no answer
            self.tally.sent[kind] += 1
            try:
                reply = await self._inner.send(call)
                self.tally.won[kind] += 1
                return reply
            except GatewayError as later:
                error = later
                if len(attempts) == seen:
                    break  # the deadline was too near: nothing was sent, and nothing will be
        try:
            raise error
        finally:
            del error  # whose traceback holds this frame

    def _pay(self, lost: str, now_s: float) -> tuple[str, str]:
        """`lost`: the replica that took an attempt with it, "" for a retry of another kind. What is paid for, and
        `granted` or why not.
        """
        if lost and self.allowance.take(lost, now_s):
            return "resend", "granted"
        return "retry", self.budget.retry()

    def _retry_saw(self, call: Call, view: RetryView, now_s: float) -> dict[str, float | str]:
        return {
            "failed_as": str(call.trail.attempts[-1].outcome and call.trail.attempts[-1].outcome.value),
            "attempts": len(view.tried),
            "remaining_s": round(call.deadline_s - now_s, 6),
            "wait_s": round(view.wait_s, 6),
            "median_s": round(view.p50_s, 6),
            "tokens": self.budget.tokens(),
            "deaths": view.deaths,
        }

    def _note_death(self, call: Call, desk: Desk, attempt: Attempt, message: bytes, now_s: float) -> int:
        """A replica went down with this call. How many it has been now that had its input in flight.

        Once for each attempt, and by the instant at which it was lost: it may be told much later, when another attempt
        of its call was awaited.
        """
        replica, lost_s = attempt.replica, attempt.ended_s
        times, began_s = self._deaths.get(replica, (0, float("-inf")))
        if lost_s - began_s >= DEATH_S:
            if replica not in self._deaths and len(self._deaths) >= DEATHS_REMEMBERED_MAX:
                self._deaths.pop(next(iter(self._deaths)))
            times += 1
            self._deaths[replica] = (times, lost_s)
            self.allowance.open(replica, max(1, desk.slots_of(replica)), now_s)
        return self.quarantine.note_death(_digest(call, message), f"{replica}#{times}", now_s)

    def _refuse_if_quarantined(self, call: Call, digest: bytes) -> None:
        left_s = self.quarantine.blocked(digest, self.now_s())
        if left_s is not None:
            raise GatewayError(
                Reason.QUARANTINED,
                f"this input was in flight on two replicas of model '{shown(self._model)}' when they went down, and is "
                f"not sent again for {left_s:.0f} s",
            )

    def on_snapshot(self, snapshot: FleetSnapshot) -> None:
        """To be told after admission, which must not offer what has just gone down."""
        declared = tuple(
            snapshot.candidates(self._pool, self._model, version)
            for version in snapshot.ready_versions(self._pool, self._model)
        )
        if declared != self._declared:
            self._declared = declared
            self.budget.set_batch_max(max((each.batch_max for some in declared for each in some), default=0))
        down = frozenset(each.id for each in snapshot.replicas if each.state is ReplicaState.DOWN)
        lost, self._down = down - self._down, down
        if lost:
            for race in tuple(self.races):
                race.replicas_lost(lost)

    # --- hedges -------------------------------------------------------------------------------------------------------

    def start(self, hedge: Callable[[], Any]) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(hedge())
        self._hedges.add(task)
        task.add_done_callback(self._hedges.discard)
        return task

    def statistics(self, now_s: float) -> dict[str, Any]:
        return {
            "budget": self.budget.statistics(now_s),
            "allowance": self.allowance.statistics(now_s),
            "quarantine": self.quarantine.statistics(now_s),
            **self.tally.statistics(),
            "hedges_running": len(self._hedges),
        }


def _digest(call: Call, message: bytes) -> bytes:
    """Stands for all that the replica is sent of the call."""
    made = hashlib.blake2b(message, digest_size=16)
    made.update(call.trail.version_routed.encode())
    return made.digest()


class _Hedge:
    """The second attempt that joined."""

    __slots__ = ("alone", "error", "permit", "primary", "task", "won")

    task: asyncio.Task[None]

    def __init__(self, primary: Attempt, permit: Permit) -> None:
        self.primary = primary
        """The attempt that it runs against."""
        self.permit: Permit | None = permit
        """Until its task has begun."""
        self.won: Reply | None = None
        """Its answer."""
        self.error: GatewayError | None = None
        """Or why it has none."""
        self.alone = False
        """The first attempt has failed, and this one is waited for."""


class _Race(Waiting):
    """One call's first attempt, and the hedge that may join it."""

    __slots__ = ("_call", "_cancelling", "_deserted", "_desk", "_inner", "_layer", "_task", "hedge")

    def __init__(self, layer: AttemptsLayer, inner: Service, call: Call, desk: Desk) -> None:
        """In the call's task."""
        self.bucket = NOWHERE
        self._layer = layer
        self._inner = inner
        self._call = call
        self._desk = desk
        task = current_task()
        assert task is not None
        self._task: asyncio.Task[object] = task
        self._cancelling = task.cancelling()
        self._deserted = False
        """The replica of the first attempt has been found down."""
        self.hedge: _Hedge | None = None

    async def failed(self, error: BaseException) -> Reply | None:
        """The first attempt has ended without an answer, by `error`: the answer of the hedge, if one is out, and if it
        has one. Raises the hedge's own error where that says more than `error`.
        """
        self.bucket.pop(self, None)
        hedge = self.hedge
        if hedge is None:
            return None
        if isinstance(error, asyncio.CancelledError):
            # The hedge cancelled once; what is above the count at entry is somebody else's, and goes first.
            if hedge.won is not None and self._task.uncancel() <= self._cancelling:
                return hedge.won
            self.drop_hedge(why_cancelled(self._call, self._layer.now_s()))
        elif isinstance(error, GatewayError):
            hedge.alone = True
            self._call.trail.answered_s = 0.0  # what has come was no answer
            try:
                await asyncio.wait((hedge.task,))
            except BaseException:
                self.drop_hedge(why_cancelled(self._call, self._layer.now_s()))
                raise
            said, hedge.error = hedge.error, None  # whose traceback holds this race
            if said is not None and self._hedge_said_more(hedge.primary):
                try:
                    raise said from None
                finally:
                    del said  # whose traceback holds this frame
            return hedge.won
        else:
            self.drop_hedge(Outcome.GATEWAY_FAULT)
        return None

    def _hedge_said_more(self, primary: Attempt) -> bool:
        """Both have failed. Whether any replica would say what the hedge was told, that the request is wrong for
        instance, and not what the first attempt was: then it is that which the caller should hear.
        """
        last = self._call.trail.attempts[-1]
        return last is not primary and is_final(last) and not is_final(primary)

    def replicas_lost(self, replicas: Collection[str]) -> None:
        attempts = self._call.trail.attempts
        if self.hedge is None and attempts and attempts[-1].replica in replicas:
            self._deserted = True
            self.bucket.pop(self, None)
            self.fire()

    def fire(self) -> None:
        """The first attempt is slow: may a second one be sent?"""
        layer, call, desk = self._layer, self._call, self._desk
        attempts = call.trail.attempts
        if not attempts or attempts[-1].outcome is not None:
            return  # not sent, or ended in this very turn
        primary = attempts[-1]
        now_s = layer.now_s()
        word = "hedge"
        if not self._deserted:
            capped = layer.cancels.capped(primary.replica, now_s)
            word = desk.may_hedge((primary.replica,), cancels_capped=capped)
        if word == "hedge":
            permit = desk.another("hedge", (primary.replica,), call.work)
            if permit is None:
                word = "no_other"
            else:
                word = self._refused(permit, primary.replica, now_s)
                if not word:
                    self.hedge = hedge = _Hedge(primary, permit)
                    hedge.task = layer.start(self._second)
                    if call.explain:
                        call.trail.note("hedge", "hedge", self._saw(now_s - primary.started_s, now_s))
                    return
                desk.give_back(permit)
        elapsed_s = now_s - primary.started_s
        layer.tally.hedge_refused(call.trail, word, self._saw(elapsed_s, now_s))
        if word in PASSING:
            elapsed_s = DESERTED_S if self._deserted else elapsed_s
            again_s = desk.hedge_again_s(elapsed_s, call.deadline_s - now_s)
            if again_s is not None:
                layer.wheel.place(self, now_s + again_s)

    def _saw(self, elapsed_s: float, now_s: float) -> dict[str, float | str]:
        return {
            "elapsed_s": round(elapsed_s, 6),
            "remaining_s": round(self._call.deadline_s - now_s, 6),
            **self._desk.hedge_saw(),
            "tokens": self._layer.budget.tokens("hedge"),
        }

    def _refused(self, permit: Permit, slow: str, now_s: float) -> str:
        """Why the hedge is not sent although there is a slot for it; "" if it is, and is paid for. `slow`: the replica
        of the first attempt.
        """
        allowance = self._layer.allowance
        if self._deserted:
            allowance.open(slow, max(1, self._desk.slots_of(slow)), now_s)
            if allowance.take(slow, now_s):
                self._layer.tally.sent["resend"] += 1
                return ""
        if self._layer.cancels.capped(permit.replica, now_s):
            return "cancels_capped"  # it may as well be the hedge that is cancelled
        word = self._layer.budget.hedge()
        if word != "granted":
            return word
        self._layer.tally.sent["hedge"] += 1
        return ""

    async def _second(self) -> None:
        """The hedge, in a task of its own."""
        hedge = self.hedge
        assert hedge is not None
        self._call.permit, hedge.permit = hedge.permit, None
        try:
            reply = await self._inner.send(self._call)
        except GatewayError as error:
            hedge.error = error  # it is on the trail too; the first attempt is still out, or its error is the call's
            if not hedge.alone:
                self._call.trail.answered_s = 0.0
            return
        hedge.won = reply
        if not hedge.alone:
            self._close(hedge.primary, Outcome.SUPERSEDED)
            self._task.cancel()

    def drop_hedge(self, outcome: Outcome) -> None:
        """A hedge that is still out is not needed any more, and ends as `outcome` now: the record does not wait until
        its task has noticed.
        """
        hedge = self.hedge
        if hedge is None:
            return
        hedge.error = None
        if hedge.task.done():
            return
        for attempt in self._call.trail.attempts:
            if attempt.kind == "hedge":
                self._close(attempt, outcome)
        hedge.task.cancel()
        permit, hedge.permit = hedge.permit, None
        if permit is not None:
            self._desk.give_back(permit)  # its task had not begun

    def _close(self, attempt: Attempt, outcome: Outcome) -> None:
        if attempt.outcome is None:
            attempt.outcome, attempt.ended_s = outcome, self._layer.now_s()
