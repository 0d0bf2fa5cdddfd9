"""Hostile gRPC clients over real sockets: what no gRPC library would send, as hand-made HTTP/2 frames."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Any, cast

import grpc.aio
import pytest
from tritonclient.grpc import service_pb2 as pb

from gateway.core.call import Call
from gateway.core.reply import Reply
from gateway.edge.grpcio_server import GrpcioServer
from tests.support.grpc_edge import ANSWER, EdgeUnderTest, MakeEdge, running_edge

WAIT_S = 20
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING = 0, 1, 3, 4, 6
INFER = b"/inference.GRPCInferenceService/ModelInfer"


class Gated:
    """Answers when told."""

    def __init__(self) -> None:
        self.calls = 0
        self.arrived = asyncio.Event()
        self.go = asyncio.Event()

    async def send(self, call: Call) -> Reply:
        self.calls += 1
        self.arrived.set()
        await self.go.wait()
        return Reply(ANSWER)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header field without compression; both shorter than 127 bytes."""
    return b"\x00" + bytes((len(name),)) + name + bytes((len(value),)) + value


def head(path: bytes = INFER, *more: tuple[bytes, bytes]) -> bytes:
    pairs = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"a"),
             (b"te", b"trailers"), (b"content-type", b"application/grpc"), *more)  # fmt: skip
    return b"".join(literal(name, value) for name, value in pairs)


def opening() -> bytes:
    return PREFACE + frame(SETTINGS, 0, 0) + frame(SETTINGS, 1, 0)


async def connected(edge: EdgeUnderTest, frames: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection of its own on which these frames have been sent."""
    host, _, port = edge.address.rpartition(":")
    while True:
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
        except ConnectionRefusedError:
            await asyncio.sleep(0.01)  # the port is being opened again
            continue
        writer.write(opening() + frames)
        return reader, writer


async def test_a_path_that_is_no_text_closes_the_port_for_nobody_else(grpc_edge: MakeEdge) -> None:
    service = Gated()
    async with asyncio.timeout(WAIT_S), grpc_edge(service) as edge:
        under_way = edge.infer()
        await service.arrived.wait()
        for _ in range(3):
            # The library's server dies of it and is replaced; ours has no such method.
            seen = edge.events.faults + len(edge.events.requests)
            _, writer = await connected(edge, frame(HEADERS, 4, 1, head(b"/a/\xff")))
            while edge.events.faults + len(edge.events.requests) == seen:
                await asyncio.sleep(0.01)
            writer.close()
        service.go.set()
        assert await under_way == ANSWER
        async with grpc.aio.insecure_channel(edge.address) as channel:
            live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            assert await live(b"", wait_for_ready=True) == b"\x08\x01"
        assert service.calls == 1


BAD_HEADS = {
    "no te": head()[: -len(literal(b"te", b"trailers") + literal(b"content-type", b"application/grpc"))],
    "unknown compression": head(INFER, (b"grpc-encoding", b"zstd")),
    "timeout no unit": head(INFER, (b"grpc-timeout", b"5")),
    "timeout wrong unit": head(INFER, (b"grpc-timeout", b"5x")),
    "timeout over": head(INFER, (b"grpc-timeout", b"1n")),
    "binary that is none": head(INFER, (b"x-a-bin", b"%%%")),
    "empty name": head(INFER, (b"", b"a")),
    "upper case": head(INFER, (b"X-A", b"a")),
    "no hpack": b"\xff" * 8,
    "unknown service": head(b"/a.B/C"),
    "no path": head(b"nowhere"),
}
BAD_FRAMES = {
    "compressed flag alone": frame(HEADERS, 4, 1, head()) + frame(DATA, 1, 1, b"\1\0\0\0\1a"),
    "four gigabytes": frame(HEADERS, 4, 1, head()) + frame(DATA, 0, 1, b"\0\xff\xff\xff\xff"),
    "two messages": frame(HEADERS, 4, 1, head()) + frame(DATA, 1, 1, b"\0\0\0\0\0" * 2),
    "no message": frame(HEADERS, 5, 1, head()),
    "half a prefix": frame(HEADERS, 4, 1, head()) + frame(DATA, 1, 1, b"\0\0"),
    "even stream": frame(HEADERS, 4, 2, head()),
    "data on no stream": frame(DATA, 1, 0, b"x"),
    "bad settings": frame(SETTINGS, 0, 0, b"\0\4\xff\xff\xff\xff"),
    "pings": frame(PING, 0, 0, b"12345678") * 5000,
    "rapid resets": b"".join(
        frame(HEADERS, 4, stream, head()) + frame(RST_STREAM, 0, stream, b"\0\0\0\x08") for stream in range(1, 4001, 2)
    ),
    "half-open streams": b"".join(frame(HEADERS, 4, stream, head()) for stream in range(1, 201, 2)),
    "http/1.1": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
}


async def test_hostile_frames_leave_nothing_behind_and_others_are_served(grpc_edge: MakeEdge) -> None:
    service = Gated()
    service.go.set()
    async with asyncio.timeout(2 * WAIT_S), grpc_edge(service) as edge:
        attacks = [frame(HEADERS, 4, 1, bad) + frame(DATA, 1, 1, b"\0\0\0\0\0") for bad in BAD_HEADS.values()]
        for attack in (*attacks, *BAD_FRAMES.values()):
            _, writer = await connected(edge, attack)
            assert await edge.infer() == ANSWER
            transport = writer.transport
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()
        while not edge.nothing_is_left():
            await asyncio.sleep(0.01)
        assert await edge.infer() == ANSWER
        assert edge.events.faults == 0


async def test_a_burst_of_calls_is_taken_to_the_last_one(grpc_edge: MakeEdge) -> None:
    service = Gated()
    service.go.set()
    async with (
        asyncio.timeout(3 * WAIT_S),
        grpc_edge(service) as edge,
        grpc.aio.insecure_channel(edge.address) as channel,
    ):
        live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
        codes = await asyncio.gather(*(_code(live(b"")) for _ in range(3000)))
    assert set(codes) == {grpc.StatusCode.OK}


async def _code(call: Any) -> grpc.StatusCode:
    with contextlib.suppress(grpc.aio.AioRpcError):
        await call
    return cast(grpc.StatusCode, await call.code())


class LeftContext:
    """The library's context of a caller who left, before the library has said so."""

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def time_remaining(self) -> None:
        return None

    async def send_initial_metadata(self, pairs: object) -> None:
        raise grpc.aio.InternalError("execute_batch")

    async def abort(self, *arguments: object) -> None:
        raise grpc.aio.InternalError("execute_batch")


@pytest.mark.parametrize("model", ["fraud", "\0"])
async def test_a_caller_who_leaves_while_the_library_writes_the_answer_is_no_fault(model: str) -> None:
    service = Gated()
    service.go.set()
    async with asyncio.timeout(WAIT_S), running_edge(service, server="grpcio") as edge:
        assert isinstance(edge.server, GrpcioServer)
        message = pb.ModelInferRequest(model_name=model, model_version="x" if model == "\0" else "").SerializeToString()
        for _ in range(2):
            with pytest.raises(asyncio.CancelledError):
                await edge.server.infer(message, LeftContext())
        for method in ("ServerLive", "ModelConfig", "ModelStatistics"):
            with pytest.raises(asyncio.CancelledError):
                await edge.server.control(f"/inference.GRPCInferenceService/{method}", b"", LeftContext())
        assert edge.events.faults == 0
