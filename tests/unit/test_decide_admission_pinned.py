"""Admission of calls that may run on one replica only: they hold up nobody else, and nobody starves."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.snapshot import Candidate
from gateway.decide.admission import Granted, Queued, Refused, Ticket
from tests.support.admission import admission

A, B = Candidate("gpu/a", 1), Candidate("gpu/b", 1)


def pinned(replica: str = "gpu/a", *, opens: bool = False) -> Ticket:
    return Ticket(0.0, pinned=replica, opens=opens)


def test_a_pinned_call_takes_a_slot_on_its_replica_alone() -> None:
    subject = admission(A, B)
    assert subject.offer(pinned()) == Granted("gpu/a")
    assert subject.offer(pinned()) == Queued(0), "the slot of the other replica is none for it"
    assert subject.offer(Ticket(0.0)) == Granted("gpu/b"), "and it holds up nobody who can use it"


def test_a_pinned_call_to_a_replica_that_is_not_there_is_refused_at_once() -> None:
    assert admission(B).offer(pinned()) == Refused("no_replica")


def test_a_freed_slot_goes_to_the_first_of_those_who_can_use_it() -> None:
    subject = admission(A, B)
    for replica in ("gpu/a", "gpu/b"):
        subject.offer(pinned(replica))
    older, to_a, younger = Ticket(0.0), pinned("gpu/a"), Ticket(0.0)
    for ticket in (older, to_a, younger):
        subject.offer(ticket)
    assert subject.give_back("gpu/a") == [older]
    assert subject.give_back("gpu/a") == [to_a], "those who came later do not pass it on its own replica"
    assert subject.give_back("gpu/b") == [younger]


def test_those_who_wait_for_any_slot_are_not_passed_by_a_pinned_call_that_came_later() -> None:
    subject = admission(A)
    subject.offer(Ticket(0.0))
    waiting, late = Ticket(0.0), pinned()
    subject.offer(waiting)
    assert subject.offer(late) == Queued(1)
    assert subject.give_back("gpu/a") == [waiting]
    assert subject.give_back("gpu/a") == [late]


def test_pinned_calls_count_against_the_queue() -> None:
    subject = admission(A, queue_max=2)
    subject.offer(Ticket(0.0))
    subject.offer(pinned())
    subject.offer(Ticket(0.0))
    assert subject.offer(pinned()) == Refused("queue_full")
    assert subject.waiting == 2


def test_when_its_replica_leaves_a_pinned_call_is_told_and_the_others_wait_on() -> None:
    subject = admission(A, B)
    for replica in ("gpu/a", "gpu/b"):
        subject.offer(pinned(replica))
    gone, stays = pinned("gpu/a"), Ticket(0.0)
    subject.offer(gone)
    subject.offer(stays)
    assert subject.update((B,)) == ([], [gone])
    assert subject.waiting == 1
    assert subject.give_back("gpu/b") == [stays]


def test_a_withdrawn_pinned_call_leaves_nothing() -> None:
    subject = admission(A)
    subject.offer(pinned())
    waiting = pinned()
    subject.offer(waiting)
    assert subject.withdraw(waiting)
    assert not subject.withdraw(waiting)
    subject.give_back("gpu/a")
    assert subject.idle


def test_calls_that_open_sequences_leave_half_of_the_slots_to_those_that_end_them() -> None:
    subject = admission(Candidate("gpu/a", 4))
    openers = [pinned(opens=True) for _ in range(4)]
    decisions = [subject.offer(ticket) for ticket in openers]
    assert decisions == [Granted("gpu/a"), Granted("gpu/a"), Queued(0), Queued(1)]
    step = pinned()
    assert subject.offer(step) == Granted("gpu/a"), "a step of a running sequence finds a slot"
    assert subject.give_back("gpu/a") == [], "the step's slot is not one that an opener may have"
    assert subject.give_back("gpu/a", opened=True) == [openers[2]]


def test_where_there_is_one_slot_an_opener_gets_it() -> None:
    subject = admission(A)
    first, second = pinned(opens=True), pinned(opens=True)
    assert subject.offer(first) == Granted("gpu/a")
    subject.offer(second)
    assert subject.give_back("gpu/a", opened=True) == [second]
    assert subject.give_back("gpu/a", opened=True) == []
    assert subject.idle


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("offer"), st.integers(0, 11)),
        st.tuples(st.just("end"), st.integers(0, 30)),
        st.tuples(st.just("withdraw"), st.integers(0, 30)),
        st.tuples(st.just("fleet"), st.integers(0, 15)),
    ),
    max_size=150,
)


@given(EVENTS, st.integers(0, 2**32), st.one_of(st.none(), st.integers(0, 9)))
@settings(max_examples=300, deadline=None)
def test_any_order_of_events_keeps_the_books(events: list[tuple[str, int]], seed: int, queue_max: int | None) -> None:
    fleet = [Candidate(f"gpu/{n}", 1 + n) for n in range(4)]
    slots = {candidate.replica: candidate.slots for candidate in fleet}
    present = fleet[:2]
    subject = admission(*present, queue_max=queue_max, seed=seed)
    running: list[Ticket] = []
    waiting: list[Ticket] = []

    def opening(replica: str) -> int:
        return sum(ticket.opens and ticket.replica == replica for ticket in running)

    def can_use(ticket: Ticket, replica: str) -> bool:
        if ticket.pinned not in ("", replica):
            return False
        return not ticket.opens or opening(replica) < max(1, slots[replica] // 2)

    def granted(tickets: list[Ticket]) -> None:
        for ticket in tickets:
            assert ticket.replica is not None
            assert ticket.pinned in ("", ticket.replica)
            passed = waiting[: waiting.index(ticket)]
            assert not [each for each in passed if can_use(each, ticket.replica)], "overtaken"
            waiting.remove(ticket)
            running.append(ticket)

    for kind, number in events:
        if kind == "offer":
            replica = f"gpu/{number % 4}" if number < 8 else ""
            ticket = Ticket(0.0, pinned=replica, opens=number < 4)
            decision = subject.offer(ticket)
            if isinstance(decision, Granted):
                assert not [each for each in waiting if can_use(each, decision.replica)], "overtaken"
                running.append(ticket)
            elif isinstance(decision, Queued):
                waiting.append(ticket)
            elif decision.why == "queue_full":
                assert len(waiting) >= subject.queue_max
            else:
                assert not any(candidate.replica == replica or not replica for candidate in present)
        elif kind == "end" and running:
            ticket = running.pop(number % len(running))
            assert ticket.replica is not None
            granted(subject.give_back(ticket.replica, opened=ticket.opens))
        elif kind == "withdraw" and waiting:
            assert subject.withdraw(waiting.pop(number % len(waiting)))
        elif kind == "fleet":
            present = [candidate for bit, candidate in enumerate(fleet) if number >> bit & 1]
            served, refused = subject.update(present)
            for ticket in refused:
                assert ticket.pinned not in {candidate.replica for candidate in present} or not present
                waiting.remove(ticket)
            granted(served)
        statistics = subject.statistics(0.0)
        by_replica = statistics["in_flight_by_replica"]
        assert subject.in_flight == len(running) == sum(by_replica.values())
        assert subject.waiting == len(waiting)
        assert statistics["waiting_pinned"] == sum(bool(ticket.pinned) for ticket in waiting)
        assert all(count <= slots[name] for name, count in by_replica.items())
        for candidate in present:
            if by_replica.get(candidate.replica, 0) < candidate.slots:
                idle = [ticket for ticket in waiting if can_use(ticket, candidate.replica)]
                assert not idle, "a slot is free while a call waits that could use it"
    while running:
        ticket = running.pop()
        assert ticket.replica is not None
        granted(subject.give_back(ticket.replica, opened=ticket.opens))
    assert not waiting or not present
