"""Logistic regression over a few columns of the shared feature tensor, standardised, as plain NumPy."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Logistic:
    """`columns` names the k columns of the tensor that are read; `mean`, `scale`, `weight` are [k]."""

    columns: npt.NDArray[np.int32]
    mean: npt.NDArray[np.float64]
    scale: npt.NDArray[np.float64]
    weight: npt.NDArray[np.float64]
    bias: float
    decision_threshold: float

    def probability(self, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Probability of fraud, float32 [rows], of float32 `features` [rows, all columns]."""
        logit = ((features[:, self.columns] - self.mean) / self.scale) @ self.weight + self.bias
        return np.asarray(1.0 / (1.0 + np.exp(-logit)), dtype=np.float32)

    def save(self, path: Path) -> None:
        """Write the model as an .npz file. Equal models give equal bytes."""
        arrays: Any = {field.name: np.asarray(getattr(self, field.name)) for field in fields(self)}
        np.savez(path, **arrays)

    @staticmethod
    def load(path: Path) -> Logistic:
        """Read a model that `save` wrote. Raises OSError or KeyError if it is missing or incomplete."""
        with np.load(path, allow_pickle=False) as stored:
            return Logistic(
                columns=stored["columns"],
                mean=stored["mean"],
                scale=stored["scale"],
                weight=stored["weight"],
                bias=float(stored["bias"]),
                decision_threshold=float(stored["decision_threshold"]),
            )
