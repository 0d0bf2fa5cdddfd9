"""How the planned calls enter the gateway: as `Call` objects, or as bytes over in-memory connections."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace
from typing import Any, Protocol

import h11
from tritonclient.grpc import service_pb2 as pb

from gateway.core.call import Call, SequenceStep
from gateway.core.criticality import CLASS_OF
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.core.service import Service
from gateway.edge.grpc_port import GrpcPort
from gateway.runtime.clock import Clock
from tests.simulation.generate_entrance import generate_request, read_document, read_events
from tests.simulation.grpc_callers import GrpcCallers
from tests.simulation.loop import SimulationLoop
from tests.simulation.pipe import PipeTransport, connect
from tests.simulation.plans import CallPlan
from tests.simulation.report import Answer, Ending, Part, Report, request_id
from tests.simulation.stream_entrance import infer_message


class Door(Protocol):
    """The parts of a house that clients meet."""

    service: Service

    def closed(self) -> bool: ...

    def accept(self) -> asyncio.BaseProtocol | None: ...

    @property
    def grpc(self) -> GrpcPort | None: ...

    def knows(self, model: str) -> bool: ...


class DirectEntrance:
    """Calls handed to the stack's outermost service, as an edge would: one response, one close of the reply."""

    def __init__(self, loop: SimulationLoop, report: Report, clock: Clock, door: Door) -> None:
        self._loop, self._report, self._clock, self._door = loop, report, clock, door

    async def client(self, plan: CallPlan) -> None:
        clock, message = self._clock, infer_message(plan)
        if self._door.closed():
            self._report.end(plan.number, Ending(clock.now_s(), "closed"))
            return
        call = Call(
            request_id=request_id(plan.number),
            model=plan.model,
            version=plan.version,
            arrived_s=clock.now_s(),
            arrived_wall_s=clock.wall_s(),
            message=None if plan.body_after_s else message,
            body_bytes=len(message),
            timeout_s=plan.timeout_s,
            priority=None if plan.priority is None else CLASS_OF[plan.priority],
        )
        call.sequence = _unsigned(plan.sequence)
        if plan.body_after_s:

            async def receive() -> None:
                await asyncio.sleep(plan.body_after_s)
                call.message = message

            call.receive = receive
        if plan.leaves_after_s is not None:
            task = asyncio.current_task()
            assert task is not None
            self._loop.call_later(plan.leaves_after_s, self._leave, plan.number, call, task)
        answer, status, text = None, "ok", ""
        try:
            reply = await self._door.service.send(call)
            if clock.now_s() > call.deadline_s:
                await reply.aclose(Outcome.EXPIRED)
                status = Reason.DEADLINE.label
            else:
                answer = _understood(reply.message)
                await reply.aclose(Outcome.OK)
        except GatewayError as error:
            status, text = error.reason.label, error.message
        except asyncio.CancelledError:
            status = "left" if call.abandoned else "fault"
            text = "" if call.abandoned else "the call was cancelled although its client waited"
        except Exception as error:
            status, text = "fault", f"{type(error).__name__}: {error}"
        self._report.known_at[plan.number] &= self._door.knows(plan.model)
        self._report.end(plan.number, Ending(clock.now_s(), status, answer, text))

    def _leave(self, number: int, call: Call, task: asyncio.Task[None]) -> None:
        if not task.done():
            self._report.left_at_s[number] = self._loop.time()
            call.abandoned = True
            task.cancel()

    async def close(self) -> None:
        """Nothing to close."""


class HttpEntrance:
    """HTTP/1.1 clients on in-memory connections, kept alive and used again; h11 reads the answers."""

    def __init__(self, loop: SimulationLoop, report: Report, clock: Clock, door: Door, seed: int) -> None:
        self._loop, self._report, self._clock, self._door = loop, report, clock, door
        self._chance = random.Random(f"entrance/{seed}")
        self._idle: list[HttpClient] = []
        self._all: list[HttpClient] = []

    async def client(self, plan: CallPlan) -> None:
        connection = self._connection()
        binary = self._chance.random() < 0.5
        chunked = self._chance.random() < 0.2
        if plan.streamed:
            head, body = generate_request(plan, chunked=chunked)
        else:
            head, body = infer_request(plan, binary, chunked=chunked)
        if plan.leaves_after_s is not None:
            leave = connection.transport.abort if self._chance.random() < 0.5 else connection.transport.close
            self._loop.call_later(plan.leaves_after_s, connection.leave, plan.number, leave)
        ending = await connection.ask(plan, head, body)
        if connection.reusable:
            self._idle.append(connection)
        else:
            connection.transport.close()
        self._report.known_at[plan.number] &= self._door.knows(plan.model)
        self._report.end(plan.number, ending)

    def _connection(self) -> HttpClient:
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and self._chance.random() < 0.9:
                return connection
            connection.transport.close()
        server = self._door.accept()
        assert server is not None
        connection = HttpClient(self._clock, self._report)
        connection.transport, connection.far = connect(self._loop, self._chance, connection, server)
        self._all.append(connection)
        return connection

    async def close(self) -> None:
        for connection in self._all:
            connection.transport.close()


class HttpClient(asyncio.Protocol):
    """One client connection; one request at a time."""

    transport: PipeTransport
    far: PipeTransport

    def __init__(self, clock: Clock, report: Report) -> None:
        self._clock, self._report = clock, report
        self._http = h11.Connection(h11.CLIENT)
        self._changed = asyncio.Event()
        self._left = False
        self._asking: int | None = None
        self._plan: CallPlan | None = None
        self._head: h11.Response | None = None
        self._body = bytearray()
        self._ended = False

    @property
    def reusable(self) -> bool:
        idle = self._http.our_state is h11.IDLE and self._http.their_state is h11.IDLE
        return idle and not self._ended and not self.transport.is_closing()

    def leave(self, number: int, how: Any) -> None:
        """The client of call `number` goes away, unless it has its answer."""
        if self._asking == number:
            self._left = True
            self._report.left_at_s[number] = self._clock.now_s()
            how()
            self._changed.set()

    def data_received(self, data: bytes) -> None:
        if self._left:
            return
        if self._asking is None:
            self._report.violate(f"{len(data)} bytes came over HTTP that no request asked for")
        self._http.receive_data(data)
        self._changed.set()

    def eof_received(self) -> bool:
        self._ended = True
        if not self._left and self._asking is not None:
            self._http.receive_data(b"")
        self._changed.set()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._changed.set()

    async def ask(self, plan: CallPlan, head: h11.Request, body: bytes) -> Ending:
        """Send one request and wait for its response."""
        self._asking, self.far.first_write_s = plan.number, None
        self._forget_answer(plan)
        try:
            if plan.priority is not None and not plan.body_after_s:
                # In one write, as many clients do it: heads like those before are then known again.
                self._send(head, h11.Data(body), h11.EndOfMessage())
                return await self._response()
            self._send(head)
            if plan.body_after_s:
                await asyncio.sleep(plan.body_after_s)
            if not self._left and not self.transport.is_closing():
                self._send(h11.Data(body))
                self._send(h11.EndOfMessage())
            return await self._response()
        except h11.RemoteProtocolError as error:
            if self._head is not None and plan.streamed and not self._left:
                return self._cut()
            closed = self._ended and self.far.first_write_s is None
            return self._ending("left" if self._left else "closed" if closed else "fault", text=f"not HTTP: {error}")
        finally:
            self._asking = None

    def _forget_answer(self, plan: CallPlan) -> None:
        self._plan, self._head, self._body = plan, None, bytearray()

    def _send(self, *events: h11.Event) -> None:
        data = b"".join(self._http.send(event) or b"" for event in events)
        if data:
            self.transport.write(data)

    async def _response(self) -> Ending:
        while not self._left:
            event = self._http.next_event()
            if isinstance(event, h11.Response):
                self._head = event
            elif isinstance(event, h11.Data):
                self._body += event.data
            elif isinstance(event, h11.EndOfMessage):
                assert self._head is not None
                ending = self._read(self._head, bytes(self._body))
                if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
                    self._http.start_next_cycle()
                return ending
            elif isinstance(event, h11.ConnectionClosed) or (event is h11.NEED_DATA and self._ended):
                if self._head is not None and self._plan is not None and self._plan.streamed:
                    return self._cut()
                status = "closed" if self._head is None else "fault"
                return self._ending(status, text="the connection ended in a response")
            else:
                self._changed.clear()
                await self._changed.wait()
        return self._ending("left", parts=self._parts())

    def _cut(self) -> Ending:
        """The connection ended inside an answer that was being streamed."""
        return self._ending("cut", text="the connection ended inside the stream", parts=self._parts())

    def _parts(self) -> tuple[Part, ...]:
        """The events that came so far, if it is a stream of events that comes."""
        if self._head is None or self._head.status_code != 200 or self._plan is None:
            return ()
        if self._plan.route != "generate_stream":
            return ()
        return read_events(bytes(self._body), self._clock.now_s())

    def _read(self, head: h11.Response, body: bytes) -> Ending:
        headers = {name.decode(): value.decode() for name, value in head.headers}
        if headers.get("x-request-id") != request_id(self._asking or 0):
            return self._ending("fault", text=f"x-request-id is {headers.get('x-request-id')!r}")
        if head.status_code != 200:
            text = json.loads(body)["error"]
            return self._ending(headers.get("x-sluice-reason", f"http-{head.status_code}"), text=text)
        if self._plan is not None and self._plan.streamed:
            return self._read_generate(body)
        answer = _parsed(headers, body)
        if headers.get("x-sluice-model-version") != answer.version:
            version = headers.get("x-sluice-model-version")
            return self._ending("fault", text=f"x-sluice-model-version {version!r}, body {answer.version!r}")
        return self._ending("ok", answer)

    def _read_generate(self, body: bytes) -> Ending:
        assert self._plan is not None
        if self._plan.route == "generate":
            parts: tuple[Part, ...] = (read_document(body, self._clock.now_s(), 0),)
        else:
            parts = self._parts()
        error = next((part.error for part in parts if part.error), "")
        return self._ending("error" if error else "ok", text=error, parts=parts)

    def _ending(
        self, status: str, answer: Answer | None = None, text: str = "", parts: tuple[Part, ...] = ()
    ) -> Ending:
        at_s = self.far.first_write_s
        return Ending(self._clock.now_s() if at_s is None or status == "left" else at_s, status, answer, text, parts)


class GrpcEntrance:
    """Calls over the gRPC port; where the scenario has HTTP clients too half of the calls are theirs, and all of
    `generate`.
    """

    def __init__(self, report: Report, door: Door, callers: GrpcCallers, http: HttpEntrance | None) -> None:
        self.callers = callers
        self._report, self._door = report, door
        self._http = http
        self._chance = random.Random(f"entrances/{report.scenario.seed}")

    async def client(self, plan: CallPlan) -> None:
        if self._http is not None and (plan.streamed or self._chance.random() < 0.5):
            await self._http.client(plan)
            return
        ending = await self.callers.client(plan)
        self._report.known_at[plan.number] &= self._door.knows(plan.model)
        self._report.end(plan.number, ending)

    async def close(self) -> None:
        self.callers.close()
        if self._http is not None:
            await self._http.close()


def enter(
    loop: SimulationLoop, report: Report, clock: Clock, door: Door
) -> DirectEntrance | HttpEntrance | GrpcEntrance:
    """The entrance that the scenario wants and the house has."""
    if report.scenario.codecs and door.grpc is not None:
        callers = GrpcCallers(loop, report, clock, door.grpc, report.scenario.seed)
        http = HttpEntrance(loop, report, clock, door, report.scenario.seed) if report.scenario.as_bytes else None
        return GrpcEntrance(report, door, callers, http)
    if report.scenario.as_bytes and (probe := door.accept()) is not None:
        del probe
        return HttpEntrance(loop, report, clock, door, report.scenario.seed)
    return DirectEntrance(loop, report, clock, door)


def infer_request(plan: CallPlan, binary: bool, *, chunked: bool) -> tuple[h11.Request, bytes]:
    """The call as an HTTP request: its head, and its body as JSON or with a binary tail."""
    tensor: dict[str, Any] = {"name": "x", "datatype": "UINT8", "shape": [plan.rows, plan.width]}
    document: dict[str, Any] = {"id": plan.id, "inputs": [tensor]}
    parameters: dict[str, Any] = {}
    if plan.queue_timeout_us:
        parameters["timeout"] = plan.queue_timeout_us
    if plan.sequence is not None:
        step = _unsigned(plan.sequence)
        assert step is not None
        parameters |= {"sequence_id": step.id, "sequence_start": step.start, "sequence_end": step.end}
    if binary:
        tensor["parameters"] = {"binary_data_size": len(plan.question)}
        parameters["binary_data_output"] = True
    else:
        tensor["data"] = list(plan.question)
    if parameters:
        document["parameters"] = parameters
    body = text = json.dumps(document).encode()
    version = f"/versions/{plan.version}" if plan.version else ""
    headers = [("host", "gateway.sim"), ("x-request-id", request_id(plan.number))]
    if binary:
        headers.append(("inference-header-content-length", str(len(text))))
        body = text + plan.question
    headers.append(("transfer-encoding", "chunked") if chunked else ("content-length", str(len(body))))
    if plan.timeout_s is not None:
        headers.append(("x-request-timeout-ms", str(round(plan.timeout_s * 1000))))
    if plan.priority is not None:
        headers.append(("x-sluice-priority", plan.priority))
    target = f"/v2/models/{plan.model}{version}/infer"
    return h11.Request(method="POST", target=target, headers=headers), body


def _unsigned(step: SequenceStep | None) -> SequenceStep | None:
    """As HTTP spells it, and as the gRPC edge reads it: a negative number stands for a large one."""
    if step is None or isinstance(step.id, str):
        return step
    return replace(step, id=step.id & 0xFFFF_FFFF_FFFF_FFFF)


def _parsed(headers: dict[str, str], body: bytes) -> Answer:
    length = headers.get("inference-header-content-length")
    document = json.loads(body if length is None else body[: int(length)])
    (tensor,) = document["outputs"]
    output = bytes(tensor["data"]) if length is None else body[int(length) :]
    return Answer(document["model_name"], document["model_version"], document.get("id", ""), output)


def _understood(message: bytes) -> Answer:
    answer = pb.ModelInferResponse.FromString(message)
    return Answer(answer.model_name, answer.model_version, answer.id, b"".join(answer.raw_output_contents))
