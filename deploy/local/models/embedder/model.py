"""Triton Python model `embedder`: `text` BYTES [n, 1] (UTF-8) in, `embedding` FP32 [n, 64] of length 1 out."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils
from ngrams import embed, projection  # type: ignore[import-not-found]  # the version's folder is on sys.path


class TritonPythonModel:
    """One instance; Triton calls `execute` from one thread only."""

    def initialize(self, args: dict[str, str]) -> None:
        """Make the projection."""
        del args
        self.signs = projection()

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response per request, in order; a text that is not UTF-8 fails its own request."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        elements = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()[:, 0]
        try:
            texts = [element.decode() for element in elements]
        except UnicodeDecodeError as problem:
            error = pb_utils.TritonError(f"text is not UTF-8: {problem}", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("embedding", embed(texts, self.signs))])
