"""The simulation finds what is wrong with classes of calls: who is served first, who is turned away, and which class a
call has.
"""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.call import Call
from gateway.decide import cohorts
from gateway.decide.waiting_room import WaitingRoom
from gateway.edge import grpc_head_plan
from gateway.edge.headers import ClientHeaders
from gateway.edge.http_usual import UsualCall
from gateway.layers import admit
from gateway.layers.gate import GateLayer
from gateway.records import render
from tests.simulation.class_plans import ClassPlans
from tests.simulation.small_house import SmallHouse
from tests.unit.simulation_findings import finds, verdict

SEEDS = tuple(seed for seed in range(110) if ClassPlans(seed).on)


def test_a_sound_house_passes_and_the_seeds_have_classes() -> None:
    assert len(SEEDS) == 32
    assert verdict(SEEDS[:8], SmallHouse) == ""


def test_a_lower_class_that_is_served_first_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = WaitingRoom.peek

    def inverted(self: WaitingRoom[Any], replica: str, *, may_open: bool = True) -> Any:
        levels, self._levels = self._levels, self._levels[::-1]
        try:
            return sound(self, replica, may_open=may_open)
        finally:
            self._levels = levels

    monkeypatch.setattr(WaitingRoom, "peek", inverted)
    assert finds("no_slot_goes_to_a_lower_class_first", SEEDS, SmallHouse)


def test_a_full_queue_that_spares_the_lower_class_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WaitingRoom, "_victim", lambda self, ticket, line: None)
    assert finds("nobody_is_pushed_out_before_a_lower_class", SEEDS, SmallHouse)


def test_the_wrong_one_pushed_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = WaitingRoom._victim

    def highest(self: WaitingRoom[Any], ticket: Any, line: Any) -> Any:
        victim = sound(self, ticket, line)
        first = self.peek("")
        return victim if victim is None or first is None else first

    monkeypatch.setattr(WaitingRoom, "_victim", highest)
    assert finds("nobody_is_pushed_out_before_a_lower_class", SEEDS, SmallHouse)


@pytest.mark.parametrize("check", ["the_top_class_is_never_shed", "nobody_is_shed_while_a_lower_class_is_let_in"])
def test_shedding_from_the_wrong_end_is_found(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admit, "level", lambda rank, key, hour: cohorts.level(cohorts.CLASSES - 1 - rank, key, hour))
    # There is much that turns calls away before a cohort does: the seeds that found it come first.
    assert finds(check, (119, 371, *SEEDS), SmallHouse)


def test_a_class_above_the_tenants_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = GateLayer.send

    def open_(self: GateLayer, call: Call) -> Any:
        work = sound(self, call)
        call.criticality = call.criticality if call.priority is None else call.priority
        return work

    monkeypatch.setattr(GateLayer, "send", open_)
    assert finds("each_call_is_of_its_class", SEEDS, SmallHouse)


def test_a_default_that_is_not_the_models_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = GateLayer.send

    def deaf(self: GateLayer, call: Call) -> Any:
        asked, call.priority = call.priority, 1 if call.priority is None else call.priority
        work = sound(self, call)
        call.priority = asked
        return work

    monkeypatch.setattr(GateLayer, "send", deaf)
    assert finds("each_call_is_of_its_class", SEEDS, SmallHouse)


def test_a_known_head_over_grpc_without_its_class_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(*given: Any) -> ClientHeaders:
        return ClientHeaders(*given[:5])

    monkeypatch.setattr(grpc_head_plan, "ClientHeaders", without)
    # Few clients here send such heads: a seed that finds it comes first.
    assert finds("each_call_is_of_its_class", (190, 378, *SEEDS))


def test_a_known_head_over_http_with_anothers_class_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = UsualCall.client

    def mixed_up(self: UsualCall, values: list[str]) -> ClientHeaders | None:
        client = sound(self, values)
        if client is not None:
            client.priority = 3
        return client

    monkeypatch.setattr(UsualCall, "client", mixed_up)
    assert finds("each_call_is_of_its_class", SEEDS)


def test_a_record_that_says_another_class_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "CLASS_NAMES", ("critical_plus", "critical", "critical", "critical"))
    assert finds("the record says", SEEDS)
