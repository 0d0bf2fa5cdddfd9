"""The deciders' numbers in a simulation: so small that a few dozen calls set in motion what a fleet sees in a day."""

from __future__ import annotations

from gateway.decide.attempt_budget import AttemptBudgetSettings
from gateway.decide.cancel_cap import CancelCapSettings
from gateway.decide.hedge import HedgeSettings
from gateway.decide.limit_settings import LimitSettings
from gateway.decide.pacer import PacerSettings
from gateway.decide.tuning import Tuning

EAGER = Tuning(
    cancels=CancelCapSettings(per_s=4.0, burst=2, climbing_share=1.0, window_s=0.5),
    budget=AttemptBudgetSettings(hedge_deposit=0.5, retry_deposit=0.5),
    hedge=HedgeSettings(trigger_quantile=0.6, early_quantile=0.5, samples_min=4, load_max=1.0),
    limit=LimitSettings(
        window_s=0.05, samples_min=5, calm_s=0.2, remeasure_s=1.0, remeasure_soon_s=0.2, trial_wait=1, idle_s=1.5
    ),
    pacer=PacerSettings(samples_min=8),
)
