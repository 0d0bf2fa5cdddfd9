"""What `accel` does with a batch: settings, how they change while it runs, and duration."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

ENVIRONMENT_PREFIX = "SLUICE_ACCEL_"
CHANGEABLE = frozenset({"s0_ms", "s1_ms", "slow_factor", "straggler_fraction", "straggler_factor", "error_fraction"})
"""Settings that the control file may change."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How long executions take and how often they misbehave.

    `slow_factor` makes every execution so many times slower. `straggler_fraction` is a share of executions,
    `error_fraction` one of calls. `control` is the path of a file, see `Control`.
    """

    s0_ms: float = 4.0
    s1_ms: float = 1.0
    max_ms: float = 60_000.0
    slow_factor: float = 1.0
    straggler_fraction: float = 0.0
    straggler_factor: float = 20.0
    error_fraction: float = 0.0
    poll_cancel_ms: float = 0.0
    seed: int = 1
    log: str = ""
    log_max_bytes: int = 64 * 1024 * 1024
    control: str = ""

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

    def changed(self, text: str) -> Settings:
        """These with what a control file says instead: a JSON object of numbers. Raises ValueError."""
        try:
            given = json.loads(text)
        except ValueError as error:
            raise ValueError(f"accel: the control file is not JSON: {error}") from None
        if not isinstance(given, dict) or set(given) - CHANGEABLE:
            raise ValueError(f"accel: the control file has an object with some of {', '.join(sorted(CHANGEABLE))}")
        for name, value in given.items():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (number and math.isfinite(value) and value >= 0):
                raise ValueError(f"accel: {name} in the control file is {value!r}; a number from 0 is needed")
        return replace(self, **{name: float(value) for name, value in given.items()})  # type: ignore[arg-type]


class Control:
    """The settings that hold now: those at the start, changed by the file `control` for as long as it is there. It is
    to be replaced as a whole (by a rename), and is read again when it is another one.
    """

    def __init__(self, settings: Settings) -> None:
        self._started_with = self._now = settings
        self._path = Path(settings.control) if settings.control else None
        self._seen: tuple[int, int, int] | None = None

    def settings(self) -> Settings:
        """Look at the file, which costs a few microseconds. Raises ValueError, each time, for one that cannot be used,
        and OSError for one that cannot be read.
        """
        if self._path is None:
            return self._now
        try:
            status = os.stat(self._path)
            seen = (status.st_ino, status.st_mtime_ns, status.st_size)
            if seen != self._seen:
                self._now = self._started_with.changed(self._path.read_text(encoding="utf-8"))
                self._seen = seen
        except FileNotFoundError:
            self._now, self._seen = self._started_with, None
        return self._now


def duration_ms(settings: Settings, work: float, straggle_ms: float, chance: random.Random) -> float:
    """Time of a batch with this sum of `work`: s0 + s1 * work, times the factors if it is slow or straggles, plus what
    is asked.
    """
    planned_ms = (settings.s0_ms + settings.s1_ms * work) * settings.slow_factor
    if settings.straggler_fraction and chance.random() < settings.straggler_fraction:
        planned_ms *= settings.straggler_factor
    return min(planned_ms + straggle_ms, settings.max_ms)
