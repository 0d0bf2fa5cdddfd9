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
    assert {len(one.specs) for one in MANY} == {1, 2, 3, 4, 5}
    assert {one.as_bytes for one in MANY} == {True, False}
    assert any(plan.leaves_after_s for one in MANY for plan in one.calls)
    assert any(plan.body_after_s for one in MANY for plan in one.calls)


def test_together_they_meet_every_way_to_stream_and_to_keep_a_sequence() -> None:
    calls = [plan for one in MANY for plan in one.calls]
    assert {plan.route for plan in calls} == {"infer", "stream", "generate", "generate_stream"}
    assert {plan.as_bytes for plan in MANY if any(call.route == "generate" for call in plan.calls)} == {True}
    orders = [plan.order for plan in calls if plan.order is not None]
    assert {0, 1, 24} <= {order.responses for order in orders}
    assert any(order.fail_at >= 0 and order.goes_on for order in orders)
    assert {order.joined for order in orders} == {plan.wants_end for plan in calls} == {True, False}
    sessions = [session for one in MANY for session in one.sessions]
    for what in ("closes_after_s", "leaves_after_s", "read_pause_s", "timeout_s", "call_timeout_s", "true_status"):
        assert {bool(getattr(session, what)) for session in sessions} == {True, False}, what
    steps = [plan.sequence for plan in calls if plan.sequence is not None]
    assert {type(step.id) for step in steps} == {int, str}
    kinds = [(one, kind) for one in MANY for kind in (int, str)]
    both = [{str(each.id) for each in one.sequences if isinstance(each.id, kind)} for one, kind in kinds]
    assert any(numbers & texts for numbers, texts in zip(both[::2], both[1::2], strict=True)), "7 beside '7'"
    legs = [leg for one in MANY for sequence in one.sequences for leg in sequence.legs]
    assert {leg.burst for leg in legs} == {leg.session is None for leg in legs} == {True, False}
    assert {one.drain_s for one in MANY} == {0.02, 5.0}


def test_a_message_knows_its_session_and_its_place_on_it() -> None:
    for one in MANY:
        plans = {plan.number: plan for plan in one.calls}
        for session in one.sessions:
            assert one.sessions[session.number] is session
            places = [(plans[number].session, plans[number].position) for _, number in session.messages]
            assert places == [(session.number, index) for index in range(1, len(places) + 1)]
            assert [after_s for after_s, _ in session.messages] == sorted(after_s for after_s, _ in session.messages)


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
