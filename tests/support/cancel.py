"""Cancel a coroutine at each of its awaits in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any


async def cancel_at_every_await(
    scenario: Callable[[], tuple[Awaitable[Any], Callable[[], None]]],
    check: Callable[[], None],
    turns_max: int = 200,
) -> int:
    """Run a fresh scenario again and again, cancelling its task after 0, 1, 2, … turns of the loop, until one run
    ends by itself.

    `scenario` returns the awaitable to cancel and a function that moves the world on by one step (answers an inner
    call, say). `check` runs after each cancellation. Returns how many different points were hit.
    """
    for turns in range(turns_max):
        work, step = scenario()
        task = asyncio.ensure_future(work)
        finished = False
        for _ in range(turns):
            await asyncio.sleep(0)
            step()
            if task.done():
                finished = True
                break
        task.cancel()
        await asyncio.wait((task,))
        if not task.cancelled():
            task.exception()
        check()
        if finished:
            return turns
    raise AssertionError(f"the scenario did not end within {turns_max} turns")
