"""Triton Python model `identity`: each input INPUT_<x> comes back as OUTPUT_<x>, same dtype, shape and values.

BYTES elements keep their bytes; nothing is decoded. Numbers keep their bits. BF16, which NumPy does not have, goes
through DLPack.
"""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Stateless."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response per request, with one output per input that was sent."""
        return [
            pb_utils.InferenceResponse(output_tensors=[_same(tensor) for tensor in request.inputs()])
            for request in requests
        ]


def _same(tensor: Any) -> Any:
    name = "OUTPUT" + tensor.name().removeprefix("INPUT")
    if name.endswith("_BF16"):
        return pb_utils.Tensor.from_dlpack(name, tensor.to_dlpack())
    return pb_utils.Tensor(name, tensor.as_numpy())
