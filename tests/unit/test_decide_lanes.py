"""Lanes: large calls have their small share, never share a replica with small ones, and nobody starves."""

from __future__ import annotations

import heapq
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.decide.lanes import Lanes, LaneSettings, LanesSettings

LARGE = (LaneSettings("large", 100),)
THREE = (LaneSettings("large", 100, 0.25), LaneSettings("huge", 1000, 0.25))


def apart(slots: dict[str, int], lanes: tuple[LaneSettings, ...] = LARGE, *, per_replica: int = 1) -> Lanes:
    subject = Lanes(LanesSettings(lanes, "replica", per_replica))
    subject.update(slots)
    return subject


def by_slots(slots: dict[str, int], lanes: tuple[LaneSettings, ...] = LARGE) -> Lanes:
    subject = Lanes(LanesSettings(lanes, "slots"))
    subject.update(slots)
    return subject


def fill(subject: Lanes, lane: int, *replicas: str) -> None:
    for replica in replicas:
        subject.take(lane, replica)


@pytest.mark.parametrize(("work", "lane"), [(0, 0), (1, 0), (100, 0), (100.5, 1), (1000, 1), (1001, 2), (1e18, 2)])
def test_the_lane_of_a_call_is_that_of_its_work(work: float, lane: int) -> None:
    subject = by_slots({}, THREE)
    assert subject.lane_of(work) == lane
    assert subject.names()[lane] == ("small", "large", "huge")[lane]


@pytest.mark.parametrize("work", [-1.0, math.nan, math.inf])
def test_work_is_an_amount(work: float) -> None:
    with pytest.raises(ValueError, match="work must be"):
        by_slots({}).lane_of(work)


# --- slots ------------------------------------------------------------------------------------------------------------


def test_large_calls_have_a_share_of_the_slots_and_one_at_least() -> None:
    for slots, cap in ((4, 1), (10, 1), (20, 2), (35, 3)):
        subject = by_slots({"a": slots})
        for _ in range(cap):
            subject.take(1, "a")
        assert subject.may_run(1, "a") == "lane_full"
        assert subject.may_run(0, "a") == "ok"


def test_small_calls_may_use_the_whole_pool_unless_a_large_one_waits() -> None:
    subject = by_slots({"a": 2, "b": 2})
    fill(subject, 0, "a", "a", "b")
    assert subject.may_run(0, "b") == "ok"
    subject.wait(1)
    assert subject.may_run(0, "b") == "kept"
    assert subject.may_run(1, "b") == "ok"
    subject.leave(1)
    subject.take(0, "b")
    subject.wait(1)
    subject.give_back(0, "a")
    assert subject.may_run(0, "a") == "kept", "the next free slot is the large call's"
    subject.take(1, "a")
    subject.leave(1)
    subject.give_back(0, "a")
    subject.wait(1)
    assert subject.may_run(0, "a") == "ok", "its lane has its share already: nothing is kept for another"


def test_large_lanes_together_leave_the_small_calls_a_slot() -> None:
    subject = by_slots({"a": 2}, THREE)
    subject.take(1, "a")
    assert subject.may_run(2, "a") == "lane_full"
    subject.take(0, "a")


def test_a_pool_of_one_slot_serves_both_lanes() -> None:
    subject = by_slots({"a": 1})
    subject.wait(1)
    assert subject.may_run(0, "a") == "ok"
    assert subject.may_run(1, "a") == "ok"
    subject.take(1, "a")
    assert subject.may_run(0, "a") == "no_slot"


# --- replicas ---------------------------------------------------------------------------------------------------------


def test_a_large_call_has_its_replica_for_itself() -> None:
    subject = apart({"a": 4, "b": 4})
    subject.take(0, "a")
    assert subject.may_run(1, "a") == "apart"
    assert subject.may_run(1, "b") == "ok"
    subject.take(1, "b")
    assert subject.may_run(0, "b") == "apart"
    assert subject.may_run(1, "b") == "lane_full"
    subject.give_back(1, "b")
    assert subject.may_run(0, "b") == "ok"


def test_large_calls_may_keep_each_other_company_where_that_is_asked_for() -> None:
    subject = apart({"a": 4, "b": 4}, per_replica=2)
    fill(subject, 1, "a", "a")
    assert subject.may_run(1, "a") == "lane_full"
    subject.give_back(1, "a")
    assert subject.may_run(0, "a") == "apart"


def test_large_calls_hold_their_share_of_the_replicas_and_not_one_more() -> None:
    subject = apart({f"r{n}": 2 for n in range(20)})
    fill(subject, 1, "r0", "r1")
    assert subject.may_run(1, "r2") == "lane_full"
    subject.give_back(1, "r1")
    assert subject.may_run(1, "r2") == "ok"


def test_for_a_large_call_that_waits_the_emptiest_replica_is_kept_free() -> None:
    subject = apart({"a": 4, "b": 4, "c": 4})
    fill(subject, 0, "a", "a", "b", "c", "c")
    subject.wait(1)
    assert [subject.may_run(0, replica) for replica in "abc"] == ["ok", "kept", "ok"]
    assert subject.may_run(1, "b") == "apart", "one small call is still there"
    subject.give_back(0, "b")
    assert subject.may_run(0, "b") == "kept"
    subject.take(1, "b")
    subject.leave(1)
    subject.give_back(1, "b")
    assert subject.may_run(0, "b") == "ok"


def test_no_more_replicas_are_kept_than_calls_wait_or_the_share_allows() -> None:
    fleet = {f"r{n}": 2 for n in range(20)}
    subject = apart(fleet)
    fill(subject, 0, *fleet)

    def kept() -> list[str]:
        return [replica for replica in fleet if subject.may_run(0, replica) == "kept"]

    counts = []
    for _ in range(4):
        subject.wait(1)
        counts.append(len(kept()))
    assert counts == [1, 2, 2, 2]
    both = kept()
    subject.update(dict.fromkeys([*both, *(replica for replica in fleet if replica not in both)][:10], 2))
    assert len(kept()) == 1, "of ten replicas the share is one"


def test_what_is_kept_is_let_go_when_the_large_call_gives_up() -> None:
    subject = apart({"a": 4, "b": 4})
    fill(subject, 0, "a", "b")
    subject.wait(1)
    assert sorted(subject.may_run(0, replica) for replica in "ab") == ["kept", "ok"]
    subject.leave(1)
    assert [subject.may_run(0, replica) for replica in "ab"] == ["ok", "ok"]


def test_one_replica_is_always_left_to_the_small_calls() -> None:
    subject = apart({"a": 2, "b": 2}, THREE)
    fill(subject, 0, "a", "b")
    subject.wait(1)
    subject.wait(2)
    assert sorted(subject.may_run(0, replica) for replica in "ab") == ["kept", "ok"]


def test_large_lanes_take_turns() -> None:
    subject = apart({"a": 1, "b": 1}, THREE)
    fill(subject, 0, "b")
    order = []
    for _ in range(50):
        subject.wait(1)
        subject.wait(2)
    for _ in range(6):
        lane = 1 if subject.may_run(1, "a") == "ok" else 2
        subject.take(lane, "a")
        subject.leave(lane)
        order.append(lane)
        subject.give_back(lane, "a")
    assert order == [1, 2, 1, 2, 1, 2]


def test_on_the_only_replica_both_kinds_take_turns() -> None:
    subject = apart({"a": 2})
    for _ in range(100):
        subject.wait(0)
        subject.wait(1)
    order = ""
    running: list[int] = []
    while len(order) < 12:
        started = False
        for lane in (1, 0):
            while len(order) < 12 and subject.may_run(lane, "a") == "ok":
                subject.take(lane, "a")
                subject.leave(lane)
                running.append(lane)
                order += "sL"[lane]
                started = True
        assert started or running, "nobody may run and nobody will end"
        if running:
            subject.give_back(running.pop(0), "a")
    assert order == "LssLssLssLss"


def small_turn() -> Lanes:
    """The only replica, empty; a large call has ended, both kinds wait, and the small ones have the turn."""
    subject = apart({"a": 2})
    subject.wait(0)
    subject.wait(1)
    subject.take(1, "a")
    subject.give_back(1, "a")
    assert subject.may_run(1, "a") == "kept"
    assert subject.may_run(0, "a") == "ok"
    return subject


def test_the_turn_passes_on_when_the_small_calls_give_up() -> None:
    subject = small_turn()
    subject.leave(0)
    assert subject.may_run(1, "a") == "ok"


def test_there_are_no_turns_any_more_once_there_is_a_second_replica() -> None:
    subject = small_turn()
    subject.update({"a": 2, "b": 2})
    assert sorted(subject.may_run(1, replica) for replica in "ab") == ["lane_full", "ok"]


def test_a_replica_that_leaves_takes_what_was_kept_with_it() -> None:
    subject = apart({"a": 2, "b": 2, "c": 2})
    fill(subject, 0, "a", "b", "c", "c")
    subject.wait(1)
    kept = next(replica for replica in "ab" if subject.may_run(0, replica) == "kept")
    rest = [replica for replica in "abc" if replica != kept]
    subject.update(dict.fromkeys(rest, 2))
    assert subject.may_run(0, kept) == "no_slot"
    assert sorted(subject.may_run(0, replica) for replica in rest) == ["kept", "no_slot"]
    subject.give_back(0, kept)
    with pytest.raises(ValueError, match="was not on"):
        subject.give_back(0, kept)


def test_a_replica_that_comes_back_still_has_its_large_call() -> None:
    subject = apart({"a": 2, "b": 2})
    subject.take(1, "a")
    subject.update({"b": 2})
    subject.update({"a": 2, "b": 2})
    assert subject.may_run(0, "a") == "apart"
    subject.give_back(1, "a")
    assert subject.may_run(0, "a") == "ok"


# --- mistakes ---------------------------------------------------------------------------------------------------------


def test_the_books_refuse_what_cannot_be() -> None:
    subject = apart({"a": 1, "b": 1})
    subject.take(0, "a")
    with pytest.raises(ValueError, match="no_slot"):
        subject.take(0, "a")
    with pytest.raises(ValueError, match="large was given back"):
        subject.give_back(1, "a")
    with pytest.raises(ValueError, match="no call of lane large was waiting"):
        subject.leave(1)
    assert subject.may_run(0, "nowhere") == "no_slot"


@pytest.mark.parametrize(
    ("lanes", "match"),
    [
        ((), "at least one"),
        ((LaneSettings("x", 0),), "work_above of x"),
        ((LaneSettings("x", math.inf),), "work_above of x"),
        ((LaneSettings("x", 9), LaneSettings("y", 9)), "work_above of y"),
        ((LaneSettings("x", 9, 0.0),), "share of x"),
        ((LaneSettings("x", 9, math.nan),), "share of x"),
        ((LaneSettings("x", 9, 0.6),), "share of x"),
        ((LaneSettings("small", 9),), "two lanes are named small"),
    ],
)
def test_settings_that_mean_nothing_are_refused_by_name(lanes: tuple[LaneSettings, ...], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        LanesSettings(lanes)
    with pytest.raises(ValueError, match="large_per_replica"):
        LanesSettings(LARGE, large_per_replica=0)


# --- any order of events ----------------------------------------------------------------------------------------------

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.integers(0, 2)),
        st.tuples(st.just("end"), st.integers(0, 50)),
        st.tuples(st.just("gone"), st.integers(0, 50)),
        st.tuples(st.just("fleet"), st.integers(0, 31)),
    ),
    max_size=120,
)


@given(EVENTS, st.sampled_from(["slots", "replica"]), st.integers(1, 3), st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_any_order_of_events_keeps_the_counts(
    events: list[tuple[str, int]], rule: str, per_replica: int, seed: int
) -> None:
    subject = Lanes(LanesSettings(THREE, rule, per_replica))  # type: ignore[arg-type]
    fleet = {f"r{n}": 1 + n % 3 for n in range(5)}
    subject.update(fleet)
    chance = random.Random(seed)
    running: list[tuple[int, str]] = []
    waiting: list[int] = []

    def serve() -> None:
        """Grant what may run, in the order of arrival, on any replica that will take it."""
        for lane in tuple(waiting):
            fit = [replica for replica in fleet if subject.may_run(lane, replica) == "ok"]
            if fit:
                replica = chance.choice(fit)
                subject.take(lane, replica)
                subject.leave(lane)
                waiting.remove(lane)
                running.append((lane, replica))

    for kind, number in events:
        if kind == "call":
            waiting.append(number)
            subject.wait(number)
        elif kind == "end" and running:
            subject.give_back(*running.pop(number % len(running)))
        elif kind == "gone" and waiting:
            subject.leave(waiting.pop(number % len(waiting)))
        elif kind == "fleet":
            fleet = {f"r{n}": 1 + n % 3 for n in range(5) if number >> n & 1}
            subject.update(fleet)
        before = list(running)
        serve()
        figures = subject.statistics(0.0)
        for lane, name in enumerate(subject.names()):
            each = figures["lanes"][name]
            assert each["in_flight"] == sum(lane == other for other, _ in running)
            assert each["waiting"] == sum(lane == other for other in waiting)
            if lane and any(other == lane for other, _ in running[len(before) :]):
                share = max(1, int(0.25 * (len(fleet) if rule == "replica" else sum(fleet.values()))))
                busy = {replica for other, replica in running if other == lane and replica in fleet}
                held = len(busy) if rule == "replica" else each["in_flight"]
                assert held <= share or kind == "fleet", "granted beyond its share"
        for replica, slots in fleet.items():
            there = [lane for lane, where in running if where == replica]
            started = [lane for lane, where in running[len(before) :] if where == replica]
            assert not started or len(there) <= slots
            if rule == "replica":
                assert len(set(there)) <= 1, "two lanes on one replica"
    # Everything ends, and everybody who waits is served: nobody starves, nothing stays kept.
    if fleet:
        for _ in range(10 * (len(running) + len(waiting)) + 10):
            serve()
            if running:
                subject.give_back(*running.pop(0))
        assert not waiting
        assert all(subject.may_run(0, replica) == "ok" for replica in fleet)
    for lane, replica in running:
        subject.give_back(lane, replica)
    subject.update({})
    assert not subject._rooms


# --- a closed model ---------------------------------------------------------------------------------------------------


def small_p99(*, large: float, lanes: bool, seed: int, calls: int = 12_000) -> float:
    """The 99th percentile of the small calls' time through a pool of four replicas with one instance and two slots
    each (one executing, one behind it), at random instants and half load; one small call takes 1.0, a large one 20.
    Without lanes every call may go wherever a slot is free.
    """
    chance = random.Random(seed)
    replicas = {f"r{n}": 2 for n in range(4)}
    subject = Lanes(LanesSettings(LARGE))
    subject.update(replicas)
    in_flight = dict.fromkeys(replicas, 0)
    free_at = dict.fromkeys(replicas, 0.0)
    arrivals = []
    at_s = 0.0
    for _ in range(calls):
        at_s += chance.expovariate(0.5 * 4 / (1 + 0.01 * 19))
        arrivals.append((at_s, 1 if chance.random() < large else 0))
    queues: tuple[list[float], list[float]] = ([], [])
    ends: list[tuple[float, str, int]] = []
    times: list[float] = []

    def serve(now_s: float) -> None:
        for lane in (1, 0):
            while queues[lane]:
                fit = [
                    replica
                    for replica in replicas
                    if (subject.may_run(lane, replica) == "ok" if lanes else in_flight[replica] < 2)
                ]
                if not fit:
                    break
                least = min(in_flight[replica] for replica in fit)
                replica = chance.choice([each for each in fit if in_flight[each] == least])
                came_s = queues[lane].pop(0)
                in_flight[replica] += 1
                if lanes:
                    subject.take(lane, replica)
                    subject.leave(lane)
                end_s = max(now_s, free_at[replica]) + (20.0 if lane else 1.0)
                free_at[replica] = end_s
                heapq.heappush(ends, (end_s, replica, lane))
                if not lane:
                    times.append(end_s - came_s)

    for at_s, lane in (*arrivals, (math.inf, 0)):
        while ends and ends[0][0] <= at_s:
            end_s, replica, ended = heapq.heappop(ends)
            in_flight[replica] -= 1
            if lanes:
                subject.give_back(ended, replica)
            serve(end_s)
        if at_s < math.inf:
            queues[lane].append(at_s)
            if lanes:
                subject.wait(lane)
            serve(at_s)
    assert not queues[0]
    assert not queues[1]
    times.sort()
    return times[int(0.99 * len(times))]


def test_one_large_call_in_a_hundred_leaves_the_p99_of_the_rest_within_its_number() -> None:
    alone = small_p99(large=0.0, lanes=False, seed=1)
    mixed = small_p99(large=0.01, lanes=False, seed=1)
    lanes = small_p99(large=0.01, lanes=True, seed=1)
    assert mixed > 2 * alone, f"{mixed:.2f} against {alone:.2f}: the model shows no trouble"
    assert lanes <= 1.3 * alone, f"{lanes:.2f} against {alone:.2f}"


# --- replicas that get no calls ---------------------------------------------------------------------------------------


def test_a_barred_replica_is_not_kept_and_is_let_go_if_it_was() -> None:
    subject = apart({"a": 4, "b": 4, "c": 4})
    fill(subject, 0, "b", "c", "c")
    subject.bar(["a"])
    subject.stand(1, 1)
    assert [subject.may_run(0, replica) for replica in "abc"] == ["ok", "kept", "ok"]
    subject.bar(["b"])
    assert [subject.may_run(0, replica) for replica in "abc"] == ["kept", "ok", "ok"]


def test_where_all_are_barred_none_is() -> None:
    subject = apart({"a": 4, "b": 4})
    subject.bar(["a", "b"])
    fill(subject, 0, "a", "b")
    subject.stand(1, 1)
    assert sorted(subject.may_run(0, replica) for replica in "ab") == ["kept", "ok"]


def test_with_one_replica_left_both_kinds_take_turns_on_it() -> None:
    subject = apart({"a": 2, "b": 2})
    subject.bar(["b"])
    subject.stand(0, 5)
    subject.stand(1, 5)
    subject.take(1, "a")
    subject.stand(1, 4)
    subject.give_back(1, "a")
    assert subject.may_run(1, "a") == "kept"
    assert subject.may_run(0, "a") == "ok"


def test_to_stand_is_to_wait_or_leave_at_once() -> None:
    one, other = apart({"a": 2, "b": 2}), apart({"a": 2, "b": 2})
    for subject in (one, other):
        fill(subject, 0, "a", "b")
    assert not one.stand(1, 3)
    for _ in range(3):
        other.wait(1)
    assert one.statistics(0.0) == other.statistics(0.0)
    assert one.stand(1, 0)
    for _ in range(3):
        other.leave(1)
    assert one.statistics(0.0) == other.statistics(0.0)


def test_a_large_lane_has_the_work_of_its_replicas() -> None:
    subject = apart({f"r{n}": 8 for n in range(20)})
    assert [subject.slots_of(lane) for lane in (0, 1)] == [160, 16]
    assert by_slots({"a": 8}).slots_of(1) == 8
    assert apart({}).slots_of(1) == 0
