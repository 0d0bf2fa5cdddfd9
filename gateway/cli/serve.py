"""`sluice serve`: run the gateway until a signal ends it."""

from __future__ import annotations

import argparse
import logging
import os
import sys

import msgspec

from gateway.cli.output import fail
from gateway.policy.addresses import listeners_clash
from gateway.policy.schema import PolicySet
from gateway.runtime.listen import ListenError
from gateway.runtime.loop import LOOPS

EXAMPLE = """examples:
  sluice serve                          policies from ./policies
  sluice serve policies --http 127.0.0.1:9000
  sluice serve policies --loop asyncio --log-level debug

SIGTERM drains and exits 0; a second signal ends at once. With SLUICE_REDIS_URL=redis://host:6379/0 in the environment
several gateways share the quotas of tenants through that Redis."""
REDIS_URL = "SLUICE_REDIS_URL"

PORTS = ("http", "grpc", "metrics", "admin")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLE
    parser.add_argument("policies", nargs="?", default="policies", help="directory of policy files (default: policies)")
    for name in PORTS:
        parser.add_argument(f"--{name}", metavar="HOST:PORT", help=f"listen here instead of gateway.listen.{name}")
    parser.add_argument("--loop", choices=LOOPS, default="uvloop", help="event loop (default: uvloop)")
    parser.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), default="info", help="on stderr (default: info)"
    )


def run(arguments: argparse.Namespace) -> int:
    # The gRPC library writes a line of its own for each failed handshake; strangers could fill the log with them. What
    # it cannot do it still says.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    from gateway.app import StartError, serve
    from gateway.observe.events import configure_logging
    from gateway.policy.load import load_policies
    from gateway.policy.problems import PolicyError
    from gateway.runtime import loop

    configure_logging(getattr(logging, arguments.log_level.upper()))
    try:
        policies = with_ports(load_policies(arguments.policies), arguments)
    except PolicyError as error:
        print(error, file=sys.stderr)
        return 2
    except ValueError as error:
        return fail(str(error))
    try:
        return loop.run(serve(policies, os.environ.get(REDIS_URL, "")), arguments.loop)
    except (StartError, RuntimeError) as error:
        return fail(start_text(error, arguments), 1)


def start_text(error: Exception, arguments: argparse.Namespace) -> str:
    """Why the gateway does not start, with the option named where an address came from one."""
    cause = error.__cause__
    if isinstance(cause, ListenError):
        name = cause.key.rpartition(".")[2]
        if name in PORTS and getattr(arguments, name) is not None:
            return cause.text_for_option(f"--{name}")
    return str(error)


def with_ports(policies: PolicySet, arguments: argparse.Namespace) -> PolicySet:
    """The policies with the ports that the command line names. Raises ValueError for an address that is none."""
    changes: dict[str, str] = {}
    for name in PORTS:
        address = getattr(arguments, name)
        if address is not None:
            host, _, port = address.rpartition(":")
            if not host or not port.isdecimal() or not 0 <= int(port) <= 65535:
                raise ValueError(f"--{name}: {address!r} is not HOST:PORT, 127.0.0.1:8000 say")
            changes[name] = address
    if not changes:
        return policies
    gateway = policies.fleet.gateway
    listen = msgspec.structs.replace(gateway.listen, **changes)
    for name, address in changes.items():
        for other in PORTS:
            taken = getattr(listen, other)
            if other != name and not address.endswith(":0") and listeners_clash(address, taken):
                place = f"--{other}" if other in changes else f"gateway.listen.{other}"
                raise ValueError(f"--{name}: {address} clashes with {taken} of {place}; name another port")
    fleet = msgspec.structs.replace(policies.fleet, gateway=msgspec.structs.replace(gateway, listen=listen))
    return msgspec.structs.replace(policies, fleet=fleet)
