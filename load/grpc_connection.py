"""A gRPC caller on grpcio.

grpcio's own cost, several times that of the HTTP caller, comes out of the CPUs that the servers share, and limits the
rate. Every comparison says what it was (`generator_cpu_us_per_call`).
"""

from __future__ import annotations

import asyncio

import grpc
from grpc import aio

from load.connection import CONNECTION, WRONG_ANSWER, Done
from load.inputs import IdentityInputs, LoadCall

_METHOD = "/inference.GRPCInferenceService/ModelInfer"
_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),  # otherwise all callers of this process share one connection
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
]


class GrpcConnection:
    """A `Connection` to host:port. The deadline is the call's own, so the library ends every call in time."""

    def __init__(self, address: str, inputs: IdentityInputs) -> None:
        self._inputs = inputs
        self._channel = aio.insecure_channel(address, options=_OPTIONS)
        self._method = self._channel.unary_unary(_METHOD, None, None)
        self._task: asyncio.Task[None] | None = None

    def send(self, call: LoadCall, done: Done) -> None:
        self._task = asyncio.ensure_future(self._send(call, done))

    async def _send(self, call: LoadCall, done: Done) -> None:
        metadata = (("x-request-id", call.request_id), ("traceparent", call.traceparent))
        message = self._inputs.grpc_message(call.number)
        try:
            answer = await self._method(message, timeout=call.deadline_ms / 1000, metadata=metadata)
        except aio.AioRpcError as error:
            code: grpc.StatusCode = error.code()
            done(f"code {code.name}")
        except asyncio.CancelledError:
            done(CONNECTION)
            raise
        else:
            done("" if self._inputs.grpc_right(answer, call.number) else WRONG_ANSWER)

    def check(self, now_s: float) -> None:
        pass  # see the class

    async def aclose(self) -> None:
        await self._channel.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
