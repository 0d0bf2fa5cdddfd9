"""A TCP forwarder that can become a black hole: a process of its own between the gateway and one replica.

`python -m load.forwarder CONTROL LISTEN=UPSTREAM …`, all ports of the loopback. Bytes pass both ways, and so does the
end of either direction (half-close). Over the control port it takes lines, and answers each with `ok`:

    blackhole    packets vanish: from now on the kernel drops, without a word, whatever reaches these sockets, new
                 connections included, and nothing that was read before is passed on
    pass         packets pass again; what the other side sends once more, as TCP does, arrives

That is done by a socket filter that accepts nothing (Linux, SO_ATTACH_FILTER with the program "return 0"), so a peer
sees what it sees when a cable is cut: no reset, no acknowledgement, and connecting takes until its time-out.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
import sys
from collections.abc import Iterable, Sequence
from typing import Any, cast

LOOPBACK = "127.0.0.1"
SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27
BACKLOG = 1024
BUFFERED_BYTES_MAX = 1 << 20
"""Per connection and direction; over it the other side is not read from."""
_AT_ONCE = struct.pack("ii", 1, 0)
"""Closing sends a reset then, where it would else send an orderly end."""
_STOPS = frozenset({"connecting", "blackhole"})
"""Reasons to pass nothing on; with another side that is full, what was read may still be."""
_DROP_ALL = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))
"""One instruction: BPF_RET | BPF_K with 0, which keeps no byte of a packet."""


def _drop_all(sock: Any, drop: bool) -> None:
    if drop:
        sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(_DROP_ALL)))
    else:
        sock.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)


class Forwarder:
    """Listens on some ports, each in front of another."""

    def __init__(self) -> None:
        self._servers: list[asyncio.Server] = []
        self._ends: set[_End] = set()
        self.black = False

    async def listen(self, port: int, upstream_port: int, host: str = LOOPBACK) -> int:
        """Forward one port (0: any free one) to another. Returns it. Raises OSError."""
        server = await asyncio.get_running_loop().create_server(
            lambda: _End(self, (host, upstream_port)), host, port, backlog=BACKLOG
        )
        self._servers.append(server)
        number: int = server.sockets[0].getsockname()[1]
        return number

    def blackhole(self) -> None:
        """Let packets vanish. Raises OSError where the kernel cannot."""
        self._set(True)

    def let_pass(self) -> None:
        """Let packets pass again."""
        self._set(False)

    def _set(self, black: bool) -> None:
        if black == self.black:
            return
        for server in self._servers:
            for each in server.sockets:
                _drop_all(each, black)
        self.black = black
        for end in self._ends:
            end.set_black(black)

    def joined(self, end: _End) -> None:
        self._ends.add(end)

    def left(self, end: _End) -> None:
        self._ends.discard(end)

    async def aclose(self) -> None:
        """Stop listening, and abort what is open."""
        for server in self._servers:
            server.close()
        for end in tuple(self._ends):
            end.abort()
        for server in self._servers:
            await server.wait_closed()


class _End(asyncio.Protocol):
    """One side of a forwarded connection. The side of the client makes that of the server."""

    def __init__(self, owner: Forwarder, upstream: tuple[str, int] | None, peer: _End | None = None) -> None:
        self._owner = owner
        self._upstream = upstream
        self._peer = peer
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._ended = False
        self._end_passed = False
        self._holds: set[str] = {"connecting"} if peer is None else set()
        """Why this side is not read from now."""
        self._kept: list[bytes] = []
        """What was read all the same: an event loop may read once more, and does before the other side is there."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(BUFFERED_BYTES_MAX)
        self._owner.joined(self)
        if self._owner.black:  # it was accepted in the moment before
            self.set_black(True)
        if self._upstream is not None:
            self._hold_on()
            self._connecting = asyncio.ensure_future(self._connect(*self._upstream))

    async def _connect(self, host: str, port: int) -> None:
        try:
            _, peer = await asyncio.get_running_loop().create_connection(
                lambda: _End(self._owner, None, self), host, port
            )
        except OSError:  # nobody listens there: the client sees a reset, as it would without us
            self.abort()
            return
        self._peer = peer
        if self._transport is None or self._transport.is_closing():
            peer.abort()
            return
        self.let_go("connecting")

    def set_black(self, black: bool) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        _drop_all(transport.get_extra_info("socket"), black)
        if black:
            self.hold("blackhole")
        else:
            self.let_go("blackhole")

    def hold(self, why: str) -> None:
        """Do not read from this side, for this reason."""
        self._holds.add(why)
        self._hold_on()

    def _hold_on(self) -> None:
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def let_go(self, why: str) -> None:
        """The reason is gone."""
        self._holds.discard(why)
        transport, peer = self._transport, self._peer
        if transport is None or transport.is_closing() or peer is None or not self._holds.isdisjoint(_STOPS):
            return
        kept, self._kept = self._kept, []
        for data in kept:
            peer.write(data)
        if self._ended:
            self._pass_end(peer)
        elif not self._holds:
            transport.resume_reading()

    def write(self, data: bytes) -> None:
        """Send to this side."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        if self._peer is None or not self._holds.isdisjoint(_STOPS):
            self._kept.append(data)
        else:
            self._peer.write(data)

    def eof_received(self) -> bool:
        self._ended = True
        if self._peer is None or not self._holds.isdisjoint(_STOPS):
            return True
        return self._pass_end(self._peer)

    def _pass_end(self, peer: _End) -> bool:
        """This side has said all; false if that was the end of the connection."""
        transport = peer._transport
        if transport is None or transport.is_closing():
            return False
        if not self._end_passed:
            self._end_passed = True
            transport.write_eof()
        if not peer._ended:
            return True
        for each in (self._transport, transport):  # each when all is written
            if each is not None:
                each.close()
        return False

    def pause_writing(self) -> None:
        if self._peer is not None:
            self._peer.hold("full")

    def resume_writing(self) -> None:
        if self._peer is not None:
            self._peer.let_go("full")

    def connection_lost(self, error: Exception | None) -> None:
        self._owner.left(self)
        peer = self._peer
        if peer is not None and peer._transport is not None and not peer._transport.is_closing():
            if error is None and self._ended:
                peer._transport.close()  # after what is still to be written
            else:
                peer.abort()

    def abort(self) -> None:
        """End it by a reset."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            self._transport.abort()


class _Control(asyncio.Protocol):
    """Takes lines and answers them."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        *lines, self._data = (self._data + data).split(b"\n")
        for line in lines:
            self._transport.write(self._answer(line.decode("ascii", "replace").strip()).encode() + b"\n")

    def _answer(self, word: str) -> str:
        commands = {"blackhole": self._forwarder.blackhole, "pass": self._forwarder.let_pass}
        if word not in commands:
            return f"there are {', '.join(commands)}"
        try:
            commands[word]()
        except OSError as error:
            return f"this kernel cannot do that: {error}"
        return "ok"


async def forward(control_port: int, routes: Iterable[tuple[int, int]]) -> None:
    """Forward, until it is cancelled."""
    forwarder = Forwarder()
    try:
        for port, upstream_port in routes:
            await forwarder.listen(port, upstream_port)
        server = await asyncio.get_running_loop().create_server(lambda: _Control(forwarder), LOOPBACK, control_port)
        async with server:
            await server.serve_forever()
    finally:
        await forwarder.aclose()


def main(words: Sequence[str]) -> None:
    """Run the process."""
    control, *routes = words
    asyncio.run(forward(int(control), [(int(a), int(b)) for a, _, b in (route.partition("=") for route in routes)]))


if __name__ == "__main__":
    main(sys.argv[1:])
