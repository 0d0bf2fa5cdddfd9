"""A record store in memory: for the simulation and for tests of what stands above it."""

from __future__ import annotations

import errno


class MemoryStore:
    """Keeps up to `bytes_max` bytes of lines; beyond that it is as full as a full disk."""

    def __init__(self, bytes_max: int = 256 * 1024 * 1024) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._chunks: list[bytes] = []
        self.closed = False

    def append(self, lines: bytes) -> None:
        if self._bytes + len(lines) > self._bytes_max:
            raise OSError(errno.ENOSPC, "the memory store is full")
        self._chunks.append(lines)
        self._bytes += len(lines)

    def sync(self) -> None:
        """Nothing is left to do."""

    def close(self) -> None:
        self.closed = True

    @property
    def lines(self) -> list[bytes]:
        """Every line, without its line break."""
        return b"".join(self._chunks).splitlines()
