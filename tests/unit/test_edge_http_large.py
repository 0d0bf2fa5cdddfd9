"""Large bodies and answers over HTTP: what is JSON is worked on in steps, what is binary is passed on as it is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator

import pytest

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply
from gateway.edge.http_call import HttpCall
from gateway.edge.http_steps import in_steps
from gateway.wire.kserve.http_request import ALL_JSON, decode_http_infer
from gateway.wire.kserve.http_response import encode_http_infer
from tests.support.clock import ManualClock
from tests.unit.edge_clients import infer_body, infer_response, post, read_answers
from tests.unit.edge_driving import Edge, GatedService, MemoryTransport, ReceivingService, running, turns

LARGE = infer_body([float(number) + 0.25 for number in range(100_000)])
LARGE_TURNS = 80


def binary_body(tensor: bytes) -> tuple[bytes, str]:
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "x",
                    "datatype": "UINT8",
                    "shape": [len(tensor)],
                    "parameters": {"binary_data_size": len(tensor)},
                }
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    return head + tensor, str(len(head))


async def test_while_a_large_body_is_decoded_others_are_served() -> None:
    service = ReceivingService()
    edge = Edge(service)
    large, small = edge.connect(), edge.connect()
    large.feed(post(body=LARGE))
    await turns(2)
    small.feed(post())
    await turns(4)
    assert small.statuses == [200]
    assert large.statuses == []
    await turns(LARGE_TURNS)
    assert large.statuses == [200]
    assert service.calls[0].message == decode_http_infer(LARGE).message
    edge.nothing_is_left()


async def test_while_a_large_answer_is_written_others_are_served_and_it_is_the_same_answer() -> None:
    message = infer_response(elements=1_000_000)
    edge = Edge(ReceivingService(lambda call: Reply(message if call.request_id == "large" else infer_response())))
    large, small = edge.connect(), edge.connect()
    large.feed(post(x_request_id="large") + post(x_request_id="behind"))
    await turns(2)
    small.feed(post())
    await turns(4)
    assert small.statuses == [200]
    assert large.statuses == []
    await turns(LARGE_TURNS)
    answers = read_answers(bytes(large.sent))
    assert [answer.headers["x-request-id"] for answer in answers] == ["large", "behind"]
    assert answers[0].body == encode_http_infer(message, ALL_JSON, "").body
    edge.nothing_is_left()


async def test_a_client_that_leaves_while_its_body_is_decoded_ends_the_call() -> None:
    edge = Edge(ReceivingService())
    transport = edge.connect()
    transport.feed(post(body=LARGE))
    await turns(3)
    assert edge.budget.used_bytes == len(LARGE)
    transport.reset()
    await turns()
    edge.nothing_is_left()


async def test_a_client_that_leaves_while_its_answer_is_written_ends_the_call() -> None:
    service = GatedService()
    edge = Edge(service)
    transport = edge.connect()
    transport.feed(post())
    (await service.next()).answer(infer_response(elements=500_000))
    await turns(3)
    transport.reset()
    await turns()
    assert service.outcomes == [Outcome.ABANDONED]
    assert not transport.sent
    edge.nothing_is_left()


async def test_a_deadline_that_passes_while_the_answer_is_written_is_a_504() -> None:
    clock = ManualClock()
    service = GatedService()
    edge = Edge(service, clock=clock)
    transport = edge.connect()
    transport.feed(post())
    gated = await service.next()
    gated.call.deadline_s = clock.now_s() + 1.0
    gated.answer(infer_response(elements=500_000))
    await turns(3)
    clock.advance(2.0)
    await turns(2)
    assert transport.statuses == [504]
    assert service.outcomes == [Outcome.EXPIRED]
    edge.nothing_is_left()


async def test_a_body_that_was_decoded_is_not_kept() -> None:
    service = GatedService()
    edge = Edge(service)
    transport = edge.connect()
    transport.feed(post(body=infer_body([1.0] * 9000)))
    gated = await service.next()
    (call,) = transport.protocol._open
    assert isinstance(call, HttpCall)
    assert call._pieces == []
    gated.answer()
    await turns()
    edge.nothing_is_left()


async def test_what_is_wrong_at_the_end_of_a_large_body_is_told() -> None:
    edge = Edge(ReceivingService())
    transport = edge.connect()
    transport.feed(post(body=LARGE.replace(b"99999.25", b'"99999.25"')))
    await turns(LARGE_TURNS)
    (answer,) = read_answers(bytes(transport.sent))
    assert answer.status == 400
    assert b"element 99999" in answer.body
    edge.nothing_is_left()


@pytest.mark.parametrize("read_bytes", [100, 70_000, 1 << 20])
async def test_a_binary_tensor_is_the_same_in_whatever_pieces_it_comes(read_bytes: int) -> None:
    tensor = bytes(range(256)) * 1200
    body, length = binary_body(tensor)
    calls: list[Call] = []

    def answer(call: Call) -> Reply:
        calls.append(call)
        return Reply(infer_response(elements=75_000))

    edge = Edge(ReceivingService(answer))
    transport = edge.connect()
    request = post(body=body, Inference_Header_Content_Length=length)
    for at in range(0, len(request), read_bytes):
        transport.feed(request[at : at + read_bytes])
        await turns(1)
    await turns()
    assert transport.statuses == [200]
    assert calls[0].message == decode_http_infer(body, int(length)).message
    assert read_answers(bytes(transport.sent))[0].body.endswith(bytes(300_000))
    edge.nothing_is_left()


async def test_a_large_answer_in_pieces_arrives_whole_over_a_socket() -> None:
    message = infer_response(elements=400_000)
    edge = Edge(ReceivingService(lambda call: Reply(message)))
    async with running(edge) as (host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(post() + post(Connection="close"))
        sent = await reader.read()
        writer.close()
    answers = read_answers(sent)
    assert [answer.status for answer in answers] == [200, 200]
    assert answers[0].body == answers[1].body == encode_http_infer(message, ALL_JSON, "").body


async def test_steps_end_with_their_value_or_with_what_the_check_says() -> None:
    def steps() -> Generator[None, None, str]:
        yield
        yield
        return "done"

    turned: list[int] = []
    asyncio.get_running_loop().call_soon(turned.append, 1)
    assert await in_steps(steps()) == "done"
    assert turned == [1]

    def check() -> None:
        raise GatewayError(Reason.DEADLINE, "too late")

    with pytest.raises(GatewayError, match="too late"):
        await in_steps(steps(), check)


def received(edge: Edge, transport: MemoryTransport, data: bytes) -> int:
    """Give the connection what an event loop would receive, where it wants it; how many bytes were received straight to
    their place. The buffer is held on to meanwhile, as event loops do.
    """
    protocol, shared, to_place = transport.protocol, edge.server.read_buffer, 0
    while data:
        buffer = protocol.get_buffer(-1)
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        protocol.buffer_updated(size)
        to_place += size if buffer.obj is not shared.obj else 0
        data = data[size:]
    return to_place


TENSOR = bytes(range(256)) * 16_384
"""4 MiB."""


async def test_a_large_binary_body_is_received_to_its_place_and_the_next_request_behind_it_is_another() -> None:
    service = ReceivingService()
    edge = Edge(service)
    transport = edge.connect()
    body, length = binary_body(TENSOR)
    transport.feed(post(body=body, Inference_Header_Content_Length=length)[: -len(body)])
    await turns(3)
    assert received(edge, transport, body + post()) > 0.9 * len(body)
    await turns(4)
    assert transport.statuses == [200, 200]
    assert service.calls[0].message == decode_http_infer(body, int(length)).message
    edge.nothing_is_left()


async def test_a_client_that_leaves_in_the_middle_of_such_a_body_leaves_nothing_behind() -> None:
    edge = Edge(ReceivingService())
    transport = edge.connect()
    body, length = binary_body(TENSOR)
    transport.feed(post(body=body, Inference_Header_Content_Length=length)[: -len(body)])
    await turns(3)
    assert received(edge, transport, body[: len(body) // 2])
    assert edge.budget.used_bytes >= len(body)
    transport.reset()
    await turns(4)
    edge.nothing_is_left()


async def test_what_is_wrong_with_such_a_request_is_said_when_its_body_is_there() -> None:
    service = ReceivingService()
    edge = Edge(service)
    transport = edge.connect()
    body, length = binary_body(TENSOR)
    body = body.replace(b"UINT8", b"UINT9", 1)
    transport.feed(post(body=body, Inference_Header_Content_Length=length)[: -len(body)])
    await turns(3)
    received(edge, transport, body[:-1])
    await turns(4)
    assert transport.statuses == []
    received(edge, transport, body[-1:] + post())
    await turns(4)
    assert transport.statuses == [400, 200]
    edge.nothing_is_left()
