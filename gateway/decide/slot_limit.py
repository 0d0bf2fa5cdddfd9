"""The adaptive limit as slots: what a fleet makes of its bounds, and what each replica gets of it.

Bounds are added up over the replicas. Of one with `slots` by policy or by default and `places` (what fills one batch on
each of its instances), where the policy names neither floor nor cap:

    floor = min(places, slots)                  half of the slots, rounded up, while the places are not known
    start = slots
    cap   = CAP_FACTOR x places, at least slots where the slots are a default
          = slots                               where the policy names them, and for models that stream

Who names the slots knows the server, and is not overruled upwards. A stream holds its slot for long after its first
response, which is all that is measured of it, so no throughput could tell whether a slot more is worth having.

The slots of each replica scale with the limit: largest remainder, at least one each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from gateway.core.call import Attempt
from gateway.core.outcome import TEACHINGS, Latency, Verdict
from gateway.core.permit import Permit, Special
from gateway.core.snapshot import Candidate
from gateway.decide.limit import AdaptiveLimit
from gateway.decide.limit_settings import LimitSettings

CAP_FACTOR = 8
"""Times what fills the batches."""

_OUTLASTED = frozenset(
    outcome
    for outcome, teaching in TEACHINGS.items()
    if teaching.limit is Verdict.NEUTRAL and teaching.hedge is Latency.LOWER_BOUND
)
"""Cut short because another attempt was faster."""


@dataclass(frozen=True, slots=True)
class LimitRule:
    """What a policy says. Calls of one replica; None: by the rule above. Raises ValueError if the floor is above the
    cap, or one of them below 1.
    """

    floor: int | None = None
    cap: int | None = None
    named: bool = False
    """The policy names the slots."""
    settings: LimitSettings = field(default_factory=LimitSettings)

    def __post_init__(self) -> None:
        if (self.floor or 1) < 1 or (self.cap or 1) < 1 or self.floor == 0 or self.cap == 0:
            raise ValueError(f"floor ({self.floor}) and cap ({self.cap}) must be at least 1")
        if self.floor is not None and self.cap is not None and self.floor > self.cap:
            raise ValueError(f"floor ({self.floor}) must not be above cap ({self.cap})")

    def bounds(self, candidate: Candidate, *, streams: bool) -> tuple[int, int, int]:
        """(floor, start, cap) of one replica, 1 <= floor <= start <= cap. The cap wins over the floor, both over the
        start.
        """
        slots = max(1, candidate.slots)
        places = candidate.places or (slots + 1) // 2
        floor = self.floor or min(places, slots)
        cap = self.cap
        if cap is None:
            cap = max(slots, floor) if self.named or streams else max(slots, floor, CAP_FACTOR * places)
        floor = min(floor, cap)
        return floor, min(max(floor, slots), cap), cap


class SlotLimit:
    """Of one (pool, model, version). `chance` gives uniform draws from [0, 1). Those methods that return a bool tell
    whether the slots have changed; a wrong guess of it costs no more than another look.
    """

    __slots__ = (
        "_chance", "_fitted", "_rule", "_streams", "adaptive", "candidates", "declared", "due_s", "ends", "limit",
        "slots",
    )  # fmt: skip

    def __init__(self, rule: LimitRule | None, chance: Callable[[], float], *, streams: bool = False) -> None:
        """`rule` None: the slots stay as they are declared."""
        self._rule = rule
        self._chance = chance
        self._streams = streams
        self._fitted = 0
        self.adaptive: AdaptiveLimit | None = None
        """None where there is no rule, or were no candidates yet. For reading, as what follows."""
        self.declared: tuple[Candidate, ...] = ()
        """Of the last update."""
        self.candidates: tuple[Candidate, ...] = ()
        """The same, with the slots that they have now."""
        self.slots: dict[str, int] = {}
        """Of these."""
        self.limit = 0
        """Their sum."""
        self.due_s = inf
        """When `fold` is due at the latest."""
        self.ends: list[tuple[float, float, int]] = []
        """`AdaptiveLimit.fresh`, for hot paths; where there is no such limit nobody reads it, and `fold` empties it."""

    def update(self, candidates: Sequence[Candidate], now_s: float) -> dict[str, int]:
        """The fleet changed; returns the slots that are declared. Without candidates what was learnt is kept for those
        to come.
        """
        self.declared = tuple(candidates)
        rule = self._rule
        if rule is not None and candidates:
            bounds = zip(*(rule.bounds(each, streams=self._streams) for each in candidates), strict=True)
            floor, start, cap = map(sum, bounds)
            if self.adaptive is None:
                self.adaptive = AdaptiveLimit(floor, start, cap, self._chance, now_s, rule.settings)
                self.adaptive.fresh = self.ends
            else:
                self.adaptive.update(floor, start, cap, now_s)
        self._fit()
        return {each.replica: each.slots for each in candidates}

    def fold(self, now_s: float) -> bool:
        """Take in what is in `ends`. At `FRESH_MAX` of them, and when `due_s` has come."""
        adaptive = self.adaptive
        if adaptive is None:
            self.ends.clear()
            return False
        adaptive.fold(now_s)
        return self._moved(adaptive)

    def ended(self, attempt: Attempt, special: Special, in_flight: int, now_s: float) -> bool:
        """An attempt is over (`AdaptiveLimit.ended`). A hedge is no sample: it is answered only if it was the faster of
        two, and given up with its call, which is one drop and not two. Nor is the end of a stream that was answered.
        """
        adaptive, outcome = self.adaptive, attempt.outcome
        if adaptive is None or outcome is None or special.told or special.kind == "hedge":
            return False
        if outcome in _OUTLASTED:
            adaptive.outlasted()
        duration_s = _unit_s((attempt.answered_s or attempt.ended_s) - attempt.started_s, special)
        adaptive.ended(TEACHINGS[outcome].limit, attempt.started_s, duration_s, in_flight, now_s)
        return self._moved(adaptive)

    def first_response(self, permit: Permit, in_flight: int, now_s: float) -> bool:
        """Of a stream that goes on: it has taken so long, whatever comes of it."""
        adaptive, attempt = self.adaptive, permit.attempt
        if adaptive is None or attempt is None:
            return False
        permit.special = special = (permit.special or Special())._replace(told=True)
        duration_s = _unit_s(attempt.answered_s - attempt.started_s, special)
        adaptive.ended(Verdict.SUCCESS, attempt.started_s, duration_s, in_flight, now_s)
        return self._moved(adaptive)

    def rested(self, now_s: float) -> bool:
        """A call comes: after a long silence it is not met by what was learnt before."""
        adaptive = self.adaptive
        if adaptive is None:
            return False
        adaptive.rest(now_s)
        return self._moved(adaptive)

    def _moved(self, adaptive: AdaptiveLimit) -> bool:
        self.due_s = adaptive.due_s
        if adaptive.limit == self._fitted:
            return False
        self._fit()
        return True

    def _fit(self) -> None:
        """O(candidates), each time that the limit changes."""
        declared, adaptive = self.declared, self.adaptive
        self.candidates = declared
        if adaptive is not None:
            self._fitted, self.due_s = adaptive.limit, adaptive.due_s
            shares = share_out(adaptive.limit, [each.slots for each in declared])
            if any(slots != each.slots for slots, each in zip(shares, declared, strict=True)):
                self.candidates = tuple(
                    Candidate(each.replica, slots, each.places, each.batch_max)
                    for each, slots in zip(declared, shares, strict=True)
                )
        self.slots = {each.replica: each.slots for each in self.candidates}
        self.limit = sum(self.slots.values())

    def shrinking(self, now_s: float) -> bool:
        """`AdaptiveLimit.shrinking`."""
        return self.adaptive is not None and self.adaptive.shrinking(now_s)

    def note(self) -> tuple[str, Mapping[str, float]] | None:
        """What moved the limit from where it started, and its bounds; None if it stands there."""
        adaptive = self.adaptive
        if adaptive is None or adaptive.limit == adaptive.start:
            return None
        return adaptive.why, {
            "limit": self.limit,
            "start": adaptive.start,
            "floor": adaptive.floor,
            "cap": adaptive.cap,
        }

    def statistics(self, now_s: float) -> Mapping[str, Any] | None:
        """None where the slots are fixed."""
        if self.adaptive is None:
            return None
        return {**self.adaptive.statistics(now_s), "slots_by_replica": dict(sorted(self.slots.items()))}


class LimitOfAnother(SlotLimit):
    """For an admission whose slots are those of another one, which learns: what the other's limit says."""

    __slots__ = ("_other",)

    def __init__(self, other: SlotLimit) -> None:
        super().__init__(None, other._chance)
        self._other = other

    def shrinking(self, now_s: float) -> bool:
        return self._other.shrinking(now_s)

    def note(self) -> tuple[str, Mapping[str, float]] | None:
        return self._other.note()

    def statistics(self, now_s: float) -> Mapping[str, Any] | None:
        return self._other.statistics(now_s)


def _unit_s(duration_s: float, special: Special) -> float:
    """A large call takes long because it is large, which is nobody's queue."""
    return duration_s / special.work if special.work > 1.0 else duration_s


Fit = SlotLimit | None
"""None: as many slots as are declared."""


def share_out(limit: int, weights: Sequence[int]) -> list[int]:
    """`limit` in whole parts that are to each other as `weights`, as nearly as can be, and at least 1: by largest
    remainder, of equal ones the first. They add up to `limit`, or to their number if that is greater.
    """
    total = sum(weights)
    if not total:
        weights, total = [1] * len(weights), len(weights)
    parts = [max(1, limit * weight // total) for weight in weights]
    left = limit - sum(parts)
    if left > 0:
        by_remainder = sorted(range(len(weights)), key=lambda i: -(limit * weights[i] % total))
        for i in by_remainder[:left]:
            parts[i] += 1
    while left < 0 and max(parts) > 1:  # those that got their 1 for less: the largest pay
        parts[parts.index(max(parts))] -= 1
        left += 1
    return parts
