"""The waiting room: who waits for a slot, in which order, and who is refused.

Order: the class (0 is the highest), then deficit round robin over the tenants of that class, by accelerator time, then
the earliest deadline of that tenant (`fair_lines.py`). Classes are strict: under lasting overload the lowest starve, on
purpose, and are told so early. Tenants of one class never do: of two that both have unpinned calls waiting all the
while, neither gets more than `quantum_s` plus twice the largest cost ahead of the other, over any span of time.

Who is refused, and the word for it (`Why`):
- on arrival, `infeasible`: its estimated wait and its service do not fit before its deadline;
- on arrival, `beyond_objective`: they do, but not into the model's objective, and it would wait for more than half a
  round of batches. A queue that makes its calls miss the objective is not worth having: an answer that comes too late
  for most is dearer than a refusal at once, after which less may be had in time. The top class is not refused so;
- on arrival, `queue_full`; but a call of a higher class pushes out one of the lowest class present, and one of a
  tenant with little waiting pushes out one of the tenant with most (McKenney's stochastic fairness queueing, 1990):
  else whoever sends most would hold the whole room. The one `pushed_out` has the latest deadline in the fullest line;
- while waiting, `too_late`: sent now it would miss its deadline, so it costs no accelerator time any more (without
  this, earliest deadline first makes everybody late under overload);
- when its turn comes, `standing_queue`: it has waited too long in a queue that does not drain (`codel.py`), and longer
  than `objective_s` leaves to wait. Each line has a guard of its own (FQ-CoDel, RFC 8290), so that one tenant's backlog
  costs no other a call. The top class has none: it loses calls to their deadlines, or when it alone overfills the room.
  Nor have pinned tickets: with one step a whole sequence would be lost, and who opens one waits for others to end,
  which is no sign of overload.

Memory: at most `queue_max` tickets, as many names of tenants, and `LINES` lines a class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple

from gateway.decide.codel import DEFAULTS as CODEL_DEFAULTS
from gateway.decide.codel import CodelSettings
from gateway.decide.fair_lines import ANY, NS, Lane, Level, Line, T
from gateway.decide.work import rounds

ROUNDS = 2
"""Rounds of work that fill the slots of a replica (`fleet/slots.py`)."""
BEHIND = ROUNDS + 1
"""Batches from send to reply of a call that had to wait, at the worst: it has just missed one, and the next is full."""
CLASSES = 4
"""Google's criticalities: critical plus, critical, sheddable plus, sheddable (Site Reliability Engineering, 21)."""

Why = Literal["queue_full", "infeasible", "beyond_objective", "pushed_out", "too_late", "standing_queue"]
WORDS: tuple[Why, ...] = ("queue_full", "infeasible", "beyond_objective", "pushed_out", "too_late", "standing_queue")

ONLY_ANY: tuple[Lane, ...] = (ANY,)


@dataclass(frozen=True, slots=True)
class RoomSettings:
    quantum_s: float = 0.001
    """Accelerator time that a tenant gets a turn. Small beside a batch, so that turns are short; calls that cost more
    save up. Ours.
    """
    cost_max_s: float = 60.0
    """A call counts as this expensive at most. It bounds how far one tenant can be ahead. Ours."""
    codel: CodelSettings = CODEL_DEFAULTS

    def __post_init__(self) -> None:
        if not (1e-6 <= self.quantum_s <= self.cost_max_s <= 86_400):
            raise ValueError(f"1e-6 <= quantum_s <= cost_max_s <= a day, not {self.quantum_s}, {self.cost_max_s}")


DEFAULTS = RoomSettings()


@dataclass(frozen=True, slots=True)
class Pace:
    """What is known of the servers at the moment. All times are 0 while nothing is known: then no estimate refuses
    anybody. Raises ValueError for fewer than one instance, and for times that are negative or not finite.
    """

    instances: int
    """Batches that run at one time (replicas x instances); those of the one replica, for a pinned ticket."""
    batch_s: float
    """Time of a full batch, S(b*)."""
    service_s: float
    """From send to reply, 95th percentile."""
    need_s: float
    """Who has less than this left is not sent: the service and a safety."""
    worst_s: float = 0.0
    """S(b*) at the worst, by what is known: the same as `batch_s`, or more while no full batch has been seen."""

    def __post_init__(self) -> None:
        times = (self.batch_s, self.service_s, self.need_s, self.worst_s)
        if not (self.instances >= 1 and all(0 <= time < math.inf for time in times)):
            raise ValueError(f"a pace must have an instance, and finite times of at least 0, not {self}")

    def least_s(self, work: float, slots: Collection[int]) -> float:
        """How long a call of so much work takes at the least once it is sent, to one of the replicas with `slots`. The
        mean of a batch has the stragglers in it, which what a call needs leaves out.
        """
        least_s = min(self.batch_s, self.need_s)
        return least_s if work <= 1.0 else least_s * rounds(work, sum(slots) / (ROUNDS * len(slots)))


class Refusal(NamedTuple, Generic[T]):
    ticket: T
    why: Why


class Offered(NamedTuple, Generic[T]):
    """`why` is `waits`, or the word of its refusal. `wait_s` is the estimate in all cases. `pushed_out` had to make
    room for it.
    """

    why: Literal["waits", "queue_full", "infeasible", "beyond_objective"]
    wait_s: float
    pushed_out: T | None = None


class WaitingRoom(Generic[T]):
    """The room of one (pool, model, version). Wakes nobody: whom it refuses, it returns."""

    def __init__(self, queue_max: int, settings: RoomSettings = DEFAULTS, objective_s: float = 0.0) -> None:
        """`objective_s`: within that calls should be answered, the wait included; 0 if nothing is promised."""
        self.queue_max = queue_max
        """May be set at any time; nobody is thrown out by that."""
        self._objective_s = objective_s
        self.waiting = 0
        self.waiting_pinned = 0
        """Of those. Both for reading."""
        self._cost_max_s = settings.cost_max_s
        self._quantum_ns = int(settings.quantum_s * NS)
        self._levels: tuple[Level[T], ...] = tuple(
            Level(rank, self._quantum_ns, settings.codel) for rank in range(CLASSES)
        )
        self._lanes: dict[Lane, int] = {}
        """How many wait in each; none is 0."""
        self._arrivals = 0
        self._earliest_s = math.inf
        """No deadline of a waiting ticket is before this."""
        self._granted = 0
        self._withdrawn = 0
        self._refused: dict[str, int] = dict.fromkeys(WORDS, 0)

    def offer(self, ticket: T, now_s: float, pace: Pace, kept: int = 0) -> Offered[T]:
        """A call for which no slot is free, or only some that are `kept` for others for a moment: who waits for these
        is as near to its turn as if it had one. Call `expire` before, or it may be refused for a place that is held by
        one without hope. O(log n); O(LINES) if somebody is pushed out or the ticket is pinned. Raises ValueError for a
        ticket that waits already, a class that there is not, a deadline or cost that is not finite, a cost below 0.
        """
        if ticket.line is not None:
            raise ValueError("the ticket waits already")
        if not 0 <= ticket.criticality < CLASSES:
            raise ValueError(f"there is no class {ticket.criticality}")
        if not (math.isfinite(ticket.deadline_s) and 0 <= ticket.cost_s < math.inf):
            raise ValueError(f"deadline and cost must be finite, not {ticket.deadline_s}, {ticket.cost_s}")
        ticket.cost_ns = max(1, int(min(ticket.cost_s, self._cost_max_s) * NS))
        ticket.entry = (-ticket.deadline_s, -(self._arrivals + 1), ticket)
        level = self._levels[ticket.criticality]
        line = level.find(ticket.tenant)
        ahead_ns = self._ahead_ns(ticket, level, line)
        wait_s = self._wait_s(ticket, ahead_ns, pace)
        if now_s + wait_s + max(pace.service_s, ticket.least_s) > ticket.deadline_s:
            self._refused["infeasible"] += 1
            return Offered("infeasible", wait_s)
        bound = not (ticket.pinned or ticket.admitted)
        beyond = bound and ticket.criticality > 0 and self._beyond_objective(ticket, ahead_ns, pace, kept)
        if bound:
            level.turned_away.note(ticket.tenant, beyond, now_s, level.guard.interval_s)
        if beyond:
            self._refused["beyond_objective"] += 1
            return Offered("beyond_objective", wait_s)
        victim: T | None = None
        if self.waiting >= self.queue_max:
            victim = self._victim(ticket, line)
            if victim is None:
                self._refused["queue_full"] += 1
                return Offered("queue_full", wait_s)
            self._take(victim)
            self._refused["pushed_out"] += 1
        lane: Lane = (ticket.pinned, ticket.opens)
        level.add(ticket)
        self._arrivals += 1
        self.waiting += 1
        self.waiting_pinned += bool(ticket.pinned)
        self._lanes[lane] = self._lanes.get(lane, 0) + 1
        if ticket.deadline_s < self._earliest_s:
            self._earliest_s = ticket.deadline_s
        return Offered("waits", wait_s, victim)

    def _beyond_objective(self, ticket: T, ahead_ns: int, pace: Pace, kept: int) -> bool:
        """Whether what is ahead of it takes too long. Half a round may always wait, lest a model whose objective cannot
        be met serves less than it can; and a large call as long as it takes itself.
        """
        if not (self._objective_s and pace.batch_s):
            return False
        spare_s = self._objective_s - max(BEHIND * pace.worst_s, ticket.least_s)
        bound_s = max(spare_s, pace.worst_s / 2, ticket.least_s if ticket.work > 1.0 else 0.0)
        ahead_s = max(0.0, ahead_ns / NS - kept * pace.batch_s) / pace.instances
        return ahead_s * pace.worst_s / pace.batch_s > bound_s - 1e-9

    def _wait_s(self, ticket: T, ahead_ns: int, pace: Pace) -> float:
        """ceil(work ahead and its own / work of one round of batches) batch times; of its own, a batch at most. At the
        usual cost, S(b*)/b*, and with n calls ahead that is ceil((n + 1) / (instances x b*)) x S(b*).
        """
        round_ns = pace.instances * pace.batch_s * NS
        if round_ns < 1:
            return 0.0
        # Of a large call no more than a batch: the rest it takes when it has its slot, which is its service.
        own_ns = min(ticket.cost_ns, int(pace.batch_s * NS))
        return max(1, math.ceil((ahead_ns + own_ns) / round_ns - 1e-6)) * pace.batch_s

    def _ahead_ns(self, ticket: T, level: Level[T], line: Line[T] | None) -> int:
        """Work ahead: all of the classes above, the earlier deadlines of its own line, and of each other line of its
        class what that may get before this one's turn, by the fairness of turns.
        """
        if ticket.pinned:
            return self._pinned_ns(ticket, level)
        own_ns = line_ns = 0
        others = len(level.ring)
        if line is not None:
            own_ns, line_ns = line.earlier_ns(ANY, ticket.entry), line.work_ns
            others -= 1
        turns_ns = others * (own_ns + ticket.cost_ns + self._quantum_ns)
        above_ns = sum(above.work_ns for above in self._levels[: level.rank])
        return above_ns + own_ns + min(level.work_ns - line_ns, turns_ns)

    def _pinned_ns(self, ticket: T, level: Level[T]) -> int:
        """The work ahead of a pinned ticket: what is pinned to the same replica. The rest can go elsewhere."""
        ahead_ns = 0
        for above in self._levels[: level.rank + 1]:
            entry = ticket.entry if above is level else (-math.inf, 0, ticket)
            for line in above.ring:
                for opens in (False, True):
                    ahead_ns += line.earlier_ns((ticket.pinned, opens), entry)
        return ahead_ns

    def _victim(self, ticket: T, line: Line[T] | None) -> T | None:
        """Who makes room for `ticket`; None if it is itself the one to refuse. O(LINES)."""
        lowest = next((level for level in reversed(self._levels) if level.waiting), None)
        if lowest is None or lowest.rank < ticket.criticality:
            return None
        fullest = max(lowest.ring, key=lambda each: each.work_ns)
        victim = fullest.latest()
        if lowest.rank == ticket.criticality:
            # Only if its line is the less full one afterwards too: two tenants never push each other out in turn.
            mine_ns = ticket.cost_ns + (0 if line is None else line.work_ns)
            if line is fullest or mine_ns > fullest.work_ns - victim.cost_ns:
                return None
        return victim

    def _take(self, ticket: T) -> None:
        """Out of the room."""
        line, lane = ticket.line, (ticket.pinned, ticket.opens)
        assert line is not None
        line.level.take(ticket, line)
        self.waiting -= 1
        self.waiting_pinned -= bool(ticket.pinned)
        self._lanes[lane] -= 1
        if not self._lanes[lane]:
            del self._lanes[lane]

    def withdraw(self, ticket: T) -> bool:
        """A waiting call gives up. False if it does not wait (any more)."""
        if ticket.line is None:
            return False
        self._take(ticket)
        self._withdrawn += 1
        return True

    def waits_for(self, replica: str, *, may_open: bool = True) -> bool:
        """Somebody waits who could use a slot on `replica`. O(1)."""
        return any(lane in self._lanes for lane in self._usable(replica, may_open))

    def pinned_to(self) -> tuple[str, ...]:
        """The replicas that pinned tickets wait for, in the order of their names."""
        return tuple(sorted({replica for replica, _ in self._lanes if replica}))

    def _usable(self, replica: str, may_open: bool) -> Sequence[Lane]:
        if not self.waiting_pinned or not replica:
            return ONLY_ANY
        return (ANY, (replica, False), (replica, True)) if may_open else (ANY, (replica, False))

    def peek(self, replica: str, *, may_open: bool = True) -> T | None:
        """Whose turn it is for a slot on `replica` ("": for unpinned tickets only), whether or not it should still be
        sent.
        """
        lanes = self._usable(replica, may_open)
        for level in self._levels:
            ticket = level.front(lanes) if level.waiting else None
            if ticket is not None:
                return ticket
        return None

    def pop(
        self,
        replica: str,
        now_s: float,
        pace: Pace,
        refused: list[Refusal[T]],
        *,
        may_open: bool = True,
        fits: Callable[[T], bool] | None = None,
    ) -> T | None:
        """A slot on `replica` is free: who gets it; None if nobody can use it. `may_open`: openers may have it.
        `fits`: whether the one whose turn it is can use it; if not, nobody gets it, for nobody overtakes. Those whose
        turn came but who should not be sent any more are added to `refused`.
        """
        while (ticket := self.peek(replica, may_open=may_open)) is not None:
            line = ticket.line
            assert line is not None
            waited_s = max(0.0, now_s - ticket.offered_s)
            standing = False
            if not (ticket.pinned or ticket.admitted):
                bearable_s = self._objective_s - pace.need_s
                line.level.guard.drops(waited_s, now_s, pace.batch_s, bearable_s)
                standing = line.guard.drops(waited_s, now_s, pace.batch_s, bearable_s)
            if now_s + max(pace.need_s, ticket.least_s) > ticket.deadline_s:
                self._refuse(ticket, "too_late", refused)
            elif standing and ticket.criticality > 0:
                self._refuse(ticket, "standing_queue", refused)
            elif fits is not None and not fits(ticket):
                return None
            else:
                line.deficit_ns -= ticket.cost_ns
                self._take(ticket)
                self._granted += 1
                return ticket
        return None

    def _refuse(self, ticket: T, why: Why, refused: list[Refusal[T]]) -> None:
        self._take(ticket)
        self._refused[why] += 1
        refused.append(Refusal(ticket, why))

    def expire(self, now_s: float, pace: Pace) -> list[Refusal[T]]:
        """Out with those who have less than `pace.need_s` left. O(1) while there are none, so call it before each
        `offer` and `pop`; else O(lines), which no ticket causes more than once.
        """
        refused: list[Refusal[T]] = []
        latest_s = now_s + pace.need_s
        if latest_s <= self._earliest_s:
            return refused
        earliest_s = math.inf
        for level in self._levels:
            for line in tuple(level.ring):
                for entries in tuple(line.lanes.values()):
                    while entries and latest_s > -entries[-1][0]:
                        ticket = entries[-1][2]
                        if not ticket.pinned:
                            waited_s = max(0.0, now_s - ticket.offered_s)
                            level.guard.drops(waited_s, now_s, pace.batch_s, self._objective_s - pace.need_s)
                        self._refuse(ticket, "too_late", refused)
                    if entries:
                        earliest_s = min(earliest_s, -entries[-1][0])
        self._earliest_s = earliest_s
        return refused

    def evict(self, replica: str) -> list[T]:
        """Out with all that are pinned to `replica`, or with all unpinned ones (""): nobody is left to serve them. In
        the order in which they came. Not counted as refused here.
        """
        entries = [
            entry
            for level in self._levels
            for line in level.ring
            for lane, waiting in line.lanes.items()
            if lane[0] == replica
            for entry in waiting
        ]
        entries.sort(key=lambda entry: -entry[1])
        tickets = [entry[2] for entry in entries]
        for ticket in tickets:
            self._take(ticket)
        return tickets

    def overloaded(self, now_s: float) -> bool:
        """A queue stands in some class, even for those of it who wait least: a sign to shed by cohort
        (`cohorts.py`). One tenant's backlog beside others that hardly wait is none.
        """
        return any(level.guard.overloaded(now_s) for level in self._levels)

    def refused_share(self, now_s: float) -> float:
        """Of the class of which most are, the share of every tenant's calls that is refused for what is ahead of them:
        another such sign, which no queue shows that is kept short.
        """
        return max(level.turned_away.share(now_s) for level in self._levels)

    def served_at_once(self, criticality: int, tenant: str, now_s: float) -> None:
        """A call found a free slot."""
        level = self._levels[criticality]
        level.turned_away.note(tenant, False, now_s, level.guard.interval_s)

    def settle_s(self) -> float:
        """How long it may take until `overloaded` tells of a change: the interval in which it comes is spoilt, the next
        one shows it.
        """
        return 2 * max(level.guard.interval_s for level in self._levels)

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        """`oldest_wait_s` is over those who are next in their lines."""
        heads = [entries[-1][2] for level in self._levels for line in level.ring for entries in line.lanes.values()]
        return {
            "waiting": self.waiting,
            "waiting_pinned": self.waiting_pinned,
            "waiting_by_class": {str(level.rank): level.waiting for level in self._levels},
            "waiting_work_s": sum(level.work_ns for level in self._levels) / NS,
            "tenants": sum(len(level.by_tenant) for level in self._levels),
            "lines": sum(len(level.ring) for level in self._levels),
            "queue_max": self.queue_max,
            "oldest_wait_s": max((max(0.0, now_s - head.offered_s) for head in heads), default=0.0),
            "overloaded": self.overloaded(now_s),
            "granted": self._granted,
            "withdrawn": self._withdrawn,
            "refused": dict(self._refused),
        }
