"""An in-memory TCP connection between two asyncio protocols: ordered bytes, seeded splits, delays, flow control.

What one side writes arrives at the other in order, cut at places drawn from the seed and after delays drawn from it: a
header may come byte by byte, two requests in one piece. Half-close, close and abort behave as a socket's do: `close`
first delivers what was written, `abort` loses it and the other side sees a reset. What a black hole is to hold may be
taken away on its way (`hold`), and happens later in its order.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

Hold = Callable[[Callable[[], None]], bool]
"""Told what is about to arrive. True: it was taken, and is called later, after everything that was taken before."""

Reader = asyncio.Protocol | asyncio.BufferedProtocol

HIGH_WATER = 64 * 1024


class PipeTransport(asyncio.Transport):
    """One end. `connect` makes both."""

    def __init__(self, loop: asyncio.AbstractEventLoop, chance: random.Random, delay_s: float, name: str, other: str):
        super().__init__({"peername": (other, 40000), "sockname": (name, 8000)})
        self.peer: PipeTransport | None = None
        self.first_write_s: float | None = None
        """When the first byte was written since somebody set this to None."""
        self.written_bytes = 0
        self.taken_bytes = 0
        """Of what the other end wrote: given to this end's protocol."""
        self.writes: deque[tuple[int, float]] | None = None
        """(`written_bytes` behind it, when) of each write, for whoever wants to know and sets it to a deque."""
        self.hold: Hold | None = None
        self._loop = loop
        self._chance = chance
        self._delay_s = delay_s
        self._protocol: Reader | None = None
        self._arrives_s = 0.0
        self._in_flight = 0
        self._write_paused = False
        self._high, self._low = HIGH_WATER, HIGH_WATER // 4
        self._reading = True
        self._travelling: deque[bytes | None] = deque()
        """Sent and not arrived. Each arrival takes the oldest: timers of one instant fire in any order."""
        self._inbox: deque[bytes | None] = deque()
        """Arrived, not yet taken; None is the end of the stream."""
        self._wrote_eof = False
        self._closing = False
        self._lost = False

    # -- writing --------------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or self._lost or not data:
            return
        if self._wrote_eof:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self.first_write_s is None:
            self.first_write_s = self._loop.time()
        piece = bytes(data)
        self._in_flight += len(piece)
        self.written_bytes += len(piece)
        if self.writes is not None:
            self.writes.append((self.written_bytes, self._loop.time()))
        for start, stop in self._cuts(len(piece)):
            self._ship(piece[start:stop])
        if self._in_flight > self._high and not self._write_paused:
            self._write_paused = True
            self._owner().pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def _cuts(self, size: int) -> list[tuple[int, int]]:
        if size < 2 or self._chance.random() < 0.5:
            return [(0, size)]
        places = sorted({self._chance.randrange(1, size) for _ in range(self._chance.choice((1, 1, 2, 4)))})
        return list(zip([0, *places], [*places, size], strict=True))

    def _ship(self, item: bytes | None) -> None:
        at_s = self._loop.time() + self._delay_s * self._chance.random()
        self._arrives_s = max(self._arrives_s, at_s)
        peer = self.peer
        assert peer is not None
        peer._travelling.append(item)
        self._loop.call_at(self._arrives_s, peer._arrive)

    def _shipped(self, size: int) -> None:
        self._in_flight -= size
        if self._write_paused and self._in_flight <= self._low:
            self._write_paused = False
            if not self._lost:
                self._owner().resume_writing()
        if self._closing and not self._in_flight:
            self._lose(None)

    def write_eof(self) -> None:
        if not self._wrote_eof and not self._lost:
            self._wrote_eof = True
            self._ship(None)

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return self._in_flight

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_WATER if high is None else high
        self._low = self._high // 4 if low is None else low

    # -- reading --------------------------------------------------------------------------------------------------

    def _arrive(self) -> None:
        if self.hold is not None and self.hold(self._arrive):
            return
        item = self._travelling.popleft()
        if self._lost or self._closing:
            # Read by nobody. The writer learns of it as a kernel would tell it: its bytes are taken, then a reset.
            if item and self.peer is not None:
                self.peer._shipped(len(item))
            return
        self._inbox.append(item)
        self._deliver()

    def _deliver(self) -> None:
        while self._inbox and self._reading and not self._lost and not self._closing:
            item = self._inbox.popleft()
            if item is None:
                if not self._owner().eof_received():
                    self.close()
                return
            peer, owner = self.peer, self._owner()
            assert peer is not None
            size = len(item)
            if isinstance(owner, asyncio.BufferedProtocol):
                buffer = memoryview(owner.get_buffer(-1)).cast("B")
                size = min(size, len(buffer))
                buffer[:size] = item[:size]
                if size < len(item):
                    self._inbox.appendleft(item[size:])
                self.taken_bytes += size
                owner.buffer_updated(size)
            else:
                self.taken_bytes += size
                owner.data_received(item)
            peer._shipped(size)

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._loop.call_soon(self._deliver)

    # -- the end --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        if self._closing or self._lost:
            return
        if not self._wrote_eof:
            self.write_eof()
        self._closing = True
        self._drop_inbox()
        if not self._in_flight:
            self._lose(None)

    def abort(self) -> None:
        peer = self.peer
        if not self._lost and peer is not None:
            self._loop.call_at(self._loop.time() + self._delay_s, peer._reset)
        self._closing = True
        self._drop_inbox()
        self._lose(None)

    def _drop_inbox(self) -> None:
        held, self._inbox = self._inbox, deque()
        if self.peer is not None and (size := sum(len(item) for item in held if item)):
            self.peer._shipped(size)

    def _reset(self) -> None:
        if self.hold is not None and self.hold(self._reset):
            return
        if not self._lost:
            self._closing = True
            self._lose(ConnectionResetError(104, "Connection reset by peer"))

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = True
            self._loop.call_soon(self._owner().connection_lost, error)

    @property
    def lost(self) -> bool:
        """Both protocols have been told, or will be in this turn."""
        return self._lost

    def is_closing(self) -> bool:
        return self._closing or self._lost

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, (asyncio.Protocol, asyncio.BufferedProtocol)), "the simulated pipe is a stream"
        self._protocol = protocol

    def get_protocol(self) -> Reader:
        return self._owner()

    def _owner(self) -> Reader:
        assert self._protocol is not None, "the transport has no protocol yet"
        return self._protocol


def connect(
    loop: asyncio.AbstractEventLoop,
    chance: random.Random,
    client: asyncio.BaseProtocol,
    server: asyncio.BaseProtocol,
    delay_s: float = 0.0002,
    hold: Hold | None = None,
) -> tuple[PipeTransport, PipeTransport]:
    """Connect two protocols: both hear `connection_made`, the server first. Returns (client's end, server's end)."""
    near = PipeTransport(loop, chance, delay_s, "192.0.2.1", "192.0.2.2")
    far = PipeTransport(loop, chance, delay_s, "192.0.2.2", "192.0.2.1")
    near.peer, far.peer = far, near
    near.hold = far.hold = hold
    near.set_protocol(client)
    far.set_protocol(server)
    server.connection_made(far)
    client.connection_made(near)
    return near, far
