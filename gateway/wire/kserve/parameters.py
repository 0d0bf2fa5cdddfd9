"""`InferParameter` maps: read from protobuf with the kind of each value kept, written to protobuf and to JSON."""

from __future__ import annotations

import enum
import json
import math
from typing import NamedTuple

import orjson

from gateway.wire.kserve import protobuf as pb


class Kind(enum.IntEnum):
    """Which member of the oneof is set; the number is the field's. UNSET: the entry has no value."""

    UNSET = 0
    BOOL = 1
    INT64 = 2
    STRING = 3
    DOUBLE = 4
    UINT64 = 5


class Parameter(NamedTuple):
    """A typed parameter value. `value` is bool, int, str or float by `kind`, None for UNSET."""

    kind: Kind
    value: bool | int | str | float | None


UNSET = Parameter(Kind.UNSET, None)
MAX_PARAMETERS = 1024
NO_PARAMETERS: dict[str, Parameter] = {}
"""Shared by everything without parameters; nobody writes to it."""

_MAX_FIELDS = 16
_WIRE = {1: pb.VARINT, 2: pb.VARINT, 3: pb.LEN, 4: pb.FIXED64, 5: pb.VARINT}


def read_entry(buffer: bytes, start: int, stop: int) -> tuple[str, Parameter]:
    """One map entry: its key ("" if absent) and value (UNSET if absent). Raises `WireError`."""
    key = ""
    value = UNSET
    for number, wire, a, b in pb.fields(buffer, start, stop, _MAX_FIELDS):
        if number == 1:
            pb.expect(wire, pb.LEN, 1, b)
            key = pb.text(buffer, a, b)
        elif number == 2:
            pb.expect(wire, pb.LEN, 2, b)
            # Repeated values of one entry are merged, and of a oneof the last member wins.
            value = _read_value(buffer, a, b, value)
    return key, value


def with_entry(parameters: dict[str, Parameter], buffer: bytes, start: int, stop: int) -> dict[str, Parameter]:
    """`parameters` and one more entry, in the same map unless it was `NO_PARAMETERS`. Raises `WireError`."""
    if parameters is NO_PARAMETERS:
        parameters = {}
    key, value = read_entry(buffer, start, stop)
    parameters[key] = value
    if len(parameters) > MAX_PARAMETERS:
        raise pb.WireError(f"more than {MAX_PARAMETERS} parameters", start)
    return parameters


def _read_value(buffer: bytes, start: int, stop: int, value: Parameter) -> Parameter:
    for number, wire, a, b in pb.fields(buffer, start, stop, _MAX_FIELDS):
        if number not in _WIRE:
            continue
        pb.expect(wire, _WIRE[number], number, b)
        if number == 1:
            value = Parameter(Kind.BOOL, a != 0)
        elif number == 2:
            value = Parameter(Kind.INT64, pb.signed(a))
        elif number == 3:
            value = Parameter(Kind.STRING, pb.text(buffer, a, b))
        elif number == 4:
            value = Parameter(Kind.DOUBLE, pb.read_double(buffer, a))
        else:
            value = Parameter(Kind.UINT64, a)
    return value


def entry_field(number: int, key: str, kind: Kind, value: bool | int | str | float) -> bytes:
    """One map entry as field `number` of its message."""
    if kind is Kind.STRING:
        choice = pb.text_field(3, str(value))
    elif kind is Kind.DOUBLE:
        choice = pb.double_field(4, float(value))
    else:
        choice = pb.varint_field(kind, int(value))
    return pb.len_field(number, pb.text_field(1, key) + pb.len_field(2, choice))


def to_json(parameters: dict[str, Parameter]) -> bytes:
    """The JSON object of `parameters`; entries without a value are left out, non-finite doubles are bare words."""
    values = {key: each.value for key, each in parameters.items() if each.kind is not Kind.UNSET}
    if any(type(value) is float and not math.isfinite(value) for value in values.values()):
        return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode()
    return orjson.dumps(values)
