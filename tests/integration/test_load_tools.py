"""wrk, h2load and curl as Debian ships them: they find no difference, no failed request, and count what we count."""

from __future__ import annotations

import gzip
import json
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from deploy.local import LocalFleet
from deploy.local.tools import Tool, ensure_tool
from tests.conftest import replicas_of
from tests.support.certificates import Authority
from tests.support.gateway_process import GatewayProcess, write_policies
from tests.support.load_tools import (
    Curl,
    answer_heads,
    counted_so_far,
    recorded,
    run_h2load,
    run_wrk,
)
from tests.support.waiting import wait_until

METHOD = "/inference.GRPCInferenceService/ModelInfer"
INFER = "/v2/models/identity/infer"
GRPC_HEADERS = {"content-type": "application/grpc", "te": "trailers"}
SMALL, LARGE = 12, 60_000
"""Values of a tensor; the larger one's message is several windows of HTTP/2's default."""
SECONDS = 2
BODY_BYTES_MAX = 4 * 2**20
POLICIES = {
    "identity": {
        "objective": {"p99_ms": 5000},
        "admission": {"queue_max": 4096},
        "limits": {"body_bytes_max": BODY_BYTES_MAX},
    },
    "streamer": {"objective": {"p99_ms": 5000}},
}


def values(count: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.arange(count, dtype=np.float32)


def json_request(count: int = SMALL) -> bytes:
    tensor = {"name": "INPUT_FP32", "datatype": "FP32", "shape": [count], "data": values(count).tolist()}
    return json.dumps({"inputs": [tensor]}).encode()


def binary_request(count: int = SMALL) -> tuple[bytes, int]:
    """The body, and how long the JSON in it is."""
    tensor = {
        "name": "INPUT_FP32",
        "datatype": "FP32",
        "shape": [count],
        "parameters": {"binary_data_size": 4 * count},
    }
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return head + values(count).tobytes(), len(head)


def grpc_request(count: int = SMALL) -> bytes:
    """One message of ModelInfer as gRPC frames it."""
    request = service_pb2.ModelInferRequest(model_name="identity", raw_input_contents=[values(count).tobytes()])
    request.inputs.add(name="INPUT_FP32", datatype="FP32", shape=[count])
    message: bytes = request.SerializeToString()
    return struct.pack(">BI", 0, len(message)) + message


def check_json(body: bytes, count: int = SMALL) -> None:
    (output,) = json.loads(body)["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("OUTPUT_FP32", "FP32", [count])
    assert output["data"] == values(count).tolist()


def check_grpc(body: bytes, count: int = SMALL) -> None:
    compressed, length = struct.unpack(">BI", body[:5])
    assert (compressed, length) == (0, len(body) - 5)
    answer = service_pb2.ModelInferResponse.FromString(body[5:])
    assert (answer.model_name, answer.model_version) == ("identity", "1")
    assert answer.raw_output_contents[0] == values(count).tobytes()


def headers(**more: str) -> list[str]:
    """curl's options for these headers; `_` in a name is a dash."""
    return [word for name, value in more.items() for word in ("-H", f"{name.replace('_', '-')}: {value}")]


@pytest.fixture(scope="module")
def wrk() -> Tool:
    return ensure_tool("wrk")


@pytest.fixture(scope="module")
def h2load() -> Tool:
    return ensure_tool("h2load")


@pytest.fixture
def curl(tmp_path: Path) -> Curl:
    return Curl(ensure_tool("curl"), tmp_path)


@pytest.fixture(scope="module")
def plain(streaming_fleet: LocalFleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    directory = tmp_path_factory.mktemp("load-tools")
    listen = write_policies(directory, replicas_of(streaming_fleet), models=POLICIES)
    with GatewayProcess(directory, listen) as process:
        yield process.wait_ready().wait_models(*POLICIES)
        assert process.stop() == 0, process.log_text()
        assert "Traceback" not in process.log_text()


@pytest.fixture(scope="module")
def over_tls(streaming_fleet: LocalFleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway whose directory has `ca.pem`, which vouches for `localhost`."""
    directory = tmp_path_factory.mktemp("load-tools-tls")
    authority = Authority()
    authority.server().write(directory)
    authority.write(directory)
    listen = write_policies(directory, replicas_of(streaming_fleet), models=POLICIES)
    file = directory / "fleet.yaml"
    document = json.loads(file.read_text())
    document["gateway"]["listen"]["tls"] = {"certificate_file": "server.pem", "key_file": "server.key"}
    file.write_text(json.dumps(document, indent=1))
    with GatewayProcess(directory, listen) as process:
        process.wait_ready()
        ready = f"https://{local(process.http)}/v2/models/identity/ready"
        known = Curl(ensure_tool("curl"), directory)
        trust = ["--cacert", str(directory / "ca.pem")]
        wait_until(lambda: known.run("-o", "/dev/null", "-w", "%{http_code}", *trust, ready) == "200")
        yield process
        assert process.stop() == 0, process.log_text()
        assert "Traceback" not in process.log_text()


def local(address: str) -> str:
    """By the name that the certificate has."""
    return address.replace("127.0.0.1", "localhost")


# ------------------------------------------------------------------------ wrk


@pytest.mark.parametrize("form", ["json", "binary"])
@pytest.mark.parametrize(("connections", "pipelined"), [(1, 1), (64, 1), (256, 1), (8, 16)])
def test_wrk(
    wrk: Tool, curl: Curl, plain: GatewayProcess, tmp_path: Path, form: str, connections: int, pipelined: int
) -> None:
    body, json_length = (json_request(), 0) if form == "json" else binary_request()
    content_type = "application/json" if form == "json" else "application/octet-stream"
    (tmp_path / "body").write_bytes(body)
    length = [] if form == "json" else headers(Inference_Header_Content_Length=str(json_length))
    url = f"http://{plain.http}{INFER}"
    before = counted_so_far(plain, "http", "identity")
    first = curl.answer(*headers(Content_Type=content_type), *length, "--data-binary", f"@{tmp_path / 'body'}", url)
    assert first.status == 200
    if form == "json":
        check_json(first.body)
    else:
        assert first.body.endswith(values(SMALL).tobytes())
    (tmp_path / "expected").write_bytes(first.body)
    run = uuid4().hex
    report = run_wrk(
        wrk,
        url,
        body=tmp_path / "body",
        expected=tmp_path / "expected",
        request_id=run,
        connections=connections,
        seconds=SECONDS,
        content_type=content_type,
        json_length=json_length,
        pipelined=pipelined,
    )
    assert report.requests
    assert report.failures == 0, report.said
    assert report.requests <= report.answered <= report.requests + connections * pipelined, report.said
    # What was out when wrk's time was up it leaves behind on each connection, answered or given up.
    counted = counted_so_far(plain, "http", "identity") - before - Counter(OK=1)
    assert set(counted) <= {"OK", "CANCELLED"}
    assert report.answered <= counted["OK"], report.said
    assert counted.total() <= report.requests + connections * pipelined, report.said
    assert recorded(plain, run, counted.total()) == counted


# --------------------------------------------------------------------- h2load

SHAPES = {
    "one stream": (1, 1, SMALL, 200, ()),
    "many streams": (8, 16, SMALL, 2000, ()),
    "many connections": (64, 4, SMALL, 2000, ()),
    "many streams of one connection": (1, 100, SMALL, 1000, ()),
    "small windows of streams": (8, 16, SMALL, 500, ("-w", "4")),
    "large answers, small windows of streams": (4, 8, LARGE, 100, ("-w", "10")),
    "large answers, default windows": (4, 8, LARGE, 100, ("-w", "16", "-W", "16")),
    "large answers, a small window of the connection": (4, 8, LARGE, 40, ("-W", "12")),
    "large answers, both windows small": (2, 8, LARGE, 16, ("-w", "10", "-W", "12")),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_h2load_over_grpc(h2load: Tool, curl: Curl, plain: GatewayProcess, tmp_path: Path, shape: str) -> None:
    h2load_over_grpc(h2load, curl, plain, f"http://{plain.grpc}{METHOD}", tmp_path, shape)


def test_h2load_over_grpc_and_tls(h2load: Tool, curl: Curl, over_tls: GatewayProcess, tmp_path: Path) -> None:
    url = f"https://{local(over_tls.grpc)}{METHOD}"
    h2load_over_grpc(h2load, curl, over_tls, url, tmp_path, "many streams")
    h2load_over_grpc(h2load, curl, over_tls, url, tmp_path, "large answers, small windows of streams")


def h2load_over_grpc(h2load: Tool, curl: Curl, gateway: GatewayProcess, url: str, directory: Path, shape: str) -> None:
    connections, streams, size, requests, options = SHAPES[shape]
    body = directory / "message"
    body.write_bytes(grpc_request(size))
    before = counted_so_far(gateway, "grpc", "identity")
    more = ["--cacert", str(gateway.directory / "ca.pem")] if url.startswith("https") else ["--http2-prior-knowledge"]
    first = curl.answer(*more, *headers(**GRPC_HEADERS), "--data-binary", f"@{body}", url)
    assert (first.status, first.headers["grpc-status"]) == (200, "0")
    check_grpc(first.body, size)
    run = uuid4().hex
    report = run_h2load(
        h2load,
        url,
        *options,
        body=body,
        headers={**GRPC_HEADERS, "x-request-id": run},
        requests=requests,
        connections=connections,
        streams=streams,
    )
    assert (report.total, report.succeeded, report.failures) == (requests, requests, 0), report.said
    # Its status codes are HTTP's, which an error over gRPC does not show: our counts, and the length of all answers do.
    assert report.ok_statuses == requests
    assert report.data_bytes == requests * len(first.body), report.said
    assert counted_so_far(gateway, "grpc", "identity") - before == {"OK": requests + 1}
    assert recorded(gateway, run, requests) == {"OK": requests}


def test_h2load_over_http1(h2load: Tool, curl: Curl, plain: GatewayProcess, tmp_path: Path) -> None:
    body, url = tmp_path / "body", f"http://{plain.http}{INFER}"
    body.write_bytes(json_request())
    before = counted_so_far(plain, "http", "identity")
    first = curl.answer(*headers(Content_Type="application/json"), "--data-binary", f"@{body}", url)
    run, requests = uuid4().hex, 1000
    report = run_h2load(
        h2load,
        url,
        "--h1",
        body=body,
        headers={"Content-Type": "application/json", "x-request-id": run},
        requests=requests,
        connections=8,
        streams=1,
    )
    assert (report.total, report.succeeded, report.failures) == (requests, requests, 0), report.said
    assert report.ok_statuses == requests
    assert report.data_bytes == requests * len(first.body), report.said
    assert counted_so_far(plain, "http", "identity") - before == {"OK": requests + 1}
    assert recorded(plain, run, requests) == {"OK": requests}


# ----------------------------------------------------------------------- curl


def test_curl_json(curl: Curl, plain: GatewayProcess) -> None:
    answer = curl.answer(
        *headers(Content_Type="application/json"), "-d", json_request().decode(), f"http://{plain.http}{INFER}"
    )
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    check_json(answer.body)


def test_curl_binary(curl: Curl, plain: GatewayProcess, tmp_path: Path) -> None:
    body, length = binary_request(LARGE)
    (tmp_path / "in").write_bytes(body)
    answer = curl.answer(
        *headers(Content_Type="application/octet-stream", Inference_Header_Content_Length=str(length)),
        "--data-binary", f"@{tmp_path / 'in'}", f"http://{plain.http}{INFER}",
    )  # fmt: skip
    assert answer.status == 200
    head = int(answer.headers["inference-header-content-length"])
    assert json.loads(answer.body[:head])["outputs"][0]["shape"] == [LARGE]
    assert answer.body[head:] == values(LARGE).tobytes()


def test_curl_uploads_in_chunks(curl: Curl, plain: GatewayProcess) -> None:
    """`-T -` reads from a pipe, whose length nobody knows."""
    url, json_type = f"http://{plain.http}{INFER}", headers(Content_Type="application/json")
    for more in ([], headers(Expect="")):
        answer = curl.answer(*json_type, *more, "-X", "POST", "-T", "-", url, stdin=json_request(LARGE))
        assert answer.status == 200, answer.body
        check_json(answer.body, LARGE)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_curl_expects_100(curl: Curl, plain: GatewayProcess, tmp_path: Path, size: int) -> None:
    """The wait for 100 must be granted and not run out: curl would send anyway after this long."""
    (tmp_path / "in").write_bytes(json_request(size))
    heads = tmp_path / "heads"
    spent_s = float(
        curl.run(
            *headers(Content_Type="application/json", Expect="100-continue"), "--expect100-timeout", "30",
            "-D", str(heads), "-o", str(tmp_path / "out"), "-w", "%{time_total}",
            "--data-binary", f"@{tmp_path / 'in'}", f"http://{plain.http}{INFER}",
        )
    )  # fmt: skip
    assert [status for status, _ in answer_heads(heads.read_text())] == [100, 200]
    assert spent_s < 25
    check_json((tmp_path / "out").read_bytes(), size)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_curl_compressed(curl: Curl, plain: GatewayProcess, tmp_path: Path, coding: str) -> None:
    (tmp_path / "in").write_bytes(gzip.compress(json_request(LARGE)))
    words = [
        *headers(Content_Type="application/json", Content_Encoding="gzip"),
        "--data-binary", f"@{tmp_path / 'in'}", f"http://{plain.http}{INFER}",
    ]  # fmt: skip
    packed = curl.answer(*headers(Accept_Encoding=coding), *words)
    assert (packed.status, packed.headers["content-encoding"]) == (200, coding)
    unpacked = curl.answer("--compressed", *headers(Accept_Encoding=coding), *words)
    assert unpacked.headers["content-encoding"] == coding
    check_json(unpacked.body, LARGE)
    assert len(packed.body) == int(packed.headers["content-length"]) < len(unpacked.body)


def test_curl_compressed_as_it_asks_itself(curl: Curl, plain: GatewayProcess) -> None:
    """With what this curl can unpack (br and zstd may be among it, which are not to be had here)."""
    answer = curl.answer(
        "--compressed", *headers(Content_Type="application/json"), "-d", json_request().decode(),
        f"http://{plain.http}{INFER}",
    )  # fmt: skip
    assert (answer.status, answer.headers["content-encoding"]) in {(200, "gzip"), (200, "deflate")}
    check_json(answer.body)


def test_curl_http10(curl: Curl, plain: GatewayProcess) -> None:
    words = ["-0", *headers(Content_Type="application/json")]
    answer = curl.answer(*words, "-d", json_request().decode(), f"http://{plain.http}{INFER}")
    assert answer.status == 200
    assert "transfer-encoding" not in answer.headers
    check_json(answer.body)
    stream = curl.answer(
        *words, "-N", "-d", json.dumps({"text_input": "echo:a\nb"}),
        f"http://{plain.http}/v2/models/streamer/generate_stream",
    )  # fmt: skip
    assert stream.status == 200
    assert "transfer-encoding" not in stream.headers
    assert [event["text_output"] for event in events(stream.body)] == ["a\n", "b"]


def test_curl_get_and_head(curl: Curl, plain: GatewayProcess) -> None:
    live = f"http://{plain.http}/v2/health/live"
    assert curl.answer(live).status == 200
    server = curl.answer(f"http://{plain.http}/v2")
    assert (server.status, json.loads(server.body)["name"]) == (200, "triton")
    # As on Triton; and the length of the body that a HEAD does not get must not be waited for.
    asked = curl.answer("-I", live)
    assert (asked.status, asked.headers["allow"]) == (405, "GET")
    codes = "%{http_code} %{num_connects}\\n"
    assert curl.run("-I", "-o", "/dev/null", "-o", "/dev/null", "-w", codes, live, live) == "405 1\n405 0\n"


def test_curl_takes_one_connection_for_several_urls(curl: Curl, plain: GatewayProcess, tmp_path: Path) -> None:
    """A GET, calls, a refusal whose body was read, and a call again: the connection is used for all of them."""
    base, bodies = f"http://{plain.http}", [tmp_path / f"body-{number}" for number in range(6)]
    call = [*headers(Content_Type="application/json"), "--data-binary", json_request().decode()]
    ways = [
        [f"{base}/v2/models/identity"],
        [*call, f"{base}{INFER}"],
        [*call, f"{base}/v2/models/unknown/infer"],
        [*headers(Content_Type="application/json"), "-d", "{", f"{base}{INFER}"],
        [*call, f"{base}{INFER}"],
        [*headers(Content_Type="application/json"), "-d", '{"text_input":"echo:a"}',
         f"{base}/v2/models/streamer/generate_stream"],
    ]  # fmt: skip
    words: list[str] = []
    for way, body in zip(ways, bodies, strict=True):
        words += [*(["--next"] if words else []), "-sS", "--noproxy", "*", "-o", str(body),
                  "-w", "%{http_code} %{num_connects}\\n", *way]  # fmt: skip
    said = curl.run(*words).splitlines()
    assert [line.split()[0] for line in said] == ["200", "200", "404", "400", "200", "200"]
    assert [line.split()[1] for line in said] == ["1", "0", "0", "0", "0", "0"]
    check_json(bodies[1].read_bytes())
    check_json(bodies[4].read_bytes())
    assert [event["text_output"] for event in events(bodies[5].read_bytes())] == ["a"]


def events(body: bytes) -> list[dict[str, object]]:
    """The data of each event of a stream, which must end with a whole one."""
    assert body.endswith(b"\n\n")
    lines = body.decode().removesuffix("\n\n").split("\n\n")
    assert all(line.startswith("data: ") for line in lines), lines
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_curl_reads_a_stream_as_it_comes(curl: Curl, plain: GatewayProcess, tmp_path: Path) -> None:
    """`-N`: the first event is there long before the last; by curl's own clock."""
    request = {"text_input": "chars:abcde", "delay_ms": 400}
    said = curl.run(
        "-N", *headers(Content_Type="application/json"), "-d", json.dumps(request), "-o", str(tmp_path / "out"),
        "-w", "%{http_code} %{content_type} %{time_starttransfer} %{time_total}",
        f"http://{plain.http}/v2/models/streamer/generate_stream",
    )  # fmt: skip
    status, kind, *rest = said.split()
    first_s, total_s = float(rest[-2]), float(rest[-1])
    assert (status, kind.split(";")[0]) == ("200", "text/event-stream")
    assert [event["text_output"] for event in events((tmp_path / "out").read_bytes())] == list("abcde")
    assert total_s - first_s > 0.8, "four times 400 ms lie between the first event and the last"


@pytest.mark.parametrize(
    ("path", "status"), [(INFER, "413"), ("/v2/models/unknown/infer", "404"), ("/v2/nowhere", "404")]
)
@pytest.mark.parametrize("way", ["length", "chunks", "expect"])
def test_curl_hears_an_early_refusal_while_it_still_sends(
    curl: Curl, plain: GatewayProcess, tmp_path: Path, path: str, status: str, way: str
) -> None:
    """The answer, and not a reset; and what curl has sent by then is less than the whole."""
    size, body = 64 * 2**20, tmp_path / "in"
    with body.open("wb") as file:
        file.truncate(size)
    expect = [*headers(Expect="100-continue" if way == "expect" else ""), "--expect100-timeout", "30"]
    framing = headers(Transfer_Encoding="chunked") if way == "chunks" else []
    # At a bounded pace curl is surely still sending when the answer comes.
    words = [*headers(Content_Type="application/json"), *expect, *framing, "--limit-rate", "64M"]
    for _ in range(5):
        said = curl.run(
            *words, "-o", str(tmp_path / "out"), "-w", "%{http_code} %{size_upload}", "--data-binary", f"@{body}",
            f"http://{plain.http}{path}",
        )  # fmt: skip
        found, sent = said.split()
        assert found == status
        assert int(sent) < size
        assert list(json.loads((tmp_path / "out").read_bytes())) == ["error"]
        if way == "expect":
            assert int(sent) == 0


@pytest.mark.parametrize("path", [INFER, "/v2/models/unknown/infer"])
def test_curl_over_tls_hears_an_early_refusal(curl: Curl, over_tls: GatewayProcess, tmp_path: Path, path: str) -> None:
    size, body = 32 * 2**20, tmp_path / "in"
    with body.open("wb") as file:
        file.truncate(size)
    for _ in range(3):
        said = curl.run(
            "--cacert", str(over_tls.directory / "ca.pem"), *headers(Content_Type="application/json", Expect=""),
            "--limit-rate", "32M",
            "-o", str(tmp_path / "out"), "-w", "%{http_code} %{size_upload}", "--data-binary", f"@{body}",
            f"https://{local(over_tls.http)}{path}",
        )  # fmt: skip
        found, sent = said.split()
        assert found == ("413" if path == INFER else "404")
        assert int(sent) < size


def test_curl_over_tls(curl: Curl, over_tls: GatewayProcess) -> None:
    trust = ["--cacert", str(over_tls.directory / "ca.pem")]
    url = f"https://{local(over_tls.http)}{INFER}"
    call = [*headers(Content_Type="application/json"), "-d", json_request().decode()]
    answer = curl.answer(*trust, *call, url)
    assert answer.status == 200
    check_json(answer.body)
    codes = "%{http_code} %{num_connects} %{ssl_verify_result}\\n"
    said = curl.run(*trust, *call, "-o", "/dev/null", "-o", "/dev/null", "-w", codes, url, url)
    assert said == "200 1 0\n200 0 0\n"


def test_curl_calls_grpc(curl: Curl, plain: GatewayProcess, over_tls: GatewayProcess, tmp_path: Path) -> None:
    trust = ["--cacert", str(over_tls.directory / "ca.pem")]
    ways = {
        f"http://{plain.grpc}{METHOD}": ["--http2-prior-knowledge"],
        f"https://{local(over_tls.grpc)}{METHOD}": trust,
    }
    for url, more in ways.items():
        for size in (SMALL, LARGE):
            (tmp_path / "in").write_bytes(grpc_request(size))
            answer = curl.answer(*more, *headers(**GRPC_HEADERS), "--data-binary", f"@{tmp_path / 'in'}", url)
            assert (answer.status, answer.headers["content-type"]) == (200, "application/grpc")
            assert answer.headers["grpc-status"] == "0"
            assert answer.headers["x-sluice-model-version"] == "1"
            check_grpc(answer.body, size)


def test_curl_reads_errors_of_grpc(curl: Curl, plain: GatewayProcess, tmp_path: Path) -> None:
    request = service_pb2.ModelInferRequest(model_name="unknown").SerializeToString()
    (tmp_path / "in").write_bytes(struct.pack(">BI", 0, len(request)) + request)
    words = ["--http2-prior-knowledge", *headers(**GRPC_HEADERS), "--data-binary", f"@{tmp_path / 'in'}"]
    answer = curl.answer(*words, f"http://{plain.grpc}{METHOD}")
    assert (answer.status, answer.headers["grpc-status"], answer.body) == (200, "5", b"")
    assert answer.headers["grpc-message"]
    # Answered at its head, and without a body: with one on its way the answer ends in RST_STREAM(NO_ERROR), which curl
    # of Debian 12 takes for a failure if it has more to send.
    bodiless = ["--http2-prior-knowledge", *headers(**GRPC_HEADERS), "-X", "POST"]
    answer = curl.answer(*bodiless, f"http://{plain.grpc}/inference.GRPCInferenceService/Nothing")
    assert (answer.status, answer.headers["grpc-status"]) == (200, "12")
    # In plain HTTP, for those who do not speak gRPC.
    asked = curl.answer("--http2-prior-knowledge", f"http://{plain.grpc}{METHOD}")
    assert asked.status == 405
