"""The adaptive limit in small worlds: field case FH-18 whole, and the closed model of the notes."""

from __future__ import annotations

from random import Random

import pytest

from gateway.core.outcome import Verdict
from gateway.decide.limit import AdaptiveLimit
from tests.unit.limit_world import Batching, Fifo, World

FLOOR, START, CAP = 8, 16, 64
SERVICE_S = 0.05


def adaptive(floor: int = FLOOR, start: int = START, cap: int = CAP, seed: int = 18) -> AdaptiveLimit:
    return AdaptiveLimit(floor, start, cap, Random(seed).random, 0.0)


# Field case FH-18. The fake runs 8 calls at once, 50 ms each: 160 a second. Nothing waits in the gateway: what finds
# no slot is shed.


def fh18(seed: int = 18) -> World:
    world = World(adaptive(seed=seed), seed)
    Fifo(world, 8, lambda now_s: SERVICE_S)
    return world


def test_fh18_1_after_silence_the_first_second_of_traffic_is_served() -> None:
    world = fh18()
    world.run(10.0)
    world.offer_load(50, 12.0)
    world.run(13.0)
    assert len(world.ended) > 60
    assert world.shed_s == []


def test_fh18_2_under_five_minutes_of_overload_the_limit_settles_and_the_baseline_stays_true() -> None:
    world = fh18(2)
    world.offer_load(400, 300.0)
    for minute in (1, 5):
        world.run(60.0 * minute)
        assert world.limit.baseline_s == pytest.approx(SERVICE_S, rel=0.2)
    assert all(8 <= limit <= 24 for limit in world.limits_between(0.0, 300.0))
    settled = world.limits_between(60.0, 300.0, probes=False)
    assert max(settled) - min(settled) <= 2
    assert world.goodput(1.0, 300.0) >= 0.95 * 160
    probes = world.limit.statistics(300.0)["probes"]
    assert 3 <= probes <= 7, "one for the guess at the beginning, then one each one or two minutes"


@pytest.mark.parametrize("rate", [150, 400])
def test_fh18_3_fast_errors_do_not_move_the_limit(rate: float) -> None:
    world = World(adaptive(), 3)
    Fifo(
        world,
        8,
        lambda now_s: SERVICE_S,
        lambda now_s: (Verdict.NEUTRAL, 0.001) if now_s > 20 and world.chance.random() < 0.3 else None,
    )
    world.offer_load(rate, 80.0)
    world.run(80.0)
    before = world.limits_between(0.0, 20.0, probes=False)[-1]
    assert all(0.7 * before <= limit <= 1.3 * before for limit in world.limits_between(20.0, 80.0, probes=False))
    # At two thirds of the capacity a tenth of the calls waits a little.
    assert 0.9 * SERVICE_S <= world.limit.baseline_s <= 1.3 * SERVICE_S, "a millisecond is not what the model takes"


@pytest.mark.parametrize("verdict", [Verdict.NEUTRAL, Verdict.FAILURE])
def test_fh18_4_after_twenty_seconds_of_errors_it_recovers_in_ten(verdict: Verdict) -> None:
    world = World(adaptive(), 4)
    Fifo(world, 8, lambda now_s: SERVICE_S, lambda now_s: (verdict, 0.001) if 20 <= now_s < 40 else None)
    world.offer_load(400, 60.0)
    world.run(39.9)
    before = world.limits_between(0.0, 20.0, probes=False)[-1]
    assert world.limit.limit == (FLOOR if verdict is Verdict.FAILURE else before), "drops count, errors do not"
    world.run(60.0)
    assert world.goodput(41.0, 50.0) >= 0.95 * 160
    assert world.limits_between(49.99, 50.0, probes=False)[-1] >= 0.9 * before
    assert world.limit.baseline_s == pytest.approx(SERVICE_S, rel=0.2)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("rate", [8, 400])
def test_fh18_5_a_change_of_speed_is_followed_in_thirty_seconds_both_ways(rate: float, seed: int) -> None:
    world = World(adaptive(seed=seed), seed)
    Fifo(world, 8, lambda now_s: 0.5 if 60 <= now_s < 120 else SERVICE_S)
    world.offer_load(rate, 160.0)
    for at_s, latency_s in ((60.0, 0.05), (90.0, 0.5), (120.0, 0.5), (150.0, 0.05)):
        world.run(at_s)
        assert world.limit.baseline_s == pytest.approx(latency_s, rel=0.2), f"at {at_s} s"
    world.run(160.0)
    assert world.goodput(121.0, 160.0) >= 0.9 * min(rate, 160)
    assert all(8 <= limit <= 24 for limit in world.limits_between(0.0, 160.0))


@pytest.mark.parametrize("latency_s", [0.05, 20.0])
def test_fh18_6_one_call_a_minute_moves_nothing(latency_s: float) -> None:
    world = World(adaptive(), 6)
    Fifo(world, 8, lambda now_s: latency_s)
    for minute in range(240):
        world.at(60.0 * minute, world.arrive)
    world.run(60.0 * 240)
    assert world.limits == [(0.0, START, "start")]
    assert len(world.ended) == 240


def test_fh18_a_model_whose_calls_take_twenty_seconds_is_learnt_too() -> None:
    world = World(adaptive(), 8)
    Fifo(world, 8, lambda now_s: 20.0)
    world.offer_load(2, 1500.0)
    world.run(1500.0)
    assert world.limit.baseline_s == pytest.approx(20.0, rel=0.2)
    assert all(8 <= limit <= 24 for limit in world.limits_between(0.0, 1500.0))
    assert world.goodput(100.0, 1500.0) >= 0.95 * 8 / 20


def test_fh18_after_idle_hours_the_first_burst_is_served_whatever_was_before() -> None:
    world = World(adaptive(), 7)
    Fifo(world, 8, lambda now_s: SERVICE_S, lambda now_s: (Verdict.FAILURE, 0.001) if now_s < 40 else None)
    world.offer_load(400, 40.0)
    world.run(40.0)
    assert world.limit.limit == FLOOR
    shed = len(world.shed_s)
    world.run(5 * 3600.0)
    for _ in range(FLOOR):
        world.arrive()
    world.run(world.now_s + 1.0)
    assert len(world.shed_s) == shed
    assert world.limit.limit == START, "what an overload taught hours ago is no reason any more"


def test_fh18_gateways_that_start_together_do_not_measure_together() -> None:
    def probes_s(seed: int) -> list[float]:
        world = World(adaptive(seed=seed), 1)
        Fifo(world, 8, lambda now_s: SERVICE_S)
        world.offer_load(200, 250.0)
        world.run(250.0)
        return [at_s for at_s, _, why in world.limits if why == "probe"]

    first, second = probes_s(1), probes_s(2)
    assert len(first) >= 3
    assert len(second) >= 3
    assert min(abs(a - b) for a in first[1:] for b in second[1:]) > 1.0


# The closed model of the notes: a step to three times the capacity.

SHARES = (0.1, 0.5, 1.0)
"""Of a full batch's time that one call takes too: from work that batches do not speed up to work that they divide."""


@pytest.mark.parametrize("share", SHARES)
def test_a_step_to_three_times_the_capacity(share: float) -> None:
    floor, start, cap = 16, 32, 128
    subject = adaptive(floor, start, cap)
    world = World(subject, 5, queue_max=4 * start)
    model = Batching(world, 2, 1, 8, 0.02 * share, 0.02 * (1 - share) / 8)
    world.offer_load(0.5 * model.capacity, 10.0)
    world.run(10.0)
    calm_s = world.p90_s(5.0, 10.0)
    world.offer_load(3 * model.capacity, 30.0)
    world.run(30.0)
    for second in range(12, 30):
        assert world.goodput(second, second + 1) >= 0.9 * model.capacity, f"second {second - 10}"
    assert world.goodput(12.0, 30.0) >= 0.95 * model.capacity
    assert world.p90_s(12.0, 30.0) <= 2 * model.unloaded_s
    settled = world.limits_between(20.0, 30.0, probes=False)
    assert max(settled) <= 1.13 * min(settled), "no more than a trial"
    world.offer_load(0.5 * model.capacity, 40.0)
    world.run(31.0)
    assert not world.waiting
    world.run(40.0)
    assert world.p90_s(31.0, 33.0) <= 1.2 * calm_s
    assert world.goodput(31.0, 40.0) == pytest.approx(0.5 * model.capacity, rel=0.05)


def test_a_server_that_can_do_more_than_its_floor_says_gets_more() -> None:
    world = World(adaptive(), 8)
    Fifo(world, 32, lambda now_s: world.chance.uniform(0.8, 1.2) * SERVICE_S)
    world.offer_load(1200, 60.0)
    world.run(60.0)
    assert 28 <= world.limits_between(40.0, 60.0, probes=False)[-1] <= 44
    assert world.goodput(40.0, 60.0) >= 0.9 * 32 / SERVICE_S
