"""`load stress`: every row of the table is a scenario that fits into ten minutes; it goes on where it was stopped."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from load import chaos, stress
from load.__main__ import main
from load.errors import LoadError
from load.scenario import LoadedScenario
from tests.unit.test_load_chaos import made_document, result


@pytest.mark.parametrize("name", stress.ROWS)
def test_each_row_is_a_scenario_that_takes_ten_minutes_at_most(name: str) -> None:
    assert stress.minutes([name]) <= 10


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `judged` gives for each name, and in "names" who was run. Nothing is started."""
    given: dict[str, Any] = {"names": []}

    def judged(scenario: LoadedScenario, *, keep: bool) -> dict[str, Any]:
        given["names"].append(scenario.name)
        if isinstance(given.get(scenario.name), Exception):
            raise given[scenario.name]
        before = result() if scenario.spec.baseline is not None else None
        more: dict[str, Any] = given.get(scenario.name, {})
        return made_document(before=before) | {"scenario": scenario.name} | more

    monkeypatch.setattr(chaos, "judged", judged)
    return given


def run(*words: str, out: Path) -> int:
    return main(["stress", *words, "--json", str(out)])


def test_a_run_makes_one_table_with_a_picture_of_each_row(ran: dict[str, Any], tmp_path: Path) -> None:
    out, table, pictures = tmp_path / "out.json", tmp_path / "table.md", tmp_path / "pictures"
    code = run("--only", "kill", "stragglers", "--pictures", str(pictures), "--table", str(table), out=out)
    assert (code, ran["names"]) == (0, ["stragglers", "kill"]), "in the table's order"
    rows = json.loads(out.read_text())["rows"]
    assert [row["picture"] for row in rows] == ["stress-stragglers.svg", "stress-kill.svg"]
    assert (rows[0]["baseline"]["p99_ms"], rows[1]["baseline"]) == (rows[0]["figures"]["p99_ms"], None)
    drawn = (pictures / "stress-stragglers.svg").read_text()
    ElementTree.fromstring(drawn)
    assert "baseline" in drawn
    assert len(drawn) < 40_000
    lines = table.read_text().splitlines()
    assert lines[2].startswith("| `stragglers` | ")
    assert "(pictures/stress-kill.svg)" in table.read_text()


def test_what_is_finished_is_not_run_again_unless_it_is_asked_for(ran: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    ran["kill"] = {"verdict": "inconclusive"}
    ran["freeze"] = LoadError("no fleet today")
    assert run("--only", "kill", "freeze", "burst", out=out) == 1
    assert json.loads(out.read_text())["rows"][2]["error"] == "no fleet today"
    ran.update(names=[], kill={}, freeze={})
    assert run("--only", "kill", "freeze", "burst", out=out) == 0
    assert ran["names"] == ["kill", "freeze"]
    ran["names"] = []
    assert run("--only", "burst", "--again", out=out) == 0
    assert ran["names"] == ["burst"]
    assert len(json.loads(out.read_text())["rows"]) == 3, "the others are kept"


def test_one_row_that_fails_fails_the_whole_and_shows_in_the_table(
    ran: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missed = {"name": "p99 | low", "figure": "p99_ms", "limit": 1.0, "measured": None, "pass": False}
    ran["kill"] = {"verdict": "fail", "checks": [missed]}
    assert run("--only", "kill", "freeze", out=tmp_path / "out.json") == 1
    shown = capsys.readouterr().out
    assert "| `kill` | p99 / low | 1 | nothing | **missed** |" in shown
    assert "verdict of all rows: fail" in shown


@pytest.mark.parametrize("content", ["", "[]", '{"rows": [1]}'])
def test_another_file_is_not_written_over(
    content: str, ran: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "notes.json"
    out.write_text(content)
    assert run("--only", "kill", out=out) == 2
    assert "is not what this command writes" in capsys.readouterr().err
    assert out.read_text() == content
    assert ran["names"] == []
