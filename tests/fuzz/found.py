"""Inputs that once broke a codec, in the form of their targets, each with what was wrong."""

from __future__ import annotations

from tests.fuzz.frames import END_HEADERS, HEADERS, frame
from tests.fuzz.targets import hpack, http2_client

FOUND: dict[str, list[tuple[str, bytes]]] = {
    "hpack": [
        (
            "a block that is cut off in its last value was taken where its list was too large as well",
            hpack.join(1, [b"\x00\x01a\x7f\x80\x02" + b"b" * 260]),
        ),
    ],
    "http1_server": [
        ("what stands behind a lone CR decided whether its refusal has a body", b"\x00\rHEAD "),
    ],
    "http2_client": [
        (
            "frames behind the end of a drain were a fault if they came in the same read",
            bytes((32,))
            + http2_client.OPENING
            + b"".join(http2_client.answer(stream) for stream in range(1, 27, 2))
            + frame(HEADERS, END_HEADERS, 199, http2_client.RESPONSE) * 2,
        ),
    ],
}
