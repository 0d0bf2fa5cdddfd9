"""Large tensors over both protocols, and what a caller hears when one is too large for some leg of its way."""

from __future__ import annotations

import gzip
import json
import re
import threading
import time
import zlib
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.grpc import service_pb2

from deploy.local import LocalFleet
from tests.conftest import replicas_of
from tests.support.field_http import ask, record_of
from tests.support.gateway_process import PATIENCE, GatewayProcess, write_policies
from tests.support.http_answer import Answer
from tests.support.waiting import wait_until

KIB, MIB = 1024, 1024 * 1024
LARGE = np.tile(np.arange(MIB, dtype=np.float32), 16)
"""64 MiB."""
INFER = "/v2/models/identity/infer"
METHOD = "/inference.GRPCInferenceService/ModelInfer"
ANY_SIZE = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
assert LARGE.nbytes == 64 * MIB


@pytest.fixture(scope="module")
def wide(fleet: LocalFleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway that takes 72 MiB on every leg."""
    directory = tmp_path_factory.mktemp("wide")
    limits = {"body_bytes_max": 72 * MIB}
    listen = write_policies(
        directory,
        replicas_of(fleet),
        models={"identity": {"objective": {"p99_ms": 3000}, "limits": limits}},
        fleet={"gateway": {"grpc": {"message_bytes_max": 80 * MIB}}},
        pool={"message_bytes_max": 80 * MIB},
    )
    with GatewayProcess(directory, listen) as process:
        yield process.wait_ready().wait_models("identity")
        assert process.stop() == 0, process.log_text()


@pytest.fixture(scope="module")
def narrow(fleet: LocalFleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway with other bounds on each leg: 1 MiB from clients, 512 KiB of JSON, 1 MiB to and from replicas."""
    directory = tmp_path_factory.mktemp("narrow")
    limits = {"body_bytes_max": MIB, "json_bytes_max": 512 * KIB}
    listen = write_policies(
        directory,
        replicas_of(fleet),
        models={"identity": {"objective": {"p99_ms": 1000}, "deadline": PATIENCE, "limits": limits}},
        fleet={"gateway": {"grpc": {"message_bytes_max": 2 * MIB}, "http": {"header_bytes_max": 16 * KIB}}},
        pool={"message_bytes_max": MIB},
    )
    with GatewayProcess(directory, listen) as process:
        yield process.wait_ready().wait_models("identity")
        assert process.stop() == 0, process.log_text()


def binary_body(values: Any, datatype: str = "FP32", **output: Any) -> tuple[bytes, dict[str, str]]:
    """A request with one binary input, and its header."""
    document: dict[str, Any] = {
        "inputs": [
            {
                "name": f"INPUT_{datatype}",
                "datatype": datatype,
                "shape": [values.size],
                "parameters": {"binary_data_size": values.nbytes},
            }
        ],
        "outputs": [{"name": f"OUTPUT_{datatype}", "parameters": {"binary_data": True, **output}}],
    }
    head = json.dumps(document).encode()
    return head + values.tobytes(), {"Inference-Header-Content-Length": str(len(head))}


def tensor_of(answer: Answer) -> bytes:
    assert answer.status == 200, answer.body[:500]
    coding = answer.headers.get("content-encoding")
    body = answer.body if coding is None else gzip.decompress(answer.body)
    return body[int(answer.headers["inference-header-content-length"]) :]


def metric(gateway: GatewayProcess, name: str) -> float:
    page = gateway.get("metrics", "/metrics")[1].decode()
    found = re.search(rf"^{re.escape(name)} (\S+)$", page, re.MULTILINE)
    assert found is not None, f"{name} is not on the page"
    return float(found[1])


def no_body_is_held(gateway: GatewayProcess) -> None:
    """An answer is with its caller a moment before the gateway has put the call away."""
    wait_until(lambda: metric(gateway, "sluice_body_memory_bytes") == 0)


def resident_bytes(gateway: GatewayProcess) -> int:
    with open(f"/proc/{gateway.process.pid}/status") as status:
        return next(int(line.split()[1]) * KIB for line in status if line.startswith("VmRSS"))


def raw_request(values: Any, **more: Any) -> bytes:
    request = service_pb2.ModelInferRequest(model_name="identity", raw_input_contents=[values.tobytes()], **more)
    request.inputs.add(name="INPUT_FP32", datatype="FP32", shape=[values.size])
    message: bytes = request.SerializeToString()
    return message


def grpc_fault(gateway: GatewayProcess, message: bytes, **options: Any) -> tuple[grpc.StatusCode, str]:
    with (
        grpc.insecure_channel(gateway.grpc, options=ANY_SIZE) as channel,
        pytest.raises(grpc.RpcError) as caught,
    ):
        channel.unary_unary(METHOD)(message, timeout=30, **options)
    return caught.value.code(), caught.value.details()


# --- what fits --------------------------------------------------------------------------------------------------------


def test_64_mib_go_both_ways_over_http_plain_and_compressed(wide: GatewayProcess) -> None:
    body, headers = binary_body(LARGE)
    assert tensor_of(ask(wide.http, INFER, body, headers)) == LARGE.tobytes()
    packed = gzip.compress(body, 1)
    headers = {**headers, "Content-Encoding": "gzip", "Accept-Encoding": "gzip", "x-request-timeout-ms": "30000"}
    answer = ask(wide.http, INFER, packed, headers)
    assert answer.headers["content-encoding"] == "gzip"
    assert tensor_of(answer) == LARGE.tobytes()
    no_body_is_held(wide)


def test_64_mib_go_both_ways_over_grpc(wide: GatewayProcess) -> None:
    with triton_grpc.InferenceServerClient(wide.grpc) as client:
        tensor = triton_grpc.InferInput("INPUT_FP32", [LARGE.size], "FP32")
        tensor.set_data_from_numpy(LARGE)
        result = client.infer("identity", [tensor])
        np.testing.assert_array_equal(result.as_numpy("OUTPUT_FP32"), LARGE)
    no_body_is_held(wide)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_compressed_grpc_requests_are_the_same_call(wide: GatewayProcess, coding: str) -> None:
    values = LARGE[: 300 * KIB]
    with triton_grpc.InferenceServerClient(wide.grpc) as client:
        tensor = triton_grpc.InferInput("INPUT_FP32", [values.size], "FP32")
        tensor.set_data_from_numpy(values)
        result = client.infer("identity", [tensor], compression_algorithm=coding)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT_FP32"), values)


def test_others_are_served_while_large_bodies_pass_and_memory_is_given_back(wide: GatewayProcess) -> None:
    body, headers = binary_body(LARGE)
    packed = zlib.compress(body, 1)
    done = threading.Event()
    failures: list[object] = []

    def send() -> None:
        try:
            tensor_of(ask(wide.http, INFER, body, headers))
            for _ in range(3):
                tensor_of(ask(wide.http, INFER, packed, {**headers, "Content-Encoding": "deflate"}))
        except BaseException as failure:
            failures.append(failure)
        finally:
            done.set()

    worst_s = 0.0

    def rounds() -> int:
        nonlocal worst_s
        done.clear()
        thread = threading.Thread(target=send)
        thread.start()
        served = 0
        while not done.is_set():
            started_s = time.perf_counter()
            assert ask(wide.http, "/v2/health/live").status == 200
            worst_s = max(worst_s, time.perf_counter() - started_s)
            served += 1
        thread.join()
        assert not failures, failures
        return served

    served = rounds()
    before = resident_bytes(wide)
    served += rounds()
    assert served >= 8, "more answers to others than large calls"
    assert resident_bytes(wide) - before < 2 * LARGE.nbytes, "four more large calls leave less than two behind"
    no_body_is_held(wide)
    assert worst_s < 5, "the loop never stands still for long"


# --- what does not ----------------------------------------------------------------------------------------------------


def refused(answer: Answer, status: int, reason: str, *words: str) -> None:
    assert (answer.status, answer.headers["x-sluice-reason"]) == (status, reason), answer.body
    for word in words:
        assert word in answer.error


def test_a_body_over_its_limit_is_refused_with_the_limit(narrow: GatewayProcess) -> None:
    body, headers = binary_body(np.zeros(MIB // 4, dtype=np.float32))
    refused(ask(narrow.http, INFER, body, headers), 413, "too_large", str(len(body)), str(MIB))


def test_a_body_that_is_over_its_limit_only_when_decompressed_is_refused_too(narrow: GatewayProcess) -> None:
    body, headers = binary_body(np.zeros(40 * MIB // 4, dtype=np.float32))
    answer = ask(narrow.http, INFER, gzip.compress(body), {**headers, "Content-Encoding": "gzip"})
    refused(answer, 413, "too_large", f"decompresses to more than {MIB} bytes")


def test_json_over_its_own_limit_is_refused_with_that_limit(narrow: GatewayProcess) -> None:
    data = [1] * (200 * KIB)
    body = json.dumps({"inputs": [{"name": "INPUT_FP32", "datatype": "FP32", "shape": [len(data)], "data": data}]})
    for headers in ({}, {"Content-Encoding": "gzip"}):
        sent = gzip.compress(body.encode()) if headers else body.encode()
        answer = ask(narrow.http, INFER, sent, headers)
        refused(answer, 413, "too_large", f"at most {512 * KIB} of JSON", "binary data")


def test_headers_over_their_limits_are_431(narrow: GatewayProcess) -> None:
    answer = ask(narrow.http, INFER, b"{}", {"x-long": "v" * 17 * KIB})
    refused(answer, 431, "too_large", str(16 * KIB))
    answer = ask(narrow.http, INFER, b"{}", {"x-long": "v" * 8 * KIB})
    refused(answer, 431, "too_large", "the limit is 7168", "go on to the model server")


def test_a_grpc_message_over_the_models_limit_is_refused_with_the_limit(narrow: GatewayProcess) -> None:
    message = raw_request(np.zeros(MIB // 4, dtype=np.float32))
    code, text = grpc_fault(narrow, message)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert f"the body has {len(message)} bytes; model 'identity' takes at most {MIB}" in text


@pytest.mark.parametrize("compression", [None, grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_a_grpc_message_far_over_every_limit_never_gets_past_the_library(
    narrow: GatewayProcess, compression: grpc.Compression | None
) -> None:
    """Compressed too: the library looks at the size that comes out, and does not unpack what is larger."""
    before = resident_bytes(narrow)
    code, text = grpc_fault(narrow, raw_request(np.zeros(32 * MIB, dtype=np.float32)), compression=compression)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in text
    assert resident_bytes(narrow) - before < 64 * MIB


def test_a_message_of_exactly_the_limit_reaches_the_model(narrow: GatewayProcess) -> None:
    """The gateway adds the routed name and version behind it, which must not make it too large for the next leg."""
    values = np.zeros(100, dtype=np.float32)

    def padded(size: int) -> bytes:
        return raw_request(values, parameters={"padding": service_pb2.InferParameter(string_param="x" * size)})

    message = padded(MIB - (len(padded(MIB)) - MIB))
    assert len(message) == MIB
    with grpc.insecure_channel(narrow.grpc, options=ANY_SIZE) as channel:
        answer = channel.unary_unary(METHOD)(message, timeout=30)
    assert service_pb2.ModelInferResponse.FromString(answer).model_name == "identity"


def test_json_that_grows_beyond_the_pools_message_is_refused_with_that_limit(narrow: GatewayProcess) -> None:
    """A number of two characters becomes eight bytes."""
    count = 250 * KIB
    data = ",".join(["0"] * count)
    body = f'{{"inputs":[{{"name":"INPUT_FP64","datatype":"FP64","shape":[{count}],"data":[{data}]}}]}}'
    assert len(body) <= 512 * KIB
    answer = ask(narrow.http, INFER, body.encode(), {"x-request-id": "grown"})
    limit = f"`message_bytes_max` of the model's pool allows ({MIB} bytes)"
    refused(answer, 413, "too_large", limit, "the request of 2048")
    record = record_of(narrow, "grown")
    assert [attempt["outcome"] for attempt in record["attempts"]] == ["caller_fault"]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_an_answer_over_the_pools_message_names_the_limit_and_the_replica_stays_in_traffic(
    narrow: GatewayProcess, protocol: str
) -> None:
    """Classification turns each number of four bytes into text of twelve or more."""
    values = np.arange(150_000, dtype=np.float32)
    request_id = f"too-large-{protocol}"
    words = (f"`message_bytes_max` of the model's pool allows ({MIB} bytes)", "the answer of ")
    if protocol == "http":
        body, headers = binary_body(values, classification=values.size)
        answer = ask(narrow.http, INFER, body, {**headers, "x-request-id": request_id})
        refused(answer, 500, "answer_too_large", *words)
    else:
        request = service_pb2.ModelInferRequest.FromString(raw_request(values))
        request.outputs.add(name="OUTPUT_FP32").parameters["classification"].int64_param = values.size
        code, text = grpc_fault(narrow, request.SerializeToString(), metadata=(("x-request-id", request_id),))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert all(word in text for word in words)
    record = record_of(narrow, request_id)
    assert record["reason"] == "answer_too_large"
    assert [attempt["outcome"] for attempt in record["attempts"]] == ["gateway_fault"]
    small, headers = binary_body(values[:4])
    for _ in range(4):
        assert ask(narrow.http, INFER, small, headers).status == 200, "both replicas go on serving"
