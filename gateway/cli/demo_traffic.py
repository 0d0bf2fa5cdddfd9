"""The demo's traffic: unmodified clients over both protocols, at a steady rate, answers counted by model and by the way
they came.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import Any

from gateway.cli.demo_rows import SEQUENCE, STREAM, Answered, Clients, Plan
from gateway.policy.schema import PolicySet
from gateway.runtime.clock import SystemClock

ERROR_TEXTS_MAX = 3
LATENCIES_MAX = 20_000
"""Latencies kept per row; the summary's quantiles are those of the newest."""
REPORT_EVERY_S = 2.0
LATE_CALLS_MAX = 512
"""Turns that may be under way at once; beyond it the traffic waits, and says so by a lower count."""


class Row:
    """Calls of one model over one way, and what came of them."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.latencies_ms: deque[float] = deque(maxlen=LATENCIES_MAX)
        """Of a stream to its first response."""
        self.answered = 0
        self.responses = 0
        self.whole = 0
        """Turns that ended well: for sequences, how many of them."""
        self.errors = 0
        self.error_texts: list[str] = []
        self.versions: set[str] = set()

    @property
    def calls(self) -> int:
        return self.answered + self.errors

    def take(self, answered: Answered, begun_s: float) -> None:
        self.answered += 1
        self.responses += answered.responses
        self.latencies_ms.append((answered.first_s - begun_s) * 1000)
        self.versions.add(answered.version)

    def fail(self, error: Exception) -> None:
        self.errors += 1
        if len(self.error_texts) < ERROR_TEXTS_MAX:
            self.error_texts.append(f"{type(error).__name__}: {error}"[:200])

    def summary(self) -> dict[str, Any]:
        ordered = sorted(self.latencies_ms) or [0.0]
        return {
            "model": self.plan.model,
            "over": self.plan.over,
            "kind": self.plan.kind,
            "calls": self.calls,
            "responses": self.responses,
            "errors": self.errors,
            "error_texts": self.error_texts,
            "p50_ms": ordered[len(ordered) // 2],
            "p99_ms": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
            "versions": sorted(self.versions),
        }


class Traffic:
    """Open-loop traffic of `rate` turns per second, spread over all rows. A turn is one call, or one sequence of calls.
    `prefix` begins every request id.
    """

    def __init__(self, policies: PolicySet, rate: float) -> None:
        listen = policies.fleet.gateway.listen
        self._http_address = listen.http.replace("0.0.0.0", "127.0.0.1")
        self._grpc_address = listen.grpc.replace("0.0.0.0", "127.0.0.1")
        self._rate = rate
        self._clock = SystemClock()
        self.started_wall_s = self._clock.wall_s()
        self.prefix = f"demo-{int(self.started_wall_s * 1000):x}-"
        self._rows: list[Row] = []

    @property
    def calls(self) -> int:
        return sum(row.calls for row in self._rows)

    @property
    def errors(self) -> int:
        return sum(row.errors for row in self._rows)

    def streamed(self) -> tuple[int, int]:
        """Streams that ended well, and their responses."""
        rows = [row for row in self._rows if row.plan.kind == STREAM]
        return sum(row.whole for row in rows), sum(row.responses for row in rows)

    def sequences(self) -> tuple[int, int]:
        """Sequences that ended well, and the steps that were answered."""
        rows = [row for row in self._rows if row.plan.kind == SEQUENCE]
        return sum(row.whole for row in rows), sum(row.answered for row in rows)

    def summary(self) -> list[dict[str, Any]]:
        return [row.summary() for row in self._rows]

    async def run(self, seconds: float | None) -> None:
        """Send until `seconds` have passed (None: until cancelled). What is under way at the end is awaited and
        counted.
        """
        tasks: set[asyncio.Task[None]] = set()
        async with Clients(self._http_address, self._grpc_address, self._clock, random.Random(1)) as clients:
            self._rows = [Row(plan) for plan in clients.plans()]
            try:
                await self._send_all(seconds, tasks)
            finally:
                if tasks:
                    await asyncio.wait(tasks, timeout=10)

    async def _send_all(self, seconds: float | None, tasks: set[asyncio.Task[None]]) -> None:
        start_s = report_s = self._clock.now_s()
        number = 0
        while seconds is None or self._clock.now_s() - start_s < seconds:
            due_s = start_s + number / self._rate
            await asyncio.sleep(max(0.0, due_s - self._clock.now_s()))
            if len(tasks) >= LATE_CALLS_MAX:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            row = self._rows[number % len(self._rows)]
            task = asyncio.create_task(self._turn(row, f"{self.prefix}{number}"))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            number += 1
            if self._clock.now_s() - report_s >= REPORT_EVERY_S:
                report_s = self._clock.now_s()
                self._report(report_s - start_s)

    def _report(self, after_s: float) -> None:
        (streams, responses), (sequences, _) = self.streamed(), self.sequences()
        print(
            f"  {after_s:6.1f} s  {self.calls:6d} calls, {streams} streams with {responses} responses, "
            f"{sequences} sequences  {self.errors} errors",
            flush=True,
        )

    async def _turn(self, row: Row, request_id: str) -> None:
        begun_s = self._clock.now_s()
        try:
            async for answered in row.plan.send(request_id):
                row.take(answered, begun_s)
                begun_s = self._clock.now_s()
        except Exception as error:
            row.fail(error)
        else:
            row.whole += 1
