"""What leaves a connection: pieces that become ready together are written together."""

from __future__ import annotations

import asyncio

JOIN_BYTES_MAX = 64 * 1024
"""Answers up to this size leave in one piece; of larger ones no byte is copied here."""


class Outbox:
    """Writes at once, or after `hold()` when `release()` is called or `JOIN_BYTES_MAX` have gathered."""

    __slots__ = ("_bytes", "_held", "_pieces", "transport")

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        """None before the connection is made and after it is lost: what is emitted then is dropped."""
        self._held = False
        self._pieces: list[bytes | memoryview] = []
        self._bytes = 0

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
            return
        for piece in pieces:
            self.transport.write(piece)
