"""TurnedAway: when what is refused for the length of the queue is a sign of overload of all, and when not."""

from __future__ import annotations

from gateway.decide.turned_away import SHARE, TENANTS_MAX, TurnedAway

INTERVAL_S = 0.5


def told(*tenants: tuple[str, int, int], start_s: float = 0.0) -> TurnedAway:
    """An interval in which each of `tenants` sent so many calls, of which so many were refused."""
    subject = TurnedAway()
    for name, calls, refused in tenants:
        for number in range(calls):
            subject.note(name, number < refused, start_s, INTERVAL_S)
    return subject


def test_it_is_told_at_the_end_of_the_interval_and_not_for_long() -> None:
    subject = told(("a", 100, 50))
    assert not subject.overloaded(0.499)
    assert subject.overloaded(0.5)
    assert subject.overloaded(0.999)
    assert not subject.overloaded(1.0), "nobody has asked for a whole interval"


def test_the_verdict_holds_through_the_next_interval() -> None:
    subject = told(("a", 100, 50))
    subject.note("a", False, 0.6, INTERVAL_S)
    assert subject.overloaded(1.0)
    for _ in range(20):
        subject.note("a", False, 1.15, INTERVAL_S)
    assert subject.overloaded(1.15) is False, "of one call in the interval before nothing can be said"


def test_few_refusals_are_none() -> None:
    assert not told(("a", 100, int(100 * SHARE))).overloaded(0.6)
    assert told(("a", 100, int(100 * SHARE) + 1)).overloaded(0.6)


def test_a_greedy_tenant_beside_one_that_is_served_is_no_sign() -> None:
    assert not told(("greedy", 1000, 900), ("modest", 20, 0)).overloaded(0.6)
    assert told(("greedy", 1000, 900), ("modest", 20, 5)).overloaded(0.6)


def test_tenants_of_few_calls_count_together() -> None:
    small = [(f"t{number}", 2, number % 2) for number in range(20)]
    assert told(*small).overloaded(0.6)
    assert not told(*((name, calls, 0) for name, calls, _ in small), ("greedy", 100, 90)).overloaded(0.6)
    assert not told(("a", 2, 2)).overloaded(0.6), "too few to tell"
    assert told(("a", 100, 90), ("b", 1, 0)).overloaded(0.6), "one call tells nothing"


def test_memory_is_bounded() -> None:
    subject = TurnedAway()
    for number in range(10 * TENANTS_MAX):
        subject.note(f"tenant-{number}", True, 0.1, INTERVAL_S)
    assert len(subject._rows) <= TENANTS_MAX + 1
    assert subject.overloaded(0.7)
