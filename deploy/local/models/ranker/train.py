"""Train `ranker` and write its artifact: `python -m deploy.local.models.ranker.train OUT_DIR`.

The data is synthetic: users and items with 16 features each, and ratings from a hidden bilinear taste plus noise.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deploy.local.models.ranker.bilinear import Bilinear, Matrix, fit

ARTIFACT = "bilinear.npz"
VERSION = "1"
SEED = 4711
FEATURES, RANK = 16, 4
NOISE = 0.3
TRAINING_ROWS, HELD_OUT_ROWS = 6_000, 2_000


@dataclass(frozen=True, slots=True)
class Ratings:
    """Rated pairs: `users` and `items` [n, 16], `ratings` [n] with standard deviation 1 before the noise."""

    users: Matrix
    items: Matrix
    ratings: Matrix

    def rmse(self, model: Bilinear) -> float:
        """Root of the mean squared error of a model on these pairs."""
        predicted = ((self.users @ model.users) * (self.items @ model.items)).sum(axis=1)
        return float(np.sqrt(np.mean((predicted - self.ratings) ** 2)))


def draw(rows: int, seed: int) -> Ratings:
    """Rated pairs of the one hidden taste; `seed` draws the pairs and the noise."""
    taste = np.random.default_rng(SEED)
    hidden = taste.normal(size=(FEATURES, RANK)) @ taste.normal(size=(RANK, FEATURES))
    hidden /= np.linalg.norm(hidden)
    chance = np.random.default_rng((SEED, seed))
    users, items = chance.normal(size=(rows, FEATURES)), chance.normal(size=(rows, FEATURES))
    ratings = np.einsum("nf,fg,ng->n", users, hidden, items) + NOISE * chance.normal(size=rows)
    return Ratings(users=users, items=items, ratings=ratings)


def train(out_dir: Path) -> None:
    """Fit, judge what will be served on pairs that were held out, and write `out_dir/1/`."""
    data, held_out = draw(TRAINING_ROWS, seed=1), draw(HELD_OUT_ROWS, seed=2)
    model = fit(data.users, data.items, data.ratings, rank=RANK, rounds=20, ridge=1.0, seed=SEED)
    version_dir = out_dir / VERSION
    version_dir.mkdir(parents=True, exist_ok=True)
    model.save(version_dir / ARTIFACT)
    rmse = held_out.rmse(Bilinear.load(version_dir / ARTIFACT))
    if rmse > 1.1 * NOISE:
        raise SystemExit(f"ranker: the error on held-out pairs is {rmse:.3f}; the noise alone is {NOISE}")
    manifest = {
        "model": "ranker",
        "version": VERSION,
        "artifact": ARTIFACT,
        "artifact_sha256": hashlib.sha256((version_dir / ARTIFACT).read_bytes()).hexdigest(),
        "data_set": {"description": "synthetic ratings of a hidden bilinear taste", "seed": SEED},
        "evaluation": {"rmse": round(rmse, 6), "noise": NOISE},
        "sizes": {"training_rows": TRAINING_ROWS, "held_out_rows": HELD_OUT_ROWS, "rank": RANK},
    }
    (version_dir / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    train(Path(sys.argv[1]))
