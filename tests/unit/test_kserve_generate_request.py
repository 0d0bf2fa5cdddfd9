"""`generate` requests as protobuf's own classes read them. What is expected was seen on Triton 2.51."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from gateway.core.call import SequenceStep
from gateway.core.errors import GatewayError, Reason
from gateway.wire.kserve.datatypes import TABLE
from gateway.wire.kserve.generate_request import decode_generate, tensor_shape
from gateway.wire.kserve.metadata import TensorMetadata
from gateway.wire.kserve.model_config import ModelConfigSummary


def config(*inputs: tuple[str, str, tuple[int, ...]], batch: int = 0) -> ModelConfigSummary:
    return ModelConfigSummary(max_batch_size=batch, inputs=tuple(TensorMetadata(*each) for each in inputs))


TEXT = config(("text", "BYTES", (1,)), ("temperature", "FP32", (1,)), ("counts", "INT32", (-1,)))


def decoded(body: Any, model: ModelConfigSummary = TEXT) -> pb.ModelInferRequest:
    document = body if isinstance(body, bytes) else json.dumps(body).encode()
    return pb.ModelInferRequest.FromString(decode_generate(document, model).message)


def refused(body: Any, model: ModelConfigSummary = TEXT) -> str:
    with pytest.raises(GatewayError) as caught:
        decoded(body, model)
    assert caught.value.reason is Reason.BAD_REQUEST
    return caught.value.message


def test_members_go_by_their_names_to_inputs_and_parameters() -> None:
    request = decoded(
        {"text": "é", "temperature": 0.5, "seed": 7, "counts": [1, 2], "stop": True, "who": "me", "p": 0.1}
    )
    assert [(each.name, each.datatype, list(each.shape)) for each in request.inputs] == [
        ("text", "BYTES", [1]),
        ("temperature", "FP32", [1]),
        ("counts", "INT32", [2]),
    ]
    assert list(request.raw_input_contents) == [
        b"\x02\0\0\0" + "é".encode(),
        struct.pack("<f", 0.5),
        struct.pack("<2i", 1, 2),
    ]
    parameters = request.parameters
    assert parameters["seed"].int64_param == 7
    assert parameters["stop"].bool_param
    assert parameters["who"].string_param == "me"
    assert parameters["p"].double_param == 0.1
    assert set(parameters) == {"seed", "stop", "who", "p"}
    assert (request.model_name, request.id, len(request.outputs)) == ("", "", 0)


def test_what_stands_in_parameters_is_taken_as_if_it_stood_beside_it() -> None:
    inside = decoded({"parameters": {"text": "a", "seed": 7}})
    assert inside == decoded({"text": "a", "seed": 7})
    assert refused({"text": "a", "parameters": {"text": "b"}}) == "input 'text' is given twice"
    assert decoded({"x": 1, "parameters": {"x": 2}}).parameters["x"].int64_param == 2, "the later one counts"


def test_parameters_inside_parameters_is_an_ordinary_name() -> None:
    assert decoded({"parameters": {"parameters": 2}}).parameters["parameters"].int64_param == 2
    assert "must be a string" in refused({"parameters": {"parameters": {"x": 1}}})


@pytest.mark.parametrize("value", [1, [1], "a", None, True])
def test_parameters_that_are_no_object_are_refused(value: Any) -> None:
    assert refused({"text": "a", "parameters": value}) == "'parameters' must be an object"


def test_a_model_with_an_input_called_parameters_is_not_for_generate() -> None:
    assert "keyword" in refused({"parameters": [1]}, config(("parameters", "INT32", (-1,))))


def test_the_id_is_the_requests_id_and_a_member_like_any_other() -> None:
    request = decoded({"id": "q1"})
    assert request.id == "q1"
    assert request.parameters["id"].string_param == "q1"
    assert decode_generate(b'{"id":"q1"}', TEXT).id == "q1"
    empty = decoded({"id": ""})
    assert empty.id == ""
    assert empty.parameters["id"].string_param == ""
    with_input = decoded({"id": "q1"}, config(("id", "BYTES", (1,))))
    assert with_input.id == "q1"
    assert with_input.inputs[0].name == "id"
    assert not with_input.parameters
    assert decoded({"parameters": {"id": "q1"}}).id == "", "only the one at the top is the request's"


@pytest.mark.parametrize("value", [5, None, True, ["a"], {}, 1.5])
def test_an_id_that_is_no_string_is_refused(value: Any) -> None:
    assert refused({"id": value}) == "'id' must be a string"


@pytest.mark.parametrize(
    ("dims", "batch", "count", "shape"),
    [
        ((-1,), 0, 0, [0]),
        ((-1,), 0, 3, [3]),
        ((1,), 0, 1, [1]),
        ((1,), 0, 2, None),
        ((1,), 0, 0, None),
        ((2, 2), 0, 4, [2, 2]),
        ((2, 2), 0, 3, None),
        ((-1, 3), 0, 6, [2, 3]),
        ((-1, 3), 0, 4, None),
        ((-1, 3), 0, 0, [0, 3]),
        ((3, -1), 0, 6, [3, 2]),
        ((-1, -1), 0, 4, [1, 4]),
        ((2, -1, 3), 0, 12, [2, 2, 3]),
        ((2, -1, 3), 0, 7, None),
        ((1,), 8, 1, [1, 1]),
        ((1,), 8, 3, [3, 1]),
        ((-1,), 8, 3, [1, 3]),
        ((-1, 3), 8, 6, [1, 2, 3]),
        ((0,), 0, 0, None),
        ((), 8, 2, [2]),
    ],
)
def test_the_shape_is_made_from_the_configuration(
    dims: tuple[int, ...], batch: int, count: int, shape: list[int] | None
) -> None:
    assert tensor_shape(TensorMetadata("x", "INT32", dims), batch > 0, count) == shape
    model = config(("x", "INT32", dims), batch=batch)
    if shape is None:
        assert f"{count} elements do not fill its shape" in refused({"x": [0] * count}, model)
    else:
        assert list(decoded({"x": [0] * count}, model).inputs[0].shape) == shape


def test_nested_arrays_count_by_their_outer_one_as_on_triton() -> None:
    assert list(decoded({"counts": [[1], [2]]}).inputs[0].shape) == [2]
    assert refused({"counts": [[1, 2]]}) == "input 'counts' has 2 elements, but its shape makes 1"


@pytest.mark.parametrize(
    "body",
    [
        {"text": 5},
        {"text": None},
        {"text": {}},
        {"temperature": "a"},
        {"temperature": True},
        {"temperature": None},
        {"counts": 1.5},
        {"counts": True},
        {"counts": [1, None]},
        {"counts": 2**31},
        {"counts": {"a": 1}},
    ],
)
def test_elements_of_another_type_than_the_inputs_are_refused_by_name(body: dict[str, Any]) -> None:
    assert refused(body).startswith(f"input '{next(iter(body))}': element ")


@pytest.mark.parametrize("value", [None, {}, {"a": 1}, [], [1]])
def test_a_parameter_that_is_no_scalar_is_refused(value: Any) -> None:
    assert refused({"seed": value}) == "parameter 'seed' must be a string, an integer, a number, true or false"


@pytest.mark.parametrize("datatype", [row.name for row in TABLE if not row.json])
def test_half_precision_is_refused_with_where_to_go(datatype: str) -> None:
    message = refused({"x": 1}, config(("x", datatype, (-1,))))
    assert datatype in message
    assert "infer" in message


def test_reserved_names_mean_what_they_mean_on_infer() -> None:
    request = decoded(
        {"sequence_id": 7, "sequence_start": True, "timeout": 5, "priority": 2, "binary_data_output": True}
    )
    assert request.parameters["sequence_id"].int64_param == 7
    assert request.parameters["timeout"].int64_param == 5
    assert request.parameters["priority"].uint64_param == 2
    assert request.parameters["binary_data_output"].bool_param, "not a word of generate: the model's own"
    assert "sequence_id" in refused({"sequence_id": 1.5})
    sequence = decode_generate(b'{"sequence_id":"s","parameters":{"sequence_end":true}}', TEXT).sequence
    assert sequence == SequenceStep("s", False, True)
    assert decode_generate(b'{"sequence_id":0,"sequence_start":true}', TEXT).sequence is None
    assert "reserved" in refused({"triton_enable_empty_final_response": True})
    shadowed = decoded({"timeout": 5}, config(("timeout", "INT32", (1,))))
    assert not shadowed.parameters, "an input of that name comes first"


def test_bare_words_are_taken_as_on_infer() -> None:
    request = decoded(b'{"temperature":NaN,"x":Infinity}')
    assert struct.unpack("<f", request.raw_input_contents[0])[0] != 0.0
    assert request.parameters["x"].double_param == float("inf")
    for no_number in (b"1e999", b"nan", b"inf", b"+Infinity"):
        assert "not valid JSON" in refused(b'{"temperature":%b}' % no_number)
    for no_number in (b'"NaN"', b"null"):
        assert "temperature" in refused(b'{"temperature":%b}' % no_number)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"not json", b"[]", b"5", b'"a"', b"null", b'{"text":"a"}x', b'{"text":"\xff"}', b'{"a":"\\ud800"}'],
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    assert "JSON" in refused(body)


def test_an_unpaired_surrogate_beside_a_bare_word_is_refused() -> None:
    assert "surrogate" in refused(b'{"temperature":NaN,"x":"\\ud800"}')


def test_members_are_bounded() -> None:
    assert len(decoded({f"p{index}": 1 for index in range(1024)}).parameters) == 1024
    assert "1024" in refused({f"p{index}": 1 for index in range(1025)})


def test_a_body_in_a_memoryview_is_read_as_well() -> None:
    assert decode_generate(memoryview(b'{"text":"a"}'), TEXT).message == decode_generate(b'{"text":"a"}', TEXT).message


_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
_JSON = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)
_NAMES = st.sampled_from(["text", "temperature", "counts", "id", "parameters", "timeout", "seed"])


@given(st.dictionaries(_NAMES, _JSON, max_size=5))
def test_any_object_is_decoded_or_refused_and_what_is_decoded_is_a_message(body: dict[str, Any]) -> None:
    try:
        request = decoded(body)
    except GatewayError:
        return
    nested = body.get("parameters", {})
    assert len(request.inputs) == len(request.raw_input_contents)
    assert {each.name for each in request.inputs} == {*body, *nested} & {"text", "temperature", "counts"}
    assert set(request.parameters) == {*body, *nested} - {"text", "temperature", "counts", "parameters"} | (
        {"parameters"} & set(nested)
    )


@given(st.lists(st.sampled_from([-1, 1, 2, 3, 5]), max_size=4).map(tuple), st.booleans(), st.integers(0, 200))
def test_a_shape_that_is_made_holds_exactly_the_elements(dims: tuple[int, ...], batches: bool, count: int) -> None:
    shape = tensor_shape(TensorMetadata("x", "INT32", dims), batches, count)
    declared = [-1, *dims] if batches else list(dims)
    fixed = 1
    for dim in declared:
        fixed *= max(dim, 1)
    if shape is None:
        assert count % fixed or -1 not in declared
        return
    product = 1
    for dim in shape:
        product *= dim
    assert product == count
    assert all(want in (-1, made) for want, made in zip(declared, shape, strict=True))
