"""Arrivals from a file: CSV with a head line, or JSON lines."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from load.arrivals import NEXT_ROW

COLUMNS = ("offset_s", "traffic", "row")
ROWS_MAX = 5_000_000
PROBLEMS_MAX = 10
"""So many wrong rows are told at once."""


class TraceError(Exception):
    """A trace cannot be used. Each of `args` is a problem with its file and line."""


def read_trace(path: Path, traffic: str, names: Sequence[str]) -> tuple[tuple[float, int], ...]:
    """The arrivals of one traffic, (offset_s, row), sorted by time. `names` are all traffics of the scenario.

    Raises TraceError with file, line and what to do.
    """
    found: list[tuple[float, int]] = []
    wrong: list[str] = []
    try:
        for line, fields in _lines(path):
            if line > ROWS_MAX:
                raise TraceError(f"{path}:{line}: more than {ROWS_MAX} lines; split it")
            try:
                whose, arrival = _arrival(path, line, fields, names)
            except TraceError as error:
                wrong.append(str(error))
                if len(wrong) == PROBLEMS_MAX:
                    wrong.append(f"{path}: the rows behind line {line} are not looked at yet")
                    break
                continue
            if whose in (None, traffic):
                found.append(arrival)
    except OSError as error:
        raise TraceError(f"{path}: {(error.strerror or type(error).__name__).lower()}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: it is not UTF-8; save it as UTF-8") from error
    if wrong:
        raise TraceError(*wrong)
    if not found:
        raise TraceError(f"{path}: it has no arrivals of the traffic `{traffic}`")
    return tuple(sorted(found))


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8", newline="") as file:
        if path.suffix in (".jsonl", ".ndjson"):
            for line, text in enumerate(file, 1):
                if not text.strip():
                    continue
                try:
                    fields = json.loads(text)
                except ValueError as error:
                    raise TraceError(f"{path}:{line}: not JSON: {error}") from error
                if not isinstance(fields, dict):
                    raise TraceError(f'{path}:{line}: not an object; write as {{"offset_s": 0.5}}')
                yield line, fields
            return
        reader = csv.DictReader(file, strict=True)
        try:
            for fields in reader:
                if None in fields or None in fields.values():
                    raise TraceError(f"{path}:{reader.line_num}: it has not as many fields as the head line")
                yield reader.line_num, {key.strip(): value for key, value in fields.items() if value.strip()}
        except csv.Error as error:
            raise TraceError(f"{path}:{reader.line_num}: not CSV: {error}") from error


def _arrival(
    path: Path, line: int, fields: dict[str, Any], names: Sequence[str]
) -> tuple[str | None, tuple[float, int]]:
    for key in fields:
        if key not in COLUMNS:
            raise TraceError(f"{path}:{line}: unknown column `{key}`; there are {', '.join(COLUMNS)}")
    whose = fields.get("traffic")
    if whose is not None and whose not in names:
        raise TraceError(f"{path}:{line}: the scenario has no traffic `{whose}`; there are {', '.join(names)}")
    offset_s = _number(fields.get("offset_s"))
    if offset_s is None:
        raise TraceError(f"{path}:{line}: `offset_s` is not a number of seconds from 0 on")
    if "row" not in fields:
        return whose, (offset_s, NEXT_ROW)
    row = _number(fields["row"])
    if row is None or row != int(row):
        raise TraceError(f"{path}:{line}: `row` is not a whole number from 0 on")
    return whose, (offset_s, int(row))


def _number(value: Any) -> float | None:
    """A finite number that is not negative, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None
