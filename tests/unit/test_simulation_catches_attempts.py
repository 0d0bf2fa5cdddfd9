"""The simulation finds faults planted in second attempts, by seeds in which stragglers make hedges win."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.call import Attempt
from gateway.core.outcome import Outcome
from gateway.core.permit import Kind, Permit
from gateway.layers.attempts import _Race
from gateway.layers.cancels import Cancels
from gateway.layers.desk import AdmissionDesk
from gateway.layers.track import TrackLayer
from tests.simulation.small_house import SmallHouse
from tests.unit.simulation_findings import finds, verdict

STRAGGLING = range(2, 62, 5)


def test_a_house_in_which_hedges_win_passes_every_check() -> None:
    assert verdict(STRAGGLING[:4], SmallHouse) == ""


def test_a_hedges_slot_that_leaks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = AdmissionDesk.give_back

    def leaky(self: AdmissionDesk, permit: Permit) -> None:
        if permit.special is None or permit.special.kind != "hedge":
            sound(self, permit)

    monkeypatch.setattr(AdmissionDesk, "give_back", leaky)
    assert finds("slots are held, but", STRAGGLING, SmallHouse)


def test_a_superseded_attempt_that_is_not_closed_as_such_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Race, "_close", lambda self, attempt, outcome: None)
    assert finds("one_attempt_is_the_answer", STRAGGLING, SmallHouse)
    assert finds("one_attempt_is_the_answer", STRAGGLING)


def test_an_attempt_that_is_out_when_its_call_is_recorded_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(self: _Race, attempt: Attempt, outcome: Outcome) -> None:
        asyncio.get_running_loop().call_soon(sound, self, attempt, outcome)

    sound = _Race._close
    monkeypatch.setattr(_Race, "_close", late)
    assert finds("has an attempt without an outcome", STRAGGLING, SmallHouse)


@pytest.mark.parametrize(("kind", "seeds"), [("hedge", STRAGGLING), ("retry", range(60))])
def test_a_second_attempt_on_the_same_replica_is_found(
    monkeypatch: pytest.MonkeyPatch, kind: Kind, seeds: range
) -> None:
    planted, sound = kind, AdmissionDesk.another

    def forgetful(self: AdmissionDesk, kind: Kind, tried: tuple[str, ...], work: float = 1.0) -> Permit | None:
        return sound(self, kind, () if kind == planted else tried, work)

    monkeypatch.setattr(AdmissionDesk, "another", forgetful)
    assert finds("sent twice to one replica", seeds, SmallHouse)


def test_cancels_that_nobody_caps_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cancels, "may_cancel", lambda self, replica, *, again=False: True)
    assert finds("cancels within", range(60))


def test_a_slot_that_comes_back_while_the_replica_still_works_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = TrackLayer._end

    def early(self: TrackLayer, permit: Permit, attempt: Attempt, otherwise: Outcome) -> None:
        rest, attempt.rest = attempt.rest, None
        sound(self, permit, attempt, otherwise)
        attempt.rest = rest

    monkeypatch.setattr(TrackLayer, "_end", early)
    assert finds("slots are held, but", range(60))
