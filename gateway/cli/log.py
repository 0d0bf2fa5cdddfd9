"""`sluice log tail`: prediction records as they are written."""

from __future__ import annotations

import argparse
import os
import sys
import threading
from pathlib import Path

from gateway.cli.output import fail

EXAMPLE = """examples:
  sluice log tail                  the last 10 records
  sluice log tail -n 100 --json | jq .model
  sluice log tail -f --dir /var/log/sluice"""

POLL_S = 0.2


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLE
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, dest="action")
    tail = actions.add_parser(
        "tail",
        help="show the newest records",
        description="Show the newest records, one line each, or as they stand in the file.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    tail.add_argument("--policies", default="policies", help="policies that say where records go (default: policies)")
    tail.add_argument("--dir", help="directory of the record files, instead of asking the policies")
    tail.add_argument("misplaced", nargs="*", help=argparse.SUPPRESS)  # taken to say what was meant, see `run`
    tail.add_argument("-n", type=int, default=10, dest="count", metavar="N", help="records to begin with (default: 10)")
    tail.add_argument("-f", "--follow", action="store_true", help="go on with new records until Ctrl-C")
    tail.add_argument("--json", action="store_true", help="the records as they stand in the file")


def run(arguments: argparse.Namespace) -> int:
    from gateway.records.tail import tail

    if arguments.misplaced:
        return fail(_meant(arguments.misplaced))
    if arguments.count < 0:
        return fail("-n must be 0 or more")
    directory = Path(arguments.dir) if arguments.dir else _directory(arguments.policies)
    if directory is None:
        return 2
    if not directory.is_dir():
        return fail(f"there is no directory {directory}: no gateway has written records there yet", 1)
    pause = threading.Event()

    def wait() -> bool:
        pause.wait(POLL_S)
        return True

    def write(line: str) -> None:
        print(line, flush=arguments.follow)

    try:
        tail(directory, count=arguments.count, follow=arguments.follow, as_json=arguments.json, write=write, wait=wait)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        return fail(f"the records in {directory} cannot be read: {error}", 1)
    return 0


def _meant(words: list[str]) -> str:
    word = words[0]
    if (Path(word) / "fleet.yaml").is_file():
        return f"{word} is a directory of policies: write `sluice log tail --policies {word}`"
    return f"directories go behind an option: write `sluice log tail --dir {word}` for the records in {word}"


def _directory(policies: str) -> Path | None:
    from gateway.policy.load import load_policies
    from gateway.policy.problems import PolicyError

    try:
        loaded = load_policies(policies)
    except PolicyError as error:
        print(error, file=sys.stderr)
        return None
    return Path(os.path.normpath(Path(loaded.base_dir) / loaded.fleet.records.dir))
