"""`ReplicaClient` on our own HTTP/2: messages as bytes, no library between the gateway and the socket."""

from __future__ import annotations

import asyncio
import random
from asyncio import get_running_loop
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from gateway.core.call import Attempt, Metadata
from gateway.core.faces import Endpoints, Resolver
from gateway.core.faults import UpstreamFault
from gateway.core.restraint import Restraint
from gateway.fleet.http2_channel import Http2Options
from gateway.fleet.http2_dial import Contexts, Dial, Dialler, LoopResolver, dial
from gateway.fleet.http2_faults import expired, too_large
from gateway.fleet.http2_links import Http2Links
from gateway.fleet.http2_stream import Http2ReplicaStream
from gateway.fleet.http2_unary import UnaryCall
from gateway.fleet.replica_calls import INFER, ROUTED_NAMES_BYTES, SERVICE, ReplicaCalls
from gateway.fleet.tls import PoolTls
from gateway.runtime.clock import Clock
from gateway.runtime.wheel import TimerWheel
from gateway.runtime.workers import InlineWorkers, Workers

TICK_S = 0.001
"""Of the timers of calls. Finer than that of the calls' own deadlines: the news that a replica did not answer in time,
which comes a little before the deadline, must not be overtaken by it.
"""


class Http2Connector:
    """Makes clients with one set of options."""

    def __init__(
        self,
        options: Http2Options,
        clock: Clock,
        chance: random.Random,
        tls: PoolTls | None = None,
        *,
        resolver: Resolver | None = None,
        workers: Workers | None = None,
        network: Dial = dial,
    ) -> None:
        """`chance` varies the pauses between attempts to connect; `workers` unpack large compressed answers."""
        self._options = options
        self._clock = clock
        self._chance = chance
        self._tls = tls
        self._resolver: Resolver = LoopResolver() if resolver is None else resolver
        self._workers: Workers = InlineWorkers() if workers is None else workers
        self._network = network
        self._wheel = TimerWheel(clock, TICK_S)
        self._contexts = Contexts()

    def connect(self, endpoints: Endpoints) -> Http2ReplicaClient:
        """A client for one replica."""
        links = Http2Links(
            Dialler(endpoints.grpc, self._tls, self._contexts, self._resolver, self._network),
            self._options,
            clock=self._clock,
            wheel=self._wheel,
            chance=self._chance,
            workers=self._workers,
        )
        return Http2ReplicaClient(endpoints, links, self._options.page_bytes_max)


class Http2ReplicaClient(ReplicaCalls):
    """One replica over our own HTTP/2."""

    def __init__(self, endpoints: Endpoints, links: Http2Links, page_bytes_max: int) -> None:
        super().__init__(endpoints, page_bytes_max)
        self._links = links
        self._send_max = links.message_max + ROUTED_NAMES_BYTES

    def restrain(self, restraint: Restraint) -> None:
        super().restrain(restraint)
        self._links.restraint = restraint

    async def infer(
        self,
        message: bytes,
        metadata: Metadata,
        timeout_s: float,
        tail: bytes = b"",
        attempt: Attempt | None = None,
        path: str = INFER,
    ) -> bytes:
        """As the face says. `tail` goes out behind `message`, as a part of it: whoever has a large one and something
        to add need not copy it.
        """
        size = len(message) + len(tail)
        if size > self._send_max:
            raise too_large(size, self._links.message_max)
        if timeout_s <= 0:
            raise expired(timeout_s, sent=False)
        links = self._links
        channel = links.main if size <= links.bulk_bytes else links.bulk
        call = UnaryCall(
            links, channel, path, message, tail, metadata, timeout_s, get_running_loop().create_future(), attempt
        )
        channel.start(call)
        call.fresh = False
        try:
            answer = await call.future
        except asyncio.CancelledError:
            call.part()
            raise
        except UpstreamFault:
            del call  # holds the fault, whose traceback holds this frame: a cycle
            raise
        if call.compressed:
            return await links.unpacker.unpack(answer, call.encoding)
        return answer

    def open_stream(self, metadata: Metadata, timeout_s: float) -> Http2ReplicaStream:
        return Http2ReplicaStream(self._links, metadata, timeout_s)

    async def _ask(self, name: str, message: bytes, timeout_s: float) -> bytes:
        try:
            return await self.infer(message, (), timeout_s, path=SERVICE + name)
        except UpstreamFault as fault:
            if not fault.sent and self._links.standing:
                # The replica is there and did not take the call. Whoever asks for its health takes "not sent" for
                # "cannot be reached".
                raise UpstreamFault(fault.code, fault.text, from_peer=False) from None
            raise

    async def aclose(self) -> None:
        """Close the connections; calls that are out end with UNAVAILABLE."""
        try:
            await self._links.aclose("the connection was closed while the call was out")
        finally:
            await self._close_pages()

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        """Connections that stand, and what happened so far."""
        return {
            "connections": self._links.open,
            **asdict(self._links.tally),
            "left_now": self._links.left,
            "ping_complaints": self._links.keepalive.complaints,
            "keepalive_s": self._links.keepalive.every_s,
        }
