"""Scenarios are data that a seed decides; together they meet everything that the simulation can do."""

from __future__ import annotations

import re

from tests.simulation import runner, scenario
from tests.simulation.report import request_id

MANY = [scenario.scenario(seed) for seed in range(300)]


def test_a_seed_means_one_scenario() -> None:
    for seed in range(20):
        assert scenario.scenario(seed) == scenario.scenario(seed)
    assert len({(one.machines, one.calls, one.events) for one in MANY}) == len(MANY)


def test_together_the_scenarios_meet_every_fault_every_kind_of_call_and_every_size() -> None:
    tags = {tag for one in MANY for tag in one.tags}
    assert tags >= {*scenario._FAULTS, "scale", "dns", "shutdown"}
    assert {plan.kind for one in MANY for plan in one.calls} == {
        "good", "no-model", "no-version", "too-many", "oversize", "must"
    }  # fmt: skip
    assert {len(one.machines) for one in MANY} == {1, 2, 3, 4}
    assert {len(one.specs) for one in MANY} == {1, 2, 3}
    assert {one.as_bytes for one in MANY} == {True, False}
    assert any(plan.leaves_after_s for one in MANY for plan in one.calls)
    assert any(plan.body_after_s for one in MANY for plan in one.calls)


def test_every_fault_ends_and_leaves_time_to_recover() -> None:
    for one in MANY:
        assert all(event.at_s <= one.calm_s for event in one.events)
        must = [plan for plan in one.calls if plan.kind == "must"]
        assert bool(must) == (one.shutdown_s is None)
        assert all(plan.at_s >= one.calm_s + scenario.RECOVERY_S for plan in must)
        begun = {event.machine for event in one.events if event.what in ("crash", "stop")}
        assert begun <= {event.machine for event in one.events if event.what == "start"}


def test_questions_are_unique_and_carry_the_number_of_their_call() -> None:
    for one in MANY[:50]:
        questions = {plan.question for plan in one.calls}
        assert len(questions) == len(one.calls)
        assert all(plan.question.startswith(request_id(plan.number).encode()) for plan in one.calls)


def test_the_file_of_pinned_seeds_can_be_read_and_says_why_for_each() -> None:
    lines = [line for line in runner.PINNED.read_text().splitlines() if line and not line.startswith("#")]
    assert len(lines) == len(runner.pinned())
    assert all(re.fullmatch(r"\d+ +# .{20,}", line) for line in lines)
