"""The way out as bytes: the product's own HTTP/2 client over connections in memory, to replicas that speak gRPC.

Besides carrying bytes it watches what only it can see: an answer that has come and that nobody hears of, and a call
that has ended here and that the replica still works for. Pages over HTTP (metrics, JSON configuration) are asked at the
face.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from urllib.parse import unquote

from gateway.core.call import Attempt, Metadata
from gateway.core.codes import Code
from gateway.core.faces import Endpoints, ReplicaStream
from gateway.core.faults import UpstreamFault
from gateway.core.restraint import Restraint
from gateway.fleet.http2_channel import Http2Options
from gateway.fleet.http2_client import Http2Connector, Http2ReplicaClient
from gateway.fleet.http2_dial import DialTls
from gateway.fleet.http2_stream import Http2ReplicaStream
from gateway.fleet.replica_calls import INFER
from gateway.runtime.clock import Clock
from tests.simulation.codec_replica import STREAM_NUMBER, ReplicaCall, ReplicaConnection
from tests.simulation.network import Network, NetworkClient
from tests.simulation.pipe import PipeTransport, connect

if TYPE_CHECKING:
    from tests.simulation.run import World

Key = tuple[str, bytes]
"""(address, message) of a unary inference. No two that are out at a time are alike, but for warm-ups."""


class CodecWays:
    """`Connector` over the product's. `dial` is its network."""

    def __init__(self, world: World, clock: Clock, chance: random.Random) -> None:
        """`chance` is the product's own."""
        self.network: Network = world.network
        self.wrong = world.report.violate
        self.cancels_made_s = world.report.cancels_made_s
        self.chance = random.Random(f"codecs/{world.scenario.seed}")
        self.connections: dict[ReplicaConnection, PipeTransport] = {}
        """All that were ever made, and the gateway's end of each."""
        self.out: dict[Key, None] = {}
        """Inferences that somebody waits for."""
        self.ended_s: dict[Key, float] = {}
        """When somebody's waiting was over."""
        self._told: dict[Key, tuple[PipeTransport, int]] = {}
        """Where the answer to an inference ends, in all that the gateway gets on that connection."""
        self._streams: dict[int, tuple[ReplicaCall, deque[int]]] = {}
        self._lateness_s = world.scenario.lateness_s
        self.product = Http2Connector(Http2Options(), clock, chance, resolver=self.network, network=self.dial)

    # -- the face -------------------------------------------------------------------------------------------------

    def connect(self, endpoints: Endpoints) -> CodecClient:
        client = CodecClient(self, endpoints, self.product.connect(endpoints))
        self.network.clients.append(client)
        return client

    async def dial(
        self, address: str, port: int, tls: DialTls | None, make: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        """`Dial`: a machine that is gone answers nothing, one in a black hole nothing before that heals."""
        network, where = self.network, f"{address}:{port}"
        await asyncio.sleep(self._delay_s * (0.5 + self.chance.random()))
        while where not in network.machines or where in network.black_since_s:
            passed = network.loop.create_future()
            network.hold(where, lambda passed=passed: passed.done() or passed.set_result(None))  # type: ignore[misc]
            await passed
        machine = network.machines[where]
        if not machine.listening:
            raise ConnectionRefusedError(111, f"Connect call failed ('{address}', {port})")
        server = ReplicaConnection(self, where, machine)

        def hold(work: Callable[[], None]) -> bool:
            if where not in network.black_since_s:
                return False
            network.hold(where, work)
            return True

        near, far = connect(network.loop, self.chance, make(), server, self._delay_s, hold)
        far.set_write_buffer_limits(high=1 << 30)  # it does not say when to pause, and nobody would
        self.connections[server] = near

    @property
    def _delay_s(self) -> float:
        return self.network.latency_s * 1.5

    # -- what the replicas tell -----------------------------------------------------------------------------------

    def stream_reached(self, number: int, call: ReplicaCall) -> Callable[[int], None]:
        """A stream has come to a replica. What is returned is to be told, with each message, which request is over."""
        over: deque[int] = deque()
        self._streams[number] = (call, over)
        return over.append

    def told(self, server: ReplicaConnection, message: bytes) -> None:
        """A replica has written its answer, or its error."""
        key = server.address, message
        if b"call-" in message and key in self.out:
            self._told[key] = self.connections[server], server.end_offset

    # -- what the clients tell ------------------------------------------------------------------------------------

    def cancelled(self, address: str) -> None:
        self.cancels_made_s.setdefault(address, []).append(self.network.loop.time())

    def begin(self, key: Key) -> None:
        self.out[key] = None
        self._told.pop(key, None)
        self.ended_s.pop(key, None)

    def end(self, key: Key) -> None:
        self.out.pop(key, None)
        self._told.pop(key, None)
        self.ended_s[key] = self.network.loop.time()

    def over_with_next(self, number: int) -> int:
        """Which request is over with the message that was read, -1 for none."""
        return self._streams[number][1].popleft()

    def cut(self, number: int, orderly: bool) -> None:
        if number in self._streams:
            self._streams[number][0].cut(orderly)

    # -- what is judged -------------------------------------------------------------------------------------------

    def faults(self) -> Iterator[str]:
        """When nothing is ready."""
        for (address, message), (near, offset) in self._told.items():
            if near.taken_bytes >= offset:
                yield f"{_name(message)}: the answer of {address} has come, and nobody has heard of it"
        now_s = self.network.loop.time()
        patience_s = 3 * self._delay_s + 2 * self._lateness_s + 0.001
        for server in self.connections:
            machine = server.machine
            if server.over or machine.frozen or server.address in self.network.black_since_s:
                continue
            for call in server.streams.values():
                if not isinstance(call, ReplicaCall) or call.message is None:
                    continue
                ended_s = self.ended_s.get((server.address, call.message), now_s)
                if now_s - max(ended_s, machine.thawed_s) > patience_s and b"call-" in call.message:
                    yield f"{_name(call.message)}: has ended, and {server.address} has not heard of it"

    def left_behind(self) -> Iterator[str]:
        """After the gateway has closed its clients, and the news of it has arrived."""
        for server, near in self.connections.items():
            if not near.lost:
                yield f"a connection to {server.address}"
        timers = len(self.product._wheel)
        if timers:
            yield f"{timers} timers of the connections to replicas"


def _name(message: bytes) -> str:
    at = message.find(b"call-")
    return message[at : at + 10].decode()


class CodecClient(Http2ReplicaClient):
    """The product's client, watched, with its pages taken from the face."""

    def __init__(self, ways: CodecWays, endpoints: Endpoints, product: Http2ReplicaClient) -> None:
        super().__init__(endpoints, product._links, product._page_bytes_max)
        self.network = ways.network
        self.address = endpoints.grpc
        self.calls: dict[object, None] = {}
        """Unary calls of any kind that are out."""
        self._ways = ways
        self._open: list[CodecStream] = []
        self._face = NetworkClient(ways.network, endpoints.grpc)
        ways.network.clients.append(self._face)
        self._http = _Pages(self._face)  # type: ignore[assignment]

    def restrain(self, restraint: Restraint) -> None:
        super().restrain(_Watched(restraint, self._ways, self.address))

    @property
    def closed(self) -> bool:
        """The gateway has closed it."""
        return self._face.closed

    @property
    def streams(self) -> dict[CodecStream, None]:
        """Those that have not ended."""
        self._open = [stream for stream in self._open if not stream.ended]
        return dict.fromkeys(self._open)

    async def infer(
        self,
        message: bytes,
        metadata: Metadata,
        timeout_s: float,
        tail: bytes = b"",
        attempt: Attempt | None = None,
        path: str = INFER,
    ) -> bytes:
        marker = object()
        self.calls[marker] = None
        try:
            if path != INFER:
                return await super().infer(message, metadata, timeout_s, tail, attempt, path)
            ways, key = self._ways, (self.address, message + tail)
            self.network.on_limit(message + tail, timeout_s)
            token = self.network.on_infer(self.address, message + tail)
            ways.begin(key)
            try:
                return await super().infer(message, metadata, timeout_s, tail, attempt)
            finally:
                if attempt is None or attempt.rest is None:
                    ways.end(key)
                else:
                    attempt.rest.on_end(lambda: ways.end(key))
                self.network.infer_ended(token, attempt)
        finally:
            del self.calls[marker]

    def open_stream(self, metadata: Metadata, timeout_s: float) -> CodecStream:  # type: ignore[override]
        number = self._ways.chance.getrandbits(60)
        inner = super().open_stream((*metadata, (STREAM_NUMBER.decode(), str(number))), timeout_s)
        stream = CodecStream(self, self._ways, inner, number, metadata)
        self._open.append(stream)
        return stream


class _Watched:
    """`Restraint`: the gateway's own, and what its client says to it."""

    def __init__(self, inner: Restraint, ways: CodecWays, address: str) -> None:
        self._inner, self._ways, self._address = inner, ways, address
        self.guarded = inner.guarded

    def may_cancel(self, *, again: bool = False) -> bool:
        may = self._inner.may_cancel(again=again)
        self.guarded = self._inner.guarded
        if may:
            self._ways.cancelled(self._address)
        return may

    def cancelled(self) -> None:
        self._inner.cancelled()
        self.guarded = self._inner.guarded
        self._ways.cancelled(self._address)

    def slack_s(self) -> float:
        slack_s = self._inner.slack_s()
        self.guarded = self._inner.guarded
        return slack_s


class CodecStream(ReplicaStream):
    """A stream of the product, and what `Watch` wants to know of it."""

    def __init__(
        self, client: CodecClient, ways: CodecWays, inner: Http2ReplicaStream, number: int, metadata: Metadata
    ) -> None:
        self.metadata = metadata
        self.tokens: dict[int, object] = {}
        """What `Network.on_infer` said of each request whose last response was not read yet, by its number."""
        self._client, self._ways = client, ways
        self._inner = inner
        self._number = number
        self._writes = 0

    @property
    def ended(self) -> bool:
        return self._inner._over

    def write(self, message: bytes) -> None:
        if self._inner._over:
            return
        self.tokens[self._writes] = self._client.network.on_infer(self._client.address, message)
        self._writes += 1
        self._inner.write(message)

    async def read(self) -> bytes | None:
        message = await self._inner.read()
        if message is not None:
            self.tokens.pop(self._ways.over_with_next(self._number), None)
        return message

    def half_close(self) -> None:
        self._inner.half_close()

    def cancel(self) -> None:
        self._inner.cancel()

    def cut(self, orderly: bool) -> None:
        self._ways.cut(self._number, orderly)


class _Pages:
    """What the product's `HttpGetter` gets, at the face."""

    def __init__(self, face: NetworkClient) -> None:
        self._face = face

    async def get(self, address: str, raw_path: str, timeout_s: float, bytes_max: int) -> bytes:
        if self._face.closed:
            raise UpstreamFault(Code.UNAVAILABLE, "the connection is closed", from_peer=False, sent=False)
        if raw_path == "/metrics":
            return (await self._face.scrape(timeout_s)).encode()
        _, _, _, model, _, version, _ = raw_path.split("/")
        return (await self._face.model_config(unquote(model), unquote(version), timeout_s)).json

    async def aclose(self) -> None:
        await self._face.aclose()
