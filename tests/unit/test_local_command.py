"""`python -m deploy.local`: flags for Triton, and what is said of a server that is not ready."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import deploy.local.__main__ as local
from deploy.local import LocalFleet, LocalFleetError, Ports
from deploy.local.environment import TritonEnvironment
from deploy.local.server import SERVER, ServerSpec, State, TritonServer
from tests.support.ports import free_port

NOWHERE = Path("/nonexistent")
ENVIRONMENT = TritonEnvironment(*[NOWHERE] * 7)
TLS = ("--grpc-use-ssl=true", "--grpc-server-cert=/tls/triton.pem")


class ScriptedTriton(http.server.BaseHTTPRequestHandler):
    """Answers 400 to the paths in `bad`, as Triton does of what is not ready."""

    bad: frozenset[str] = frozenset()
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(400 if self.path in self.bad else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: the test's output is its own."""


class Running(TritonServer):
    """A server without a process, in whatever state the test says."""

    told: State = "running"

    def state(self) -> State:
        return self.told


@pytest.fixture
def triton() -> Iterator[Running]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), ScriptedTriton) as listener:
        thread = threading.Thread(target=listener.serve_forever, args=(0.01,))
        thread.start()
        ports = Ports(http=listener.server_address[1], grpc=free_port(), metrics=free_port())
        yield Running(ServerSpec("triton-0", ports, ("identity", "streamer"), log_dir=NOWHERE), ENVIRONMENT)
        listener.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("bad", "unready"),
    [
        ((), []),
        (("/v2/health/ready", "/v2/models/streamer/ready"), ["streamer"]),
        (("/v2/models/identity/ready", "/v2/models/streamer/ready"), ["identity", "streamer"]),
        (("/v2/health/ready",), [SERVER]),
    ],
)
def test_what_is_not_ready_is_named_by_the_server_and_by_status(
    bad: tuple[str, ...],
    unready: list[str],
    triton: Running,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(ScriptedTriton, "bad", frozenset(bad))
    assert triton.unready() == unready
    assert triton.ready() == (not unready)
    monkeypatch.setattr(local, "_environment", lambda: ENVIRONMENT)
    monkeypatch.setattr(local, "read_state", lambda path, environment: {"triton-0": triton})
    assert local.main(["status"]) == (1 if unready else 0)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith(f"  NOT READY: {', '.join(unready)}" if unready else "identity streamer")
    local.main(["status", "--json", "-"])
    (described,) = json.loads(capsys.readouterr().out)["servers"]
    assert (described["unready"], described["ready"]) == (unready, not unready)


def test_of_a_frozen_server_its_state_says_enough(triton: Running) -> None:
    triton.told = "frozen"
    assert triton.unready() == [SERVER]
    assert not triton.ready()


def test_a_start_that_takes_too_long_names_the_model_that_is_missing(
    triton: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScriptedTriton, "bad", frozenset(("/v2/health/ready", "/v2/models/streamer/ready")))
    monkeypatch.setattr(Running, "alive", lambda self: True)
    with pytest.raises(LocalFleetError, match=r"not ready after 0 s \(not ready: streamer\)"):
        triton.wait_ready(0.0)


def test_a_server_that_does_not_answer_is_not_ready_itself() -> None:
    ports = Ports(http=free_port(), grpc=free_port(), metrics=free_port())
    server = Running(ServerSpec("triton-0", ports, ("identity",), log_dir=NOWHERE), ENVIRONMENT)
    assert server.unready() == [SERVER]


def test_flags_for_triton_reach_every_server(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[LocalFleet] = []
    monkeypatch.setattr(LocalFleet, "start", lambda self: started.append(self))
    monkeypatch.setattr(local, "_environment", lambda: ENVIRONMENT)
    monkeypatch.setattr(local, "read_state", lambda path, environment: {})
    monkeypatch.setattr(local, "_check", lambda arguments: local.DONE)
    words = [f"--triton-argument={flag}" for flag in TLS]
    assert local.main(["up", "--replicas", "2", "--models", "identity", *words]) == 0
    (fleet,) = started
    for spec in fleet.specs:
        assert spec.arguments == TLS
        assert tuple(TritonServer(spec, ENVIRONMENT)._argv()[-2:]) == TLS
        assert ServerSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec, "`start` starts it with them again"


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("grpc-use-ssl=true", "is no flag of Triton; write --flag=value"),
        ("--id=mine", "--id is set by the fleet itself"),
        ("--http-port=1", "--http-port is set by the fleet itself"),
    ],
)
def test_flags_that_would_lose_the_servers_are_refused(
    flag: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        local.main(["up", f"--triton-argument={flag}"])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    with pytest.raises(ValueError, match=said):
        LocalFleet(1, ["identity"], arguments=[flag])
