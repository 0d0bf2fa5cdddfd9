"""Size lanes together with what else decides about calls: keys, probes, second attempts, and a limit that moves."""

from __future__ import annotations

import random

from gateway.core.call import Attempt
from gateway.core.outcome import Outcome
from gateway.core.permit import Permit, Special
from gateway.core.snapshot import Candidate
from gateway.decide.affinity import AffinitySettings
from gateway.decide.balance import Balance, BalanceSettings
from gateway.decide.bound_admission import BoundAdmission, Lane
from gateway.decide.lanes import Lanes, LaneSettings, LanesSettings
from gateway.decide.slot_limit import LimitRule, SlotLimit
from gateway.decide.ticket import Granted, Ticket
from gateway.decide.tuning import Tuning

POOL = tuple(Candidate(name, 2) for name in "abcd")
FAR_S = 1e9


def balance() -> Balance:
    made = Balance(random.Random(1), BalanceSettings(affinity=AffinitySettings(bound=4.0), scope="m"))
    made.update(POOL, (), 0.0)
    return made


def test_a_home_that_may_not_have_the_call_is_passed_over() -> None:
    judges = balance()
    home = judges.pick({}, 0.0, key="mine")
    judges.allowed = lambda replica: replica != home
    elsewhere = judges.pick({}, 0.0, key="mine")
    assert elsewhere not in (None, home)
    assert judges.affinity is not None
    assert judges.affinity.why == "next"
    assert {judges.pick({}, 0.0, key="mine") for _ in range(20)} == {elsewhere}, "the next one is the key's own too"


def test_who_may_go_nowhere_gets_nothing_with_a_key_or_without() -> None:
    judges = balance()
    judges.allowed = lambda replica: False
    assert judges.pick({}, 0.0, key="mine") is None
    assert judges.pick({}, 0.0) is None
    assert judges.pick({}, 0.0, exclude=("a",), hold=False) is None


def test_a_probe_is_made_only_with_a_call_that_may_go_there() -> None:
    judges = balance()
    for _ in range(40):  # until its breaker is open
        permit = Permit("a", 1)
        permit.attempt = Attempt("a", 0.0, "primary")
        permit.attempt.outcome, permit.attempt.ended_s = Outcome.TRANSPORT, 0.1
        judges.ended(permit, 0.1)
    assert judges.ejection.ejected == {"a"}
    later_s = 100.0
    assert judges.ejection.wants_probe(later_s) == "a"
    assert judges.pick({}, later_s) == "a"
    judges.allowed = lambda replica: replica != "a"
    assert {judges.pick({}, later_s) for _ in range(20)} <= {"b", "c", "d"}
    assert judges.pick({}, later_s, key="mine") != "a"


def two_lanes(fit: SlotLimit | None = None) -> tuple[BoundAdmission, BoundAdmission]:
    books = Lanes(LanesSettings((LaneSettings("large", 10, 0.5),)))
    small = BoundAdmission(random.Random(1), None, Tuning(), fit=fit, model="m", lane=Lane(books, 0))
    large = BoundAdmission(random.Random(1), None, Tuning(), model="m", lane=Lane(books, 1, 0.5), first=small)
    for each in (small, large):
        each.update(POOL, 0.0)
    return small, large


def test_lanes_share_the_slots_in_force_and_follow_them() -> None:
    fit = SlotLimit(LimitRule(floor=1, cap=2), random.random)
    small, large = two_lanes(fit)
    assert (small.limit, large.limit) == (8, 4)
    assert fit.adaptive is not None
    fit.adaptive._set(4.0, "drops")
    assert fit.fold(1.0)
    small.stirred = False
    small._refit(1.0)
    assert (small.limit, large.limit) == (4, 2)
    assert large.candidates == small.candidates == fit.candidates
    assert {each.slots for each in large.candidates} == {1}
    assert small.stirred, "what waits in any lane is asked"
    assert large.fit.note() == small.fit.note() is not None


def test_large_calls_teach_the_limit_nothing_and_small_ones_do() -> None:
    fit = SlotLimit(LimitRule(), random.random)
    small, large = two_lanes(fit)
    for admission, work in ((large, 20.0), (small, 1.0)):
        decision = admission.offer(Ticket(0.0, FAR_S, work=work), 0.0)
        assert isinstance(decision, Granted)
        decision.permit.attempt = attempt = Attempt(decision.permit.replica, 0.0, "primary")
        attempt.outcome, attempt.ended_s = Outcome.OK, 0.01
        admission.give_back(decision.permit, 0.01)
        assert len(fit.ends) == (1 if admission is small else 0)


def test_a_call_of_more_units_tells_the_limit_its_time_per_unit() -> None:
    fit = SlotLimit(LimitRule(), random.random)
    fit.update(POOL, 0.0)
    attempt = Attempt("a", 0.0, "primary")
    attempt.outcome, attempt.ended_s = Outcome.OK, 0.4
    fit.ended(attempt, Special(work=4.0), 1, 0.4)
    assert [round(duration_s, 6) for _, duration_s, _ in fit.ends] == [0.1]


def test_who_goes_down_is_remembered_by_all_lanes_and_forgotten_by_none() -> None:
    small, large = two_lanes()
    for each in (small, large):
        each.update(POOL[1:], 1.0, ("a",))
    assert small.gone == large.gone == ("a",)
    assert small.balance.ejection.standing("a", 1.0) == "down"
    small._refit(2.0)  # the limit may move at any time
    assert small.balance.ejection.standing("a", 2.0) == "down"


def test_a_second_attempt_of_a_large_call_keeps_to_its_lane() -> None:
    small, large = two_lanes()
    busy = small.offer(Ticket(0.0, FAR_S), 0.0)
    first = large.offer(Ticket(0.0, FAR_S, work=20.0), 0.0)
    assert isinstance(busy, Granted)
    assert isinstance(first, Granted)
    second = large.another("retry", (first.permit.replica,), 0.0, 20.0)
    assert second is not None
    assert second.replica not in (busy.permit.replica, first.permit.replica)
    assert second.special is not None
    assert (second.special.kind, second.special.work) == ("retry", 20.0)
