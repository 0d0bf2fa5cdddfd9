"""A peer that speaks just enough HTTP/2 to fail in every way that a server or a network can, on a real socket."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

Act = Callable[["Peer", int], Awaitable[None]]

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
STATUS_200 = b"\x88"


def literal(name: bytes, value: bytes) -> bytes:
    """A header field without indexing or Huffman code."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


GRPC = STATUS_200 + literal(b"content-type", b"application/grpc")


class Peer:
    """The server's end of one connection. `act(peer, stream)` is called for each request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, act: Act) -> None:
        self.reader, self.writer, self.act = reader, writer, act
        self.reset_codes: dict[int, int] = {}
        self.reset_seen = asyncio.Event()

    def frame(self, kind: int, flags: int, stream: int, payload: bytes = b"") -> None:
        self.writer.write(
            struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload
        )

    def answer(self, stream: int, message: bytes, status: bytes = b"0") -> None:
        """A whole good answer."""
        self.frame(HEADERS, 4, stream, GRPC)
        self.frame(DATA, 0, stream, b"\0" + struct.pack(">I", len(message)) + message)
        self.frame(HEADERS, 5, stream, literal(b"grpc-status", status))

    def refuse(self, stream: int, status: int, text: str | None) -> None:
        """A trailers-only error, as Triton sends it."""
        block = GRPC + literal(b"grpc-status", str(status).encode())
        if text is not None:
            block += literal(b"grpc-message", text.encode())
        self.frame(HEADERS, 5, stream, block)

    def reset_connection(self) -> None:
        """RST on TCP."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def run(self) -> None:
        await self.reader.readexactly(24)
        self.frame(SETTINGS, 0, 0)
        while True:
            head = await self.reader.readexactly(9)
            size, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
            stream = int.from_bytes(head[5:], "big")
            payload = await self.reader.readexactly(size)
            if kind == SETTINGS and not flags & 1:
                self.frame(SETTINGS, 1, 0)
            elif kind == PING and not flags & 1:
                self.frame(PING, 1, 0, payload)
            elif kind == HEADERS:
                await self.act(self, stream)
            elif kind == RST_STREAM:
                self.reset_codes[stream] = int.from_bytes(payload, "big")
                self.reset_seen.set()


class Listener:
    """Where peers come from: `port`, and the peers so far."""

    def __init__(self) -> None:
        self.port = 0
        self.peers: list[Peer] = []


@asynccontextmanager
async def listening(
    act: Act | None, raw: Callable[[asyncio.StreamWriter], None] | None = None
) -> AsyncIterator[Listener]:
    """A listener whose connections speak HTTP/2 with `act`, or are handed to `raw` as they are accepted."""
    listener, tasks = Listener(), set[asyncio.Task[None]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            if raw is not None:
                raw(writer)
                await reader.read()
            elif act is not None:
                peer = Peer(reader, writer, act)
                listener.peers.append(peer)
                await peer.run()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    listener.port = server.sockets[0].getsockname()[1]
    try:
        yield listener
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
