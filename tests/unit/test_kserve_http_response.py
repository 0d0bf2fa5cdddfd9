"""ModelInferResponse to HTTP: the JSON that Triton writes, or a clear error, never a body that cannot be read."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tritonclient import http as triton_http
from tritonclient.grpc import service_pb2

from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason
from gateway.wire.kserve.http_request import ALL_BINARY, ALL_JSON, OutputPlan
from gateway.wire.kserve.http_response import HttpInferResponse, encode_http_infer
from gateway.wire.kserve.response_view import read_response, read_response_head
from tests.support.tensors import packed_bytes
from tests.unit.kserve_messages import NUMPY, infer_responses

# NaN, NaN with payload, +inf, -inf, -0.0, 1.0 (field case FH-04)
NON_FINITE = bytes.fromhex("0000c07f0100c07f0000807f000080ff000000800000803f")


def response(*outputs: tuple[str, str, list[int], bytes], **parameters: tuple[str, Any]) -> bytes:
    message = service_pb2.ModelInferResponse(model_name="m", model_version="3", id="upstream")
    for name, datatype, shape, raw in outputs:
        message.outputs.add(name=name, datatype=datatype, shape=shape)
        message.raw_output_contents.append(raw)
    for key, (kind, value) in parameters.items():
        setattr(message.parameters[key], kind, value)
    serialized: bytes = message.SerializeToString()
    return serialized


def check(rendered: HttpInferResponse) -> None:
    """The framing describes the bytes."""
    assert rendered.content_length == len(rendered.body) == sum(map(len, rendered.chunks))
    if rendered.header_length is None:
        assert rendered.content_type == "application/json"
        assert len(rendered.chunks) == 1
    else:
        assert rendered.content_type == "application/octet-stream"
        assert 0 < rendered.header_length < rendered.content_length
        assert rendered.header_length == len(rendered.chunks[0])


@given(
    infer_responses(),
    st.booleans(),
    st.dictionaries(st.sampled_from(("o0", "o1", "o2", "o3")), st.booleans()),
    st.text(max_size=9),
)
def test_a_rendering_holds_what_the_message_holds(
    message: Any, default: bool, explicit: dict[str, bool], request_id: str
) -> None:
    plan = OutputPlan(default, explicit)
    rendered = encode_http_infer(message.SerializeToString(), plan, request_id)
    check(rendered)
    length = rendered.content_length if rendered.header_length is None else rendered.header_length
    document = json.loads(rendered.body[:length])
    tail = rendered.body[length:]
    keys = ["id"] if request_id else []
    keys += ["model_name", "model_version"] + (["parameters"] if message.parameters else []) + ["outputs"]
    assert list(document) == keys
    assert document.get("id", "") == request_id
    assert (document["model_name"], document["model_version"]) == (message.model_name, message.model_version)
    for key, parameter in message.parameters.items():
        which = parameter.WhichOneof("parameter_choice")
        if which is not None:
            assert repr(document["parameters"][key]) == repr(getattr(parameter, which))
    assert len(document["outputs"]) == len(message.outputs)
    for entry, output, raw in zip(document["outputs"], message.outputs, message.raw_output_contents, strict=True):
        assert (entry["name"], entry["datatype"], entry["shape"]) == (output.name, output.datatype, list(output.shape))
        if plan.is_binary(output.name):
            assert list(entry) == ["name", "datatype", "shape", "parameters"]
            assert entry["parameters"] == {"binary_data_size": len(raw)}
            assert tail[: len(raw)] == raw
            tail = tail[len(raw) :]
        else:
            assert list(entry) == ["name", "datatype", "shape", "data"]
            if output.datatype == "BYTES":
                assert packed_bytes(*(each.encode() for each in entry["data"])) == raw
            else:
                expected = np.frombuffer(raw, NUMPY[output.datatype]).tolist()
                assert repr(entry["data"]) == repr(expected)
    assert tail == b""


@given(infer_responses(), st.booleans())
def test_the_real_client_reads_what_its_grpc_sister_reads(message: Any, binary: bool) -> None:
    rendered = encode_http_infer(message.SerializeToString(), ALL_BINARY if binary else ALL_JSON, "r")
    # Empty binary outputs alone come without the header, and then the client cannot read them, nor Triton's own.
    assume(not binary or rendered.header_length is not None)
    result = triton_http.InferenceServerClient.parse_response_body(rendered.body, header_length=rendered.header_length)
    for output, raw in zip(message.outputs, message.raw_output_contents, strict=True):
        got = result.as_numpy(output.name)
        if output.datatype == "BYTES":
            elements = [each if isinstance(each, bytes) else each.encode() for each in got.ravel().tolist()]
            assert packed_bytes(*elements) == raw
        else:
            expected = np.frombuffer(raw, NUMPY[output.datatype]).reshape(tuple(output.shape))
            assert got.shape == expected.shape
            assert np.array_equal(got, expected, equal_nan=expected.dtype.kind == "f")


def test_the_json_is_tritons_to_the_byte() -> None:
    message = response(
        ("y", "FP32", [1, 2], struct.pack("<2f", 0.1, 1.0)),
        ("b", "BOOL", [2], b"\x01\x00"),
        ("s", "BYTES", [3], packed_bytes(b'ok"\n\x01\x7f', "ü/".encode(), b"")),
    )
    assert (
        encode_http_infer(message, ALL_JSON, 'q"ü').body
        == (
            '{"id":"q\\"ü","model_name":"m","model_version":"3","outputs":['
            '{"name":"y","datatype":"FP32","shape":[1,2],"data":[0.10000000149011612,1.0]},'
            '{"name":"b","datatype":"BOOL","shape":[2],"data":[true,false]},'
            '{"name":"s","datatype":"BYTES","shape":[3],"data":["ok\\"\\n\\u0001\x7f","ü/",""]}]}'
        ).encode()
    )


def test_the_id_is_the_callers_not_the_messages() -> None:
    message = response(("y", "FP32", [0], b""))
    assert b"upstream" not in encode_http_infer(message, ALL_JSON, "").body
    assert json.loads(encode_http_infer(message, ALL_JSON, "mine").body)["id"] == "mine"


def test_non_finite_floats_are_the_bare_words_that_triton_writes() -> None:
    message = response(("y", "FP32", [6], NON_FINITE))
    rendered = encode_http_infer(message, ALL_JSON, "")
    assert b'"data":[NaN,NaN,Infinity,-Infinity,-0.0,1.0]}' in rendered.body
    data = json.loads(rendered.body)["outputs"][0]["data"]
    assert math.copysign(1, data[4]) == -1
    assert encode_http_infer(message, ALL_BINARY, "").chunks[1] == NON_FINITE


def test_finite_floats_whose_sum_is_not_finite_are_plain_numbers() -> None:
    raw = struct.pack("<3d", 1.7976931348623157e308, 1.7976931348623157e308, -5e-324)
    rendered = encode_http_infer(response(("y", "FP64", [3], raw)), ALL_JSON, "")
    assert json.loads(rendered.body)["outputs"][0]["data"] == [1.7976931348623157e308, 1.7976931348623157e308, -5e-324]
    assert b"Infinity" not in rendered.body


@pytest.mark.parametrize(
    ("datatype", "raw", "data"),
    [
        ("UINT64", b"\xff" * 8, b"[18446744073709551615]"),
        ("INT64", b"\x00" * 7 + b"\x80", b"[-9223372036854775808]"),
        ("INT8", b"\xff", b"[-1]"),
        ("BOOL", b"\x02", b"[true]"),
        ("FP64", struct.pack("<d", 5e-324), b"[5e-324]"),
    ],
)
def test_extreme_values_are_exact(datatype: str, raw: bytes, data: bytes) -> None:
    assert b'"data":' + data in encode_http_infer(response(("y", datatype, [1], raw)), ALL_JSON, "").body


def test_response_parameters_keep_their_type() -> None:
    message = response(
        a=("int64_param", -1),
        b=("bool_param", True),
        c=("string_param", "ü"),
        d=("double_param", 0.5),
        e=("uint64_param", (1 << 64) - 1),
    )
    document = json.loads(encode_http_infer(message, ALL_JSON, "").body)
    assert document["parameters"] == {"a": -1, "b": True, "c": "ü", "d": 0.5, "e": (1 << 64) - 1}
    assert document["outputs"] == []


def test_a_non_finite_response_parameter_is_a_bare_word_too() -> None:
    body = encode_http_infer(response(a=("double_param", math.nan)), ALL_JSON, "").body
    assert b'"parameters":{"a":NaN},' in body
    body = encode_http_infer(response(a=("double_param", -math.inf), b=("string_param", "ü")), ALL_JSON, "").body
    assert json.loads(body)["parameters"] == {"a": -math.inf, "b": "ü"}


def test_if_every_binary_output_is_empty_the_answer_is_json_without_the_header() -> None:
    message = response(("y", "FP32", [0], b""), ("z", "FP32", [1], bytes(4)))
    rendered = encode_http_infer(message, OutputPlan(False, {"y": True}), "")
    check(rendered)
    assert (rendered.content_type, rendered.header_length) == ("application/json", None)
    assert b'"parameters":{"binary_data_size":0}}' in rendered.body
    rendered = encode_http_infer(message, ALL_BINARY, "")
    check(rendered)
    assert rendered.header_length is not None


def test_half_precision_goes_out_in_binary_and_is_refused_as_json() -> None:
    for datatype in ("FP16", "BF16"):
        message = response(("h", datatype, [1], b"\x00\x3c"))
        assert bytes(encode_http_infer(message, ALL_BINARY, "").chunks[1]) == b"\x00\x3c"
        with pytest.raises(GatewayError) as caught:
            encode_http_infer(message, ALL_JSON, "")
        assert (caught.value.reason, caught.value.code) == (Reason.BAD_REQUEST, Code.INVALID_ARGUMENT)
        for fragment in ("'h'", datatype, "binary_data"):
            assert fragment in caught.value.message


def test_strings_that_are_not_utf8_go_out_in_binary_and_are_refused_as_json() -> None:
    raw = packed_bytes(b"ok", b"\xff\xfe")
    message = response(("s", "BYTES", [2], raw))
    assert bytes(encode_http_infer(message, ALL_BINARY, "").chunks[1]) == raw
    with pytest.raises(GatewayError) as caught:
        encode_http_infer(message, ALL_JSON, "")
    assert caught.value.reason is Reason.BAD_REQUEST
    for fragment in ("'s'", "element 1", "UTF-8", "binary_data"):
        assert fragment in caught.value.message


def test_one_message_is_rendered_for_each_caller_anew() -> None:
    message = response(("y", "FP32", [1], struct.pack("<f", 2)))
    as_json = encode_http_infer(message, ALL_JSON, "a").body
    as_binary = encode_http_infer(message, ALL_BINARY, "b").body
    assert as_json != as_binary
    assert encode_http_infer(message, ALL_JSON, "a").body == as_json


@pytest.mark.parametrize(
    "message",
    [
        b"\xff",
        b"\x0a\x05ab",
        b"\x0a\x01\xff",
        b"\x08\x01",
        response(("y", "FP32", [1], bytes(3))),
        response(("y", "FP32", [2], bytes(4))),
        response(("y", "FP32", [-1], bytes(4))),
        response(("y", "FP32", [1 << 40], bytes(4))),
        response(("y", "FP99", [1], bytes(4))),
        response(("y\n", "FP\n", [1], bytes(4))),
        response(("s", "BYTES", [1], b"\x05\x00\x00\x00a")),
        response(("s", "BYTES", [1], b"\x05\x00")),
        response(("s", "BYTES", [2], packed_bytes(b"a"))),
        service_pb2.ModelInferResponse(raw_output_contents=[b"a"]).SerializeToString(),
        service_pb2.ModelInferResponse(outputs=[{"name": "y", "datatype": "FP32", "shape": [1]}]).SerializeToString(),
    ],
)
def test_an_answer_that_makes_no_sense_is_the_model_servers_fault(message: bytes) -> None:
    with pytest.raises(GatewayError) as caught:
        encode_http_infer(message, ALL_JSON, "")
    assert (caught.value.reason, caught.value.code) == (Reason.UPSTREAM_BROKEN, Code.INTERNAL)
    assert "\n" not in caught.value.message


@given(infer_responses())
def test_the_head_and_the_view_are_what_the_reference_reads(message: Any) -> None:
    serialized = message.SerializeToString()
    head = read_response_head(serialized)
    view = read_response(serialized)
    for ours in (head, view):
        assert (ours.model_name, ours.model_version, ours.id) == (
            message.model_name,
            message.model_version,
            message.id,
        )
    assert [serialized[start:stop] for start, stop in view.raws] == list(message.raw_output_contents)
    assert [list(output.shape) for output in view.outputs] == [list(output.shape) for output in message.outputs]


@pytest.mark.parametrize("message", [b"\xff", b"\x0a\x05ab", b"\x12\x01\xff", b"\x10\x01", b"\x0b"])
def test_a_head_that_does_not_parse_is_the_model_servers_fault(message: bytes) -> None:
    with pytest.raises(GatewayError) as caught:
        read_response_head(message)
    assert caught.value.reason is Reason.UPSTREAM_BROKEN
