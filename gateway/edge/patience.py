"""How long a caller's question to the whole fleet may take, whatever the model servers do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.core.errors import GatewayError, Reason

T = TypeVar("T")

PATIENCE_S = 10.0
"""For callers that set no limit of their own, or a longer one."""


def patience_s(asked_s: float | None) -> float:
    """The limit for a caller who asked for `asked_s`."""
    return PATIENCE_S if asked_s is None else min(asked_s, PATIENCE_S)


async def within(limit_s: float, work: Callable[[], Awaitable[T]]) -> T:
    """`work()`, cancelled after `limit_s` seconds. Raises `GatewayError` (DEADLINE) then."""
    try:
        async with asyncio.timeout(limit_s) as scope:
            return await work()
    except TimeoutError:
        if not scope.expired():
            raise
        raise GatewayError(
            Reason.DEADLINE, f"the model servers were not all heard within {limit_s:g} s; ask again"
        ) from None
