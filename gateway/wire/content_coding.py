"""Content codings of HTTP bodies: which one an answer gets, and decoding under a hard bound. No I/O; zlib alone.

The codings are those of Triton: `gzip` (RFC 1952) and `deflate` (RFC 1950, the zlib container). What a header means is
what Triton 2.51 makes of it, looked at over raw sockets; each difference is a row of `gateway/edge/deviations.py`.
"""

from __future__ import annotations

import re
import zlib
from collections import deque

from gateway.core.errors import GatewayError, Reason

GZIP = b"gzip"
DEFLATE = b"deflate"
IDENTITY = b"identity"
CODINGS = frozenset({GZIP, DEFLATE})

INPUT_PIECE_BYTES = 64 * 1024
"""Compressed bytes are given to zlib in pieces of this size: what it leaves of a piece when the bound on its output is
reached comes back as a copy."""

_AUTO = zlib.MAX_WBITS | 32
"""Either container, told from the first bytes: Triton takes either under either name."""
_SMALL_BODY_BYTES = 4096
_SMALL_MEM_LEVEL, _MEM_LEVEL = 4, 8
"""zlib's default state is 256 KiB, and filling it takes 40 us whatever the body; 16 KiB take 3 us."""

_WEIGHT = re.compile(rb"[+]?([0-9]+\.?[0-9]*|\.[0-9]+)")
_CHOICES_MAX = 256
_CHOICE_BYTES_MAX = 256
_choices: dict[bytes, bytes] = {}
"""Values of `Accept-Encoding` seen before: a client sends the same with every request."""


def choose(accept_encoding: bytes | None) -> bytes:
    """The coding for an answer: `GZIP`, `DEFLATE` or `IDENTITY`.

    The highest weight wins, of equal ones the first in the header. Only the three names count, spelt in lower case and
    followed by nothing or by `;q=` and a number; whatever else stands in the header, `*` included, has no say. Nothing
    acceptable, like no header at all, is `IDENTITY`: also against `identity;q=0`, which RFC 9110 section 12.5.3 allows.
    """
    if accept_encoding is None:
        return IDENTITY
    chosen = _choices.get(accept_encoding)
    if chosen is None:
        chosen = _choose(accept_encoding)
        if len(accept_encoding) <= _CHOICE_BYTES_MAX:
            if len(_choices) >= _CHOICES_MAX:
                _choices.clear()
            _choices[accept_encoding] = chosen
    return chosen


def _choose(accept_encoding: bytes) -> bytes:
    best, best_weight = IDENTITY, 0.0
    for element in accept_encoding.split(b","):
        name, weighted, text = element.strip(b" \t").partition(b";q=")
        if name not in CODINGS and name != IDENTITY:
            continue
        weight = 1.0
        if weighted:
            number = _WEIGHT.match(text.lstrip(b" "))
            # Like C's strtod, which Triton uses: what stands behind the number is not looked at. Cut, because the
            # digits of a weight can be as many as a header holds.
            weight = float(number.group(1)[:32]) if number else 0.0
        if weight > best_weight:
            best, best_weight = name, weight
    return best


class Deflater:
    """Encodes one body, piece by piece. `coding` is `GZIP` or `DEFLATE`, `level` zlib's 1 (fast) to 9, `size` the
    bytes to come in all.
    """

    __slots__ = ("_encoder",)

    def __init__(self, coding: bytes, level: int, size: int) -> None:
        wbits = zlib.MAX_WBITS | 16 if coding == GZIP else zlib.MAX_WBITS
        mem_level = _SMALL_MEM_LEVEL if size <= _SMALL_BODY_BYTES else _MEM_LEVEL
        self._encoder = zlib.compressobj(level, zlib.DEFLATED, wbits, mem_level)

    def add(self, data: bytes | memoryview) -> bytes:
        """What comes out when `data` goes in; may be nothing."""
        return self._encoder.compress(data)

    def end(self) -> bytes:
        """The rest."""
        return self._encoder.flush()


class Inflater:
    """Decodes one body, piece by piece, never more at a time than it is asked for.

    `feed` only keeps what it is given; `step` does the work, and may run in another thread as long as nothing else is
    called meanwhile. `decoded_bytes` counts what came out.
    """

    __slots__ = ("_begun", "_decoder", "_pending", "decoded_bytes")

    def __init__(self) -> None:
        self._decoder = zlib.decompressobj(_AUTO)
        self._pending: deque[bytes | memoryview] = deque()
        self._begun = False
        self.decoded_bytes = 0

    @property
    def pending(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._pending)

    def feed(self, data: bytes | memoryview) -> None:
        """The next compressed bytes."""
        self._begun = self._begun or len(data) > 0
        if len(data) <= INPUT_PIECE_BYTES:
            if data:
                self._pending.append(data)
            return
        view = memoryview(data)
        self._pending.extend(
            view[start : start + INPUT_PIECE_BYTES] for start in range(0, len(view), INPUT_PIECE_BYTES)
        )

    def step(self, bytes_max: int) -> list[bytes]:
        """Decode what was fed, up to `bytes_max` more bytes. Raises `GatewayError` (BAD_REQUEST) for what is no
        compressed data, and for bytes behind its end: a second member of a gzip file too.
        """
        pieces: list[bytes] = []
        pending, decoder = self._pending, self._decoder
        room = bytes_max
        while pending and room > 0:
            data = pending.popleft()
            if decoder.eof and data:
                raise _bad("there are bytes behind the end of the compressed data")
            try:
                piece = decoder.decompress(data, room)
            except zlib.error:
                raise _bad("it is not valid gzip or zlib data") from None
            if decoder.unused_data:
                raise _bad("there are bytes behind the end of the compressed data")
            if piece:
                pieces.append(piece)
                room -= len(piece)
                if room == 0 and not decoder.eof:
                    # Even where no input is left: zlib may hold back output that did not fit.
                    pending.appendleft(decoder.unconsumed_tail)
        self.decoded_bytes += bytes_max - room
        return pieces

    def end(self) -> None:
        """Nothing more will be fed, and all was decoded. Raises `GatewayError` (BAD_REQUEST) if that was not all."""
        if not self._begun:
            raise GatewayError(Reason.BAD_REQUEST, "nothing to be decompressed")  # Triton's own words
        if not self._decoder.eof:
            raise _bad("the compressed data is cut short")


def _bad(why: str) -> GatewayError:
    return GatewayError(Reason.BAD_REQUEST, f"the request body cannot be decompressed: {why}")
