"""A decoupled model of the in-memory Triton: each question orders the responses that it wants.

The order stands in the input tensor, so that whoever knows a question knows what must come of it. Between two responses
the model looks whether its request was cancelled, and ends in silence if it was; a model that waits does not notice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from gateway.core.faults import UpstreamFault
from tests.simulation.batcher import Counts, Host, ModelSpec, Request, answer_digest

ERROR = -1
"""Stands for the model's error among the indexes of its responses."""
ERROR_TEXT = "bad input: the model was told to fail"

Emit = Callable[["Part"], None]


@dataclass(frozen=True, slots=True)
class Part:
    """What goes out for one request: a response's message, an error's text, or, with neither, only the flag.

    `final` is `triton_final_response`. `over`: nothing follows, whatever the flag said.
    """

    message: bytes = b""
    error: str = ""
    final: bool | None = False
    over: bool = False


@dataclass(frozen=True, slots=True)
class StreamOrder:
    """What a question orders. Times are whole milliseconds."""

    responses: int = 1
    first_ms: int = 0
    pause_ms: int = 0
    fail_at: int = ERROR
    """Before the response of this index the model reports an error; ERROR: never."""
    goes_on: bool = False
    """After the error."""
    joined: bool = False
    """The last response carries the final flag; otherwise the flag follows alone."""

    def encode(self) -> bytes:
        flags = f"{self.goes_on:d}{self.joined:d}"
        return f"{self.responses}/{self.first_ms}/{self.pause_ms}/{self.fail_at}/{flags}/".encode()

    def parts(self) -> list[int]:
        """The indexes of the responses in order, with ERROR in the error's place."""
        if not 0 <= self.fail_at <= self.responses:
            return list(range(self.responses))
        head = [*range(self.fail_at), ERROR]
        return [*head, *range(self.fail_at, self.responses)] if self.goes_on else head


def order_of(question: bytes) -> StreamOrder:
    """The order in a question; one response at once if there is none (a warm-up's zeros)."""
    fields = question[11:].split(b"/")
    if not question.startswith(b"call-") or len(fields) < 6:
        return StreamOrder()
    responses, first_ms, pause_ms, fail_at = map(int, fields[:4])
    return StreamOrder(responses, first_ms, pause_ms, fail_at, fields[4][:1] == b"1", fields[4][1:] == b"1")


def part_digest(question: bytes, index: int, model: str, version: str) -> bytes:
    """The output tensor of the response of this index."""
    return answer_digest(b"%d#%b" % (index, question), model, version)


class StreamRequest(Request):
    """A request whose responses go to `emit`."""

    __slots__ = ("emit", "index", "order", "todo")

    emit: Emit
    order: StreamOrder
    todo: deque[int]
    index: int


class Streamer:
    """One version of a decoupled model: `instances` requests side by side, others wait without bound."""

    def __init__(self, server: Host, spec: ModelSpec, version: str) -> None:
        self._server = server
        self.spec = spec
        self.version = version
        self.queue: deque[StreamRequest] = deque()
        self.running = 0
        self.counts = Counts()

    @property
    def idle(self) -> bool:
        return not self.queue and not self.running

    def drop_all(self) -> None:
        """The process died."""
        self.queue.clear()

    def submit(self, request: StreamRequest, emit: Emit) -> None:
        request.emit = emit
        request.order = order_of(request.question)
        request.todo = deque(request.order.parts())
        self.queue.append(request)
        self._visit()

    def _visit(self) -> None:
        while self.queue and self.running < self.spec.instances:
            request = self.queue.popleft()
            server = self._server
            self.running += 1
            self.counts.executions += 1
            self.counts.inferences += 1
            self.counts.batches[1] += 1
            self.counts.last_s = server.now_s()
            self.counts.queue_us += int((server.now_s() - request.arrived_s) * 1e6)
            server.executed[request.question] += 1
            server.note("stream", self.spec.name, self.version, request.id, len(request.todo))
            self._later(request, request.order.first_ms)

    def _later(self, request: StreamRequest, delay_ms: int) -> None:
        self._server.after(delay_ms / 1000 * self._server.slowness, lambda: self._next(request))

    def _next(self, request: StreamRequest) -> None:
        server, order, todo = self._server, request.order, request.todo
        if request.cancelled:
            server.note("stopped", self.spec.name, self.version, request.id)
            self.counts.cancelled += 1
            request.emit(Part(final=True, over=True))
            self._done()
            return
        if todo:
            index = todo.popleft()
            joined = order.joined and not todo
            if index == ERROR:
                request.emit(Part(error=ERROR_TEXT, final=joined, over=joined))
            else:
                output = part_digest(request.question, index, self.spec.name, self.version)
                message = server.answer(self.spec.name, self.version, request.id, output, joined)
                request.emit(Part(message, final=joined, over=joined))
            if todo:
                self._later(request, order.pause_ms)
                return
            if joined:
                self.counts.success += 1
                self._done()
                return
        request.emit(Part(final=True, over=True))
        self.counts.success += 1
        self._done()

    def _done(self) -> None:
        self.running -= 1
        self._visit()
        self._server.settle(self.spec.name)


def fault_part(fault: UpstreamFault) -> Part:
    """A refusal before the request reached the model: no flag."""
    return Part(error=fault.text, final=None, over=True)
