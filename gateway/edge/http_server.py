"""The HTTP port: what its connections share, the listener, and orderly shutdown."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from gateway.core.errors import GatewayError, Reason
from gateway.core.faces import Authenticator, BodyBudget, Catalogue
from gateway.core.service import Service
from gateway.edge.explain import Explainer
from gateway.edge.headers import HeaderReader
from gateway.edge.http_answer import HttpAnswers
from gateway.edge.http_coding import BodyCoding
from gateway.edge.http_connection import HttpConnection
from gateway.edge.http_control import ControlDesk
from gateway.edge.http_kit import CallKit, LimitsOf
from gateway.edge.http_usual import UsualCalls
from gateway.edge.observer import EdgeObserver, SilentObserver
from gateway.edge.tls_door import PortDoor
from gateway.edge.tls_peers import TransportPeers
from gateway.policy.schema import HttpLimits
from gateway.runtime.chance import Chance
from gateway.runtime.clock import Clock
from gateway.runtime.listen import listen_on
from gateway.runtime.wheel import TimerWheel
from gateway.runtime.workers import InlineWorkers, Workers
from gateway.wire.http1 import Http1Limits

_log = logging.getLogger("sluice.edge")

LISTEN_KEY = "gateway.listen.http"
CUT_GRACE_S = 1.0
"""After the drain limit, this long for the errors that cut calls short to be written."""
READ_BYTES = 256 * 1024
REQUEST_LINE_BYTES_MAX = 8192
BODY_BYTES_MAX = 2**63 - 1
"""What a Content-Length may say at all: each model has its own bound, and the refusal is to name that one."""


def codec_limits(limits: HttpLimits) -> Http1Limits:
    """The policy's limits in the codec's terms."""
    return Http1Limits(
        request_line_max_bytes=min(REQUEST_LINE_BYTES_MAX, limits.header_bytes_max),
        header_line_max_bytes=limits.header_bytes_max,
        header_count_max=limits.header_count_max,
        head_max_bytes=limits.header_bytes_max,
        body_max_bytes=BODY_BYTES_MAX,
        pipeline_max=limits.pipeline_max,
        drain_max_bytes=limits.drain_bytes_max,
    )


class HttpServer:
    """KServe v2 over HTTP/1.1.

    `limits_of` gives what a model takes, `body_budget` bounds all bodies together. The service gets one
    call per inference request, in a task of its own.
    """

    def __init__(
        self,
        *,
        service: Service,
        catalogue: Catalogue,
        authenticator: Authenticator,
        limits: HttpLimits,
        reader: HeaderReader,
        explainer: Explainer,
        wheel: TimerWheel,
        clock: Clock,
        chance: Chance,
        limits_of: LimitsOf,
        body_budget: BodyBudget,
        observer: EdgeObserver | None = None,
        tls: PortDoor | None = None,
        peers: TransportPeers | None = None,
        coding_workers: Workers | None = None,
    ) -> None:
        """With `tls` the port speaks TLS alone. `peers` tells who is at the other end; None: it does not matter.
        `coding_workers` take what would compress or decompress on the loop for long; None leaves it there."""
        self.clock = clock
        self.wheel = wheel
        self.observer: EdgeObserver = SilentObserver() if observer is None else observer
        self.answers = HttpAnswers(chance.stream("edge.http.retry_after"))
        self.desk = ControlDesk(catalogue, authenticator, self.answers, self.observer)
        self.kit = CallKit(
            service=service,
            catalogue=catalogue,
            answers=self.answers,
            explainer=explainer,
            clock=clock,
            observer=self.observer,
            limits_of=limits_of,
            budget=body_budget,
            coding=BodyCoding(limits, coding_workers or InlineWorkers()),
        )
        self.reader = reader
        self.usual_calls = UsualCalls(self.desk, reader)
        self.peers = peers
        self._tls = tls
        if tls is not None:
            tls.has_room = self._has_room
        self.read_buffer = memoryview(bytearray(READ_BYTES))
        """Of all connections."""
        self.draining = False
        self.headers_dropped = 0
        self._connections: dict[HttpConnection, None] = {}  # in the order of arrival, so that an end is in order too
        self._connections_total = 0
        self._connections_refused = 0
        self._listener: asyncio.Server | None = None
        self._changed = asyncio.Event()
        self.limits = limits
        self.http1_limits = codec_limits(limits)

    def use(self, limits: HttpLimits, reader: HeaderReader) -> None:
        """Take these for what begins from now on: limits of new connections, headers of new requests."""
        self.limits = limits
        self.http1_limits = codec_limits(limits)
        self.kit.coding.use(limits)
        self.reader = reader
        self.usual_calls.use(reader)

    async def start(self, address: str) -> str:
        """Listen on `address` (`host:port`; port 0 takes a free one). Returns the address in use. Raises
        `ListenError`.
        """
        self._listener, bound = await listen_on(address, LISTEN_KEY, self._protocol)
        return bound

    def _protocol(self) -> asyncio.BaseProtocol:
        return HttpConnection(self) if self._tls is None else self._tls.protocol(lambda: HttpConnection(self))

    def _has_room(self) -> bool:
        """Whether one more connection is taken; if not, that is counted."""
        handshakes = 0 if self._tls is None else self._tls.handshakes
        if not self.draining and len(self._connections) + handshakes < self.limits.connections_max:
            return True
        self._connections_refused += 1
        self.observer.connection_refused("http")
        return False

    def admit(self, connection: HttpConnection) -> bool:
        """Whether there is room for one more connection."""
        if not self._has_room():
            return False
        self._connections[connection] = None
        self._connections_total += 1
        self.observer.connection_opened("http")
        return True

    def closed(self, connection: HttpConnection) -> None:
        if connection in self._connections:
            del self._connections[connection]
            self.observer.connection_closed("http")
            self._changed.set()

    def begin_drain(self) -> None:
        """Stop accepting; idle connections close now, each other one with the last answer that it owes."""
        self.draining = True
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._tls is not None:
            self._tls.abort_handshakes()
        for connection in tuple(self._connections):
            connection.drain()

    async def wait_closed(self, limit_s: float) -> bool:
        """Wait until every connection is closed and every call has ended. After `limit_s` calls still running end
        with `draining`, and what then remains is cut off. Returns whether no call was left at the limit: a client
        that has sent half a head, or only does not close its end, loses nothing.
        """
        if await self._emptied(limit_s):
            return True
        left = bool(self.kit.tasks) or any(connection.owes for connection in self._connections)
        if not left:
            await self._abort_all()
            return True
        _log.warning(
            "%d connections with %d calls are left after %g s of draining; they are ended",
            len(self._connections),
            len(self.kit.tasks),
            limit_s,
        )
        error = GatewayError(Reason.DRAINING, "the gateway is shutting down; send the call again", retry_after_s=1.0)
        for connection in tuple(self._connections):
            connection.cut(error)
        if not await self._emptied(CUT_GRACE_S):
            await self._abort_all()
        return False

    async def _abort_all(self) -> None:
        for connection in tuple(self._connections):
            connection.abort()
        await self._emptied(CUT_GRACE_S)

    async def _emptied(self, limit_s: float) -> bool:
        try:
            async with asyncio.timeout(limit_s):
                while self._connections:
                    self._changed.clear()
                    await self._changed.wait()
                while self.kit.tasks:
                    await asyncio.wait(tuple(self.kit.tasks))
        except TimeoutError:
            return not self._connections and not self.kit.tasks
        return True

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        return {
            "connections": len(self._connections),
            "connections_total": self._connections_total,
            "connections_refused": self._connections_refused,
            "handshakes": 0 if self._tls is None else self._tls.handshakes,
            "tls_faults": 0 if self._tls is None else self._tls.faults,
            "calls": len(self.kit.tasks),
            "headers_dropped": self.headers_dropped,
            "draining": self.draining,
        }
