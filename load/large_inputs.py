"""One tensor of any size for the model `identity`, which must come back as it was sent."""

from __future__ import annotations

import json
import struct

from load.inputs import IdentityInputs
from load.protobuf import bytes_field, read_fields, varint_field

VALUE_BYTES = 4
_ROW = struct.Struct("<ff")
_HALF = 1 << 20
"""FP32 holds whole numbers up to 2**24; two of them make a row."""


class TensorInputs:
    """`Inputs` of one FP32 tensor of `size` bytes, a multiple of 8. Over HTTP it travels in binary form both ways. Its
    first two values are the row, the rest is the same in every one. Raises ValueError for another size.
    """

    model = IdentityInputs.model

    def __init__(self, size: int) -> None:
        if size < _ROW.size or size % _ROW.size:
            raise ValueError(f"a tensor has a multiple of {_ROW.size} bytes, not {size}")
        self.size = size
        values = size // VALUE_BYTES
        self._rest = struct.pack("<256f", *(number / 8 for number in range(256))) * (size // 1024 + 1)
        self._rest = self._rest[: size - _ROW.size]
        head = {
            "name": "INPUT_FP32",
            "datatype": "FP32",
            "shape": [values],
            "parameters": {"binary_data_size": size},
        }
        self._head = json.dumps({"inputs": [head], "parameters": {"binary_data_output": True}}).encode()
        self.http_headers = (
            f"content-type: application/octet-stream\r\ninference-header-content-length: {len(self._head)}\r\n"
        )
        # ModelInferRequest: 1 model_name; 5 inputs {1 name, 2 datatype, 3 shape}; 7 raw_input_contents.
        tensor = bytes_field(1, b"INPUT_FP32") + bytes_field(2, b"FP32") + varint_field(3, values)
        self._message = bytes_field(1, self.model.encode()) + bytes_field(5, tensor)

    def tensor(self, row: int) -> bytes:
        """The row's bytes."""
        return _ROW.pack(float(row % _HALF), float(row // _HALF % _HALF)) + self._rest

    def http_body(self, row: int) -> bytes:
        return self._head + self.tensor(row)

    def grpc_message(self, row: int) -> bytes:
        return self._message + bytes_field(7, self.tensor(row))

    def http_right(self, body: bytes, row: int) -> bool:
        try:
            (output,) = json.loads(body[: -self.size])["outputs"]
            size = output["parameters"]["binary_data_size"]
            named = (output["name"], output["datatype"], output["shape"], size)
        except (ValueError, KeyError, TypeError):
            return False
        wanted = ("OUTPUT_FP32", "FP32", [self.size // VALUE_BYTES], self.size)
        return named == wanted and self._same(memoryview(body)[-self.size :], row)

    def grpc_right(self, message: bytes, row: int) -> bool:
        try:
            contents = [value for field, value in read_fields(message) if field == 6]
        except (IndexError, ValueError):
            return False
        return len(contents) == 1 and len(contents[0]) == self.size and self._same(memoryview(contents[0]), row)

    def _same(self, found: memoryview, row: int) -> bool:
        values = _ROW.pack(float(row % _HALF), float(row // _HALF % _HALF))
        return found[: _ROW.size] == values and found[_ROW.size :] == self._rest
