"""Which message of a stream belongs to which of its calls: told by what it says, not by the id that it bears."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.simulation.batcher import answer_digest
from tests.simulation.plans import CallPlan
from tests.simulation.report import Part, Report
from tests.simulation.streamer import ERROR, ERROR_TEXT, StreamOrder, part_digest

VERSIONS = ("1", "2", "9", "10", "11")
"""All that any scenario loads."""


def expected_digests(plan: CallPlan) -> Iterator[tuple[bytes, int, str]]:
    """(output, index, version) of every response that the call could have, whatever version answers it."""
    for version in VERSIONS:
        if plan.order is None:
            yield answer_digest(plan.question, plan.model, version), 0, version
        else:
            for index in range(plan.order.responses):
                yield part_digest(plan.question, index, plan.model, version), index, version


def share_out(
    plans: Sequence[CallPlan], parts: Sequence[Part], report: Report
) -> tuple[dict[int, list[Part]], list[str]]:
    """The parts of each call in the order in which they came, and complaints about those that are nobody's.

    A response is known by its output, and one of a sequence by what the machines ran. Errors and ends have nothing but
    their id: of several calls with one id the first takes it that can have it and has not.
    """
    known: dict[bytes, int] = {}
    for plan in plans:
        if plan.sequence is None:
            known.update((digest, plan.number) for digest, _, _ in expected_digests(plan))
    known.update(report.sequence_outputs())
    shares: dict[int, list[Part]] = {plan.number: [] for plan in plans}
    strangers: list[str] = []
    for part in parts:
        assert part.answer is not None
        output = part.answer.output
        if output and not part.error:
            number = known.get(output)
            if number is None or number not in shares:
                strangers.append(f"message {part.place} is the answer to no question of this stream: {part}")
                continue
        else:
            taker = _taker(plans, part, shares, report)
            if taker is None:
                strangers.append(f"message {part.place} belongs to no call: {part}")
                continue
            number = taker
        shares[number].append(part)
    return shares, strangers


def _taker(plans: Sequence[CallPlan], part: Part, shares: dict[int, list[Part]], report: Report) -> int | None:
    assert part.answer is not None
    same = [plan for plan in plans if plan.id == part.answer.id and plan.number in report.calls]
    if part.error:
        fitting = [plan for plan in same if _next_error(plan, shares, report) == part.error]
        if ERROR_TEXT in part.error:
            fitting = [plan for plan in fitting if _owes_error(plan, shares[plan.number])] or fitting
        if not fitting:
            # The edge's own: of a deadline that passed, or of the shutdown.
            fitting = [plan for plan in same if not report.errors.get(plan.number) and not _ended(shares[plan.number])]
            fitting = [plan for plan in fitting if not _complete(plan, shares[plan.number])] or fitting
        if len(same) > 1:
            report.blurred.update(plan.number for plan in same)
    else:
        fitting = [plan for plan in same if plan.wants_end and not _ended(shares[plan.number])]
        fitting = [plan for plan in fitting if _complete(plan, shares[plan.number])] or fitting
    if not fitting and same and (part.error or len(same) == 1):
        fitting = same[:1]  # an error among calls with one id: which of them it is of cannot be told any more
    return fitting[0].number if fitting else None


def _next_error(plan: CallPlan, shares: dict[int, list[Part]], report: Report) -> str:
    """What the stack said went wrong with this call and its client has not been told yet."""
    said, told = report.errors.get(plan.number, []), sum(bool(part.error) for part in shares[plan.number])
    return said[told] if told < len(said) else ""


def _owes_error(plan: CallPlan, parts: Sequence[Part]) -> bool:
    """Whether the model's error comes next."""
    order = plan.order.parts() if plan.order is not None else []
    return len(parts) < len(order) and order[len(parts)] == ERROR


def _ended(parts: Sequence[Part]) -> bool:
    return any(part.final for part in parts)


def _complete(plan: CallPlan, parts: Sequence[Part]) -> bool:
    order = plan.order or StreamOrder()
    return sum(not part.error for part in parts) == sum(index != ERROR for index in order.parts())
