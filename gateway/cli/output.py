"""What the commands share in talking to people and programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any


def fail(message: str, code: int = 2) -> int:
    """Say on the error stream what is wrong; returns the exit code."""
    print(f"sluice: {message}", file=sys.stderr)
    return code


class OutputError(Exception):
    """A result cannot be written; the message names the file and says why."""


def write_json(path: str, document: Mapping[str, Any]) -> None:
    """Write `document` for a program to read; `-` is the standard output. Raises `OutputError`."""
    text = json.dumps(document, indent=2, ensure_ascii=False)
    if path == "-":
        print(text)
        return
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError as error:
        raise OutputError(f"--json: {path} cannot be written ({error.strerror})") from error
