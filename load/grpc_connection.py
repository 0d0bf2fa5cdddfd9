"""A gRPC caller on grpcio.

grpcio's own cost, several times that of the HTTP caller, comes out of the CPUs that the servers share, and limits the
rate. Every comparison says what it was (`generator_cpu_us_per_call`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import grpc
from grpc import aio

from load.connection import CONNECTION, NO_HEADERS, WRONG_ANSWER, Done
from load.inputs import Inputs, LoadCall
from load.tasks import CallTasks

METHOD = "/inference.GRPCInferenceService/ModelInfer"
_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),  # otherwise all callers of this process share one connection
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
]


class GrpcConnection:
    """A `Connection` to host:port that can also carry many calls at a time. The deadline is the call's own, so the
    library ends every call in time. `headers` go with every call as metadata, so their names are lower case.
    """

    def __init__(self, address: str, inputs: Inputs, headers: Mapping[str, str] = NO_HEADERS) -> None:
        self._inputs = inputs
        self._metadata = tuple(headers.items())
        self._channel = aio.insecure_channel(address, options=_OPTIONS)
        self._method = self._channel.unary_unary(METHOD, None, None)
        self._tasks = CallTasks()

    def send(self, call: LoadCall, done: Done) -> None:
        self._tasks.begin(self._send(call, done))

    async def _send(self, call: LoadCall, done: Done) -> None:
        metadata = (("x-request-id", call.request_id), ("traceparent", call.traceparent), *self._metadata)
        message = self._inputs.grpc_message(call.row)
        try:
            answer = await self._method(message, timeout=call.deadline_ms / 1000, metadata=metadata)
        except aio.AioRpcError as error:
            code: grpc.StatusCode = error.code()
            done(f"code {code.name}")
        except asyncio.CancelledError:
            done(CONNECTION)
            raise
        else:
            right = not call.checked or self._inputs.grpc_right(answer, call.row)
            done("" if right else WRONG_ANSWER)

    def check(self, now_s: float) -> None:
        pass  # see the class

    async def aclose(self) -> None:
        await self._channel.close()
        await self._tasks.end()
