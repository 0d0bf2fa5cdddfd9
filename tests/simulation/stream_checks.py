"""The invariants of calls with any number of responses, over streams and over `generate`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from gateway.core.call import Call
from gateway.core.errors import Reason
from gateway.policy.schema import ModelPolicy
from tests.simulation.plans import CallPlan, SessionPlan
from tests.simulation.report import Ending, Report, record_key
from tests.simulation.stream_parts import expected_digests
from tests.simulation.streamer import ERROR, ERROR_TEXT

GRACE_S = 0.002
"""The tick of the timer wheel."""

_CALLERS_OWN = frozenset(
    reason.label
    for reason in (
        Reason.BAD_REQUEST,
        Reason.UPSTREAM_INVALID,
        Reason.UNKNOWN_MODEL,
        Reason.UNKNOWN_VERSION,
        Reason.UNSUPPORTED,
    )
)
_TOLD_AT_THE_END = frozenset({"ok", Reason.DRAINING.label})
"""Streams that end so have told everything of all calls that they took."""
_EXPECTED = {
    "no-model": Reason.UNKNOWN_MODEL.label,
    "no-version": Reason.UNKNOWN_VERSION.label,
    "too-many": Reason.UPSTREAM_INVALID.label,
}


def name_of(plan: CallPlan) -> str:
    return f"call-{plan.number:05d}"


def streamed(report: Report) -> Iterator[tuple[CallPlan, Call, Ending]]:
    """The calls with any number of responses that became calls."""
    for plan in report.scenario.calls:
        endings = report.endings.get(plan.number)
        if plan.streamed and endings and plan.number in report.calls:
            yield plan, report.calls[plan.number], endings[0]


def the_record_of_a_stream_says_what_its_client_saw(report: Report) -> Iterator[str]:
    for plan, call, ending in streamed(report):
        if plan.number in report.blurred:
            continue
        for entry in report.records.get(record_key(call), [])[:1]:
            errors = [part.error for part in ending.parts if part.error]
            if ending.status == "ok":
                if entry.outcome != "ok" or entry.reason:
                    yield f"{name_of(plan)}: all was told and no error, the record says {entry.outcome} {entry.reason}"
                elif entry.responses != len(ending.parts):
                    yield f"{name_of(plan)}: {len(ending.parts)} responses came, the record says {entry.responses}"
            elif errors:
                if entry.outcome == "abandoned" and _left(plan, report):
                    continue  # it was told that, and then it went
                # What the edge itself tells (of a deadline that passed meanwhile, say) may stand in another's place.
                theirs = report.errors.get(plan.number, [])
                if not entry.reason or (entry.text != errors[0][:512] and (errors[0] in theirs or not theirs)):
                    text = f"the client was told {errors[0]!r} first, the record says {entry.reason} {entry.text!r}"
                    yield f"{name_of(plan)}: {text}"
            elif plan.route != "stream" and ending.status not in {"left", "closed", "cut", entry.reason}:
                yield f"{name_of(plan)}: the client saw {ending.status}, the record says {entry.reason}"
            if entry.responses < len([part for part in ending.parts if not part.error]):
                yield f"{name_of(plan)}: {len(ending.parts)} responses came, the record says {entry.responses}"


def _left(plan: CallPlan, report: Report) -> bool:
    return plan.session is not None and report.sessions[plan.session].status in {"left", "expired"}


def responses_are_ones_own_and_in_order(report: Report) -> Iterator[str]:
    """Each answers the question of its call, as the model and version that the record names; in order, none twice."""
    for plan, call, ending in streamed(report):
        if plan.sequence is None:
            yield from _own(plan, call, ending, plan.number in report.blurred)


def _own(plan: CallPlan, call: Call, ending: Ending, blurred: bool) -> Iterator[str]:
    known = {digest: (index, version) for digest, index, version in expected_digests(plan)}
    seen: list[int] = []
    for place, part in enumerate(ending.parts):
        if part.error:
            if ERROR_TEXT in part.error:
                seen.append(ERROR)
            elif any(not after.bare for after in ending.parts[place + 1 :]) and not blurred:
                yield f"{name_of(plan)}: something came after the end of the call: {part.error}"
            continue
        answer = part.answer
        assert answer is not None
        if answer.id != plan.id:
            yield f"{name_of(plan)}: a response bears the id {answer.id!r}, its request {plan.id!r}"
        if not answer.output:
            continue
        index, version = known.get(answer.output, (None, ""))
        if index is None:
            yield f"{name_of(plan)}: a response that is not to its question: {part}"
            continue
        seen.append(index)
        served = call.trail.version_served
        # Of a stream whose later responses came from another version the record names that one, with the error.
        changed = call.trail.reason is Reason.UPSTREAM_WRONG_ANSWER
        if (answer.model, answer.version) != (plan.model, version) or (served != version and not changed):
            yield f"{name_of(plan)}: version {version} ran, the response says {answer.version!r}, the record {served!r}"
    wanted = _wanted(plan)
    if blurred:
        seen, wanted = [index for index in seen if index >= 0], [index for index in wanted if index >= 0]
    if seen != wanted[: len(seen)]:
        yield f"{name_of(plan)}: responses {seen} came, of {wanted}"


def _wanted(plan: CallPlan) -> list[int]:
    """What would come if nothing went wrong but what was ordered."""
    parts = [0] if plan.order is None else plan.order.parts()
    if plan.route == "generate_stream" and ERROR in parts:
        return parts[: parts.index(ERROR) + 1]
    return parts


def nothing_is_lost_before_an_orderly_end(report: Report) -> Iterator[str]:
    """When all is said and no error was told, all responses have come."""
    for plan, _, ending in streamed(report):
        if plan.route == "stream":
            assert plan.session is not None
            session = report.sessions[plan.session]
            told = session.status in _TOLD_AT_THE_END and not report.scenario.sessions[plan.session].true_status
        else:
            told = ending.status in {"ok", "error"}
        if (
            plan.number in report.blurred
            or not told
            or any(part.error and ERROR_TEXT not in part.error for part in ending.parts)
        ):
            continue
        came = sum(bool(part.error or (part.answer is not None and part.answer.output)) for part in ending.parts)
        wanted = _wanted(plan)
        if plan.route == "generate" and wanted != [0] and ending.status == "ok":
            yield f"{name_of(plan)}: generate was answered, although {len(wanted)} responses are owed"
        elif came != len(wanted) and plan.route != "generate":
            yield f"{name_of(plan)}: shown as complete with {came} of {len(wanted)} responses"


def the_end_is_marked_once_and_told_alone_only_if_asked_for(report: Report) -> Iterator[str]:
    for plan, _, ending in streamed(report):
        if plan.route != "stream" or plan.number in report.blurred:
            continue
        parts = ending.parts
        finals = [part for part in parts if part.final]
        if len(finals) > 1 or (finals and finals[0] is not parts[-1]):
            text = f"the final flag stands on {len(finals)} of {len(parts)} messages, or not on the last"
            yield f"{name_of(plan)}: {text}"
        if any(part.bare for part in parts) and not plan.wants_end:
            yield f"{name_of(plan)}: an empty last response, which was not asked for"
        if ending.status != "ok":
            continue
        if plan.order is None:
            if not finals:
                yield f"{name_of(plan)}: the only response is not marked as the last one"
        elif bool(finals) != (plan.wants_end or (plan.order.joined and plan.order.responses > 0)):
            yield f"{name_of(plan)}: {len(finals)} messages are marked as the last one"


def models_with_one_response_answer_in_the_order_of_requests(report: Report) -> Iterator[str]:
    plans = {plan.number: plan for plan in report.scenario.calls}
    for session in report.scenario.sessions:
        last = -1
        for _, number in session.messages:
            plan, endings = plans[number], report.endings.get(number)
            if plan.order is not None or plan.kind == "no-model" or not endings or not endings[0].parts:
                continue
            if number in report.blurred:
                continue
            place = endings[0].parts[0].place
            if place < last:
                yield f"{name_of(plan)}: its answer overtook that of an earlier request of {session.request_id}"
            last = max(last, place)


def limits_of_streams_hold(report: Report) -> Iterator[str]:
    """First response, pauses, the whole: and no response after the deadline."""
    grace_s = GRACE_S + report.scenario.lateness_s + 1e-9
    for plan, call, ending in streamed(report):
        policy = report.scenario.policies.models.get(plan.model)
        if policy is None or ending.status in {"left", "closed"}:
            continue
        session = None if plan.session is None else report.scenario.sessions[plan.session]
        deadline_s = deadline_of(plan, session, call, policy, report)
        first_s = call.arrived_s + (policy.deadline.first_response_s or policy.default_deadline_s)
        if report.first_s[plan.number] > min(first_s, deadline_s) + grace_s:
            late_ms = (report.first_s[plan.number] - min(first_s, deadline_s)) * 1e3
            yield f"{name_of(plan)}: its first response came {late_ms:.3f} ms after the limit"
        if report.wait_s.get(plan.number, 0.0) > policy.deadline.idle_s + grace_s:
            yield f"{name_of(plan)}: waited {report.wait_s[plan.number]:.3f} s for a further response"
        if session is not None and not session.read_pause_s and plan.number not in report.slow:
            for part in ending.parts:
                if not part.error and part.at_s > deadline_s:
                    late_ms = (part.at_s - deadline_s) * 1e3
                    yield f"{name_of(plan)}: a response was written {late_ms:.3f} ms after its deadline"


def deadline_of(plan: CallPlan, session: SessionPlan | None, call: Call, policy: ModelPolicy, report: Report) -> float:
    """Worked out from plan and policy."""
    asked_s = plan.timeout_s if session is None else session.call_timeout_s
    total_s = min(asked_s or math.inf, policy.deadline.total_s or math.inf)
    deadline_s = call.arrived_s + total_s
    # What a slow client says may be read late, and its stream begin late.
    if session is not None and session.timeout_s is not None and plan.number not in report.slow:
        begun_s = report.begun_s[session.number]
        deadline_s = min(deadline_s, begun_s + session.timeout_s)
    return deadline_s


def true_statuses_are_given_where_they_are_asked_for(report: Report) -> Iterator[str]:
    """The first failure of a model ends such a stream with its status; on others an error is a message."""
    for session in report.scenario.sessions:
        ending = report.sessions.get(session.number)
        if ending is None or ending.status in {"left", "expired", "closed"}:
            continue
        failed = [
            plan.number
            for plan, call, _ in streamed(report)
            if plan.session == session.number
            and call.trail.reason is not None
            and call.trail.reason.label not in _CALLERS_OWN
        ]
        if session.true_status:
            if failed and ending.status == "ok":
                yield f"{session.request_id}: call-{failed[0]:05d} failed, and the stream ended well"
        elif ending.status not in _TOLD_AT_THE_END:
            yield f"{session.request_id}: ended as {ending.status} {ending.text}"
        if ending.status == Reason.DRAINING.label and report.scenario.shutdown_s is None:
            yield f"{session.request_id}: ended as draining, and nobody shut down"


def streamed_calls_end_as_their_kind_must(report: Report) -> Iterator[str]:
    for plan in report.scenario.calls:
        ending = report.endings[plan.number][0] if report.endings.get(plan.number) else None
        if not plan.streamed or ending is None:
            continue
        call = report.calls.get(plan.number)
        reason = "" if call is None or call.trail.reason is None else call.trail.reason.label
        if plan.kind == "must" and ending.status != "ok":
            yield f"{name_of(plan)}: must be answered, and ended as {ending.status} {ending.text}"
        elif plan.kind in _EXPECTED and ending.status == "ok":
            yield f"{name_of(plan)}: a {plan.kind} call was answered"
        elif plan.kind == "no-model" and reason not in {Reason.UNKNOWN_MODEL.label, ""}:
            yield f"{name_of(plan)}: a call to no model ended as {reason}"
        fits = plan.kind == "good" and (plan.route != "generate" or _wanted(plan) == [0])
        if fits and reason in {Reason.UNKNOWN_MODEL.label, Reason.BAD_REQUEST.label}:
            yield f"{name_of(plan)}: a good call was refused as {reason}: {ending.text}"
        if ending.status == "cut" and report.scenario.shutdown_s is None:
            yield f"{name_of(plan)}: cut off inside the answer, and nobody shut down"
        if ending.status in {"unread", "unsent"}:
            assert plan.session is not None
            if report.sessions[plan.session].status == "ok":
                yield f"{name_of(plan)}: {ending.status}, and its stream ended well"


STREAM_CHECKS: tuple[Callable[[Report], Iterator[str]], ...] = (
    the_record_of_a_stream_says_what_its_client_saw,
    responses_are_ones_own_and_in_order,
    nothing_is_lost_before_an_orderly_end,
    the_end_is_marked_once_and_told_alone_only_if_asked_for,
    models_with_one_response_answer_in_the_order_of_requests,
    limits_of_streams_hold,
    true_statuses_are_given_where_they_are_asked_for,
    streamed_calls_end_as_their_kind_must,
)
