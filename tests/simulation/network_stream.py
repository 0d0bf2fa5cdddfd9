"""One ModelStreamInfer on a simulated connection (`ReplicaStream`): ordered both ways, lost as a whole."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.core.codes import Code
from gateway.core.faces import ReplicaStream
from gateway.core.faults import UpstreamFault
from tests.simulation.batcher import fault
from tests.simulation.intake import STOPPING, ServerStream

if TYPE_CHECKING:
    from gateway.core.call import Metadata
    from tests.simulation.network import NetworkClient
    from tests.simulation.triton import Triton

_End = UpstreamFault | None
_Message = tuple[bytes, int]


class NetworkStream(ReplicaStream):
    """Begun when it is made. What travels is kept in two lines, and each arrival takes the oldest: what a black hole
    held must not be overtaken by what came after it.
    """

    def __init__(self, client: NetworkClient, metadata: Metadata, timeout_s: float) -> None:
        self.metadata = metadata
        self.tokens: dict[int, object] = {}
        """What `Network.on_infer` said of each request whose last response was not read yet, by its number."""
        self.generation = client.life
        """The life of the process that it reached, 0 as long as it has reached none."""
        self._client = client
        self._writes = 0
        self._server: ServerStream | None = None
        self._there: deque[Callable[[Triton], None]] = deque()
        self._back: deque[_Message | _End] = deque()
        self._inbox: deque[_Message | _End] = deque()
        self._ended = False
        self._told = False
        """The end was read."""
        self._waiter: asyncio.Future[None] | None = None
        loop = client.network.loop
        self._timer = None if timeout_s == math.inf else loop.call_later(max(0.0, timeout_s), self._expire)
        client.streams[self] = None

    # -- the face -------------------------------------------------------------------------------------------------

    def write(self, message: bytes) -> None:
        if self._ended:
            return
        number = self._writes
        self._writes += 1
        network = self._client.network
        self.tokens[number] = network.on_infer(self._client.address, message)
        self._go_there(lambda machine: self._at(machine).take(message))

    async def read(self) -> bytes | None:
        while not self._inbox:
            assert not self._told, "the end of a stream was read already"
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            except asyncio.CancelledError:
                self.cancel()
                raise
            finally:
                self._waiter = None
        item = self._inbox.popleft()
        if isinstance(item, tuple):
            self.tokens.pop(item[1], None)
            return item[0]
        self._told = True
        if item is not None:
            raise item
        return None

    def half_close(self) -> None:
        if not self._ended:
            self._go_there(lambda machine: self._at(machine).half_close(lambda: self.send_back(None)))

    def cancel(self) -> None:
        if not self._ended:
            self._go_there(self._cancelled)
            self._end()

    # -- there ----------------------------------------------------------------------------------------------------

    def _go_there(self, work: Callable[[Triton], None]) -> None:
        self._there.append(work)
        self._client.way_there(self._reach)

    def _reach(self) -> None:
        client = self._client
        machine = client.network.machines.get(client.address)
        if machine is None or client.address in client.network.black_since_s:
            client.network.hold(client.address, self._reach)
            return
        work = self._there.popleft()
        if self.generation and self.generation != machine.generation:
            return  # of an earlier life of the process: the stream was reset, the client knows
        if self._server is None and not machine.listening:
            if self.generation:
                self.send_back(fault(Code.UNAVAILABLE, STOPPING))
            else:
                text = f"failed to connect to all addresses; last error: UNKNOWN: ipv4:{client.address}: connect: "
                self.send_back(
                    UpstreamFault(Code.UNAVAILABLE, f"{text}Connection refused (111)", from_peer=False, sent=False)
                )
            return
        self.generation = machine.generation
        client.connected(machine)
        machine.arrive(lambda: work(machine))

    def _at(self, machine: Triton) -> ServerStream:
        if self._server is None:
            self._server = ServerStream(machine, lambda message, over: self.send_back((message, over)))
        return self._server

    def _cancelled(self, machine: Triton) -> None:
        if self._server is not None:
            self._server.cancel()

    # -- back -----------------------------------------------------------------------------------------------------

    def send_back(self, item: _Message | _End) -> None:
        """The machine, or the kernel for it, answers: a message with what is over by it, or the end."""
        self._back.append(item)
        self._client.way_back(self._land, None)

    def _land(self, _: None = None) -> None:
        client = self._client
        if client.address in client.network.black_since_s:
            client.network.hold(client.address, self._land)
            return
        item = self._back.popleft()
        if self._ended:
            return
        self._give(item)
        if not isinstance(item, tuple):
            self._end()

    def _give(self, item: _Message | _End) -> None:
        self._inbox.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _end(self) -> None:
        self._ended = True
        self.tokens.clear()
        self._client.streams.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()

    def _expire(self) -> None:
        if not self._ended:
            self._give(UpstreamFault(Code.DEADLINE_EXCEEDED, "Deadline Exceeded", from_peer=False))
            self.cancel()

    def close(self) -> None:
        """The channel is closed under it."""
        if not self._ended:
            self._give(UpstreamFault(Code.UNAVAILABLE, "Channel closed while the stream was open", from_peer=False))
            self.cancel()

    def cut(self, orderly: bool) -> None:
        """A middle box ends it for both sides: with OK, or in a reset."""
        self._go_there(self._cancelled)
        self.send_back(None if orderly else UpstreamFault(Code.UNAVAILABLE, "Socket closed", from_peer=False))
