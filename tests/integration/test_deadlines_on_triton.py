"""What the real Triton is told of the time that is left, read from the bytes between the gateway and it."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator

import hpack
import pytest

from deploy.local import LocalFleet, free_ports
from tests.conftest import replicas_of
from tests.support.field_http import ask, record_of
from tests.support.gateway_process import GatewayProcess, write_policies
from tests.support.waiting import wait_until

PREFACE_BYTES = 24
HEADERS, CONTINUATION = 1, 9
PADDED, PRIORITY, END_HEADERS = 0x8, 0x20, 0x4
KEPT_MS = 1000
"""What the policy keeps for after inference: so much that a machine which stands still for a moment fails no test."""
MARGIN_MS = 1


class Recorder:
    """Passes bytes on to `upstream`, and reads the heads of the requests among them."""

    def __init__(self, upstream: str) -> None:
        host, _, port = upstream.rpartition(":")
        self._upstream = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.heads: list[dict[str, str]] = []
        self._sockets: list[socket.socket] = [self._listener]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._upstream)
            self._sockets += [client, server]
            for source, target, heads in ((client, server, Heads(self.heads)), (server, client, None)):
                thread = threading.Thread(target=self._pass, args=(source, target, heads), daemon=True)
                self._threads.append(thread)
                thread.start()

    @staticmethod
    def _pass(source: socket.socket, target: socket.socket, heads: Heads | None) -> None:
        try:
            while data := source.recv(1 << 16):
                if heads is not None:
                    heads.feed(data)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return  # either end is gone, and the other end's thread sees that too

    def close(self) -> None:
        for each in self._sockets:
            each.close()

    def told_ms(self, request_id: str) -> int:
        """The `grpc-timeout` of the one inference with this request id."""
        (value,) = [
            head["grpc-timeout"]
            for head in self.heads
            if head[":path"].endswith("/ModelInfer") and head.get("x-request-id") == request_id
        ]
        assert value.endswith("m"), value
        return int(value[:-1])


class Heads:
    """The header blocks in what a client of HTTP/2 sends."""

    def __init__(self, found: list[dict[str, str]]) -> None:
        self._found = found
        self._decoder = hpack.Decoder()
        self._held = b""
        self._skip = PREFACE_BYTES
        self._block = b""

    def feed(self, data: bytes) -> None:
        self._held += data
        if self._skip:
            taken = min(self._skip, len(self._held))
            self._held, self._skip = self._held[taken:], self._skip - taken
        while len(self._held) >= 9:
            length = int.from_bytes(self._held[:3], "big")
            if len(self._held) < 9 + length:
                return
            kind, flags = self._held[3], self._held[4]
            payload, self._held = self._held[9 : 9 + length], self._held[9 + length :]
            if kind in (HEADERS, CONTINUATION):
                self._headers(kind, flags, payload)

    def _headers(self, kind: int, flags: int, payload: bytes) -> None:
        if kind == HEADERS and flags & PADDED:
            payload = payload[1 : len(payload) - payload[0]]
        if kind == HEADERS and flags & PRIORITY:
            payload = payload[struct.calcsize(">IB") :]
        self._block += payload
        if flags & END_HEADERS:
            fields, self._block = self._decoder.decode(self._block), b""
            self._found.append({str(name): str(value) for name, value in fields})


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GatewayProcess, Recorder]]:
    """A gateway whose policy splits the deadline, a recorder, and a Triton behind it."""
    logs, directory = tmp_path_factory.mktemp("triton-logs"), tmp_path_factory.mktemp("gateway")
    with LocalFleet(1, ["accel"], ports=free_ports(1), log_dir=logs) as fleet:
        recorder = Recorder(fleet["triton-0"].spec.grpc_address)
        replicas = [{**replica, "grpc": recorder.address} for replica in replicas_of(fleet)]
        stages = {"ingress_ms": 50, "inference_ms": 400, "postprocessing_ms": KEPT_MS}
        policy = {"objective": {"p99_ms": 1000}, "deadline": {"default_ms": 20_000, "stages": stages}}
        listen = write_policies(directory, replicas, models={"accel": policy})
        with GatewayProcess(directory, listen) as gateway:
            gateway.wait_ready().wait_warmed("accel")
            yield gateway, recorder
            assert gateway.stop() == 0, gateway.log_text()
        recorder.close()


def accel(**parameters: int) -> bytes:
    work = {"name": "work", "datatype": "FP32", "shape": [1, 1], "data": [1]}
    return json.dumps({"inputs": [work], "parameters": parameters}).encode()


def test_triton_is_told_what_is_left_for_inference_and_is_not_waited_for_longer(
    house: tuple[GatewayProcess, Recorder],
) -> None:
    gateway, recorder = house
    headers = {"x-request-id": "slow", "x-request-timeout-ms": "3000"}
    answer = ask(gateway.http, "/v2/models/accel/infer", accel(straggle_ms=5000), headers)
    assert (answer.status, answer.headers["x-sluice-reason"]) == (504, "deadline")
    assert "inference has 1950 ms of the deadline of 3000 ms" in json.loads(answer.body)["error"]
    assert 0 < recorder.told_ms("slow") <= 3000 - KEPT_MS - MARGIN_MS
    record = record_of(gateway, "slow")
    assert [attempt["outcome"] for attempt in record["attempts"]] == ["expired"]
    (decision,) = record["decisions"]
    assert (decision["by"], decision["decided"], decision["saw"]["stage"]) == ("stage", "cut", "inference")
    wait_until(lambda: b'stage="inference"} 1.0' in gateway.get("metrics", "/metrics")[1], 10)


def test_without_a_callers_limit_it_is_the_policys(house: tuple[GatewayProcess, Recorder]) -> None:
    gateway, recorder = house
    answer = ask(gateway.http, "/v2/models/accel/infer", accel(), {"x-request-id": "usual"})
    assert answer.status == 200
    assert 10_000 < recorder.told_ms("usual") <= 20_000 - KEPT_MS - MARGIN_MS
    assert "decisions" not in record_of(gateway, "usual") or record_of(gateway, "usual")["decisions"] is None
