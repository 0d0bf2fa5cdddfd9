"""Train both versions of `fraud` and write their artifacts: `python -m deploy.local.models.fraud.train OUT_DIR`.

Version 1 has seen only a small, old window of data, mostly before card testing appeared; version 2 a larger and newer
one. Both come from fixed seeds.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import GradientBoostingClassifier

from deploy.local.models import training
from deploy.local.models.fraud.trees import Forest
from deploy.local.models.transactions import SEED, Window, draw

ARTIFACT = "forest.npz"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one version is trained."""

    version: str
    window: Window
    trees: int
    depth: int


RECIPES = (
    Recipe("1", Window(first_day=0, end_day=50, rows=6_000), trees=40, depth=3),
    Recipe("2", Window(first_day=20, end_day=120, rows=24_000), trees=100, depth=4),
)


def export(classifier: Any, decision_threshold: float) -> Forest:
    """The fitted scikit-learn classifier as one `Forest`."""
    roots, feature, threshold, left, right, value = [], [], [], [], [], []
    offset = 0
    for (estimator,) in classifier.estimators_:
        tree = estimator.tree_
        own = np.arange(tree.node_count)
        leaf = tree.children_left < 0
        roots.append(offset)
        feature.append(np.where(leaf, 0, tree.feature))
        threshold.append(np.where(leaf, np.inf, tree.threshold))
        left.append(offset + np.where(leaf, own, tree.children_left))
        right.append(offset + np.where(leaf, own, tree.children_right))
        value.append(classifier.learning_rate * tree.value[:, 0, 0])
        offset += tree.node_count
    prior = classifier.init_.class_prior_
    return Forest(
        roots=np.asarray(roots, dtype=np.int32),
        feature=np.concatenate(feature).astype(np.int32),
        threshold=np.concatenate(threshold).astype(np.float64),
        left=np.concatenate(left).astype(np.int32),
        right=np.concatenate(right).astype(np.int32),
        value=np.concatenate(value).astype(np.float64),
        depth=max(int(estimator.tree_.max_depth) for (estimator,) in classifier.estimators_),
        base=float(np.log(prior[1] / prior[0])),
        decision_threshold=decision_threshold,
    )


def train(recipe: Recipe, out_dir: Path) -> None:
    """Train one version, check the export against scikit-learn, and write `out_dir/<version>/`."""
    data = draw(recipe.window)
    classifier = GradientBoostingClassifier(
        n_estimators=recipe.trees,
        max_depth=recipe.depth,
        learning_rate=0.1,
        subsample=0.5,
        min_samples_leaf=30,  # keeps single rare rows from making leaves of enormous weight
        random_state=SEED,
    ).fit(data.features, data.fraud)
    evaluation = training.held_out()
    trained = classifier.predict_proba(evaluation.features)[:, 1]
    forest = export(classifier, training.decision_threshold(trained, evaluation.fraud))
    version_dir = out_dir / recipe.version
    version_dir.mkdir(parents=True, exist_ok=True)
    forest.save(version_dir / ARTIFACT)
    # Judge what will be served: the file as read back.
    served = Forest.load(version_dir / ARTIFACT).probability(evaluation.features)
    training.require_equal(served, trained)
    sizes = {
        "training_rows": recipe.window.rows,
        "trees": int(forest.roots.size),
        "nodes": int(forest.feature.size),
        "depth": forest.depth,
    }
    training.write_manifest(version_dir, ARTIFACT, "fraud", recipe.version, recipe.window, evaluation, served, sizes)


if __name__ == "__main__":
    for each in RECIPES:
        train(each, Path(sys.argv[1]))
