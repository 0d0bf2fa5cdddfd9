"""Admission: the one waiting place of a (pool, model, version), and who gets the next free slot.

A call is bound to a replica only at the moment a slot is free (late binding): one queue in front of n replicas waits
far less than n queues (at nine tenths load and four servers, 2.0 service times against 9). The limit here is fixed:
the sum of the replicas' slots. What a call takes is a `Permit`, a slot on a named replica, and what it gives back is
that same permit, once.

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


class Ticket:
    """A call that asks for a slot. `replica` is set when it is granted; `waiter` is the asker's, untouched here."""

    __slots__ = ("offered_s", "replica", "waiter")

    def __init__(self, offered_s: float, waiter: object = None) -> None:
        self.offered_s = offered_s
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


class Admission:
    """Slots and queue of one (pool, model, version).

    `queue_max` is the number of tickets that may wait; None means four for each slot there is. First come, first
    served. A replica that leaves takes its slots with it; calls it still runs are counted until they end.
    """

    def __init__(self, picker: LeastInFlight, queue_max: int | None = None) -> None:
        self._picker = picker
        self._queue_max = queue_max
        self._candidates: tuple[Candidate, ...] = ()
        self._limit = 0
        self._in_flight: dict[str, int] = {}
        self._total = 0
        self._queue: OrderedDict[Ticket, None] = OrderedDict()
        self._granted = 0
        self._refused: dict[str, int] = {"no_replica": 0, "queue_full": 0}
        self._withdrawn = 0

    @property
    def limit(self) -> int:
        """The sum of the slots of all candidates."""
        return self._limit

    @property
    def in_flight(self) -> int:
        return self._total

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def queue_max(self) -> int:
        return 4 * self._limit if self._queue_max is None else self._queue_max

    @property
    def ready(self) -> int:
        """Replicas that may be sent calls."""
        return len(self._candidates)

    @property
    def idle(self) -> bool:
        return not self._total and not self._queue

    def offer(self, ticket: Ticket) -> Decision:
        """A call asks for a slot. O(candidates)."""
        if not self._candidates:
            self._refused["no_replica"] += 1
            return Refused("no_replica")
        if not self._queue:
            replica = self._picker.pick(self._candidates, self._in_flight)
            if replica is not None:
                self._grant(ticket, replica)
                return Granted(replica)
        ahead = len(self._queue)
        if ahead >= self.queue_max:
            self._refused["queue_full"] += 1
            return Refused("queue_full")
        self._queue[ticket] = None
        return Queued(ahead)

    def withdraw(self, ticket: Ticket) -> bool:
        """A waiting call gives up. False if it was not waiting (any more): then it may hold a grant, which must be
        given back.
        """
        if ticket in self._queue:
            del self._queue[ticket]
            self._withdrawn += 1
            return True
        return False

    def give_back(self, replica: str) -> list[Ticket]:
        """A slot on `replica` is free again. Returns the tickets that got one. Raises ValueError if none was taken
        there.
        """
        count = self._in_flight.get(replica, 0)
        if count <= 0:
            raise ValueError(f"a slot on {replica} was given back that nobody held")
        if count == 1:
            del self._in_flight[replica]
        else:
            self._in_flight[replica] = count - 1
        self._total -= 1
        return self._serve() if self._queue else []

    def update(self, candidates: Sequence[Candidate]) -> tuple[list[Ticket], list[Ticket]]:
        """The fleet changed. Returns the tickets granted, and those refused because no replica is left."""
        self._candidates = tuple(candidates)
        self._limit = sum(candidate.slots for candidate in candidates)
        if not self._candidates:
            refused = list(self._queue)
            self._queue.clear()
            self._refused["no_replica"] += len(refused)
            return [], refused
        return self._serve(), []

    def _serve(self) -> list[Ticket]:
        granted: list[Ticket] = []
        while self._queue:
            replica = self._picker.pick(self._candidates, self._in_flight)
            if replica is None:
                break
            ticket, _ = self._queue.popitem(last=False)
            self._grant(ticket, replica)
            granted.append(ticket)
        return granted

    def _grant(self, ticket: Ticket, replica: str) -> None:
        ticket.replica = replica
        self._in_flight[replica] = self._in_flight.get(replica, 0) + 1
        self._total += 1
        self._granted += 1

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        oldest = next(iter(self._queue), None)
        return {
            "limit": self._limit,
            "in_flight": self._total,
            "in_flight_by_replica": dict(sorted(self._in_flight.items())),
            "waiting": len(self._queue),
            "queue_max": self.queue_max,
            "oldest_wait_s": 0.0 if oldest is None else now_s - oldest.offered_s,
            "granted": self._granted,
            "refused": dict(self._refused),
            "withdrawn": self._withdrawn,
        }
