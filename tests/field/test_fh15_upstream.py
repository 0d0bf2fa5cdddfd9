"""FH-15: what a replica does to a connection must not end the calls on it, nor may a dead one hold them.

The gateway's HTTP/2 client over real sockets, against a peer that sends GOAWAY or falls silent on command. Intervals
and pauses in the client's own time: `tests/unit/test_fleet_http2_connecting.py`.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.core.codes import Code
from gateway.core.faces import Endpoints
from gateway.core.faults import UpstreamFault
from gateway.fleet.http2_channel import Http2Options
from gateway.fleet.http2_client import Http2Connector, Http2ReplicaClient
from gateway.runtime.clock import SystemClock
from tests.support.waiting import until
from tests.unit.fleet_peer import GOAWAY, Peer, listening

NO_ERROR, ENHANCE_YOUR_CALM = 0, 11
CALL_S = 60.0
LIMIT_S = 20.0


@asynccontextmanager
async def client_of(port: int, options: Http2Options | None = None) -> AsyncIterator[Http2ReplicaClient]:
    connector = Http2Connector(options or Http2Options(), SystemClock(), random.Random(15))
    client = connector.connect(Endpoints(f"127.0.0.1:{port}", "127.0.0.1:1"))
    try:
        async with asyncio.timeout(LIMIT_S):
            yield client
    finally:
        await client.aclose()


def leave(peer: Peer, last: int, code: int = NO_ERROR, text: bytes = b"") -> None:
    peer.frame(GOAWAY, 0, 0, struct.pack(">II", last, code) + text)


class Holding:
    """Holds the calls of the first connection, answers those of the others at once."""

    def __init__(self) -> None:
        self.held: list[tuple[Peer, int]] = []
        self.first: Peer | None = None

    async def __call__(self, peer: Peer, stream: int) -> None:
        self.first = self.first or peer
        if peer is self.first:
            self.held.append((peer, stream))
        else:
            peer.answer(stream, b"new")


async def test_3_calls_below_the_last_stream_run_on_and_new_ones_use_a_new_connection() -> None:
    holding = Holding()
    async with listening(holding) as listener, client_of(listener.port) as client:
        calls = [asyncio.ensure_future(client.infer(b"x", (), CALL_S)) for _ in range(3)]
        await until(lambda: len(holding.held) == 3)
        peer, last = holding.held[-1]
        leave(peer, last)
        await until(lambda: client.statistics(0.0)["goaways"] == 1)
        assert [await client.infer(b"x", (), CALL_S) for _ in range(5)] == [b"new"] * 5
        assert not any(call.done() for call in calls)
        for on, stream in holding.held:
            on.answer(stream, b"old")
        assert await asyncio.gather(*calls) == [b"old"] * 3
        assert len(listener.peers) == 2
        figures = client.statistics(0.0)
        assert (figures["connects"], figures["goaways"], figures["moved"]) == (2, 1, 0)


async def test_3_calls_above_the_last_stream_move_and_are_no_faults() -> None:
    holding = Holding()
    async with listening(holding) as listener, client_of(listener.port) as client:
        calls = [asyncio.ensure_future(client.infer(b"x", (), CALL_S)) for _ in range(3)]
        await until(lambda: len(holding.held) == 3)
        (peer, first), *_ = holding.held
        leave(peer, first)
        assert await asyncio.gather(*calls[1:]) == [b"new"] * 2
        peer.answer(first, b"old")
        assert await calls[0] == b"old"
        figures = client.statistics(0.0)
        assert (len(listener.peers), figures["goaways"], figures["moved"]) == (2, 1, 2)


async def test_4_each_complaint_about_pings_is_counted_and_doubles_the_interval() -> None:
    async def answer(peer: Peer, stream: int) -> None:
        peer.answer(stream, b"ok")

    async with listening(answer) as listener, client_of(listener.port) as client:
        for complaint in (1, 2, 3):
            assert await client.infer(b"x", (), CALL_S) == b"ok"
            leave(listener.peers[-1], 2**31 - 1, ENHANCE_YOUR_CALM, b"too_many_pings")

            def told(count: int = complaint) -> bool:
                return bool(client.statistics(0.0)["ping_complaints"] == count)

            await until(told)
            assert client.statistics(0.0)["keepalive_s"] == 30.0 * 2**complaint
            assert len(listener.peers) <= complaint + 1, "no more than one new connection for a complaint"


async def test_5_a_peer_that_falls_silent_ends_its_calls_long_before_their_deadline() -> None:
    taken: list[int] = []

    async def silent(peer: Peer, stream: int) -> None:
        taken.append(stream)
        await asyncio.Event().wait()  # reads nothing more: no ping is answered

    options = Http2Options(keepalive_ms=1000, keepalive_timeout_ms=1000)
    async with listening(silent) as listener, client_of(listener.port, options) as client:
        calls = (client.infer(b"x", (), CALL_S) for _ in range(10))
        ended = await asyncio.gather(*calls, return_exceptions=True)
        for fault in ended:
            assert isinstance(fault, UpstreamFault)
            assert (fault.code, fault.from_peer, fault.sent) == (Code.UNAVAILABLE, False, True)
        assert len(taken) == 1
