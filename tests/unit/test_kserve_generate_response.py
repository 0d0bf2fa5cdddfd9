"""What `generate` answers, byte for byte as Triton 2.51 was seen to write it."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from gateway.core.errors import GatewayError, Reason
from gateway.wire.kserve.generate_response import encode_generate
from tests.support.tensors import packed_bytes


def response(*outputs: tuple[str, str, list[int], bytes]) -> pb.ModelInferResponse:
    message = pb.ModelInferResponse(model_name="script", model_version="1")
    for name, datatype, shape, raw in outputs:
        message.outputs.add(name=name, datatype=datatype, shape=shape)
        message.raw_output_contents.append(raw)
    return message


def answer(*outputs: tuple[str, str, list[int], bytes], request_id: str = "") -> bytes:
    return encode_generate(response(*outputs).SerializeToString(), request_id)


def test_outputs_stand_by_name_one_element_as_a_scalar_more_as_a_flat_array() -> None:
    assert answer(
        ("u", "UINT64", [1], struct.pack("<Q", 2**64 - 1)),
        ("s", "BYTES", [2], packed_bytes(b"x", b"y")),
        ("i", "INT64", [1, 2], struct.pack("<2q", 1, -9007199254740993)),
        ("f", "FP32", [1, 1], struct.pack("<f", 0.1)),
        ("b", "BOOL", [2], b"\x01\x00"),
        ("one", "BOOL", [1], b"\x01"),
        ("none", "FP32", [0], b""),
        ("nobody", "BYTES", [0], b""),
    ) == (
        b'{"b":[true,false],"f":0.10000000149011612,"i":[1,-9007199254740993],"model_name":"script",'
        b'"model_version":"1","nobody":[],"none":[],"one":true,"s":["x","y"],"u":18446744073709551615}'
    )


def test_the_id_is_the_callers_and_stands_only_if_there_was_one() -> None:
    message = response()
    message.id = "somebody's"
    assert encode_generate(message.SerializeToString(), "") == b'{"model_name":"script","model_version":"1"}'
    assert encode_generate(message.SerializeToString(), 'q"1') == (
        b'{"id":"q\\"1","model_name":"script","model_version":"1"}'
    )


def test_parameters_stand_by_name_without_the_one_of_grpc() -> None:
    message = response(("a", "BYTES", [1], packed_bytes(b"text")))
    message.parameters["triton_final_response"].bool_param = True
    message.parameters["n"].int64_param = 3
    message.parameters["x"].double_param = math.nan
    message.parameters["nothing"].SetInParent()
    message.parameters["t"].string_param = "é"
    assert encode_generate(message.SerializeToString(), "") == (
        '{"a":"text","model_name":"script","model_version":"1","n":3,"t":"é","x":NaN}'.encode()
    )


def test_of_equal_names_the_protocols_own_counts_then_the_parameter_then_the_first_output() -> None:
    message = response(
        ("model_name", "BYTES", [1], packed_bytes(b"zz")),
        ("id", "BYTES", [1], packed_bytes(b"mine")),
        ("p", "BYTES", [1], packed_bytes(b"output")),
        ("twice", "INT8", [1], b"\x01"),
        ("twice", "INT8", [1], b"\x02"),
    )
    message.parameters["p"].string_param = "parameter"
    message.parameters["model_version"].string_param = "9"
    assert json.loads(encode_generate(message.SerializeToString(), "")) == {
        "id": "mine",
        "model_name": "script",
        "model_version": "1",
        "p": "parameter",
        "twice": 1,
    }
    assert json.loads(encode_generate(message.SerializeToString(), "q"))["id"] == "q"


def test_non_finite_numbers_are_bare_words_as_on_infer() -> None:
    values = struct.pack("<4f", math.nan, math.inf, -math.inf, -0.0)
    assert b'{"f":[NaN,Infinity,-Infinity,-0.0],' in answer(("f", "FP32", [4], values))
    assert b'{"f":NaN,' in answer(("f", "FP32", [1], struct.pack("<I", 0x7FC00001)))
    assert b'{"f":-Infinity,' in answer(("f", "FP64", [1], struct.pack("<d", -math.inf)))


@pytest.mark.parametrize("text", [":\n\n", "data: x", "\r\n", "é", "😀", "", 'a"\\/\b\f\t\x01\x7f\u2028', "\0"])
def test_text_is_escaped_so_that_it_stays_on_one_line(text: str) -> None:
    written = answer(("s", "BYTES", [1], packed_bytes(text.encode())))
    assert b"\n" not in written
    assert b"\r" not in written
    assert json.loads(written)["s"] == text


def test_bytes_that_are_no_text_stand_as_they_are() -> None:
    # The halves of a character that a model streams byte by byte.
    first, second = "é".encode()[:1], "é".encode()[1:]
    joined = b"".join(
        answer(("s", "BYTES", [1], packed_bytes(part))).split(b'"s":"')[1].removesuffix(b'"}')
        for part in (first, second)
    )
    assert joined.decode() == "é"
    assert b'"s":"\xff\\"\\n\\\\\\u0001A"}' in answer(("s", "BYTES", [1], packed_bytes(b'\xff"\n\\\x01A')))
    assert b'"s":["\xff","ok"]}' in answer(("s", "BYTES", [2], packed_bytes(b"\xff", b"ok")))


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_precision_has_no_json_form(datatype: str) -> None:
    with pytest.raises(GatewayError, match=f"output 'h': {datatype}") as caught:
        answer(("h", datatype, [1], b"\0\0"))
    assert caught.value.reason is Reason.BAD_REQUEST


@pytest.mark.parametrize(
    ("shape", "raw"),
    [
        ([2], packed_bytes(b"x")),
        ([1], packed_bytes(b"x")[:-1]),
        ([1], b"\x01"),
        ([1], packed_bytes(b"x") + b"\0"),
        ([0], packed_bytes(b"x")),
    ],
)
def test_bytes_that_do_not_fit_their_shape_are_the_model_servers_fault(shape: list[int], raw: bytes) -> None:
    with pytest.raises(GatewayError, match="length-prefixed") as caught:
        answer(("s", "BYTES", shape, raw))
    assert caught.value.reason is Reason.UPSTREAM_BROKEN


def test_what_is_no_response_is_the_model_servers_fault() -> None:
    with pytest.raises(GatewayError) as caught:
        encode_generate(b"\xff\xff", "")
    assert caught.value.reason is Reason.UPSTREAM_BROKEN


@given(st.dictionaries(st.text(max_size=5), st.lists(st.text(max_size=8), max_size=3), max_size=4), st.text(max_size=5))
def test_the_text_of_every_output_comes_back(outputs: dict[str, list[str]], request_id: str) -> None:
    rows: list[tuple[str, str, list[int], bytes]] = [
        (name, "BYTES", [len(values)], packed_bytes(*(value.encode() for value in values)))
        for name, values in outputs.items()
    ]
    written = answer(*rows, request_id=request_id)
    document = json.loads(written)
    own: dict[str, Any] = {"model_name": "script", "model_version": "1"} | ({"id": request_id} if request_id else {})
    expected = {name: values[0] if len(values) == 1 else values for name, values in outputs.items()} | own
    assert document == expected
    assert list(document) == sorted(expected, key=str.encode)
