"""The clients of a replica against real sockets, each with the same tests: what a fault says of who made it, and what a
cancel sends.
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from tritonclient.grpc import service_pb2 as pb

from gateway.core.codes import Code
from gateway.core.errors import Reason
from gateway.core.faces import Endpoints, IndexEntry
from gateway.core.faults import UpstreamFault, classify, to_error
from gateway.core.outcome import Outcome
from gateway.fleet.http_get import HttpGetter
from gateway.fleet.replica_calls import ROUTED_NAMES_BYTES, UNREAD_BYTES_MAX
from tests.support.ports import free_port
from tests.support.replica_clients import TRANSPORTS
from tests.unit.fleet_peer import (
    DATA,
    GOAWAY,
    GRPC,
    HEADERS,
    RST_STREAM,
    Peer,
    literal,
)
from tests.unit.replica_clients import LIMIT_S, Clients, action


@pytest.fixture(params=TRANSPORTS)
def clients(request: pytest.FixtureRequest) -> Clients:
    return Clients(request.param)


# --- what the library makes up --------------------------------------------------------------------------------------


async def test_a_refused_port_is_a_lost_connection_and_nothing_was_sent(clients: Clients) -> None:
    async with clients.client_of(free_port()) as client:
        with pytest.raises(UpstreamFault) as caught:
            await client.infer(b"", (), 5.0)
    fault = caught.value
    assert (fault.code, fault.from_peer, fault.sent) == (Code.UNAVAILABLE, False, False)
    assert classify(fault).outcome is Outcome.TRANSPORT


async def test_a_name_that_does_not_resolve_is_a_lost_connection_and_nothing_was_sent(clients: Clients) -> None:
    endpoints = Endpoints("no-such-host.invalid:1", "no-such-host.invalid:2")
    client = clients.connect(endpoints)
    try:
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(UpstreamFault) as caught:
                await client.infer(b"", (), 10.0)
    finally:
        await client.aclose()
    assert not caught.value.from_peer
    assert caught.value.code is Code.DEADLINE_EXCEEDED or not caught.value.sent


async def test_a_server_that_accepts_and_closes_never_got_the_call(clients: Clients) -> None:
    fault = await clients.fault_of(None, raw=lambda writer: writer.close())
    assert (fault.code, fault.from_peer, fault.sent) == (Code.UNAVAILABLE, False, False)


async def test_a_server_of_another_protocol_never_got_the_call(clients: Clients) -> None:
    fault = await clients.fault_of(None, raw=lambda writer: writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
    assert (fault.code, fault.from_peer, fault.sent) == (Code.UNAVAILABLE, False, False)


def close(peer: Peer, stream: int) -> None:
    peer.writer.close()


def frame(kind: int, flags: int, payload: bytes) -> Callable[[Peer, int], None]:
    return lambda peer, stream: peer.frame(kind, flags, stream, payload)


def goaway(code: int, text: bytes = b"") -> Callable[[Peer, int], None]:
    """GOAWAY that leaves the call out of what will be answered."""
    return lambda peer, stream: peer.frame(GOAWAY, 0, 0, struct.pack(">II", 0, code) + text)


def goaway_after(peer: Peer, stream: int) -> None:
    peer.frame(GOAWAY, 0, 0, struct.pack(">II", stream, 0))


LOST_UNDER_WAY: dict[str, tuple[Callable[[Peer, int], None], ...]] = {
    "closed": (close,),
    "reset": (lambda peer, stream: peer.reset_connection(),),
    "headers, then closed": (frame(HEADERS, 4, GRPC), close),
    "half a message, then closed": (
        frame(HEADERS, 4, GRPC),
        frame(DATA, 0, b"\0" + struct.pack(">I", 100) + b"x"),
        close,
    ),
    "GOAWAY that leaves the call out": (goaway(0),),
    "GOAWAY and close": (goaway_after, close),
    "GOAWAY for too many pings": (goaway(11, b"too_many_pings"), close),
    **{f"RST_STREAM {code}": (frame(RST_STREAM, 0, struct.pack(">I", code)),) for code in (0, 1, 2, 7, 8, 11)},
    "a proxy's 503": (frame(HEADERS, 5, b"\x08\x03503" + literal(b"content-type", b"text/html")),),
}


UNPROCESSED = ("GOAWAY that leaves the call out", "GOAWAY for too many pings", "RST_STREAM 7")


@pytest.mark.parametrize("how", LOST_UNDER_WAY)
async def test_what_breaks_under_way_is_not_the_replicas_word(clients: Clients, how: str) -> None:
    fault = await clients.fault_of(action(*LOST_UNDER_WAY[how]))
    assert not fault.from_peer, fault
    # grpcio does not tell that a call certainly did not run.
    assert fault.sent is not (clients.ours and how in UNPROCESSED), fault
    assert classify(fault).outcome is Outcome.TRANSPORT


async def test_a_message_over_its_size_in_either_direction_is_told_from_a_lost_connection(clients: Clients) -> None:
    fault = await clients.fault_of(action(frame(HEADERS, 4, GRPC), frame(DATA, 0, b"\0" + struct.pack(">I", 1 << 30))))
    assert (fault.code, fault.from_peer, fault.sent) == (Code.RESOURCE_EXHAUSTED, False, True)
    async with clients.served(action(), message_bytes_max=2048) as (_, client):
        with pytest.raises(UpstreamFault) as caught:
            await client.infer(bytes(2048 + ROUTED_NAMES_BYTES + 1), (), 5.0)
    fault = caught.value
    assert (fault.code, fault.from_peer, fault.sent) == (Code.RESOURCE_EXHAUSTED, False, False)
    assert classify(fault).outcome is Outcome.CALLER_FAULT


@pytest.mark.parametrize("on_a_stream", [False, True])
async def test_a_message_over_its_size_is_told_the_limit_that_is_configured_and_not_the_librarys(
    clients: Clients, on_a_stream: bool
) -> None:
    message = bytes(2048 + ROUTED_NAMES_BYTES + 1)
    async with clients.served(action(), message_bytes_max=2048) as (_, client):
        if on_a_stream:
            stream = client.open_stream((), 5.0)
            stream.write(message)
        with pytest.raises(UpstreamFault) as caught:
            await (stream.read() if on_a_stream else client.infer(message, (), 5.0))
    error = to_error(caught.value, classify(caught.value))
    assert error.reason is Reason.TOO_LARGE
    assert f"the request of {len(message)} bytes is larger than `message_bytes_max`" in error.message
    assert "allows (2048 bytes)" in error.message


async def test_silence_is_a_deadline_that_the_client_kept(clients: Clients) -> None:
    fault = await clients.fault_of(action(lambda peer, stream: None), timeout_s=0.2)
    assert (fault.code, fault.from_peer) == (Code.DEADLINE_EXCEEDED, False)
    assert classify(fault).outcome is Outcome.EXPIRED


async def test_a_server_that_accepts_and_says_nothing_ends_in_time(clients: Clients) -> None:
    fault = await clients.fault_of(None, timeout_s=0.5, raw=lambda writer: None)
    assert not fault.from_peer
    assert fault.code in (Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE)


async def test_a_channel_that_is_closed_under_a_call_fails_the_call_and_does_not_cancel_its_task(
    clients: Clients,
) -> None:
    reached = asyncio.Event()
    async with clients.served(action(lambda peer, stream: reached.set())) as (_listener, client):
        task = asyncio.ensure_future(client.infer(b"", (), 60.0))
        await reached.wait()
        await client.aclose()
        with pytest.raises(UpstreamFault) as caught:
            await task
    assert (caught.value.code, caught.value.from_peer) == (Code.UNAVAILABLE, False)


# --- what the peer says ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [code for code in Code if code not in (Code.OK, Code.DEADLINE_EXCEEDED)])
@pytest.mark.parametrize("text", ["Exceeds maximum queue size", "", None])
async def test_a_status_that_the_peer_sent_is_the_peers(clients: Clients, code: Code, text: str | None) -> None:
    fault = await clients.fault_of(action(lambda peer, stream: peer.refuse(stream, code, text)))
    assert (fault.code, fault.text, fault.from_peer) == (code, text or "", True)


async def test_a_deadline_that_the_peer_declared_early_is_the_peers(clients: Clients) -> None:
    fault = await clients.fault_of(action(lambda peer, stream: peer.refuse(stream, 4, "Deadline Exceeded")))
    assert (fault.code, fault.from_peer) == (Code.DEADLINE_EXCEEDED, True)
    assert classify(fault).outcome is Outcome.EXPIRED


async def test_a_status_that_is_good_without_a_message_is_a_broken_answer(clients: Clients) -> None:
    fault = await clients.fault_of(action(lambda peer, stream: peer.refuse(stream, 0, None)))
    assert (fault.code, fault.from_peer) == (Code.INTERNAL, True)


async def test_an_answer_of_nonsense_to_a_control_call_is_a_broken_answer(clients: Clients) -> None:
    async with clients.served(action(lambda peer, stream: peer.answer(stream, b"\xff\xff"))) as (_listener, client):
        for ask in (client.server_live, client.repository_index):
            with pytest.raises(UpstreamFault) as caught:
                await ask(5.0)
            assert (caught.value.code, caught.value.from_peer) == (Code.INTERNAL, True)


async def test_good_answers_come_through_as_bytes_and_values(clients: Clients) -> None:
    index = pb.RepositoryIndexResponse()
    index.models.add(name="m", version="1", state="READY")
    index.models.add(name="never-loaded")
    answers = [b"\x08\x01", b"", index.SerializeToString(), b"any bytes"]

    async with clients.served(action(lambda peer, stream: peer.answer(stream, answers.pop(0)))) as (listener, client):
        assert await client.server_live(5.0) is True
        assert await client.server_ready(5.0) is False
        assert await client.repository_index(5.0) == (
            IndexEntry("m", "1", "READY", ""),
            IndexEntry("never-loaded", "", "", ""),
        )
        assert await client.infer(b"", (), float("inf")) == b"any bytes"
        assert len(listener.peers) == 1, "all over one connection"


@pytest.mark.parametrize("size", [10, 100_000, 1_000_000])
async def test_what_is_to_go_behind_a_message_goes_out_as_a_part_of_it(clients: Clients, size: int) -> None:
    async with serving_echo() as port, clients.client_of(port) as client:
        infer: Any = client.infer
        assert await infer(bytes(size), (), 5.0, b"tail") == bytes(size) + b"tail"
        assert await infer(b"", (), 5.0, b"tail") == b"tail"


@asynccontextmanager
async def serving_echo() -> AsyncIterator[int]:
    async def echo(message: bytes, context: Any) -> bytes:
        return message

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("inference.GRPCInferenceService", {"ModelInfer": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


# --- cancelling, metadata, reconnecting -----------------------------------------------------------------------------


async def test_cancelling_the_task_resets_the_stream_with_cancel(clients: Clients) -> None:
    reached = asyncio.Event()
    async with clients.served(action(lambda peer, stream: reached.set())) as (listener, client):
        task = asyncio.ensure_future(client.infer(b"", (), 60.0))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await listener.peers[0].reset_seen.wait()
        assert list(listener.peers[0].reset_codes.values()) == [8]


async def test_a_timeout_of_the_callers_own_cancels_upstream_too(clients: Clients) -> None:
    limits: list[asyncio.Timeout] = []

    def run_out(peer: Peer, stream: int) -> None:
        limits[0].reschedule(asyncio.get_running_loop().time())

    async with clients.served(action(run_out)) as (listener, client):

        async def within_a_limit() -> None:
            async with asyncio.timeout(LIMIT_S) as limit:
                limits.append(limit)
                await client.infer(b"", (), 60.0)

        with pytest.raises(TimeoutError):
            await within_a_limit()
        await listener.peers[0].reset_seen.wait()


async def test_a_replica_that_comes_back_is_reached_within_two_seconds(clients: Clients) -> None:
    port = free_port()
    async with clients.client_of(port) as client:
        for _ in range(20):
            with pytest.raises(UpstreamFault):
                await client.server_live(0.5)
            await asyncio.sleep(0.05)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await Peer(reader, writer, action(lambda peer, stream: peer.answer(stream, b"\x08\x01"))).run()
            except (ConnectionError, asyncio.IncompleteReadError):
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", port)
        loop, waited_s = asyncio.get_running_loop(), 0.0
        while True:
            turn_s = loop.time()
            try:
                assert await client.server_live(0.5)
                break
            except UpstreamFault:
                await asyncio.sleep(0.05)
            # A machine that stands still for longer is not the client's doing.
            waited_s += min(loop.time() - turn_s, 0.6)
            assert waited_s < 2.5
        server.close()


# --- over HTTP ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def http(respond: Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await respond(await reader.readuntil(b"\r\n\r\n"), writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_a_page_is_asked_for_plainly_and_its_connection_closed(clients: Clients) -> None:
    asked: list[bytes] = []

    async def respond(head: bytes, writer: asyncio.StreamWriter) -> None:
        asked.append(head)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\na\xffb")

    async with http(respond) as port, clients.client_of(port) as client:
        assert await client.scrape(5.0) == "a\ufffdb"
    head = asked[0].lower()
    assert head.startswith(b"get /metrics http/1.1\r\n")
    assert b"accept-encoding: identity" in head
    assert b"connection: close" in head
    assert b"user-agent" not in head
    assert b"cookie" not in head


async def test_a_page_without_end_is_given_up_at_its_bound(clients: Clients) -> None:
    async def respond(head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(10_000):
            writer.write(b"10000\r\n" + bytes(65536) + b"\r\n")
            await writer.drain()

    async with http(respond) as port, clients.client_of(port, page_bytes_max=200_000) as client:
        with pytest.raises(UpstreamFault, match="larger than 200000"):
            await client.scrape(10.0)


@pytest.mark.parametrize(
    ("answer", "code", "from_peer"),
    [
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", Code.NOT_FOUND, True),
        (b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n", Code.UNKNOWN, True),
        (b"HTTP/1.1 503 x\r\ncontent-length: 4\r\n\r\nbusy", Code.UNAVAILABLE, True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf", Code.UNAVAILABLE, False),
        (b"no http\r\n\r\n", Code.UNAVAILABLE, False),
        (b"", Code.UNAVAILABLE, False),
    ],
)
async def test_a_page_that_is_not_had_says_who_is_to_blame(
    clients: Clients, answer: bytes, code: Code, from_peer: bool
) -> None:
    async def respond(head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()

    async with http(respond) as port, clients.client_of(port) as client:
        with pytest.raises(UpstreamFault) as caught:
            await client.scrape(5.0)
    assert (caught.value.code, caught.value.from_peer) == (code, from_peer)


async def test_a_page_from_a_closed_port_or_a_silent_server_fails_in_time(clients: Clients) -> None:
    async with clients.client_of(free_port()) as client:
        with pytest.raises(UpstreamFault) as caught:
            await client.scrape(5.0)
    assert (caught.value.from_peer, caught.value.sent) == (False, False)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        async with clients.client_of(silent.getsockname()[1]) as client:
            with pytest.raises(UpstreamFault) as caught:
                await client.scrape(0.2)
    assert caught.value.code is Code.DEADLINE_EXCEEDED


async def test_a_client_that_is_closed_opens_nothing_any_more(clients: Clients) -> None:
    getter = HttpGetter()
    await getter.aclose()
    with pytest.raises(UpstreamFault) as caught:
        await getter.get("127.0.0.1:1", "/metrics", 1.0, 1000)
    assert (caught.value.from_peer, caught.value.sent) == (False, False)
    assert getter._session is None


async def test_on_a_closed_channel_calls_and_streams_are_lost_and_nothing_was_sent(clients: Clients) -> None:
    async with clients.client_of(free_port()) as client:
        await client.aclose()
        with pytest.raises(UpstreamFault) as caught:
            await client.infer(b"", (), 1.0)
        stream = client.open_stream((), 1.0)
        stream.write(b"")
        with pytest.raises(UpstreamFault) as told:
            await stream.read()
        stream.cancel()
    for fault in (caught.value, told.value):
        assert (fault.code, fault.from_peer, fault.sent) == (Code.UNAVAILABLE, False, False)


async def test_a_stream_that_is_not_read_holds_little_of_what_the_replica_has(clients: Clients) -> None:
    piece, written = bytes(64 * 1024), 0

    async def stream(messages: Any, context: Any) -> None:
        nonlocal written
        while written < 4000:
            await context.write(piece)
            written += 1

    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(stream)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("inference.GRPCInferenceService", {"ModelStreamInfer": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with clients.client_of(port) as client:
            opened = client.open_stream((), math.inf)
            for _ in range(2000):  # the library sees how fast the connection is
                assert await opened.read() is not None
            before = -1
            while before != written:
                before = written
                await asyncio.sleep(0.5)
            ahead_bytes = (written - 2000) * len(piece)
            opened.cancel()
    finally:
        await server.stop(None)
    assert ahead_bytes <= 4 * UNREAD_BYTES_MAX
