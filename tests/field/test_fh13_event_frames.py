"""FH-13: event frames stay whole, whatever is in the text and however the bytes are cut."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from gateway.wire.sse import SseDecoder
from tests.support.clock import ManualClock
from tests.support.http_answer import unchunked
from tests.unit.edge_clients import WAIT_S, post
from tests.unit.edge_driving import Edge, StreamingService, running, turns

STREAM = "/v2/models/fraud/generate_stream"
BODY = b'{"x":1}'
TEXTS = [":\n\n", "data: x", "\r\n", "é", "😀", "a" * 200_000, ""]

FIRST_EVENT_S = 0.05
"""The case's bound: so long after a response its event is on the wire."""
EVENT_END = b"\n\n\r\n"
"""Of a chunk with one event; texts cannot hold it, since line ends are escaped in JSON."""

_DATA = re.compile(rb"^data: ", re.MULTILINE)

Address = tuple[str, int]


@pytest.fixture
async def service() -> AsyncIterator[StreamingService]:
    async with asyncio.timeout(WAIT_S):
        yield StreamingService()


async def ask(
    address: Address, service: StreamingService, http: str = "1.1"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection whose stream has been started by the service's side: every text, then the end."""
    reader, writer = await asyncio.open_connection(*address, limit=1 << 20)
    writer.write(post(STREAM, BODY, Connection="close").replace(b"HTTP/1.1", b"HTTP/" + http.encode()))
    stream = await service.next()
    stream.say(*TEXTS)
    stream.end()
    return reader, writer


async def streamed(service: StreamingService, http: str = "1.1") -> tuple[bytes, bytes]:
    """Head and body of the whole answer, as they stood on the wire."""
    async with running(Edge(service)) as address:
        reader, writer = await ask(address, service, http)
        head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
        writer.close()
    return head, body


def texts(reads: Iterator[bytes] | list[bytes]) -> list[str]:
    decoder = SseDecoder()
    events = [event for read in reads for event in decoder.feed(read)]
    last = decoder.end()
    return [json.loads(event.data)["text"] for event in [*events, *([last] if last is not None else [])]]


async def test_every_frame_has_data_on_its_line_and_one_blank_line(service: StreamingService) -> None:
    head, body = await streamed(service)
    assert b"content-type: text/event-stream" in head.lower()
    assert b"content-encoding" not in head.lower()
    assert b"content-length" not in head.lower(), "either a length or chunks"
    chunks, after = unchunked(body)
    assert after == b""
    assert len(chunks) == len(TEXTS)
    for chunk in chunks:
        assert chunk.startswith(b"data: {")
        assert chunk.endswith(b"}\n\n")
        assert chunk.count(b"\n") == 2
        assert b"\r" not in chunk
    assert texts(chunks) == TEXTS


CUTS: dict[str, Callable[[bytes], list[bytes]]] = {
    "one byte per packet": lambda body: [body[index : index + 1] for index in range(len(body))],
    "all in one packet": lambda body: [body],
    "inside the character of four bytes": lambda body: list(_halves(body, body.index("😀".encode()) + 2)),
    "comments between and before events": lambda body: [_DATA.sub(b": ping\n\n: ping\ndata: ", body)],
    "a comment inside an event": lambda body: [body.replace(b"\n\n", b"\n: ping\n\n")],
    "CRLF": lambda body: [body.replace(b"\n", b"\r\n")],
    "CRLF, one byte per packet": lambda body: [bytes((byte,)) for byte in body.replace(b"\n", b"\r\n")],
    "event and id lines": lambda body: [_DATA.sub(b"event: token\nid: 7\nretry: 10\ndata: ", body)],
    "no final blank line": lambda body: [body.removesuffix(b"\n")],
    "not even a final line end": lambda body: [body.removesuffix(b"\n\n")],
}


def _halves(body: bytes, at: int) -> Iterator[bytes]:
    yield body[:at]
    yield body[at:]


async def test_any_split_and_any_sender_within_the_format_gives_the_same_text(service: StreamingService) -> None:
    _, body = await streamed(service)
    chunks, _ = unchunked(body)
    whole = b"".join(chunks)
    for name, cut in CUTS.items():
        assert texts(cut(whole)) == TEXTS, name


async def test_an_http_1_0_client_gets_the_frames_and_nothing_between_them(service: StreamingService) -> None:
    head, body = await streamed(service, "1.0")
    assert b"transfer-encoding" not in head.lower()
    assert b"connection: close" in head.lower()
    assert body.startswith(b"data: ")
    assert texts([body]) == TEXTS


async def test_a_get_of_an_http_1_0_client_is_405_with_a_length(service: StreamingService) -> None:
    async with running(Edge(service)) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET %b HTTP/1.0\r\n\r\n" % STREAM.encode())
        answer = await reader.read(-1)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 405 ")
    assert answer.endswith(b'{"error":"Method Not Allowed"}')


async def test_each_event_is_passed_on_when_it_comes(service: StreamingService) -> None:
    async with running(Edge(service)) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(post(STREAM, BODY))
        stream = await service.next()
        for text in ("first", "é", "last"):
            stream.say(text)
            # Nothing else is said before the client has it: a gateway that buffered would wait for ever here.
            frame = await reader.readuntil(b"\n\n\r\n")
            assert f'"text":"{text}"'.encode() in frame
        stream.end()
        assert await reader.readexactly(5) == b"0\r\n\r\n"
        writer.close()


async def test_every_event_the_first_one_too_leaves_within_50_ms_of_its_response(service: StreamingService) -> None:
    """On a clock that only this test moves: whatever waits in the edge for time to pass, waits here as long."""
    edge = Edge(service, clock=ManualClock())
    client = edge.connect()
    client.feed(post(STREAM, BODY))
    stream = await service.next()
    for number, text in enumerate(TEXTS, 1):
        edge.advance(0.7)  # the model takes its time
        await turns()
        assert client.sent.count(EVENT_END) == number - 1
        said_s = edge.clock.now_s()
        stream.say(text)
        await turns()
        while client.sent.count(EVENT_END) < number:
            assert edge.clock.now_s() - said_s < FIRST_EVENT_S
            edge.advance(0.005)
            await turns()
    stream.end()
    await turns()
    _, _, body = bytes(client.sent).partition(b"\r\n\r\n")
    chunks, _ = unchunked(body)
    assert texts(chunks) == TEXTS
    edge.nothing_is_left()


async def test_a_reader_that_takes_its_time_loses_nothing(service: StreamingService) -> None:
    async with running(Edge(service)) as address:
        reader, writer = await ask(address, service)
        received = bytearray()
        while data := await reader.read(4096):
            received += data
            await asyncio.sleep(0)
        writer.close()
    chunks, after = unchunked(bytes(received).partition(b"\r\n\r\n")[2])
    assert after == b""
    assert texts(chunks) == TEXTS


async def test_bytes_that_are_no_text_are_not_replaced_in_transit(service: StreamingService) -> None:
    face = "😀".encode()
    async with running(Edge(service)) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(post(STREAM, BODY, Connection="close"))
        stream = await service.next()
        # A model that streams tokens of single bytes.
        stream.say(*(face[index : index + 1] for index in range(4)))
        stream.end()
        body = (await reader.read(-1)).partition(b"\r\n\r\n")[2]
        writer.close()
    events = SseDecoder().feed(b"".join(unchunked(body)[0]))
    assert b"".join(event.data.partition(b'"text":"')[2].removesuffix(b'"}') for event in events) == face
