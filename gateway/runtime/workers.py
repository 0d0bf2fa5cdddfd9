"""Worker pools: the face for work that would block the loop, and its two forms."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Workers(Protocol):
    """Runs blocking functions away from the loop."""

    async def run(self, work: Callable[[], T]) -> T:
        """`work()`, elsewhere. Cancelling the waiter does not stop work that has begun."""
        ...

    def close(self) -> None: ...


class ThreadWorkers:
    """A bounded pool of threads of its own, so that nobody else's slow work delays ours."""

    def __init__(self, threads: int, name: str) -> None:
        self._pool = concurrent.futures.ThreadPoolExecutor(max_workers=threads, thread_name_prefix=name)

    async def run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        """Wait for what runs, refuse what comes."""
        self._pool.shutdown(wait=True)


class InlineWorkers:
    """Runs the work where it stands: for the simulation, which has no threads."""

    async def run(self, work: Callable[[], T]) -> T:
        return work()

    def close(self) -> None:
        return None
