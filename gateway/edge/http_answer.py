"""Answers over HTTP: status, headers and body, ready for the codec.

The headers of a good answer repeat from call to call but for the request id, so their lines are kept.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.header_names import REQUEST_ID
from gateway.edge.headers import header_text, response_headers
from gateway.edge.status import RETRY_STATUSES, error_body, retry_after_s, status_of
from gateway.wire.http1 import header_block
from gateway.wire.kserve.http_response import HttpInferResponse

JSON_TYPE = b"application/json"
EMPTY_TYPE = b"text/plain"
"""What Triton says of an answer without a body."""

_BLOCKS_MAX = 1024


class HttpAnswer:
    """One whole answer. `block` are its header lines but for framing; `length` is the bytes in `chunks`."""

    __slots__ = ("block", "chunks", "length", "status")

    def __init__(self, status: int, block: bytes, chunks: list[bytes | memoryview], length: int) -> None:
        self.status = status
        self.block = block
        self.chunks = chunks
        self.length = length


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error with what only HTTP says of it: `status` where it is not the error's own (else 0), more headers."""

    error: GatewayError
    status: int = 0
    headers: tuple[tuple[bytes, bytes], ...] = ()


def _encoded(pairs: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("ascii"), value.encode("ascii")) for name, value in pairs]


class ReadyAnswer:
    """A request that was answered without a call; its answer waits for its turn."""

    __slots__ = ("answer", "wanted")

    def __init__(self, answer: HttpAnswer) -> None:
        self.answer = answer
        self.wanted = False


class HttpAnswers:
    """Makes answers. `chance` jitters `retry-after`."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._blocks: dict[tuple[str, str, str, str, str, int], bytes] = {}

    def inferred(self, call: Call, rendered: HttpInferResponse, explanation: str) -> HttpAnswer:
        """The answer to an inference call."""
        trail = call.trail
        key = (
            rendered.content_type,
            rendered.content_coding,
            call.model,
            trail.version_served or trail.version_routed,
            trail.rung,
            len(trail.attempts),
        )
        block = self._blocks.get(key)
        if block is None:
            pairs = [pair for pair in response_headers(call) if pair[0] != REQUEST_ID]
            if rendered.content_coding:
                pairs.insert(0, ("Content-Encoding", rendered.content_coding))
            block = header_block([(b"Content-Type", rendered.content_type.encode("ascii")), *_encoded(pairs)])
            if len(self._blocks) >= _BLOCKS_MAX:
                self._blocks.clear()
            self._blocks[key] = block
        # The id was checked when it was read: printable ASCII.
        block += b"x-request-id: %b\r\n" % call.request_id.encode("ascii")
        if rendered.header_length is not None:
            block += b"Inference-Header-Content-Length: %d\r\n" % rendered.header_length
        if explanation:
            block += header_block([(b"x-sluice-explain", explanation.encode("ascii"))])
        return HttpAnswer(200, block, rendered.chunks, rendered.content_length)

    def call_failed(self, call: Call, refusal: Refusal, explanation: str) -> HttpAnswer:
        """The answer to a call that ended in an error."""
        pairs = _encoded(response_headers(call, refusal.error, explanation))
        pairs.extend(refusal.headers)
        return self._failure(refusal.error, refusal.status or status_of(refusal.error), pairs)

    def refused(
        self,
        request_id: str,
        error: GatewayError,
        *,
        status: int = 0,
        model: str = "",
        more: Iterable[tuple[bytes, bytes]] = (),
    ) -> HttpAnswer:
        """The answer to a request that did not become a call. `status` overrides the error's own if it is not 0."""
        pairs = [(b"x-request-id", request_id.encode("ascii")), (b"x-sluice-reason", error.reason.label.encode())]
        if model:
            pairs.append((b"x-sluice-model", header_text(model).encode("ascii")))
        pairs.extend(more)
        return self._failure(error, status or status_of(error), pairs)

    def told(
        self, request_id: str, body: bytes, *, status: int = 200, content_type: bytes = JSON_TYPE, model: str = ""
    ) -> HttpAnswer:
        """The answer to a control query."""
        pairs = [(b"Content-Type", content_type), (b"x-request-id", request_id.encode("ascii"))]
        if model:
            pairs.append((b"x-sluice-model", header_text(model).encode("ascii")))
        return HttpAnswer(status, header_block(pairs), [body] if body else [], len(body))

    def _failure(self, error: GatewayError, status: int, pairs: list[tuple[bytes, bytes]]) -> HttpAnswer:
        body = error_body(error.message)
        lines = [(b"Content-Type", JSON_TYPE), *pairs]
        if status in RETRY_STATUSES:
            lines.append((b"retry-after", b"%d" % retry_after_s(error, self._chance)))
        elif error.reason is Reason.UNAUTHENTICATED:
            lines.append((b"www-authenticate", b'Bearer realm="sluice"'))
        return HttpAnswer(status, header_block(lines), [body], len(body))
