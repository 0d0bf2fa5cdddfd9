"""How the fraud models answer. Copied beside each `model.py` when the repository is built: Triton loads every version
from its own folder and knows no other.

All requests of a batch are evaluated in one pass. A request with a NaN or infinity fails alone.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils


class Scorer(Protocol):
    """A trained model."""

    @property
    def decision_threshold(self) -> float: ...

    def probability(self, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """float32 [rows] of float32 [rows, columns]."""
        ...


def answers(requests: list[Any], scorer: Scorer) -> list[Any]:
    """One response per request, in order."""
    tensors = [pb_utils.get_input_tensor_by_name(request, "features").as_numpy() for request in requests]
    probability = scorer.probability(np.concatenate(tensors))
    label = (probability >= scorer.decision_threshold).astype(np.int32)
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
