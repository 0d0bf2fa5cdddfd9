"""Affinity in force: which calls have which key, where it leads them, and what they are told of it."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from gateway.core.call import Attempt, Call, Note, SequenceStep
from gateway.core.outcome import Latency, Outcome, Verdict
from gateway.core.permit import Permit
from gateway.core.reply import Reply
from gateway.core.snapshot import Candidate
from gateway.decide.admission import Admission
from gateway.decide.affinity import AffinitySettings, order
from gateway.decide.balance import BalanceSettings
from gateway.decide.ticket import Granted, Ticket
from gateway.decide.tuning import Tuning
from gateway.layers.admit import AdmitLayer
from gateway.layers.affinity import KEY_CHARS_MAX, KeyOf, key_of
from gateway.layers.track import TrackLayer
from gateway.policy.schema import Affinity as AffinityPolicy
from gateway.runtime.wheel import TimerWheel
from gateway.wire.kserve.http_request import decode_http_infer
from tests.support.calls import make_call
from tests.support.cancel import cancel_at_every_await
from tests.support.clock import ManualClock
from tests.support.fleet import HandFleet, replica
from tests.support.service import ScriptedService

KEY = ("fraud", "2")
TUNING = Tuning(balance=BalanceSettings(affinity=AffinitySettings(1.25), scope="fraud"))
NAMES = [f"gpu/{letter}" for letter in "abcd"]
FLEET = tuple(Candidate(name, 4) for name in NAMES)
BY_HEADER = key_of(AffinityPolicy(by="header", name="x-user"))


def layer(inner: Any, fleet: HandFleet, keys: KeyOf | None = BY_HEADER) -> AdmitLayer:
    clock = ManualClock()
    return AdmitLayer(
        TrackLayer(inner, clock), model="fraud", pool="gpu", fleet=fleet, queue_max=None, clock=clock,
        wheel=TimerWheel(clock), chance=random.Random(4), tuning=TUNING, key_of=keys,
    )  # fmt: skip


def fleet(slots: int = 4) -> HandFleet:
    return HandFleet(*(replica(name[-1], {KEY: slots}) for name in NAMES))


def call_of(user: str = "", *, explain: bool = False) -> Call:
    call = make_call()
    call.trail.version_routed = "2"
    call.explain = explain
    call.metadata = (("x-user", user),) if user else ()
    return call


def home(key: str, candidates: tuple[Candidate, ...] = FLEET) -> str:
    return order("fraud", key, candidates)[0].replica


def where(call: Call) -> str:
    return call.trail.attempts[0].replica


def notes(call: Call) -> list[Note]:
    return [note for note in call.trail.notes or () if note.decider == "affinity"]


# --- the key ----------------------------------------------------------------------------------------------------------


def over_http(parameters: str) -> Call:
    """As the HTTP edge decodes it."""
    inputs = '[{"name": "x", "datatype": "INT32", "shape": [1], "data": [1]}]'
    body = f'{{"parameters": {parameters}, "inputs": {inputs}}}'
    return make_call(message=bytes(decode_http_infer(body.encode()).message))


def over_grpc(**parameters: Any) -> Call:
    request = pb.ModelInferRequest(model_name="fraud")
    for name, value in parameters.items():
        kind = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}[type(value)]
        setattr(request.parameters[name], kind, value)
    return make_call(message=request.SerializeToString())


@pytest.mark.parametrize(
    ("json", "value"), [('"ann"', "ann"), ("7", 7), ('"7"', "7"), ("true", True), ("1.5", 1.5), ('"ä…"', "ä…")]
)
def test_a_parameter_is_the_same_key_over_both_protocols(json: str, value: Any) -> None:
    find = key_of(AffinityPolicy(by="parameter", name="user"))
    key = find(over_http(f'{{"user": {json}, "other": 1}}'))
    assert key is not None
    assert key == find(over_grpc(user=value, other="x"))
    assert key == (value if isinstance(value, int | str) else repr(value))


def test_calls_without_the_key_or_with_an_empty_one_have_none() -> None:
    find = key_of(AffinityPolicy(by="parameter", name="user"))
    assert find(over_http('{"other": 1}')) is None
    assert find(over_grpc(user="")) is None
    assert find(make_call(message=None)) is None
    assert BY_HEADER(call_of()) is None
    sequence = key_of(AffinityPolicy(by="sequence"))
    assert sequence(call_of()) is None
    call = call_of()
    call.sequence = SequenceStep(7, start=True, end=False)
    assert sequence(call) == 7


def test_long_keys_are_cut_and_hashed_once() -> None:
    keys = [BY_HEADER(call_of(user)) for user in ("a" * 65, "a" * 66, "a" * KEY_CHARS_MAX, "a" * KEY_CHARS_MAX + "b")]
    assert all(isinstance(key, str) and len(key) == 32 for key in keys)
    assert len(set(keys)) == 3, "what comes behind the first few thousand does not count"
    assert BY_HEADER(call_of("a" * 64)) == "a" * 64


# --- where it leads ---------------------------------------------------------------------------------------------------


async def test_calls_of_a_key_go_to_its_home_and_others_are_told_nothing() -> None:
    inner = ScriptedService(lambda call: Reply(b""))
    subject = layer(inner, fleet())
    for user in ("ann", "bob", "cid", "dan", "eve"):
        for _ in range(5):
            call = call_of(user)
            await subject.send(call)
            assert where(call) == home(user)
            assert not notes(call)
    assert len({home(user) for user in ("ann", "bob", "cid", "dan", "eve")}) > 1
    told = call_of("ann", explain=True)
    await subject.send(told)
    (note,) = notes(told)
    assert (note.word, note.saw["place"], note.saw["replica"]) == ("home", 0, home("ann"))
    without = Counter[str]()
    for _ in range(100):
        call = call_of()
        await subject.send(call)
        assert not notes(call)
        without[where(call)] += 1
    assert set(without) == set(NAMES), "those without a key go where there is least to do"
    assert subject.statistics(0.0)["2"]["affinity"]["picked"]["home"] == 26


async def test_a_popular_key_gives_way_to_the_next_of_its_order_and_nobody_waits_for_his_home() -> None:
    inner = ScriptedService()
    subject = layer(inner, fleet())
    calls = [call_of("ann") for _ in range(16)]
    tasks = [asyncio.ensure_future(subject.send(call)) for call in calls]
    for _ in range(4):
        await asyncio.sleep(0)
    assert len(inner.seen) == 16, "all of the slots are used"
    ranked = [each.replica for each in order("fraud", "ann", FLEET)]
    assert [where(call) for call in calls[:3]] == [ranked[0], ranked[1], ranked[2]]
    word = notes(calls[1])[0]
    assert (word.word, word.saw["place"], word.saw["home_in_flight"]) == ("next", 1, 1)
    late = call_of("ann")
    tasks.append(asyncio.ensure_future(subject.send(late)))
    for _ in range(4):
        await asyncio.sleep(0)
    assert late.trail.queued_s
    arrivals = [inner.arrivals.get_nowait() for _ in range(16)]
    other = next(each for each in arrivals if where(each.call) != ranked[0])
    other.answer()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert where(late) == where(other.call), "the first slot that comes back is taken, whoever's it is"
    assert [note.word for note in notes(late)] == ["waited"]
    for each in (*arrivals, inner.arrivals.get_nowait()):
        if each is not other:
            each.answer()
    await asyncio.gather(*tasks)


async def test_slots_come_back_wherever_a_keyed_call_is_cancelled() -> None:
    houses: list[AdmitLayer] = []
    held: list[asyncio.Task[Reply]] = []

    def scenario() -> tuple[Any, Any]:
        inner = ScriptedService()
        houses.append(layer(inner, fleet(slots=1)))
        held.extend(asyncio.ensure_future(houses[-1].send(call_of("bob"))) for _ in range(4))
        turns = 0

        def step() -> None:
            nonlocal turns
            turns += 1
            if turns > 2 and not inner.arrivals.empty():
                inner.arrivals.get_nowait().answer()

        return houses[-1].send(call_of("ann")), step

    assert await cancel_at_every_await(scenario, lambda: None) > 3
    for task in held:
        task.cancel()
    await asyncio.wait(held)
    rows = [house.statistics(0.0)["2"] for house in houses]
    assert all((row["in_flight"], row["waiting"]) == (0, 0) for row in rows)
    assert any(row["affinity"]["picked"]["next"] for row in rows)


async def test_a_key_is_in_no_note_no_log_line_and_no_statistics(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    subject = layer(ScriptedService(lambda call: Reply(b"")), fleet())
    secret = "ann-has-a-secret"
    call = call_of(secret, explain=True)
    await subject.send(call)
    said = repr(call.trail.notes) + repr(subject.statistics(0.0)) + caplog.text
    assert secret not in said


# --- with the judges --------------------------------------------------------------------------------------------------


def asked(admission: Admission, now_s: float, key: str | None = "ann", left_s: float = 10.0) -> Permit:
    decision = admission.offer(Ticket(now_s, now_s + left_s, key=key), now_s)
    assert isinstance(decision, Granted)
    return decision.permit


def over(admission: Admission, permit: Permit, now_s: float, outcome: Outcome, took_s: float = 0.02) -> None:
    permit.attempt = attempt = Attempt(permit.replica, now_s - took_s)
    attempt.outcome, attempt.ended_s = outcome, now_s
    admission.give_back(permit, now_s)


def test_an_ejected_home_loses_its_keys_to_the_next_and_gets_them_back_when_it_is_well() -> None:
    admission, now_s = Admission(random.Random(1), tuning=TUNING), 100.0
    admission.update(FLEET, now_s)
    first, second = (each.replica for each in order("fraud", "ann", FLEET)[:2])
    bad, went = True, Counter[str]()
    proved = 0
    for _ in range(400):
        permit = asked(admission, now_s)
        proved += permit.special is not None and permit.special.probe is not None
        now_s += 0.1
        failed = bad and permit.replica == first
        over(admission, permit, now_s, Outcome.BROKEN if failed else Outcome.OK)
        if failed and first in admission.balance.ejection.ejected:
            bad = False
            went.clear()
        went[permit.replica] += 1
    affinity = admission.balance.affinity
    assert affinity is not None
    assert set(went) == {first, second}, "the next in the key's own order, and nobody else"
    assert went[second] < 40
    assert went[first] > 2 * went[second]
    assert proved == 3
    assert affinity.counts["lent"] >= 3


def test_were_all_calls_to_carry_keys_of_others_a_suspect_would_be_tried_all_the_same() -> None:
    admission, now_s = Admission(random.Random(1), tuning=TUNING), 100.0
    admission.update(FLEET, now_s)
    first = home("ann")
    away = next(name for name in NAMES if name != first)
    for _ in range(20):
        permit = asked(admission, now_s)
        now_s += 0.1
        over(admission, permit, now_s, Outcome.OK)
    picker = admission.balance.picker
    for _ in range(6):
        now_s += 0.3
        picker.observe(away, Latency.RECORD, 0.4, now_s)
    assert not picker.trusted(away)
    tried = []
    for _ in range(600):
        permit = asked(admission, now_s)
        if permit.replica == away:
            tried.append(picker.why)
        else:
            assert permit.replica == first
        now_s += 0.1
        over(admission, permit, now_s, Outcome.OK)
    assert tried
    assert set(tried) == {"try"}
    assert picker.trusted(away)


def test_a_call_with_little_time_is_not_lent() -> None:
    admission, now_s = Admission(random.Random(1), tuning=TUNING), 100.0
    admission.update(FLEET, now_s)
    for _ in range(100):
        permit = asked(admission, now_s)
        now_s += 0.02
        over(admission, permit, now_s, Outcome.OK)
    first = home("ann")
    away = next(name for name in NAMES if name != first)
    for _ in range(5):
        admission.balance.ejection.note(away, Verdict.FAILURE, 0.001, now_s)
    now_s += 2.0
    need_s = admission.pacer.pace(16, now_s).need_s
    assert need_s
    assert asked(admission, now_s, left_s=need_s / 2).replica == first
    lent = asked(admission, now_s, left_s=need_s * 2)
    assert lent.replica == away
    assert lent.special is not None
    assert lent.special.doubt is not None
    assert lent.special.doubt.word == "probe"


@given(
    st.lists(st.sampled_from(["ann", "bob", "cid", None, "end", "fail"]), max_size=120),
    st.integers(1, 4),
    st.integers(0, 3),
)
@settings(max_examples=60, deadline=None)
def test_whatever_comes_a_free_slot_is_taken_and_no_key_takes_more_than_its_bound(
    steps: list[str | None], replicas: int, seed: int
) -> None:
    admission, now_s = Admission(random.Random(seed), tuning=TUNING), 100.0
    candidates = FLEET[:replicas]
    admission.update(candidates, now_s)
    out: list[Permit] = []
    for step in steps:
        now_s += 0.03
        if step in ("end", "fail"):
            if out:
                over(admission, out.pop(0), now_s, Outcome.OK if step == "end" else Outcome.BROKEN)
            assert not admission.waiting
            continue
        if len(out) >= 4 * replicas:
            continue
        held = Counter(permit.replica for permit in out)
        decision = admission.offer(Ticket(now_s, now_s + 1e6, key=step), now_s)
        if not isinstance(decision, Granted):
            # Only a suspect or an ejected replica has a free slot: who waits does so for the score's reasons.
            ticket_gone = [*admission.decided]
            admission._room.evict("")
            assert not ticket_gone
            judged = admission.statistics(now_s)
            bad = [name for name, row in judged["picker"]["replicas"].items() if row["suspect"]]
            bad += [name for name, row in judged["ejection"]["by_replica"].items() if row["standing"] != "healthy"]
            free = [each.replica for each in candidates if held[each.replica] < each.slots]
            assert set(free) <= set(bad)
            continue
        out.append(decision.permit)
        affinity = admission.balance.affinity
        assert affinity is not None
        if step is not None and admission.balance.ejection.calm and affinity.why == "home":
            share = 1.25 * (len(out)) / len(candidates)
            assert held[decision.permit.replica] < max(math.ceil(share), 1)
            assert decision.permit.replica == order("fraud", step, candidates)[0].replica
