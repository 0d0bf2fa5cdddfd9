"""Makes the planned faults, on real processes, at their times; and undoes what is left of them at the end."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from deploy.local import LocalFleetError, TritonServer
from deploy.local.layout import write_atomically
from load.blackhole import Blackhole
from load.errors import LoadError
from load.fault_schema import SlowFault, StragglersFault
from load.faults import Planned, Span
from load.open_loop import Moment

R = TypeVar("R")
RESTART_S = 60.0
READY_EVERY_S = 0.05


class Injector:
    """For one run. `begin` before the warm-up, `on_second` as the run goes on, `finish` on every way out.

    Replicas are acted on side by side, what happens to one of them in its order; all blocking work is in threads.
    """

    def __init__(
        self, planned: Sequence[Planned], servers: Sequence[TritonServer], blackholes: Mapping[int, Blackhole]
    ) -> None:
        self._planned = planned
        self._servers = servers
        self._blackholes = blackholes
        self._threads = ThreadPoolExecutor(max(1, len(servers)), "faults")
        self._tasks: list[asyncio.Task[None]] = []
        self._start_s: float | None = None
        self._slowing: dict[int, dict[str, float]] = {}
        self._killed: set[int] = set()
        self.spans: list[Span] = []
        self.died: list[int] = []
        """Replicas that were not alive at the end, though nobody here had killed them."""

    def begin(self) -> None:
        """Make what is there from the start. Raises LoadError."""
        for each in self._planned:
            if each.from_start:
                self._slow(each, True)

    def on_second(self, moment: Moment) -> None:
        """The run stands here. Raises LoadError for a fault that could not be made."""
        if self._start_s is None:
            self._start_s = time.monotonic() - moment.elapsed_s
            for replica in sorted({each.replica for each in self._planned}):
                self._tasks.append(asyncio.ensure_future(self._one(replica)))
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise LoadError(f"a fault could not be made: {error}") from error

    async def finish(self) -> None:
        """Stop, and undo what still holds: no replica stays frozen, slow or cut off. Those that were killed stay so."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._threads.shutdown(wait=True)
        self.died = [
            index for index, each in enumerate(self._servers) if not each.alive() and index not in self._killed
        ]
        for server in self._servers:
            server.spec.accel_control.unlink(missing_ok=True)
            if server.state() == "frozen":
                server.thaw()
        for each in self._blackholes.values():
            each.end()

    async def _one(self, replica: int) -> None:
        """What happens to one replica."""
        steps: list[tuple[float, int, Planned, bool]] = []
        for order, each in enumerate(planned for planned in self._planned if planned.replica == replica):
            steps.append((each.begin_s, order, each, True))
            if each.end_s is not None:
                steps.append((each.end_s, order, each, False))
        begun: dict[int, Span] = {}
        for at_s, _, each, begins in sorted(steps, key=lambda step: (step[0], step[3], step[1])):
            assert self._start_s is not None
            await asyncio.sleep(self._start_s + at_s - time.monotonic())
            if begins:
                span = Span(each.index, each.kind, replica, 0.0 if each.from_start else self._now_s())
                begun[each.index] = span
                self.spans.append(span)
                if not each.from_start:
                    await self._make(each)
            else:
                await self._undo(each)
                begun[each.index].end_s = self._now_s()

    def _now_s(self) -> float:
        assert self._start_s is not None
        return round(time.monotonic() - self._start_s, 3)

    async def _make(self, each: Planned) -> None:
        server = self._servers[each.replica]
        if each.kind == "kill":
            self._killed.add(each.replica)
            await self._in_thread(server.kill)
        elif each.kind == "freeze":
            await self._in_thread(server.freeze)
        elif each.kind == "blackhole":
            await self._in_thread(self._blackholes[each.replica].begin)
        else:
            self._slow(each, True)

    async def _undo(self, each: Planned) -> None:
        server = self._servers[each.replica]
        if each.kind == "kill":
            await self._restart(server)
            self._killed.discard(each.replica)
        elif each.kind == "freeze":
            await self._in_thread(server.thaw)
        elif each.kind == "blackhole":
            await self._in_thread(self._blackholes[each.replica].end)
        else:
            self._slow(each, False)

    async def _restart(self, server: TritonServer) -> None:
        """Start it, and return when it is ready. The wait is here and not in a thread, so that a Ctrl-C ends it."""
        await self._in_thread(server.start)
        until_s = time.monotonic() + RESTART_S
        while not await self._in_thread(server.ready):
            if not server.alive() or time.monotonic() > until_s:
                raise LocalFleetError(
                    f"{server.spec.name} did not come back within {RESTART_S:g} s", f"read {server.spec.log}"
                )
            await asyncio.sleep(READY_EVERY_S)

    def _slow(self, each: Planned, begins: bool) -> None:
        """Write the replica's control file: the sum of what makes it slower now."""
        fault, now = each.fault, self._slowing.setdefault(each.replica, {})
        changes: dict[str, float] = {}
        if isinstance(fault, SlowFault):
            changes = {"slow_factor": fault.factor}
        elif isinstance(fault, StragglersFault):
            changes = {"straggler_fraction": fault.share, "straggler_factor": fault.factor}
        if begins:
            now.update(changes)
        else:
            for name in changes:
                now.pop(name, None)
        file = self._servers[each.replica].spec.accel_control
        if now:
            write_atomically(file, json.dumps(now))
        else:
            file.unlink(missing_ok=True)

    async def _in_thread(self, work: Callable[[], R]) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)
