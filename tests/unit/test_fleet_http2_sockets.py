"""Our own HTTP/2 on real sockets, on both event loops: what in-memory connections cannot show."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from gateway.core.codes import Code
from gateway.core.faces import Endpoints
from gateway.core.faults import UpstreamFault
from gateway.fleet.http2_channel import Http2Options
from gateway.fleet.http2_client import Http2Connector, Http2ReplicaClient
from gateway.fleet.http2_dial import UNACKNOWLEDGED_MS, dial
from gateway.fleet.tls import PoolTls
from gateway.policy.tls_schema import UpstreamTls
from gateway.runtime.clock import SystemClock
from gateway.runtime.files import SystemFiles
from gateway.runtime.workers import InlineWorkers
from tests.support.certificates import Authority
from tests.support.ports import free_port
from tests.support.waiting import until
from tests.unit.http2_world import ReplicaInMemory, ServerConnection, ServerStream

MIB = 1024 * 1024
LIMIT_S = 60
Main = Callable[[Http2ReplicaClient, ReplicaInMemory], Coroutine[Any, Any, None]]
Run = Callable[[Coroutine[Any, Any, None]], None]

on_both_loops = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


class Served:
    """A replica on a real port, and a client of it."""

    def __init__(self, host: str = "127.0.0.1", tls: tuple[PoolTls, ssl.SSLContext] | None = None) -> None:
        self.host = host
        self.replica = ReplicaInMemory()
        self._tls = tls

    def _connection(self) -> ServerConnection:
        connection = ServerConnection(self.replica)
        self.replica.connections.append(connection)
        return connection

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Http2ReplicaClient]:
        loop = asyncio.get_running_loop()
        pool, context = self._tls or (None, None)
        server = await loop.create_server(self._connection, self.host, 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        target = f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"
        # A second for an attempt to connect, as the gateway has it, is what a busy machine may lose at once.
        made = Http2Connector(Http2Options(connect_timeout_ms=LIMIT_S * 1000), SystemClock(), random.Random(1), pool)
        client = made.connect(Endpoints(target, "127.0.0.1:1"))
        try:
            async with asyncio.timeout(LIMIT_S):
                yield client
        finally:
            await client.aclose()
            server.close()
            await until(lambda: not self.replica.open)


def serve(run: Run, main: Main, served: Served | None = None) -> None:
    async def body() -> None:
        each = served or Served()
        async with each.client() as client:
            await main(client, each.replica)
        assert len(asyncio.all_tasks()) == 1, "a task was left"

    run(body())


@on_both_loops
def test_small_and_large_calls_side_by_side_are_answered_each_with_its_own(run: Run) -> None:
    async def main(client: Http2ReplicaClient, replica: ReplicaInMemory) -> None:
        async def call(number: int) -> None:
            size = (10, 1000, 40_000, 300_000, 5 * MIB)[number % 5]
            message = random.Random(number).randbytes(size)
            assert await client.infer(message, (), LIMIT_S) == message

        await asyncio.gather(*(call(number) for number in range(100)))
        assert len(replica.open) == 2

    serve(run, main)


@on_both_loops
def test_over_tls_too(run: Run, tmp_path: Path) -> None:
    authority = Authority()
    authority.write(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.server().write(tmp_path))
    context.set_alpn_protocols(["h2"])
    workers = InlineWorkers()
    pool = PoolTls(
        "gpu",
        UpstreamTls(ca_file="ca.pem"),
        lambda name: str(tmp_path / name),
        files=SystemFiles(workers),
        workers=workers,
        clock=SystemClock(),
        changed=lambda: None,
    )

    async def main(client: Http2ReplicaClient, replica: ReplicaInMemory) -> None:
        messages = [random.Random(number).randbytes(size) for number, size in enumerate((10, 100_000, 3 * MIB) * 5)]
        answers = await asyncio.gather(*(client.infer(message, (), LIMIT_S) for message in messages))
        assert answers == messages
        assert replica.streams[0].fields[b":scheme"] == b"https"

    asyncio.run(pool.watched.load())
    serve(run, main, Served(tls=(pool, context)))


@on_both_loops
def test_a_killed_connection_fails_what_is_out_and_the_next_call_is_answered(run: Run) -> None:
    async def main(client: Http2ReplicaClient, replica: ReplicaInMemory) -> None:
        good = replica.on_end
        for _ in range(5):
            replica.streams.clear()
            replica.on_end = lambda stream: None
            calls = [asyncio.ensure_future(client.infer(b"x", (), LIMIT_S)) for _ in range(10)]
            await until(lambda: len(replica.streams) == 10)
            replica.open[0].abort()
            for fault in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(fault, UpstreamFault)
                assert (fault.code, fault.from_peer, fault.sent) == (Code.UNAVAILABLE, False, True)
            replica.on_end = good
            assert await client.infer(b"again", (), LIMIT_S) == b"again"

    serve(run, main)


@on_both_loops
def test_calls_that_come_and_are_cancelled_at_any_moment_leave_nothing(run: Run) -> None:
    async def main(client: Http2ReplicaClient, replica: ReplicaInMemory) -> None:
        chance = random.Random(7)

        async def caller(number: int) -> None:
            for step in range(30):
                message = b"%d/%d" % (number, step) + bytes(chance.choice((0, 0, 0, 100_000, 600_000)))
                task = asyncio.ensure_future(client.infer(message, (), LIMIT_S))
                if chance.random() < 0.5:
                    await asyncio.sleep(chance.random() * 0.003)
                    task.cancel()
                    await asyncio.wait((task,))
                if not task.cancelled():
                    assert await task == message

        await asyncio.gather(*(caller(number) for number in range(20)))
        await until(lambda: all(connection.codec.streams_open == 0 for connection in replica.open))
        for channel in (client._links.main, client._links.bulk):
            assert not channel._waiting
            assert all(not link.codec.streams_open for link in channel._links)

    serve(run, main)


@on_both_loops
def test_a_replica_that_stops_reading_costs_a_bounded_buffer_and_gets_the_rest_later(run: Run) -> None:
    async def main(client: Http2ReplicaClient, replica: ReplicaInMemory) -> None:
        await client.infer(bytes(MIB), (), LIMIT_S)
        (link,) = client._links.bulk._links
        (connection,) = (each for each in replica.open if replica.streams[0].connection is each)
        assert connection.transport is not None
        connection.transport.pause_reading()
        calls = [asyncio.ensure_future(client.infer(bytes(12 * MIB), (), LIMIT_S)) for _ in range(3)]
        await until(lambda: link._paused)
        await asyncio.sleep(0.2)
        assert link._transport is not None
        assert link._transport.get_write_buffer_size() <= 2 * MIB
        assert await client.infer(b"small", (), LIMIT_S) == b"small"
        connection.transport.resume_reading()
        assert await asyncio.gather(*calls) == [bytes(12 * MIB)] * 3

    serve(run, main)


@on_both_loops
def test_the_kernel_watches_over_the_connection(run: Run) -> None:
    async def main(client: Http2ReplicaClient, replica: ReplicaInMemory) -> None:
        await client.infer(b"x", (), LIMIT_S)
        (link,) = client._links.main._links
        assert link._transport is not None
        with socket.socket(fileno=socket.dup(link._transport.get_extra_info("socket").fileno())) as sock:
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == UNACKNOWLEDGED_MS
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    serve(run, main)


@on_both_loops
def test_a_name_is_looked_up(run: Run) -> None:
    async def main(client: Http2ReplicaClient, replica: ReplicaInMemory) -> None:
        assert await client.infer(b"x", (), LIMIT_S) == b"x"

    serve(run, main, Served("localhost"))


@on_both_loops
@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_an_address_of_either_family_is_dialled(run: Run, address: str) -> None:
    async def main() -> None:
        with pytest.raises(OSError) as caught:
            await dial(address, free_port(), None, asyncio.Protocol)
        assert not isinstance(caught.value, socket.gaierror), "the machine may have no IPv6, but knows what it is"

    run(main())


@on_both_loops
def test_a_stream_of_many_large_messages_both_ways(run: Run) -> None:
    async def main(client: Http2ReplicaClient, replica: ReplicaInMemory) -> None:
        def head(stream: ServerStream) -> None:
            stream.head()

        replica.on_call = head
        replica.on_message = lambda stream, message: stream.send(message)
        replica.on_end = lambda stream: stream.end()
        stream = client.open_stream((), LIMIT_S)
        for number in range(20):
            stream.write(bytes([number]) * (2 * MIB))
        stream.half_close()
        for number in range(20):
            assert await stream.read() == bytes([number]) * (2 * MIB)
        assert await stream.read() is None

    serve(run, main)
