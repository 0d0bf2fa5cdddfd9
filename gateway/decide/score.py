"""Which replica gets the next call, where replicas differ: the lowest (load + 1) x service time, and none rather than
one that is many times slower.

The one entry to a pool knows every count exactly and pools are small, so all candidates are looked at (Prequal,
NSDI'24, tells when probing pays instead). What is in flight is scaled to an average replica, so that equally full
replicas have equal loads whatever their slots. Service times are judged in `standing.py`; between replicas that count
as equal only the load decides, ties fall by chance, and noise herds nobody. From eight replicas on, one whose load is
above the 0.84 quantile loses to any that is not (Prequal's hot and cold): a wrong estimate cannot flood it.

Late binding alone makes a slow replica the favourite of a busy pool: it is the one that always has a free slot. The
best policy for servers of different speed gives the slow one nothing until the line is long (Lin and Kumar, "Optimal
control of a queueing system with two heterogeneous servers", 1984). So a suspect gets calls in two cases only:

- A *try*, one at a time, when one is due and nothing else is in flight there.
- *Overflow*: every replica that is no suspect is full, and the call would be done sooner there than after waiting for
  a slot. With M slots on the others, each taking two rounds to free, w calls waiting besides this one, and c in flight
  on its own K slots: own time x (1 + c / K) <= 2 x reference x (1 + (w + 1) / M). The own time counts penalties from
  the second failure in a row on: a model that fails now and then, on all replicas, must not lose its capacity.

Otherwise `pick` says None although a slot is free (`why` is "held"), and the call waits. That ends: it is said only
while a candidate that is no suspect has all its slots taken, and one of these comes back.

One object for each (pool, model, version). Memory: what `standing.py` holds. `pick` is O(candidates).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from gateway.core.snapshot import Candidate
from gateway.decide.chance import Chance
from gateway.decide.standing import Row, Standings, StandingSettings

Why = Literal[
    "least",  # the lowest score
    "guarded",  # the lowest score was on a hot replica: another one
    "try",  # a suspect's chance to prove itself
    "overflow",  # a suspect, because all others are full and waiting would take longer
    "held",  # none: only suspects have a free slot, and waiting is better
    "full",  # none: no slot is free
]

Shown = Literal["open", "suspect", "full", "excluded", "not_admitted"]

WEIGHT_MIN = 0.01


@dataclass(frozen=True, slots=True)
class ScoreSettings:
    """How replicas are compared. Raises ValueError for what makes no sense."""

    hot_quantile: float = 0.84
    """Loads above this quantile are hot (Prequal: 2^-0.25)."""
    hot_from: int = 8
    """Fewer replicas have no quantile worth the name."""
    standing: StandingSettings = field(default_factory=StandingSettings)

    def __post_init__(self) -> None:
        if not 0 < self.hot_quantile <= 1:
            raise ValueError(f"hot_quantile must be above 0 and at most 1, not {self.hot_quantile}")
        if self.hot_from < 2:
            raise ValueError(f"hot_from must be at least 2, not {self.hot_from}")


class ScoredPicker:
    """The picker. Counts in flight are shown to it; what it remembers are service times."""

    __slots__ = (
        "_counts",
        "_known",
        "_least",
        "_random",
        "_settings",
        "answered",
        "forget",
        "observe",
        "report",
        "why",
    )

    def __init__(self, chance: Chance, settings: ScoreSettings | None = None) -> None:
        self._random = chance.random
        self._settings = settings if settings is not None else ScoreSettings()
        self._known = known = Standings(self._settings.standing)
        self._counts: dict[str, int] = dict.fromkeys(get_args(Why), 0)
        self._least = 0
        """Picks by load alone; of the count of "least"."""
        self.why: Why = "full"
        """Of the last pick. For reading."""
        self.observe, self.report, self.forget = known.observe, known.report, known.forget
        self.answered = known.answered
        """How it learns: see `Standings`."""

    def pick(
        self,
        candidates: Sequence[Candidate],
        in_flight: Mapping[str, int],
        now_s: float | None = None,
        waiting: int = 0,
        exclude: Collection[str] = (),
        admissible: Callable[[str], bool] | None = None,
        weight: Callable[[str], float] | None = None,
        hold: bool = True,
        may_try: bool = True,
    ) -> str | None:
        """The id of the chosen replica, to which a call is sent now; None if it should wait, or not be sent.

        `now_s`: None for the latest instant that was told. `exclude`: replicas that this call has been to; with any, it
        is never a try. `admissible` (a set's `__contains__` will do): whether the breaker lets a call go there; None
        for all. `weight`: of a replica in slow start, in (0, 1]; its load is divided by it, as if it had that share of
        its slots, so that its first call comes at once and the next ones slowly; None for 1. `waiting`: calls that wait
        besides this one. `hold`: None rather than a suspect that would take longer than waiting; a retry, which cannot
        wait, says False. `may_try`: whether this call may be a suspect's chance to prove itself; one that has little
        time may not.
        """
        if now_s is None:
            now_s = self._known.now_s
        if exclude or admissible is not None or weight is not None:
            self._catch_up(candidates, now_s)
        else:
            chosen = self.plain(candidates, in_flight, now_s)
            if chosen is not None:
                return chosen
        return self._choose(in_flight, waiting, exclude, admissible, weight, hold, may_try)

    def _catch_up(self, candidates: Sequence[Candidate], now_s: float) -> None:
        known = self._known
        if candidates is not known.seen:
            known.adopt(candidates)
        if now_s > known.now_s:
            known.now_s = now_s
        if known.now_s >= known.due_s:
            known.refresh()

    def plain(self, candidates: Sequence[Candidate], in_flight: Mapping[str, int], now_s: float) -> str | None:
        """Nearly every call: nobody is barred, and only the calls in flight tell one replica from another. The same as
        `_choose` in half the steps (a test holds them equal). None: ask `pick`.
        """
        known = self._known
        if candidates is known.seen and known.now_s <= now_s < known.due_s:
            known.now_s = now_s
        else:
            self._catch_up(candidates, now_s)
        fewest = known.level
        if not fewest:
            return None
        ties = 1
        chosen: str | None = None
        for replica in known.replicas:
            count = in_flight.get(replica, 0)
            if count < fewest:
                chosen, fewest, ties = replica, count, 1
            elif count == fewest and chosen is not None:
                ties += 1
                if self._random() * ties < 1.0:
                    chosen = replica
        if chosen is not None:
            self.why = "least"
            self._least += 1
        return chosen

    def _choose(
        self,
        in_flight: Mapping[str, int],
        waiting: int,
        exclude: Collection[str],
        admissible: Callable[[str], bool] | None,
        weight: Callable[[str], float] | None,
        hold: bool,
        may_try: bool,
    ) -> str | None:
        known = self._known
        get, random, rows = in_flight.get, self._random, known.rows
        best: Row | None = None
        attempt: Row | None = None
        best_score = lowest = math.inf
        best_load = 0.0
        ties = 1
        for row in rows:
            replica = row.replica
            count = get(replica, 0)
            if count >= row.slots or (exclude and replica in exclude):
                continue
            if admissible is not None and not admissible(replica):
                continue
            if row.suspect:
                if row.due and not count and attempt is None:
                    attempt = row
                continue
            load = (count + row.foreign) * row.scale
            if weight is not None:
                load /= max(WEIGHT_MIN, weight(replica))
            if load < lowest:
                lowest = load
            score = (load + 1.0) * row.cost_s
            if score < best_score:
                best, best_score, best_load, ties = row, score, load, 1
            elif score == best_score:
                ties += 1
                if random() * ties < 1.0:
                    best, best_load = row, load
        if attempt is not None and may_try and not exclude:
            return self._in_spite(attempt, "try")
        if best is None:
            return self._spill(in_flight, exclude, admissible, waiting, hold)
        why: Why = "least"
        if best_load > lowest and len(rows) >= self._settings.hot_from:
            cool = self._cool(in_flight, exclude, admissible, weight, best_load)
            if cool is not None:
                best, why = cool, "guarded"
        self.why = why
        self._counts[why] += 1
        return best.replica

    def _cool(
        self,
        in_flight: Mapping[str, int],
        exclude: Collection[str],
        admissible: Callable[[str], bool] | None,
        weight: Callable[[str], float] | None,
        best_load: float,
    ) -> Row | None:
        """Instead of one with `best_load`, if that is hot: the cold one of the lowest score. None: it is not hot, or no
        cold one has a free slot, which takes slots, weights or foreign calls that differ much.
        """
        loads: list[tuple[float, Row]] = []
        for row in self._known.rows:
            replica = row.replica
            if not row.suspect and replica not in exclude and (admissible is None or admissible(replica)):
                load = (in_flight.get(replica, 0) + row.foreign) * row.scale
                loads.append((load if weight is None else load / max(WEIGHT_MIN, weight(replica)), row))
        if len(loads) < self._settings.hot_from:
            return None
        theta = sorted(load for load, _ in loads)[math.ceil(self._settings.hot_quantile * len(loads)) - 1]
        if best_load <= theta:
            return None
        cold: list[Row] = []
        least = math.inf
        for load, row in loads:
            if load <= theta and in_flight.get(row.replica, 0) < row.slots:
                score = (load + 1.0) * row.cost_s
                if score < least:
                    least, cold = score, [row]
                elif score == least:
                    cold.append(row)
        return cold[int(self._random() * len(cold))] if cold else None

    def _spill(
        self,
        in_flight: Mapping[str, int],
        exclude: Collection[str],
        admissible: Callable[[str], bool] | None,
        waiting: int,
        hold: bool,
    ) -> str | None:
        """Only suspects have a free slot, if any has."""
        reference_s = self._known.reference_s
        best: Row | None = None
        best_s = math.inf
        busy = 0
        for row in self._known.rows:
            if row.replica in exclude or (admissible is not None and not admissible(row.replica)):
                continue
            count = in_flight.get(row.replica, 0)
            if count >= row.slots:
                busy += 0 if row.suspect else row.slots
            elif row.suspect:
                # By the evidence, not by the reading: that drifts while nobody looks. A single failure makes a suspect,
                # but nobody need wait because of it.
                own_s = (row.estimate if row.failures > 1 else row.served).cost_s
                time_s = (own_s or reference_s) * (1.0 + (count + row.foreign) / row.slots)
                if time_s < best_s:
                    best, best_s = row, time_s
        why: Why = "full"
        if best is not None:
            if not hold or not busy or best_s <= 2.0 * reference_s * (1.0 + (waiting + 1) / busy):
                return self._in_spite(best, "overflow")
            why = "held"
        self.why = why
        self._counts[why] += 1
        return None

    def _in_spite(self, row: Row, why: Why) -> str:
        self._known.tried(row)
        self.why = why
        self._counts[why] += 1
        return row.replica

    def wants_try(
        self,
        candidates: Sequence[Candidate],
        in_flight: Mapping[str, int],
        now_s: float,
        admissible: Callable[[str], bool] | None = None,
    ) -> bool:
        """Whether `pick` would make a call of these candidates a suspect's try. For choices that are made elsewhere:
        they have to be preceded by this, by which candidates and time are taken in. O(candidates).
        """
        self._catch_up(candidates, now_s)
        return not self._known.level and any(
            row.suspect
            and row.due
            and not in_flight.get(row.replica, 0)
            and (admissible is None or admissible(row.replica))
            for row in self._known.rows
        )

    @property
    def reference_s(self) -> float:
        """The pool's service time, seconds per unit of work, as of the last look."""
        return self._known.reference_s

    @property
    def all_trusted(self) -> bool:
        """Nothing tells one candidate from another but its calls in flight, as of the last look."""
        return self._known.level > 0

    def trusted(self, replica: str) -> bool:
        """Whether it is no suspect; for choices that are made elsewhere (affinity). True for an unknown one."""
        row = self._known.of(replica)
        return row is None or not row.suspect

    def explain(
        self,
        candidates: Sequence[Candidate],
        in_flight: Mapping[str, int],
        *,
        exclude: Collection[str] = (),
        admissible: Callable[[str], bool] | None = None,
        weight: Callable[[str], float] | None = None,
    ) -> tuple[Mapping[str, Any], ...]:
        """What each candidate's score is made of, as the last pick saw it; for `x-sluice-explain`. Changes nothing.
        `estimate_s` is the last evidence, None where there is none; `cost_s` what is compared.
        """
        average = sum(candidate.slots for candidate in candidates) / max(1, len(candidates))
        seen: list[Mapping[str, Any]] = []
        for candidate in candidates:
            replica, slots = candidate.replica, candidate.slots
            row = self._known.of(replica)
            count = in_flight.get(replica, 0)
            foreign = 0 if row is None else row.foreign
            share = 1.0 if weight is None else max(WEIGHT_MIN, weight(replica))
            load = (count + foreign) * (average / slots) / share if slots > 0 else 0.0
            cost_s = self._known.reference_s if row is None else row.cost_s
            shown: Shown = "open"
            if count >= slots:
                shown = "full"
            elif replica in exclude:
                shown = "excluded"
            elif admissible is not None and not admissible(replica):
                shown = "not_admitted"
            elif row is not None and row.suspect:
                shown = "suspect"
            seen.append(
                {
                    "replica": replica,
                    "standing": shown,
                    "in_flight": count,
                    "slots": slots,
                    "foreign": foreign,
                    "weight": share,
                    "load": load,
                    "estimate_s": None if row is None else row.estimate.cost_s,
                    "cost_s": cost_s,
                    "score": (load + 1.0) * cost_s,
                }
            )
        return tuple(seen)

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        known = self._known
        return {
            "reference_s": known.reference_s,
            "picked": self._counts | {"least": self._counts["least"] + self._least},
            "replicas": {
                row.replica: {
                    "estimate_s": row.estimate.cost_s,
                    "reading_s": row.estimate.at(now_s, known.reference_s),
                    "failures": row.failures,
                    "doubted": row.doubted,
                    "suspect": row.suspect,
                    "tries": row.tries,
                    "foreign": row.foreign if now_s < row.foreign_until_s else 0,
                }
                for row in known.rows
            },
        }
