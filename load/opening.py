"""What a connection says before it falls silent: one question whether the server lives, over either protocol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from hpack import Encoder

from load.connection import Connection
from load.http_connection import HttpConnection
from load.inputs import Inputs
from load.raw_grpc_connection import RawGrpcConnection, frame

Protocol = Literal["http", "grpc"]
PROTOCOLS: tuple[Protocol, ...] = ("http", "grpc")

_LIVE = b"\x00\x00\x00\x00\x02\x08\x01"
"""A message that says `live: true`."""
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4


@dataclass(frozen=True, slots=True)
class Opening:
    """`said` goes out first. `good` looks at all that came back: None while the answer is not whole."""

    name: str
    said: bytes
    good: Callable[[bytes], bool | None]


def opening(protocol: Protocol, address: str) -> Opening:
    """That of clients of `address` (host:port)."""
    if protocol == "http":
        return Opening("HTTP", f"GET /v2/health/live HTTP/1.1\r\nhost: {address}\r\n\r\n".encode(), _http_good)
    head = Encoder().encode(
        [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", b"/inference.GRPCInferenceService/ServerLive"),
            (b":authority", address.encode()),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        ]
    )
    return Opening(
        "gRPC",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        + frame(_SETTINGS, 0, 0, b"")
        + frame(_SETTINGS, _ACK, 0, b"")
        + frame(_HEADERS, _END_HEADERS, 1, head)
        + frame(_DATA, _END_STREAM, 1, bytes(5)),
        _grpc_good,
    )


def caller(protocol: Protocol, address: str, inputs: Inputs) -> Connection:
    """Makes inference calls over a connection of its own."""
    return HttpConnection(address, inputs) if protocol == "http" else RawGrpcConnection(address, inputs)


def _http_good(got: bytes) -> bool | None:
    # The answer to a health query has no body.
    return got.startswith(b"HTTP/1.1 200 ") if b"\r\n\r\n" in got else None


def _grpc_good(got: bytes) -> bool | None:
    at, payload = 0, b""
    while len(got) >= at + 9:
        size, kind, flags = int.from_bytes(got[at : at + 3], "big"), got[at + 3], got[at + 4]
        stream = int.from_bytes(got[at + 5 : at + 9], "big")
        if len(got) < at + 9 + size:
            return None
        if stream == 1:
            if kind == _DATA:
                payload += got[at + 9 : at + 9 + size]
            if flags & _END_STREAM and kind in (_DATA, _HEADERS):
                return payload == _LIVE
        at += 9 + size
    return None
