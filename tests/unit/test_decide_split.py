"""Splitting by weight, and the newest version (field case FH-24: 0 means none)."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.decide.split import Split, newest


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({"1": 100, "2": 0}, {"1": 1.0}),
        ({"1": 0, "2": 100}, {"2": 1.0}),
        ({"1": 1, "2": 0}, {"1": 1.0}),
        ({"1": 10, "2": 30}, {"1": 0.25, "2": 0.75}),
        ({"1": 60, "2": 240}, {"1": 0.2, "2": 0.8}),
        ({"1": 999, "2": 1}, {"1": 0.999, "2": 0.001}),
        ({"1": 33.3, "2": 33.3, "3": 33.4}, {"1": 0.333, "2": 0.333, "3": 0.334}),
    ],
)
def test_shares_follow_the_weights_whatever_they_add_up_to(
    weights: dict[str, float], expected: dict[str, float]
) -> None:
    split, chance, draws = Split(weights), random.Random(7), 40_000
    counts: dict[str, int] = {}
    for _ in range(draws):
        version = split.draw(chance.random())
        counts[version] = counts.get(version, 0) + 1
    assert set(counts) == set(expected), "a weight of 0 means not one call"
    for version, share in expected.items():
        assert counts[version] / draws == pytest.approx(share, abs=0.012)


@pytest.mark.parametrize(
    "weights", [{}, {"1": 0, "2": 0}, {"1": -5, "2": 105}, {"1": float("nan")}, {"1": float("inf")}]
)
def test_weights_that_mean_nothing_are_refused(weights: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="weight"):
        Split(weights)


@given(
    st.dictionaries(st.sampled_from("123456789"), st.floats(0, 1e6), min_size=1).filter(lambda w: sum(w.values()) > 0),
    st.floats(0, 1, exclude_max=True),
)
def test_only_versions_with_weight_are_ever_drawn(weights: dict[str, float], chance: float) -> None:
    assert weights[Split(weights).draw(chance)] > 0


def test_the_newest_is_numerically_highest_among_the_allowed() -> None:
    assert newest(("9", "10", "2"), None) == "10"
    assert newest(("9", "10", "2"), frozenset({"9", "2"})) == "9"
    assert newest(("9",), frozenset({"1"})) is None
    assert newest((), None) is None
