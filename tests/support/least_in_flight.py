"""Which replica gets the next call: the least loaded of those that have a free slot.

Load is in-flight over slots, so that a replica with twice the instances carries twice the calls. Ties are broken by
chance: without that the first replica of the list would soak up all traffic of a quiet model (the pitfall that
Envoy's least-request documents). A full scan is right here: one gateway knows every count exactly, and pools are
small (`notes` of Prequal, NSDI'24, on when probing pays).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from gateway.core.snapshot import Candidate


class LeastInFlight:
    """The picker. Holds no counts of its own: it is shown them."""

    __slots__ = ("_chance",)

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def pick(self, candidates: Sequence[Candidate], in_flight: Mapping[str, int]) -> str | None:
        """The id of the chosen replica; None if none has a free slot. O(candidates), and O(1) where nothing is in
        flight: then all are equal, and of many models on many replicas most are quiet.
        """
        if not in_flight and len(candidates) > 1:
            chosen = candidates[self._chance.randrange(len(candidates))]
            if chosen.slots > 0:
                return chosen.replica
        best: str | None = None
        best_load = 1.0
        ties: list[str] | None = None
        for candidate in candidates:
            replica, slots = candidate.replica, candidate.slots
            load = in_flight.get(replica, 0) / slots if slots > 0 else 1.0
            if load < best_load:
                best, best_load, ties = replica, load, None
            elif load == best_load and best is not None:
                if ties is None:
                    ties = [best]
                ties.append(replica)
        return best if ties is None else ties[self._chance.randrange(len(ties))]
