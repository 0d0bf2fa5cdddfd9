"""Admission: the one waiting place of a (pool, model, version), and who gets the next free slot.

A call is bound to a replica only at the moment a slot is free (late binding): one queue in front of n replicas waits
far less than n queues (at nine tenths load and four servers, 2.0 service times against 9). The limit here is fixed:
the sum of the replicas' slots. What a call takes is a `Permit`, a slot on a named replica, and what it gives back is
that same permit, once.

A call of a sequence may run on one replica only: its ticket is `pinned`. Pinned tickets stand in line by replica, so
that one whose replica is busy holds up nobody else. A slot that frees goes to whoever came first of those who can use
it: a pinned ticket is passed by newer ones on other replicas alone, an unpinned one never.

A pinned ticket that `opens` a sequence may take at most half of its replica's slots (one at least). Triton lets a new
sequence wait until a running one ends, and it waits inside a slot; were all slots taken by such, the calls that end
the running ones would find none.

The object decides and remembers; it wakes nobody. `offer`, `give_back`, `update` return the tickets that were granted
meanwhile, and the layer that asked wakes them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.core.snapshot import Candidate
from gateway.decide.pick import LeastInFlight

QUEUE_MIN = 64
"""A model without batching has two slots, and is often quick: four times that is a burst of a few milliseconds."""


class Ticket:
    """A call that asks for a slot, on the replica `pinned` if that is not "". `replica` is set when it is granted;
    `waiter` is the asker's, untouched here.
    """

    __slots__ = ("number", "offered_s", "opens", "pinned", "replica", "waiter")

    def __init__(self, offered_s: float, waiter: object = None, *, pinned: str = "", opens: bool = False) -> None:
        self.offered_s = offered_s
        self.pinned = pinned
        self.opens = opens
        """It begins a sequence (pinned tickets only)."""
        self.number = 0
        """Its place in the order of arrival, if it had to wait."""
        self.replica: str | None = None
        self.waiter = waiter


@dataclass(frozen=True, slots=True)
class Granted:
    replica: str


@dataclass(frozen=True, slots=True)
class Queued:
    ahead: int
    """Calls that wait before this one."""


@dataclass(frozen=True, slots=True)
class Refused:
    """`why` is `no_replica` (nothing could ever free a slot) or `queue_full`."""

    why: str


Decision = Granted | Queued | Refused


Queue = OrderedDict[Ticket, None]


class _Line:
    """The pinned tickets of one replica: those that wait, and how many of the openers hold a slot."""

    __slots__ = ("openers", "opening", "steps")

    def __init__(self) -> None:
        self.steps: Queue = OrderedDict()
        self.openers: Queue = OrderedDict()
        self.opening = 0


class Admission:
    """Slots and queue of one (pool, model, version).

    `queue_max` is the number of tickets that may wait; None means four for each slot there is, at least `QUEUE_MIN`.
    First come, first served. A replica that leaves takes its slots with it; calls it still runs are counted until they
    end.
    """

    def __init__(self, picker: LeastInFlight, queue_max: int | None = None) -> None:
        self._picker = picker
        self._queue_max = queue_max
        self.candidates: tuple[Candidate, ...] = ()
        """Of the last update. For reading."""
        self.ready = 0
        """Replicas that may be sent calls."""
        self.limit = 0
        """The sum of the slots of all candidates."""
        self.in_flight = 0
        """Slots that are taken. These three are for reading."""
        self._in_flight: dict[str, int] = {}
        self._slots: dict[str, int] = {}
        self._queue: Queue = OrderedDict()
        self._lines: dict[str, _Line] = {}
        """By replica; only where there is something to remember."""
        self._pinned_waiting = 0
        self._arrivals = 0
        self._granted = 0
        self._refused: dict[str, int] = {"no_replica": 0, "queue_full": 0}
        self._withdrawn = 0

    @property
    def waiting(self) -> int:
        return len(self._queue) + self._pinned_waiting

    @property
    def queue_max(self) -> int:
        return max(QUEUE_MIN, 4 * self.limit) if self._queue_max is None else self._queue_max

    @property
    def idle(self) -> bool:
        return not self.in_flight and not self.waiting

    def take(self) -> str | None:
        """A slot at once, on any replica, for a call that has no ticket; None if it must ask with one (`offer`).
        O(candidates).
        """
        if self._queue:
            return None
        replica = self._picker.pick(self.candidates, self._in_flight)
        if replica is not None:
            self._in_flight[replica] = self._in_flight.get(replica, 0) + 1
            self.in_flight += 1
            self._granted += 1
        return replica

    def offer(self, ticket: Ticket) -> Decision:
        """A call asks for a slot. O(candidates)."""
        pinned = ticket.pinned
        if not self.candidates or (pinned and pinned not in self._slots):
            self._refused["no_replica"] += 1
            return Refused("no_replica")
        # Where a slot is free, nobody waits who could use it (`_serve`).
        if pinned:
            replica = pinned if self._free(pinned) and self._may_open(ticket) else None
        else:
            replica = None if self._queue else self._picker.pick(self.candidates, self._in_flight)
        if replica is not None:
            self._grant(ticket, replica)
            return Granted(replica)
        ahead = self.waiting
        if ahead >= self.queue_max:
            self._refused["queue_full"] += 1
            return Refused("queue_full")
        self._arrivals += 1
        ticket.number = self._arrivals
        self._queue_of(ticket)[ticket] = None
        self._pinned_waiting += bool(pinned)
        return Queued(ahead)

    def _free(self, replica: str) -> bool:
        return self._in_flight.get(replica, 0) < self._slots.get(replica, 0)

    def _may_open(self, ticket: Ticket) -> bool:
        if not ticket.opens:
            return True
        line = self._lines.get(ticket.pinned)
        return line is None or line.opening < max(1, self._slots.get(ticket.pinned, 0) // 2)

    def _queue_of(self, ticket: Ticket) -> Queue:
        if not ticket.pinned:
            return self._queue
        line = self._line(ticket.pinned)
        return line.openers if ticket.opens else line.steps

    def _line(self, replica: str) -> _Line:
        line = self._lines.get(replica)
        if line is None:
            line = self._lines[replica] = _Line()
        return line

    def _tidy(self, replica: str) -> None:
        line = self._lines.get(replica)
        if line is not None and not line.opening and not line.steps and not line.openers:
            del self._lines[replica]

    def withdraw(self, ticket: Ticket) -> bool:
        """A waiting call gives up. False if it was not waiting (any more): then it may hold a grant, which must be
        given back.
        """
        if not ticket.pinned:
            queue = self._queue
        else:
            line = self._lines.get(ticket.pinned)
            if line is None:
                return False
            queue = line.openers if ticket.opens else line.steps
        if ticket not in queue:
            return False
        self._take(ticket, queue)
        self._withdrawn += 1
        return True

    def _take(self, ticket: Ticket, queue: Queue) -> None:
        """Out of the line."""
        del queue[ticket]
        if ticket.pinned:
            self._pinned_waiting -= 1
            self._tidy(ticket.pinned)

    def give_back(self, replica: str, *, opened: bool = False) -> list[Ticket]:
        """A slot on `replica` is free again; `opened`: that of a ticket which `opens`. Returns the tickets that got
        one. Raises ValueError if none was taken there.
        """
        count = self._in_flight.get(replica, 0)
        if count > 1:
            self._in_flight[replica] = count - 1
        elif count == 1:
            del self._in_flight[replica]
        else:
            raise ValueError(f"a slot on {replica} was given back that nobody held")
        self.in_flight -= 1
        if opened:
            self._lines[replica].opening -= 1
            self._tidy(replica)
        return self._serve() if self._queue or self._pinned_waiting else []

    def update(self, candidates: Sequence[Candidate]) -> tuple[list[Ticket], list[Ticket]]:
        """The fleet changed. Returns the tickets granted, and those refused because no replica is left that could ever
        serve them.
        """
        self.candidates = tuple(candidates)
        self._slots = {candidate.replica: candidate.slots for candidate in candidates}
        self.ready, self.limit = len(self.candidates), sum(self._slots.values())
        refused = [] if self.candidates else list(self._queue)
        for replica in [replica for replica in self._lines if replica not in self._slots]:
            refused += (*self._lines[replica].steps, *self._lines[replica].openers)
        for ticket in refused:
            self._take(ticket, self._queue_of(ticket))
        self._refused["no_replica"] += len(refused)
        return self._serve(), refused

    def _serve(self) -> list[Ticket]:
        """Grant what can be granted. Afterwards nobody waits who could use a slot that is free."""
        granted: list[Ticket] = []
        while self._queue:
            replica = self._picker.pick(self.candidates, self._in_flight)
            if replica is None:
                break
            ticket = self._first(replica)
            assert ticket is not None
            self._give(ticket, replica, granted)
        if self._pinned_waiting:
            for replica in tuple(self._lines):
                while self._free(replica) and (ticket := self._first(replica)) is not None:
                    self._give(ticket, replica, granted)
        return granted

    def _first(self, replica: str) -> Ticket | None:
        """Who came first of those that may have a slot on `replica`."""
        heads = [next(iter(self._queue), None)]
        line = self._lines.get(replica)
        if line is not None:
            heads.append(next(iter(line.steps), None))
            opener = next(iter(line.openers), None)
            heads.append(opener if opener is not None and self._may_open(opener) else None)
        return min((head for head in heads if head is not None), key=lambda head: head.number, default=None)

    def _give(self, ticket: Ticket, replica: str, granted: list[Ticket]) -> None:
        self._take(ticket, self._queue_of(ticket))
        self._grant(ticket, replica)
        granted.append(ticket)

    def _grant(self, ticket: Ticket, replica: str) -> None:
        ticket.replica = replica
        if ticket.opens:
            self._line(replica).opening += 1
        self._in_flight[replica] = self._in_flight.get(replica, 0) + 1
        self.in_flight += 1
        self._granted += 1

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        heads = [next(iter(self._queue), None)]
        for line in self._lines.values():
            heads += (next(iter(line.steps), None), next(iter(line.openers), None))
        oldest = min((head for head in heads if head is not None), key=lambda head: head.number, default=None)
        return {
            "limit": self.limit,
            "in_flight": self.in_flight,
            "in_flight_by_replica": dict(sorted(self._in_flight.items())),
            "waiting": self.waiting,
            "waiting_pinned": self._pinned_waiting,
            "queue_max": self.queue_max,
            "oldest_wait_s": 0.0 if oldest is None else now_s - oldest.offered_s,
            "granted": self._granted,
            "refused": dict(self._refused),
            "withdrawn": self._withdrawn,
        }
