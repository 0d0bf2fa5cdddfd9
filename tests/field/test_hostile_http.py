"""Hostile clients over real sockets: a clear 4xx or a closed connection, no 500, nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.core.reply import Reply
from gateway.edge.http_connection import TURN_EVENTS_MAX
from gateway.policy.schema import HttpLimits
from tests.unit.edge_clients import LIVE, WAIT_S, Client, get, infer_body, infer_response, post, read_answers, talk
from tests.unit.edge_driving import Edge, GatedService, ReceivingService, running, turns

POST = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\n"
MALFORMED = {
    "garbage": b"\x00\x01\x02\x03\r\n\r\n",
    "tls": bytes.fromhex("16030100") + b"\x01" * 40,
    "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no host": b"GET /v2 HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /v2 HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "bad version": b"GET /v2 HTTP/3.7\r\nHost: a\r\n\r\n",
    "space before colon": b"GET /v2 HTTP/1.1\r\nHost : a\r\n\r\n",
    "folded": b"GET /v2 HTTP/1.1\r\nHost: a\r\nX: 1\r\n 2\r\n\r\n",
    "bare lf": b"GET /v2 HTTP/1.1\nHost: a\n\n",
    "nul in value": b"GET /v2 HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n",
    "signed length": POST + b"Content-Length: +5\r\n\r\nhello",
    "negative length": POST + b"Content-Length: -5\r\n\r\nhello",
    "two lengths": POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "equal lengths": POST + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "length list": POST + b"Content-Length: 5, 5\r\n\r\nhello",
    "hex length": POST + b"Content-Length: 0x5\r\n\r\nhello",
    "huge length": POST + b"Content-Length: " + b"9" * 400 + b"\r\n\r\n",
    "length and chunked": POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "gzip chunked": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked twice": POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "xchunked": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked 1.0": b"POST /v2/models/m/infer HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "connect": b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n",
    "long target": b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    "long header": b"GET /v2 HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 40_000 + b"\r\n\r\n",
    "many headers": b"GET /v2 HTTP/1.1\r\nHost: a\r\n" + b"X: 1\r\n" * 500 + b"\r\n",
}
BAD_CHUNKS = {
    "no size": b"\r\nhello\r\n0\r\n\r\n",
    "negative": b"-5\r\nhello\r\n0\r\n\r\n",
    "not hex": b"xyz\r\nhello\r\n0\r\n\r\n",
    "huge": b"ffffffffffffffffff\r\nhello",
    "lying": b"3\r\nhello\r\n0\r\n\r\n",
    "bare lf": b"5\nhello\n0\n\n",
    "space": b"5 \r\nhello\r\n0\r\n\r\n",
    "extensions": b"5;" + b"a" * 5000 + b"\r\nhello\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_a_malformed_request_is_one_clear_refusal_and_the_end(name: str) -> None:
    edge = Edge(ReceivingService())
    async with running(edge) as address:
        answers = await talk(address, MALFORMED[name] + LIVE)
    assert len(answers) == 1
    assert 400 <= answers[0].status < 600
    assert answers[0].status != 500
    assert answers[0].headers["connection"] == "close"
    assert answers[0].error
    assert ("/v2/health/live", "200") not in edge.notes.requests


@pytest.mark.parametrize("name", BAD_CHUNKS)
async def test_a_malformed_chunk_ends_the_call_in_4xx_and_the_connection(name: str) -> None:
    service = ReceivingService()
    edge = Edge(service)
    async with running(edge) as address:
        answers = await talk(address, post(body=BAD_CHUNKS[name] + LIVE, Transfer_Encoding="chunked"))
    assert len(answers) == 1
    assert answers[0].status in {400, 413, 431}
    assert answers[0].headers["connection"] == "close"
    assert service.outcomes == []
    assert edge.notes.internal == 0


async def test_a_truncated_request_is_abandoned_wherever_it_is_cut() -> None:
    service = ReceivingService()
    edge = Edge(service)
    whole = post()
    async with running(edge) as address:
        for cut in range(1, len(whole), 7):
            assert await talk(address, whole[:cut], finish=True) == []
    assert service.outcomes == []
    assert all(call.abandoned for call in service.calls)


async def test_a_lying_length_reads_no_more_than_it_says() -> None:
    edge = Edge(ReceivingService())
    async with running(edge) as address:
        short = await talk(
            address, post(body=infer_body() + b"GET /v2 HTTP/1.1", Content_Length=str(len(infer_body()))) + b"\r\n\r\n"
        )
        assert [answer.status for answer in short] == [200, 400]


async def test_slow_senders_are_cut_off_while_others_are_served() -> None:
    limits = HttpLimits(header_timeout_ms=1000, body_idle_timeout_ms=1000)
    edge = Edge(ReceivingService(), limits=limits)
    async with running(edge) as address:
        slow = [await Client.connect(address) for _ in range(20)]
        for client in slow:
            client.send(b"POST /v2/models/fraud/infer HT")
        good = await Client.connect(address)
        for _ in range(20):
            good.send(post())
            assert (await good.answer()).status == 200
        for client in slow:
            assert await client.ended()
            await client.close()
        good.send(LIVE)
        assert (await good.answer()).status == 200
        await good.close()
    assert edge.notes.faults.count("slow_head") == 20


async def test_a_head_sent_drop_by_drop_does_not_live_for_ever() -> None:
    edge = Edge(ReceivingService(), limits=HttpLimits(header_timeout_ms=300))
    async with running(edge) as address, asyncio.timeout(WAIT_S):
        client = await Client.connect(address)
        dripping = True
        while dripping:
            client.send(b"X")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    dripping = await client.reader.read(1) != b""
        await client.close()
    assert edge.notes.faults == ["slow_head"]


async def test_a_slow_reader_of_a_big_answer_is_cut_off_and_holds_nothing_up() -> None:
    big = infer_response(elements=8_000_000)
    service = GatedService()
    edge = Edge(service, limits=HttpLimits(write_timeout_ms=300))
    async with running(edge) as address:
        reader = socket.create_connection(address)
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.sendall(post(body=infer_body(parameters={"binary_data_output": True})))
        (await service.next()).answer(big)
        other = await Client.connect(address)
        other.send(post())
        (await service.next()).answer()
        assert (await other.answer()).status == 200
        async with asyncio.timeout(WAIT_S):
            while "slow_reader" not in edge.notes.faults:
                await asyncio.sleep(0.01)
        reader.close()
        await other.close()


async def test_a_big_answer_arrives_whole_at_a_reader_who_takes_its_time() -> None:
    service = ReceivingService()
    edge = Edge(service)
    async with running(edge) as address, asyncio.timeout(WAIT_S):
        service.then = lambda call: Reply(infer_response(elements=1_000_000))
        reader, writer = await asyncio.open_connection(*address, limit=4096)
        writer.write(post(body=infer_body(parameters={"binary_data_output": True}), Connection="close"))
        got = bytearray()
        while piece := await reader.read(50_000):
            got += piece
            await asyncio.sleep(0)
        writer.close()
    (answer,) = read_answers(bytes(got))
    assert len(answer.body) == int(answer.headers["inference-header-content-length"]) + 4_000_000


async def test_a_pipelining_flood_is_answered_in_order_and_bounded() -> None:
    edge = Edge(ReceivingService(), limits=HttpLimits(pipeline_max=4))
    count = 3000
    async with running(edge) as address:
        client = await Client.connect(address)

        async def flood() -> None:
            for number in range(count):
                client.send(post(x_request_id=str(number)))
                await client.writer.drain()

        sender = asyncio.create_task(flood())
        for number in range(count):
            assert (await client.answer()).headers["x-request-id"] == str(number)
        await sender
        await client.close()


async def test_a_flood_of_requests_that_need_no_call_leaves_others_their_turn() -> None:
    edge = Edge(ReceivingService())
    flood = get("/v2/models/fraud/config") * 3000
    async with running(edge) as address:
        laps = 0

        async def lap() -> None:
            nonlocal laps
            while True:
                laps += 1
                await asyncio.sleep(0)

        watch = asyncio.create_task(lap())
        answers = await talk(address, flood, finish=True)
        watch.cancel()
    assert [answer.status for answer in answers] == [200] * 3000
    assert laps > 3000 / TURN_EVENTS_MAX
    assert edge.notes.internal == 0


def open_files() -> int:
    return len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0


async def test_a_thousand_connections_leave_no_file_task_timer_or_byte() -> None:
    service = GatedService()
    edge = Edge(service)
    async with running(edge) as address:
        await talk(address, get("/v2", Connection="close"))
        await asyncio.sleep(0.01)
        files, tasks = open_files(), len(asyncio.all_tasks())
        for round_ in range(10):
            clients = [await Client.connect(address) for _ in range(100)]
            for number, client in enumerate(clients):
                client.send((LIVE, post(), post()[:-3], b"GET /v2", b"", post() * 3, b"\x00")[number % 7])
            while not service.arrived.empty():
                gated = service.arrived.get_nowait()
                if round_ % 2:
                    gated.answer()
            await turns(3)
            for client in clients:
                await client.close()
        async with asyncio.timeout(WAIT_S):
            while edge.server.statistics(0.0)["connections"] or edge.server.statistics(0.0)["calls"]:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        assert open_files() <= files
        assert len(asyncio.all_tasks()) <= tasks
        assert edge.budget.used_bytes == 0
        assert len(edge.wheel) == 0
    assert edge.notes.opened == edge.notes.closed == 1001
    assert edge.notes.internal == 0


async def test_connections_over_the_limit_are_turned_away_and_the_others_served() -> None:
    edge = Edge(ReceivingService(), limits=HttpLimits(connections_max=5))
    async with running(edge) as address:
        kept = [await Client.connect(address) for _ in range(5)]
        for client in kept:
            client.send(LIVE)
            assert (await client.answer()).status == 200
        over = await Client.connect(address)
        assert await over.ended()
        await over.close()
        for client in kept:
            client.send(post())
            assert (await client.answer()).status == 200
            await client.close()
    assert edge.notes.refused == 1


def requests() -> st.SearchStrategy[bytes]:
    """Bytes that are nearly requests: whole ones with pieces cut out, doubled, replaced."""
    wholes = st.sampled_from(
        [
            LIVE,
            post(),
            post(Expect="100-continue"),
            post(body=b"5\r\nhello\r\n0\r\n\r\n", Transfer_Encoding="chunked"),
            post(body=infer_body([1e300, -1.5])),
            get("/v2/models/fraud/config"),
            *MALFORMED.values(),
        ]
    )

    @st.composite
    def bent(draw: st.DrawFn) -> bytes:
        data = bytearray(b"".join(draw(st.lists(wholes, min_size=1, max_size=3))))
        for _ in range(draw(st.integers(0, 4))):
            at = draw(st.integers(0, max(0, len(data) - 1)))
            stop = at + draw(st.integers(0, 6))
            data[at:stop] = draw(st.binary(max_size=6))
        return bytes(data)

    return bent()


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=requests(), cuts=st.lists(st.integers(1, 400), max_size=6))
def test_no_bytes_bring_a_500_a_crash_or_a_leak(data: bytes, cuts: list[int]) -> None:
    async def scenario() -> None:
        edge = Edge(ReceivingService())
        client = edge.connect()
        rest = data
        for cut in [*cuts, len(data)]:
            client.feed(rest[:cut])
            rest = rest[cut:]
            await turns(2)
        await turns()
        if b"HEAD " in data:  # its answer has a length and no body: there is no telling where the next one begins
            assert b"HTTP/1.1 500 " not in client.sent
        else:
            assert all(answer.status != 500 for answer in read_answers(bytes(client.sent)))
        client.reset()
        await turns()
        assert edge.notes.internal == 0
        edge.nothing_is_left()
        assert edge.server.statistics(0.0)["connections"] == 0
        edge.wheel.close()

    asyncio.run(scenario())
