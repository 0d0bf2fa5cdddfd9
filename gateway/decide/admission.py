"""Admission: the one waiting place of a (pool, model, version), and who gets the next free slot.

A call is bound to a replica only at the moment a slot is free (late binding): one queue in front of n replicas waits
far less than n queues (at nine tenths load and four servers, 2.0 service times against 9). What a call takes is a
`Permit`, a slot on a named replica, and what it gives back is that same permit, once; what its attempt came to is
learnt then. Which replica, `balance.py` decides; who waits, in which order, and who is refused, `waiting_room.py`; who
need not even ask under overload, `cohorts.py`; how fast the servers are, `pacer.py`.

A call of a sequence may run on one replica only: its ticket is `pinned`, and it holds up nobody who can run elsewhere.
One that `opens` a sequence may not take the last slots of its replica (`openers.py`). What is free may be kept for
higher classes for a moment (`kept_round.py`).

A slot may be free while a call waits: the picker would rather let it wait than send it to a replica that is many times
slower (`score.py`), and an ejected replica gets none. Both end when other slots come back, which are taken, or the call
would have got one; and by time, for which `look` is.

A call is not sent if it has less time left than calls need: while others wait, than nearly all do; else, than hardly
any is done in, unless the replica has nothing else to do: an estimate that forbade every call would never be corrected.

The object decides and remembers; it wakes nobody. Whose fate it has decided, it puts into `decided`; the layer empties
that after each call of a method.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gateway.core.outcome import TEACHINGS, Latency, Outcome, Verdict
from gateway.core.permit import Kind, Permit, Special
from gateway.core.snapshot import Candidate
from gateway.decide.balance import Balance
from gateway.decide.chance import Chance
from gateway.decide.cohorts import LEVELS, Cohorts
from gateway.decide.failing import FailingShare
from gateway.decide.hedge import HedgeDelay, HedgeWord, Load, Troubles, hedge_verdict, pool_view
from gateway.decide.kept_round import KeptRound
from gateway.decide.limit import FRESH_MAX as ENDS_MAX
from gateway.decide.openers import Openers
from gateway.decide.pacer import Pacer
from gateway.decide.quantiles import FRESH_MAX
from gateway.decide.slot_limit import Fit, SlotLimit
from gateway.decide.ticket import WHYS, Decision, Granted, Queued, Refused, Ticket, Why
from gateway.decide.tuning import Tuning
from gateway.decide.waiting_room import ROUNDS, Pace, Refusal, WaitingRoom

QUEUE_MIN = 64
"""A model without batching has two slots, and is often quick: four times that is a burst of a few milliseconds."""

DEFAULTS, USUAL = Tuning(), Special()

_ALL = LEVELS - 1
_OK, _RECORD, _LOWER_BOUND = Outcome.OK, Latency.RECORD, Latency.LOWER_BOUND
_SUCCESS, _FAILURE = Verdict.SUCCESS, Verdict.FAILURE

TELL_S = 1.0  # how often the breakers are told what is slow


class Admission:
    """Slots and queue of one (pool, model, version).

    `queue_max` is the number of tickets that may wait; None means four for each slot there is, at least `QUEUE_MIN`.
    Nobody is refused for a wait that leaves `objective_s` within reach. `fit` has the slots; None: those declared.
    A replica that leaves takes its slots with it; calls it still runs are counted until they end.
    """

    # Beyond thirty attributes Python (3.11) finds none of an object's quickly, unless they have slots.
    __slots__ = (
        "_answered", "_counted", "_ejection", "_ends", "_filled", "_fresh", "_in_flight", "_known", "_open",
        "_openers", "_picker", "_queue_max", "_refused", "_room", "_rounds", "_slots", "_tell_s", "balance",
        "candidates", "chance", "cohorts", "decided", "failing", "fit", "gone", "granted", "hedges_out", "hedging",
        "in_flight", "kept", "limit", "news", "pacer", "ready",
    )  # fmt: skip

    def __init__(
        self,
        chance: Chance,
        queue_max: int | None = None,
        tuning: Tuning = DEFAULTS,
        objective_s: float = 0.0,
        fit: Fit = None,
    ) -> None:
        self.chance = chance
        self.balance = Balance(chance, tuning.balance)
        self._picker, self._ejection = self.balance.picker, self.balance.ejection
        self.news = self._ejection.news
        """For who holds this to tell, and to empty."""
        self._answered, self._counted = self._picker.answered, self._ejection.plain
        self.pacer = Pacer(tuning.pacer)
        self._fresh, self._rounds, self._filled = self.pacer.window.fresh, self.pacer.rounds, self.pacer.filled
        self.hedging = HedgeDelay(tuning.hedge, self.pacer.window)
        self.cohorts = Cohorts()
        self._queue_max = queue_max
        self._room: WaitingRoom[Ticket] = WaitingRoom(self.queue_max_of(0), objective_s=objective_s)
        self.fit = fit or SlotLimit(None, chance.random)
        self.candidates: tuple[Candidate, ...] = ()
        """With the slots that they have now. For reading; as they declared themselves: `fit.declared`."""
        self.ready = 0
        """Replicas that may be sent calls."""
        self.limit = self.in_flight = 0
        """The sum of the slots of all candidates, and those that are taken. These three are for reading."""
        self.kept = KeptRound()
        self.decided: list[Ticket] = []
        """Waiting tickets that were granted or refused meanwhile; the layer empties it."""
        self._open = True
        """Nobody waits, and the cohorts let everybody in: kept up to date wherever one of these may change."""
        self._in_flight: dict[str, int] = {}
        self._slots: dict[str, int] = {}
        self._ends = self.fit.ends
        self._openers = Openers()
        self.gone: tuple[str, ...] = ()
        """Replicas that were candidates and were found down, and have not been forgotten. For reading."""
        self._known: dict[str, int] = {}
        """The slots of those, and of the candidates."""
        self._tell_s = -math.inf
        """Until then a plain answer needs no look at the time."""
        self.hedges_out = 0
        self.failing = FailingShare()
        self.granted = 0
        self._refused: dict[str, int] = {"no_replica": 0, "cohort": 0, "infeasible": 0}

    @property
    def waiting(self) -> int:
        return self._room.waiting

    @property
    def queue_max(self) -> int:
        return self._room.queue_max

    def queue_max_of(self, limit: int) -> int:
        return max(QUEUE_MIN, 4 * limit) if self._queue_max is None else self._queue_max

    def slots_of(self, replica: str) -> int:
        """How many slots the replica has, or had when it was found down; 0 if it is not known."""
        return self._slots.get(replica) or self._known.get(replica, 0)

    @property
    def idle(self) -> bool:
        return not self.in_flight and not self._room.waiting

    def held(self, replica: str) -> int:
        return self._in_flight.get(replica, 0)

    # --- asking -------------------------------------------------------------------------------------------------------

    def take(self, deadline_s: float, now_s: float) -> Permit | None:
        """A slot at once, on any replica, for a call that has no ticket; None if it must ask with one (`offer`).
        O(candidates).
        """
        if not self._open:
            return None
        in_flight = self._in_flight
        replica = self._picker.plain(self.candidates, in_flight, now_s) if self._ejection.calm else None
        if replica is None:
            replica = self.balance.pick(in_flight, now_s, brief=now_s + self.pacer.need_s > deadline_s)
            if replica is None or not self._in_time(replica, deadline_s, now_s):
                return None
            return self._grant(replica, now_s)
        count = in_flight.get(replica, 0)
        if (
            count
            and (now_s >= self.pacer.due_s or now_s + self.pacer.least_s > deadline_s)
            and not self._in_time(replica, deadline_s, now_s)
        ):
            return None
        in_flight[replica] = count = count + 1
        self.in_flight += 1
        self.granted += 1
        return Permit(replica, count)

    def _in_time(self, replica: str, deadline_s: float, now_s: float) -> bool:
        if replica not in self._in_flight:
            return True
        self.pacer.pace(self.limit, now_s)
        return now_s + self.pacer.least_s <= deadline_s

    def offer(self, ticket: Ticket, now_s: float) -> Decision:
        """A call asks for a slot. O(candidates)."""
        decision = self._offer(ticket, now_s)
        self._look_around()
        return decision

    def _look_around(self) -> None:
        self._open = not self._room.waiting and self.cohorts.cursor == _ALL

    def _offer(self, ticket: Ticket, now_s: float) -> Decision:
        pinned = ticket.pinned
        self.kept.offered(ticket.criticality, now_s)
        if self.fit.rested(now_s):
            self._refit(now_s)
        if not self.candidates or (pinned and pinned not in self._slots):
            self._refused["no_replica"] += 1
            return Refused("no_replica")
        if self.cohorts.cursor != _ALL:
            self._tell_cohorts(now_s)
        if not pinned and not self.cohorts.admits(ticket.level, now_s):
            self._refused["cohort"] += 1
            return Refused("cohort", self.drain_s(now_s))
        pace = self.pacer.pace_of(self._slots[pinned], now_s) if pinned else self.pacer.pace(self.limit, now_s)
        ticket.cost_s = pace.batch_s * ticket.work
        ticket.least_s = pace.least_s(ticket.work, self._slots.values())
        self._expire(now_s)
        replica: str | None
        if pinned:
            replica = pinned if self._may_go_home(ticket) else None
        elif self._room.waiting > self._room.waiting_pinned:
            replica = None
        else:
            kept = self.kept.kept(ticket.criticality, self._in_flight, self.fit.declared, pace.batch_s, now_s)
            replica = self.kept.elsewhere(kept, self.balance, lambda: self._pick(ticket, pace.need_s, now_s))
        if replica is not None:
            if not pinned and not self._in_time(replica, ticket.deadline_s, now_s):
                self._refused["infeasible"] += 1
                return Refused("infeasible")
            if not pinned:
                self._room.served_at_once(ticket.criticality, ticket.tenant, now_s)
            ticket.permit = permit = self._grant(replica, now_s, ticket)
            return Granted(permit)
        ahead = self._room.waiting
        offered = self._room.offer(ticket, now_s, pace, self.limit - self.in_flight if now_s < self.kept.until_s else 0)
        if offered.pushed_out is not None:
            self._refuse(offered.pushed_out, "pushed_out")
        if offered.why != "waits":
            return Refused(offered.why, offered.wait_s)
        return Queued(ahead - (offered.pushed_out is not None))

    def _pick(self, ticket: Ticket, need_s: float, now_s: float) -> str | None:
        """Where a call goes that nobody waits before; it may be one where it would not be answered in time."""
        in_flight, deadline_s = self._in_flight, ticket.deadline_s
        if now_s + max(need_s, ticket.least_s) <= deadline_s:
            return self.balance.pick(in_flight, now_s, key=ticket.key)
        replica = self.balance.pick(in_flight, now_s, brief=True, key=ticket.key)
        if replica is None or not self._in_time(replica, deadline_s, now_s):
            # It would be refused: so it may as well be the one to prove a replica with, or go to one that is idle and
            # not its key's home. Where all calls have too little time for the others, no other call would ever do it.
            other = self.balance.pick(in_flight, now_s)
            if other is not None and self._in_time(other, deadline_s, now_s):
                if ticket.key is not None and self.balance.affinity is not None:
                    self.balance.affinity.lend()
                return other
        return replica

    def drain_s(self, now_s: float) -> float:
        """How long those who wait take, by estimate."""
        pace = self.pacer.pace(self.limit, now_s)
        return pace.batch_s * (1 + self._room.waiting // pace.instances)

    def _free(self, replica: str) -> bool:
        return self._in_flight.get(replica, 0) < self._slots.get(replica, 0)

    def _may_go_home(self, ticket: Ticket) -> bool:
        """Whether a pinned call may start at once."""
        return self._free(ticket.pinned) and (not ticket.opens or self._room_to_open(ticket.pinned))

    def _room_to_open(self, replica: str) -> bool:
        return self._openers.room(replica, self._slots.get(replica, 0))

    def another(self, kind: Kind, tried: Collection[str], now_s: float, work: float = 1.0) -> Permit | None:
        """A slot at once on a replica that the call has not been to, for a retry or a hedge; None if there is none, or
        if others wait for one.
        """
        if self._room.waiting:
            return None
        replica = self.balance.pick(self._in_flight, now_s, exclude=tried, hold=False)
        if replica is None:
            return None
        self.hedges_out += kind == "hedge"
        return self._grant(replica, now_s, kind=kind, work=work)

    def may_hedge(self, tried: Collection[str], now_s: float, *, cancels_capped: bool) -> HedgeWord:
        """Whether the state of the pool allows a second attempt of a call that may have one. O(candidates)."""
        troubles = Troubles(cancels_capped, self._ejection.panic or self.failing.too_many, self.fit.shrinking(now_s))
        load = Load(self._room.waiting, self.in_flight, self.hedges_out, self.hedging.mean_in_flight)
        view = pool_view(self._in_flight, self._slots, tried, troubles, load)
        return hedge_verdict(view, self.hedging.settings)

    def withdraw(self, ticket: Ticket) -> bool:
        """A waiting call gives up. False if it was not waiting (any more): then it may hold a permit, which must be
        given back.
        """
        waited = self._room.withdraw(ticket)
        self._look_around()
        return waited

    # --- what comes back ----------------------------------------------------------------------------------------------

    def give_back(self, permit: Permit, now_s: float) -> None:
        """A slot is free again. Learns from the permit's attempt, then serves those who wait. Raises ValueError if no
        slot was taken there.
        """
        replica, in_flight = permit.replica, self._in_flight
        count = in_flight.get(replica, 0)
        if count > 1:
            in_flight[replica] = count - 1
        elif count == 1:
            del in_flight[replica]
        else:
            raise ValueError(f"a slot on {replica} was given back that nobody held")
        out = self.in_flight
        self.in_flight = out - 1
        if now_s >= self._tell_s:
            self._tell(now_s)
        attempt, special = permit.attempt, permit.special
        if special is None and attempt is not None and attempt.outcome is _OK:
            # Nearly every call: an answer to a first attempt, and nothing more to say about it.
            started_s = attempt.started_s
            duration_s = (attempt.answered_s or attempt.ended_s) - started_s
            count, ends = permit.in_flight, self._ends
            ends.append((started_s, duration_s, out))
            if len(ends) >= ENDS_MAX and self.fit.fold(now_s):
                self._refit(now_s)
            answered, counted = self._answered, self._counted
            unit_s = answered(replica, duration_s, now_s, count)
            if unit_s:
                self._fresh.append(duration_s)
                self._rounds.append(unit_s)
                if count * ROUNDS > self._slots.get(replica, 0):
                    self._filled.append(unit_s)
                if len(self._rounds) >= FRESH_MAX:
                    self.pacer.fold()
            else:
                self._picker.observe(replica, _RECORD, duration_s, now_s, count)
                self.pacer.answered(duration_s, count, self._slots.get(replica, count), now_s)
            if not counted(replica, duration_s, now_s):
                self._ejection.note(replica, _SUCCESS, duration_s, now_s)
            if self.failing.share:
                self.failing.good()
            if now_s < self.kept.until_s:
                self.kept.ended(replica, in_flight.get(replica, 0), now_s)
        else:
            self._learn(permit, special or USUAL, now_s)
        if not self._open:
            self._serve(now_s)

    def _learn(self, permit: Permit, special: Special, now_s: float) -> None:
        replica = permit.replica
        if special.opens:
            self._openers.give_back(replica)
        self.hedges_out -= special.kind == "hedge"
        self.balance.ended(permit, now_s)
        attempt = permit.attempt
        if attempt is None or attempt.outcome is None:
            return
        outcome = attempt.outcome
        if self.fit.ended(attempt, special, self.in_flight + 1, now_s):
            self._refit(now_s)
        if special.kind == "primary":  # of the others, only those that were slow are known
            duration_s = (attempt.answered_s or attempt.ended_s) - attempt.started_s
            if outcome is _OK:
                slots = self._slots.get(replica, permit.in_flight)  # it has left: at least so many
                self.pacer.answered(duration_s, permit.in_flight, slots, now_s, special.work)
            elif TEACHINGS[outcome].hedge is _LOWER_BOUND:
                self.pacer.cut_short(duration_s, now_s)
        if outcome is _OK:
            self.failing.good()
        elif TEACHINGS[outcome].breaker is _FAILURE:
            self.failing.bad()

    def _tell(self, now_s: float) -> None:
        """Once a second, and when a window of the pacer or of the limit ends: the judges hear how long calls take."""
        if self.fit.fold(now_s):
            self._refit(now_s)
        window = self.pacer.window
        window.count(now_s)
        self._tell_s = min(now_s + TELL_S, window.until_s, self.fit.due_s)
        self.pacer.pace(self.limit, now_s)
        self._ejection.expect(self.pacer.median_s or None)

    def _refit(self, now_s: float) -> None:
        """The slots are others now. Who waits is to be served afterwards."""
        self.candidates, self._slots, self.limit = self.fit.candidates, self.fit.slots, self.fit.limit
        self._tell_s = min(self._tell_s, self.fit.due_s)
        self.balance.update(self.candidates, self.gone, now_s, self.fit.declared)

    def update(self, candidates: Sequence[Candidate], now_s: float, down: Collection[str] = ()) -> None:
        """The fleet changed. `down`: replicas that have been found gone, whatever they had; those that never were
        candidates are passed over.
        """
        slots = self.fit.update(candidates, now_s)
        self.kept.only(slots)
        self.ready, self.pacer.batch_max = len(slots), max((each.batch_max for each in candidates), default=1)
        self._room.queue_max = self.queue_max_of(sum(slots.values()))
        known, self._known = self._known | self._slots, slots
        self.gone = tuple(replica for replica in known if replica in down and replica not in slots)
        self._known.update((replica, known[replica]) for replica in self.gone)
        self._refit(now_s)
        refused: list[Ticket] = [] if self.candidates else self._room.evict("")
        for replica in self._room.pinned_to():
            if replica not in self._slots:
                refused += self._room.evict(replica)
        self._refused["no_replica"] += len(refused)
        for ticket in refused:
            self._refuse(ticket, "no_replica")
        if self._room.waiting:
            self._serve(now_s)
        self._look_around()

    def look(self, now_s: float) -> None:
        """Time has passed, which alone may open a slot to those who wait: a pause of the breaker or of the picker is
        over. To be called now and then while somebody waits.
        """
        if self._room.waiting:
            self._serve(now_s)

    def answered(self, permit: Permit, now_s: float) -> None:
        """The first response of a stream is there: its probe is over however long it lasts, and the limit learns."""
        self.balance.answered(permit, now_s)
        if self.fit.first_response(permit, self.in_flight, now_s):
            self._refit(now_s)
            self.look(now_s)

    # --- granting -----------------------------------------------------------------------------------------------------

    def _serve(self, now_s: float) -> None:
        """Grant what can be granted. Afterwards nobody waits whom the balance would send now."""
        room, pace = self._room, self.pacer.pace(self.limit, now_s)
        self.kept.look_s = math.inf
        refused: list[Refusal[Ticket]] = room.expire(now_s, pace)
        while room.waiting > room.waiting_pinned:
            replica = self._next_place(room, pace, now_s)
            if replica is None or not self._pop(replica, now_s, pace, refused):
                break
        if room.waiting_pinned:
            for replica in room.pinned_to():
                own = self.pacer.pace_of(self._slots.get(replica, 0), now_s)
                while self._free(replica) and self._pop(replica, now_s, own, refused):
                    pass
        for refusal in refused:
            self._refuse(refusal.ticket, refusal.why)
        self._tell_cohorts(now_s)
        self._look_around()

    def _next_place(self, room: WaitingRoom[Ticket], pace: Pace, now_s: float) -> str | None:
        """Where the one whose turn it is would be sent."""
        kept, waiting = self.kept, room.waiting - 1
        ticket = room.peek("") if now_s < kept.until_s else None
        rank = 0 if ticket is None else ticket.criticality
        barred = kept.kept(rank, self._in_flight, self.fit.declared, pace.batch_s, now_s)
        return kept.elsewhere(barred, self.balance, lambda: self.balance.pick(self._in_flight, now_s, waiting=waiting))

    def _tell_cohorts(self, now_s: float) -> None:
        """Also where a call may be turned away for what they know: while nobody is served nobody else tells them that
        the queue has gone.
        """
        room = self._room
        self.cohorts.overloaded(room.overloaded(now_s), now_s, room.settle_s(), room.refused_share(now_s))

    def _pop(self, replica: str, now_s: float, pace: Pace, refused: list[Refusal[Ticket]]) -> bool:
        """A slot on `replica` is free: whether somebody got it."""
        ticket = self._room.pop(replica, now_s, pace, refused, may_open=self._room_to_open(replica))
        if ticket is None:
            return False
        ticket.permit = self._grant(replica, now_s, ticket)
        self.decided.append(ticket)
        return True

    def _grant(
        self, replica: str, now_s: float, ticket: Ticket | None = None, kind: Kind = "primary", work: float = 1.0
    ) -> Permit:
        in_flight = self._in_flight
        in_flight[replica] = count = in_flight.get(replica, 0) + 1
        self.in_flight += 1
        self.granted += 1
        probe, doubt = self.balance.begin(replica, now_s)
        opens = ticket is not None and ticket.opens
        special = Special(kind, probe, opens, doubt, work=work if ticket is None else ticket.work)
        if ticket is not None:
            self.cohorts.note_admitted(ticket.level)
            if ticket.opens:
                self._openers.take(replica)
        return Permit(replica, count, None if special == USUAL else special)

    def _expire(self, now_s: float) -> None:
        if self._room.waiting:
            for refusal in self._room.expire(now_s, self.pacer.pace(self.limit, now_s)):
                self._refuse(refusal.ticket, refusal.why)

    def _refuse(self, ticket: Ticket, why: Why) -> None:
        ticket.why = why
        self.decided.append(ticket)

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        room = self._room.statistics(now_s)
        return {
            "limit": self.limit,
            "adaptive": self.fit.statistics(now_s),
            "in_flight": self.in_flight,
            "in_flight_by_replica": dict(sorted(self._in_flight.items())),
            **{name: room[name] for name in ("waiting", "waiting_pinned", "queue_max", "oldest_wait_s", "withdrawn")},
            "kept": self.kept.statistics(now_s),
            "granted": self.granted,
            "refused": {why: room["refused"].get(why, 0) + self._refused.get(why, 0) for why in WHYS},
            "room": room,
            "cohorts": self.cohorts.statistics(now_s),
            "pace": self.pacer.statistics(now_s),
            "hedging": {**self.hedging.statistics(now_s), "out": self.hedges_out},
            "failing": self.failing.share,
            **self.balance.statistics(now_s),
        }
