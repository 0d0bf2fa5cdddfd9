"""The command `python -m load`: one file per command, this one only finds it.

Exit codes, the same for every command: 0 passed; 1 failed, or the run itself failed; 2 wrong usage; 3 inconclusive (the
machine was too busy with something else, or the figures lie too close to the limit); 130 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import signal
import sys
from collections.abc import Sequence
from types import ModuleType

from deploy.local import LocalFleetError
from load.errors import LoadError, UsageError

COMMANDS: dict[str, str] = {
    "compare": "Sluice beside Envoy, or beside calls without a proxy, in interleaved rounds",
    "connections": "what thousands of idle HTTP connections cost the gateway, and whether others feel them",
    "perf-analyzer": "NVIDIA's own load generator, unmodified, through Sluice or directly",
    "soak": "steady load of every kind for a long time: what grows, and do calls take longer?",
    "sizes": "what a call costs against the size of its tensor, through Sluice, Envoy and directly",
    "beside": "what small calls feel of a caller beside them that sends large tensors",
    "fleet": "what a call costs against the number of models and of replicas",
    "throughput": "inferences per second through Sluice over direct ones, by perf_analyzer and by our own callers",
    "stages": "what one call costs the gateway's process, stage by stage, beside its budget",
    "instructions": "how many instructions one call costs, stage by stage, counted under valgrind",
    "protections": "what each protection costs a call that does not need it, one switched off at a time",
    "chaos": "a scenario with faults under open-loop load, with a verdict",
    "stress": "every row of the stress table, as one table with a picture each",
    "run": "a scenario as open-loop load, with a verdict, figures and pictures",
}
"""Name to what it is for. `load/<name>.py`, with `_` for `-`, has `configure(parser)` and `run(arguments) -> int`."""

FAILED, USAGE, INTERRUPTED = 1, 2, 128 + signal.SIGINT


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    chosen = words[0] if words and words[0] in COMMANDS else None
    parser = argparse.ArgumentParser(
        prog="python -m load",
        description="The load lab: real Tritons, real proxies, load on them, and figures side by side.",
        epilog="example: python -m load compare --peer envoy --protocol http",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, purpose in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=purpose,
            description=described(purpose),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name == chosen:
            _module(name).configure(sub)
    arguments = parser.parse_args(words)
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        code = _module(str(chosen)).run(arguments)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE
    except (LoadError, LocalFleetError) as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("interrupted; everything that was started is stopped", file=sys.stderr)
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)
    assert isinstance(code, int)
    return code


def described(purpose: str) -> str:
    """A command's purpose as a sentence."""
    return purpose[0].upper() + purpose[1:] + ("" if purpose.endswith("?") else ".")


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"load.{name.replace('-', '_')}")


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
