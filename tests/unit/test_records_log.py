"""The record log: bounds, counts that add up, and a store that hangs, fails and comes back (field case FH-21)."""

from __future__ import annotations

import asyncio
import errno
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from gateway.core.errors import GatewayError, Reason
from gateway.policy.schema import RecordsPolicy
from gateway.records.log import RecordLog
from gateway.records.memory_store import MemoryStore
from gateway.records.record import FIXED_BYTES
from gateway.records.store import RecordStore
from gateway.runtime.clock import SystemClock
from gateway.runtime.supervisor import Supervisor
from gateway.runtime.workers import InlineWorkers, ThreadWorkers, Workers
from tests.support.waiting import until
from tests.unit.records_support import FaultyStore, no_space, record, request

KIB = 1024
T = TypeVar("T")


def policy(**changes: int) -> RecordsPolicy:
    given = {"flush_interval_ms": 1, "fsync_interval_ms": 1, "queue_records_max": 100} | changes
    return RecordsPolicy(**given)  # type: ignore[arg-type]


@asynccontextmanager
async def running(
    store: RecordStore, workers: Workers | None = None, close_s: float = 5.0, **changes: int
) -> AsyncIterator[RecordLog]:
    async with asyncio.timeout(30):
        log = RecordLog(policy(**changes), SystemClock(), workers or InlineWorkers(), store)
        supervisor = Supervisor(restart_delay_s=0.001)
        log.start(supervisor)
        try:
            yield log
        finally:
            await log.aclose(close_s)
            await supervisor.stop_all()


def counts(log: RecordLog) -> dict[str, Any]:
    now = dict(log.statistics(100.0))
    assert now["balanced"], now
    return now


def idle(limits: RecordsPolicy, store: RecordStore | None = None) -> RecordLog:
    """A log whose writer does not run."""
    return RecordLog(limits, SystemClock(), InlineWorkers(), store or MemoryStore())


async def test_what_is_offered_is_written_in_order_and_synced() -> None:
    store = FaultyStore()
    async with running(store) as log:
        for number in range(50):
            assert log.offer(record(number))
        await until(lambda: counts(log)["written"] == 50)
        await until(lambda: store.syncs > 0)
    assert [json.loads(line)["request_id"] for line in store.lines] == [f"r-{number}" for number in range(50)]
    assert store.closed


async def test_over_the_bound_in_records_the_newest_are_dropped_counted_and_told_of() -> None:
    store = MemoryStore()
    log = idle(policy(queue_records_max=10), store)
    assert [log.offer(record(number)) for number in range(13)] == [True] * 10 + [False] * 3
    assert counts(log)["dropped"] == {"queue_records": 3}
    last = await log.aclose()
    assert (last["offered"], last["written"], last["dropped"]) == (13, 10, {"queue_records": 3})
    lines = [json.loads(line) for line in store.lines]
    assert [line["dropped"] for line in lines if "dropped" in line] == [3]
    assert [line["request_id"] for line in lines if "dropped" not in line] == [f"r-{number}" for number in range(10)]


async def test_over_three_quarters_of_the_bytes_records_are_kept_without_bodies_and_over_all_dropped() -> None:
    store = MemoryStore()
    log = idle(policy(queue_records_max=1000, queue_bytes_max=64 * KIB), store)
    message = request(("x", "FP32", (1000,), bytes(4000)))
    taken = 0
    while log.offer(record(taken, message=message)):
        taken += 1
        assert counts(log)["queued_bytes"] <= 64 * KIB
    now = counts(log)
    assert now["dropped"] == {"queue_bytes": 1}
    assert 0 < now["thinned"]["no_room"] < taken
    await log.aclose()
    shown = [json.loads(line) for line in store.lines if b'"dropped"' not in line]
    assert len(shown) == taken
    assert [line["input"].get("omitted") for line in shown].count("no_room") == now["thinned"]["no_room"]
    assert all(line["version"] == "2" and line["attempts"][0]["replica"] for line in shown)


async def test_a_body_that_is_too_large_is_not_held() -> None:
    log = idle(policy(queue_bytes_max=64 * KIB))
    assert log.offer(record(message=bytes(9 * KIB)))
    assert counts(log)["queued_bytes"] == FIXED_BYTES
    assert counts(log)["thinned"] == {"too_large": 1}
    await log.aclose()


async def test_a_hanging_store_holds_nobody_up_and_memory_stays_level() -> None:
    store = FaultyStore()
    workers = ThreadWorkers(2, "test-records")
    try:
        async with running(store, workers, queue_records_max=1000, queue_bytes_max=256 * KIB) as log:
            store.gate.clear()
            message = request(("x", "FP32", (500,), bytes(2000)))
            for number in range(5000):
                log.offer(record(number, message=message))
                if number % 500 == 0:
                    await asyncio.sleep(0)
                assert log.statistics(0)["queued_bytes"] <= 256 * KIB
            stuck = counts(log)
            assert stuck["written"] == 0
            assert sum(stuck["dropped"].values()) + stuck["queued"] == 5000
            store.gate.set()
            await until(lambda: counts(log)["queued"] == 0)
            assert log.offer(record(9999))
            await until(lambda: counts(log)["queued"] == 0)
            done = counts(log)
        lines = [json.loads(line) for line in store.lines]
        told = sum(line["dropped"] for line in lines if "dropped" in line)
        assert told == sum(done["dropped"].values())
        assert done["written"] == sum("dropped" not in line for line in lines)
        assert done["written"] + told == done["offered"] == 5001
    finally:
        store.gate.set()
        await workers.aclose(5.0)


async def test_a_store_that_hangs_until_the_end_does_not_stop_the_end() -> None:
    store = FaultyStore()
    workers = ThreadWorkers(2, "test-records")
    try:
        store.gate.clear()
        log = RecordLog(policy(), SystemClock(), workers, store)
        supervisor = Supervisor()
        log.start(supervisor)
        for number in range(20):
            log.offer(record(number))
        await until(lambda: store.appends > 0)
        async with asyncio.timeout(10):
            last = await log.aclose(0.05)
        assert last["balanced"]
        assert (last["written"], last["dropped"]) == (0, {"unwritten": 20})
        assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    finally:
        store.gate.set()
        await workers.aclose(5.0)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (no_space(), "no_space"),
        (PermissionError(errno.EACCES, "Permission denied"), "permission"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), "missing"),
        (OSError(errno.EIO, "Input/output error"), "io"),
        (ValueError("a defect of the store's"), "io"),
    ],
    ids=["no_space", "permission", "missing", "io", "defect"],
)
async def test_a_failing_store_is_tried_again_counted_by_reason_and_recovers(fault: Exception, reason: str) -> None:
    store = FaultyStore()
    store.fault = fault
    async with running(store, queue_records_max=30) as log:
        for number in range(40):
            log.offer(record(number))
        await until(lambda: counts(log)["failures"].get(reason, 0) >= 2)
        assert counts(log)["failing"]
        assert counts(log)["written"] == 0
        store.fault = None
        await until(lambda: counts(log)["queued"] == 0)
        await until(lambda: not counts(log)["failing"])
        now = counts(log)
        assert (now["written"], now["dropped"]) == (30, {"queue_records": 10})
    shown = [json.loads(line) for line in store.lines]
    assert [line["request_id"] for line in shown if "dropped" not in line] == [f"r-{number}" for number in range(30)]


async def test_a_failing_sync_is_counted_and_stops_nothing() -> None:
    store = FaultyStore()
    store.sync_fault = OSError(errno.EIO, "Input/output error")
    async with running(store) as log:
        log.offer(record())
        await until(lambda: counts(log)["failures"].get("fsync", 0) > 0)
        log.offer(record())
        await until(lambda: counts(log)["written"] == 2)


async def test_after_a_failure_in_the_middle_of_a_batch_nothing_is_lost_or_doubled() -> None:
    class Flaky(MemoryStore):
        appends = 0

        def append(self, lines: bytes) -> None:
            self.appends += 1
            if self.appends % 2 == 0:
                raise no_space()
            super().append(lines)

    store = Flaky()
    async with running(store, queue_records_max=500) as log:
        for number in range(200):
            log.offer(record(number, message=request(("x", "FP32", (600,), bytes(2400))), tensors="full"))
        await until(lambda: counts(log)["queued"] == 0)
    assert [json.loads(line)["request_id"] for line in store.lines] == [f"r-{number}" for number in range(200)]
    assert store.appends > 2


async def test_a_flush_job_that_is_cancelled_in_the_middle_of_a_write_doubles_nothing() -> None:
    store = FaultyStore()
    workers = ThreadWorkers(2, "test-records")
    try:
        log = RecordLog(policy(), SystemClock(), workers, store)
        supervisor = Supervisor(restart_delay_s=0.001)
        log.start(supervisor)
        store.gate.clear()
        log.offer(record(1))
        await until(lambda: store.appends == 1)
        for task in asyncio.all_tasks():
            if task.get_name() == "sluice:records-flush":
                task.cancel()
        await asyncio.sleep(0.01)
        log.offer(record(2))
        store.gate.set()
        await until(lambda: counts(log)["written"] == 2)
        await log.aclose()
        assert [json.loads(line)["request_id"] for line in store.lines] == ["r-1", "r-2"]
    finally:
        store.gate.set()
        await workers.aclose(5.0)


async def test_a_record_that_cannot_be_rendered_leaves_a_line_without_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    log = idle(policy(), store)

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("gateway.records.render.Renderer._side", broken)
    log.offer(record(7))
    last = await log.aclose()
    assert last["written"] == 1
    assert json.loads(store.lines[0])["input"]["omitted"] == "render_failed"


async def test_a_record_that_cannot_be_rendered_at_all_is_counted_as_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    log = idle(policy(), store)

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("gateway.records.render.Renderer._fields", broken)
    log.offer(record(7))
    last = await log.aclose()
    assert (last["written"], last["dropped"], last["balanced"]) == (0, {"render": 1}, True)
    assert [json.loads(line)["dropped"] for line in store.lines] == [1]


async def test_after_the_end_offers_are_dropped_and_reservations_refused() -> None:
    log = idle(policy())
    held = log.reserve()
    await log.aclose()
    assert not log.offer(record())
    assert not held.use(record())
    assert counts(log)["dropped"] == {"closed": 2}
    with pytest.raises(GatewayError) as refused:
        log.reserve()
    assert refused.value.reason is Reason.RECORD_FULL


async def test_a_mandatory_record_has_its_room_before_the_call_runs() -> None:
    store = MemoryStore()
    log = idle(policy(queue_records_max=2), store)
    first, second = log.reserve(), log.reserve()
    with pytest.raises(GatewayError) as refused:
        log.reserve()
    assert refused.value.reason is Reason.RECORD_FULL
    assert not log.offer(record(0)), "room that was claimed is not given to others"
    second.release()
    log.reserve().release()
    assert log.offer(record(1))
    assert first.use(record(2)), "whatever came in between"
    for ended in (first.release, second.release, lambda: first.use(record())):
        with pytest.raises(RuntimeError):
            ended()
    last = await log.aclose()
    assert (last["offered"], last["written"], last["reserved"], last["queued_bytes"]) == (3, 2, 0, 0)


async def test_a_reserved_record_is_kept_without_its_body_rather_than_over_the_bound() -> None:
    log = idle(policy(queue_records_max=1000, queue_bytes_max=64 * KIB))
    held = [log.reserve() for _ in range(64 * KIB // FIXED_BYTES)]
    with pytest.raises(GatewayError):
        log.reserve()
    for number, each in enumerate(held):
        assert each.use(record(number, message=bytes(4000)))
        assert counts(log)["queued_bytes"] <= 64 * KIB
    assert counts(log)["queued"] == len(held)
    await log.aclose()


async def test_room_that_is_only_reserved_makes_the_writer_write_nothing() -> None:
    class Counting(InlineWorkers):
        jobs = 0

        async def run(self, work: Callable[[], T]) -> T:
            self.jobs += 1
            await asyncio.sleep(0)
            return await super().run(work)

    workers, store = Counting(), MemoryStore()
    async with running(store, workers, queue_records_max=5000, fsync_interval_ms=0) as log:
        held = [log.reserve() for _ in range(4 * 1024 * KIB // FIXED_BYTES + 1)]
        assert log.offer(record(1))
        await until(lambda: counts(log)["written"] == 1)
        for _ in range(50):
            await asyncio.sleep(0)
        assert workers.jobs == 1
        for each in held:
            each.release()


async def test_offer_and_reserve_never_wait_while_a_write_is_out() -> None:
    store = FaultyStore()
    workers = ThreadWorkers(2, "test-records")
    try:
        async with running(store, workers) as log:
            store.gate.clear()
            log.offer(record())
            await until(lambda: store.appends == 1)
            assert threading.current_thread() is threading.main_thread()
            for number in range(10):
                assert log.offer(record(number))
            log.reserve().release()
            store.gate.set()
    finally:
        store.gate.set()
        await workers.aclose(5.0)


async def test_readings_carry_the_counts() -> None:
    log = idle(policy(queue_records_max=1))
    log.offer(record())
    log.offer(record())
    readings = {(name, labels): value for name, labels, value in log.readings(101.011)}
    assert readings["sluice_records_dropped_total", ("queue_records",)] == 1
    assert readings["sluice_records_queued", ()] == 1
    assert readings["sluice_records_oldest_age_seconds", ()] == pytest.approx(1.0)
    await log.aclose()
