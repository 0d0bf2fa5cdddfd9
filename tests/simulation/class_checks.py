"""Invariants of classes: each call is of the class that it should be, and none is passed over or turned away for one
of a lower class.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from gateway.core.call import Call
from gateway.core.criticality import CLASS_NAMES, CLASS_OF
from gateway.core.errors import Reason
from tests.simulation.plans import CallPlan
from tests.simulation.report import Report, record_key

AT_ONCE_S = 1e-6
"""Closer than this two things happen in the same instant, and none of them before the other."""


def each_call_is_of_its_class(report: Report) -> Iterator[str]:
    """Worked out from plan and policy, whatever way the call came by; and its record says the same."""
    scenario = report.scenario
    highest = CLASS_OF[scenario.policies.fleet.identity.highest_class]
    for plan, call in _calls(report):
        policy = scenario.policies.models.get(plan.model)
        if policy is None or not call.trail.policy_revision:
            continue
        asked = plan.priority if plan.session is None else scenario.sessions[plan.session].priority
        rank = max(highest, policy.default_class if asked is None else CLASS_OF[asked])
        if call.criticality != rank:
            yield f"{_name(plan)}: asked for {asked}, served as {call.criticality}, should be {rank}"
        for entry in report.records.get(record_key(call), []):
            if entry.criticality != CLASS_NAMES[rank]:
                yield f"{_name(plan)}: the record says {entry.criticality}, not {CLASS_NAMES[rank]}"


def the_top_class_is_never_shed(report: Report) -> Iterator[str]:
    """To spare the model, that is; there may be no time for it, or no room."""
    for plan, call in _calls(report):
        if call.trail.reason is Reason.SHED and not call.criticality:
            yield f"{_name(plan)}: of the top class, and shed"


def no_slot_goes_to_a_lower_class_first(report: Report) -> Iterator[str]:
    """While a call waited that could run anywhere, none of a lower class got a slot."""
    for calls in _queues(report):
        for plan, call in calls:
            trail = call.trail
            until_s = trail.admitted_s or report.over_s.get(plan.number, 0.0)
            if not trail.queued_s or call.pinned:
                continue
            for other, lower in calls:
                at_s = lower.trail.admitted_s
                passed_over = trail.queued_s + AT_ONCE_S < at_s < until_s - AT_ONCE_S
                if passed_over and lower.criticality > call.criticality and not lower.pinned:
                    yield f"{_name(other)} of a lower class got a slot while {_name(plan)} waited"


def nobody_is_pushed_out_before_a_lower_class(report: Report) -> Iterator[str]:
    """When a call found no room, or had to make room, nobody of a lower class was waiting in its queue."""
    for calls in _queues(report):
        for plan, call in calls:
            if call.trail.reason is not Reason.QUEUE_FULL or call.sequence is not None:
                continue  # steps of a sequence have a line of their own, before admission
            at_s = report.over_s[plan.number]
            for other, lower in calls:
                since_s = lower.trail.queued_s
                until_s = lower.trail.admitted_s or report.over_s.get(other.number, 0.0)
                waited = since_s and since_s + AT_ONCE_S < at_s < until_s - AT_ONCE_S
                if waited and lower.criticality > call.criticality:
                    yield f"{_name(plan)} found no room in the queue where {_name(other)} of a lower class waited"


def nobody_is_shed_while_a_lower_class_is_let_in(report: Report) -> Iterator[str]:
    """In one instant, that is: later the cursor may have moved. Who waited was let in by it, who got a slot at once may
    have come before it moved.
    """
    for calls in _queues(report):
        shed = [(plan, call) for plan, call in calls if _by_cohort(call)]
        for plan, call in shed:
            at_s = report.over_s[plan.number]
            for other, lower in calls:
                if lower.criticality > call.criticality and lower.trail.queued_s == at_s and not lower.pinned:
                    yield f"{_name(plan)} was shed, and {_name(other)} of a lower class let in"


CLASS_CHECKS: tuple[Callable[[Report], Iterator[str]], ...] = (
    each_call_is_of_its_class,
    the_top_class_is_never_shed,
    no_slot_goes_to_a_lower_class_first,
    nobody_is_pushed_out_before_a_lower_class,
    nobody_is_shed_while_a_lower_class_is_let_in,
)


def _calls(report: Report) -> Iterator[tuple[CallPlan, Call]]:
    return ((plan, report.calls[plan.number]) for plan in report.scenario.calls if plan.number in report.calls)


def _queues(report: Report) -> Iterator[list[tuple[CallPlan, Call]]]:
    """The calls of each queue, where there is more than one class among them. Each size lane of a model's version has a
    queue of its own: a small call is meant to overtake a large one of a higher class, which has to wait for a replica
    that is empty.
    """
    queues: defaultdict[tuple[str, str, int], list[tuple[CallPlan, Call]]] = defaultdict(list)
    for plan, call in _calls(report):
        if call.trail.version_routed and call.trail.routed_s:
            lane = 0 if call.pinned else _lane(report, call)
            queues[call.model, call.trail.version_routed, lane].append((plan, call))
    return (calls for calls in queues.values() if len({call.criticality for _, call in calls}) > 1)


def _by_cohort(call: Call) -> bool:
    """By the room it is refused for what is ahead of it, which no lower class is."""
    said = any(note.decider == "admission" and note.word == "beyond_objective" for note in call.trail.notes or ())
    return call.trail.reason is Reason.SHED and not call.trail.queued_s and not said


def _lane(report: Report, call: Call) -> int:
    policy = report.scenario.policies.models.get(call.model)
    lanes = None if policy is None else policy.admission.lanes
    return 0 if lanes is None else sum(call.work > each.work_above for each in lanes.larger)


def _name(plan: CallPlan) -> str:
    return f"call-{plan.number:05d}"
