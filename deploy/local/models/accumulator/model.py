"""Triton Python models `accumulator` and `accumulator-text`: a running sum per sequence, kept in the model.

Input `value` INT64 [n, 1]; outputs `sum` and `count` INT64 [n, 1], `corrid` [n, 1]: the correlation id, UINT64 in
`accumulator` and BYTES in `accumulator-text`. Request parameters: `fail` ("error": this value is not added; "crash"),
`straggle_ms`.

`accumulator` reads the id from its control input CORRID, `accumulator-text` from the request: this Triton fills a
CORRID of TYPE_STRING with zeros up to 128 bytes (triton-inference-server/core pull request 339), and its Python backend
refuses that ("unexpected number of string elements 2") for every id of less than 128 bytes.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

# The stub puts the folder of the version on sys.path.
from command import Command  # type: ignore[import-not-found]
from sums import SequenceError, Sums  # type: ignore[import-not-found]


class TritonPythonModel:
    """One instance, with the sequences that Triton gave to its batch slots."""

    def initialize(self, args: dict[str, str]) -> None:
        """Take the idle time and the kind of ids from the configuration."""
        config = json.loads(args["model_config"])
        self.sums = Sums(int(config["sequence_batching"]["max_sequence_idle_microseconds"]) / 1e6)
        kinds = {output["name"]: output["data_type"] for output in config["output"]}
        self.text = kinds["corrid"] == "TYPE_STRING"

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response per request; the requests of a batch are of different sequences."""
        now_s = time.monotonic()
        return [self._answer(request, now_s) for request in requests]

    def _answer(self, request: Any, now_s: float) -> Any:
        inputs = {tensor.name(): tensor.as_numpy().reshape(-1)[0] for tensor in request.inputs()}
        sequence = int(inputs["CORRID"]) if "CORRID" in inputs else request.correlation_id()
        corrid = self._shown(sequence)
        if not inputs["READY"]:  # the filling of a slot that has nothing to do
            return _success(corrid, 0, 0)
        try:
            command = Command.read(request.parameters())
        except ValueError as problem:
            return _error(str(problem), pb_utils.TritonError.INVALID_ARG)
        time.sleep(command.straggle_ms / 1000.0)
        if command.fail == "crash":
            os._exit(1)
        if command.fail == "error":
            return _error("failed on command", pb_utils.TritonError.INTERNAL)
        start, end = bool(inputs["START"]), bool(inputs["END"])
        try:
            total, count = self.sums.add(sequence, int(inputs["value"]), start=start, end=end, now_s=now_s)
        except SequenceError as problem:
            return _error(str(problem), pb_utils.TritonError.INVALID_ARG)
        return _success(corrid, total, count)

    def _shown(self, sequence: int | str) -> Any:
        """The id as the output `corrid`."""
        if self.text:
            return np.asarray([[str(sequence).encode()]], dtype=np.object_)
        return np.asarray([[sequence]], dtype=np.uint64)


def _success(corrid: Any, total: int, count: int) -> Any:
    outputs = [
        pb_utils.Tensor("sum", np.asarray([[total]], dtype=np.int64)),
        pb_utils.Tensor("count", np.asarray([[count]], dtype=np.int64)),
        pb_utils.Tensor("corrid", corrid),
    ]
    return pb_utils.InferenceResponse(output_tensors=outputs)


def _error(message: str, code: int) -> Any:
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, code))
