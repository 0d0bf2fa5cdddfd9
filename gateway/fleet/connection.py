"""Connection: a replica's client together with the count of calls that are out on it."""

from __future__ import annotations

import asyncio

from gateway.core.faces import ReplicaClient


class Connection:
    """Closes its client only when the last call has left, or when the patience ends."""

    __slots__ = ("_idle", "client", "draining", "in_flight")

    def __init__(self, client: ReplicaClient) -> None:
        self.client = client
        self.in_flight = 0
        """Counted by those who send calls, with `enter` and `leave` or as these do it."""
        self.draining = False
        """Somebody waits until nothing is out any more: tell it by `left`."""
        self._idle: asyncio.Future[None] | None = None

    def enter(self) -> None:
        self.in_flight += 1

    def leave(self) -> None:
        self.in_flight -= 1
        if self.draining:
            self.left()

    def left(self) -> None:
        """A call was taken from `in_flight`."""
        if not self.in_flight and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def drain(self, limit_s: float) -> int:
        """Wait for the calls that are out, at most `limit_s` seconds, then close the client. Returns how
        many were still out.
        """
        if self.in_flight:
            self._idle = asyncio.get_running_loop().create_future()
            self.draining = True
            await asyncio.wait((self._idle,), timeout=limit_s)
        cut = self.in_flight
        await self.client.aclose()
        return cut
