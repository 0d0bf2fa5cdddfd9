"""KeptRound: a replica's second round of slots is kept for higher classes until its running batch is well under way.

A replica has slots for two rounds of batches, one that runs and one that fills. Under overload the one that fills is
full at once, of whoever waited; a call of the highest class that comes a moment later waits for the end of the batch
to get a slot, then behind the next batch, and is in the third: up to three times S(b*). But a call that is to be in the
next batch need not be there before the running one ends. So while calls of a higher class come, those of lower ones
get a slot of the second round only when the running batch has lasted for `KEEP_SHARE` of its time; what is left of it
is enough to fill the round. A call of the highest class finds a slot until then, is in the next batch, and has its
answer after two and a half times S(b*) at most.

When a batch began is not seen. But the one before ended when the last answer came, and those that are in flight then
are the next one, or begin it. A batch that is not full is shorter, by no more than its share of a full one is smaller
(S(b) rises with b); so the time that it is given is, too. The first round is never kept: a replica that has less to do
than its batches hold may be idle.

O(1), but `kept`: O(candidates). Memory: one instant for each replica and class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

from gateway.core.snapshot import Candidate
from gateway.decide.balance import Balance
from gateway.decide.waiting_room import CLASSES, ROUNDS

KEEP_SHARE = 0.7
"""Of a batch's time. 0.5 would do for the two and a half times S(b*) alone; what is left of the batch must be long
enough for calls to get there.
"""
STAYS_S = 10.0
"""A class of which no call was offered for so long is not waited for."""


class KeptRound:
    """Of one (pool, model, version)."""

    __slots__ = ("_ended", "_last", "_offered_s", "look_s", "until_s")

    def __init__(self) -> None:
        self._ended: dict[str, tuple[float, int]] = {}
        """When the last answer came, by replica, and how many were in flight then; while several classes come."""
        self._offered_s = [-math.inf] * CLASSES
        """When a call of it was offered last."""
        self.until_s = -math.inf
        """So long several classes come. For reading: before it, answers are to be told of (`ended`)."""
        self._last: Mapping[str, float] = {}
        """What was kept from the last who asked."""
        self.look_s = math.inf
        """From then on who waits may get a slot though nothing comes back, as of the last `elsewhere`. For reading."""

    def offered(self, criticality: int, now_s: float) -> None:
        """A call of this class asks for a slot."""
        self._offered_s[criticality] = now_s
        others_s = max(each for rank, each in enumerate(self._offered_s) if rank != criticality)
        if others_s + STAYS_S > now_s:
            self.until_s = now_s + STAYS_S
        elif self.until_s <= now_s:
            self._ended.clear()

    def ended(self, replica: str, left: int, now_s: float) -> None:
        """An answer came from there, and so many calls are still in flight."""
        self._ended[replica] = now_s, left

    def only(self, replicas: Collection[str]) -> None:
        """The fleet changed: what is known of others says nothing any more."""
        for replica in [each for each in self._ended if each not in replicas]:
            del self._ended[replica]

    def kept(
        self,
        criticality: int,
        in_flight: Mapping[str, int],
        declared: Sequence[Candidate],
        batch_s: float,
        now_s: float,
    ) -> dict[str, float]:
        """Replicas that a call of this class may not be sent to now, each with the instant from which it may.
        `declared`: the candidates with their own slots, two rounds of batches; `batch_s`: S(b*).
        """
        if now_s >= self.until_s or max(self._offered_s[:criticality], default=-math.inf) + STAYS_S <= now_s:
            return {}
        found = {}
        for each in declared:
            ended = self._ended.get(each.replica)
            first = max(1, each.slots // ROUNDS)
            if ended is None or in_flight.get(each.replica, 0) < first:
                continue
            ended_s, left = ended
            instances = max(1, first // max(1, each.batch_max))
            until_s = ended_s + KEEP_SHARE * batch_s * min(1.0, left / first) / instances
            if now_s < until_s:
                found[each.replica] = until_s
        return found

    def statistics(self, now_s: float) -> Mapping[str, float]:
        """Replicas that are kept from whoever asked last, and for how many more seconds."""
        return {replica: until_s - now_s for replica, until_s in sorted(self._last.items()) if until_s > now_s}

    def elsewhere(self, kept: Mapping[str, float], balance: Balance, pick: Callable[[], str | None]) -> str | None:
        """What `pick` finds with `balance` if it is not to look at those that are `kept`. If that is nothing, `look_s`
        says when to ask again.
        """
        self.look_s, self._last = math.inf, kept
        if not kept:
            return pick()
        allowed = balance.allowed
        balance.allowed = lambda replica: replica not in kept and (allowed is None or allowed(replica))
        try:
            replica = pick()
        finally:
            balance.allowed = allowed
        if replica is None:
            self.look_s = min(kept.values())
        return replica
