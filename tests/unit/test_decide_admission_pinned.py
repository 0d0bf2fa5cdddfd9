"""Admission of calls that may run on one replica only: they hold up nobody else, and nobody starves."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.snapshot import Candidate
from gateway.decide.ticket import Ticket
from tests.support.admission import Desk, replica_of, waits

A, B = Candidate("gpu/a", 1), Candidate("gpu/b", 1)


def test_a_pinned_call_takes_a_slot_on_its_replica_alone() -> None:
    desk = Desk(A, B)
    assert replica_of(desk.ask("gpu/a")) == "gpu/a"
    assert waits(desk.ask("gpu/a")), "the slot of the other replica is none for it"
    assert replica_of(desk.ask()) == "gpu/b", "and it holds up nobody who can use it"


def test_a_pinned_call_to_a_replica_that_is_not_there_is_refused_at_once() -> None:
    assert Desk(B).ask("gpu/a").why == "no_replica"


def test_a_freed_slot_goes_to_the_first_of_those_who_can_use_it() -> None:
    desk = Desk(A, B)
    on_a, on_b = desk.ask("gpu/a"), desk.ask("gpu/b")
    older, to_a, younger = desk.ask(), desk.ask("gpu/a"), desk.ask()
    assert desk.end(on_a) == [older]
    assert desk.end(older) == [to_a], "those who came later do not pass it on its own replica"
    assert desk.end(on_b) == [younger]


def test_those_who_wait_for_any_slot_are_not_passed_by_a_pinned_call_that_came_later() -> None:
    desk = Desk(A)
    running, waiting, late = desk.ask(), desk.ask(), desk.ask("gpu/a")
    assert waits(late)
    assert desk.end(running) == [waiting]
    assert desk.end(waiting) == [late]


def test_pinned_calls_count_against_the_queue() -> None:
    desk = Desk(A, queue_max=2)
    for pinned in ("", "gpu/a", ""):
        desk.ask(pinned)
    assert desk.ask("gpu/a").why == "queue_full"
    assert desk.admission.waiting == 2


def test_when_its_replica_leaves_a_pinned_call_is_told_and_the_others_wait_on() -> None:
    desk = Desk(A, B)
    desk.ask("gpu/a")
    on_b = desk.ask("gpu/b")
    gone, stays = desk.ask("gpu/a"), desk.ask()
    assert desk.update((B,)) == [gone]
    assert gone.why == "no_replica"
    assert desk.admission.waiting == 1
    assert desk.end(on_b) == [stays]


def test_a_withdrawn_pinned_call_leaves_nothing() -> None:
    desk = Desk(A)
    running, waiting = desk.ask("gpu/a"), desk.ask("gpu/a")
    assert desk.admission.withdraw(waiting)
    assert not desk.admission.withdraw(waiting)
    desk.end(running)
    assert desk.admission.idle


def test_calls_that_open_sequences_leave_half_of_the_slots_to_those_that_end_them() -> None:
    desk = Desk(Candidate("gpu/a", 4))
    openers = [desk.ask("gpu/a", opens=True) for _ in range(4)]
    assert [waits(ticket) for ticket in openers] == [False, False, True, True]
    step = desk.ask("gpu/a")
    assert replica_of(step) == "gpu/a", "a step of a running sequence finds a slot"
    assert desk.end(step) == [], "the step's slot is not one that an opener may have"
    assert desk.end(openers[0]) == [openers[2]]


def test_where_there_is_one_slot_an_opener_gets_it() -> None:
    desk = Desk(A)
    first, second = desk.ask("gpu/a", opens=True), desk.ask("gpu/a", opens=True)
    assert desk.end(first) == [second]
    assert desk.end(second) == []
    assert desk.admission.idle


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
    desk = Desk(*present, queue_max=queue_max, seed=seed)
    subject = desk.admission
    running: list[Ticket] = []
    waiting: list[Ticket] = []

    def opening(replica: str) -> int:
        return sum(ticket.opens and replica_of(ticket) == replica for ticket in running)

    def can_use(ticket: Ticket, replica: str) -> bool:
        if ticket.pinned not in ("", replica):
            return False
        return not ticket.opens or opening(replica) < max(1, slots[replica] // 2)

    def decided(tickets: list[Ticket]) -> None:
        for ticket in tickets:
            if ticket.permit is None:
                assert ticket.why == "no_replica"
                assert ticket.pinned not in {candidate.replica for candidate in present} or not present
                waiting.remove(ticket)
                continue
            assert ticket.pinned in ("", replica_of(ticket))
            passed = waiting[: waiting.index(ticket)]
            assert not [each for each in passed if can_use(each, replica_of(ticket))], "overtaken"
            waiting.remove(ticket)
            running.append(ticket)

    for kind, number in events:
        if kind == "offer":
            replica = f"gpu/{number % 4}" if number < 8 else ""
            ticket = desk.ask(replica, opens=number < 4)
            if ticket.permit is not None:
                assert not [each for each in waiting if can_use(each, replica_of(ticket))], "overtaken"
                running.append(ticket)
            elif waits(ticket):
                waiting.append(ticket)
            elif ticket.why == "queue_full":
                assert len(waiting) >= subject.queue_max
            else:
                assert ticket.why == "no_replica"
                assert not any(candidate.replica == replica or not replica for candidate in present)
        elif kind == "end" and running:
            decided(desk.end(running.pop(number % len(running))))
        elif kind == "withdraw" and waiting:
            assert subject.withdraw(waiting.pop(number % len(waiting)))
        elif kind == "fleet":
            present = [candidate for bit, candidate in enumerate(fleet) if number >> bit & 1]
            decided(desk.update(present))
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
        decided(desk.end(running.pop()))
    assert not waiting or not present
