"""Our own gRPC server: a large message is received straight to its place, whatever becomes of it."""

from __future__ import annotations

import pytest

from gateway.edge.grpc_port import FRAME_BYTES_MAX
from tests.support.grpc_edge import ANSWER
from tests.support.service import ScriptedService
from tests.unit.edge_driving import turns
from tests.unit.grpc_driving import (
    DATA,
    END_STREAM,
    INFER,
    Bench,
    HandClient,
    frame,
    head_block,
    infer_message,
    prefixed,
)
from tests.unit.grpc_port_kit import answering, ended

MESSAGE = infer_message(size=4 << 20)
FIRST = 300_000


def received(client: HandClient, data: bytes) -> int:
    """Give the connection what an event loop would receive, where it wants it; how many bytes were received straight to
    their place. The buffer is held on to meanwhile, as event loops do.
    """
    connection, shared, to_place = client.connection, client.connection.port.read_buffer, 0
    while data:
        buffer = connection.get_buffer(-1)
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        connection.buffer_updated(size)
        to_place += size if buffer.obj is not shared.obj else 0
        data = data[size:]
    return to_place


def large_frames(payload: bytes) -> bytes:
    starts = range(0, len(payload), FRAME_BYTES_MAX)
    return b"".join(
        frame(DATA, END_STREAM if at == starts[-1] else 0, 1, payload[at : at + FRAME_BYTES_MAX]) for at in starts
    )


async def opened(bench: Bench, head: bytes | None = None) -> HandClient:
    client = bench.connect()
    client.greet()
    client.open(1, head)
    client.say(1, prefixed(MESSAGE)[:FIRST][:16_384])
    await turns()
    return client


async def test_a_large_message_is_received_to_its_place_and_the_next_call_behind_it_is_another() -> None:
    service = ScriptedService()
    bench = Bench(service, memory_bytes=16 << 20)
    client = await opened(bench)
    assert received(client, large_frames(prefixed(MESSAGE)[16_384:])) > 0.85 * len(MESSAGE)
    client.call(3, infer_message())
    await turns()
    for wanted in (MESSAGE, infer_message()):
        arrival = service.arrivals.get_nowait()
        assert arrival.call.message == wanted
        arrival.answer(ANSWER)
    assert await ended(client) == [(1, "0"), (3, "0")]
    await bench.nothing_is_left()


@pytest.mark.parametrize("end", ["resets the stream", "closes the connection", "the time is over"])
async def test_one_that_ends_in_the_middle_of_a_frame_leaves_no_memory_behind(end: str) -> None:
    bench = Bench(answering(), memory_bytes=16 << 20)
    head = head_block(INFER, (b"grpc-timeout", b"50m")) if end == "the time is over" else None
    client = await opened(bench, head)
    data = large_frames(prefixed(MESSAGE)[16_384:])
    half = len(data) // 2
    assert received(client, data[:half]) > 0
    assert bench.budget.used_bytes >= len(MESSAGE)
    if end == "closes the connection":
        client.leave()
    elif end == "the time is over":
        bench.advance(0.1)
        assert await ended(client) == [(1, "4")]
        assert received(client, data[half:]) == 0, "the rest is dropped"
        client.call(3, infer_message())
        assert await ended(client) == [(3, "0")]
    else:
        boundary = -(-half // (FRAME_BYTES_MAX + 9)) * (FRAME_BYTES_MAX + 9)
        received(client, data[half:boundary])
        client.reset(1)
    assert bench.budget.used_bytes == 0
    await bench.nothing_is_left()
