"""The waiting room: who goes first, who makes room, who is told at once, and nobody is forgotten."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.decide.fair_lines import HAND, LINES, RoomTicket, deal
from gateway.decide.waiting_room import (
    CLASSES,
    WORDS,
    Offered,
    Pace,
    Refusal,
    RoomSettings,
    WaitingRoom,
)

UNKNOWN = Pace(1, 0.0, 0.0, 0.0)
"""Nothing is known of the servers: no estimate refuses anybody."""
PACE = Pace(instances=2, batch_s=0.02, service_s=0.04, need_s=0.03)
"""Batches of 8: a usual call costs 2.5 ms."""
COST_S = 0.0025

Room = WaitingRoom[RoomTicket]


def room(queue_max: int = 1000, quantum_s: float = 0.001) -> Room:
    return WaitingRoom(queue_max, RoomSettings(quantum_s=quantum_s))


def ticket(
    tenant: str = "",
    deadline_s: float = 100.0,
    *,
    rank: int = 1,
    cost_s: float = COST_S,
    offered_s: float = 0.0,
    pinned: str = "",
    opens: bool = False,
) -> RoomTicket:
    return RoomTicket(offered_s, deadline_s, criticality=rank, tenant=tenant, cost_s=cost_s, pinned=pinned, opens=opens)


def enter(subject: Room, *tickets: RoomTicket) -> None:
    for each in tickets:
        assert subject.offer(each, 0.0, UNKNOWN) == Offered("waits", 0.0)


def pop(subject: Room, replica: str = "gpu/a", *, may_open: bool = True) -> RoomTicket | None:
    refused: list[Refusal[RoomTicket]] = []
    got = subject.pop(replica, 0.0, UNKNOWN, refused, may_open=may_open)
    assert refused == []
    return got


def told(subject: Room, new: RoomTicket, pace: Pace) -> tuple[str, float]:
    """What it is told at time 0, its wait to the nanosecond."""
    answer = subject.offer(new, 0.0, pace)
    return answer.why, round(answer.wait_s, 9)


def order(subject: Room) -> list[RoomTicket]:
    return list(iter(lambda: pop(subject), None))


# Order.


def test_a_higher_class_goes_first_then_the_earlier_deadline_then_who_came_first() -> None:
    subject = room()
    late, low, first, high, early, second = (
        ticket(deadline_s=60.0),
        ticket(deadline_s=1.0, rank=3),
        ticket(deadline_s=50.0),
        ticket(deadline_s=90.0, rank=0),
        ticket(deadline_s=10.0),
        ticket(deadline_s=50.0),
    )
    enter(subject, late, low, first, high, early, second)
    assert order(subject) == [high, early, first, second, late, low]
    assert subject.waiting == 0


def test_tenants_take_turns_however_many_calls_one_has() -> None:
    subject = room()
    elephant = [ticket("elephant", 10.0) for _ in range(50)]
    mice = [ticket("mouse", 99.0) for _ in range(3)]
    enter(subject, *elephant, *mice)
    served = [each.tenant for each in order(subject)]
    assert served[:8] == ["elephant", "mouse"] * 3 + ["elephant"] * 2


def test_turns_are_of_accelerator_time_and_not_of_calls() -> None:
    subject = room()
    enter(subject, *[ticket("heavy", cost_s=0.02) for _ in range(20)], *[ticket("light") for _ in range(160)])
    served = Counter(each.tenant for each in order(subject)[:90])
    assert served == {"heavy": 10, "light": 80}


def test_one_call_that_costs_much_waits_until_its_tenant_has_saved_for_it() -> None:
    subject = room()
    enter(subject, ticket("heavy", cost_s=0.1), *[ticket("light", cost_s=0.01) for _ in range(30)])
    served = [each.tenant for each in order(subject)]
    assert 9 <= served.index("heavy") <= 10


def test_a_cost_of_nothing_and_one_beyond_the_bound_are_served() -> None:
    subject = room()
    enter(subject, ticket("free", cost_s=0.0), ticket("huge", cost_s=90.0), ticket("free", cost_s=0.0))
    assert [each.tenant for each in order(subject)] == ["free", "free", "huge"]


def test_looking_changes_nothing() -> None:
    subject = room()
    enter(subject, *[ticket(tenant, cost_s=cost_s) for cost_s in (0.004, 0.001, 0.009) for tenant in "abc"])
    while (seen := subject.peek("gpu/a")) is not None:
        assert subject.peek("gpu/a") is seen
        assert pop(subject) is seen


# Slots on named replicas.


def test_a_pinned_call_gets_only_a_slot_of_its_replica_and_holds_up_nobody() -> None:
    subject = room()
    to_a, anywhere = ticket(pinned="gpu/a", deadline_s=1.0), ticket(deadline_s=2.0)
    enter(subject, to_a, anywhere)
    assert (subject.waiting, subject.waiting_pinned) == (2, 1)
    assert subject.pinned_to() == ("gpu/a",)
    assert pop(subject, "gpu/b") is anywhere
    assert not subject.waits_for("gpu/b")
    assert pop(subject, "gpu/b") is None
    assert subject.waits_for("gpu/a")
    assert pop(subject, "gpu/a") is to_a
    assert not subject.waits_for("gpu/a")


def test_a_pinned_call_stands_in_line_with_those_who_can_go_anywhere() -> None:
    subject = room()
    anywhere, to_a = ticket(deadline_s=1.0), ticket(pinned="gpu/a", deadline_s=2.0)
    enter(subject, to_a, anywhere)
    assert [pop(subject), pop(subject)] == [anywhere, to_a]


def test_a_tenant_that_cannot_use_the_slot_keeps_its_turn() -> None:
    subject = room()
    to_a = ticket("pinned", pinned="gpu/a")
    enter(subject, to_a, *[ticket("free") for _ in range(5)])
    for _ in range(3):
        got = pop(subject, "gpu/b")
        assert got is not None
        assert got.tenant == "free"
    assert pop(subject, "gpu/a") is to_a


def test_openers_get_a_slot_only_where_they_may() -> None:
    subject = room()
    opener, step = ticket(pinned="gpu/a", opens=True, deadline_s=1.0), ticket(pinned="gpu/a", deadline_s=2.0)
    enter(subject, opener, step)
    assert pop(subject, may_open=False) is step
    assert not subject.waits_for("gpu/a", may_open=False)
    assert pop(subject, may_open=False) is None
    assert subject.waits_for("gpu/a")
    assert pop(subject) is opener


def test_those_whom_nobody_is_left_to_serve_are_put_out_in_their_order() -> None:
    subject = room()
    a = [ticket(pinned="gpu/a", deadline_s=9.0), ticket("x", pinned="gpu/a", opens=True), ticket(pinned="gpu/a")]
    others = [ticket(pinned="gpu/b"), ticket()]
    enter(subject, a[0], others[0], a[1], others[1], a[2])
    assert subject.evict("gpu/a") == a
    assert subject.evict("") == [others[1]]
    assert subject.evict("gpu/b") == [others[0]]
    assert (subject.waiting, subject.waiting_pinned) == (0, 0)
    enter(subject, *a)


# Giving up.


def test_who_gives_up_is_passed_over_and_can_give_up_once() -> None:
    subject = room()
    tickets = [ticket(deadline_s=float(number)) for number in range(1, 4)]
    enter(subject, *tickets)
    assert subject.withdraw(tickets[1])
    assert not subject.withdraw(tickets[1])
    assert order(subject) == [tickets[0], tickets[2]]
    assert not subject.withdraw(tickets[0]), "it has a slot"
    assert subject.statistics(0.0)["withdrawn"] == 1


# The bound.


def test_a_full_room_refuses_who_comes_last_of_its_class() -> None:
    subject = room(queue_max=2)
    enter(subject, ticket(deadline_s=5.0), ticket(deadline_s=9.0))
    assert subject.offer(ticket(deadline_s=1.0), 0.0, UNKNOWN) == Offered("queue_full", 0.0)
    assert subject.offer(ticket("other", rank=2), 0.0, UNKNOWN).why == "queue_full"
    assert subject.waiting == 2


def test_a_higher_class_pushes_out_the_latest_deadline_of_the_lowest_present() -> None:
    subject = room(queue_max=4)
    low, lower = ticket(rank=2), ticket(rank=3, deadline_s=8.0)
    latest, newest = ticket(rank=3, deadline_s=9.0), ticket(rank=3, deadline_s=9.0)
    enter(subject, low, lower, latest, newest)
    high = [ticket(rank=0) for _ in range(5)]
    answers = [subject.offer(each, 0.0, UNKNOWN) for each in high]
    assert [answer.pushed_out for answer in answers] == [newest, latest, lower, low, None]
    assert [answer.why for answer in answers] == ["waits"] * 4 + ["queue_full"]
    assert order(subject) == high[:4]
    assert subject.statistics(0.0)["refused"] == dict.fromkeys(WORDS, 0) | {"pushed_out": 4, "queue_full": 1}


def test_the_class_below_is_not_pushed_out_for_one_of_the_lowest() -> None:
    subject = room(queue_max=1)
    enter(subject, ticket(rank=2))
    assert subject.offer(ticket(rank=3), 0.0, UNKNOWN) == Offered("queue_full", 0.0)


def test_of_the_lowest_class_the_tenant_with_most_makes_room() -> None:
    subject = room(queue_max=4)
    elephant = [ticket("elephant", deadline_s=float(number)) for number in (1, 2, 3)]
    enter(subject, *elephant, ticket("mouse", deadline_s=99.0))
    assert subject.offer(ticket(rank=0), 0.0, UNKNOWN).pushed_out is elephant[2]


def test_a_tenant_with_little_gets_in_where_another_fills_the_room() -> None:
    subject = room(queue_max=10)
    elephant = [ticket("elephant", deadline_s=50.0 + number) for number in range(10)]
    enter(subject, *elephant)
    answers = [subject.offer(ticket("mouse"), 0.0, UNKNOWN) for _ in range(8)]
    assert [answer.pushed_out for answer in answers] == [*reversed(elephant[5:]), None, None, None]
    assert [answer.why for answer in answers] == ["waits"] * 5 + ["queue_full"] * 3
    assert subject.offer(ticket("elephant"), 0.0, UNKNOWN).why == "queue_full", "no pushing to and fro"


def test_the_bound_may_move_and_a_room_without_places_refuses() -> None:
    subject = room(queue_max=0)
    assert subject.offer(ticket(rank=0), 0.0, UNKNOWN).why == "queue_full"
    subject.queue_max = 2
    enter(subject, ticket(), ticket())
    subject.queue_max = 1
    assert subject.offer(ticket(), 0.0, UNKNOWN).why == "queue_full"
    assert subject.waiting == 2


# Estimates.


@pytest.mark.parametrize(
    ("ahead", "instances", "rounds"),
    [(0, 2, 1), (15, 2, 1), (16, 2, 2), (31, 2, 2), (32, 2, 3), (7, 1, 1), (8, 1, 2), (799, 4, 25), (800, 4, 26)],
)
def test_the_wait_is_that_of_the_notes_for_calls_of_the_usual_cost(ahead: int, instances: int, rounds: int) -> None:
    """ceil((ahead + 1) / (n I b*)) x S(b*), b* = 8."""
    subject = room()
    enter(subject, *[ticket() for _ in range(ahead)])
    pace = Pace(instances, 0.02, 0.04, 0.03)
    assert rounds == math.ceil((ahead + 1) / (instances * 8))
    just, short = rounds * 0.02 + 0.04 + 1e-9, rounds * 0.02 + 0.04 - 1e-6
    # Of equal deadlines the first goes first: those ahead have earlier ones here.
    for line in subject.evict(""):
        line.deadline_s = short / 2
        enter(subject, line)
    assert told(subject, ticket(deadline_s=short), pace) == ("infeasible", round(rounds * 0.02, 9))
    assert told(subject, ticket(deadline_s=just), pace) == ("waits", round(rounds * 0.02, 9))


def test_only_work_that_goes_before_counts() -> None:
    subject = room()
    enter(subject, *[ticket(deadline_s=50.0) for _ in range(100)], *[ticket(rank=2) for _ in range(100)])
    assert subject.offer(ticket(deadline_s=1.0), 0.0, PACE).wait_s == pytest.approx(0.02), "all others are later"
    assert subject.offer(ticket(deadline_s=60.0), 0.0, PACE).wait_s == pytest.approx(7 * 0.02), "102 calls, 16 a round"
    assert subject.offer(ticket(rank=0), 0.0, PACE).wait_s == pytest.approx(0.02)
    assert subject.offer(ticket(rank=2, deadline_s=60.0), 0.0, PACE).wait_s == pytest.approx(7 * 0.02)
    assert subject.offer(ticket(rank=3), 0.0, PACE).wait_s == pytest.approx(13 * 0.02)


def test_anothers_backlog_counts_only_as_far_as_turns_let_it_go_before() -> None:
    subject = room()
    enter(subject, *[ticket("elephant", deadline_s=1.0) for _ in range(400)])
    soon = ticket("mouse", deadline_s=0.07)
    assert told(subject, soon, PACE) == ("waits", 0.02)
    assert pop(subject).tenant == "elephant"  # type: ignore[union-attr]
    assert pop(subject) is soon
    assert subject.offer(ticket("elephant", deadline_s=0.8), 0.0, PACE).wait_s == pytest.approx(0.02)
    assert subject.offer(ticket("elephant", deadline_s=1.0), 0.0, PACE).wait_s == pytest.approx(26 * 0.02)


def test_a_call_that_alone_takes_longer_than_it_has_is_told_so() -> None:
    subject = room()
    assert subject.offer(ticket(deadline_s=1.0, cost_s=1.1), 0.0, PACE).why == "infeasible"
    assert subject.offer(ticket(deadline_s=2.0, cost_s=1.1), 0.0, PACE).why == "waits"


def test_a_pinned_call_waits_for_what_is_pinned_to_the_same_replica() -> None:
    subject = room()
    enter(subject, *[ticket(pinned="gpu/a", deadline_s=9.0) for _ in range(8)], *[ticket() for _ in range(50)])
    enter(subject, *[ticket(pinned="gpu/b", rank=0) for _ in range(50)], ticket(pinned="gpu/a", rank=0))
    pace = Pace(1, 0.02, 0.04, 0.03)
    assert subject.offer(ticket(pinned="gpu/a", deadline_s=1.0), 0.0, pace).wait_s == pytest.approx(0.02)
    assert subject.offer(ticket(pinned="gpu/a", deadline_s=10.0), 0.0, pace).wait_s == pytest.approx(0.04)
    assert subject.offer(ticket(pinned="gpu/c", deadline_s=10.0), 0.0, pace).wait_s == pytest.approx(0.02)


def test_nobody_is_pushed_out_for_one_without_hope() -> None:
    subject = room(queue_max=1)
    enter(subject, ticket(rank=3))
    assert subject.offer(ticket(rank=0, deadline_s=0.01), 0.0, PACE).why == "infeasible"
    assert subject.waiting == 1


# Deadlines of those who wait.


def test_who_cannot_make_it_any_more_leaves_and_the_rest_stay() -> None:
    subject = room()
    tickets = [ticket(tenant, deadline_s, rank=rank) for tenant, deadline_s, rank in (("a", 1.0, 0), ("b", 1.5, 3))]
    pinned, last = ticket(pinned="gpu/a", deadline_s=1.2), ticket(deadline_s=2.0)
    enter(subject, *tickets, pinned, last)
    assert subject.expire(0.97, PACE) == [], "exactly enough time is enough"
    assert subject.expire(0.98, PACE) == [Refusal(tickets[0], "too_late")]
    assert subject.expire(1.6, PACE) == [Refusal(pinned, "too_late"), Refusal(tickets[1], "too_late")]
    assert subject.expire(1.6, PACE) == []
    assert subject.waiting == 1
    assert subject.expire(9.0, PACE) == [Refusal(last, "too_late")]
    assert subject.expire(99.0, PACE) == []


def test_expiry_finds_those_who_came_after_it_looked() -> None:
    subject = room()
    enter(subject, ticket(deadline_s=50.0))
    assert subject.expire(1.0, PACE) == []
    soon = ticket(deadline_s=2.0)
    enter(subject, soon)
    assert subject.expire(1.98, PACE) == [Refusal(soon, "too_late")]


def test_a_slot_is_not_spent_on_a_call_that_would_be_late() -> None:
    subject = room()
    late, heavy, good = ticket(deadline_s=1.0), ticket(deadline_s=1.2, cost_s=0.5), ticket(deadline_s=2.0)
    enter(subject, late, heavy, good)
    refused: list[Refusal[RoomTicket]] = []
    assert subject.pop("gpu/a", 0.98, PACE, refused) is good
    assert refused == [Refusal(late, "too_late"), Refusal(heavy, "too_late")]
    assert subject.statistics(0.0)["refused"]["too_late"] == 2


# The guard.


def stand(subject: Room, rank: int, tenants: str) -> list[Refusal[RoomTicket]]:
    """A second in which a call of each tenant comes every 10 ms and one in all gets a slot. Who was refused."""
    refused: list[Refusal[RoomTicket]] = []
    for step in range(100):
        now_s = step * 0.01
        for tenant in tenants:
            subject.offer(ticket(tenant, rank=rank, offered_s=now_s), now_s, UNKNOWN)
        for _ in range(len(tenants) // 2):
            subject.pop("gpu/a", now_s, PACE, refused)
    return refused


def test_in_a_queue_that_stands_who_waited_for_long_is_dropped_at_its_turn() -> None:
    subject = room()
    refused = stand(subject, 2, "aaaa")
    assert {each.why for each in refused} == {"standing_queue"}
    assert len(refused) > 100
    assert subject.overloaded(1.0)
    assert subject.settle_s() == pytest.approx(0.4)
    assert subject.waiting <= 20, "what is left has waited for two batch times at most, and a little"


def test_the_top_class_loses_nobody_to_the_guard_but_its_queue_is_seen() -> None:
    subject = room()
    assert stand(subject, 0, "aaaa") == []
    assert subject.overloaded(1.0)


def test_no_pinned_call_is_dropped_from_a_queue_that_stands() -> None:
    subject = room()
    dropped = stand(subject, 2, "aaaa")
    pinned = [ticket("a", rank=2, pinned="gpu/a", opens=opens, deadline_s=99.0) for opens in (False, True)]
    for each in pinned:
        assert subject.offer(each, 1.0, UNKNOWN).why == "waits"
    served = list(iter(lambda: subject.pop("gpu/a", 1.0, PACE, dropped), None))
    assert served[:2] == pinned
    assert len(dropped) > 100
    assert not [refusal for refusal in dropped if refusal.ticket.pinned]


def test_how_long_pinned_calls_wait_says_nothing_about_the_queue() -> None:
    subject = room()
    for step in range(100):
        now_s = step * 0.01
        subject.offer(ticket(rank=2, pinned="gpu/a", offered_s=now_s - 5.0), now_s, UNKNOWN)
        subject.pop("gpu/a", now_s, PACE, [])
    assert not subject.overloaded(1.0)


WITHIN = Pace(instances=2, batch_s=0.02, service_s=0.04, need_s=0.03, worst_s=0.02)


def let_in(objective_s: float, *, rank: int = 1, pinned: str = "", pace: Pace = WITHIN) -> int:
    """How many of a hundred calls are let in to wait, before the first that is refused for the objective."""
    subject = WaitingRoom[RoomTicket](1000, objective_s=objective_s)
    for count in range(100):
        answer = subject.offer(ticket(rank=rank, pinned=pinned), 0.0, pace)
        if answer.why != "waits":
            assert answer.why == "beyond_objective"
            assert subject.waiting == count
            assert subject.statistics(0.0)["refused"]["beyond_objective"] == 1
            return count
    return 100


def test_no_more_wait_than_can_be_answered_within_the_objective() -> None:
    """2.5 ms of accelerator time each, two batches at a time: sixteen calls are a round of 20 ms."""
    assert let_in(0.06 + 0.02) == 16
    assert let_in(0.06 + 0.05) == 40
    assert let_in(10.0) == 100
    assert let_in(0.0) == 100, "nothing is promised"
    assert let_in(0.06 + 0.02, pace=UNKNOWN) == 100, "nothing is known"


def test_before_a_full_batch_was_seen_the_worst_is_thought_of_it() -> None:
    worst = Pace(instances=2, batch_s=0.02, service_s=0.04, need_s=0.03, worst_s=0.16)
    assert let_in(0.06 + 0.02, pace=worst) == 8, "half a round, whatever it takes"
    assert let_in(3 * 0.16 + 0.32, pace=worst) == 32


def test_where_the_objective_cannot_be_met_half_a_round_may_wait() -> None:
    assert let_in(0.001) == 8
    assert let_in(0.06) == 8


def test_the_top_class_and_steps_of_sequences_are_not_bound_by_the_objective() -> None:
    assert let_in(0.08, rank=0) == 100
    assert let_in(0.08, pinned="gpu/a") == 100


def test_a_call_that_has_had_a_slot_before_is_bound_by_its_deadline_alone() -> None:
    subject = WaitingRoom[RoomTicket](1000, objective_s=0.08)
    fill(subject, 16)
    assert subject.offer(ticket(), 0.0, WITHIN).why == "beyond_objective"
    again = RoomTicket(0.0, 100.0, cost_s=COST_S, admitted=True)
    assert subject.offer(again, 0.0, WITHIN).why == "waits"
    soon = RoomTicket(0.0, 0.05, cost_s=COST_S, admitted=True)
    assert subject.offer(soon, 0.0, WITHIN).why == "infeasible"


def fill(subject: Room, count: int) -> None:
    for _ in range(count):
        assert subject.offer(ticket(), 0.0, WITHIN).why == "waits"


def test_slots_that_are_kept_for_others_for_a_moment_are_no_wait() -> None:
    subject = WaitingRoom[RoomTicket](1000, objective_s=0.001)
    for number in range(100):
        if subject.offer(ticket(), 0.0, PACE_OF_ONE, kept=5).why != "waits":
            assert number == 6, "five that have a slot as good as taken, and half a round of two"
            return
    raise AssertionError("nobody was refused")


PACE_OF_ONE = Pace(instances=2, batch_s=COST_S, service_s=0.04, need_s=0.03, worst_s=COST_S)
"""Calls that take a round by themselves, two at a time."""


def test_a_large_call_may_wait_for_as_long_as_it_takes() -> None:
    subject = WaitingRoom[RoomTicket](1000, objective_s=0.08)
    fill(subject, 16)
    large = RoomTicket(0.0, 100.0, cost_s=20 * COST_S, work=20.0)
    large.least_s = 0.05
    assert subject.offer(large, 0.0, WITHIN).why == "waits"


def test_the_share_that_is_refused_for_the_objective_is_told() -> None:
    subject = WaitingRoom[RoomTicket](1000, objective_s=0.08)
    fill(subject, 16)
    for _ in range(14):
        subject.served_at_once(1, "", 0.0)
    for _ in range(10):
        subject.offer(ticket(), 0.0, WITHIN)
    assert subject.refused_share(0.0) == 0.0
    assert subject.refused_share(0.11) == pytest.approx(10 / 40)
    assert subject.refused_share(0.25) == 0.0, "nobody has come for an interval"


def test_nobody_is_dropped_for_a_wait_that_leaves_the_objective_within_reach() -> None:
    for objective_s, stands in ((PACE.need_s + 1.1, False), (PACE.need_s + 0.1, True)):
        subject = WaitingRoom[RoomTicket](1000, objective_s=objective_s)
        assert bool(stand(subject, 2, "aa")) is stands
        assert subject.overloaded(1.0) is stands


@pytest.mark.parametrize(("need_s", "stands"), [(0.1, False), (0.9, True)])
def test_what_calls_need_leaves_less_of_the_objective_to_wait(need_s: float, stands: bool) -> None:
    subject = WaitingRoom[RoomTicket](1000, objective_s=1.0)
    pace, refused = Pace(1, 0.002, need_s, need_s), list[Refusal[RoomTicket]]()
    for step in range(100):
        now_s = step * 0.01
        for _ in range(1 if step else 10):
            subject.offer(ticket(rank=2, offered_s=now_s - 0.3, deadline_s=99.0), now_s, UNKNOWN)
        if step:
            subject.pop("gpu/a", now_s, pace, refused)
    assert bool(refused) is stands


def test_one_tenants_backlog_costs_no_other_a_call_and_is_no_overload() -> None:
    subject = room()
    refused = stand(subject, 1, "eeeeem")
    assert {each.ticket.tenant for each in refused} == {"e"}
    assert len(refused) > 50
    assert not subject.overloaded(1.0)


# What is no ticket.


@pytest.mark.parametrize(
    "bad",
    [
        ticket(rank=-1),
        ticket(rank=CLASSES),
        ticket(deadline_s=math.inf),
        ticket(deadline_s=math.nan),
        ticket(cost_s=-0.1),
        ticket(cost_s=math.nan),
        ticket(cost_s=math.inf),
    ],
)
def test_what_is_out_of_range_is_an_error_and_leaves_nothing(bad: RoomTicket) -> None:
    subject = room()
    with pytest.raises(ValueError):
        subject.offer(bad, 0.0, UNKNOWN)
    assert subject.waiting == 0
    assert subject.peek("gpu/a") is None


def test_a_ticket_waits_in_one_place() -> None:
    subject = room()
    twice = ticket()
    enter(subject, twice)
    with pytest.raises(ValueError, match="already"):
        subject.offer(twice, 0.0, UNKNOWN)
    assert pop(subject) is twice
    enter(subject, twice)


@pytest.mark.parametrize(
    "values", [(0, 0.1, 0.1, 0.1), (1, -0.1, 0.1, 0.1), (1, 0.1, math.inf, 0.1), (1, 0, 0, math.nan)]
)
def test_a_pace_out_of_range_is_an_error(values: tuple[int, float, float, float]) -> None:
    with pytest.raises(ValueError, match="pace"):
        Pace(*values)


@pytest.mark.parametrize("values", [(0.0, 1.0), (2.0, 1.0), (0.001, 1e9), (math.nan, 1.0)])
def test_settings_out_of_range_are_refused(values: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="quantum_s"):
        RoomSettings(*values)


# More tenants than lines.


def test_a_hand_has_different_lines_and_every_gateway_deals_the_same() -> None:
    hands = [deal(f"tenant-{number}") for number in range(2000)]
    assert all(len(set(hand)) == HAND and set(hand) <= set(range(LINES)) for hand in hands)
    counts = Counter(itertools.chain.from_iterable(hands))
    assert len(counts) == LINES
    assert max(counts.values()) < 1.4 * min(counts.values())
    assert len({tuple(sorted(hand)) for hand in hands}) == 2000, "two tenants with the same hand are one in 4 billion"


def test_beyond_the_lines_tenants_share_and_keep_clear_of_the_fullest() -> None:
    subject = room(queue_max=10_000)
    enter(subject, *[ticket("elephant") for _ in range(500)])
    for number in range(2 * LINES):
        enter(subject, ticket(f"mouse-{number}"), ticket(f"mouse-{number}"))
    statistics = subject.statistics(0.0)
    assert (statistics["lines"], statistics["tenants"]) == (LINES, 2 * LINES + 1)
    served = [each.tenant for each in order(subject)]
    last_mouse = max(place for place, tenant in enumerate(served) if tenant != "elephant")
    assert served[:last_mouse].count("elephant") < 25, "a line is a tenant's at least, and few mice share one"
    statistics = subject.statistics(0.0)
    assert (statistics["lines"], statistics["tenants"], statistics["waiting"]) == (0, 0, 0)


# Whatever comes.


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from("abcd"), st.integers(1, 20_000), st.integers(0, 50)),
            st.tuples(st.just("pop"), st.integers(1, 6), st.just(0)),
        ),
        min_size=20,
        max_size=200,
    ),
    st.sampled_from([0.0001, 0.001, 0.05]),
)
@settings(max_examples=40, deadline=None)
def test_of_two_tenants_that_both_wait_none_gets_more_than_a_quantum_and_two_calls_ahead(
    events: list[tuple[str, int, int]], quantum_s: float
) -> None:
    subject, tenants = room(quantum_s=quantum_s), "abcd"
    waiting = dict.fromkeys(tenants, 0)
    served = dict.fromkeys(tenants, 0)
    spans: dict[tuple[str, str], tuple[int, int]] = {}
    """By pair, over the time in which both waited: the least and the most that the first was ahead."""
    most = 0
    for what, number, deadline in [*events, *[("pop", 6, 0)] * 60]:
        if what != "pop":
            most = max(most, number)
            enter(subject, ticket(what, 100.0 + deadline, cost_s=number / 1e6))
            waiting[what] += 1
        for _ in range(number if what == "pop" else 0):
            got = pop(subject)
            if got is None:
                break
            waiting[got.tenant] -= 1
            served[got.tenant] += got.cost_ns
            for pair in itertools.combinations(tenants, 2):
                if not (waiting[pair[0]] and waiting[pair[1]]):
                    spans.pop(pair, None)
        for pair in itertools.combinations(tenants, 2):
            if waiting[pair[0]] and waiting[pair[1]]:
                ahead = served[pair[0]] - served[pair[1]]
                least, largest = spans.get(pair, (ahead, ahead))
                spans[pair] = least, largest = min(least, ahead), max(largest, ahead)
                assert largest - least <= quantum_s * 1e9 + 2 * most * 1000


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("offer"), st.integers(0, 2**16)),
        st.tuples(st.just("pop"), st.integers(0, 5)),
        st.tuples(st.just("withdraw"), st.integers(0, 30)),
        st.tuples(st.just("expire"), st.integers(0, 3)),
        st.tuples(st.just("evict"), st.integers(0, 2)),
    ),
    max_size=150,
)


@given(EVENTS, st.integers(0, 12), st.sampled_from([UNKNOWN, PACE]))
@settings(max_examples=100, deadline=None)
def test_any_order_of_events_keeps_the_books(events: list[tuple[str, int]], queue_max: int, pace: Pace) -> None:
    subject, now_s = room(queue_max), 0.0
    waiting: list[RoomTicket] = []
    refused: list[Refusal[RoomTicket]] = []
    replicas = ("", "gpu/a", "gpu/b")

    def out() -> None:
        for each in refused:
            waiting.remove(each.ticket)
            if each.why == "too_late":
                assert now_s + max(pace.need_s, each.ticket.cost_s) > each.ticket.deadline_s
            else:
                assert each.why == "standing_queue"
                assert each.ticket.criticality > 0
                assert now_s - each.ticket.offered_s > 2 * max(0.005, pace.batch_s)
        refused.clear()

    for kind, number in events:
        if kind == "offer":
            chance = random.Random(number)
            pinned = chance.choice(replicas)
            new = ticket(
                chance.choice("abc"),
                now_s + chance.uniform(0.0, 1.0),
                rank=chance.randrange(CLASSES),
                cost_s=chance.choice([0.0, COST_S, 0.1]),
                offered_s=now_s,
                pinned=pinned,
                opens=bool(pinned) and chance.random() < 0.5,
            )
            lowest = max((each.criticality for each in waiting), default=-1)
            answer = subject.offer(new, now_s, pace)
            assert math.isfinite(answer.wait_s)
            if answer.why == "waits":
                waiting.append(new)
                assert now_s + answer.wait_s + max(pace.service_s, new.cost_s) <= new.deadline_s
            elif answer.why == "queue_full":
                assert len(waiting) >= queue_max
                assert new.criticality >= lowest, "a higher class pushes out"
            else:
                assert now_s + answer.wait_s + max(pace.service_s, new.cost_s) > new.deadline_s
            if answer.pushed_out is not None:
                victim = answer.pushed_out
                assert victim.criticality == lowest >= new.criticality
                assert len(waiting) == queue_max + 1
                waiting.remove(victim)
                same = [each for each in waiting if (each.criticality, each.tenant) == (lowest, victim.tenant)]
                assert all(each.deadline_s <= victim.deadline_s for each in same if each is not new)
        elif kind == "pop":
            replica, may_open = replicas[number % 3], number < 3
            usable = [each for each in waiting if each.pinned in ("", replica) and (may_open or not each.opens)]
            seen = subject.peek(replica, may_open=may_open)
            got = subject.pop(replica, now_s, pace, refused, may_open=may_open)
            assert (seen is None) == (not usable)
            assert all(each.ticket in usable for each in refused)
            before = {id(each.ticket) for each in refused}
            if got is not None:
                assert got in usable
                waiting.remove(got)
                assert refused or got is seen
                assert now_s + max(pace.need_s, got.cost_s) <= got.deadline_s
                left = [each for each in usable if id(each) not in before and each is not got]
                assert all(each.criticality >= got.criticality for each in left)
                mine = [each for each in left if (each.criticality, each.tenant) == (got.criticality, got.tenant)]
                assert all(each.deadline_s >= got.deadline_s for each in mine)
            else:
                assert len(before) == len(usable)
            out()
            now_s += 0.01
        elif kind == "withdraw" and waiting:
            assert subject.withdraw(waiting.pop(number % len(waiting)))
        elif kind == "expire":
            now_s += 0.1 * number
            refused += subject.expire(now_s, pace)
            out()
            assert all(now_s + pace.need_s <= each.deadline_s for each in waiting)
        elif kind == "evict":
            gone = [each for each in waiting if each.pinned == replicas[number]]
            assert subject.evict(replicas[number]) == gone
            waiting = [each for each in waiting if each not in gone]
        statistics = subject.statistics(now_s)
        assert subject.waiting == statistics["waiting"] == len(waiting)
        assert subject.waiting_pinned == sum(bool(each.pinned) for each in waiting)
        assert sum(statistics["waiting_by_class"].values()) == len(waiting)
        assert statistics["tenants"] == len({(each.criticality, each.tenant) for each in waiting})
        assert statistics["waiting_work_s"] == pytest.approx(sum(max(1e-9, each.cost_s) for each in waiting))
        assert subject.pinned_to() == tuple(sorted({each.pinned for each in waiting if each.pinned}))
        for replica in replicas:
            assert subject.waits_for(replica) == any(each.pinned in ("", replica) for each in waiting)
        assert all(math.isfinite(value) for value in statistics.values() if isinstance(value, float))
