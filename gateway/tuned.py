"""What a model's policy says of the deciders' numbers, put into their settings."""

from __future__ import annotations

from dataclasses import replace

from gateway.decide.affinity import AffinitySettings
from gateway.decide.ejection import EjectionSettings
from gateway.decide.tuning import Tuning
from gateway.policy.schema import Ejection, ModelPolicy


def tuned(policy: ModelPolicy, tuning: Tuning) -> Tuning:
    """`tuning` with what the policy says instead; what no policy names stays."""
    balance = replace(tuning.balance, ejection=_ejection(policy.ejection, tuning.balance.ejection))
    if policy.affinity is not None:
        balance = replace(balance, affinity=AffinitySettings(policy.affinity.load_factor), scope=policy.model)
    return replace(tuning, balance=balance)


def _ejection(policy: Ejection, settings: EjectionSettings) -> EjectionSettings:
    breaker = replace(
        settings.breaker,
        failures_in_row=policy.failures_in_row,
        success_min=policy.success_min,
        slow_factor=policy.slow_factor,
        open_s=policy.pause_ms / 1000,
        open_max_s=policy.pause_max_ms / 1000,
        slow_start_s=policy.slow_start_ms / 1000,
        forgive_s=policy.pause_max_ms / 1000,
    )
    return replace(
        settings,
        enabled=policy.enabled,
        ejected_max=policy.share_max,
        panic_below=policy.panic_below,
        breaker=breaker,
    )
