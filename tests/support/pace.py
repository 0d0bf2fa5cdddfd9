"""Calls at a steady pace beside a test, on whatever loop runs it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Self


class SteadyCalls(ABC):
    """One call every `every_s` while the block runs. All have ended at its end."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._out: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._running = asyncio.ensure_future(self._run())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._running.cancel()
        await asyncio.gather(self._running, *self._out, return_exceptions=True)

    async def those_out(self) -> None:
        """Wait until all calls have ended that are out now."""
        await asyncio.gather(*self._out, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            task = asyncio.ensure_future(self._one())
            self._out.add(task)
            task.add_done_callback(self._out.discard)
            await asyncio.sleep(self._every_s)

    @abstractmethod
    async def _one(self) -> None:
        """One call."""
