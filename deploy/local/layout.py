"""Where things lie, and helpers for files that several commands share."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The project root; `.triton` and `.run` below it are git-ignored."""

PACKAGE = Path(__file__).resolve().parent
ENVIRONMENT_DIR = ROOT / ".triton"
RUN_DIR = ROOT / ".run"
REPOSITORY_DIR = RUN_DIR / "models"
LOG_DIR = RUN_DIR / "logs"
STATE_FILE = RUN_DIR / "fleet.json"

CORE_MODELS = ("fraud", "fraud-lite", "identity", "accel")
"""What a fleet serves unless it is asked for more. Each further model costs a server start time and memory."""

MODELS = (*CORE_MODELS, "streamer", "accumulator", "accumulator-text", "ranker", "embedder", "mixed")
"""All demo models, by the names that Triton knows."""

Progress = Callable[[str], None]
"""Takes one line of progress, without a line end."""


def print_progress(line: str) -> None:
    """The default progress: lines on standard error, so that standard output stays a result."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def exclusive(name: str) -> Iterator[None]:
    """Hold the lock `.run/<name>.lock` among all processes of this checkout; released by the kernel if we die."""
    RUN_DIR.mkdir(exist_ok=True)
    with open(RUN_DIR / f"{name}.lock", "w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text`; a reader sees the old or the new content, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
