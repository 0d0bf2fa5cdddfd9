"""Triton Python model `fraud`: features FP32 [n, 12] in, probability FP32 [n, 1] and label INT32 [n, 1] out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# The stub puts the folder of the version on sys.path.
from scored import answers  # type: ignore[import-not-found]
from trees import Forest  # type: ignore[import-not-found]


class TritonPythonModel:
    """One instance; Triton calls `execute` from one thread only."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the artifact that lies beside this file."""
        del args
        self.forest = Forest.load(Path(__file__).with_name("forest.npz"))

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response per request, in order."""
        responses: list[Any] = answers(requests, self.forest)
        return responses
