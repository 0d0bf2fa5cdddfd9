"""The calls of the load lab, and how it tells a right answer from a wrong one."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from load.inputs import AccelInputs, Calls, IdentityInputs

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


# --- the other forms and models -------------------------------------------------------------------------------------


def _binary_answer(outputs: list[tuple[str, str, list[int], bytes]], more: bytes = b"") -> bytes:
    head = {
        "model_name": "m",
        "outputs": [
            {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(data)}}
            for name, datatype, shape, data in outputs
        ],
    }
    return json.dumps(head).encode() + b"".join(data for *_, data in outputs) + more


@given(NUMBERS, NUMBERS)
def test_the_binary_form_carries_the_same_row_and_knows_its_answer(number: int, other: int) -> None:
    inputs = IdentityInputs("binary")
    length = int(inputs.http_headers.split("inference-header-content-length: ")[1])
    body = inputs.http_body(number)
    head = json.loads(body[:length])
    (tensor,) = head["inputs"]
    assert (tensor["name"], tensor["datatype"], tensor["shape"]) == ("INPUT_FP32", "FP32", [12])
    assert tensor["parameters"]["binary_data_size"] == len(body) - length == 48
    assert head["parameters"] == {"binary_data_output": True}
    assert struct.unpack("<12f", body[length:]) == INPUTS.values(number)
    answer = _binary_answer([("OUTPUT_FP32", "FP32", [12], body[length:])])
    assert inputs.http_right(answer, number)
    assert inputs.http_right(answer, other) is (number == other)
    assert not inputs.http_right(answer + b"x", number)
    assert not inputs.http_right(answer[:-1], number)
    assert not inputs.http_right(_http_answer(number), number), "it asked for binary tensors"


@given(st.integers(min_value=0, max_value=20_000), st.sampled_from([0.001, 1.0, 7.3, 20.0, 5000.0]))
def test_the_work_of_accel_is_what_was_asked_for_with_distinct_rows(row: int, work: float) -> None:
    json_form, binary = AccelInputs("json", work), AccelInputs("binary", work)
    (sent,) = json.loads(json_form.http_body(row))["inputs"][0]["data"]
    assert work <= sent <= work * 1.004
    packed = struct.pack("<f", sent)
    assert binary.http_body(row).endswith(packed)
    assert AccelInputs("json", work).grpc_message(row).endswith(packed)
    assert (json_form.http_body(row) == json_form.http_body(row + 1)) is False
    back = [("work", "FP32", [1, 1], packed), ("execution", "INT64", [1, 1], bytes(8))]
    assert binary.http_right(_binary_answer(back), row)
    assert not binary.http_right(_binary_answer(back), row + 1)
    assert not binary.http_right(_binary_answer(back[:1]), row)
    outputs = [{"name": name, "datatype": datatype, "shape": shape} for name, datatype, shape, _ in back]
    answer = {"outputs": [{**outputs[0], "data": [struct.unpack("<f", packed)[0]]}, {**outputs[1], "data": [7]}]}
    assert json_form.http_right(json.dumps(answer).encode(), row)
    message = service_pb2.ModelInferResponse(model_name="accel")
    message.raw_output_contents.extend([packed, bytes(8)])
    assert json_form.grpc_right(message.SerializeToString(), row)


@given(st.integers(min_value=0, max_value=20_000))
def test_a_label_names_each_call_in_its_body_and_changes_nothing_else(row: int) -> None:
    plain, named = AccelInputs(), AccelInputs(label="reads")
    body = json.loads(named.http_body(row))
    assert body.pop("id") == f"reads/{row}"
    assert body == json.loads(plain.http_body(row))
    message = service_pb2.ModelInferRequest.FromString(named.grpc_message(row))
    assert message.id == f"reads/{row}"
    message.ClearField("id")
    assert message == service_pb2.ModelInferRequest.FromString(plain.grpc_message(row))


def test_rows_begin_anew_after_as_many_as_are_wanted_and_can_be_named() -> None:
    calls = Calls(1, 100, rows=4)
    assert [calls.next().row for _ in range(6)] == [1, 2, 3, 0, 1, 2]
    assert calls.next(row=2).row == 2
    assert calls.next(deadline_ms=7).deadline_ms == 7
    assert len({Calls(1, 100).next().row for _ in range(3)}) == 1
    many = Calls(1, 100)
    assert len({many.next().row for _ in range(10_000)}) == 10_000


@pytest.mark.parametrize(("share", "checked"), [(1.0, 1000), (0.25, 250), (0.001, 1), (0.0, 0)])
def test_the_answers_of_a_share_of_the_calls_are_checked(share: float, checked: int) -> None:
    calls = Calls(1, 100, check_share=share)
    assert sum(calls.next().checked for _ in range(1000)) == checked
