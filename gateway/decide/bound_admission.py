"""Admission where not every free slot is for every call: size lanes, and what the models of a pool share.

One `BoundAdmission` for each lane of a (pool, model, version), each with its own room, queue bound, pace, hedge delay
and cohorts: a backlog of large calls refuses large calls. They have in common what is the replicas': the slots that are
taken, the picker's service times, the breakers, and the lanes' books, which say who may start where (`lanes.py`).

A call is held to a replica that has room for it in `shared` too: calls in flight over all models, memory
(`shared_bounds.py`).

Steps of sequences are in the first lane's room, and in no lane's books: they may run on one replica only, and a
stateful model has no other calls to be told from.

Whatever frees something here may be for somebody who waits elsewhere: `stirred` says so, and who holds the admissions
lets each of them `look` until nothing stirs any more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gateway.core.permit import Kind, Permit, Special
from gateway.core.snapshot import Candidate
from gateway.decide.admission import Admission
from gateway.decide.chance import Chance
from gateway.decide.lanes import Lanes
from gateway.decide.shared_bounds import SharedBounds, SharedWhy, Wanted
from gateway.decide.slot_limit import Fit, LimitOfAnother
from gateway.decide.ticket import Decision, Queued, Refused, Ticket
from gateway.decide.tuning import Tuning
from gateway.decide.waiting_room import Pace, Refusal


@dataclass(frozen=True, slots=True)
class Lane:
    """Which lane of which books, and its share of the queue's bound; the first lane has all of it."""

    books: Lanes
    number: int
    share: float = 1.0


class BoundAdmission(Admission):
    """`first`: the admission of the first lane, for those of the others."""

    __slots__ = (
        "_asking", "_first", "_model", "_no_lane", "_others", "_shared", "_usable", "lane", "stirred",
    )  # fmt: skip

    def __init__(
        self,
        chance: Chance,
        queue_max: int | None,
        tuning: Tuning,
        objective_s: float = 0.0,
        fit: Fit = None,
        *,
        model: str,
        lane: Lane | None = None,
        first: BoundAdmission | None = None,
        shared: SharedBounds | None = None,
    ) -> None:
        self.lane = lane
        self._model = model
        self._shared = shared
        self._first = first
        self._others: list[BoundAdmission] = []
        """Of the first lane: those of the other lanes."""
        super().__init__(chance, queue_max, tuning, objective_s, fit if first is None else LimitOfAnother(first.fit))
        if first is not None:
            first._others.append(self)
            self._in_flight = first._in_flight
            self.balance.picker, self.balance.ejection = first.balance.picker, first.balance.ejection
            self.balance.affinity = first.balance.affinity
            self._picker, self._ejection = self.balance.picker, self.balance.ejection
            self.news = first.news
            self._answered, self._counted = self._picker.answered, self._ejection.plain
        self.balance.allowed = self._allowed
        self.stirred = False
        """Something has become free that somebody elsewhere may wait for; who holds this empties it."""
        self._asking = 1.0
        """Work of the call that a replica is looked for."""
        self._usable: frozenset[str] = frozenset()
        """Replicas that could be sent calls now but for what is shared."""
        self._no_lane: set[Permit] = set()
        """Permits of steps of sequences."""

    def queue_max_of(self, limit: int) -> int:
        whole = super().queue_max_of(limit)
        if self.lane is None or not self.lane.number or not whole:
            return whole
        return max(1, int(whole * self.lane.share))

    # --- who may start where ------------------------------------------------------------------------------------------

    def _allowed(self, replica: str) -> bool:
        """Whether a call of this lane, of the work that is asked for, may start there beside what the slots say."""
        lane = self.lane
        if lane is not None and lane.books.may_run(lane.number, replica) != "ok":
            return False
        return self._fits(replica)

    def _fits(self, replica: str) -> bool:
        shared = self._shared
        return shared is None or shared.may_take(replica, self._model, self._asking, self) == "ok"

    def _may_go_home(self, ticket: Ticket) -> bool:
        if not (super()._may_go_home(ticket) and self._fits(ticket.pinned)):
            return False
        # Whoever waits for memory there would wait for as long as smaller ones come.
        first = self._room.peek(ticket.pinned, may_open=self._room_to_open(ticket.pinned))
        return first is None or not first.pinned

    def _bar(self, now_s: float) -> None:
        """Tell lanes and memory who gets no calls at the moment."""
        ejection, trusted = self.balance.ejection, self.balance.picker.trusted
        calm = ejection.calm
        barred = [
            replica
            for replica in self._slots
            if not trusted(replica)
            or not (calm or (ejection.admissible(replica, now_s) and not ejection.waits_to_prove(replica)))
        ]
        if self.lane is not None:
            self.lane.books.bar(barred)
        if self._shared is not None:
            self._usable = frozenset(self._slots).difference(barred) or frozenset(self._slots)

    # --- asking -------------------------------------------------------------------------------------------------------

    def take(self, deadline_s: float, now_s: float) -> Permit | None:
        if not self._open:
            return None
        self._asking = 1.0
        replica = self.balance.pick(self._in_flight, now_s, brief=now_s + self.pacer.need_s > deadline_s)
        if replica is None or not self._in_time(replica, deadline_s, now_s):
            return None
        return self._grant(replica, now_s)

    def _offer(self, ticket: Ticket, now_s: float) -> Decision:
        self._asking = ticket.work
        if self._never(ticket):
            self._refused["too_large"] = self._refused.get("too_large", 0) + 1
            return Refused("too_large")
        self._bar(now_s)
        decision = super()._offer(ticket, now_s)
        if self._shared is not None and isinstance(decision, Queued) and self._room.peek(ticket.pinned) is ticket:
            self.stirred = True  # it is the next now, and may need less than who was
        return decision

    def _never(self, ticket: Ticket) -> bool:
        """Whether no replica that may run it could hold it, even alone."""
        shared = self._shared
        if shared is None or not self._slots:
            return False
        targets = [ticket.pinned] if ticket.pinned else list(self._slots)
        return all(shared.too_large(replica, self._model, ticket.work) for replica in targets)

    def held_up_by(self, work: float) -> SharedWhy:
        """Why a call that waits has to, as far as it is for what is shared: the word of a replica with a free slot;
        `ok` if it is for something else.
        """
        self._asking = work
        shared = self._shared
        if shared is not None:
            for replica in sorted(self._slots):
                if self._free(replica):
                    why = shared.may_take(replica, self._model, work, self)
                    if why != "ok":
                        return why
        return "ok"

    def another(self, kind: Kind, tried: Collection[str], now_s: float, work: float = 1.0) -> Permit | None:
        self._asking = work
        return super().another(kind, tried, now_s, work)

    # --- granting -----------------------------------------------------------------------------------------------------

    def _serve(self, now_s: float) -> None:
        self._expire(now_s)
        self._bar(now_s)
        self._ask_for_next()
        super()._serve(now_s)

    def _ask_for_next(self) -> None:
        ticket = self._room.peek("")
        if ticket is not None:
            self._asking = ticket.work

    def _pop(self, replica: str, now_s: float, pace: Pace, refused: list[Refusal[Ticket]]) -> bool:
        def fits(ticket: Ticket) -> bool:
            self._asking = ticket.work
            return self._fits(replica) if ticket.pinned else self._allowed(replica)

        may_open = self._room_to_open(replica)
        ticket = self._room.pop(replica, now_s, pace, refused, may_open=may_open, fits=fits)
        if ticket is None:
            return False
        ticket.permit = self._grant(replica, now_s, ticket)
        self.decided.append(ticket)
        self._stand()
        self._ask_for_next()
        return True

    def _grant(
        self, replica: str, now_s: float, ticket: Ticket | None = None, kind: Kind = "primary", work: float = 1.0
    ) -> Permit:
        permit = super()._grant(replica, now_s, ticket, kind, work)
        lane, shared = self.lane, self._shared
        if lane is not None:
            if ticket is not None and ticket.pinned:
                self._no_lane.add(permit)
            else:
                lane.books.take(lane.number, replica)
        if shared is not None:
            if shared.keeps_for(self):
                self.stirred = True  # it may start elsewhere than where room was kept
            held = shared.take(replica, self._model, work if ticket is None else ticket.work, self)
            if held:
                permit.special = (permit.special or Special())._replace(held_bytes=held)
        return permit

    def give_back(self, permit: Permit, now_s: float) -> None:
        lane, shared = self.lane, self._shared
        if permit in self._no_lane:
            self._no_lane.discard(permit)
        elif lane is not None:
            lane.books.give_back(lane.number, permit.replica)
        if shared is not None:
            shared.give_back(permit.replica, self._model, 0 if permit.special is None else permit.special.held_bytes)
        self.stirred = True
        # What is free may be for others, who have waited longer: nobody is served here, but in the turn of all.
        self._open = True
        super().give_back(permit, now_s)
        super()._look_around()

    def _look_around(self) -> None:
        super()._look_around()
        self._stand()

    def _stand(self) -> None:
        """Tell the lanes how many wait."""
        room, lane = self._room, self.lane
        if lane is not None and lane.books.stand(lane.number, room.waiting - room.waiting_pinned):
            self.stirred = True
        if self._shared is not None:
            ticket = room.peek("") if room.waiting else None
            wanted = None if ticket is None else Wanted(self._model, ticket.work, self._usable)
            if self._shared.wants(self, wanted):
                self.stirred = True

    # --- the fleet ----------------------------------------------------------------------------------------------------

    def update(self, candidates: Sequence[Candidate], now_s: float, down: Collection[str] = ()) -> None:
        super().update(candidates, now_s, down)
        self.stirred = True

    def _refit(self, now_s: float) -> None:
        """Lanes have shares of the slots that are in force. These are moved by what the first lane's calls tell: it
        alone sees calls of a usual size.
        """
        first, lane = self._first, self.lane
        if first is None:
            super()._refit(now_s)
            if lane is not None:
                lane.books.update(self._slots)
        else:
            self.candidates, self._slots, self.gone = first.candidates, first._slots, first.gone
            self.balance.update(self.candidates, self.gone, now_s, first.fit.declared)
        if lane is not None:
            self.limit = lane.books.slots_of(lane.number)
        for each in self._others:
            each._refit(now_s)
        self.stirred = True

    def _tell(self, now_s: float) -> None:
        super()._tell(now_s)
        if self._first is not None:
            # What is usual is what the small calls say.
            self._ejection.expect(self._first.pacer.median_s or None)
