"""How a call ended: `grpc-status` and `grpc-message`, and what stands for them where they are missing.

Sources: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md ("Responses", "HTTP2 Transport Mapping") and
http-grpc-status-mapping.md beside it. Where these leave a choice the answer is that of gRPC's own library (1.85), so
that callers see the same through either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gateway.core.codes import Code
from gateway.wire.grpc.metadata import read_text

Fields = Iterable[tuple[bytes, bytes]]
"""Header fields, names in lower case, in the order of the block."""

_CODES = {b"%d" % code: code for code in Code}
_VALUES = tuple(b"%d" % code for code in Code)  # by number, 0 to 16
_BARE_ENDS = tuple(((b"grpc-status", value),) for value in _VALUES)
_NUMBER = re.compile(rb"[ \t]*\+?0*([0-9]{1,10})[ \t]*")

_HTTP = {
    400: Code.INTERNAL,
    401: Code.UNAUTHENTICATED,
    403: Code.PERMISSION_DENIED,
    404: Code.UNIMPLEMENTED,
    429: Code.UNAVAILABLE,
    502: Code.UNAVAILABLE,
    503: Code.UNAVAILABLE,
    504: Code.UNAVAILABLE,
}
_RESET = {
    0x7: Code.UNAVAILABLE,  # REFUSED_STREAM: nothing was processed
    0x8: Code.CANCELLED,  # CANCEL
    0xB: Code.RESOURCE_EXHAUSTED,  # ENHANCE_YOUR_CALM
    0xC: Code.PERMISSION_DENIED,  # INADEQUATE_SECURITY
}

_ESCAPED = re.compile(rb"%([0-9A-Fa-f]{2})")
_ESCAPES = [bytes((byte,)) if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte for byte in range(256)]


def encode_message(text: str) -> bytes:
    """`text` as a value of `grpc-message`: UTF-8, of which all but printable ASCII without `%` becomes %XX. Never
    raises.
    """
    if text.isascii() and text.isprintable() and "%" not in text:
        return text.encode("ascii")
    return b"".join([_ESCAPES[byte] for byte in text.encode("utf-8", "replace")])


def decode_message(value: bytes) -> str:
    """The text of a `grpc-message`. A `%` that begins no escape stands for itself; what is not UTF-8 is read as
    Latin-1. Never raises.
    """
    if b"%" in value:
        value = _ESCAPED.sub(_unescape, value)
    return read_text(value)


def _unescape(found: re.Match[bytes]) -> bytes:
    return bytes((int(found[1], 16),))


def encode_status(code: Code) -> bytes:
    """`code` as a value of `grpc-status`."""
    return _VALUES[code]


def parse_status(value: bytes) -> Code:
    """The code in `grpc-status`. A number that is none of the seventeen is UNKNOWN, what is no number INTERNAL."""
    code = _CODES.get(value)
    if code is not None:
        return code
    found = _NUMBER.fullmatch(value)
    return Code.INTERNAL if found is None else _CODES.get(b"%d" % int(found[1]), Code.UNKNOWN)


def code_of_http(status: int) -> Code:
    """What an answer with this HTTP status means if it has no `grpc-status`: it is from something that does not speak
    gRPC. A 200 is UNKNOWN too: the end of the answer is missing.
    """
    return _HTTP.get(status, Code.UNKNOWN)


def code_of_reset(error_code: int) -> Code:
    """What a stream that the server reset with this HTTP/2 error code ends with."""
    return _RESET.get(error_code, Code.INTERNAL)


def read_end(fields: Fields) -> tuple[Code, str] | None:
    """Code and text in the trailers, or in the head of an answer that has nothing else; None if there is no
    `grpc-status`. Of repeated fields the last counts.
    """
    code: bytes | None = None
    text = b""
    for name, value in fields:
        if name == b"grpc-status":
            code = value
        elif name == b"grpc-message":
            text = value
    if code is None:
        return None
    if text:
        return parse_status(code), decode_message(text)
    return parse_status(code), ""


def end_fields(code: Code, text: str) -> tuple[tuple[bytes, bytes], ...]:
    """The fields that say how a call ended; `grpc-message` is left out where there is nothing to say."""
    if not text:
        return _BARE_ENDS[code]
    return ((b"grpc-status", _VALUES[code]), (b"grpc-message", encode_message(text)))
