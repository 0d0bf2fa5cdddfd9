"""Model statistics: Triton's messages in protobuf and JSON, and how those of several servers become one's.

Everything in them is a count that only grows while a version stays loaded, but for `memory_usage`, which is what is
used now, and `last_inference`, a time. Field numbers are those of `inference.ModelStatistics` in Triton 2.51; the tests
compare them with the classes of tritonclient. Fields that newer servers may add are dropped: nobody knows how to add
them up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import orjson

from gateway.wire.kserve import protobuf as pb
from gateway.wire.kserve.response_view import broken

INFERENCE = (
    "success",
    "fail",
    "queue",
    "compute_input",
    "compute_infer",
    "compute_output",
    "cache_hit",
    "cache_miss",
)
"""The durations of `InferStatistics`; the first has field number 1."""
RESPONSE = ("compute_infer", "compute_output", "success", "fail", "empty_response", "cancel")
"""The durations of `InferResponseStatistics`; the first has field number 1."""
BATCH = ("compute_input", "compute_infer", "compute_output")
"""The durations of `InferBatchStatistics`; the first has field number 2, behind `batch_size`."""

ENTRIES_MAX = 1 << 17
"""Fields in the statistics of one version: there is one for each batch size, and one for each response that a request
to a decoupled model ever had.
"""

_UINT64_MAX = (1 << 64) - 1

K = TypeVar("K")

MERGE_RULES: tuple[tuple[str, str], ...] = (
    ("`name`, `version`", "One entry for each version that any replica of the model's pool lists."),
    ("`last_inference`", "The latest."),
    ("`inference_count`, `execution_count`", "Added."),
    ("`inference_stats`", "`count` and `ns` of each member added."),
    ("`batch_stats`", "Added by `batch_size`; the sizes of all replicas are listed."),
    ("`response_stats`", "Added by key."),
    (
        "`memory_usage`",
        "`byte_size` added by `type` and `id`: what the replicas that are there use together. Devices of one number on "
        "several servers are one line.",
    ),
)
"""Field, and how it is made from those of the replicas: for the manual."""


Duration = tuple[int, int]
"""How often something happened, and how long it took altogether in nanoseconds."""

ZERO: Duration = (0, 0)
Durations = tuple[Duration, ...]
"""In the order of `INFERENCE`, `RESPONSE` or `BATCH`."""

NO_INFERENCE: Durations = (ZERO,) * len(INFERENCE)


@dataclass(frozen=True, slots=True)
class ModelStatistics:
    """What Triton counts of one model version. `last_inference_ms` is in milliseconds since the epoch, 0 for never.
    `batches` are by batch size, `responses` by the response's place as text, `memory` (bytes) by kind and device.
    """

    name: str
    version: str
    last_inference_ms: int = 0
    inference_count: int = 0
    execution_count: int = 0
    inference: Durations = NO_INFERENCE
    batches: Mapping[int, Durations] = field(default_factory=dict)
    responses: Mapping[str, Durations] = field(default_factory=dict)
    memory: Mapping[tuple[str, int], int] = field(default_factory=dict)

    def plus(self, other: ModelStatistics) -> ModelStatistics:
        """Both servers' as one's; the name and the version are this one's."""
        return ModelStatistics(
            self.name,
            self.version,
            max(self.last_inference_ms, other.last_inference_ms),
            self.inference_count + other.inference_count,
            self.execution_count + other.execution_count,
            _add(self.inference, other.inference),
            _add_by_key(self.batches, other.batches),
            _add_by_key(self.responses, other.responses),
            {key: self.memory.get(key, 0) + other.memory.get(key, 0) for key in {**self.memory, **other.memory}},
        )

    def without_memory(self) -> ModelStatistics:
        """The counts alone."""
        return replace(self, memory={}) if self.memory else self

    def continues(self, earlier: ModelStatistics) -> bool:
        """Whether these can be the same counters later on: none of them has gone back. `last_inference` is left out: a
        wall clock may be set.
        """
        return (
            self.inference_count >= earlier.inference_count
            and self.execution_count >= earlier.execution_count
            and _not_less(self.inference, earlier.inference)
            and _not_less_by_key(self.batches, earlier.batches)
            and _not_less_by_key(self.responses, earlier.responses)
        )


def _add(one: Durations, other: Durations) -> Durations:
    return tuple([(a + c, b + d) for (a, b), (c, d) in zip(one, other, strict=True)])


def _add_by_key(one: Mapping[K, Durations], other: Mapping[K, Durations]) -> dict[K, Durations]:
    total = dict(one)
    for key, durations in other.items():
        before = total.get(key)
        total[key] = durations if before is None else _add(before, durations)
    return total


def _not_less(later: Durations, earlier: Durations) -> bool:
    return all(a >= c and b >= d for (a, b), (c, d) in zip(later, earlier, strict=True))


def _not_less_by_key(later: Mapping[K, Durations], earlier: Mapping[K, Durations]) -> bool:
    return all(key in later and _not_less(later[key], durations) for key, durations in earlier.items())


# --- reading --------------------------------------------------------------------------------------------------------


def split_statistics(message: bytes) -> dict[tuple[str, str], bytes]:
    """A replica's `ModelStatisticsResponse`, by model and version; each part a serialized `ModelStatistics` that
    `decode_statistics` reads. Raises `GatewayError` (UPSTREAM_BROKEN).
    """
    parts: dict[tuple[str, str], bytes] = {}
    try:
        for number, wire, start, stop in pb.fields(message, 0, len(message)):
            if number == 1:
                pb.expect(wire, pb.LEN, 1, stop)
                names = {1: "", 2: ""}
                for inner, inner_wire, a, b in pb.fields(message, start, stop, ENTRIES_MAX):
                    if inner in names:
                        pb.expect(inner_wire, pb.LEN, inner, b)
                        names[inner] = pb.text(message, a, b)
                parts[names[1], names[2]] = message[start:stop]
    except pb.WireError as error:
        raise broken(f"model statistics: {error}") from None
    return parts


def decode_statistics(message: bytes) -> ModelStatistics:
    """One `ModelStatistics`. Raises `GatewayError` (UPSTREAM_BROKEN)."""
    try:
        return _decode(message)
    except pb.WireError as error:
        raise broken(f"model statistics: {error}") from None


def _decode(message: bytes) -> ModelStatistics:
    names = {1: "", 2: ""}
    counts = {3: 0, 4: 0, 5: 0}
    inference = NO_INFERENCE
    batches: dict[int, Durations] = {}
    responses: dict[str, Durations] = {}
    memory: dict[tuple[str, int], int] = {}
    for number, wire, a, b in pb.fields(message, 0, len(message), ENTRIES_MAX):
        if number in counts:
            pb.expect(wire, pb.VARINT, number, b)
            counts[number] = a
            continue
        if number > 9:
            continue
        pb.expect(wire, pb.LEN, number, b)
        if number in names:
            names[number] = pb.text(message, a, b)
        elif number == 6:
            inference = _read_durations(message, a, b, 1, len(INFERENCE))
        elif number == 7:
            size, durations = _read_batch(message, a, b)
            batches[size] = _add(batches[size], durations) if size in batches else durations
        elif number == 8:
            kind = _read_text(message, a, b, 1)
            key = (kind, pb.signed(_read_number(message, a, b, 2)))
            memory[key] = memory.get(key, 0) + _read_number(message, a, b, 3)
        else:
            responses[_read_text(message, a, b, 1)] = _read_response(message, a, b)
    return ModelStatistics(names[1], names[2], counts[3], counts[4], counts[5], inference, batches, responses, memory)


def _read_durations(message: bytes, start: int, stop: int, first: int, count: int) -> Durations:
    """The durations whose field numbers are `first` and those that follow."""
    found = [ZERO] * count
    pos = start
    while pos < stop:
        # As every writer has it: a tag of one byte, a length of one byte, and nothing unknown. There are thousands of
        # them in one answer, and the general walk takes four times as long.
        place = (message[pos] >> 3) - first
        if message[pos] & 0x87 == pb.LEN and 0 <= place < count and pos + 1 < stop and message[pos + 1] < 0x80:
            pos, end = pos + 2, pos + 2 + message[pos + 1]
            if end > stop:
                raise pb.WireError("a duration runs past the end of its message", pos)
            found[place] = _read_duration(message, pos, end)
            pos = end
            continue
        number, wire, a, b = pb.field_at(message, pos, stop)
        if first <= number < first + count:
            pb.expect(wire, pb.LEN, number, b)
            found[number - first] = _read_duration(message, a, b)
        pos = b
    return tuple(found)


def _read_duration(message: bytes, pos: int, end: int) -> Duration:
    count = ns = 0
    while pos < end:
        tag = message[pos]
        if tag == 0x08:
            count, pos = pb.read_varint(message, pos + 1, end)
        elif tag == 0x10:
            ns, pos = pb.read_varint(message, pos + 1, end)
        else:
            number, wire, value, pos = pb.field_at(message, pos, end)
            if number in (1, 2):
                pb.expect(wire, pb.VARINT, number, pos)
                count, ns = (value, ns) if number == 1 else (count, value)
    return count, ns


def _read_batch(message: bytes, start: int, stop: int) -> tuple[int, Durations]:
    """The size and the durations of one batch size's statistics."""
    if start < stop and message[start] == 0x08:
        size, start = pb.read_varint(message, start + 1, stop)
    else:
        size = _read_number(message, start, stop, 1)
    return size, _read_durations(message, start, stop, 2, len(BATCH))


def _read_response(message: bytes, start: int, stop: int) -> Durations:
    """The value of one entry of the map of responses."""
    durations = (ZERO,) * len(RESPONSE)
    for number, wire, a, b in pb.fields(message, start, stop):
        if number == 2:
            pb.expect(wire, pb.LEN, number, b)
            durations = _read_durations(message, a, b, 1, len(RESPONSE))
    return durations


def _read_number(message: bytes, start: int, stop: int, wanted: int) -> int:
    value = 0
    for number, wire, a, b in pb.fields(message, start, stop):
        if number == wanted:
            pb.expect(wire, pb.VARINT, number, b)
            value = a
    return value


def _read_text(message: bytes, start: int, stop: int, wanted: int) -> str:
    value = ""
    for number, wire, a, b in pb.fields(message, start, stop):
        if number == wanted:
            pb.expect(wire, pb.LEN, number, b)
            value = pb.text(message, a, b)
    return value


# --- writing --------------------------------------------------------------------------------------------------------


def statistics_to_protobuf(one: ModelStatistics) -> bytes:
    """Its entry of a serialized `ModelStatisticsResponse`: entries one after the other are the whole message."""
    return pb.len_field(1, _encode(one))


def _encode(one: ModelStatistics) -> bytes:
    parts = [pb.text_field(number, value) for number, value in ((1, one.name), (2, one.version)) if value]
    counts = ((3, one.last_inference_ms), (4, one.inference_count), (5, one.execution_count))
    parts += (_number(number, value) for number, value in counts)
    parts.append(pb.len_field(6, _encode_durations(one.inference, 1)))
    parts += (
        pb.len_field(7, _number(1, size) + _encode_durations(durations, 2))
        for size, durations in sorted(one.batches.items())
    )
    parts += (
        pb.len_field(8, (pb.text_field(1, kind) if kind else b"") + _number(2, device) + _number(3, size))
        for (kind, device), size in sorted(one.memory.items())
    )
    parts += (
        pb.len_field(9, pb.text_field(1, key) + pb.len_field(2, _encode_durations(durations, 1)))
        for key, durations in sorted(one.responses.items(), key=_place)
    )
    return b"".join(parts)


def _encode_durations(durations: Durations, first: int) -> bytes:
    """All of them, as Triton does: also those that are zero."""
    return b"".join(
        pb.len_field(number, _number(1, count) + _number(2, ns)) for number, (count, ns) in enumerate(durations, first)
    )


def _number(number: int, value: int) -> bytes:
    """A sum stops at what the field can hold."""
    return pb.varint_field(number, min(value, _UINT64_MAX)) if value else b""


def statistics_to_json(one: ModelStatistics) -> bytes:
    """Its entry of Triton's HTTP form."""
    return orjson.dumps(_json(one))


def statistics_document(entries: Iterable[bytes]) -> bytes:
    """Triton's HTTP form of these entries."""
    return b'{"model_stats":[' + b",".join(entries) + b"]}"


def _json(one: ModelStatistics) -> dict[str, Any]:
    return {
        "name": one.name,
        "version": one.version,
        "last_inference": one.last_inference_ms,
        "inference_count": _fit(one.inference_count),
        "execution_count": _fit(one.execution_count),
        "inference_stats": _json_durations(INFERENCE, one.inference),
        "response_stats": {
            key: _json_durations(RESPONSE, durations) for key, durations in sorted(one.responses.items(), key=_place)
        },
        "batch_stats": [
            {"batch_size": size, **_json_durations(BATCH, durations)} for size, durations in sorted(one.batches.items())
        ],
        "memory_usage": [
            {"type": kind, "id": device, "byte_size": _fit(size)} for (kind, device), size in sorted(one.memory.items())
        ],
    }


def _fit(value: int) -> int:
    return min(value, _UINT64_MAX)


def _json_durations(names: tuple[str, ...], durations: Durations) -> dict[str, Any]:
    return {name: {"count": _fit(count), "ns": _fit(ns)} for name, (count, ns) in zip(names, durations, strict=True)}


def _place(item: tuple[str, Durations]) -> tuple[int, str]:
    """Responses in the order of their places: "2" before "10"."""
    key = item[0]
    return (int(key), key) if key.isascii() and key.isdecimal() and len(key) < 20 else (1 << 64, key)
