"""The raw gRPC caller against grpcio's server: what it sends is what a client sends, and every end is told once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc import aio

from load.connection import CONNECTION, NO_ANSWER, WRONG_ANSWER
from load.inputs import Calls, IdentityInputs
from load.protobuf import bytes_field, read_fields
from load.raw_grpc_connection import RawGrpcConnection

Answer = Callable[[bytes, Any], Awaitable[bytes]]
INPUTS = IdentityInputs()


@asynccontextmanager
async def served(answer: Answer) -> AsyncIterator[tuple[str, aio.Server]]:
    server = aio.server()
    handler = grpc.method_handlers_generic_handler(
        "inference.GRPCInferenceService", {"ModelInfer": grpc.unary_unary_rpc_method_handler(answer)}
    )
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}", server
    finally:
        await server.stop(None)


def right_answer(message: bytes) -> bytes:
    (contents,) = [value for field, value in read_fields(message) if field == 7]
    return bytes_field(1, b"identity") + bytes_field(6, contents)


async def end_of(connection: RawGrpcConnection, calls: Calls, deadline_ms: int | None = None) -> str:
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    connection.send(calls.next(deadline_ms=deadline_ms), ended.set_result)
    async with asyncio.timeout(60):
        return await ended


async def test_many_calls_on_one_connection_are_answered_each_with_its_own() -> None:
    seen: list[dict[str, str]] = []
    peers: set[str] = set()

    async def answer(message: bytes, context: Any) -> bytes:
        seen.append(dict(context.invocation_metadata()))
        peers.add(context.peer())
        assert 10 < context.time_remaining() <= 40
        return right_answer(message)

    async with served(answer) as (address, _):
        connection = RawGrpcConnection(address, INPUTS, {"x-own": "mine"})
        calls = Calls(7, 40_000)
        for _ in range(3):
            ends = await asyncio.gather(*(end_of(connection, calls) for _ in range(50)))
            assert ends == [""] * 50
        await connection.aclose()
    assert len(peers) == 1
    assert {each["x-request-id"] for each in seen} == {f"load-00000007-{number}" for number in range(1, 151)}
    assert len({each["traceparent"] for each in seen}) == 150
    assert {(each["x-own"], each["user-agent"]) for each in seen} == {("mine", "sluice-load")}


async def test_a_status_a_wrong_answer_and_silence_are_told_apart() -> None:
    async def answer(message: bytes, context: Any) -> bytes:
        number = int(dict(context.invocation_metadata())["x-request-id"].rpartition("-")[2])
        if number == 1:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not today")
        if number == 3:
            await asyncio.Event().wait()
        return b"" if number == 2 else right_answer(message)

    async with served(answer) as (address, _):
        connection = RawGrpcConnection(address, INPUTS)
        calls = Calls(1, 30_000)
        assert await end_of(connection, calls) == "code UNAVAILABLE"
        assert await end_of(connection, calls) == WRONG_ANSWER
        assert await end_of(connection, calls, 300) == "code DEADLINE_EXCEEDED"  # by grpcio's server
        assert await end_of(connection, calls) == ""
        await connection.aclose()


async def test_a_silent_server_is_given_up_and_the_connection_goes_on() -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    connection = RawGrpcConnection(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", INPUTS)
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    before_s = asyncio.get_running_loop().time()
    connection.send(Calls(1, 100).next(), ended.set_result)
    await asyncio.sleep(0.05)
    connection.check(before_s + 1.0)  # its deadline and what is allowed beyond it are not over
    assert not ended.done()
    connection.check(asyncio.get_running_loop().time() + 2)
    assert await ended == NO_ANSWER
    await connection.aclose()
    server.close()


@pytest.mark.parametrize("grace_s", [None, 5.0])
async def test_a_server_that_stops_and_one_that_is_not_there(grace_s: float | None) -> None:
    started = asyncio.Event()

    async def answer(message: bytes, context: Any) -> bytes:
        started.set()
        await asyncio.sleep(0.2)
        return right_answer(message)

    async with served(answer) as (address, server):
        connection = RawGrpcConnection(address, INPUTS)
        calls = Calls(1, 30_000)
        out = asyncio.ensure_future(end_of(connection, calls))
        await started.wait()
        await server.stop(grace_s)
        # With grace the call is answered, and after the GOAWAY nothing new goes out on that connection.
        assert await out in ([""] if grace_s else [CONNECTION, "code UNAVAILABLE", "code CANCELLED"])
        assert await end_of(connection, calls) == CONNECTION
        await connection.aclose()
