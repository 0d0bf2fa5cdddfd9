"""Custom metadata: reserved names stay out, base64 is read in all its forms, and nothing breaks a header block."""

from __future__ import annotations

import base64
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.codes import Code
from gateway.core.header_names import PEERS_OWN, PEERS_OWN_PREFIXES
from gateway.wire.grpc import (
    GrpcFault,
    decode_binary,
    encode_binary,
    is_reserved,
    metadata,
    read_metadata,
    write_metadata,
)


def test_names_that_are_not_free() -> None:
    for name in PEERS_OWN:
        assert is_reserved(name.encode())
    for prefix in PEERS_OWN_PREFIXES:
        assert is_reserved(prefix.encode())
        assert is_reserved(prefix.encode() + b"anything")
    for taken in (b"grpc-timeout", b"grpc-trace-bin", b":path", b"content-type", b"te", b"user-agent", b"host"):
        assert is_reserved(taken)
    for free in (b"x-request-id", b"authorization", b"grpc", b"traceparent", b"te-x", b"xte", b"a-bin", b""):
        assert not is_reserved(free)


@given(st.binary(max_size=300))
def test_binary_values_come_back_padded_or_not(value: bytes) -> None:
    bare = encode_binary(value)
    assert bare == base64.b64encode(value).rstrip(b"=")
    for sent in (bare, base64.b64encode(value), b" " + bare + b"\t", bare + b"="):
        assert decode_binary(sent) == [value]


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=5), st.sampled_from([b",", b", ", b" ,\t"]), st.booleans())
def test_values_that_were_joined_with_commas_are_several(values: list[bytes], comma: bytes, padded: bool) -> None:
    coded = [base64.b64encode(value) if padded else encode_binary(value) for value in values]
    assert decode_binary(comma.join(coded)) == values


@pytest.mark.parametrize(
    "value",
    [b"Y", b"YQZ", b"YR", b"YWJ", b"Y Q", b"%%", b"Y=Q", b"=YQ", b"-_8", b"YQ\n", b"\xff\xff", b"AAAAA", b"YWI=,Y",
     b"YQ;", b"\x00YQ", b"YQ==YQ==", "ÄÄ".encode()],
)  # fmt: skip
def test_what_no_encoder_writes_is_a_fault(value: bytes) -> None:
    with pytest.raises(GrpcFault, match="base64") as caught:
        decode_binary(value)
    assert caught.value.code is Code.INTERNAL
    with pytest.raises(GrpcFault):
        read_metadata([(b"x-a-bin", value)])


@given(st.binary(max_size=30))
def test_what_is_taken_is_what_encodes_to_it(value: bytes) -> None:
    try:
        decoded = decode_binary(value)
    except GrpcFault:
        return
    assert [encode_binary(each) for each in decoded] == [part.strip(b" \t").rstrip(b"=") for part in value.split(b",")]


def test_the_custom_pairs_of_a_block_in_order() -> None:
    fields = [
        (b":method", b"POST"),
        (b":path", b"/a.B/C"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"grpc-timeout", b"1S"),
        (b"user-agent", b"somebody"),
        (b"x-b", b" two "),
        (b"x-a-bin", b"YQ==,Yg"),
        (b"x-b", b""),
        (b"x-c", "ä".encode()),
        (b"x-c", b"\xe4"),
        (b"authorization", b"Bearer t"),
    ]
    pairs: list[tuple[str, str | bytes]] = [
        ("x-b", " two "),
        ("x-a-bin", b"a"),
        ("x-a-bin", b"b"),
        ("x-b", ""),
        ("x-c", "ä"),
        ("x-c", "ä"),
        ("authorization", "Bearer t"),
    ]
    for _ in range(2):  # the second time from memory
        assert read_metadata(fields) == pairs


def test_what_cannot_be_carried_is_left_out() -> None:
    pairs: list[tuple[str, str | bytes]] = [
        ("x-a", "one"),
        ("x-a", ""),
        ("X-Upper", "a"),
        ("", "a"),
        ("x y", "a"),
        ("ä", "a"),
        ("x-a\n", "a"),
        ("te", "trailers"),
        ("grpc-status", "0"),
        (":path", "/"),
        ("content-type", "a"),
        ("x-b", "new\nline"),
        ("x-b", "ä"),
        ("x-b", "\x7f"),
        ("x-b", b"bytes under a name for text"),
        ("x-c-bin", b"\xff\x00"),
        ("x-c-bin", "YQ=="),
        ("x-c-bin", "YQ, Yg=="),
        ("x-c-bin", "no base64"),
        ("x-c-bin", "\ud800"),
        ("x_d.e-9", "~ !"),
    ]
    for _ in range(2):
        assert write_metadata(pairs) == [
            (b"x-a", b"one"),
            (b"x-a", b""),
            (b"x-c-bin", b"/wA"),
            (b"x-c-bin", b"YQ"),
            (b"x-c-bin", b"YQ"),
            (b"x-c-bin", b"Yg"),
            (b"x_d.e-9", b"~ !"),
        ]


NAMES = st.one_of(st.text(max_size=12), st.text(string.ascii_lowercase + string.digits + "-_.", max_size=12))
PAIRS = st.lists(
    st.one_of(
        st.tuples(NAMES, st.one_of(st.text(max_size=20), st.binary(max_size=20))),
        st.tuples(NAMES.map(lambda name: name + "-bin"), st.one_of(st.text(max_size=20), st.binary(max_size=20))),
    ),
    max_size=6,
)


@given(PAIRS)
def test_whatever_is_asked_only_fields_that_may_stand_in_a_block_are_written(
    pairs: list[tuple[str, str | bytes]],
) -> None:
    fields = write_metadata(pairs)
    for name, value in fields:
        assert re.fullmatch(rb"[a-z0-9_.-]+", name)
        assert not is_reserved(name)
        assert re.fullmatch(rb"[\x20-\x7e]*", value)
    read = read_metadata(fields)
    assert write_metadata(read) == fields
    assert [pair for pair in read if isinstance(pair[1], str)] == [
        (name, value) for name, value in pairs if isinstance(value, str) and (name, value) in read
    ]


@given(st.lists(st.tuples(st.binary(max_size=10), st.binary(max_size=20)), max_size=5))
def test_any_fields_are_read_or_are_a_fault(fields: list[tuple[bytes, bytes]]) -> None:
    binary = [value for name, value in fields if name.endswith(b"-bin")]
    try:
        read_metadata(fields)
    except GrpcFault:
        assert binary


def test_names_that_are_remembered_are_bounded_in_number_and_size() -> None:
    for number in range(3000):
        assert read_metadata([(b"x-%d" % number, b"a")]) == [(f"x-{number}", "a")]
        assert write_metadata([(f"x-{number}", "a")]) == [(b"x-%d" % number, b"a")]
    assert read_metadata([(b"x" * 5000, b"a")]) == [("x" * 5000, "a")]
    assert write_metadata([("x" * 5000, "a"), ("ä" * 5000, "a")]) == [(b"x" * 5000, b"a")]
    for memory in (metadata._keys, metadata._names):
        assert len(memory) <= 1024
    assert max(len(name) for name in metadata._keys) <= 64
    assert max(len(name) for name in metadata._names) <= 64
