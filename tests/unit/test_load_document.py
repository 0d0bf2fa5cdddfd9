"""The manual of the load lab is the rendered one, and its examples are what the commands take."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from load import (
    beside,
    connections,
    fleet,
    instructions,
    perf_analyzer,
    protections,
    sizes,
    soak_figures,
    stages,
    stress,
    throughput,
)
from load.__main__ import COMMANDS, described
from load.chaos_figures import CHAOS_FIGURES
from load.document import render
from load.document_commands import MEMBERS
from load.figures import Round, comparison
from load.perf_tool import PerfFigures
from load.replica_figures import REPLICA_FIGURES
from load.run_figures import RUN_FIGURES
from load.scenario import load_scenario, scenario_names
from tests.unit.test_load_chaos import made_document
from tests.unit.test_load_connections import COUNT, GOOD
from tests.unit.test_load_figures import QUIET
from tests.unit.test_load_instructions import COUNTS, SETTING
from tests.unit.test_load_large import ROUND, SIZE_ROUND
from tests.unit.test_load_soak import IDLE
from tests.unit.test_load_stages import ENDS, READING
from tests.unit.test_load_throughput import FLEETS, PAIR

PAGE = Path(__file__).resolve().parents[2] / "docs" / "load.md"


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text("utf-8") == render(), "run: python -m load.document > docs/load.md"


def test_it_names_every_scenario_and_every_figure() -> None:
    page = PAGE.read_text("utf-8")
    for name in [*scenario_names(), *RUN_FIGURES, *CHAOS_FIGURES, *REPLICA_FIGURES]:
        assert f"| `{name}` |" in page


def parser_of(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    importlib.import_module(f"load.{command.replace('-', '_')}").configure(parser)
    return parser


def test_its_commands_parse() -> None:
    lines = PAGE.read_text("utf-8").splitlines()
    commands = [shlex.split(line.split("#")[0]) for line in lines if line.startswith("python -m load ")]
    words = [command for command in commands if command[3] != "COMMAND"]
    assert {command[3] for command in words} == set(COMMANDS)
    for command in words:
        parser_of(command[3]).parse_args(command[4:])


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_its_section_with_its_options_and_the_meaning_of_its_verdict(command: str) -> None:
    section = section_of(command)
    assert "verdict" in section
    if command != "run":
        for action in parser_of(command)._actions:
            assert action.dest == "help" or not action.option_strings or f"`{action.option_strings[0]}" in section


def section_of(command: str) -> str:
    """The page from the command's heading to the next."""
    return PAGE.read_text("utf-8").partition(f"\n## {command}\n")[2].partition("\n## ")[0]


RESULTS: dict[str, Callable[[], dict[str, Any]]] = {
    "chaos": made_document,
    "compare": lambda: comparison("envoy", "http", 16, [Round(QUIET, QUIET, 1.0)], {}),
    "connections": lambda: connections.document(COUNT, [GOOD] * 5, 400.0),
    "perf-analyzer": lambda: perf_analyzer.document("grpc", False, 1, "identity", {}),
    "soak": lambda: soak_figures.document(60.0, [], [], [], {}, IDLE, IDLE, soak_figures.SoakLimits(), {}),
    "sizes": lambda: sizes.document("http", [SIZE_ROUND], {}),
    "beside": lambda: beside.document([ROUND], {}, 1.1),
    "fleet": lambda: fleet.document([FLEETS], {}),
    "throughput": lambda: throughput.document("grpc", {("own", 16): [PAIR]}, {}),
    "stages": lambda: stages.document([READING], [ENDS], {}),
    "instructions": lambda: instructions.document(list(instructions.STAGES), COUNTS, SETTING),
    "stress": lambda: stress.document({"kill": stress.failed("kill", "", "", "no fleet")}),
    "protections": lambda: protections.document(
        [protections.Variant(protections.EVERYTHING, {}, {}), protections.Variant(protections.NOTHING, {}, {})],
        [{protections.EVERYTHING: 80.0, protections.NOTHING: 60.0}],
        {},
        {},
    ),
}


@pytest.mark.parametrize("command", RESULTS)
def test_the_members_of_the_json_are_those_that_the_command_writes(command: str) -> None:
    assert set(MEMBERS[command]) == set(RESULTS[command]())
    for member in MEMBERS[command]:
        assert f"| `{member}` |" in section_of(command)


def test_the_figures_that_the_tables_name_exist() -> None:
    compared = RESULTS["compare"]()
    for name in re.findall(r"`([a-z0-9_]+)`", MEMBERS["compare"]["sides"]):
        assert name == "sluice" or name in compared["sides"]["sluice"]
    for name in re.findall(r"`([a-z0-9_]+)`", MEMBERS["perf-analyzer"]["sides"]):
        assert name in {field.name for field in fields(PerfFigures)}
    figures = RESULTS["connections"]()["figures"]
    for name in re.findall(r"`([a-z0-9_]+_[a-z0-9_]*)(?:…)?`", MEMBERS["connections"]["figures"]):
        assert any(figure.startswith(name) for figure in figures), name


def test_the_help_of_every_command_begins_as_a_sentence() -> None:
    for purpose in COMMANDS.values():
        sentence = described(purpose)
        assert sentence[0].isupper()
        assert sentence[-1] in ".?"
        assert sentence[-2] not in ".?"


def test_its_scenarios_load(tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 2
    (tmp_path / "trace.csv").write_text("offset_s,traffic\n0.5,shop\n0.7,batch\n")
    for number, block in enumerate(blocks):
        path = tmp_path / f"{number}.yaml"
        path.write_text(block)
        assert load_scenario(path).spec.traffic
