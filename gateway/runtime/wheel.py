"""TimerWheel: many deadlines, few loop timers.

A gateway sets a timer per call and nearly always cancels it a few milliseconds later. An event loop's heap keeps a
cancelled timer until it is due, so long deadlines at a high rate would be a leak; here a cancelled timer is gone at
once. Timers are gathered in ticks of `tick_s`; the loop holds one timer, for the earliest tick that is not empty. A
timer fires at its instant or up to one tick after it, never before. (Varghese and Lauck, "Hashed and Hierarchical
Timing Wheels", 1987: the hashed form, with a heap over the non-empty ticks in place of a turning hand.)
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable
from math import ceil
from typing import Protocol

from gateway.runtime.clock import Clock

_log = logging.getLogger("sluice.wheel")


class Placeable(Protocol):
    """What can wait on a wheel. Keeps identity as its equality."""

    bucket: dict[Placeable, None]
    """Where on the wheel it waits, or waited: `NOWHERE` at first, then the wheel's own business. Out of it, it waits no
    more: `bucket.pop(self, None)` cancels.
    """

    def fire(self) -> None:
        """Its instant has come. Must not raise."""
        ...


Bucket = dict[Placeable, None]

NOWHERE: Bucket = {}
"""The bucket of what does not wait. Stays empty."""


class Waiting:
    """What can wait on a wheel: a timer that is also the thing to be told, one object for both. `cancel` is cheap,
    idempotent, and harmless after it fired.
    """

    __slots__ = ("bucket",)

    def __init__(self) -> None:
        self.bucket: Bucket = NOWHERE

    def fire(self) -> None:
        """Its instant has come. Must not raise."""
        raise NotImplementedError

    def cancel(self) -> None:
        self.bucket.pop(self, None)

    @property
    def waits(self) -> bool:
        """Neither cancelled nor fired."""
        return self in self.bucket


class Timer(Waiting):
    """A handle of something that will be called."""

    __slots__ = ("_callback",)

    def __init__(self, callback: Callable[[], object]) -> None:
        self.bucket: Bucket = NOWHERE
        self._callback = callback

    def fire(self) -> None:
        self._callback()


class TimerWheel:
    """Timers for one event loop. `tick_s` is the resolution in seconds."""

    def __init__(self, clock: Clock, tick_s: float = 0.002) -> None:
        if not tick_s > 0:
            raise ValueError(f"tick_s must be positive, not {tick_s}")
        self._clock = clock
        self._tick_s = tick_s
        self._buckets: dict[int, Bucket] = {}
        self._ticks: list[int] = []
        self._loop_timer: asyncio.TimerHandle | None = None
        self._loop_tick = 0

    def call_at(self, when_s: float, callback: Callable[[], object]) -> Timer:
        """Call `callback` at `when_s` (monotonic seconds) or within a tick after it. It must not raise; if it does,
        that is logged.
        """
        timer = Timer(callback)
        self.place(timer, when_s)
        return timer

    def place(self, waiting: Placeable, when_s: float) -> None:
        """Have `waiting` fire at `when_s` or within a tick after it. It must not wait already."""
        tick = ceil(when_s / self._tick_s)
        bucket = self._buckets.get(tick)
        if bucket is None:
            bucket = self._buckets[tick] = {}
            heapq.heappush(self._ticks, tick)
            if self._loop_timer is None or tick < self._loop_tick:
                self._arm(tick)
        waiting.bucket = bucket
        bucket[waiting] = None

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        return self.call_at(self._clock.now_s() + delay_s, callback)

    def __len__(self) -> int:
        """Timers that wait."""
        return sum(len(bucket) for bucket in self._buckets.values())

    def close(self) -> None:
        """Drop everything. Nothing fires any more."""
        if self._loop_timer is not None:
            self._loop_timer.cancel()
            self._loop_timer = None
        self._buckets.clear()
        self._ticks.clear()

    def _arm(self, tick: int) -> None:
        if self._loop_timer is not None:
            self._loop_timer.cancel()
        delay_s = max(0.0, tick * self._tick_s - self._clock.now_s())
        self._loop_timer = asyncio.get_running_loop().call_later(delay_s, self._turn)
        self._loop_tick = tick

    def _turn(self) -> None:
        self._loop_timer = None
        now_s = self._clock.now_s()
        due: list[Placeable] = []
        while self._ticks:
            tick = self._ticks[0]
            bucket = self._buckets[tick]
            if not bucket:
                heapq.heappop(self._ticks)
                del self._buckets[tick]
                continue
            if tick * self._tick_s > now_s:
                break
            heapq.heappop(self._ticks)
            del self._buckets[tick]
            due.extend(bucket)
        for timer in due:
            if timer not in timer.bucket:
                continue  # cancelled by one that fired just now
            del timer.bucket[timer]
            try:
                timer.fire()
            except Exception:
                _log.exception("a timer's callback failed; the other timers of its tick still run")
        if self._ticks and self._loop_timer is None:
            self._arm(self._ticks[0])
