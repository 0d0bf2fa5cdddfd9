"""`sluice` whose look-ups of names under `.test` are answered by the test: `names.json` in the policy directory has, by
name, `addresses` (none: the name does not exist) and `delay_s`, for which the look-up blocks its thread as a slow
resolver does. Look-ups are counted by appending the name to `lookups.txt`.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAMES = "names.json"
LOOKUPS = "lookups.txt"


def answer(directory: Path, names: Mapping[str, Mapping[str, Any]]) -> None:
    """What look-ups get from now on."""
    new = directory / f"{NAMES}.new"
    new.write_text(json.dumps(names))
    new.replace(directory / NAMES)


def lookups(directory: Path, *names: str) -> int:
    """How many have been begun, of these names."""
    file = directory / LOOKUPS
    return sum(name in names for name in file.read_text().splitlines()) if file.exists() else 0


def main() -> int:
    directory = Path(sys.argv[2])
    system = socket.getaddrinfo

    def look_up(host: Any, *arguments: Any, **options: Any) -> Any:
        if not isinstance(host, str) or not host.endswith(".test"):
            return system(host, *arguments, **options)
        with (directory / LOOKUPS).open("a") as file:
            file.write(f"{host}\n")
        found = json.loads((directory / NAMES).read_text())[host]
        time.sleep(found.get("delay_s", 0.0))
        addresses = found.get("addresses")
        if addresses is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [entry for address in addresses for entry in system(address, *arguments, **options)]

    socket.getaddrinfo = look_up
    from gateway.cli import main as sluice

    return sluice()


if __name__ == "__main__":
    sys.exit(main())
