"""Compressed messages: what `grpc-encoding` may say, and decompression under a hard bound.

The encodings are those of gRPC's own library, and so Triton's: `gzip` (RFC 1952) and `deflate` (RFC 1950, the zlib
container). Source: https://github.com/grpc/grpc/blob/master/doc/compression.md
"""

from __future__ import annotations

from gateway.core.codes import Code
from gateway.core.errors import GatewayError
from gateway.wire.content_coding import DEFLATE, GZIP, IDENTITY, Deflater, Inflater
from gateway.wire.grpc.errors import GrpcFault, MessageTooLarge

ENCODINGS = frozenset({IDENTITY, GZIP, DEFLATE})
ACCEPT_ENCODING = b"identity, deflate, gzip"
"""The value of `grpc-accept-encoding`, as gRPC's library writes it."""

_GZIP_MAGIC = b"\x1f\x8b"
_HEADERS_MAX = 256
_HEADER_BYTES_MAX = 256
_accepted: dict[bytes, frozenset[bytes]] = {}
"""Values of `grpc-accept-encoding` seen before: a client sends the same with every call."""


def read_encoding(value: bytes | None) -> bytes:
    """What `grpc-encoding` says; `IDENTITY` if there is no such header.

    Raises `GrpcFault` (INTERNAL, as gRPC's library has it where the specification says UNIMPLEMENTED) for a name that
    is not known; names are lower case.
    """
    if value is None:
        return IDENTITY
    if value not in ENCODINGS:
        raise GrpcFault(Code.INTERNAL, "the value of grpc-encoding is not known: it may be identity, deflate or gzip")
    return value


def accepted(value: bytes | None) -> frozenset[bytes]:
    """Those of `ENCODINGS` that `grpc-accept-encoding` names; `IDENTITY` always."""
    if value is None:
        return _ONLY_IDENTITY
    found = _accepted.get(value)
    if found is None:
        found = _ONLY_IDENTITY | ENCODINGS.intersection(name.strip(b" \t") for name in value.split(b","))
        if len(value) <= _HEADER_BYTES_MAX:
            if len(_accepted) >= _HEADERS_MAX:
                _accepted.clear()
            _accepted[value] = found
    return found


_ONLY_IDENTITY = frozenset({IDENTITY})


def compress(message: bytes, encoding: bytes, level: int) -> bytes:
    """`message` in `encoding`, which is not `IDENTITY`, at zlib's `level`, 1 (fast) to 9."""
    deflater = Deflater(encoding, level, len(message))
    return deflater.add(message) + deflater.end()


def check_compressed(payload: bytes, encoding: bytes) -> None:
    """What can be told of a compressed message before it is decompressed: that there is an encoding, and that the
    container is the one that it names (`Inflater` takes either, which is HTTP's custom and not gRPC's).

    Raises `GrpcFault` (INTERNAL).
    """
    if encoding == IDENTITY:
        raise GrpcFault(Code.INTERNAL, "Compression bit set but no encoding configured")  # gRPC's library's own words
    if payload and payload.startswith(_GZIP_MAGIC) != (encoding == GZIP):
        raise _bad(encoding)


def decompress(payload: bytes, encoding: bytes, limit_bytes: int) -> bytes:
    """The message in the `payload` of a frame whose flag says that it is compressed; at most `limit_bytes`.

    It may run in another thread. Decompressing takes 0.5 to 4 ms for each MiB that comes out, and never makes more than
    one byte over the limit.

    Raises `GrpcFault`: `MessageTooLarge`, or INTERNAL for what is not exactly one whole message in that encoding, and
    under `IDENTITY` for any. Nothing at all is the empty message, as in gRPC's library.
    """
    check_compressed(payload, encoding)
    if not payload:
        return b""
    inflater = Inflater()
    inflater.feed(payload)
    try:
        pieces = inflater.step(limit_bytes + 1)
        if inflater.decoded_bytes > limit_bytes:
            raise MessageTooLarge(None, limit_bytes)
        inflater.end()
    except GatewayError:
        raise _bad(encoding) from None
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _bad(encoding: bytes) -> GrpcFault:
    return GrpcFault(Code.INTERNAL, f"a message is not one whole {encoding.decode()} stream")
