"""Calls that are cancelled cost no memory that no collector sees."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from contextlib import AsyncExitStack

import grpc
import pytest
from grpc import aio

from gateway.core.faces import Endpoints
from tests.support.replica_clients import TRANSPORTS, connector_of

ROUNDS, AT_ONCE = 20, 50
LEAKED_BYTES_MAX = 400


_FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _Mallinfo2(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIELDS)


def _malloc_bytes() -> int:
    """Bytes that are allocated with malloc now. Python's own small objects are not among them."""
    gc.collect()
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = _Mallinfo2
    return int(libc.mallinfo2().uordblks)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_cancelled_call_leaves_no_memory_behind(transport: str) -> None:
    """grpcio leaks the batch of a call, about 1,000 bytes, if the task that awaits the call is cancelled (grpc/grpc
    issue 43360); the client goes round that.
    """
    arrived: asyncio.Queue[None] = asyncio.Queue()

    async def never(request: bytes, context: aio.ServicerContext) -> bytes:
        arrived.put_nowait(None)
        await asyncio.get_running_loop().create_future()
        return b""

    handler = grpc.method_handlers_generic_handler(
        "inference.GRPCInferenceService", {"ModelInfer": grpc.unary_unary_rpc_method_handler(never)}
    )
    async with asyncio.timeout(60), AsyncExitStack() as closing:
        server = aio.server()
        server.add_generic_rpc_handlers((handler,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        closing.push_async_callback(server.stop, None)
        address = f"127.0.0.1:{port}"
        client = connector_of(transport, None, connect_timeout_ms=10_000).connect(Endpoints(address, address, address))
        closing.push_async_callback(client.aclose)

        async def cancelled_calls() -> None:
            tasks = [asyncio.ensure_future(client.infer(b"", (), 30.0)) for _ in range(AT_ONCE)]
            for _ in tasks:
                await arrived.get()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            assert all(task.cancelled() for task in tasks)

        for _ in range(5):  # what is made once
            await cancelled_calls()
        before = _malloc_bytes()
        for _ in range(ROUNDS):
            await cancelled_calls()
        assert (_malloc_bytes() - before) / (ROUNDS * AT_ONCE) < LEAKED_BYTES_MAX
