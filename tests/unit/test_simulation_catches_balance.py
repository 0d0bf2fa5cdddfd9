"""The simulation finds faults planted in affinity and in the cap on ejection, by the seeds that use them."""

from __future__ import annotations

import random

import pytest

from gateway.decide import affinity
from gateway.decide.ejection import Ejection
from tests.simulation.small_house import SmallHouse
from tests.unit.simulation_findings import finds, verdict

KEYED = range(1, 120, 7)
EJECTING = [seed for seed in range(0, 260, 7) if seed % 3]


def test_a_house_with_affinity_and_quick_ejection_passes_every_check() -> None:
    assert verdict([*KEYED[:3], *EJECTING[:3]], SmallHouse) == ""


def test_keys_that_have_another_home_each_time_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(1)
    monkeypatch.setattr(affinity, "want", lambda scope, key, replica, slots: chance.random())
    assert finds("keys_stay_at_home: ", KEYED, SmallHouse)


def test_a_bound_that_is_rounded_down_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(affinity, "_bound", lambda candidate, allowed, weight: int(allowed * candidate.slots))
    assert finds("which was idle", KEYED, SmallHouse)


def test_an_ejection_beyond_the_cap_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ejection, "_choose", lambda self, bad: setattr(self, "_ejected", dict.fromkeys(bad)))
    assert finds("replicas are ejected", EJECTING, SmallHouse)
