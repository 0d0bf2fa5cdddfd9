"""Large tensors: the inputs, the lag's buckets, and the arithmetic of `sizes` and `beside`."""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import struct
from dataclasses import replace

import pytest

from load import accounting, beside, sizes
from load.__main__ import main
from load.beside import BesideRound, PartReading, WayReading, read_large
from load.errors import LoadError
from load.large_caller import send_until_told
from load.large_inputs import TensorInputs
from load.loop_lag import buckets, over_ms
from load.protobuf import bytes_field, read_fields
from load.sizes import SizeReading, calls_of

SIZE = SizeReading(10, {}, 2.0, 400.0, 3.0, 5.0, 0.0)
PART = PartReading(1000, {}, 1.0, 4.0, 9.0, 0, 1.0, 0.0, 1.0, 0.0)
WAY = WayReading(PART, replace(PART, p99_ms=8.0, large_calls=3, rss_growth_mb=190.0))
ROUND = BesideRound(WAY, WayReading(replace(PART, p99_ms=2.0), replace(PART, p99_ms=4.0, large_calls=3)))
SIZE_ROUND = {"1MB": {"direct": replace(SIZE, cpu_us_per_call=None, p50_ms=1.0), "sluice": SIZE}}


def _http_answer(inputs: TensorInputs, row: int, **changed: object) -> bytes:
    output = {
        "name": "OUTPUT_FP32",
        "datatype": "FP32",
        "shape": [inputs.size // 4],
        "parameters": {"binary_data_size": inputs.size},
        **changed,
    }
    return json.dumps({"outputs": [output]}).encode() + inputs.tensor(row)


def test_a_tensor_is_right_only_as_it_was_sent() -> None:
    inputs = TensorInputs(4096)
    assert len(inputs.tensor(7)) == 4096
    assert inputs.tensor(7) != inputs.tensor(8)
    assert inputs.http_right(_http_answer(inputs, 7), 7)
    assert not inputs.http_right(_http_answer(inputs, 8), 7)
    assert not inputs.http_right(_http_answer(inputs, 7, shape=[4096]), 7)
    assert not inputs.http_right(_http_answer(inputs, 7)[:-1] + b"\1", 7)
    assert not inputs.http_right(b"", 7)


def test_the_grpc_message_carries_the_tensor_and_an_answer_is_compared_with_it() -> None:
    inputs = TensorInputs(1000)
    (sent,) = (value for field, value in read_fields(inputs.grpc_message(3)) if field == 7)
    assert sent == inputs.tensor(3)
    assert struct.unpack_from("<f", sent) == (3.0,)
    assert inputs.grpc_right(bytes_field(6, sent), 3)
    assert not inputs.grpc_right(bytes_field(6, sent), 4)
    assert not inputs.grpc_right(bytes_field(6, sent[:-4]), 3)
    assert not inputs.grpc_right(bytes_field(6, sent)[:-1], 3)


@pytest.mark.parametrize("size", [0, 4, 12])
def test_a_size_without_room_for_whole_rows_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="multiple of 8"):
        TensorInputs(size)


def _page(*counts: int) -> str:
    bounds = ("0.001", "0.01", "0.1", "+Inf")
    rows = zip(bounds, counts, strict=True)
    return "\n".join(f'sluice_event_loop_lag_seconds_bucket{{le="{bound}"}} {count}' for bound, count in rows)


@pytest.mark.parametrize(
    ("after", "over"), [((15, 15, 15, 15), 0.0), ((14, 15, 15, 15), 1.0), ((10, 10, 11, 11), 10.0),
                        ((10, 10, 10, 11), 100.0), ((10, 10, 10, 10), 0.0)]
)  # fmt: skip
def test_the_lag_is_the_lower_bound_of_the_highest_bucket_that_got_a_count(after: tuple[int, ...], over: float) -> None:
    assert over_ms(buckets(_page(10, 10, 10, 10)), buckets(_page(*after))) == over


def test_a_page_without_the_series_is_an_error() -> None:
    with pytest.raises(LoadError, match="sluice_event_loop_lag_seconds"):
        buckets("sluice_calls_total 1\n")


def _take_and_give_back(size: int) -> None:
    """Memory from the system, not from what the allocator has at hand."""
    with mmap.mmap(-1, size) as block:
        for at in range(0, size, mmap.PAGESIZE):
            block[at] = 1


def test_the_peak_of_memory_begins_anew() -> None:
    pid = os.getpid()
    _take_and_give_back(50_000_000)
    accounting.forget_peak(pid)
    assert accounting.peak_rss_bytes(pid) < accounting.rss_bytes(pid) + 10_000_000
    before = accounting.rss_bytes(pid)
    _take_and_give_back(50_000_000)
    assert accounting.peak_rss_bytes(pid) - before > 40_000_000


def test_small_tensors_are_bounded_by_calls_and_large_ones_by_bytes() -> None:
    assert (calls_of(1000, 200, 192), calls_of(16_000_000, 200, 192), calls_of(64_000_000, 200, 64)) == (200, 12, 3)


def test_the_cost_of_a_size_is_told_per_call_and_per_mb_with_ratios_to_every_other_way() -> None:
    result = sizes.document("http", [SIZE_ROUND] * 7, {})
    (row,) = result["sizes"]
    assert (row["sides"]["sluice"]["cpu_us_per_call"], row["sides"]["sluice"]["cpu_us_per_mb"]) == (400.0, 400.0)
    assert row["ratios"]["direct"]["cpu"] is None
    assert row["ratios"]["direct"]["p50"] == {"median": 2.0, "low": 2.0, "high": 2.0}
    assert result["verdict"] == "none"
    assert "2.00 (2.00..2.00)" in sizes.table(result)


def test_one_wrong_answer_fails_the_sizes_and_few_rounds_are_marked() -> None:
    wrong = {"1MB": {**SIZE_ROUND["1MB"], "sluice": replace(SIZE, error_kinds={"wrong answer": 1})}}
    result = sizes.document("http", [wrong], {})
    assert result["verdict"] == "fail"
    assert "inconclusive" in result["sizes"][0]["ratios"]["direct"]["p50"]


def test_beside_judges_the_slowdown_over_that_of_direct_calls() -> None:
    assert (ROUND.sluice.slowdown, ROUND.direct.slowdown, ROUND.excess) == (2.0, 2.0, 1.0)
    assert beside.document([ROUND] * 7, {}, 1.1)["verdict"] == "pass"
    slower = replace(ROUND, sluice=replace(WAY, beside=replace(WAY.beside, p99_ms=16.0)))
    result = beside.document([slower] * 7, {}, 1.1)
    assert (result["verdict"], result["excess"]["median"]) == ("fail", 2.0)
    assert result["ways"]["sluice"]["beside"]["rss_growth_mb"] == 190.0
    assert "slowdown" in beside.table(result)


def test_beside_is_inconclusive_with_few_rounds_or_on_a_busy_machine_and_fails_with_an_error() -> None:
    assert beside.document([ROUND] * 6, {}, 1.1)["verdict"] == "inconclusive"
    busy = replace(ROUND, sluice=replace(WAY, alone=replace(PART, others_cores=1.0)))
    assert beside.document([busy] * 7, {}, 1.1)["verdict"] == "inconclusive"
    late = replace(ROUND, sluice=replace(WAY, alone=replace(PART, late_share=0.02)))
    assert beside.document([late] * 7, {}, 1.1)["verdict"] == "inconclusive"
    wrong = replace(ROUND, direct=replace(ROUND.direct, beside=replace(PART, error_kinds={"large: wrong answer": 1})))
    assert beside.document([wrong] * 7, {}, 1.1)["verdict"] == "fail"


def test_what_the_large_caller_says_is_read_and_silence_is_an_error() -> None:
    assert read_large('a warning\n{"calls": 3, "errors": {"wrong answer": 1}}\n', 0) == (3, {"large: wrong answer": 1})
    for said, code in (("Traceback", 1), ('{"calls": 0, "errors": {}}', 0), ('{"calls": 2, "errors": {}}', -9)):
        with pytest.raises(LoadError, match="large tensors ended"):
            read_large(said, code)


async def test_the_large_caller_counts_calls_that_get_no_answer() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(0.2, stop.set)
    found = await send_until_told("http", "127.0.0.1:1", 1000, stop)
    assert found["calls"] == found["errors"]["connection"]  # type: ignore[index]
    assert found["calls"]


@pytest.mark.parametrize(
    "words",
    [["sizes"], ["sizes", "--protocol", "http", "--sizes", "2GB"], ["beside", "--protocol", "grpc", "--rps", "0"]],
)
def test_wrong_words_are_wrong_usage(words: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)


def test_a_tensor_that_the_gateway_would_refuse_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["beside", "--protocol", "grpc", "--megabytes", "73"]) == 2
    assert "at most 72" in capsys.readouterr().err
