"""Timers, scopes, background jobs, chance."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import itertools
import math
import random

import pytest

from gateway.runtime.chance import Chance
from gateway.runtime.clock import SystemClock
from gateway.runtime.scope import DeadlinePassed, DeadlineScope
from gateway.runtime.supervisor import Supervisor
from gateway.runtime.wheel import SPAN_TICKS, SPANS_MAX, Timer, TimerWheel
from tests.simulation.loop import SimulationLoop, simulate


async def test_timers_fire_in_order_and_never_early() -> None:
    clock = SystemClock()
    wheel = TimerWheel(clock, tick_s=0.001)
    start_s, fired = clock.now_s(), list[tuple[float, float]]()
    done = asyncio.Event()
    for delay_s in (0.03, 0.01, 0.02, 0.0):
        wheel.call_at(start_s + delay_s, lambda d=delay_s: fired.append((d, clock.now_s() - start_s)))  # type: ignore[misc]
    wheel.call_at(start_s + 0.04, done.set)
    async with asyncio.timeout(5):
        await done.wait()
    assert [delay_s for delay_s, _ in fired] == [0.0, 0.01, 0.02, 0.03]
    assert all(at_s >= delay_s for delay_s, at_s in fired)


async def test_a_cancelled_timer_is_gone_at_once_and_a_million_leave_no_heap() -> None:
    clock = SystemClock()
    wheel = TimerWheel(clock, tick_s=0.002)
    for _ in range(50_000):
        wheel.call_later(30.0, lambda: None).cancel()
    assert len(wheel) == 0
    assert len(wheel._ticks) < 5000, "cancelled timers must not pile up"


class LoopClock:
    """The virtual time of the loop."""

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    wall_s = now_s


def test_whatever_is_placed_and_cancelled_fires_once_within_a_tick_of_its_instant_or_not_at_all() -> None:
    tick_s = 0.001
    delays_s = (0.0, 0.0004, 0.001, 0.0999, 0.127, 0.128, 0.129, 0.2, 1.0, 4.9, 5.0, 5.0001, 131.0, 131.2, 400.0)

    async def main(loop: SimulationLoop, chance: random.Random) -> None:
        clock = LoopClock()
        wheel, fired, expected = TimerWheel(clock, tick_s), dict[int, float](), dict[int, float]()
        timers: dict[int, Timer] = {}

        def place(number: int) -> None:
            when_s = clock.now_s() + chance.choice(delays_s) + chance.choice((0.0, 0.3 * chance.random()))
            expected[number] = when_s
            timers[number] = wheel.call_at(when_s, lambda: fire(number))

        def fire(number: int) -> None:
            assert number not in fired
            fired[number] = clock.now_s()
            if chance.random() < 0.3:
                place(1000 + number)

        for number in range(200):
            place(number)
            if chance.random() < 0.5:
                gone = chance.choice(sorted(timers))
                timers.pop(gone).cancel()
                if gone not in fired:
                    del expected[gone]
            if chance.random() < 0.3:
                await asyncio.sleep(0.2 * chance.random())
        assert len(wheel) == len(expected.keys() - fired.keys())
        while len(wheel):
            await asyncio.sleep(1.0)
        assert fired.keys() == expected.keys()
        for number, at_s in fired.items():
            assert expected[number] <= at_s + 1e-9
            assert at_s <= expected[number] + tick_s + 1e-9
        assert not wheel._buckets
        assert not wheel._spans

    for seed in range(30):
        simulate(functools.partial(main, chance=random.Random(seed)), seed=seed)


def test_a_callback_that_places_a_timer_for_later_holds_up_none_that_is_due_before() -> None:
    """A link that looked for signs of life, and was to look again in 30 s, had all other timers wait for that."""

    async def main(loop: SimulationLoop) -> None:
        clock, fired = LoopClock(), list[float]()
        wheel, start_s = TimerWheel(clock, 0.001), clock.now_s()
        wheel.call_later(0.01, lambda: wheel.call_later(30.0, lambda: None))
        wheel.call_later(0.02, lambda: fired.append(clock.now_s() - start_s))
        await asyncio.sleep(0.05)
        assert len(fired) == 1
        assert 0.02 - 1e-9 <= fired[0] <= 0.0211
        wheel.close()

    simulate(main, seed=1)


def test_many_timers_for_later_cost_the_wheel_a_bucket_for_each_span_and_not_for_each_tick() -> None:
    async def main(loop: SimulationLoop) -> None:
        wheel = TimerWheel(LoopClock(), 0.001)
        for _ in range(1000):
            wheel.call_later(5.0, lambda: None)
            await asyncio.sleep(0.001)
        assert len(wheel) == 1000
        assert len(wheel._buckets) + len(wheel._spans) <= 1000 // SPAN_TICKS + 2
        wheel.close()
        assert len(wheel) == 0
        wheel.call_later(5.0, lambda: None)
        assert len(wheel) == 1, "what is placed after a close is not put to what is gone"
        wheel.close()

    simulate(main, seed=1)


def test_instants_ever_further_away_leave_no_empty_span_each() -> None:
    """A caller of streams may give each of them another time limit, of up to 999,999,999,999,999,999 hours."""

    async def main(loop: SimulationLoop) -> None:
        wheel = TimerWheel(LoopClock(), 0.001)
        for number in range(20_000):
            wheel.call_later(3600.0 * (1 + number), lambda: None).cancel()
        wheel.call_later(3.6e21, lambda: None)
        assert len(wheel) == 1
        assert len(wheel._spans) <= SPANS_MAX + 1
        assert len(wheel._ticks) <= SPANS_MAX + 1
        await asyncio.sleep(500.0)
        assert len(wheel) == 1
        assert len(wheel._ticks) == 1
        wheel.close()

    simulate(main, seed=1)


@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError])
async def test_a_failing_callback_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    wheel, done = TimerWheel(SystemClock()), asyncio.Event()

    def fail() -> None:
        raise error("no")

    wheel.call_later(0.0, fail)
    wheel.call_later(0.0, done.set)
    async with asyncio.timeout(5):
        await done.wait()
    assert "callback failed" in caplog.text


async def test_a_scope_cuts_its_body_and_nothing_else() -> None:
    clock = SystemClock()
    wheel = TimerWheel(clock)
    with pytest.raises(DeadlinePassed), DeadlineScope(wheel, clock.now_s() + 0.01):
        await asyncio.Event().wait()
    await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    with DeadlineScope(wheel, clock.now_s() + 30):
        await asyncio.sleep(0)
    assert len(wheel) == 0


async def test_a_scope_that_was_left_is_freed_without_the_garbage_collector() -> None:
    """One circle per call had the collector take thousands at a time, and the heap grew around them in a soak."""
    clock = SystemClock()
    wheel = TimerWheel(clock)
    gc.collect()
    others = [each for each in gc.get_objects() if isinstance(each, DeadlineScope)]  # of tests before this one
    gc.disable()
    try:
        with DeadlineScope(wheel, clock.now_s() + 30):
            await asyncio.sleep(0)
        with pytest.raises(DeadlinePassed), DeadlineScope(wheel, clock.now_s() + 0.01):
            await asyncio.Event().wait()
        known = set(map(id, others))
        left = [each for each in gc.get_objects() if isinstance(each, DeadlineScope) and id(each) not in known]
        assert left == []
    finally:
        gc.enable()


async def test_a_timer_that_places_another_while_it_fires_does_not_delay_those_between() -> None:
    wheel, between = TimerWheel(SystemClock()), asyncio.Event()
    wheel.call_later(0.01, lambda: wheel.call_later(60.0, lambda: None))
    wheel.call_later(0.05, between.set)
    async with asyncio.timeout(10):
        await between.wait()
    wheel.close()


async def test_the_inner_of_two_scopes_fires_alone() -> None:
    clock = SystemClock()
    wheel = TimerWheel(clock)
    with DeadlineScope(wheel, clock.now_s() + 30):
        with pytest.raises(DeadlinePassed), DeadlineScope(wheel, clock.now_s() + 0.01):
            await asyncio.Event().wait()
        await asyncio.sleep(0)
    assert len(wheel) == 0


async def test_a_cancellation_from_outside_wins_over_a_scope_that_fires_in_the_same_turn() -> None:
    clock = SystemClock()
    wheel = TimerWheel(clock)
    entered = asyncio.Event()
    at_s = clock.now_s() + 0.05

    async def work() -> None:
        with DeadlineScope(wheel, at_s):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(work())
    await entered.wait()
    wheel.call_at(at_s, task.cancel)
    await asyncio.wait((task,))
    assert task.cancelled(), "the outside asked for an end; it must get one"


def test_a_timer_that_another_of_its_tick_cancels_does_not_fire() -> None:
    async def main(loop: SimulationLoop) -> None:
        wheel, fired, timers = TimerWheel(LoopClock(), 0.001), list[int](), list[Timer]()

        def fire(number: int) -> None:
            fired.append(number)
            timers[1 - number].cancel()

        timers += [wheel.call_at(1.0, functools.partial(fire, number)) for number in (0, 1)]
        await asyncio.sleep(2.0)
        assert fired == [0]
        assert len(wheel) == 0

    simulate(main, seed=1)


async def test_a_scope_of_a_task_that_was_cancelled_before_and_went_on_still_cuts() -> None:
    clock, asked = SystemClock(), asyncio.Event()
    wheel = TimerWheel(clock)

    async def work() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            asked.set()
            await asyncio.Event().wait()
        with pytest.raises(DeadlinePassed), DeadlineScope(wheel, clock.now_s() + 0.01):
            await asyncio.Event().wait()

    task = asyncio.ensure_future(work())
    await asked.wait()
    task.cancel()
    await asyncio.wait_for(task, 20)
    assert task.cancelling() == 1, "that one was somebody else's"


async def test_what_a_body_raises_instead_of_its_cancellation_goes_on() -> None:
    clock, task = SystemClock(), asyncio.current_task()
    assert task is not None

    async def raises_another() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise LookupError from None

    with pytest.raises(LookupError), DeadlineScope(TimerWheel(clock), clock.now_s() + 0.01):
        await raises_another()
    assert task.cancelling() == 0


async def test_a_scope_without_an_end_waits_for_nothing() -> None:
    wheel = TimerWheel(SystemClock())
    with DeadlineScope(wheel, math.inf):
        await asyncio.sleep(0)
        assert len(wheel) == 0


async def test_a_background_job_comes_back_after_a_crash_and_after_a_strangers_cancel() -> None:
    supervisor, starts = Supervisor(restart_delay_s=0.001), list[int]()
    third = asyncio.Event()

    async def job() -> None:
        starts.append(len(starts))
        if len(starts) == 1:
            raise RuntimeError("crash")
        if len(starts) == 3:
            third.set()
        await asyncio.Event().wait()

    supervisor.start("job", job)
    async with asyncio.timeout(10):
        while len(starts) < 2:
            await asyncio.sleep(0.001)
        supervisor._tasks["job"].cancel()
        await third.wait()
    assert supervisor.statistics(0.0) == {"running": ["job"], "restarts": {"job": 2}}
    await supervisor.stop_all()
    assert supervisor.statistics(0.0) == {"running": [], "restarts": {}}


async def test_a_job_that_returns_is_done_and_one_name_runs_once() -> None:
    supervisor, block = Supervisor(), asyncio.Event()

    async def short() -> None:
        await block.wait()

    supervisor.start("short", short)
    with pytest.raises(ValueError, match="running already"):
        supervisor.start("short", short)
    block.set()
    async with asyncio.timeout(5):
        while supervisor.running("short"):
            await asyncio.sleep(0)


def test_streams_of_chance_do_not_disturb_one_another() -> None:
    first = Chance(7)
    a = [first.stream("a").random() for _ in range(2)]
    second = Chance(7)
    second.stream("b").random()
    assert [second.stream("a").random() for _ in range(2)] == a
    assert a[0] == a[1], "a stream starts anew each time it is derived"
    assert Chance(8).stream("a").random() != a[0]


def test_pauses_grow_with_each_crash_and_begin_anew_after_a_long_life() -> None:
    """On a virtual clock: pauses of 1, 2, 4, ... 64 s, and again 1 s once a life was longer than the longest pause."""

    async def main(loop: SimulationLoop) -> list[float]:
        supervisor, begun, done = Supervisor(restart_delay_s=1.0), list[float](), asyncio.Event()
        lives_s = [0.0] * 9 + [65.0, 0.0]

        async def job() -> None:
            begun.append(loop.time())
            if len(begun) > len(lives_s):
                done.set()
                await asyncio.Event().wait()
            await asyncio.sleep(lives_s[len(begun) - 1])
            raise RuntimeError("crash")

        supervisor.start("job", job)
        await done.wait()
        await supervisor.stop_all()
        return [later - earlier for earlier, later in itertools.pairwise(begun)]

    assert simulate(main, time_limit_s=1e6) == [1, 2, 4, 8, 16, 32, 64, 64, 64, 66, 2]
