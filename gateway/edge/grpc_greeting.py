"""What a client says first, if it is not the preface of HTTP/2: the answer by which it learns where it is."""

from __future__ import annotations

from gateway.wire.http2.frames import PREFACE

_TEXT = b"this port speaks gRPC, over HTTP/2 with prior knowledge; HTTP/1.1 has a port of its own\n"
HTTP1_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n"
    b"x-sluice-reason: bad_request\r\nConnection: close\r\n\r\n%b"
) % (len(_TEXT), _TEXT)
TLS_ANSWER = b"\x15\x03\x01\x00\x02\x02\x46"
"""A fatal alert, protocol_version (RFC 8446 section 6): what TLS clients understand."""
_TLS_HANDSHAKE = 0x16


_PLAIN_TEXT = b'{"error":"this port speaks TLS"}\n'
_PLAIN_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
    b"x-sluice-reason: bad_request\r\nConnection: close\r\n\r\n%b"
) % (len(_PLAIN_TEXT), _PLAIN_TEXT)


def plain_answer(data: bytes) -> bytes:
    """What the TLS port tells a client whose first bytes are these and no TLS. To HTTP/2 too in HTTP/1.1: gRPC's
    library takes a GOAWAY for the end of a good connection, and would come again at once, and again.
    """
    return _PLAIN_ANSWER if data[:1].isalpha() else b""


def greeting_fault(data: bytes) -> bytes | None:
    """None as long as `data` may be the begin of a good connection. Else what to answer before closing, b"" for
    nothing.
    """
    if data.startswith(PREFACE[: len(data)]):
        return None
    if data[0] == _TLS_HANDSHAKE:
        return TLS_ANSWER
    return HTTP1_ANSWER if data[:1].isalpha() else b""
