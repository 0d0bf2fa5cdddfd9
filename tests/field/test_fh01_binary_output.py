"""FH-01: "give me binary" for the whole request and per output, and half precision, on a real Triton.

The model gives every input back under its output's name: FP32, INT32 and FP16 stand for the case's y, z and h.
"""

from __future__ import annotations

import json
import struct
import uuid
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from gateway.wire.kserve.http_request import ALL_BINARY, ALL_JSON, OutputPlan
from gateway.wire.kserve.http_response import encode_http_infer
from tests.support.field_http import ask, record_of
from tests.support.gateway_process import GatewayProcess
from tests.support.http_answer import Answer
from tests.unit.edge_clients import infer_response

Y = np.array([1.5, -2.5], dtype=np.float32)
Z = np.array([7, -8, 9], dtype=np.int32)
H = np.array([0.5, 65504.0], dtype=np.float16)
TENSORS: dict[str, Any] = {"FP32": Y, "INT32": Z, "FP16": H}


def infer(
    gateway: GatewayProcess, names: list[str], outputs: dict[str, bool | None] | None, everything: bool | None = None
) -> Answer:
    """Ask for `outputs`: a name with its own `binary_data` (None: says nothing); None lists none."""
    document: dict[str, Any] = {"inputs": []}
    tail = b""
    for name in names:
        raw = TENSORS[name].tobytes()
        tail += raw
        document["inputs"].append(
            {
                "name": f"INPUT_{name}",
                "datatype": name,
                "shape": [len(TENSORS[name])],
                "parameters": {"binary_data_size": len(raw)},
            }
        )
    if everything is not None:
        document["parameters"] = {"binary_data_output": everything}
    if outputs is not None:
        document["outputs"] = [
            {"name": f"OUTPUT_{name}", **({} if own is None else {"parameters": {"binary_data": own}})}
            for name, own in outputs.items()
        ]
    head = json.dumps(document).encode()
    return ask(
        gateway.http,
        "/v2/models/identity/infer",
        head + tail,
        {"Inference-Header-Content-Length": str(len(head)), "x-request-id": uuid.uuid4().hex},
    )


def forms(answer: Answer) -> dict[str, str]:
    """Name to form, after checking that every form holds the right values and that the lengths are right."""
    assert answer.status == 200, answer.body
    length = answer.headers.get("inference-header-content-length")
    head = answer.body if length is None else answer.body[: int(length)]
    tail = b"" if length is None else answer.body[int(length) :]
    found = {}
    for output in json.loads(head)["outputs"]:
        name = output["datatype"]
        if "data" in output:
            assert output["data"] == TENSORS[name].tolist()
            found[name] = "JSON"
        else:
            size = output["parameters"]["binary_data_size"]
            assert tail[:size] == TENSORS[name].tobytes()
            tail = tail[size:]
            found[name] = "binary"
    assert tail == b""
    assert (length is not None) == ("binary" in found.values())
    return found


@pytest.mark.parametrize(
    ("outputs", "everything", "expected"),
    [
        pytest.param({"FP32": None}, True, {"FP32": "binary"}, id="A: a listed output inherits the flag"),
        pytest.param(
            {"FP32": None, "INT32": False}, True, {"FP32": "binary", "INT32": "JSON"}, id="B: its own word wins over it"
        ),
        pytest.param({"FP16": None}, True, {"FP16": "binary"}, id="D: half precision with the flag"),
        pytest.param({"FP16": True}, None, {"FP16": "binary"}, id="half precision with its own word"),
        pytest.param({"FP32": None}, None, {"FP32": "JSON"}, id="nothing said means JSON"),
        pytest.param(
            {"FP32": None, "INT32": True}, False, {"FP32": "JSON", "INT32": "binary"}, id="the other way round"
        ),
        pytest.param(None, True, {"FP32": "binary"}, id="nothing listed, with the flag"),
        pytest.param(None, None, {"FP32": "JSON"}, id="nothing listed, nothing said"),
        pytest.param(None, False, {"FP32": "JSON"}, id="nothing listed, the flag off"),
    ],
)
def test_an_outputs_own_word_wins_then_the_requests_then_json(
    gateway: GatewayProcess, outputs: dict[str, bool | None] | None, everything: bool | None, expected: dict[str, str]
) -> None:
    assert forms(infer(gateway, sorted(expected), outputs, everything)) == expected


@pytest.mark.parametrize(
    "outputs", [{"FP16": None}, {"FP16": False}, None], ids=["C", "asked for as JSON", "not listed"]
)
def test_half_precision_that_nobody_asked_for_in_binary_is_400_and_the_replica_is_well(
    gateway: GatewayProcess, outputs: dict[str, bool | None] | None
) -> None:
    answer = infer(gateway, ["FP16"], outputs)
    assert answer.status == 400
    assert "OUTPUT_FP16" in answer.error
    assert "FP16 cannot be sent as JSON" in answer.error
    record = record_of(gateway, answer.headers["x-request-id"])
    assert [attempt["outcome"] for attempt in record["attempts"]] == ["ok"], "one attempt, no retry, no penalty"
    assert record["outcome"] == "caller_fault"


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_e_half_precision_as_json_input_is_400_before_any_replica_is_asked(
    gateway: GatewayProcess, datatype: str
) -> None:
    body = {"inputs": [{"name": "INPUT_FP16", "datatype": datatype, "shape": [1], "data": [0.5]}]}
    answer = ask(
        gateway.http, "/v2/models/identity/infer", json.dumps(body).encode(), {"x-request-id": uuid.uuid4().hex}
    )
    assert answer.status == 400
    assert "INPUT_FP16" in answer.error
    assert f"{datatype} cannot be sent as JSON" in answer.error
    assert record_of(gateway, answer.headers["x-request-id"])["attempts"] == []


def test_over_grpc_half_precision_travels_raw(gateway: GatewayProcess) -> None:
    with triton_grpc.InferenceServerClient(gateway.grpc) as client:
        tensor = triton_grpc.InferInput("INPUT_FP16", [2], "FP16")
        tensor.set_data_from_numpy(H)
        result = client.infer("identity", [tensor])
    np.testing.assert_array_equal(result.as_numpy("OUTPUT_FP16"), H)


def test_f_one_answer_is_rendered_for_each_caller_as_it_asked() -> None:
    """What a cache or a shared flight will hold is the message; the form belongs to the caller."""
    message = infer_response(elements=2)
    plain = encode_http_infer(message, ALL_JSON, "")
    for plan in (ALL_BINARY, OutputPlan(False, {"y": True})):
        binary = encode_http_infer(message, plan, "")
        assert binary.header_length == len(binary.chunks[0])
        assert binary.body.endswith(struct.pack("<2f", 0, 0))
        again = encode_http_infer(message, ALL_JSON, "")
        assert again.header_length is None
        assert again.body == plain.body
