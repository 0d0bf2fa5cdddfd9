"""Sizes of inputs are those that the reference library's messages have, whichever way their data is sent."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from gateway.wire.kserve import input_sizes
from gateway.wire.kserve import protobuf as pb
from gateway.wire.kserve.input_sizes import InputReader, InputSize, longest_text, parameter, total
from tests.support.tensors import packed_bytes
from tests.unit.kserve_messages import NUMPY, parameter_maps, put


def request(*inputs: tuple[str, str, list[int], bytes]) -> bytes:
    """A request with raw contents: (name, datatype, shape, data)."""
    message = service_pb2.ModelInferRequest(model_name="m", id="i")
    for name, datatype, shape, data in inputs:
        message.inputs.add(name=name, datatype=datatype, shape=shape)
        message.raw_input_contents.append(data)
    return bytes(message.SerializeToString())


def typed(datatype: str, shape: list[int], **contents: Any) -> bytes:
    message = service_pb2.ModelInferRequest(model_name="m")
    one = message.inputs.add(name="x", datatype=datatype, shape=shape)
    for field, values in contents.items():
        getattr(one.contents, field).extend(values)
    return bytes(message.SerializeToString())


def test_shapes_and_data_of_each_input_are_found_call_after_call() -> None:
    reader = InputReader()
    for data in (b"\x01" * 6, b"\x02" * 6):
        message = request(("a", "UINT8", [2, 3], data), ("b", "FP32", [1], b"1234"))
        first, second = reader.read(message)
        assert (first.name, first.datatype, first.shape) == ("a", "UINT8", (2, 3))
        assert message[first.start : first.stop] == data
        assert message[second.start : second.stop] == b"1234"
        assert (first.elements(), first.elements(1), second.elements(1)) == (6, 3, 1)


def test_typed_contents_are_found_where_they_lie_in_each_message() -> None:
    reader = InputReader()
    for value in (7, 70_000):
        message = typed("INT64", [1, 1], int64_contents=[value])
        (size,) = reader.read(message)
        assert size.typed
        assert total(message, size) == value


@given(st.lists(st.integers(0, 1 << 70), max_size=70))
def test_a_shape_has_so_many_elements(shape: list[int]) -> None:
    assert InputSize("x", "FP32", tuple(shape)).elements() == min(math.prod(shape), 1 << 62 if 0 not in shape else 0)


def test_a_negative_dimension_counts_nothing() -> None:
    (size,) = InputReader().read(request(("x", "FP32", [2, -1, 3], b"")))
    assert size.elements() == -1
    assert size.elements(2) == 3


@pytest.mark.parametrize("datatype", [name for name in NUMPY if name != "BOOL"])
def test_the_total_is_the_sum_of_the_numbers(datatype: str) -> None:
    values = np.array([[1, 2], [3, 64]], dtype=NUMPY[datatype])
    message = request(("x", datatype, [2, 2], values.tobytes()))
    assert total(message, InputReader().read(message)[0]) == 70


@given(st.lists(st.floats(-1e6, 1e6, width=32), max_size=40))
def test_the_total_is_the_same_for_typed_contents(values: list[float]) -> None:
    message = typed("FP32", [len(values)], fp32_contents=values)
    sums = [total(message, each) for each in InputReader().read(message)]
    assert sums == [pytest.approx(sum(values)) if values else None]


def test_what_has_no_total_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for message in (
        request(("x", "BYTES", [1], packed_bytes(b"12"))),
        request(("x", "BF16", [1], b"12")),
        request(("x", "FP32", [0], b"")),
        typed("BYTES", [1], bytes_contents=[b"12"]),
    ):
        assert total(message, InputReader().read(message)[0]) is None
    monkeypatch.setattr(input_sizes, "VALUES_MAX", 2)
    for message in (
        request(("x", "UINT8", [3], b"123")),
        typed("FP32", [3], fp32_contents=[1, 2, 3]),
        typed("INT64", [3], int64_contents=[1, 2, 3]),
    ):
        assert total(message, InputReader().read(message)[0]) is None


@given(st.lists(st.binary(max_size=9), min_size=1, max_size=12), st.integers(1, 12))
def test_the_longest_text_is_that_of_the_fullest_row(texts: list[bytes], rows: int) -> None:
    width = len(texts) // rows
    in_rows = width and len(texts) % rows == 0
    expected = sum(map(len, texts))
    if in_rows:
        expected = max(sum(map(len, texts[at : at + width])) for at in range(0, len(texts), width))
    for message in (
        request(("x", "BYTES", [rows, width or 1], packed_bytes(*texts))),
        typed("BYTES", [rows, width or 1], bytes_contents=texts),
    ):
        assert longest_text(message, InputReader().read(message)[0], rows) == expected


def test_of_more_texts_than_are_looked_at_all_bytes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_sizes, "ELEMENTS_MAX", 2)
    texts = [b"abc", b"", b""]
    for message in (
        request(("x", "BYTES", [3, 1], packed_bytes(*texts))),
        typed("BYTES", [3, 1], bytes_contents=texts),
    ):
        (size,) = InputReader().read(message)
        assert longest_text(message, size, 3) == size.stop - size.start > 3


@given(parameter_maps, st.text(max_size=12))
def test_a_parameter_is_found_by_its_name(parameters: dict[str, Any], name: str) -> None:
    message = service_pb2.ModelInferRequest(model_name="m")
    put(message.parameters, parameters)
    found = parameter(bytes(message.SerializeToString()), name)
    assert (found is not None) == (name in parameters)
    if found is not None and parameters[name].HasField("int64_param"):
        assert found.value == parameters[name].int64_param


def test_the_memo_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_sizes, "_MEMO_ENTRIES_MAX", 8)
    reader = InputReader()
    for number in range(100):
        reader.read(request(("x", "UINT8", [number], b"")))
    assert len(reader._memo) <= 8


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(message: bytes) -> None:
    try:
        for size in InputReader().read(message):
            total(message, size)
            longest_text(message, size, 2)
            assert 0 <= size.start <= size.stop <= len(message)
        parameter(message, "x")
    except pb.WireError:
        pass


@given(st.lists(st.integers(0, 127), max_size=60).map(bytes))  # tags that take a second byte are refused before
def test_what_is_no_message_is_refused_as_the_plain_walk_refuses_it(message: bytes) -> None:
    try:
        walked = [each[:2] for each in pb.fields(message, 0, len(message))]
    except pb.WireError:
        with pytest.raises(pb.WireError):
            InputReader().read(message)
        return
    try:
        found = InputReader().read(message)
    except pb.WireError:
        assert (5, pb.LEN) in walked, "only what is inside of an input may be wrong"
    else:
        assert len(found) == walked.count((5, pb.LEN))
