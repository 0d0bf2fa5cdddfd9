"""The cap on cancels: never more than a burst and a steady rate in any time, and hedges stop before it is reached."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.decide.cancel_cap import CancelCap, CancelCapSettings


def made(cap: CancelCap, now_s: float, wanted: int) -> int:
    return sum(cap.may_cancel(now_s) for _ in range(wanted))


def test_a_burst_is_made_at_once_and_the_rest_is_left_to_run() -> None:
    cap = CancelCap()
    assert made(cap, 100.0, 200) == 10
    assert made(cap, 100.5, 200) == 10, "twenty a second"
    assert made(cap, 100.75, 200) == 5
    assert made(cap, 500.0, 200) == 10, "a long quiet time is worth one burst"
    assert cap.statistics(500.0) == {
        "rate_per_s": 2.0,
        "cap_per_s": 20.0,
        "tokens": 0.0,
        "climbing": False,
        "guarded": True,
        "cancelled": 35,
        "let_run": 765,
    }


def test_a_call_that_runs_out_already_is_counted_once() -> None:
    cap = CancelCap(CancelCapSettings(burst=1))
    assert [cap.may_cancel(0.0), cap.may_cancel(0.0)] == [True, False]
    assert not any(cap.may_cancel(0.0, again=True) for _ in range(50))
    assert cap.may_cancel(1.0, again=True)
    statistics = cap.statistics(1.0)
    assert (statistics["cancelled"], statistics["let_run"]) == (2, 1)


def test_where_time_stands_still_nothing_is_gained() -> None:
    cap = CancelCap(CancelCapSettings(burst=3))
    assert [cap.may_cancel(0.0) for _ in range(5)] == [True, True, True, False, False]


def test_the_rate_slides_over_the_window() -> None:
    cap = CancelCap(CancelCapSettings(window_s=4.0))
    for number in range(8):
        assert cap.may_cancel(10.0 + number)
    assert cap.rate(17.0) == 1.0
    assert cap.rate(17.5) == 1.0
    assert cap.rate(18.0) == 0.75, "the one at 14.0 is as old as the window"
    assert cap.rate(20.5) == 0.25
    assert cap.rate(21.0) == 0.0


def test_hedges_stop_at_half_of_the_cap_and_go_on_when_it_is_quieter() -> None:
    cap = CancelCap()
    for number in range(49):
        assert cap.may_cancel(10.0 + number / 10)
    assert not cap.climbing(14.85)
    assert cap.may_cancel(14.85)
    assert cap.climbing(14.85), "fifty in five seconds are ten a second"
    assert cap.climbing(14.95)
    assert not cap.climbing(15.05)


def test_the_burst_of_one_slow_batch_does_not_stop_hedges() -> None:
    cap = CancelCap()
    assert made(cap, 10.0, 16) == 10
    assert not cap.climbing(10.0)


def test_what_nobody_could_forbid_counts_and_leaves_less_for_others() -> None:
    cap = CancelCap(CancelCapSettings(burst=4))
    for _ in range(3):
        cap.cancelled(10.0)
    assert made(cap, 10.0, 5) == 1
    for _ in range(100):
        cap.cancelled(10.0)
    assert made(cap, 10.25, 9) == 4, "nothing is owed"
    assert cap.capped(10.25)
    assert not cap.capped(10.5)


def test_half_a_burst_guards_the_replica_for_a_window_and_a_few_each_second_do_not() -> None:
    cap = CancelCap(CancelCapSettings(burst=4, per_s=2.0))
    for number in range(10):
        assert cap.may_cancel(10.0 + number)
        assert not cap.guarded(10.0 + number)
    assert cap.may_cancel(20.0)
    assert cap.may_cancel(20.0)
    assert not cap.guarded(20.0)
    assert cap.may_cancel(20.0)
    assert cap.guarded(20.0)
    assert cap.guarded(24.9)
    assert not cap.guarded(25.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"per_s": 0.0},
        {"per_s": float("inf")},
        {"per_s": float("nan")},
        {"burst": 0},
        {"climbing_share": 0.0},
        {"window_s": 0.0},
        {"slack_s": float("inf")},
    ],
    ids=str,
)
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        CancelCapSettings(**wrong)  # type: ignore[arg-type]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(1, 40)), min_size=1, max_size=20),
    st.sampled_from([1.0, 4.0, 20.0, 64.0]),
    st.integers(1, 10),
)
def test_no_stretch_of_time_has_more_than_the_burst_and_what_the_rate_gives_for_it(
    waves: list[tuple[int, int]], per_s: float, burst: int
) -> None:
    cap = CancelCap(CancelCapSettings(per_s=per_s, burst=burst))
    # In parts of 1/256 s all sums are exact.
    now, cancels, wanted = 256 * 100, list[float](), 0
    for later, calls in waves:
        now += later
        now_s, wanted = now / 256, wanted + calls
        cancels += [now_s] * made(cap, now_s, calls)
        assert cap.rate(now_s) == sum(now_s - 5 < each for each in cancels) / 5
        statistics = cap.statistics(now_s)
        assert 0 <= statistics["tokens"] <= burst
        assert statistics["cancelled"] + statistics["let_run"] == wanted
        assert statistics["cancelled"] == len(cancels)
        assert statistics["climbing"] == (statistics["rate_per_s"] >= per_s / 2)
    for first, start_s in enumerate(cancels):
        for last in range(first, len(cancels)):
            assert last - first + 1 <= burst + per_s * (cancels[last] - start_s)
    assert made(cap, now / 256 + 1 + burst / per_s, burst) == burst, "after a quiet time a whole burst is there again"


def _deaths(cap: CancelCap | None) -> tuple[int, int, int]:
    """A minute of a server that dies when it sees more than fifty cancels within one second, under callers with short
    deadlines, and every ten seconds two hundred who leave at once. Returns deaths, cancels made, and cancels wanted.
    """
    chance, now_s, last_second, deaths, total, wanted = random.Random(7), 0.0, deque[float](), 0, 0, 0
    leaving = [10.0 * number for number in range(1, 6) for _ in range(200)]
    while now_s < 60.0:
        now_s += chance.expovariate(80.0)
        gone = 1
        while leaving and leaving[0] <= now_s:
            leaving.pop(0)
            gone += 1
        wanted += gone
        for _ in range(gone):
            if cap is None or cap.may_cancel(now_s):
                total += 1
                last_second.append(now_s)
        while last_second and last_second[0] < now_s - 1.0:
            last_second.popleft()
        if len(last_second) > 50:
            deaths += 1
            last_second.clear()
    return deaths, total, wanted


def test_a_server_that_dies_of_fifty_cancels_in_a_second_lives_under_the_cap() -> None:
    """Field case FH-11: most callers give up, and some all at once. Without the cap it dies over and over."""
    deaths, total, wanted = _deaths(CancelCap())
    assert deaths == 0
    assert 60 * 19 < total <= 60 * 20 + 11, "what may be cancelled is"
    assert wanted > 4 * total
    assert _deaths(None)[0] > 50
