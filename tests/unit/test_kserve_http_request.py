"""HTTP inference requests to protobuf: what Triton 2.51 accepts is accepted, all else is a clear 400."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient import http as triton_http
from tritonclient.grpc import service_pb2

from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason
from gateway.wire.kserve.http_raw import decode_raw_infer
from gateway.wire.kserve.http_request import (
    ALL_BINARY,
    ALL_JSON,
    HttpInferRequest,
    decode_http_infer,
    is_raw,
    parse_header_length,
)
from gateway.wire.kserve.metadata import TensorMetadata
from tests.support.tensors import packed_bytes
from tests.unit.kserve_messages import JSON_NUMERIC, NUMPY, arrays

X = '{"name":"x","datatype":"FP32","shape":[1],"data":[1]}'


def message_of(decoded: HttpInferRequest) -> Any:
    return service_pb2.ModelInferRequest.FromString(decoded.message)


def decode(text: str | bytes) -> Any:
    return message_of(decode_http_infer(text.encode() if isinstance(text, str) else text))


def one(datatype: str, data: str, shape: str = "[1]") -> str:
    return f'{{"inputs":[{{"name":"x","datatype":"{datatype}","shape":{shape},"data":{data}}}]}}'


def refused(
    body: str | bytes, *fragments: str, header_length: int | None = None, reason: Reason = Reason.BAD_REQUEST
) -> None:
    with pytest.raises(GatewayError) as caught:
        decode_http_infer(body.encode() if isinstance(body, str) else body, header_length)
    assert caught.value.reason is reason
    assert caught.value.code is (Code.INVALID_ARGUMENT if reason is Reason.BAD_REQUEST else Code.UNIMPLEMENTED)
    for fragment in fragments:
        assert fragment in caught.value.message
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 400


# --- tensors in JSON ------------------------------------------------------------------------------------------------


@given(st.data())
def test_json_data_becomes_the_bytes_that_numpy_has(data: st.DataObject) -> None:
    datatype = data.draw(st.sampled_from(JSON_NUMERIC))
    array = data.draw(arrays(datatype))
    listed = array.tolist() if data.draw(st.booleans()) else array.ravel().tolist()
    body = json.dumps({"inputs": [{"name": "x", "datatype": datatype, "shape": array.shape, "data": listed}]})
    request = decode(body)
    assert list(request.inputs[0].shape) == list(array.shape)
    assert (request.inputs[0].name, request.inputs[0].datatype) == ("x", datatype)
    back = np.frombuffer(request.raw_input_contents[0], NUMPY[datatype]).reshape(array.shape)
    # NaN has no payload in JSON, so bits are compared for all but NaN.
    if datatype in ("FP32", "FP64"):
        assert np.array_equal(np.isnan(back), np.isnan(array))
        back, array = back[~np.isnan(back)], array[~np.isnan(array)]
    assert back.tobytes() == array.tobytes()


@given(st.lists(st.text(max_size=20), max_size=5))
def test_strings_become_length_prefixed_utf8(elements: list[str]) -> None:
    body = json.dumps({"inputs": [{"name": "x", "datatype": "BYTES", "shape": [len(elements)], "data": elements}]})
    assert decode(body).raw_input_contents[0] == packed_bytes(*(each.encode() for each in elements))


@pytest.mark.parametrize(
    ("datatype", "data", "shape", "raw"),
    [
        ("FP32", "[1]", "[1]", struct.pack("<f", 1)),
        ("FP32", "[-0.0]", "[1]", b"\x00\x00\x00\x80"),
        ("FP32", "[0.1]", "[1]", np.float32(0.1).tobytes()),
        ("FP32", "[NaN]", "[1]", b"\x00\x00\xc0\x7f"),
        ("FP32", "[Infinity,-Infinity]", "[2]", b"\x00\x00\x80\x7f\x00\x00\x80\xff"),
        ("FP32", "[18446744073709551616]", "[1]", struct.pack("<f", 2.0**64)),
        ("FP64", "[1e308]", "[1]", struct.pack("<d", 1e308)),
        ("FP32", "[[1,2],3]", "[3]", struct.pack("<3f", 1, 2, 3)),
        ("FP32", "[1,[[2],3],[]]", "[3]", struct.pack("<3f", 1, 2, 3)),
        ("FP32", "[[[1],[2]],3]", "[3]", struct.pack("<3f", 1, 2, 3)),
        ("FP32", "[[],[]]", "[2,0]", b""),
        ("FP32", "[]", "[0]", b""),
        ("FP32", "[5]", "[]", struct.pack("<f", 5)),
        ("FP32", "[[[[1,2],[3,4]]]]", "[1,1,2,2]", struct.pack("<4f", 1, 2, 3, 4)),
        ("UINT64", "[18446744073709551615]", "[1]", b"\xff" * 8),
        ("INT64", "[-9223372036854775808]", "[1]", b"\x00" * 7 + b"\x80"),
        ("BOOL", "[true,false]", "[2]", b"\x01\x00"),
        ("BYTES", '["a\\u0000b","\\u00fc"]', "[2]", packed_bytes(b"a\x00b", b"\xc3\xbc")),
        ("FP32", "[" * 100 + "1" + "]" * 100, "[1]", struct.pack("<f", 1)),
    ],
)
def test_what_triton_accepts_is_accepted(datatype: str, data: str, shape: str, raw: bytes) -> None:
    assert decode(one(datatype, data, shape)).raw_input_contents[0] == raw


@pytest.mark.parametrize(
    ("datatype", "data", "fragments"),
    [
        ("FP32", "[true]", ("'x'", "element 0", "a number", "true")),
        ("FP32", "[1.0,null]", ("'x'", "2 elements", "1")),
        ("FP32", "[null]", ("element 0", "null")),
        ("FP32", '["1"]', ("element 0", "'1'")),
        ("FP32", "[{}]", ("element 0", "an object")),
        ("FP32", "[1e999]", ("JSON",)),
        ("FP32", "[NaN,1e999]", ("too big for a double",)),
        ("FP32", "[NaN,-1e999]", ("too big for a double",)),
        ("FP32", "[1e39]", ("out of range for FP32", "element 0")),
        ("FP32", "[" + "1" * 400 + "]", ("JSON",)),
        ("FP64", "[" + "1" * 400 + "]", ("JSON",)),
        ("FP64", "[NaN," + "1" * 5000 + "]", ("JSON",)),
        ("FP32", "5", ("'data'", "array")),
        ("FP32", "null", ("'data'", "array")),
        ("FP32", '"abc"', ("'data'", "array")),
        ("FP32", "[1,2]", ("2 elements", "makes 1")),
        ("FP32", "[]", ("0 elements",)),
        ("FP32", "[" * 101 + "1" + "]" * 101, ("100 deep",)),
        ("FP32", "[1," + "[" * 101 + "1" + "]" * 101 + "]", ("100 deep",)),
        ("FP32", "[" * 2000 + "1" + "]" * 2000, ("JSON",)),
        ("FP32", "[Infinity," + "[" * 100000, ("nested too deeply",)),
        ("FP32", "[inf]", ("JSON",)),
        ("FP32", "[Infinit]", ("JSON",)),
        ("BOOL", "[1]", ("true or false", "'1'")),
        ("BOOL", "[0.0]", ("true or false",)),
        ("UINT8", "[256]", ("'256'", "out of range for UINT8")),
        ("UINT8", "[-1]", ("out of range for UINT8",)),
        ("UINT8", "[1.0]", ("an integer",)),
        ("UINT8", "[true]", ("an integer", "true")),
        ("INT8", "[-129]", ("out of range for INT8",)),
        ("INT32", "[2147483648]", ("out of range for INT32",)),
        ("INT64", "[9223372036854775808]", ("out of range for INT64",)),
        ("UINT64", "[18446744073709551616]", ("an integer",)),
        ("UINT64", "[-1]", ("out of range for UINT64",)),
        ("INT64", "[NaN]", ("an integer",)),
        ("FP16", "[0.5]", ("'x'", "FP16", "binary")),
        ("BF16", "[0.5]", ("'x'", "BF16", "binary")),
        ("BYTES", "[1]", ("a string",)),
        ("BYTES", "[null]", ("a string", "null")),
        ("BYTES", '["\\ud800"]', ("JSON",)),
        ("BYTES", '["\\ud800", NaN]', ("'x'",)),
        ("FP99", "[1]", ("unknown datatype", "'FP99'")),
        ("fp32", "[1]", ("unknown datatype",)),
        ("STRING", '["a"]', ("unknown datatype",)),
    ],
)
def test_wrong_elements_are_refused_by_name(datatype: str, data: str, fragments: tuple[str, ...]) -> None:
    refused(one(datatype, data), *fragments)


def test_an_unpaired_surrogate_is_refused_wherever_it_stands() -> None:
    nan = '{"name":"n","datatype":"FP32","shape":[1],"data":[NaN]}'
    for body in (
        f'{{"id":"\\ud800","inputs":[{nan}]}}',
        f'{{"parameters":{{"a":"\\udfff"}},"inputs":[{nan}]}}',
        f'{{"parameters":{{"\\udfff":1}},"inputs":[{nan}]}}',
        f'{{"inputs":[{nan}],"outputs":[{{"name":"\\ud800"}}]}}',
        f'{{"inputs":[{nan},{{"name":"\\ud800","datatype":"BYTES","shape":[0],"data":[]}}]}}',
        f'{{"inputs":[{nan},{{"name":"b","datatype":"BYTES","shape":[1],"data":["\\ud800"]}}]}}',
    ):
        refused(body, "surrogate")


@pytest.mark.parametrize(
    "shape",
    ["[-1]", '["1"]', "[1.0]", "[true]", "1", "null", "{}", "[[1]]", "[null]", "[9223372036854775808]", "[1e2]"],
)
def test_a_shape_holds_non_negative_integers_only(shape: str) -> None:
    decode(one("FP32", "[1]"))  # so that [1] is a shape seen before, which True and 1.0 equal
    refused(one("FP32", "[1]", shape), "'shape'", "'x'")


@pytest.mark.parametrize("shape", ["[4611686018427387904,4]", "[2147483648]", "[65536,65536]", "[2,536870912]"])
def test_a_shape_that_no_message_can_carry_is_refused(shape: str) -> None:
    refused(one("FP32", "[]", shape), "'x'", "2 GiB")


def test_a_zero_dimension_makes_the_tensor_empty_whatever_the_others_are() -> None:
    request = decode(one("FP32", "[]", "[4611686018427387904,4611686018427387904,0]"))
    assert list(request.inputs[0].shape) == [1 << 62, 1 << 62, 0]
    assert request.raw_input_contents[0] == b""


def test_too_many_dimensions_are_refused() -> None:
    refused(one("FP32", "[1]", str([1] * 65)), "64 dimensions")


# --- the document ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "fragment"),
    [
        ("{}", "'inputs' is missing"),
        ("[]", "must be an object"),
        ("5", "must be an object"),
        ("null", "must be an object"),
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        (f'{{"inputs":[{X}]}} x', "not valid JSON"),
        (f'{{"inputs":[{X}],}}', "not valid JSON"),
        ('{"inputs":{}}', "array"),
        ('{"inputs":null}', "array"),
        ('{"inputs":[5]}', "must be an object"),
        ('{"inputs":[{}]}', "'name'"),
        ('{"inputs":[{"name":5,"datatype":"FP32","shape":[1],"data":[1]}]}', "'name'"),
        ('{"inputs":[{"name":"x","shape":[1],"data":[1]}]}', "'datatype'"),
        ('{"inputs":[{"name":"x","datatype":["FP32"],"shape":[1],"data":[1]}]}', "'datatype'"),
        ('{"inputs":[{"name":"x","datatype":"FP32","data":[1]}]}', "'shape'"),
        ('{"inputs":[{"name":"x","datatype":"FP32","shape":[1]}]}', "neither"),
        (f'{{"inputs":[{X[:-1]},"parameters":{{"binary_data_size":4}}}}]}}', "both"),
        (f'{{"inputs":[{X},{X}]}}', "'x' is given twice"),
        (f'{{"inputs":[{X}],"outputs":5}}', "'outputs'"),
        (f'{{"inputs":[{X}],"outputs":null}}', "'outputs'"),
        (f'{{"inputs":[{X}],"outputs":["y"]}}', "'name'"),
        (f'{{"inputs":[{X}],"outputs":[{{}}]}}', "'name'"),
        (f'{{"inputs":[{X}],"outputs":[{{"name":"y","parameters":{{"binary_data":1}}}}]}}', "'binary_data'"),
        (f'{{"inputs":[{X}],"outputs":[{{"name":"y","parameters":{{"binary_data":null}}}}]}}', "'binary_data'"),
        (f'{{"inputs":[{X}],"outputs":[{{"name":"y","parameters":{{"classification":-1}}}}]}}', "'classification'"),
        (f'{{"inputs":[{X}],"outputs":[{{"name":"y","parameters":{{"classification":"1"}}}}]}}', "'classification'"),
        (f'{{"inputs":[{X}],"parameters":null}}', "'parameters'"),
        (f'{{"inputs":[{X}],"parameters":[]}}', "'parameters'"),
        (f'{{"inputs":[{X}],"id":5}}', "'id'"),
        (f'{{"inputs":[{X}],"id":null}}', "'id'"),
    ],
)
def test_a_malformed_document_is_refused(body: str, fragment: str) -> None:
    refused(body, fragment)


def test_invalid_utf8_is_refused_with_and_without_bare_words() -> None:
    refused(f'{{"inputs":[{X}],"id":"'.encode() + b'\xff"}', "JSON")
    refused(f'{{"inputs":[{X}],"z":NaN,"id":"'.encode() + b'\xff"}', "UTF-8")
    refused(f'{{"inputs":[{X}],"z":NaN}}'.encode("utf-16"), "JSON")


def test_a_byte_order_mark_and_white_space_around_are_accepted() -> None:
    assert decode(b"\xef\xbb\xbf" + f' {{"inputs":[{X}]}} '.encode()).inputs[0].name == "x"
    refused(b"\xef\xbb\xbf" * 100_000, "JSON")


def test_unknown_members_are_ignored_and_the_message_names_no_model() -> None:
    request = decode(f'{{"model_name":"other","zzz":{{"a":[]}},"inputs":[{X}],"model_version":"9"}}')
    assert (request.model_name, request.model_version) == ("", "")


def test_null_parameters_of_a_tensor_are_none() -> None:
    request = decode(f'{{"inputs":[{X[:-1]},"parameters":null}}],"outputs":[{{"name":"y","parameters":null}}]}}')
    assert not request.inputs[0].parameters
    assert not request.outputs[0].parameters


def test_the_id_is_carried_and_an_empty_one_is_none() -> None:
    decoded = decode_http_infer(f'{{"id":"ü/1","inputs":[{X}]}}'.encode())
    assert (decoded.id, message_of(decoded).id) == ("ü/1", "ü/1")
    decoded = decode_http_infer(f'{{"id":"","inputs":[{X}]}}'.encode())
    assert (decoded.id, message_of(decoded).id) == ("", "")


def test_no_inputs_at_all_are_for_triton_to_judge() -> None:
    assert len(decode('{"inputs":[]}').inputs) == 0


def test_names_in_errors_are_short_and_printable() -> None:
    name = "\\n\\u0000" + "a" * 5000
    refused(f'{{"inputs":[{{"name":"{name}","datatype":"FP32","shape":[1],"data":[]}}]}}', "'??aaa")


# --- parameters -----------------------------------------------------------------------------------------------------


def parameter(text: str) -> tuple[str | None, Any]:
    """What becomes of the JSON parameter `p`."""
    name = json.loads("{" + text + "}").popitem()[0]
    request = decode(f'{{"parameters":{{{text}}},"inputs":[{X}]}}')
    which = request.parameters[name].WhichOneof("parameter_choice")
    return which, getattr(request.parameters[name], which)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"a":"s"', ("string_param", "s")),
        ('"a":""', ("string_param", "")),
        ('"":1', ("int64_param", 1)),
        ('"a":true', ("bool_param", True)),
        ('"a":false', ("bool_param", False)),
        ('"a":-5', ("int64_param", -5)),
        ('"a":9223372036854775807', ("int64_param", (1 << 63) - 1)),
        ('"a":-9223372036854775808', ("int64_param", -(1 << 63))),
        ('"a":9223372036854775808', ("double_param", float(1 << 63))),
        ('"a":18446744073709551615', ("double_param", float((1 << 64) - 1))),
        ('"a":18446744073709551616', ("double_param", float(1 << 64))),
        ('"a":1.5', ("double_param", 1.5)),
        ('"a":1.0', ("double_param", 1.0)),
        ('"a":Infinity', ("double_param", float("inf"))),
        ('"sequence_id":5', ("int64_param", 5)),
        ('"sequence_id":"abc"', ("string_param", "abc")),
        ('"sequence_id":18446744073709551615', ("int64_param", -1)),
        ('"sequence_start":true', ("bool_param", True)),
        ('"sequence_end":false', ("bool_param", False)),
        ('"priority":1', ("uint64_param", 1)),
        ('"priority":18446744073709551615', ("uint64_param", (1 << 64) - 1)),
        ('"timeout":100', ("int64_param", 100)),
        ('"timeout":9223372036854775808', ("int64_param", -(1 << 63))),
        ('"headers":"x"', ("string_param", "x")),
        ('"classification":1', ("int64_param", 1)),
    ],
)
def test_parameters_keep_their_type_as_triton_takes_it(text: str, expected: tuple[str, Any]) -> None:
    which, value = parameter(text)
    assert (which, value) == expected
    assert type(value) is type(expected[1])


@pytest.mark.parametrize(
    "text",
    [
        '"a":null',
        '"a":[1]',
        '"a":{}',
        '"headers":{"a":1}',
        '"triton_enable_empty_final_response":true',
        '"triton_x":1',
        '"sequence_id":-1',
        '"sequence_id":1.5',
        '"sequence_id":true',
        '"sequence_id":null',
        '"sequence_start":1',
        '"sequence_end":"true"',
        '"priority":-1',
        '"priority":"1"',
        '"priority":1.0',
        '"timeout":-1',
        '"timeout":1.5',
        '"timeout":true',
        '"binary_data_output":1',
        '"binary_data_output":"x"',
    ],
)
def test_a_parameter_of_a_wrong_type_or_a_reserved_name_is_refused(text: str) -> None:
    name = json.loads("{" + text + "}").popitem()[0]
    refused(f'{{"parameters":{{{text}}},"inputs":[{X}]}}', f"'{name}'")


@pytest.mark.parametrize("name", ["sequence_id", "priority", "timeout"])
def test_a_number_that_is_too_large_is_refused_with_the_range(name: str) -> None:
    said = f"'{name}' must be an integer from 0 to 18446744073709551615"
    refused(f'{{"parameters":{{"{name}":18446744073709551616}},"inputs":[{X}]}}', said)


def test_too_many_parameters_are_refused() -> None:
    many = ",".join(f'"p{index}":1' for index in range(1025))
    refused(f'{{"parameters":{{{many}}},"inputs":[{X}]}}', "1025 parameters")


# --- requested outputs ----------------------------------------------------------------------------------------------

FLAG = '"parameters":{"binary_data_output":true},'


@pytest.mark.parametrize(
    ("flag", "outputs", "binary"),
    [
        ("", None, {"y": False}),
        (FLAG, None, {"y": True}),
        ("", "[]", {"y": False}),
        (FLAG, "[]", {"y": True}),
        (FLAG, '[{"name":"y"}]', {"y": True}),  # FH-01 A
        (FLAG, '[{"name":"y"},{"name":"z","parameters":{"binary_data":false}}]', {"y": True, "z": False}),  # FH-01 B
        ("", '[{"name":"y","parameters":{"binary_data":true}},{"name":"z"}]', {"y": True, "z": False}),
        (FLAG, '[{"name":"y","parameters":{"classification":2}}]', {"y": True}),
        ("", '[{"name":"y","parameters":{"binary_data":true}},{"name":"y"}]', {"y": True}),
        (
            "",
            '[{"name":"y","parameters":{"binary_data":true}},{"name":"y","parameters":{"binary_data":false}}]',
            {"y": True},
        ),
        ('"parameters":{"binary_data_output":false},', '[{"name":"y"}]', {"y": False}),
    ],
)
def test_an_outputs_own_flag_wins_and_an_unset_one_inherits_the_requests(
    flag: str, outputs: str | None, binary: dict[str, bool]
) -> None:
    listed = "" if outputs is None else f',"outputs":{outputs}'
    decoded = decode_http_infer(f'{{{flag}"inputs":[{X}]{listed}}}'.encode())
    assert {name: decoded.plan.is_binary(name) for name in binary} == binary
    request = message_of(decoded)
    assert "binary_data_output" not in request.parameters
    assert all("binary_data" not in output.parameters for output in request.outputs)


def test_outputs_keep_their_order_and_classification() -> None:
    request = decode(
        f'{{"inputs":[{X}],"outputs":[{{"name":"b","parameters":{{"classification":3}}}},{{"name":"a"}},'
        '{"name":"c","parameters":{"classification":0,"foo":{}}},'
        '{"name":"d","parameters":{"classification":18446744073709551615}},'
        '{"name":"e","parameters":{"classification":4294967296}}]}'
    )
    assert [output.name for output in request.outputs] == ["b", "a", "c", "d", "e"]
    assert request.outputs[0].parameters["classification"].int64_param == 3
    assert not request.outputs[2].parameters  # Triton takes 0 over HTTP and refuses it over gRPC
    # Triton keeps the lower 32 bits.
    assert request.outputs[3].parameters["classification"].int64_param == (1 << 32) - 1
    assert not request.outputs[4].parameters


def test_of_an_output_listed_twice_the_first_counts() -> None:
    plain, binary, best = (
        '{"name":"y"}',
        '{"name":"y","parameters":{"binary_data":true}}',
        '{"name":"y","parameters":{"classification":1}}',
    )
    for first in (plain, binary, best):
        alone = decode_http_infer(f'{{"inputs":[{X}],"outputs":[{first}]}}'.encode())
        for second in (plain, binary, best):
            both = decode_http_infer(f'{{"inputs":[{X}],"outputs":[{first},{second}]}}'.encode())
            assert (both.message, both.plan.is_binary("y")) == (alone.message, alone.plan.is_binary("y"))


@pytest.mark.parametrize("value", ["5", "[1]", "true", '"s"', "null"])
def test_parameters_of_a_tensor_that_are_no_object_are_overlooked(value: str) -> None:
    plain = f'{{"inputs":[{X}],"outputs":[{{"name":"y"}}]}}'
    odd = f'{{"inputs":[{X[:-1]},"parameters":{value}}}],"outputs":[{{"name":"y","parameters":{value}}}]}}'
    assert decode(odd) == decode(plain)


@pytest.mark.parametrize(
    ("word", "bits"),
    [("Inf", "0000807f"), ("-Inf", "000080ff"), ("-NaN", "0000c07f"), ("Infinity", "0000807f"), ("NaN", "0000c07f")],
)
def test_the_words_that_triton_reads_are_read_outside_of_strings_only(word: str, bits: str) -> None:
    text = f'{{"id":"{word} \\" {word}","inputs":[{{"name":"x","datatype":"FP32","shape":[1],"data":[{word}]}}]}}'
    request = decode(text)
    assert request.id == f'{word} " {word}'
    assert request.raw_input_contents[0].hex() == bits


def test_an_id_ends_at_its_first_zero_byte_as_on_triton() -> None:
    assert decode(f'{{"id":"a\\u0000b","inputs":[{X}]}}').id == "a"
    assert decode(f'{{"id":"\\u0000","inputs":[{X}]}}').id == ""


@pytest.mark.parametrize(
    "body",
    [
        '{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"parameters":{"shared_memory_region":"r","shared_memory_byte_size":4}}]}',
        f'{{"inputs":[{X}],"outputs":[{{"name":"x","parameters":{{"shared_memory_region":"r"}}}}]}}',
    ],
)
def test_shared_memory_is_refused_with_what_to_do_instead(body: str) -> None:
    refused(body, "'x'", "not served through the gateway", "directly", reason=Reason.UNSUPPORTED)


# --- binary tensors -------------------------------------------------------------------------------------------------


def framed(document: str, tail: bytes = b"") -> tuple[bytes, int]:
    encoded = document.encode()
    return encoded + tail, len(encoded)


def binary_input(size: str, shape: str = "[1]", datatype: str = "FP32", name: str = "x") -> str:
    return f'{{"name":"{name}","datatype":"{datatype}","shape":{shape},"parameters":{{"binary_data_size":{size}}}}}'


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_binary_and_json_inputs_may_be_mixed(kind: Any) -> None:
    entries = (
        binary_input("4", name="a"),
        X,
        binary_input("3", "[1]", "BYTES", "c"),
        binary_input("2", "[1]", "FP16", "d"),
    )
    document = f'{{"inputs":[{",".join(entries)}]}}'
    body, length = framed(document, b"abcd" + b"xyz" + b"hh")
    request = message_of(decode_http_infer(kind(body), length))
    assert [tensor.name for tensor in request.inputs] == ["a", "x", "c", "d"]
    assert list(request.raw_input_contents) == [b"abcd", struct.pack("<f", 1), b"xyz", b"hh"]
    assert all(not tensor.parameters for tensor in request.inputs)


@pytest.mark.parametrize(
    ("document", "tail", "fragments"),
    [
        (binary_input("4"), b"abc", ("'x'", "announces 4 bytes", "only 3")),
        (binary_input("4"), b"abcde", ("1 bytes are left",)),
        (binary_input("8"), b"abcdefgh", ("'x'", "8 bytes", "make 4")),
        (binary_input("0"), b"", ("'x'", "0 bytes", "make 4")),
        (binary_input("-1"), b"abcd", ("'binary_data_size'",)),
        (binary_input('"4"'), b"abcd", ("'binary_data_size'",)),
        (binary_input("4.0"), b"abcd", ("'binary_data_size'",)),
        (binary_input("true"), b"a", ("'binary_data_size'",)),
        (binary_input("null"), b"abcd", ("'binary_data_size'",)),
        (binary_input("18446744073709551615"), b"abcd", ("announces 18446744073709551615",)),
        (binary_input("2147483648", "[1]", "BYTES"), b"abcd", ("announces",)),
        (f"{binary_input('4', name='a')},{binary_input('4', name='b')}", b"abcdefg", ("'b'", "only 3")),
    ],
)
def test_lying_sizes_are_refused(document: str, tail: bytes, fragments: tuple[str, ...]) -> None:
    body, length = framed(f'{{"inputs":[{document}]}}', tail)
    refused(body, *fragments, header_length=length)


def test_binary_inputs_without_the_header_say_which_header_is_missing() -> None:
    refused(f'{{"inputs":[{binary_input("4")}]}}', "Inference-Header-Content-Length")


def test_a_header_length_beyond_the_body_is_refused() -> None:
    refused(f'{{"inputs":[{X}]}}', "99999", header_length=99999)


@pytest.mark.parametrize("value", ["abc", "-1", "+5", "", "1.0", "0x10", "²", "٣", "1" * 30, "5 5"])
def test_a_header_length_is_a_plain_number(value: str) -> None:
    with pytest.raises(GatewayError, match="Inference-Header-Content-Length"):
        parse_header_length(value)


def test_a_header_length_is_compared_with_the_body() -> None:
    assert parse_header_length(b" 12\t", 12) == 12
    assert parse_header_length("007") == 7
    with pytest.raises(GatewayError, match="only 12 bytes"):
        parse_header_length(b"13", 12)


# --- what the real client sends -------------------------------------------------------------------------------------


@given(st.data())
def test_bodies_of_the_real_client_are_decoded_to_what_its_grpc_sister_sends(data: st.DataObject) -> None:
    inputs, raws = [], []
    for index in range(data.draw(st.integers(1, 3))):
        datatype = data.draw(st.sampled_from(tuple(NUMPY)))
        array = data.draw(arrays(datatype))
        tensor = triton_http.InferInput(f"i{index}", list(array.shape), datatype)
        tensor.set_data_from_numpy(array, binary_data=datatype == "FP16" or data.draw(st.booleans()))
        inputs.append(tensor)
        raws.append(array)
    outputs = [triton_http.InferRequestedOutput("y", binary_data=data.draw(st.booleans()))]
    listed = data.draw(st.booleans())
    body, length = triton_http.InferenceServerClient.generate_request_body(
        inputs, outputs=outputs if listed else None, request_id="r1", sequence_id=7, sequence_start=True, priority=3
    )
    decoded = decode_http_infer(body, length)
    request = message_of(decoded)
    assert [(t.name, t.datatype, tuple(t.shape)) for t in request.inputs] == [
        (f"i{index}", triton_http.InferInput.datatype(tensor), array.shape)
        for index, (tensor, array) in enumerate(zip(inputs, raws, strict=True))
    ]
    for raw, array in zip(request.raw_input_contents, raws, strict=True):
        assert np.array_equal(np.frombuffer(raw, array.dtype), array.ravel(), equal_nan=array.dtype.kind == "f")
    assert (request.id, request.parameters["sequence_id"].int64_param) == ("r1", 7)
    assert request.parameters["sequence_start"].bool_param
    assert request.parameters["priority"].uint64_param == 3
    assert decoded.plan.is_binary("y") is (outputs[0]._get_tensor()["parameters"]["binary_data"] if listed else True)


# --- raw requests ---------------------------------------------------------------------------------------------------


def test_header_length_zero_and_an_empty_body_are_raw_requests() -> None:
    assert is_raw(3, 0)
    assert is_raw(0, None)
    assert not is_raw(2, None)
    assert not is_raw(2, 2)


@pytest.mark.parametrize(
    ("body", "spec", "max_batch_size", "shape", "raw"),
    [
        (bytes(8), TensorMetadata("x", "FP32", (-1,)), 8, [1, 2], bytes(8)),
        (bytes(8), TensorMetadata("x", "FP32", (-1,)), 0, [2], bytes(8)),
        (bytes(24), TensorMetadata("x", "FP32", (3, -1)), 8, [1, 3, 2], bytes(24)),
        (bytes(12), TensorMetadata("x", "FP32", (3,)), 8, [1, 3], bytes(12)),
        (b"", TensorMetadata("x", "FP32", (-1,)), 8, [1, 0], b""),
        (b"hello", TensorMetadata("x", "BYTES", (1,)), 8, [1, 1], b"\x05\x00\x00\x00hello"),
        (b"hello", TensorMetadata("x", "BYTES", (-1,)), 0, [1], b"\x05\x00\x00\x00hello"),
        (b"", TensorMetadata("x", "BYTES", (1,)), 8, [1, 1], bytes(4)),
    ],
)
def test_a_raw_body_fills_the_only_input(
    body: bytes, spec: TensorMetadata, max_batch_size: int, shape: list[int], raw: bytes
) -> None:
    decoded = decode_raw_infer(body, [spec], max_batch_size)
    request = message_of(decoded)
    assert (request.inputs[0].name, request.inputs[0].datatype) == (spec.name, spec.datatype)
    assert list(request.inputs[0].shape) == shape
    assert list(request.raw_input_contents) == [raw]
    assert decoded.plan == ALL_BINARY


@pytest.mark.parametrize(
    ("body", "specs", "fragment"),
    [
        (bytes(9), [TensorMetadata("x", "FP32", (-1,))], "does not fill"),
        (bytes(20), [TensorMetadata("x", "FP32", (3, -1))], "does not fill"),
        (bytes(8), [TensorMetadata("x", "FP32", (3,))], "does not fill"),
        (bytes(8), [TensorMetadata("x", "FP32", (0, -1))], "does not fill"),
        (bytes(8), [TensorMetadata("x", "FP32", (-1, -1))], "cannot be told"),
        (b"abc", [TensorMetadata("x", "BYTES", (2,))], "one element"),
        (bytes(8), [], "one input"),
        (bytes(8), [TensorMetadata("x", "FP32", (-1,)), TensorMetadata("y", "FP32", (-1,))], "has 2"),
    ],
)
def test_a_raw_body_that_cannot_be_placed_is_refused(body: bytes, specs: list[TensorMetadata], fragment: str) -> None:
    with pytest.raises(GatewayError, match=fragment) as caught:
        decode_raw_infer(body, specs, 8)
    assert caught.value.reason is Reason.BAD_REQUEST


def test_plans_are_shared_where_nothing_is_explicit() -> None:
    assert decode_http_infer(f'{{"inputs":[{X}]}}'.encode()).plan is ALL_JSON


@pytest.mark.parametrize("header_length", [None, "all"])
def test_several_binary_tensors_without_a_byte_are_all_there(header_length: str | None) -> None:
    """With nothing behind the JSON, whether its length is named or not: each input has its raw contents."""
    tensor = '{"name":"%s","datatype":"UINT8","shape":[0],"parameters":{"binary_data_size":0}}'
    body = ('{{"inputs":[{},{},{}]}}'.format(tensor % "a", tensor % "b", tensor % "c")).encode()
    message = message_of(decode_http_infer(body, None if header_length is None else len(body)))
    assert [each.name for each in message.inputs] == ["a", "b", "c"]
    assert list(message.raw_input_contents) == [b"", b"", b""]
    mixed = '{{"inputs":[{},{{"name":"x","datatype":"UINT8","shape":[1],"data":[7]}},{}]}}'.format(
        tensor % "a", tensor % "b"
    )
    assert list(decode(mixed).raw_input_contents) == [b"", b"\x07", b""]
