"""Ejection: which replicas of one (pool, model, version) get no calls because their breakers say so, and how many may.

A breaker sees one replica; it cannot know that all the others fail as well. So an open breaker is only a wish to take
the replica out, and it is granted under three rules (field case FH-17 tells how Envoy's went wrong):

- The cap: after an ejection at most `ejected_max` of the set is out, rounded down, and never all of it, whatever the
  settings say. Each wish is judged at once, when it arises, so that replicas which fail together cannot slip past the
  cap together; a wish that is not granted waits, and who has been bad for longest goes first when there is room. If
  the set shrinks, those over the cap come back at once, the one whose pause ends soonest first: it has the fewest
  offences, or had the most time to recover.
- Panic: with less than `panic_below` of the replicas healthy, ejection is ignored and calls go to all that are up:
  the few good ones could not carry the load of all. Limits stay, and so does what the breakers learn. When it ends,
  those still out are asked soon: their long pauses are of a time when all were bad.
- Return: one at a time, `return_share_per_s` of the set in a second, each through probes and then a slow start.

A replica that is *down* (connection lost, liveness unanswered) is another verdict, given elsewhere from harder
evidence: it is not part of the set, and no cap protects it. It counts as not healthy for the panic.

Where all breakers are closed and nobody is in slow start (`calm`), the picker need not ask about any candidate. On the
path of a call everything is O(1). O(replicas) only when a breaker moves, when a timer is due, in `update`, and for a
slow call where most are slow.
Memory: one breaker for each replica of the last update; what is noted of others is ignored.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from gateway.core.outcome import Verdict
from gateway.core.permit import Doubt
from gateway.decide.breaker import Breaker, BreakerSettings, Move, Probe, Why
from gateway.decide.chance import Chance

Standing = Literal[
    "healthy",
    "slow_start",
    "probing",  # half open: one call at a time
    "ejected",
    "kept",  # its breaker is not closed, but the cap keeps it in use
    "panic",  # its breaker is not closed, and ejection is ignored
    "down",
    "unknown",
]

NEWS_MAX = 256
"""News kept until somebody takes them; then the oldest go. The counts in the statistics miss none."""

_SUCCESS = Verdict.SUCCESS

_ROUNDING = 1e-9
"""29 % of 100 are 29, though 100 * 0.29 is a little less."""


@dataclass(frozen=True, slots=True)
class EjectionSettings:
    """How many may be out. Raises ValueError for what makes no sense."""

    ejected_max: float = 0.5
    """Share of the set that may be out, rounded down. Half is the design's; Envoy has a tenth, Finagle no cap."""
    panic_below: float = 0.5
    """Share of healthy replicas below which ejection is ignored (Envoy's panic threshold); 0 turns panic off."""
    return_share_per_s: float = 0.1
    """Share of the set that may begin to return in one second; of small sets one in a second. Own choice."""
    breaker: BreakerSettings = field(default_factory=BreakerSettings)
    enabled: bool = True
    """False: nobody is judged (`Unjudged`)."""

    def __post_init__(self) -> None:
        for name in ("ejected_max", "panic_below"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie between 0 and 1, not {getattr(self, name)}")
        if not 0 < self.return_share_per_s <= 100:
            raise ValueError(f"return_share_per_s must be above 0 and at most 100, not {self.return_share_per_s}")


class News(NamedTuple):
    """Something that on-call should see: a breaker's move, or, with replica "", that panic began or ended."""

    at_s: float
    replica: str
    what: Literal["open", "half_open", "closed", "panic", "panic_over"]
    why: Why | Literal["few_healthy", "enough_healthy"]
    pause_s: float


class Ejection:
    """Who of one set may be sent calls. Attributes are for reading, but `news`, which the owner empties."""

    __slots__ = (
        "_breakers",
        "_chance",
        "_down",
        "_due_s",
        "_ejected",
        "_median_s",
        "_moves",
        "_next_return_s",
        "_probing",
        "_settings",
        "allowed",
        "calm",
        "healthy",
        "news",
        "panic",
        "panics",
    )

    def __init__(self, settings: EjectionSettings, chance: Chance) -> None:
        self._settings = settings
        self._chance = chance
        self._breakers: dict[str, Breaker] = {}
        """Of the set: the replicas that are up."""
        self._down: dict[str, Breaker] = {}
        """Kept so that a replica which goes down time and again does not lose its record of offences."""
        self._ejected: dict[str, None] = {}
        """Of the set, none with a closed breaker; ordered, so that a run can be repeated."""
        self._probing: tuple[str, ...] = ()
        """Of the ejected, those half open."""
        self._median_s: float | None = None
        self._next_return_s = -math.inf
        self._due_s = math.inf
        self._moves: dict[str, int] = dict.fromkeys(get_args(Why), 0)
        self.calm = True
        """Every replica that is up is admissible with weight 1, none wants a probe, and no time will change that."""
        self.panic = False
        self.panics = 0
        """How often panic has begun."""
        self.healthy = 0
        """Replicas of the set with a closed breaker."""
        self.allowed = 0
        """How many of the set may be ejected now."""
        self.news: deque[News] = deque(maxlen=NEWS_MAX)

    @property
    def ejected(self) -> frozenset[str]:
        """Those that are out, or would be but for panic."""
        return frozenset(self._ejected)

    # --- what the picker asks -----------------------------------------------------------------------------------------

    def admissible(self, replica: str, now_s: float) -> bool:
        """May a call go there now? One that is ejected but half open: until `begin` takes the permit."""
        if now_s >= self._due_s:
            self._settle(now_s)
        if replica in self._down:
            return False
        if self.calm:
            return True
        if self.panic or replica not in self._ejected:
            return True
        breaker = self._breakers[replica]
        return breaker.state == "half_open" and breaker.probe is None

    def weight(self, replica: str, now_s: float) -> float:
        """Above 0 and at most 1: by this the picker multiplies the slots of the replica, and what it compares is calls
        in flight *and this one* by slots, or idle replicas would be equal whatever they weigh. 1 in panic.
        """
        if self.calm or self.panic:
            return 1.0
        breaker = self._breakers.get(replica)
        if breaker is None:
            return 1.0
        if breaker.state == "closed":
            return breaker.weight(now_s)
        return self._settings.breaker.weight_min if replica in self._ejected else 1.0

    def wants_probe(self, now_s: float) -> str | None:
        """A replica that waits for a call to prove itself with. To be asked before the picker: its score, spoilt by
        the failures, might keep it from the probe that would clear it. O(replicas that are half open).
        """
        if now_s >= self._due_s:
            self._settle(now_s)
        if not self._probing or self.panic:
            return None
        for replica in self._probing:
            if self._breakers[replica].probe is None:
                return replica
        return None

    def waits_to_prove(self, replica: str) -> bool:
        """It is out, and a call that goes there is its probe."""
        return replica in self._probing and not self.panic

    def begin(self, replica: str, now_s: float, work: float = 1.0, usual_s: float = 0.0) -> Probe | None:
        """A call begins there. What is returned, None for most, goes back with `note`; every call must be noted, also
        one that was never sent (as neutral). `work` and `usual_s`: as in `Breaker.begin`.
        """
        if self.calm:
            return None
        breaker = self._breakers.get(replica)
        probe = None if breaker is None else breaker.begin(now_s, work, usual_s)
        if probe is not None:
            self._due_s = min(self._due_s, probe.until_s)
        return probe

    def doubt(self, replica: str, probe: Probe | None) -> Doubt | None:
        """Of a call for which `begin` has given `probe`: whether it goes where the breaker is not closed, and why."""
        breaker = self._breakers.get(replica)
        if breaker is None or breaker.state == "closed":
            return None
        word = "panic" if self.panic else "kept" if probe is None or replica not in self._ejected else "probe"
        return Doubt(word, len(self._breakers), self.healthy, len(self._ejected))

    # --- what it learns from ------------------------------------------------------------------------------------------

    def note(
        self,
        replica: str,
        verdict: Verdict,
        duration_s: float,
        now_s: float,
        probe: Probe | None = None,
        ratio_only: bool = False,
        work: float = 1.0,
    ) -> Move | None:
        """A call ended there after `duration_s` (see `Breaker.note`). Returns the move that followed, if one did."""
        if verdict is _SUCCESS and probe is None and self.plain(replica, duration_s, now_s):
            return None
        breaker = self._breakers.get(replica)
        if breaker is None:
            return None
        move = breaker.note(verdict, duration_s, now_s, probe, ratio_only, work)
        if move is not None:
            self._record(replica, move)
            self._settle(now_s)
        return move

    def plain(self, replica: str, duration_s: float, now_s: float) -> bool:
        """Nearly every call: good, fast, and nothing was wrong before it. It is counted without asking the breaker.
        False: it is not like that, and was not counted: it is for `note`.
        """
        breaker = self._breakers.get(replica)
        if (
            breaker is not None
            and duration_s <= breaker.slow_after_s
            and now_s - duration_s >= breaker.plain_since_s
            and now_s < breaker.ring.until_s
        ):
            breaker.ring.good += 1
            return True
        return False

    def expect(self, median_s: float | None) -> None:
        """The pool's median duration of a call; to be told about once a second. O(replicas)."""
        self._median_s = median_s
        for breaker in self._breakers.values():
            breaker.expect(median_s)

    def update(self, replicas: Iterable[str], down: Iterable[str], now_s: float) -> None:
        """The fleet changed: `replicas` are up, `down` are not (one that is in both is down). Who is in neither is
        forgotten, and comes back without a history; who was down comes back with a slow start.
        """
        before, lost = self._breakers, self._down
        self._down = {}
        for replica in down:
            self._down[replica] = before.get(replica) or lost.get(replica) or self._new(now_s)
        self._breakers = {}
        for replica in replicas:
            if replica in self._down:
                continue
            breaker = before.get(replica)
            if breaker is None:
                breaker = lost.get(replica)
                if breaker is None:
                    breaker = self._new(now_s)
                else:
                    self._record(replica, breaker.restart(now_s))
                breaker.expect(self._median_s)
            self._breakers[replica] = breaker
        self._settle(now_s)

    def _new(self, now_s: float) -> Breaker:
        return Breaker(self._settings.breaker, self._chance, now_s, self._slow_elsewhere)

    def _slow_elsewhere(self, breaker: Breaker, now_s: float) -> float:
        """The share of slow calls on the others whose breaker is closed; 0 where they have too few to tell.
        O(replicas), and asked for only when a replica has too many slow calls.
        """
        calls = slow = 0
        for other in self._breakers.values():
            if other is not breaker and other.state == "closed":
                other.ring.turn(now_s)
                calls += other.ring.calls
                slow += other.ring.slow
        return slow / calls if calls >= self._settings.breaker.requests_min else 0.0

    # --- the judgement ------------------------------------------------------------------------------------------------

    def _settle(self, now_s: float) -> None:
        """Timers, who is out, who returns, panic, when to look again. What changes a state ends here."""
        for replica, breaker in self._breakers.items():
            self._record(replica, breaker.lose_probe(now_s))
        bad = [replica for replica, breaker in self._breakers.items() if breaker.state != "closed"]
        self._choose(bad)
        self._let_return(bad, now_s)
        self._probing = tuple(each for each in self._ejected if self._breakers[each].state == "half_open")
        self._judge_panic(bad, now_s)
        self._look_ahead(bad, now_s)

    def _choose(self, bad: list[str]) -> None:
        total, breakers = len(self._breakers), self._breakers
        self.allowed = max(0, min(math.floor(total * self._settings.ejected_max + _ROUNDING), total - 1))
        out = [replica for replica in bad if replica in self._ejected]
        excess = len(out) - self.allowed
        if excess > 0:
            out = sorted(out, key=lambda replica: breakers[replica].retry_s)[excess:]
        elif excess < 0:
            wishes = [replica for replica in bad if replica not in self._ejected]
            out += sorted(wishes, key=lambda replica: breakers[replica].opened_s)[:-excess]
        self._ejected = dict.fromkeys(out)

    def _let_return(self, bad: list[str], now_s: float) -> None:
        for replica in sorted(bad, key=lambda replica: self._breakers[replica].retry_s):
            out = replica in self._ejected
            if out and now_s < self._next_return_s:
                continue
            move = self._breakers[replica].half_open(now_s)
            if move is not None:
                self._record(replica, move)
                if out:
                    rate = max(1.0, self._settings.return_share_per_s * len(self._breakers))
                    self._next_return_s = now_s + 1.0 / rate

    def _judge_panic(self, bad: list[str], now_s: float) -> None:
        self.healthy = len(self._breakers) - len(bad)
        known = len(self._breakers) + len(self._down)
        panic = known > 0 and self.healthy / known < self._settings.panic_below
        if panic != self.panic:
            self.panic = panic
            self.panics += panic
            if panic:
                self.news.append(News(now_s, "", "panic", "few_healthy", 0.0))
            else:
                self.news.append(News(now_s, "", "panic_over", "enough_healthy", 0.0))
                for replica in bad:
                    self._breakers[replica].relent(now_s)

    def _look_ahead(self, bad: list[str], now_s: float) -> None:
        due_s = math.inf
        for replica in bad:
            breaker = self._breakers[replica]
            if breaker.probe is not None:
                due_s = min(due_s, breaker.probe.until_s)
            elif breaker.state == "open":
                earliest_s = self._next_return_s if replica in self._ejected else -math.inf
                due_s = min(due_s, max(breaker.retry_s, earliest_s))
        ramps_s = [each.ramp_until_s for each in self._breakers.values() if each.ramp_until_s > now_s]
        # Those that are down are no candidates: nobody asks about them, and while they are gone the others are well.
        self.calm = not bad and not ramps_s
        self._due_s = min(due_s, min(ramps_s, default=math.inf))

    def _record(self, replica: str, move: Move | None) -> None:
        if move is not None:
            self._moves[move.why] += 1
            self.news.append(News(move.at_s, replica, move.after, move.why, move.pause_s))

    # --- what it shows ------------------------------------------------------------------------------------------------

    def standing(self, replica: str, now_s: float) -> Standing:
        """Where a replica stands, in one word; as of the last question or event."""
        if replica in self._down:
            return "down"
        breaker = self._breakers.get(replica)
        if breaker is None:
            return "unknown"
        if breaker.state == "closed":
            return "healthy" if breaker.weight(now_s) >= 1 else "slow_start"
        if self.panic:
            return "panic"
        if replica not in self._ejected:
            return "kept"
        return "probing" if breaker.state == "half_open" else "ejected"

    def summary(self, now_s: float) -> Mapping[str, Any]:
        """Replicas by standing, panic, and moves by reason. O(replicas); moves no timer."""
        standings: dict[str, int] = dict.fromkeys(get_args(Standing)[:-1], 0)
        for replica in (*self._breakers, *self._down):
            standings[self.standing(replica, now_s)] += 1
        return {"standings": standings, "panic": self.panic, "panics": self.panics, "moves": self._moves}

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        """O(replicas); moves no timer."""
        return {
            "enabled": self._settings.enabled,
            "replicas": len(self._breakers),
            "down": len(self._down),
            "healthy": self.healthy,
            "ejected": len(self._ejected),
            "ejected_max": self.allowed,
            "kept": len(self._breakers) - self.healthy - len(self._ejected),
            "panic": self.panic,
            "panics": self.panics,
            "moves": dict(self._moves),
            "by_replica": {
                replica: {
                    "standing": self.standing(replica, now_s),
                    "weight": self.weight(replica, now_s),
                    **breaker.statistics(now_s),
                }
                for replica, breaker in self._breakers.items()
            },
        }


class Unjudged(Ejection):
    """Where ejection is turned off: nobody is judged, nothing is counted, every replica that is up may be asked."""

    __slots__ = ()

    def plain(self, replica: str, duration_s: float, now_s: float) -> bool:
        return True

    def note(
        self,
        replica: str,
        verdict: Verdict,
        duration_s: float,
        now_s: float,
        probe: Probe | None = None,
        ratio_only: bool = False,
        work: float = 1.0,
    ) -> Move | None:
        return None

    def update(self, replicas: Iterable[str], down: Iterable[str], now_s: float) -> None:
        """There is nothing to keep."""
