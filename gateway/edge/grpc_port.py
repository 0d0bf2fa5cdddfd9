"""The gRPC port on our own HTTP/2: what its connections share, the listener, and orderly shutdown.

`grpcio_server` is the other server with the same face: `start`, `begin_drain`, `wait_closed`, `aclose`, `statistics`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from gateway.edge.grpc_blocks import AnswerBlocks
from gateway.edge.grpc_connection import READ_BYTES, GrpcConnection
from gateway.edge.grpc_kit import CUT_GRACE_S, LISTEN_KEY, GrpcKit, cut_short
from gateway.edge.grpc_rpc import Rpc
from gateway.edge.grpc_stream import ClientStream
from gateway.edge.tls_door import PortDoor
from gateway.edge.tls_peers import TransportPeers
from gateway.policy.schema import GrpcLimits
from gateway.runtime.listen import listen_on
from gateway.runtime.wheel import TimerWheel
from gateway.wire.http2 import Http2Limits, Http2Server, Stream

_log = logging.getLogger("sluice.edge.grpc")

STREAM_WINDOW_BYTES = 256 * 1024
"""A request up to this size comes without the client waiting for a word of ours; a larger one is given room when its
length is known, and reserved. No window costs memory by itself: what arrives is reserved, or dropped."""
FRAME_BYTES_MAX = 256 * 1024
"""A large frame is received straight to its place in the message."""


def codec_limits(limits: GrpcLimits) -> Http2Limits:
    """The policy's limits in the codec's terms."""
    return Http2Limits(
        streams_max=limits.streams_per_connection_max,
        window_bytes=STREAM_WINDOW_BYTES,
        frame_max_bytes=FRAME_BYTES_MAX,
        header_list_max_bytes=limits.header_list_bytes_max,
        header_block_max_bytes=2 * limits.header_list_bytes_max + 32 * 1024,
    )


class GrpcPort:
    """KServe v2 over gRPC. The service gets one call per message, each in a task of its own."""

    def __init__(
        self, kit: GrpcKit, *, wheel: TimerWheel, tls: PortDoor | None = None, peers: TransportPeers | None = None
    ) -> None:
        """With `tls` the port speaks TLS alone. `peers` tells who is at the other end; None: it does not matter."""
        self.kit = kit
        self.wheel = wheel
        self.peers = peers
        self.blocks = AnswerBlocks()
        self.http2_limits = codec_limits(kit.limits)
        self.draining = False
        self.rpcs: dict[Rpc, None] = {}
        """All that have begun and are not over; who is over takes itself out."""
        self.tasks: dict[asyncio.Task[None], Rpc] = {}
        """Work under way. Strong references: asyncio keeps only weak ones."""
        self.streams: dict[ClientStream, None] = {}
        self.read_buffer = memoryview(bytearray(READ_BYTES))
        self.closed_codec = Http2Server(self.http2_limits, Stream)
        """Takes what is sent on streams that are over, and drops it."""
        self.closed_codec.lost("closed")
        self._tls = tls
        if tls is not None:
            tls.has_room = self._has_room
        self._connections: dict[GrpcConnection, None] = {}  # in the order of arrival, so that an end is in order too
        self._connections_total = 0
        self._connections_refused = 0
        self._listener: asyncio.Server | None = None
        self._changed = asyncio.Event()

    async def start(self, address: str) -> str:
        """Listen on `address` (`host:port`; port 0 takes a free one). Returns the address in use. Raises
        `ListenError`.
        """
        self._listener, bound = await listen_on(address, LISTEN_KEY, self._protocol)
        return bound

    def _protocol(self) -> asyncio.BaseProtocol:
        # What comes out of TLS is in memory already, and is handed over as it is.
        return GrpcConnection(self) if self._tls is None else self._tls.protocol(lambda: GrpcConnection(self))

    # ------------------------------------------------------------ connections

    def _has_room(self) -> bool:
        """Whether one more connection is taken; if not, that is counted."""
        handshakes = 0 if self._tls is None else self._tls.handshakes
        if not self.draining and len(self._connections) + handshakes < self.kit.limits.connections_max:
            return True
        self._connections_refused += 1
        self.kit.observer.connection_refused("grpc")
        return False

    def admit_connection(self, connection: GrpcConnection) -> bool:
        """Whether there is room for one more connection."""
        if not self._has_room():
            return False
        self._connections[connection] = None
        self._connections_total += 1
        self.kit.observer.connection_opened("grpc")
        return True

    def connection_closed(self, connection: GrpcConnection) -> None:
        if connection in self._connections:
            del self._connections[connection]
            self.kit.observer.connection_closed("grpc")
            self._changed.set()

    # ------------------------------------------------------------------- RPCs

    def admit(self, rpc: Rpc) -> bool:
        """Whether there is room for one more RPC."""
        if len(self.rpcs) >= self.kit.limits.streams_max:
            return False
        self.rpcs[rpc] = None
        return True

    # ---------------------------------------------------------------- the end

    def begin_drain(self) -> None:
        """Take nothing new; what is in flight goes on. Clients are told, and what they sent before they heard of it is
        served.
        """
        if self.draining:
            return
        self.draining = True
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._tls is not None:
            self._tls.abort_handshakes()
        for stream in tuple(self.streams):
            stream.drain()
        for connection in tuple(self._connections):
            connection.drain()

    async def wait_closed(self, limit_s: float) -> bool:
        """Wait until every connection is closed and every call has ended. After `limit_s` calls still running end
        with `draining`, and what then remains is cut off. Returns whether no call was left at the limit: a client
        that owes nothing but the close of its connection loses nothing.
        """
        self.begin_drain()
        if await self._emptied(limit_s):
            return True
        owing = sum(connection.owes for connection in self._connections)
        if not (self.rpcs or self.tasks or owing):
            await self.aclose()
            return True
        _log.warning(
            "%d calls are left, on %d connections that have not taken their answers, after %g s of draining; they are "
            "ended",
            self._calls(),
            owing,
            limit_s,
        )
        error = cut_short()
        for rpc in tuple(self.rpcs):
            rpc.cut(error)
        await self._emptied(CUT_GRACE_S)
        await self.aclose()
        return False

    async def aclose(self) -> None:
        """Stop at once and wait until every call has ended; for `CUT_GRACE_S` at most, because a service may not heed
        its cancellation.
        """
        self.draining = True
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._tls is not None:
            self._tls.abort_handshakes()
        for connection in tuple(self._connections):
            connection.abort()
        if not await self._emptied(CUT_GRACE_S):
            _log.error("%d calls go on after they were cancelled", self._calls())

    async def _emptied(self, limit_s: float) -> bool:
        try:
            async with asyncio.timeout(limit_s):
                while self._connections or self.tasks:
                    while self._connections:
                        self._changed.clear()
                        await self._changed.wait()
                    if self.tasks:
                        await asyncio.wait(tuple(self.tasks))
        except TimeoutError:
            return not self._connections and not self.tasks
        return True

    def _calls(self) -> int:
        return len(self.rpcs) + sum(rpc not in self.rpcs for rpc in self.tasks.values())

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        return {
            "connections": len(self._connections),
            "connections_total": self._connections_total,
            "connections_refused": self._connections_refused,
            "handshakes": 0 if self._tls is None else self._tls.handshakes,
            "tls_faults": 0 if self._tls is None else self._tls.faults,
            "calls": self._calls(),
            "draining": self.draining,
        }
