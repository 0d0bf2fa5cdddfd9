"""Waiting for what shows itself by no event: another process, a socket, a thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


def wait_until(
    condition: Callable[[], object], timeout_s: float = 20.0, what: str = "the condition did not come true"
) -> None:
    """Look again and again, blocking; what it would not wait for any longer is an AssertionError with `what`."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, what
        time.sleep(0.02)


async def until(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    """Look again and again, while the loop turns. Raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.001)
