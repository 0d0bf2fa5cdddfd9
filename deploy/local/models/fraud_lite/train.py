"""Train `fraud-lite` and write its artifact: `python -m deploy.local.models.fraud_lite.train OUT_DIR`.

It reads five columns of the tensor that `fraud` takes, so a caller can be answered by either with the same input.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from deploy.local.models import training
from deploy.local.models.fraud_lite.logistic import Logistic
from deploy.local.models.transactions import FEATURE_NAMES, Window, draw

ARTIFACT = "logistic.npz"
VERSION = "1"
COLUMNS = ("amount", "merchant_risk", "transactions_last_day", "country_mismatch", "new_device")
WINDOW = Window(first_day=20, end_day=120, rows=12_000)


def train(out_dir: Path) -> None:
    """Train, check the export against scikit-learn, and write `out_dir/1/`."""
    data, evaluation = draw(WINDOW), training.held_out()
    columns = np.asarray([FEATURE_NAMES.index(name) for name in COLUMNS], dtype=np.int32)
    scaler = StandardScaler().fit(data.features[:, columns].astype(np.float64))
    classifier = LogisticRegression().fit(scaler.transform(data.features[:, columns].astype(np.float64)), data.fraud)
    trained = classifier.predict_proba(scaler.transform(evaluation.features[:, columns].astype(np.float64)))[:, 1]
    model = Logistic(
        columns=columns,
        mean=scaler.mean_,
        scale=scaler.scale_,
        weight=classifier.coef_[0],
        bias=float(classifier.intercept_[0]),
        decision_threshold=training.decision_threshold(trained, evaluation.fraud),
    )
    version_dir = out_dir / VERSION
    version_dir.mkdir(parents=True, exist_ok=True)
    model.save(version_dir / ARTIFACT)
    # Judge what will be served: the file as read back.
    served = Logistic.load(version_dir / ARTIFACT).probability(evaluation.features)
    training.require_equal(served, trained)
    sizes = {"training_rows": WINDOW.rows, "columns": len(COLUMNS)}
    training.write_manifest(version_dir, ARTIFACT, "fraud-lite", VERSION, WINDOW, evaluation, served, sizes)


if __name__ == "__main__":
    train(Path(sys.argv[1]))
