"""The simulated event loop keeps asyncio's contract, and turns what asyncio only logs into failures."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import random
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.simulation.loop import START_S, Deadlock, Leftover, Livelock, Overtime, Refused, SimulationLoop, simulate

SEEDS = range(20)


def test_time_stands_still_while_work_is_ready_and_jumps_to_the_earliest_timer() -> None:
    async def main(loop: SimulationLoop) -> list[float]:
        seen = []
        for _ in range(50):
            await asyncio.sleep(0)
        seen.append(loop.time() - START_S)
        await asyncio.gather(asyncio.sleep(5.0), asyncio.sleep(2.5))
        seen.append(loop.time() - START_S)
        loop.call_later(1.0, seen.append, -1.0).cancel()
        await asyncio.sleep(3600.0 * 10)
        seen.append(loop.time() - START_S)
        return seen

    assert simulate(main, time_limit_s=1e6) == [0.0, 5.0, 36005.0]


def test_the_tools_of_asyncio_work_unmodified() -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)

    async def main(loop: SimulationLoop) -> list[object]:
        seen: list[object] = []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.25):
                await asyncio.Event().wait()
        seen.append(loop.time() - START_S)
        queue: asyncio.Queue[int] = asyncio.Queue(1)

        async def produce() -> None:
            variable.set(7)
            for number in range(3):
                await queue.put(number)

        async def consume() -> None:
            while len(seen) < 4:
                item = await queue.get()
                seen.append((item, variable.get()))

        async with asyncio.TaskGroup() as group:
            group.create_task(produce())
            group.create_task(consume())

        async def group_that_fails() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(60))
                group.create_task(_fail())

        with pytest.raises(ExceptionGroup):
            await group_that_fails()
        done, pending = await asyncio.wait([asyncio.ensure_future(asyncio.sleep(1))], timeout=2)
        seen.append((len(done), len(pending)))
        async with asyncio.Lock(), asyncio.Semaphore(1):
            seen.append(await asyncio.shield(asyncio.sleep(0, "shielded")))
        return seen

    for seed in SEEDS:
        assert simulate(main, seed=seed) == [0.25, (0, 0), (1, 0), (2, 0), (1, 0), "shielded"]


async def _fail() -> None:
    raise ValueError("planted")


def test_one_seed_gives_one_order_and_different_seeds_give_different_ones() -> None:
    async def main(loop: SimulationLoop) -> tuple[int, ...]:
        order: list[int] = []

        async def work(number: int) -> None:
            await asyncio.sleep(0)
            order.append(number)

        await asyncio.gather(*(work(number) for number in range(6)))
        return tuple(order)

    orders = {simulate(main, seed=seed) for seed in SEEDS}
    assert len(orders) > 10
    for seed in SEEDS:
        assert simulate(main, seed=seed) == simulate(main, seed=seed)
    assert simulate(main, seed=None) == (0, 1, 2, 3, 4, 5), "without a seed the order is asyncio's"


class Protocol:
    def __init__(self, log: list[tuple[str, int]], name: str) -> None:
        self.log, self.name = log, name

    def data_received(self, number: int) -> None:
        self.log.append((self.name, number))


def test_callbacks_of_one_object_keep_their_order_while_objects_interleave() -> None:
    async def main(loop: SimulationLoop) -> list[tuple[str, int]]:
        log: list[tuple[str, int]] = []
        first, second = Protocol(log, "a"), Protocol(log, "b")
        for number in range(4):
            loop.call_soon(first.data_received, number)
            loop.call_soon(functools.partial(second.data_received, number))
        await asyncio.sleep(0.001)
        return log

    logs = [simulate(main, seed=seed) for seed in SEEDS]
    for log in logs:
        for name in "ab":
            assert [number for who, number in log if who == name] == [0, 1, 2, 3]
    assert len({tuple(log) for log in logs}) > 10


def test_plain_functions_run_in_the_order_of_call_soon() -> None:
    async def main(loop: SimulationLoop) -> list[int]:
        log: list[int] = []
        for number in range(8):
            loop.call_soon(lambda number=number: log.append(number))  # type: ignore[misc]
        await asyncio.sleep(0.001)
        return log

    for seed in SEEDS:
        assert simulate(main, seed=seed) == list(range(8))


def test_what_a_turn_schedules_runs_after_everything_that_was_ready_in_that_turn() -> None:
    async def main(loop: SimulationLoop) -> list[str]:
        log: list[str] = []

        async def work(name: str) -> None:
            log.append(f"{name}1")
            await asyncio.sleep(0)
            log.append(f"{name}2")

        await asyncio.gather(work("a"), work("b"), work("c"))
        return log

    for seed in SEEDS:
        log = simulate(main, seed=seed)
        assert {line[1] for line in log[:3]} == {"1"}, f"seed {seed} starved a ready task: {log}"


def test_a_callback_cancelled_within_its_own_turn_does_not_run() -> None:
    async def main(loop: SimulationLoop) -> list[str]:
        log: list[str] = []
        handles: list[asyncio.Handle] = []
        handles.append(loop.call_soon(lambda: handles[1].cancel()))
        handles.append(loop.call_soon(lambda: log.append("ran")))
        await asyncio.sleep(0.001)
        return log

    assert simulate(main, seed=3) == []


def test_the_order_in_which_a_task_group_cancels_its_children_is_a_matter_of_the_seed_alone() -> None:
    async def main(loop: SimulationLoop) -> list[int]:
        order: list[int] = []
        clutter = [object() for _ in range(random.randrange(2000))]

        async def child(number: int) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                order.append(number)

        async def group_that_fails() -> None:
            async with asyncio.TaskGroup() as group:
                clutter.extend(group.create_task(child(number)) for number in range(12))
                await asyncio.sleep(0)
                group.create_task(_fail())

        with pytest.raises(ExceptionGroup):
            await group_that_fails()
        return order

    for seed in SEEDS:
        assert simulate(main, seed=seed) == simulate(main, seed=seed) == simulate(main, seed=seed)


def test_late_timers_fire_late_but_never_early_and_by_less_than_the_bound() -> None:
    async def main(loop: SimulationLoop) -> list[float]:
        late = []
        for _ in range(100):
            due_s = loop.time() + 0.01
            await asyncio.sleep(0.01)
            late.append(loop.time() - due_s)
        return late

    late = simulate(main, lateness_s=0.004)
    assert all(0.0 <= value < 0.004 for value in late)
    assert max(late) > 0.002


def test_a_main_task_that_nothing_can_wake_is_a_deadlock_that_names_seed_and_place() -> None:
    async def main(loop: SimulationLoop) -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match=r"seed 77: .*main at .*test_simulation_loop.py"):
        simulate(main, seed=77)


def test_endless_work_at_one_instant_is_a_livelock_that_names_the_seed() -> None:
    async def main(loop: SimulationLoop) -> None:
        def again() -> None:
            loop.call_soon(again)

        again()
        await asyncio.Event().wait()

    with pytest.raises(Livelock, match=r"seed 78: \d+ callbacks"):
        simulate(main, seed=78, callbacks_per_instant=1000)


def test_a_wait_that_only_background_timers_outlive_is_overtime() -> None:
    async def main(loop: SimulationLoop) -> None:
        async def tick() -> None:
            for _ in range(1000):
                await asyncio.sleep(0.25)

        ticking = loop.create_task(tick())
        try:
            await asyncio.Event().wait()
        finally:
            ticking.cancel()

    with pytest.raises(Overtime, match=r"seed 79: .*10 s; .*main"):
        simulate(main, seed=79, time_limit_s=10.0)


async def _thread(loop: SimulationLoop) -> None:
    await asyncio.to_thread(int)


async def _executor(loop: SimulationLoop) -> None:
    await loop.run_in_executor(None, int)


async def _connection(loop: SimulationLoop) -> None:
    await asyncio.open_connection("127.0.0.1", 9)


async def _server(loop: SimulationLoop) -> None:
    await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)


async def _datagram(loop: SimulationLoop) -> None:
    await loop.create_datagram_endpoint(asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0))


async def _names(loop: SimulationLoop) -> None:
    await loop.getaddrinfo("localhost", 80)


async def _subprocess(loop: SimulationLoop) -> None:
    await asyncio.create_subprocess_exec("true")


async def _reader(loop: SimulationLoop) -> None:
    loop.add_reader(0, int)


async def _signal(loop: SimulationLoop) -> None:
    loop.add_signal_handler(15, int)


@pytest.mark.parametrize(
    "touch", [_thread, _executor, _connection, _server, _datagram, _names, _subprocess, _reader, _signal]
)
def test_whatever_touches_the_real_world_is_refused_with_the_way_out(
    touch: Callable[[SimulationLoop], Any],
) -> None:
    with pytest.raises(Refused, match=r"seed 5: .* take it through a face"):
        simulate(touch, seed=5)


def test_a_callback_from_another_thread_is_refused() -> None:
    async def main(loop: SimulationLoop) -> list[BaseException]:
        errors: list[BaseException] = []

        def other() -> None:
            try:
                loop.call_soon_threadsafe(int)
            except Refused as error:
                errors.append(error)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        loop.call_soon_threadsafe(int)
        return errors

    assert len(simulate(main)) == 1


async def _leave_a_task(loop: SimulationLoop) -> None:
    loop.create_task(asyncio.sleep(60), name="forgotten")
    await asyncio.sleep(0)


async def _leave_an_error(loop: SimulationLoop) -> None:
    loop.create_task(_fail())
    await asyncio.sleep(1)


async def _leave_a_coroutine(loop: SimulationLoop) -> None:
    _fail()  # type: ignore[unused-coroutine]


async def _fail_in_a_callback(loop: SimulationLoop) -> None:
    loop.call_soon(lambda: 1 / 0)
    await asyncio.sleep(1)


@pytest.mark.parametrize(
    ("main", "text"),
    [
        (_leave_a_task, "task left over: forgotten"),
        (_leave_an_error, "exception was never retrieved: ValueError: planted"),
        (_leave_a_coroutine, "'_fail' was never awaited"),
        (_fail_in_a_callback, "ZeroDivisionError"),
    ],
)
def test_what_asyncio_would_only_log_fails_the_run(main: Callable[[SimulationLoop], Any], text: str) -> None:
    with pytest.raises(Leftover, match=f"(?s)seed 9: .*{text}"):
        simulate(main, seed=9)


def test_a_failed_run_leaves_nothing_for_the_next_one() -> None:
    async def main(loop: SimulationLoop) -> None:
        waiting: Awaitable[None] = asyncio.sleep(3)
        loop.create_task(asyncio.Event().wait())
        await waiting
        raise KeyError("planted")

    for _ in range(3):
        with pytest.raises(KeyError):
            simulate(main)
    assert simulate(_nothing) is None


async def _nothing(loop: SimulationLoop) -> None:
    await asyncio.sleep(1)
