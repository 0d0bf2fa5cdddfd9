"""The `sluice` command: one file per command, this one only finds it.

Exit codes, the same everywhere: 0 all was well, 1 the thing asked for failed, 2 the command was used wrongly or its
input is bad, 130 it was interrupted. Commands are imported when they run, so that `--help` is quick.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from gateway.cli.output import OutputError, fail

COMMANDS: dict[str, str] = {
    "serve": "run the gateway",
    "demo": "real Tritons, the gateway and live traffic on this machine",
    "infer": "one call from the shell, with its explanation",
    "policy": "check policy files",
    "log": "look at prediction records",
    "key": "make an API key",
}
"""Name to what it is for. `gateway/cli/<name>.py` has `configure(parser)` and `run(arguments) -> int`."""


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The command line as its command wants it; `command` is the name. Exits with 2 and a message if it is wrong."""
    parser = argparse.ArgumentParser(
        prog="sluice",
        description="Sluice: one endpoint in front of a pool of Triton servers.",
        epilog="example: sluice serve policies",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="command")
    for name, purpose in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=purpose,
            description=purpose[0].upper() + purpose[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if words and words[0] == name:
            importlib.import_module(f"gateway.cli.{name}").configure(sub)
    return parser.parse_args(words)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit code; used as the entry point of `sluice`."""
    arguments = parse(sys.argv[1:] if argv is None else argv)
    module = importlib.import_module(f"gateway.cli.{arguments.command}")
    try:
        code = module.run(arguments)
    except KeyboardInterrupt:
        return 130
    except OutputError as error:
        return fail(str(error))
    except BrokenPipeError:
        # The reader of a pipe went away (`sluice log tail | head`): that is its right. Python would complain at exit.
        sys.stderr.close()
        return 0
    assert isinstance(code, int)
    return code
