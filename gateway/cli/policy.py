"""`sluice policy check`: load policy files as `serve` would, and say everything that is wrong with them."""

from __future__ import annotations

import argparse
import sys

from gateway.cli.output import write_json

EXAMPLE = """examples:
  sluice policy check policies
  sluice policy check policies --json -

exit codes: 0 the files are good, 2 they are not"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLE
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, dest="action")
    check = actions.add_parser(
        "check",
        help="load the files and report every problem",
        description="Load the files as `serve` would, and report every problem.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.add_argument("policies", nargs="?", default="policies", help="directory of policy files (default: policies)")
    check.add_argument("--json", metavar="OUT", help="write the result as JSON to OUT (`-`: standard output)")


def run(arguments: argparse.Namespace) -> int:
    from gateway.policy.load import load_policies
    from gateway.policy.problems import PolicyError

    try:
        policies = load_policies(arguments.policies)
    except PolicyError as error:
        if arguments.json:
            write_json(arguments.json, {"ok": False, "problems": [_plain(problem) for problem in error.problems]})
        if arguments.json != "-":
            print(error, file=sys.stderr)
        return 2
    if arguments.json:
        write_json(
            arguments.json,
            {"ok": True, "revision": policies.revision, "models": sorted(policies.models), "problems": []},
        )
    if arguments.json != "-":
        names = ", ".join(sorted(policies.models)) or "none"
        print(f"good: revision {policies.revision}, {len(policies.models)} models ({names})")
    return 0


def _plain(problem: object) -> dict[str, object]:
    names = ("file", "line", "column", "path", "message", "remedy")
    return {name: getattr(problem, name) for name in names}
