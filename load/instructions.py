"""`python -m load instructions`: user-space instructions of one call, stage by stage, counted by callgrind."""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.runtime import loop
from load import accounting
from load.callgrind import count, require_valgrind
from load.instructions_child import BURST, whole_bursts
from load.options import positive_int, require_json_folder, tell
from load.stage_ends import GRPC, HTTP, UPSTREAM

START_LIMIT_S = 300.0
"""Start and end of a program under valgrind: about ten seconds on an idle machine."""
CALL_LIMIT_S = 0.25
"""Far more than a counted call takes: some milliseconds."""

EXAMPLE = """\
examples:
  python -m load instructions
  python -m load instructions grpc client --json instructions.json

Runs the same calls as `stages`, 16 at a time, under valgrind's callgrind, which counts every instruction that the
gateway's process executes in user space, on all its threads. Each stage runs in a process of its own, and counting is
on around the calls alone: warm-up, start and end are not in it. Needs valgrind (apt-get install -y valgrind) and
permission to trace processes.

A count hardly depends on the clock rate of the processors or on what else they do, so it shows changes that times on a
shared machine hide. It is no time: the kernel's work, cache misses and mispredicted branches cost time and no
instructions. So count before and after a change, with the same --calls and --loop, and let `compare` judge what it is
worth.

exit codes: 0 it ran to its end; 1 not; 2 wrong usage, or valgrind is not installed; 130 interrupted"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.epilog = EXAMPLE
    parser.add_argument("stages", nargs="*", type=_stage, metavar="STAGE",
                        help=f"of {', '.join(STAGES)} (default: all, and their sums)")  # fmt: skip
    parser.add_argument("--calls", type=positive_int, default=960, metavar="N",
                        help=f"of each stage, rounded up to whole bursts of {BURST} (default: 960)")  # fmt: skip
    parser.add_argument("--loop", choices=loop.LOOPS, default="uvloop", help="event loop (default: uvloop)")
    parser.add_argument("--json", metavar="OUT", help="write the figures as JSON to this file; - is stdout")


def _stage(text: str) -> str:
    """Not `choices`: with these argparse refuses the empty list."""
    if text not in STAGES:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(STAGES)}")
    return text


def run(arguments: argparse.Namespace) -> int:
    """Count. Returns the command's exit code."""
    require_json_folder(arguments.json)
    valgrind = require_valgrind()
    chosen = [name for name in STAGES if not arguments.stages or name in arguments.stages]
    bursts = whole_bursts(arguments.calls)
    counts = _counts(needed(chosen), bursts, arguments.loop)
    setting = {
        "calls": bursts * BURST,
        "loop": arguments.loop,
        "valgrind": valgrind,
        "python": platform.python_version(),
        "machine": accounting.machine_name(),
    }
    tell(document(chosen, counts, setting), arguments.json, table)
    return 0


# --- what is counted --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stage:
    """A row: what the reading `outer` counts more than `inner`, or all of it."""

    name: str
    outer: str
    inner: str | None = None

    @property
    def readings(self) -> tuple[str, ...]:
        return (self.outer,) if self.inner is None else (self.inner, self.outer)


STAGES: Mapping[str, Stage] = {
    "http": Stage(HTTP, HTTP),
    "grpc": Stage(GRPC, GRPC),
    "client": Stage(UPSTREAM, UPSTREAM),
    "layers": Stage("layers with metrics", "with metrics", "client"),
    "records": Stage("prediction record", "with records", "with metrics"),
}
"""By the names of the command line. A reading is an end of `stage_ends.Ends` or one of `stages.depths`."""

SUMS: Mapping[str, tuple[str, ...]] = {
    "a call over HTTP": ("http", "layers", "records", "client"),
    "a call over gRPC": ("grpc", "layers", "records", "client"),
}
"""What a whole call passes through."""


def needed(chosen: Sequence[str]) -> list[str]:
    """The readings that these stages are made of, each once."""
    return list(dict.fromkeys(reading for name in chosen for reading in STAGES[name].readings))


def _counts(readings: Sequence[str], bursts: int, loop_name: str) -> dict[str, int]:
    """Instructions of all calls together, by reading. Raises LoadError."""
    counts = {}
    for number, reading in enumerate(readings, 1):
        counts[reading] = count_reading(reading, bursts, loop_name, f"{number}/{len(readings)} {reading}")
        per_call = counts[reading] / (bursts * BURST)
        print(f"{number}/{len(readings)} {reading}: {per_call:,.0f} a call", file=sys.stderr, flush=True)
    return counts


def count_reading(reading: str, bursts: int, loop_name: str, label: str, more: Sequence[str] = ()) -> int:
    """Instructions of so many bursts of calls. `label` is what a progress line says, `more` are words for the program
    that is counted. Raises LoadError.
    """
    line = _ProgressLine(label)
    try:
        return _count(reading, bursts, loop_name, line, more)
    finally:
        line.end()


def _count(reading: str, bursts: int, loop_name: str, line: _ProgressLine, more: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="sluice-instructions-") as folder:

        def argv_for(port: int) -> list[str]:
            argv = [sys.executable, "-m", "load.instructions_child", reading, "--folder", str(Path(folder) / "house")]
            return [*argv, "--bursts", str(bursts), "--loop", loop_name, "--port", str(port), *more]

        return count(
            argv_for,
            name=reading,
            folder=Path(folder),
            limit_s=START_LIMIT_S + bursts * BURST * CALL_LIMIT_S,
            tick=line.show,
            # Where strings lie in sets and dictionaries, and so the steps of a look-up, would else differ by run.
            variables={"PYTHONHASHSEED": "0"},
        )


class _ProgressLine:
    """On a terminal, a line that says what runs and since when; nothing elsewhere."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._terminal = sys.stderr.isatty()

    def show(self, elapsed_s: float) -> None:
        if self._terminal:
            print(f"\r\x1b[K{self._what}: {elapsed_s:.0f} s under valgrind", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave the terminal as it was."""
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


# --- what is told -----------------------------------------------------------------------------------------------------


def document(chosen: Sequence[str], counts: Mapping[str, int], setting: dict[str, Any]) -> dict[str, Any]:
    """The JSON: instructions per call of each stage, the sums of whole calls where all their stages were counted, and
    the counts that they come from.
    """
    calls = setting["calls"]
    per_call = {}
    for key in chosen:
        stage = STAGES[key]
        of_all = counts[stage.outer] - (0 if stage.inner is None else counts[stage.inner])
        per_call[key] = of_all / calls
    sums = {name: parts for name, parts in SUMS.items() if set(parts) <= set(chosen)}
    return {
        "stages": [
            {"stage": key, "name": STAGES[key].name, "instructions": round(each)} for key, each in per_call.items()
        ],
        "sums": [
            {"name": name, "instructions": round(sum(per_call[part] for part in parts))} for name, parts in sums.items()
        ],
        "counts": dict(counts),
        "setting": setting,
    }


def table(result: dict[str, Any]) -> str:
    """The figures for people."""
    rows = (*result["stages"], *result["sums"])
    lines = (f"{row['name']:<34} {row['instructions'] / 1000:>7.1f}" for row in rows)
    return "\n".join(("thousand instructions per call", *lines))
