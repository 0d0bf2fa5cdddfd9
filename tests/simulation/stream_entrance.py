"""How planned streams enter the gateway: through the edge's own `ClientStream`, over a port without a socket."""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from tritonclient.grpc import service_pb2 as pb

from gateway.core.criticality import CLASS_OF
from gateway.core.errors import GatewayError, Reason
from gateway.edge.grpc_stream import ClientStream, StreamKit
from gateway.edge.headers import ClientHeaders
from gateway.runtime.clock import Clock
from tests.simulation.intake import EMPTY_FINAL, FINAL
from tests.simulation.loop import SimulationLoop
from tests.simulation.plans import CallPlan, SessionPlan
from tests.simulation.report import Answer, Ending, Part, Report, SessionEnding
from tests.simulation.stream_parts import share_out

WINDOW = 2
"""Messages that the client's end takes in before the client has read them."""
CUT_GRACE_S = 1.0
"""What the gRPC server gives streams that it cuts, before it ends them for good."""
MARK = "x-session"
"""A forwarded header by which an upstream stream tells whose it is."""


class StreamDoor:
    """What of the gRPC server is around a stream: the refusal while it drains, the shutdown, the cut."""

    def __init__(self, kit: StreamKit, draining: Callable[[], bool]) -> None:
        self.kit = kit
        self._draining = draining
        self._open: dict[ClientStream, asyncio.Task[None]] = {}

    async def serve(self, port: MemoryPort, headers: ClientHeaders, deadline_s: float, true_status: bool) -> None:
        """One stream, from its headers to its end. Raises `GatewayError` for its status."""
        if self._draining():
            raise GatewayError(Reason.DRAINING, Reason.DRAINING.meaning)
        stream = ClientStream(self.kit, port, headers, deadline_s, true_status=true_status)
        task = asyncio.current_task()
        assert task is not None
        self._open[stream] = task
        try:
            await stream.run()
        finally:
            del self._open[stream]
            if stream.calls or (stream._outbox and not port.left):
                port.report.violate(f"{headers.request_id}: {stream.calls} calls are left on an ended stream")

    async def close(self, limit_s: float) -> bool:
        """Drain, cut, and end all streams. Whether none was left at the limit."""
        for stream in tuple(self._open):
            stream.drain()
        if await self._emptied(limit_s):
            return True
        told = GatewayError(Reason.DRAINING, "the gateway is shutting down; send the call again", retry_after_s=1.0)
        for stream in tuple(self._open):
            stream.cut(told)
        if not await self._emptied(CUT_GRACE_S):
            for task in tuple(self._open.values()):
                task.cancel()
            await self._emptied(math.inf)
        return False

    async def _emptied(self, limit_s: float) -> bool:
        until_s = asyncio.get_running_loop().time() + limit_s
        while self._open:
            left_s = until_s - asyncio.get_running_loop().time()
            if left_s <= 0:
                return False
            await asyncio.wait(tuple(self._open.values()), timeout=None if limit_s == math.inf else left_s)
            await asyncio.sleep(0)
        return True


class MemoryPort:
    """`StreamPort`: the client's end holds `WINDOW` messages that nobody has read, and the writer waits for room."""

    def __init__(self, report: Report, loop: SimulationLoop, read_pause_s: float) -> None:
        self.report = report
        self.left = False
        self.headers: list[tuple[str, str]] | None = None
        self.written: list[tuple[float, bytes]] = []
        self._loop = loop
        self._pause_s = read_pause_s
        self._said: deque[bytes | None] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._unread = 0

    def say(self, message: bytes | None) -> None:
        """The client's next message arrives; None: it has said its last."""
        self._said.append(message)
        _wake(self._reader)

    async def read(self) -> bytes | None:
        while not self._said:
            self._reader = self._loop.create_future()
            await self._reader
        return self._said.popleft()

    async def send_headers(self, pairs: list[tuple[str, str]]) -> None:
        if self.headers is not None or self.written:
            self.report.violate("the headers of a stream were sent twice, or too late")
        self.headers = pairs

    async def write(self, message: bytes) -> None:
        if self.left:
            raise ConnectionResetError("the client left")
        if self.headers is None:
            self.report.violate("a stream's message was written before its headers")
        self.written.append((self._loop.time(), message))
        if not self._pause_s:
            return
        self._unread += 1
        if self._unread == 1:
            self._loop.call_later(self._pause_s, self._taken)
        while self._unread > WINDOW:
            self._writer = self._loop.create_future()
            await self._writer

    def _taken(self) -> None:
        self._unread -= 1
        _wake(self._writer)
        if self._unread:
            self._loop.call_later(self._pause_s, self._taken)


class StreamClients:
    """Plays sessions."""

    def __init__(self, loop: SimulationLoop, report: Report, clock: Clock, door: StreamDoor, seed: int) -> None:
        self._loop, self._report, self._clock, self._door = loop, report, clock, door
        self._chance = random.Random(f"sessions/{seed}")
        self._plans = {plan.number: plan for plan in report.scenario.calls}

    async def session(self, plan: SessionPlan) -> None:
        """One stream from its opening to its end, and an ending for each of its calls."""
        loop, report = self._loop, self._report
        port = MemoryPort(report, loop, plan.read_pause_s)
        begin_s = report.begun_s[plan.number] = loop.time()
        deadline_s = math.inf if plan.timeout_s is None else begin_s + plan.timeout_s
        headers = ClientHeaders(
            plan.request_id,
            timeout_s=plan.call_timeout_s,
            metadata=((MARK, plan.request_id),),
            priority=None if plan.priority is None else CLASS_OF[plan.priority],
        )
        handler = loop.create_task(self._door.serve(port, headers, deadline_s, plan.true_status))
        status = ["closed"]

        def leave(why: str) -> None:
            if not handler.done():
                report.trace.add("leaves", plan.request_id, why)
                status[0], port.left = why, True
                handler.cancel()

        coming: deque[int | None] = deque(number for _, number in plan.messages)
        coming.append(None)

        def arrive() -> None:
            # Takes what was sent first: timers that are due at one instant fire in any order.
            self._say(port, coming.popleft())

        timers = [loop.call_at(begin_s + after_s, arrive) for after_s, _ in plan.messages]
        timers.append(loop.call_at(begin_s + plan.messages[-1][0] + plan.closes_after_s, arrive))
        if plan.leaves_after_s is not None:
            timers.append(loop.call_at(begin_s + plan.leaves_after_s, leave, "left"))
        if plan.timeout_s is not None:
            timers.append(loop.call_at(deadline_s + 0.001, leave, "expired"))
        await asyncio.wait((handler,))
        for timer in timers:
            timer.cancel()
        ending = self._ending(handler, status[0])
        report.sessions[plan.number] = ending
        report.trace.add("stream-ended", plan.request_id, ending.status, len(port.written))
        report.on_session_ended(plan.request_id)
        end_session(report, self._plans, plan, port.written, ending)

    def _say(self, port: MemoryPort, number: int | None) -> None:
        if number is None:
            port.say(None)
            return
        plan = self._plans[number]
        self._report.sent_at_s[number] = self._loop.time()
        port.say(infer_message(plan))

    def _ending(self, handler: asyncio.Task[None], status: str) -> SessionEnding:
        at_s = self._clock.now_s()
        if handler.cancelled():
            return SessionEnding(at_s, status)
        error = handler.exception()
        if error is None:
            return SessionEnding(at_s, "ok" if status == "closed" else status)
        if isinstance(error, GatewayError):
            return SessionEnding(at_s, error.reason.label, error.message)
        return SessionEnding(at_s, "fault", f"{type(error).__name__}: {error}")


def end_session(
    report: Report,
    known: Mapping[int, CallPlan],
    plan: SessionPlan,
    written: Iterable[tuple[float, bytes]],
    ending: SessionEnding,
) -> None:
    """Give each call of a session its ending. `written`: the messages that its client got, and when they left."""
    plans = [known[number] for _, number in plan.messages]
    parts_of_all = [read_part(at_s, place, message) for place, (at_s, message) in enumerate(written)]
    shares, strangers = share_out(plans, parts_of_all, report)
    for text in strangers:
        report.violate(f"{plan.request_id}: {text}")
    for call in plans:
        parts = tuple(shares[call.number])
        status, text = ending.status, ending.text
        error = next((part.error for part in parts if part.error), "")
        if call.number not in report.sent_at_s:
            status = "unsent"
        elif call.number not in report.calls:
            status = "unread"
        elif error:
            status, text = "error", error
        report.end(call.number, Ending(ending.at_s, status, None, text, parts))


def read_part(at_s: float, place: int, message: bytes) -> Part:
    """What a `ModelStreamInferResponse` tells its client."""
    streamed = pb.ModelStreamInferResponse.FromString(message)
    inner = streamed.infer_response
    final = inner.parameters[FINAL].bool_param if FINAL in inner.parameters else None
    output = b"".join(inner.raw_output_contents)
    return Part(
        at_s, place, Answer(inner.model_name, inner.model_version, inner.id, output), streamed.error_message, final
    )


def infer_message(plan: CallPlan) -> bytes:
    """The call as a serialized `ModelInferRequest`."""
    request = pb.ModelInferRequest(model_name=plan.model, model_version=plan.version, id=plan.id)
    request.inputs.add(name="x", datatype="UINT8", shape=[plan.rows, plan.width])
    request.raw_input_contents.append(plan.question)
    if plan.queue_timeout_us:
        request.parameters["timeout"].int64_param = plan.queue_timeout_us
    if plan.wants_end:
        request.parameters[EMPTY_FINAL].bool_param = True
    step = plan.sequence
    if step is not None:
        if isinstance(step.id, str):
            request.parameters["sequence_id"].string_param = step.id
        else:
            request.parameters["sequence_id"].int64_param = step.id
        request.parameters["sequence_start"].bool_param = step.start
        request.parameters["sequence_end"].bool_param = step.end
    return bytes(request.SerializeToString())


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
