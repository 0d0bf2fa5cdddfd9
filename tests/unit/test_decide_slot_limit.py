"""The adaptive limit as slots of replicas, and what admission does with it."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.call import Attempt
from gateway.core.outcome import TEACHINGS, Latency, Outcome, Verdict
from gateway.core.permit import Permit, Special
from gateway.core.snapshot import Candidate
from gateway.decide.admission import Admission
from gateway.decide.affinity import AffinitySettings
from gateway.decide.balance import BalanceSettings
from gateway.decide.limit import FRESH_MAX
from gateway.decide.limit_settings import LimitSettings
from gateway.decide.slot_limit import LimitRule, SlotLimit, share_out
from gateway.decide.ticket import Queued, Ticket
from gateway.decide.tuning import Tuning

LATE_S = 1e9
QUICK = LimitSettings(window_s=0.05, samples_min=10, trial_wait=2, calm_s=0.1, remeasure_s=2.0, remeasure_soon_s=0.2)


@given(st.integers(1, 400), st.lists(st.integers(0, 64), min_size=1, max_size=12))
def test_slots_add_up_to_the_limit_each_replica_has_one_and_none_is_a_whole_slot_off(
    limit: int, weights: list[int]
) -> None:
    parts = share_out(limit, weights)
    assert sum(parts) == max(limit, len(weights))
    assert min(parts) >= 1
    total = sum(weights)
    if total and all(limit * weight >= total for weight in weights):
        assert all(abs(part - limit * weight / total) < 1 for part, weight in zip(parts, weights, strict=True))


@pytest.mark.parametrize(
    ("rule", "candidate", "streams", "expected"),
    [
        (LimitRule(), Candidate("a", 16, 8), False, (8, 16, 64)),
        (LimitRule(), Candidate("a", 2, 1), False, (1, 2, 8)),
        (LimitRule(), Candidate("a", 16), False, (8, 16, 64)),  # how many fill the batches is not known
        (LimitRule(), Candidate("a", 5), False, (3, 5, 24)),
        (LimitRule(), Candidate("a", 0), False, (1, 1, 8)),
        (LimitRule(), Candidate("a", 2, 1), True, (1, 2, 2)),
        (LimitRule(named=True), Candidate("a", 40, 8), False, (8, 40, 40)),
        (LimitRule(named=True), Candidate("a", 4, 8), False, (4, 4, 4)),
        (LimitRule(cap=50, named=True), Candidate("a", 40, 8), False, (8, 40, 50)),
        (LimitRule(cap=10), Candidate("a", 16, 8), False, (8, 10, 10)),
        (LimitRule(cap=4), Candidate("a", 16, 8), False, (4, 4, 4)),
        (LimitRule(floor=12), Candidate("a", 16, 8), False, (12, 16, 64)),
        (LimitRule(floor=100), Candidate("a", 16, 8), False, (100, 100, 100)),
        (LimitRule(floor=1), Candidate("a", 16, 8), False, (1, 16, 64)),
    ],
)
def test_bounds(rule: LimitRule, candidate: Candidate, streams: bool, expected: tuple[int, int, int]) -> None:
    assert rule.bounds(candidate, streams=streams) == expected


NUMBER = st.one_of(st.none(), st.integers(1, 300))


@given(NUMBER, NUMBER, st.booleans(), st.booleans(), st.integers(0, 400), st.integers(0, 200))
def test_bounds_are_always_in_order(
    floor: int | None, cap: int | None, named: bool, streams: bool, slots: int, places: int
) -> None:
    if floor is not None and cap is not None and floor > cap:
        with pytest.raises(ValueError, match="floor"):
            LimitRule(floor, cap)
        return
    low, start, high = LimitRule(floor, cap, named).bounds(Candidate("a", slots, places), streams=streams)
    assert 1 <= low <= start <= high
    assert floor is None or low == floor
    assert cap is None or high == cap


@pytest.mark.parametrize("name", ["floor", "cap"])
def test_a_bound_below_one_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        LimitRule(**{name: 0})  # type: ignore[arg-type]


def admission(*candidates: Candidate, rule: LimitRule | None = None, seed: int = 1) -> Admission:
    chance = random.Random(seed)
    fit = SlotLimit(rule or LimitRule(settings=QUICK), chance.random)
    subject = Admission(chance, None, fit=fit)
    subject.update(candidates, 0.0)
    return subject


TWO = (Candidate("a", 16, 8, 8), Candidate("b", 16, 8, 8))


def end(permit: Permit, outcome: Outcome | None, started_s: float, ended_s: float) -> Permit:
    kind = "primary" if permit.special is None else permit.special.kind
    permit.attempt = Attempt(permit.replica, started_s, kind)
    permit.attempt.outcome, permit.attempt.ended_s = outcome, ended_s
    return permit


def waves(subject: Admission, now_s: float, count: int, outcome: Outcome = Outcome.OK, lasts_s: float = 0.01) -> float:
    """All slots are taken, and all calls end so, `count` times."""
    for _ in range(count):
        permits = []
        while (permit := subject.take(LATE_S, now_s)) is not None:
            permits.append(permit)
        assert sum(permit is not None for permit in permits) == subject.limit
        now_s += lasts_s
        for permit in permits:
            subject.give_back(end(permit, outcome, now_s - lasts_s, now_s), now_s)
        assert subject.in_flight == 0
    return now_s


def slots(subject: Admission) -> list[int]:
    return [each.slots for each in subject.candidates]


def test_drops_take_slots_from_every_replica_and_give_them_back() -> None:
    subject = admission(*TWO)
    assert (subject.limit, slots(subject)) == (32, [16, 16])
    now_s = waves(subject, 0.0, 60, Outcome.EXPIRED)
    assert (subject.limit, slots(subject)) == (16, [8, 8])
    waves(subject, now_s, 200)
    assert subject.limit >= 32


def test_what_is_out_when_the_limit_falls_stays_out_and_nothing_is_granted_until_it_has_come_back() -> None:
    subject = admission(*TWO)
    now_s = waves(subject, 0.0, 10)
    permits: list[Permit] = []
    while (permit := subject.take(LATE_S, now_s)) is not None:
        permits.append(permit)
    assert len(permits) == subject.limit == 32
    ticket = Ticket(now_s, LATE_S)
    assert isinstance(subject.offer(ticket, now_s), Queued)
    dropped, kept = permits[:12], permits[12:]
    for permit in dropped:
        now_s += 0.02
        subject.give_back(end(permit, Outcome.EXPIRED, now_s - 0.5, now_s), now_s)
        assert ticket.permit is not None or subject.in_flight >= subject.limit, "a free slot, and somebody waits"
    assert subject.limit < 32
    assert subject.in_flight == len(kept) + (ticket.permit is not None)


def test_who_waits_is_served_as_soon_as_the_limit_grows() -> None:
    subject = admission(Candidate("a", 16, 8, 8))
    now_s = waves(subject, 0.0, 60, Outcome.EXPIRED)
    assert subject.limit == 8
    waiting: list[Ticket] = []
    out: list[Permit] = []
    grown = 0
    for _ in range(400):
        while subject.waiting < 12:
            ticket = Ticket(now_s, LATE_S)
            decision = subject.offer(ticket, now_s)
            if isinstance(decision, Queued):
                waiting.append(ticket)
            else:
                assert ticket.permit is not None
                out.append(ticket.permit)
        now_s += 0.005
        before = subject.limit
        permit = out.pop(0)
        subject.give_back(end(permit, Outcome.OK, now_s - 0.01, now_s), now_s)
        out += [ticket.permit for ticket in subject.decided if ticket.permit is not None]
        subject.decided.clear()
        assert subject.in_flight >= subject.limit, "calls wait and slots are free"
        grown += subject.limit > before
        if subject.limit == 16:
            break
    assert grown >= 2
    assert subject.limit == 16


def test_no_key_moves_while_the_limit_does() -> None:
    """Slots are whole, so the replicas' shares are not even then; a key that moved would lose what is cached for it."""
    balance = BalanceSettings(affinity=AffinitySettings(), scope="m")
    chance = random.Random(1)
    subject = Admission(chance, None, Tuning(balance=balance), fit=SlotLimit(LimitRule(settings=QUICK), chance.random))
    subject.update([Candidate(name, 6, 3, 8) for name in "abc"], 0.0)
    homes = [subject.balance.pick({}, 0.0, key=key) for key in range(200)]
    assert set(homes) == {"a", "b", "c"}
    now_s, uneven = 0.0, 0
    for _ in range(60):
        now_s = waves(subject, now_s, 1, Outcome.EXPIRED)
        uneven += len(set(slots(subject))) > 1
        affinity = subject.balance.affinity
        assert affinity is not None
        assert [affinity.pick(key, subject.candidates, {}) for key in range(200)] == homes
    assert uneven


def test_hedging_is_told_that_the_limit_falls() -> None:
    subject = admission(*TWO)
    now_s = waves(subject, 0.0, 20)
    assert subject.may_hedge(("a",), now_s, cancels_capped=False) != "limit_shrinking"
    while subject.limit == 32:
        now_s = waves(subject, now_s, 1, Outcome.OVERLOAD)
    assert subject.may_hedge(("a",), now_s, cancels_capped=False) == "limit_shrinking"
    assert subject.may_hedge(("a",), now_s + 10.0, cancels_capped=False) != "limit_shrinking"


def told(special: Special | None, outcome: Outcome) -> dict[str, float]:
    """What a full window of attempts that end so leaves in the limit, next to twenty good ones."""
    subject = SlotLimit(LimitRule(settings=QUICK), lambda: 0.5)
    subject.update(TWO, 0.0)
    adaptive = subject.adaptive
    assert adaptive is not None
    for number in range(20):
        attempt = Attempt("a", 0.01)
        attempt.outcome, attempt.ended_s = Outcome.OK, 0.02 + number * 1e-4
        subject.ended(attempt, USUAL, 4, attempt.ended_s)
        attempt = Attempt("a", 0.01, (special or USUAL).kind)
        attempt.outcome, attempt.ended_s = outcome, 0.02 + number * 1e-4
        subject.ended(attempt, special or USUAL, 4, attempt.ended_s)
    adaptive.fold(0.03)
    return {"ok": adaptive._successes, "drops": adaptive._drops, "slow": adaptive._outlasted}


USUAL = Special()


@pytest.mark.parametrize("outcome", Outcome)
def test_each_outcome_teaches_what_the_table_says(outcome: Outcome) -> None:
    verdict = TEACHINGS[outcome].limit
    slow = verdict is Verdict.NEUTRAL and TEACHINGS[outcome].hedge is Latency.LOWER_BOUND
    expected = {
        "ok": 20 + 20 * (verdict is Verdict.SUCCESS),
        "drops": 20 * (verdict is Verdict.FAILURE),
        "slow": 20 * slow,
    }
    assert told(None, outcome) == expected
    assert told(Special(kind="retry"), outcome) == expected
    assert slow == (outcome is Outcome.SUPERSEDED)


@pytest.mark.parametrize("special", [Special(kind="hedge"), Special(told=True)])
@pytest.mark.parametrize("outcome", Outcome)
def test_hedges_and_the_ends_of_streams_that_were_answered_teach_nothing(special: Special, outcome: Outcome) -> None:
    assert told(special, outcome) == {"ok": 20, "drops": 0, "slow": 0}


def test_those_that_lost_to_their_hedge_count_among_the_slowest() -> None:
    def recent_s(lost: int) -> float:
        subject = SlotLimit(LimitRule(settings=QUICK), lambda: 0.5)
        subject.update(TWO, 0.0)
        assert subject.adaptive is not None
        for number in range(100):
            attempt = Attempt("a", 0.0)
            attempt.outcome, attempt.ended_s = Outcome.OK, 0.001 * (1 + number % 50)
            if number < lost:
                attempt.outcome = Outcome.SUPERSEDED
            subject.ended(attempt, USUAL, 4, 0.049)
        subject.fold(0.06)
        return float(subject.adaptive.statistics(0.06)["recent_s"])

    assert recent_s(0) == pytest.approx(0.045, rel=0.05)
    assert recent_s(5) > recent_s(0) * 1.03


def test_a_stream_is_judged_by_its_first_response_and_once() -> None:
    subject = admission(*TWO)
    adaptive = subject.fit.adaptive
    assert adaptive is not None
    permit = subject.take(LATE_S, 0.0)
    assert permit is not None
    permit.attempt = Attempt(permit.replica, 0.0)
    permit.attempt.answered_s = 0.04
    subject.answered(permit, 0.04)
    adaptive.fold(0.04)
    assert adaptive._successes == 1
    assert adaptive._slowest_s == pytest.approx(0.04)
    permit.attempt.outcome, permit.attempt.ended_s = Outcome.EXPIRED, 30.0
    subject.give_back(permit, 30.0)
    assert (adaptive._successes, adaptive._drops) == (1, 0)
    assert subject.in_flight == 0


def test_after_a_long_silence_the_first_call_finds_the_limit_where_it_started() -> None:
    subject = admission(*TWO)
    now_s = waves(subject, 0.0, 60, Outcome.EXPIRED)
    assert subject.limit == 16
    now_s += QUICK.idle_s + 1.0
    permits = [subject.take(LATE_S, now_s) for _ in range(16)]
    assert None not in permits
    ticket = Ticket(now_s, LATE_S)
    subject.offer(ticket, now_s)
    assert ticket.permit is not None, "the burst is served"
    assert subject.limit == 32


def test_replicas_that_come_and_leave_take_their_share_of_the_limit() -> None:
    subject = admission(*TWO)
    now_s = waves(subject, 0.0, 60, Outcome.EXPIRED)
    assert slots(subject) == [8, 8]
    subject.update((*TWO, Candidate("c", 16, 8, 8)), now_s)
    assert slots(subject) == [8, 8, 8]
    subject.update(TWO[:1], now_s)
    assert (slots(subject), subject.limit) == ([8], 8)
    subject.update((), now_s)
    assert (subject.limit, subject.candidates) == (0, ())
    subject.update(TWO, now_s)
    assert slots(subject) == [8, 8], "what was learnt is kept while nobody is there"


def test_where_the_policy_holds_the_slots_nothing_moves_them() -> None:
    subject = Admission(random.Random(1))
    subject.update(TWO, 0.0)
    now_s = waves(subject, 0.0, 60, Outcome.EXPIRED)
    waves(subject, now_s, 60)
    assert (subject.limit, slots(subject), subject.fit.note()) == (32, [16, 16], None)
    assert subject.statistics(now_s)["adaptive"] is None
    assert len(subject._ends) < FRESH_MAX


def test_off_its_start_the_limit_says_why() -> None:
    subject = admission(*TWO)
    assert subject.fit.note() is None
    waves(subject, 0.0, 60, Outcome.EXPIRED)
    assert subject.fit.note() == ("drops", {"limit": 16, "start": 32, "floor": 16, "cap": 128})


FLEETS = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 10)), max_size=4)
STEP = st.one_of(
    st.tuples(
        st.just("calls"), st.integers(1, 30), st.sampled_from(Outcome), st.sampled_from([0.0, 0.003, 0.2, 400.0])
    ),
    st.tuples(st.just("fleet"), FLEETS),
)


@given(st.lists(STEP, max_size=40), st.booleans(), st.integers(0, 2**16))
@settings(max_examples=80, deadline=None)
def test_whatever_happens_the_slots_stay_within_the_bounds(
    steps: Sequence[tuple[object, ...]], named: bool, seed: int
) -> None:
    rule = LimitRule(named=named, settings=QUICK)
    chance = random.Random(seed)
    subject = admission(*TWO, rule=rule, seed=seed)
    declared: Sequence[Candidate] = TWO
    now_s = 0.0
    out: list[tuple[Permit, float]] = []
    for step in steps:
        if step[0] == "fleet":
            fleet = step[1]
            assert isinstance(fleet, list)
            declared = [Candidate(f"r{i}", count, fills, fills) for i, (count, fills) in enumerate(fleet)]
            subject.update(declared, now_s)
        else:
            _, count, outcome, pause_s = step
            assert isinstance(count, int)
            assert isinstance(outcome, Outcome)
            assert isinstance(pause_s, float)
            for _ in range(count):
                permit = subject.take(LATE_S, now_s)
                if permit is not None:
                    out.append((permit, now_s))
                now_s += pause_s
                if out and (permit is None or chance.random() < 0.6):
                    given, started_s = out.pop(chance.randrange(len(out)))
                    subject.give_back(end(given, outcome, started_s, now_s), now_s)
        bounds = [rule.bounds(each, streams=False) for each in declared]
        assert sum(low for low, _, _ in bounds) <= subject.limit <= sum(high for _, _, high in bounds)
        assert len(subject.candidates) == len(declared)
        assert all(each.slots >= 1 for each in subject.candidates)
        assert sum(each.slots for each in subject.candidates) == subject.limit
        assert subject.in_flight == len(out)
    for permit, started_s in out:
        subject.give_back(end(permit, Outcome.OK, started_s, now_s), now_s)
    assert subject.idle
