"""The manual is held to the code: links lead somewhere, names exist, example commands parse, generated pages are
fresh.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.cli import COMMANDS, parse
from gateway.core.errors import Reason
from gateway.observe.table import TABLE
from gateway.stack import POSITIONS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "deploy").rglob("*.md")])
PAGES = [page for page in PAGES if ".run" not in page.parts]
GENERATED = {
    "docs/policies.md": "gateway.policy.document",
    "docs/records.md": "gateway.records.document",
    "docs/metrics.md": "gateway.observe.document",
    "docs/protocols.md": "gateway.edge.document",
    "docs/load.md": "load.document",
}


def ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{ids(page)} links to {target}, which is not there"


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_metrics_and_reasons_that_are_named_exist(page: Path) -> None:
    text = page.read_text()
    known = {row.name for row in TABLE}
    for name in re.findall(r"`(sluice_[a-z0-9_]+)`", text):
        if name in {"sluice_rung", "sluice_impact"}:
            continue  # response parameters of the design, not metrics
        assert name in known, f"{ids(page)} names the metric {name}, which does not exist"
    reasons = {reason.label for reason in Reason}
    for name in re.findall(r"(?:503|504|500|reason) `([a-z_]+)`", text):
        assert name in reasons, f"{ids(page)} names the reason {name}, which does not exist"


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_example_commands_parse(page: Path) -> None:
    for block in re.findall(r"```(?:sh|bash|text)?\n(.*?)```", page.read_text(), re.DOTALL):
        for line in block.splitlines():
            command = line.split("#")[0].split("|")[0].strip()
            if re.match(r"(\.venv/bin/)?sluice ", command):
                words = shlex.split(command)[1:]
                assert words[0] in COMMANDS, f"{ids(page)}: {command}"
                try:
                    parse(words)
                except SystemExit as error:
                    raise AssertionError(f"{ids(page)}: {command} does not parse") from error
            if command.startswith("make "):
                target = command.split()[1]
                assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), command


@pytest.mark.parametrize(("page", "module"), GENERATED.items())
def test_generated_pages_are_the_rendered_ones(page: str, module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (ROOT / page).read_text() == done.stdout, f"{page} is stale: python -m {module} > {page}"


def test_every_command_has_help_with_an_example() -> None:
    for name in COMMANDS:
        done = subprocess.run(
            [sys.executable, "-m", "gateway", name, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0
        assert "example" in done.stdout, f"sluice {name} --help shows no example"


def test_the_readmes_picture_shows_the_built_layers_in_order() -> None:
    picture = (ROOT / "README.md").read_text().split("## The path of a call")[1].split("```")[1]
    places = [picture.index(f" {position.name} ") for position in POSITIONS if position.built]
    assert places == sorted(places)
