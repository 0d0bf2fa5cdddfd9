"""TurnedAway: which share of a class's calls is refused for the length of the queue, whoever sends."""

from __future__ import annotations

import pytest

from gateway.decide.turned_away import TENANTS_MAX, TurnedAway

INTERVAL_S = 0.5


def told(*tenants: tuple[str, int, int]) -> TurnedAway:
    """An interval in which each of `tenants` sent so many calls, of which so many were refused."""
    subject = TurnedAway()
    for name, calls, refused in tenants:
        for number in range(calls):
            subject.note(name, number < refused, 0.0, INTERVAL_S)
    return subject


def test_it_is_told_at_the_end_of_the_interval_and_not_for_long() -> None:
    subject = told(("a", 100, 50))
    assert subject.share(0.499) == 0.0
    assert subject.share(0.5) == 0.5
    assert subject.share(0.999) == 0.5
    assert subject.share(1.0) == 0.0, "nobody has asked for a whole interval"


def test_it_holds_through_the_next_interval() -> None:
    subject = told(("a", 100, 50))
    subject.note("a", False, 0.6, INTERVAL_S)
    assert subject.share(1.0) == 0.5
    subject.note("a", True, 1.15, INTERVAL_S)
    assert subject.share(1.15) == 0.0, "of the one call in the interval before nothing can be said"


def test_it_is_the_share_of_the_tenant_that_fares_best() -> None:
    assert told(("greedy", 1000, 900), ("modest", 20, 0)).share(0.6) == 0.0
    assert told(("greedy", 1000, 900), ("modest", 20, 5)).share(0.6) == 0.25


def test_tenants_of_few_calls_count_together() -> None:
    small = [(f"t{number}", 2, number % 2) for number in range(20)]
    assert told(*small).share(0.6) == 0.25
    assert told(*((name, calls, 0) for name, calls, _ in small), ("greedy", 100, 90)).share(0.6) == 0.0
    assert told(("a", 2, 2)).share(0.6) == 0.0, "too few to tell"
    assert told(("a", 100, 90), ("b", 1, 0)).share(0.6) == 0.9, "one call tells nothing"


def test_memory_is_bounded() -> None:
    subject = TurnedAway()
    for number in range(10 * TENANTS_MAX):
        subject.note(f"tenant-{number}", True, 0.1, INTERVAL_S)
    assert len(subject._rows) <= TENANTS_MAX + 1
    assert subject.share(0.7) == pytest.approx(1.0)
