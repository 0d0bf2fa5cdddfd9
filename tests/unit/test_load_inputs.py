"""The calls of the load lab, and how it tells a right answer from a wrong one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from load.inputs import Calls, IdentityInputs

INPUTS = IdentityInputs()
NUMBERS = st.integers(min_value=0, max_value=2**40 - 1)


def _http_answer(number: int) -> bytes:
    output = {"name": "OUTPUT_FP32", "datatype": "FP32", "shape": [12], "data": list(INPUTS.values(number))}
    return json.dumps({"model_name": "identity", "model_version": "1", "outputs": [output]}).encode()


def _grpc_answer(number: int) -> bytes:
    request = service_pb2.ModelInferRequest.FromString(INPUTS.grpc_message(number))
    answer = service_pb2.ModelInferResponse(model_name="identity", model_version="1")
    answer.outputs.add(name="OUTPUT_FP32", datatype="FP32", shape=[12])
    answer.raw_output_contents.append(request.raw_input_contents[0])
    encoded: bytes = answer.SerializeToString()
    return encoded


@given(NUMBERS)
def test_both_protocols_carry_the_same_row(number: int) -> None:
    (tensor,) = json.loads(INPUTS.http_body(number))["inputs"]
    assert (tensor["name"], tensor["datatype"], tensor["shape"]) == ("INPUT_FP32", "FP32", [12])
    assert tuple(tensor["data"]) == INPUTS.values(number)

    request = service_pb2.ModelInferRequest.FromString(INPUTS.grpc_message(number))
    assert (request.model_name, request.inputs[0].name, request.inputs[0].datatype) == (
        "identity", "INPUT_FP32", "FP32",
    )  # fmt: skip
    assert list(request.inputs[0].shape) == [12]
    assert INPUTS.grpc_right(_grpc_answer(number), number)
    assert INPUTS.http_right(_http_answer(number), number)


@given(NUMBERS, NUMBERS)
def test_the_answer_to_another_call_is_wrong(one: int, other: int) -> None:
    assert INPUTS.http_right(_http_answer(one), other) is (one == other)
    assert INPUTS.grpc_right(_grpc_answer(one), other) is (one == other)


@given(st.binary(max_size=80))
def test_any_other_bytes_are_wrong_and_nothing_breaks(body: bytes) -> None:
    assert not INPUTS.http_right(body, 1)
    assert not INPUTS.grpc_right(body, 1)


@pytest.mark.parametrize("body", [b"{}", b"[]", b"1", b'{"outputs":[]}', b'{"outputs":[{}]}', b'{"outputs":[1]}'])
def test_json_of_another_shape_is_wrong(body: bytes) -> None:
    assert not INPUTS.http_right(body, 1)


def test_every_call_of_a_run_has_its_own_ids() -> None:
    calls = Calls(7, deadline_ms=250)
    made = [calls.next() for _ in range(100)]
    assert len({call.request_id for call in made}) == len({call.traceparent for call in made}) == 100
    version, trace, span, flags = made[0].traceparent.split("-")
    assert (version, len(trace), len(span), flags) == ("00", 32, 16, "01")
    assert int(span, 16) != 0
    assert made[0].deadline_ms == 250
    assert made[0].request_id != Calls(8, deadline_ms=250).next().request_id
