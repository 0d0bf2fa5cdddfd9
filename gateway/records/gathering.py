"""How long the log waits for more records before it writes what it has."""

from __future__ import annotations

import asyncio
from typing import Final

from gateway.runtime.clock import Clock

_SHARE: Final = 0.75
"""Of the flush interval, to gather in; the rest is for rendering and writing."""
_MARGIN: Final = 1.25


class Gathering:
    """One wait after the other: from the first record, or from where the last write began, because what has come since
    then is not in it. A write that takes long takes its time from the next wait: no record is to wait for longer than
    the interval.
    """

    __slots__ = ("_clock", "_flush_s", "_full", "_since_s", "_took_s")

    def __init__(self, flush_s: float, clock: Clock) -> None:
        self._flush_s = flush_s
        self._clock = clock
        self._full = asyncio.Event()
        self._since_s = 0.0
        self._took_s = 0.0

    def begin(self) -> None:
        """The first record is there, and nothing else is waited for."""
        self._since_s = self._clock.now_s()

    def enough(self) -> None:
        """There is a whole batch: it need not wait any longer."""
        self._full.set()

    def write_begins(self) -> None:
        self._full.clear()
        self._since_s = self._clock.now_s()

    def write_ended(self) -> None:
        self._took_s = self._clock.now_s() - self._since_s

    async def wait(self) -> None:
        wait_s = min(self._flush_s * _SHARE, self._flush_s - _MARGIN * self._took_s)
        left_s = self._since_s + wait_s - self._clock.now_s()
        if left_s > 0.0:
            try:
                async with asyncio.timeout(left_s):
                    await self._full.wait()
            except TimeoutError:
                return
