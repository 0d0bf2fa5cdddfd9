"""Admission: how calls come back to replicas, and estimates to the truth, after bad times."""

from __future__ import annotations

import random

import pytest

from gateway.core.call import Attempt
from gateway.core.outcome import Outcome
from gateway.core.snapshot import Candidate
from gateway.decide.admission import Admission
from gateway.decide.affinity import AffinitySettings
from gateway.decide.balance import BalanceSettings
from gateway.decide.cohorts import LEVELS
from gateway.decide.ticket import Ticket
from gateway.decide.tuning import Tuning
from tests.support.admission import Desk, replica_of, waits

A, B = "gpu/a", "gpu/b"


def ended(desk: Desk, ticket: Ticket, took_s: float, outcome: Outcome = Outcome.OK) -> list[Ticket]:
    """The call of a ticket ends now; it was sent `took_s` ago."""
    assert ticket.permit is not None
    ticket.permit.attempt = attempt = Attempt(ticket.permit.replica, desk.now_s - took_s)
    attempt.outcome, attempt.ended_s = outcome, desk.now_s
    return desk.end(ticket)


def standing(desk: Desk, replica: str) -> object:
    return desk.admission.statistics(desk.now_s)["ejection"]["by_replica"][replica]["standing"]


def test_a_replica_is_proven_though_all_calls_have_too_little_time_for_the_others() -> None:
    """The one that is not ejected has become so slow that every call runs out of time there. The ejected one is well
    again, and only calls can find that out.
    """
    desk = Desk(Candidate(A, 8), Candidate(B, 8))
    running = [desk.ask() for _ in range(16)]
    desk.now_s = 0.1
    for ticket in running:
        desk.now_s += 0.001
        ended(desk, ticket, 0.01, Outcome.BROKEN if replica_of(ticket) == B else Outcome.OK)
    assert standing(desk, B) == "ejected"
    for _ in range(200):
        ticket = desk.ask()
        assert replica_of(ticket) == A
        desk.now_s += 0.0001
        ended(desk, ticket, 0.4, Outcome.EXPIRED)
    desk.now_s += 0.3  # estimates are read anew
    sent: list[tuple[float, Ticket]] = []
    for _ in range(400):  # four seconds: the first pause is well over
        desk.now_s = round(desk.now_s + 0.01, 6)
        decided = []
        for at_s, ticket in tuple(sent):
            took_s = desk.now_s - at_s
            if replica_of(ticket) == B or took_s >= 0.4:
                sent.remove((at_s, ticket))
                decided += ended(desk, ticket, took_s, Outcome.OK if replica_of(ticket) == B else Outcome.EXPIRED)
        ticket = desk.ask(deadline_s=desk.now_s + 0.35)
        assert not waits(ticket), "there is a free slot"
        sent += [(desk.now_s, each) for each in (*decided, ticket) if each.permit is not None]
        if standing(desk, B) == "slow_start":
            break
    assert standing(desk, B) == "slow_start"


def test_where_nobody_waits_any_more_all_classes_are_let_in_soon() -> None:
    """A batch takes seconds, so that the guard's word would be good for a minute; those whom the cursor lets in are
    gone, and nobody is left whose end would tell it of that.
    """
    desk = Desk(Candidate(A, 4))
    cohorts = desk.admission.cohorts
    assert cohorts.admits(0, desk.now_s)
    cohorts.cursor = 200
    cohorts.overloaded(True, desk.now_s, settle_s=60.0)
    lowest = LEVELS - 1
    assert desk.ask(level=lowest).why == "cohort"
    for _ in range(4 * 3):
        desk.now_s += 0.25
        ticket = desk.ask(level=lowest)
        if ticket.permit is not None:
            break
    assert ticket.permit is not None, "within three seconds"


def test_stragglers_make_waits_longer_and_not_what_a_call_needs() -> None:
    desk = Desk(Candidate(A, 1))
    for number in range(88):
        ticket = desk.ask()
        took_s = 5.0 if number % 11 == 0 else 0.1
        desk.now_s += 0.1
        ended(desk, ticket, took_s)
    desk.now_s += 1.0
    pace = desk.admission.pacer.statistics(desk.now_s)
    assert pace["need_s"] == pytest.approx(0.2, rel=0.05)
    assert pace["round_s"] > 0.4
    running = desk.ask()
    waiting = desk.ask(deadline_s=desk.now_s + 1.0)
    assert waits(waiting)
    desk.now_s += 0.7
    assert ended(desk, running, 0.7) == [waiting]
    assert waiting.why is None, "nine in ten are answered in the time that it has left"


@pytest.mark.parametrize("work", [1.0, 0.5])
def test_calls_of_a_replica_that_has_left_do_not_make_the_others_look_quick(work: float) -> None:
    """How many slots it had is forgotten; that each of its calls was the only round of one slot is no good guess."""
    desk = Desk(Candidate(A, 64))
    left = [desk.ask(work=work) for _ in range(64)]
    desk.update((Candidate(B, 64),))
    desk.end(desk.ask())
    desk.now_s = 0.2
    for ticket in left:
        ended(desk, ticket, 0.2)
    desk.now_s += 1.0
    desk.admission.drain_s(desk.now_s)
    assert 0.1 <= desk.admission.pacer.statistics(desk.now_s)["round_s"] <= 0.2


def test_a_key_is_no_reason_to_refuse_a_call_beside_an_idle_replica() -> None:
    desk = Desk()
    settings = BalanceSettings(affinity=AffinitySettings())
    desk.admission = admission = Admission(random.Random(1), tuning=Tuning(settings))
    desk.update((Candidate(A, 4), Candidate(B, 4)))
    for _ in range(60):
        ticket = desk.ask()
        desk.now_s += 0.1
        ended(desk, ticket, 0.1)
    desk.now_s += 1.0
    at_home, hurried, late = (desk.ask(key="k", deadline_s=desk.now_s + time_s) for time_s in (1.0, 0.05, 0.05))
    assert {replica_of(at_home), replica_of(hurried)} == {A, B}
    assert admission.balance.affinity is not None
    assert admission.balance.affinity.counts["lent"] == 1
    assert late.why == "infeasible"
