"""What a test of idle connections concludes, its connections, and that a lost connection frees its memory at once."""

from __future__ import annotations

import asyncio
import gc
import json
import resource
from dataclasses import replace

import pytest

from gateway.edge.http_connection import HttpConnection
from gateway.runtime.descriptors import raise_descriptor_limit
from load.connections import Block, Cycle, IdleConnections, document, summary
from load.errors import LoadError
from load.opening import opening
from load.stand import allow_files
from tests.support.ports import free_port
from tests.unit.edge_clients import LIVE
from tests.unit.edge_driving import Edge, ReceivingService
from tests.unit.test_load_soak import IDLE

COUNT = 1000
BLOCK = Block(calls=300, errors=0, p50_ms=1.0, p99_ms=2.0)
GOOD = Cycle(
    before=IDLE,
    during=replace(IDLE, rss_bytes=IDLE.rss_bytes + 5_000_000, descriptors=1030, connections=COUNT),
    after=IDLE,
    alone=BLOCK,
    beside=replace(BLOCK, p50_ms=1.02),
    opened=COUNT,
    still_open=COUNT,
    seconds_to_open=0.5,
)


def _verdict(cycle: Cycle, pairs: int = 5, rss_mb_max: float = 400.0) -> str:
    result = document(COUNT, [cycle] * pairs, rss_mb_max)
    assert json.loads(json.dumps(result)) == result
    assert f"verdict: {result['verdict']}" in summary(result)
    return str(result["verdict"])


def test_connections_that_cost_little_and_that_nobody_feels_pass() -> None:
    assert _verdict(GOOD) == "pass"
    assert document(COUNT, [GOOD] * 5, 400.0)["figures"]["kb_per_connection"] == 5.0


def test_fewer_than_five_pairs_leave_the_latency_open() -> None:
    assert _verdict(GOOD, pairs=4) == "inconclusive"
    told = summary(document(COUNT, [GOOD] * 4, 400.0))
    assert "with over without (measured 1.02, limit 1.1): 4 pairs have it; 5 are needed" in told


@pytest.mark.parametrize(
    "bad",
    [
        replace(GOOD, opened=COUNT - 1),
        replace(GOOD, still_open=COUNT - 1),
        replace(GOOD, beside=replace(BLOCK, errors=1)),
        replace(GOOD, beside=replace(BLOCK, p50_ms=1.3)),
        replace(GOOD, during=replace(IDLE, rss_bytes=401_000_000)),
        replace(GOOD, after=replace(IDLE, connections=1)),
        replace(GOOD, after=replace(IDLE, descriptors=IDLE.descriptors + 6)),
        replace(GOOD, after=replace(IDLE, tasks=IDLE.tasks + 4)),
    ],
)
def test_each_thing_that_may_go_wrong_fails(bad: Cycle) -> None:
    assert _verdict(bad) == "fail"


async def test_idle_connections_make_one_request_each_and_see_when_they_are_closed() -> None:
    async with asyncio.timeout(20):
        heads: list[bytes] = []
        writers: list[asyncio.StreamWriter] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            writers.append(writer)
            status = b"503 Service Unavailable" if len(writers) == 3 else b"200 OK"
            writer.write(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\n\r\n")

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        idle = IdleConnections(f"127.0.0.1:{port}", 5, "127.0.0.3")
        assert await idle.open() == 4
        assert {head.split(b"\r\n")[0] for head in heads} == {b"GET /v2/health/live HTTP/1.1"}
        assert {writer.get_extra_info("peername")[0] for writer in writers} == {"127.0.0.3"}
        assert idle.still_open() == 5
        writers[0].close()
        while idle.still_open() == 5:
            await asyncio.sleep(0.01)
        assert idle.still_open() == 4
        idle.close()
        for writer in writers:
            writer.close()
        server.close()


async def test_no_listener_is_an_error_that_names_it() -> None:
    async with asyncio.timeout(20):
        address = f"127.0.0.1:{free_port()}"
        with pytest.raises(LoadError, match=address):
            await IdleConnections(address, 3, "127.0.0.3").open()


def test_too_few_files_are_an_error_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 4096))
    with pytest.raises(LoadError, match=r"hard limit is 4096.*ulimit -Hn 10300.*LimitNOFILE"):
        allow_files(10_300)
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: asked.append(limits))
    allow_files(3000)
    allow_files(1000)
    assert asked == [(4096, 4096)]


def test_the_gateway_takes_all_the_descriptors_that_it_may_have() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
    try:
        assert raise_descriptor_limit() == before[1]
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def _alive() -> int:
    return sum(type(each) is HttpConnection for each in gc.get_objects())


async def test_a_lost_connection_is_freed_without_the_collector_of_cycles() -> None:
    """10,000 clients that come and go would else be 30 MB until the collector's oldest generation is looked at."""
    edge = Edge(ReceivingService())
    gc.collect()
    before = _alive()
    gc.disable()
    try:
        for _ in range(5):
            client = edge.connect()
            client.feed(LIVE)
            assert client.statuses == [200]
            client.reset()
            del client
        assert _alive() == before
    finally:
        gc.enable()


def test_a_grpc_opening_is_answered_well_only_by_a_server_that_says_that_it_lives() -> None:
    good = opening("grpc", "127.0.0.1:1").good
    head = b"\x00\x00\x01\x01\x04\x00\x00\x00\x01\x88"
    live = b"\x00\x00\x07\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x02\x08\x01"
    end = b"\x00\x00\x01\x01\x05\x00\x00\x00\x01\x88"
    whole = head + live + end
    assert [good(whole[:stop]) for stop in range(len(whole))] == [None] * len(whole)
    assert good(whole) is True
    assert good(head + end) is False, "a status without a message"
    assert good(head + live.replace(b"\x08\x01", b"\x08\x00") + end) is False
