"""What the HTTP edge's tests share: an edge over scripted parts, on real sockets or on a transport in memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable

from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2 import ModelConfigResponse

from gateway.core.call import ANONYMOUS, Call, Identity
from gateway.core.credentials import Credentials
from gateway.core.errors import GatewayError, Reason
from gateway.core.faces import Authenticator, BodyLimits, IndexEntry, ModelConfigBytes, StatisticsBytes
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply, Response, StreamReply
from gateway.core.service import Service
from gateway.decide.bytebudget import ByteBudget
from gateway.edge.explain import Explainer
from gateway.edge.headers import HeaderReader
from gateway.edge.http_connection import HttpConnection
from gateway.edge.http_server import HttpServer
from gateway.edge.tls_door import PortDoor
from gateway.edge.tls_peers import TransportPeers
from gateway.policy.schema import HttpLimits
from gateway.runtime.chance import Chance
from gateway.runtime.clock import Clock, SystemClock
from gateway.runtime.wheel import TimerWheel
from gateway.wire.kserve.metadata import ModelMetadata, ServerMetadata, TensorMetadata
from gateway.wire.kserve.repository import index_to_protobuf
from tests.support.clock import ManualClock
from tests.unit.edge_clients import WAIT_S, infer_response, read_answers, text_response

MIB = 1024 * 1024
CONFIG = json.dumps(
    {
        "name": "fraud",
        "max_batch_size": 8,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}],
    }
).encode()
CONFIG_PROTO = ModelConfigResponse(config=json_format.Parse(CONFIG, ModelConfig())).SerializeToString()


class ReceivingService:
    """Asks for the body as the deadline layer does, then hands the call to `then`, which answers or raises."""

    def __init__(self, then: Callable[[Call], Reply] | None = None) -> None:
        self.calls: list[Call] = []
        self.outcomes: list[Outcome] = []
        self.then = then or (lambda call: Reply(infer_response(call.model)))

    async def send(self, call: Call) -> Reply:
        self.calls.append(call)
        if call.receive is not None:
            await call.receive()
        call.trail.rung = "full"
        call.trail.version_served = "1"
        reply = self.then(call)
        reply.on_close(self.outcomes.append)
        return reply


class GatedService:
    """Asks for the body, tells the test of the call, and waits for the test's word."""

    def __init__(self, *, receive: bool = True) -> None:
        self.arrived: asyncio.Queue[GatedCall] = asyncio.Queue()
        self.outcomes: list[Outcome] = []
        self._receive = receive

    async def next(self) -> GatedCall:
        """The next call that arrives."""
        async with asyncio.timeout(WAIT_S):
            return await self.arrived.get()

    async def send(self, call: Call) -> Reply:
        if self._receive and call.receive is not None:
            await call.receive()
        gated = GatedCall(call)
        self.arrived.put_nowait(gated)
        try:
            await gated.go.wait()
        except asyncio.CancelledError:
            gated.cancelled.set()
            raise
        if gated.error is not None:
            raise gated.error
        if not self._receive and call.receive is not None:
            await call.receive()
        reply = Reply(gated.message)
        reply.on_close(self.outcomes.append)
        return reply


class GatedCall:
    def __init__(self, call: Call) -> None:
        self.call = call
        self.go = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.error: BaseException | None = None
        self.message = infer_response(call.model)

    def answer(self, message: bytes | None = None) -> None:
        self.message = self.message if message is None else message
        self.go.set()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.go.set()


class ScriptedStream:
    """The responses to one call: the test says them, the edge takes them."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.asked = 0
        """How often a response was asked for."""
        self.cancelled = asyncio.Event()
        self.closed = asyncio.Event()
        self.outcome: Outcome | None = None
        self.reply: StreamReply | None = None
        self._said: asyncio.Queue[Response | BaseException | None] = asyncio.Queue()

    def say(self, *texts: str | bytes) -> None:
        for text in texts:
            self.say_message(text_response(text, self.call.model))

    def say_message(self, message: bytes) -> None:
        self._said.put_nowait(Response(message))

    def say_error(self, error: GatewayError) -> None:
        """An error that the model reports in the place of a response."""
        self._said.put_nowait(Response(b"", error))

    def fail(self, error: BaseException) -> None:
        self._said.put_nowait(error)

    def end(self) -> None:
        self._said.put_nowait(None)

    async def take(self) -> Response | None:
        self.asked += 1
        try:
            said = await self._said.get()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        if isinstance(said, BaseException):
            try:
                raise said
            finally:
                del said  # its traceback holds this frame
        return said

    def close(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.closed.set()


class StreamingService:
    """Asks for the body, tells the test of the call, and answers with the stream that the test then says."""

    def __init__(self) -> None:
        self.arrived: asyncio.Queue[ScriptedStream] = asyncio.Queue()
        self.calls: list[Call] = []

    async def next(self) -> ScriptedStream:
        """The next call that arrives."""
        async with asyncio.timeout(WAIT_S):
            return await self.arrived.get()

    async def send(self, call: Call) -> Reply:
        self.calls.append(call)
        assert call.session is not None
        if call.receive is not None:
            await call.receive()
        call.trail.rung = "full"
        call.trail.version_served = "1"
        stream = ScriptedStream(call)
        self.arrived.put_nowait(stream)
        stream.reply = StreamReply(await stream.take(), stream.take, ordered=False)
        stream.reply.on_close(stream.close)
        return stream.reply


class FixedCatalogue:
    """Knows the model `fraud`, version 1. What it says can be changed by the test."""

    def __init__(self) -> None:
        self.live = True
        self.ready = True
        self.model_is_ready = True
        self.fault: BaseException | None = None
        self.config = ModelConfigBytes(CONFIG_PROTO, CONFIG)
        self.asked: list[tuple[str, str]] = []
        self.questions: list[str] = []
        """What the model servers were asked."""
        self.out = 0
        """How many such questions wait for their answer."""
        self.heard = asyncio.Event()
        """The model servers answer; a test may clear it."""
        self.heard.set()

    def server_live(self) -> bool:
        if self.fault is not None:
            raise self.fault
        return self.live

    def server_ready(self) -> bool:
        return self.ready

    def model_ready(self, model: str, version: str) -> bool:
        self._know(model, version)
        return self.model_is_ready

    def server_metadata(self) -> bytes:
        return ServerMetadata("triton", "2.51.0", ("model_repository", "system_shared_memory")).to_protobuf()

    def model_metadata(self, model: str, version: str) -> bytes:
        self._know(model, version)
        tensor = TensorMetadata("x", "FP32", (-1, -1))
        return ModelMetadata(model, ("1",), "python", (tensor,), (tensor,)).to_protobuf()

    def model_config(self, model: str, version: str) -> ModelConfigBytes:
        self._know(model, version)
        return self.config

    async def model_statistics(self, model: str, version: str, identity: Identity) -> StatisticsBytes:
        await self._question("statistics")
        if model:
            self._know(model, version)
        return StatisticsBytes(b"", b'{"model_stats":[{"name":"fraud"}]}')

    async def repository_index(self, ready: bool, identity: Identity) -> bytes:
        await self._question(f"index ready={ready} {identity.tenant}")
        return index_to_protobuf([IndexEntry("fraud", "1", "READY", "")])

    async def _question(self, what: str) -> None:
        self.questions.append(what)
        self.out += 1
        try:
            await self.heard.wait()
        finally:
            self.out -= 1
        if self.fault is not None:
            raise self.fault

    def _know(self, model: str, version: str) -> None:
        self.asked.append((model, version))
        if model != "fraud":
            raise GatewayError(Reason.UNKNOWN_MODEL, f"Request for unknown model: '{model}' is not found")
        if version not in ("", "1"):
            raise GatewayError(Reason.UNKNOWN_VERSION, f"model 'fraud' has no version {version}")


class Doors:
    """An `Authenticator`: everybody, or holders of a key."""

    def __init__(self, keys: dict[str, Identity] | None = None) -> None:
        self._keys = keys

    def identify(self, credentials: Credentials) -> Identity:
        if self._keys is None:
            return ANONYMOUS
        identity = self._keys.get(credentials.secret or "")
        if identity is None:
            raise GatewayError(Reason.UNAUTHENTICATED, "no such key; send one in x-api-key")
        return identity


class Notes:
    """An `EdgeObserver` that writes everything down."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed = 0
        self.refused = 0
        self.faults: list[str] = []
        self.requests: list[tuple[str, str]] = []
        self.internal = 0

    def connection_opened(self, protocol: str) -> None:
        self.opened += 1

    def connection_closed(self, protocol: str) -> None:
        self.closed += 1

    def connection_refused(self, protocol: str) -> None:
        self.refused += 1

    def protocol_fault(self, protocol: str, kind: str) -> None:
        self.faults.append(kind)

    def request_without_call(self, protocol: str, route: str, status: str) -> None:
        self.requests.append((route, status))

    def internal_fault(self, protocol: str) -> None:
        self.internal += 1


class Edge:
    """An `HttpServer` with its parts at hand."""

    def __init__(
        self,
        service: Service,
        *,
        limits: HttpLimits | None = None,
        authenticator: Authenticator | None = None,
        clock: Clock | None = None,
        body_bytes_max: int = 16 * MIB,
        json_bytes_max: int = 16 * MIB,
        memory_bytes: int = 64 * MIB,
        forward: tuple[str, ...] = ("*",),
        tls: Callable[[], ssl.SSLContext] | None = None,
        handshake_timeout_s: float = 10.0,
        peers: TransportPeers | None = None,
    ) -> None:
        chance = Chance(7)
        self.clock: Clock = clock or SystemClock()
        self.wheel = TimerWheel(self.clock) if clock is None else HandWheel(clock)
        self.catalogue = FixedCatalogue()
        self.notes = Notes()
        self.budget = ByteBudget(memory_bytes)
        self.limits: BodyLimits | None = BodyLimits(body_bytes_max, json_bytes_max)
        self.server = HttpServer(
            service=service,
            catalogue=self.catalogue,
            authenticator=authenticator or Doors(),
            limits=limits or HttpLimits(),
            reader=HeaderReader(forward, chance.stream("ids")),
            explainer=Explainer(chance.stream("salt").getrandbits(256)),
            wheel=self.wheel,
            clock=self.clock,
            chance=chance,
            limits_of=lambda model: self.limits,
            body_budget=self.budget,
            observer=self.notes,
            tls=None
            if tls is None
            else PortDoor(tls, handshake_timeout_s=handshake_timeout_s, wheel=self.wheel, observer=self.notes),
            peers=peers,
        )

    def connect(self) -> MemoryTransport:
        """A connection in memory. Needs a running loop."""
        connection = HttpConnection(self.server)
        transport = MemoryTransport(connection)
        connection.connection_made(transport)
        return transport

    def advance(self, seconds: float) -> None:
        """Move a clock that was given, in small steps, and fire what becomes due."""
        assert isinstance(self.clock, ManualClock)
        assert isinstance(self.wheel, HandWheel)
        while seconds > 0:
            self.clock.advance(min(seconds, 0.1))
            self.wheel.turn()
            seconds -= 0.1

    def nothing_is_left(self) -> None:
        """No call, no task, no byte of the budget."""
        statistics = self.server.statistics(0.0)
        assert statistics["calls"] == 0
        assert self.budget.used_bytes == 0
        assert statistics["connections"] == 0 or not self.server.draining


@contextlib.asynccontextmanager
async def running(edge: Edge) -> AsyncIterator[tuple[str, int]]:
    """The edge on a free loopback port; stopped, and checked to have nothing left, at the end."""
    host, _, port = (await edge.server.start("127.0.0.1:0")).rpartition(":")
    try:
        yield host, int(port)
    finally:
        edge.server.begin_drain()
        await edge.server.wait_closed(0.0)
        edge.wheel.close()
    edge.nothing_is_left()


class MemoryTransport(asyncio.Transport):
    """A transport without a socket: the test is the client."""

    def __init__(self, protocol: HttpConnection) -> None:
        super().__init__()
        self.protocol = protocol
        self.sent = bytearray()
        self.paused = False
        self.closing = False
        self.aborted = False
        self.eof_sent = False
        self.lost = False
        self.stuck_bytes = 0
        """What the client has not taken; set by the test together with `pause_writing`."""
        self.fail_next_write: BaseException | None = None

    # the client's side

    def feed(self, data: bytes) -> None:
        self.protocol.data_received(data)

    def leave(self) -> None:
        """The client's end of the connection, as asyncio tells it."""
        if not self.protocol.eof_received():
            self.close()

    def reset(self) -> None:
        self._lose(ConnectionResetError("reset by the test"))

    def reads(self) -> bool:
        """Whether the server takes bytes now. (A method: type checkers believe that attributes stay as they were.)"""
        return not self.paused

    def cut_off(self) -> bool:
        return self.aborted

    @property
    def ended(self) -> bool:
        return self.closing or self.aborted or self.eof_sent

    @property
    def statuses(self) -> list[int]:
        return [answer.status for answer in read_answers(bytes(self.sent))]

    # the protocol's side

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.fail_next_write is not None:
            failure, self.fail_next_write = self.fail_next_write, None
            raise failure
        assert not self.closing, "written after close"
        self.sent += data

    def get_write_buffer_size(self) -> int:
        return self.stuck_bytes

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.eof_sent = True

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        assert not self.paused
        self.paused = True

    def resume_reading(self) -> None:
        assert self.paused
        self.paused = False

    def close(self) -> None:
        self.closing = True
        if not self.stuck_bytes:
            asyncio.get_running_loop().call_soon(self._lose, None)

    def abort(self) -> None:
        self.aborted = self.closing = True
        asyncio.get_running_loop().call_soon(self._lose, None)

    def _lose(self, error: Exception | None) -> None:
        if not self.lost:
            self.lost = self.closing = True
            self.protocol.connection_lost(error)


class HandWheel(TimerWheel):
    """A timer wheel without a loop's timer: `turn` fires what is due by the clock in the test's hand."""

    def _arm(self, tick: int) -> None:
        return None

    def turn(self) -> None:
        self._turn()


async def turns(count: int = 8) -> None:
    """Let the loop turn a few times: enough for every task that can go on to go on."""
    for _ in range(count):
        await asyncio.sleep(0)
