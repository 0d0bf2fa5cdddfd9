"""Free ports that stay free: below the range from which the system serves outgoing connections."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping

from deploy.local.ports import is_free

_FROM, _TO = 12_000, 17_900


def share_of(environment: Mapping[str, str]) -> range:
    """The ports that a test process may give: all of them, or with pytest-xdist its worker's own part.

    A port is given before somebody listens on it, so two workers that give from one range could give the same.
    """
    workers = int(environment.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    number = int(environment.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    each = (_TO - _FROM) // workers
    # A worker that died is replaced by one with the next number: it has the place of one that is gone.
    first = _FROM + number % workers * each
    return range(first, first + each)


_share = share_of(os.environ)
_numbers = itertools.count(os.getpid() * 31)


def free_port() -> int:
    """A port that nobody listens on. Each is given once per process, and processes begin at different places."""
    for _ in _share:
        port = _share[next(_numbers) % len(_share)]
        if is_free(port):
            return port
    raise AssertionError(f"no free port in {_share}")
