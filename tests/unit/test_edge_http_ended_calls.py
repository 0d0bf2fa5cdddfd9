"""Calls that have ended while their body still comes and their answer waits for its turn."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.reply import Reply
from tests.unit.edge_clients import infer_response, post
from tests.unit.edge_driving import Edge, turns
from tests.unit.test_edge_http_large import binary_body

PIECE = 65_536


class TwoCalls:
    """`a` is answered when told; all others are refused, at once or when told, with their body asked for before."""

    def __init__(self, wants_body: bool) -> None:
        self.answer = asyncio.Event()
        self.refuse = asyncio.Event()
        self._wants_body = wants_body

    async def send(self, call: Call) -> Reply:
        assert call.receive is not None
        if call.request_id == "a":
            await call.receive()
            await self.answer.wait()
            return Reply(infer_response())
        if self._wants_body:
            receiving = asyncio.ensure_future(call.receive())
            await self.refuse.wait()
            receiving.cancel()
            await asyncio.wait((receiving,))
        raise GatewayError(Reason.QUEUE_FULL, "no room")


@pytest.mark.parametrize("wants_body", [False, True])
@pytest.mark.parametrize("size", [100_000, 4 * 1024 * 1024])
@pytest.mark.parametrize("holds_up", ["an earlier call", "the client"])
async def test_what_still_comes_of_the_body_takes_no_memory(wants_body: bool, size: int, holds_up: str) -> None:
    service = TwoCalls(wants_body)
    edge = Edge(service)
    client = edge.connect()
    if holds_up == "an earlier call":
        client.feed(post(x_request_id="a"))
        await turns(3)
    else:
        client.protocol.pause_writing()
    body, length = binary_body(bytes(size))
    request = post(body=body, x_request_id="b", inference_header_content_length=length)
    at = len(request) - len(body) + 50_000
    client.feed(request[:at])
    await turns(3)
    service.refuse.set()
    await turns(5)
    while at < len(request):
        client.feed(request[at : at + PIECE])
        at += PIECE
    await turns(3)
    service.answer.set()
    client.protocol.resume_writing()
    await turns(20)
    assert client.statuses == ([200, 503] if holds_up == "an earlier call" else [503])
    assert edge.budget.used_bytes == 0
    client.reset()
    await turns(5)


@pytest.mark.parametrize("target", ["/v2/models/fraud/infer", "/v2/models/fraud/generate"])
async def test_a_call_whose_end_cannot_be_counted_is_over_all_the_same(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands among the port's tasks is waited for when it closes: for ever, and without letting anything else
    run, if that is a task that has ended."""
    edge = Edge(TwoCalls(False))

    def full(protocol: str, route: str, status: str) -> None:
        raise OSError("no room to count")

    monkeypatch.setattr(edge.notes, "request_without_call", full)
    client = edge.connect()
    client.feed(post(target))
    (task,) = edge.server.kit.tasks
    client.leave()
    with pytest.raises(OSError, match="no room to count"):
        await task
    assert not edge.server.kit.tasks
