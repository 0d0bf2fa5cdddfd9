"""`.run/fleet.json`: the servers that are up, so that another process can stop, kill, freeze, thaw or restart one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from deploy.local.environment import TritonEnvironment
from deploy.local.layout import write_atomically
from deploy.local.server import TritonServer


def read_state(path: Path, environment: TritonEnvironment) -> dict[str, TritonServer]:
    """The servers written down in `path`, by name; empty without a file. They need not be alive any more."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    servers = (TritonServer.from_json(entry, environment) for entry in stored["servers"])
    return {server.spec.name: server for server in servers}


def write_state(path: Path, servers: Iterable[TritonServer]) -> None:
    """Write the servers down, in place of whatever stood there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps({"servers": [server.to_json() for server in servers]}, indent=1) + "\n")
