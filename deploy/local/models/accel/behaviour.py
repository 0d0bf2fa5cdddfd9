"""What `accel` does with a batch, as plain functions: settings and duration."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, fields

ENVIRONMENT_PREFIX = "SLUICE_ACCEL_"


@dataclass(frozen=True, slots=True)
class Settings:
    """How long executions take and how often they misbehave.

    `straggler_fraction` is a share of executions, `error_fraction` one of calls.
    """

    s0_ms: float = 4.0
    s1_ms: float = 1.0
    max_ms: float = 60_000.0
    straggler_fraction: float = 0.0
    straggler_factor: float = 20.0
    error_fraction: float = 0.0
    poll_cancel_ms: float = 0.0
    seed: int = 1
    log: str = ""
    log_max_bytes: int = 64 * 1024 * 1024

    @staticmethod
    def read(parameters: Mapping[str, str], environment: Mapping[str, str]) -> Settings:
        """Settings from the model's config parameters, each overridden by SLUICE_ACCEL_<NAME> where that is set.

        Raises ValueError naming the setting whose value cannot be used.
        """
        values: dict[str, float | int | str] = {}
        for field in fields(Settings):
            variable = ENVIRONMENT_PREFIX + field.name.upper()
            text = environment.get(variable, parameters.get(field.name))
            if text is None:
                continue
            convert = {"str": str, "int": int, "float": float}[str(field.type)]
            try:
                value = convert(text)
            except ValueError:
                raise ValueError(f"accel: {field.name} (or {variable}) is {text!r}; a number is needed") from None
            if isinstance(value, float | int) and not (math.isfinite(value) and value >= 0):
                raise ValueError(f"accel: {field.name} (or {variable}) is {text!r}; it must be finite and not negative")
            values[field.name] = value
        return Settings(**values)  # type: ignore[arg-type]


def duration_ms(settings: Settings, work: float, straggle_ms: float, chance: random.Random) -> float:
    """Time of a batch with this sum of `work`: s0 + s1 * work, times the factor if it straggles, plus what is asked."""
    planned_ms = settings.s0_ms + settings.s1_ms * work
    if settings.straggler_fraction and chance.random() < settings.straggler_fraction:
        planned_ms *= settings.straggler_factor
    return min(planned_ms + straggle_ms, settings.max_ms)
