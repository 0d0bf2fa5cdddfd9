"""Triton Python model `fraud-lite`: features FP32 [n, 12] in, probability FP32 [n, 1] and label INT32 [n, 1] out.

All requests of a batch are evaluated at once. A request with a NaN or infinity fails alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from logistic import Logistic  # type: ignore[import-not-found]  # the stub puts the version's folder on sys.path


class TritonPythonModel:
    """One instance; Triton calls `execute` from one thread only."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the artifact that lies beside this file."""
        del args
        self.logistic = Logistic.load(Path(__file__).with_name("logistic.npz"))

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response per request, in order."""
        tensors = [pb_utils.get_input_tensor_by_name(request, "features").as_numpy() for request in requests]
        probability = self.logistic.probability(np.concatenate(tensors))
        label = (probability >= self.logistic.decision_threshold).astype(np.int32)
        responses = []
        start = 0
        for tensor in tensors:
            end = start + tensor.shape[0]
            if np.isfinite(tensor).all():
                outputs = [
                    pb_utils.Tensor("probability", probability[start:end, None]),
                    pb_utils.Tensor("label", label[start:end, None]),
                ]
                responses.append(pb_utils.InferenceResponse(output_tensors=outputs))
            else:
                error = pb_utils.TritonError("features must be finite numbers", pb_utils.TritonError.INVALID_ARG)
                responses.append(pb_utils.InferenceResponse(error=error))
            start = end
        return responses
