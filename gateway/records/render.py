"""A record as one line of strict JSON. Runs in a worker, never on the loop.

The fields and their meanings stand in `FIELDS`, from which `docs/records.md` is made. No line is longer than
`LINE_BYTES_MAX`: a record that would be is rendered again with less in it, and says so.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from datetime import UTC, datetime
from typing import Any

import orjson

from gateway.core.call import Attempt, SequenceStep
from gateway.core.codes import Code
from gateway.observe.stages import STAGES, stage_seconds
from gateway.records.record import TEXT_MAX, PredictionRecord
from gateway.records.tensors import (
    ANSWER_RAW,
    ANSWER_TENSORS,
    REQUEST_RAW,
    REQUEST_TENSORS,
    Budget,
    TensorReader,
    shape_only,
    with_summary,
    with_values,
)
from gateway.wire.kserve.protobuf import WireError

SCHEMA = 1
LINE_BYTES_MAX = 256 * 1024
"""Bytes of one line, its line break included."""
ATTEMPTS_MAX = 32
"""Attempts shown; `attempt_count` counts all."""

_CODE_NAMES = {int(code): code.name for code in Code}


class Renderer:
    """Makes lines. Keeps a bounded memo of tensor descriptions, so one per worker, not shared by threads."""

    def __init__(self) -> None:
        self._tensors = TensorReader()

    def line(self, record: PredictionRecord) -> bytes:
        """The record's line, with its line break. Never raises for what a caller or a replica sent."""
        shown = self._fields(record)
        self._bodies(record, shown)
        line = encode(shown)
        if len(line) <= LINE_BYTES_MAX:
            return line
        shown = self._fields(record)
        shown["input"] = {"bytes": record.input_bytes, "omitted": "line_too_long"}
        shown["output"] = {"bytes": record.output_bytes, "omitted": "line_too_long"}
        return encode(shown)

    def _fields(self, record: PredictionRecord) -> dict[str, Any]:
        trail = record.trail
        attempts = trail.attempts
        arrived_s = record.arrived_s
        ended_s = record.ended_s
        stages = stage_seconds(trail, arrived_s, ended_s)
        answered = record.answered
        return {
            "schema": SCHEMA,
            "time": utc(record.arrived_wall_s),
            "request_id": record.request_id,
            "trace_id": record.trace_id,
            "protocol": record.protocol,
            "tenant": record.tenant,
            "model": record.model,
            "version_asked": record.version,
            "model_served": record.model if answered else "",
            "version": trail.version_served[:TEXT_MAX],
            "version_routed": trail.version_routed,
            "routed_by": trail.routed_by,
            "artifact_hash": trail.artifact_hash,
            "policy_revision": trail.policy_revision,
            "pool": trail.pool,
            "rung": trail.rung or ("full" if answered else ""),
            "rungs_left": [],
            "impact": record.impact,
            "cache": "bypass",
            "status": _CODE_NAMES[record.code],
            "reason": record.reason,
            "message": record.text,
            "outcome": record.outcome.value,
            "timeout_asked_ms": None if record.timeout_s is None else _ms(record.timeout_s),
            "deadline_ms": _ms(record.budget_s) if math.isfinite(record.budget_s) else None,
            "duration_ms": _ms(ended_s - arrived_s),
            "stages_ms": {name: _ms(value) for name, value in zip(STAGES, stages, strict=True) if value >= 0.0},
            "replicas_ready": trail.replicas_ready,
            "queued_ahead": trail.queued_ahead,
            "in_flight_at_admit": trail.in_flight_at_admit,
            "limit_at_admit": trail.limit_at_admit,
            "attempt_count": len(attempts),
            "attempts": [_attempt(each, arrived_s, ended_s) for each in attempts[:ATTEMPTS_MAX]],
            "body_id": record.body_id,
            "stream_message": record.stream_position,
            "responses": trail.responses,
            "sequence": _sequence(record.sequence),
        }

    def _bodies(self, record: PredictionRecord, shown: dict[str, Any]) -> None:
        taken: dict[str, Any] = {"bytes": record.input_bytes}
        given: dict[str, Any] = {"bytes": record.output_bytes}
        shown["input"] = taken
        shown["output"] = given
        if record.omitted:
            taken["omitted"] = given["omitted"] = record.omitted
            return
        if record.message is not None:
            taken["digest"] = hashlib.blake2b(record.message, digest_size=16).hexdigest()
            self._side(taken, record.message, REQUEST_TENSORS, REQUEST_RAW, record.tensors == "full", summary=False)
        if record.reply is not None:
            given["digest"] = hashlib.blake2b(record.reply, digest_size=16).hexdigest()
            self._side(given, record.reply, ANSWER_TENSORS, ANSWER_RAW, record.tensors == "full", summary=True)

    def _side(
        self, shown: dict[str, Any], message: bytes, tensor_field: int, raw_field: int, full: bool, *, summary: bool
    ) -> None:
        try:
            tensors, count = self._tensors.read(message, tensor_field, raw_field)
            if full:
                budget = Budget()
                shown["tensors"] = [with_values(each, budget) for each in tensors]
            elif summary:
                shown["tensors"] = [with_summary(each) for each in tensors]
            else:
                shown["tensors"] = [shape_only(each) for each in tensors]
            if count > len(tensors):
                shown["tensors_cut"] = count - len(tensors)
        except WireError:
            # Refused calls are recorded too, and their bodies may be anything.
            shown.pop("tensors", None)
            shown["omitted"] = "unreadable"


def _sequence(step: SequenceStep | None) -> dict[str, Any] | None:
    if step is None:
        return None
    shown = step.id[:TEXT_MAX] if isinstance(step.id, str) else step.id
    return {"id": shown, "start": step.start, "end": step.end}


def _attempt(attempt: Attempt, arrived_s: float, ended_s: float) -> dict[str, Any]:
    shown = {
        "replica": attempt.replica,
        "kind": attempt.kind,
        "start_ms": _ms(attempt.started_s - arrived_s),
        "duration_ms": _ms((attempt.ended_s or ended_s) - attempt.started_s),
        "outcome": "out" if attempt.outcome is None else attempt.outcome.value,
    }
    if attempt.text:
        shown["text"] = attempt.text[:TEXT_MAX]
    return shown


def dropped_line(count: int, reasons: dict[str, int], since_wall_s: float, until_wall_s: float) -> bytes:
    """The line that stands for records which were dropped."""
    return encode(
        {
            "schema": SCHEMA,
            "dropped": count,
            "since": utc(since_wall_s),
            "until": utc(until_wall_s),
            "reasons": reasons,
        }
    )


def utc(wall_s: float) -> str:
    """`2026-11-29T10:15:30.123456Z`. Seconds outside the calendar's range give its first instant."""
    whole, rest = divmod(round(wall_s * 1_000_000), 1_000_000) if math.isfinite(wall_s) else (0, 0)
    return f"{_second(whole)}.{rest:06d}Z"


@functools.lru_cache(maxsize=64)
def _second(whole: int) -> str:
    if not 0 <= whole < 253402300800:
        whole = 0
    return datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def encode(shown: dict[str, Any]) -> bytes:
    """Strict JSON and a line break."""
    try:
        return orjson.dumps(shown, option=orjson.OPT_APPEND_NEWLINE)
    except orjson.JSONEncodeError:
        # Lone surrogates out of header text, or integers past 64 bits; the slow encoder escapes them.
        return json.dumps(shown, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def _ms(seconds: float) -> float:
    # Microseconds are enough; `round` with digits costs three times as much.
    return int(seconds * 1e6 + 0.5) / 1000
