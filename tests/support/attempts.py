"""Calls through admit, attempts and track, to replicas of which the test says how each attempt ends."""

from __future__ import annotations

import asyncio
import random

from gateway.core.call import Attempt, Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply
from gateway.core.rest import Rest
from gateway.decide.attempt_budget import AttemptBudget, AttemptBudgetSettings
from gateway.decide.hedge import HedgeSettings
from gateway.decide.retry import RetrySettings
from gateway.decide.tuning import Tuning
from gateway.layers.admit import AdmitLayer
from gateway.layers.attempts import AttemptsLayer
from gateway.layers.cancels import Cancels
from gateway.layers.track import TrackLayer
from gateway.runtime.clock import Clock, SystemClock
from gateway.runtime.wheel import TimerWheel
from tests.support.calls import make_call
from tests.support.fleet import HandFleet, replica

KEY = ("fraud", "2")
LIMIT_S = 20.0


class LoopClock:
    """The running loop's time, which may be virtual."""

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_s(self) -> float:
        return self.now_s()


class Sent:
    """One attempt at the replica; the test says how it ends."""

    def __init__(self, call: Call, clock: Clock) -> None:
        self.attempt: Attempt = call.trail.attempts[-1]
        self._clock = clock
        self.cancelled = False
        self.end: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    @property
    def replica(self) -> str:
        return self.attempt.replica

    def answer(self, message: bytes = b"answer") -> None:
        if not self.end.done():
            self.end.set_result(message)

    def fail(self, outcome: Outcome = Outcome.BROKEN, *, sent: bool = True, text: str = "") -> None:
        self.attempt.outcome, self.attempt.ended_s = outcome, self._clock.now_s()
        self.attempt.sent, self.attempt.text = sent, text
        self.end.set_exception(GatewayError(Reason.UPSTREAM_BROKEN, f"{self.replica} failed"))


class Upstream:
    """The innermost service: the attempts that are out."""

    def __init__(self, clock: Clock, cancels: Cancels, answers: bool = False) -> None:
        """`cancels` is asked before an attempt is cancelled, as clients of replicas do."""
        self._clock = clock
        self._cancels = cancels
        self.out: asyncio.Queue[Sent] = asyncio.Queue()
        self.sent: list[Sent] = []
        self.answers = answers

    async def next(self) -> Sent:
        """The next attempt that comes."""
        async with asyncio.timeout(LIMIT_S):
            return await self.out.get()

    async def send(self, call: Call) -> Reply:
        sent = Sent(call, self._clock)
        self.sent.append(sent)
        self.out.put_nowait(sent)
        if self.answers:
            sent.answer()
        try:
            return Reply(await sent.end)
        except asyncio.CancelledError:
            if self._cancels.may_cancel(sent.replica):
                sent.cancelled = True
            else:
                sent.attempt.rest = Rest()
            raise


class House:
    """admit, attempts and track over the test's replicas."""

    def __init__(
        self,
        *names: str,
        slots: int = 2,
        hedging: bool = True,
        deposit: float = 1.0,
        retries: int = 1,
        clock: Clock | None = None,
    ) -> None:
        self.clock = clock or SystemClock()
        self.wheel = TimerWheel(self.clock)
        self.cancels = cancels = Cancels(self.clock)
        self.upstream = Upstream(self.clock, cancels)
        self.fleet = HandFleet(*(replica(name, {KEY: slots}) for name in names))
        settings = AttemptBudgetSettings(hedge_deposit=deposit, retry_deposit=deposit, retry_reserve=0.0)
        self.attempts = AttemptsLayer(
            TrackLayer(self.upstream, self.clock),
            model="fraud",
            pool="gpu",
            hedging=hedging,
            retries=RetrySettings(retries_max=retries, backoff_base_s=0.001),
            budget=AttemptBudget(20, settings),
            cancels=cancels,
            clock=self.clock,
            wheel=self.wheel,
            chance=random.Random(1),
        )
        self.admit = AdmitLayer(
            self.attempts,
            model="fraud",
            pool="gpu",
            fleet=self.fleet,
            queue_max=None,
            clock=self.clock,
            wheel=self.wheel,
            chance=random.Random(2),
            tuning=Tuning(hedge=HedgeSettings(samples_min=1, load_max=1.0, load_tau_s=1e-4, refresh_s=1e-6)),
        )
        self.fleet.subscribe(self.attempts.on_snapshot)

    def call(self, message: bytes = b"request") -> Call:
        now_s = self.clock.now_s()
        call = make_call(arrived_s=now_s, message=message, deadline_s=now_s + LIMIT_S)
        call.trail.version_routed = "2"
        return call

    def send(self, call: Call) -> asyncio.Task[Reply]:
        async def sent() -> Reply:
            return await self.admit.send(call)

        return asyncio.ensure_future(sent())

    async def taught(self) -> House:
        """One quick call: from now on a slow one is known."""
        self.upstream.answers = True
        await self.admit.send(self.call())
        self.upstream.answers = False
        self.upstream.out.get_nowait()
        self.upstream.sent.clear()
        # Time passes, virtual or not, and a machine that halted during that call has made nobody busy.
        await asyncio.sleep(0.001)
        self.admit._desks["2"].hedge_delay_s(LIMIT_S, self.clock.now_s())
        await asyncio.sleep(0.001)
        return self

    def nothing_is_held(self) -> bool:
        row = self.admit.statistics(0.0)["2"]
        return not row["in_flight"] and not row["waiting"] and not row["hedging"]["out"] and not len(self.wheel)

    async def settled(self) -> None:
        for _ in range(6):
            await asyncio.sleep(0)
        assert self.nothing_is_held()


def kinds(call: Call) -> list[tuple[str, Outcome | None]]:
    return [(attempt.kind, attempt.outcome) for attempt in call.trail.attempts]
