"""TLS on the gRPC port: certificates that change, peers, addresses."""

from __future__ import annotations

import asyncio
import functools
import random
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

import grpc
import grpc.aio
import msgspec
import pytest

from gateway.core.call import ANONYMOUS, Identity
from gateway.core.credentials import Credentials, Peer
from gateway.core.reply import Reply
from gateway.decide.bytebudget import ByteBudget
from gateway.edge.explain import Explainer
from gateway.edge.grpc_kit import GrpcKit
from gateway.edge.grpc_servers import grpc_server
from gateway.edge.grpcio_tls import address_of
from gateway.edge.headers import HeaderReader
from gateway.edge.tls_files import GRPC_ALPN, HTTP_ALPN, PortTls
from gateway.policy.schema import GrpcLimits
from gateway.policy.tls_files import TlsMaterial
from gateway.policy.tls_schema import ServerTls
from gateway.runtime.clock import SystemClock
from gateway.runtime.tls import server_context
from gateway.runtime.wheel import TimerWheel
from tests.support.certificates import Authority, Pair
from tests.support.grpc_edge import ANSWER, SERVERS, SERVICE, Events, OneModel
from tests.support.service import ScriptedService

CA = Authority()
WAIT_S = 20.0


def material(pair: Pair, ca: bytes = CA.certificate) -> TlsMaterial:
    return TlsMaterial(pair.certificate, pair.key, ca)


class Whoever:
    """Takes everybody, and remembers their peers."""

    def __init__(self) -> None:
        self.peers: list[Peer] = []

    def identify(self, credentials: Credentials) -> Identity:
        self.peers.append(credentials.peer)
        return ANONYMOUS


class Port(Protocol):
    """A port with TLS, on either server."""

    def __call__(
        self,
        source: Callable[[], TlsMaterial],
        door: Whoever,
        *,
        client_certificate: str = "none",
        handshake_timeout_ms: int = 20_000,
    ) -> AbstractAsyncContextManager[str]: ...


@pytest.fixture(params=SERVERS)
def port(request: pytest.FixtureRequest) -> Port:
    return functools.partial(running_port, kind=request.param)


@asynccontextmanager
async def running_port(
    source: Callable[[], TlsMaterial],
    door: Whoever,
    *,
    kind: str,
    client_certificate: str = "none",
    handshake_timeout_ms: int = 20_000,
) -> AsyncIterator[str]:
    clock, events = SystemClock(), Events()
    wheel = TimerWheel(clock)
    kit = GrpcKit(
        service=ScriptedService(lambda call: Reply(ANSWER)),
        catalogue=OneModel(),  # type: ignore[arg-type,unused-ignore]
        authenticator=door,
        reader=HeaderReader(("*",), random.Random(1)),
        explainer=Explainer(1),
        budget=ByteBudget(1 << 20),
        observer=events,
        limits=msgspec.convert({"server": kind}, GrpcLimits),
        receive_bytes_max=1 << 20,
        chance=random.Random(2),
        clock=clock,
    )
    policy = msgspec.convert(
        {
            "certificate_file": "c",
            "key_file": "k",
            "client_certificate": client_certificate,
            "handshake_timeout_ms": handshake_timeout_ms,
        },
        ServerTls,
    )

    def files() -> PortTls:
        made = source()
        contexts = (
            server_context(made.certificate, made.key, made.ca, policy.client_certificate, protocols)
            for protocols in (HTTP_ALPN, GRPC_ALPN)
        )
        return PortTls(made, *contexts)

    server = grpc_server(kit, wheel=wheel, tls=policy, files=files, peers={"addresses": True, "certificates": True})
    address = await server.start("127.0.0.1:0")
    try:
        async with asyncio.timeout(WAIT_S):
            yield address.replace("127.0.0.1", "localhost")
    finally:
        await server.aclose()
        wheel.close()


async def ask(address: str, pair: Pair | None = None) -> Any:
    credentials = grpc.ssl_channel_credentials(
        CA.certificate, None if pair is None else pair.key, None if pair is None else pair.certificate
    )
    options = (("grpc.use_local_subchannel_pool", 1),)
    async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
        return await channel.unary_unary(SERVICE + "ServerMetadata")(b"", timeout=10)


async def serial(address: str) -> bytes:
    """The certificate that somebody new is shown."""
    context = CA.client_context()
    context.set_alpn_protocols(["h2"])
    host, _, number = address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(number), ssl=context)
    tls = writer.get_extra_info("ssl_object")
    assert tls.selected_alpn_protocol() == "h2"
    shown: bytes = tls.getpeercert(True)
    writer.close()
    return shown


def der(pair: Pair) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pair.certificate.decode())


async def test_new_connections_get_the_new_certificate_and_old_ones_live_on(port: Port) -> None:
    first, second = CA.server(), CA.server()
    current = [material(first)]
    async with port(lambda: current[0], Whoever()) as address:
        credentials = grpc.ssl_channel_credentials(CA.certificate)
        async with grpc.aio.secure_channel(address, credentials) as channel:
            method = channel.unary_unary(SERVICE + "ServerMetadata")
            assert await method(b"", timeout=10)
            assert await serial(address) == der(first)
            current[0] = material(second)
            assert [await serial(address), await serial(address)] == [der(second), der(second)]
            assert await method(b"", timeout=10)
            assert channel.get_state() is grpc.ChannelConnectivity.READY


async def test_the_peer_and_its_certificate_are_told(port: Port) -> None:
    server, shop = CA.server(), CA.pair("", uris=("spiffe://cluster/ns/shop",))
    door = Whoever()
    async with port(lambda: material(server), door, client_certificate="required") as address:
        for _ in range(2):
            assert await ask(address, shop)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ask(address)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert [peer.address in ("127.0.0.1", "::1") for peer in door.peers] == [True, True]
    certificates = [peer.certificate for peer in door.peers]
    assert certificates[0] is not None
    assert certificates[0].uris == ("spiffe://cluster/ns/shop",)
    assert certificates[1] is certificates[0], "it was read once"


async def test_where_no_certificate_is_asked_for_none_is_told(port: Port) -> None:
    server = CA.server()
    door = Whoever()
    async with port(lambda: material(server), door) as address:
        assert await ask(address, CA.pair("shop"))
    assert door.peers[0].certificate is None


async def test_a_handshake_that_does_not_begin_is_ended(port: Port) -> None:
    server = CA.server()
    async with port(lambda: material(server), Whoever(), handshake_timeout_ms=500) as address:
        host, _, number = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(number))
        assert await reader.read() == b""
        writer.close()


async def answer_to(address: str, said: bytes, context: ssl.SSLContext | None = None) -> bytes:
    """Everything that the port says to who begins so."""
    host, _, number = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(number), ssl=context)
    writer.write(said)
    answer = await reader.read()
    writer.close()
    return answer


async def test_plain_text_on_a_port_that_speaks_tls_is_told_so() -> None:
    server = CA.server()
    async with running_port(lambda: material(server), Whoever(), kind="http2") as address:
        for said in (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
            answer = await answer_to(address, said)
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert b"TLS" in answer
        async with grpc.aio.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),)) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channel.unary_unary(SERVICE + "ServerLive")(b"", timeout=10)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_http1_inside_tls_is_told_where_it_is() -> None:
    server = CA.server()
    context = CA.client_context()
    context.set_alpn_protocols(["http/1.1"])
    async with running_port(lambda: material(server), Whoever(), kind="http2") as address:
        answer = await answer_to(address, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", context)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"gRPC" in answer


async def test_our_own_server_asks_for_a_certificate_without_insisting() -> None:
    server, shop, stranger = CA.server(), CA.pair("shop"), Authority("Other").pair("shop")
    door = Whoever()
    async with running_port(lambda: material(server), door, kind="http2", client_certificate="optional") as address:
        assert await ask(address)
        assert await ask(address, shop)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ask(address, stranger)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    nobody, known = (peer.certificate for peer in door.peers)
    assert nobody is None
    assert known is not None
    assert known.common_name == "shop"


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.7:55000", "10.0.0.7"),
        ("ipv6:%5B::1%5D:55000", "::1"),
        ("ipv6:[2001:db8::1]:1", "2001:db8::1"),
        ("ipv6:%5Bfe80::1%25eth0%5D:1", "fe80::1%eth0"),
        ("unix:/tmp/socket", ""),
        ("", ""),
        ("uds:x", ""),
    ],
)
def test_the_library_s_peers_are_read(peer: str, address: str) -> None:
    assert address_of(peer) == address
