"""The desk: one `Admission` with its clock and its waiters, where permits come from and go back to.

The decider wakes nobody; who holds it must, each time. This is the one place where that is done.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Any

from gateway.core.call import Call
from gateway.core.permit import Kind, Permit, Special
from gateway.decide.admission import Admission
from gateway.decide.class_tally import ClassTally
from gateway.decide.ticket import Queued, Ticket
from gateway.layers.judgements import tell_news
from gateway.runtime.wheel import NOWHERE, TimerWheel, Waiting

LOOK_S = 0.1
"""While calls wait it is looked so often whether time alone has opened a slot to them: as often as the picker reads its
figures anew.
"""


NO_DEADLINE_S = 3600.0
"""What stands for the deadline of a call that has none: in the line it must have some, or it would starve."""


class AdmissionDesk(Waiting):
    """Implements `core.permit.Desk`. It waits on the wheel while calls wait here."""

    __slots__ = ("_due_s", "_named", "_now_s", "_seen", "_wheel", "admission", "tally")

    def __init__(
        self, admission: Admission, now_s: Callable[[], float], wheel: TimerWheel, named: str = "a model"
    ) -> None:
        """`named`: the pool, model and version, for the log."""
        self._named = named
        self.bucket = NOWHERE
        self.admission = admission
        self.tally = ClassTally()
        self._now_s = now_s
        self._wheel = wheel
        self._due_s = math.inf
        """When it fires, while it waits."""
        self._seen = 0

    @property
    def mixed(self) -> bool:
        """Calls of all sizes are answered for here."""
        return True

    def desks(self) -> tuple[AdmissionDesk, ...]:
        """All desks of the version: this one is the first."""
        return (self,)

    def for_call(self, call: Call) -> AdmissionDesk:
        """Which of them it is that a call asks."""
        return self

    def waited_for(self, call: Call) -> None:
        """A call begins to wait here; may note why."""

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        """Of the version."""
        row = self.admission.statistics(now_s)
        return {**row, "classes": self.tally.statistics(row["room"]["waiting_by_class"])}

    def give_back(self, permit: Permit) -> None:
        admission, clock_s = self.admission, self._now_s
        admission.give_back(permit, clock_s())
        if admission.decided:
            self.wake()
        if admission.kept.look_s < self._due_s:
            self._watch()
        if admission.news:
            self.tell()

    def tell(self) -> None:
        """Log what has become of replicas."""
        tell_news(self._named, self.admission.balance.ejection, self._now_s())

    def wake(self) -> None:
        """Tell those who wait and whose fate was decided."""
        admission = self.admission
        decided, admission.decided = admission.decided, []
        for ticket in decided:
            waiter = ticket.waiter
            if waiter is None:
                continue  # it was offered in this very turn; its call finds it decided when it begins to wait
            assert isinstance(waiter, asyncio.Future)
            if not waiter.done():
                waiter.set_result(None)
            # A waiter that is done was cancelled in this very turn; its own `wait` gives the slot back.

    def asked(self) -> None:
        """A ticket was offered here, which may have decided the fate of others."""
        if self.admission.decided:
            self.wake()
        self._watch()

    def _watch(self) -> None:
        """While somebody waits: look again at the latest after `LOOK_S`, and when a slot is free by time alone."""
        admission = self.admission
        if admission.waiting:
            due_s = min(self._now_s() + LOOK_S, admission.kept.look_s)
            if not self.waits or due_s < self._due_s:
                self.cancel()
                self._due_s = due_s
                self._wheel.place(self, due_s)

    def begun(self) -> None:
        """One more ticket waits, and can be woken."""

    async def wait(self, ticket: Ticket) -> None:
        """Until the fate of a ticket that waits is decided. Cancelled, it holds nothing."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ticket.waiter = future
        if ticket.permit is not None or ticket.why is not None:
            future.set_result(None)
        else:
            self._watch()
        try:
            self.begun()
            await future
        except BaseException:
            # A grant may have come in the same turn of the loop as the cancellation: then the slot is this call's to
            # give back.
            if not self.admission.withdraw(ticket) and ticket.permit is not None:
                self.give_back(ticket.permit)
            raise
        finally:
            if not self.admission.waiting:
                self.cancel()

    def fire(self) -> None:
        now_s = self._now_s()
        self.admission.look(now_s)
        self.wake()
        self.tell()
        self._watch()

    def answered(self, permit: Permit) -> None:
        self.admission.answered(permit, self._now_s())
        if self.admission.decided:
            self.wake()

    def another(self, kind: Kind, tried: tuple[str, ...], work: float = 1.0) -> Permit | None:
        permit = self.admission.another(kind, tried, self._now_s(), work)
        if permit is not None:
            permit.desk = self
        return permit

    async def wait_again(self, call: Call, tried: tuple[str, ...]) -> Permit | None:
        admission = self.admission
        while (now_s := self._now_s()) < call.deadline_s:
            if all(each.replica in tried for each in admission.candidates):
                break
            ticket = Ticket(
                now_s,
                min(call.deadline_s, now_s + NO_DEADLINE_S),
                criticality=call.criticality,
                tenant=call.identity.tenant,
                work=call.work,
                admitted=True,
            )
            decision = admission.offer(ticket, now_s)
            self.asked()
            if isinstance(decision, Queued):
                await self.wait(ticket)
            permit = ticket.permit
            if permit is None:
                return None
            permit.desk = self
            if permit.replica not in tried:
                permit.special = (permit.special or Special())._replace(kind="retry")
                return permit
            # Nobody has noticed yet that it is gone.
            self.give_back(permit)
            await asyncio.sleep(LOOK_S / 2)
        return None

    def hedge_delay_s(self, remaining_s: float, now_s: float, work: float = 1.0) -> float | None:
        admission = self.admission
        if work <= 1.0 or not self.mixed:
            return admission.hedging.delay_s(remaining_s, now_s, admission.chance)
        # A large call is slow when it is slow for its size: what is known is of usual ones.
        delay_s = admission.hedging.delay_s(remaining_s / work, now_s, admission.chance)
        return None if delay_s is None else delay_s * work

    def hedge_again_s(self, elapsed_s: float, remaining_s: float) -> float | None:
        return self.admission.hedging.again_s(elapsed_s, remaining_s)

    def may_hedge(self, tried: tuple[str, ...], *, cancels_capped: bool) -> str:
        return self.admission.may_hedge(tried, self._now_s(), cancels_capped=cancels_capped)

    def hedge_none(self) -> str:
        return self.admission.hedging.why_none()

    def hedge_saw(self) -> dict[str, float | str]:
        admission = self.admission
        return {
            "trigger_s": round(admission.hedging.trigger_s or 0.0, 6),
            "waiting": admission.waiting,
            "in_flight": admission.in_flight,
            "slots": admission.limit,
            "mean_in_flight": round(admission.hedging.mean_in_flight, 3),
            "hedges_out": admission.hedges_out,
            "failing": round(admission.failing.share, 3),
        }

    def fresh_grants(self) -> int:
        seen, self._seen = self._seen, self.admission.granted
        return self._seen - seen

    def median_s(self) -> float:
        return self.admission.pacer.median_s

    def slots_of(self, replica: str) -> int:
        return self.admission.slots_of(replica)
