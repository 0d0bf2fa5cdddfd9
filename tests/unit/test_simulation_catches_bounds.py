"""The simulation finds faults planted in lanes, in the shared ceiling and in the memory that is counted."""

from __future__ import annotations

import math

import pytest

from gateway.decide.lanes import Lanes
from gateway.decide.memory_budget import MemoryBudget
from gateway.decide.shared_bounds import SharedBounds, SharedWhy
from gateway.layers.bounds import Commons
from tests.simulation.small_house import SmallHouse
from tests.unit.simulation_findings import finds, verdict

LANES, SHARED = range(1, 141, 7), range(0, 140, 7)


def test_a_house_with_lanes_and_shared_bounds_passes_every_check() -> None:
    assert verdict([*LANES[:2], *SHARED[:2]], SmallHouse) == ""


def test_large_calls_among_small_ones_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lanes, "_may_run_apart", lambda self, lane, room: "ok")
    assert finds("two lanes run on", LANES, SmallHouse)


def test_too_many_large_calls_on_a_replica_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Lanes._may_run_apart

    def generous(self: Lanes, lane: int, room: object) -> str:
        why = sound(self, lane, room)  # type: ignore[arg-type]
        return "ok" if why == "lane_full" else why

    monkeypatch.setattr(Lanes, "_may_run_apart", generous)
    assert finds("large calls run on", LANES, SmallHouse)


def test_a_lane_that_is_not_given_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lanes, "give_back", lambda self, lane, replica: None)
    assert finds("lane small has", LANES, SmallHouse)


def test_those_who_wait_and_are_not_woken_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Commons, "settle", lambda self: None)
    assert finds("calls wait although", [*LANES, *SHARED], SmallHouse)


def test_a_ceiling_that_does_not_hold_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = SharedBounds.may_take

    def blind(self: SharedBounds, replica: str, model: str, work: float, who: object) -> SharedWhy:
        ceiling, self._ceiling = self._ceiling, math.inf
        try:
            return sound(self, replica, model, work, who)
        finally:
            self._ceiling = ceiling

    monkeypatch.setattr(SharedBounds, "may_take", blind)
    assert finds("whose ceiling is", SHARED, SmallHouse)


def test_memory_beyond_the_limit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryBudget, "_judge", staticmethod(lambda account, needed: "ok"))
    assert finds("bytes of calls on", SHARED, SmallHouse)


def test_memory_that_is_not_given_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryBudget, "give_back", lambda self, device, model, taken: None)
    assert finds("main: {} in flight", SHARED, SmallHouse)
