"""Triton Python model `accel`: sleeps for a known time per batch; stragglers and failures on command.

Input `work` FP32 [n, 1]; outputs `work` (the same) and `execution` INT64 [n, 1], equal for all rows that ran together
(the start of the execution in nanoseconds of the wall clock, so it tells executions of a whole fleet apart).

A line of the execution log: id (the request's id), execution, start_s and end_s (CLOCK_MONOTONIC, one for all
processes of the machine), time_unix_s, batch (rows), requests (calls in the batch), work (of this request), outcome
("ok", "error", "crash" or "cancelled").

This Triton does not start a stub again that has crashed: the model answers 500, and ready, until it is unloaded and
loaded, or the server restarted.
"""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

# The stub puts the folder of the version on sys.path.
from behaviour import Control, Settings, duration_ms  # type: ignore[import-not-found]
from command import Command  # type: ignore[import-not-found]
from execution_log import ExecutionLog  # type: ignore[import-not-found]


class TritonPythonModel:
    """One instance; Triton calls `execute` from one thread only."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the settings; a bad one fails the load with its name."""
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        self.settings = Settings.read(parameters, os.environ)
        self.control = Control(self.settings)
        self.chance = random.Random(f"{self.settings.seed}/{args['model_instance_name']}")
        log = self.settings.log
        self.log = ExecutionLog(Path(log), self.settings.log_max_bytes) if log else None

    def finalize(self) -> None:
        """Close the log at unload."""
        if self.log is not None:
            self.log.close()

    def execute(self, requests: list[Any]) -> list[Any]:
        """Sleep once for the whole batch, then answer each request."""
        execution, start_s = time.time_ns(), time.monotonic()
        settings = self.control.settings()  # a control file that cannot be used fails the batch, with the reason
        tensors = [pb_utils.get_input_tensor_by_name(request, "work").as_numpy() for request in requests]
        errors: list[Any] = []
        commands: list[Command] = []
        works: list[float] = []
        for request, tensor in zip(requests, tensors, strict=True):
            command, work, error = Command(), float(tensor.sum()), None
            try:
                command = Command.read(request.parameters())
            except ValueError as problem:
                error = _error(str(problem), pb_utils.TritonError.INVALID_ARG)
            if not (np.isfinite(work) and (tensor >= 0).all()):
                work = 0.0
                error = _error("work must be finite and not negative", pb_utils.TritonError.INVALID_ARG)
            elif command.fail == "error":
                error = _error("failed on command", pb_utils.TritonError.INTERNAL)
            elif settings.error_fraction and self.chance.random() < settings.error_fraction:
                error = _error("failed by chance (error_fraction)", pb_utils.TritonError.INTERNAL)
            commands.append(command)
            works.append(work)
            errors.append(error)

        straggle_ms = max(command.straggle_ms for command in commands)
        poll_ms = max(settings.poll_cancel_ms, *(command.poll_cancel_ms for command in commands))
        deadline_s = start_s + duration_ms(settings, sum(works), straggle_ms, self.chance) / 1000.0
        cancelled = self._sleep(requests, deadline_s, poll_ms / 1000.0)
        crash = any(command.fail == "crash" for command in commands)

        if self.log is not None:
            outcome = "crash" if crash else "cancelled" if cancelled else ""
            common = {
                "execution": execution,
                "start_s": start_s,
                "end_s": time.monotonic(),
                "time_unix_s": execution / 1e9,
                "batch": sum(tensor.shape[0] for tensor in tensors),
                "requests": len(requests),
            }
            self.log.write(
                [
                    {
                        "id": request.request_id(),
                        **common,
                        "work": work,
                        "outcome": outcome or ("error" if error else "ok"),
                    }
                    for request, work, error in zip(requests, works, errors, strict=True)
                ]
            )
        if crash:
            os._exit(1)
        if cancelled:
            gone = _error("cancelled while executing", pb_utils.TritonError.CANCELLED)
            return [pb_utils.InferenceResponse(error=gone) for _ in requests]
        return [
            pb_utils.InferenceResponse(error=error) if error else _success(tensor, execution)
            for tensor, error in zip(tensors, errors, strict=True)
        ]

    @staticmethod
    def _sleep(requests: list[Any], deadline_s: float, poll_s: float) -> bool:
        """Sleep until `deadline_s`; true if all requests of the batch were cancelled before (asked every `poll_s`)."""
        while True:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return False
            if poll_s <= 0:
                time.sleep(left_s)
                return False
            time.sleep(min(left_s, poll_s))
            if all(request.is_cancelled() for request in requests):
                return True


def _success(tensor: Any, execution: int) -> Any:
    outputs = [
        pb_utils.Tensor("work", tensor),
        pb_utils.Tensor("execution", np.full(tensor.shape, execution, dtype=np.int64)),
    ]
    return pb_utils.InferenceResponse(output_tensors=outputs)


def _error(message: str, code: int) -> Any:
    return pb_utils.TritonError(message, code)
