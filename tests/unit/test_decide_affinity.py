"""Affinity: a key has a home, keeps it while others come and go, and leaves it only when that one is too busy."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.snapshot import Candidate
from gateway.decide.affinity import Affinity, AffinitySettings, order
from gateway.decide.rendezvous import Key

POOL = tuple(Candidate(f"gpu/{number}", 16) for number in range(10))


def why(subject: Affinity) -> str:
    """A function, lest the type checker remember it across picks."""
    return subject.why


def home(key: Key, candidates: tuple[Candidate, ...] = POOL) -> str:
    return order("m", key, candidates)[0].replica


def test_a_key_goes_home_whatever_the_order_of_the_candidates() -> None:
    subject = Affinity("m")
    for key in ("a", "b", 7, "7", 2**63):
        assert subject.pick(key, POOL, {}) == subject.pick(key, POOL[::-1], {}) == home(key)
        assert why(subject) == "home"
    assert subject.statistics(0.0)["picked"] == {"home": 10, "next": 0, "full": 0, "lent": 0}


def test_the_homes_of_some_keys_are_what_every_gateway_of_every_release_computes() -> None:
    three = POOL[:3]
    assert [home(key, three) for key in ("a", "b", "c", 1, 2)] == ["gpu/1", "gpu/0", "gpu/2", "gpu/1", "gpu/1"]


def test_a_number_and_its_digits_are_two_keys_and_two_models_have_their_own_homes() -> None:
    numbers = [home(number) for number in range(200)]
    assert numbers != [home(str(number)) for number in range(200)]
    assert numbers != [order("other", number, POOL)[0].replica for number in range(200)]


def test_keys_spread_by_slots() -> None:
    pool = (Candidate("small", 4), Candidate("large", 12), Candidate("none", 0))
    counts = Counter(home(f"key {number}", pool) for number in range(4000))
    assert set(counts) == {"small", "large"}
    assert 0.22 < counts["small"] / 4000 < 0.28


def test_when_one_leaves_only_its_own_keys_move_and_they_move_to_all_others() -> None:
    keys = range(3000)
    before = {key: home(key) for key in keys}
    left = POOL[:4] + POOL[5:]
    moved = Counter(home(key, left) for key in keys if before[key] == "gpu/4")
    assert all(home(key, left) == before[key] for key in keys if before[key] != "gpu/4")
    assert 240 < sum(moved.values()) < 360, "about one in ten"
    assert len(moved) == 9


def test_when_one_comes_about_its_share_of_the_keys_moves_and_all_of_them_to_it() -> None:
    keys = range(3000)
    more = (*POOL, Candidate("gpu/new", 16))
    moved = [key for key in keys if home(key, more) != home(key)]
    assert all(home(key, more) == "gpu/new" for key in moved)
    assert 200 < len(moved) < 345, "about one in eleven"


def test_a_home_at_its_bound_gives_way_to_the_next_of_the_keys_own_order() -> None:
    subject = Affinity("m")
    first, second, third = (each.replica for each in order("m", "popular", POOL[:3]))
    # With this call 10 are in flight: the bound is ceil(1.25 * 10 / 3) = 5.
    assert subject.pick("popular", POOL[:3], {first: 4, second: 4, third: 1}) == first
    assert subject.pick("popular", POOL[:3], {first: 5, second: 3, third: 1}) == second
    assert why(subject) == "next"
    assert subject.pick("popular", POOL[:3], {first: 5, second: 5, third: 0}) == third


def test_a_larger_bound_holds_on_for_longer() -> None:
    first, second, third = (each.replica for each in order("m", "popular", POOL[:3]))
    busy = {first: 8, second: 1, third: 0}
    assert Affinity("m").pick("popular", POOL[:3], busy) == second
    assert Affinity("m", AffinitySettings(bound=3.0)).pick("popular", POOL[:3], busy) == first


def test_those_that_may_not_be_asked_count_neither_in_the_load_nor_in_the_shares() -> None:
    """Else one of two that is left could take only its half of what is in flight, and the pool would stand still."""
    subject = Affinity("m")
    first, second = (each.replica for each in order("m", "k", POOL[:2]))
    in_flight = {first: 0, second: 12}
    assert subject.pick("k", POOL[:2], in_flight, exclude=(first,)) == second
    assert why(subject) == "next"
    assert subject.pick("k", POOL[:2], in_flight, admissible={second}.__contains__) == second
    assert why(subject) == "next"


def test_a_free_slot_is_found_however_uneven_the_pool_and_none_where_there_is_none() -> None:
    subject = Affinity("m", AffinitySettings(bound=1.0))
    pool = (Candidate("a", 2), Candidate("b", 20))
    assert subject.pick("k", pool, {"a": 2, "b": 19}) == "b"
    assert subject.pick("k", pool, {"a": 1, "b": 20}) == "a"
    assert subject.pick("k", pool, {"a": 2, "b": 20}) is None
    assert why(subject) == "full"
    assert subject.pick("k", (), {}) is None


@pytest.mark.parametrize("bound", [0.99, math.nan, math.inf])
def test_a_bound_below_one_is_refused(bound: float) -> None:
    with pytest.raises(ValueError, match="bound"):
        AffinitySettings(bound=bound)


@given(
    slots=st.lists(st.integers(0, 8), max_size=8),
    counts=st.lists(st.integers(0, 8), min_size=8, max_size=8),
    key=st.integers() | st.text(),
    bound=st.floats(1.0, 4.0),
    out=st.sets(st.integers(0, 7)),
)
def test_a_call_finds_a_free_slot_if_there_is_one_and_one_below_the_bound(
    slots: list[int], counts: list[int], key: Any, bound: float, out: set[int]
) -> None:
    pool = tuple(Candidate(str(number), each) for number, each in enumerate(slots))
    in_flight = {each.replica: count for each, count in zip(pool, counts, strict=False)}
    eligible = [each for number, each in enumerate(pool) if number not in out and each.slots > 0]
    subject = Affinity("m", AffinitySettings(bound=bound))
    chosen = subject.pick(key, pool, in_flight, exclude={str(number) for number in out})
    free = [each for each in eligible if in_flight[each.replica] < each.slots]
    assert (chosen is None) == (not free)
    if chosen is not None:
        assert chosen in {each.replica for each in free}
        total = sum(in_flight[each.replica] for each in eligible) + 1
        allowed = bound * total / sum(each.slots for each in eligible)
        below = {each.replica for each in free if in_flight[each.replica] < math.ceil(allowed * each.slots)}
        assert chosen in below
