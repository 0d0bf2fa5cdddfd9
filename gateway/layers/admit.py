"""admit: the one waiting place. Nothing waits anywhere else, but for a step of a sequence that came before its turn
(`sequence.py`).

Holds one `Admission` per version of its model, shows them the fleet as it changes, and wakes the calls whose fate they
have decided. A call goes down with a permit, a slot on a named replica, which comes back in every case: answer, error,
cancellation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.faces import SnapshotSource
from gateway.core.permit import Permit
from gateway.core.reply import Reply
from gateway.core.service import Service
from gateway.core.snapshot import FleetSnapshot, ModelState, ReplicaState, ReplicaView
from gateway.decide.admission import Admission
from gateway.decide.chance import Chance
from gateway.decide.cohorts import level
from gateway.decide.rendezvous import Key
from gateway.decide.slot_limit import LimitRule, SlotLimit
from gateway.decide.ticket import Granted, Queued, Ticket, Why
from gateway.decide.tuning import Tuning
from gateway.layers.affinity import KeyOf, tell_affinity
from gateway.layers.bounds import Bounds
from gateway.layers.desk import NO_DEADLINE_S, AdmissionDesk
from gateway.layers.gate import shown
from gateway.layers.route import no_replica
from gateway.layers.unsent import Unsent
from gateway.runtime.clock import Clock
from gateway.runtime.wheel import TimerWheel

RETRY_AFTER_MIN_S = 1.0
"""Of a call that is shed: no sooner, however short the line is."""


LOADS_AGAIN_S = 60.0
"""A replica that is back, and says after this time that it does not have the version, was not meant to have it again.
One that loads it may take longer.
"""


class AdmitLayer:
    """Admission for the versions of one model in one pool."""

    def __init__(
        self,
        inner: Service,
        *,
        model: str,
        pool: str,
        fleet: SnapshotSource,
        queue_max: int | None,
        clock: Clock,
        wheel: TimerWheel,
        chance: Chance,
        tuning: Tuning | None = None,
        limit: LimitRule | None = None,
        limit_chance: Chance | None = None,
        objective_s: float = 0.0,
        key_of: KeyOf | None = None,
        unsent: Unsent | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        """`limit` None: the slots are as the fleet declares them. `limit_chance`: for its draws alone. `key_of`: what
        keeps a call together with others (`affinity.py`); None where nothing does. `unsent` is asked about calls that
        have failed. `bounds`: None where any free slot is for any call.
        """
        self._inner = inner
        self._model = model
        self._pool = pool
        self._fleet = fleet
        self._queue_max = queue_max
        self._objective_s = objective_s
        self._now_s = clock.now_s
        self._wheel = wheel
        self._chance = chance
        self._tuning = tuning or Tuning()
        self._key_of = key_of
        self._unsent = unsent
        self._limit = limit
        self._limit_chance = limit_chance or chance
        self._bounds = bounds
        self._desks: dict[str, AdmissionDesk] = {}
        fleet.subscribe(self._on_snapshot)

    async def send(self, call: Call) -> Reply:
        trail = call.trail
        version = trail.version_routed
        desk = self._desks.get(version) or self._desk(version)
        if desk is None:
            raise no_replica(call.model, version)
        if self._bounds is not None:
            desk = desk.for_call(call)
        admission = desk.admission
        trail.replicas_ready = admission.ready
        trail.limit_at_admit = admission.limit
        trail.in_flight_at_admit = admission.in_flight
        clock_s, key_of = self._now_s, self._key_of
        now_s = clock_s()
        by_s = call.deadline_s if call.session is None else call.first_response_by_s
        key = None if key_of is None or call.pinned else key_of(call)
        permit = None
        if key is None and call.work == 1.0 and not call.pinned:
            permit = admission.take(by_s, now_s)
        if permit is not None:
            trail.admitted_s = now_s
            if call.explain:
                _note_limit(call, admission)
        else:
            permit = await self._with_ticket(call, desk, by_s, now_s, key)
        permit.desk = desk
        call.permit = permit
        try:
            return await self._inner.send(call)
        except GatewayError:
            reply = None if self._unsent is None else await self._unsent.again(call, desk)
            if reply is None:
                raise
            return reply
        finally:
            # The track layer takes it, and gives it back, whatever happens; unless nothing got so far.
            unused, call.permit = call.permit, None
            if unused is not None:
                desk.give_back(unused)  # which need not be the first one

    async def _with_ticket(self, call: Call, desk: AdmissionDesk, by_s: float, now_s: float, key: Key | None) -> Permit:
        """The slot of a call that may have to wait."""
        trail, admission = call.trail, desk.admission
        ticket = Ticket(
            now_s,
            min(by_s, now_s + NO_DEADLINE_S),
            criticality=call.criticality,
            tenant=call.identity.tenant,
            work=call.work,
            level=_level(call),
            pinned=call.pinned,
            opens=bool(call.pinned) and call.sequence is not None and call.sequence.start,
            key=key,
        )
        decision = admission.offer(ticket, now_s)
        _note_limit(call, admission)
        desk.asked()
        if isinstance(decision, Granted):
            if key is not None:
                tell_affinity(call, admission.balance.affinity)
            trail.admitted_s = now_s
            return decision.permit
        if isinstance(decision, Queued):
            trail.queued_s = now_s
            trail.queued_ahead = decision.ahead
            if self._bounds is not None:
                desk.waited_for(call)
            await desk.wait(ticket)
            if ticket.permit is None:
                assert ticket.why is not None
                desk.tally.refused(call.criticality, ticket.why)
                raise _refused(call, admission, ticket.why, admission.drain_s(self._now_s()))
            if key is not None:
                trail.note("affinity", "waited", {"replica": ticket.permit.replica})
            trail.admitted_s = self._now_s()
            return ticket.permit
        trail.queued_ahead = admission.waiting
        desk.tally.refused(call.criticality, decision.why)
        raise _refused(call, admission, decision.why, decision.wait_s)

    def _desk(self, version: str) -> AdmissionDesk | None:
        """A new admission for `version`; None if nobody can run it. Made only for versions of the fleet, never for a
        caller's word.
        """
        snapshot = self._fleet.snapshot
        candidates = snapshot.candidates(self._pool, self._model, version)
        if not candidates:
            return None
        streams = snapshot.decoupled(self._pool, self._model, version)
        fit = SlotLimit(self._limit, self._limit_chance.random, streams=streams)
        named = f"{self._pool}, {shown(self._model)} {shown(version)}"
        desk: AdmissionDesk
        if self._bounds is None:
            admission = Admission(self._chance, self._queue_max, self._tuning, self._objective_s, fit)
            desk = AdmissionDesk(admission, self._now_s, self._wheel, named)
        else:
            desk = self._bounds.desk(
                self._chance, self._tuning, self._objective_s, fit, self._now_s, self._wheel, named
            )
        for each in desk.desks():
            each.admission.update(candidates, self._now_s())
        self._desks[version] = desk
        return desk

    def _on_snapshot(self, snapshot: FleetSnapshot) -> None:
        now_s = self._now_s()
        views = {replica.id: replica for replica in snapshot.replicas if replica.pool == self._pool}
        for version, desk in tuple(self._desks.items()):
            admission = desk.admission
            candidates = snapshot.candidates(self._pool, self._model, version)
            key = self._model, version
            away = [each for each in admission.gone if each in views and _comes_back(views[each], key, now_s)]
            # Where nothing is new for this version the snapshot shares what has not changed. But one that was down may
            # have left the fleet, or come back without this version, and must not be counted for ever.
            if candidates is not admission.fit.declared or len(away) != len(admission.gone):
                down = {replica for replica, view in views.items() if view.state is ReplicaState.DOWN}
                for each in desk.desks():
                    each.admission.update(candidates, now_s, down.union(away))
                for each in desk.desks():
                    each.wake()
                desk.tell()
            if not candidates and all(each.admission.idle for each in desk.desks()):
                # A call between two attempts may still know it, and finds no candidates there.
                del self._desks[version]

    def held(self, replica: str) -> Mapping[str, int]:
        """Calls that hold a slot there, by version."""
        return {version: desk.admission.held(replica) for version, desk in self._desks.items()}

    def told(self, replica: str, version: str, pending: int, held: int, now_s: float) -> bool:
        """Triton counted `pending` calls on the replica at `now_s`, when `held` were our own. Returns whether there are
        others.
        """
        desk = self._desks.get(version)
        if desk is None:
            return False
        desk.admission.balance.picker.report(replica, pending, held, now_s)
        return pending > held

    def judgements(self, now_s: float) -> Mapping[str, Mapping[str, Any]]:
        """By version, what is thought of the replicas (`Balance.judgements`)."""
        return {version: desk.admission.balance.judgements(now_s) for version, desk in sorted(self._desks.items())}

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        return {version: desk.statistics(now_s) for version, desk in sorted(self._desks.items())}


def _comes_back(replica: ReplicaView, key: tuple[str, str], now_s: float) -> bool:
    """Of one that was found down: it still is, or is on its way back, and has not taken calls again. That is what gives
    it a slow start then.
    """
    if replica.state is not ReplicaState.LIVE:
        return True
    model = replica.models.get(key)
    if model is None or model.state is ModelState.UNAVAILABLE:
        return now_s - (replica.phases.live_s or 0.0) < LOADS_AGAIN_S
    return True


def _note_limit(call: Call, admission: Admission) -> None:
    """A call that may have met another limit than it would have at first is told so."""
    found = admission.fit.note()
    if found is not None:
        call.trail.note("limit", *found)


def _refused(call: Call, admission: Admission, why: Why, wait_s: float) -> GatewayError:
    """What a call is told that gets no slot."""
    version = call.trail.version_routed
    named = f"model '{shown(call.model)}' version {version}"
    if why == "no_replica":
        return no_replica(call.model, version)
    if why == "too_large":
        call.trail.note("memory", why, {"work": call.work})
        return GatewayError(
            Reason.TOO_LARGE,
            f"a call of {call.work:g} units of work needs more memory than any replica has for {named}; send less in "
            "one call",
        )
    if why in ("infeasible", "too_late"):
        return GatewayError(
            Reason.INFEASIBLE,
            f"{named} could not answer before the call's deadline: nothing was sent; allow more time, or try again "
            "when there is less to do",
        )
    retry_after_s = max(RETRY_AFTER_MIN_S, wait_s)
    if why in ("cohort", "standing_queue", "beyond_objective"):
        if why != "cohort" or call.explain:  # of cohorts there are many, and their records are to be cheap
            saw = {"wait_s": round(wait_s, 6), "round_s": round(admission.pacer.worst_s, 6)}
            call.trail.note("admission", why, {**saw, "waiting": admission.waiting, "slots": admission.limit})
        return GatewayError(
            Reason.SHED,
            f"{named} has more to do than it can: calls of this class are being turned away; try again later",
            retry_after_s=retry_after_s,
        )
    return GatewayError(
        Reason.QUEUE_FULL,
        f"{admission.waiting} calls wait already for {named}; try again later",
        retry_after_s=retry_after_s,
    )


def _level(call: Call) -> int:
    """Whether it is shed under overload is decided by this: the same for all calls of one task, which share a trace."""
    key = f"{call.identity.tenant}/{call.trace_id or call.request_id}"
    return level(call.criticality, key, int(call.arrived_wall_s // 3600))
