"""The fields of a line in the record files: the table that `docs/records.md` is made from."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.core.call import NOTED_BY


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its name (a dot leads into an object, `[]` into a list), type, and meaning. `optional`: it may be
    absent; all others stand in every line of their kind.
    """

    name: str
    type: str
    meaning: str
    optional: bool = False


def _o(name: str, type_: str, meaning: str) -> Field:
    return Field(name, type_, meaning, optional=True)


RECORD: tuple[Field, ...] = (
    Field("schema", "integer", "1. Goes up when a field changes its meaning or goes away; new fields do not raise it."),
    Field("time", "string", "When the call's first byte was seen, UTC, microseconds."),
    Field("request_id", "string", "`x-request-id`, the caller's or the gateway's own."),
    Field("trace_id", "string", "32 hex digits of `traceparent`; empty if the caller sent none."),
    Field("protocol", "string", "`http` or `grpc`: what the caller spoke."),
    Field("tenant", "string", "Who called, by key, token, certificate or header; `anonymous` if nobody is asked."),
    Field(
        "class",
        "string",
        "The class that the call was served as: `critical_plus`, `critical`, `sheddable_plus` or `sheddable`; "
        "`critical` where it was refused before that was decided.",
    ),
    Field("model", "string", "The model that the caller asked for, as sent, at most 512 characters."),
    Field("version_asked", "string", "The version that the caller named; empty if none."),
    Field("model_served", "string", "The model that answered; empty if none did."),
    Field("version", "string", "The version that answered, as the replica returned it; empty if none did."),
    Field("version_routed", "string", "The version that the gateway chose; empty if it came to no choice."),
    Field("routed_by", "string", "Why that version: `asked`, `split`, `newest`, or `sequence`: where it began."),
    Field(
        "artifact_hash",
        "string",
        "Hash of the version's artifact, from its manifest. Empty: policies name no manifests yet.",
    ),
    Field("policy_revision", "string", "The policies under which the call was decided."),
    Field("pool", "string", "The pool chosen for it."),
    Field("rung", "string", "The rung that answered: `full`; empty if none did."),
    Field(
        "rungs_left", "array", "Rungs that were tried before, each with its reason. Empty: ladders have one rung yet."
    ),
    Field("impact", "string", "What users feel, in the policy's words; empty for an answer of the first rung."),
    Field("cache", "string", "`bypass`: there is no cache yet."),
    Field("status", "string", "Canonical code by name: `OK`, `UNAVAILABLE`, … (docs/protocols.md)."),
    Field(
        "reason",
        "string",
        "Why the call failed or was refused, of the closed list; empty if it was answered or its caller left.",
    ),
    Field("message", "string", "The error text that the caller got, at most 512 characters."),
    Field("outcome", "string", "How the call ended: `ok`, `expired`, `abandoned`, …"),
    Field("timeout_asked_ms", "number or null", "What the caller asked for; null if nothing."),
    Field(
        "deadline_ms", "number or null", "The budget that the call got, from its first byte; null if it came to none."
    ),
    Field("duration_ms", "number", "From the first byte to the end of the reply."),
    Field(
        "stages_ms",
        "object",
        "`receive`, `route`, `queue`, `upstream`, `write`: stages that the call entered, adding up to `duration_ms`. "
        "Of a stream `upstream` lasts to its first response and `write` to its last.",
    ),
    Field("replicas_ready", "integer", "Replicas that could have taken the call when it was routed."),
    Field(
        "queued_ahead",
        "integer",
        "Calls that waited before it when it began to wait, or was refused because so many did.",
    ),
    Field("in_flight_at_admit", "integer", "Calls in flight for this version when it got its permit."),
    Field("limit_at_admit", "integer", "How many could have been."),
    Field("attempt_count", "integer", "Sends to replicas."),
    Field("attempts", "array", "The first 32 of them, in the order of their starts."),
    Field("attempts[].replica", "string", "`pool/host:port`."),
    Field("attempts[].kind", "string", "`primary`, `retry` or `hedge`."),
    Field("attempts[].start_ms", "number", "From the call's first byte."),
    Field(
        "attempts[].duration_ms", "number", "Until the attempt was decided, or until the call ended if it never was."
    ),
    Field(
        "attempts[].outcome",
        "string",
        "How it ended (`gateway/core/outcome.py`); `out` if the call ended before it did.",
    ),
    _o("attempts[].text", "string", "The replica's words where it failed, at most 512 characters."),
    Field("body_id", "string", "The protocol's own `id` out of the body."),
    Field("stream_message", "integer", "The how-manieth message of its stream the call was, from 1; 0 if it was none."),
    Field(
        "responses",
        "integer",
        "Responses that the caller was given, errors inside a stream among them. `output` shows the first one.",
    ),
    Field("sequence", "object or null", "The step of a sequence that the call was: `id`, `start`, `end`."),
    Field("input", "object", "The request, in the canonical form in which it goes to a replica."),
    Field("input.bytes", "integer", "Size of that form; 0 if the body never arrived."),
    _o(
        "input.digest",
        "string",
        "The first 128 bits of its BLAKE3, hex. Absent under `tensors: none`, and for bodies over 1 MiB.",
    ),
    _o("input.tensors", "array", "The first 64 tensors."),
    _o("input.tensors[].name", "string", "At most 256 characters."),
    _o("input.tensors[].datatype", "string", "As the protocol names it."),
    _o("input.tensors[].shape", "array", "As sent; the first 32 dimensions."),
    _o("input.tensors[].values", "array", "Under `tensors: full`: the values, flat (see below)."),
    _o("input.tensors[].values_cut", "boolean", "true: not all values, or not all bytes of one, are shown."),
    _o("input.tensors_cut", "integer", "Tensors that are not shown."),
    _o(
        "input.omitted",
        "string",
        "Why nothing is shown: `too_large` (bodies over an eighth of `queue_bytes_max`), `no_room` (over three "
        "quarters of `queue_bytes_max` waited), `unreadable` (not the protocol's), `line_too_long`, "
        "`render_failed` (a defect).",
    ),
    Field("output", "object", "The answer, likewise; `bytes` is 0 if there was none."),
    Field("output.bytes", "integer", "As for the input."),
    _o("output.digest", "string", "As for the input."),
    _o("output.tensors", "array", "As for the input, and under `tensors: summary`:"),
    _o("output.tensors[].count", "integer", "Values in the tensor."),
    _o("output.tensors[].first", "array", "The first 8 numbers. Text (BYTES) is never shown in a summary."),
    _o("output.tensors[].min", "number", "Of the finite numbers, where there is more than one; so `max` and `mean`."),
    _o("output.tensors[].max", "number", ""),
    _o("output.tensors[].mean", "number", ""),
    _o("output.tensors[].non_finite", "integer", "NaN and infinities among them."),
    _o("output.tensors[].length_min", "integer", "BYTES: shortest element, bytes."),
    _o("output.tensors[].length_max", "integer", "BYTES: longest element, bytes."),
    _o(
        "output.tensors[].summary_cut",
        "boolean",
        "true: the summary is of at most 256 values, spread evenly over the tensor (of BYTES the first 256).",
    ),
    _o("output.tensors[].name", "string", "As for the input; so are the following."),
    _o("output.tensors[].datatype", "string", ""),
    _o("output.tensors[].shape", "array", ""),
    _o("output.tensors[].values", "array", ""),
    _o("output.tensors[].values_cut", "boolean", ""),
    _o("output.tensors_cut", "integer", ""),
    _o("output.omitted", "string", ""),
    _o(
        "decisions",
        "array",
        "What the deciders that had something to say about the call saw and decided, in their order, at most 32. "
        "Absent for a call that met nothing unusual.",
    ),
    _o("decisions[].by", "string", f"Which decider: {', '.join(f'`{name}`' for name in NOTED_BY)}."),
    _o("decisions[].decided", "string", 'Its word for what it decided (docs/operations.md, "What deciders say").'),
    _o("decisions[].saw", "object", "The numbers and words that it decided by; units stand in the names."),
)

DROPPED: tuple[Field, ...] = (
    Field("schema", "integer", "1."),
    Field("dropped", "integer", "How many records are missing here. No other line has this field."),
    Field("since", "string", "When the first of them was dropped, UTC."),
    Field("until", "string", "When this line was made."),
    Field(
        "reasons",
        "object",
        "How many by reason: `queue_records`, `queue_bytes` (the bounds of that name), `render` (a defect), `closed` "
        "(offered after the log was closed), `unwritten` (the store failed until the end).",
    ),
)
