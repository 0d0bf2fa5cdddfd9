"""TLS to replicas on real sockets, the same over either transport."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from gateway.core.codes import Code
from gateway.core.faces import Endpoints, ReplicaClient
from gateway.core.faults import UpstreamFault
from gateway.fleet.http2_client import Http2ReplicaClient
from gateway.fleet.tls import PoolTls
from gateway.policy.tls_schema import UpstreamTls
from gateway.runtime.clock import SystemClock
from gateway.runtime.files import SystemFiles
from gateway.runtime.workers import InlineWorkers
from tests.support.certificates import Authority, Pair
from tests.support.replica_clients import TRANSPORTS, connector_of

LIMIT_S = 60
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


class Keys:
    """What one end of TLS needs, in files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    async def tls(self, **policy: str) -> PoolTls:
        workers = InlineWorkers()
        made = PoolTls(
            "gpu",
            UpstreamTls(**policy),  # type: ignore[arg-type]
            lambda name: str(self.directory / name),
            files=SystemFiles(workers),
            workers=workers,
            clock=SystemClock(),
            changed=lambda: None,
        )
        await made.watched.load()
        return made


@pytest.fixture
def keys(authority: Authority, tmp_path: Path) -> Keys:
    authority.write(tmp_path)
    authority.pair("gateway").write(tmp_path, "gateway")
    return Keys(tmp_path)


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def serving(pair: Pair, client_ca: bytes | None = None, seen: list[Any] | None = None) -> AsyncIterator[int]:
    """A server of gRPC's own library that gives back what it gets."""

    async def echo(message: bytes, context: Any) -> bytes:
        if seen is not None:
            seen.append(context.auth_context())
        return message

    server = grpc.aio.server(options=[("grpc.max_receive_message_length", 64 * MIB)])
    handler = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("inference.GRPCInferenceService", {"ModelInfer": handler}),)
    )
    credentials = grpc.ssl_server_credentials(
        [(pair.key, pair.certificate)], client_ca, require_client_auth=client_ca is not None
    )
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


@asynccontextmanager
async def client(transport: str, target: str, tls: PoolTls | None, **options: int) -> AsyncIterator[ReplicaClient]:
    options = {"connect_timeout_ms": 5000} | options  # of a handshake on a busy machine
    made = connector_of(transport, tls, **options).connect(Endpoints(target, "127.0.0.1:1"))
    try:
        async with asyncio.timeout(LIMIT_S):
            yield made
    finally:
        await made.aclose()


async def answers(transport: str, target: str, tls: PoolTls | None, message: bytes = b"hello") -> None:
    async with client(transport, target, tls) as made:
        for _ in range(3):
            assert await made.infer(message, (), 30.0) == message


async def refuses(transport: str, target: str, tls: PoolTls | None, **options: int) -> str:
    async with client(transport, target, tls, **options) as made:
        with pytest.raises(UpstreamFault) as caught:
            await made.infer(b"hello", (), 30.0)
    fault = caught.value
    assert (fault.code, fault.from_peer, fault.sent) == (Code.UNAVAILABLE, False, False), fault
    return fault.text


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_server_that_the_authority_vouches_for_is_talked_to(
    authority: Authority, keys: Keys, transport: str, host: str
) -> None:
    async with serving(authority.server()) as port:
        await answers(transport, f"{host}:{port}", await keys.tls(ca_file="ca.pem"))


async def test_large_messages_go_through_both_ways(authority: Authority, keys: Keys, transport: str) -> None:
    async with serving(authority.server()) as port:
        await answers(transport, f"127.0.0.1:{port}", await keys.tls(ca_file="ca.pem"), bytes(5 * MIB))


async def test_a_connection_that_was_closed_can_still_be_cut_off(authority: Authority, keys: Keys) -> None:
    """asyncio's own TLS transport cannot: once closed, `abort` raises, and it waits for the peer."""
    async with serving(authority.server()) as port:
        tls = await keys.tls(ca_file="ca.pem")
        async with client("http2", f"127.0.0.1:{port}", tls) as made:
            assert isinstance(made, Http2ReplicaClient)
            await made.infer(b"hello", (), 30.0)
            (link,) = made._links.main._links
            link._close()
            link.abort("cut off")
            assert link.gone


async def test_a_server_of_another_authority_is_not(authority: Authority, keys: Keys, transport: str) -> None:
    async with serving(Authority("Other").server()) as port:
        await refuses(transport, f"127.0.0.1:{port}", await keys.tls(ca_file="ca.pem"))


async def test_a_certificate_for_another_name_is_good_for_the_name_in_the_policy_alone(
    authority: Authority, keys: Keys, transport: str
) -> None:
    async with serving(authority.pair("x", dns=("triton.internal",))) as port:
        await refuses(transport, f"127.0.0.1:{port}", await keys.tls(ca_file="ca.pem"))
        await answers(transport, f"127.0.0.1:{port}", await keys.tls(ca_file="ca.pem", server_name="triton.internal"))


async def test_a_server_that_asks_for_a_certificate_gets_the_gateway_s(
    authority: Authority, keys: Keys, transport: str
) -> None:
    seen: list[Any] = []
    async with serving(authority.server(), authority.certificate, seen) as port:
        target = f"127.0.0.1:{port}"
        tls = await keys.tls(ca_file="ca.pem", certificate_file="gateway.pem", key_file="gateway.key")
        await answers(transport, target, tls)
        assert seen[0]["x509_common_name"] == [b"gateway"]
        # In TLS 1.3 the server's refusal comes behind the handshake: the call may have left by then.
        async with client(transport, target, await keys.tls(ca_file="ca.pem")) as made:
            with pytest.raises(UpstreamFault) as caught:
                await made.infer(b"hello", (), 30.0)
        assert (caught.value.code, caught.value.from_peer) == (Code.UNAVAILABLE, False)


async def test_a_certificate_that_is_its_own_authority_is_believed_where_the_policy_names_it(
    authority: Authority, keys: Keys, transport: str
) -> None:
    pair = authority.server()
    (keys.directory / "server.pem").write_bytes(pair.certificate)
    async with serving(pair) as port:
        await answers(transport, f"127.0.0.1:{port}", await keys.tls(ca_file="server.pem"))


async def test_plain_text_and_tls_do_not_meet(authority: Authority, keys: Keys, transport: str) -> None:
    async with serving(authority.server()) as port:
        await refuses(transport, f"127.0.0.1:{port}", None)
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        await refuses(transport, f"127.0.0.1:{port}", await keys.tls(ca_file="ca.pem"))
    finally:
        await server.stop(None)


@asynccontextmanager
async def listening(serve: Callable[[asyncio.StreamWriter], object], tls: ssl.SSLContext | None) -> AsyncIterator[int]:
    writers: list[asyncio.StreamWriter] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        serve(writer)

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()


async def test_a_server_that_speaks_tls_and_not_http2_is_not_talked_to(
    authority: Authority, keys: Keys, transport: str, tmp_path: Path
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.server().write(tmp_path, "other"))
    async with listening(lambda writer: None, context) as port:
        text = await refuses(transport, f"127.0.0.1:{port}", await keys.tls(ca_file="ca.pem"))
    if transport == "http2":
        assert "ALPN" in text


async def test_a_handshake_that_is_not_answered_is_given_up_after_its_time(keys: Keys, transport: str) -> None:
    async with listening(lambda writer: None, None) as port:
        await refuses(transport, f"127.0.0.1:{port}", await keys.tls(ca_file="ca.pem"), connect_timeout_ms=300)


async def test_files_of_no_use_are_told_when_a_connection_is_wanted(keys: Keys) -> None:
    tls = await keys.tls(ca_file="ca.pem")
    object.__setattr__(tls.material, "ca", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    assert "TLS library" in await refuses("http2", "127.0.0.1:1", tls)
