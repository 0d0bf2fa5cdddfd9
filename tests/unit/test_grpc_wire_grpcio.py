"""The codecs against grpcio over real sockets: what its clients and servers write is read as they mean it, and they
read what is written here.
"""

from __future__ import annotations

import asyncio
import gzip
import random
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import grpc
import grpc.aio
import pytest

from gateway.core.codes import Code
from gateway.wire.content_coding import DEFLATE, GZIP, IDENTITY
from gateway.wire.grpc import (
    ACCEPT_ENCODING,
    GrpcFault,
    MessageReader,
    accepted,
    code_of_http,
    code_of_reset,
    compress,
    decode_binary,
    decode_message,
    decompress,
    encode_binary,
    encode_message,
    encode_timeout,
    end_fields,
    message_prefix,
    parse_status,
    parse_timeout,
    read_encoding,
    read_end,
    read_metadata,
    write_metadata,
)
from tests.unit.grpc_wire_peer import Answer, Exchange, Fields, RawServer, raw_call, raw_server, request_head

WAIT_S = 60
PATH = "/a.B/C"
HEAD: Fields = [(b":status", b"200"), (b"content-type", b"application/grpc")]
OK: Fields = [(b"grpc-status", b"0")]
MESSAGE = message_prefix(2) + b"hi"
LIMIT = 4 * 1024 * 1024


class Ended(NamedTuple):
    """How a call ended for grpcio's client."""

    code: Code
    text: str
    trailers: list[tuple[str, str | bytes]]
    message: bytes | None


Ask = Callable[..., Awaitable[Ended]]


def code_of(status: grpc.StatusCode) -> Code:
    return Code(status.value[0])


@asynccontextmanager
async def grpcio_client(answer: Callable[[Exchange], Answer | bytes]) -> AsyncIterator[tuple[RawServer, Ask]]:
    """Calls of grpcio's client, each answered with what `answer` makes of it."""
    options = [("grpc.enable_retries", 0)]
    async with (
        asyncio.timeout(WAIT_S),
        raw_server(answer) as (server, address),
        grpc.aio.insecure_channel(address, options=options) as channel,
    ):

        async def ask(message: bytes = b"hi", **more: Any) -> Ended:
            call = channel.unary_unary(PATH)(message, **more)
            code = code_of(await call.code())
            got = await call if code is Code.OK else None
            trailers = [(key, value) for key, value in await call.trailing_metadata() or ()]
            return Ended(code, await call.details() or "", trailers, got)

        yield server, ask


class GrpcioServer(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A grpcio server that notes each call and ends it as it is told."""

    def __init__(self) -> None:
        self.address = ""
        self.seen: list[tuple[bytes, float | None, list[tuple[str, str | bytes]]]] = []
        self.code = grpc.StatusCode.OK
        self.text = ""
        self.trailers: tuple[tuple[str, str | bytes], ...] = ()
        self.answer = b"hi"

    def service(self, details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self._handle)

    async def _handle(self, message: bytes, context: Any) -> bytes:
        pairs = [(key, value) for key, value in context.invocation_metadata()]
        self.seen.append((message, context.time_remaining(), pairs))
        if self.code is not grpc.StatusCode.OK:
            await context.abort(self.code, self.text, self.trailers)
        context.set_trailing_metadata(self.trailers)
        return self.answer

    async def ask(self, *fields: tuple[bytes, bytes], data: bytes = MESSAGE) -> Exchange:
        """One call with these fields in its head and this in its DATA frame."""
        return await raw_call(self.address, request_head(PATH.encode(), *fields), data)

    async def fault(self, *fields: tuple[bytes, bytes], data: bytes = MESSAGE) -> Code | None:
        """How such a call ends if not in the handler; None if it got there."""
        count = len(self.seen)
        exchange = await self.ask(*fields, data=data)
        ended = read_end(pair for block in exchange.blocks for pair in block)
        assert ended is not None
        return None if len(self.seen) > count else ended[0]


@asynccontextmanager
async def grpcio_server(compression: grpc.Compression | None = None) -> AsyncIterator[GrpcioServer]:
    handler = GrpcioServer()
    server = grpc.aio.server(handlers=(handler,), compression=compression)
    handler.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        async with asyncio.timeout(WAIT_S):
            yield handler
    finally:
        await server.stop(None)


def messages_in(exchange: Exchange) -> list[bytes]:
    """The messages of one side, decompressed."""
    reader = MessageReader(LIMIT)
    encoding = read_encoding(exchange.value(b"grpc-encoding"))
    messages = reader.feed(exchange.data, 0, len(exchange.data))
    reader.end()
    return [decompress(payload, encoding, LIMIT) if packed else payload for packed, payload in messages]


def some_texts() -> list[str]:
    chance = random.Random(7)
    alphabet = "abc %%%4A\r\n\t\x00\x7fäß€😀\u2028" + "".join(map(chr, range(0x20, 0x7F)))
    texts = ["".join(chance.choices(alphabet, k=chance.randrange(40))) for _ in range(150)]
    return ["", "%", "%%", "%41", "100%", "a\nb", *texts]


async def test_grpcio_reads_the_texts_that_are_written_here() -> None:
    cell: list[Answer] = []
    async with grpcio_client(lambda _: cell[-1]) as (_, ask):
        for text in some_texts():
            cell.append((HEAD, b"", list(end_fields(Code.NOT_FOUND, text))))
            assert (await ask())[:2] == (Code.NOT_FOUND, text)


async def test_texts_are_written_byte_for_byte_as_grpcio_writes_them() -> None:
    async with grpcio_server() as server:
        server.code = grpc.StatusCode.NOT_FOUND
        for text in some_texts():
            server.text = text
            exchange = await server.ask()
            sent = exchange.value(b"grpc-message")
            assert sent == encode_message(text)
            assert read_end(exchange.blocks[-1]) == (Code.NOT_FOUND, text)


async def test_any_text_is_read_as_grpcio_reads_it() -> None:
    chance = random.Random(8)
    parts = [
        b"%",
        b"%4",
        b"%41",
        b"%zz",
        b"%e4",
        b"\xe4",
        b"%C3%A4",
        b"\xc3",
        b"\xa4",
        b" ",
        b"a",
        b"%00",
        b"%0a",
        b"4",
    ]
    values = [b"".join(chance.choices(parts, k=chance.randrange(1, 9))) for _ in range(200)]
    cell: list[bytes] = []
    async with grpcio_client(lambda _: (HEAD, b"", [(b"grpc-status", b"3"), (b"grpc-message", cell[-1])])) as (_, ask):
        for value in values:
            cell.append(value)
            assert (await ask())[:2] == (Code.INVALID_ARGUMENT, decode_message(value)), value


STATUSES = [b"%d" % code for code in range(20)] + [b"00", b"05", b" 5", b"5 ", b"+5", b"99", b"1000", b"-1", b"x"]


@pytest.mark.parametrize("value", [*STATUSES, b"", b"5.0", b"0x5", b"5,5", b"99999999999999999999"])
async def test_a_status_is_read_as_grpcio_reads_it(value: bytes) -> None:
    trailers = [(b"grpc-status", value), (b"grpc-message", b"why")]
    async with grpcio_client(lambda _: (HEAD, MESSAGE, trailers)) as (_, ask):
        assert (await ask()).code is parse_status(value)


async def test_of_repeated_fields_the_last_counts_in_grpcio_too() -> None:
    twice = [(b"grpc-status", b"3"), (b"grpc-message", b"a"), (b"grpc-status", b"5"), (b"grpc-message", b"b")]
    async with grpcio_client(lambda _: (HEAD, b"", twice)) as (_, ask):
        assert (await ask())[:2] == read_end(twice)


async def test_an_answer_without_a_status_means_what_it_means_to_grpcio() -> None:
    cell: list[Answer] = []
    async with grpcio_client(lambda _: cell[-1]) as (_, ask):
        for status in (200, 204, 301, 400, 401, 403, 404, 408, 413, 415, 429, 431, 500, 501, 502, 503, 504, 505, 599):
            head = [(b":status", b"%d" % status), (b"content-type", b"text/html")]
            for answer in ((head, b"", []), (head, b"<html>", [(b"x-a", b"b")])):
                cell.append(answer)
                assert (await ask()).code is code_of_http(status), status
        cell.append(([(b":status", b"503"), *end_fields(Code.NOT_FOUND, "no")], b"", []))
        assert (await ask())[:2] == (Code.NOT_FOUND, "no")


async def test_a_reset_means_what_it_means_to_grpcio() -> None:
    cell: list[bytes] = []
    async with grpcio_client(lambda _: cell[-1]) as (_, ask):
        for error_code in (*range(15), 255):
            cell.append(error_code.to_bytes(4, "big"))
            assert (await ask()).code is code_of_reset(error_code), error_code


async def test_the_time_limits_that_grpcio_sends() -> None:
    async with grpcio_client(lambda _: (HEAD, MESSAGE, OK)) as (server, ask):
        for asked_s in (5, 9.999, 10, 30, 59, 60, 100, 1000, 3600, 86_400, 1e6):
            assert (await ask(timeout=asked_s)).message == b"hi"
            value = server.seen[-1].value(b"grpc-timeout")
            assert value is not None
            # Rounded up by 1 %, from what is left after some milliseconds in the library.
            assert asked_s - 2 < parse_timeout(value) <= asked_s * 1.011 + 0.1
        await ask()
        assert server.seen[-1].value(b"grpc-timeout") is None


async def test_grpcio_reads_time_limits_as_they_are_read_and_written_here() -> None:
    chance = random.Random(9)
    written = [encode_timeout(chance.uniform(10, 100) * 10 ** chance.randrange(6)) for _ in range(30)]
    async with grpcio_server() as server:
        for value in (*written, b"1H", b"2M", b"60S", b"60000m", b"60000000u", b"00000060S", b"000000060S", b" 60 S ",
                      b"999999999m"):  # fmt: skip
            assert await server.fault((b"grpc-timeout", value)) is None
            remaining_s = server.seen[-1][1]
            assert remaining_s is not None
            assert parse_timeout(value) - 8 < remaining_s <= parse_timeout(value) + 0.001
        for value in (b"", b"5", b"S", b"5s", b"-5S", b"+5S", b"5.5S", b"1_0S", b"5SS", b"5S,6S", b"\t5S"):
            with pytest.raises(GrpcFault) as caught:
                parse_timeout(value)
            assert await server.fault((b"grpc-timeout", value)) is caught.value.code


BINARIES = [b"", b"a", b"ab", b"abc", b"\xff\xfe", b"\x00", bytes(range(256)), b"a,b", bytes(1000)]


async def test_binary_metadata_of_grpcio_is_read_as_it_was_meant() -> None:
    pairs: list[tuple[str, str | bytes]] = [("x-a-bin", value) for value in BINARIES]
    pairs += [("x-text", " two "), ("x-b-bin", b"last"), ("x-text", "")]
    async with grpcio_client(lambda _: (HEAD, MESSAGE, OK)) as (server, ask):
        await ask(metadata=tuple(pairs))
        assert sorted(read_metadata(server.seen[-1].blocks[0])) == sorted(pairs)
        assert server.seen[-1].values(b"x-a-bin") == [encode_binary(value) for value in BINARIES]
    async with grpcio_server() as grpcio:
        grpcio.trailers = tuple(pairs)
        exchange = await grpcio.ask()
        assert sorted(read_metadata(exchange.blocks[-1])) == sorted(pairs)


async def test_grpcio_reads_the_metadata_that_is_written_here() -> None:
    pairs: list[tuple[str, str | bytes]] = [("x-a-bin", value) for value in BINARIES]
    pairs += [("x-text", "two words"), ("x_d.e-9", "~!")]
    fields = write_metadata(pairs)
    async with grpcio_client(lambda _: (HEAD, MESSAGE, [*OK, *fields])) as (_, ask):
        assert sorted((await ask()).trailers) == sorted(pairs)
    async with grpcio_server() as server:
        assert await server.fault(*fields) is None
        assert sorted(pair for pair in server.seen[-1][2] if pair[0].startswith("x")) == sorted(pairs)


async def test_what_is_no_base64_to_grpcio_is_none_here() -> None:
    async with grpcio_server() as server:
        for value in (b"YQ", b"YQ==", b"YQ=", b"YQ===", b"+/8", b"", b"YWI", b"YWJj"):
            assert await server.fault((b"x-bin", value)) is None
            assert ("x-bin", decode_binary(value)[0]) in server.seen[-1][2]
        for value in (b"Y", b"YR", b"Y Q", b"%%", b"-_8", b"AAAAA", b"YQ;"):
            with pytest.raises(GrpcFault) as caught:
                decode_binary(value)
            assert await server.fault((b"x-bin", value)) is caught.value.code


@pytest.mark.parametrize(
    ("compression", "encoding"), [(grpc.Compression.Gzip, GZIP), (grpc.Compression.Deflate, DEFLATE)]
)
async def test_messages_that_grpcio_compresses_are_read(compression: grpc.Compression, encoding: bytes) -> None:
    bodies = [b"", b"x", b"hello " * 1000, random.Random(1).randbytes(100_000), bytes(3_000_000)]
    async with grpcio_client(lambda _: (HEAD, MESSAGE, OK)) as (server, ask):
        for body in bodies:
            await ask(body, compression=compression)
            exchange = server.seen[-1]
            assert exchange.value(b"grpc-encoding") == encoding
            assert accepted(exchange.value(b"grpc-accept-encoding")) == {IDENTITY, GZIP, DEFLATE}
            assert messages_in(exchange) == [body]
        assert any(exchange.data[:1] == b"\1" for exchange in server.seen)
    async with grpcio_server(compression) as grpcio:
        for body in bodies[:4]:
            grpcio.answer = body
            exchange = await grpcio.ask((b"grpc-accept-encoding", ACCEPT_ENCODING))
            assert messages_in(exchange) == [body]
            assert exchange.value(b"grpc-accept-encoding") == ACCEPT_ENCODING


async def test_grpcio_reads_messages_that_are_compressed_here() -> None:
    cell: list[Answer] = []
    async with grpcio_client(lambda _: cell[-1]) as (_, ask):
        for encoding in (GZIP, DEFLATE):
            for body in (b"", b"x", b"hello " * 1000, bytes(1_000_000)):
                packed = compress(body, encoding, 1)
                data = message_prefix(len(packed), True) + packed
                cell.append(([*HEAD, (b"grpc-encoding", encoding)], data, OK))
                assert (await ask()).message == body


BODY = b"hello" * 10
PACKED = {
    "gzip": gzip.compress(BODY),
    "zlib": zlib.compress(BODY),
    "bare": zlib.compress(BODY)[2:-4],
    "plain": BODY,
    "nothing": b"",
    "bytes behind": gzip.compress(BODY) + b"x",
    "two members": gzip.compress(BODY) * 2,
    "cut": gzip.compress(BODY)[:-1],
    "cut zlib": zlib.compress(BODY)[:-2],
    "bytes behind zlib": zlib.compress(BODY) + b"x",
    "gzip of nothing": gzip.compress(b""),
    "bomb": gzip.compress(bytes(10_000_000)),
}


@pytest.mark.parametrize("encoding", [GZIP, DEFLATE, IDENTITY, None, b"zstd", b"GZIP"])
async def test_a_compressed_message_is_taken_and_refused_as_by_grpcio(encoding: bytes | None) -> None:
    fields = [] if encoding is None else [(b"grpc-encoding", encoding)]
    async with grpcio_server() as server:
        for name, payload in PACKED.items():
            data = message_prefix(len(payload), True) + payload
            code = await server.fault(*fields, data=data)
            try:
                ours = decompress(payload, read_encoding(encoding), LIMIT)
            except GrpcFault as fault:
                assert fault.code is code, name  # noqa: PT017
            else:
                assert code is None, name
                assert server.seen[-1][0] == ours


async def test_a_message_over_its_size_ends_as_by_grpcio() -> None:
    data = message_prefix(LIMIT + 1)
    async with grpcio_server() as server:
        exchange = await server.ask(data=data + bytes(100))
        ended = read_end(exchange.blocks[-1])
        assert ended is not None
        with pytest.raises(GrpcFault) as caught:
            MessageReader(LIMIT).feed(data, 0, len(data))
        assert caught.value.code is ended[0] is Code.RESOURCE_EXHAUSTED
        assert caught.value.text in ended[1]
