"""What is told to the machines of the time that is left, and which stage answers for what was lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gateway.core.call import Call
from gateway.core.errors import Reason
from gateway.policy.schema import ModelPolicy
from tests.simulation.plans import CallPlan
from tests.simulation.report import Report
from tests.simulation.tuning import EAGER

EXACT_S = 1e-9
TICK_S = 0.002
"""The timer wheel's."""
WHOLE_MS_S = 0.001
"""What a machine is told is in whole milliseconds."""


def nobody_is_told_more_than_is_left(report: Report) -> Iterator[str]:
    """An attempt begins while there is time, and is told no more of it than there is: up to the end of inference, where
    the policy splits the deadline.
    """
    for plan, call, policy in _single(report):
        end_s = inference_ends_s(plan, call, policy)
        for at_s, limit_s in report.limits.get(plan.question, ()):
            if at_s >= end_s:
                yield f"{_name(plan)}: sent {(at_s - end_s) * 1e3:.3f} ms after its time for inference"
            elif at_s + limit_s > end_s + EXACT_S:
                yield f"{_name(plan)}: told {limit_s * 1e3:.3f} ms, but only {(end_s - at_s) * 1e3:.3f} ms are left"
        limits = report.limits.get(plan.question, [])
        longest_s = max((limit_s for _, limit_s in limits), default=0.0)
        for machine, at_s, told_s in report.told.get(plan.question, ()):
            slack_s = EAGER.cancels.slack_s if _guarded(report, machine, limits[0][0], at_s) else 0.0
            if told_s > longest_s + slack_s + WHOLE_MS_S + EXACT_S:
                yield f"{_name(plan)}: grpc-timeout says {told_s * 1e3:g} ms, the limit was {longest_s * 1e3:.3f} ms"


def inference_ends_at_its_point(report: Report) -> Iterator[str]:
    """Where something comes after inference, a call that was routed in time and got no answer hears of it by then."""
    grace_s = TICK_S + 2 * report.scenario.lateness_s + EXACT_S
    for plan, call, policy in _single(report):
        endings = report.endings.get(plan.number, ())
        if policy.deadline.stages is None or not endings or plan.number in report.slow:
            continue
        end_s, trail = inference_ends_s(plan, call, policy), call.trail
        if not trail.routed_s or trail.answered_s or max(trail.routed_s, trail.received_s) >= end_s:
            continue
        ending = endings[0]
        if ending.status == Reason.DEADLINE.label and ending.at_s > end_s + grace_s:
            late_ms = (ending.at_s - end_s) * 1e3
            yield f"{_name(plan)}: its answer came {late_ms:.3f} ms after its time for inference"


def each_stage_answers_for_its_own_time(report: Report) -> Iterator[str]:
    """Where a policy has stages: an upload that took longer than its share is noted, one that did not is not; and a
    call whose time was up while a machine had it is noted as cut in inference.
    """
    for plan, call, policy in _single(report):
        stages = policy.deadline.stages
        notes = [note for note in call.trail.notes or () if note.decider == "stage"]
        if stages is None:
            if notes:
                yield f"{_name(plan)}: its policy has no stages, and is told of {notes}"
            continue
        late = {str(note.saw["stage"]) for note in notes if note.word in ("overrun", "cut")}
        trail = call.trail
        # Who is refused for want of a record is refused before it comes to its model's layers.
        if trail.routed_s and stages.ingress_ms is not None and trail.reason is not Reason.RECORD_FULL:
            took_s = max(trail.routed_s, trail.received_s) - call.arrived_s
            over_s = took_s - stages.ingress_ms / 1000 * _scale(plan, policy)
            if abs(over_s) > EXACT_S and (over_s > 0) != ("ingress" in late):
                yield f"{_name(plan)}: its upload was {over_s * 1e3:.3f} ms too long, which is noted as {sorted(late)}"
        out = trail.attempts and not trail.answered_s and trail.reason is Reason.DEADLINE
        if out and ("cut" not in {note.word for note in notes} or "inference" not in late):
            yield f"{_name(plan)}: its time was up while a machine had it, which is noted as {sorted(late)}"


def _guarded(report: Report, machine: str, from_s: float, until_s: float) -> bool:
    """Whether a machine may have been told more at some time of these: so many cancels, streams' too, came so close
    together that half of a burst was used up, and that is no longer ago than a window. Such a machine is not to keep
    the time of calls by itself: that would be cancels as well.
    """
    cap, made_s = EAGER.cancels, report.cancels_made_s.get(machine, [])
    for last, end_s in enumerate(made_s):
        if end_s > until_s or end_s <= from_s - cap.window_s:
            continue
        if any(last - first + 1 - cap.per_s * (end_s - made_s[first]) > cap.burst / 2 for first in range(last + 1)):
            return True
    return False


def inference_ends_s(plan: CallPlan, call: Call, policy: ModelPolicy) -> float:
    """Worked out from plan and policy."""
    stages = policy.deadline.stages
    kept_ms = 0.0 if stages is None else stages.postprocessing_ms or 0.0
    return call.arrived_s + _span_s(plan, policy) - kept_ms / 1000 * _scale(plan, policy)


def _scale(plan: CallPlan, policy: ModelPolicy) -> float:
    """How much the caller's own deadline shrinks the stages."""
    stages = policy.deadline.stages
    total_s = 0.0 if stages is None else sum(stages.seconds.values())
    return min(1.0, _span_s(plan, policy) / total_s) if total_s else 1.0


def _span_s(plan: CallPlan, policy: ModelPolicy) -> float:
    asked_s = policy.default_deadline_s if plan.timeout_s is None else plan.timeout_s
    return min(asked_s, policy.deadline.max_ms / 1000)


def _single(report: Report) -> Iterator[tuple[CallPlan, Call, ModelPolicy]]:
    """Calls for one answer, which have one deadline."""
    for plan in report.scenario.calls:
        policy, call = report.scenario.policies.models.get(plan.model), report.calls.get(plan.number)
        if policy is not None and call is not None and not plan.streamed:
            yield plan, call, policy


def _name(plan: CallPlan) -> str:
    return f"call-{plan.number:05d}"


DEADLINE_CHECKS: tuple[Callable[[Report], Iterator[str]], ...] = (
    nobody_is_told_more_than_is_left,
    inference_ends_at_its_point,
    each_stage_answers_for_its_own_time,
)
