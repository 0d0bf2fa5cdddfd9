"""What a soak concludes from its samples, what its traffic is, and its senders."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from tritonclient.grpc import service_pb2

from load.connection import Done
from load.inputs import Calls, IdentityInputs, LoadCall
from load.soak_figures import Sample, SoakLimits, document, summary, unexpected
from load.soak_pictures import smoothed, write_pictures
from load.soak_traffic import BadInputs, Fresh, Leaving, ScoreInputs, kinds
from load.stand import GatewayReading, page_sums
from load.streams import LEFT, TOKENS, Row, Sum, Tokens, stream_response
from load.tallies import Second, TrafficTally

SECONDS = 1800.0
EVERY_S = 5.0
IDLE = GatewayReading(
    rss_bytes=80_000_000,
    cpu_s=1.0,
    descriptors=30,
    threads=12,
    tasks=14,
    connections=0,
    in_flight=0,
    queued=0,
    calls=10,
    records_written=10,
    records_dropped=0,
    internal_faults=0,
    metrics_series=300,
)
END = replace(IDLE, calls=180_000, records_written=180_000)


def _samples(
    memory_mb: Callable[[float], float] = lambda at_s: 100.0, *, seconds: float = SECONDS, **changes: Any
) -> list[Sample]:
    """Readings of a run with noise of 0.1 MB; `changes` are functions of time for other readings."""
    dice = random.Random(1)
    found = []
    for number in range(1, int(seconds / EVERY_S)):
        at_s = number * EVERY_S
        reading = replace(
            END,
            rss_bytes=int((memory_mb(at_s) + dice.gauss(0, 0.1)) * 1e6),
            cpu_s=at_s / 10,
            **{name: change(at_s) for name, change in changes.items()},
        )
        found.append(Sample(at_s, reading, 0.05))
    return found


def _seconds(p99_ms: Callable[[int], float] = lambda at_s: 10.0, seconds: float = SECONDS) -> list[Second]:
    dice = random.Random(2)
    return [
        Second(at, offered=100, ended=100, p50_ms=2.0 * dice.gauss(1, 0.03), p99_ms=p99_ms(at) * dice.gauss(1, 0.1))
        for at in range(int(seconds))
    ]


def _verdicts(
    samples: list[Sample] | None = None,
    seconds: list[Second] | None = None,
    *,
    tallies: list[TrafficTally] | None = None,
    end: GatewayReading = END,
    duration_s: float = SECONDS,
) -> tuple[str, dict[str, bool | None]]:
    result = document(
        duration_s,
        _samples(seconds=duration_s) if samples is None else samples,
        _seconds(seconds=duration_s) if seconds is None else seconds,
        [TrafficTally("reads", offered=1000, right=1000)] if tallies is None else tallies,
        {"reads": frozenset()},
        end,
        IDLE,
        SoakLimits(),
        {},
    )
    assert json.loads(json.dumps(result)) == result
    assert f"verdict: {result['verdict']}" in summary(result)
    return result["verdict"], {check["name"]: check["pass"] for check in result["checks"]}


def test_a_run_in_which_nothing_grows_passes() -> None:
    verdict, checks = _verdicts()
    assert verdict == "pass", checks


def test_memory_that_warms_up_and_then_stays_is_flat() -> None:
    verdict, checks = _verdicts(_samples(lambda at_s: 80 + 30 * min(1.0, at_s / 300)))
    assert verdict == "pass", checks


@pytest.mark.parametrize("mb_per_hour", [40.0, 200.0])
def test_a_leak_fails_the_slope(mb_per_hour: float) -> None:
    verdict, checks = _verdicts(_samples(lambda at_s: 100 + mb_per_hour * at_s / 3600))
    assert verdict == "fail"
    assert checks["memory, MB per hour over the second half"] is False


def test_one_step_is_growth_even_if_it_is_no_slope() -> None:
    _, checks = _verdicts(_samples(lambda at_s: 100 if at_s < SECONDS / 2 else 130))
    assert checks["memory, MB per hour over the second half"] is True
    assert checks["memory, MB of the last quarter over the second"] is False


def test_a_short_run_cannot_call_a_small_slope_a_leak_and_does_call_a_large_one() -> None:
    _, small = _verdicts(_samples(lambda at_s: 100 + 20 * at_s / 3600, seconds=200), duration_s=200)
    assert small["memory, MB per hour over the second half"] is None
    _, large = _verdicts(_samples(lambda at_s: 100 + 400 * at_s / 3600, seconds=200), duration_s=200)
    assert large["memory, MB per hour over the second half"] is False


def test_a_run_with_few_readings_leaves_memory_open() -> None:
    verdict, checks = _verdicts(_samples(seconds=60), _seconds(seconds=60), duration_s=60)
    assert checks["memory, MB per hour over the second half"] is None
    assert verdict == "inconclusive"


@pytest.mark.parametrize(
    ("what", "name"), [("descriptors", "own descriptors"), ("tasks", "tasks"), ("metrics_series", "metrics series")]
)
def test_what_is_counted_must_stay(what: str, name: str) -> None:
    growing: dict[str, Any] = {what: lambda at_s: int(100 + at_s / 20)}
    verdict, checks = _verdicts(_samples(**growing))
    assert verdict == "fail"
    assert checks[f"{name} of the last quarter over the second"] is False


def test_descriptors_of_more_client_connections_are_no_leak() -> None:
    def growing(at_s: float) -> int:
        return int(at_s / 20)

    verdict, checks = _verdicts(_samples(descriptors=lambda at_s: 30 + growing(at_s), connections=growing))
    assert verdict == "pass", checks


def test_calls_that_take_longer_and_longer_fail_and_noise_does_not() -> None:
    _, drifting = _verdicts(seconds=_seconds(lambda at_s: 10 + at_s / 90))
    assert drifting["p99 of the last quarter over the second's"] is False
    assert drifting["p50 of the last quarter over the second's"] is True


def test_other_work_on_the_machine_leaves_the_drift_open() -> None:
    busy = [replace(each, others_cores=1.2) if each.at_s > 0.75 * SECONDS else each for each in _samples()]
    verdict, checks = _verdicts(busy, _seconds(lambda at_s: 10 if at_s < 0.75 * SECONDS else 30))
    assert checks["p99 of the last quarter over the second's"] is None
    assert verdict == "inconclusive"


@pytest.mark.parametrize(
    "end",
    [
        replace(END, in_flight=1),
        replace(END, queued=1),
        replace(END, connections=1),
        replace(END, descriptors=IDLE.descriptors + 6),
        replace(END, tasks=IDLE.tasks + 6),
        replace(END, records_written=END.calls - 1),
        replace(END, records_written=END.calls - 1, records_dropped=1),
        replace(END, internal_faults=1),
    ],
)
def test_what_is_left_after_the_end_fails(end: GatewayReading) -> None:
    assert _verdicts(end=end)[0] == "fail"


def test_an_ending_that_was_not_meant_fails_and_one_that_was_meant_does_not() -> None:
    bad = TrafficTally("reads", offered=1000, right=990, errors={"status 400": 10})
    assert unexpected(bad, frozenset({"status 400"})) == 0
    assert unexpected(bad, frozenset()) == 10
    assert _verdicts(tallies=[bad])[0] == "fail"
    assert _verdicts(tallies=[TrafficTally("reads", offered=100_000, right=99_999, wrong=1)])[0] == "fail"


def test_the_shares_of_all_kinds_add_up_and_both_protocols_carry_mistakes_and_leavers() -> None:
    every = kinds()
    assert sum(kind.share for kind in every) == pytest.approx(1.0)
    assert len({kind.name for kind in every}) == len(every)
    for protocol in ("http", "grpc"):
        endings = set().union(*(kind.endings for kind in every if kind.name.startswith(protocol)))
        assert LEFT in endings
        assert len(endings) >= 3


def test_each_mistake_is_one() -> None:
    bad, good = BadInputs(), IdentityInputs()
    for row in range(6):
        assert bad.http_body(row) != good.http_body(row)
        assert len(bad.grpc_message(row)) < len(good.grpc_message(row))
    with pytest.raises(json.JSONDecodeError):
        json.loads(bad.http_body(0))
    assert json.loads(bad.http_body(1))["inputs"][0]["shape"] == [13]
    assert json.loads(bad.http_body(2))["inputs"][0]["datatype"] == "FP31"


def test_messages_of_streams_are_what_the_protocol_says() -> None:
    """Compared with the protocol's own generated classes, which the lab does not use."""
    (tokens,) = (service_pb2.ModelInferRequest.FromString(each) for each in Tokens(fails=True).messages(300))
    assert (tokens.model_name, [each.name for each in tokens.inputs]) == (
        "streamer", ["text_input", "max_tokens", "delay_ms", "fail_at", "fail_with"],
    )  # fmt: skip
    assert len(tokens.raw_input_contents) == 5
    assert [list(each.shape) for each in tokens.inputs] == [[1]] * 5
    sums = [service_pb2.ModelInferRequest.FromString(each) for each in Sum(1000).messages(300)]
    assert [each.parameters["sequence_id"].int64_param for each in sums] == [1300] * 3
    assert [each.parameters["sequence_start"].bool_param for each in sums] == [True, False, False]
    assert [each.parameters["sequence_end"].bool_param for each in sums] == [False, False, True]
    assert [list(each.inputs[0].shape) for each in sums] == [[1, 1]] * 3


def test_a_stream_is_right_only_with_all_its_answers_in_order() -> None:
    assert Tokens().right([b""] * TOKENS, 1)
    assert not Tokens().right([b""] * (TOKENS - 1), 1)
    row = Row()
    answers = [
        service_pb2.ModelInferResponse(raw_output_contents=list(message.raw_input_contents)).SerializeToString()
        for message in map(service_pb2.ModelInferRequest.FromString, row.messages(7))
    ]
    assert row.right(answers, 7)
    assert not row.right(answers[::-1], 7)
    assert not row.right(answers[:-1], 7)
    last = service_pb2.ModelInferResponse(raw_output_contents=[(3 * 7 + 3).to_bytes(8, "little")])
    assert Sum(1).right([b"", b"", last.SerializeToString()], 7)
    assert not Sum(1).right([b"", b"", last.SerializeToString()], 8)


def test_an_error_in_a_stream_is_read() -> None:
    whole = service_pb2.ModelStreamInferResponse(
        error_message="as asked", infer_response=service_pb2.ModelInferResponse(model_name="streamer" * 40)
    )
    error, response = stream_response(whole.SerializeToString())
    assert error == "as asked"
    assert response == whole.infer_response.SerializeToString()


def test_a_score_is_right_if_it_is_a_probability_with_its_label() -> None:
    inputs = ScoreInputs()
    assert len(json.loads(inputs.http_body(5))["inputs"][0]["data"]) == 12
    assert inputs.http_body(5) != inputs.http_body(6)

    def answer(probability: float, label: int) -> bytes:
        outputs = [{"name": "probability", "data": [probability]}, {"name": "label", "data": [label]}]
        return json.dumps({"outputs": outputs}).encode()

    assert inputs.http_right(answer(0.25, 0), 5)
    assert not inputs.http_right(answer(1.5, 1), 5)
    assert not inputs.http_right(b'{"error":"no"}', 5)
    assert not inputs.http_right(b"", 5)


class _Line:
    """A connection whose calls end when the test says so."""

    def __init__(self) -> None:
        self.done: Done | None = None
        self.closed = False

    def send(self, call: LoadCall, done: Done) -> None:
        self.done = done

    def check(self, now_s: float) -> None:
        pass

    async def aclose(self) -> None:
        self.closed = True
        if self.done is not None:
            done, self.done = self.done, None
            done("connection")

    def answer(self) -> None:
        assert self.done is not None
        done, self.done = self.done, None
        done("")


async def test_a_fresh_connection_carries_one_call_and_is_closed() -> None:
    async with asyncio.timeout(10):
        lines: list[_Line] = []
        endings: list[str] = []
        sender = Fresh(lambda: lines.append(_Line()) or lines[-1])  # type: ignore[func-returns-value]
        calls = Calls(1, 1000)
        for _ in range(2):
            sender.send(calls.next(), endings.append)
        lines[0].answer()
        await asyncio.sleep(0)
        assert (endings, [line.closed for line in lines]) == ([""], [True, False])
        await sender.aclose()
        assert (endings, [line.closed for line in lines]) == (["", "connection"], [True, True])


async def test_a_client_that_leaves_closes_its_connection_and_its_call_ends_so() -> None:
    async with asyncio.timeout(10):
        lines: list[_Line] = []
        endings: asyncio.Queue[str] = asyncio.Queue()
        sender = Leaving(lambda: lines.append(_Line()) or lines[-1], after_s=0.001)  # type: ignore[func-returns-value]
        sender.send(Calls(1, 1000).next(), endings.put_nowait)
        assert await endings.get() == LEFT
        assert lines[0].closed
        await sender.aclose()


def test_pictures_are_whole_svg_files_and_empty_ones_are_left_out(tmp_path: Path) -> None:
    result = document(
        SECONDS, _samples(), _seconds(), [TrafficTally("reads")], {}, END, IDLE, SoakLimits(),
        {"rps": 100.0, "machine": "2 x <CPU>"},
    )  # fmt: skip
    written = write_pictures(result, tmp_path / "new")
    assert [path.name for path in written] == ["soak-memory.svg", "soak-counts.svg", "soak-latency.svg"]
    for path in written:
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
    assert write_pictures({**result, "samples": [], "seconds": []}, tmp_path) == []


def test_a_long_line_is_smoothed_to_medians_of_neighbours() -> None:
    points: list[tuple[float, float | None]] = [(float(at), float(at % 3)) for at in range(9)]
    assert smoothed(points, 3) == [(1.0, 1.0), (4.0, 1.0), (7.0, 1.0)]
    assert smoothed([(0.0, None), (1.0, None)], 1) == [(0.5, None)]
    assert smoothed([], 5) == []


def test_a_metrics_page_is_summed_over_labels() -> None:
    page = '# HELP a b\na{x="1"} 2\na{x="2 }"} 3.5\nb 1e3\n'
    assert page_sums(page) == {"a": 5.5, "b": 1000.0}
