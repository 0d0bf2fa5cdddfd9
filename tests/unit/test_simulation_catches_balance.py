"""The simulation finds faults planted in affinity and in the cap on ejection, by the seeds that use them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.core.snapshot import Candidate
from gateway.decide import affinity
from gateway.decide.affinity import Affinity
from gateway.decide.ejection import Ejection
from gateway.decide.rendezvous import Key
from tests.simulation.small_house import SmallHouse
from tests.unit.simulation_findings import finds, verdict

KEYED = range(1, 120, 7)
EJECTING = [seed for seed in range(0, 260, 7) if seed % 3]


def test_a_house_with_affinity_and_quick_ejection_passes_every_check() -> None:
    assert verdict([*KEYED[:3], *EJECTING[:3]], SmallHouse) == ""


def test_keys_that_have_another_home_each_time_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(1)
    monkeypatch.setattr(affinity, "want", lambda scope, key, candidate: chance.random())
    assert finds("keys_stay_at_home: ", KEYED, SmallHouse)


def test_a_home_that_is_passed_over_without_need_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Affinity.pick

    def shy(self: Affinity, key: Key, candidates: Sequence[Candidate], *rest: Any, **more: Any) -> str | None:
        chosen = sound(self, key, candidates, *rest, **more)
        if self.why == "home" and len(candidates) > 1:
            self.why = "next"
            return next(each.replica for each in candidates if each.replica != chosen)
        return chosen

    monkeypatch.setattr(Affinity, "pick", shy)
    assert finds("and nothing was in flight or amiss", range(1, 400, 7), SmallHouse)


def test_an_ejection_beyond_the_cap_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ejection, "_choose", lambda self, bad: setattr(self, "_ejected", dict.fromkeys(bad)))
    assert finds("replicas are ejected", EJECTING, SmallHouse)
