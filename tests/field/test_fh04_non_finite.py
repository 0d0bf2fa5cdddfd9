"""FH-04: NaN and infinities, on a real Triton. Never half a document, never other bits, never silently null or zero.

The one choice for JSON over `infer`: the bare words NaN, Infinity and -Infinity, which are what Triton itself writes
and reads. In prediction records, which must stay JSON, they are strings.
"""

from __future__ import annotations

import json
import math
import re
import struct
import uuid
from typing import Any

import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.grpc import service_pb2

from tests.support.field_http import ask, record_of
from tests.support.gateway_process import GatewayProcess
from tests.support.http_answer import Answer

RAW = bytes.fromhex("0000c07f 0100c07f 0000807f 000080ff 00000080 0000803f")
"""NaN, NaN with a payload, infinity, minus infinity, minus zero, one."""
AS_JSON = b"[NaN,NaN,Infinity,-Infinity,-0.0,1.0]"
INFER = "/v2/models/identity/infer"


def strictly(line: bytes) -> Any:
    """JSON as its standard says: bare words are an error."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} in {line[:200]!r}")

    return json.loads(line, parse_constant=refuse)


def send_raw(gateway: GatewayProcess, output: dict[str, Any], **headers: str) -> Answer:
    document = {
        "inputs": [
            {"name": "INPUT_FP32", "datatype": "FP32", "shape": [6], "parameters": {"binary_data_size": len(RAW)}}
        ],
        "outputs": [{"name": "OUTPUT_FP32", "parameters": output}],
    }
    head = json.dumps(document).encode()
    return ask(gateway.http, INFER, head + RAW, {"Inference-Header-Content-Length": str(len(head)), **headers})


def send_json(gateway: GatewayProcess, data: str, datatype: str = "FP32") -> Answer:
    body = f'{{"inputs":[{{"name":"INPUT_{datatype}","datatype":"{datatype}","shape":[1],"data":{data}}}]}}'
    return ask(gateway.http, INFER, body.encode(), {"x-request-id": uuid.uuid4().hex})


def test_as_json_the_document_is_whole_and_says_the_words(gateway: GatewayProcess) -> None:
    answer = send_raw(gateway, {"binary_data": False})
    assert answer.status == 200
    assert AS_JSON in answer.body
    data = json.loads(answer.body)["outputs"][0]["data"]
    assert [math.isnan(value) for value in data] == [True, True, False, False, False, False]
    assert data[2:] == [math.inf, -math.inf, 0.0, 1.0]
    assert math.copysign(1, data[4]) == -1


def test_as_binary_every_bit_comes_back(gateway: GatewayProcess) -> None:
    answer = send_raw(gateway, {"binary_data": True})
    assert answer.status == 200
    assert answer.body[int(answer.headers["inference-header-content-length"]) :] == RAW


@pytest.mark.parametrize("form", ["raw", "contents"])
def test_over_grpc_every_bit_comes_back(gateway: GatewayProcess, form: str) -> None:
    request = service_pb2.ModelInferRequest(model_name="identity")
    tensor = request.inputs.add(name="INPUT_FP32", datatype="FP32", shape=[6])
    if form == "raw":
        request.raw_input_contents.append(RAW)
    else:
        # Written by hand: a Python float between would be a double, and lose a payload.
        tensor.contents.MergeFromString(b"\x32" + bytes([len(RAW)]) + RAW)
    with triton_grpc.InferenceServerClient(gateway.grpc) as client:
        answer = client._client_stub.ModelInfer(request)
    assert list(answer.raw_output_contents) == [RAW]


@pytest.mark.parametrize(
    ("word", "bits"),
    [("NaN", None), ("Infinity", "0000807f"), ("-Infinity", "000080ff"), ("-0.0", "00000080"), ("1e38", "9976967e")],
)
def test_what_json_can_say_arrives_as_what_it_is(gateway: GatewayProcess, word: str, bits: str | None) -> None:
    answer = send_json(gateway, f"[{word}]")
    assert answer.status == 200
    value = json.loads(answer.body)["outputs"][0]["data"][0]
    if bits is None:
        assert math.isnan(value)
    else:
        assert struct.pack("<f", value) == bytes.fromhex(bits)


@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
@pytest.mark.parametrize("data", ["[1e999]", "[-1e999]", "[null]", "null", "[nan]", "[inf]", '["NaN"]', "[+Infinity]"])
def test_what_is_no_number_is_400_before_any_replica_is_asked(
    gateway: GatewayProcess, data: str, datatype: str
) -> None:
    answer = send_json(gateway, data, datatype)
    assert answer.status == 400
    assert answer.error
    assert record_of(gateway, answer.headers["x-request-id"])["attempts"] == []


def test_a_number_that_only_its_datatype_cannot_hold_is_400(gateway: GatewayProcess) -> None:
    answer = send_json(gateway, "[1e39]", "FP32")
    assert answer.status == 400
    assert "out of range for FP32" in answer.error


@pytest.mark.parametrize("word", ["NaN", "Infinity"])
def test_the_words_are_refused_where_an_integer_is_wanted(gateway: GatewayProcess, word: str) -> None:
    answer = send_json(gateway, f"[{word}]", "INT32")
    assert answer.status == 400
    assert "INPUT_INT32" in answer.error


def test_two_hundred_such_calls_leave_records_that_strict_parsers_read(gateway: GatewayProcess) -> None:
    ids = [uuid.uuid4().hex for _ in range(200)]
    for number, request_id in enumerate(ids):
        answer = send_raw(gateway, {"binary_data": bool(number % 2)}, **{"x-request-id": request_id})
        assert answer.status == 200
    record_of(gateway, ids[-1])
    seen = {}
    for file in (gateway.directory / "records").glob("*.jsonl"):
        for line in file.read_bytes().splitlines():
            record = strictly(line)
            seen[record.get("request_id")] = record
    assert set(ids) <= set(seen)
    [tensor] = seen[ids[0]]["output"]["tensors"]
    assert tensor["non_finite"] == 4
    assert not re.search(rb"[^\"]NaN[^\"]", json.dumps(seen[ids[0]]).encode())
