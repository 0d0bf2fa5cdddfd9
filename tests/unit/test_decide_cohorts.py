"""Cohorts: the same users are in or out within the hour, and the cursor finds what the servers can do."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.decide.cohorts import CLASSES, COHORTS, LEVELS, OPEN_AFTER, Cohorts, CohortSettings, level

PERIOD_S = 0.25


def evenly(cohorts: Cohorts, now_s: float, *, slots: int = 10**9) -> int:
    """One call of each level, the highest first, of which the first `slots` that are let in get one. How many are let
    in.
    """
    let_in = [each for each in range(LEVELS) if cohorts.admits(each, now_s)]
    for each in let_in[:slots]:
        cohorts.note_admitted(each)
    return len(let_in)


def test_a_user_has_one_level_an_hour_and_another_one_in_the_next() -> None:
    users = [f"user-{number}" for number in range(500)]
    first = [level(2, user, 480_000) for user in users]
    assert first == [level(2, user, 480_000) for user in users]
    assert all(2 * COHORTS <= each < 3 * COHORTS for each in first)
    next_hour = [level(2, user, 480_001) for user in users]
    assert sum(a == b for a, b in zip(first, next_hour, strict=True)) < 20


def test_users_spread_over_the_cohorts() -> None:
    counts = Counter(level(0, f"user-{number}", 7) for number in range(128 * 100))
    assert set(counts) == set(range(COHORTS))
    assert min(counts.values()) > 60
    assert max(counts.values()) < 140


def test_every_gateway_gives_the_same_level() -> None:
    assert [level(criticality, "tenant/ü\ud800", 12) for criticality in range(CLASSES)] == [
        level(0, "tenant/ü\ud800", 12) + criticality * COHORTS for criticality in range(CLASSES)
    ]
    assert level(1, "alice", 480_000) == 222, "a change of the hash would part gateways of different versions"


@pytest.mark.parametrize("criticality", [-1, CLASSES])
def test_an_unknown_class_is_an_error(criticality: int) -> None:
    with pytest.raises(ValueError, match="no class"):
        level(criticality, "user", 0)


def test_without_overload_all_are_let_in() -> None:
    cohorts = Cohorts()
    for tick in range(20):
        assert evenly(cohorts, tick * PERIOD_S) == LEVELS


def test_a_fall_leaves_five_per_cent_less_than_got_slots() -> None:
    cohorts = Cohorts()
    evenly(cohorts, 0.0, slots=400)
    cohorts.overloaded(True, 0.1)
    assert cohorts.cursor == LEVELS - 1, "not before the window is full"
    assert evenly(cohorts, PERIOD_S, slots=400) == 380
    assert cohorts.statistics(PERIOD_S)["refused_by_class"] == {"0": 0, "1": 0, "2": 4, "3": 128}
    assert cohorts.statistics(PERIOD_S)["class"] == 2
    evenly(cohorts, 2 * PERIOD_S)
    assert cohorts.cursor == 360, "380 were let in and got slots: 361 levels are left"


def test_no_step_takes_away_more_than_half() -> None:
    cohorts = Cohorts()
    evenly(cohorts, 0.0, slots=0)
    cohorts.overloaded(True, 0.1)
    assert evenly(cohorts, PERIOD_S) == LEVELS // 2


def test_a_backlog_that_drains_does_not_pull_the_cursor_down() -> None:
    cohorts = Cohorts()
    evenly(cohorts, 0.0, slots=200)
    cohorts.overloaded(True, 0.1)
    for tick in range(1, 6):
        let_in = evenly(cohorts, tick * PERIOD_S, slots=0)
        for _ in range(270):  # The servers are busy with those that came before.
            cohorts.note_admitted(0)
        cohorts.overloaded(True, tick * PERIOD_S + 0.1)
        assert let_in == LEVELS // 2


def test_nothing_falls_before_the_signal_can_have_changed() -> None:
    cohorts = Cohorts()
    evenly(cohorts, 0.0, slots=400)
    cohorts.overloaded(True, 0.0, 1.0)
    for tick in range(1, 4):
        assert evenly(cohorts, tick * PERIOD_S, slots=400) == LEVELS
        cohorts.overloaded(True, tick * PERIOD_S, 1.0)
    assert evenly(cohorts, 1.0, slots=400) == 380


def test_after_a_fall_the_next_window_has_to_be_full_as_well() -> None:
    cohorts = Cohorts()
    let_in = []
    for tick in range(9):
        let_in.append(evenly(cohorts, tick * PERIOD_S, slots=300))
        cohorts.overloaded(True, tick * PERIOD_S, 1.0)
    assert let_in[:8] == [LEVELS] * 4 + [285] * 4
    assert let_in[3] > let_in[4] > let_in[8]


def test_a_word_that_may_be_late_counts_for_as_long() -> None:
    cohorts = Cohorts()
    evenly(cohorts, 0.0)
    cohorts.cursor = 200
    cohorts.overloaded(True, 0.0, 20.0)
    for tick in range(1, 80):
        cohorts.admits(0, tick * PERIOD_S)
        assert cohorts.cursor == 200
    for tick in range(81, 100):
        cohorts.admits(0, tick * PERIOD_S)
    assert cohorts.cursor == LEVELS - 1


def test_a_quiet_window_lets_one_per_cent_more_in_and_four_of_them_double_the_step() -> None:
    cohorts = Cohorts()
    evenly(cohorts, 0.0, slots=128)
    cohorts.overloaded(True, 0.1)
    evenly(cohorts, PERIOD_S, slots=128)
    evenly(cohorts, 2 * PERIOD_S, slots=128)
    assert cohorts.cursor == 127, "half, half of that, and no further than the top class"
    cohorts.overloaded(False, 2 * PERIOD_S + 0.1)
    steps, before = [], cohorts.cursor
    for tick in range(3, 13):
        evenly(cohorts, tick * PERIOD_S)
        steps.append(cohorts.cursor - before)
        before = cohorts.cursor
    assert steps == [6, 6, 6, 6, 11, 21, 41, 82, 164, 41]
    assert cohorts.cursor == LEVELS - 1, "all are in again, 2.5 s after a quarter was left"


def test_an_old_word_on_overload_does_not_count() -> None:
    cohorts = Cohorts()
    evenly(cohorts, 0.0)
    cohorts.overloaded(True, 0.0)
    assert evenly(cohorts, 9 * PERIOD_S, slots=0) == LEVELS


def test_after_a_long_silence_all_are_let_in() -> None:
    cohorts = Cohorts()
    for tick in range(5):
        evenly(cohorts, tick * PERIOD_S, slots=0)
        cohorts.overloaded(True, tick * PERIOD_S + 0.1)
    assert cohorts.cursor == COHORTS - 1
    assert cohorts.admits(LEVELS - 1, (4 + OPEN_AFTER) * PERIOD_S)


def test_one_heavy_cohort_does_not_stop_the_rise() -> None:
    cohorts = Cohorts()
    for tick in range(5):
        evenly(cohorts, tick * PERIOD_S, slots=0)
        cohorts.overloaded(True, tick * PERIOD_S + 0.1)
    cohorts.overloaded(False, 4 * PERIOD_S + 0.2)
    for tick in range(5, 40):
        for _ in range(100):
            cohorts.admits(300, tick * PERIOD_S)
    assert cohorts.cursor == LEVELS - 1


@pytest.mark.parametrize(
    "values", [{"period_s": 0.0}, {"fall_share": 1.0}, {"rise_share": 0.0}, {"period_s": float("nan")}]
)
def test_settings_out_of_range_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="period"):
        CohortSettings(**values)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.integers(0, LEVELS - 1), st.floats(0, 0.3)),
        st.tuples(st.just("slot"), st.integers(0, LEVELS - 1), st.just(0.0)),
        st.tuples(st.just("good"), st.integers(0, 2), st.floats(0, 2.0)),
        st.tuples(st.just("bad"), st.integers(0, 2), st.floats(0, 0.3)),
    ),
    max_size=150,
)


@given(EVENTS)
@settings(max_examples=200, deadline=None)
def test_whatever_comes_the_top_class_gets_in_and_the_order_of_levels_holds(
    events: list[tuple[str, int, float]],
) -> None:
    cohorts, now_s, told = Cohorts(), 0.0, False
    for kind, number, gap_s in events:
        now_s += gap_s
        before = cohorts.cursor
        if kind == "call":
            assert cohorts.admits(number, now_s) == (number <= cohorts.cursor)
            assert cohorts.admits(number % COHORTS, now_s), "the top class is never shed"
        elif kind == "slot":
            cohorts.note_admitted(number)
        else:
            told = told or kind == "bad"
            cohorts.overloaded(kind == "bad", now_s, float(number))
        assert COHORTS - 1 <= cohorts.cursor < LEVELS
        assert told or cohorts.cursor == LEVELS - 1, "nobody is shed without overload"
        assert kind != "slot" or cohorts.cursor == before


def test_a_closed_loop_finds_the_capacity_and_keeps_users_in_or_out() -> None:
    """Offered three times what can be served; the guard says overload when more is let in than that, a window late."""
    chance, cohorts, capacity = random.Random(5), Cohorts(), 200
    users = [level(chance.randrange(1, 4), f"user-{number}", 3) for number in range(600)]
    rounds: list[list[bool]] = []
    late = False
    for tick in range(80):
        now_s = tick * PERIOD_S
        cohorts.overloaded(late, now_s)
        let_in = [cohorts.admits(each, now_s) for each in users]
        for each in [user for user, inside in zip(users, let_in, strict=True) if inside][:capacity]:
            cohorts.note_admitted(each)
        late = sum(let_in) > capacity
        rounds.append(let_in)
    steady = rounds[8:]
    served = [min(capacity, sum(let_in)) for let_in in steady]
    assert sum(served) / len(served) > 0.96 * capacity
    shares = [sum(of_user) / len(steady) for of_user in zip(*steady, strict=True)]
    undecided = [share for share in shares if 0.05 < share < 0.95]
    assert len(undecided) < 0.06 * len(users), "few stand near the cursor; all others are always in or always out"
