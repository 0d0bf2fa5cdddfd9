"""The picker in closed models of batching pools: what it does to the tail, and how long it remembers."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from gateway.decide.score import ScoredPicker
from tests.unit.balanced_pool import Picker, Replica, Unlearned, p99_s, run, same, shares

LOAD = 0.7


def scored() -> ScoredPicker:
    return ScoredPicker(random.Random(7))


def unlearned() -> Unlearned:
    return Unlearned(random.Random(7))


def with_one(count: int, odd: Replica) -> list[Replica]:
    return [*same(count - 1), odd]


def rate(count: int, load: float = LOAD) -> float:
    """So much of what a healthy pool of this size can do."""
    return load * count * Replica("any").capacity_per_s


@pytest.mark.parametrize("count", [5, 10])
def test_one_replica_ten_times_slower_does_not_show_in_the_tail(count: int) -> None:
    """The number of `slow-replica`. The others carry all of it, at 7/8 and 7/9 of what they can do."""

    def slow() -> list[Replica]:
        return with_one(count, Replica("slow", factor=lambda now_s: 10.0))

    calls = 8_000
    healthy_s = p99_s(run(scored(), same(count), rate(count), calls))
    ended = run(scored(), slow(), rate(count), calls)
    assert p99_s(ended) <= 1.3 * healthy_s
    assert shares(ended)["slow"] < 0.03
    assert shares(ended, from_s=2.0).get("slow", 0.0) < 0.003, "once it is known it gets tries only"
    assert p99_s(run(unlearned(), slow(), rate(count), 4_000)) > 3 * healthy_s, "the model has teeth"


def test_where_slots_are_few_the_one_that_always_has_a_free_slot_is_left_alone() -> None:
    """Two slots each, no batching: with every slot of the fast ones taken, the slow one is the only choice there is,
    and waiting is better. Load 7/10 of what all ten can do together.
    """

    def pool(last: float) -> list[Replica]:
        return [*same(9, batch=1), Replica("last", batch=1, factor=lambda now_s: last)]

    offered = LOAD * 9.1 * Replica("any", batch=1).capacity_per_s
    healthy_s = p99_s(run(scored(), pool(1.0), offered, 6_000))
    ended = run(scored(), pool(10.0), offered, 6_000)
    assert p99_s(ended) <= 1.3 * healthy_s
    assert shares(ended)["last"] < 0.03


def test_an_overload_is_carried_by_the_slow_one_too() -> None:
    """With a long line even four times the service time is sooner than waiting."""
    pool = with_one(3, Replica("slow", factor=lambda now_s: 4.0))
    ended = run(scored(), pool, rate(3, 1.2), 6_000)
    fair = 0.25 / 2.25
    assert 0.7 * fair < shares(ended, from_s=2.0)["slow"] < 1.1 * fair


def test_a_replica_that_fails_fast_loses_its_traffic_by_the_penalty_alone() -> None:
    def failing() -> list[Replica]:
        return with_one(4, Replica("failing", fails=lambda now_s: True))

    ended = run(scored(), failing(), rate(4, 0.5), 5_000)
    assert sum(each.failed for each in ended) < 40, "its slots once, and a few tries"
    assert shares(run(unlearned(), failing(), rate(4, 0.5), 5_000))["failing"] > 0.5, "it looked like the fastest"


def test_a_replica_that_fails_half_of_its_calls_loses_them_too() -> None:
    chance = random.Random(3)
    pool = with_one(4, Replica("failing", fails=lambda now_s: chance.random() < 0.5))
    assert shares(run(scored(), pool, rate(4, 0.5), 5_000))["failing"] < 0.03


@pytest.mark.parametrize(
    "odd",
    [
        lambda: Replica("odd", factor=lambda now_s: 10.0 if now_s < 10.0 else 1.0),
        lambda: Replica("odd", fails=lambda now_s: now_s < 10.0),
    ],
    ids=["slow", "failing"],
)
def test_a_replica_that_has_recovered_has_its_share_back_after_retry_s_and_a_few_tries(
    odd: Callable[[], Replica],
) -> None:
    ended = run(scored(), with_one(4, odd()), rate(4, 0.3), 13_000)
    assert ended[-1].ended_s > 35.0
    assert shares([each for each in ended if 3.0 <= each.sent_s < 10.0]).get("odd", 0.0) < 0.01
    assert 0.2 < shares(ended, from_s=10.0 + 15.0 + 2.0)["odd"] < 0.3


def test_a_straggler_costs_its_replica_its_place_for_no_longer_than_a_few_tries() -> None:
    """One batch of replica 0 takes thirty times as long; everything it does afterwards is as before."""
    stuck = iter([30.0])
    pool = [Replica("odd", factor=lambda now_s: next(stuck, 1.0) if now_s > 2.0 else 1.0), *same(3)]
    ended = run(scored(), pool, rate(4), 6_000)
    assert max(each.ended_s - each.sent_s for each in ended if each.replica == "odd") > 0.5
    after = [each for each in ended if each.sent_s > 4.0]
    assert 0.22 < shares(after)["odd"] < 0.28
    assert p99_s(after) < 0.1


@pytest.mark.parametrize("load", [0.2, 0.7, 0.9])
def test_equal_replicas_of_a_batching_pool_share_the_load_evenly(load: float) -> None:
    found = shares(run(scored(), same(6), rate(6, load), 6_000))
    assert len(found) == 6
    assert all(0.9 / 6 < share < 1.1 / 6 for share in found.values()), found


def test_replicas_of_different_size_share_by_their_slots() -> None:
    pool = [Replica("small", batch=4), Replica("large", batch=4, instances=4)]
    offered = LOAD * sum(each.capacity_per_s for each in pool)
    assert 0.17 < shares(run(scored(), pool, offered, 6_000))["small"] < 0.23


def test_the_estimate_of_a_busy_replica_is_that_of_an_idle_one_but_for_the_size_of_its_batches() -> None:
    """Durations are 29 ms and 56 ms at most here; what is left of the difference is 28 over 21."""

    def estimate(load: float) -> float:
        picker = scored()
        run(picker, same(2), rate(2, load), 2_000)
        found: float = picker.statistics(0.0)["reference_s"]
        return found

    assert estimate(0.98) / estimate(0.02) < 1.75


def test_the_same_seed_gives_the_same_run() -> None:
    def once(picker: Picker) -> list[tuple[str, float]]:
        return [(each.replica, each.ended_s) for each in run(picker, same(3), rate(3), 500)]

    assert once(scored()) == once(scored())
