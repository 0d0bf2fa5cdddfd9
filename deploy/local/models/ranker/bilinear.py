"""A bilinear model of low rank, score(user, item) = (P'user) . (Q'item), and its fit by alternating least squares.

Koren, Bell, Volinsky: "Matrix Factorization Techniques for Recommender Systems" (2009) describes the alternation; here
the two sides have features, so each step is one ridge regression for a whole factor matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Bilinear:
    """`users` and `items` are the factor matrices P and Q, [features, rank]."""

    users: Matrix
    items: Matrix

    def factors(self, user: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Where one user, float32 [features], lies on the latent axes: float32 [rank]."""
        return (user.astype(np.float64) @ self.users).astype(np.float32)

    def scores(self, user: npt.NDArray[np.float32], items: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """float32 [n] of one user, float32 [features], and float32 [n, features]."""
        wanted = self.items @ (user.astype(np.float64) @ self.users)
        return np.asarray(items.astype(np.float64) @ wanted, dtype=np.float32)

    def save(self, path: Path) -> None:
        """Write the model as an .npz file. Equal models give equal bytes."""
        np.savez(path, users=self.users, items=self.items)

    @staticmethod
    def load(path: Path) -> Bilinear:
        """Read a model that `save` wrote. Raises OSError or KeyError if it is missing or incomplete."""
        with np.load(path, allow_pickle=False) as stored:
            return Bilinear(users=stored["users"], items=stored["items"])


def order(scores: npt.NDArray[np.float32]) -> npt.NDArray[np.int32]:
    """Positions of the items, best first; of equals, the earlier first."""
    return np.argsort(-scores, kind="stable").astype(np.int32)


def fit(users: Matrix, items: Matrix, ratings: Matrix, rank: int, rounds: int, ridge: float, seed: int) -> Bilinear:
    """Fit to `ratings` [n] of the pairs `users` [n, f] and `items` [n, g]; `ridge` weighs the factors' squares."""
    p = np.zeros((users.shape[1], rank))
    q = np.random.default_rng(seed).normal(size=(items.shape[1], rank)) / np.sqrt(items.shape[1])
    for _ in range(rounds):
        p = _solve(users, items @ q, ratings, ridge)
        q = _solve(items, users @ p, ratings, ridge)
    return Bilinear(users=p, items=q)


def _solve(features: Matrix, other: Matrix, ratings: Matrix, ridge: float) -> Matrix:
    """The factor matrix of one side, with the other side's latent coordinates `other` [n, rank] held."""
    design = (features[:, :, None] * other[:, None, :]).reshape(len(features), -1)
    normal = design.T @ design + ridge * np.eye(design.shape[1])
    return np.asarray(np.linalg.solve(normal, design.T @ ratings)).reshape(features.shape[1], -1)
