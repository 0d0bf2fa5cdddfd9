"""What the codec tells its driver."""

from __future__ import annotations

from typing import TypeAlias


class RequestHead:
    """Request line and header section of one request, checked.

    `target` is in origin-form (it starts with `/`) or is `*`; it is raw: percent-encoded, with its query. Header
    names are lower case, values have no surrounding whitespace; both are bytes. `content_length` is None where the
    request has no such header; then there is a body only if `chunked`. `expect_continue` is true if the client waits
    for `continue_100()` before it sends the body. `keep_alive` is what the client asks for. `body` is the request's
    whole body where it came with the head and `receive_request` gave this one out, else None.
    """

    __slots__ = (
        "_index",
        "body",
        "chunked",
        "content_length",
        "expect_continue",
        "headers",
        "http_minor",
        "keep_alive",
        "method",
        "target",
    )

    def __init__(
        self,
        method: bytes,
        target: bytes,
        http_minor: int,
        headers: list[tuple[bytes, bytes]],
        index: dict[bytes, bytes],
        content_length: int | None,
        chunked: bool,
        expect_continue: bool,
        keep_alive: bool,
    ) -> None:
        self.method = method
        self.target = target
        self.http_minor = http_minor
        self.headers = headers
        self._index = index
        self.content_length = content_length
        self.chunked = chunked
        self.expect_continue = expect_continue
        self.keep_alive = keep_alive
        self.body: bytes | memoryview | None = None

    def get(self, name: bytes) -> bytes | None:
        """The value of the header `name` (lower case), or None. Repeated ones are joined (RFC 9110 5.3)."""
        return self._index.get(name)

    def __repr__(self) -> str:
        return f"RequestHead({self.method!r}, {self.target!r}, 1.{self.http_minor}, {len(self.headers)} headers)"


class BodyChunk:
    """Some bytes of the request's body, never empty. A memoryview where the piece is large: not copied, read-only."""

    __slots__ = ("data",)

    def __init__(self, data: bytes | memoryview) -> None:
        self.data = data

    def __repr__(self) -> str:
        return f"BodyChunk({len(self.data)} bytes)"


class RequestEnd:
    """The request is complete."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "RequestEnd()"


class ProtocolFault:
    """The client broke the protocol or a limit; nothing more is read from this connection.

    Answer with `status` when the turn of this request comes; the codec announces the close. `reason` is a sentence
    for the client and holds none of its bytes. A fault stands for a whole request, unless a RequestHead without its
    RequestEnd came before: then it ends that one, for which no answer has been started.
    """

    __slots__ = ("reason", "status")

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        self.reason = reason

    def __repr__(self) -> str:
        return f"ProtocolFault({self.status}, {self.reason!r})"


Event: TypeAlias = RequestHead | BodyChunk | RequestEnd | ProtocolFault

REQUEST_END = RequestEnd()


class Refusal(Exception):
    """Inside the codec: the input is refused with `status`. Becomes a ProtocolFault and never leaves the package."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status, reason)
        self.status = status
        self.reason = reason
