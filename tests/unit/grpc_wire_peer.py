"""HTTP/2 by hand, just enough to show what grpcio writes and to let it read what no library would write."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field

from gateway.wire.hpack import HpackDecoder
from tests.unit.http2_driving import (
    ACK,
    DATA,
    END,
    END_HEADERS,
    HEADERS,
    PING,
    PREFACE,
    RST,
    SETTINGS,
    WINDOW,
    WITH_PRIORITY,
    block,
    frame,
)

Fields = list[tuple[bytes, bytes]]


@dataclass
class Exchange:
    """One side of a call as it was read: header blocks in order, the payload of its DATA frames, how it was reset."""

    blocks: list[Fields] = field(default_factory=list)
    data: bytes = b""
    reset: int | None = None

    def value(self, name: bytes) -> bytes | None:
        """The first field of that name in any of the blocks."""
        return next((value for fields in self.blocks for key, value in fields if key == name), None)

    def values(self, name: bytes) -> list[bytes]:
        return [value for fields in self.blocks for key, value in fields if key == name]


class FrameReader:
    """Reads frames, answers SETTINGS and PING, gives windows back, and collects each stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._hpack = HpackDecoder()
        self._streams: dict[int, Exchange] = {}

    async def next_ended(self) -> tuple[int, Exchange] | None:
        """The next stream that its sender has ended or reset; None where the connection is over."""
        while True:
            try:
                head = await self._reader.readexactly(9)
                payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
            except (asyncio.IncompleteReadError, ConnectionError):
                return None
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
            if kind == SETTINGS and not flags & ACK:
                self._writer.write(frame(SETTINGS, ACK, 0))
            elif kind == PING and not flags & ACK:
                self._writer.write(frame(PING, ACK, 0, payload))
            elif kind == HEADERS:
                start = 5 if flags & WITH_PRIORITY else 0
                exchange = self._streams.setdefault(stream, Exchange())
                exchange.blocks.append(list(self._hpack.decode(payload[start:]).fields))
            elif kind == DATA:
                self._streams[stream].data += payload
                for where in (0, stream) if payload else ():
                    self._writer.write(frame(WINDOW, 0, where, struct.pack(">I", len(payload))))
            elif kind == RST and stream in self._streams:
                self._streams[stream].reset = int.from_bytes(payload, "big")
                return stream, self._streams.pop(stream)
            if kind in (HEADERS, DATA) and flags & END:
                return stream, self._streams.pop(stream)


Answer = tuple[Fields, bytes, Fields]
"""Response head, payload of DATA, trailers; with no trailers the head ends the stream. (Bytes instead are the error
code of an RST.)
"""


class RawServer:
    """Answers every call with what `answer` makes of it; `seen` has the calls."""

    def __init__(self, answer: Callable[[Exchange], Answer | bytes]) -> None:
        self.answer = answer
        self.seen: list[Exchange] = []
        self.tasks: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            if await reader.readexactly(len(PREFACE)) != PREFACE:
                return
            writer.write(frame(SETTINGS, 0, 0))
            frames = FrameReader(reader, writer)
            while (ended := await frames.next_ended()) is not None:
                stream, exchange = ended
                self.seen.append(exchange)
                if exchange.reset is None:
                    answer = self.answer(exchange)
                    writer.write(reset(stream, answer) if isinstance(answer, bytes) else answered(stream, *answer))


def reset(stream: int, error_code: bytes) -> bytes:
    return frame(RST, 0, stream, error_code)


def answered(stream: int, head: Fields, data: bytes, trailers: Fields) -> bytes:
    if not trailers:
        return frame(HEADERS, END_HEADERS | END, stream, block(*head))
    frames = frame(HEADERS, END_HEADERS, stream, block(*head))
    frames += b"".join(frame(DATA, 0, stream, data[at : at + 16384]) for at in range(0, len(data), 16384))
    return frames + frame(HEADERS, END_HEADERS | END, stream, block(*trailers))


@asynccontextmanager
async def raw_server(answer: Callable[[Exchange], Answer | bytes]) -> AsyncIterator[tuple[RawServer, str]]:
    """A server on a free port of loopback, and its address."""
    server = RawServer(answer)
    listener = await asyncio.start_server(server.accept, "127.0.0.1", 0)
    try:
        yield server, f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()
        for task in tuple(server.tasks):
            task.cancel()
        await asyncio.gather(*server.tasks, return_exceptions=True)


def request_head(path: bytes, *more: tuple[bytes, bytes]) -> Fields:
    return [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"a"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        *more,
    ]


async def raw_call(address: str, head: Fields, data: bytes) -> Exchange:
    """One call on a connection of its own. Everything is sent at once, in one DATA frame."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    with closing(writer):
        opening = PREFACE + frame(SETTINGS, 0, 0)
        writer.write(opening + frame(HEADERS, END_HEADERS, 1, block(*head)) + frame(DATA, END, 1, data))
        ended = await FrameReader(reader, writer).next_ended()
        return Exchange() if ended is None else ended[1]
