"""Replicas on our own codec behind in-memory connections, on the virtual clock; they do as they are told."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, cast

from gateway.core.faces import Endpoints
from gateway.core.faults import UpstreamFault
from gateway.fleet.http2_channel import Http2Options
from gateway.fleet.http2_client import Http2Connector, Http2ReplicaClient
from gateway.fleet.http2_dial import DialTls
from gateway.wire.grpc import MessageReader, end_fields, message_prefix
from gateway.wire.hpack import HeaderBlock, literal
from gateway.wire.http2 import Http2Limits, Http2Server, Stream
from tests.simulation.loop import SimulationLoop, simulate
from tests.simulation.pipe import PipeTransport, connect

HEAD = literal(b":status", b"200") + literal(b"content-type", b"application/grpc")
ADDRESS = "10.0.0.1"
PORT = 8001


def end_block(code: int, text: str = "") -> bytes:
    return b"".join(literal(*field) for field in end_fields(code, text))  # type: ignore[arg-type]


class ServerStream(Stream):
    """One call as the replica sees it."""

    __slots__ = ("connection", "ended", "fields", "messages", "reader", "reset_code")

    def __init__(self, connection: ServerConnection) -> None:
        self.connection = connection
        self.fields: dict[bytes, bytes] = {}
        self.messages: list[bytes] = []
        self.reader = MessageReader(1 << 30)
        self.ended = False
        self.reset_code: int | None = None

    def on_headers(self, block: HeaderBlock, end: bool) -> None:
        self.fields = dict(block.fields)
        self.connection.replica.streams.append(self)
        self.connection.replica.on_call(self)

    def on_data(self, data: bytes, start: int, stop: int, end: bool) -> None:
        for _, message in self.reader.feed(data, start, stop):
            self.messages.append(message)
            self.connection.replica.on_message(self, message)
        self.connection.codec.acknowledge(self, stop - start)
        if end:
            self.ended = True
            self.connection.replica.on_end(self)

    def on_reset(self, code: int, text: str, from_peer: bool, unprocessed: bool) -> None:
        self.reset_code = code

    # What it may say.

    def head(self, *fields: tuple[bytes, bytes]) -> None:
        self.connection.codec.send_headers(self, HEAD + b"".join(literal(*field) for field in fields), False)

    def send(self, message: bytes, compressed: bool = False) -> None:
        self.raw(message_prefix(len(message), compressed) + message)

    def raw(self, data: bytes, end: bool = False) -> None:
        self.connection.codec.send_data(self, data, end)

    def end(self, code: int = 0, text: str = "") -> None:
        self.connection.codec.send_headers(self, end_block(code, text), True)

    def refuse(self, code: int, text: str = "") -> None:
        """A trailers-only error."""
        self.connection.codec.send_headers(self, HEAD + end_block(code, text), True)

    def answer(self, message: bytes) -> None:
        self.connection.codec.send_message(
            self, HEAD, message_prefix(len(message)) + message, literal(b"grpc-status", b"0")
        )

    def reset(self, code: int) -> None:
        self.connection.codec.reset(self, code)


class ServerConnection(asyncio.Protocol):
    """A replica's end of one connection."""

    def __init__(self, replica: ReplicaInMemory) -> None:
        self.replica = replica
        self.codec = Http2Server(replica.limits, lambda: ServerStream(self))
        self.codec.on_output = self._wake
        self.transport: asyncio.Transport | None = None
        self.scheduled = self.paused = False
        self.deaf = False
        """It reads nothing and says nothing any more."""
        self.pings = 0
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if not self.deaf:
            self._flush()
            self.transport.write(self.replica.further_settings)

    def _wake(self) -> None:
        if not self.scheduled:
            self.scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self.scheduled = False
        if self.transport is None or self.paused or self.deaf:
            return
        self.transport.write(b"".join(self.codec.take()))
        if self.codec.closed:
            self.transport.close()
        elif self.codec.wants_write:
            self._wake()

    def data_received(self, data: bytes) -> None:
        if not self.deaf:
            self.pings += data.count(b"\0\0\x08\x06\0\0\0\0\0")
            self.codec.receive(data, asyncio.get_running_loop().time())
            if self.codec.closed:
                self._flush()

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        self.transport = None
        self.codec.lost("the client is gone")

    def write(self, data: bytes) -> None:
        """Bytes beside the codec."""
        assert self.transport is not None
        self.transport.write(data)

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


def echo(stream: ServerStream) -> None:
    stream.answer(stream.messages[-1])


def _nothing(stream: ServerStream, message: bytes = b"") -> None:
    return None


class ReplicaInMemory:
    """What listens at one address. `on_call`, `on_message` and `on_end` say what it does with a call."""

    def __init__(self, **limits: int) -> None:
        self.limits = Http2Limits(**{"window_bytes": 4 << 20, "connection_window_bytes": 1 << 30, **limits})
        self.on_call: Callable[[ServerStream], None] = _nothing
        self.on_message: Callable[[ServerStream, bytes], None] = _nothing
        self.on_end: Callable[[ServerStream], None] = echo
        self.connections: list[ServerConnection] = []
        self.streams: list[ServerStream] = []
        self.further_settings = b""
        """Frames behind the codec's own SETTINGS."""
        self.mode = "serve"
        """Or `refuse`, `hang` (no answer to the attempt), `mute` (accepts, says nothing), `close` (accepts, closes)."""

    @property
    def open(self) -> list[ServerConnection]:
        return [connection for connection in self.connections if not connection.lost]


class CountingPipe:
    """Counts the writes of a client's end."""

    def __init__(self, transport: PipeTransport) -> None:
        self.writes = 0
        self._write = transport.write
        transport.write = self.write  # type: ignore[method-assign]

    def write(self, data: Any) -> None:
        self.writes += 1
        self._write(data)


class World:
    """The network with one replica at `ADDRESS`, and a client for it. Implements `http2_dial.Dial` and `Resolver`."""

    def __init__(self, loop: SimulationLoop, seed: int, replica: ReplicaInMemory, options: dict[str, int]) -> None:
        self.loop = loop
        self.replica = replica
        self.replicas = {ADDRESS: replica}
        self.names: dict[str, tuple[str, ...]] = {}
        self.dials: list[float] = []
        self.dialled: list[str] = []
        self.dialling = 0
        self.pipes: list[CountingPipe] = []
        self.clients: list[Http2ReplicaClient] = []
        self._chance = random.Random(f"world/{seed}")
        self._connector = Http2Connector(
            Http2Options(**options), self, random.Random(f"client/{seed}"), resolver=self, network=self.dial
        )
        self.client = self.connect(f"{ADDRESS}:{PORT}")

    def connect(self, target: str) -> Http2ReplicaClient:
        client = self._connector.connect(Endpoints(target, "10.0.0.1:8000"))
        self.clients.append(client)
        return client

    def now_s(self) -> float:
        return self.loop.time()

    def wall_s(self) -> float:
        return self.loop.time()

    async def resolve(self, host: str) -> tuple[str, ...]:
        if host not in self.names:
            raise OSError(f"no such name: {host}")
        return self.names[host]

    async def dial(
        self, address: str, port: int, tls: DialTls | None, make: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        self.dials.append(self.loop.time())
        self.dialled.append(address)
        self.dialling += 1
        assert self.dialling <= 2 * len(self.clients), "for each of a client's two kinds of messages one at a time"
        try:
            await asyncio.sleep(0.0005)
            replica = self.replicas.get(address)
            mode = "refuse" if replica is None else replica.mode
            if mode == "refuse":
                raise ConnectionRefusedError(111, "Connection refused")
            if mode == "hang":
                await self.loop.create_future()
        finally:
            self.dialling -= 1
        assert replica is not None
        connection = ServerConnection(replica)
        connection.deaf = mode in ("mute", "close")
        replica.connections.append(connection)
        near, _ = connect(self.loop, self._chance, make(), connection)
        self.pipes.append(CountingPipe(near))
        if mode == "close":
            assert connection.transport is not None
            connection.transport.close()

    async def until(self, condition: Callable[[], object], limit_s: float = 60.0) -> None:
        """Let virtual time pass until it is true."""
        async with asyncio.timeout(limit_s):
            while not condition():
                await asyncio.sleep(0.001)

    async def infer(self, message: bytes = b"x", timeout_s: float = float("inf")) -> bytes:
        return await self.client.infer(message, (), timeout_s)

    async def fault(self, message: bytes = b"x", timeout_s: float = float("inf")) -> UpstreamFault:
        try:
            answer = await self.infer(message, timeout_s)
        except UpstreamFault as fault:
            return fault
        raise AssertionError(f"an answer of {len(answer)} bytes came instead of a fault")


def run(
    main: Callable[[World], Awaitable[None]],
    *,
    seed: int = 1,
    replica: ReplicaInMemory | None = None,
    lateness_s: float = 0.0,
    **options: int,
) -> None:
    """`main(world)` on the virtual loop. At its end the client is closed, and nothing may be left of it."""

    async def body(loop: SimulationLoop) -> None:
        world = World(loop, seed, replica or ReplicaInMemory(), options)
        try:
            await main(world)
        finally:
            for client in world.clients:
                await client.aclose()
        await asyncio.sleep(1.0)
        for each in world.replicas.values():
            for connection in each.connections:
                if connection.deaf:
                    connection.abort()
            assert not each.open or all(connection.deaf for connection in each.open), "a connection was left open"
        assert all(client.statistics(0.0)["connections"] == 0 for client in world.clients)

    simulate(body, seed=seed, lateness_s=lateness_s)
