"""Worker pools: the face for work that would block the loop, and its two forms."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Workers(Protocol):
    """Runs blocking functions away from the loop."""

    async def run(self, work: Callable[[], T]) -> T:
        """`work()`, elsewhere. Cancelling the waiter does not stop work that has begun."""
        ...

    async def aclose(self, limit_s: float) -> bool:
        """Take no more work. Returns whether all that had begun ended within `limit_s`."""
        ...


class ThreadWorkers:
    """A bounded pool of threads of its own, so that nobody else's slow work delays ours."""

    def __init__(self, threads: int, name: str) -> None:
        self._pool = concurrent.futures.ThreadPoolExecutor(max_workers=threads, thread_name_prefix=name)

    async def run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def aclose(self, limit_s: float) -> bool:
        """A thread that hangs in the operating system cannot be ended. Then this returns False, and the process must
        end by `os._exit`: the interpreter would wait for the thread.
        """
        self._pool.shutdown(wait=False, cancel_futures=True)
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def join() -> None:
            self._pool.shutdown(wait=True)
            with contextlib.suppress(RuntimeError):  # the loop may be gone when a hanging thread ends after all
                loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=join, name="sluice-join", daemon=True).start()
        try:
            async with asyncio.timeout(limit_s):
                await ended.wait()
        except TimeoutError:
            return False
        return True


class InlineWorkers:
    """Runs the work where it stands: for the simulation, which has no threads."""

    async def run(self, work: Callable[[], T]) -> T:
        return work()

    async def aclose(self, limit_s: float) -> bool:
        return True
