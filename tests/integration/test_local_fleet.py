"""The local fleet on real Triton: every model over both protocols, and what a single server can suffer."""

from __future__ import annotations

import asyncio
import http.client
import json
import math
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from deploy.local import LocalFleet, LocalFleetError, TritonServer, free_ports
from deploy.local.environment import ensure_environment
from deploy.local.layout import REPOSITORY_DIR, ROOT
from deploy.local.models.fraud.trees import Forest
from deploy.local.models.fraud_lite.logistic import Logistic
from deploy.local.ports import require_free
from deploy.local.processes import SHM_DIR, group_members
from deploy.local.repository import build_repository

Infer = Callable[..., Any]
Inputs = Sequence[tuple[str, np.ndarray[Any, Any], str]]

TURNS = 5
"""Of what is only seen to have gone as it was meant when it is over: so often it is tried on a busy machine."""


def _caller(server: TritonServer, protocol: str) -> Infer:
    """A function (model, inputs, **options) -> InferResult that calls one server directly."""
    module: Any = triton_grpc if protocol == "grpc" else triton_http
    address = server.spec.grpc_address if protocol == "grpc" else server.spec.http_address

    def infer(model: str, inputs: Inputs, **options: Any) -> Any:
        tensors = []
        for name, array, datatype in inputs:
            tensor = module.InferInput(name, list(array.shape), datatype)
            tensor.set_data_from_numpy(array)
            tensors.append(tensor)
        with module.InferenceServerClient(address) as client:
            return client.infer(model, tensors, **options)

    return infer


def _manifest(model: str, version: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((REPOSITORY_DIR / model / version / "manifest.json").read_text())
    return loaded


def _samples(model: str, version: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Held-out rows and what scikit-learn's model said of them, within 1e-6."""
    stored = json.loads((REPOSITORY_DIR / model / version / "samples.json").read_text())
    return np.asarray(stored["features"], dtype=np.float32), np.asarray(stored["probability"], dtype=np.float32)


def _shm_files(prefix: str) -> list[str]:
    return [name for name in os.listdir(SHM_DIR) if name.startswith(prefix)]


def _work(rows: int = 1, work: float = 1.0) -> Inputs:
    return [("work", np.full((rows, 1), work, dtype=np.float32), "FP32")]


def _executions(server: TritonServer) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.spec.execution_log.read_text().splitlines()]


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize(("model", "version"), [("fraud", "1"), ("fraud", "2"), ("fraud-lite", "1")])
def test_the_fraud_models_answer_as_their_artifacts_compute(
    fleet: LocalFleet, protocol: str, model: str, version: str
) -> None:
    features, trained = _samples(model, version)
    artifact = REPOSITORY_DIR / model / version / _manifest(model, version)["artifact"]
    evaluator = Forest.load(artifact) if model == "fraud" else Logistic.load(artifact)
    for server in fleet:
        infer = _caller(server, protocol)
        result = infer(model, [("features", features, "FP32")], model_version=version)
        probability = result.as_numpy("probability")
        assert probability.shape == (len(features), 1)
        np.testing.assert_allclose(probability[:, 0], evaluator.probability(features), atol=1e-6)
        np.testing.assert_allclose(probability[:, 0], trained, atol=1e-6)
        expected_label = (probability >= evaluator.decision_threshold).astype(np.int32)
        assert np.array_equal(result.as_numpy("label"), expected_label)


def test_the_second_version_of_fraud_is_better_and_both_have_one_feature_schema(fleet: LocalFleet) -> None:
    first, second, lite = _manifest("fraud", "1"), _manifest("fraud", "2"), _manifest("fraud-lite", "1")
    assert second["evaluation"]["auc"] > first["evaluation"]["auc"] + 0.03
    assert second["evaluation"]["auc"] > lite["evaluation"]["auc"]
    assert len({each["feature_schema_id"] for each in (first, second, lite)}) == 1
    assert len({each["artifact_sha256"] for each in (first, second, lite)}) == 3


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_row_that_is_not_finite_fails_its_own_request_only(fleet: LocalFleet, protocol: str) -> None:
    infer = _caller(fleet["triton-0"], protocol)
    features, _ = _samples("fraud", "2")
    broken = features.copy()
    broken[0, 0] = np.nan
    with pytest.raises(InferenceServerException, match="finite"):
        infer("fraud", [("features", broken, "FP32")])
    assert infer("fraud", [("features", features, "FP32")]).as_numpy("label") is not None


IDENTITY_INPUTS: Inputs = [
    ("INPUT_BOOL", np.asarray([True, False, True]), "BOOL"),
    ("INPUT_UINT8", np.asarray([0, 255], dtype=np.uint8), "UINT8"),
    ("INPUT_INT32", np.asarray([-(2**31), 2**31 - 1], dtype=np.int32), "INT32"),
    ("INPUT_INT64", np.asarray([-(2**63), 2**63 - 1], dtype=np.int64), "INT64"),
    ("INPUT_UINT64", np.asarray([2**64 - 1], dtype=np.uint64), "UINT64"),
    ("INPUT_FP16", np.asarray([1.5], dtype=np.float16), "FP16"),
    ("INPUT_FP32", np.asarray([], dtype=np.float32), "FP32"),
    ("INPUT_FP64", np.asarray([1e300, -0.0]), "FP64"),
    ("INPUT_BYTES", np.asarray([b"\xff\x00", b"", "ü".encode()], dtype=np.object_), "BYTES"),
    ("INPUT_MATRIX_FP32", np.arange(6, dtype=np.float32).reshape(2, 3), "FP32"),
    ("INPUT_INT8", np.asarray([-128, 127], dtype=np.int8), "INT8"),
    ("INPUT_INT16", np.asarray([-(2**15), 2**15 - 1], dtype=np.int16), "INT16"),
    ("INPUT_UINT16", np.asarray([2**16 - 1], dtype=np.uint16), "UINT16"),
    ("INPUT_UINT32", np.asarray([2**32 - 1], dtype=np.uint32), "UINT32"),
    ("INPUT_MATRIX_BOOL", np.asarray([[True], [False]]), "BOOL"),
    ("INPUT_MATRIX_INT64", np.empty((0, 7), dtype=np.int64), "INT64"),
    ("INPUT_MATRIX_FP16", np.asarray([[1.5, -np.inf, -0.0]], dtype=np.float16), "FP16"),
    ("INPUT_MATRIX_BYTES", np.asarray([[b"a", b""], [b"\x00", "ü".encode()]], dtype=np.object_), "BYTES"),
]


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("chosen", [slice(None), slice(0, 1), slice(3, 7), slice(8, 10), slice(10, None)])
def test_identity_gives_back_exactly_the_inputs_that_were_sent(fleet: LocalFleet, protocol: str, chosen: slice) -> None:
    inputs = IDENTITY_INPUTS[chosen]
    result = _caller(fleet["triton-1"], protocol)("identity", inputs)
    response = result.get_response()
    outputs = response["outputs"] if protocol == "http" else response.outputs
    names = {output["name"] if protocol == "http" else output.name for output in outputs}
    assert names == {name.replace("INPUT", "OUTPUT") for name, _, _ in inputs}
    for name, sent, _ in inputs:
        back = result.as_numpy(name.replace("INPUT", "OUTPUT"))
        assert back.shape == sent.shape
        assert back.dtype == sent.dtype
        assert np.array_equal(back, sent)


EMPTY_INPUTS: Inputs = [
    ("INPUT_MATRIX_BOOL", np.empty((0, 3), dtype=np.bool_), "BOOL"),
    ("INPUT_MATRIX_FP16", np.empty((4, 0), dtype=np.float16), "FP16"),
    ("INPUT_MATRIX_BYTES", np.empty((2, 0), dtype=np.object_), "BYTES"),
]


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_identity_gives_back_tensors_without_elements_in_their_shapes(fleet: LocalFleet, protocol: str) -> None:
    result = _caller(fleet["triton-0"], protocol)("identity", EMPTY_INPUTS)
    for name, sent, _ in EMPTY_INPUTS:
        assert result.as_numpy(name.replace("INPUT", "OUTPUT")).shape == sent.shape


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize(
    ("datatype", "bits"),
    [
        ("FP32", np.asarray([0x7FC00001, 0x7F800001, 0xFFC12345, 0x7F800000, 0xFF800000, 0x80000000], dtype=np.uint32)),
        ("FP16", np.asarray([0x7E01, 0x7C01, 0xFE34, 0x7C00, 0xFC00, 0x8000], dtype=np.uint16)),
        ("FP64", np.asarray([0x7FF0000000000001, 0xFFF8000000000123, 0x8000000000000000], dtype=np.uint64)),
    ],
)
def test_identity_keeps_the_bits_of_nan_infinity_and_minus_zero(
    fleet: LocalFleet, protocol: str, datatype: str, bits: np.ndarray[Any, Any]
) -> None:
    kind = {"FP32": np.float32, "FP16": np.float16, "FP64": np.float64}[datatype]
    sent = bits.view(kind)
    result = _caller(fleet["triton-0"], protocol)("identity", [(f"INPUT_{datatype}", sent, datatype)])
    assert result.as_numpy(f"OUTPUT_{datatype}").view(bits.dtype).tolist() == bits.tolist()


BF16_BITS = struct.pack("<6H", 0x3F80, 0x7FC1, 0xFF81, 0x7F80, 0x8000, 0x0001)


@pytest.mark.parametrize(("name", "shape"), [("BF16", [6]), ("BF16", [0]), ("MATRIX_BF16", [2, 3])])
def test_identity_keeps_the_bits_of_bf16(fleet: LocalFleet, name: str, shape: list[int]) -> None:
    # The client takes BF16 only from a package that brings the type to NumPy; so the messages are made by hand.
    sent = BF16_BITS[: 2 * math.prod(shape)]
    spec = fleet["triton-0"].spec
    messages = triton_grpc.service_pb2
    request = messages.ModelInferRequest(model_name="identity", raw_input_contents=[sent])
    request.inputs.add(name=f"INPUT_{name}", datatype="BF16", shape=shape)
    with grpc.insecure_channel(spec.grpc_address) as channel:
        answer = triton_grpc.service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=30)
    assert (answer.outputs[0].name, answer.outputs[0].datatype) == (f"OUTPUT_{name}", "BF16")
    assert (list(answer.outputs[0].shape), answer.raw_output_contents[0]) == (shape, sent)

    binary = {"binary_data_size": len(sent)}
    described = {"name": f"INPUT_{name}", "datatype": "BF16", "shape": shape, "parameters": binary}
    head = json.dumps({"inputs": [described], "parameters": {"binary_data_output": True}}).encode()
    connection = http.client.HTTPConnection(spec.http_address, timeout=30)
    headers = {"Inference-Header-Content-Length": str(len(head))}
    connection.request("POST", "/v2/models/identity/infer", head + sent, headers)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    assert response.status == 200, body
    # The header is only there if bytes follow the JSON.
    split = int(response.headers.get("Inference-Header-Content-Length", len(body)))
    assert (json.loads(body[:split])["outputs"][0]["shape"], body[split:]) == (shape, sent)


def test_accel_executes_waiting_calls_as_one_batch_and_logs_each(fleet: LocalFleet) -> None:
    server = fleet["triton-0"]
    infer = _caller(server, "grpc")
    for turn in range(TURNS):
        with ThreadPoolExecutor(9) as pool:
            # The first holds the only instance, so that the others meet in the queue.
            held = {"straggle_ms": 1500}
            first = pool.submit(infer, "accel", _work(), request_id=f"holder-{turn}", parameters=held)
            time.sleep(0.6)  # nothing outside Triton shows that an execution has begun
            others = [pool.submit(infer, "accel", _work(), request_id=f"call-{turn}-{n}") for n in range(8)]
            executions = [future.result().as_numpy("execution").item() for future in others]
            holder = first.result().as_numpy("execution").item()
        if holder not in executions:
            break  # on a busy machine the holder may come late and share the others' batch: then it held nothing
    else:
        raise AssertionError(f"in {TURNS} turns the holder was never alone")
    assert len(set(executions)) < 8
    logged = {line["id"]: line for line in _executions(server)}
    calls = [logged[f"call-{turn}-{n}"] for n in range(8)]
    assert [line["execution"] for line in calls] == executions
    assert max(line["batch"] for line in calls) > 1
    alone = logged[f"holder-{turn}"]
    assert alone["end_s"] - alone["start_s"] >= 1.5
    assert all(line["start_s"] >= alone["end_s"] for line in calls)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_accel_fails_on_command_and_then_goes_on(fleet: LocalFleet, protocol: str) -> None:
    infer = _caller(fleet["triton-0"], protocol)
    with pytest.raises(InferenceServerException, match="failed on command"):
        infer("accel", _work(), parameters={"fail": "error"})
    with pytest.raises(InferenceServerException, match="fail is 'perhaps'"):
        infer("accel", _work(), parameters={"fail": "perhaps"})
    with pytest.raises(InferenceServerException, match="not negative"):
        infer("accel", _work(work=-1.0))
    assert infer("accel", _work(2, 0.5)).as_numpy("work").tolist() == [[0.5], [0.5]]


def test_a_cancelled_call_ends_its_execution_early_if_it_asks_for_that(fleet: LocalFleet) -> None:
    server = fleet["triton-0"]
    for turn in range(TURNS):
        name, after = f"cancelled-{turn}", f"after-{turn}"
        with triton_grpc.InferenceServerClient(server.spec.grpc_address) as client:
            tensor = triton_grpc.InferInput("work", [1, 1], "FP32")
            tensor.set_data_from_numpy(np.ones((1, 1), dtype=np.float32))
            call = client.async_infer(
                "accel",
                [tensor],
                callback=lambda result, error: None,
                request_id=name,
                parameters={"straggle_ms": 30_000, "poll_cancel_ms": 10},
            )
            time.sleep(0.5)  # nothing outside Triton shows that an execution has begun
            call.cancel()
        # The next call is served after the cancelled one has left the only instance.
        _caller(server, "grpc")("accel", _work(), request_id=after)
        logged = {line["id"]: line for line in _executions(server)}
        if name in logged:
            break  # on a busy machine it may be cancelled before its execution has begun
    else:
        raise AssertionError(f"in {TURNS} turns no execution had begun after half a second")
    assert logged[name]["outcome"] == "cancelled"
    assert logged[name]["end_s"] - logged[name]["start_s"] < 25
    assert logged[after]["start_s"] >= logged[name]["end_s"]


def test_a_frozen_server_keeps_silent_and_answers_after_the_thaw(breakable_fleet: LocalFleet) -> None:
    frozen, other = breakable_fleet["triton-0"], breakable_fleet["triton-1"]
    frozen.freeze()
    assert frozen.state() == "frozen"
    assert frozen.alive()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(_caller(frozen, "grpc"), "accel", _work(), request_id="through-the-freeze")
        assert _caller(other, "grpc")("accel", _work()).as_numpy("work") is not None
        assert not waiting.done()
        assert not frozen.ready(timeout_s=0.3)
        frozen.thaw()
        assert waiting.result(timeout=20).as_numpy("work").item() == 1.0
    assert frozen.state() == "running"
    assert frozen.ready(timeout_s=5.0)


def test_a_killed_server_leaves_nothing_and_can_be_started_again(breakable_fleet: LocalFleet) -> None:
    killed, other = breakable_fleet["triton-1"], breakable_fleet["triton-0"]
    run = killed.run
    assert run is not None
    assert len(group_members(run.server.pid)) == 1 + 5  # Triton, and a stub per model and version
    assert len(_shm_files(run.shm_prefix)) == 5
    killed.kill()
    assert killed.state() == "stopped"
    assert group_members(run.server.pid) == []
    assert _shm_files(run.shm_prefix) == []
    require_free(killed.spec.ports)
    with pytest.raises(LocalFleetError, match="not running"):
        killed.freeze()
    assert other.ready()
    killed.start(wait=True)
    assert _caller(killed, "http")("accel", _work()).as_numpy("work").item() == 1.0


def test_a_frozen_server_can_be_stopped_and_leaves_nothing(tmp_path: Path) -> None:
    with LocalFleet(1, ["accel"], ports=free_ports(1), log_dir=tmp_path, progress=lambda line: None) as own:
        server = own["triton-0"]
        run = server.run
        assert run is not None
        with pytest.raises(LocalFleetError, match="running already"):
            server.start()
        server.freeze()
        server.stop()
        assert server.state() == "stopped"
        assert group_members(run.server.pid) == []
        assert _shm_files(run.shm_prefix) == []
        require_free(server.spec.ports)


def test_a_server_whose_stub_has_crashed_is_whole_again_after_a_restart(tmp_path: Path) -> None:
    with LocalFleet(1, ["accel"], ports=free_ports(1), log_dir=tmp_path, progress=lambda line: None) as own:
        server = own["triton-0"]
        infer = _caller(server, "grpc")
        with pytest.raises(InferenceServerException):
            infer("accel", _work(), request_id="last words", parameters={"fail": "crash"})
        with pytest.raises(InferenceServerException, match="not healthy"):
            infer("accel", _work())
        assert _executions(server)[-1]["outcome"] == "crash"
        server.kill()
        server.start(wait=True)
        assert infer("accel", _work()).as_numpy("work").item() == 1.0


def test_the_bounded_configuration_refuses_calls_beyond_its_queue_and_keeps_request_timeouts(
    bounded_fleet: LocalFleet,
) -> None:
    server = bounded_fleet["triton-0"]
    infer = _caller(server, "grpc")

    def call(straggle_ms: int, request_id: str = "", timeout: int | None = None) -> str:
        try:
            parameters = {"straggle_ms": straggle_ms}
            infer("accel", _work(), request_id=request_id, parameters=parameters, timeout=timeout)
        except InferenceServerException as error:
            return str(error)
        return "served"

    for turn in range(TURNS):
        with ThreadPoolExecutor(100) as pool:
            holder = pool.submit(call, 2500, f"holds the queue {turn}")
            time.sleep(0.8)  # nothing outside Triton shows that an execution has begun
            late = pool.submit(call, 0, timeout=200_000)
            said = list(pool.map(call, [0] * 79))
            told = late.result()
        assert holder.result() == "served"
        refused = [each for each in said if "Exceeds maximum queue size" in each]
        # On a busy machine the others may come when the holder has gone, or before it holds the instance.
        if len(refused) >= 10 and "timeout expired" in told:
            break
    else:
        raise AssertionError(f"in {TURNS} turns {len(refused)} of {len(said)} calls were refused; the late one: {told}")
    # On a busy machine some wait longer than the queue lets anybody wait.
    overdue = [each for each in said if "timeout expired" in each]
    assert said.count("served") == len(said) - len(refused) - len(overdue) > 0


def test_in_the_bounded_configuration_a_cancelled_call_that_waits_is_never_executed(
    bounded_fleet: LocalFleet,
) -> None:
    server = bounded_fleet["triton-0"]
    tensor = triton_grpc.InferInput("work", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 1), dtype=np.float32))
    with triton_grpc.InferenceServerClient(server.spec.grpc_address) as client:

        def send(request_id: str, straggle_ms: int) -> Any:
            return client.async_infer(
                "accel",
                [tensor],
                callback=lambda result, error: None,
                request_id=request_id,
                parameters={"straggle_ms": straggle_ms},
            )

        for turn in range(TURNS):
            holder = f"holds the instance {turn}"
            send(holder, 3000)
            time.sleep(0.8)  # nothing outside Triton shows that an execution has begun
            given_up_s = time.monotonic()
            waiting = [send(f"given up {turn}.{number}", 0) for number in range(20)]
            time.sleep(0.6)  # nor that it has queued a call
            for call in waiting:
                call.cancel()
            cancelled_s = time.monotonic()
            client.infer("accel", [tensor], request_id=f"the last {turn}")
            executed = {line["id"]: line for line in _executions(server)}
            # On a busy machine the holder may come late, or be gone before the others are cancelled (which takes a
            # moment to reach the server).
            if executed[holder]["start_s"] < given_up_s and cancelled_s + 0.5 < executed[holder]["end_s"]:
                break
        else:
            raise AssertionError(f"in {TURNS} turns the instance was never held all the while")
    assert f"the last {turn}" in executed
    assert not [name for name in executed if name.startswith(f"given up {turn}.")]


def test_a_server_that_cannot_load_its_model_fails_the_start_with_its_log_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    own = LocalFleet(
        1,
        ["accel"],
        ports=free_ports(1),
        log_dir=tmp_path,
        environment={"SLUICE_ACCEL_S0_MS": "soon"},
        progress=lambda line: None,
    )
    with pytest.raises(LocalFleetError, match="SLUICE_ACCEL_S0_MS"):
        own.start()
    assert len(own) == 0
    require_free(own.specs[0].ports)


LAUNCHER = """
import sys, time
from pathlib import Path
from deploy.local import LocalFleet, Ports
http, grpc, metrics = map(int, sys.argv[1:4])
with LocalFleet(1, ["accel"], ports=[Ports(http, grpc, metrics)], log_dir=Path(sys.argv[4])) as fleet:
    run = fleet["triton-0"].run
    print(run.supervisor.pid, run.server.pid, run.shm_prefix, flush=True)
    time.sleep(600)
"""


def test_servers_die_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    (ports,) = free_ports(1)
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, *map(str, ports), str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert launcher.stdout is not None
        _, server, prefix = launcher.stdout.readline().split()
        assert group_members(int(server)) != []
    finally:
        launcher.send_signal(signal.SIGKILL)
        launcher.wait()
        if launcher.stdout is not None:
            launcher.stdout.close()
    deadline_s = time.monotonic() + 20
    while (group_members(int(server)) or _shm_files(prefix)) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert group_members(int(server)) == []
    assert _shm_files(prefix) == []
    require_free(ports)


async def test_a_cancelled_async_start_leaves_no_server(tmp_path: Path) -> None:
    own = LocalFleet(1, ["accel"], ports=free_ports(1), log_dir=tmp_path, progress=lambda line: None)

    async def use() -> None:
        async with own:
            await asyncio.Event().wait()

    async with asyncio.timeout(60):
        task = asyncio.create_task(use())
        while not own.servers:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(own) == 0
    require_free(own.specs[0].ports)


def test_the_environment_and_the_repository_are_built_once(fleet: LocalFleet) -> None:
    said: list[str] = []
    stamp = REPOSITORY_DIR / ".stamp.json"
    before = stamp.stat().st_ino
    build_repository(ensure_environment(progress=said.append), progress=said.append)
    assert said == []
    assert stamp.stat().st_ino == before


def test_loading_an_unchanged_model_again_changes_nothing(fleet: LocalFleet) -> None:
    # Were anything (such as compiled Python) written into the repository, Triton would reload, with a new stub.
    server = fleet["triton-0"]
    assert server.run is not None
    before = sorted(group_members(server.run.server.pid))
    with triton_http.InferenceServerClient(server.spec.http_address) as client:
        client.load_model("identity")
    assert sorted(group_members(server.run.server.pid)) == before
