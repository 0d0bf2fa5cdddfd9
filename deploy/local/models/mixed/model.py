"""Triton Python model `mixed`: `x` FP32 [n, any] in; `y` FP32, `z` INT32 and `h` FP16 of the same shape out.

`logarithm.py` says what they are. Outputs that are not wanted are computed and dropped by Triton.
"""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils
from logarithm import logarithm  # type: ignore[import-not-found]  # the version's folder is on sys.path


class TritonPythonModel:
    """Stateless."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response per request, in order."""
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            outputs = [pb_utils.Tensor(name, array) for name, array in zip(("y", "z", "h"), logarithm(x), strict=True)]
            responses.append(pb_utils.InferenceResponse(output_tensors=outputs))
        return responses
