"""How large the inputs of a serialized `ModelInferRequest` are: shapes and where the data lies, without decoding it.

The description of an input is mostly the same bytes in every call of a model, so parsed ones are kept in a bounded
memo; the walk itself costs one step for each field of the message.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from gateway.wire.kserve import protobuf as pb
from gateway.wire.kserve.datatypes import TABLE
from gateway.wire.kserve.parameters import Parameter, read_entry

VALUES_MAX = 65_536
"""Numbers of one input that `total` adds up; of an input with more it says nothing."""

ELEMENTS_MAX = 65_536
"""Texts of one input that are looked at one by one."""

_INPUT_TAG, _RAW_TAG, _PARAMETERS = 5 << 3 | pb.LEN, 7 << 3 | pb.LEN, 4
_MEMO_ENTRIES_MAX = 1024
_MEMO_KEY_BYTES_MAX = 512
_DIMENSIONS_MAX = 64
_PREFIX = 4
"""Bytes before each element of BYTES that give its length."""
_FORMATS = {row.name: row.code for row in TABLE if row.code} | {"FP16": "e"}
_SIZES = {row.name: row.size for row in TABLE if row.size}


class InputSize(NamedTuple):
    """One input. Its data is `message[start:stop]`: little-endian bytes, or an `InferTensorContents` if `typed`. If it
    has none, both are 0.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    start: int = 0
    stop: int = 0
    typed: bool = False

    def elements(self, skip: int = 0) -> int:
        """The product of the dimensions behind the first `skip`, 2^62 at most; -1 if one of them is negative, as only
        Triton's configuration may have it.
        """
        product = 1
        for size in self.shape[skip:]:
            if size < 0:
                return -1
            product = min(product * size, 1 << 62)
        return product


class InputReader:
    """Reads the inputs of requests. Not for two threads at once."""

    __slots__ = ("_memo",)

    def __init__(self) -> None:
        self._memo: dict[bytes, InputSize] = {}

    def read(self, message: bytes) -> list[InputSize]:
        """The inputs in their order. Raises `WireError`."""
        inputs: list[InputSize] = []
        raw: list[tuple[int, int]] = []
        pos, end = 0, len(message)
        for _ in range(pb.MAX_FIELDS):
            if pos >= end:
                break
            tag = message[pos]
            if tag & 0x87 != pb.LEN:
                pos = pb.field_at(message, pos, end)[3]
                continue
            # As `pb.fields` reads it, in fewer steps where lengths are short.
            start = pos + 2
            if start <= end and (size := message[pos + 1]) < 0x80 and start + size <= end:
                pos = start + size
            else:
                start, pos = pb.read_length(message, pos + 1, end)
            if tag == _INPUT_TAG:
                inputs.append(self._describe(message, start, pos))
            elif tag == _RAW_TAG:
                raw.append((start, pos))
        if pos < end:
            raise pb.WireError(f"more than {pb.MAX_FIELDS} fields in one message", pos)
        for index, (start, stop) in enumerate(raw[: len(inputs)]):
            inputs[index] = inputs[index]._replace(start=start, stop=stop, typed=False)
        return inputs

    def _describe(self, message: bytes, start: int, stop: int) -> InputSize:
        if stop - start > _MEMO_KEY_BYTES_MAX:
            return _read(message, start, stop)
        piece = message[start:stop]
        known = self._memo.get(piece)
        if known is None:
            known = _read(message, start, stop)
            if known.typed:
                return known  # where its data lies is another place in each message
            if len(self._memo) >= _MEMO_ENTRIES_MAX:
                self._memo.clear()
            self._memo[piece] = known
        return known


def _read(message: bytes, start: int, stop: int) -> InputSize:
    name = datatype = ""
    shape: list[int] = []
    data_start = data_stop = 0
    typed = False
    for number, wire, a, b in pb.fields(message, start, stop):
        if number == 1 and wire == pb.LEN:
            name = message[a:b].decode("utf-8", "replace")
        elif number == 2 and wire == pb.LEN:
            datatype = message[a:b].decode("utf-8", "replace")
        elif number == 3 and wire == pb.VARINT:
            shape.append(pb.signed(a))
        elif number == 3 and wire == pb.LEN:
            while a < b and len(shape) <= _DIMENSIONS_MAX:
                value, a = pb.read_varint(message, a, b)
                shape.append(pb.signed(value))
        elif number == 5 and wire == pb.LEN:
            typed, data_start, data_stop = True, a, b
    return InputSize(name, datatype, tuple(shape[:_DIMENSIONS_MAX]), data_start, data_stop, typed)


def parameter(message: bytes, name: str) -> Parameter | None:
    """The request parameter of that name; of several the last one counts, as protobuf has it. Raises `WireError`."""
    found: Parameter | None = None
    wanted = name.encode()
    for number, wire, start, stop in pb.fields(message, 0, len(message)):
        if number == _PARAMETERS and wire == pb.LEN and message.find(wanted, start, stop) >= 0:
            key, value = read_entry(message, start, stop)
            if key == name:
                found = value
    return found


def total(message: bytes, size: InputSize) -> float | None:
    """The sum of the numbers of an input; None for texts, BF16, and more than `VALUES_MAX` of them. Raises
    `WireError`.
    """
    if size.typed:
        return _typed_total(message, size.start, size.stop)
    width, code = _SIZES.get(size.datatype, 0), _FORMATS.get(size.datatype)
    count = (size.stop - size.start) // width if width else 0
    if code is None or not count or count > VALUES_MAX:
        return None
    return float(sum(struct.unpack_from(f"<{count}{code}", message, size.start)))


def _typed_total(message: bytes, start: int, stop: int) -> float | None:
    added, count = 0.0, 0
    for number, wire, a, b in pb.fields(message, start, stop, VALUES_MAX):
        if number in (6, 7):
            width, code = (4, "f") if number == 6 else (8, "d")
            many = (b - a) // width
            count += many
            if count > VALUES_MAX:
                return None
            added += sum(struct.unpack_from(f"<{many}{code}", message, a))
        elif number <= 5 and wire == pb.VARINT:
            count += 1
            added += _number(number, a)
        elif number <= 5 and wire == pb.LEN:
            count += pb.count_varints(message, a, b)
            if count > VALUES_MAX:
                return None
            while a < b:
                value, a = pb.read_varint(message, a, b)
                added += _number(number, value)
    return added if 0 < count <= VALUES_MAX else None


def _number(field: int, value: int) -> int:
    return pb.signed(value) if field in (2, 3) else value


def longest_text(message: bytes, size: InputSize, rows: int) -> int:
    """Of an input of BYTES the most bytes that one of its `rows` has, the lengths before its elements not counted.
    Where its elements do not divide into rows, and of more than `ELEMENTS_MAX`, all of its bytes. Raises `WireError`.
    """
    lengths: list[int] = []
    if size.typed:
        at = size.start
        while at < size.stop and len(lengths) <= ELEMENTS_MAX:
            number, wire, a, b = pb.field_at(message, at, size.stop)
            if number == 8 and wire == pb.LEN:
                lengths.append(b - a)
            at = b
    else:
        at = size.start
        while at + _PREFIX <= size.stop and len(lengths) <= ELEMENTS_MAX:
            length = int.from_bytes(message[at : at + _PREFIX], "little")
            lengths.append(min(length, size.stop - at - _PREFIX))
            at += _PREFIX + length
    if len(lengths) > ELEMENTS_MAX:
        return size.stop - size.start
    if rows <= 1 or len(lengths) % rows:
        return sum(lengths)
    width = len(lengths) // rows
    return max((sum(lengths[at : at + width]) for at in range(0, len(lengths), width)), default=0)
