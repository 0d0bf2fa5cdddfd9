"""Large bodies and answers: in pieces, in steps, from memory; always what one go makes of the whole."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Generator
from itertools import pairwise
from typing import Any, TypeVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from gateway.core.errors import GatewayError
from gateway.wire.kserve import http_request, http_response, json_steps
from gateway.wire.kserve.http_request import (
    ALL_BINARY,
    ALL_JSON,
    HttpInferRequest,
    decode_http_infer,
    decode_in_pieces,
)
from gateway.wire.kserve.http_response import HttpInferResponse, encode_http_infer, encode_in_steps
from gateway.wire.kserve.json_steps import decode_in_steps
from tests.support.tensors import packed_bytes
from tests.unit.kserve_messages import infer_responses

T = TypeVar("T")


def walk(steps: Generator[None, None, T]) -> tuple[T, int]:
    """The value of `steps`, and how many times it let others have their turn."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


def told(request: HttpInferRequest) -> tuple[object, ...]:
    return request.message, request.id, request.plan, request.sequence, request.classified


def outcome(decode: Any) -> object:
    try:
        return told(decode())
    except GatewayError as error:
        return error.reason, error.code, error.message


# --- requests with binary tensors -----------------------------------------------------------------------------------


def binary_body(sizes: list[int], **more: Any) -> tuple[bytes, int]:
    inputs = [
        {"name": f"i{index}", "datatype": "UINT8", "shape": [size], "parameters": {"binary_data_size": size}}
        for index, size in enumerate(sizes)
    ]
    head = json.dumps({"inputs": inputs, **more}).encode()
    tail = b"".join(bytes([65 + index]) * size for index, size in enumerate(sizes))
    return head + tail, len(head)


def cut(body: bytes, places: list[int]) -> list[memoryview]:
    at = sorted({0, len(body), *(place % (len(body) + 1) for place in places)})
    return [memoryview(body)[a:b] for a, b in pairwise(at)] or [memoryview(body)]


@given(
    st.lists(st.integers(0, 40), max_size=4),
    st.lists(st.integers(0, 1000), max_size=6),
    st.integers(-3, 3),
    st.sampled_from([{}, {"id": "7"}, {"outputs": [{"name": "y", "parameters": {"binary_data": True}}]}]),
)
def test_a_body_in_pieces_is_the_body(sizes: list[int], places: list[int], off: int, more: dict[str, Any]) -> None:
    body, length = binary_body(sizes, **more)
    if off < 0:
        body = body[:off]
    elif off:
        body += bytes(off)
    http_request._forms.clear()
    whole = outcome(lambda: decode_http_infer(body, length))
    for _ in range(2):  # the second time from memory
        assert outcome(lambda: decode_in_pieces(cut(body, places), length)) == whole
    http_request._forms.clear()
    assert outcome(lambda: decode_in_pieces(cut(body, places), length)) == whole


def test_tensors_of_both_kinds_keep_their_order() -> None:
    inputs = [
        {"name": "a", "datatype": "UINT8", "shape": [2], "data": [1, 2]},
        {"name": "b", "datatype": "UINT8", "shape": [3], "parameters": {"binary_data_size": 3}},
        {"name": "c", "datatype": "UINT8", "shape": [1], "data": [9]},
        {"name": "d", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 6}},
        {"name": "e", "datatype": "UINT8", "shape": [0], "parameters": {"binary_data_size": 0}},
        {"name": "f", "datatype": "UINT8", "shape": [1], "data": [8]},
    ]
    head = json.dumps({"inputs": inputs}).encode()
    tail = b"xyz" + packed_bytes(b"ab")
    for _ in range(2):
        decoded = decode_in_pieces([head + tail[:1], tail[1:4], tail[4:]], len(head))
        request = service_pb2.ModelInferRequest.FromString(decoded.message)
        assert [tensor.name for tensor in request.inputs] == list("abcdef")
        assert list(request.raw_input_contents) == [b"\x01\x02", b"xyz", b"\x09", packed_bytes(b"ab"), b"", b"\x08"]


def test_a_form_serves_other_bytes_and_not_other_sizes() -> None:
    body, length = binary_body([4])
    assert decode_http_infer(body, length).message.endswith(b"AAAA")
    assert decode_http_infer(body[:length] + b"wxyz", length).message.endswith(b"\x04wxyz")
    for wrong in (body[:-1], body + b"!"):
        with pytest.raises(GatewayError):
            decode_http_infer(wrong, length)


def test_forms_are_bounded_and_short() -> None:
    http_request._forms.clear()
    for number in range(1200):
        body, length = binary_body([2], id=str(number))
        decode_http_infer(body, length)
    body, length = binary_body([2], id="x" * 3000)
    decode_http_infer(body, length)
    assert 0 < len(http_request._forms) <= 512
    assert max(map(len, http_request._forms)) <= 2048


# --- requests in JSON -----------------------------------------------------------------------------------------------


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_steps, "STEP_BYTES", 24)
    monkeypatch.setattr(json_steps, "_CUT_BYTES", 30)
    monkeypatch.setattr(http_response, "STEP_ELEMENTS", 5)
    monkeypatch.setattr(http_response, "_STEP_TEXT_BYTES", 20)


def tensor(data: Any, datatype: str = "FP32", shape: list[int] | None = None, name: str = "x") -> dict[str, Any]:
    flat = str(data).count(",") + 1
    return {"name": name, "datatype": datatype, "shape": [flat] if shape is None else shape, "data": data}


NUMBERS = [round(number * 1.25 - 20, 2) for number in range(60)]
WHOLE = list(range(60))
ROWS = [[float(row * 10 + column) for column in range(10)] for row in range(6)]
CUBE = [[[row, column] for column in range(5)] for row in range(6)]


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" ,\n ", " :\t")])
@pytest.mark.parametrize(
    "document",
    [
        {"inputs": [tensor(NUMBERS)]},
        {"id": "1", "inputs": [tensor(WHOLE, "INT64"), tensor(NUMBERS, name="y")], "outputs": [{"name": "z"}]},
        {"inputs": [tensor(ROWS, shape=[6, 10])], "parameters": {"binary_data_output": True}},
        {"inputs": [tensor(CUBE, "INT32", [6, 5, 2])]},
        {"inputs": [tensor([[NUMBERS]], shape=[1, 1, 60])]},
        {"inputs": [tensor([True, False] * 30, "BOOL")]},
        {"inputs": [tensor([1, 2], "UINT8"), tensor(NUMBERS, "FP64", name="y")]},
    ],
)
def test_a_document_in_steps_is_the_document(document: dict[str, Any], separators: tuple[str, str]) -> None:
    text = json.dumps(document, separators=separators).encode()

    request, steps = walk(decode_in_steps(text))

    assert told(request) == told(decode_http_infer(text))
    assert steps > 3


ODD = [
    b'{"inputs":[%b]}',
    b'{"inputs":[%b],"data":[' + b"1," * 40 + b"1]}",
    b'{"inputs":[%b],"parameters":{"data":[' + b"1," * 40 + b"1]}}",
    b'{"inputs":[%b],"inputs":[]}',
    b'{"id":"\\"data\\":[' + b"1," * 40 + b'1]","inputs":[%b]}',
    b'{"x\\"data":[' + b"1," * 40 + b'1],"inputs":[%b]}',
    b'{"inputs":[%b]',
    b'{"inputs":[%b]}x',
    b'{"inputs":[%b,]}',
    b'{"inputs":{"data":[' + b"1," * 40 + b'1],"x":[%b]}}',
    b"[%b]",
    b'{"id":NaN,"inputs":[%b]}',
    b'{"inputs":["a0","b0",%b]}',
    b'{"inputs":[%b],"id":"\\ud800"}',
]
HEAD = b'{"name":"x","datatype":"%b","shape":[%d],"data":%b}'
DATA = [
    b"[" + b",".join(b"%d" % number for number in range(40)) + b"]",
    b"[" + b",".join(b"%d.5" % number for number in range(40)) + b"]",
    b"[" + b"1," * 40 + b"]",
    b"[" + b"1," * 40 + b"1",
    b"[" + b"1," * 20 + b"," + b"1," * 19 + b"1]",
    b"[" + b"1," * 39 + b"NaN]",
    b"[" + b"1," * 39 + b'"a"]',
    b"[" + b"1," * 39 + b"true]",
    b"[" + b"1," * 39 + b"null]",
    b"[" + b"1," * 39 + b"1e400]",
    b"[" + b"1," * 39 + b"4e38]",
    b"[" + b"1," * 39 + b"18446744073709551616]",
    b"[[" + b"1," * 19 + b"1],[" + b"1," * 19 + b"1]]",
    b"[[" + b"1," * 19 + b"1]," + b"1," * 19 + b"1]",
    b"[[" + b"1," * 19 + b"1]],[" + b"1," * 19 + b"1]]",
    b"[" * 9 + b"1," * 39 + b"1" + b"]" * 9,
    b"[" * 101 + b"1," * 39 + b"1" + b"]" * 101,
    b"[[[[[[[[[[1],[2]]]]]]]],[" + b"3," * 37 + b"3]]]",
    b"[" + b",".join([b'"]}"'] * 40) + b"]",
    b'{"data":[' + b"1," * 39 + b"1]}",
    b'"a0"',
    b"[]",
]


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(ODD),
    st.lists(
        st.tuples(st.sampled_from([b"FP32", b"INT32", b"BOOL", b"BYTES", b"FP16", b"X"]), st.sampled_from(DATA)),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from([40, 40, 40, 39]),
    st.integers(0, 400),
    st.sampled_from([b"", b"", b"", b"]", b"[", b'"', b"}", b",", b" "]),
)
@example(ODD[0], [(b"FP32", DATA[2])], 40, 0, b"")
def test_whatever_is_wrong_is_told_as_ever(
    document: bytes, inputs: list[tuple[bytes, bytes]], count: int, at: int, junk: bytes
) -> None:
    text = document % b",".join(HEAD % (datatype, count, data) for datatype, data in inputs)
    text = text[:at] + junk + text[at:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_steps, "STEP_BYTES", 24)
        patch.setattr(json_steps, "_CUT_BYTES", 30)
        assert outcome(lambda: walk(decode_in_steps(text))[0]) == outcome(lambda: decode_http_infer(text))


@pytest.mark.usefixtures("small_steps")
def test_what_would_take_long_to_cut_is_not_cut() -> None:
    many = {"inputs": [tensor(NUMBERS, name=f"i{number}") for number in range(33)]}
    deep = [[[[[[[[[0, 1]], [[2, 3]]]]]]]]] * 30
    for document in (many, {"inputs": [tensor(deep, shape=[120])]}):
        text = json.dumps(document).encode()
        request, steps = walk(decode_in_steps(text))
        assert steps == 0
        assert told(request) == told(decode_http_infer(text))


# --- answers --------------------------------------------------------------------------------------------------------


def shown(rendered: HttpInferResponse) -> tuple[object, ...]:
    assert rendered.content_length == len(rendered.body)
    body, header_length = rendered.body, rendered.header_length
    if header_length is None and (b"Infinity" in body or b"NaN" in body):
        # Two libraries write such a tensor, or the part of it in which they stand: one 1e-9 and 0.0000305, the other
        # 1e-09 and 3.05e-05. The numbers must be the same, and what stands around them.
        return repr(json.loads(body, object_pairs_hook=list)), rendered.content_type, header_length
    return body, rendered.content_type, header_length


MIXED = service_pb2.ModelInferResponse(
    outputs=[service_pb2.ModelInferResponse.InferOutputTensor(name="o0", datatype="FP32", shape=[4])],
    raw_output_contents=[struct.pack("<4f", 1.862645149230957e-9, 3.0517578125e-5, 0.0, math.inf)],
)


@given(infer_responses(), st.booleans(), st.text(max_size=5))
@example(MIXED, False, "")
def test_an_answer_in_steps_is_the_answer(response: Any, binary: bool, request_id: str) -> None:
    serialized = response.SerializeToString()
    plan = ALL_BINARY if binary else ALL_JSON
    whole = shown(encode_http_infer(serialized, plan, request_id))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http_response, "STEP_ELEMENTS", 2)
        patch.setattr(http_response, "_STEP_TEXT_BYTES", 6)
        rendered, _ = walk(encode_in_steps(serialized, plan, request_id))
        assert shown(rendered) == whole
        assert shown(encode_http_infer(serialized, plan, request_id)) == whole


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize(
    ("datatype", "raw", "count"),
    [
        ("FP32", struct.pack("<12f", *range(11), float("nan")), 12),
        ("FP64", struct.pack("<11d", *range(10), float("-inf")), 11),
        ("INT64", struct.pack("<11q", *range(11)), 11),
        ("BOOL", bytes([0, 1, 7] * 4), 12),
        ("BYTES", packed_bytes(*[b"text %d" % number for number in range(12)]), 12),
    ],
)
def test_long_outputs_are_written_in_steps(datatype: str, raw: bytes, count: int) -> None:
    response = service_pb2.ModelInferResponse(model_name="m", model_version="1")
    response.outputs.add(name="y", datatype=datatype, shape=[count])
    response.raw_output_contents.append(raw)
    serialized = response.SerializeToString()

    rendered, steps = walk(encode_in_steps(serialized, ALL_JSON, ""))

    assert steps > 0
    assert len(rendered.chunks) > 1
    assert rendered.body == encode_http_infer(serialized, ALL_JSON, "").body
    array = json.loads(rendered.body)["outputs"][0]["data"]
    assert len(array) == count


@pytest.mark.usefixtures("small_steps")
def test_an_element_that_is_not_text_is_named_whichever_slice_it_is_in() -> None:
    response = service_pb2.ModelInferResponse(model_name="m", model_version="1")
    response.outputs.add(name="y", datatype="BYTES", shape=[12])
    response.raw_output_contents.append(packed_bytes(*[b"ok"] * 11, b"\xff"))
    serialized = response.SerializeToString()
    with pytest.raises(GatewayError, match="element 11 is not UTF-8"):
        walk(encode_in_steps(serialized, ALL_JSON, ""))
    with pytest.raises(GatewayError, match="element 11 is not UTF-8"):
        encode_http_infer(serialized, ALL_JSON, "")
