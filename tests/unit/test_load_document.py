"""The manual of the open loop is the rendered one, and its examples are what the command takes."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

from load import run
from load.document import render
from load.run_figures import RUN_FIGURES
from load.scenario import load_scenario, scenario_names

PAGE = Path(__file__).resolve().parents[2] / "docs" / "load.md"


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text("utf-8") == render(), "run: python -m load.document > docs/load.md"


def test_it_names_every_scenario_and_every_figure() -> None:
    page = PAGE.read_text("utf-8")
    for name in [*scenario_names(), *RUN_FIGURES]:
        assert f"| `{name}` |" in page


def test_its_commands_parse() -> None:
    parser = argparse.ArgumentParser()
    run.configure(parser)
    lines = PAGE.read_text("utf-8").splitlines()
    commands = [line.split("#")[0] for line in lines if line.startswith("python -m load run")]
    assert len(commands) >= 6
    for command in commands:
        parser.parse_args(shlex.split(command)[4:])


def test_its_scenarios_load(tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 2
    (tmp_path / "trace.csv").write_text("offset_s,traffic\n0.5,shop\n0.7,batch\n")
    for number, block in enumerate(blocks):
        path = tmp_path / f"{number}.yaml"
        path.write_text(block)
        assert load_scenario(path).spec.traffic
