"""RecordLog: takes a record at once or refuses it at once, and has it written by a worker.

Bounded in records and in bytes, what is being written included. The rule at the bounds (field case FH-21):

- a record whose bodies are over an eighth of `queue_bytes_max` is kept without them, and so is any record while more
  than three quarters of `queue_bytes_max` wait: bodies go first, records last;
- over either bound the newest record is dropped and counted, and once there is room a line says how many are missing;
- a call whose policy says `mandatory` claims its room before it runs (`reserve`) and is refused if there is none.

A store that is slow, full, gone or frozen delays nobody: it fills the queue. Writes that fail are tried again, with
pauses from 0.1 s doubling to 5 s. Every record offered ends as exactly one of written or dropped.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.core.errors import GatewayError, Reason
from gateway.observe.table import Reading
from gateway.records.block import Block, Waiting, made_together, record_count
from gateway.records.gathering import Gathering
from gateway.records.quick import QuickRenderer
from gateway.records.record import FIXED_BYTES, PredictionRecord
from gateway.records.render import Renderer, dropped_line
from gateway.records.store import RecordStore, failure_reason
from gateway.runtime.clock import Clock
from gateway.runtime.supervisor import Supervisor
from gateway.runtime.workers import Workers

_log = logging.getLogger("sluice.records")

_BATCH_RECORDS = 512
_BATCH_BYTES = 4 * 1024 * 1024
_CHUNK_BYTES = 128 * 1024
_LINES_PER_BREATH = 64
_TOGETHER = 32
"""Calls that ended, whose lines are made in one go. One by one, what making a line needs would have left the
processor's caches by the time that the next call has ended.
"""
_LARGE_BYTES = _BATCH_BYTES // _TOGETHER  # from here on, so few records fill a batch that each one is looked at
_BACKOFF_FIRST_S = 0.1
_BACKOFF_MAX_S = 5.0
_DROP_LINE_EVERY_S = 1.0
_JOBS = ("records-flush", "records-sync")


class Limits(Protocol):
    """What of the policy's `records` section the log needs."""

    @property
    def queue_records_max(self) -> int: ...
    @property
    def queue_bytes_max(self) -> int: ...
    @property
    def flush_interval_ms(self) -> int: ...
    @property
    def fsync_interval_ms(self) -> int: ...


class Reservation:
    """Room for one record, claimed before its call runs. Ends by `use` or by `release`, exactly once."""

    __slots__ = ("_log",)

    def __init__(self, log: RecordLog) -> None:
        self._log: RecordLog | None = log

    def use(self, record: PredictionRecord) -> bool:
        """Put the record where the room is. False only if the log was closed meanwhile."""
        return self._end()._redeem(record)

    def release(self) -> None:
        """Give the room back: there is no record."""
        self._end()._unreserve()

    def _end(self) -> RecordLog:
        log, self._log = self._log, None
        if log is None:
            raise RuntimeError("a reservation ends once; this one was used or released before")
        return log


@dataclass(slots=True)
class _Drops:
    """Dropped records that no line tells of yet."""

    since_wall_s: float
    reasons: dict[str, int]


@dataclass(frozen=True, slots=True)
class _Written:
    """What a worker did with a batch: the first `done` of it are done with, `unrenderable` records without a line."""

    done: int
    unrenderable: int
    told: bool
    error: OSError | None


class RecordLog:
    """The log of prediction records.

    Its methods are for the event loop's thread. `workers` should have two threads, so that a slow fsync does not hold
    up the writing. `breathe` is called between lines, in the worker.
    """

    __slots__ = (  # without them, so many attributes are slow
        "_body_max", "_breathe", "_bytes", "_bytes_max", "_clock", "_closed", "_dirty", "_drop_line_s", "_dropped",
        "_drops", "_failing", "_failures", "_fresh", "_fsync_s", "_gathering", "_loop", "_offered", "_pause_s",
        "_queue", "_quick", "_records_max", "_renderer", "_reserved", "_store", "_supervisor", "_thin_above",
        "_thinned", "_waiting", "_wake", "_workers", "_writing", "_written",
    )  # fmt: skip

    def __init__(
        self,
        limits: Limits,
        clock: Clock,
        workers: Workers,
        store: RecordStore,
        *,
        breathe: Callable[[], None] | None = None,
    ) -> None:
        self._clock, self._workers, self._store, self._breathe = clock, workers, store, breathe
        self._renderer = Renderer()
        self._quick = QuickRenderer(self._renderer)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._fresh: list[PredictionRecord] = []
        """The newest ones, behind those of `_queue`."""
        self._records_max = limits.queue_records_max
        self._bytes_max = limits.queue_bytes_max
        self._thin_above = limits.queue_bytes_max * 3 // 4
        self._body_max = limits.queue_bytes_max // 8
        self._gathering = Gathering(limits.flush_interval_ms / 1000, clock)
        self._fsync_s = limits.fsync_interval_ms / 1000
        self._queue: deque[Waiting] = deque()
        self._waiting = self._bytes = self._reserved = 0
        self._wake, self._dirty = asyncio.Event(), asyncio.Event()
        self._writing: asyncio.Task[bool] | None = None
        self._supervisor: Supervisor | None = None
        self._closed = False
        self._drops: _Drops | None = None
        self._drop_line_s = float("-inf")
        self._offered = self._written = 0
        self._dropped: dict[str, int] = {}
        self._thinned: dict[str, int] = {}
        self._failures: dict[str, int] = {}
        self._failing = False
        self._pause_s = 0.0

    # --- the request path -----------------------------------------------------------------------------------------

    def offer(self, record: PredictionRecord) -> bool:
        """Take the record, or drop it and count that. Never waits, never raises."""
        self._offered += 1
        if self._closed:
            return self._drop("closed")
        if self._waiting + self._reserved >= self._records_max:
            return self._drop("queue_records")
        size = record.size_bytes
        if size > self._body_max or self._bytes + size > self._thin_above:
            self._thin(record)
            if self._bytes + record.size_bytes > self._bytes_max:
                return self._drop("queue_bytes")
        return self._keep(record)

    def reserve(self) -> Reservation:
        """Claim room for one record. Raises `GatewayError` (RECORD_FULL) if there is none."""
        if (
            self._closed
            or self._waiting + self._reserved >= self._records_max
            or self._bytes + FIXED_BYTES > self._bytes_max
        ):
            raise GatewayError(
                Reason.RECORD_FULL,
                "this model's policy demands a prediction record and the record log has no room; try again shortly",
            )
        self._reserved += 1
        self._bytes += FIXED_BYTES
        return Reservation(self)

    def _redeem(self, record: PredictionRecord) -> bool:
        self._offered += 1
        self._unreserve()
        if self._closed:
            return self._drop("closed")
        self._thin(record)
        return self._keep(record)

    def _unreserve(self) -> None:
        self._reserved -= 1
        self._bytes -= FIXED_BYTES

    def _thin(self, record: PredictionRecord) -> None:
        if record.size_bytes - FIXED_BYTES > self._body_max:
            why = "too_large"
        elif record.size_bytes > FIXED_BYTES and self._bytes + record.size_bytes > self._thin_above:
            why = "no_room"
        else:
            return
        record.thin(why)

    def _keep(self, record: PredictionRecord) -> bool:
        if record.omitted:
            self._thinned[record.omitted] = self._thinned.get(record.omitted, 0) + 1
        self._bytes += record.size_bytes
        self._waiting += 1
        loop, fresh = self._loop, self._fresh
        if loop is None:
            # The writer has not started.
            record.keep()
            self._queue.append(record)
            self._wake.set()
            return True
        fresh.append(record)
        count = len(fresh)
        if count == 1:
            self._wake.set()
        elif count == _TOGETHER:
            loop.call_soon(self._render_fresh)
        if (count >= _TOGETHER or record.size_bytes >= _LARGE_BYTES) and self._fills_a_batch():
            self._gathering.enough()
        return True

    def _render_fresh(self) -> None:
        """Make the lines of the newest records, as far as that takes microseconds: here, because in a worker no other
        Python runs meanwhile either, and each hand-over costs more than a line. Everything else is left to the worker.
        """
        fresh, self._fresh = self._fresh, []
        for record in fresh:
            self._bytes -= record.size_bytes
        for item in made_together(fresh, self._quick.quick):
            self._bytes += item.size_bytes
            self._queue.append(item)

    def _drop(self, reason: str, count: int = 1) -> bool:
        self._dropped[reason] = self._dropped.get(reason, 0) + count
        drops = self._drops
        if drops is None:
            drops = self._drops = _Drops(self._clock.wall_s(), {})
        drops.reasons[reason] = drops.reasons.get(reason, 0) + count
        if not self._wake.is_set():
            self._wake.set()
        return False

    # --- the writer -----------------------------------------------------------------------------------------------

    def start(self, supervisor: Supervisor) -> None:
        """Begin to write, as two background jobs."""
        self._supervisor = supervisor
        self._loop = asyncio.get_running_loop()
        supervisor.start(_JOBS[0], self._flush_forever)
        if self._fsync_s:
            supervisor.start(_JOBS[1], self._sync_forever)

    async def aclose(self, timeout_s: float = 5.0) -> Mapping[str, Any]:
        """Take nothing more, write what waits, and give up on it after `timeout_s`: what is left then is counted as
        dropped. Returns the last statistics; `offered` is the sum of `written` and all of `dropped`.
        """
        self._closed = True
        if self._supervisor is not None:
            await self._supervisor.stop(*_JOBS)
        try:
            async with asyncio.timeout(timeout_s):
                await self._flush_all()
                if self._fsync_s:
                    await self._sync()
        except TimeoutError:
            _log.error("%d prediction records could not be written before the end", self._waiting)
        except Exception:
            _log.exception("%d prediction records could not be written", self._waiting)
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        if self._waiting:
            self._drop("unwritten", self._waiting)
            self._waiting = 0
            self._queue.clear()
            self._fresh.clear()
        self._bytes = self._reserved * FIXED_BYTES
        try:
            async with asyncio.timeout(1.0):
                await self._workers.run(self._store.close)
        except (OSError, TimeoutError) as error:
            _log.error("the record store could not be closed: %s", error or "it does not answer")
        statistics = self.statistics(self._clock.now_s())
        if not statistics["balanced"]:
            _log.error("records written and dropped do not add up to those offered: %s", statistics)
        return statistics

    async def _flush_all(self) -> None:
        while self._waiting or self._drops:
            if not await self._flush_once(closing=True):
                await asyncio.sleep(self._pause_s)

    async def _flush_forever(self) -> None:
        gathering = self._gathering
        gathering.begin()
        while True:
            if not self._wake.is_set():
                await self._wake.wait()
                gathering.begin()
            await (asyncio.sleep(self._pause_s) if self._pause_s else gathering.wait())
            # What came while a batch was written is gathered again, unless it fills another one: a worker that is woken
            # for every few records costs more than making and writing them.
            well = True
            while well:
                gathering.write_begins()
                well = await self._flush_once() and self._fills_a_batch()
                gathering.write_ended()
            if not (self._waiting or self._drops):
                self._wake.clear()

    def _fills_a_batch(self) -> bool:
        """Whether what waits need not be gathered any longer. Room that is only reserved is nothing to write."""
        waiting_bytes = self._bytes - self._reserved * FIXED_BYTES
        return self._waiting >= _BATCH_RECORDS or waiting_bytes >= _BATCH_BYTES

    async def _flush_once(self, *, closing: bool = False) -> bool:
        """Write one batch. Whether it went well; if not, `_pause_s` is to be waited."""
        # A task of its own, because a worker cannot be stopped: if this job is cancelled, the batch goes on, and its
        # end must still be counted before the next begins.
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write(closing), name="sluice:records-write")
        writing = self._writing
        try:
            return await asyncio.shield(writing)
        finally:
            if writing.done():
                self._writing = None

    async def _write(self, closing: bool) -> bool:
        self._render_fresh()  # from here on the batch is the worker's
        batch = self._batch()
        drops = None
        now_s = self._clock.now_s()
        if self._drops is not None and (closing or not batch or now_s - self._drop_line_s >= _DROP_LINE_EVERY_S):
            drops = _Drops(self._drops.since_wall_s, dict(self._drops.reasons))
        work = functools.partial(self._write_batch, batch, drops, self._clock.wall_s())
        result = await self._workers.run(work)
        records = 0
        for _ in range(result.done):
            item = self._queue.popleft()
            self._bytes -= item.size_bytes
            records += record_count(item)
        self._waiting -= records
        self._written += records - result.unrenderable
        if drops is not None and result.told:
            self._told(drops)
            self._drop_line_s = now_s
        if result.unrenderable:
            self._drop("render", result.unrenderable)
        if result.done or result.told:
            self._dirty.set()
        if result.error is None:
            self._pause_s = 0.0
            if self._failing:
                self._failing = False
                _log.warning("prediction records are written again; %d wait", self._waiting)
            return True
        self._failed(failure_reason(result.error), result.error)
        if result.done:
            self._pause_s = _BACKOFF_FIRST_S
        else:
            self._pause_s = min(2 * self._pause_s, _BACKOFF_MAX_S) or _BACKOFF_FIRST_S
        return False

    def _batch(self) -> list[Waiting]:
        batch: list[Waiting] = []
        size = records = 0
        for item in self._queue:
            size += item.size_bytes
            records += record_count(item)
            if batch and (size > _BATCH_BYTES or records > _BATCH_RECORDS):
                break
            batch.append(item)
        return batch

    def _write_batch(self, batch: list[Waiting], drops: _Drops | None, wall_s: float) -> _Written:
        """In a worker: render and append, a chunk at a time."""
        done = unrenderable = unrenderable_in_chunk = rendered = 0
        lines: list[bytes] = []
        size = 0
        try:
            for number, item in enumerate(batch, 1):
                if isinstance(item, Block):
                    line = item.lines
                else:
                    line = self._line(item)
                    rendered += 1
                    if self._breathe is not None and rendered % _LINES_PER_BREATH == 0:
                        self._breathe()
                if line:
                    lines.append(line)
                    size += len(line)
                else:
                    unrenderable_in_chunk += 1
                if size >= _CHUNK_BYTES or number == len(batch):
                    if lines:
                        self._store.append(b"".join(lines))
                    done = number
                    unrenderable += unrenderable_in_chunk
                    unrenderable_in_chunk = size = 0
                    lines.clear()
            if drops is not None:
                total = sum(drops.reasons.values())
                self._store.append(dropped_line(total, drops.reasons, drops.since_wall_s, wall_s))
        except OSError as error:
            return _Written(done, unrenderable, False, error)
        except Exception as error:
            _log.exception("the record store failed in a way that it should not")
            return _Written(done, unrenderable, False, OSError(str(error)))
        return _Written(done, unrenderable, drops is not None, None)

    def _line(self, record: PredictionRecord) -> bytes:
        """The record's line; b"" if it cannot be made, which is a defect of ours."""
        try:
            return self._renderer.line(record)
        except Exception:
            _log.exception("a prediction record's tensors could not be rendered (request %s)", record.request_id)
        try:
            record.message = record.reply = None
            record.omitted = "render_failed"
            return self._renderer.line(record)
        except Exception:
            _log.exception("a prediction record could not be rendered (request %s)", record.request_id)
        return b""

    def _told(self, told: _Drops) -> None:
        """A line tells of these; what was dropped meanwhile is for the next."""
        assert self._drops is not None
        rest = {
            reason: count - told.reasons.get(reason, 0)
            for reason, count in self._drops.reasons.items()
            if count > told.reasons.get(reason, 0)
        }
        self._drops = _Drops(self._clock.wall_s(), rest) if rest else None

    def _failed(self, reason: str, error: OSError) -> None:
        self._failures[reason] = self._failures.get(reason, 0) + 1
        if not self._failing:
            self._failing = True
            _log.error("prediction records cannot be written (%s: %s); they wait, then are dropped", reason, error)

    async def _sync_forever(self) -> None:
        while True:
            await self._dirty.wait()
            await asyncio.sleep(self._fsync_s)
            await self._sync()

    async def _sync(self) -> None:
        self._dirty.clear()
        try:
            await self._workers.run(self._store.sync)
        except OSError as error:
            self._failures["fsync"] = self._failures.get("fsync", 0) + 1
            _log.warning("prediction records could not be forced to the disk: %s", error)

    # --- what it shows --------------------------------------------------------------------------------------------

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        """Counts since the start. `oldest_age_s` is how long the oldest waiting record's call has been over."""
        waiting = self._waiting
        oldest = self._queue[0] if self._queue else self._fresh[0] if self._fresh else None
        dropped = sum(self._dropped.values())
        return {
            "offered": self._offered,
            "written": self._written,
            "dropped": dict(self._dropped),
            "thinned": dict(self._thinned),
            "failures": dict(self._failures),
            "queued": waiting,
            "queued_bytes": self._bytes,
            "reserved": self._reserved,
            "oldest_age_s": 0.0 if oldest is None else max(0.0, now_s - oldest.ended_s),
            "failing": self._failing,
            "balanced": self._written + dropped + waiting == self._offered,
        }

    def readings(self, now_s: float) -> Iterable[Reading]:
        """The same for the metrics page."""
        now = self.statistics(now_s)
        yield "sluice_records_written_total", (), now["written"]
        yield "sluice_records_queued", (), now["queued"]
        yield "sluice_records_queued_bytes", (), now["queued_bytes"]
        yield "sluice_records_reserved", (), now["reserved"]
        yield "sluice_records_oldest_age_seconds", (), now["oldest_age_s"]
        for name, key in (
            ("sluice_records_dropped_total", "dropped"),
            ("sluice_records_thinned_total", "thinned"),
            ("sluice_record_write_failures_total", "failures"),
        ):
            for reason, count in now[key].items():
                yield name, (reason,), count
