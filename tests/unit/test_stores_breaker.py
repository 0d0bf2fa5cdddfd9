"""The adapter around pybreaker: our clock, one trial at a time, outcomes told afterwards."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.stores.breaker import DependencyBreaker


def opened(at_s: float = 10.0) -> DependencyBreaker:
    breaker = DependencyBreaker("redis", failures_max=3, pause_s=1.0)
    for _ in range(3):
        assert breaker.allows(at_s)
        breaker.failed(at_s)
    return breaker


def test_three_failures_in_a_row_open_it_and_a_success_between_them_does_not() -> None:
    breaker = DependencyBreaker("redis", failures_max=3)
    for _ in range(5):
        breaker.failed(1.0)
        breaker.failed(1.0)
        breaker.succeeded()
    assert breaker.closed
    assert opened().statistics(10.0) == {"state": "open", "opened": 1, "failures": 3}


def test_open_it_lets_one_trial_through_a_pause_and_not_everybody() -> None:
    breaker = opened()
    assert not breaker.allows(10.99)
    assert [breaker.allows(11.0) for _ in range(5)] == [True, False, False, False, False]
    assert not breaker.closed
    assert breaker.allows(12.0), "a trial of which nothing was heard does not block it for ever"


def test_the_trial_decides() -> None:
    breaker = opened()
    assert breaker.allows(11.0)
    breaker.failed(11.05)
    assert not breaker.allows(12.0)
    assert breaker.allows(12.05)
    breaker.succeeded()
    assert breaker.closed
    assert breaker.allows(12.06)


def test_what_was_asked_before_it_opened_may_close_it_and_does_not_open_it_twice() -> None:
    breaker = opened()
    breaker.failed(10.9)
    assert breaker.allows(11.0), "the pause began when it opened"
    late = opened()
    late.succeeded()
    assert late.closed


@given(st.lists(st.tuples(st.sampled_from(("ask", "ok", "fail")), st.sampled_from((0.0, 0.3, 1.0, 7.0)))))
def test_while_it_is_not_closed_there_is_one_question_in_a_pause_at_most(events: list[tuple[str, float]]) -> None:
    breaker = DependencyBreaker("redis", failures_max=2, pause_s=1.0)
    now_s, asked_s = 100.0, -1.0
    for what, step_s in events:
        now_s += step_s
        if what == "ok":
            breaker.succeeded()
            assert breaker.closed
        elif what == "fail":
            breaker.failed(now_s)
        else:
            closed = breaker.closed
            if breaker.allows(now_s) and not closed:
                assert now_s - asked_s >= 1.0
                asked_s = now_s
