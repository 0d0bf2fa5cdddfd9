"""Many calls at a time: connections of one caller each behind the face that an open loop sends through."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

from load.connection import Connection, Done, Part
from load.inputs import LoadCall


class Pool:
    """A `Sender` over connections that take one call at a time. They are made when they are needed, and the one that
    was used last is taken first, as clients' pools do it; so their number is the largest number of calls in flight.
    """

    def __init__(self, make: Callable[[], Connection], ready: Iterable[Connection] = ()) -> None:
        self._make = make
        self._all = list(ready)
        self._idle = list(self._all)

    def open(self, count: int) -> None:
        """Have at least so many connections; each opens its socket with its first call."""
        while len(self._all) < count:
            self._idle.append(self._add())

    def _add(self) -> Connection:
        connection = self._make()
        self._all.append(connection)
        return connection

    def send(self, call: LoadCall, done: Done, part: Part | None = None) -> None:
        connection = self._idle.pop() if self._idle else self._add()
        connection.send(call, partial(self._ended, connection, done))

    def _ended(self, connection: Connection, done: Done, error: str) -> None:
        self._idle.append(connection)
        done(error)

    def check(self, now_s: float) -> None:
        for connection in self._all:
            connection.check(now_s)

    async def aclose(self) -> None:
        await asyncio.gather(*(connection.aclose() for connection in self._all))


class Multiplexed:
    """A `Sender` over a fixed number of connections that each carry many calls, taken in turn."""

    def __init__(self, make: Callable[[], Connection], connections: int) -> None:
        self._all = [make() for _ in range(connections)]
        self._turn = 0

    def send(self, call: LoadCall, done: Done, part: Part | None = None) -> None:
        self._turn = (self._turn + 1) % len(self._all)
        self._all[self._turn].send(call, done)

    def check(self, now_s: float) -> None:
        for connection in self._all:
            connection.check(now_s)

    async def aclose(self) -> None:
        await asyncio.gather(*(connection.aclose() for connection in self._all))
