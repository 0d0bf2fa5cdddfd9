"""A synthetic set of card transactions, drawn from a fixed seed: the data that `fraud` and `fraud-lite` learn from.

Each row is one transaction of one simulated customer, described by the twelve float32 features of `FEATURES`, in
that order. A transaction is fraudulent for one of two reasons:

* a *stolen card*: a purchase that is large for this customer, far from home or in another country, at night, from a
  new device, after failed PINs;
* *card testing*: bursts of small purchases without the card at risky merchants. It appears on day
  `CARD_TESTING_STARTS_DAY` and grows, so a model trained on an older window knows little of it.

About 4 % of the rows are fraud. Probabilities are logistic in the features plus noise, so no model can be perfect.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FEATURES: tuple[tuple[str, str], ...] = (
    ("amount", "EUR"),
    ("hour_of_day", "h, 0 to 24"),
    ("merchant_risk", "share of disputed sales, 0 to 1"),
    ("transactions_last_hour", "count"),
    ("transactions_last_day", "count"),
    ("country_mismatch", "0 or 1"),
    ("account_age", "days"),
    ("card_present", "0 or 1"),
    ("amount_to_mean", "ratio to this customer's mean amount"),
    ("distance_from_home", "km"),
    ("failed_pins_last_day", "count"),
    ("new_device", "0 or 1"),
)
"""Name and unit of every feature; the position is the column of the model's input tensor."""

FEATURE_NAMES = tuple(name for name, _ in FEATURES)
FEATURE_SCHEMA_ID = "transactions/" + hashlib.sha256(repr(FEATURES).encode()).hexdigest()[:12]
"""Changes with any change of names, units or order, so two models with one id read the same tensor alike."""

SEED = 20240611
CARD_TESTING_STARTS_DAY = 40
LAST_DAY = 150
DESCRIPTION = "synthetic card transactions, deploy/local/models/transactions.py"

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Window:
    """Transactions of the days `first_day <= day < end_day`, `rows` of them."""

    first_day: int
    end_day: int
    rows: int


@dataclass(frozen=True, slots=True)
class Transactions:
    """`features` is float32 [rows, 12]; `fraud` is int32 [rows], 1 for fraud."""

    features: npt.NDArray[np.float32]
    fraud: npt.NDArray[np.int32]


def draw(window: Window, seed: int = SEED) -> Transactions:
    """The transactions of `window`. The same window and seed give the same rows; windows are independent draws."""
    rng = np.random.default_rng([seed, window.first_day, window.end_day, window.rows])
    rows = window.rows
    day = rng.uniform(window.first_day, window.end_day, rows)

    mean_amount = rng.lognormal(3.4, 0.6, rows)
    amount_to_mean = rng.lognormal(-0.2, 0.7, rows)
    hour = (rng.normal(14.0, 5.0, rows)) % 24.0
    merchant_risk = rng.beta(1.2, 9.0, rows)
    last_day = rng.poisson(2.0, rows).astype(np.float64)
    last_hour = rng.binomial(last_day.astype(np.int64), 0.15).astype(np.float64)
    mismatch = (rng.random(rows) < 0.06).astype(np.float64)
    age = rng.gamma(2.0, 500.0, rows)
    present = (rng.random(rows) < 0.55).astype(np.float64)
    distance = rng.gamma(0.6, 30.0, rows) + mismatch * rng.gamma(2.0, 600.0, rows)
    failed_pins = rng.poisson(0.08, rows).astype(np.float64)
    new_device = (rng.random(rows) < 0.10).astype(np.float64)

    # Card testing changes what the transaction looks like, not only its label.
    growth = np.clip((day - CARD_TESTING_STARTS_DAY) / 40.0, 0.0, 1.0)
    testing = rng.random(rows) < 0.025 * growth
    amount_to_mean[testing] *= 0.15
    present[testing] = 0.0
    burst = rng.poisson(5.0, rows)
    last_hour[testing] += burst[testing]
    last_day[testing] += burst[testing]
    merchant_risk[testing] = np.clip(merchant_risk[testing] + 0.2, 0.0, 1.0)

    night = ((hour < 6.0) | (hour > 22.0)).astype(np.float64)
    stolen_logit = (
        -7.2
        + 1.1 * np.log1p(amount_to_mean)
        + 2.0 * mismatch
        + 0.9 * night
        + 6.0 * merchant_risk
        + 1.3 * new_device
        + 1.0 * failed_pins
        + 0.25 * np.log1p(distance)
        + 1.6 * mismatch * new_device
        - 0.4 * np.log1p(age / 365.0)
        + rng.normal(0.0, 0.5, rows)
    )
    testing_logit = np.where(testing, 1.2 + 0.3 * last_hour, -12.0)
    probability = 1.0 - (1.0 - _sigmoid(stolen_logit)) * (1.0 - _sigmoid(testing_logit))
    fraud = (rng.random(rows) < probability).astype(np.int32)

    columns = (
        mean_amount * amount_to_mean,
        hour,
        merchant_risk,
        last_hour,
        last_day,
        mismatch,
        age,
        present,
        amount_to_mean,
        distance,
        failed_pins,
        new_device,
    )
    return Transactions(features=np.column_stack(columns).astype(np.float32), fraud=fraud)


def _sigmoid(logit: FloatArray) -> FloatArray:
    return np.asarray(1.0 / (1.0 + np.exp(-logit)), dtype=np.float64)
