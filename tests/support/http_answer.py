"""An HTTP answer as its bytes say it."""

from __future__ import annotations

import json


class Answer:
    """Status, headers (names in lower case) and the body."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def error(self) -> str:
        """The text of an error's body, which must have nothing else in it."""
        document = json.loads(self.body)
        assert list(document) == ["error"]
        assert isinstance(document["error"], str)
        return document["error"]


def unchunked(body: bytes) -> tuple[list[bytes], bytes | None]:
    """The chunks of a chunked body, and what follows its end: None if the end is missing."""
    chunks: list[bytes] = []
    while body:
        line, newline, rest = body.partition(b"\r\n")
        assert newline, f"a cut chunk: {body!r}"
        size = int(line, 16)
        assert rest[size : size + 2] == b"\r\n", "a chunk of another length than it says"
        body = rest[size + 2 :]
        if size == 0:
            return chunks, body
        chunks.append(rest[:size])
    return chunks, None
