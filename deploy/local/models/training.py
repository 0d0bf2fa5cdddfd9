"""What the training programs share: the held-out data, the figures of a classifier, and a version's manifest."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.metrics import roc_auc_score

from deploy.local.models.transactions import (
    DESCRIPTION,
    FEATURE_SCHEMA_ID,
    FEATURES,
    LAST_DAY,
    SEED,
    Transactions,
    Window,
    draw,
)

HELD_OUT = Window(first_day=120, end_day=LAST_DAY, rows=20_000)
"""Later than every training window, so the figures are those of a model in use."""

SAMPLE_ROWS = 32


def held_out() -> Transactions:
    """The transactions that no model was trained on."""
    return draw(HELD_OUT)


def decision_threshold(probability: npt.NDArray[np.float64], fraud: npt.NDArray[np.int32]) -> float:
    """The probability above which 1 % of the honest transactions lie: the label's threshold."""
    return float(np.quantile(probability[fraud == 0], 0.99))


def require_equal(served: npt.NDArray[np.float32], trained: npt.NDArray[np.float64]) -> None:
    """Stop the build if the exported arithmetic differs from scikit-learn's by more than 1e-6."""
    difference = float(np.abs(served.astype(np.float64) - trained).max())
    if difference > 1e-6:
        raise SystemExit(f"the exported model differs from scikit-learn's by {difference:.3g}; 1e-6 is allowed")


def write_manifest(
    version_dir: Path,
    artifact: str,
    model: str,
    version: str,
    window: Window,
    evaluation: Transactions,
    served: npt.NDArray[np.float32],
    sizes: dict[str, int],
) -> None:
    """Write `manifest.json` and `samples.json` (rows of the held-out set with the answers to expect) of one version."""
    manifest: dict[str, Any] = {
        "model": model,
        "version": version,
        "artifact": artifact,
        "artifact_sha256": hashlib.sha256((version_dir / artifact).read_bytes()).hexdigest(),
        "data_set": {"description": DESCRIPTION, "seed": SEED, "training_window": asdict(window)},
        "segment": "all",
        "feature_schema_id": FEATURE_SCHEMA_ID,
        "features": [{"name": name, "unit": unit} for name, unit in FEATURES],
        "evaluation": {
            "held_out_window": asdict(HELD_OUT),
            "auc": round(float(roc_auc_score(evaluation.fraud, served)), 6),
            "fraud_share": round(float(evaluation.fraud.mean()), 6),
        },
        "sizes": sizes,
    }
    samples = {
        "features": [[float(value) for value in row] for row in evaluation.features[:SAMPLE_ROWS]],
        "probability": [float(value) for value in served[:SAMPLE_ROWS]],
    }
    for name, content in (("manifest.json", manifest), ("samples.json", samples)):
        (version_dir / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
