"""The network between gateway and replicas: `ReplicaClient`, `Connector` and `Resolver` without a socket.

A connection is a pair of ordered streams, as HTTP/2 over TCP is: what was sent first arrives first. A message takes a
seeded time. In a black hole messages are held, and arrive when it heals if the connection is still there. A process
that dies resets its connections: every call that was out gets UNAVAILABLE, not from the peer, sent. A port nobody
listens on refuses: UNAVAILABLE, nothing sent. A machine that is gone answers nothing at all. A server that is stopping
refuses new connections, and new calls on old ones in its own words.

Half of the seeds leave through the product's own client instead, over `codec_network.py`.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from tritonclient.grpc import service_pb2 as pb

from gateway.core.call import Attempt, Metadata
from gateway.core.codes import Code
from gateway.core.faces import Endpoints, IndexEntry, ModelConfigBytes
from gateway.core.faults import UpstreamFault
from gateway.core.rest import Rest
from gateway.core.restraint import Free, Restraint
from gateway.fleet.replica_calls import RUN_OUT_AGAIN_S, RUN_OUT_S
from tests.simulation import descriptions
from tests.simulation.batcher import Request, fault
from tests.simulation.intake import STOPPING
from tests.simulation.metrics_page import page
from tests.simulation.network_stream import NetworkStream
from tests.simulation.trace import Trace
from tests.simulation.triton import Metrics, Triton

if TYPE_CHECKING:
    from tests.simulation.codec_network import CodecClient, CodecStream

T = TypeVar("T")

Result = asyncio.Future[Any]


class Network:
    """All machines by `host:port` of their gRPC port, and all names by what they resolve to."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seed: str, trace: Trace, latency_s: float = 0.0002) -> None:
        self.loop = loop
        self.trace = trace
        self.chance = random.Random(f"network/{seed}")
        self.latency_s = latency_s
        self.machines: dict[str, Triton] = {}
        self.names: dict[str, tuple[str, ...]] = {}
        self.black_since_s: dict[str, float] = {}
        """Addresses that nothing passes to or from, and since when."""
        self.clients: list[NetworkClient | CodecClient] = []
        self.on_infer: Callable[[str, bytes], object] = lambda address, message: None
        """Called with (address, request) for every inference that leaves the gateway; what it returns goes to
        `on_infer_end` when the gateway's waiting is over.
        """
        self.on_infer_end: Callable[[object], None] = lambda token: None
        self.on_limit: Callable[[bytes, float], object] = lambda message, limit_s: None
        """Called with (request, time limit) for every single inference, before `on_infer`."""
        self.on_told: Callable[[str, bytes, float], object] = lambda address, message, told_s: None
        """Called with (request, `grpc-timeout` in seconds) when one that left as bytes is at its machine."""
        self.on_infer_left: Callable[[object], None] = lambda token: None
        """It is over too, but the replica was not told, and runs on; `on_infer_end` comes when it has run out."""
        self.on_cancel: Callable[[str], None] = lambda address: None
        """Called for every single call, the gateway's own questions left out, that is cancelled on a replica."""
        self._held: list[tuple[str, Callable[[], None]]] = []

    # -- faces ----------------------------------------------------------------------------------------------------

    def connect(self, endpoints: Endpoints) -> NetworkClient:
        """`Connector`: no I/O, the first call connects."""
        client = NetworkClient(self, endpoints.grpc)
        self.clients.append(client)
        return client

    async def resolve(self, host: str) -> tuple[str, ...]:
        """`Resolver`. Raises OSError for a name that does not exist."""
        await asyncio.sleep(self.latency_s)
        if host not in self.names:
            raise OSError(-2, "Name or service not known")
        return self.names[host]

    # -- faults ---------------------------------------------------------------------------------------------------

    def black_hole(self, address: str) -> None:
        """From now on nothing passes to or from `address`."""
        self.trace.add("black-hole", address)
        self.black_since_s[address] = self.loop.time()

    def heal(self, address: str) -> None:
        """What was held passes now, in order."""
        self.trace.add("heal", address)
        self.black_since_s.pop(address, None)
        held, self._held = self._held, []
        for where, work in held:
            if where == address:
                work()  # at once: nothing that comes later may overtake it
            else:
                self._held.append((where, work))

    def cut_streams(self, address: str, orderly: bool) -> None:
        """Something between here and `address` ends the streams that are open there: with OK, or in a reset."""
        self.trace.add("cut-streams", address, orderly)
        for client in self.clients:
            if client.address == address:
                streams: tuple[NetworkStream | CodecStream, ...] = tuple(client.streams)
                for stream in streams:
                    stream.cut(orderly)

    def infer_ended(self, token: object, attempt: Attempt | None) -> None:
        """The gateway's waiting is over."""
        if attempt is None or attempt.rest is None:
            self.on_infer_end(token)
        else:
            self.on_infer_left(token)
            attempt.rest.on_end(lambda: self.on_infer_end(token))

    @property
    def open_calls(self) -> int:
        """Calls of any kind that the gateway has out."""
        return sum(len(client.calls) + len(client.streams) for client in self.clients)

    def hold(self, address: str, work: Callable[[], None]) -> None:
        self._held.append((address, work))


class Exchange:
    """One call on a connection: the request's way there, the answer's way back."""

    __slots__ = ("client", "ended", "generation", "operation", "request", "rest", "result")

    def __init__(self, client: NetworkClient, result: Result, operation: Callable[[Triton, Exchange], None]) -> None:
        self.client = client
        self.result = result
        self.operation = operation
        self.request: Request | None = None
        self.rest: Rest | None = None
        """It was left to run out."""
        self.generation = 0
        self.ended = False

    def reach(self) -> None:
        """The request reached the machine."""
        client = self.client
        machine = client.network.machines.get(client.address)
        if machine is None or client.address in client.network.black_since_s:
            client.network.hold(client.address, self.reach)
        elif self.generation and self.generation != machine.generation:
            return  # A connection of an earlier life of the process: it was reset, the client knows.
        elif self.generation and not machine.listening:
            self.back(fault(Code.UNAVAILABLE, STOPPING))
        elif not machine.listening:
            text = f"failed to connect to all addresses; last error: UNKNOWN: ipv4:{client.address}: connect: "
            self.back(UpstreamFault(Code.UNAVAILABLE, f"{text}Connection refused (111)", from_peer=False, sent=False))
        else:
            self.generation = machine.generation
            client.connected(machine)
            machine.arrive(lambda: self.operation(machine, self))

    def back(self, answer: Any) -> None:
        """The machine answers: `answer` is the value, or a fault."""
        self.client.way_back(self.land, answer)

    def land(self, answer: Any) -> None:
        """The answer reached the gateway."""
        if self.ended:
            return
        client = self.client
        if client.address in client.network.black_since_s:
            client.network.hold(client.address, lambda: self.land(answer))
            return
        self.end(answer)

    def end(self, answer: Any) -> None:
        if not self.ended:
            self.ended = True
            self.client.calls.pop(self, None)
            if self.rest is not None:
                self.rest.end()
            if not self.result.done():
                if isinstance(answer, UpstreamFault):
                    self.result.set_exception(answer)
                else:
                    self.result.set_result(answer)

    def expire(self, attempt: Attempt | None) -> None:
        late = UpstreamFault(Code.DEADLINE_EXCEEDED, "Deadline Exceeded", from_peer=False)
        if self.parted(attempt):
            self.end(late)
        elif not self.result.done():
            self.result.set_exception(late)

    def parted(self, attempt: Attempt | None) -> bool:
        """Nobody waits any more: whether the machine was told. Else it runs out there."""
        client = self.client
        if self.ended:
            return True  # its answer has come in this very turn: there is nothing to cancel, and nothing runs out
        if self.rest is not None:
            return False  # its time was over before, in this very turn
        if attempt is None or client.restraint.may_cancel():
            if attempt is not None:
                client.network.on_cancel(client.address)
            self.abandon()
            return True
        attempt.rest = self.rest = Rest()
        client.network.loop.call_later(RUN_OUT_S, self._ran_out, attempt)
        return False

    def _ran_out(self, attempt: Attempt) -> None:
        if self.ended:
            return
        if self.client.restraint.may_cancel(again=True):
            self.client.network.on_cancel(self.client.address)
            self.abandon()
            self.end(None)
        else:
            self.client.network.loop.call_later(RUN_OUT_AGAIN_S, self._ran_out, attempt)

    def abandon(self) -> None:
        """Tell the machine that nobody waits any more. The cancel follows the request on the same stream."""
        self.client.way_there(self.reach_cancel)

    def reach_cancel(self) -> None:
        client = self.client
        machine = client.network.machines.get(client.address)
        if client.address in client.network.black_since_s:
            client.network.hold(client.address, self.reach_cancel)
        elif machine is not None and self.generation == machine.generation:
            machine.arrive(lambda: machine.cancel(self.request) if self.request is not None else None)


class NetworkClient:
    """`ReplicaClient` for one address."""

    def __init__(self, network: Network, address: str) -> None:
        self.network = network
        self.address = address
        self.calls: dict[Exchange, None] = {}
        self.streams: dict[NetworkStream, None] = {}
        """Those that have not ended."""
        self.closed = False
        self.restraint: Restraint = Free()
        self._life: tuple[int, int] | None = None
        self._there: deque[Callable[[], None]] = deque()
        self._back: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._there_s = 0.0
        self._back_s = 0.0

    # -- the connection -------------------------------------------------------------------------------------------

    def way_there(self, work: Callable[[], None]) -> None:
        """`work` happens at the machine, after everything that was sent before."""
        self._there_s = max(self._there_s, self._arrival_s())
        self._there.append(work)
        self.network.loop.call_at(self._there_s, self._arrived_there)

    def way_back(self, work: Callable[[Any], None], answer: Any) -> None:
        """`work(answer)` happens at the gateway, after everything that was sent back before."""
        self._back_s = max(self._back_s, self._arrival_s())
        self._back.append((work, answer))
        self.network.loop.call_at(self._back_s, self._arrived_back)

    def _arrival_s(self) -> float:
        network = self.network
        return network.loop.time() + network.latency_s * (0.5 + network.chance.random())

    # Each arrival takes what was sent first: timers that are due at one instant fire in any order.

    def _arrived_there(self) -> None:
        self._there.popleft()()

    def _arrived_back(self) -> None:
        work, answer = self._back.popleft()
        work(answer)

    @property
    def life(self) -> int:
        """The life of the process that this connection is known to reach, 0 if it is not."""
        return self._life[1] if self._life is not None else 0

    def connected(self, machine: Triton) -> None:
        life = (id(machine), machine.generation)
        if self._life != life:
            self._life = life
            machine.on_death.append(self._reset)

    def _reset(self) -> None:
        """The process died; its kernel resets the connection (which a black hole hides until it heals)."""
        if self.address in self.network.black_since_s:
            self.network.hold(self.address, self._reset)
            return
        self._life = None
        text = f"recvmsg:Connection reset by peer; peer {self.address}"
        for call in tuple(self.calls):
            if call.generation:
                self.way_back(call.land, UpstreamFault(Code.UNAVAILABLE, text, from_peer=False))
        for stream in tuple(self.streams):
            if stream.generation:
                stream.send_back(UpstreamFault(Code.UNAVAILABLE, text, from_peer=False))

    def restrain(self, restraint: Restraint) -> None:
        self.restraint = restraint

    async def _call(
        self, operation: Callable[[Triton, Exchange], None], timeout_s: float, attempt: Attempt | None = None
    ) -> Any:
        assert not self.closed, f"a call on a closed client of {self.address}"
        loop = self.network.loop
        exchange = Exchange(self, loop.create_future(), operation)
        exchange.generation = self.life
        self.calls[exchange] = None
        timer = loop.call_later(max(0.0, timeout_s), exchange.expire, attempt)
        self.way_there(exchange.reach)
        try:
            return await exchange.result
        except asyncio.CancelledError:
            if exchange.parted(attempt):
                exchange.ended = True
                self.calls.pop(exchange, None)
            raise
        finally:
            timer.cancel()

    async def _ask(self, question: Callable[[Triton], Any], timeout_s: float) -> Any:
        def operation(machine: Triton, exchange: Exchange) -> None:
            try:
                exchange.back(question(machine))
            except UpstreamFault as error:
                exchange.back(error)

        return await self._call(operation, timeout_s)

    # -- the face -------------------------------------------------------------------------------------------------

    async def server_live(self, timeout_s: float) -> bool:
        return bool(await self._ask(lambda machine: True, timeout_s))

    async def server_ready(self, timeout_s: float) -> bool:
        return bool(await self._ask(Triton.server_ready, timeout_s))

    async def server_metadata(self, timeout_s: float) -> bytes:
        extensions = ["classification", "sequence", "model_repository", "system_shared_memory", "cuda_shared_memory"]
        answer = pb.ServerMetadataResponse(name="triton", version="2.51.0", extensions=extensions)
        return bytes(await self._ask(lambda machine: answer.SerializeToString(), timeout_s))

    async def repository_index(self, timeout_s: float) -> tuple[IndexEntry, ...]:
        answer: tuple[IndexEntry, ...] = await self._ask(descriptions.index, timeout_s)
        return answer

    async def model_statistics(self, model: str, version: str, timeout_s: float) -> bytes:
        return bytes(await self._ask(lambda machine: machine.statistics(model, version), timeout_s))

    async def model_ready(self, model: str, version: str, timeout_s: float) -> bool:
        return bool(
            await self._ask(lambda machine: not isinstance(machine.find(model, version), UpstreamFault), timeout_s)
        )

    async def model_metadata(self, model: str, version: str, timeout_s: float) -> bytes:
        return bytes(await self._ask(lambda machine: descriptions.metadata(machine, model, version), timeout_s))

    async def model_config(self, model: str, version: str, timeout_s: float) -> ModelConfigBytes:
        answer: ModelConfigBytes = await self._ask(
            lambda machine: descriptions.config(machine, model, version), timeout_s
        )
        return answer

    async def infer(
        self,
        message: bytes,
        metadata: Metadata,
        timeout_s: float,
        tail: bytes = b"",
        attempt: Attempt | None = None,
    ) -> bytes:
        message += tail

        def operation(machine: Triton, exchange: Exchange) -> None:
            exchange.request = machine.infer(message, exchange.back)

        self.network.on_limit(message, timeout_s)
        token = self.network.on_infer(self.address, message)
        try:
            return bytes(await self._call(operation, timeout_s, attempt))
        finally:
            self.network.infer_ended(token, attempt)

    def open_stream(self, metadata: Metadata, timeout_s: float) -> NetworkStream:
        assert not self.closed, f"a stream on a closed client of {self.address}"
        return NetworkStream(self, metadata, timeout_s)

    async def scrape(self, timeout_s: float) -> str:
        def read(machine: Triton) -> str:
            if machine.metrics is Metrics.GONE:
                raise UpstreamFault(Code.UNAVAILABLE, "connect: Connection refused", from_peer=False, sent=False)
            return page(machine)

        return str(await self._ask(read, timeout_s))

    async def aclose(self) -> None:
        """Close the connection. Calls that are still out are reset."""
        self.closed = True
        for stream in tuple(self.streams):
            stream.close()
        for call in tuple(self.calls):
            call.abandon()
            call.end(UpstreamFault(Code.UNAVAILABLE, "the channel was closed", from_peer=False))
