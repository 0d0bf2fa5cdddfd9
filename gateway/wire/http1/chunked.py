"""Decoder of chunked request bodies (RFC 9112 section 7.1), strict and bounded.

Own code rather than llhttp's, for three reasons: a body must end exactly at its last byte so that nothing behind it
is parsed too early; trailers must not look like headers; the number and overhead of chunks must be bounded.
"""

from __future__ import annotations

import re

from gateway.wire.http1.events import Refusal
from gateway.wire.http1.limits import Http1Limits

_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]+)((?:;[\t -~\x80-\xff]*)?)")
_SIZE_LINE_PREFIX = re.compile(rb"(?:[0-9A-Fa-f]+(?:;[\t -~\x80-\xff]*)?\r?)?")
_TRAILER = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[\t -~\x80-\xff]*")
_TRAILER_PREFIX = re.compile(rb"(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+(?::[\t -~\x80-\xff]*)?)?\r?")
# The others are dropped unseen; these two are an attempt at another reader (RFC 9110 section 6.5.1).
_NEVER_TRAILERS = frozenset({b"content-length", b"transfer-encoding"})
_SIZE_DIGITS_MAX = 16  # 64 bits; more is refused whatever the value

_SIZE, _DATA, _DATA_END, _TRAILERS = range(4)

# Pieces up to this size are copied out of the read; a larger one is a view of it.
COPY_MAX_BYTES = 16384


def piece(data: bytes, start: int, stop: int) -> bytes | memoryview:
    """`data[start:stop]`, without a copy if it is everything or large."""
    if stop - start == len(data):
        return data
    if stop - start <= COPY_MAX_BYTES:
        return data[start:stop]
    return memoryview(data)[start:stop]


class ChunkedBody:
    """Decodes one body. `done` turns true with its last byte."""

    __slots__ = ("_chunks", "_extensions", "_limits", "_line", "_missing", "_state", "_total", "_trailers", "done")

    def __init__(self, limits: Http1Limits) -> None:
        self._limits = limits
        self._state = _SIZE
        self._line = bytearray()  # the part of a size or trailer line that has arrived
        self._missing = 0  # bytes missing: of the chunk's data, or of the CRLF behind it
        self._total = 0
        self._chunks = 0
        self._extensions = 0
        self._trailers = 0
        self.done = False

    def feed(self, data: bytes, pos: int, pieces: list[bytes | memoryview]) -> int:
        """Decode from `pos`; append the body's bytes to `pieces`; return where the body or the data ends.

        Raises Refusal; what was decoded before it is in `pieces`.
        """
        size = len(data)
        while pos < size and not self.done:
            if self._state == _DATA:
                stop = min(size, pos + self._missing)
                pieces.append(piece(data, pos, stop))
                self._missing -= stop - pos
                pos = stop
                if self._missing == 0:
                    self._state, self._missing = _DATA_END, 2
            elif self._state == _DATA_END:
                if data[pos] != (0x0D if self._missing == 2 else 0x0A):
                    raise Refusal(400, "a chunk must be followed by CRLF: its size is wrong")
                pos += 1
                self._missing -= 1
                if self._missing == 0:
                    self._state = _SIZE
            else:
                pos = self._take_line(data, pos)
        return pos

    def _take_line(self, data: bytes, pos: int) -> int:
        """Consume one size or trailer line, or all there is of it."""
        limits = self._limits
        in_trailers = self._state == _TRAILERS
        longest = limits.trailers_max_bytes if in_trailers else limits.chunk_line_max_bytes
        # With one byte past bound and CRLF the verdict is certain; nothing longer is ever kept.
        stop = min(len(data), pos + longest + 3 - len(self._line))
        lf = data.find(b"\n", pos, stop)
        if lf >= 0:
            stop = lf + 1
        line = data[pos:stop]
        if self._line:
            line = bytes(self._line) + line
            self._line.clear()
        if in_trailers:
            self._take_trailer(line)
        else:
            self._take_size(line)
        if lf < 0:
            self._line += line
        return stop

    def _take_size(self, line: bytes) -> None:
        """Judge a size line, or a prefix of one: what is wrong is said at its first wrong byte."""
        limits = self._limits
        match = None
        if line.endswith(b"\r\n"):
            if len(line) - 2 <= limits.chunk_line_max_bytes:
                match = _SIZE_LINE.fullmatch(line, 0, len(line) - 2)
        elif len(line.removesuffix(b"\r")) <= limits.chunk_line_max_bytes and _SIZE_LINE_PREFIX.fullmatch(line):
            return
        if match is None or len(match.group(1)) > _SIZE_DIGITS_MAX:
            raise Refusal(400, "malformed or overlong chunk size line")
        digits, extension = match.groups()
        if extension:
            self._extensions += len(extension)
            if self._extensions > limits.chunk_extensions_max_bytes:
                raise Refusal(400, "too many chunk extensions")
        chunk = int(digits, 16)
        if chunk == 0:
            self._state = _TRAILERS
            return
        self._chunks += 1
        if self._chunks > limits.chunks_free + self._total // limits.chunk_average_min_bytes:
            raise Refusal(400, "too many tiny chunks")
        self._total += chunk
        if self._total > limits.body_max_bytes:
            raise Refusal(413, f"the request body is larger than the limit of {limits.body_max_bytes} bytes")
        self._state, self._missing = _DATA, chunk

    def _take_trailer(self, line: bytes) -> None:
        """The same for a trailer line. A wrong byte within the bound comes before the bound, in any cut."""
        if line == b"\r\n":
            self.done = True
            return
        room = self._limits.trailers_max_bytes - self._trailers
        content = line.removesuffix(b"\n")
        if _TRAILER_PREFIX.fullmatch(content, 0, min(room, len(content))) is None:
            raise Refusal(400, "malformed trailer")
        if len(content.removesuffix(b"\r")) > room:
            raise Refusal(431, f"the trailers are larger than {self._limits.trailers_max_bytes} bytes")
        if len(content) == len(line):
            if _TRAILER_PREFIX.fullmatch(line) is None:
                raise Refusal(400, "malformed trailer")
            return
        trailer = _TRAILER.fullmatch(line, 0, len(line) - 2) if line.endswith(b"\r\n") else None
        if trailer is None:
            raise Refusal(400, "malformed trailer")
        if trailer.group(1).lower() in _NEVER_TRAILERS:
            raise Refusal(400, "Content-Length and Transfer-Encoding cannot be trailers")
        self._trailers += len(content) - 1
