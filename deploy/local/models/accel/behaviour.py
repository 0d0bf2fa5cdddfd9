"""What `accel` does with a batch, as plain functions: settings, commands of a request, duration, execution log."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

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


@dataclass(frozen=True, slots=True)
class Command:
    """What one request asks for by its parameters: `fail` ("error" or "crash"), `straggle_ms`, `poll_cancel_ms`."""

    fail: str = ""
    straggle_ms: float = 0.0
    poll_cancel_ms: float = 0.0

    @staticmethod
    def read(parameters_json: str) -> Command:
        """The command in a request's parameters (JSON text, may be empty). Raises ValueError if it makes no sense."""
        if not parameters_json:
            return Command()
        parameters = json.loads(parameters_json)
        fail = parameters.get("fail", "")
        if fail not in ("", "error", "crash"):
            raise ValueError(f'parameter fail is {fail!r}; it may be "error" or "crash"')
        return Command(
            fail=fail,
            straggle_ms=_milliseconds(parameters, "straggle_ms"),
            poll_cancel_ms=_milliseconds(parameters, "poll_cancel_ms"),
        )


def _milliseconds(parameters: Mapping[str, object], name: str) -> float:
    value = parameters.get(name, 0)
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(f"parameter {name} is {value!r}; it must be a finite number that is not negative")
    return number


def duration_ms(settings: Settings, work: float, straggle_ms: float, chance: random.Random) -> float:
    """Time of a batch with this sum of `work`: s0 + s1 * work, times the factor if it straggles, plus what is asked."""
    planned_ms = settings.s0_ms + settings.s1_ms * work
    if settings.straggler_fraction and chance.random() < settings.straggler_fraction:
        planned_ms *= settings.straggler_factor
    return min(planned_ms + straggle_ms, settings.max_ms)


class ExecutionLog:
    """JSON lines, one per request that was executed; at `max_bytes` the file moves to `<path>.1` and starts anew."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self._open()

    def write(self, lines: Sequence[Mapping[str, object]]) -> None:
        """Append all lines with one write, so that readers never see half a line of a finished execution."""
        data = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()
        if self._size and self._size + len(data) > self.max_bytes:
            os.close(self._file)
            self.path.replace(self.path.with_name(self.path.name + ".1"))
            self._open()
        os.write(self._file, data)
        self._size += len(data)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._size = os.fstat(self._file).st_size
