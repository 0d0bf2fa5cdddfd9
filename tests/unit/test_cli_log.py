"""`sluice log tail`: what a line for people says of streams and sequences."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.core.call import SequenceStep
from gateway.core.outcome import Outcome
from gateway.records.record import PredictionRecord
from gateway.records.render import Renderer
from gateway.records.tail import pretty
from tests.unit.records_support import ANSWER, record, served_call


def shown(*, message: int = 0, responses: int = 1, sequence: SequenceStep | None = None, reason: str = "") -> str:
    """What stands between the replica and the tenant."""
    call = served_call()
    call.stream_position, call.sequence, call.trail.responses = message, sequence, responses
    made = PredictionRecord(call, Outcome.OK, None, ANSWER, 100.011)
    fields: dict[str, Any] = json.loads(Renderer().line(made))
    fields["reason"] = reason
    line = pretty(json.dumps(fields).encode())
    return line.partition("10.0.0.1:8001")[2].partition("  tenant=")[0].strip()


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ({}, ""),
        ({"responses": 16}, "16 responses"),
        ({"responses": 0}, "0 responses"),
        ({"message": 3, "responses": 12}, "message 3  12 responses"),
        ({"message": 3}, "message 3"),
        ({"responses": 1, "reason": "deadline"}, "1 response  deadline"),
        ({"sequence": SequenceStep(7, start=True, end=False)}, "sequence 7 start"),
        ({"sequence": SequenceStep("till-7", start=False, end=False)}, "sequence 'till-7'"),
        ({"message": 1, "sequence": SequenceStep(7, start=True, end=True)}, "message 1  sequence 7 start+end"),
    ],
    ids=str,
)
def test_a_line_says_of_which_conversation_a_call_was_part(call: dict[str, Any], told: str) -> None:
    assert shown(**call) == told


def test_a_record_of_before_there_were_streams_is_shown_too() -> None:
    fields: dict[str, Any] = json.loads(Renderer().line(record()))
    for name in ("stream_message", "responses", "sequence"):
        del fields[name]
    assert "fraud/2" in pretty(json.dumps(fields).encode())
    assert "torn" not in pretty(json.dumps(fields).encode())
