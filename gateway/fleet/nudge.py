"""Nudge: lets a background loop sleep until something happens, or a time passes."""

from __future__ import annotations

import asyncio


class Nudge:
    """One sleeper, any number of callers. A nudge that comes while nobody sleeps ends the next sleep at once."""

    __slots__ = ("_pending", "_sleeper")

    def __init__(self) -> None:
        self._pending = False
        self._sleeper: asyncio.Future[None] | None = None

    def give(self) -> None:
        """Wake the sleeper. Cheap and idempotent."""
        self._pending = True
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    async def sleep(self, longest_s: float) -> bool:
        """Sleep for `longest_s` seconds or until a nudge; True if there was one."""
        if not self._pending:
            loop = asyncio.get_running_loop()
            self._sleeper = sleeper = loop.create_future()
            timer = loop.call_later(longest_s, _wake, sleeper)
            try:
                await sleeper
            finally:
                timer.cancel()
                self._sleeper = None
        nudged, self._pending = self._pending, False
        return nudged


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)
