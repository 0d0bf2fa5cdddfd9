"""What leaves a connection: pieces that become ready together are written together, and what a slow reader leaves in
the transport is counted against the memory for bodies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.core.faces import BodyBudget

JOIN_BYTES_MAX = 64 * 1024
"""Answers up to this size leave in one piece; of larger ones no byte is copied here."""


def _nothing() -> None:
    pass


class Outbox:
    """Writes at once, or after `hold()` when `release()` is called or `JOIN_BYTES_MAX` have gathered.

    From `stuck()` (the transport asks for a pause) to `unstuck()` what the transport holds is reserved in `budget`. If
    there is no room for it, nothing more is written and `overflow` is called, which must end the connection.
    """

    __slots__ = ("_budget", "_bytes", "_held", "_overflow", "_pieces", "_reserved", "_stuck", "transport")

    def __init__(self, budget: BodyBudget, overflow: Callable[[], None]) -> None:
        self.transport: asyncio.Transport | None = None
        """None before the connection is made and after it is lost: what is emitted then is dropped."""
        self._budget = budget
        self._overflow = overflow
        self._held = False
        self._pieces: list[bytes | memoryview] = []
        self._bytes = 0
        self._stuck = False
        self._reserved = 0

    def hold(self) -> None:
        self._held = True

    def release(self) -> None:
        self._held = False
        self.flush()

    def emit(self, data: bytes | memoryview) -> None:
        if not data or self.transport is None:
            return
        if not self._held:
            self.transport.write(data)
            if self._stuck:
                self._count()
            return
        self._pieces.append(data)
        self._bytes += len(data)
        if self._bytes >= JOIN_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Hand everything to the transport."""
        pieces = self._pieces
        if not pieces:
            return
        joinable = len(pieces) > 1 and self._bytes <= 2 * JOIN_BYTES_MAX
        self._pieces, self._bytes = [], 0
        if self.transport is None:
            return
        if joinable:
            self.transport.write(b"".join(pieces))
        else:
            for piece in pieces:
                self.transport.write(piece)
        if self._stuck:
            self._count()

    def stuck(self) -> None:
        """The client does not take what it is sent; the transport holds it."""
        self._stuck = True
        self._count()

    def unstuck(self) -> None:
        """The client has taken most of it, or the connection is gone."""
        self._stuck = False
        if self._reserved:
            self._budget.release(self._reserved)
            self._reserved = 0

    def close(self) -> None:
        """The connection is lost: nothing more is written, and the owner is let go, whom otherwise only the collector
        of cycles would free.
        """
        self.transport = None
        self.unstuck()
        self._overflow = _nothing

    def _count(self) -> None:
        """Of a stuck client: see that what the transport holds is reserved."""
        if self.transport is None:
            return
        more = self.transport.get_write_buffer_size() - self._reserved
        if more <= 0:
            return
        if self._budget.try_reserve(more):
            self._reserved += more
            return
        self.transport = None
        self._overflow()
