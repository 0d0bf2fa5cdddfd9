"""Lines that are made quickly: the same as those that are made with care, and nothing is taken for what it is not."""

from __future__ import annotations

import asyncio
import json
import math
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.call import Attempt, Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.policy.schema import RecordsPolicy
from gateway.records.layout import CONSTANT_BYTES_MAX, ENTRIES_MAX, MISSES_MAX
from gateway.records.log import RecordLog
from gateway.records.memory_store import MemoryStore
from gateway.records.record import FIXED_BYTES, Kept, PredictionRecord, Tensors
from gateway.records.render import QUICK_BYTES_MAX, Renderer
from gateway.runtime.clock import SystemClock
from gateway.runtime.supervisor import Supervisor
from gateway.runtime.workers import InlineWorkers
from tests.unit.records_support import ANSWER, REQUEST, answer, floats, record, request, served_call

SHAPES = {"FP32": "f", "FP64": "d", "INT32": "i", "INT64": "q", "UINT8": "B", "BOOL": "?", "FP16": "e"}


def learned(*records: PredictionRecord) -> Renderer:
    """A renderer that has seen each of these twice."""
    renderer = Renderer()
    for each in records * 2:
        renderer.line(each)
    return renderer


def shown(line: bytes) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(line)
    return made


def test_the_first_line_of_its_kind_is_not_quick_and_the_third_one_is() -> None:
    renderer = Renderer()
    assert renderer.quick(record()) == b""
    renderer.line(record())
    assert renderer.quick(record()) == b"", "sizes that come once are not worth learning"
    renderer.line(record())
    assert renderer.quick(record()) == Renderer().line(record())


def test_a_twin_in_another_thread_knows_the_same_layouts() -> None:
    renderer = Renderer()
    twin = renderer.twin()
    for _ in range(2):
        renderer.line(record())
    assert twin.quick(record()) == renderer.line(record())


@settings(max_examples=200, deadline=None)
@given(
    data=st.data(),
    datatype=st.sampled_from(sorted(SHAPES)),
    count=st.integers(0, 100),
    outputs=st.integers(0, 3),
    tensors=st.sampled_from(["summary", "none"]),
)
def test_a_quick_line_is_the_careful_one(
    data: st.DataObject, datatype: str, count: int, outputs: int, tensors: Tensors
) -> None:
    code = SHAPES[datatype]
    size = struct.calcsize(f"<{code}")

    def made(which: Any) -> bytes:
        raws = [data.draw(st.binary(min_size=count * size, max_size=count * size)) for _ in range(outputs)]
        return bytes(which(*((f"t{number}", datatype, (count,), raw) for number, raw in enumerate(raws))))

    first, second = ((made(request), made(answer)) for _ in range(2))
    renderer = learned(*(record(message=message, reply=reply) for message, reply in (first,)))
    each = record(message=second[0], reply=second[1], tensors=tensors)
    careful = Renderer().line(each)
    quick = renderer.quick(each)
    if len(second[0]) + len(second[1]) <= QUICK_BYTES_MAX:
        assert quick, "what differs in its elements alone is known"
        assert shown(quick) == shown(careful)
    else:
        assert quick == b""
    assert shown(renderer.line(each)) == shown(careful)


@settings(max_examples=200, deadline=None)
@given(message=st.binary(max_size=60), reply=st.binary(max_size=60), flip=st.integers(0, 10_000))
def test_whatever_else_the_bytes_are_what_is_shown_is_theirs(message: bytes, reply: bytes, flip: int) -> None:
    renderer = learned(record(), record(message=message, reply=reply))
    for base in (REQUEST, message):
        at = flip % len(base) if base else 0
        changed = base[:at] + bytes((base[at] ^ 1 + flip % 255,)) + base[at + 1 :] if base else b""
        for other in (ANSWER, reply):
            each = record(message=changed, reply=other)
            careful = Renderer().line(each)
            assert renderer.line(each) == careful
            assert renderer.quick(each) in (b"", careful)


@pytest.mark.parametrize(
    "reply",
    [
        answer(("y", "BYTES", (1,), b"\x02\x00\x00\x00hi")),
        answer(("y", "BF16", (2,), bytes(4))),
        answer(("y", "UNHEARD_OF", (1,), b"\x00")),
        answer(("y", "FP32", (10_000,), bytes(40_000))),
        answer(*(("y" * 200, "FP32", (1,), bytes(4)) for _ in range(CONSTANT_BYTES_MAX // 200))),
        answer(*(("y", "FP32", (1,), bytes(4)) for _ in range(70))),
        REQUEST + b"\xff",
    ],
    ids=["text", "bf16", "unknown", "many values", "long names", "many tensors", "unreadable"],
)
def test_what_takes_longer_is_left_to_the_worker(reply: bytes) -> None:
    renderer = learned(record(reply=reply))
    assert renderer.quick(record(reply=reply)) == b""
    assert renderer.line(record(reply=reply)) == Renderer().line(record(reply=reply))


def test_all_values_are_never_shown_quickly() -> None:
    assert learned(record()).quick(record(tensors="full")) == b""


def test_numbers_that_json_does_not_have_are_strings_in_a_quick_line_too() -> None:
    plain = answer(("y", "FP32", (4,), floats(1, 2, 3, 4)))
    odd = answer(("y", "FP32", (4,), floats(math.nan, math.inf, -math.inf, 1.5)))
    line = learned(record(reply=plain)).quick(record(reply=odd))
    assert line == Renderer().line(record(reply=odd))
    assert shown(line)["output"]["tensors"][0]["first"] == ["NaN", "Infinity", "-Infinity", 1.5]


def test_the_sum_of_enormous_numbers_is_no_infinite_mean() -> None:
    raw = struct.pack("<4d", 1.7e308, 1.7e308, 1.7e308, 1.7e308)
    tensor = shown(Renderer().line(record(reply=answer(("y", "FP64", (4,), raw)))))["output"]["tensors"][0]
    assert (tensor["min"], tensor["max"], tensor["mean"]) == (1.7e308, 1.7e308, 1.7e308)
    assert "non_finite" not in tensor


def test_a_layout_that_fits_nothing_any_more_gives_way() -> None:
    other = answer(("other", "FP32", (1, 1), floats(0.5)))[: len(ANSWER)]
    one, two = (answer((name, "FP32", (1, 1), floats(0.5))) for name in ("score", "grade"))
    assert len(one) == len(two)
    assert len(other) == len(one)
    renderer = learned(record(reply=one))
    for _ in range(MISSES_MAX + 2):
        renderer.line(record(reply=two))
    assert renderer.quick(record(reply=two))
    assert renderer.quick(record(reply=one)) == b""


def test_sizes_without_end_do_not_fill_the_memory() -> None:
    renderer = Renderer()
    for size in range(ENTRIES_MAX + 10):
        renderer.line(record(message=request(("x", "BYTES", (1,), bytes(size)))))
    assert len(renderer._requests._known) <= ENTRIES_MAX


def test_callers_words_without_end_do_not_fill_the_memory() -> None:
    renderer = Renderer()
    for number in range(3000):
        call = served_call()
        call.version = str(number)
        renderer.line(PredictionRecord(call, Outcome.OK, None, ANSWER, 100.011))
    assert len(renderer._common) <= 1024


def odd_calls() -> list[tuple[str, Call, Outcome, GatewayError | None, bytes | None]]:
    """Calls of every kind that a line has words for."""
    refused = served_call(message=None)
    refused.trail.attempts.clear()
    refused.trail.received_s = refused.trail.routed_s = refused.trail.admitted_s = refused.trail.answered_s = 0.0
    lost = served_call()
    lost.trail.attempts[0].outcome, lost.trail.attempts[0].text = Outcome.TRANSPORT, 'a "text" of the peer\u2028'
    lost.trail.answered_s = 0.0
    out = served_call()
    out.trail.attempts[0].outcome, out.trail.attempts[0].ended_s = None, 0.0
    many = served_call()
    many.trail.attempts += [Attempt(f"default/10.0.0.{number}:8001", 100.005, "retry") for number in range(40)]
    hostile = served_call()
    hostile.request_id, hostile.body_id = 'a"\\\udcff', "\u2028" * 600
    patient = served_call()
    patient.timeout_s, patient.deadline_s = None, math.inf
    backwards = served_call()
    backwards.trail.routed_s = 99.0
    error = GatewayError(Reason.QUEUE_FULL, "full")
    return [
        ("plain", served_call(), Outcome.OK, None, ANSWER),
        ("refused", refused, Outcome.OVERLOAD, error, None),
        ("lost", lost, Outcome.TRANSPORT, GatewayError(Reason.UPSTREAM_LOST, "gone"), None),
        ("abandoned", out, Outcome.ABANDONED, None, None),
        ("many attempts", many, Outcome.OK, None, ANSWER),
        ("hostile", hostile, Outcome.OK, None, ANSWER),
        ("no deadline", patient, Outcome.OK, None, ANSWER),
        ("a clock that went back", backwards, Outcome.OK, None, ANSWER),
    ]


@pytest.mark.parametrize("case", odd_calls(), ids=lambda case: case[0])
def test_every_kind_of_call_has_the_same_line_however_it_is_made(case: Any) -> None:
    _, call, outcome, error, reply = case
    renderer = learned(record())
    careful = Renderer().line(PredictionRecord(call, outcome, error, reply, 100.011))
    assert renderer.quick(PredictionRecord(call, outcome, error, reply, 100.011)) == careful
    assert learned(record(), record()).line(PredictionRecord(call, outcome, error, reply, 100.011)) == careful
    assert set(shown(careful)["stages_ms"]) <= {"receive", "route", "queue", "upstream", "write"}


def test_a_thinned_record_says_so_in_a_quick_line() -> None:
    thin = record()
    thin.thin("no_room")
    assert shown(learned(record()).quick(thin))["input"] == {"bytes": len(REQUEST), "omitted": "no_room"}


# --- in the log -------------------------------------------------------------------------------------------------------


def log_of(store: MemoryStore) -> RecordLog:
    return RecordLog(RecordsPolicy(flush_interval_ms=1), SystemClock(), InlineWorkers(), store)


async def test_a_line_is_made_in_the_turn_after_its_call_and_lets_go_of_the_call() -> None:
    store = MemoryStore()
    log = log_of(store)
    log._renderer = learned(record())
    log._quick = log._renderer.twin()
    supervisor = Supervisor()
    log.start(supervisor)
    message = REQUEST
    waiting, quick = record(1, tensors="full"), record(2, message=message)
    log.offer(waiting)
    log.offer(quick)
    assert isinstance(quick.call, Call)
    await asyncio.sleep(0)
    assert quick.line
    assert {name for name in ("call", "message", "reply") if getattr(quick, name) is not None} == set()
    assert isinstance(waiting.call, Kept)
    assert not waiting.line
    assert log.statistics(0.0)["queued_bytes"] == waiting.size_bytes + FIXED_BYTES
    await log.aclose()
    await supervisor.stop_all()
    assert [json.loads(line)["request_id"] for line in store.lines] == ["r-1", "r-2"]
    assert log.statistics(0.0)["queued_bytes"] == 0


async def test_of_a_great_many_that_end_in_one_turn_most_are_left_to_the_worker() -> None:
    store = MemoryStore()
    log = log_of(store)
    log._renderer = learned(record())
    log._quick = log._renderer.twin()
    supervisor = Supervisor()
    log.start(supervisor)
    records = [record(number) for number in range(1000)]
    for each in records:
        log.offer(each)
    await asyncio.sleep(0)
    assert 0 < sum(bool(each.line) for each in records) < 100
    await log.aclose()
    await supervisor.stop_all()
    assert [json.loads(line)["request_id"] for line in store.lines] == [f"r-{number}" for number in range(1000)]
