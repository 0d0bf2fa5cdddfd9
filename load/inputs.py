"""The calls that the lab makes: distinct inputs, what goes over each protocol, and whether an answer is right.

Messages are made here from the protocol's definition and not with the gateway's codecs: a mistake in those must show.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, Protocol

from load.protobuf import bytes_field, read_fields

VALUES = 12
_FIXED = (0.5, -1.25, 3.0, 1024.0, -0.0625, 17.75, 2.5, -300.0, 0.125, 99.5)
"""The rest of a row; all exact in FP32, so that an answer can be compared without a tolerance."""
_FIXED_JSON = ",".join(map(repr, _FIXED)).encode()
_HALF = 1 << 20
_ACCEL_ROWS = 1 << 14
_ACCEL_STEPS = 1 << 22
"""FP32 tells 1 from 1 + 1 / 2**22, whatever both are multiplied by."""
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class LoadCall:
    """One call to be made. `number` is unique in a run and makes its ids; `row` says which inputs it carries."""

    number: int
    request_id: str
    traceparent: str
    deadline_ms: int
    row: int
    checked: bool
    """Whether its answer is compared with what it must be."""


class Calls:
    """An endless supply of calls. `run` (any 32-bit number) sets the ids of different runs apart.

    `rows`: after so many calls the inputs begin anew. `check_share`: of so many of them the answer is checked, evenly.
    """

    def __init__(self, run: int, deadline_ms: int, *, rows: int = 1 << 40, check_share: float = 1.0) -> None:
        self._run = run & 0xFFFFFFFF
        self.deadline_ms = deadline_ms
        self._rows = rows
        self._check_share = check_share
        self._number = 0

    @property
    def made(self) -> int:
        """Calls that were taken from here."""
        return self._number

    def next(self, row: int = -1, deadline_ms: int | None = None) -> LoadCall:
        """The next call; with the next row unless one is named, and the run's deadline unless there is less left."""
        self._number = number = self._number + 1
        share = self._check_share
        return LoadCall(
            number=number,
            request_id=f"load-{self._run:08x}-{number}",
            traceparent=f"00-{self._run:016x}{number:016x}-{number:016x}-01",
            deadline_ms=self.deadline_ms if deadline_ms is None else deadline_ms,
            row=(number if row < 0 else row) % self._rows,
            checked=share >= 1.0 or int(number * share) > int((number - 1) * share),
        )


Form = Literal["json", "binary"]
"""How tensors travel over HTTP: as JSON, or with KServe's binary extension in both directions."""


def body_id(label: str, row: int) -> str:
    """The `id` in the body of a call: which traffic it belongs to, and its row."""
    return f"{label}/{row}"


class Inputs(Protocol):
    """The rows of one model, in every form that a protocol wants. Rows are numbers from 0."""

    model: str
    http_headers: str
    """Header lines of the request that say what its body is, each with its line end."""

    def http_body(self, row: int) -> bytes:
        """The request's body."""

    def grpc_message(self, row: int) -> bytes:
        """The `inference.ModelInferRequest`."""

    def http_right(self, body: bytes, row: int) -> bool:
        """Whether this body answers the row."""

    def grpc_right(self, message: bytes, row: int) -> bool:
        """Whether this `inference.ModelInferResponse` answers the row."""


class _Fp32Row:
    """A row of FP32 values in one tensor, which must come back as it was sent in the first output of the answer."""

    model: str

    def __init__(
        self, sent: str, outputs: tuple[str, ...], shape: tuple[int, ...], form: Form, label: str = ""
    ) -> None:
        self._label = label
        self._outputs, self._shape, self._binary = outputs, list(shape), form == "binary"
        self._pack = struct.Struct(f"<{prod(shape)}f")
        # ModelInferRequest: 1 model_name; 3 id; 5 inputs {1 name, 2 datatype, 3 shape}; 7 raw_input_contents.
        tensor = bytes_field(1, sent.encode()) + bytes_field(2, b"FP32") + bytes_field(3, bytes(shape))
        self._model_field = bytes_field(1, self.model.encode())
        self._tensor_fields = bytes_field(5, tensor) + bytes((7 << 3 | 2, self._pack.size))
        self._message = self._model_field + self._tensor_fields
        head: dict[str, Any] = {"name": sent, "datatype": "FP32", "shape": self._shape}
        if self._binary:
            head["parameters"] = {"binary_data_size": self._pack.size}
            request = {"inputs": [head], "parameters": {"binary_data_output": True}}
            self._head = json.dumps(request, separators=(",", ":")).encode()
            self.http_headers = (
                f"content-type: application/octet-stream\r\ninference-header-content-length: {len(self._head)}\r\n"
            )
        else:
            text = json.dumps({"inputs": [{**head, "data": []}]}, separators=(",", ":"))
            self._head, self._tail = (part.encode() for part in text.split("[]"))
            self.http_headers = "content-type: application/json\r\n"

    def values(self, row: int) -> tuple[float, ...]:
        raise NotImplementedError

    def _json_values(self, row: int) -> bytes:
        return ",".join(map(repr, self.values(row))).encode()

    def http_body(self, row: int) -> bytes:
        if self._binary:
            return self._head + self._pack.pack(*self.values(row))
        head = self._head
        if self._label:
            head = b'{"id":"%b",%b' % (body_id(self._label, row).encode(), head[1:])
        return b"%b[%b]%b" % (head, self._json_values(row), self._tail)

    def grpc_message(self, row: int) -> bytes:
        message = self._message
        if self._label:
            message = self._model_field + bytes_field(3, body_id(self._label, row).encode()) + self._tensor_fields
        return message + self._pack.pack(*self.values(row))

    def http_right(self, body: bytes, row: int) -> bool:
        try:
            head, end = _DECODER.raw_decode(body.decode("latin-1"))
            outputs = head["outputs"]
            if tuple(output["name"] for output in outputs) != self._outputs:
                return False
            output = outputs[0]
            if (output["datatype"], output["shape"]) != ("FP32", self._shape):
                return False
            if self._binary:
                sizes = [each["parameters"]["binary_data_size"] for each in outputs]
                found = body[end : end + self._pack.size]
                whole = sizes[0] == self._pack.size and end + sum(sizes) == len(body)
                return whole and found == self._pack.pack(*self.values(row))
            return end == len(body) and self._pack.pack(*output["data"]) == self._pack.pack(*self.values(row))
        except (ValueError, KeyError, TypeError, IndexError, OverflowError, struct.error):
            return False

    def grpc_right(self, message: bytes, row: int) -> bool:
        try:
            contents = [value for field, value in read_fields(message) if field == 6]
        except (IndexError, ValueError):
            return False
        return len(contents) == len(self._outputs) and contents[0] == self._pack.pack(*self.values(row))


class IdentityInputs(_Fp32Row):
    """Twelve FP32 values for the model `identity`, which must come back as they were sent."""

    model = "identity"

    def __init__(self, form: Form = "json") -> None:
        super().__init__("INPUT_FP32", ("OUTPUT_FP32",), (VALUES,), form)

    def values(self, row: int) -> tuple[float, ...]:
        """The row; different for each number below 2**40."""
        return (float(row % _HALF), float(row // _HALF % _HALF), *_FIXED)

    def _json_values(self, row: int) -> bytes:
        return b"%d,%d,%b" % (row % _HALF, row // _HALF % _HALF, _FIXED_JSON)

    def message_to(self, model: str, row: int) -> bytes:
        """The message for a model that is the same under another name."""
        return bytes_field(1, model.encode()) + self.grpc_message(row)[len(bytes_field(1, self.model.encode())) :]


class AccelInputs(_Fp32Row):
    """One FP32 value for the model `accel`: the work, in its units, which decides how long it takes. To make rows
    distinct it is up to 0.4 % more than `work`; there are 16,384 different ones. With a `label` each call has a
    `body_id`, which the model's execution log shows; not in the form `binary`, whose head has a fixed length.
    """

    model = "accel"

    def __init__(self, form: Form = "json", work: float = 1.0, label: str = "") -> None:
        super().__init__("work", ("work", "execution"), (1, 1), form, label)
        self._work = work

    def values(self, row: int) -> tuple[float, ...]:
        return (self._work * (1 + row % _ACCEL_ROWS / _ACCEL_STEPS),)
