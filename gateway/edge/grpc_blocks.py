"""Header blocks of gRPC answers over HTTP/2: literals that touch no HPACK table, put together from remembered parts.

All but the request id repeats from one good answer to the next.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.core.call import Call
from gateway.core.codes import Code
from gateway.core.header_names import REQUEST_ID
from gateway.edge.grpc_answers import answered
from gateway.wire.grpc.compression import ACCEPT_ENCODING
from gateway.wire.grpc.status import encode_message, encode_status, end_fields
from gateway.wire.hpack import literal
from gateway.wire.hpack.literals import SHORT_LENGTHS, string

_OPENING = literal(b":status", b"200") + literal(b"content-type", b"application/grpc")
OPENING = _OPENING + literal(b"grpc-accept-encoding", ACCEPT_ENCODING)
"""Begins every answer but one that is an error alone."""
_OK = b"".join(literal(name, value) for name, value in end_fields(Code.OK, ""))
_ID_NAME = literal(REQUEST_ID.encode(), b"")[:-1]
_SHORT = 127
"""Below this a length takes one byte (RFC 7541 section 5.1)."""

_BLOCKS_MAX = 1024


def pairs_block(pairs: Iterable[tuple[str, str]]) -> bytes:
    """Metadata, of which all is ASCII."""
    return b"".join([literal(name.encode("ascii"), value.encode("ascii")) for name, value in pairs])


def request_id_block(request_id: str) -> bytes:
    """`x-request-id` alone. The id was checked when it was read: printable ASCII."""
    value = request_id.encode("ascii")
    if len(value) < _SHORT:
        return b"%b%c%b" % (_ID_NAME, len(value), value)
    return literal(REQUEST_ID.encode(), value)


def good_end(trailing: Iterable[tuple[str, str]] = ()) -> bytes:
    """Trailers of a good answer."""
    return _OK + pairs_block(trailing)


def bad_end(code: Code, text: str, trailing: Iterable[tuple[str, str]]) -> bytes:
    """Trailers of an answer that ended in an error. The text is there even if it is empty, as with gRPC's library."""
    return (
        literal(b"grpc-status", encode_status(code))
        + literal(b"grpc-message", encode_message(text))
        + pairs_block(trailing)
    )


def error_alone(code: Code, text: str, trailing: Iterable[tuple[str, str]]) -> bytes:
    """An answer that is nothing but an error ("trailers-only")."""
    return _OPENING + bad_end(code, text, trailing)


def not_grpc(status: int, text: bytes) -> bytes:
    """Head of an answer in plain HTTP, to somebody who does not speak gRPC. `text` is its body."""
    allow = literal(b"allow", b"POST") if status == 405 else b""
    return (
        literal(b":status", b"%d" % status)
        + literal(b"content-type", b"text/plain")
        + literal(b"content-length", b"%d" % len(text))
        + allow
    )


class AnswerBlocks:
    """Head and trailers of good answers to calls."""

    __slots__ = ("_heads", "_tails")

    def __init__(self) -> None:
        self._heads: dict[tuple[str, str, str], bytes] = {}
        self._tails: dict[int, bytes] = {}

    def head(self, call: Call) -> bytes:
        """The head of the answer to `call`."""
        trail = call.trail
        key = (call.model, trail.version_served or trail.version_routed, trail.rung)
        block = self._heads.get(key)
        if block is None:
            initial, _ = answered(call, "")
            block = OPENING + pairs_block(pair for pair in initial if pair[0] != REQUEST_ID) + _ID_NAME
            if len(self._heads) >= _BLOCKS_MAX:
                self._heads.clear()
            self._heads[key] = block
        value = call.request_id.encode("ascii")
        size = len(value)
        return block + (SHORT_LENGTHS[size] + value if size < _SHORT else string(value))

    def tail(self, call: Call, story: str) -> bytes:
        """Its trailers; `story` is its explanation, "" for none."""
        attempts = len(call.trail.attempts)
        block = self._tails.get(attempts)
        if block is None or story:
            block = good_end(answered(call, story)[1])
            if not story:
                if len(self._tails) >= _BLOCKS_MAX:
                    self._tails.clear()
                self._tails[attempts] = block
        return block
