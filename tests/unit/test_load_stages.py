"""`python -m load stages`: its arithmetic, and that every depth of the stack can still be entered."""

from __future__ import annotations

from pathlib import Path

import pytest

from load.stage_ends import GRPC, HTTP, UPSTREAM, Ends
from load.stage_house import stage_house
from load.stages import BUDGETS_US, STAGES, Caller, Cpu, depths, document, table

READING = {
    name: Cpu(process=10.0 * number, loop=10.0 * number - (3.0 if name == "with records" else 0.0))
    for number, name in enumerate(
        (
            "client",
            "transport",
            "track",
            "admit",
            "route",
            "deadline",
            "gate",
            "record",
            "with metrics",
            "with records",
        ),
        1,
    )
}


ENDS = {HTTP: 40.0, GRPC: 35.0, UPSTREAM: 30.0}


def test_a_stage_is_what_one_depth_costs_more_than_the_one_below() -> None:
    found = document([READING, READING], [ENDS, ENDS], {})
    rows = {row["name"]: row["us"] for row in found["stages"]}
    assert rows["admit"] == 10.0
    assert (rows["prediction record, on the loop"], rows["prediction record, its writer"]) == (7.0, 3.0)
    assert {name: group["us"] for name, group in found["groups"].items()} == {
        "layers": 70.0,
        "record and metrics": 20.0,
    }
    assert found["floor_us"] == 10.0


def test_every_stage_has_its_row_and_its_budget() -> None:
    assert {stage.group for stage in STAGES} == set(BUDGETS_US)
    shown = table(document([READING], [ENDS], {}))
    assert all(stage.name in shown for stage in STAGES)
    assert all(name in shown for name in ENDS)


@pytest.mark.filterwarnings("error")
async def test_every_depth_takes_calls_and_every_record_is_written(tmp_path: Path) -> None:
    async with stage_house(tmp_path / "house", replicas=2, slots=4) as house:
        caller = Caller(house, rps=1_000_000, burst=4)
        reading = {depth.name: await caller.measure(depth, 8) for depth in depths(house)}
        assert set(reading) == {name for stage in STAGES for name in (stage.outer, stage.inner)}
        assert house.assembly.record_log.statistics(0.0)["written"] == 8
        assert all(cpu.process > 0 for cpu in reading.values())


@pytest.mark.filterwarnings("error")
async def test_both_ports_and_the_client_of_a_replica_answer_all_calls(tmp_path: Path) -> None:
    async with stage_house(tmp_path / "house", replicas=1, slots=4) as house:
        ends = Ends(house, burst=4)
        for _ in range(2):
            found = await ends.measure(calls=12)
            assert set(found) == {HTTP, GRPC, UPSTREAM}
            assert all(us > 0 for us in found.values())
        assert ends.answered == {HTTP: 24, GRPC: 24, UPSTREAM: 24}
        await ends.aclose()
