"""`sluice key`: make an API key. The key is shown once; the key file holds only its hash."""

from __future__ import annotations

import argparse
import secrets

EXAMPLE = """example:
  sluice key shop --models fraud,ranker     prints the key and the entry for the key file"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLE
    parser.add_argument("tenant", help="whom the key stands for")
    parser.add_argument("--models", default="", help="comma-separated models that it opens (default: all)")
    parser.add_argument("--may-explain", action="store_true", help="explanations show replica names to this caller")


def run(arguments: argparse.Namespace) -> int:
    from gateway.policy.keys import new_key

    key, digest = new_key(secrets.token_bytes(32))
    print(f"key (give it to the caller; it is shown only here):\n  {key}\n\nentry for the key file:")
    print(f"- tenant: {arguments.tenant}\n  sha256: {digest}")
    names = [name for name in arguments.models.split(",") if name]
    if names:
        print("  models: [" + ", ".join(names) + "]")
    if arguments.may_explain:
        print("  may_explain: true")
    return 0
