"""Answers that clients do not take are held within the memory for bodies, and those over it are cut off."""

from __future__ import annotations

import asyncio
import socket

from tritonclient.grpc import service_pb2

from gateway.core.call import Call
from gateway.core.reply import Reply
from gateway.decide.bytebudget import ByteBudget
from tests.unit.edge_clients import post
from tests.unit.edge_driving import MIB, Edge

ANSWER_BYTES = 8 * MIB


class LargeAnswers:
    """Answers each call with 8 MiB of bytes."""

    async def send(self, call: Call) -> Reply:
        if call.message is None:
            assert call.receive is not None
            await call.receive()
        answer = service_pb2.ModelInferResponse(model_name=call.model, model_version="1")
        answer.outputs.add(name="y", datatype="UINT8", shape=[ANSWER_BYTES])
        answer.raw_output_contents.append(bytes(ANSWER_BYTES))
        return Reply(answer.SerializeToString())


BODY = b'{"parameters":{"binary_data_output":true},"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1.0]}]}'


async def _reader(host: str, port: int) -> socket.socket:
    """A connection that has asked and reads nothing; its own buffers are small."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, (host, port))
    await loop.sock_sendall(sock, post(body=BODY))
    return sock


async def _rest(sock: socket.socket) -> int:
    """Bytes until the end, however it comes."""
    loop, total = asyncio.get_running_loop(), 0
    try:
        while data := await loop.sock_recv(sock, 1 << 20):
            total += len(data)
            if total > ANSWER_BYTES:
                break
    except ConnectionResetError:
        return total
    return total


async def test_what_slow_readers_leave_is_counted_and_given_back() -> None:
    edge = Edge(LargeAnswers(), memory_bytes=64 * MIB)
    host, _, port = (await edge.server.start("127.0.0.1:0")).rpartition(":")
    async with asyncio.timeout(20):
        sock = await _reader(host, int(port))
        while edge.budget.used_bytes < 4 * MIB:
            await asyncio.sleep(0.005)
        assert await _rest(sock) > ANSWER_BYTES
        sock.close()
        while edge.budget.used_bytes:
            await asyncio.sleep(0.005)
    edge.server.begin_drain()
    await edge.server.wait_closed(5)
    edge.wheel.close()


async def test_over_the_memory_slow_readers_are_cut_off_and_quick_ones_are_served() -> None:
    edge = Edge(LargeAnswers(), memory_bytes=20 * MIB)
    assert isinstance(edge.budget, ByteBudget)
    host, _, port = (await edge.server.start("127.0.0.1:0")).rpartition(":")
    async with asyncio.timeout(30):
        slow = [await _reader(host, int(port)) for _ in range(6)]
        while not edge.notes.faults.count("slow_reader"):
            await asyncio.sleep(0.005)
        assert edge.budget.used_bytes <= 20 * MIB
        taken = [await _rest(sock) for sock in slow]
        assert any(count > ANSWER_BYTES for count in taken), "those within the memory get their answers whole"
        assert any(count < ANSWER_BYTES for count in taken), (
            "the others see the end of the connection, never a full 200"
        )
        for sock in slow:
            sock.close()
        while edge.budget.used_bytes:
            await asyncio.sleep(0.005)
        quick = await _reader(host, int(port))
        assert await _rest(quick) > ANSWER_BYTES
        quick.close()
    edge.server.begin_drain()
    await edge.server.wait_closed(5)
    edge.wheel.close()
