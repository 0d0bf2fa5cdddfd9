"""The part of the in-memory Triton below the model name: input checks, queue, dynamic batcher, instances."""

from __future__ import annotations

import asyncio
import hashlib
import random
import struct
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tritonclient.grpc import service_pb2 as pb

from gateway.core.codes import Code
from gateway.core.faults import UpstreamFault

BATCHER_WAKE_S = 0.5
"""The longest time a dynamic batcher sleeps while requests wait."""

Done = Callable[[bytes | UpstreamFault], None]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model in the repository of the fleet. Times are virtual seconds; S(b) = s0_s + s1_s * b for a batch of b."""

    name: str
    versions: tuple[str, ...] = ("1",)
    max_batch_size: int = 8
    instances: int = 1
    dynamic_batching: bool = True
    max_queue_delay_s: float = 0.0
    max_queue_size: int = 0
    default_timeout_s: float = 0.0
    allow_timeout_override: bool = False
    s0_s: float = 0.004
    s1_s: float = 0.0005
    noise: float = 0.1
    straggler_share: float = 0.0
    straggler_factor: float = 20.0
    load_s: float = 0.2
    broken: frozenset[str] = frozenset()
    """Versions whose load fails."""
    named_at_start: bool = True
    """Loaded at start-up; otherwise the index shows only its name."""
    decoupled: bool = False
    """Each question orders its own responses (`streamer.py`); `instances` requests are served side by side."""
    sequences: int = 0
    """Slots for sequences; above 0 the model is stateful (`sequencer.py`), and each runs in a slot of its own."""
    sequence_idle_s: float = 1.0
    text_ids: bool = False
    """The model takes the ids of sequences as strings (which says only how the gateway should warm it)."""
    work_input: str = ""
    """The one input is called so, and is an FP32 number a row: the work, in units of `s1_s` (as the model `accel`)."""


def answer_digest(question: bytes, model: str, version: str) -> bytes:
    """The output tensor for an input: 16 bytes that depend on the input, the model and the version."""
    return hashlib.blake2b(b"\0".join((question, model.encode(), version.encode())), digest_size=16).digest()


def fault(code: Code, text: str) -> UpstreamFault:
    """An error that the server itself wrote."""
    return UpstreamFault(code, text, from_peer=True)


class Host(Protocol):
    """What a scheduler needs of its server."""

    name: str
    chance: random.Random
    slowness: float
    executed: Counter[bytes]

    def now_s(self) -> float: ...

    def note(self, kind: str, *fields: object) -> None: ...

    def after(self, delay_s: float, work: Callable[[], None]) -> asyncio.TimerHandle: ...

    def answer(self, model: str, version: str, request_id: str, output: bytes, final: bool | None = None) -> bytes: ...

    def settle(self, name: str) -> None: ...


class Request:
    """One inference request inside the server."""

    __slots__ = ("arrived_s", "batch", "cancelled", "done", "expires_s", "id", "question", "shape")

    def __init__(
        self, message: pb.ModelInferRequest, batch: int, arrived_s: float, expires_s: float, done: Done
    ) -> None:
        self.id: str = message.id
        self.question: bytes = message.raw_input_contents[0]
        self.shape = tuple(message.inputs[0].shape)[1:]
        self.batch = batch
        self.arrived_s = arrived_s
        self.expires_s = expires_s
        self.done: Done | None = done
        self.cancelled = False

    def finish(self, result: bytes | UpstreamFault) -> None:
        done, self.done = self.done, None
        if done is not None:
            done(result)


@dataclass(slots=True)
class Counts:
    """What the statistics of one version count."""

    success: int = 0
    rejected: int = 0
    cancelled: int = 0
    backend: int = 0
    inferences: int = 0
    executions: int = 0
    queue_us: int = 0
    compute_us: int = 0
    batches: Counter[int] = field(default_factory=Counter)
    """Executions by batch size."""
    last_s: float = 0.0
    """When the last request began to run, on the loop's clock."""


class Scheduler:
    """Queue, batcher and instances of one model version."""

    def __init__(self, server: Host, spec: ModelSpec, version: str) -> None:
        self._server = server
        self.spec = spec
        self.version = version
        self.queue: deque[Request] = deque()
        self.running = 0
        self.counts = Counts()
        self._wake: asyncio.TimerHandle | None = None

    def submit(self, request: Request) -> None:
        spec = self.spec
        if spec.dynamic_batching and spec.max_queue_size and len(self.queue) >= spec.max_queue_size:
            # Not counted as a failure: the real server's counters miss these rejections.
            request.finish(fault(Code.UNAVAILABLE, f"{log_id(request.id)}Exceeds maximum queue size"))
            return
        self.queue.append(request)
        self._visit()

    @property
    def idle(self) -> bool:
        return not self.queue and not self.running

    def drop_all(self) -> None:
        """The process died."""
        if self._wake is not None:
            self._wake.cancel()
        self.queue.clear()

    def _visit(self) -> None:
        while self.queue and self.running < self.spec.instances:
            batch = self._form() if self.spec.dynamic_batching else [self.queue.popleft()]
            if not batch:
                break
            self._execute(batch)
        if self.queue and self._wake is None and self.spec.dynamic_batching:
            self._wake = self._server.after(self._sleep_s(), self._woken)

    def _sleep_s(self) -> float:
        if self.running < self.spec.instances:
            waits_until_s = self.queue[0].arrived_s + self.spec.max_queue_delay_s
            return min(BATCHER_WAKE_S, max(0.0, waits_until_s - self._server.now_s()))
        return BATCHER_WAKE_S

    def _woken(self) -> None:
        self._wake = None
        self._reap()
        self._visit()

    def _reap(self) -> None:
        now_s = self._server.now_s()
        kept: deque[Request] = deque()
        for request in self.queue:
            if request.cancelled:
                self.counts.cancelled += 1
                self._server.note("cancelled", self.spec.name, self.version, request.id)
                request.finish(fault(Code.CANCELLED, "Request cancelled"))
            elif request.expires_s <= now_s:
                self.counts.rejected += 1
                request.finish(fault(Code.UNAVAILABLE, "Request timeout expired"))
            else:
                kept.append(request)
        self.queue = kept

    def _form(self) -> list[Request]:
        self._reap()
        if not self.queue:
            return []
        spec, head, batch, elements = self.spec, self.queue[0], [], 0
        for request in self.queue:
            if request.shape != head.shape or elements + request.batch > spec.max_batch_size:
                break
            batch.append(request)
            elements += request.batch
        full = elements >= spec.max_batch_size or len(batch) < len(self.queue)
        if not full and self._server.now_s() < head.arrived_s + spec.max_queue_delay_s:
            if self._wake is not None:
                self._wake.cancel()
                self._wake = None
            return []
        for _ in batch:
            self.queue.popleft()
        return batch

    def _execute(self, batch: list[Request]) -> None:
        server = self._server
        elements = sum(request.batch for request in batch)
        took_s = self._takes_s(batch)
        self.running += 1
        now_s = server.now_s()
        self.counts.executions += 1
        self.counts.inferences += elements
        self.counts.batches[elements] += 1
        self.counts.last_s = now_s
        for request in batch:
            server.executed[request.question] += 1
            self.counts.queue_us += int((now_s - request.arrived_s) * 1e6)
            self.counts.compute_us += int(took_s * 1e6)
        server.note("execute", self.spec.name, self.version, len(batch), f"{took_s * 1e3:.3f}")
        server.after(took_s, lambda: self._executed(batch))

    def _takes_s(self, batch: list[Request]) -> float:
        """How long a batch that begins now will take."""
        server, spec = self._server, self.spec
        took_s = (spec.s0_s + spec.s1_s * self._work(batch)) * server.slowness
        took_s *= 1.0 + spec.noise * server.chance.random()
        # Not on top of a slow server: one execution would outlast the time that recovery is given.
        if server.slowness == 1.0 and spec.straggler_share and server.chance.random() < spec.straggler_share:
            took_s *= spec.straggler_factor
        return took_s

    def _work(self, batch: list[Request]) -> float:
        """In units of `s1_s`: as many as there are rows, or what the rows say."""
        if not self.spec.work_input:
            return sum(request.batch for request in batch)
        return sum(sum(struct.unpack(f"<{request.batch}f", request.question)) for request in batch)

    def _executed(self, batch: list[Request]) -> None:
        self.running -= 1
        for request in batch:
            self.counts.success += 1
            output = answer_digest(request.question, self.spec.name, self.version)
            request.finish(self._server.answer(self.spec.name, self.version, request.id, output))
        self._visit()
        self._server.settle(self.spec.name)


def check_inputs(message: pb.ModelInferRequest, spec: ModelSpec) -> UpstreamFault | None:
    prefix, name = log_id(message.id), spec.work_input or "x"
    if len(message.inputs) != 1 or message.inputs[0].name != name:
        given = ", ".join(f"'{tensor.name}'" for tensor in message.inputs)
        text = f"{prefix}expected 1 inputs but got {len(message.inputs)} inputs for model '{spec.name}'. "
        return fault(Code.INVALID_ARGUMENT, f"{text}Got input(s) [{given}]")
    if not message.raw_input_contents:
        return fault(Code.INVALID_ARGUMENT, f"{prefix}input '{name}' has no data for model '{spec.name}'")
    tensor, size = message.inputs[0], 1
    for extent in tensor.shape:
        size *= extent
    datatype, item_bytes = ("FP32", 4) if spec.work_input else ("UINT8", 1)
    if tensor.datatype != datatype or len(tensor.shape) != (2 if spec.max_batch_size else 1):
        text = f"{prefix}inference input '{name}' data-type is '{tensor.datatype}', but model '{spec.name}' expects "
        text += f"'{datatype}'"
        return fault(Code.INVALID_ARGUMENT, text)
    if spec.max_batch_size and tensor.shape[0] > spec.max_batch_size:
        text = f"{prefix}inference request batch-size must be <= {spec.max_batch_size} for '{spec.name}'"
        return fault(Code.INVALID_ARGUMENT, text)
    if len(message.raw_input_contents[0]) != size * item_bytes:
        text = f"{prefix}input byte size mismatch for input '{name}' for model '{spec.name}'. "
        text += f"Expected {size * item_bytes}, "
        text += f"got {len(message.raw_input_contents[0])}"
        return fault(Code.INVALID_ARGUMENT, text)
    return None


def queue_limit_s(message: pb.ModelInferRequest, spec: ModelSpec) -> float:
    """How long the request may wait: its own `timeout` counts only if the model allows it and it is the shorter one."""
    if not spec.dynamic_batching or not spec.default_timeout_s:
        return float("inf")
    limit_s = spec.default_timeout_s
    if spec.allow_timeout_override and "timeout" in message.parameters:
        parameter = message.parameters["timeout"]
        own_s = (parameter.int64_param or parameter.uint64_param) * 1e-6
        if 0.0 < own_s < limit_s:
            limit_s = own_s
    return limit_s


def log_id(request_id: str) -> str:
    return f"[request id: {request_id or '<id_unknown>'}] "
