"""How late the event loop's timers fire: the wait that every call on this loop suffers too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def watch_loop(now_s: Callable[[], float], late: Callable[[float], None], interval_s: float = 0.25) -> None:
    """Sleep `interval_s` again and again, and hand `late` how much longer than that it took, seconds. Runs until it is
    cancelled.
    """
    while True:
        begun_s = now_s()
        await asyncio.sleep(interval_s)
        late(max(0.0, now_s() - begun_s - interval_s))
