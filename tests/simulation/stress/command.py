"""`python -m tests.simulation stress`: the stress table over many seeds, with the table's own numbers."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.simulation.stress.battery import all_of
from tests.simulation.stress.rows import ROWS
from tests.simulation.stress.table import document, judged, lines, markdown

EXAMPLE = """\
examples:
  python -m tests.simulation stress --seeds 1000 --json stress.json --table stress.md
  python -m tests.simulation stress --only kill --seed 17

Each seed is a run of its own: other arrivals, other chance in the fleet and in the gateway. Figures are of all seeds
together; what must never happen is checked in each, and a seed in which it did is named.

exit codes: 0 all checks kept; 1 one missed; 2 wrong usage"""


class _Progress:
    """Tells how far a row is: in place on a terminal, else a line for each tenth."""

    def __init__(self, name: str, seeds: int) -> None:
        self._name, self._seeds, self._tenth = name, seeds, 0

    def tell(self, done: int) -> None:
        text = f"{self._name}: {done}/{self._seeds} seeds"
        if sys.stderr.isatty():
            print(f"\r{text}", end="\r" if done == self._seeds else "", file=sys.stderr, flush=True)
        elif done * 10 // self._seeds > self._tenth:
            self._tenth = done * 10 // self._seeds
            print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> int:
    """The command. Returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation stress",
        description="The rows of the stress table on virtual time, over many seeds.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--seeds", type=int, default=1000, metavar="N", help="seeds 0 to N-1 of each row (default 1000)"
    )
    parser.add_argument("--first", type=int, default=0, metavar="S", help="begin at this seed instead of 0")
    parser.add_argument("--seed", type=int, metavar="S", help="this one seed")
    parser.add_argument("--only", nargs="+", choices=[row.name for row in ROWS], metavar="NAME", help="these rows")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes (default 2)")
    parser.add_argument("--json", metavar="OUT", help="write the rows to this file")
    parser.add_argument("--table", metavar="OUT", help="write the table (Markdown) to this file")
    options = parser.parse_args(arguments)
    if options.seeds < 1 or options.jobs < 1:
        parser.error("--seeds and --jobs must be 1 or more")
    for name in ("json", "table"):
        out = getattr(options, name)
        if out is not None:
            try:
                Path(out).touch()
            except OSError as error:
                parser.error(f"--{name}: {out} cannot be written ({error.strerror})")
    seeds = [options.seed] if options.seed is not None else range(options.first, options.first + options.seeds)
    began_s, rows = time.monotonic(), []
    command = f"python -m tests.simulation stress {' '.join(arguments)}".rstrip()
    for row in ROWS:
        if options.only and row.name not in options.only:
            continue
        row_began_s = time.monotonic()

        tried = all_of(row, seeds, options.jobs, _Progress(row.name, len(seeds)).tell)
        rows.append(judged(tried))
        print("\n".join(lines(rows[-1])) + f"\n  took {time.monotonic() - row_began_s:.0f} s", flush=True)
        # After each row: what is done is there, whatever becomes of the next.
        result = document(rows, command, time.monotonic() - began_s)
        if options.json:
            Path(options.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        if options.table:
            Path(options.table).write_text(markdown(result), encoding="utf-8")
    print(f"verdict of all rows: {result['verdict']}")
    return 0 if result["verdict"] == "pass" else 1
