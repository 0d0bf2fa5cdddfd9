"""The picker: the least loaded, by chance among equals, and no look at all of them where nothing is in flight."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import overload

from gateway.core.snapshot import Candidate
from tests.support.least_in_flight import LeastInFlight


class Watched(Sequence[Candidate]):
    """Candidates, and how many of them were looked at."""

    def __init__(self, *candidates: Candidate) -> None:
        self._candidates = candidates
        self.looks = 0

    @overload
    def __getitem__(self, index: int) -> Candidate: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Candidate]: ...

    def __getitem__(self, index: int | slice) -> Candidate | Sequence[Candidate]:
        self.looks += 1
        return self._candidates[index]

    def __len__(self) -> int:
        return len(self._candidates)


def test_where_nothing_is_in_flight_one_candidate_is_looked_at() -> None:
    candidates = Watched(*(Candidate(f"r{number:02}", 4) for number in range(64)))
    chosen = LeastInFlight(random.Random(1)).pick(candidates, {})
    assert chosen is not None
    assert candidates.looks == 1


def test_in_a_quiet_pool_chance_spreads_calls_over_those_that_have_slots() -> None:
    picker = LeastInFlight(random.Random(1))
    candidates = (Candidate("a", 1), Candidate("none", 0), Candidate("b", 9), Candidate("c", 4))
    found = Counter(picker.pick(candidates, {}) for _ in range(3000))
    assert set(found) == {"a", "b", "c"}
    assert all(900 < count < 1100 for count in found.values()), found


def test_without_slots_nobody_is_chosen() -> None:
    picker = LeastInFlight(random.Random(1))
    assert picker.pick((), {}) is None
    assert picker.pick((Candidate("a", 0),), {}) is None
    assert picker.pick((Candidate("a", 0), Candidate("b", 0)), {}) is None


def test_with_calls_in_flight_the_least_loaded_by_slots_is_chosen() -> None:
    picker = LeastInFlight(random.Random(1))
    candidates = (Candidate("a", 4), Candidate("b", 2), Candidate("c", 4))
    assert picker.pick(candidates, {"a": 2, "b": 1, "c": 1}) == "c"
    assert picker.pick(candidates, {"a": 1, "c": 1}) == "b"
    assert picker.pick(candidates, {"a": 4, "b": 2, "c": 4}) is None
