"""The gateway as a process: start, readiness, orderly end, and what it says when it cannot start."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local import LocalFleet
from tests.conftest import replicas_of
from tests.support.gateway_process import MODEL_POLICIES, ROOT, GatewayProcess, write_policies
from tests.support.ports import free_port
from tests.support.waiting import wait_until

ACCEL = {"accel": MODEL_POLICIES["accel"]}


@pytest.fixture
def own_gateway(fleet: LocalFleet, tmp_path: Path) -> Iterator[GatewayProcess]:
    """A gateway that the test may end, in front of the shared fleet."""
    listen = write_policies(tmp_path, replicas_of(fleet), models=ACCEL)
    with GatewayProcess(tmp_path, listen) as process:
        yield process.wait_ready()


def infer(gateway: GatewayProcess, work: float, request_id: str = "") -> tuple[int, dict[str, str], bytes]:
    """One call to accel, which sleeps a time that grows with `work`."""
    host, _, port = gateway.http.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    body = json.dumps({"inputs": [{"name": "work", "datatype": "FP32", "shape": [1, 1], "data": [work]}]})
    headers = {"x-request-id": request_id} if request_id else {}
    connection.request("POST", "/v2/models/accel/infer", body=body, headers=headers)
    response = connection.getresponse()
    result = response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
    connection.close()
    return result


def test_sigterm_lets_the_call_in_flight_finish_and_exits_0(own_gateway: GatewayProcess) -> None:
    results: list[tuple[int, dict[str, str], bytes]] = []
    caller = threading.Thread(target=lambda: results.append(infer(own_gateway, 5000.0, "in-flight")))
    caller.start()
    wait_until(lambda: in_flight(own_gateway) == 1)
    own_gateway.signal(signal.SIGTERM)
    wait_until(lambda: own_gateway.get("metrics", "/readyz")[0] == 503)
    caller.join(30)
    assert own_gateway.stop() == 0, own_gateway.log_text()
    assert [status for status, _, _ in results] == [200]
    assert [record["request_id"] for record in own_gateway.records()] == ["in-flight"]


def test_between_the_signal_and_the_end_calls_are_still_served(fleet: LocalFleet, tmp_path: Path) -> None:
    drain = {"drain": {"announce_s": 6, "finish_s": 10}}
    listen = write_policies(tmp_path, replicas_of(fleet), models=ACCEL, fleet={"gateway": drain})
    with GatewayProcess(tmp_path, listen) as gateway:
        gateway.wait_ready()
        gateway.signal(signal.SIGTERM)
        wait_until(lambda: gateway.get("metrics", "/readyz")[0] == 503)
        assert gateway.get("metrics", "/healthz")[0] == 200, "alive, only not for new balancing"
        assert infer(gateway, 1.0)[0] == 200
        assert gateway.stop() == 0, gateway.log_text()


def test_a_second_signal_ends_at_once(own_gateway: GatewayProcess) -> None:
    caller = threading.Thread(target=lambda: _ignore_errors(own_gateway), daemon=True)
    caller.start()
    wait_until(lambda: in_flight(own_gateway) == 1)
    own_gateway.signal(signal.SIGTERM)
    wait_until(lambda: "orderly end" in own_gateway.log_text())
    own_gateway.signal(signal.SIGTERM)
    assert own_gateway.process.wait(10) == 1
    caller.join(30)


def test_a_port_in_use_is_named(own_gateway: GatewayProcess, fleet: LocalFleet, tmp_path: Path) -> None:
    for name in ("http", "grpc", "metrics", "admin"):
        directory = tmp_path / f"second-{name}"
        listen = write_policies(directory, replicas_of(fleet), models=ACCEL)
        with GatewayProcess(directory, listen, (f"--{name}", own_gateway.listen[name])) as second:
            assert second.process.wait(30) == 1
            text = second.log_text()
        assert own_gateway.listen[name] in text, text
        assert f"(given as --{name})" in text, text
        assert "Traceback" not in text


def test_bad_policies_are_refused_with_file_line_and_remedy(tmp_path: Path) -> None:
    write_policies(tmp_path, [{"grpc": "127.0.0.1:1", "http": "127.0.0.1:2"}], models=ACCEL)
    (tmp_path / "models" / "accel.yaml").write_text("model: accel\npool: gpu\nobjective: {p99_s: 1}\nladder: none\n")
    done = subprocess.run(
        [sys.executable, "-m", "gateway", "serve", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "accel.yaml:2:" in done.stderr
    assert "accel.yaml:3:" in done.stderr
    assert "p99_ms" in done.stderr
    assert "Traceback" not in done.stderr


def test_with_no_server_behind_it_the_gateway_runs_and_says_so(tmp_path: Path) -> None:
    dead = {"grpc": f"127.0.0.1:{free_port()}", "http": f"127.0.0.1:{free_port()}"}
    listen = write_policies(tmp_path, [dead], models=ACCEL)
    with GatewayProcess(tmp_path, listen) as gateway:
        wait_until(lambda: reachable(gateway))
        assert gateway.get("metrics", "/healthz")[0] == 200
        assert gateway.get("metrics", "/readyz")[0] == 503
        assert gateway.get("http", "/v2/health/live")[0] == 200
        assert gateway.get("http", "/v2/health/ready")[0] == 400, "as Triton answers when it is not ready"
        status, headers, body = infer(gateway, 1.0)
        assert (status, headers["x-sluice-reason"]) == (503, "no_replica")
        assert int(headers["retry-after"]) >= 1
        assert "accel" in json.loads(body)["error"]
        assert gateway.stop() == 0, gateway.log_text()


def test_nothing_is_left_after_sigkill_of_the_gateway_and_the_next_one_starts(
    own_gateway: GatewayProcess, fleet: LocalFleet
) -> None:
    assert infer(own_gateway, 1.0, "before")[0] == 200
    wait_until(lambda: [r["request_id"] for r in own_gateway.records()] == ["before"])
    own_gateway.kill()
    with GatewayProcess(own_gateway.directory, own_gateway.listen) as again:
        again.wait_ready()
        assert infer(again, 1.0, "after")[0] == 200
        assert again.stop() == 0, again.log_text()
        assert [r["request_id"] for r in again.records()] == ["before", "after"]


def test_open_descriptors_and_tasks_do_not_grow_with_connections_that_come_and_go(own_gateway: GatewayProcess) -> None:
    infer(own_gateway, 1.0)
    wait_until(lambda: own_gateway.records())  # from now on their file is open
    before = len(os.listdir(f"/proc/{own_gateway.process.pid}/fd"))
    host, _, port = own_gateway.http.rpartition(":")
    for _ in range(300):
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
    wait_until(lambda: len(os.listdir(f"/proc/{own_gateway.process.pid}/fd")) <= before + 2)


def in_flight(gateway: GatewayProcess) -> int:
    """Calls of accel in flight, by the metrics page."""
    _, page = gateway.get("metrics", "/metrics")
    for line in page.decode().splitlines():
        if line.startswith("sluice_calls_in_flight{") and 'model="accel"' in line:
            return int(float(line.rsplit(" ", 1)[1]))
    return 0


def reachable(gateway: GatewayProcess) -> bool:
    try:
        return gateway.get("http", "/v2/health/live")[0] == 200
    except OSError:
        return False


def _ignore_errors(gateway: GatewayProcess) -> None:
    try:
        infer(gateway, 5000.0)
    except (OSError, http.client.HTTPException):
        return
