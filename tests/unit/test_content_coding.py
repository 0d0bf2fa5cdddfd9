"""Content codings: what `Accept-Encoding` chooses, as seen on Triton 2.51, and decoding within a bound."""

from __future__ import annotations

import contextlib
import gzip
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import GatewayError, Reason
from gateway.wire.content_coding import DEFLATE, GZIP, IDENTITY, INPUT_PIECE_BYTES, Deflater, Inflater, choose

SEEN_ON_TRITON = [
    (None, IDENTITY),
    ("", IDENTITY),
    ("gzip", GZIP),
    ("deflate", DEFLATE),
    ("identity", IDENTITY),
    ("gzip, deflate", GZIP),
    ("deflate, gzip", DEFLATE),
    ("gzip, deflate, br", GZIP),
    ("identity, gzip", IDENTITY),
    ("gzip, identity", GZIP),
    ("br", IDENTITY),
    ("br, gzip", GZIP),
    ("*", IDENTITY),
    ("*;q=0.5", IDENTITY),
    ("*;q=0", IDENTITY),
    ("gzip;q=0", IDENTITY),
    ("gzip;q=0, *", IDENTITY),
    ("gzip;q=0, identity", IDENTITY),
    ("gzip;q=0,deflate;q=0", IDENTITY),
    ("identity;q=0", IDENTITY),
    ("identity;q=0,*;q=0", IDENTITY),
    ("identity;q=0, gzip;q=0.1", GZIP),
    ("gzip;q=0.5, deflate;q=0.8", DEFLATE),
    ("gzip;q=0.8, deflate;q=0.5", GZIP),
    ("gzip;q=0.5, deflate;q=0.5", GZIP),
    ("deflate;q=0.5, gzip;q=0.5", DEFLATE),
    ("identity;q=0.5, gzip;q=0.5, deflate;q=0.5", IDENTITY),
    ("identity;q=0.4, gzip;q=0.5, deflate;q=0.5", GZIP),
    ("deflate;q=0.5, identity;q=0.5", DEFLATE),
    ("gzip;q=0.5, identity;q=0.6", IDENTITY),
    ("gzip;q=1,identity;q=1", GZIP),
    ("identity;q=1,gzip;q=1", IDENTITY),
    ("gzip, gzip;q=0", GZIP),
    ("gzip;q=0, gzip", GZIP),
    ("deflate, gzip;q=2", GZIP),
    ("gzip;q=1.5", GZIP),
    ("gzip;q=0.001", GZIP),
    ("gzip;q=0.0001", GZIP),
    ("gzip;q=00", IDENTITY),
    ("gzip;q=0.", IDENTITY),
    ("deflate;q=.5, gzip;q=.4", DEFLATE),
    ("gzip;q=+1", GZIP),
    ("gzip;q=-1", IDENTITY),
    ("gzip;q=0.5abc", GZIP),
    ("gzip;q=abc", IDENTITY),
    ("gzip;q=", IDENTITY),
    ("gzip;q=nan", IDENTITY),
    ("deflate;q=0.1,gzip;q=nan", DEFLATE),
    ("gzip;q", IDENTITY),
    ("gzip;", IDENTITY),
    ("gzip;x=1", IDENTITY),
    ("gzip; q=1", IDENTITY),
    ("gzip; q=0.5, deflate", DEFLATE),
    ("gzip;q= 0.7, deflate;q=0.6", GZIP),
    ("gzip;q =0.2, deflate;q=0.3", DEFLATE),
    ("gzip;Q=0.5, deflate;q=0.4", DEFLATE),
    ("gzip;foo=1;q=0.2, deflate;q=0.1", DEFLATE),
    ("gzip;q=0.1;q=0.9, deflate;q=0.5", DEFLATE),
    ("gzip;q=1;q=0.1, deflate;q=0.5", GZIP),
    ("gzip;q=0.5 , deflate ;q=0.7", GZIP),
    ("identity ;q=0.2, deflate;q=0.1", DEFLATE),
    ("GZIP", IDENTITY),
    ("Gzip, deflate;q=0.9", DEFLATE),
    ("x-gzip", IDENTITY),
    ("gzipp", IDENTITY),
    ("gzip deflate", IDENTITY),
    (",gzip", GZIP),
    ("gzip,", GZIP),
    (" gzip", GZIP),
    ("zstd", IDENTITY),
]


@pytest.mark.parametrize(("header", "coding"), SEEN_ON_TRITON, ids=lambda value: repr(value))
def test_the_choice_is_tritons(header: str | None, coding: bytes) -> None:
    for _ in range(2):  # the second time from memory
        assert choose(None if header is None else header.encode()) == coding


@given(st.binary(max_size=300))
def test_any_header_chooses_something_and_never_what_has_no_weight(header: bytes) -> None:
    assert choose(header) in (GZIP, DEFLATE, IDENTITY)
    assert choose(b"gzip;q=0,deflate;q=0," + header.replace(b"gzip", b"").replace(b"deflate", b"")) == IDENTITY


def test_a_weight_of_very_many_digits_costs_no_time_and_raises_nothing() -> None:
    assert choose(b"gzip;q=" + b"9" * 30_000) == GZIP
    assert choose(b"gzip;q=0." + b"0" * 30_000 + b"1") == IDENTITY


def inflate(data: bytes, *, fed: int = 10_000_000, step: int = 10_000_000) -> bytes:
    inflater = Inflater()
    out = bytearray()
    for start in range(0, len(data), fed):
        inflater.feed(data[start : start + fed])
        while inflater.pending:
            pieces = inflater.step(step)
            assert sum(map(len, pieces)) <= step
            out += b"".join(pieces)
    inflater.end()
    assert inflater.decoded_bytes == len(out)
    return bytes(out)


@given(
    st.one_of(
        st.binary(max_size=3000), st.builds(lambda unit, n: unit * n, st.binary(max_size=20), st.integers(0, 500))
    ),
    st.sampled_from([GZIP, DEFLATE]),
    st.integers(1, 9),
    st.integers(1, 500),
    st.integers(1, 700),
)
def test_what_is_encoded_in_pieces_is_decoded_in_any_pieces(
    body: bytes, coding: bytes, level: int, fed: int, step: int
) -> None:
    deflater = Deflater(coding, level, len(body))
    packed = deflater.add(body[:fed]) + deflater.add(memoryview(body)[fed:]) + deflater.end()
    assert inflate(packed, fed=fed, step=step) == body
    reference = gzip.decompress if coding == GZIP else zlib.decompress
    assert reference(packed) == body


@pytest.mark.parametrize("size", [1, 4096, 4097, 300_000])
def test_either_container_is_told_from_its_bytes(size: int) -> None:
    body = random.Random(size).randbytes(size)
    assert inflate(gzip.compress(body)) == body
    assert inflate(zlib.compress(body)) == body


def test_large_input_is_given_to_zlib_in_small_pieces() -> None:
    body = random.Random(3).randbytes(1_000_000)
    inflater = Inflater()
    inflater.feed(zlib.compress(body))
    assert len(inflater._pending) > 1_000_000 // INPUT_PIECE_BYTES
    assert b"".join(inflater.step(2_000_000)) == body


def test_a_bomb_gives_no_more_than_was_asked_for() -> None:
    bomb = gzip.compress(bytes(50_000_000))
    inflater = Inflater()
    inflater.feed(bomb)
    for count in range(1, 11):
        assert sum(map(len, inflater.step(1000))) == 1000
        assert inflater.decoded_bytes == count * 1000
    assert inflater.pending


GOOD = gzip.compress(b"a body that is long enough to be cut in many places")
BAD = {
    "nothing": (b"", "nothing to be decompressed"),
    "no compressed data": (b'{"inputs": []}', "not valid"),
    "deflate without a container": (zlib.compress(b"raw")[2:-4], "not valid"),
    "a corrupt middle": (GOOD[:25] + bytes([GOOD[25] ^ 0xFF]) + GOOD[26:], "not valid"),
    "a wrong checksum": (GOOD[:-8] + bytes(4) + GOOD[-4:], "not valid"),
    "a wrong length": (GOOD[:-4] + bytes(4), "not valid"),
    "the last byte missing": (GOOD[:-1], "cut short"),
    "the checksum missing": (GOOD[:-8], "cut short"),
    "half of it": (GOOD[: len(GOOD) // 2], "cut short"),
    "the head alone": (GOOD[:10], "cut short"),
    "bytes behind it": (GOOD + b"!", "behind the end"),
    "zeros behind it": (GOOD + bytes(512), "behind the end"),
    "a second member": (GOOD + GOOD, "behind the end"),
    "a second, empty member": (GOOD + gzip.compress(b""), "behind the end"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("fed", [1, 7, 10_000])
@pytest.mark.parametrize("step", [1, 10_000])
def test_what_is_not_one_whole_compressed_body_is_the_callers_fault(case: str, fed: int, step: int) -> None:
    data, why = BAD[case]
    with pytest.raises(GatewayError, match=why) as caught:
        inflate(data, fed=fed, step=step)
    assert caught.value.reason is Reason.BAD_REQUEST


@given(st.binary(max_size=200))
def test_random_bytes_decode_or_are_refused(data: bytes) -> None:
    for prefix in (b"", b"\x1f\x8b\x08", b"\x78\x9c"):
        with contextlib.suppress(GatewayError):
            inflate(prefix + data, step=1000)
