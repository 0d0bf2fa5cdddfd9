"""Triton Python model `ranker`: `user` FP32 [16] and `items` FP32 [n, 16] in; `scores` FP32 [n], `order` INT32 [n]
(positions, best first) and `factors` FP32 [4] (the user's latent coordinates) out. Any n, none included.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

# The stub puts the folder of the version on sys.path.
from bilinear import Bilinear, order  # type: ignore[import-not-found]


class TritonPythonModel:
    """One instance; Triton calls `execute` from one thread only."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the artifact that lies beside this file."""
        del args
        self.model = Bilinear.load(Path(__file__).with_name("bilinear.npz"))

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response per request, in order."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        user, items = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("user", "items"))
        if not (np.isfinite(user).all() and np.isfinite(items).all()):
            problem = "user and items must be finite numbers"
            error = pb_utils.TritonError(problem, pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        scores = self.model.scores(user, items)
        outputs = [
            pb_utils.Tensor("scores", scores),
            pb_utils.Tensor("order", order(scores)),
            pb_utils.Tensor("factors", self.model.factors(user)),
        ]
        return pb_utils.InferenceResponse(output_tensors=outputs)
