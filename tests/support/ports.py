"""Free ports that stay free: below the range from which the system serves outgoing connections."""

from __future__ import annotations

import itertools
import os

from deploy.local.ports import is_free

_FROM, _TO = 12_000, 17_900
_numbers = itertools.count(os.getpid() * 31)


def free_port() -> int:
    """A port that nobody listens on. Each is given once per process, and processes begin at different places."""
    for _ in range(_TO - _FROM):
        port = _FROM + next(_numbers) % (_TO - _FROM)
        if is_free(port):
            return port
    raise AssertionError(f"no free port between {_FROM} and {_TO}")
