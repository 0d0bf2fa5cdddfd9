"""An HTTP/1.1 caller on a raw asyncio protocol: keep-alive, one request at a time, few microseconds per call."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

import httptools

from load.connection import CONNECTION, GRACE_S, NO_ANSWER, NO_HEADERS, WRONG_ANSWER, Done
from load.inputs import Inputs, LoadCall

CONNECT_TIMEOUT_S = 5.0


class HttpConnection:
    """A `Connection` to host:port. `headers` go with every call."""

    def __init__(self, address: str, inputs: Inputs, headers: Mapping[str, str] = NO_HEADERS) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host, int(port)
        self._inputs = inputs
        self._form = request_form(address, inputs, headers)
        self._wire: _Wire | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._call: LoadCall | None = None
        self._done: Done | None = None
        self._give_up_s = 0.0

    def send(self, call: LoadCall, done: Done) -> None:
        assert self._done is None, "one call at a time"
        self._call, self._done = call, done
        self._give_up_s = asyncio.get_running_loop().time() + call.deadline_ms / 1000 + GRACE_S
        if self._wire is None:
            self._connecting = asyncio.ensure_future(self._connect_and_write())
        else:
            self._write(self._wire)

    def _write(self, wire: _Wire) -> None:
        call = self._call
        assert call is not None
        wire.write(request_bytes(self._form, self._inputs, call))

    async def _connect_and_write(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, wire = await loop.create_connection(lambda: _Wire(self), self._host, self._port)
        except OSError:  # TimeoutError is one
            self._end(CONNECTION)
            return
        if self._done is None:  # given up meanwhile
            wire.abort()
            return
        self._wire = wire
        self._write(wire)

    def answered(self, wire: _Wire, status: int, body: bytes, keep_alive: bool) -> None:
        """The whole answer is here."""
        call = self._call
        if wire is not self._wire or call is None:
            return
        if not keep_alive:
            self._wire = None
            wire.abort()
        if status != 200:
            self._end(f"status {status}")
        else:
            right = not call.checked or self._inputs.http_right(body, call.row)
            self._end("" if right else WRONG_ANSWER)

    def lost(self, wire: _Wire) -> None:
        """The connection is gone, or what came over it is not HTTP."""
        if wire is self._wire:
            self._wire = None
            self._end(CONNECTION)

    def check(self, now_s: float) -> None:
        if self._done is not None and now_s > self._give_up_s:
            self._drop()
            self._end(NO_ANSWER)

    async def aclose(self) -> None:
        self._drop()
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait((self._connecting,))
        self._end(CONNECTION)

    def _drop(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.abort()

    def _end(self, error: str) -> None:
        done, self._done, self._call = self._done, None, None
        if done is not None:
            done(error)


def request_form(address: str, inputs: Inputs, headers: Mapping[str, str] = NO_HEADERS) -> bytes:
    """A request's head, with places for what differs from call to call."""
    more = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).replace("%", "%%")
    return (
        f"POST /v2/models/{inputs.model}/infer HTTP/1.1\r\nhost: {address}\r\n{inputs.http_headers}{more}"
        "content-length: %d\r\nx-request-timeout-ms: %d\r\nx-request-id: %b\r\ntraceparent: %b\r\n\r\n"
    ).encode()


def request_bytes(form: bytes, inputs: Inputs, call: LoadCall) -> bytes:
    """A whole request."""
    body = inputs.http_body(call.row)
    return form % (len(body), call.deadline_ms, call.request_id.encode(), call.traceparent.encode()) + body


class _Wire(asyncio.Protocol):
    """One TCP connection. The parser (llhttp) reads one answer after the other."""

    def __init__(self, owner: HttpConnection) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []

    def write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's do not inherit from it

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.abort()
            self._owner.lost(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._owner.lost(self)

    def on_message_begin(self) -> None:
        self._body.clear()

    def on_body(self, part: bytes) -> None:
        self._body.append(part)

    def on_message_complete(self) -> None:
        parser = self._parser
        self._owner.answered(self, parser.get_status_code(), b"".join(self._body), parser.should_keep_alive())
