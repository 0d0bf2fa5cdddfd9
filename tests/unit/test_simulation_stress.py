"""The stress table in simulation: each row plays, keeps what must hold in every seed, and is the same every time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.simulation.stress import battery
from tests.simulation.stress.battery import all_of, attempt
from tests.simulation.stress.command import main
from tests.simulation.stress.play import play, play_closed
from tests.simulation.stress.policies import setting_of
from tests.simulation.stress.rows import ROWS, Row, row_of
from tests.simulation.stress.table import judged

FALL_SHORT = {"stragglers"}
"""Rows of which a seed may break what should hold in each (docs/benchmarks.md says which, and why)."""


def row_id(row: Row) -> str:
    return row.name


@pytest.mark.parametrize("row", ROWS, ids=row_id)
def test_a_row_plays_and_keeps_what_must_hold_in_every_seed(row: Row) -> None:
    tried = attempt(row, range(2 if row.capacity_s else 1))
    if row.name not in FALL_SHORT:
        assert tried.broken == {}
    result = judged(tried)
    assert result["figures"]["offered"] > 200
    assert result["figures"]["right"] > 100
    scenario = row.scenario()
    assert len(result["checks"]) == 2 + len(scenario.spec.checks)
    assert all(check["measured"] is not None for check in result["checks"]), result["checks"]
    faults = [each for each in tried.spans if each.kind != "slow"]
    assert all(span.end_s is not None and 0 < span.begin_s < span.end_s < scenario.spec.duration_s for span in faults)
    assert (tried.baseline is None) == (scenario.spec.baseline is None)
    assert (tried.best_rps is None) == (row.capacity_s == 0)


def test_every_row_of_the_designs_table_is_there_in_its_order() -> None:
    assert [row.name for row in ROWS] == [
        "stragglers",
        "busy",
        "slow-replica",
        "burst",
        "overload",
        "oversize",
        "kill",
        "freeze",
        "blackhole",
        "all-down",
        "expired",
    ]


@pytest.mark.parametrize("name", ["expired", "kill"])
def test_the_same_seed_gives_the_same_run_and_another_seed_another(name: str) -> None:
    scenario = row_of(name).scenario()
    setting = setting_of(scenario)

    def told(seed: int) -> tuple[object, ...]:
        played = play(scenario, setting, seed)
        ended = [
            (each.number, each.offset_s, each.took_s, each.error, [(sent.replica, sent.kind) for sent in each.attempts])
            for each in played.ended
        ]
        return ended, played.executions, played.spans

    assert told(7) == told(7)
    assert told(7) != told(8)


def test_the_figures_do_not_depend_on_how_many_processes_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(battery, "CHUNK", 2)
    row, heard = row_of("expired"), list[int]()
    alone, shared = all_of(row, range(4), 1), all_of(row, range(4), 2, heard.append)
    assert judged(alone) == judged(shared)
    assert (alone.seeds, heard) == (4, [2, 4])


def test_the_best_goodput_is_what_batches_of_eight_can_give() -> None:
    scenario = row_of("overload").scenario()
    played = play_closed(scenario, setting_of(scenario), 1, callers=32, length_s=1.5)
    answers = sum(not each.error and 0 <= each.offset_s + each.took_s < 1.5 for each in played.ended)
    assert answers / 1.5 == pytest.approx(8 / 0.060 * 2, rel=0.03)
    assert max(each.took_s for each in played.ended) < 0.2


def test_the_command_writes_the_rows_and_says_how_a_seed_is_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, table = tmp_path / "out.json", tmp_path / "table.md"
    arguments = ["--only", "expired", "--seed", "3", "--jobs", "1", "--json", str(out), "--table", str(table)]
    code = main(arguments)
    result = json.loads(out.read_text())
    assert [row["row"] for row in result["rows"]] == ["expired"]
    assert (code == 0) == (result["verdict"] == "pass")
    assert "| `expired` | in every seed: what must never happen | 0 | 0 | kept |" in table.read_text()
    assert "expired: pass; 1 seeds" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [["--seeds", "0"], ["--jobs", "0"], ["--only", "nothing"], ["--json", "/no/where"]])
def test_wrong_usage_is_told(wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(wrong)
    assert raised.value.code == 2
