"""What a request asks of a demo model by its parameters. Copied beside each `model.py` that uses it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass


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
