"""A record's line: its fields, its bound, and that whatever a caller sent it is strict JSON."""

from __future__ import annotations

import json
import math
import re
import struct
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.records.document import page
from gateway.records.fields import DROPPED, RECORD
from gateway.records.quick import QUICK_BYTES_MAX, QuickRenderer
from gateway.records.record import PredictionRecord
from gateway.records.render import DIGEST_BYTES_MAX, LINE_BYTES_MAX, Renderer, dropped_line, utc
from gateway.records.tensors import SUMMED_MAX, VALUES_MAX
from gateway.wire.kserve import protobuf as pb
from tests.unit.records_support import ANSWER, REQUEST, answer, floats, record, request, served_call

DOCS = Path(__file__).resolve().parents[2] / "docs"


def _refuse(word: str) -> None:
    raise AssertionError(f"{word} is not JSON")


def parsed(line: bytes) -> dict[str, Any]:
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert len(line) <= LINE_BYTES_MAX
    shown: dict[str, Any] = json.loads(line.decode(), parse_constant=_refuse)
    return shown


def rendered(each: PredictionRecord) -> dict[str, Any]:
    return parsed(Renderer().line(each))


def paths(value: Any, before: str = "") -> set[str]:
    found: set[str] = set()
    if isinstance(value, dict):
        for key, inner in value.items():
            found.add(before + key)
            if key not in ("stages_ms", "reasons"):
                found |= paths(inner, f"{before}{key}.")
    elif isinstance(value, list):
        for inner in value:
            if isinstance(inner, dict) and "base64" not in inner:
                found |= paths(inner, f"{before.removesuffix('.')}[].")
    return found


def test_an_answered_call_has_every_field_of_the_table_and_no_other() -> None:
    shown = rendered(record())
    allowed = {field.name for field in RECORD}
    needed = {field.name for field in RECORD if not field.optional}
    assert paths(shown) <= allowed
    assert needed <= paths(shown)


def test_a_record_says_which_version_answered_where_and_how_long_each_stage_took() -> None:
    shown = rendered(record())
    assert (shown["model"], shown["version"], shown["rung"], shown["status"]) == ("fraud", "2", "full", "OK")
    assert shown["time"] == "2027-01-15T08:00:00.250000Z"
    assert shown["trace_id"] == "ab" * 16
    assert shown["protocol"] == "grpc"
    assert shown["deadline_ms"] == 500
    assert shown["stages_ms"] == {"receive": 1.0, "route": 1.0, "queue": 2.0, "upstream": 6.0, "write": 1.0}
    assert sum(shown["stages_ms"].values()) == pytest.approx(shown["duration_ms"])
    assert shown["attempts"] == [
        {"replica": "default/10.0.0.1:8001", "kind": "primary", "start_ms": 4.0, "duration_ms": 6.0, "outcome": "ok"}
    ]
    assert shown["input"]["tensors"] == [{"name": "x", "datatype": "FP32", "shape": [1, 3]}]
    assert shown["output"]["tensors"] == [
        {"name": "score", "datatype": "FP32", "shape": [1, 1], "count": 1, "first": [0.5]}
    ]


def test_what_deciders_saw_and_decided_stands_in_the_record() -> None:
    call = served_call()
    call.trail.note("hedge", "no_token", {"waiting": 3, "mean_in_flight": 1.5})
    line = rendered(PredictionRecord(call, Outcome.OK, None, ANSWER, 100.011))
    assert line["decisions"] == [{"by": "hedge", "decided": "no_token", "saw": {"waiting": 3, "mean_in_flight": 1.5}}]


def test_a_refused_call_has_a_record_with_its_reason_and_without_a_rung() -> None:
    call = served_call(message=None)
    call.trail.received_s = 0.0
    call.trail.attempts.clear()
    error = GatewayError(Reason.QUEUE_FULL, "the queue of fraud is full")
    shown = rendered(PredictionRecord(call, Outcome.OVERLOAD, error, None, 100.003, impact="Payments wait."))
    assert (shown["status"], shown["reason"], shown["rung"]) == ("RESOURCE_EXHAUSTED", "queue_full", "")
    assert shown["message"] == "the queue of fraud is full"
    assert shown["impact"] == "Payments wait."
    assert shown["stages_ms"] == {"receive": 3.0}
    assert shown["input"] == {"bytes": 0}


def test_an_abandoned_call_is_cancelled_and_its_unfinished_attempt_is_out_until_the_end() -> None:
    call = served_call()
    call.trail.answered_s = 0.0
    call.trail.attempts[0].outcome = None
    call.trail.attempts[0].ended_s = 0.0
    shown = rendered(PredictionRecord(call, Outcome.ABANDONED, None, None, 100.014))
    assert shown["status"] == Code.CANCELLED.name
    assert shown["attempts"][0]["outcome"] == "out"
    assert shown["attempts"][0]["duration_ms"] == 10.0


def test_tensors_none_says_nothing_of_the_bodies_but_their_sizes() -> None:
    shown = rendered(record(tensors="none"))
    assert shown["input"] == {"bytes": len(REQUEST)}
    assert shown["output"] == {"bytes": len(ANSWER)}


def test_numbers_that_json_does_not_have_are_strings() -> None:
    reply = answer(("y", "FP32", (4,), floats(math.nan, math.inf, -math.inf, 1.5)))
    full = rendered(record(reply=reply, tensors="full"))["output"]["tensors"][0]
    assert full["values"] == ["NaN", "Infinity", "-Infinity", 1.5]
    summary = rendered(record(reply=reply))["output"]["tensors"][0]
    assert summary["first"] == ["NaN", "Infinity", "-Infinity", 1.5]
    assert (summary["non_finite"], summary["min"], summary["max"]) == (3, 1.5, 1.5)


@pytest.mark.parametrize(
    ("datatype", "raw", "values"),
    [
        ("BOOL", b"\x01\x00", [True, False]),
        ("INT8", b"\xff\x01", [-1, 1]),
        ("UINT64", b"\xff" * 8, [2**64 - 1]),
        ("INT64", struct.pack("<q", -(2**63)), [-(2**63)]),
        ("FP16", struct.pack("<e", 1.5), [1.5]),
        ("BF16", b"\xc0\x3f", [1.5]),
        ("FP64", struct.pack("<d", 0.1), [0.1]),
        ("BYTES", b"\x02\x00\x00\x00hi\x01\x00\x00\x00\xff", ["hi", {"base64": "/w=="}]),
        ("UNHEARD_OF", b"\x00", []),
    ],
)
def test_values_of_every_datatype(datatype: str, raw: bytes, values: list[Any]) -> None:
    message = request(("x", datatype, (len(values),), raw))
    assert rendered(record(message=message, tensors="full"))["input"]["tensors"][0]["values"] == values


def test_typed_contents_are_read_too() -> None:
    contents = pb.len_field(2, pb.varint(5) + pb.varint(2**64 - 7)) + pb.len_field(8, b"a") + pb.len_field(8, b"b")
    message = pb.len_field(5, described_with(contents, "INT32")) + pb.len_field(5, described_with(contents, "BYTES"))
    first, second = rendered(record(message=message, tensors="full"))["input"]["tensors"]
    assert first["values"] == [5, -7]
    assert second["values"] == ["a", "b"]


def described_with(contents: bytes, datatype: str) -> bytes:
    return pb.text_field(1, "x") + pb.text_field(2, datatype) + pb.len_field(5, contents)


def test_many_values_are_cut_and_marked() -> None:
    message = request(("x", "FP32", (10_000,), bytes(40_000)), ("y", "FP32", (1,), bytes(4)))
    first, second = rendered(record(message=message, tensors="full"))["input"]["tensors"]
    assert len(first["values"]) == VALUES_MAX
    assert first["values_cut"] is True
    assert second["values"] == []
    assert second["values_cut"] is True


def test_a_long_text_is_cut_at_a_character_and_marked() -> None:
    element = "ä".encode() * 1000
    raw = struct.pack("<I", len(element) + 1) + b"x" + element
    shown = rendered(record(message=request(("x", "BYTES", (1,), raw)), tensors="full"))["input"]["tensors"][0]
    assert shown["values"] == ["x" + "ä" * 127]
    assert shown["values_cut"] is True


def test_a_summary_never_shows_text() -> None:
    raw = b"\x06\x00\x00\x00secret\x00\x00\x00\x00"
    shown = rendered(record(reply=answer(("y", "BYTES", (2,), raw))))
    assert "secret" not in json.dumps(shown)
    tensor = shown["output"]["tensors"][0]
    assert (tensor["count"], tensor["length_min"], tensor["length_max"]) == (2, 0, 6)


@pytest.mark.parametrize("count", [SUMMED_MAX, SUMMED_MAX + 1, 10_000])
@pytest.mark.parametrize(
    ("datatype", "code"), [("FP32", "f"), ("INT8", "b"), ("UINT16", "H"), ("FP64", "d"), ("FP16", "e")]
)
def test_a_summary_of_many_numbers_looks_at_some_from_beginning_to_end(count: int, datatype: str, code: str) -> None:
    values = [float(number % 120) if code in "fde" else number % 120 for number in range(count)]
    values[-1 - (count - 1) % -(-count // SUMMED_MAX)] = 125  # the last one that is looked at
    given = answer(("y", datatype, (count,), struct.pack(f"<{count}{code}", *values)))
    looked_at = values[:: -(-count // SUMMED_MAX)]
    renderer = QuickRenderer()
    for _ in range(3):  # its layout is known from the third time on
        (tensor,) = json.loads(renderer.line(record(reply=given)))["output"]["tensors"]
        assert tensor["first"] == values[:8]
        assert (tensor["count"], tensor.get("summary_cut", False)) == (count, count > SUMMED_MAX)
        assert (tensor["min"], tensor["max"]) == (min(looked_at), 125)
        assert tensor["mean"] == pytest.approx(sum(looked_at) / len(looked_at))
    if len(given) < QUICK_BYTES_MAX - len(REQUEST):
        assert json.loads(renderer.quick(record(reply=given)))["output"]["tensors"] == [tensor]


def test_bf16_and_text_are_summed_up_from_some_of_their_elements_too() -> None:
    halves = [0x3F80 + number % 100 for number in range(3000)]
    shown = rendered(record(reply=answer(("y", "BF16", (3000,), struct.pack("<3000H", *halves)))))
    tensor = shown["output"]["tensors"][0]
    looked_at = [struct.unpack("<f", struct.pack("<I", half << 16))[0] for half in halves[::12]]
    assert tensor["first"] == looked_at[:1] + [
        struct.unpack("<f", struct.pack("<I", half << 16))[0] for half in halves[1:8]
    ]
    assert (tensor["min"], tensor["max"], tensor["summary_cut"]) == (min(looked_at), max(looked_at), True)
    raw = b"".join(struct.pack("<I", number % 7) + b"x" * (number % 7) for number in range(1000))
    text = rendered(record(reply=answer(("y", "BYTES", (1000,), raw))))["output"]["tensors"][0]
    assert (text["count"], text["length_max"], text["summary_cut"]) == (SUMMED_MAX, 6, True)


def test_a_thirty_megabyte_request_has_a_bounded_record() -> None:
    big = request(("x", "FP32", (7_500_000,), bytes(30_000_000)))
    shown = rendered(record(message=big, tensors="full"))
    assert shown["input"]["bytes"] == len(big)
    assert len(shown["input"]["tensors"][0]["values"]) == VALUES_MAX


@pytest.mark.parametrize(("more", "has_one"), [(0, True), (1, False)])
@pytest.mark.parametrize("tensors", ["summary", "full"])
def test_bodies_over_a_mebibyte_have_no_digest(more: int, has_one: bool, tensors: Literal["summary", "full"]) -> None:
    def of(elements: int) -> bytes:
        return request(("x", "FP32", (elements,), bytes(4 * elements)))

    about = DIGEST_BYTES_MAX // 4 - 64
    elements = about + (DIGEST_BYTES_MAX - len(of(about))) // 4 + more
    big = of(elements)
    assert abs(DIGEST_BYTES_MAX - len(big)) <= 4
    for _ in range(2):  # the second time its layout is known
        shown = rendered(record(message=big, tensors=tensors))["input"]
        assert ("digest" in shown) is has_one
        assert shown["tensors"][0]["shape"] == [elements]


def test_a_line_that_would_be_too_long_is_made_again_without_tensors() -> None:
    names = tuple(("\x00" * 256, "FP32", tuple([2**62] * 32), bytes(4)) for _ in range(64))
    shown = rendered(record(message=request(*names), reply=answer(*names), tensors="full"))
    assert shown["input"]["omitted"] == shown["output"]["omitted"] == "line_too_long"
    assert shown["version"] == "2"


def test_more_tensors_than_are_shown_are_counted() -> None:
    message = request(*(("x", "FP32", (1,), bytes(4)) for _ in range(70)))
    shown = rendered(record(message=message))["input"]
    assert (len(shown["tensors"]), shown["tensors_cut"]) == (64, 6)


def test_a_hostile_name_stays_one_line_of_json() -> None:
    call = served_call()
    call.model = 'a"\\\n\r\x1b[2J\udcff' + "x" * 10_000
    call.body_id = "\u2028" * 100_000
    shown = rendered(PredictionRecord(call, Outcome.OK, None, ANSWER, 100.011))
    assert len(shown["model"]) == 512
    assert len(shown["body_id"]) == 512


def test_a_record_that_waits_keeps_neither_the_call_nor_its_headers_nor_a_traceback() -> None:
    call = served_call()
    call.request_id = "i" * 10_000
    call.metadata = (("tracestate", "s" * 10_000), ("traceparent", "00-" + "ab" * 5_000))
    call.trail.attempts[0].text = "t" * 10_000
    error = GatewayError(Reason.INTERNAL, "a fault" * 1000)
    waiting = PredictionRecord(call, Outcome.GATEWAY_FAULT, error, ANSWER, 100.011)
    before = Renderer().line(waiting)
    waiting.keep()
    assert {type(getattr(waiting, name)).__name__ for name in PredictionRecord.__slots__} <= {
        "float", "int", "str", "bytes", "bool", "tuple", "NoneType", "Identity", "Trail", "Code", "Outcome",
    }  # fmt: skip
    held = [waiting.request_id, waiting.text, call.trail.attempts[0].text, *(value for _, value in waiting.metadata)]
    assert [len(text) for text in held] == [512, 512, 512, 55]
    assert Renderer().line(waiting) == before


def test_texts_as_long_as_a_body_are_cut_at_once() -> None:
    call = served_call()
    call.model = call.version = call.body_id = "x" * 100_000
    made = PredictionRecord(call, Outcome.OK, None, ANSWER, 100.011)
    assert [len(text) for text in (made.model, made.version, made.body_id)] == [512, 512, 512]


@settings(max_examples=150, deadline=None)
@given(message=st.binary(max_size=400), reply=st.binary(max_size=400), full=st.booleans())
def test_any_bytes_make_a_strict_line(message: bytes, reply: bytes, full: bool) -> None:
    rendered(record(message=message, reply=reply, tensors="full" if full else "summary"))


@settings(max_examples=100, deadline=None)
@given(
    cut=st.integers(0, 60),
    datatype=st.sampled_from(["FP32", "BYTES", "BOOL", "INT64", "BF16"]),
    raw=st.binary(max_size=60),
)
def test_a_truncated_or_miscounted_message_makes_a_strict_line(cut: int, datatype: str, raw: bytes) -> None:
    message = request(("x", datatype, (3,), raw))
    for tensors in ("summary", "full"):
        rendered(record(message=message[: max(0, len(message) - cut)], tensors=tensors))


def test_a_dropped_line_has_its_table_s_fields() -> None:
    shown = parsed(dropped_line(3, {"queue_records": 3}, 1_800_000_000.0, 1_800_000_001.0))
    assert set(shown) == {field.name for field in DROPPED}
    assert shown["since"] == "2027-01-15T08:00:00.000000Z"


def test_time_is_utc_with_microseconds_and_never_fails() -> None:
    assert utc(0.0) == "1970-01-01T00:00:00.000000Z"
    assert utc(1_800_000_000.9999999) == "2027-01-15T08:00:01.000000Z"
    for odd in (math.nan, math.inf, -1.0, 1e18):
        assert re.fullmatch(r"1970-01-01T00:00:00\.\d{6}Z", utc(odd))


def test_the_manual_is_the_table() -> None:
    assert (DOCS / "records.md").read_text() == page()
