"""Listening for operators: bounded in connections and in their age, one request per connection.

Operators' ports see a few requests a minute. So a connection gets one answer and is closed, and one that is older than
`CONNECTION_AGE_S` is cut off, whatever it does: nothing slow or idle can gather here.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Callable
from typing import cast

from aiohttp import web

from gateway.runtime.listen import listen_error, split_address

CONNECTIONS_MAX = 64
CONNECTION_AGE_S = 30.0

_log = logging.getLogger("sluice.admin")


class _Refusal(asyncio.Protocol):
    """A connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class _Guarded(asyncio.Protocol):
    """Passes everything on to aiohttp's handler, counts, and ends the connection at its age."""

    def __init__(self, listener: Listener, handler: asyncio.Protocol) -> None:
        self._listener = listener
        self._handler = handler
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio's, but not the type.
        abort = cast("asyncio.Transport", transport).abort
        self._timer = asyncio.get_running_loop().call_later(CONNECTION_AGE_S, abort)
        self._handler.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._listener.open -= 1
        self._handler.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        return self._handler.eof_received()

    def pause_writing(self) -> None:
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._handler.resume_writing()


class Listener:
    """One port that serves one aiohttp application."""

    def __init__(self, runner: web.AppRunner) -> None:
        self._runner = runner
        self._server: asyncio.Server | None = None
        self.open = 0

    @classmethod
    async def start(cls, app: web.Application, address: str, key: str) -> Listener:
        """Serve `app` at `address` (`host:port`), which stands in the policy under `key`. Raises `ListenError`."""
        host, port = split_address(address)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        listener = cls(runner)
        try:
            loop = asyncio.get_running_loop()
            listener._server = await loop.create_server(listener._connect, host, port, reuse_address=True)
        except OSError as error:
            await runner.cleanup()
            raise listen_error(address, key, error) from error
        return listener

    @property
    def port(self) -> int:
        """The port that was bound, where the policy left the choice to the system with 0."""
        assert self._server is not None
        number: int = self._server.sockets[0].getsockname()[1]
        return number

    async def aclose(self) -> None:
        """Stop listening, and end what is open."""
        if self._server is not None:
            self._server.close()
        await self._runner.cleanup()
        if self._server is not None:
            await self._server.wait_closed()

    def _connect(self) -> asyncio.Protocol:
        if self.open >= CONNECTIONS_MAX:
            return _Refusal()
        handler: Callable[[], asyncio.Protocol] | None = self._runner.server
        if handler is None:
            return _Refusal()
        self.open += 1
        return _Guarded(self, handler())


def is_loopback(host: str) -> bool:
    """Whether `host` can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
