"""What RFC 9113 section 8 demands of the fields of a block: pseudo-fields, names, values.

Each check gives a sentence about the fault, or "" for a good block; the connection keeps the answer in the block's
`verdict`, so a block that comes again is not checked again.

One rule is left out on purpose: a value may begin or end with a blank. The gRPC protocol lets a receiver strip such
blanks, and its C library sends them.
"""

from __future__ import annotations

import re
from typing import Final

from gateway.wire.hpack import HeaderBlock

GOOD_REQUEST: Final = "good request"
GOOD_RESPONSE: Final = "good response"
GOOD_TRAILERS: Final = "good trailers"

Fields = tuple[tuple[bytes, bytes], ...]

# Names met on every call, and free of special rules: one look-up instead of a match.
_USUAL: Final = frozenset(
    b"content-type user-agent accept accept-encoding content-length grpc-encoding grpc-accept-encoding grpc-timeout "
    b"grpc-status grpc-message grpc-status-details-bin traceparent tracestate baggage x-request-id authorization "
    b"server date host".split()
)
_RULED: Final = frozenset((b":method", b":scheme", b":path", b":authority", b"te"))
"""Whose values have rules of their own."""
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_OF_CONNECTION: Final = frozenset((b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"))
_REQUEST_PSEUDO: Final = {b":method": 1, b":scheme": 2, b":path": 4, b":authority": 8}
_STATUS: Final = re.compile(rb"[1-9][0-9][0-9]")


def judge_request(block: HeaderBlock) -> str:
    """What is wrong with the head of a request, kept in the block's `verdict` if that is nothing.

    Of a block that differs from a good one only in values without rules of their own, nothing but these is looked at.
    """
    layout = block.layout
    if layout is not None and layout.verdict is GOOD_REQUEST:
        values = b"".join(block.values)
        if not (0 in values or 10 in values or 13 in values):
            block.verdict = GOOD_REQUEST
            return ""
    fault = request_fault(block.fields)
    if not fault:
        block.verdict = GOOD_REQUEST
        if layout is not None and _RULED.isdisjoint(layout.names):
            layout.verdict = GOOD_REQUEST
    return fault


def request_fault(fields: Fields) -> str:
    """What is wrong with the head of a request (RFC 9113 section 8.3.1)."""
    seen = 0
    regular = 0
    for name, value in fields:
        bit = _REQUEST_PSEUDO.get(name)
        if bit is None:
            break
        if seen & bit:
            return "a pseudo-field is repeated"
        seen |= bit
        regular += 1
        if bit == 4 and not value:
            return "the path is empty"
        if bit == 1:
            if value == b"CONNECT":
                seen |= 16
            elif not value:
                return "the method is empty"
    if seen & 16:
        if seen & 6 or not seen & 8:
            return "CONNECT needs an authority and nothing else"
    elif seen & 7 != 7:
        return "the method, the scheme or the path is missing"
    return _fields_fault(fields, regular)


def response_fault(fields: Fields) -> str:
    """What is wrong with the head of a response, interim ones included (RFC 9113 section 8.3.2)."""
    if not fields or fields[0][0] != b":status":
        return "the status does not come first"
    status = fields[0][1]
    if _STATUS.fullmatch(status) is None or status == b"101":
        return "the status is not one of HTTP/2"
    return _fields_fault(fields, 1)


def trailers_fault(fields: Fields) -> str:
    """What is wrong with trailers: any pseudo-field is (RFC 9113 section 8.1)."""
    return _fields_fault(fields, 0)


def is_interim(block: HeaderBlock) -> bool:
    """Whether a good head of a response is a 1xx one, which another follows."""
    return block.fields[0][1][:1] == b"1"


def _fields_fault(fields: Fields, pseudo: int) -> str:
    """The rules for every field from the `pseudo`-th on, and for the values of all."""
    for name, value in fields[pseudo:] if pseudo else fields:
        if name in _USUAL or (name == b"te" and value == b"trailers"):
            continue
        if _NAME.fullmatch(name) is None:
            if name[:1] == b":":
                return "a pseudo-field is unknown, repeated or out of place"
            return "a field name has a character that is not allowed"
        if name in _OF_CONNECTION or name == b"te":
            return "a field belongs to a connection of HTTP/1"
    values = b"\n".join([value for _, value in fields])
    # Numbers: to look for bytes in bytes costs an exception inside the interpreter.
    if 0 in values or 13 in values or values.count(10) >= max(len(fields), 1):
        return "a field value has a character that is not allowed"
    return ""
