"""Supervisor: background loops that must not die.

A scrape loop that was cancelled or crashed must come back, and must not take a request with it (field case FH-14).
The supervisor owns the tasks (asyncio itself keeps only weak references), restarts what ended without being stopped,
and counts restarts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

_log = logging.getLogger("sluice.supervisor")

_DOUBLINGS = 6


class Supervisor:
    """Keeps named background jobs running until they are stopped.

    A job is an async function without arguments. If it returns, it is done. If it raises, or is cancelled by anybody
    but `stop`, it is started again after `restart_delay_s`, doubled with each failure up to 64 times that; one that
    had run for longer than that longest pause begins anew.
    """

    def __init__(self, restart_delay_s: float = 0.5) -> None:
        self._restart_delay_s = restart_delay_s
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopping: set[str] = set()
        self._restarts: dict[str, int] = {}
        self._began_s: dict[str, float] = {}

    def start(self, name: str, job: Callable[[], Awaitable[None]]) -> None:
        """Run `job` as `name`. A name that is running already is an error."""
        if name in self._tasks:
            raise ValueError(f"a background job named {name!r} is running already")
        self._spawn(name, job, failures=0)

    def _spawn(self, name: str, job: Callable[[], Awaitable[None]], failures: int) -> None:
        task = asyncio.get_running_loop().create_task(self._run(name, job, failures), name=f"sluice:{name}")
        self._tasks[name] = task
        task.add_done_callback(lambda done: self._ended(name, job, failures, done))

    async def _run(self, name: str, job: Callable[[], Awaitable[None]], failures: int) -> None:
        if failures:
            await asyncio.sleep(self._restart_delay_s * 2 ** min(failures - 1, _DOUBLINGS))
        self._began_s[name] = asyncio.get_running_loop().time()
        await job()

    def _ended(self, name: str, job: Callable[[], Awaitable[None]], failures: int, task: asyncio.Task[None]) -> None:
        if self._tasks.get(name) is task:
            del self._tasks[name]
        began_s = self._began_s.pop(name, None)
        if name in self._stopping:
            # Here and not in `stop`, which may have been cancelled while it waited.
            self._stopping.discard(name)
            self._restarts.pop(name, None)
            return
        if asyncio.get_running_loop().is_closed():
            return
        if task.cancelled():
            _log.warning("background job %r was cancelled by somebody else; it starts again", name)
        elif (error := task.exception()) is not None:
            _log.error("background job %r failed; it starts again", name, exc_info=error)
        else:
            return
        self._restarts[name] = self._restarts.get(name, 0) + 1
        lived_s = 0.0 if began_s is None else asyncio.get_running_loop().time() - began_s
        if lived_s > self._restart_delay_s * 2**_DOUBLINGS:
            failures = 0
        self._spawn(name, job, failures + 1)

    def running(self, name: str) -> bool:
        return name in self._tasks

    async def stop_all(self) -> None:
        """`stop` for every job that runs."""
        await self.stop(*self._tasks)

    async def stop(self, *names: str) -> None:
        """Cancel these jobs and wait until they are gone. Their own errors are logged, not raised."""
        chosen = [name for name in names if name in self._tasks]
        self._stopping.update(chosen)
        tasks = [self._tasks[name] for name in chosen]
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                _log.error("a background job failed while it was being stopped", exc_info=result)

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        return {"running": sorted(self._tasks), "restarts": dict(sorted(self._restarts.items()))}
