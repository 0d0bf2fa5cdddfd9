"""Compressed bodies over HTTP: which codings are taken, and answers, which small ones are compressed where they stand
and large ones on worker threads, in slices (`inflating` does the other way).

Measured on the build machine (zlib 1.2.13, one core): at level 1 50 MB/s (random floats) to 800 MB/s (text that
repeats), at level 6 20 to 460.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from gateway.core.errors import GatewayError, Reason
from gateway.edge.http_answer import Refusal
from gateway.policy.schema import HttpLimits
from gateway.runtime.workers import Workers
from gateway.wire.content_coding import CODINGS, IDENTITY, Deflater, choose
from gateway.wire.http1 import RequestHead
from gateway.wire.http_path import Route
from gateway.wire.kserve.http_response import HttpInferResponse

INLINE_DEFLATE_BYTES = 16 * 1024
"""Answers up to this size are deflated on the loop, up to 0.15 ms at level 1."""
DEFLATE_SLICE_BYTES = 256 * 1024
"""Encoded in one go in a worker thread, about 5 ms; then the deadline is looked at."""

_GENERATE = frozenset({Route.MODEL_GENERATE, Route.MODEL_GENERATE_STREAM})
_TAKEN = ((b"accept-encoding", b"gzip, deflate"),)


def request_coding(head: RequestHead) -> bytes | None:
    """The coding of an inference's body; None if it has none. Of codings that are not taken, `coding_fault` has told
    already.
    """
    coding = head.get(b"content-encoding")
    return coding if coding in CODINGS else None


def coding_fault(head: RequestHead, route: Route | None) -> Refusal | None:
    """What is wrong with a request's `Content-Encoding`; as Triton 2.51, which looks at it on these routes alone."""
    coding = head.get(b"content-encoding")
    if coding is None or coding == IDENTITY:
        return None
    if route is Route.MODEL_INFER and coding not in CODINGS:
        error = GatewayError(
            Reason.UNSUPPORTED,
            "Unsupported compression type: a body may be sent with Content-Encoding gzip, deflate or identity, or "
            "without the header",
        )
        return Refusal(error, 0, _TAKEN)
    if route in _GENERATE:
        return Refusal(GatewayError(Reason.BAD_REQUEST, "Unsupported content-encoding, only 'identity' is supported."))
    return None


def arriving_bytes_max(body_bytes_max: int) -> int:
    """How many compressed bytes a body of that size can take: what cannot be compressed grows by a little."""
    return body_bytes_max + body_bytes_max // 256 + 1024


class BodyCoding:
    """Encodes answers under one policy. `workers` are for what is too large for the loop, both ways."""

    __slots__ = ("_enabled", "_level", "workers")

    def __init__(self, limits: HttpLimits, workers: Workers) -> None:
        self.workers = workers
        self.use(limits)

    def use(self, limits: HttpLimits) -> None:
        """Take these for answers from now on."""
        self._enabled = limits.response_compression
        self._level = limits.response_compression_level

    def chosen(self, accept_encoding: bytes | None) -> bytes:
        """The coding for an answer to a request with that header."""
        return IDENTITY if accept_encoding is None or not self._enabled else choose(accept_encoding)

    async def encode(self, answer: HttpInferResponse, coding: bytes, expired: Callable[[], bool]) -> HttpInferResponse:
        """`answer` in `coding`, which is not `IDENTITY`. Its header length goes on counting the JSON as it was.

        Whatever the size, as Triton does. Raises `GatewayError` (DEADLINE) if `expired` says so before it is done.
        """
        deflater = Deflater(coding, self._level, answer.content_length)
        if answer.content_length <= INLINE_DEFLATE_BYTES:
            return _encoded(answer, coding, [*map(deflater.add, answer.chunks), deflater.end()])
        chunks: list[bytes] = []
        for piece in _slices(answer.chunks):
            chunks.append(await self.workers.run(partial(deflater.add, piece)))
            if expired():
                raise GatewayError(Reason.DEADLINE, "the deadline passed while the answer was compressed")
        chunks.append(await self.workers.run(deflater.end))
        return _encoded(answer, coding, chunks)


def _encoded(answer: HttpInferResponse, coding: bytes, chunks: list[bytes]) -> HttpInferResponse:
    kept: list[bytes | memoryview] = [chunk for chunk in chunks if chunk]
    length = sum(map(len, kept))
    return HttpInferResponse(kept, length, answer.content_type, answer.header_length, coding.decode("ascii"))


def _slices(chunks: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    for chunk in chunks:
        view = memoryview(chunk)
        for start in range(0, len(view), DEFLATE_SLICE_BYTES):
            yield view[start : start + DEFLATE_SLICE_BYTES]
