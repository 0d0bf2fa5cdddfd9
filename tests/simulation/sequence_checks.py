"""The invariants of sequences: one place, one order, one state; and an honest error when that state is gone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gateway.core.call import SequenceStep
from gateway.core.errors import Reason
from tests.simulation.plans import CallPlan, SequencePlan
from tests.simulation.report import Answer, Ending, Report
from tests.simulation.sequencer import Step
from tests.simulation.stream_checks import name_of

_LOST = frozenset({Reason.SEQUENCE_LOST.label, Reason.UPSTREAM_LOST.label})


@dataclass(slots=True)
class Told:
    """One step as its client knows it. `ran` is what a machine knows of it."""

    plan: CallPlan
    step: SequenceStep
    sent_s: float
    sent_on_s: float
    """When the gateway sent it to a machine, infinity if it never did."""
    ended_s: float
    reason: str
    answer: Answer | None
    sent_to: tuple[str, str] | None
    ran: list[Step]

    def surely_before(self, other: Told) -> bool:
        """Whether a client may count on its order: on one stream, or ended before the other was sent."""
        if self.plan.session is not None and self.plan.session == other.plan.session:
            return self.plan.position < other.plan.position
        return self.ended_s <= other.sent_s


def told(report: Report, sequence: SequencePlan, ran: dict[bytes, list[Step]]) -> list[Told]:
    """The steps that were sent, in the order of the plan."""
    plans = {plan.number: plan for plan in report.scenario.calls}
    steps = []
    for number in sequence.steps:
        plan, endings, call = plans.get(number), report.endings.get(number), report.calls.get(number)
        if plan is None or plan.sequence is None or not endings or call is None or number not in report.sent_at_s:
            continue
        reason = "" if call.trail.reason is None else call.trail.reason.label
        steps.append(
            Told(
                plan,
                plan.sequence,
                report.sent_at_s[number],
                report.sent_on_s.get(number, math.inf),
                _ended_s(endings[0]),
                reason,
                _answer(endings[0]),
                report.sent_to.get(number),
                ran.get(plan.question, []),
            )
        )
    return steps


def _answer(ending: Ending) -> Answer | None:
    if ending.answer is not None:
        return ending.answer
    good = [part.answer for part in ending.parts if not part.error and part.answer is not None and part.answer.output]
    return good[0] if good else None


def _ended_s(ending: Ending) -> float:
    return ending.parts[0].at_s if ending.parts else ending.at_s


def sequences_keep_their_state_their_place_and_their_order(report: Report) -> Iterator[str]:
    ran: dict[bytes, list[Step]] = {}
    for each in report.steps:
        ran.setdefault(each.question, []).append(each)
    starts = {plan.question for plan in report.scenario.calls if plan.sequence is not None and plan.sequence.start}
    idle_s = {spec.name: spec.sequence_idle_s for spec in report.scenario.specs}
    for sequence in report.scenario.sequences:
        steps = told(report, sequence, ran)
        for index, step in enumerate(steps):
            if step.answer is not None:
                yield from _state(step, steps[:index], starts)
            yield from _place(step, steps[:index], idle_s[sequence.model])
            overtaken = any(later.step.end and later.sent_on_s < step.sent_on_s for later in steps[index + 1 :])
            if not overtaken:  # by the end of its sequence, which its client sent without waiting
                yield from _honesty(step, steps[:index], idle_s[sequence.model], report)


def _state(step: Told, earlier: list[Told], starts: set[bytes]) -> Iterator[str]:
    """An answer comes from a state that holds every step which its client counts on, and nothing before the start."""
    assert step.answer is not None
    name = name_of(step.plan)
    if len(step.ran) != 1 or step.ran[0].output != step.answer.output:
        yield f"{name}: answered with what no machine made of it ({len(step.ran)} executions)"
        return
    if step.answer.id != step.plan.id or step.answer.version != step.ran[0].version:
        yield f"{name}: id {step.answer.id!r} and version {step.answer.version!r} are not its own"
    before = step.ran[0].before
    if step.step.start:
        if before:
            yield f"{name}: begins its sequence, and ran on a state with {len(before)} steps"
        return
    if not before or before[0] not in starts:
        yield f"{name}: begun again in silence: no start came before it where it ran"
    begin = next((other for other in earlier if other.plan.question == before[0]), None) if before else None
    for other in reversed(earlier):
        # Of two starts that were out at a time the one on which this ran may rightly have ended the other's life.
        ended = begin is not None and begin is not other and not begin.surely_before(other)
        if not ended and other.answer is not None and other.surely_before(step) and other.plan.question not in before:
            yield f"{name}: ran without {name_of(other.plan)}, which was answered before it"
        if other.step.start:
            break
    place = {question: index for index, question in enumerate(before)}
    # What was not answered may be on its way still: nobody counts on its order.
    known = [other for other in earlier if other.plan.question in place and other.answer is not None]
    for one, two in itertools.pairwise(known):
        if one.surely_before(two) and place[one.plan.question] > place[two.plan.question]:
            yield f"{name_of(two.plan)} ran before {name_of(one.plan)}"


def _counted_on(step: Told, earlier: list[Told], idle_s: float) -> Told | None:
    """The answered step after which this one must find its sequence, if there is one: the last of the same life that is
    not too long ago.
    """
    if step.step.start:
        return None
    for other in reversed(earlier):
        if not other.surely_before(step):
            return None
        if other.answer is not None:
            return other if step.sent_on_s - other.sent_on_s < idle_s * 0.9 and not other.step.end else None
        if other.step.start:
            return None
    return None


def _place(step: Told, earlier: list[Told], idle_s: float) -> Iterator[str]:
    other = _counted_on(step, earlier, idle_s)
    if other is not None and step.sent_to is not None and other.sent_to != step.sent_to:
        yield f"{name_of(step.plan)}: sent to {step.sent_to}, {name_of(other.plan)} lives on {other.sent_to}"


def _honesty(step: Told, earlier: list[Told], idle_s: float, report: Report) -> Iterator[str]:
    if step.reason in _LOST and not report.scenario.events:
        yield f"{name_of(step.plan)}: ended as {step.reason}, and nothing ever happened to the fleet"
    other = _counted_on(step, earlier, idle_s)
    if other is None or other.sent_to is None or step.reason != Reason.UPSTREAM_INVALID.label:
        return
    if any(each.sent_to is not None and each.answer is None for each in earlier[earlier.index(other) + 1 :]):
        return  # one that was cancelled while it waited in the server took the whole sequence with it
    if not any(event.machine == other.sent_to[0] for event in report.scenario.events):
        yield f"{name_of(step.plan)}: refused for want of a start, although {name_of(other.plan)} was answered"


SEQUENCE_CHECKS: tuple[Callable[[Report], Iterator[str]], ...] = (
    sequences_keep_their_state_their_place_and_their_order,
)
