"""FH-03: an early refusal must not leave the unread body on a kept-open connection.

Over real sockets, for each way a request may be refused early: unknown model, wrong key, shed, too large, and a refusal
that comes while the body is withheld. The body is itself the bytes of a request; it must never be run as one.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.reply import Reply
from gateway.policy.schema import HttpLimits
from tests.unit.edge_clients import WAIT_S, Client, get, infer_body, post, read_answers, talk
from tests.unit.edge_driving import MIB, Edge, ReceivingService, running

HIDDEN = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
"""41 bytes that are a body and look like a request."""
TRUE_NEXT = get("/v2/health/ready", Connection="close")

assert len(HIDDEN) == 41


class Refusing:
    """Refuses every call from its headers; never asks for a body."""

    def __init__(self, reason: Reason) -> None:
        self.reason = reason
        self.calls: list[Call] = []

    async def send(self, call: Call) -> Reply:
        self.calls.append(call)
        raise GatewayError(self.reason, "refused early")


REASONS = [Reason.UNKNOWN_MODEL, Reason.UNAUTHENTICATED, Reason.FORBIDDEN, Reason.QUEUE_FULL, Reason.NO_REPLICA]


@pytest.mark.parametrize("reason", REASONS, ids=lambda reason: reason.label)
async def test_a_the_body_of_a_refused_request_is_never_run_as_a_request(reason: Reason) -> None:
    service = Refusing(reason)
    edge = Edge(service)
    async with running(edge) as address:
        answers = await talk(address, post("/v2/models/absent/infer", body=HIDDEN) + TRUE_NEXT)
    assert len(answers) == 2
    assert answers[0].headers["x-sluice-reason"] == reason.label
    assert answers[1].status == 200
    assert len(service.calls) == 1
    assert [route for route, _ in edge.notes.requests] == ["/v2/health/ready"]


async def test_a_the_same_when_the_body_comes_after_the_refusal() -> None:
    edge = Edge(Refusing(Reason.QUEUE_FULL))
    async with running(edge) as address:
        client = await Client.connect(address)
        client.send(post(body=HIDDEN)[: -len(HIDDEN)])
        assert (await client.answer()).status == 503
        client.send(HIDDEN[:20])
        client.send(HIDDEN[20:] + TRUE_NEXT)
        assert (await client.answer()).status == 200
        assert await client.ended()
        await client.close()
    assert [route for route, _ in edge.notes.requests] == ["/v2/health/ready"]


@pytest.mark.parametrize(
    "target", ["/v2/models/m/generate", "/v2/nowhere", "/v2/models/a%00b/infer", "/v2/health/live"]
)
async def test_a_the_same_for_what_never_becomes_a_call(target: str) -> None:
    edge = Edge(ReceivingService())
    async with running(edge) as address:
        answers = await talk(address, post(target, body=HIDDEN) + TRUE_NEXT)
    assert len(answers) == 2
    assert answers[0].status in {400, 404, 405, 501}
    assert answers[1].status == 200


async def test_b_over_the_size_limit_the_connection_ends_after_one_answer() -> None:
    edge = Edge(ReceivingService(), body_bytes_max=1000)
    async with running(edge) as address:
        body = HIDDEN * 5000
        answers = await talk(address, post(body=body) + TRUE_NEXT)
    assert [answer.status for answer in answers] == [413]
    assert answers[0].headers["connection"] == "close"
    assert edge.notes.requests == []


async def test_b_a_little_over_the_size_limit_the_rest_is_dropped_and_the_connection_kept() -> None:
    edge = Edge(ReceivingService(), body_bytes_max=40)
    async with running(edge) as address:
        answers = await talk(address, post(body=HIDDEN) + TRUE_NEXT)
    assert [answer.status for answer in answers] == [413, 200]


async def expecting(edge: Edge, then: Callable[[Client], Awaitable[None]]) -> bytes:
    """A request with Expect whose body is held back; the bytes that come, to the end of the connection."""
    async with running(edge) as address, asyncio.timeout(WAIT_S):
        client = await Client.connect(address)
        client.send(post(body=HIDDEN, Expect="100-continue")[: -len(HIDDEN)])
        await then(client)
        got = await client.reader.read()
        await client.close()
        return got


async def test_c_a_refusal_is_final_at_once_though_the_body_is_withheld() -> None:
    async def wait(client: Client) -> None:
        return None

    got = await expecting(Edge(Refusing(Reason.UNKNOWN_MODEL)), wait)
    (answer,) = read_answers(got)
    assert answer.status == 404
    assert answer.headers["connection"] == "close"
    assert b"100 Continue" not in got


async def test_d_a_body_that_is_sent_anyway_after_a_final_status_is_not_run() -> None:
    async def send_anyway(client: Client) -> None:
        await client.reader.readexactly(1)
        client.send(HIDDEN + TRUE_NEXT)

    edge = Edge(Refusing(Reason.UNKNOWN_MODEL))
    got = b"H" + await expecting(edge, send_anyway)
    assert len(read_answers(got)) == 1
    assert edge.notes.requests == []


async def test_d_a_body_sent_at_once_with_expect_is_a_body() -> None:
    edge = Edge(Refusing(Reason.UNKNOWN_MODEL))
    async with running(edge) as address:
        answers = await talk(address, post(body=HIDDEN, Expect="100-continue") + TRUE_NEXT)
    assert [answer.status for answer in answers] in ([404], [404, 200])
    assert len(edge.notes.requests) == len(answers) - 1


async def test_d_a_wanted_body_is_granted_and_taken() -> None:
    edge = Edge(ReceivingService())
    async with running(edge) as address:
        client = await Client.connect(address)
        whole = post(Expect="100-continue")
        body = infer_body()
        client.send(whole[: -len(body)])
        async with asyncio.timeout(WAIT_S):
            assert await client.reader.readexactly(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(body)
        assert (await client.answer()).status == 200
        await client.close()


async def test_e_a_refused_chunked_body_ends_the_connection() -> None:
    edge = Edge(Refusing(Reason.UNKNOWN_MODEL))
    chunked = b"29\r\n" + HIDDEN + b"\r\n0\r\n\r\n"
    async with running(edge) as address:
        client = await Client.connect(address)
        client.send(post(body=b"", Transfer_Encoding="chunked"))
        answer = await client.answer()
        assert answer.status == 404
        assert answer.headers["connection"] == "close"
        client.send(chunked + TRUE_NEXT)
        assert await client.ended()
        await client.close()
    assert edge.notes.requests == []


async def test_e_a_chunked_body_that_came_whole_is_a_body() -> None:
    edge = Edge(Refusing(Reason.UNKNOWN_MODEL))
    chunked = b"29\r\n" + HIDDEN + b"\r\n0\r\n\r\n"
    async with running(edge) as address:
        answers = await talk(address, post(body=chunked, Transfer_Encoding="chunked") + TRUE_NEXT)
    assert [answer.status for answer in answers] == [404, 200]


async def test_f_an_unknown_expectation_is_417_and_the_connection_ends() -> None:
    edge = Edge(ReceivingService())
    async with running(edge) as address:
        answers = await talk(address, post(body=HIDDEN, Expect="teapot") + TRUE_NEXT)
    assert [answer.status for answer in answers] == [417]
    assert answers[0].headers["connection"] == "close"


async def test_g_two_framings_are_400_and_the_connection_ends() -> None:
    edge = Edge(ReceivingService())
    for first, second in (("Content_Length", "Transfer_Encoding"), ("Transfer_Encoding", "Content_Length")):
        headers = {first: "", second: ""} | {"Content_Length": "41", "Transfer_Encoding": "chunked"}
        async with running(Edge(ReceivingService())) as address:
            answers = await talk(address, post(body=b"0\r\n\r\n" + HIDDEN, **headers) + TRUE_NEXT)
        assert [answer.status for answer in answers] == [400]
        assert answers[0].headers["connection"] == "close"
        assert answers[0].error
    assert edge.notes.requests == []


async def test_a_withheld_body_holds_no_memory_and_ends_by_its_own_time_out() -> None:
    edge = Edge(ReceivingService(), limits=HttpLimits(body_idle_timeout_ms=100))
    async with running(edge) as address:
        client = await Client.connect(address)
        client.send(post(body=HIDDEN)[: -len(HIDDEN)])
        answer = await client.answer()
        assert answer.status == 408
        assert answer.headers["x-sluice-reason"] == "slow_body"
        assert await client.ended()
        await client.close()


async def _sent_whole_before_reading(address: tuple[str, int], body_bytes: int) -> bytes:
    """What a client sees that sends all of its request before it reads. Raises if nobody takes what it sends."""

    def client() -> bytes:
        answer = bytearray()
        with socket.create_connection(address, timeout=WAIT_S) as plain:
            plain.sendall(post(body=bytes(body_bytes), Inference_Header_Content_Length="100"))
            while chunk := plain.recv(65536):
                answer += chunk
        return bytes(answer)

    return await asyncio.to_thread(client)


@pytest.mark.parametrize("mib", [1, 20, 60])
async def test_a_client_that_sends_all_of_a_refused_body_before_it_reads_gets_the_refusal(mib: int) -> None:
    edge = Edge(ReceivingService(), body_bytes_max=1000)
    async with running(edge) as address:
        answer = await _sent_whole_before_reading(address, mib * MIB)
    (refusal,) = read_answers(answer)
    assert refusal.status == 413
    assert refusal.headers["connection"] == "close"


async def test_a_refused_body_that_is_short_leaves_the_connection_open_at_once() -> None:
    edge = Edge(ReceivingService(), body_bytes_max=1000)
    async with running(edge) as address:
        answers = await talk(address, post(body=bytes(60_000)) + TRUE_NEXT)
    assert [answer.status for answer in answers] == [413, 200]
    assert "connection" not in answers[0].headers
