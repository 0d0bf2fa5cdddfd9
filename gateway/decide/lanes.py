"""Lanes: calls far larger than most get a small share of the slots of their own, and never hold up the small ones.

One call of 20 times the work makes everybody behind it on the same instance wait 20 times as long: at one large call
in a hundred, a sixth of all time. Size-based isolation is the known remedy (size-interval task assignment,
Harchol-Balter, Crovella and Murta, 1999; size-aware sharding, Didona and Zwaenepoel, NSDI'19). The lanes are told apart
by a call's work (rows times input length, or what the policy measures). The first lane is that of the small ones;
`share` bounds each of the others.

Borrowing goes one way. A large call never takes a slot of the small ones', not even an idle one: it cannot be
interrupted, and the small calls that come a moment later would wait its whole length. The small ones may use the whole
pool, the large ones' part included, unless a large call waits: what they hold is free again after one small time. So no
capacity lies idle, and a large call waits for small ones only, never for long.

Two rules of separation (`apart`):

- `slots`: the lanes have shares of the slots, on any replica. It bounds how many slots large calls hold. It does not
  keep a small call from queueing behind a large one on the same instance, or from its batch.
- `replica` (the default): a large call goes only to a replica on which nothing of another lane is in flight, and until
  it has ended only calls of its lane may follow there, at most `large_per_replica`. If none is empty, one is kept free
  for the large call that waits: small calls go elsewhere until the few there have ended. At most `share` of the
  replicas (one at least) are held or kept by each large lane, and one is always left to the small ones, unless there
  is only one: there both kinds take turns.

A replica that gets no calls for another reason, because it is ejected or suspect, is the emptiest of all, and kept for
a large call it would keep that waiting for as long. So who asks says which these are (`bar`): they are not kept, do not
count where a share of the replicas is, and are tried with small calls only.

What can be guaranteed with Triton's dynamic batcher: it puts together whatever of one model waits on one server, fits
into max_batch_size and has equal shapes (unless ragged batching is allowed), whichever priority it has. A request
cannot say "not with that one". So calls never share a batch for certain only where they are never on one server for one
model at a time: that is what `replica` does, for the calls of this gateway. It cannot know what another gateway, or a
client past it, sends to the same server. Where several gateways share a pool, or the pool has one replica only (then
small calls wait while a large one runs, as they must), set a pool aside, or load the artifact under a second model name
with a max_batch_size of its own, and route large calls there: these hold by themselves, without any counting. A call
that fills max_batch_size alone has its batch alone anyway.

What it brings, in the closed model of its test (half load, one call in a hundred of 20 times the work, `replica`): p99
of the small calls is 1.0 to 1.25 times that without large ones on four and on eight replicas, 1.25 to 1.4 on three, 2.2
to 2.8 on two (without lanes 2.7 to 7.6 on two to four): while a large call holds one of two replicas, half the pool is
gone. Small pools need less load, or smaller large calls.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

LaneWhy = Literal["ok", "no_slot", "lane_full", "kept", "apart", "barred"]
"""no_slot: the replica has none free. lane_full: the lane has its share. kept: what is free is kept for a waiting call
of another lane. apart: the replica has calls of another lane. barred: it gets none; what it is tried with is small.
"""


@dataclass(frozen=True, slots=True)
class LaneSettings:
    """A lane for calls above a size."""

    name: str
    work_above: float
    """Calls of more work than this, up to the next lane's, use it."""
    share: float = 0.1
    """Of the slots, and of the replicas; at least one of each. A tenth: large calls are few, or they would be usual."""


@dataclass(frozen=True, slots=True)
class LanesSettings:
    """How a model's calls are told apart by size."""

    larger: tuple[LaneSettings, ...]
    """The lanes beside the first, by rising size. The first is named `small`."""
    apart: Literal["slots", "replica"] = "replica"
    large_per_replica: int = 1
    """Large calls on a replica at a time, under `apart: replica`. With more they may share a batch, each with each."""

    def __post_init__(self) -> None:
        below, names = 0.0, {"small"}
        for lane in self.larger:
            if not below < lane.work_above < math.inf:
                raise ValueError(f"work_above of {lane.name} must be finite and above {below:g}, not {lane.work_above}")
            if not 0 < lane.share <= 0.5:
                raise ValueError(f"share of {lane.name} must be in (0, 0.5], not {lane.share}")
            if lane.name in names:
                raise ValueError(f"two lanes are named {lane.name}")
            below = lane.work_above
            names.add(lane.name)
        if not self.larger:
            raise ValueError("lanes need at least one beside the first")
        if self.large_per_replica < 1:
            raise ValueError(f"large_per_replica must be at least 1, not {self.large_per_replica}")


class _Room:
    """What is in flight on one replica. `owner` is the large lane that holds it, or that it is kept for; 0 if none."""

    __slots__ = ("barred", "counts", "owner", "slots", "total")

    def __init__(self, lanes: int) -> None:
        self.slots = 0
        self.barred = False
        self.counts = [0] * lanes
        self.total = 0
        self.owner = 0


class Lanes:
    """The lanes of one model (on one pool). A lane is a number; 0 is that of the small calls.

    Remembers the replicas of the last update, and those that left with calls in flight until these have ended. All
    methods are O(replicas) at most (and lanes, of which there are a few); with `apart: slots` O(1).
    """

    __slots__ = (
        "_apart",
        "_barred",
        "_bounds",
        "_caps",
        "_in_flight",
        "_large_max",
        "_larger",
        "_last",
        "_parts",
        "_per_replica",
        "_rooms",
        "_slots",
        "_waiting",
        "_yielded",
    )

    def __init__(self, settings: LanesSettings) -> None:
        self._larger = settings.larger
        self._apart = settings.apart == "replica"
        self._per_replica = settings.large_per_replica
        self._bounds = tuple(lane.work_above for lane in settings.larger)
        lanes = len(settings.larger) + 1
        self._rooms: dict[str, _Room] = {}
        self._slots = 0
        self._parts = 0
        """Slots, or replicas that are not barred."""
        self._barred: frozenset[str] = frozenset()
        self._caps = [0] * lanes
        """Of slots, or of replicas."""
        self._large_max = 0
        """Of slots, or of replicas, for all large lanes together: one is always left, unless there is only one."""
        self._in_flight = [0] * lanes
        self._waiting = [0] * lanes
        self._last = 0
        """The large lane that ran last on a replica of its own: the others come first."""
        self._yielded = 0
        """How many small calls go before the next large one, where both want the only replica."""

    def names(self) -> tuple[str, ...]:
        return ("small", *(lane.name for lane in self._larger))

    def lane_of(self, work: float) -> int:
        """The lane of a call of this much work. Raises ValueError for what is no amount."""
        if not 0.0 <= work < math.inf:
            raise ValueError(f"work must be a finite number from 0 up, not {work}")
        return bisect_left(self._bounds, work)

    def update(self, slots: Mapping[str, int]) -> None:
        """The fleet changed: replicas and their slots."""
        for name in [name for name in self._rooms if name not in slots]:
            room = self._rooms[name]
            room.slots = 0
            if not room.total:
                del self._rooms[name]
        for name, count in slots.items():
            room = self._rooms.setdefault(name, _Room(len(self._caps)))
            room.slots = count
        self._slots = sum(slots.values())
        self._bar()

    def bar(self, replicas: Collection[str]) -> None:
        """These, of those that there are, get no calls at the moment for another reason."""
        barred = frozenset(replicas)
        if barred != self._barred:
            self._barred = barred
            self._bar()

    def _bar(self) -> None:
        """Who counts, and how much each lane may have of it."""
        some = any(room.slots and name not in self._barred for name, room in self._rooms.items())
        for name, room in self._rooms.items():
            room.barred = some and name in self._barred  # where all are, none is better than another
        parts = sum(self._counts_as_one(room) for room in self._rooms.values()) if self._apart else self._slots
        self._parts = parts
        self._large_max = max(1, parts - 1) if parts else 0
        for lane, settings in enumerate(self._larger, 1):
            self._caps[lane] = max(1, int(settings.share * parts)) if parts else 0
        if parts != 1:
            self._yielded = 0
        self._keep()

    @staticmethod
    def _counts_as_one(room: _Room) -> bool:
        return room.slots > 0 and not room.barred

    def slots_of(self, lane: int) -> int:
        """How many slots' worth of work this lane can have running: of the replicas that are its share, all slots,
        since a large call has the batches of its replica for itself.
        """
        if not lane or not self._apart:
            return self._slots
        return max(1, self._slots * self._caps[lane] // max(1, self._parts)) if self._slots else 0

    def may_run(self, lane: int, replica: str) -> LaneWhy:
        """Whether a call of this lane may start on this replica now."""
        room = self._rooms.get(replica)
        if room is None or room.total >= room.slots:
            return "no_slot"
        if self._apart:
            return self._may_run_apart(lane, room)
        small = self._in_flight[0]
        large = sum(self._in_flight) - small
        if lane:
            return "ok" if self._in_flight[lane] < self._caps[lane] and large < self._large_max else "lane_full"
        kept = 0
        for larger in range(1, len(self._caps)):
            kept += max(0, min(self._waiting[larger], self._caps[larger] - self._in_flight[larger]))
        # A pool of one slot cannot keep any: there whoever asks first has it.
        return "ok" if self._slots - small - large > min(kept, self._slots - 1) else "kept"

    def _may_run_apart(self, lane: int, room: _Room) -> LaneWhy:
        owner = room.owner
        if not lane:
            if not owner:
                return "ok"
            return "apart" if room.counts[owner] else "kept"
        if room.barred:
            return "barred"
        if room.total > room.counts[lane]:
            return "apart"
        if owner == lane:
            return "ok" if room.counts[lane] < self._per_replica else "lane_full"
        if owner or self._yielded:
            return "kept"
        return "ok" if self._may_hold_more(lane) else "lane_full"

    def _held(self, lane: int) -> int:
        """Replicas that this lane holds or has kept for it; of all large lanes: 0."""
        return sum(room.slots > 0 and room.owner > 0 and lane in (0, room.owner) for room in self._rooms.values())

    def _may_hold_more(self, lane: int) -> bool:
        return self._held(lane) < self._caps[lane] and self._held(0) < self._large_max

    def take(self, lane: int, replica: str) -> None:
        """A call starts. Raises ValueError unless `may_run` says `ok`."""
        why = self.may_run(lane, replica)
        if why != "ok":
            raise ValueError(f"a call of lane {self.names()[lane]} may not start on {replica}: {why}")
        room = self._rooms[replica]
        room.counts[lane] += 1
        room.total += 1
        self._in_flight[lane] += 1
        if lane:
            if self._apart:
                room.owner = self._last = lane
        elif self._yielded:
            self._yielded -= 1
        self._keep()

    def give_back(self, lane: int, replica: str) -> None:
        """A call ended. Raises ValueError if none of this lane was there."""
        room = self._rooms.get(replica)
        if room is None or not room.counts[lane]:
            raise ValueError(f"a call of lane {self.names()[lane]} was given back that was not on {replica}")
        room.counts[lane] -= 1
        room.total -= 1
        self._in_flight[lane] -= 1
        if lane and room.owner == lane and not room.total:
            room.owner = 0
            if self._apart and self._waiting[0] and self._parts == 1:
                self._yielded = room.slots
        if not room.total and not room.slots:
            del self._rooms[replica]
        self._keep()

    def wait(self, lane: int) -> None:
        """A call of this lane stands in line. `leave` must follow: after its `take`, or when it gives up."""
        self._waiting[lane] += 1
        self._keep()

    def leave(self, lane: int) -> None:
        """Raises ValueError if none was waiting."""
        if not self._waiting[lane]:
            raise ValueError(f"no call of lane {self.names()[lane]} was waiting")
        self._waiting[lane] -= 1
        if not self._waiting[0]:
            self._yielded = 0
        self._keep()

    def stand(self, lane: int, count: int) -> bool:
        """So many of this lane stand in line now: as many calls of `wait` or `leave` at once. Whether they are fewer
        than before.
        """
        before = self._waiting[lane]
        if count == before:
            return False
        self._waiting[lane] = count
        if not self._waiting[0]:
            self._yielded = 0
        self._keep()
        return count < before

    def _keep(self) -> None:
        """Let go of replicas that were kept for nothing, and keep one where a large call waits that has none."""
        if not self._apart:
            return
        for room in self._rooms.values():
            owner = room.owner
            if owner and not room.counts[owner] and (room.barred or not self._needs(owner)):
                room.owner = 0
        if self._yielded:
            return
        lanes = len(self._larger)
        for step in range(lanes):
            # In turn, beginning behind the one that ran last.
            lane = (self._last + step) % lanes + 1
            while self._wants_one(lane):
                free = [room for room in self._rooms.values() if self._counts_as_one(room) and not room.owner]
                if not free:
                    return
                min(free, key=lambda room: room.total).owner = lane

    def _needs(self, owner: int) -> bool:
        """Whether a replica that is kept for this lane should be kept on."""
        fits = self._held(owner) <= self._caps[owner] and self._held(0) <= self._large_max
        return fits and self._waiting[owner] > 0

    def _wants_one(self, lane: int) -> bool:
        """Whether calls of this lane wait that no replica of its own will take."""
        waiting = self._waiting[lane]
        if not waiting:
            return False
        own = sum(
            self._per_replica - room.counts[lane]
            for room in self._rooms.values()
            if self._counts_as_one(room) and room.owner == lane
        )
        return own < waiting and self._may_hold_more(lane)

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        """`cap` is of replicas under `apart: replica`, else of slots; `replicas`: those the lane holds, or has kept."""
        small = {"in_flight": self._in_flight[0], "waiting": self._waiting[0]}
        lanes: dict[str, Mapping[str, int]] = {"small": small}
        for lane, settings in enumerate(self._larger, 1):
            lanes[settings.name] = {
                "in_flight": self._in_flight[lane],
                "waiting": self._waiting[lane],
                "cap": self._caps[lane],
                "replicas": self._held(lane),
            }
        return {"slots": self._slots, "lanes": lanes}
