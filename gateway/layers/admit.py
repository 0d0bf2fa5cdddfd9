"""admit: the one waiting place. Nothing waits anywhere else, but for a step of a sequence that came before its turn
(`sequence.py`).

Holds one `Admission` per version of its model, shows them the fleet as it changes, and wakes the calls that they
grant. A call goes down with a permit, a slot on a named replica, which comes back in every case: answer, error,
cancellation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.faces import SnapshotSource
from gateway.core.reply import Reply, StreamReply
from gateway.core.service import Service
from gateway.core.snapshot import FleetSnapshot
from gateway.decide.admission import Admission, Granted, Queued, Ticket
from gateway.decide.pick import LeastInFlight
from gateway.layers.gate import shown
from gateway.layers.route import no_replica
from gateway.runtime.clock import Clock


class AdmitLayer:
    """Admission for the versions of one model in one pool."""

    def __init__(
        self,
        inner: Service,
        *,
        model: str,
        pool: str,
        fleet: SnapshotSource,
        picker: LeastInFlight,
        queue_max: int | None,
        clock: Clock,
    ) -> None:
        self._inner = inner
        self._model = model
        self._pool = pool
        self._fleet = fleet
        self._picker = picker
        self._queue_max = queue_max
        self._now_s = clock.now_s
        self._admissions: dict[str, Admission] = {}
        fleet.subscribe(self._on_snapshot)

    async def send(self, call: Call) -> Reply:
        trail = call.trail
        version = trail.version_routed
        admission = self._admissions.get(version) or self._admission(version)
        if admission is None:
            raise no_replica(call.model, version)
        trail.replicas_ready = admission.ready
        trail.limit_at_admit = admission.limit
        trail.in_flight_at_admit = admission.in_flight
        opened = False
        replica = None if call.pinned else admission.take()
        if replica is not None:
            trail.admitted_s = self._now_s()
        else:
            replica, opened = await self._with_ticket(call, admission)
        call.permit = replica
        try:
            reply = await self._inner.send(call)
        except BaseException:
            _give_back(call, admission, replica, opened)
            raise
        if isinstance(reply, StreamReply) and not reply.finished:
            # The replica still works on it: the slot is taken until the stream has ended.
            _give_back_later(reply, call, admission, replica, opened)
        else:
            _give_back(call, admission, replica, opened)
        return reply

    async def _with_ticket(self, call: Call, admission: Admission) -> tuple[str, bool]:
        """The slot of a call that may have to wait, and whether it opens a sequence."""
        trail, now_s = call.trail, self._now_s()
        opens = bool(call.pinned) and call.sequence is not None and call.sequence.start
        ticket = Ticket(now_s, pinned=call.pinned, opens=opens)
        decision = admission.offer(ticket)
        if isinstance(decision, Granted):
            trail.admitted_s = now_s
        elif isinstance(decision, Queued):
            trail.queued_s = now_s
            trail.queued_ahead = decision.ahead
            await self._wait(admission, ticket)
            trail.admitted_s = self._now_s()
        elif decision.why == "no_replica":
            raise no_replica(call.model, trail.version_routed)
        else:
            trail.queued_ahead = waiting = admission.waiting
            raise GatewayError(
                Reason.QUEUE_FULL,
                f"{waiting} calls wait already for model '{shown(call.model)}' version "
                f"{trail.version_routed}; try again later",
                retry_after_s=1.0,
            )
        assert ticket.replica is not None
        return ticket.replica, opens

    async def _wait(self, admission: Admission, ticket: Ticket) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ticket.waiter = future
        try:
            await future
        except BaseException:
            # Cancelled, or refused because the last replica left. A grant may have come in the same turn of the loop:
            # then the slot is this call's to give back.
            if not admission.withdraw(ticket) and ticket.replica is not None:
                _wake(admission.give_back(ticket.replica, opened=ticket.opens))
            raise

    def _admission(self, version: str) -> Admission | None:
        """A new admission for `version`; None if nobody can run it. Made only for versions of the fleet, never for a
        caller's word.
        """
        candidates = self._fleet.snapshot.candidates(self._pool, self._model, version)
        if not candidates:
            return None
        admission = self._admissions[version] = Admission(self._picker, self._queue_max)
        admission.update(candidates)
        return admission

    def _on_snapshot(self, snapshot: FleetSnapshot) -> None:
        for version, admission in tuple(self._admissions.items()):
            candidates = snapshot.candidates(self._pool, self._model, version)
            if not candidates and admission.idle:
                del self._admissions[version]
                continue
            if candidates is admission.candidates:
                continue  # Nothing is new for this version: the snapshot shares what has not changed.
            granted, refused = admission.update(candidates)
            _wake(granted)
            for ticket in refused:
                waiter = ticket.waiter
                assert isinstance(waiter, asyncio.Future)
                if not waiter.done():
                    waiter.set_exception(no_replica(self._model, version))

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        return {version: admission.statistics(now_s) for version, admission in sorted(self._admissions.items())}


def _give_back(call: Call, admission: Admission, replica: str, opened: bool) -> None:
    call.permit = ""
    granted = admission.give_back(replica, opened=opened)
    if granted:
        _wake(granted)


def _give_back_later(reply: Reply, call: Call, admission: Admission, replica: str, opened: bool) -> None:
    # Not in `send`: what a closure refers to is kept in cells, for every call and not only for streams.
    reply.on_close(lambda outcome: _give_back(call, admission, replica, opened))


def _wake(tickets: Sequence[Ticket]) -> None:
    for ticket in tickets:
        waiter = ticket.waiter
        assert isinstance(waiter, asyncio.Future)
        if not waiter.done():
            waiter.set_result(None)
        # A waiter that is done was cancelled in this very turn; its `_wait` gives the slot back.
