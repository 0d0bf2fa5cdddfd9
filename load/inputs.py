"""The calls that the lab makes: distinct inputs, what goes over each protocol, and whether an answer is right.

Messages are made here from the protocol's definition and not with the gateway's codecs: a mistake in those must show.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any

VALUES = 12
_FIXED = (0.5, -1.25, 3.0, 1024.0, -0.0625, 17.75, 2.5, -300.0, 0.125, 99.5)
"""The rest of a row; all exact in FP32, so that an answer can be compared without a tolerance."""
_PACK = struct.Struct(f"<{VALUES}f")
_HALF = 1 << 20


@dataclass(frozen=True, slots=True)
class LoadCall:
    """One call to be made. `number` is unique in a run; inputs and ids follow from it."""

    number: int
    request_id: str
    traceparent: str
    deadline_ms: int


class Calls:
    """An endless supply of calls. `run` (any 32-bit number) sets the ids of different runs apart."""

    def __init__(self, run: int, deadline_ms: int) -> None:
        self._run = run & 0xFFFFFFFF
        self._deadline_ms = deadline_ms
        self._number = 0

    def next(self) -> LoadCall:
        """The next call."""
        self._number = number = self._number + 1
        return LoadCall(
            number=number,
            request_id=f"load-{self._run:08x}-{number}",
            traceparent=f"00-{self._run:016x}{number:016x}-{number:016x}-01",
            deadline_ms=self._deadline_ms,
        )


class IdentityInputs:
    """A row of twelve FP32 values for the model `identity`, which must come back as they were sent."""

    model = "identity"
    path = "/v2/models/identity/infer"

    def __init__(self) -> None:
        name, datatype = b"INPUT_FP32", b"FP32"
        # ModelInferRequest: 1 model_name; 5 inputs {1 name, 2 datatype, 3 shape}; 7 raw_input_contents.
        tensor = _field(1, name) + _field(2, datatype) + _field(3, bytes((VALUES,)))
        self._head = _field(1, self.model.encode()) + _field(5, tensor) + bytes((7 << 3 | 2, _PACK.size))
        fixed = ",".join(map(repr, _FIXED)).encode()
        self._before = b'{"inputs":[{"name":"INPUT_FP32","datatype":"FP32","shape":[%d],"data":[' % VALUES
        self._after = b"," + fixed + b"]}]}"

    @staticmethod
    def values(number: int) -> tuple[float, ...]:
        """The row of a call; different for each number below 2**40."""
        return (float(number % _HALF), float(number // _HALF % _HALF), *_FIXED)

    def http_body(self, number: int) -> bytes:
        """The JSON body of a call."""
        return b"%b%d,%d%b" % (self._before, number % _HALF, number // _HALF % _HALF, self._after)

    def grpc_message(self, number: int) -> bytes:
        """The `inference.ModelInferRequest` of a call."""
        return self._head + _PACK.pack(*self.values(number))

    def http_right(self, body: bytes, number: int) -> bool:
        """Whether this JSON answers the call: exactly its values came back."""
        try:
            (output,) = json.loads(body)["outputs"]
            return (output["name"], output["datatype"], output["shape"], tuple(output["data"])) == (
                "OUTPUT_FP32", "FP32", [VALUES], self.values(number),
            )  # fmt: skip
        except (ValueError, KeyError, TypeError):
            return False

    def grpc_right(self, message: bytes, number: int) -> bool:
        """Whether this `inference.ModelInferResponse` answers the call: exactly its values came back."""
        try:
            contents = [value for field, value in _fields(message) if field == 6]
        except (IndexError, ValueError):
            return False
        return contents == [_PACK.pack(*self.values(number))]


def _field(number: int, value: bytes) -> bytes:
    assert len(value) < 128
    return bytes((number << 3 | 2, len(value))) + value


def _fields(message: bytes) -> list[tuple[int, Any]]:
    """Number and value of each field of a protobuf message that holds only varints and length-delimited fields, as
    answers do. Raises ValueError or IndexError for anything else.
    """
    found: list[tuple[int, Any]] = []
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        value, at = _varint(message, at)
        if tag & 7 == 2:
            end = at + value
            if end > len(message):
                raise ValueError("a field reaches beyond its message")
            found.append((tag >> 3, message[at:end]))
            at = end
        elif tag & 7 == 0:
            found.append((tag >> 3, value))
        else:
            raise ValueError(f"wire type {tag & 7}")
    return found


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
