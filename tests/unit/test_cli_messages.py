"""Commands that are used wrongly, or whose surroundings are: one sentence that helps, the right exit code, and never a
traceback.
"""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

import deploy.local.__main__ as local
from deploy.local.check import Problem
from gateway.app import StartError
from gateway.cli import COMMANDS, main, parse
from gateway.cli.infer_request import shape_of
from gateway.cli.serve import PORTS, start_text
from gateway.policy.keys import parse_keys
from gateway.runtime.listen import listen_error
from tests.simulation.runner import main as simulation

NOWHERE = "/nonexistent/out.json"


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["policy", "check", "policies", "--json", NOWHERE],
        ["policy", "check", "/nonexistent", "--json", NOWHERE],
        ["demo", "--json", NOWHERE],
    ],
    ids=" ".join,
)
def test_a_result_that_cannot_be_written_is_said_with_its_place(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert f"--json: {NOWHERE} cannot be written" in said(capsys)


@pytest.mark.parametrize(("option", "value"), [("--seconds", "0"), ("--rate", "0"), ("--replicas", "0")])
def test_the_demo_refuses_numbers_that_make_no_demo(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", option, value]) == 2
    assert option in said(capsys)


@pytest.mark.parametrize(
    "words", [["log", "tail", "--help"], ["policy", "check", "--help"], *([name, "--help"] for name in COMMANDS)]
)
def test_help_shows_an_example_for_actions_too(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 0
    assert "example" in capsys.readouterr().out


def test_the_entry_that_key_prints_is_one_that_the_gateway_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["key", "1234", "--models", "no,12,a b", "--may-explain"]) == 0
    key_part, entry = capsys.readouterr().out.split("entry for the key file:\n")
    key = key_part.splitlines()[1].strip()
    identity = parse_keys(entry.encode(), "keys.yaml").identify(key)
    assert identity.tenant == "1234"
    assert identity.may_explain
    assert identity.models == frozenset({"no", "12", "a b"})


@pytest.mark.parametrize("tenant", ["anonymous", "two words", "", "-x"])
def test_key_refuses_a_tenant_that_the_key_file_may_not_name(tenant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["key", "--", tenant]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("data", "wanted", "shape"),
    [
        ([1.0] * 12, [-1, 12], [1, 12]),
        ([1.0] * 24, [-1, 12], [2, 12]),
        ([1.0] * 12, ["-1", "12"], [1, 12]),
        ([1.0] * 5, [-1, 12], [5]),
        ([], [-1, 12], [0]),
        ([[1.0, 2.0]], [-1, 12], [1, 2]),
        ([1.0, 2.0], [-1], [2]),
        ([1.0, 2.0], [-1, -1], [2]),
        ([1.0, 2.0, 3.0, 4.0], [2, 2], [2, 2]),
    ],
)
def test_infer_takes_flat_values_for_the_models_shape(
    data: list[object], wanted: list[object], shape: list[int]
) -> None:
    assert shape_of(data, wanted) == shape


def test_infer_refuses_an_empty_model_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["infer", ""]) == 2
    assert "name is empty" in said(capsys)


def test_the_local_fleets_up_checks_the_machine_like_check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`up` shares `_check` with the command `check`, whose arguments it therefore has to have."""
    asked: list[object] = []

    def lacking(replicas: int, ports: list[int], tools: tuple[str, ...]) -> list[Problem]:
        asked.append((replicas, len(ports)))
        return [Problem("memory is missing", "buy some")]

    monkeypatch.setattr(local, "preflight", lacking)
    monkeypatch.setattr(local, "STATE_FILE", tmp_path / "fleet.json")
    assert local.main(["up", "--replicas", "3"]) == local.MACHINE
    assert asked == [(3, 9)]
    assert "memory is missing" in capsys.readouterr().out


def test_the_local_fleet_names_a_file_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(local, "preflight", lambda replicas, ports, tools: [])
    assert local.main(["check", "--any-ports", "--json", NOWHERE]) == local.FAILED
    assert NOWHERE in said(capsys)
    assert local.main(["check", "--any-ports", "--json", "-"]) == local.DONE
    assert json.loads(capsys.readouterr().out) == {"problems": []}


def test_serve_refuses_one_port_for_two_listeners_before_it_opens_any(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "policies", "--http", "127.0.0.1:8001"]) == 2
    assert "--http: 127.0.0.1:8001 clashes with 0.0.0.0:8001 of gateway.listen.grpc" in said(capsys)


def test_serve_names_both_options_where_they_clash(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "policies", "--http", "127.0.0.1:9000", "--grpc", "127.0.0.1:9000"]) == 2
    assert "--http: 127.0.0.1:9000 clashes with 127.0.0.1:9000 of --grpc" in said(capsys)


@pytest.mark.parametrize("name", PORTS)
def test_serve_names_the_option_where_an_address_came_from_one(name: str) -> None:
    fault = listen_error("203.0.113.1:9000", f"gateway.listen.{name}", OSError(errno.EADDRNOTAVAIL, "no"))
    error = StartError(str(fault))
    error.__cause__ = fault
    given = start_text(error, parse(["serve", f"--{name}", "203.0.113.1:9000"]))
    assert given == (
        f"cannot listen on 203.0.113.1:9000 (given as --{name}): this machine has no such address; change --{name}"
    )
    other = next(each for each in PORTS if each != name)
    assert f"(gateway.listen.{name} in fleet.yaml)" in start_text(error, parse(["serve", f"--{other}", "127.0.0.1:1"]))


@pytest.mark.parametrize(
    "words",
    [["--seeds", "0"], ["--seeds", "5", "--trace"], ["--seed", "1", "--json", NOWHERE]],
    ids=" ".join,
)
def test_the_simulation_refuses_what_it_could_not_do_before_it_runs(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        simulation(words)
    assert end.value.code == 2
    complaint = said(capsys).rpartition("error: ")[2]
    assert next(word for word in reversed(words) if word.startswith("--")) in complaint


def test_the_simulations_json_has_the_standard_output_for_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulation(["--seed", "3", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    verdict = json.loads(out)["seeds"][0]
    assert verdict["seed"] == 3
    assert f"trace hash {verdict['digest']}" in err


def test_a_directory_without_its_option_is_answered_with_what_to_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["log", "tail", str(tmp_path)]) == 2
    assert f"write `sluice log tail --dir {tmp_path}`" in said(capsys)
    (tmp_path / "fleet.yaml").write_text("")
    assert main(["log", "tail", str(tmp_path), "-n", "3"]) == 2
    assert f"write `sluice log tail --policies {tmp_path}`" in said(capsys)
