"""Rounds: many who ask the same at once share one question to the fleet, and each still gets a fresh answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from gateway.core.errors import GatewayError, Reason
from gateway.runtime.clock import Clock

T = TypeVar("T")

REST_MIN_S = 0.05
REST_MAX_S = 2.0
"""Between the beginnings of two rounds at least, and at most, this long."""
REST_PER_WORK = 9.0
"""A round after which `rest` was asked for is followed by a pause of so many times its work."""


class Rounds(Generic[T]):
    """`fresh()` gives the result of a round that began after it was called.

    One round at a time: who asks while one is out waits for the next, together with all others. So however many
    callers ask, the replicas hear one question at a time, at most twenty times a second. A round for which nobody waits
    any more is cancelled.
    """

    def __init__(self, ask: Callable[[], Awaitable[T]], clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self._next: dict[asyncio.Future[T], None] = {}
        """Who waits for the round that has not begun yet."""
        self._out: dict[asyncio.Future[T], None] = {}
        """Who waits for the round that is out."""
        self._driver: asyncio.Task[None] | None = None
        self._ready_s = float("-inf")
        self._rest_s = REST_MIN_S
        self._closed = False

    def rest(self, work_s: float) -> None:
        """Told by a round: the gateway's own work on the answers took this long. The next round comes so much later
        that this work takes a tenth of the time, however hard the callers press.
        """
        self._rest_s = min(REST_MAX_S, max(REST_MIN_S, REST_PER_WORK * work_s))

    async def fresh(self) -> T:
        """The result of the next round. Raises what the round raised, and `GatewayError` (DRAINING) after the end."""
        if self._closed:
            raise _draining()
        waiter: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._next[waiter] = None
        self._drive()
        try:
            return await waiter
        finally:
            self._next.pop(waiter, None)
            self._out.pop(waiter, None)
            if self._driver is not None and not self._next and not self._out:
                self._driver.cancel()

    async def aclose(self) -> None:
        """Cancel the round that is out, and wait for its end."""
        self._closed = True
        for waiter in (*self._next, *self._out):
            if not waiter.done():
                waiter.set_exception(_draining())
        if self._driver is not None:
            self._driver.cancel()
            await asyncio.wait((self._driver,))

    def _drive(self) -> None:
        if self._driver is None and not self._closed:
            self._driver = asyncio.get_running_loop().create_task(self._run())
            self._driver.add_done_callback(self._ended)

    def _ended(self, driver: asyncio.Task[None]) -> None:
        """It has run out of questions, or was cancelled; somebody may have asked in the meantime."""
        self._driver = None
        if self._next:
            self._drive()

    async def _run(self) -> None:
        while self._next:
            rest_s = self._ready_s - self._clock.now_s()
            if rest_s > 0:
                await asyncio.sleep(rest_s)
            if not self._next:
                return
            self._out, self._next = self._next, {}
            began_s, self._rest_s = self._clock.now_s(), REST_MIN_S
            try:
                result = await self._ask()
            except Exception as error:
                for waiter in self._told():
                    waiter.set_exception(error)
            else:
                for waiter in self._told():
                    waiter.set_result(result)
            finally:
                self._ready_s = began_s + self._rest_s

    def _told(self) -> list[asyncio.Future[T]]:
        """Those who wait for the round that has ended."""
        told, self._out = self._out, {}
        return [waiter for waiter in told if not waiter.done()]


def _draining() -> GatewayError:
    return GatewayError(Reason.DRAINING, "the gateway is shutting down; ask again", retry_after_s=1.0)
