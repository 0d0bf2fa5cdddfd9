"""Tensors of a serialized request or answer, as a record shows them: shapes, summaries, values up to a cap.

Works on the canonical form alone (protobuf messages of KServe v2). The description of a tensor is mostly the same
bytes in every call of a model, so parsed descriptions are kept in a bounded memo.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import fsum, isfinite
from typing import Any, Literal, NamedTuple

from gateway.wire.kserve import protobuf as pb
from gateway.wire.kserve.datatypes import TABLE

TENSORS_MAX = 64
"""Tensors shown per side; the rest are counted."""
VALUES_MAX = 4096
"""Values shown per side under `tensors: full`, over all tensors."""
SUMMED_MAX = 256
"""Values that a summary looks at per tensor. Of more elements than that it takes every n-th, from the first to the end:
one number for a picture's worth of them must not cost more than the call.
"""
FIRST_VALUES = 8
"""Values shown per tensor under `tensors: summary`."""
ELEMENT_BYTES_MAX = 256
"""Bytes shown of one BYTES element."""
BYTES_TOTAL_MAX = 32 * 1024
"""Bytes shown per side of all BYTES elements together."""

TENSORS_FIELD, REQUEST_RAW, ANSWER_RAW = 5, 7, 6
"""Field numbers in ModelInferRequest and ModelInferResponse."""

FORMATS = {row.name: row.code for row in TABLE if row.code} | {"BOOL": "?", "FP16": "e"}
"""`struct` characters; `struct` has none for BF16."""
SIZES = {row.name: row.size for row in TABLE if row.size}

_MEMO_ENTRIES_MAX = 1024
_MEMO_KEY_BYTES_MAX = 1024
_SHAPE_MAX = 32
_NAME_MAX = 256
_SORTED_MAX = 64
"""Of so few numbers, sorting them is the quickest way to the smallest and the largest."""
_UNSIGNED: dict[int, Literal["B", "H", "I", "Q"]] = {1: "B", 2: "H", 4: "I", 8: "Q"}
"""What elements of so many bytes can be picked as, whatever they mean."""
_SUMMABLE = 1e300
"""As many numbers as a summary looks at, each below this, have a sum that is a number."""


Number = int | float | bool


@dataclass(frozen=True, slots=True)
class Description:
    """One tensor's name, datatype and shape (cut to 32 dimensions), and where its typed contents lie in the bytes it
    was read from.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    contents: tuple[int, int] | None
    shown: dict[str, Any]
    """The same for a record; to be copied."""


class Tensor(NamedTuple):
    """A tensor with its data: `raw` little-endian bytes, which begin at `start` of the message, or the bytes of an
    `InferTensorContents`. Both None: it has no data here (shared memory).
    """

    description: Description
    raw: memoryview | None
    contents: bytes | None
    start: int = 0


class TensorReader:
    """Reads and renders tensors. Not for two threads at once."""

    def __init__(self) -> None:
        self._memo: dict[bytes, Description] = {}

    def read(self, message: bytes, tensor_field: int, raw_field: int) -> tuple[list[Tensor], int]:
        """The first `TENSORS_MAX` tensors, and how many there are. Raises `WireError`."""
        described: list[tuple[Description, bytes]] = []
        raw: list[tuple[int, int]] = []
        count = pos = 0
        end = len(message)
        tensor_tag = tensor_field << 3 | pb.LEN
        raw_tag = raw_field << 3 | pb.LEN
        for _ in range(pb.MAX_FIELDS):
            if pos >= end:
                break
            tag = message[pos]
            if tag & 0x87 != pb.LEN:
                _, _, _, pos = pb.field_at(message, pos, end)
                continue
            start = pos + 2
            if start <= end and (size := message[pos + 1]) < 0x80 and start + size <= end:
                pos = start + size
            else:
                start, pos = pb.read_length(message, pos + 1, end)
            if tag == tensor_tag:
                count += 1
                if count <= TENSORS_MAX:
                    piece = message[start:pos]
                    described.append((self._describe(piece), piece))
            elif tag == raw_tag and len(raw) < TENSORS_MAX:
                raw.append((start, pos))
        view = memoryview(message)
        tensors: list[Tensor] = []
        for index, (description, piece) in enumerate(described):
            if index < len(raw):
                a, b = raw[index]
                tensors.append(Tensor(description, view[a:b], None, a))
            elif description.contents is not None:
                a, b = description.contents
                tensors.append(Tensor(description, None, piece[a:b]))
            else:
                tensors.append(Tensor(description, None, None))
        return tensors, count

    def _describe(self, piece: bytes) -> Description:
        known = self._memo.get(piece)
        if known is not None:
            return known
        description = _read_description(piece)
        if len(piece) <= _MEMO_KEY_BYTES_MAX and description.contents is None:
            if len(self._memo) >= _MEMO_ENTRIES_MAX:
                self._memo.clear()
            self._memo[piece] = description
        return description


def _read_description(piece: bytes) -> Description:
    name = datatype = ""
    shape: list[int] = []
    contents: tuple[int, int] | None = None
    for number, wire, a, b in pb.fields(piece, 0, len(piece)):
        if number == 1 and wire == pb.LEN:
            name = piece[a:b].decode("utf-8", "replace")
        elif number == 2 and wire == pb.LEN:
            datatype = piece[a:b].decode("utf-8", "replace")
        elif number == 3 and wire == pb.VARINT:
            shape.append(pb.signed(a))
        elif number == 3 and wire == pb.LEN:
            while a < b and len(shape) < _SHAPE_MAX:
                value, a = pb.read_varint(piece, a, b)
                shape.append(pb.signed(value))
        elif number == 5 and wire == pb.LEN:
            contents = (a, b)
    name = name[:_NAME_MAX]
    datatype = datatype[:32]
    dimensions = tuple(shape[:_SHAPE_MAX])
    shown = {"name": name, "datatype": datatype, "shape": dimensions}
    return Description(name, datatype, dimensions, contents, shown)


class Budget:
    """What one side of a record may still show."""

    __slots__ = ("bytes", "values")

    def __init__(self) -> None:
        self.values = VALUES_MAX
        self.bytes = BYTES_TOTAL_MAX


def shape_only(tensor: Tensor) -> dict[str, Any]:
    """Name, datatype and shape."""
    return tensor.description.shown.copy()


def with_values(tensor: Tensor, budget: Budget) -> dict[str, Any]:
    """Shape and values. `values_cut` is true where there are more values, or bytes of one, than are shown."""
    shown = shape_only(tensor)
    if tensor.description.datatype == "BYTES":
        values: list[Any] = []
        cut = False
        for element in _elements(tensor):
            if budget.values <= 0 or budget.bytes <= 0:
                cut = True
                break
            keep = min(ELEMENT_BYTES_MAX, budget.bytes)
            cut = cut or len(element) > keep
            piece = bytes(element[:keep])
            budget.values -= 1
            budget.bytes -= len(piece)
            values.append(as_json_text(piece, cut=len(element) > keep))
    else:
        numbers, total = _numbers(tensor, budget.values)
        budget.values -= len(numbers)
        cut = total > len(numbers)
        values = finite(numbers)
    shown["values"] = values
    if cut:
        shown["values_cut"] = True
    return shown


def with_summary(tensor: Tensor) -> dict[str, Any]:
    """Shape and a summary: for numbers the smallest, largest and mean of the finite ones and the first few; for BYTES
    only lengths, because text may be anybody's.
    """
    shown = shape_only(tensor)
    if tensor.description.datatype == "BYTES":
        lengths: list[int] = []
        for element in _elements(tensor):
            if len(lengths) == SUMMED_MAX:
                shown["summary_cut"] = True
                break
            lengths.append(len(element))
        if lengths:
            shown["count"] = len(lengths)
            shown["length_min"] = min(lengths)
            shown["length_max"] = max(lengths)
        return shown
    first, numbers, total = _sampled(tensor)
    shown["count"] = total
    if total > len(numbers):
        shown["summary_cut"] = True
    if numbers:
        shown.update(figures(numbers, first))
    return shown


def _sampled(tensor: Tensor) -> tuple[list[Number], list[Number], int]:
    """The first few numbers, those that a summary is of, and how many there are."""
    first, total = _numbers(tensor, FIRST_VALUES if tensor.raw is not None else SUMMED_MAX)
    if tensor.raw is None:
        return first[:FIRST_VALUES], first, total
    size = SIZES.get(tensor.description.datatype)
    if size is None or total <= FIRST_VALUES:
        return first, first, total
    piece = spread(tensor.raw, total, size)
    return first, _unpacked(piece, tensor.description.datatype, len(piece) // size), total


def spread(raw: memoryview, total: int, size: int) -> bytes:
    """The bytes of the elements that a summary of `total` elements of `size` bytes each is made from."""
    return raw[: total * size].cast(_UNSIGNED[size])[:: step_of(total)].tobytes()


def step_of(total: int) -> int:
    """A summary of so many elements is of every how-many-eth."""
    return -(-total // SUMMED_MAX)


def plain_figures(numbers: Sequence[int | float]) -> tuple[int | float, int | float, float] | None:
    """(smallest, largest, mean) of several numbers, if all are finite and none is enormous, as is usual."""
    count = len(numbers)
    if count < 2:
        return None
    try:
        total = fsum(numbers)
    except (OverflowError, ValueError):  # enormous ones, or both infinities
        return None
    if not isfinite(total):
        return None
    if count <= _SORTED_MAX:
        ordered = sorted(numbers)
        low, high = ordered[0], ordered[-1]
    else:
        low, high = min(numbers), max(numbers)
    if low < -_SUMMABLE or high > _SUMMABLE:
        return None
    return low, high, total / count


def figures(numbers: Sequence[Number], first: Sequence[Number]) -> dict[str, Any]:
    """The first few; and of several numbers (there is one at least) smallest, largest and mean of the finite ones."""
    shown: dict[str, Any] = {"first": finite(first)}
    if len(numbers) == 1:
        return shown
    usable = numbers
    found = plain_figures(numbers)
    if found is None:
        usable = [value for value in numbers if math.isfinite(value)]
        if len(usable) < len(numbers):
            shown["non_finite"] = len(numbers) - len(usable)
        if not usable:
            return shown
        low, high = min(usable), max(usable)
        found = low, high, _mean(usable, low, high)
    shown["min"], shown["max"], shown["mean"] = found
    return shown


def _mean(numbers: Sequence[Number], low: Number, high: Number) -> float:
    """The mean of finite numbers whose sum may be none."""
    count = len(numbers)
    try:
        return math.fsum(number / count for number in numbers)
    except OverflowError:
        # The quotients were rounded up: nearly all are the largest number that there is, with one sign.
        return low / 2 + high / 2


def finite(numbers: Sequence[Number]) -> list[Number | str]:
    """The numbers, with "NaN", "Infinity" and "-Infinity" as strings: JSON has no such numbers."""
    return [number if math.isfinite(number) else _word(number) for number in numbers]


def _word(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"


def as_json_text(piece: bytes, *, cut: bool) -> str | dict[str, str]:
    """UTF-8 as a string, anything else as `{"base64": …}`. A cut piece may end inside a character, which is dropped."""
    try:
        return piece.decode()
    except UnicodeDecodeError as error:
        if cut and error.start > 0 and len(piece) - error.start < 4 and error.reason == "unexpected end of data":
            return piece[: error.start].decode()
        return {"base64": base64.b64encode(piece).decode()}


def _numbers(tensor: Tensor, most: int) -> tuple[list[Number], int]:
    """At most `most` values and how many there are. A datatype that the protocol does not know has none."""
    datatype = tensor.description.datatype
    raw = tensor.raw
    if raw is not None:
        size = SIZES.get(datatype)
        if size is None:
            return [], 0
        total = len(raw) // size
        count = min(total, most)
        return _unpacked(raw[: count * size], datatype, count), total
    if tensor.contents is None:
        return [], 0
    return _typed_numbers(tensor.contents, most)


def _unpacked(piece: bytes | memoryview, datatype: str, count: int) -> list[Number]:
    if datatype == "BF16":
        halves = struct.unpack(f"<{count}H", piece)
        return list(struct.unpack(f"<{count}f", struct.pack(f"<{count}I", *(half << 16 for half in halves))))
    return list(struct.unpack(f"<{count}{FORMATS[datatype]}", piece))


def _typed_numbers(contents: bytes, most: int) -> tuple[list[Number], int]:
    """The values of an `InferTensorContents`, whichever field holds them."""
    values: list[Number] = []
    total = 0
    for number, wire, a, b in pb.fields(contents, 0, len(contents)):
        if number > 7:
            continue
        if number in (6, 7):
            width, code = (4, "f") if number == 6 else (8, "d")
            count = (b - a) // width
            take = min(count, most - len(values))
            values.extend(struct.unpack_from(f"<{take}{code}", contents, a))
            total += count
        elif wire == pb.VARINT:
            total += 1
            if len(values) < most:
                values.append(_typed(number, a))
        else:
            total += pb.count_varints(contents, a, b)
            while a < b and len(values) < most:
                value, a = pb.read_varint(contents, a, b)
                values.append(_typed(number, value))
    return values, total


def _typed(number: int, value: int) -> int | bool:
    if number == 1:
        return value != 0
    return pb.signed(value) if number in (2, 3) else value


def _elements(tensor: Tensor) -> Iterator[memoryview]:
    """The elements of a BYTES tensor: length-prefixed in raw form. Stops where the lengths no longer fit."""
    if tensor.raw is not None:
        view = tensor.raw
        at = 0
        while at + 4 <= len(view):
            size = int.from_bytes(view[at : at + 4], "little")
            at += 4
            if at + size > len(view):
                return
            yield view[at : at + size]
            at += size
    elif tensor.contents is not None:
        whole = memoryview(tensor.contents)
        for number, wire, a, b in pb.fields(tensor.contents, 0, len(tensor.contents)):
            if number == 8 and wire == pb.LEN:
                yield whole[a:b]
