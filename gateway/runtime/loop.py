"""Which event loop runs the gateway: uvloop where it is there and wanted, asyncio's own otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

LOOPS = ("uvloop", "asyncio")


def run(main: Coroutine[Any, Any, T], loop: str = "uvloop") -> T:
    """Run `main` to its end on the named loop. Raises ValueError for an unknown name, RuntimeError if uvloop is not
    installed.
    """
    if loop == "asyncio":
        return asyncio.run(main)
    if loop != "uvloop":
        main.close()
        raise ValueError(f"unknown event loop {loop!r}; choose one of {', '.join(LOOPS)}")
    try:
        import uvloop
    except ImportError as error:
        main.close()
        raise RuntimeError("uvloop is not installed here: install it, or run with --loop asyncio") from error
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
