"""The invariants: what must be true of every run, whatever the seed did to it.

Each check is one function over the `Report`; it yields a sentence per violation, beginning with the call's name. What
can only be judged while it happens (slots, sends to where the model is gone, leftovers) stands in `run.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gateway.core.call import Call
from gateway.core.errors import Reason
from gateway.core.outcome import Outcome
from gateway.decide.admission import QUEUE_MIN
from gateway.edge.expiry import EXPIRY_GRACE_S
from gateway.policy.schema import ModelPolicy
from tests.simulation.affinity_checks import keys_stay_at_home
from tests.simulation.batcher import answer_digest
from tests.simulation.cancel_checks import cancels_stay_under_the_cap
from tests.simulation.class_checks import CLASS_CHECKS
from tests.simulation.deadline_checks import DEADLINE_CHECKS
from tests.simulation.limit_checks import declared_slots
from tests.simulation.plans import CallPlan
from tests.simulation.quotas import QUOTA_CHECKS
from tests.simulation.report import Ending, Report, record_key
from tests.simulation.sequence_checks import SEQUENCE_CHECKS
from tests.simulation.stream_checks import STREAM_CHECKS

GRACE_S = 0.002
"""A deadline is kept by the timer wheel, whose tick this is; the loop's own lateness comes on top."""

LEAVING_S = 0.005
"""More than the news of a client's end takes over the simulated connection."""

_OUT_OF_TURN = {"left", "expired", "closed", Reason.DEADLINE.label, Reason.DRAINING.label}
"""Endings that any call may have, depending on when its client left, its deadline passed, or the gateway shut down."""

_WITHOUT_A_CALL = {"left", "expired", "closed", "unread", "unsent"}
"""Endings of requests that the gateway need not have seen."""

_EXPECTED: dict[str, frozenset[str]] = {
    "no-model": frozenset({Reason.UNKNOWN_MODEL.label}),
    "no-version": frozenset({Reason.UNKNOWN_VERSION.label}),
    "oversize": frozenset({Reason.TOO_LARGE.label}),
    "must": frozenset({"ok"}),
}


def one_response(report: Report) -> Iterator[str]:
    """Every call that was made has exactly one response."""
    for plan in report.scenario.calls:
        endings = report.endings.get(plan.number, [])
        if len(endings) != 1:
            yield f"{_name(plan)}: {len(endings)} responses: {[ending.status for ending in endings]}"
        elif endings[0].status == "fault":
            yield f"{_name(plan)}: {endings[0].text}"
        elif endings[0].status == "closed" and report.scenario.shutdown_s is None:
            yield f"{_name(plan)}: its connection was closed without an answer, and nobody shut down"
        elif plan.number not in report.calls and endings[0].status not in _WITHOUT_A_CALL:
            if endings[0].status == Reason.DRAINING.label and report.scenario.codecs:
                continue  # over gRPC a request is no call before its message has come
            if endings[0].status == Reason.DEADLINE.label and report.scenario.codecs and plan.timeout_s is not None:
                continue  # for the same reason: not all of its message came within the caller's own limit
            yield f"{_name(plan)}: answered {endings[0].status}, but no record knows the call"


def one_record(report: Report) -> Iterator[str]:
    """Exactly one record (unless the log dropped it, and says so), and it says what the client saw."""
    missing = []
    for plan, call, ending in _all_ended(report):
        entries = report.records.get(record_key(call), [])
        if not entries:
            missing.append(_name(plan))
            continue
        if len(entries) > 1:
            yield f"{_name(plan)}: {len(entries)} records: {[entry.outcome for entry in entries]}"
        entry = entries[0]
        if entry.outcome == Outcome.GATEWAY_FAULT.value:
            yield f"{_name(plan)}: the gateway itself failed: {entry.reason} {ending.text}"
        if entry.version != call.trail.version_served or entry.policy_revision != call.trail.policy_revision:
            yield f"{_name(plan)}: the record says version {entry.version!r}, revision {entry.policy_revision!r}"
        if [replica for replica, _ in entry.attempts] != [attempt.replica for attempt in call.trail.attempts]:
            yield f"{_name(plan)}: the record's attempts are not the trail's: {entry.attempts}"
        if any(outcome == "out" for _, outcome in entry.attempts):
            yield f"{_name(plan)}: the record has an attempt without an outcome: {entry.attempts}"
        if plan.streamed:
            continue  # `stream_checks.py` compares what many responses came to.
        if ending.status == "expired" and entry.outcome == Outcome.ABANDONED.value:
            yield f"{_name(plan)}: its client gave up when its time was over, the record says that it left"
        if ending.status in {"left", "expired"} and (report.scenario.as_bytes or report.scenario.codecs):
            continue  # The answer may have been on its way when the client went: then the record says so.
        if ending.status == "closed" and plan.number in report.slow:
            continue  # Nor does a connection that is cut off at the end wait for a client that is slow to read.
        said = {"ok": Outcome.OK, "left": Outcome.ABANDONED, "closed": Outcome.ABANDONED}.get(ending.status)
        seen = (said.value, "") if said is not None else (entry.outcome, ending.status)
        if (entry.outcome, entry.reason) != seen:
            yield f"{_name(plan)}: the client saw {ending.status}, the record says {entry.outcome} {entry.reason}"
    if len(missing) != report.records_dropped:
        yield f"{len(missing)} records are missing, {report.records_dropped} dropped: {' '.join(missing[:5])}"
    made = {record_key(call) for call in report.calls.values()}
    for request_id in sorted(report.records.keys() - made):
        yield f"{request_id}: a record of a call that nobody made"


def no_answer_after_the_deadline(report: Report) -> Iterator[str]:
    """A good answer comes before the deadline, and any response soon after it."""
    grace_s = GRACE_S + report.scenario.lateness_s + 1e-9
    for plan, call, ending in _ended(report):
        policy = report.scenario.policies.models.get(plan.model)
        if policy is None or ending.status in {"left", "expired"} or plan.number in report.slow:
            continue
        deadline_s = _deadline_s(plan, call, policy)
        late_ms = (ending.at_s - deadline_s) * 1e3
        if ending.status == "ok" and ending.at_s > deadline_s:
            yield f"{_name(plan)}: answered {late_ms:.3f} ms after its deadline"
        elif ending.at_s > deadline_s + grace_s and not (
            report.scenario.codecs and plan.body_after_s and plan.timeout_s is None
        ):
            # Over gRPC the model, and so its own deadline, is not known before the message is there.
            yield f"{_name(plan)}: its {ending.status} came {late_ms:.3f} ms after its deadline"


def nobody_is_worked_for_in_vain(report: Report) -> Iterator[str]:
    """What is out for a call whose client left, or whose deadline passed, is cancelled at once."""
    for plan, call, _ in _ended(report):
        until_s, policy = report.out_until_s.get(plan.question), report.scenario.policies.models.get(plan.model)
        if until_s is None or policy is None:
            continue
        deadline_s = _deadline_s(plan, call, policy)
        ends = {"its deadline": deadline_s + GRACE_S}
        left_s = report.left_at_s.get(plan.number)
        grace_s = EXPIRY_GRACE_S + LEAVING_S if report.scenario.codecs else 0.0
        if left_s is not None and (not grace_s or deadline_s - left_s > grace_s):
            # Over gRPC whoever leaves shortly before the deadline is taken for one whose time is over.
            ends["its client left"] = left_s + LEAVING_S
        for what, at_s in ends.items():
            if until_s > at_s + 2 * report.scenario.lateness_s + 1e-9:
                yield f"{_name(plan)}: out upstream until {(until_s - at_s) * 1e3:.3f} ms too long after {what}"


def the_answer_is_the_questions_own(report: Report) -> Iterator[str]:
    """Model, version, id and output of an answer belong to its question, and the record names the version that ran."""
    for plan, call, ending in _ended(report):
        if ending.status != "ok":
            continue
        answer = ending.answer
        assert answer is not None
        if answer.model != plan.model or answer.id != f"id-{plan.number}":
            yield f"{_name(plan)}: the answer is for model {answer.model!r}, id {answer.id!r}"
        if plan.version and answer.version != plan.version:
            yield f"{_name(plan)}: asked for version {plan.version}, answered by {answer.version}"
        if call.trail.version_served != answer.version:
            served = call.trail.version_served
            yield f"{_name(plan)}: the record says version {served!r}, the answer says {answer.version!r}"
        if plan.sequence is not None:
            continue  # Of a state: `sequence_checks.py` knows.
        if answer.output != answer_digest(plan.question, plan.model, answer.version):
            yield f"{_name(plan)}: the output does not belong to the input, or to version {answer.version}"


def each_ending_is_one_that_the_call_can_have(report: Report) -> Iterator[str]:
    """Unknown model, unknown version and no replica are three answers; a call of a kind ends as that kind must."""
    for plan, call, ending in _ended(report):
        expected = _EXPECTED.get(plan.kind)
        if plan.kind == "no-version" and not report.known_at[plan.number]:
            expected = frozenset({Reason.UNKNOWN_VERSION.label, Reason.NO_REPLICA.label})
        policy = report.scenario.policies.models.get(plan.model)
        mandatory = policy is not None and policy.records.mandatory
        if plan.kind == "too-many" and policy is not None and policy.limits.batch_max is not None:
            expected = frozenset({Reason.TOO_LARGE.label, Reason.NO_REPLICA.label})
        if ending.status == Reason.RECORD_FULL.label and (not mandatory or plan.kind == "must"):
            yield f"{_name(plan)}: refused for want of a record, which its policy does not demand"
        elif ending.status == Reason.QUOTA.label and plan.kind not in {"must", "no-model"}:
            continue  # `quotas_are_kept` knows whether it may be.
        elif expected is not None and ending.status not in expected | _out_of_turn(plan, mandatory):
            yield f"{_name(plan)}: a {plan.kind} call must end as {sorted(expected)}, not {ending.status} {ending.text}"
        if plan.kind == "too-many" and ending.status == "ok":
            yield f"{_name(plan)}: a batch above the model's maximum was answered"
        if plan.kind == "good" and ending.status in {Reason.UNKNOWN_MODEL.label, Reason.BAD_REQUEST.label}:
            yield f"{_name(plan)}: a good call was refused as {ending.status}: {ending.text}"
        if ending.status == Reason.DRAINING.label and report.scenario.shutdown_s is None:
            yield f"{_name(plan)}: refused as draining, and nobody shut down"
        if ending.status == Reason.INTERNAL.label:
            yield f"{_name(plan)}: internal error: {ending.text}"
        if ending.status in {"ok", Reason.NO_REPLICA.label} and call.trail.policy_revision == "":
            yield f"{_name(plan)}: no policy revision on the trail"


def queues_keep_their_bound(report: Report) -> Iterator[str]:
    """Nobody waited behind more calls than the policy lets wait."""
    specs = {spec.name: spec for spec in report.scenario.specs}
    for plan, call, _ in _ended(report):
        policy = report.scenario.policies.models.get(plan.model)
        if policy is None or not call.trail.queued_s:
            continue
        bound = policy.admission.queue_max
        if bound is None:
            bound = max(QUEUE_MIN, 4 * call.trail.limit_at_admit)
            if policy.admission.limit.adaptive:  # four times what was declared, whatever the limit is meanwhile
                each = declared_slots(policy, specs[plan.model])
                bound = max(bound, 4 * each * len(report.scenario.machines))
        if call.trail.queued_ahead >= bound:
            yield f"{_name(plan)}: waited behind {call.trail.queued_ahead} calls; {bound} may wait"


def nothing_runs_oftener_than_it_was_sent(report: Report) -> Iterator[str]:
    """An attempt on the trail for each send, and at most one execution for each."""
    for plan, call, ending in _all_ended(report):
        attempts, sends = len(call.trail.attempts), report.sends[plan.question]
        if sends > attempts:
            yield f"{_name(plan)}: {sends} sends, but {attempts} attempts on its trail"
        if report.executed[plan.question] > sends:
            yield f"{_name(plan)}: executed {report.executed[plan.question]} times for {sends} sends"
        # Of calls of one stream that bear one id, one may have been given another's error: its own ending says nothing.
        own = plan.number not in report.blurred
        if own and ending.status == "ok" and not report.executed[plan.question] and plan.kind != "no-model":
            yield f"{_name(plan)}: answered without having been executed"
        replicas = [attempt.replica for attempt in call.trail.attempts]
        if len(set(replicas)) != len(replicas):
            yield f"{_name(plan)}: sent twice to one replica: {replicas}"
        for attempt in call.trail.attempts:
            if attempt.outcome is None or not attempt.started_s <= attempt.ended_s:
                yield f"{_name(plan)}: the attempt on {attempt.replica} was never closed"


def one_attempt_is_the_answer(report: Report) -> Iterator[str]:
    """Of a call that was answered one attempt went well; the others failed, or are said to have been superseded."""
    for plan, call, ending in _ended(report):
        outcomes = [attempt.outcome for attempt in call.trail.attempts]
        if (
            ending.status == "ok"
            and outcomes
            and (outcomes.count(Outcome.OK) != 1 or Outcome.GATEWAY_FAULT in outcomes)
        ):
            yield f"{_name(plan)}: answered by attempts that ended as {[each and each.value for each in outcomes]}"


CHECKS: tuple[Callable[[Report], Iterator[str]], ...] = (
    one_response,
    one_record,
    no_answer_after_the_deadline,
    nobody_is_worked_for_in_vain,
    cancels_stay_under_the_cap,
    the_answer_is_the_questions_own,
    each_ending_is_one_that_the_call_can_have,
    queues_keep_their_bound,
    nothing_runs_oftener_than_it_was_sent,
    one_attempt_is_the_answer,
    keys_stay_at_home,
)


def violations(report: Report) -> list[str]:
    """All violations of a run, each with the name of its invariant."""
    found = [f"on the spot: {text}" for text in report.violations]
    for check in (*CHECKS, *STREAM_CHECKS, *SEQUENCE_CHECKS, *CLASS_CHECKS, *DEADLINE_CHECKS, *QUOTA_CHECKS):
        found += [f"{check.__name__}: {text}" for text in check(report)]
    return found


def _all_ended(report: Report) -> Iterator[tuple[CallPlan, Call, Ending]]:
    for plan in report.scenario.calls:
        endings = report.endings.get(plan.number)
        if endings and plan.number in report.calls:
            yield plan, report.calls[plan.number], endings[0]


def _ended(report: Report) -> Iterator[tuple[CallPlan, Call, Ending]]:
    """The calls for one answer."""
    return ((plan, call, ending) for plan, call, ending in _all_ended(report) if not plan.streamed)


def _deadline_s(plan: CallPlan, call: Call, policy: ModelPolicy) -> float:
    """Worked out from plan and policy, not read from the call: the gateway may have got it wrong."""
    asked_s = policy.default_deadline_s if plan.timeout_s is None else plan.timeout_s
    return call.arrived_s + min(asked_s, policy.deadline.max_ms / 1000)


def _out_of_turn(plan: CallPlan, mandatory: bool) -> set[str]:
    if plan.kind == "must":
        return set()
    return _OUT_OF_TURN | {Reason.RECORD_FULL.label} if mandatory else _OUT_OF_TURN


def _name(plan: CallPlan) -> str:
    return f"call-{plan.number:05d}"
