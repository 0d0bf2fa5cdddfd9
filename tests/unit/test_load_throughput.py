"""`throughput` and `fleet`: their arithmetic, their rows, and their words."""

from __future__ import annotations

import argparse
import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from load import fleet, throughput
from load.__main__ import main
from load.fleet import FleetReading
from load.perf_tool import PerfAnalyzerHung
from load.protobuf import bytes_field
from load.scored_inputs import ScoredInputs, feature_rows, read_answer, request_body
from load.stage_house import model_names, stage_house
from load.stages import Caller, depths
from load.throughput import RatePair, RateReading, counts

READING = RateReading(1000.0, 500, 500, 250, 0, 1.0, 2.0, 0.0)
PAIR = RatePair(replace(READING, rps=1200.0), READING)
FLEETS = {(1, 1): FleetReading(50.0, 1000.0, 60.0), (10, 4): FleetReading(75.0, 4000.0, 300.0)}


def test_ratios_batches_and_counts_are_told_per_generator() -> None:
    result = throughput.document("grpc", {("own", 16): [PAIR] * 7}, {"rounds": 7}, 1.0)
    (row,) = result["generators"]
    assert row["ratio"] == {"median": 1.2, "low": 1.2, "high": 1.2}
    assert (row["sides"]["direct"]["batch"], row["sides"]["direct"]["sent"]) == (2.0, 3500)
    assert result["verdict"] == "pass"
    assert throughput.document("grpc", {("own", 16): [PAIR] * 7}, {"rounds": 7})["verdict"] == "none"
    assert "1.20 (1.20..1.20)" in throughput.table(result)


def test_a_ratio_below_the_limit_fails_and_few_or_disturbed_rounds_are_inconclusive() -> None:
    def verdict(pairs: list[RatePair], limit: float) -> object:
        return throughput.document("grpc", {("own", 16): pairs}, {"rounds": 7}, limit)["verdict"]

    assert verdict([PAIR] * 7, 1.3) == "fail"
    assert verdict([PAIR] * 6, 1.0) == "inconclusive"
    assert verdict([replace(PAIR, direct=replace(READING, others_cores=1.0))] * 7, 1.0) == "inconclusive"


@pytest.mark.parametrize("wrong", [{"errors": 1}, {"inferences": 499}, {"inferences": 501}])
def test_a_wrong_answer_or_a_call_that_was_not_executed_once_fails(wrong: dict[str, int]) -> None:
    pair = replace(PAIR, sluice=replace(READING, **wrong))
    assert throughput.document("grpc", {("own", 16): [pair] * 7}, {"rounds": 7})["verdict"] == "fail"


def test_rows_are_distinct_and_perf_analyzer_gets_the_same() -> None:
    rows = feature_rows(10_000)
    assert len(set(rows)) == 10_000
    assert all(struct.unpack("<12f", struct.pack("<12f", *row)) == row for row in rows[:100])
    inputs = ScoredInputs(rows[:3], [(0.5, 1)] * 3)
    data = json.loads(inputs.perf_analyzer_data())["data"]
    assert [tuple(each["features"]["content"]) for each in data] == rows[:3]
    assert json.loads(request_body(rows[:2]))["inputs"][0]["shape"] == [2, 12]


def test_a_scored_answer_is_right_within_the_last_bits_of_fp32() -> None:
    inputs = ScoredInputs(feature_rows(2), [(0.25, 0), (0.75, 1)])

    def grpc(probability: float, label: int) -> bytes:
        return bytes_field(6, struct.pack("<f", probability)) + bytes_field(6, struct.pack("<i", label))

    def http(probability: float, label: int) -> bytes:
        outputs = [{"name": "probability", "data": [probability]}, {"name": "label", "data": [label]}]
        return json.dumps({"outputs": outputs}).encode()

    assert read_answer(http(0.5, 1)) == [(0.5, 1)]
    for right, answer in ((inputs.grpc_right, grpc), (inputs.http_right, http)):
        assert right(answer(0.75, 1), 1)
        assert right(answer(0.7500001, 1), 3)  # rows begin anew
        assert not right(answer(0.751, 1), 1)
        assert not right(answer(0.75, 0), 1)
        assert not right(answer(0.75, 1), 0)
        assert not right(b"\xff", 1)


def test_lists_of_numbers_are_read_once_each() -> None:
    assert counts("16,64,16") == [16, 64]
    with pytest.raises(argparse.ArgumentTypeError, match="'0' is not a whole number from 1"):
        counts("16,0")


@pytest.mark.parametrize("words", [["throughput", "--concurrency", "x"], ["throughput", "--limit", "0"],
                                   ["fleet", "--models", "0"], ["fleet", "--replicas", ""]])  # fmt: skip
def test_wrong_words_are_wrong_usage(words: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)


def test_fleets_are_told_beside_the_first_one() -> None:
    result = fleet.document([FLEETS] * 3, {})
    assert [(row["models"], row["replicas"], row["over_first"]) for row in result["fleets"]] == [
        (1, 1, 1.0),
        (10, 4, 1.5),
    ]
    assert result["fleets"][1]["rest_us_per_s"] == 4000.0
    assert result["fleets"][1]["first_us_per_call"] == 300.0
    assert "75.0" in fleet.table(result)


async def test_a_house_of_several_models_is_called_in_turn(tmp_path: Path) -> None:
    async with stage_house(tmp_path / "house", replicas=2, slots=4, models=3) as house:
        assert house.models == model_names(3) == ("identity", "identity-0001", "identity-0002")
        await Caller(house, rps=1_000_000, burst=4).measure(depths(house)[-1], 8)
        assert house.assembly.record_log.statistics(0.0)["written"] == 8
        assert set(house.assembly.stack.admissions) == set(house.models)


@pytest.mark.parametrize(("hangs", "counted"), [(0, 10), (1, 10), (2, None)])
def test_a_counted_run_that_hangs_is_done_once_more_and_its_calls_are_not_counted(
    monkeypatch: pytest.MonkeyPatch, hangs: int, counted: int | None
) -> None:
    executed, runs = [0], iter(range(9))

    def run(tool: object, words: object, *, timeout_s: float) -> None:
        executed[0] += 7 if (hung := next(runs) < hangs) else 10
        if hung:
            raise PerfAnalyzerHung("it hangs")

    class Counting:
        def executed(self, model: str) -> tuple[int, int]:
            return executed[0], executed[0]

    monkeypatch.setattr(throughput, "run_perf_analyzer", run)
    arguments: tuple[Any, ...] = (None, Counting(), [], 1.0)
    if counted is None:
        with pytest.raises(PerfAnalyzerHung):
            throughput._counted(*arguments)
    else:
        assert throughput._counted(*arguments) == (counted, counted)
