"""What the ends of the gateway cost per call, without sockets: each port over a service that answers at once, and the
client of replicas over a replica that answers at once.

The bytes are those that the lab's callers send and that Triton answers, made before the time is taken. What is in a
figure: everything from the bytes that came to the bytes that leave, the task of a call included. What is not: system
calls, the event loop's own work with sockets, and whatever lies between port and client.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from gateway.core.call import Call, Metadata
from gateway.core.faces import Endpoints
from gateway.core.reply import Reply
from gateway.edge.explain import Explainer
from gateway.edge.grpc_connection import GrpcConnection
from gateway.edge.grpc_kit import GrpcKit
from gateway.edge.grpc_port import GrpcPort
from gateway.edge.headers import HeaderReader
from gateway.edge.http_connection import HttpConnection
from gateway.edge.http_server import HttpServer
from gateway.fleet.http2_channel import Http2Options
from gateway.fleet.http2_client import Http2Connector
from gateway.fleet.http2_dial import DialTls
from gateway.policy.keys import AnonymousAuthenticator
from gateway.policy.schema import GrpcLimits, HttpLimits
from gateway.runtime.chance import Chance
from gateway.wire.hpack import literal
from load.errors import LoadError
from load.http_connection import request_bytes, request_form
from load.inputs import Calls, IdentityInputs
from load.raw_grpc_connection import GrpcWire, fixed_fields, frame
from load.stage_house import DEADLINE_MS, SEED, VERSION, StageHouse

HTTP, GRPC, UPSTREAM = "HTTP edge and translation", "gRPC edge", "client of a replica"

BUDGETS_US: Mapping[str, float] = {HTTP: 50.0, GRPC: 35.0, UPSTREAM: 25.0}
"""Microseconds per call (DESIGN.md, section 7: edge 35, translation 15, transport 25)."""

TURNS_MAX = 1000
REQUEST_BYTES_MAX = 64 * 1024
_ADDRESS = "127.0.0.1:8001"
WINDOW_BYTES = 2**31 - 1 - 65_535
"""So much more may be sent over the connection: all of a window."""
_DATA, _HEADERS, _SETTINGS, _WINDOW_UPDATE = 0, 1, 4, 8
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_HEAD_BLOCK = literal(b":status", b"200") + literal(b"content-type", b"application/grpc")
_END_BLOCK = literal(b"grpc-status", b"0")


class End(Protocol):
    """One of the three."""

    def prepare(self, bursts: int) -> Any:
        """What comes in so many bursts, made before anything is measured."""

    async def burst(self, prepared: Any, number: int) -> None:
        """Let burst `number` of what is prepared come in, and wait until all of it is answered. Raises LoadError."""


class Ends:
    """The three ends, made once. `burst` calls go in together, each over a connection of its own as far as callers have
    some.
    """

    def __init__(self, house: StageHouse, burst: int) -> None:
        self._burst = burst
        self._supply = Calls(SEED, DEADLINE_MS)
        self._http = _HttpEnd(house, burst, self._supply)
        self._grpc = _GrpcEnd(house, burst, self._supply)
        self._upstream = _UpstreamEnd(house, burst, self._supply)
        self.ends: Mapping[str, End] = {HTTP: self._http, GRPC: self._grpc, UPSTREAM: self._upstream}

    async def measure(self, calls: int) -> dict[str, float]:
        """CPU per call of each end, microseconds, of the thread of the event loop."""
        bursts = -(-calls // self._burst)
        return {name: await self._of(end, bursts) for name, end in self.ends.items()}

    @property
    def answered(self) -> dict[str, int]:
        """Calls of each end up to now."""
        return {HTTP: self._http.service.calls, GRPC: self._grpc.service.calls, UPSTREAM: self._upstream.answered}

    async def _of(self, end: End, bursts: int) -> float:
        prepared = end.prepare(bursts)
        begun = time.thread_time_ns()
        for number in range(bursts):
            await end.burst(prepared, number)
        return (time.thread_time_ns() - begun) / (bursts * self._burst) / 1000

    async def aclose(self) -> None:
        await self._upstream.aclose()


class _Instantly:
    """A service that answers every call in the turn in which it comes."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self.calls = 0

    async def send(self, call: Call) -> Reply:
        if call.message is None:
            assert call.receive is not None
            await call.receive()
        self.calls += 1
        call.trail.rung, call.trail.version_served = "full", VERSION
        return Reply(self._answer)


class _Sink(asyncio.Transport):
    """A peer that takes everything; what was written is kept until it is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.written += map(bytes, list_of_data)

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def _feed(protocol: asyncio.BufferedProtocol, data: bytes) -> None:
    """Bytes come, as the event loop brings them."""
    place = cast(memoryview, protocol.get_buffer(-1))
    place[: len(data)] = data
    protocol.buffer_updated(len(data))


async def _until(done: Callable[[], bool], what: str) -> None:
    for _ in range(TURNS_MAX):
        if done():
            return
        await asyncio.sleep(0)
    raise LoadError(f"{what}: {TURNS_MAX} turns of the loop were not enough")


class _HttpEnd:
    def __init__(self, house: StageHouse, connections: int, supply: Calls) -> None:
        assembly, chance = house.assembly, Chance(SEED)
        self._inputs, self._supply = IdentityInputs(), supply
        self.service = _Instantly(house.client.answer)
        server = HttpServer(
            service=self.service,
            catalogue=assembly.catalogue,
            authenticator=AnonymousAuthenticator(),
            limits=HttpLimits(),
            reader=HeaderReader(("*",), chance.stream("stages.request_id")),
            explainer=Explainer(SEED),
            wheel=assembly.wheel,
            clock=house.clock,
            chance=chance,
            limits_of=assembly.stack.routes.body_limits,
            body_budget=assembly.body_budget,
        )
        self._ends = [_connected(HttpConnection(server)) for _ in range(connections)]

    def prepare(self, bursts: int) -> list[list[bytes]]:
        form, inputs = request_form(_ADDRESS, self._inputs), self._inputs
        return [[request_bytes(form, inputs, self._supply.next()) for _ in self._ends] for _ in range(bursts)]

    async def burst(self, prepared: list[list[bytes]], number: int) -> None:
        for (connection, sink), data in zip(self._ends, prepared[number], strict=True):
            sink.written.clear()
            _feed(connection, data)
        await _until(lambda: all(sink.written for _, sink in self._ends), "answers over HTTP")


class _GrpcEnd:
    def __init__(self, house: StageHouse, connections: int, supply: Calls) -> None:
        assembly, chance = house.assembly, Chance(SEED)
        self._supply = supply
        self.service = _Instantly(house.client.answer)
        kit = GrpcKit(
            service=self.service,
            catalogue=assembly.catalogue,
            authenticator=AnonymousAuthenticator(),
            reader=HeaderReader(("*",), chance.stream("stages.request_id")),
            explainer=Explainer(SEED),
            budget=assembly.body_budget,
            observer=assembly.metrics,
            limits=GrpcLimits(),
            receive_bytes_max=REQUEST_BYTES_MAX,
            chance=chance.stream("stages.retry_after"),
            clock=house.clock,
            workers=house.workers,
        )
        port = GrpcPort(kit, wheel=assembly.wheel)
        self._ends = [_connected(GrpcConnection(port)) for _ in range(connections)]
        self._callers = [_Caller() for _ in range(connections)]
        for (connection, _), caller in zip(self._ends, self._callers, strict=True):
            _feed(connection, caller.said() + frame(_SETTINGS, _ACK, 0, b""))

    def prepare(self, bursts: int) -> list[list[bytes]]:
        return [[caller.request(self._supply) for caller in self._callers] for _ in range(bursts)]

    async def burst(self, prepared: list[list[bytes]], number: int) -> None:
        before = self.service.calls
        for (connection, sink), data in zip(self._ends, prepared[number], strict=True):
            sink.written.clear()
            _feed(connection, data)
        await _until(
            lambda: self.service.calls - before == len(self._ends) and all(sink.written for _, sink in self._ends),
            "answers over gRPC",
        )


def _connected(connection: Any) -> tuple[Any, _Sink]:
    sink = _Sink()
    connection.connection_made(sink)
    return connection, sink


class _Caller:
    """The lab's gRPC caller, writing to nowhere."""

    def __init__(self) -> None:
        self._sink = _Sink()
        self._wire = GrpcWire(fixed_fields(_ADDRESS), IdentityInputs())
        self._wire.connection_made(self._sink)

    def said(self) -> bytes:
        data = b"".join(self._sink.written)
        self._sink.written.clear()
        return data

    def request(self, supply: Calls) -> bytes:
        self._wire.send(supply.next(), lambda error: None, 0.0)
        return self.said()


Asked = tuple[list[tuple[bytes, Metadata]], bytes]
"""The calls of a burst, and what the replica says to them."""


class _UpstreamEnd:
    """The client, connected to a replica that answers a burst when all of it has come."""

    def __init__(self, house: StageHouse, burst: int, supply: Calls) -> None:
        self._inputs, self._supply, self._burst = IdentityInputs(), supply, burst
        self._answer = answer = house.client.answer
        self._message = b"\0" + len(answer).to_bytes(4, "big") + answer
        self.answered = 0
        self._link: Any = None
        self._sink = _Sink()
        self._stream_id = 1
        connector = Http2Connector(Http2Options(), house.clock, random.Random(SEED), network=self._dial)
        self._client = connector.connect(Endpoints(_ADDRESS, _ADDRESS))

    async def _dial(
        self, address: str, port: int, tls: DialTls | None, make: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        if self._link is not None:
            raise OSError("there is one connection, and it stands")
        self._link = link = cast(asyncio.BufferedProtocol, make())
        link.connection_made(self._sink)
        more = WINDOW_BYTES.to_bytes(4, "big")
        _feed(link, frame(_SETTINGS, 0, 0, b"") + frame(_SETTINGS, _ACK, 0, b"") + frame(_WINDOW_UPDATE, 0, 0, more))

    def prepare(self, bursts: int) -> list[Asked]:
        return [self._prepared() for _ in range(bursts)]

    def _prepared(self) -> Asked:
        asked: list[tuple[bytes, Metadata]] = []
        said = []
        for _ in range(self._burst):
            call, stream_id = self._supply.next(), self._stream_id
            self._stream_id += 2
            asked.append((self._inputs.grpc_message(call.row), (("traceparent", call.traceparent),)))
            said.append(frame(_HEADERS, _END_HEADERS, stream_id, _HEAD_BLOCK))
            said.append(frame(_DATA, 0, stream_id, self._message))
            said.append(frame(_HEADERS, _END_HEADERS | _END_STREAM, stream_id, _END_BLOCK))
        return asked, b"".join(said)

    async def burst(self, prepared: list[Asked], number: int) -> None:
        asked, said = prepared[number]
        loop, sink = asyncio.get_running_loop(), self._sink
        tasks = [loop.create_task(self._client.infer(message, metadata, 1.0)) for message, metadata in asked]
        await _until(lambda: bool(sink.written) and asked[-1][0] in sink.written[-1], "requests to the replica")
        sink.written.clear()
        _feed(self._link, said)
        for task in tasks:
            self.answered += await task == self._answer

    async def aclose(self) -> None:
        await self._client.aclose()
