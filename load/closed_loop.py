"""Closed-loop load: so many callers, each of which sends its next call when the one before has ended.

A closed loop is right for one question only, what a call costs and how many go through at most: a server that stalls
stalls its callers with it, so its latencies are no statement about users, who do not wait for one another. That takes
an open loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from load.connection import GRACE_S, Connection
from load.histogram import Histogram
from load.inputs import Calls, LoadCall

S = TypeVar("S")

TICK_S = 0.01
CHECK_EVERY_TICKS = 10
PAUSE_AFTER_ERROR_S = 0.05
"""A caller whose call failed waits so long; a server that refuses at once is not hammered."""


@dataclass(slots=True)
class Tally:
    """What ended within a window. Calls that were sent before it began count in it if they ended in it."""

    calls: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    latency: Histogram = field(default_factory=Histogram)
    """Of right answers only: a quick refusal is not a quick answer."""
    timer_late: Histogram = field(default_factory=Histogram)
    """By how much this process's own timers came late."""


@dataclass(frozen=True, slots=True)
class Measured(Generic[S]):
    """A window: its length, its counts, and the two samples taken at its edges."""

    seconds: float
    tally: Tally
    before: S
    after: S
    sent: int
    """All calls of the run, those before and after the window included."""


class ClosedLoop:
    """Drives `connections`, one caller each, with calls from `calls`. For one `run`."""

    def __init__(self, connections: Sequence[Connection], calls: Calls) -> None:
        self._connections = connections
        self._calls = calls
        self._tally: Tally | None = None
        self._last = Tally()
        self._out = 0
        self._sent = 0
        self._stopping = False
        self._idle = asyncio.Event()

    async def run(self, warm_up_s: float, seconds: float, sample: Callable[[], S]) -> Measured[S]:
        """Warm up, measure for `seconds`, let the calls that are out end. A call that never ends counts as an error of
        the window that it was sent in or after.
        """
        ticking = asyncio.ensure_future(self._tick())
        try:
            for connection in self._connections:
                self._out += 1
                self._next(connection)
            await asyncio.sleep(warm_up_s)
            before = sample()
            started_s = time.perf_counter()
            self._tally = self._last
            await asyncio.sleep(seconds)
            after = sample()
            elapsed_s = time.perf_counter() - started_s
            self._tally = None
            self._stopping = True
            await self._idle.wait()
        finally:
            self._stopping = True
            ticking.cancel()
            await asyncio.wait((ticking,))
        return Measured(elapsed_s, self._last, before, after, self._sent)

    def _next(self, connection: Connection) -> None:
        if self._stopping:
            self._out -= 1
            if not self._out:
                self._idle.set()
            return
        self._sent += 1
        connection.send(self._calls.next(), partial(self._ended, connection, time.perf_counter_ns()))

    def _ended(self, connection: Connection, sent_ns: int, error: str) -> None:
        tally = self._tally
        if tally is not None:
            tally.calls += 1
            if error:
                tally.errors[error] = tally.errors.get(error, 0) + 1
            else:
                tally.latency.record(time.perf_counter_ns() - sent_ns)
        elif error and self._stopping:
            # It was sent before the window ended. Without this, a server that froze in the window would go unseen.
            self._last.calls += 1
            self._last.errors[error] = self._last.errors.get(error, 0) + 1
        if error and not self._stopping:
            asyncio.get_running_loop().call_later(PAUSE_AFTER_ERROR_S, self._next, connection)
        else:
            self._next(connection)

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        ticks = 0
        while True:
            due_s = time.perf_counter() + TICK_S
            await asyncio.sleep(TICK_S)
            if self._tally is not None:
                self._tally.timer_late.record(int((time.perf_counter() - due_s) * 1e9))
            ticks += 1
            if ticks % CHECK_EVERY_TICKS == 0:
                for connection in self._connections:
                    connection.check(loop.time())


async def ask(connection: Connection, call: LoadCall) -> str:
    """Make one call. Returns its error, empty for a right answer."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[str] = loop.create_future()
    connection.send(call, ended.set_result)
    give_up = loop.call_later(call.deadline_ms / 1000 + GRACE_S + 0.1, lambda: connection.check(loop.time()))
    error = await ended
    give_up.cancel()
    return error


async def answers(connection: Connection, calls: Calls, timeout_s: float) -> str:
    """Make calls until one gets a right answer, or the time is up; returns the last error, empty if there was a right
    answer.
    """
    loop = asyncio.get_running_loop()
    end_s = loop.time() + timeout_s
    while True:
        error = await ask(connection, calls.next())
        if not error or loop.time() > end_s:
            return error
        await asyncio.sleep(PAUSE_AFTER_ERROR_S)
