"""Free ports that stay free: below the range from which the system serves outgoing connections."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping

from deploy.local.ports import claim, is_free

_FROM, _TO = 12_000, 17_900


def share_of(environment: Mapping[str, str]) -> range:
    """The ports that a test process may give: all of them, or with pytest-xdist its worker's own part. Workers of two
    runs at once may have the same part: what one has given it has claimed.
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
    """A port that nobody listens on, and that no other process of this user is given as long as this one lives."""
    for _ in _share:
        port = _share[next(_numbers) % len(_share)]
        if is_free(port) and claim(port):
            return port
    raise AssertionError(f"no free port in {_share}")
