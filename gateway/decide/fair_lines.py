"""Lines of waiting calls inside one class: turns by deficit round robin, in each line the earliest deadline first.

Deficit round robin (Shreedhar and Varghese, "Efficient Fair Queuing using Deficit Round Robin", 1995): each line gets
a quantum of accelerator time a turn, saves what it does not use, and pays for a call before it is sent; a line that
runs empty loses what it saved. Of two lines that are never empty, neither gets more than one quantum plus twice the
largest cost ahead of the other, over any span of time.

A tenant has a line of its own while it waits, up to `LINES`. Who comes when all are taken shares one: a hand of `HAND`
lines is dealt by the hash of its name, and it joins that with the least work (shuffle sharding, as in Kubernetes' API
priority and fairness), and stays there while it waits. Then fairness is between lines.

A ticket costs O(log n) comparisons and the move of at most 8 bytes for each ticket of its line; whose turn it is costs
O(1) in the mean, O(LINES) at worst. The lists are sorted rather than heaps: a ticket can be taken out of the middle
without leaving anything behind, the latest is as near as the earliest, and how many go before one is a bisection.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from gateway.decide.codel import Codel, CodelSettings
from gateway.decide.rendezvous import digest
from gateway.decide.turned_away import TurnedAway

LINES = 64
HAND = 8
"""64 queues, a hand of 8: Kubernetes' defaults. That one busy tenant covers another's hand has a chance of 2e-10."""

NS = 1_000_000_000
"""Costs are counted in whole nanoseconds: no rounding adds up."""

Lane = tuple[str, bool]
"""Which slots a ticket can use: (`pinned`, `opens`)."""
ANY: Lane = ("", False)


class RoomTicket:
    """A call that waits. To be subclassed by who keeps more. Not to be changed while it waits.

    Times are on the monotonic clock. `deadline_s` is finite: one without end would starve behind those that have one,
    give it a default. `cost_s` is its expected accelerator time, its share of a batch: S(b*)/b* for a usual call.
    """

    __slots__ = (
        "admitted",
        "cost_ns",
        "cost_s",
        "criticality",
        "deadline_s",
        "entry",
        "least_s",
        "line",
        "offered_s",
        "opens",
        "pinned",
        "tenant",
        "work",
    )

    def __init__(
        self,
        offered_s: float,
        deadline_s: float,
        *,
        criticality: int = 1,
        tenant: str = "",
        cost_s: float = 0.0,
        work: float = 1.0,
        pinned: str = "",
        opens: bool = False,
        admitted: bool = False,
    ) -> None:
        self.offered_s = offered_s
        self.deadline_s = deadline_s
        self.criticality = criticality
        """0 is the highest class."""
        self.tenant = tenant
        self.cost_s = cost_s
        self.least_s = cost_s
        """How long it takes at the least once it is sent: of a large call that has many slots' worth of a batch, less
        than its cost.
        """
        self.work = work
        """Units of work, from which the asker made `cost_s`; untouched here."""
        self.pinned = pinned
        """The one replica that may run it, "" for any."""
        self.opens = opens
        """It begins a sequence (pinned tickets only)."""
        self.admitted = admitted
        """Its call has had a slot before, and lost it: only its deadline may turn it away now."""
        # The room's own.
        self.cost_ns = 0
        self.entry: tuple[float, int, Any] = (0.0, 0, None)
        self.line: Line[Any] | None = None
        """Where it waits, if it does."""


T = TypeVar("T", bound=RoomTicket)


class Line(Generic[T]):
    """The tickets of one tenant in one class, or of several that share the line, by lane.

    A lane is a sorted list of (-deadline, -number, ticket): the next one is the last, the latest is the first.
    """

    __slots__ = ("deficit_ns", "guard", "lanes", "level", "place", "tenants", "waiting", "work_ns")

    def __init__(self, level: Level[T], place: int, deficit_ns: int, codel: CodelSettings) -> None:
        self.level = level
        self.place = place
        self.deficit_ns = deficit_ns
        """What it has saved. Below its next ticket's cost plus a quantum."""
        self.guard = Codel(codel)
        self.lanes: dict[Lane, list[tuple[float, int, T]]] = {}
        """None is empty."""
        self.tenants: dict[str, int] = {}
        """How many tickets of each tenant wait here."""
        self.waiting = 0
        self.work_ns = 0

    def next(self, lanes: Sequence[Lane]) -> T | None:
        """The earliest deadline of those in `lanes`; of equal ones who came first."""
        best: tuple[float, int, T] | None = None
        for lane in lanes:
            entries = self.lanes.get(lane)
            if entries is not None and (best is None or entries[-1] > best):
                best = entries[-1]
        return None if best is None else best[2]

    def latest(self) -> T:
        """The latest deadline of all; of equal ones who came last."""
        return min(entries[0] for entries in self.lanes.values())[2]

    def earlier_ns(self, lane: Lane, entry: tuple[float, int, T]) -> int:
        """The work in `lane` that goes before `entry`, at the mean cost of this line."""
        entries = self.lanes.get(lane)
        return 0 if entries is None else (len(entries) - bisect_right(entries, entry)) * self.work_ns // self.waiting


class Level(Generic[T]):
    """One class: its lines, and whose turn it is."""

    __slots__ = (
        "_codel", "_quantum_ns", "by_tenant", "guard", "places", "rank", "ring", "turned_away", "waiting", "work_ns",
    )  # fmt: skip

    def __init__(self, rank: int, quantum_ns: int, codel: CodelSettings) -> None:
        self.rank = rank
        self._quantum_ns = quantum_ns
        self._codel = codel
        self.ring: OrderedDict[Line[T], None] = OrderedDict()
        """Those with tickets, in the order of their turns. Each has had the quantum of its turn already."""
        self.places: list[Line[T] | None] = [None] * LINES
        self.by_tenant: dict[str, Line[T]] = {}
        self.guard = Codel(codel)
        """Over the whole class: drops nobody, tells whether even the best-off wait."""
        self.turned_away = TurnedAway()
        self.waiting = 0
        self.work_ns = 0

    def find(self, tenant: str) -> Line[T] | None:
        """The line that a ticket of `tenant` joins; None if it gets a new one."""
        line = self.by_tenant.get(tenant)
        if line is not None or len(self.ring) < LINES:
            return line
        hand = (self.places[place] for place in deal(tenant))
        return min((each for each in hand if each is not None), key=lambda each: each.work_ns)

    def add(self, ticket: T) -> None:
        tenant, lane = ticket.tenant, (ticket.pinned, ticket.opens)
        line = self.find(tenant)
        if line is None:
            place = self.places.index(None)
            line = self.places[place] = Line(self, place, self._quantum_ns, self._codel)
            self.ring[line] = None
        self.by_tenant[tenant] = line
        line.tenants[tenant] = line.tenants.get(tenant, 0) + 1
        entries = line.lanes.get(lane)
        if entries is None:
            entries = line.lanes[lane] = []
        insort(entries, ticket.entry)
        ticket.line = line
        line.waiting += 1
        line.work_ns += ticket.cost_ns
        self.waiting += 1
        self.work_ns += ticket.cost_ns

    def take(self, ticket: T, line: Line[T]) -> None:
        """`ticket`, which waits in `line`, leaves it."""
        tenant, lane = ticket.tenant, (ticket.pinned, ticket.opens)
        entries = line.lanes[lane]
        del entries[bisect_left(entries, ticket.entry)]
        if not entries:
            del line.lanes[lane]
        line.tenants[tenant] -= 1
        if not line.tenants[tenant]:
            del line.tenants[tenant]
            del self.by_tenant[tenant]
        ticket.line = None
        ticket.entry = (0.0, 0, None)
        line.waiting -= 1
        line.work_ns -= ticket.cost_ns
        self.waiting -= 1
        self.work_ns -= ticket.cost_ns
        if not line.waiting:
            del self.ring[line]
            self.places[line.place] = None
        if not self.waiting:
            self.guard.emptied()

    def front(self, lanes: Sequence[Lane]) -> T | None:
        """Whose turn it is of those in `lanes`. Asked again, it says the same. A line that has nobody there keeps its
        place and what it has saved. Who serves the ticket takes its cost from the line's `deficit_ns`.
        """
        ring, quantum_ns = self.ring, self._quantum_ns
        while True:
            passed: list[Line[T]] = []
            rounds = 0
            for line in ring:
                ticket = line.next(lanes)
                if ticket is None:
                    continue
                short_ns = ticket.cost_ns - line.deficit_ns
                if short_ns <= 0:
                    for each in passed:  # Their turn is over; they get the quantum of the next one.
                        each.deficit_ns += quantum_ns
                        ring.move_to_end(each)
                    return ticket
                passed.append(line)
                needed = -(-short_ns // quantum_ns)
                if not rounds or needed < rounds:
                    rounds = needed
            if not passed:
                return None
            # As many rounds at once as pass before somebody can pay.
            for line in passed:
                line.deficit_ns += rounds * quantum_ns


def deal(tenant: str) -> list[int]:
    """A hand of `HAND` different lines out of `LINES`; every gateway deals the same."""
    number = digest("tenant", tenant, "")
    cards = list(range(LINES))
    hand = []
    for left in range(LINES, LINES - HAND, -1):
        number, card = divmod(number, left)
        hand.append(cards.pop(card))
    return hand
