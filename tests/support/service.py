"""A scripted inner service: the test sees each call arrive and says how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.core.call import Call
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply


class Arrival:
    """One call that reached the service and waits for the test's word."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.cancelled = False
        self._end: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def answer(self, message: bytes = b"answer") -> Reply:
        reply = Reply(message)
        self._end.set_result(reply)
        return reply

    def fail(self, error: BaseException) -> None:
        self._end.set_exception(error)

    async def wait(self) -> Reply:
        try:
            return await self._end
        except asyncio.CancelledError:
            self.cancelled = True
            raise


class ScriptedService:
    """Calls wait in `arrivals` until the test answers or fails them. With `respond`, every call is answered by it at
    once.
    """

    def __init__(self, respond: Callable[[Call], Reply] | None = None) -> None:
        self.arrivals: asyncio.Queue[Arrival] = asyncio.Queue()
        self.seen: list[Call] = []
        self._respond = respond

    async def send(self, call: Call) -> Reply:
        self.seen.append(call)
        if self._respond is not None:
            return self._respond(call)
        arrival = Arrival(call)
        self.arrivals.put_nowait(arrival)
        return await arrival.wait()


async def closed_with(reply: Reply, outcome: Outcome = Outcome.OK) -> None:
    """Close a reply as an edge would."""
    await reply.aclose(outcome)
    assert reply.closed
