"""TimerWheel: many deadlines, few loop timers.

A gateway sets a timer per call and nearly always cancels it a few milliseconds later. An event loop's heap keeps a
cancelled timer until it is due, so long deadlines at a high rate would be a leak; here a cancelled timer is gone at
once. Timers are gathered in ticks of `tick_s`; the loop holds one timer, for the earliest tick that is not empty. A
timer fires at its instant or up to one tick after it, never before. Those that are due later are gathered in spans of
many ticks first, of which each is spread over its ticks when it begins: by then nearly all are cancelled. No span is
further away than `SPANS_MAX`: what is due later than that waits in the last one, and when that begins, in another, so
that callers who name ever other instants in a thousand years' time do not leave an empty span for each. (Varghese and
Lauck, "Hashed and Hierarchical Timing Wheels", 1987: the hierarchical form in two levels, with a heap over what is not
empty in place of turning hands.)
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

    bucket: dict[Placeable, float]
    """Where on the wheel it waits, or waited: `NOWHERE` at first, then the wheel's own business. Out of it, it waits no
    more: `bucket.pop(self, None)` cancels.
    """

    def fire(self) -> None:
        """Its instant has come. Must not raise."""
        ...


Bucket = dict[Placeable, float]
"""What waits together, each with its instant."""

SPAN_TICKS = 128
SPANS_MAX = 1024
_NO_TIME = float("-inf")

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
        self._far_s = SPANS_MAX * SPAN_TICKS * tick_s
        self._buckets: dict[int, Bucket] = {}
        """By their tick."""
        self._spans: dict[int, Bucket] = {}
        """By the tick after which they begin; they reach to `SPAN_TICKS` after it, that one included."""
        self._ticks: list[int] = []
        """A heap of all keys of both."""
        self._span: Bucket = NOWHERE
        self._span_from_s = self._span_to_s = _NO_TIME
        """The span of the timer that was placed last, if it still stands: the next one is mostly due there, too."""
        self._loop_timer: asyncio.TimerHandle | None = None
        self._loop_tick = 0
        self._turning = False
        """What is placed meanwhile needs no loop timer: the turn ends with one for the earliest tick of all."""

    def call_at(self, when_s: float, callback: Callable[[], object]) -> Timer:
        """Call `callback` at `when_s` (monotonic seconds) or within a tick after it. It must not raise; if it does,
        that is logged.
        """
        timer = Timer(callback)
        self.place(timer, when_s)
        return timer

    def place(self, waiting: Placeable, when_s: float) -> None:
        """Have `waiting` fire at `when_s` or within a tick after it. It must not wait already."""
        if self._span_from_s < when_s <= self._span_to_s:
            bucket = self._span
        else:
            bucket = self._bucket(when_s, self._clock.now_s())
        waiting.bucket = bucket
        bucket[waiting] = when_s

    def _bucket(self, when_s: float, now_s: float) -> Bucket:
        """Where a timer for that instant is to wait."""
        tick = ceil(when_s / self._tick_s)
        begin = (tick - 1) // SPAN_TICKS * SPAN_TICKS
        from_s = begin * self._tick_s
        if from_s <= now_s:
            return self._made(self._buckets, tick)
        far_s = now_s + self._far_s
        if from_s > far_s:
            begin = int(far_s / self._tick_s) // SPAN_TICKS * SPAN_TICKS
            from_s = begin * self._tick_s
        self._span = span = self._made(self._spans, begin)
        self._span_from_s, self._span_to_s = from_s, (begin + SPAN_TICKS) * self._tick_s
        return span

    def _made(self, buckets: dict[int, Bucket], tick: int) -> Bucket:
        bucket = buckets.get(tick)
        if bucket is None:
            bucket = buckets[tick] = {}
            heapq.heappush(self._ticks, tick)
            if not self._turning and (self._loop_timer is None or tick < self._loop_tick):
                self._arm(tick)
        return bucket

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        return self.call_at(self._clock.now_s() + delay_s, callback)

    def __len__(self) -> int:
        """Timers that wait."""
        return sum(map(len, self._buckets.values())) + sum(map(len, self._spans.values()))

    def close(self) -> None:
        """Drop everything. Nothing fires any more."""
        if self._loop_timer is not None:
            self._loop_timer.cancel()
            self._loop_timer = None
        self._buckets.clear()
        self._spans.clear()
        self._ticks.clear()
        self._forget_span()

    def _forget_span(self) -> None:
        self._span = NOWHERE
        self._span_from_s = self._span_to_s = _NO_TIME

    def _arm(self, tick: int) -> None:
        if self._loop_timer is not None:
            self._loop_timer.cancel()
        delay_s = max(0.0, tick * self._tick_s - self._clock.now_s())
        self._loop_timer = asyncio.get_running_loop().call_later(delay_s, self._turn)
        self._loop_tick = tick

    def _turn(self) -> None:
        self._loop_timer = None
        self._turning = True
        try:
            self._fire(self._due(self._clock.now_s()))
        finally:
            self._turning = False
            if self._ticks:
                self._arm(self._ticks[0])

    def _due(self, now_s: float) -> list[Placeable]:
        """Take out what is due. Spans that have begun are spread over their ticks."""
        due: list[Placeable] = []
        ticks = self._ticks
        self._forget_span()
        while ticks:
            tick = ticks[0]
            # A tick that ends one span and begins another stands in the heap twice; both are gone with the first.
            bucket, span = self._buckets.get(tick), self._spans.get(tick)
            if (bucket or span) and tick * self._tick_s > now_s:
                break
            heapq.heappop(ticks)
            self._buckets.pop(tick, None)
            self._spans.pop(tick, None)
            due.extend(bucket or ())
            for waiting, when_s in (span or {}).items():
                waiting.bucket = spread = self._bucket(when_s, now_s)
                spread[waiting] = when_s
        return due

    def _fire(self, due: list[Placeable]) -> None:
        for timer in due:
            if timer not in timer.bucket:
                continue  # cancelled by one that fired just now
            del timer.bucket[timer]
            try:
                timer.fire()
            except (Exception, asyncio.CancelledError):
                # CancelledError out of a future that was asked what it holds is as much a defect as any other error.
                _log.exception("a timer's callback failed; the other timers of its tick still run")
