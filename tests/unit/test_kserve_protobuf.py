"""The wire primitives against the rules of the encoding and against the reference library."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from gateway.wire.kserve import protobuf as pb
from tests.unit.kserve_messages import int64s, uint64s


def walk(buffer: bytes) -> list[tuple[int, int, int, int]]:
    return list(pb.fields(buffer, 0, len(buffer)))


@given(uint64s)
def test_a_varint_is_written_as_the_reference_writes_it_and_read_back(value: int) -> None:
    written = pb.varint(value)
    reference = service_pb2.InferParameter(uint64_param=value).SerializeToString()
    assert pb.varint_field(5, value) == reference
    assert pb.read_varint(written, 0, len(written)) == (value, len(written))


@given(int64s)
def test_a_negative_number_takes_its_twos_complement(value: int) -> None:
    written = pb.varint(value)
    assert pb.signed(pb.read_varint(written, 0, len(written))[0]) == value


@pytest.mark.parametrize(
    ("buffer", "problem", "offset"),
    [
        (b"\x80", "truncated varint", 0),
        (b"\x08", "truncated varint", 1),
        (b"\x08" + b"\x80" * 10 + b"\x01", "longer than 10 bytes", 1),
        (b"\x0a\x05abcd", "field of 5 bytes runs past the end", 1),
        (b"\x0a", "truncated varint", 1),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "runs past the end", 1),
        (b"\x0d\x00\x00\x00", "truncated fixed-width", 0),
        (b"\x09\x00\x00\x00\x00\x00\x00\x00", "truncated fixed-width", 0),
        (b"\x00\x00", "invalid field number 0", 0),
        (b"\x02\x00", "invalid field number 0", 0),
        (b"\x80\x80\x80\x80\x10\x00", "invalid field number 536870912", 0),
        (b"\x08\x01\x0b\x0c", "wire type 3", 2),
        (b"\x0c", "wire type 4", 0),
        (b"\x0e", "wire type 6", 0),
        (b"\x0f", "wire type 7", 0),
    ],
)
def test_malformed_bytes_are_refused_with_their_offset(buffer: bytes, problem: str, offset: int) -> None:
    with pytest.raises(pb.WireError, match=problem) as caught:
        walk(buffer)
    assert caught.value.offset == offset


def test_every_wire_type_is_walked_without_copying() -> None:
    buffer = b"\x08\x96\x01" + b"\x11" + bytes(8) + b"\x1a\x02hi" + b"\x25" + bytes(4) + b"\xf8\xff\xff\xff\x0f\x05"
    assert walk(buffer) == [
        (1, pb.VARINT, 150, 3),
        (2, pb.FIXED64, 4, 12),
        (3, pb.LEN, 14, 16),
        (4, pb.FIXED32, 17, 21),
        (pb.MAX_FIELD_NUMBER, pb.VARINT, 5, 27),
    ]


def test_a_known_field_under_another_wire_type_is_an_error() -> None:
    with pytest.raises(pb.WireError, match="field 3 has wire type 0, expected 2"):
        pb.expect(pb.VARINT, pb.LEN, 3, 7)


@given(st.lists(uint64s, max_size=20))
def test_varints_of_a_packed_field_are_counted(values: list[int]) -> None:
    packed = b"".join(map(pb.varint, values))
    assert pb.count_varints(packed, 0, len(packed)) == len(values)


def test_a_packed_field_that_ends_inside_a_varint_is_refused() -> None:
    with pytest.raises(pb.WireError):
        pb.count_varints(b"\x01\x80", 0, 2)
