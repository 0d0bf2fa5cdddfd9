"""The gRPC port kept open: a library server that dies of a client's bytes is replaced by a new one.

grpcio decodes the `:path` of a request in the loop that accepts requests, and one that is not UTF-8 ends that loop
(seen on 1.85): the port closes while the process lives and says that it is ready. The library says nothing of it to
its user, so the server is asked, every `LOOK_S`. Calls under way on the dead server are served to their end.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import Any

import grpc.aio

_log = logging.getLogger("sluice.edge.grpc")

LOOK_S = 0.02
RETRY_MAX_S = 1.0
DEAD_GRACE_S = 60.0
"""Calls of a server that died may go on for this long."""
PENDING_MAX = 10_000
"""Calls that the library has read and the loop has not taken up: by itself it ends many of those beyond 1,000 as
CANCELLED, with a word to nobody."""
DEAD_MAX = 8
"""Dead servers kept for their calls; of more the oldest is stopped at once. Somebody is killing them on purpose."""


class GrpcioListener:
    """One address and the library's server on it. `make` gives a server that has no port and is not started,
    `credentials` what it needs for TLS; None: the port has none.
    """

    def __init__(
        self,
        make: Callable[[], grpc.aio.Server],
        on_death: Callable[[], None],
        credentials: Callable[[], Any] | None = None,
    ) -> None:
        self._make = make
        self._on_death = on_death
        self._credentials = credentials
        self._server: grpc.aio.Server | None = None
        self._dead: dict[grpc.aio.Server, asyncio.Future[None]] = {}
        self._watch: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; port 0 takes a free one. Returns the port. Raises RuntimeError if it cannot be had."""
        server = self._make()
        port = self._add_port(server, host, port)
        await server.start()
        self._server = server
        self._watch = asyncio.get_running_loop().create_task(self._keep_open(host, port))
        return port

    def _add_port(self, server: grpc.aio.Server, host: str, port: int) -> int:
        address = f"{host}:{port}"
        if self._credentials is None:
            return int(server.add_insecure_port(address))
        return int(server.add_secure_port(address, self._credentials()))

    async def stop(self, grace_s: float | None) -> None:
        """Take nothing new. Calls under way get `grace_s` to end, none at all if it is None."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
        dead = [asyncio.ensure_future(server.stop(grace_s)) for server in self._dead]
        if self._server is not None:
            await self._server.stop(grace_s)
        await asyncio.gather(*dead)

    async def _keep_open(self, host: str, port: int) -> None:
        pause_s = LOOK_S
        while True:
            await asyncio.sleep(pause_s)
            # The one way to learn it while calls go on: `wait_for_termination` returns when the last of them has ended.
            if self._server is not None and self._server._server.is_running():
                continue
            if self._server is not None:
                _log.error("the gRPC server ended by itself, of bytes that the library cannot read; a new one is begun")
                self._on_death()
                self._bury(self._server)
                self._server = None
            server = self._make()
            try:
                self._add_port(server, host, port)
                self._server = server
                await server.start()
            except Exception as error:  # the dead one's socket is closed by another thread, a moment later
                self._server = None
                if pause_s == LOOK_S:
                    _log.warning("the gRPC port %d cannot be opened again yet: %s", port, error)
                pause_s = min(2 * pause_s, RETRY_MAX_S)  # each failure is a line in the library's own log
                continue
            pause_s = LOOK_S

    def _bury(self, server: grpc.aio.Server) -> None:
        ending = asyncio.ensure_future(server.stop(DEAD_GRACE_S))
        self._dead[server] = ending
        ending.add_done_callback(lambda _: self._dead.pop(server, None))
        if len(self._dead) > DEAD_MAX:
            oldest = next(iter(self._dead))
            del self._dead[oldest]
            ending = asyncio.ensure_future(oldest.stop(None))
            ending.add_done_callback(lambda future: future.cancelled() or future.exception())


def server_options(
    *, receive_bytes_max: int, send_bytes_max: int, handshake_timeout_ms: int
) -> tuple[tuple[str, int], ...]:
    """What every server of the port is made with."""
    return (
        ("grpc.max_receive_message_length", receive_bytes_max),
        ("grpc.max_send_message_length", send_bytes_max),
        ("grpc.so_reuseport", 0),
        ("grpc.server_handshake_timeout_ms", handshake_timeout_ms),
        ("grpc.server.max_pending_requests", PENDING_MAX),
        ("grpc.server.max_pending_requests_hard_limit", PENDING_MAX),
        # Clients ping through long silences every 10 to 30 seconds (field case FH-15); the library's own defaults
        # answer that with GOAWAY.
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
    )


def why_not(host: str, port: int) -> OSError:
    """Why the library could not listen there: it says so in its own log only, so the system is asked the same."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
    except OSError as error:
        return error
    return OSError(errno.EADDRINUSE, "address in use")
