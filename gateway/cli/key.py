"""`sluice key`: make an API key. The key is shown once; the key file holds only its hash."""

from __future__ import annotations

import argparse
import json
import secrets

from gateway.cli.output import fail

EXAMPLE = """example:
  sluice key shop --models fraud,ranker     prints the key and the entry for the key file"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLE
    parser.add_argument("tenant", help="whom the key stands for")
    parser.add_argument("--models", default="", help="comma-separated models that it opens (default: all)")
    parser.add_argument("--may-explain", action="store_true", help="explanations show replica names to this caller")


def run(arguments: argparse.Namespace) -> int:
    from gateway.policy.keys import new_key, parse_keys
    from gateway.policy.problems import PolicyError

    key, digest = new_key(secrets.token_bytes(32))
    entry = f'- tenant: {json.dumps(arguments.tenant)}\n  sha256: "{digest}"\n'
    names = [name for name in arguments.models.split(",") if name]
    if names:
        entry += "  models: [" + ", ".join(json.dumps(name) for name in names) + "]\n"
    if arguments.may_explain:
        entry += "  may_explain: true\n"
    try:
        parse_keys(entry.encode(), "key")
    except PolicyError as error:
        # The gateway would refuse the file for this entry; the place in a file that does not exist helps nobody.
        return fail("; ".join(f"{problem.message}: {problem.remedy}" for problem in error.problems))
    print(f"key (give it to the caller; it is shown only here):\n  {key}\n\nentry for the key file:\n{entry}", end="")
    return 0
