"""Triton Python model `identity`: each input INPUT_<x> comes back as OUTPUT_<x>, same dtype, shape and values.

BYTES elements keep their bytes; nothing is decoded.
"""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Stateless."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response per request, with one output per input that was sent."""
        return [
            pb_utils.InferenceResponse(
                output_tensors=[
                    pb_utils.Tensor("OUTPUT" + tensor.name().removeprefix("INPUT"), tensor.as_numpy())
                    for tensor in request.inputs()
                ]
            )
            for request in requests
        ]
