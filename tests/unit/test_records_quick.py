"""Lines that are made quickly: the same as those that are made with care, and nothing is taken for what it is not."""

from __future__ import annotations

import asyncio
import json
import math
import struct
import sys
from decimal import Decimal
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.call import Attempt, Call, Identity, SequenceStep
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.policy.schema import RecordsPolicy
from gateway.records.block import Block, made_together
from gateway.records.layout import CONSTANT_BYTES_MAX, ENTRIES_MAX, MISSES_MAX
from gateway.records.log import _TOGETHER, RecordLog
from gateway.records.memory_store import MemoryStore
from gateway.records.quick import QUICK_BYTES_MAX, QuickRenderer
from gateway.records.record import FIXED_BYTES, PredictionRecord, Tensors
from gateway.records.render import Renderer, utc
from gateway.records.tensors import SUMMED_MAX
from gateway.runtime.clock import SystemClock
from gateway.runtime.supervisor import Supervisor
from gateway.runtime.workers import InlineWorkers
from gateway.wire.kserve import protobuf as pb
from tests.unit.records_support import ANSWER, REQUEST, answer, floats, no_space, record, request, served_call

SHAPES = {"FP32": "f", "FP64": "d", "INT32": "i", "INT64": "q", "UINT8": "B", "BOOL": "?", "FP16": "e"}


def learned(*records: PredictionRecord) -> QuickRenderer:
    """A renderer that has seen each of these twice."""
    renderer = QuickRenderer()
    for each in records * 2:
        renderer.line(each)
    return renderer


def shown(line: bytes) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(line)
    return made


def test_the_first_line_of_its_kind_is_not_quick_and_the_third_one_is() -> None:
    renderer = QuickRenderer()
    assert renderer.quick(record()) == b""
    renderer.line(record())
    assert renderer.quick(record()) == b"", "sizes that come once are not worth learning"
    renderer.line(record())
    assert renderer.quick(record()) == Renderer().line(record())


def test_a_twin_in_another_thread_knows_the_same_layouts() -> None:
    renderer = Renderer()
    twin = QuickRenderer(renderer)
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


def test_no_byte_outside_of_the_elements_may_be_another_one() -> None:
    """Of messages with several tensors, whose elements begin in more places than one."""
    sides = (("x", "INT16", (2,), b"abcd"), ("y", "UINT8", (3,), b"efg"))
    message, reply = request(*sides), answer(*sides)
    renderer, unlike = learned(record(message=message, reply=reply)), 0
    for whole, side in ((message, "message"), (reply, "reply")):
        for at in range(len(whole)):
            for bit in range(8):
                changed = whole[:at] + bytes((whole[at] ^ 1 << bit,)) + whole[at + 1 :]
                both = {"message": message, "reply": reply} | {side: changed}
                quick = renderer.quick(record(**both))  # type: ignore[arg-type]
                assert quick in (b"", Renderer().line(record(**both)))  # type: ignore[arg-type]
                unlike += not quick
    assert unlike == 8 * (len(message) + len(reply) - 2 * len(b"abcdefg"))


@pytest.mark.parametrize(
    "reply",
    [
        answer(("y", "BYTES", (1,), b"\x02\x00\x00\x00hi")),
        answer(("y", "BF16", (2,), bytes(4))),
        answer(("y", "UNHEARD_OF", (1,), b"\x00")),
        answer(("y", "FP32", (20_000,), bytes(80_000))),
        answer(*(("y" * 200, "FP32", (1,), bytes(4)) for _ in range(CONSTANT_BYTES_MAX // 200))),
        answer(*(("y", "FP32", (1,), bytes(4)) for _ in range(70))),
        REQUEST + b"\xff",
    ],
    ids=["text", "bf16", "unknown", "large", "long names", "many tensors", "unreadable"],
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


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("count", range(2, 20))
def test_the_largest_number_again_and_again_has_a_mean(count: int, sign: int) -> None:
    largest = sign * sys.float_info.max
    reply = answer(("y", "FP64", (count,), struct.pack(f"<{count}d", *[largest] * count)))
    line = Renderer().line(record(reply=reply))
    tensor = shown(line)["output"]["tensors"][0]
    assert (tensor["min"], tensor["max"]) == (largest, largest)
    assert math.isclose(tensor["mean"], largest)
    assert learned(record(reply=reply)).quick(record(reply=reply)) == line


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
    assert len(renderer._requests.known) <= ENTRIES_MAX


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
    hostile.trail.note("retry", "refused", {"remaining_ms": 0.5})
    hostile.request_id, hostile.body_id = 'a"\\\udcff', "\u2028" * 600
    patient = served_call()
    patient.timeout_s, patient.deadline_s = None, math.inf
    unary = served_call()
    unary.trail.responses = 1
    crowd = served_call()
    crowd.trail.in_flight_at_admit = 5000
    talkative = served_call()
    talkative.request_id = "i," * 400
    liar, brief, foreign = served_call(), served_call(), served_call()
    liar.metadata = (("a", "b"), ("traceparent", '00-","tenant":"root","x":"' + "y" * 20))
    brief.metadata = (("traceparent", "00-abc"),)
    foreign.metadata = (("traceparent", "00-" + "\u00e9\udc80" * 20),)
    again = served_call()
    again.trail.attempts[0].kind = "retry"
    hasty = served_call()
    hasty.timeout_s, hasty.deadline_s = 0.0, 99.0
    backwards = served_call()
    backwards.trail.routed_s = 99.0
    decided = served_call()
    decided.trail.note("hedge", "no_token", {"waiting": 3, "mean_in_flight": 1.5})
    error = GatewayError(Reason.QUEUE_FULL, "full")
    return [
        ("plain", served_call(), Outcome.OK, None, ANSWER),
        ("refused", refused, Outcome.OVERLOAD, error, None),
        ("lost", lost, Outcome.TRANSPORT, GatewayError(Reason.UPSTREAM_LOST, "gone"), None),
        ("abandoned", out, Outcome.ABANDONED, None, None),
        ("many attempts", many, Outcome.OK, None, ANSWER),
        ("hostile", hostile, Outcome.OK, None, ANSWER),
        ("no deadline", patient, Outcome.OK, None, ANSWER),
        ("unary", unary, Outcome.OK, None, ANSWER),
        ("more in flight than there are words for", crowd, Outcome.OK, None, ANSWER),
        ("a long id", talkative, Outcome.OK, None, ANSWER),
        ("a trace that would be members", liar, Outcome.OK, None, ANSWER),
        ("a trace too short", brief, Outcome.OK, None, ANSWER),
        ("a trace of no ASCII", foreign, Outcome.OK, None, ANSWER),
        ("another kind of attempt", again, Outcome.OK, None, ANSWER),
        ("a deadline before its call", hasty, Outcome.OK, None, ANSWER),
        ("answered, then broken", served_call(), Outcome.BROKEN, GatewayError(Reason.UPSTREAM_BROKEN, "gone"), ANSWER),
        ("a clock that went back", backwards, Outcome.OK, None, ANSWER),
        ("with a decider's note", decided, Outcome.OK, None, ANSWER),
    ]


@pytest.mark.parametrize("case", odd_calls(), ids=lambda case: case[0])
def test_every_kind_of_call_has_the_same_line_however_it_is_made(case: Any) -> None:
    _, call, outcome, error, reply = case
    renderer = learned(record())
    careful = Renderer().line(PredictionRecord(call, outcome, error, reply, 100.011))
    assert renderer.quick(PredictionRecord(call, outcome, error, reply, 100.011)) == careful
    assert learned(record(), record()).line(PredictionRecord(call, outcome, error, reply, 100.011)) == careful
    assert set(shown(careful)["stages_ms"]) <= {"receive", "route", "queue", "upstream", "write"}


def other_calls() -> list[tuple[str, Call, Any]]:
    """Plain calls, each unlike the usual one in one thing that its line tells."""
    found: list[tuple[str, Call, Any]] = []

    def made(name: str) -> Call:
        call = served_call()
        call.trail.responses = 1
        found.append((name, call, {}))
        return call

    made("usual")
    made("protocol").protocol = "http"
    made("tenant").identity = Identity("somebody")
    made("class").criticality = 3
    made("version").version = "3"
    for name in ("version_served", "version_routed", "routed_by", "artifact_hash", "policy_revision", "pool", "rung"):
        setattr(made(name).trail, name, "another")
    for name in ("replicas_ready", "queued_ahead", "in_flight_at_admit", "limit_at_admit", "responses"):
        setattr(made(name).trail, name, 9)
    for name, value in (("replica", "default/10.0.0.9:8001"), ("kind", "hedge"), ("text", "words")):
        setattr(made(name).trail.attempts[0], name, value)
    made("outcome").trail.attempts[0].outcome = Outcome.SUPERSEDED
    made("no trace").metadata = ()
    two = made("two traces")
    two.metadata = (*two.metadata, ("traceparent", "00-" + "ef" * 16 + "-" + "cd" * 8 + "-01"))
    made("id of the body").body_id = "b"
    made("stream").stream_position = 2
    made("sequence").sequence = SequenceStep(7, True, False)
    made("no limit").timeout_s = None
    made("limit").timeout_s = 0.25
    made("deadline").deadline_s = 100.25
    made("second").arrived_wall_s += 1.0
    made("microsecond").arrived_wall_s += 0.25
    made("model").model = "another"
    made("impact")
    found[-1][2]["impact"] = "slower"
    made("no tensors")
    found[-1][2]["tensors"] = "none"
    return found


@pytest.mark.parametrize("case", other_calls(), ids=lambda case: case[0])
def test_what_is_remembered_of_one_call_is_not_told_of_another(case: Any) -> None:
    _, call, more = case
    usual = other_calls()[0][1]
    learning = served_call()
    learning.model = "another"
    renderer = learned(record(), PredictionRecord(learning, Outcome.OK, None, ANSWER, 100.011))
    each = PredictionRecord(call, Outcome.OK, None, ANSWER, 100.011, **more)
    for which in (PredictionRecord(usual, Outcome.OK, None, ANSWER, 100.011), each) * 2:
        assert renderer.quick(which) == Renderer().line(which)


INSTANTS = st.sampled_from([100.0, 100.0, 100.0, 100.001, 100.002, 99.5, 0.0, -1.0, 1e9, 3e9])


@settings(max_examples=300, deadline=None)
@given(
    instants=st.lists(INSTANTS, min_size=8, max_size=8),
    more=st.lists(st.floats(0.0, 1e-3), min_size=8, max_size=8),
    odd=st.none() | st.integers(0, 7),
)
def test_whatever_the_instants_of_a_call_are_its_line_is_the_same(
    instants: list[float], more: list[float], odd: int | None
) -> None:
    """All of them anywhere; or in their order, but for one."""
    if odd is not None:
        inorder = [100.0 + sum(more[: number + 1]) for number in (0, 1, 2, 3, 5, 7, 4, 6)]
        instants = [*inorder[:odd], instants[odd], *inorder[odd + 1 :]]
    call = served_call()
    trail, attempt = call.trail, call.trail.attempts[0]
    call.arrived_s, trail.received_s, trail.routed_s, trail.admitted_s, trail.answered_s, ended_s = instants[:6]
    attempt.started_s, attempt.ended_s = instants[6:]
    each = PredictionRecord(call, Outcome.OK, None, ANSWER, ended_s)
    assert learned(record()).quick(each) == Renderer().line(each)


def test_plain_calls_are_told_the_quick_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are told carefully, so without this no test above would notice that all of them are."""
    renderer = learned(record())
    call = served_call()
    call.trail.responses = 1
    told = [renderer.quick(PredictionRecord(call, Outcome.OK, None, ANSWER, 100.011))]
    monkeypatch.delattr(QuickRenderer, "_carefully")
    told.append(renderer.quick(PredictionRecord(call, Outcome.OK, None, ANSWER, 100.011)))
    assert told[0] == told[1] == Renderer().line(PredictionRecord(call, Outcome.OK, None, ANSWER, 100.011))


def test_a_wall_clock_that_tells_no_time_does_not_spoil_the_next_line() -> None:
    renderer = learned(record())
    for wall_s in (1_800_000_000.25, math.nan, 1_800_000_000.75, 1e18, 1_800_000_000.999_999_9, 1_800_000_001.0, -1.0):
        call = served_call()
        call.arrived_wall_s = wall_s
        each = PredictionRecord(call, Outcome.OK, None, ANSWER, 100.011)
        assert renderer.quick(each) == Renderer().line(each)


def test_a_thinned_record_says_so_in_a_quick_line() -> None:
    thin = record()
    thin.thin("no_room")
    assert shown(learned(record()).quick(thin))["input"] == {"bytes": len(REQUEST), "omitted": "no_room"}


SIDES = st.lists(
    st.tuples(st.sampled_from(sorted(SHAPES)), st.integers(0, 12) | st.sampled_from([255, 256, 257, 1000])), max_size=3
)
TEXTS = st.one_of(
    st.sampled_from(["", "id-1", 'a,"b\\\x1f\x7f', "\u2028\U0001f600", "\udc80", "x" * 600]), st.text(max_size=20)
)
SECONDS = st.one_of(st.floats(0.0, 1e-3), st.floats(0.0, 100.0), st.sampled_from([0.0, 1e-6, 5e-7, 1234.5678]))


@settings(max_examples=150, deadline=None)
@given(data=st.data(), ins=SIDES, outs=SIDES)
def test_a_quick_line_is_what_the_standard_library_says_of_the_call(data: st.DataObject, ins: Any, outs: Any) -> None:
    """Byte for byte: the quick line, the careful one, and one that is made from the call by plain means."""

    def body(which: Any, side: Any) -> bytes:
        parts = []
        for number, (datatype, count) in enumerate(side):
            size = struct.calcsize(SHAPES[datatype])
            length = count * size
            if count <= 12:
                raw = data.draw(st.binary(min_size=length, max_size=length))
            else:
                raw = (data.draw(st.binary(min_size=1, max_size=24)) * length)[:length]
            parts.append((f"t{number}", datatype, (count,), raw))
        return bytes(which(*parts))

    renderer = learned(record(message=body(request, ins), reply=body(answer, outs)))
    message, reply = body(request, ins), body(answer, outs)
    call = served_call(message=message)
    trail, attempt = call.trail, call.trail.attempts[0]
    call.request_id, call.body_id, call.version = (data.draw(TEXTS) for _ in range(3))
    call.metadata = data.draw(st.sampled_from([(), (("a", "b"),), *([call.metadata] * 3)]))
    call.protocol = data.draw(st.sampled_from(["http", "grpc"]))
    call.timeout_s = data.draw(st.one_of(st.none(), SECONDS, st.sampled_from([1e12, 1e20])))
    call.arrived_s = data.draw(st.sampled_from([0.5, 100.0, 4e6]))
    call.arrived_wall_s = 1.8e9 + data.draw(st.integers(0, 3_000_000)) / 1e6
    trail.received_s = call.arrived_s + data.draw(SECONDS)
    trail.routed_s = trail.received_s + data.draw(SECONDS)
    trail.admitted_s = attempt.started_s = trail.routed_s + data.draw(SECONDS)
    trail.answered_s = attempt.ended_s = trail.admitted_s + data.draw(SECONDS)
    ended_s = trail.answered_s + data.draw(SECONDS)
    call.deadline_s = ended_s + data.draw(st.sampled_from([-0.001, 0.5, 1e10, 1e22, math.inf]))
    trail.replicas_ready, trail.queued_ahead, trail.limit_at_admit = 3, 7, 16
    trail.in_flight_at_admit = data.draw(st.sampled_from([0, 4095, 4095, 4096, 2**40]))
    trail.responses, call.stream_position = data.draw(st.sampled_from([(1, 0), (1, 0), (1, 2), (0, 0), (3, 1)]))
    call.sequence = data.draw(st.sampled_from([None, SequenceStep(7, True, False), SequenceStep("a,b", False, True)]))
    each = PredictionRecord(call, Outcome.OK, None, reply, ended_s)
    quick = renderer.quick(each)
    assert quick == Renderer().line(each)
    if "\udc80" not in call.request_id + call.body_id + call.version:
        assert quick == plain_line(call, ended_s, sides(message, ins), sides(reply, outs, summary=True))


def ms(seconds: float) -> float:
    return (seconds * 1e6 + 1.5 * 2.0**52 - 1.5 * 2.0**52) / 1000.0


def plain_line(call: Call, ended_s: float, taken: Any, given: Any) -> bytes:
    """The line of an answered call with one attempt, by `json` alone."""
    trail, attempt = call.trail, call.trail.attempts[0]
    times = (call.arrived_s, trail.received_s, trail.routed_s, trail.admitted_s, trail.answered_s, ended_s)
    names = ("receive", "route", "queue", "upstream", "write")
    step = call.sequence
    return plain_json(
        {
            "schema": 1,
            "time": utc(call.arrived_wall_s),
            "request_id": call.request_id[:512],
            "trace_id": "ab" * 16 if ("traceparent",) in [pair[:1] for pair in call.metadata] else "",
            "protocol": call.protocol,
            "tenant": "anonymous",
            "class": "critical",
            "model": "fraud",
            "version_asked": call.version[:512],
            "model_served": "fraud",
            "version": "2",
            "version_routed": "2",
            "routed_by": "newest",
            "artifact_hash": "",
            "policy_revision": "0123456789ab",
            "pool": "default",
            "rung": "full",
            "rungs_left": [],
            "impact": "",
            "cache": "bypass",
            "status": "OK",
            "reason": "",
            "message": "",
            "outcome": "ok",
            "timeout_asked_ms": None if call.timeout_s is None else ms(call.timeout_s),
            "deadline_ms": None if math.isinf(call.deadline_s) else ms(call.deadline_s - call.arrived_s),
            "duration_ms": ms(ended_s - call.arrived_s),
            "stages_ms": {name: ms(b - a) for name, a, b in zip(names, times, times[1:], strict=False)},
            "replicas_ready": 3,
            "queued_ahead": 7,
            "in_flight_at_admit": trail.in_flight_at_admit,
            "limit_at_admit": 16,
            "attempt_count": 1,
            "attempts": [
                {
                    "replica": "default/10.0.0.1:8001",
                    "kind": "primary",
                    "start_ms": ms(attempt.started_s - call.arrived_s),
                    "duration_ms": ms(attempt.ended_s - attempt.started_s),
                    "outcome": "ok",
                }
            ],
            "body_id": call.body_id[:512],
            "stream_message": call.stream_position,
            "responses": trail.responses,
            "sequence": None if step is None else {"id": step.id, "start": step.start, "end": step.end},
            "input": taken,
            "output": given,
        }
    )


def sides(message: bytes, side: Any, *, summary: bool = False) -> dict[str, Any]:
    """What a line shows of a message whose tensors are these."""
    raws = [value for number, wire, a, b in pb.fields(message, 0, len(message)) if number in (6, 7) and wire == pb.LEN
            for value in [message[a:b]]]  # fmt: skip
    tensors = []
    for number, ((datatype, count), raw) in enumerate(zip(side, raws, strict=True)):
        shown: dict[str, Any] = {"name": f"t{number}", "datatype": datatype, "shape": [count]}
        if summary:
            values = struct.unpack(f"<{count}{SHAPES[datatype]}", raw)
            shown["count"] = count
            if values:
                some = [value if math.isfinite(value) else WORDS[str(value)] for value in values[:8]]
                if count > SUMMED_MAX:
                    shown["summary_cut"] = True
                    values = values[:: math.ceil(count / SUMMED_MAX)]
                shown["first"] = some
            usable = [value for value in values if math.isfinite(value)]
            if len(values) > 1:
                if len(usable) < len(values):
                    shown["non_finite"] = len(values) - len(usable)
                if usable:
                    shown["min"], shown["max"] = min(usable), max(usable)
                    if len(usable) == len(values) and max(map(abs, usable)) <= 1e300:
                        shown["mean"] = math.fsum(usable) / len(usable)
                    else:
                        shown["mean"] = math.fsum(value / len(usable) for value in usable)
        tensors.append(shown)
    return {
        "bytes": len(message),
        "digest": blake3(message).hexdigest()[:32],
        "tensors": tensors,
    }


WORDS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def plain_json(shown: object) -> bytes:
    return plain_text(shown).encode() + b"\n"


def plain_text(value: object) -> str:
    """As `json` writes it, but for exponents: those of the files begin at 1e-6, without a plus and leading zeros."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{plain_text(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(plain_text, value)) + "]"
    if isinstance(value, float):
        mantissa, e, exponent = repr(value).partition("e")
        if exponent == "-05":
            return format(Decimal(repr(value)), "f")
        return f"{mantissa}e{int(exponent)}" if e else mantissa
    return json.dumps(value, ensure_ascii=False)


# --- in the log -------------------------------------------------------------------------------------------------------


def learned_log(store: MemoryStore, **changes: int) -> RecordLog:
    log = RecordLog(RecordsPolicy(**({"flush_interval_ms": 1} | changes)), SystemClock(), InlineWorkers(), store)  # type: ignore[arg-type]
    log._renderer = learned(record())
    log._quick = QuickRenderer(log._renderer)
    return log


def test_lines_of_large_bodies_are_made_on_the_loop_only_so_far() -> None:
    large = record(message=request(("x", "FP32", (8000,), bytes(32_000))))
    renderer = learned(record(), large)
    assert renderer.quick(large)
    made = made_together([record(), *[large] * 20, record()], renderer.quick)
    # The ninth of the large ones begins below the bound and ends above it.
    assert [each.records if isinstance(each, Block) else 0 for each in made] == [1 + 9, *[0] * (20 - 9), 0]


async def test_lines_are_made_together_on_the_loop_and_what_takes_longer_keeps_its_place() -> None:
    store = MemoryStore()
    log = learned_log(store, flush_interval_ms=60_000)
    supervisor = Supervisor()
    log.start(supervisor)
    records = [record(number, tensors="full" if number == 5 else "summary") for number in range(_TOGETHER)]
    for each in records[:-1]:
        log.offer(each)
    await asyncio.sleep(0)
    assert not log._queue, "nothing is made as long as there are few"
    log.offer(records[-1])
    assert not log._queue, "and not before the answers of this turn are out"
    await asyncio.sleep(0)
    assert [type(each).__name__ for each in log._queue] == ["Block", "PredictionRecord", "Block"]
    now = log.statistics(200.0)
    lone = records[5].size_bytes
    assert (now["queued"], now["queued_bytes"]) == (_TOGETHER, (_TOGETHER - 1) * FIXED_BYTES + lone)
    assert now["oldest_age_s"] == 200.0 - records[0].ended_s
    trail = records[0].trail
    del records, each
    assert sys.getrefcount(trail) == 2, "of a call whose line is made only the line is left"
    await log.aclose()
    await supervisor.stop_all()
    assert [json.loads(line)["request_id"] for line in store.lines] == [f"r-{number}" for number in range(_TOGETHER)]
    assert log.statistics(0.0)["queued_bytes"] == 0
    assert log.statistics(0.0)["balanced"]


async def test_records_that_no_line_is_made_of_yet_count_at_the_bounds() -> None:
    log = learned_log(MemoryStore(), flush_interval_ms=60_000, queue_records_max=3)
    supervisor = Supervisor()
    log.start(supervisor)
    assert [log.offer(record(number)) for number in range(5)] == [True, True, True, False, False]
    now = log.statistics(200.0)
    assert (now["queued"], now["dropped"], now["balanced"]) == (3, {"queue_records": 2}, True)
    assert now["oldest_age_s"] == 200.0 - 100.011
    with pytest.raises(GatewayError):
        log.reserve()
    await log.aclose()
    await supervisor.stop_all()


async def test_blocks_that_could_not_be_written_are_counted_record_by_record() -> None:
    log = learned_log(MemoryStore(), flush_interval_ms=60_000)
    supervisor = Supervisor()
    log.start(supervisor)
    for number in range(_TOGETHER + 3):
        log.offer(record(number))
    await asyncio.sleep(0)
    assert len(log._queue) == 1

    def full(lines: bytes) -> None:
        raise no_space()

    log._store.append = full  # type: ignore[method-assign]
    now = await log.aclose(timeout_s=0.05)
    await supervisor.stop_all()
    assert (now["written"], now["dropped"], now["balanced"]) == (0, {"unwritten": _TOGETHER + 3}, True)


async def test_of_a_great_many_that_end_in_one_turn_most_are_left_to_the_worker() -> None:
    store = MemoryStore()
    log = learned_log(store)
    supervisor = Supervisor()
    log.start(supervisor)
    records = [record(number) for number in range(1000)]
    for each in records:
        log.offer(each)
    await asyncio.sleep(0)
    assert 0 < sum(each.records for each in log._queue if isinstance(each, Block)) < 100
    await log.aclose()
    await supervisor.stop_all()
    assert [json.loads(line)["request_id"] for line in store.lines] == [f"r-{number}" for number in range(1000)]
