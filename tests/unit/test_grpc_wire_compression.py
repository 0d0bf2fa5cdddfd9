"""Compressed messages: what is one whole message in its encoding comes out, within the limit, and nothing else."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.codes import Code
from gateway.wire.content_coding import DEFLATE, GZIP, IDENTITY
from gateway.wire.grpc import (
    GrpcFault,
    MessageTooLarge,
    accepted,
    check_compressed,
    compress,
    compression,
    decompress,
    read_encoding,
)

BODY = b"a message that is long enough to be cut in many places"
PLAIN_LIMIT = 1_000_000
PACK: dict[bytes, Callable[[bytes], bytes]] = {GZIP: gzip.compress, DEFLATE: zlib.compress}


def attempt(payload: bytes, encoding: bytes, limit_bytes: int = 1000) -> bytes | Code:
    """The message, or the code of the fault."""
    try:
        return decompress(payload, encoding, limit_bytes)
    except GrpcFault as fault:
        return fault.code


@given(
    st.one_of(
        st.binary(max_size=3000), st.builds(lambda unit, n: unit * n, st.binary(max_size=20), st.integers(0, 500))
    ),
    st.sampled_from([GZIP, DEFLATE]),
    st.integers(1, 9),
)
def test_what_is_compressed_is_decompressed(message: bytes, encoding: bytes, level: int) -> None:
    packed = compress(message, encoding, level)
    reference = gzip.decompress if encoding == GZIP else zlib.decompress
    assert reference(packed) == message
    assert decompress(packed, encoding, len(message)) == message
    assert decompress(PACK[encoding](message), encoding, len(message)) == message
    if message:
        with pytest.raises(MessageTooLarge):
            decompress(packed, encoding, len(message) - 1)


@pytest.mark.parametrize("encoding", [GZIP, DEFLATE])
def test_nothing_at_all_is_the_empty_message(encoding: bytes) -> None:
    assert decompress(b"", encoding, 10) == b""
    assert decompress(compress(b"", encoding, 1), encoding, 0) == b""


def test_a_message_that_is_marked_without_an_encoding_is_a_fault() -> None:
    for payload in (b"", b"plain", gzip.compress(b"a")):
        with pytest.raises(GrpcFault, match="no encoding configured") as caught:
            decompress(payload, IDENTITY, 10)
        assert caught.value.code is Code.INTERNAL


@pytest.mark.parametrize("encoding", [GZIP, DEFLATE])
def test_the_container_is_checked_before_anything_is_decompressed(encoding: bytes) -> None:
    for good in (b"", PACK[encoding](BODY), PACK[encoding](BODY)[:3], PACK[encoding](BODY) + b"!"):
        check_compressed(good, encoding)
    for bad in (BODY, PACK[DEFLATE if encoding == GZIP else GZIP](BODY)):
        if encoding == GZIP or bad.startswith(b"\x1f"):
            with pytest.raises(GrpcFault, match="not one whole"):
                check_compressed(bad, encoding)


@pytest.mark.parametrize("encoding", [GZIP, DEFLATE])
def test_what_is_not_one_whole_stream_of_its_encoding_is_a_fault(encoding: bytes) -> None:
    good = PACK[encoding](BODY)
    other = PACK[DEFLATE if encoding == GZIP else GZIP](BODY)
    bad = [BODY, other, zlib.compress(BODY)[2:-4], good + b"!", good + bytes(512), good + good, bytes(50), b"\x1f\x8b"]
    bad += [good[:size] for size in range(1, len(good))]
    for payload in bad:
        with pytest.raises(GrpcFault, match="not one whole") as caught:
            decompress(payload, encoding, PLAIN_LIMIT)
        assert caught.value.code is Code.INTERNAL
        assert caught.value.__context__ is None or caught.value.__suppress_context__


@pytest.mark.parametrize("encoding", [GZIP, DEFLATE])
def test_a_flipped_bit_never_changes_the_message_unseen(encoding: bytes) -> None:
    good = PACK[encoding](BODY)
    results = []
    for at in range(len(good) * 8):
        flipped = bytearray(good)
        flipped[at // 8] ^= 1 << at % 8
        results.append(attempt(bytes(flipped), encoding))
    assert set(results) <= {BODY, Code.INTERNAL}  # gzip's head has bits that mean nothing
    assert results.count(Code.INTERNAL) > len(good) * 4


@given(st.binary(max_size=200), st.sampled_from([GZIP, DEFLATE]))
def test_random_bytes_are_decompressed_or_refused(data: bytes, encoding: bytes) -> None:
    for prefix in (b"", b"\x1f\x8b\x08", b"\x78\x9c"):
        result = attempt(prefix + data, encoding)
        assert len(result) <= 1000 if isinstance(result, bytes) else result in (Code.INTERNAL, Code.RESOURCE_EXHAUSTED)


@pytest.mark.parametrize("encoding", [GZIP, DEFLATE])
def test_a_bomb_costs_no_more_than_the_limit(encoding: bytes) -> None:
    bomb = PACK[encoding](bytes(50_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(MessageTooLarge) as caught:
            decompress(bomb, encoding, PLAIN_LIMIT)
        assert tracemalloc.get_traced_memory()[1] < 3 * PLAIN_LIMIT
    finally:
        tracemalloc.stop()
    assert (caught.value.code, caught.value.length, caught.value.limit_bytes) == (
        Code.RESOURCE_EXHAUSTED,
        None,
        PLAIN_LIMIT,
    )


def test_a_limit_of_nothing_lets_only_the_empty_message_through() -> None:
    with pytest.raises(MessageTooLarge):
        decompress(gzip.compress(b"a"), GZIP, 0)


def test_a_large_message_comes_out_whole() -> None:
    body = BODY * 100_000
    for encoding in (GZIP, DEFLATE):
        assert decompress(compress(body, encoding, 1), encoding, len(body)) == body


def test_the_names_of_encodings() -> None:
    assert read_encoding(None) == read_encoding(b"identity") == IDENTITY
    assert (read_encoding(b"gzip"), read_encoding(b"deflate")) == (GZIP, DEFLATE)
    for name in (b"", b"zstd", b"GZIP", b" gzip", b"gzip,deflate", b"x-gzip", b"\xff"):
        with pytest.raises(GrpcFault, match="grpc-encoding") as caught:
            read_encoding(name)
        assert caught.value.code is Code.INTERNAL


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (None, ()),
        (b"", ()),
        (b"identity", ()),
        (b"gzip", (GZIP,)),
        (b"identity, deflate, gzip", (GZIP, DEFLATE)),
        (b"gzip,deflate", (GZIP, DEFLATE)),
        (b"zstd,\tgzip ,br", (GZIP,)),
        (b"GZIP;q=1", ()),
    ],
)
def test_what_a_peer_takes(value: bytes | None, names: tuple[bytes, ...]) -> None:
    for _ in range(2):  # the second time from memory
        assert accepted(value) == {IDENTITY, *names}


def test_headers_that_are_remembered_are_bounded_in_number_and_size() -> None:
    for number in range(2000):
        assert accepted(b"gzip, e%d" % number) == {IDENTITY, GZIP}
    assert accepted(b"gzip," + b"a" * 10_000) == {IDENTITY, GZIP}
    assert len(compression._accepted) <= 256
    assert max(map(len, compression._accepted)) <= 256
