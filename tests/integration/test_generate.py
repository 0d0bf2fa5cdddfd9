"""`generate` and `generate_stream` on a real Triton: the same requests directly and through the gateway."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from deploy.local import LocalFleet, TritonServer, free_ports
from gateway.wire.sse import SseDecoder
from tests.conftest import replicas_of
from tests.support.gateway_process import GatewayProcess, write_policies
from tests.support.waiting import wait_until

MODELS = ("streamer", "identity", "fraud")
POLICIES = {name: {"objective": {"p99_ms": 5000}} for name in MODELS}
WAIT_S = 30.0
FEATURES = [0.5] * 12


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    logs = tmp_path_factory.mktemp("generate-triton-logs")
    with LocalFleet(1, MODELS, ports=free_ports(1), log_dir=logs) as servers:
        yield servers["triton-0"]


def started(server: TritonServer, directory: Any) -> GatewayProcess:
    listen = write_policies(directory, replicas_of([server]), models=POLICIES)  # type: ignore[arg-type]
    return GatewayProcess(directory, listen)


@pytest.fixture(scope="module")
def gateway(server: TritonServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with started(server, tmp_path_factory.mktemp("generate-gateway")) as process:
        yield process.wait_ready().wait_models(*MODELS)
        assert process.stop() == 0, process.log_text()


def post(
    address: str, path: str, body: Any, headers: dict[str, str] | None = None, method: str = "POST"
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and the whole body, unchunked by the standard library's client."""
    connection = http.client.HTTPConnection(address, timeout=WAIT_S)
    try:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, data, headers or {})
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()


def path_of(model: str, route: str) -> str:
    return f"/v2/models/{model}/{route}"


def events(body: bytes) -> list[Any]:
    return [json.loads(event.text) for event in SseDecoder().feed(body)]


def log_line(server: TritonServer, request_id: str, event: str) -> dict[str, Any]:
    """What the streamer wrote about a request; waits for it."""
    end_s = time.monotonic() + WAIT_S
    while time.monotonic() < end_s:
        lines = server.spec.stream_log.read_text().splitlines() if server.spec.stream_log.exists() else []
        found: list[dict[str, Any]] = [json.loads(line) for line in lines if line.endswith("}")]
        for line in found:
            if (line["id"], line["event"]) == (request_id, event):
                return line
        time.sleep(0.02)
    raise AssertionError(f"the streamer has not logged the {event} of {request_id}")


SAME: list[tuple[str, Any]] = [
    ("streamer", {"text_input": "echo:a\nb\n", "id": "same"}),
    ("streamer", {"text_input": "echo:a\n", "final": "joined"}),
    ("streamer", {"text_input": "echo:one", "parameters": {"max_tokens": 1, "own": 3}}),
    ("streamer", {"text_input": 'chars::\n\ndata: x\r\né😀"\\\t'}),
    ("streamer", {"text_input": "bytes:é😀"}),
    ("streamer", {"text_input": "Beautiful is", "max_tokens": 5}),
    ("streamer", {"text_input": "x", "max_tokens": [3]}),
    ("streamer", {}),
    ("streamer", {"text_input": 5}),
    ("streamer", {"text_input": ["a", "b"]}),
    ("streamer", {"text_input": "x", "unknown": {}}),
    ("streamer", {"text_input": "x", "unknown": [1]}),
    ("streamer", {"text_input": "x", "unknown": None}),
    ("streamer", {"text_input": "x", "id": 5}),
    ("streamer", b"not json"),
    ("streamer", b""),
    ("streamer", b"[]"),
    ("absent", {"text_input": "x"}),
    ("absent", b"not json"),
    (
        "identity",
        {"INPUT_BOOL": [True, False], "INPUT_UINT64": 2**64 - 1, "INPUT_INT8": -128, "INPUT_BYTES": ["é", ""]},
    ),
    ("identity", {"INPUT_FP32": [0.1, 1e-45, -0.0], "INPUT_FP64": 0.1, "INPUT_INT64": [-(2**63), 2**63 - 1]}),
    ("identity", b'{"INPUT_FP32":[NaN,Infinity,-Infinity],"INPUT_FP64":NaN}'),
    ("identity", {"INPUT_FP32": [], "INPUT_BYTES": []}),
    ("identity", {"INPUT_MATRIX_FP32": [1, 2, 3, 4]}),
    ("identity", {"INPUT_FP16": 1}),
    ("identity", {"INPUT_INT32": 1.5}),
    ("identity", {"INPUT_INT32": True}),
    ("identity", {"INPUT_BOOL": 1}),
    ("identity", {"INPUT_INT32": [[1], [2]]}),
    ("identity", {"INPUT_INT32": [[1, 2]]}),
    ("fraud", {"features": FEATURES, "id": "f"}),
    ("fraud", {"features": FEATURES * 2}),
    ("fraud", {"features": FEATURES[:5]}),
    ("fraud", {"features": []}),
    ("fraud", {"parameters": {"features": FEATURES}}),
    ("fraud", {"features": FEATURES, "parameters": {"features": FEATURES}}),
]


def told(status: int, headers: dict[str, str], body: bytes) -> tuple[int, Any]:
    """An answer in the form in which both sides must agree: documents by content, errors by status and shape."""
    if "event-stream" in headers["content-type"]:
        found = events(body)
        return status, [{"error": ""} if "error" in each else repr(sorted(each.items())) for each in found]
    document = json.loads(body)
    if "error" in document:
        assert list(document) == ["error"]
        assert isinstance(document["error"], str)
        return status, "error"
    return status, repr(sorted(document.items()))


def as_documented(route: str, direct: tuple[int, Any]) -> tuple[int, Any]:
    """What the gateway must answer where Triton answers `direct`, by the table of deviations."""
    status, content = direct
    if content == "error" and status == 200:
        return 500, "error"  # generate-one-response
    if content == "error" and status == 500:
        return 400, "error"  # bad-json
    if route == "generate_stream" and status != 200 and content == [{"error": ""}]:
        return status, "error"  # generate-errors
    return direct


@pytest.mark.parametrize("route", ["generate", "generate_stream"])
@pytest.mark.parametrize(("model", "body"), SAME, ids=lambda value: repr(value)[:60])
def test_the_answer_is_the_one_that_triton_gives(
    server: TritonServer, gateway: GatewayProcess, route: str, model: str, body: Any
) -> None:
    direct = told(*post(server.spec.http_address, path_of(model, route), body))
    through = told(*post(gateway.http, path_of(model, route), body))
    assert through == as_documented(route, direct)


def test_the_bytes_of_a_stream_are_tritons(server: TritonServer, gateway: GatewayProcess) -> None:
    for text in ("echo:a\nb\n", "chars:é😀\x01\x7f", "bytes:😀"):
        body = {"text_input": text, "id": "b"}
        direct = post(server.spec.http_address, path_of("streamer", "generate_stream"), body)
        through = post(gateway.http, path_of("streamer", "generate_stream"), body)
        assert through[2] == direct[2]
        for name in ("content-type", "transfer-encoding"):
            assert through[1][name] == direct[1][name]
        assert "content-encoding" not in through[1]


@pytest.mark.parametrize("route", ["generate", "generate_stream"])
@pytest.mark.parametrize(
    ("method", "headers", "path_end"),
    [
        ("GET", {}, ""),
        ("PUT", {}, ""),
        ("POST", {"Content-Encoding": "gzip"}, ""),
        ("POST", {"Content-Encoding": "br"}, ""),
        ("POST", {"Content-Encoding": "identity", "Accept-Encoding": "gzip"}, "?a=b"),
        ("POST", {"Inference-Header-Content-Length": "3"}, ""),
    ],
)
def test_methods_codings_and_queries_are_judged_as_triton_does(
    server: TritonServer, gateway: GatewayProcess, route: str, method: str, headers: dict[str, str], path_end: str
) -> None:
    path, body = path_of("streamer", route) + path_end, {"text_input": "echo:a"}
    answers = [told(*post(each, path, body, headers, method)) for each in (server.spec.http_address, gateway.http)]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("version", ["1", "9"])
@pytest.mark.parametrize("route", ["generate", "generate_stream"])
def test_a_version_can_be_named(server: TritonServer, gateway: GatewayProcess, route: str, version: str) -> None:
    path = f"/v2/models/fraud/versions/{version}/{route}"
    direct = told(*post(server.spec.http_address, path, {"features": FEATURES}))
    assert told(*post(gateway.http, path, {"features": FEATURES})) == direct


@pytest.mark.parametrize("route", ["generate", "generate_stream"])
def test_an_error_of_a_decoupled_model_whose_text_says_nothing_is_500(gateway: GatewayProcess, route: str) -> None:
    # Triton answers 400 to whatever code a model gives; which it was, nobody can tell from a stream over gRPC.
    status, headers, body = post(gateway.http, path_of("streamer", route), {"text_input": "x", "max_tokens": -1})
    assert (status, headers["x-sluice-reason"]) == (500, "upstream_broken")
    assert "max_tokens is -1" in json.loads(body)["error"]


@pytest.mark.parametrize("fail_at", [0, 5])
def test_an_error_is_a_status_before_the_first_event_and_the_last_event_after_it(
    gateway: GatewayProcess, fail_at: int
) -> None:
    body = {"text_input": "x", "max_tokens": 9, "fail_at": fail_at}
    status, headers, answer = post(gateway.http, path_of("streamer", "generate_stream"), body)
    if fail_at == 0:
        assert status >= 400
        assert "bad input" in json.loads(answer)["error"]
        assert headers["content-type"] == "application/json"
        assert headers["x-sluice-reason"].startswith("upstream_")
    else:
        assert status == 200
        assert [each.get("index") for each in events(answer)] == [0, 1, 2, 3, 4, None]
        assert "bad input" in events(answer)[-1]["error"]
    status, _, answer = post(gateway.http, path_of("streamer", "generate"), body)
    assert status >= 400, "a failure never hides behind a 200"
    assert "error" in json.loads(answer)


def test_an_event_is_passed_on_when_it_comes_and_a_client_that_leaves_ends_the_models_work(
    server: TritonServer, gateway: GatewayProcess
) -> None:
    body = json.dumps({"text_input": "x", "id": "endless", "max_tokens": 1_000_000, "delay_ms": 100}).encode()
    with socket.create_connection(gateway.http.split(":"), timeout=WAIT_S) as client:  # type: ignore[arg-type]
        client.sendall(_request("generate_stream", body))
        received = b""
        while received.count(b"data: ") < 3:
            piece = client.recv(65536)
            assert piece, f"the gateway ended the connection behind {received!r}"
            received += piece
    end = log_line(server, "endless", "end")
    assert end["outcome"] == "cancelled"
    assert end["sent"] < 1000


@pytest.mark.parametrize("route", ["generate", "generate_stream"])
def test_a_client_that_leaves_a_silent_model_ends_its_work_too(
    server: TritonServer, gateway: GatewayProcess, route: str
) -> None:
    request_id = f"silent-{route}"
    body = json.dumps({"text_input": "x", "id": request_id, "first_delay_ms": 55_000}).encode()
    with socket.create_connection(gateway.http.split(":"), timeout=WAIT_S) as client:  # type: ignore[arg-type]
        client.sendall(_request(route, body))
        log_line(server, request_id, "start")
    assert log_line(server, request_id, "end")["outcome"] == "cancelled"


def test_a_deadline_that_passes_during_a_stream_is_its_last_event(
    server: TritonServer, gateway: GatewayProcess
) -> None:
    body = {"text_input": "x", "id": "late", "max_tokens": 100_000, "delay_ms": 20}
    deadline = {"x-request-timeout-ms": "3000"}
    status, _, answer = post(gateway.http, path_of("streamer", "generate_stream"), body, deadline)
    assert status == 200
    *tokens, last = events(answer)
    assert [each["index"] for each in tokens] == list(range(len(tokens)))
    assert "deadline" in last["error"]
    assert log_line(server, "late", "end")["outcome"] == "cancelled"
    silent = {"text_input": "x", "first_delay_ms": 50_000}
    for route in ("generate", "generate_stream"):
        status, headers, answer = post(
            gateway.http, path_of("streamer", route), silent, {"x-request-timeout-ms": "300"}
        )
        assert status == 504
        assert headers["x-sluice-reason"] == "deadline"


def test_an_http_1_0_client_gets_a_stream_without_chunks(gateway: GatewayProcess) -> None:
    body = json.dumps({"text_input": "echo:a\nb\n"}).encode()
    with socket.create_connection(gateway.http.split(":"), timeout=WAIT_S) as client:  # type: ignore[arg-type]
        client.sendall(_request("generate_stream", body, "1.0"))
        received = b""
        while data := client.recv(65536):
            received += data
    head, _, rest = received.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert [each["text_output"] for each in events(rest)] == ["a\n", "b\n"]


def test_a_connection_carries_one_stream_after_the_other(gateway: GatewayProcess) -> None:
    connection = http.client.HTTPConnection(gateway.http, timeout=WAIT_S)
    for text in ("a", "b"):
        for route in ("generate_stream", "generate"):
            connection.request("POST", path_of("streamer", route), json.dumps({"text_input": f"echo:{text}"}))
            response = connection.getresponse()
            answer = response.read()
            assert response.status == 200
            assert f'"text_output":"{text}"'.encode() in answer
    connection.close()


def test_each_call_has_one_record_with_the_number_of_its_responses(gateway: GatewayProcess) -> None:
    asked = {"text_input": "echo:a\nb\nc\n"}
    ids = {}
    for name, route, body in (
        ("three", "generate_stream", asked),
        ("none", "generate_stream", {"text_input": "x", "max_tokens": 0}),
        ("late error", "generate_stream", {"text_input": "x", "max_tokens": 9, "fail_at": 2}),
        ("several", "generate", asked),
        ("one", "generate", {"text_input": "echo:a"}),
    ):
        _, headers, _ = post(gateway.http, path_of("streamer", route), body)
        ids[headers["x-request-id"]] = name
    wait_until(lambda: len(_records(gateway, set(ids))) == len(ids), WAIT_S, "not every call has its record")
    told = {ids[record["request_id"]]: record for record in _records(gateway, set(ids))}
    counts = {name: record["responses"] for name, record in told.items()}
    assert counts.pop("late error") in (2, 3), "two tokens; the error counts if it stood in the place of a response"
    assert counts == {"three": 3, "none": 0, "several": 2, "one": 1}
    assert {name for name, record in told.items() if record.get("reason")} == {"late error", "several"}


def test_a_gateway_that_is_told_to_stop_finishes_its_streams(
    server: TritonServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with started(server, tmp_path_factory.mktemp("generate-drain")) as process:
        process.wait_ready().wait_models("streamer")
        body = json.dumps({"text_input": "x", "max_tokens": 20, "delay_ms": 100}).encode()
        with socket.create_connection(process.http.split(":"), timeout=WAIT_S) as client:  # type: ignore[arg-type]
            client.sendall(_request("generate_stream", body))
            received = client.recv(65536)
            process.signal(signal.SIGTERM)
            while data := client.recv(65536):
                received += data
        assert received.count(b"data: ") == 20
        assert received.endswith(b"0\r\n\r\n")
        assert process.stop() == 0, process.log_text()


def _request(route: str, body: bytes, http_version: str = "1.1") -> bytes:
    head = f"POST {path_of('streamer', route)} HTTP/{http_version}\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _records(gateway: GatewayProcess, ids: set[str]) -> list[dict[str, Any]]:
    return [record for record in gateway.records() if record["request_id"] in ids]
