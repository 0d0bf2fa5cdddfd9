"""The simulation finds faults planted in the adaptive limit, by seeds in which it moves."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gateway.decide import slot_limit
from gateway.decide.admission import Admission
from gateway.decide.limit import AdaptiveLimit, Why
from tests.simulation.limit_checks import SHARE
from tests.simulation.small_house import SmallHouse
from tests.unit.simulation_findings import finds, verdict

MOVING = [seed for seed in range(120) if seed % 7 in SHARE]


def test_a_house_whose_limit_moves_passes_every_check(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[str] = set()
    sound = AdaptiveLimit._set

    def noting(self: AdaptiveLimit, limit: float, why: Why) -> None:
        before = self.limit
        sound(self, limit, why)
        if self.limit != before:
            seen.add(why)

    monkeypatch.setattr(AdaptiveLimit, "_set", noting)
    assert verdict(MOVING[:5]) == ""
    assert {"fleet", "drops"} <= seen, "the limit moved"


def test_a_limit_under_its_floor_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = AdaptiveLimit._shrink

    def without_floor(self: AdaptiveLimit, by: float, why: Why, now_s: float) -> None:
        sound(self, by, why, now_s)
        self._limit = 1.0
        self.limit = 1

    monkeypatch.setattr(AdaptiveLimit, "_shrink", without_floor)
    assert finds("for each", MOVING, SmallHouse)


def test_slots_that_do_not_follow_the_limit_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = slot_limit.share_out

    def one_too_many(limit: int, weights: Sequence[int]) -> list[int]:
        first, *others = sound(limit, weights)
        return [first + 1, *others]

    monkeypatch.setattr(slot_limit, "share_out", one_too_many)
    assert finds("slots are given out, the limit is", MOVING, SmallHouse)


def test_a_picker_that_has_not_heard_of_a_lower_limit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Admission._refit

    def deaf(self: Admission, now_s: float) -> None:
        sound(self, now_s)
        self.candidates = self.fit.declared

    monkeypatch.setattr(Admission, "_refit", deaf)
    # Only calls without bounds take the short way that is deaf here: a seed in which that shows comes first.
    assert finds("calls in flight on", (197, *MOVING), SmallHouse)
