"""A record as one line of strict JSON.

The fields and their meanings stand in `FIELDS`, from which `docs/records.md` is made. No line is longer than
`LINE_BYTES_MAX`: a record that would be is rendered again with less in it, and says so.

Half of a call's budget for everything that follows it is spent here, so what most lines of a model have in common is
kept as finished JSON. A raw value may be more than the value of its member: it brings along the members behind it.
"""

from __future__ import annotations

import functools
import json
import math
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec
from blake3 import blake3

from gateway.core.call import Attempt, Note, SequenceStep, Trail
from gateway.core.codes import Code
from gateway.core.criticality import CLASS_NAMES
from gateway.observe.stages import STAGES, stage_seconds
from gateway.records.layout import Layout, Layouts
from gateway.records.record import TEXT_MAX, PredictionRecord, trace_id
from gateway.records.tensors import (
    ANSWER_RAW,
    REQUEST_RAW,
    TENSORS_FIELD,
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
DIGEST_BYTES_MAX = 1024 * 1024
"""Larger bodies have no digest: no call like them is ever sent again, shared or cached, and it costs milliseconds."""
ATTEMPTS_MAX = 32
"""Attempts shown; `attempt_count` counts all."""

_CODE_NAMES = {int(code): code.name for code in Code}
DIGEST_BYTES = 16
_INFINITY = float("inf")
MEMO_MAX = 1024
ROUND = 1.5 * 2.0**52
"""A number of microseconds plus this, minus this, is whole: half of the price of `round` or `int`."""
_THREE_DIGITS = tuple(f"{number:03d}" for number in range(1000))

_encode = msgspec.json.Encoder().encode

K = TypeVar("K")


class _Line(msgspec.Struct, gc=False):
    """The fields in their order. `protocol` brings along those from `tenant` to `reason`."""

    schema: int
    time: str
    request_id: str
    trace_id: str
    protocol: msgspec.Raw
    message: str
    outcome: str
    timeout_asked_ms: float | None
    deadline_ms: float | None
    duration_ms: float
    stages_ms: object
    replicas_ready: int
    queued_ahead: int
    in_flight_at_admit: int
    limit_at_admit: int
    attempt_count: int
    attempts: object
    body_id: str
    stream_message: int
    responses: int
    sequence: object
    input: object = None
    output: object = None
    decisions: object = msgspec.UNSET
    """Absent where there is none."""


class _AllStages(msgspec.Struct, gc=False):
    receive: float
    route: float
    queue: float
    upstream: float
    write: float


class _Attempt(msgspec.Struct, gc=False):
    """`replica` brings along `kind`."""

    replica: msgspec.Raw
    start_ms: float
    duration_ms: float
    outcome: str


class _Body(msgspec.Struct, gc=False):
    bytes: int
    digest: str
    tensors: object


class Renderer:
    """Makes lines. Keeps bounded memos of what most lines have in common, so not for two threads at once; but what it
    learns of layouts its `twin`, for another thread, knows too.
    """

    def __init__(self, twin: Renderer | None = None) -> None:
        self._tensors = TensorReader()
        self._requests: Layouts = Layouts(REQUEST_RAW, summary=False) if twin is None else twin._requests
        self._answers: Layouts = Layouts(ANSWER_RAW, summary=True) if twin is None else twin._answers
        self._common: dict[tuple[object, ...], str] = {}
        self._tried: dict[tuple[str, str], str] = {}
        self._second_s = float("-inf")
        self._second = ""

    def line(self, record: PredictionRecord) -> bytes:
        """The record's line, with its line break. Never raises for what a caller or a replica sent."""
        line = self._fields(record)
        line.input = self._body(record, record.model, record.message, record.input_bytes, self._requests)
        line.output = self._body(record, record.model, record.reply, record.output_bytes, self._answers)
        made = encode(line)
        if len(made) > LINE_BYTES_MAX:
            line.input = {"bytes": record.input_bytes, "omitted": "line_too_long"}
            line.output = {"bytes": record.output_bytes, "omitted": "line_too_long"}
            made = encode(line)
        return made

    def _fields(self, record: PredictionRecord) -> _Line:
        trail = record.trail
        attempts = trail.attempts
        arrived_s, ended_s = record.arrived_s, record.ended_s
        timeout_s, deadline_s, sequence = record.timeout_s, record.deadline_s, record.sequence
        return _Line(
            SCHEMA,
            self._time(record.arrived_wall_s),
            record.request_id[:TEXT_MAX],
            trace_id(record.metadata),
            msgspec.Raw(self._who_and_where(record, trail).encode()),
            record.text,
            record.outcome._value_,  # `value` is a property that is written in Python
            None if timeout_s is None else (timeout_s * 1e6 + ROUND - ROUND) / 1000.0,
            ((deadline_s - arrived_s) * 1e6 + ROUND - ROUND) / 1000.0 if deadline_s < _INFINITY else None,
            ((ended_s - arrived_s) * 1e6 + ROUND - ROUND) / 1000.0,
            _stages(trail, arrived_s, ended_s),
            trail.replicas_ready,
            trail.queued_ahead,
            trail.in_flight_at_admit,
            trail.limit_at_admit,
            len(attempts),
            [self._attempt(each, arrived_s, ended_s) for each in attempts[:ATTEMPTS_MAX]] if attempts else attempts,
            record.body_id,
            record.stream_position,
            trail.responses,
            None if sequence is None else sequence_shown(sequence),
            decisions=msgspec.UNSET if trail.notes is None else [_decision(note) for note in trail.notes],
        )

    def _who_and_where(self, record: PredictionRecord, trail: Trail) -> str:
        """`protocol` and the fields behind it up to `reason`: the same in nearly all calls of a model."""
        key = (
            record.protocol,
            record.identity.tenant,
            record.criticality,
            record.model,
            record.version,
            record.answered,
            trail.version_served,
            trail.version_routed,
            trail.routed_by,
            trail.artifact_hash,
            trail.policy_revision,
            trail.pool,
            trail.rung,
            record.impact,
            record.code,
            record.reason,
        )
        found = self._common.get(key)
        if found is None:
            model = record.model
            shown = {
                "protocol": record.protocol,
                "tenant": record.identity.tenant,
                "class": CLASS_NAMES[record.criticality],
                "model": model,
                "version_asked": record.version,
                "model_served": model if record.answered else "",
                "version": trail.version_served[:TEXT_MAX],
                "version_routed": trail.version_routed,
                "routed_by": trail.routed_by,
                "artifact_hash": trail.artifact_hash,
                "policy_revision": trail.policy_revision,
                "pool": trail.pool,
                "rung": trail.rung or ("full" if record.answered else ""),
                "rungs_left": [],
                "impact": record.impact,
                "cache": "bypass",
                "status": _CODE_NAMES[record.code],
                "reason": record.reason,
            }
            found = _spliced(self._common, key, shown)
        return found

    def _head(self, attempt: Attempt) -> str:
        """An attempt's `replica` and `kind`."""
        key = (attempt.replica, attempt.kind)
        found = self._tried.get(key)
        if found is None:
            found = _spliced(self._tried, key, {"replica": attempt.replica, "kind": attempt.kind})
        return found

    def _attempt(self, attempt: Attempt, arrived_s: float, ended_s: float) -> _Attempt | dict[str, Any]:
        head = msgspec.Raw(self._head(attempt).encode())
        started_s, outcome = attempt.started_s, attempt.outcome
        start_ms = ((started_s - arrived_s) * 1e6 + ROUND - ROUND) / 1000.0
        duration_ms = (((attempt.ended_s or ended_s) - started_s) * 1e6 + ROUND - ROUND) / 1000.0
        told = "out" if outcome is None else outcome._value_
        if not attempt.text:
            return _Attempt(head, start_ms, duration_ms, told)
        text = attempt.text[:TEXT_MAX]
        return {"replica": head, "start_ms": start_ms, "duration_ms": duration_ms, "outcome": told, "text": text}

    def _body(self, record: PredictionRecord, model: str, message: bytes | None, size: int, layouts: Layouts) -> object:
        """One side, whatever it is."""
        if message is None:
            return like_before(None, None, size, record.omitted)
        shown: dict[str, Any] = {"bytes": size}
        if len(message) <= DIGEST_BYTES_MAX:
            shown["digest"] = digest_of(message)
        layout = None if record.tensors == "full" else layouts.find(model, message)
        if layout is None:
            self._side(shown, model, message, layouts, full=record.tensors == "full")
        else:
            shown["tensors"] = layout.tensors(message)
        return shown

    def _side(self, shown: dict[str, Any], model: str, message: bytes, layouts: Layouts, *, full: bool) -> None:
        """Read all of it."""
        try:
            tensors, count = self._tensors.read(message, TENSORS_FIELD, layouts.raw_field)
            if full:
                budget = Budget()
                shown["tensors"] = [with_values(each, budget) for each in tensors]
            elif layouts.summary:
                shown["tensors"] = [with_summary(each) for each in tensors]
            else:
                shown["tensors"] = [shape_only(each) for each in tensors]
            if count > len(tensors):
                shown["tensors_cut"] = count - len(tensors)
            if not full:
                layouts.learn(model, message, tensors, count)
        except WireError:
            # Refused calls are recorded too, and their bodies may be anything.
            shown.pop("tensors", None)
            shown["omitted"] = "unreadable"

    def _time(self, wall_s: float) -> str:
        past_s = wall_s - self._second_s
        micro = int(past_s * 1e6 + 0.5) if 0.0 <= past_s < 1.0 else 1_000_000
        if micro < 1_000_000:
            return f"{self._second}.{_THREE_DIGITS[micro // 1000]}{_THREE_DIGITS[micro % 1000]}Z"
        text = utc(wall_s)
        if math.isfinite(wall_s):
            self._second_s, self._second = float(round(wall_s * 1e6) // 1_000_000), text.partition(".")[0]
        return text


def _decision(note: Note) -> dict[str, Any]:
    return {"by": note.decider, "decided": note.word, "saw": note.saw}


def like_before(message: bytes | None, layout: Layout | None, size: int, omitted: str) -> object:
    """One side whose layout is known, or of which nothing is to be shown."""
    if message is not None and layout is not None:
        return _Body(size, digest_of(message), layout.tensors(message))
    return {"bytes": size, "omitted": omitted} if omitted else {"bytes": size}


def digest_of(message: bytes) -> str:
    """The first 128 bits of BLAKE3, in hex. 1 MiB takes 0.15 ms where BLAKE2b takes 1.3."""
    return blake3(message).digest(DIGEST_BYTES).hex()


def _spliced(memo: dict[K, str], key: K, shown: dict[str, Any]) -> str:
    """The value of the first of these members, with the others behind it."""
    if len(memo) >= MEMO_MAX:
        memo.clear()
    first = next(iter(shown))
    found = memo[key] = encode(shown)[len(first) + 4 : -2].decode()
    return found


def _stages(trail: Trail, arrived_s: float, ended_s: float) -> _AllStages | dict[str, float]:
    received_s, routed_s, admitted_s, answered_s = trail.received_s, trail.routed_s, trail.admitted_s, trail.answered_s
    if 0.0 < arrived_s <= received_s <= routed_s <= admitted_s <= answered_s <= ended_s:
        # All of them, in their order: what `stage_seconds` would say.
        return _AllStages(
            ((received_s - arrived_s) * 1e6 + ROUND - ROUND) / 1000.0,
            ((routed_s - received_s) * 1e6 + ROUND - ROUND) / 1000.0,
            ((admitted_s - routed_s) * 1e6 + ROUND - ROUND) / 1000.0,
            ((answered_s - admitted_s) * 1e6 + ROUND - ROUND) / 1000.0,
            ((ended_s - answered_s) * 1e6 + ROUND - ROUND) / 1000.0,
        )
    stages = zip(STAGES, stage_seconds(trail, arrived_s, ended_s), strict=True)
    return {name: (value * 1e6 + ROUND - ROUND) / 1000.0 for name, value in stages if value >= 0.0}


def sequence_shown(step: SequenceStep) -> dict[str, Any]:
    shown = step.id[:TEXT_MAX] if isinstance(step.id, str) else step.id
    return {"id": shown, "start": step.start, "end": step.end}


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


def encode(shown: object) -> bytes:
    """Strict JSON and a line break."""
    try:
        return _encode(shown) + b"\n"
    except (UnicodeEncodeError, OverflowError):
        # Lone surrogates out of header text, or integers past 64 bits; the slow encoder escapes them.
        return _encode(_escaped(shown)) + b"\n"


def _escaped(value: Any) -> Any:
    """The same with all that is not a container made into JSON already."""
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    if isinstance(value, dict):
        return {key: _escaped(each) for key, each in value.items() if each is not msgspec.UNSET}
    if isinstance(value, list | tuple):
        return [_escaped(each) for each in value]
    if isinstance(value, msgspec.Raw):
        return value
    return msgspec.Raw(json.dumps(value, allow_nan=False).encode())
