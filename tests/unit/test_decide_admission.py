"""Admission: slots are never exceeded, nobody is forgotten, and what is taken comes back once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.call import Attempt
from gateway.core.outcome import Outcome
from gateway.core.snapshot import Candidate
from gateway.decide.admission import QUEUE_MIN
from gateway.decide.ticket import Queued, Refused, Ticket
from tests.support.admission import LATE_S, Desk, replica_of, waits

A, B = Candidate("gpu/a", 2), Candidate("gpu/b", 1)


def test_without_a_replica_a_call_is_refused_at_once() -> None:
    assert Desk().offer(Ticket(0.0, LATE_S)) == Refused("no_replica")


def test_slots_are_granted_until_they_are_gone_and_then_calls_queue() -> None:
    desk = Desk(A, B)
    assert sorted(replica_of(desk.ask()) for _ in range(3)) == ["gpu/a", "gpu/a", "gpu/b"]
    assert desk.offer(Ticket(0.0, LATE_S)) == Queued(0)
    assert desk.offer(Ticket(0.0, LATE_S)) == Queued(1)
    subject = desk.admission
    assert (subject.in_flight, subject.waiting, subject.limit) == (3, 2, 3)


def test_a_slot_taken_without_a_ticket_is_the_one_that_a_ticket_would_have_got() -> None:
    with_tickets, without = Desk(A, B), Desk(A, B).admission
    for _ in range(4):
        ticket = with_tickets.ask()
        permit = without.take(LATE_S, 0.0)
        assert (permit and permit.replica) == (ticket.permit and ticket.permit.replica)
        assert (permit and permit.in_flight) == (ticket.permit and ticket.permit.in_flight)
    assert (without.in_flight, without.waiting) == (3, 0), "who gets none is not in the queue yet"
    assert without.statistics(0.0)["granted"] == 3


def test_nobody_takes_a_slot_past_those_who_wait() -> None:
    desk = Desk(B)
    first, waiting = desk.ask(), desk.ask()
    assert desk.end(first) == [waiting]
    assert desk.admission.take(LATE_S, 0.0) is None
    desk.update(())
    assert desk.admission.take(LATE_S, 0.0) is None


def test_the_queue_has_an_end() -> None:
    desk = Desk(B, queue_max=1)
    desk.ask()
    assert waits(desk.ask())
    assert desk.ask().why == "queue_full"


def test_a_queue_of_zero_never_waits() -> None:
    desk = Desk(B, queue_max=0)
    assert desk.ask().permit is not None
    assert desk.ask().why == "queue_full"


def test_the_default_queue_is_four_calls_a_slot_and_never_a_handful() -> None:
    assert Desk(A, B).admission.queue_max == QUEUE_MIN
    assert Desk(Candidate("a", 20), Candidate("b", 10)).admission.queue_max == 120


def test_a_freed_slot_goes_to_the_earliest_deadline_and_among_equals_to_who_came_first() -> None:
    desk = Desk(B)
    running = desk.ask()
    first, second, urgent = desk.ask(), desk.ask(), desk.ask(deadline_s=LATE_S / 2)
    assert desk.end(running) == [urgent]
    assert desk.end(urgent) == [first]
    assert desk.end(first) == [second]


def test_a_higher_class_goes_first_and_pushes_the_lowest_out_of_a_full_room() -> None:
    desk = Desk(B, queue_max=2)
    running = desk.ask()
    low, lower = desk.ask(criticality=2), desk.ask(criticality=3)
    high = desk.ask(criticality=0)
    assert waits(high)
    assert desk.decided() == [lower]
    assert lower.why == "pushed_out"
    assert desk.end(running) == [high]
    assert desk.end(high) == [low]


def test_a_withdrawn_call_is_passed_over() -> None:
    desk = Desk(B)
    running, first, second = desk.ask(), desk.ask(), desk.ask()
    assert desk.admission.withdraw(first)
    assert desk.end(running) == [second]


def test_withdrawing_after_the_grant_says_so() -> None:
    desk = Desk(B)
    running, waiting = desk.ask(), desk.ask()
    desk.end(running)
    assert not desk.admission.withdraw(waiting)
    assert replica_of(waiting) == "gpu/b"


def test_a_slot_cannot_be_given_back_twice() -> None:
    desk = Desk(B)
    ticket = desk.ask()
    desk.end(ticket)
    with pytest.raises(ValueError, match="nobody held"):
        desk.end(ticket)


def test_a_new_replica_serves_those_who_wait() -> None:
    desk = Desk(B)
    desk.ask()
    waiting = [desk.ask() for _ in range(3)]
    assert desk.update((A, B)) == waiting[:2]
    assert all(replica_of(ticket) == "gpu/a" for ticket in waiting[:2])


def test_when_the_last_replica_leaves_those_who_wait_are_told() -> None:
    desk = Desk(B)
    running, waiting = desk.ask(), desk.ask()
    assert desk.update(()) == [waiting]
    assert waiting.why == "no_replica"
    assert desk.admission.in_flight == 1, "the call that still runs there is counted until it ends"
    assert desk.end(running) == []
    assert desk.admission.idle


def test_the_least_loaded_replica_is_picked_by_share_of_its_slots() -> None:
    desk = Desk(Candidate("gpu/big", 30), Candidate("gpu/small", 10))
    for _ in range(20):
        desk.ask()
    share = desk.admission.statistics(0.0)["in_flight_by_replica"]
    assert share == {"gpu/big": 15, "gpu/small": 5}


def test_ties_are_broken_by_chance_so_that_no_replica_soaks_up_quiet_traffic() -> None:
    desk = Desk(*(Candidate(f"gpu/{n}", 4) for n in range(4)))
    counts: dict[str, int] = {}
    for _ in range(400):
        ticket = desk.ask()
        counts[replica_of(ticket)] = counts.get(replica_of(ticket), 0) + 1
        desk.end(ticket)
    assert len(counts) == 4
    assert min(counts.values()) > 60


# --- what it learns --------------------------------------------------------------------------------------------------


def ended(desk: Desk, ticket: Ticket, outcome: Outcome = Outcome.OK) -> list[Ticket]:
    """The ticket's call, sent when it was offered, ends now."""
    assert ticket.permit is not None
    ticket.permit.attempt = attempt = Attempt(ticket.permit.replica, ticket.offered_s)
    attempt.ended_s, attempt.outcome = desk.now_s, outcome
    return desk.end(ticket)


def served(desk: Desk, took_s: float) -> Ticket:
    """A call that is sent at once and answered after `took_s`."""
    ticket = desk.ask()
    desk.now_s += took_s
    ended(desk, ticket)
    return ticket


def test_a_replica_whose_calls_fail_at_once_loses_its_traffic_though_it_is_always_the_free_one() -> None:
    desk = Desk(A, Candidate("gpu/b", 2))
    for _ in range(20):
        served(desk, 0.02)
    for _ in range(20):
        desk.now_s += 0.02
        tickets = [desk.ask() for _ in range(4)]
        for ticket in tickets:
            if ticket.permit is not None:
                good = replica_of(ticket) == "gpu/a"
                ended(desk, ticket, Outcome.OK if good else Outcome.BROKEN)
        for ticket in tickets:
            if waits(ticket):
                desk.admission.withdraw(ticket)
            elif ticket.permit is not None and ticket.permit.attempt is None:
                ended(desk, ticket)
    state = desk.admission.statistics(desk.now_s)
    assert 1 <= state["ejection"]["by_replica"]["gpu/b"]["failures"] <= 6, "of the forty that it could have spoilt"
    assert state["picker"]["replicas"]["gpu/b"]["suspect"]
    tickets = [desk.ask() for _ in range(4)]
    assert [replica_of(ticket) for ticket in tickets[:2]] == ["gpu/a", "gpu/a"]
    assert all(waits(ticket) for ticket in tickets[2:]), "a free slot on the bad replica is for nobody"


def test_failures_in_a_row_eject_a_replica_until_its_probes_are_good() -> None:
    desk = Desk(A, Candidate("gpu/b", 2))
    running = [desk.ask() for _ in range(4)]
    on_a = [ticket for ticket in running if replica_of(ticket) == "gpu/a"]
    on_b = [ticket for ticket in running if replica_of(ticket) == "gpu/b"]
    waiting = [desk.ask() for _ in range(4)]

    def standing() -> object:
        return desk.admission.statistics(desk.now_s)["ejection"]["by_replica"]["gpu/b"]["standing"]

    for _ in range(5):
        assert standing() == "healthy"
        desk.now_s += 0.001
        on_b += ended(desk, on_b.pop(0), Outcome.BROKEN)
    assert standing() == "ejected"
    assert len(on_b) + sum(waits(ticket) for ticket in waiting) == 1, "what it took before is still there"
    while on_b:
        assert ended(desk, on_b.pop(), Outcome.BROKEN) == []
    held = desk.ask()
    assert waits(held), "a free slot on an ejected replica is for nobody"
    desk.now_s += 1.1  # the first pause is over
    assert ended(desk, on_a.pop()) == [held]
    for _ in range(3):
        assert (replica_of(held), standing()) == ("gpu/b", "probing"), "one call at a time may prove it well"
        desk.now_s += 0.02
        ended(desk, held)
        held = desk.ask()
    assert standing() == "slow_start"


def test_what_cannot_end_in_time_is_not_sent_unless_the_replica_is_idle() -> None:
    desk = Desk(Candidate("gpu/a", 4))
    for _ in range(60):
        served(desk, 0.1)
    desk.now_s += 1.0
    assert desk.admission.statistics(desk.now_s)["pace"]["need_s"] == pytest.approx(0.1, rel=0.03)
    hurried = desk.ask(deadline_s=desk.now_s + 0.05)
    assert hurried.permit is not None, "an idle replica is always tried: the estimate may be wrong"
    assert desk.ask(deadline_s=desk.now_s + 0.05).why == "infeasible"
    assert desk.ask(deadline_s=desk.now_s + 0.2).permit is not None
    assert desk.admission.take(desk.now_s + 0.05, desk.now_s) is None
    assert desk.admission.take(desk.now_s + 0.2, desk.now_s) is not None
    assert desk.admission.statistics(desk.now_s)["refused"]["infeasible"] == 1


def test_a_call_whose_time_runs_out_while_it_waits_is_told_when_a_slot_frees() -> None:
    desk = Desk(Candidate("gpu/a", 1))
    for _ in range(60):
        served(desk, 0.1)
    running = desk.ask()
    hopeless, patient = desk.ask(deadline_s=desk.now_s + 0.3), desk.ask(deadline_s=desk.now_s + 2.0)
    desk.now_s += 0.25
    assert set(desk.end(running)) == {patient, hopeless}
    assert hopeless.why == "too_late"
    assert patient.permit is not None


def test_a_permit_that_was_never_used_teaches_nothing() -> None:
    desk = Desk(Candidate("gpu/a", 1))
    for _ in range(100):
        desk.end(desk.ask())
    state = desk.admission.statistics(0.0)
    assert state["pace"]["samples"] == 0
    assert state["ejection"]["by_replica"]["gpu/a"]["calls"] == 0


def test_a_second_attempt_takes_a_slot_elsewhere_at_once_or_none() -> None:
    desk = Desk(Candidate("gpu/a", 1), Candidate("gpu/b", 2))
    first = desk.ask(deadline_s=LATE_S)
    other = "gpu/b" if replica_of(first) == "gpu/a" else "gpu/a"
    permit = desk.admission.another("retry", (replica_of(first),), 0.0)
    assert permit is not None
    assert permit.replica == other
    assert desk.admission.another("retry", ("gpu/a", "gpu/b"), 0.0) is None
    desk.ask()
    assert waits(desk.ask())
    desk.admission.give_back(permit, 0.0)
    desk.decided()
    desk.ask()
    assert desk.admission.another("hedge", (), 0.0) is None, "others wait"


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("offer"), st.integers(0, 7)),
        st.tuples(st.just("end"), st.integers(0, 300)),
        st.tuples(st.just("withdraw"), st.integers(0, 30)),
        st.tuples(st.just("fleet"), st.integers(0, 15)),
        st.tuples(st.just("time"), st.integers(1, 50)),
    ),
    max_size=120,
)
OUTCOMES = [Outcome.OK, Outcome.OK, Outcome.OK, *Outcome]


def test_a_hedge_is_counted_while_it_is_out() -> None:
    desk = Desk(Candidate("gpu/a", 1), Candidate("gpu/b", 2))
    hedge = desk.admission.another("hedge", ("gpu/a",), 0.0)
    retry = desk.admission.another("retry", ("gpu/a",), 0.0)
    assert hedge is not None
    assert retry is not None
    assert desk.admission.hedges_out == 1
    desk.admission.give_back(retry, 0.0)
    assert desk.admission.hedges_out == 1
    desk.admission.give_back(hedge, 0.0)
    assert desk.admission.hedges_out == 0


def test_who_is_told_that_the_last_replica_has_left_is_counted() -> None:
    desk = Desk(Candidate("gpu/a", 1))
    tickets = [desk.ask() for _ in range(3)]
    assert set(desk.update(())) == set(tickets[1:])
    assert desk.admission.statistics(0.0)["refused"]["no_replica"] == 2


def test_who_makes_room_for_a_call_is_not_ahead_of_it() -> None:
    desk = Desk(Candidate("gpu/a", 1), queue_max=2)
    for _ in range(3):
        desk.ask(criticality=3)
    assert desk.offer(Ticket(0.0, LATE_S, criticality=0)) == Queued(1)
    assert [ticket.why for ticket in desk.decided()] == ["pushed_out"]


def test_a_large_call_waits_only_if_there_is_time_for_all_its_rounds() -> None:
    desk = Desk(Candidate("gpu/a", 4))
    for _ in range(60):
        served(desk, 0.1)
    desk.now_s += 1.0
    for _ in range(4):
        desk.ask()
    # Two units fill a batch: ten units are five rounds, after the one that it waits for.
    assert desk.ask(work=10.0, deadline_s=desk.now_s + 0.55).why == "infeasible"
    assert waits(desk.ask(work=10.0, deadline_s=desk.now_s + 0.65))


@given(EVENTS, st.integers(0, 2**32), st.one_of(st.none(), st.integers(0, 5)))
@settings(max_examples=300, deadline=None)
def test_any_order_of_events_keeps_the_books(events: list[tuple[str, int]], seed: int, queue_max: int | None) -> None:
    fleet = [Candidate(f"gpu/{n}", 1 + n % 3) for n in range(4)]
    slots = {candidate.replica: candidate.slots for candidate in fleet}
    present = fleet[:2]
    desk = Desk(*present, queue_max=queue_max, seed=seed)
    subject = desk.admission
    running: list[Ticket] = []
    waiting: list[Ticket] = []

    def decided(tickets: list[Ticket]) -> None:
        for ticket in tickets:
            waiting.remove(ticket)
        for ticket in tickets:
            if ticket.permit is not None:
                assert not [each for each in waiting if each.criticality < ticket.criticality], "overtaken"
                running.append(ticket)

    for kind, number in events:
        if kind == "offer":
            ticket = desk.ask(criticality=number % 4, deadline_s=desk.now_s + (0.5 if number > 3 else 1000.0))
            decided(desk.decided())
            if ticket.permit is not None:
                assert not waiting, "nobody overtakes those who wait"
                running.append(ticket)
            elif waits(ticket):
                waiting.append(ticket)
            elif ticket.why == "queue_full":
                assert len(waiting) >= subject.queue_max
            elif ticket.why == "no_replica":
                assert not present
            else:
                assert ticket.why in ("infeasible", "cohort")
        elif kind == "end" and running:
            ticket = running.pop(number % len(running))
            assert ticket.permit is not None
            if number % 5:
                ticket.permit.attempt = attempt = Attempt(ticket.permit.replica, ticket.offered_s)
                attempt.ended_s, attempt.outcome = desk.now_s, OUTCOMES[number % len(OUTCOMES)]
            decided(desk.end(ticket))
        elif kind == "withdraw" and waiting:
            assert subject.withdraw(waiting.pop(number % len(waiting)))
        elif kind == "fleet":
            present = [candidate for bit, candidate in enumerate(fleet) if number >> bit & 1]
            gone = {candidate.replica for candidate in fleet if candidate not in present}
            decided(desk.update(present, gone if number % 2 else ()))
        elif kind == "time":
            desk.now_s += number * number / 100
        state = subject.statistics(desk.now_s)
        by_replica = state["in_flight_by_replica"]
        assert subject.in_flight == len(running) == sum(by_replica.values())
        assert subject.waiting == len(waiting)
        assert all(count <= slots[name] for name, count in by_replica.items())
        assert waiting == [ticket for ticket in waiting if waits(ticket)]
        if waiting and present:
            free = [c for c in present if by_replica.get(c.replica, 0) < c.slots]
            suspect, judged = state["picker"]["replicas"], state["ejection"]["by_replica"]
            good = [
                each.replica
                for each in free
                if not suspect[each.replica]["suspect"]
                and judged[each.replica]["standing"] not in ("ejected", "probing")
            ]
            assert not good, "a slot is free while a call waits that could use it"
            assert running, "somebody holds the slot that they wait for"
