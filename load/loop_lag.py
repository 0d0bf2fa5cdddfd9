"""How late the gateway's event loop was at most, between two looks at its metrics page.

The page has a histogram, so what is known is a bucket: the lag was over `over_ms` and at most the next bound.
"""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import Mapping

from load.errors import LoadError

PAGE_AGE_S = 0.6
"""The page is made at most twice a second."""
_BUCKET = re.compile(r'^sluice_event_loop_lag_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)


async def lag_buckets(metrics: str) -> dict[float, float]:
    """Upper bound of each bucket in seconds, to how many timers were at most so late, as of now. Raises LoadError."""
    await asyncio.sleep(PAGE_AGE_S)

    def read() -> str:
        with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=10) as response:
            return str(response.read().decode())

    try:
        page = await asyncio.to_thread(read)
    except OSError as error:
        raise LoadError(f"the gateway's metrics page cannot be read: {error}") from error
    return buckets(page)


def buckets(page: str) -> dict[float, float]:
    """The same from the page's text. Raises LoadError without the series."""
    found = {float(bound): float(count) for bound, count in _BUCKET.findall(page)}
    if not found:
        raise LoadError("the gateway's metrics page lacks sluice_event_loop_lag_seconds")
    return found


def over_ms(before: Mapping[float, float], after: Mapping[float, float]) -> float:
    """The lower bound of the highest bucket that has got a count between two readings; 0 if that is the first one, or
    if no timer fired.
    """
    bounds = sorted(after)
    total = after[bounds[-1]] - before[bounds[-1]]
    lower = 0.0
    for bound in bounds[:-1]:
        if after[bound] - before[bound] >= total:
            break
        lower = bound
    return lower * 1000
