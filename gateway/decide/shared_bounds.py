"""What all models and versions share on a replica: a ceiling of calls in flight, and its memory.

The ceiling (`in_flight_max`) bounds what the slots of single versions cannot: each version has its own slots, and many
of them together are more than a server carries. Memory is counted by `memory_budget.py`.

Whoever waits for memory waits beside others, of other models, who ask for less, and would always find some. So for one
of them, the first in turn when none is kept, room is kept on the replica where least of it is taken: what becomes free
there is for it alone, until it starts or gives up. A large call waits for those that run, not for those that come.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple

from gateway.decide.memory_budget import DeviceMemory, MemoryBudget, ModelMemory

SharedWhy = Literal["ok", "ceiling", "full", "kept", "too_large", "unknown"]
"""ceiling: as many calls as the replica may have. full: its memory is taken. kept: what is free of it is kept for
another. too_large: it would not fit if it were alone. unknown: no such replica now.
"""


class Wanted(NamedTuple):
    """A call that waits."""

    model: str
    work: float
    replicas: frozenset[str]
    """Those that could run it now but for what is shared."""


class SharedBounds:
    """The bounds of one pool; None: not bounded. Whoever asks is told apart by identity."""

    def __init__(
        self, *, in_flight_max: int | None, memory_bytes: int | None, models: Mapping[str, ModelMemory]
    ) -> None:
        if in_flight_max is not None and in_flight_max < 1:
            raise ValueError(f"in_flight_max must be at least 1, not {in_flight_max}")
        self._ceiling = math.inf if in_flight_max is None else in_flight_max
        self._limit = memory_bytes
        self._models = dict(models)
        self._memory = MemoryBudget()
        self._in_flight: dict[str, int] = {}
        self._replicas: frozenset[str] = frozenset()
        self._wanted: dict[object, Wanted] = {}
        """Who waits, and for what."""
        self._kept: tuple[object, str, int] | None = None
        """For whom room is kept, on which replica, how many bytes."""

    def update(self, replicas: Mapping[str, Collection[tuple[str, str]]]) -> None:
        """The fleet changed: the replicas, with (model, version) of all that is loaded there."""
        self._replicas = frozenset(replicas)
        if self._limit is not None:
            limit, nothing = self._limit, ModelMemory()
            models = dict(self._models)
            devices: dict[str, DeviceMemory] = {}
            for name, loaded in replicas.items():
                copies = {f"{model} {version}": self._models.get(model, nothing) for model, version in loaded}
                models.update(copies)
                devices[name] = DeviceMemory(limit, tuple(copies))
            self._memory.update(devices, models)
        self._let_go()

    def may_take(self, replica: str, model: str, work: float, who: object) -> SharedWhy:
        """Whether `who` may start a call there now. Counts nothing."""
        if self._in_flight.get(replica, 0) >= self._ceiling:
            return "ceiling"
        if self._limit is None:
            return "ok"
        why = self._memory.may_take(replica, model, work)
        if why == "ok" and self._kept is not None:
            other, where, needed = self._kept
            if where == replica and other is not who and not self._memory.has_room(replica, model, work, needed):
                return "kept"
        return why

    def keeps_for(self, who: object) -> bool:
        """Whether room is kept for it, which its next start lets go of."""
        return self._kept is not None and self._kept[0] is who

    def too_large(self, replica: str, model: str, work: float) -> bool:
        return self._limit is not None and self._memory.may_take(replica, model, work) == "too_large"

    def take(self, replica: str, model: str, work: float, who: object) -> int:
        """A call starts. Returns the bytes that must be given back. Raises ValueError unless `may_take` says `ok`."""
        why = self.may_take(replica, model, work, who)
        if why != "ok":
            raise ValueError(f"a call of {model} may not start on {replica}: {why}")
        self._in_flight[replica] = self._in_flight.get(replica, 0) + 1
        if self._kept is not None and self._kept[0] is who:
            self._kept = None
        return 0 if self._limit is None else self._memory.take(replica, model, work)

    def give_back(self, replica: str, model: str, taken: int) -> None:
        """A call ended. Raises ValueError if there was none."""
        count = self._in_flight.get(replica, 0)
        if not count:
            raise ValueError(f"a call of {model} was given back on {replica}, which has none")
        if count > 1:
            self._in_flight[replica] = count - 1
        else:
            del self._in_flight[replica]
        self._memory.give_back(replica, model, taken)

    def wants(self, who: object, what: Wanted | None) -> bool:
        """`who` waits for room for this call, or for none any more. Whether that lets go of what was kept.

        To be said again now and then while it waits: room is kept for the first that says so when none is kept.
        O(replicas).
        """
        kept = self._kept
        if what is None:
            if self._wanted.pop(who, None) is None:
                return False
        else:
            self._wanted[who] = what
        self._let_go()
        if what is not None and self._kept is None and self._limit is not None:
            self._keep(who, what)
        return kept is not None and self._kept != kept

    def _let_go(self) -> None:
        """Of what is kept for one that does not wait any more, or not for that."""
        kept = self._kept
        if kept is not None:
            who, replica, needed = kept
            what = self._wanted.get(who)
            if (
                what is None
                or replica not in self._replicas
                or replica not in what.replicas
                or self._memory.bytes_of(what.model, what.work) != needed
            ):
                self._kept = None

    def _keep(self, who: object, what: Wanted) -> None:
        """Keep room for one that waits, if it is memory that it waits for."""
        best, least = "", math.inf
        for replica in sorted(what.replicas):
            why = self._memory.may_take(replica, what.model, what.work)
            if why == "ok":
                return
            used = self._memory.used_bytes(replica)
            if why == "full" and used < least:
                best, least = replica, used
        if best:
            self._kept = (who, best, self._memory.bytes_of(what.model, what.work))

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        return {
            "in_flight": dict(sorted(self._in_flight.items())),
            "in_flight_max": None if self._ceiling == math.inf else int(self._ceiling),
            "waiting": len(self._wanted),
            "kept": None if self._kept is None else {"replica": self._kept[1], "bytes": self._kept[2]},
            "memory": self._memory.statistics(now_s),
        }
