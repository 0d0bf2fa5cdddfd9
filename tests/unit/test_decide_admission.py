"""Admission: slots are never exceeded, nobody is forgotten, and what is taken comes back once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.snapshot import Candidate
from gateway.decide.admission import QUEUE_MIN, Granted, Queued, Refused, Ticket
from tests.support.admission import admission

A, B = Candidate("gpu/a", 2), Candidate("gpu/b", 1)


def test_without_a_replica_a_call_is_refused_at_once() -> None:
    assert admission().offer(Ticket(0.0)) == Refused("no_replica")


def test_slots_are_granted_until_they_are_gone_and_then_calls_queue() -> None:
    subject = admission(A, B)
    granted = [subject.offer(Ticket(0.0)) for _ in range(3)]
    assert all(isinstance(decision, Granted) for decision in granted)
    assert subject.offer(Ticket(0.0)) == Queued(0)
    assert subject.offer(Ticket(0.0)) == Queued(1)
    assert (subject.in_flight, subject.waiting, subject.limit) == (3, 2, 3)


def test_a_slot_taken_without_a_ticket_is_the_one_that_a_ticket_would_have_got() -> None:
    with_tickets, without = admission(A, B), admission(A, B)
    for _ in range(4):
        ticket = Ticket(0.0)
        with_tickets.offer(ticket)
        assert without.take() == ticket.replica
    assert (without.in_flight, without.waiting) == (3, 0), "who gets none is not in the queue yet"
    assert without.statistics(0.0)["granted"] == 3


def test_nobody_takes_a_slot_past_those_who_wait() -> None:
    subject = admission(B)
    assert subject.take() == "gpu/b"
    waiting = Ticket(0.0)
    subject.offer(waiting)
    assert subject.give_back("gpu/b") == [waiting]
    assert subject.take() is None
    subject.update(())
    assert subject.take() is None


def test_the_queue_has_an_end() -> None:
    subject = admission(B, queue_max=1)
    subject.offer(Ticket(0.0))
    assert subject.offer(Ticket(0.0)) == Queued(0)
    assert subject.offer(Ticket(0.0)) == Refused("queue_full")


def test_a_queue_of_zero_never_waits() -> None:
    subject = admission(B, queue_max=0)
    assert isinstance(subject.offer(Ticket(0.0)), Granted)
    assert subject.offer(Ticket(0.0)) == Refused("queue_full")


def test_the_default_queue_is_four_calls_a_slot_and_never_a_handful() -> None:
    assert admission(A, B).queue_max == QUEUE_MIN
    assert admission(Candidate("a", 20), Candidate("b", 10)).queue_max == 120


def test_a_freed_slot_goes_to_the_one_who_waited_longest() -> None:
    subject = admission(B)
    subject.offer(Ticket(0.0))
    first, second = Ticket(0.0), Ticket(0.0)
    subject.offer(first)
    subject.offer(second)
    assert subject.give_back("gpu/b") == [first]
    assert first.replica == "gpu/b"
    assert second.replica is None


def test_a_withdrawn_call_is_passed_over() -> None:
    subject = admission(B)
    subject.offer(Ticket(0.0))
    first, second = Ticket(0.0), Ticket(0.0)
    subject.offer(first)
    subject.offer(second)
    assert subject.withdraw(first)
    assert subject.give_back("gpu/b") == [second]


def test_withdrawing_after_the_grant_says_so() -> None:
    subject = admission(B)
    subject.offer(Ticket(0.0))
    waiting = Ticket(0.0)
    subject.offer(waiting)
    subject.give_back("gpu/b")
    assert not subject.withdraw(waiting)
    assert waiting.replica == "gpu/b"


def test_a_slot_cannot_be_given_back_twice() -> None:
    subject = admission(B)
    subject.offer(Ticket(0.0))
    subject.give_back("gpu/b")
    with pytest.raises(ValueError, match="nobody held"):
        subject.give_back("gpu/b")


def test_a_new_replica_serves_those_who_wait() -> None:
    subject = admission(B)
    subject.offer(Ticket(0.0))
    waiting = [Ticket(0.0) for _ in range(3)]
    for ticket in waiting:
        subject.offer(ticket)
    granted, refused = subject.update((A, B))
    assert granted == waiting[:2]
    assert refused == []


def test_when_the_last_replica_leaves_those_who_wait_are_told() -> None:
    subject = admission(B)
    subject.offer(Ticket(0.0))
    waiting = Ticket(0.0)
    subject.offer(waiting)
    assert subject.update(()) == ([], [waiting])
    assert subject.in_flight == 1, "the call that still runs there is counted until it ends"
    assert subject.give_back("gpu/b") == []
    assert subject.idle


def test_the_least_loaded_replica_is_picked_by_share_of_its_slots() -> None:
    subject = admission(Candidate("gpu/big", 30), Candidate("gpu/small", 10))
    for _ in range(20):
        subject.offer(Ticket(0.0))
    share = subject.statistics(0.0)["in_flight_by_replica"]
    assert share == {"gpu/big": 15, "gpu/small": 5}


def test_ties_are_broken_by_chance_so_that_no_replica_soaks_up_quiet_traffic() -> None:
    subject = admission(*(Candidate(f"gpu/{n}", 4) for n in range(4)))
    counts: dict[str, int] = {}
    for _ in range(400):
        ticket = Ticket(0.0)
        subject.offer(ticket)
        assert ticket.replica is not None
        counts[ticket.replica] = counts.get(ticket.replica, 0) + 1
        subject.give_back(ticket.replica)
    assert len(counts) == 4
    assert min(counts.values()) > 60


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("offer"), st.just(0)),
        st.tuples(st.just("end"), st.integers(0, 30)),
        st.tuples(st.just("withdraw"), st.integers(0, 30)),
        st.tuples(st.just("fleet"), st.integers(0, 15)),
    ),
    max_size=120,
)


@given(EVENTS, st.integers(0, 2**32), st.one_of(st.none(), st.integers(0, 5)))
@settings(max_examples=300, deadline=None)
def test_any_order_of_events_keeps_the_books(events: list[tuple[str, int]], seed: int, queue_max: int | None) -> None:
    fleet = [Candidate(f"gpu/{n}", 1 + n % 3) for n in range(4)]
    present = fleet[:2]
    subject = admission(*present, queue_max=queue_max, seed=seed)
    running: list[Ticket] = []
    waiting: list[Ticket] = []

    def granted(tickets: list[Ticket]) -> None:
        for ticket in tickets:
            assert ticket is waiting[0], "first come, first served"
            waiting.remove(ticket)
            running.append(ticket)

    for kind, number in events:
        if kind == "offer":
            ticket = Ticket(0.0)
            decision = subject.offer(ticket)
            if isinstance(decision, Granted):
                assert not waiting, "nobody overtakes those who wait"
                running.append(ticket)
            elif isinstance(decision, Queued):
                assert decision.ahead == len(waiting)
                waiting.append(ticket)
            elif decision.why == "queue_full":
                assert len(waiting) >= subject.queue_max
            else:
                assert not present
        elif kind == "end" and running:
            ticket = running.pop(number % len(running))
            assert ticket.replica is not None
            granted(subject.give_back(ticket.replica))
        elif kind == "withdraw" and waiting:
            ticket = waiting.pop(number % len(waiting))
            assert subject.withdraw(ticket)
        elif kind == "fleet":
            present = [candidate for bit, candidate in enumerate(fleet) if number >> bit & 1]
            served, refused = subject.update(present)
            granted(served)
            for ticket in refused:
                waiting.remove(ticket)
        by_replica = subject.statistics(0.0)["in_flight_by_replica"]
        assert subject.in_flight == len(running) == sum(by_replica.values())
        assert subject.waiting == len(waiting)
        slots = {candidate.replica: candidate.slots for candidate in fleet}
        assert all(count <= slots[name] for name, count in by_replica.items())
        if waiting and present:
            free = [c for c in present if by_replica.get(c.replica, 0) < c.slots]
            assert not free, "a slot is free while a call waits"
