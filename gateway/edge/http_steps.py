"""Work that would hold the event loop for long, done in steps between which others have their turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")


def _nothing() -> None:
    pass


async def in_steps(steps: Generator[None, None, T], check: Callable[[], None] = _nothing) -> T:
    """Run `steps` to the end; their value. `check` is called after each, and may raise to end the work."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            value: T = end.value
            return value
        await asyncio.sleep(0)
        check()
