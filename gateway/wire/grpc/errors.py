"""What a gRPC peer can do wrong, as exceptions with the status that ends the call."""

from __future__ import annotations

from gateway.core.codes import Code


class GrpcFault(Exception):
    """The peer broke gRPC's protocol over HTTP/2, or a limit. The call ends with `code`; `text` says why and holds none
    of the peer's bytes.

    `before` has the messages, as `MessageReader.feed` returns them, that were complete in front of the fault: they are
    good, and must be handed on first.
    """

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(f"{code.name}: {text}")
        self.code = code
        self.text = text
        self.before: list[tuple[bool, bytes]] = []


class MessageTooLarge(GrpcFault):
    """A message of `length` bytes where `limit_bytes` are allowed; `length` is None for one that is too large only when
    decompressed, because nobody has counted it to its end.

    The text has the words and numbers of gRPC's own library, which `core.faults` looks for.
    """

    def __init__(self, length: int | None, limit_bytes: int) -> None:
        text = "Decompressed message larger than max"
        if length is not None:
            text = f"Received message larger than max ({length} vs. {limit_bytes})"
        super().__init__(Code.RESOURCE_EXHAUSTED, text)
        self.length = length
        self.limit_bytes = limit_bytes


class MessageRefused(GrpcFault):
    """There is no room now for a message of `length` bytes, which is within the limit."""

    def __init__(self, length: int) -> None:
        super().__init__(Code.RESOURCE_EXHAUSTED, f"there is no memory for a message of {length} bytes now")
        self.length = length
