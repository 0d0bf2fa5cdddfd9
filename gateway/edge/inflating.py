"""Decompressing what clients send: small messages where they stand, large ones on worker threads, in slices.

zlib lets go of the interpreter while it works, so a thread really takes the load off the loop; the hop costs about
100 us, which small bodies would pay for nothing. Measured on the build machine (zlib 1.2.13, one core): 250 to
2,000 MB/s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from gateway.core.errors import GatewayError, Reason
from gateway.core.faces import BodyBudget
from gateway.runtime.workers import Workers
from gateway.wire.content_coding import Inflater

INLINE_INFLATE_BYTES = 64 * 1024
"""So much of a body is inflated on the loop, up to 0.2 ms; what is larger goes on in a worker thread."""
INFLATE_SLICE_BYTES = 1024 * 1024
"""Decoded in one go there, 1 to 4 ms; then the memory for the next is asked for."""


class InflatingBody:
    """The decoded form of one compressed body, as far as it has come.

    At most `bytes_max` bytes, each of them reserved in `budget` before it is there; `too_large` makes the error for
    what is larger. Must be closed, which gives the memory back.
    """

    __slots__ = ("_budget", "_bytes_max", "_closed", "_inflater", "_too_large", "_workers", "pieces", "reserved_bytes")

    def __init__(
        self, workers: Workers, budget: BodyBudget, bytes_max: int, too_large: Callable[[], GatewayError]
    ) -> None:
        self._workers = workers
        self._budget = budget
        self._bytes_max = bytes_max
        self._too_large = too_large
        self._inflater = Inflater()
        self._closed = False
        self.pieces: list[bytes] = []
        self.reserved_bytes = 0

    async def add(self, compressed: Iterable[bytes | memoryview]) -> None:
        """Decode more. One at a time. Raises `GatewayError`: BAD_REQUEST, BODY_MEMORY, or what `too_large` makes."""
        inflater = self._inflater
        for data in compressed:
            inflater.feed(data)
        while inflater.pending and not self.closed():
            inline = inflater.decoded_bytes < INLINE_INFLATE_BYTES
            # One more than allowed, to see what is over.
            left = self._bytes_max + 1 - inflater.decoded_bytes
            room = min(left, INLINE_INFLATE_BYTES if inline else INFLATE_SLICE_BYTES)
            if not self._budget.try_reserve(room):
                raise no_memory()
            self.reserved_bytes += room
            before = inflater.decoded_bytes
            if inline:
                pieces = inflater.step(room)
            else:
                pieces = await self._workers.run(partial(inflater.step, room))
                if self.closed():
                    return
            self.pieces += pieces
            self._give_back(room - (inflater.decoded_bytes - before))
            if inflater.decoded_bytes > self._bytes_max:
                raise self._too_large()

    def end(self) -> None:
        """All has been added. Raises `GatewayError` (BAD_REQUEST) if that was not a whole body."""
        self._inflater.end()

    def closed(self) -> bool:
        # A method: type checkers believe that an attribute stays as it was, and a worker takes its time.
        return self._closed

    def close(self) -> None:
        self._closed = True
        self.pieces = []
        self._give_back(self.reserved_bytes)

    def _give_back(self, size: int) -> None:
        self.reserved_bytes -= size
        self._budget.release(size)


def no_memory() -> GatewayError:
    """There is no room for a body now."""
    return GatewayError(
        Reason.BODY_MEMORY, "the gateway's memory for request bodies is used up; try again", retry_after_s=1.0
    )
