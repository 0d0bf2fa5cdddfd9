"""Gradient-boosted trees as flat NumPy arrays, evaluated for all rows and all trees at once.

The nodes of all trees lie one after the other. An inner node sends a row left if `row[feature] <= threshold`. A leaf
points to itself with an infinite threshold, so after `depth` steps every row stands on a leaf of every tree and the
loop needs no test for "done". This is the additive model of J. Friedman, "Greedy function approximation: a gradient
boosting machine" (2001): probability = sigmoid(base + sum of the leaves' values), shrinkage already multiplied in.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Forest:
    """A trained forest. `roots` [trees]; `feature`, `threshold`, `left`, `right`, `value` [nodes]; the rest scalar."""

    roots: npt.NDArray[np.int32]
    feature: npt.NDArray[np.int32]
    threshold: npt.NDArray[np.float64]
    left: npt.NDArray[np.int32]
    right: npt.NDArray[np.int32]
    value: npt.NDArray[np.float64]
    depth: int
    base: float
    decision_threshold: float

    def probability(self, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Probability of fraud, float32 [rows], of float32 `features` [rows, columns]."""
        rows = np.arange(features.shape[0])[:, None]
        node = np.broadcast_to(self.roots, (features.shape[0], self.roots.size))
        for _ in range(self.depth):
            goes_left = features[rows, self.feature[node]] <= self.threshold[node]
            node = np.where(goes_left, self.left[node], self.right[node])
        logit = self.base + self.value[node].sum(axis=1)
        return np.asarray(1.0 / (1.0 + np.exp(-logit)), dtype=np.float32)

    def save(self, path: Path) -> None:
        """Write the forest as an .npz file. Equal forests give equal bytes."""
        arrays: Any = {field.name: np.asarray(getattr(self, field.name)) for field in fields(self)}
        np.savez(path, **arrays)

    @staticmethod
    def load(path: Path) -> Forest:
        """Read a forest that `save` wrote. Raises OSError or KeyError if it is missing or incomplete."""
        with np.load(path, allow_pickle=False) as stored:
            return Forest(
                roots=stored["roots"],
                feature=stored["feature"],
                threshold=stored["threshold"],
                left=stored["left"],
                right=stored["right"],
                value=stored["value"],
                depth=int(stored["depth"]),
                base=float(stored["base"]),
                decision_threshold=float(stored["decision_threshold"]),
            )
