"""`python -m load instructions`: what is switched and read, its arithmetic, and what it says when counting fails.

Valgrind and callgrind_control are scripts here that keep to the real ones' output; one test, among the long ones, runs
the real ones where they are installed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import pytest

from load import callgrind
from load.__main__ import main
from load.callgrind import APT_REMEDY, count, instructions
from load.errors import LoadError
from load.instructions import STAGES, SUMS, configure, document, needed, table
from load.stage_ends import GRPC, HTTP, UPSTREAM
from tests.unit.test_load_stages import READING

COUNTS = {
    HTTP: 160_000,
    GRPC: 144_000,
    UPSTREAM: 80_000,
    "client": 16_000,
    "with metrics": 64_000,
    "with records": 120_000,
}
SETTING = {"calls": 16, "loop": "uvloop"}

VALGRIND = """\
import os, subprocess, sys
words = sys.argv[1:]
if words == ["--version"]:
    print("valgrind-3.19.0")
    raise SystemExit
options = dict(word.partition("=")[::2] for word in words if word.startswith("--") and "=" in word)
assert (options["--tool"], options["--instr-atstart"]) == ("callgrind", "no")
program = words[next(number for number, word in enumerate(words) if not word.startswith("--")) :]
code = subprocess.run(program, check=False).returncode
modes, processes = [], []
if os.path.exists(SWITCHED):
    words = open(SWITCHED).read().split()
    modes, processes = words[::2], words[1::2]
    os.remove(SWITCHED)
counted = int(os.environ.get("COUNTED", "4711")) if modes == ["on", "off"] and len(set(processes)) == 1 else 0
with open(options["--log-file"], "w") as log:
    for line in ("Callgrind, a call-graph generating cache profiler", "", "Events    : Ir",
                 f"Collected : {counted}", "", f"I   refs:  {counted:,}"):
        print(f"=={os.getpid()}== {line}", file=log)
raise SystemExit(code)
"""
CONTROL = """\
import os, sys
flag, mode, process = sys.argv[1:]
assert flag == "-i"
print(f"sending command instrumentation {mode} to pid {process}", file=sys.stderr)
if os.environ.get("CONTROL") == "finds nothing" or not os.path.exists(f"/proc/{process}"):
    print(f"Error: Callgrind task with PID/name '{process}' not detected.")
    raise SystemExit  # with 0, as the real one does
print(f"PID {process}: a program\\n  OK.\\n")
with open(SWITCHED, "a") as file:
    print(mode, process, file=file)
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Both scripts, first in PATH. Returns the file that says what was switched."""
    folder, switched = tmp_path / "bin", tmp_path / "switched"
    folder.mkdir()
    for name, text in (("valgrind", VALGRIND), ("callgrind_control", CONTROL)):
        script = folder / name
        script.write_text(f"#!{sys.executable}\nSWITCHED = {str(switched)!r}\n{text}", encoding="utf-8")
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return switched


def counted(tmp_path: Path, code: str, limit_s: float = 60.0) -> int:
    """What `count` says of a program that has a `switch`."""

    def argv_for(port: int) -> list[str]:
        head = f"import sys\nfrom load.callgrind import Switch\nswitch = Switch({port})\n"
        return [sys.executable, "-c", head + code]

    return count(argv_for, name="the program", folder=tmp_path, limit_s=limit_s, tick=lambda elapsed_s: None)


# --- counting ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tools")
def test_what_lies_between_the_two_turns_of_the_switch_is_counted(tmp_path: Path) -> None:
    assert counted(tmp_path, "switch.turn(); switch.turn()") == 4711


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("sys.exit('no house today')", "the program ended with 1 .*no house today"),
        ("switch.turn(); sys.exit('half way')", "the program ended with 1 .*half way"),
        ("switch.turn(); switch.turn(); sys.exit('at last')", "the program ended with 1 .*at last"),
        ("switch.turn(); print('bye')", "the program ended with 0 before its time.*bye"),
        ("import os; print('a bug', flush=True); os.kill(os.getpid(), 9)", "the program ended with .*a bug"),
    ],
)
def test_a_program_that_ends_before_its_time_is_told_with_its_last_words(tmp_path: Path, code: str, said: str) -> None:
    with pytest.raises(LoadError, match=f"(?s){said}"):
        counted(tmp_path, code)


@pytest.mark.usefixtures("tools")
def test_a_program_that_never_connects_is_told(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="ended with 0 before its time"):
        count(
            lambda port: [sys.executable, "-c", ""],
            name="the program",
            folder=tmp_path,
            limit_s=60.0,
            tick=lambda elapsed_s: None,
        )


@pytest.mark.usefixtures("tools")
def test_a_program_that_hangs_is_stopped_at_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callgrind, "LOOK_S", 0.01)
    with pytest.raises(LoadError, match=r"(?s)did not end within 0\.5 s"):
        counted(tmp_path, "import time; time.sleep(600)", limit_s=0.5)


def test_a_control_that_finds_no_such_process_fails_though_its_exit_code_is_0(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONTROL", "finds nothing")
    with pytest.raises(LoadError, match=r"(?s)callgrind_control -i on \d+ did not switch.*not detected"):
        counted(tmp_path, "switch.turn(); switch.turn()")
    assert not tools.exists()


@pytest.mark.parametrize("report", ["", "==7== Collected : 0\n", "==7== Using Valgrind-3.19.0\nvalgrind: killed\n"])
def test_a_report_without_a_count_is_an_error(report: str) -> None:
    with pytest.raises(LoadError, match="counted nothing"):
        instructions(report, "gRPC edge")


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tools")
def test_each_stage_runs_its_calls_in_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COUNTED", "32000")
    assert main(["instructions", "records", "grpc", "--calls", "20", "--loop", "asyncio", "--json", "-"]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert result["counts"] == {GRPC: 32000, "with metrics": 32000, "with records": 32000}
    assert result["stages"] == [
        {"stage": "grpc", "name": GRPC, "instructions": 1000},
        {"stage": "records", "name": "prediction record", "instructions": 0},
    ]
    assert result["sums"] == []
    assert result["setting"]["calls"] == 32
    assert result["setting"]["valgrind"] == "valgrind-3.19.0"
    assert captured.err.splitlines() == [
        "1/3 gRPC edge: 1,000 a call",
        "2/3 with metrics: 1,000 a call",
        "3/3 with records: 1,000 a call",
    ]


@pytest.mark.parametrize("absent", ["valgrind", "callgrind_control"])
def test_without_valgrind_it_ends_with_2_and_the_command_that_installs_it(
    absent: str, tools: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tools.parent / "bin"
    (folder / absent).unlink()
    monkeypatch.setenv("PATH", str(folder))
    assert main(["instructions", "client"]) == 2
    said = capsys.readouterr().err
    assert f"{absent} is not installed" in said
    assert APT_REMEDY in said


@pytest.mark.parametrize("wrong", [["upstream"], ["--calls", "0"], ["--loop", "trio"]])
def test_wrong_usage_ends_with_2(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["instructions", *wrong])
    assert ended.value.code == 2
    assert repr(wrong[-1]) in capsys.readouterr().err


def test_without_a_name_all_stages_are_meant() -> None:
    parser = argparse.ArgumentParser()
    configure(parser)
    assert parser.parse_args([]).stages == []
    assert parser.parse_args(["http", "records"]).stages == ["http", "records"]


def test_a_failed_stage_ends_the_command_with_1(
    tools: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CONTROL", "finds nothing")
    assert main(["instructions", "client", "--calls", "16"]) == 1
    assert "did not switch counting on" in capsys.readouterr().err
    assert not tools.exists()


# --- arithmetic -------------------------------------------------------------------------------------------------------


def test_layers_and_record_are_differences_and_the_sums_are_of_whole_calls() -> None:
    found = document(list(STAGES), COUNTS, SETTING)
    stages = {row["stage"]: row["instructions"] for row in found["stages"]}
    assert stages == {"http": 10_000, "grpc": 9_000, "client": 5_000, "layers": 3_000, "records": 3_500}
    assert {row["name"]: row["instructions"] for row in found["sums"]} == {
        "a call over HTTP": 21_500,
        "a call over gRPC": 20_500,
    }


def test_there_is_no_sum_without_all_of_its_stages() -> None:
    found = document(["http", "client", "layers", "records"], COUNTS, SETTING)
    assert [row["name"] for row in found["sums"]] == ["a call over HTTP"]
    assert document(["http"], COUNTS, SETTING)["sums"] == []


def test_every_reading_is_an_end_or_a_depth_and_is_taken_once() -> None:
    readings = needed(list(STAGES))
    assert sorted(readings) == sorted(COUNTS)
    assert set(readings) <= {HTTP, GRPC, UPSTREAM, *READING}
    assert all(part in STAGES for parts in SUMS.values() for part in parts)


def test_the_table_shows_every_stage_and_sum() -> None:
    lines = table(document(list(STAGES), COUNTS, SETTING)).splitlines()
    assert len(lines) == 1 + len(STAGES) + len(SUMS)
    assert lines[-1].split() == ["a", "call", "over", "gRPC", "20.5"]


@pytest.mark.field
def test_real_counts_of_few_and_of_more_calls_agree(capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for calls in ("320", "640"):
        assert main(["instructions", "client", "--calls", calls, "--json", "-"]) == 0
        found.append(json.loads(capsys.readouterr().out)["stages"][0]["instructions"])
    assert found[0] == pytest.approx(found[1], rel=0.05)
