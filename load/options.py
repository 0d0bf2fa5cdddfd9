"""Options that commands of the lab have in common."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from load.errors import UsageError


def positive_int(text: str) -> int:
    """A whole number from 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def positive(text: str) -> float:
    """A finite number above 0."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return number


def not_negative(text: str) -> float:
    """A finite number from 0."""
    return 0.0 if float(text) == 0 else positive(text)


def require_json_folder(out: str | None) -> None:
    """Raises UsageError, before anything is measured, if what `--json` names could not be written afterwards."""
    if out not in (None, "-") and not Path(str(out)).absolute().parent.is_dir():
        raise UsageError(f"--json: there is no folder for {out}")


def tell(result: dict[str, Any], out: str | None, words: Callable[[dict[str, Any]], str]) -> None:
    """Print a result in `words` and write it as JSON to the file that `--json` names; `-` prints the JSON alone."""
    text = json.dumps(result, indent=1)
    if out == "-":
        print(text)
        return
    if out:
        Path(out).write_text(text + "\n", encoding="utf-8")
    print(words(result))
