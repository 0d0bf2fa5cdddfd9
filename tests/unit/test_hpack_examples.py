"""The examples of RFC 7541 appendix C."""

from __future__ import annotations

import pytest

from gateway.wire.hpack import HpackDecoder
from gateway.wire.hpack.huffman import decode_huffman, encode_huffman
from gateway.wire.hpack.integers import decode_rest, encode_integer
from tests.unit.hpack_driving import Fields

GET = (b":method", b"GET")
HTTP = (b":scheme", b"http")
EXAMPLE_COM = (b":authority", b"www.example.com")
PRIVATE = (b"cache-control", b"private")
DATE_21 = (b"date", b"Mon, 21 Oct 2013 20:13:21 GMT")
DATE_22 = (b"date", b"Mon, 21 Oct 2013 20:13:22 GMT")
LOCATION = (b"location", b"https://www.example.com")

REQUESTS: list[tuple[Fields, int]] = [
    ((GET, HTTP, (b":path", b"/"), EXAMPLE_COM), 57),
    ((GET, HTTP, (b":path", b"/"), EXAMPLE_COM, (b"cache-control", b"no-cache")), 110),
    ((GET, (b":scheme", b"https"), (b":path", b"/index.html"), EXAMPLE_COM, (b"custom-key", b"custom-value")), 164),
]
RESPONSES: list[tuple[Fields, int]] = [
    (((b":status", b"302"), PRIVATE, DATE_21, LOCATION), 222),
    (((b":status", b"307"), PRIVATE, DATE_21, LOCATION), 222),
    (
        (
            (b":status", b"200"),
            PRIVATE,
            DATE_22,
            LOCATION,
            (b"content-encoding", b"gzip"),
            (b"set-cookie", b"foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"),
        ),
        215,
    ),
]
"""Fields of each block, and the size of the table behind it."""

C3 = [
    "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
    "8286 84be 5808 6e6f 2d63 6163 6865",
    "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
]
C4 = [
    "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
    "8286 84be 5886 a8eb 1064 9cbf",
    "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
]
C5 = [
    "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3120 474d 546e"
    "1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
    "4803 3330 37c1 c0bf",
    "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970 7738 666f 6f3d"
    "4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572"
    "7369 6f6e 3d31",
]
C6 = [
    "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718 63c7 8f0b"
    "97c8 e9ae 82ae 43d3",
    "4883 640e ffc1 c0bf",
    "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7 b335 dfdf"
    "cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
]
TABLE_OF_256 = "3fe1 01"


@pytest.mark.parametrize(
    ("block", "field", "table_bytes", "never_indexed"),
    [
        (
            "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
            (b"custom-key", b"custom-header"),
            55,
            False,
        ),
        ("040c 2f73 616d 706c 652f 7061 7468", (b":path", b"/sample/path"), 0, False),
        ("1008 7061 7373 776f 7264 0673 6563 7265 74", (b"password", b"secret"), 0, True),
        ("82", (b":method", b"GET"), 0, False),
    ],
    ids=["C.2.1", "C.2.2", "C.2.3", "C.2.4"],
)
def test_each_representation(block: str, field: tuple[bytes, bytes], table_bytes: int, never_indexed: bool) -> None:
    decoder = HpackDecoder(4096, 1000)

    decoded = decoder.decode(bytes.fromhex(block))

    assert decoded.fields == (field,)
    assert decoded.size == len(field[0]) + len(field[1]) + 32
    assert decoded.never_indexed == ({field[0]} if never_indexed else set())
    assert decoder.statistics().table_bytes == table_bytes


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        (C3, REQUESTS),
        (C4, REQUESTS),
        ([TABLE_OF_256, *C5], [((), 0), *RESPONSES]),
        ([TABLE_OF_256, *C6], [((), 0), *RESPONSES]),
    ],
    ids=["C.3 requests", "C.4 coded requests", "C.5 responses", "C.6 coded responses"],
)
def test_blocks_of_one_connection(blocks: list[str], expected: list[tuple[Fields, int]]) -> None:
    decoder = HpackDecoder(4096, 1000)
    seen = [(decoder.decode(bytes.fromhex(block)).fields, decoder.statistics().table_bytes) for block in blocks]

    assert seen == expected


def test_the_table_of_the_last_response_holds_what_the_appendix_says() -> None:
    decoder = HpackDecoder(4096, 1000)
    for block in [TABLE_OF_256, *C5]:
        decoder.decode(bytes.fromhex(block))

    # By index: set-cookie, content-encoding and date are left; the older ones were evicted.
    assert decoder.decode(b"\xbe\xbf\xc0").fields == (RESPONSES[2][0][5], RESPONSES[2][0][4], DATE_22)
    assert decoder.statistics().table_entries == 3


@pytest.mark.parametrize(
    ("value", "prefix_max", "octets"),
    [(10, 31, "0a"), (1337, 31, "1f 9a 0a"), (42, 255, "2a"), (31, 31, "1f 00"), (127, 127, "7f 00")],
)
def test_integers(value: int, prefix_max: int, octets: str) -> None:
    coded = bytes.fromhex(octets)

    assert encode_integer(value, prefix_max, 0) == coded
    if len(coded) > 1:
        assert decode_rest(coded, 1, prefix_max) == (value, len(coded))


@pytest.mark.parametrize(
    ("text", "coded"),
    [
        (b"www.example.com", "f1e3 c2e5 f23a 6ba0 ab90 f4ff"),
        (b"no-cache", "a8eb 1064 9cbf"),
        (b"custom-key", "25a8 49e9 5ba9 7d7f"),
        (b"302", "6402"),
        (b"Mon, 21 Oct 2013 20:13:21 GMT", "d07a be94 1054 d444 a820 0595 040b 8166 e082 a62d 1bff"),
    ],
)
def test_coded_strings(text: bytes, coded: str) -> None:
    assert encode_huffman(text) == bytes.fromhex(coded)
    assert decode_huffman(bytes.fromhex(coded)) == text
