"""The demo's traffic: unmodified Triton clients over both protocols, at a steady rate, answers counted by model and
protocol.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import tritonclient.grpc.aio as triton_grpc
import tritonclient.http.aio as triton_http

from gateway.policy.schema import PolicySet
from gateway.runtime.clock import SystemClock

FEATURES = 12
ERROR_TEXTS_MAX = 3
LATENCIES_MAX = 20_000
"""Latencies kept per stream; the summary's quantiles are those of the newest."""
REPORT_EVERY_S = 2.0
LATE_CALLS_MAX = 512
"""Calls that may be under way at once; beyond it the traffic waits, and says so by a lower count."""


class Stream:
    """Calls of one model over one protocol."""

    def __init__(self, model: str, protocol: str, send: Callable[[str], Awaitable[str]]) -> None:
        self.model = model
        self.protocol = protocol
        self.send = send
        self.latencies_ms: deque[float] = deque(maxlen=LATENCIES_MAX)
        self.answered = 0
        self.errors = 0
        self.error_texts: list[str] = []
        self.versions: set[str] = set()

    def summary(self) -> dict[str, Any]:
        ordered = sorted(self.latencies_ms) or [0.0]
        return {
            "model": self.model,
            "protocol": self.protocol,
            "calls": self.answered + self.errors,
            "errors": self.errors,
            "error_texts": self.error_texts,
            "p50_ms": ordered[len(ordered) // 2],
            "p99_ms": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
            "versions": sorted(self.versions),
        }


class Traffic:
    """Open-loop traffic at `rate` calls per second, spread over all streams. `prefix` begins every request id."""

    def __init__(self, policies: PolicySet, rate: float) -> None:
        listen = policies.fleet.gateway.listen
        self._http_address = listen.http.replace("0.0.0.0", "127.0.0.1")
        self._grpc_address = listen.grpc.replace("0.0.0.0", "127.0.0.1")
        self._rate = rate
        self._clock = SystemClock()
        self.started_wall_s = self._clock.wall_s()
        self.prefix = f"demo-{int(self.started_wall_s * 1000):x}-"
        self._chance = random.Random(1)
        self._streams: list[Stream] = []

    @property
    def calls(self) -> int:
        return sum(stream.answered + stream.errors for stream in self._streams)

    @property
    def errors(self) -> int:
        return sum(stream.errors for stream in self._streams)

    def summary(self) -> list[dict[str, Any]]:
        return [stream.summary() for stream in self._streams]

    async def run(self, seconds: float | None) -> None:
        """Send until `seconds` have passed (None: until cancelled). Calls under way at the end are awaited and
        counted.
        """
        http = triton_http.InferenceServerClient(self._http_address, conn_limit=64)
        grpc = triton_grpc.InferenceServerClient(self._grpc_address)
        self._streams = _streams(http, grpc, self._chance)
        tasks: set[asyncio.Task[None]] = set()
        try:
            await self._send_all(seconds, tasks)
        finally:
            if tasks:
                await asyncio.wait(tasks, timeout=10)
            await http.close()
            await grpc.close()

    async def _send_all(self, seconds: float | None, tasks: set[asyncio.Task[None]]) -> None:
        start_s = report_s = self._clock.now_s()
        number = 0
        while seconds is None or self._clock.now_s() - start_s < seconds:
            due_s = start_s + number / self._rate
            await asyncio.sleep(max(0.0, due_s - self._clock.now_s()))
            if len(tasks) >= LATE_CALLS_MAX:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            stream = self._streams[number % len(self._streams)]
            task = asyncio.create_task(self._one(stream, f"{self.prefix}{number}"))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            number += 1
            if self._clock.now_s() - report_s >= REPORT_EVERY_S:
                report_s = self._clock.now_s()
                print(f"  {report_s - start_s:6.1f} s  {self.calls:6d} calls  {self.errors} errors", flush=True)

    async def _one(self, stream: Stream, request_id: str) -> None:
        start_s = self._clock.now_s()
        try:
            version = await stream.send(request_id)
        except Exception as error:
            stream.errors += 1
            if len(stream.error_texts) < ERROR_TEXTS_MAX:
                stream.error_texts.append(f"{type(error).__name__}: {error}"[:200])
            return
        stream.answered += 1
        stream.latencies_ms.append((self._clock.now_s() - start_s) * 1000)
        stream.versions.add(version)


def _streams(http: Any, grpc: Any, chance: random.Random) -> list[Stream]:
    generator = np.random.default_rng(chance.randrange(2**32))

    def features(module: Any) -> list[Any]:
        values = generator.random((1, FEATURES), dtype=np.float32)
        return [_tensor(module, "features", values, "FP32")]

    def work(module: Any) -> list[Any]:
        return [_tensor(module, "work", np.array([[1.0]], dtype=np.float32), "FP32")]

    makers: list[tuple[str, Callable[[Any], list[Any]]]] = [
        ("fraud", features),
        ("fraud-lite", features),
        ("accel", work),
    ]
    streams = []
    for model, inputs in makers:
        streams.append(Stream(model, "http", _sender(http, triton_http, model, inputs)))
        streams.append(Stream(model, "grpc", _sender(grpc, triton_grpc, model, inputs)))
    return streams


def _tensor(module: Any, name: str, values: Any, datatype: str) -> Any:
    tensor = module.InferInput(name, list(values.shape), datatype)
    tensor.set_data_from_numpy(values)
    return tensor


def _sender(
    client: Any, module: Any, model: str, inputs: Callable[[Any], list[Any]]
) -> Callable[[str], Awaitable[str]]:
    async def send(request_id: str) -> str:
        result = await client.infer(model, inputs(module), headers={"x-request-id": request_id})
        response = result.get_response()
        return str(response["model_version"] if isinstance(response, dict) else response.model_version)

    return send
