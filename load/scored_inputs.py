"""Rows for `fraud-lite`, which batches, and the answers that Triton itself gave to them beforehand."""

from __future__ import annotations

import json
import math
import random
import struct
import urllib.request

from load.errors import LoadError
from load.protobuf import bytes_field, read_fields

FEATURES = 12
ROWS = 10_000
AT_ONCE = 50
TOLERANCE = 1e-5
"""A row that is computed in a batch of another size may differ in its last bits."""
_ROW = struct.Struct(f"<{FEATURES}f")


def feature_rows(count: int, seed: int = 1) -> list[tuple[float, ...]]:
    """Distinct rows whose values FP32 and JSON hold exactly."""
    dice = random.Random(seed)
    return [
        (number / 1024, *(dice.randrange(-2048, 2048) / 1024 for _ in range(FEATURES - 1))) for number in range(count)
    ]


class ScoredInputs:
    """`Inputs` of `fraud-lite`: one row of features each, and the probability and label that must come back. Over HTTP
    they travel as JSON. `expected` has one pair per row.
    """

    model = "fraud-lite"
    http_headers = "content-type: application/json\r\n"

    def __init__(self, rows: list[tuple[float, ...]], expected: list[tuple[float, int]]) -> None:
        self.rows = rows
        self._expected = expected
        tensor = bytes_field(1, b"features") + bytes_field(2, b"FP32") + bytes_field(3, bytes((1, FEATURES)))
        head = bytes_field(1, self.model.encode()) + bytes_field(5, tensor)
        self._messages = [head + bytes_field(7, _ROW.pack(*row)) for row in rows]

    def http_body(self, row: int) -> bytes:
        return request_body([self.rows[row % len(self.rows)]])

    def grpc_message(self, row: int) -> bytes:
        return self._messages[row % len(self._messages)]

    def http_right(self, body: bytes, row: int) -> bool:
        try:
            (found,) = read_answer(body)
        except (ValueError, KeyError, TypeError):
            return False
        return self._right(*found, row)

    def grpc_right(self, message: bytes, row: int) -> bool:
        try:
            probability, label = (value for field, value in read_fields(message) if field == 6)
            return self._right(struct.unpack("<f", probability)[0], struct.unpack("<i", label)[0], row)
        except (IndexError, ValueError, struct.error):
            return False

    def _right(self, probability: float, label: int, row: int) -> bool:
        expected, wanted = self._expected[row % len(self._expected)]
        return label == wanted and math.isclose(probability, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)

    def perf_analyzer_data(self) -> str:
        """The same rows as perf_analyzer's `--input-data`."""
        return json.dumps({"data": [{"features": {"content": row, "shape": [FEATURES]}} for row in self.rows]})


def request_body(rows: list[tuple[float, ...]]) -> bytes:
    """A JSON request for several rows."""
    data = [value for row in rows for value in row]
    tensor = {"name": "features", "datatype": "FP32", "shape": [len(rows), FEATURES], "data": data}
    return json.dumps({"inputs": [tensor]}, separators=(",", ":")).encode()


def read_answer(body: bytes) -> list[tuple[float, int]]:
    """Probability and label of each row. Raises ValueError, KeyError or TypeError for what is no such answer."""
    outputs = {output["name"]: output["data"] for output in json.loads(body)["outputs"]}
    return list(zip(map(float, outputs["probability"]), map(int, outputs["label"]), strict=True))


def scored_inputs(triton_http: str, count: int = ROWS) -> ScoredInputs:
    """Rows, with the answers of the Triton at this address. Raises LoadError."""
    rows = feature_rows(count)
    expected: list[tuple[float, int]] = []
    for at in range(0, count, AT_ONCE):
        request = urllib.request.Request(
            f"http://{triton_http}/v2/models/{ScoredInputs.model}/infer", data=request_body(rows[at : at + AT_ONCE])
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                expected += read_answer(response.read())
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LoadError(f"Triton itself does not answer for {ScoredInputs.model}: {error}") from error
    return ScoredInputs(rows, expected)
