"""FH-15, the clients' side: pings of common clients, during a long silent call and on idle connections, end nothing.

On a clock that the test moves. What floods of pings come to: `tests/unit/test_http2_floods.py`.
"""

from __future__ import annotations

import pytest

from gateway.core.reply import Reply
from tests.support.grpc_edge import ANSWER
from tests.support.service import ScriptedService
from tests.unit.edge_driving import turns
from tests.unit.grpc_driving import ACK, GOAWAY, HEADERS, PING, STREAM_INFER, Bench, frame, head_block, infer_message

SILENT_S = 90
MESSAGE = infer_message()


def ping(number: int) -> bytes:
    return frame(PING, 0, 0, number.to_bytes(8, "big"))


@pytest.mark.parametrize("every_s", [10, 20, 30])
async def test_1_a_call_that_is_silent_for_long_outlives_its_clients_pings(every_s: int) -> None:
    service = ScriptedService()
    bench = Bench(service)
    client = bench.connect()
    client.greet()
    client.call(1, MESSAGE)
    client.open(3, head_block(STREAM_INFER))
    await turns()
    client.frames()
    for number in range(SILENT_S // every_s):
        bench.advance(every_s)
        client.feed(ping(number))
        await turns()
        answered = [got for got in client.frames(PING, GOAWAY) if got.kind == GOAWAY or got.flags & ACK]
        assert [(got.kind, got.payload) for got in answered] == [(PING, number.to_bytes(8, "big"))]
    service.arrivals.get_nowait().answer(ANSWER)
    await turns()
    assert [got.fields.get("grpc-status") for got in client.frames(HEADERS) if got.stream == 1] == [None, "0"]
    assert not client.ended()
    assert bench.events.broken == []
    await bench.nothing_is_left()


async def test_2_idle_clients_may_ping_too_and_their_next_call_is_served() -> None:
    bench = Bench(ScriptedService(lambda call: Reply(ANSWER)))
    clients = [bench.connect() for _ in range(50)]
    for client in clients:
        client.greet()
    await turns()
    for number in range(12):
        bench.advance(15)
        for client in clients:
            client.feed(ping(number))
        await turns()
    for client in clients:
        assert client.frames(GOAWAY) == []
        client.call(1, MESSAGE)
    await turns()
    for client in clients:
        assert [got.fields.get("grpc-status") for got in client.frames(HEADERS)] == [None, "0"]
    await bench.nothing_is_left()
