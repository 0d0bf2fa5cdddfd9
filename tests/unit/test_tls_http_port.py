"""TLS on the HTTP port, over real sockets and on both event loops: handshakes, strangers, changed certificates."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import select
import socket
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import uvloop

from gateway.core.credentials import Peer
from gateway.core.errors import GatewayError, Reason
from gateway.edge import http_connection
from gateway.edge.tls_peers import TransportPeers
from gateway.policy.schema import HttpLimits
from gateway.runtime.tls import server_context
from tests.support.certificates import DAY, Authority, Pair
from tests.support.clock import ManualClock
from tests.support.waiting import until
from tests.unit.edge_clients import WAIT_S, get, infer_body, post, read_answers
from tests.unit.edge_driving import MIB, Edge, GatedService, ReceivingService, running, turns

CA = Authority()
SERVER = CA.server()
LIVE = get("/v2/health/live")
Scenario = Callable[[], Coroutine[Any, Any, None]]


def context(pair: Pair = SERVER, client_certificate: Any = "none", ca: bytes = b"") -> ssl.SSLContext:
    return server_context(pair.certificate, pair.key, ca, client_certificate, ("http/1.1",))


def on_both_loops(scenario: Scenario) -> Callable[..., None]:
    """Run it on asyncio's loop and on uvloop's."""

    async def bounded() -> None:
        async with asyncio.timeout(WAIT_S):
            await scenario()

    @pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
    def test(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(bounded())

    test.__doc__ = scenario.__doc__
    return test


class TlsClient:
    """A client connection; `raw` bytes in, plain bytes out."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, address: tuple[str, int], client: ssl.SSLContext) -> TlsClient:
        return cls(*await asyncio.open_connection(*address, ssl=client, server_hostname="localhost"))

    @property
    def tls(self) -> ssl.SSLObject:
        found = self.writer.get_extra_info("ssl_object")
        assert isinstance(found, ssl.SSLObject)
        return found

    async def ask(self, request: bytes) -> int:
        """The status of one answer."""
        self.writer.write(request)
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await self.reader.readexactly(length)
        return int(head.split(b" ", 2)[1])

    def close(self) -> None:
        self.writer.close()


def client_context(alpn: tuple[str, ...] = ("http/1.1",)) -> ssl.SSLContext:
    made = CA.client_context()
    made.set_alpn_protocols(list(alpn))
    return made


async def _calls_are_served() -> None:
    edge = Edge(ReceivingService(), tls=context)
    async with running(edge) as address:
        client = await TlsClient.connect(address, client_context())
        assert client.tls.version() == "TLSv1.3"
        assert client.tls.selected_alpn_protocol() == "http/1.1"
        assert [await client.ask(post()), await client.ask(LIVE), await client.ask(post())] == [200, 200, 200]
        both = post(x_request_id="1") + post(x_request_id="2")
        assert [await client.ask(both), await client.ask(b"")] == [200, 200], "pipelined"
        client.close()
        await until(lambda: edge.notes.closed == 1)
        assert edge.notes.faults == []


test_calls_are_served_over_tls = on_both_loops(_calls_are_served)


async def _large() -> None:
    """Bodies far beyond one TLS record, in pieces of any size, both ways."""
    values = [float(i) for i in range(400_000)]
    body = infer_body(values)
    assert len(body) > 2 * MIB
    service = ReceivingService()
    edge = Edge(service, tls=context)
    async with running(edge) as address:
        client = await TlsClient.connect(address, client_context())
        request = post(body=body)
        for start in range(0, len(request), 77_777):
            client.writer.write(request[start : start + 77_777])
            await client.writer.drain()
        assert await client.ask(b"") == 200
        client.close()


test_large_bodies_pass_whole = on_both_loops(_large)


async def _slow_reader() -> None:
    """A client that takes nothing is held back and cut off, over TLS too."""
    edge = Edge(ReceivingService(), tls=context, limits=HttpLimits(write_timeout_ms=300, pipeline_max=1000))
    async with running(edge) as address:
        client = await TlsClient.connect(address, client_context())
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(400):
            client.writer.write(get("/v2/models/fraud/config") * 100)
        await until(lambda: edge.notes.closed == 1)
        assert edge.notes.faults == ["slow_reader"]
        client.writer.transport.abort()


test_a_client_that_takes_nothing_is_cut_off = on_both_loops(_slow_reader)


async def _early_refusal() -> None:
    """The refusal reaches a client that reads it only after it has sent more: nothing resets the connection before."""
    edge = Edge(ReceivingService(), tls=context, body_bytes_max=1000)
    async with running(edge) as address:

        def client() -> bytes:
            speaker = client_context()
            speaker.maximum_version = ssl.TLSVersion.TLSv1_2  # where nothing comes after a handshake but answers
            plain = socket.create_connection(address, timeout=WAIT_S)
            with speaker.wrap_socket(plain, server_hostname="localhost") as tls:
                tls.sendall(post(body=b"x" * 500_000)[:50_000])
                for _ in range(4):
                    assert select.select([tls], [], [], WAIT_S)[0], "the answer is there, and not read"
                    tls.sendall(b"x" * 50_000)
                answer = b""
                while chunk := tls.recv(65536):
                    answer += chunk
                return answer

        answer = await asyncio.to_thread(client)
        assert read_answers(answer)[0].status == 413
        await until(lambda: edge.notes.closed == 1)


test_an_early_refusal_is_read_by_a_client_that_still_sends = on_both_loops(_early_refusal)


async def _endless_body() -> None:
    """What comes after a refusal is counted, and beyond the bound no longer read: the client is left to wait."""
    edge = Edge(ReceivingService(), tls=context, body_bytes_max=1000)
    async with running(edge) as address:

        def client() -> None:
            plain = socket.create_connection(address, timeout=WAIT_S)
            with client_context().wrap_socket(plain, server_hostname="localhost") as tls:
                tls.sendall(post(body=b"x" * 64 * MIB)[:50_000])
                with contextlib.suppress(OSError):  # the end comes as a reset, since not all was read
                    tls.sendall(b"x" * 60 * MIB)

        with mock.patch.object(http_connection, "LINGER_BYTES_MAX", 100_000):
            sending = asyncio.ensure_future(asyncio.to_thread(client))
            await until(lambda: any(each._dropped_bytes > 100_000 for each in edge.server._connections))
            (connection,) = edge.server._connections
            assert connection._reading_paused
            seen = connection._dropped_bytes
            await until(lambda: edge.notes.closed == 1)
        assert connection._dropped_bytes - seen <= MIB, "what was read already, and no more"
        await sending


test_what_comes_after_a_refusal_is_bounded = on_both_loops(_endless_body)


async def _client_leaves() -> None:
    service = GatedService()
    edge = Edge(service, tls=context)
    async with running(edge) as address:
        client = await TlsClient.connect(address, client_context())
        client.writer.write(post())
        call = await service.next()
        client.close()
        await until(lambda: call.call.abandoned)
        await until(lambda: edge.notes.closed == 1)


test_a_client_that_leaves_takes_its_call_with_it = on_both_loops(_client_leaves)


async def _plain() -> None:
    """Somebody speaks HTTP in the clear: told so in the clear. Somebody speaks nothing known: closed."""
    edge = Edge(ReceivingService(), tls=context)
    async with running(edge) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(post())
        (answer,) = read_answers(await reader.read())
        assert answer.status == 400
        assert "https" in answer.error
        writer.close()
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"\x00\x01\x02")
        assert await reader.read() == b""
        writer.close()
        assert edge.notes.faults == ["tls_plaintext", "tls_plaintext"]
        assert edge.notes.opened == 0
        assert edge.server.statistics(0.0)["handshakes"] == 0


test_plain_text_on_the_tls_port_is_answered_in_words = on_both_loops(_plain)


async def _tls_on_plain() -> None:
    edge = Edge(ReceivingService())
    async with running(edge) as address:
        with pytest.raises(ssl.SSLError):
            await TlsClient.connect(address, client_context())
        await until(lambda: edge.notes.closed == 1)
        assert edge.notes.faults == ["malformed"]
        assert edge.notes.internal == 0


test_tls_on_a_plain_port_is_a_malformed_request = on_both_loops(_tls_on_plain)


async def _slow() -> None:
    """Handshakes that do not end take places among the connections, and are ended."""
    limits = HttpLimits(connections_max=2)
    edge = Edge(ReceivingService(), tls=context, handshake_timeout_s=0.3, limits=limits, clock=ManualClock())
    async with running(edge) as address:
        silent = await asyncio.open_connection(*address)
        begun = await asyncio.open_connection(*address)
        begun[1].write(b"\x16\x03\x01\x02\x00\x01\x00")  # the first bytes of a long ClientHello
        await until(lambda: edge.server.statistics(0.0)["handshakes"] == 2)
        third = await asyncio.open_connection(*address)
        assert await third[0].read() == b"", "closed at once"
        assert edge.notes.refused == 1
        edge.advance(0.2)
        await turns()
        assert edge.server.statistics(0.0)["handshakes"] == 2
        edge.advance(0.2)
        assert await silent[0].read() == b""
        assert await begun[0].read() == b""
        assert edge.notes.faults == ["tls_slow", "tls_slow"]
        client = await TlsClient.connect(address, client_context())
        assert await client.ask(LIVE) == 200, "there is room again"
        for _, writer in (silent, begun, third):
            writer.close()
        client.close()


test_slow_handshakes_count_as_connections_and_end = on_both_loops(_slow)


async def _drain() -> None:
    edge = Edge(ReceivingService(), tls=context)
    async with running(edge) as address:
        reader, writer = await asyncio.open_connection(*address)
        idle = await TlsClient.connect(address, client_context())
        await until(lambda: edge.server.statistics(0.0)["handshakes"] == 1)
        edge.server.begin_drain()
        assert await edge.server.wait_closed(5.0)
        assert edge.server.statistics(0.0)["handshakes"] == 0
        assert await idle.reader.read() == b""
        writer.close()
        idle.close()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)


test_an_orderly_end_waits_for_no_handshake = on_both_loops(_drain)


async def _rotation() -> None:
    """New handshakes get the new certificate, while what is open lives on; calls fail at no time."""
    second = CA.server()
    current = [context()]
    edge = Edge(ReceivingService(), tls=lambda: current[0])
    async with running(edge) as address:
        old = await TlsClient.connect(address, client_context())
        current[0] = context(second)
        new = await TlsClient.connect(address, client_context())
        for client, pair in ((old, SERVER), (new, second)):
            shown = client.tls.getpeercert(True)
            assert shown == ssl.PEM_cert_to_DER_cert(pair.certificate.decode())
            assert await client.ask(post()) == 200
            client.close()


test_a_changed_certificate_is_for_new_connections = on_both_loops(_rotation)


async def _versions() -> None:
    edge = Edge(ReceivingService(), tls=context)
    async with running(edge) as address:
        for least, most, good in (
            (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2, True),
            (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1, False),
        ):
            client = client_context(alpn=("h2",))
            client.set_ciphers("ALL:@SECLEVEL=0")
            client.minimum_version, client.maximum_version = least, most
            if good:
                connection = await TlsClient.connect(address, client)
                assert connection.tls.version() == "TLSv1.2"
                assert connection.tls.selected_alpn_protocol() is None, "HTTP/2 is not spoken here"
                assert await connection.ask(LIVE) == 200
                connection.close()
            else:
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    await TlsClient.connect(address, client)
        assert edge.notes.faults == ["tls_handshake"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_nothing_older_than_tls_1_2_is_spoken(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_versions())


class Whoever:
    """An `Authenticator` that remembers who came."""

    def __init__(self) -> None:
        self.peers: list[Peer] = []

    def identify(self, credentials: Any) -> Any:
        self.peers.append(credentials.peer)
        raise GatewayError(Reason.UNAUTHENTICATED, "nobody is known here")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A client certificate with names of every kind."""
    pair = CA.pair("shop", uris=("spiffe://cluster/ns/shop",), dns=("shop.example.com",))
    return pair.write(tmp_path_factory.mktemp("client"), "shop")


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("asked", ["optional", "required"])
def test_client_certificates_are_verified_and_told(
    asked: str, shop: tuple[Path, Path], factory: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    stranger = Authority("Stranger").pair("shop").write(tmp_path, "stranger")
    expired = CA.pair("shop", lasts=-DAY).write(tmp_path, "expired")

    async def scenario() -> None:
        door = Whoever()
        edge = Edge(
            ReceivingService(),
            authenticator=door,
            tls=lambda: context(SERVER, asked, CA.certificate),
            peers=TransportPeers(addresses=True, certificates=True),
        )
        async with asyncio.timeout(WAIT_S), running(edge) as address:
            client = await TlsClient.connect(address, CA.client_context(shop))
            assert await client.ask(get("/v2/models/fraud")) == 401
            assert door.peers[0].address == "127.0.0.1"
            certificate = door.peers[0].certificate
            assert certificate is not None
            assert certificate.uris == ("spiffe://cluster/ns/shop",)
            assert certificate.dns == ("shop.example.com",)
            assert certificate.common_name == "shop"
            assert certificate.not_after_s > 1e9
            client.close()
            for pair in (stranger, expired):
                with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                    await (await TlsClient.connect(address, CA.client_context(pair))).ask(get("/v2/models/fraud"))
            if asked == "required":
                with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                    await (await TlsClient.connect(address, CA.client_context())).ask(get("/v2/models/fraud"))
            else:
                anonymous = await TlsClient.connect(address, CA.client_context())
                assert await anonymous.ask(get("/v2/models/fraud")) == 401
                assert door.peers[1] == Peer("127.0.0.1", None)
                anonymous.close()
            assert set(edge.notes.faults) == {"tls_handshake"}

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(scenario())


async def test_rubbish_in_place_of_a_record_ends_the_connection_quietly() -> None:
    edge = Edge(ReceivingService(), tls=context)
    async with asyncio.timeout(WAIT_S), running(edge) as address:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = CA.client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
        reader, writer = await asyncio.open_connection(*address)
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await reader.read(65536))
        writer.write(outgoing.read() + b"\x17\x03\x03\x00\x20" + hashlib.sha256(b"rubbish").digest())
        while await reader.read(65536):  # tickets and an alert, then the end
            pass
        await until(lambda: edge.notes.closed == 1)
        assert edge.notes.faults == ["tls_record"]
        assert edge.notes.internal == 0
        writer.close()


async def test_bytes_one_by_one_make_the_same_handshake() -> None:
    edge = Edge(ReceivingService(), tls=context)
    async with asyncio.timeout(WAIT_S), running(edge) as address:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = CA.client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
        reader, writer = await asyncio.open_connection(*address)
        sock: socket.socket = writer.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        async def dribble() -> None:
            for byte in outgoing.read():
                writer.write(bytes((byte,)))
                await asyncio.sleep(0)

        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await dribble()
                incoming.write(await reader.read(65536))
        tls.write(LIVE)
        await dribble()
        answer = b""
        while b"\r\n\r\n" not in answer:
            try:
                answer += tls.read(65536)
            except ssl.SSLWantReadError:
                incoming.write(await reader.read(65536))
        assert answer.startswith(b"HTTP/1.1 200 ")
        writer.close()
