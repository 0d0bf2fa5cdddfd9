"""How grpcio's server reaches the gateway: method names to handlers, and a stream's two directions."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import grpc
import grpc.aio

from gateway.edge.grpc_answers import stream_opened
from gateway.edge.grpc_methods import CONTROL_METHODS, HEALTH_CHECK, INFER, REFUSED, SERVICE, STREAM_INFER

Context = Any
"""`grpc.aio.ServicerContext`; the library has no types of its own."""


class Served(Protocol):
    """What answers."""

    async def infer(self, message: bytes, context: Context) -> bytes: ...

    async def stream_infer(self, context: Context) -> None: ...

    async def control(self, method: str, message: bytes, context: Context) -> bytes: ...

    async def refused(self, name: str, text: str, context: Context) -> None: ...


class Handlers:
    """How many handlers are at work: each is, inside a `with` block."""

    __slots__ = ("_none", "count")

    def __init__(self) -> None:
        self.count = 0
        self._none = asyncio.Event()
        self._none.set()

    def __enter__(self) -> None:
        self.count += 1
        self._none.clear()

    def __exit__(self, *raised: object) -> None:
        self.count -= 1
        if not self.count:
            self._none.set()

    async def none(self) -> None:
        """Wait until there is none."""
        await self._none.wait()


class GrpcioStreamPort:
    """`grpc_stream.StreamPort` on the library's context."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def read(self) -> bytes | None:
        message = await self._context.read()
        return None if message is grpc.aio.EOF else bytes(message)

    async def send_headers(self, pairs: list[tuple[str, str]]) -> None:
        await self._context.send_initial_metadata(tuple(stream_opened(pairs)))

    async def write(self, message: bytes) -> None:
        await self._context.write(message)


class Methods(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Method names to handlers, without descriptors."""

    def __init__(self, server: Served) -> None:
        self._infer = grpc.unary_unary_rpc_method_handler(server.infer)
        self._stream_infer = grpc.stream_stream_rpc_method_handler(self._stream)
        self._server = server
        self._control = {method: self._controlled(method) for method in (*CONTROL_METHODS, HEALTH_CHECK)}
        self._refused = {method: self._refusal(text, method.removeprefix(SERVICE)) for method, text in REFUSED.items()}
        self._unknown = self._refusal("", "other")

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method = handler_call_details.method
        if method == INFER:
            return self._infer
        if method == STREAM_INFER:
            return self._stream_infer
        return self._control.get(method) or self._refused.get(method) or self._unknown

    async def _stream(self, messages: Any, context: Context) -> None:
        await self._server.stream_infer(context)

    def _controlled(self, method: str) -> Any:
        async def handle(message: bytes, context: Context) -> bytes:
            return await self._server.control(method, message, context)

        return grpc.unary_unary_rpc_method_handler(handle)

    def _refusal(self, text: str, name: str) -> Any:
        async def handle(messages: Any, context: Context) -> None:
            await self._server.refused(name, text, context)

        return grpc.stream_stream_rpc_method_handler(handle)
