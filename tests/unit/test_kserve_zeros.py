"""Requests of zeros, as tritonclient's own classes read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from gateway.wire.kserve.metadata import TensorMetadata
from gateway.wire.kserve.zeros import zeros_request

DATATYPES = {"BOOL": 1, "UINT8": 1, "INT16": 2, "FP16": 2, "BF16": 2, "FP32": 4, "INT64": 8, "FP64": 8, "BYTES": 4}


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(DATATYPES)), st.lists(st.integers(-1, 4), max_size=4), st.booleans()),
        min_size=1,
        max_size=5,
    )
)
def test_a_request_of_zeros_has_every_required_input_in_its_shape(inputs: list[tuple[str, list[int], bool]]) -> None:
    tensors = tuple(TensorMetadata(f"i{n}", kind, tuple(shape)) for n, (kind, shape, _) in enumerate(inputs))
    optional = frozenset(f"i{n}" for n, (_, _, is_optional) in enumerate(inputs) if is_optional)
    message = pb.ModelInferRequest.FromString(zeros_request(tensors, optional))
    expected = [t for t in tensors if t.name not in optional] or list(tensors)
    assert [each.name for each in message.inputs] == [each.name for each in expected]
    for each, raw, tensor in zip(message.inputs, message.raw_input_contents, expected, strict=True):
        shape = [1 if size < 0 else size for size in tensor.shape]
        assert list(each.shape) == shape
        count = 1
        for size in shape:
            count *= size
        assert raw == bytes(count * DATATYPES[tensor.datatype])


def test_zeros_that_would_be_huge_or_of_an_unknown_type_are_not_made() -> None:
    with pytest.raises(ValueError, match="more than"):
        zeros_request((TensorMetadata("a", "FP32", (1 << 40,)),))
    with pytest.raises(ValueError, match="FP99"):
        zeros_request((TensorMetadata("a", "FP99", (1,)),))
