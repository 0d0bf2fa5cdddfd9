"""How long a finished call's record may wait for its line to be written, on a moved clock."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from gateway.policy.schema import RecordsPolicy
from gateway.records.file_store import FileStore
from gateway.records.log import RecordLog
from gateway.records.memory_store import MemoryStore
from gateway.runtime.supervisor import Supervisor
from tests.simulation.loop import SimulationLoop, simulate
from tests.simulation.run import VirtualClock
from tests.unit.records_support import record

T = TypeVar("T")
FLUSH_S = 0.05


class SlowWorkers:
    """Work is done at the end of `takes_s`, as by a disk that is slow."""

    def __init__(self, takes_s: float) -> None:
        self.takes_s = takes_s

    async def run(self, work: Callable[[], T]) -> T:
        await asyncio.sleep(self.takes_s)
        return work()

    async def aclose(self, limit_s: float) -> bool:
        return True


class Dated(MemoryStore):
    """Notes when each record was written, by its request id."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.written_s: dict[str, float] = {}
        self._loop = loop

    def append(self, lines: bytes) -> None:
        super().append(lines)
        for line in lines.splitlines():
            self.written_s[json.loads(line)["request_id"]] = self._loop.time()


def longest_wait_s(takes_s: float, between_s: float, seed: int) -> float:
    """Of some seconds of records, one every `between_s`, but for the first ones, whose write tells what one takes."""

    async def main(loop: SimulationLoop) -> float:
        store = Dated(loop)
        log = RecordLog(RecordsPolicy(), VirtualClock(loop), SlowWorkers(takes_s), store)
        supervisor = Supervisor()
        log.start(supervisor)
        offered_s = {}
        for number in range(400):
            assert log.offer(record(number))
            offered_s[f"r-{number}"] = loop.time()
            await asyncio.sleep(between_s)
        await log.aclose()
        await supervisor.stop_all()
        assert store.written_s.keys() == offered_s.keys()
        begun_s = offered_s["r-0"] + 2 * FLUSH_S
        return max(store.written_s[name] - at_s for name, at_s in offered_s.items() if at_s > begun_s)

    return simulate(main, seed=seed)


@pytest.mark.parametrize("takes_ms", [0, 2, 5, 10, 15])
@pytest.mark.parametrize("between_ms", [1.0, 3.3, 40.0, 71.0])
def test_a_record_is_written_within_the_flush_interval_though_the_store_takes_its_time(
    takes_ms: int, between_ms: float
) -> None:
    assert longest_wait_s(takes_ms / 1000, between_ms / 1000, seed=1) <= FLUSH_S + 0.002


def test_what_fills_a_batch_does_not_wait_for_the_interval() -> None:
    async def main(loop: SimulationLoop) -> None:
        limits = RecordsPolicy(flush_interval_ms=1000, queue_records_max=1500)
        log = RecordLog(limits, VirtualClock(loop), SlowWorkers(0.001), MemoryStore())
        supervisor = Supervisor()
        log.start(supervisor)
        for number in range(7500):
            log.offer(record(number))
            await asyncio.sleep(0.0004)
        now = await log.aclose()
        await supervisor.stop_all()
        assert (now["written"], now["dropped"]) == (7500, {})

    simulate(main)


def test_a_store_that_was_closed_takes_nothing_and_stays_closed(tmp_path: Path) -> None:
    store = FileStore(tmp_path, file_bytes_max=1_000_000, files_max=3, wall_s=lambda: 0.0)
    store.open()
    store.append(b"{}\n")
    store.close()
    with pytest.raises(OSError, match="closed"):
        store.append(b"{}\n")
    other = FileStore(tmp_path, file_bytes_max=1_000_000, files_max=3, wall_s=lambda: 1.0)
    other.open()  # the directory is free
    other.close()
    assert sum(path.read_bytes().count(b"\n") for path in tmp_path.glob("*.jsonl")) == 1
