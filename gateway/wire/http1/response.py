"""Response heads and chunk framing as bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus

STATUS_LINES = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode("ascii"))
    for status in HTTPStatus
    if status.value >= 200
}
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_FRAMING = frozenset({b"content-length", b"transfer-encoding", b"connection", b"keep-alive", b"upgrade", b"trailer"})
_CONTROLS = bytes(byte for byte in range(0x20) if byte not in b"\t\r\n") + b"\x7f"

# Names that passed `_check_name`. The product has a few dozen; names forwarded from upstream could be more, hence the
# bound.
_known_names: set[bytes] = set()
_KNOWN_NAMES_MAX = 512

CONTINUE_100 = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


class Http1UsageError(RuntimeError):
    """The driver asked for something that would break the framing: a defect on this side, never the client's
    doing."""


def header_block(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Header lines, each with its CRLF, checked.

    Raises Http1UsageError for a name that is no token or belongs to the codec (framing and connection headers), and
    for a value with CR, LF, NUL or another control byte. Build constant blocks once and pass them as `block`.
    """
    lines = []
    for name, value in headers:
        if name not in _known_names:
            _check_name(name)
        lines.append(name + b": " + value)
    if not lines:
        return b""
    lines.append(b"")
    block = b"\r\n".join(lines)
    # A CR or LF inside a value shows in the counts: one pass over everything instead of one per value.
    breaks = len(lines) - 1
    if (
        block.count(b"\n") != breaks
        or block.count(b"\r") != breaks
        or len(block.translate(None, _CONTROLS)) != len(block)
    ):
        raise Http1UsageError("a response header value holds CR, LF, NUL or another control byte")
    return block


def _check_name(name: bytes) -> None:
    if _NAME.fullmatch(name) is None:
        raise Http1UsageError(f"{name!r} is not a header name")
    if name.lower() in _FRAMING:
        raise Http1UsageError(f"the header {name.decode('ascii')} is the codec's own")
    if len(_known_names) < _KNOWN_NAMES_MAX:
        _known_names.add(name)


def status_line(status: int) -> bytes:
    """The status line of a final status, with its CRLF."""
    line = STATUS_LINES.get(status)
    if line is None:
        if not 200 <= status <= 599:
            raise Http1UsageError(f"{status} is not a final HTTP status")
        line = b"HTTP/1.1 %d \r\n" % status  # an unregistered code has no phrase; the space is required
    return line
