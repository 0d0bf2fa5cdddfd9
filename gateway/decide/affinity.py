"""Affinity: calls of one key go to one replica, as long as that one is not much busier than the others.

What a replica has cached for a key (the prefix of a prompt, a session's state) is lost when the key's next call goes
elsewhere. The home of a key is the highest weighted random weight over the replicas (rendezvous hashing; the weight of
a replica is its slots: -slots / ln(u), with u in (0, 1) drawn by the hash, Schindelhauer and Schomaker, "Weighted
distributed hash tables", 2005). These are the slots that it declares: an adaptive limit moves what it has now, hears
nothing of keys, and must not make them move. A replica that comes takes its share from all others, one that leaves
gives its keys to all others, and no other key moves.

A popular key must not drown its home: loads are bounded (Mirrokni, Thorup and Zadimoghaddam, "Consistent hashing with
bounded loads", 2018; c = 1.25 in HAProxy and brpc). With this call, of the t + 1 in flight on the eligible replicas no
one takes more than ceil(c x (t + 1) x its share of the slots); a key whose home is at the bound goes to the next in its
own order, so that the spill of a key is stable as well. Only eligible replicas count, in t and in the shares: else the
bounds of a pool of which half is out would not add up to what is in flight, and nobody might take a call. As it is, a
free slot is always found: the bounds add up to more than t, so that somebody is below his; and if all of those are
full, the bounds are above the slots of everybody.

Nothing is remembered about keys. `pick` is O(replicas): one hash for each, a microsecond.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from gateway.core.snapshot import Candidate
from gateway.decide.rendezvous import Key, digest

Why = Literal[
    "home",  # the first of the key's order
    "next",  # a later one: those before it are at the bound, have no free slot, or may not be asked
    "full",  # none: no eligible replica has a free slot, or only such as are at the bound by their weight
    "lent",  # none: the call is to prove a replica
]

_BITS = 52
"""Of the digest; with half a unit added, every one of them is a float strictly between 0 and 1."""
_AS_THEY_ARE: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True)
class AffinitySettings:
    """How far affinity goes. Raises ValueError for what makes no sense."""

    bound: float = 1.25
    """c: how many times its share of the calls in flight a replica may have (HAProxy, brpc: 1.25). 1 spreads evenly
    and moves keys often; a large one never gives way.
    """

    def __post_init__(self) -> None:
        if not 1 <= self.bound <= 1e6:
            raise ValueError(f"bound must lie between 1 and 1e6, not {self.bound}")


def want(scope: str, key: Key, replica: str, slots: int) -> float:
    """How much this key wants a replica that declares `slots`, at least 1: the highest is its home. The same in every
    gateway.
    """
    drawn = ((digest(scope, key, replica) >> (64 - _BITS)) + 0.5) / (1 << _BITS)
    return math.log(drawn) / slots


def order(
    scope: str, key: Key, candidates: Sequence[Candidate], declared: Mapping[str, int] = _AS_THEY_ARE
) -> list[Candidate]:
    """The candidates that have slots, in the order in which this key wants them. `declared`: the slots of those that
    have more or fewer than they declare.
    """
    ranked = [
        (want(scope, key, each.replica, declared.get(each.replica) or each.slots), each.replica, each)
        for each in candidates
        if each.slots > 0
    ]
    ranked.sort(key=lambda each: each[:2], reverse=True)
    return [candidate for _, _, candidate in ranked]


class Affinity:
    """Chooses for the calls of one (pool, model, version) that carry a key. `scope` is the model: what keeps apart the
    keys of two.
    """

    __slots__ = ("_counts", "_scope", "_settings", "bound", "declared", "home", "in_flight", "place", "why")

    def __init__(self, scope: str, settings: AffinitySettings | None = None) -> None:
        self._scope = scope
        self._settings = settings if settings is not None else AffinitySettings()
        self._counts: dict[str, int] = dict.fromkeys(get_args(Why), 0)
        self.declared = _AS_THEY_ARE
        """As in `order`; whoever moves the slots of candidates sets it."""
        self.why: Why = "full"
        """Of the last pick. For reading, as is what follows: the first of the key's order that was eligible, what it
        had in flight, how many it may have for the sake of keys, and the place of the one that was chosen.
        """
        self.home = ""
        self.in_flight = self.bound = self.place = 0

    def lend(self) -> None:
        """The call is to prove a replica, and goes where its key does not want it."""
        self.home, self.in_flight, self.bound, self.place = "", 0, 0, 0
        self._say("lent", None)

    def pick(
        self,
        key: Key,
        candidates: Sequence[Candidate],
        in_flight: Mapping[str, int],
        *,
        exclude: Collection[str] = (),
        admissible: Callable[[str], bool] | None = None,
        weight: Callable[[str], float] | None = None,
    ) -> str | None:
        """The id of the replica for a call of this key; None if none has a free slot. `exclude`: replicas that the call
        has been to; `admissible`: whether the breaker (and the picker: `ScoredPicker.trusted`) lets a call go there.
        `weight`: of a replica in slow start, in (0, 1]: its share is that of so much of its slots.
        """
        eligible = [
            each
            for each in candidates
            if each.slots > 0 and each.replica not in exclude and (admissible is None or admissible(each.replica))
        ]
        self.home, self.in_flight, self.bound, self.place = "", 0, 0, 0
        if not eligible:
            return self._say("full", None)
        total, shares = 1, 0.0
        for each in eligible:
            total += in_flight.get(each.replica, 0)
            shares += each.slots if weight is None else each.slots * weight(each.replica)
        allowed = self._settings.bound * total / shares
        scope, declared = self._scope, self.declared
        ranked = [
            (want(scope, key, each.replica, declared.get(each.replica) or each.slots), each.replica, each)
            for each in eligible
        ]
        _, self.home, first = max(ranked)
        self.in_flight, self.bound = in_flight.get(self.home, 0), _bound(first, allowed, weight)
        if self.in_flight < self.bound:
            # One that may not be asked is still the home of its keys.
            away = len(eligible) < len(candidates) and order(scope, key, candidates, declared)[0] is not first
            return self._say("next" if away else "home", self.home)
        ranked.sort(reverse=True)
        for place, (_, _, each) in enumerate(ranked):
            if in_flight.get(each.replica, 0) < _bound(each, allowed, weight):
                self.place = place
                return self._say("next", each.replica)
        return self._say("full", None)

    def _say(self, why: Why, replica: str | None) -> str | None:
        self.why = why
        self._counts[why] += 1
        return replica

    @property
    def counts(self) -> Mapping[str, int]:
        """Picks by how they came out."""
        return self._counts

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        return {"picked": dict(self._counts)}


def _bound(candidate: Candidate, allowed: float, weight: Callable[[str], float] | None) -> int:
    share = candidate.slots if weight is None else candidate.slots * weight(candidate.replica)
    return min(candidate.slots, math.ceil(allowed * share))
