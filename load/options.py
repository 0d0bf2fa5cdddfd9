"""Options that commands of the lab have in common."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from load.errors import UsageError


def positive_int(text: str) -> int:
    """A whole number from 1. Raises argparse.ArgumentTypeError for anything else."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return number


def positive(text: str) -> float:
    """A finite number above 0. Raises argparse.ArgumentTypeError for anything else."""
    number = _number(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def not_negative(text: str) -> float:
    """A finite number from 0. Raises argparse.ArgumentTypeError for anything else."""
    number = _number(text)
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0")
    return number


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def require_json_folder(out: str | None) -> None:
    """Raises UsageError, before anything is measured, if what `--json` names could not be written afterwards."""
    if out not in (None, "-") and not Path(str(out)).absolute().parent.is_dir():
        raise UsageError(f"--json: there is no folder for {out}")


def require_pictures_folder(folder: str | None) -> None:
    """Make the folder that `--pictures` names. Raises UsageError, before anything is measured, if nothing could be
    written into it afterwards.
    """
    if folder is None:
        return
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"--pictures: nothing can be written into {folder}: {error.strerror}") from error


def tell(result: dict[str, Any], out: str | None, words: Callable[[dict[str, Any]], str]) -> None:
    """Print a result in `words` and write it as JSON to the file that `--json` names; `-` prints the JSON alone."""
    text = json.dumps(result, indent=1)
    if out == "-":
        print(text)
        return
    if out:
        Path(out).write_text(text + "\n", encoding="utf-8")
    print(words(result))
