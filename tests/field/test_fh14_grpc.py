"""FH-14 · A cancellation raised inside the server leaves the caller waiting for ever: the gRPC side.

Whatever is raised inside, the caller, who set no deadline, gets one status in bounded time, and a cancellation that
he did not cause is a fault of ours, counted as one.
"""

from __future__ import annotations

import asyncio

import grpc
import pytest

from gateway.core.call import Call
from gateway.core.reply import Reply
from gateway.runtime.supervisor import Supervisor
from tests.support.grpc_edge import ANSWER, MakeEdge

RAISED = [asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, TimeoutError, RuntimeError]


class Raising:
    """A service that fails in a chosen way, at a chosen place."""

    def __init__(self, kind: type[BaseException], place: str) -> None:
        self._kind = kind
        self._place = place

    async def send(self, call: Call) -> Reply:
        if self._place == "at once":
            raise self._kind
        await asyncio.sleep(0)
        if self._place == "after an await":
            raise self._kind
        if self._place == "in a child task":
            await asyncio.get_running_loop().create_task(self._child())
        if self._place == "own cancel":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
        reply = Reply(ANSWER)
        if self._place == "when it is closed":
            reply.on_close(self._explode)
        return reply

    async def _child(self) -> None:
        raise self._kind

    def _explode(self, outcome: object) -> None:
        raise RuntimeError("closing failed")


@pytest.mark.parametrize("kind", RAISED)
@pytest.mark.parametrize("place", ["at once", "after an await"])
async def test_whatever_is_raised_the_caller_gets_internal(
    kind: type[BaseException], place: str, grpc_edge: MakeEdge
) -> None:
    async with grpc_edge(Raising(kind, place)) as edge, asyncio.timeout(10):
        call = edge.infer()
        assert await call.code() is grpc.StatusCode.INTERNAL
        assert kind.__name__ not in await call.details(), "no inner word may leak"
        assert edge.events.faults == 1


@pytest.mark.parametrize("place", ["in a child task", "own cancel"])
async def test_a_cancellation_from_inside_is_a_fault_and_not_a_caller_who_left(place: str, grpc_edge: MakeEdge) -> None:
    async with grpc_edge(Raising(asyncio.CancelledError, place)) as edge, asyncio.timeout(10):
        assert await edge.infer().code() is grpc.StatusCode.INTERNAL
        assert edge.events.faults == 1


async def test_a_reply_that_cannot_be_closed_still_ends_the_call(grpc_edge: MakeEdge) -> None:
    async with grpc_edge(Raising(RuntimeError, "when it is closed")) as edge, asyncio.timeout(10):
        assert await edge.infer().code() is grpc.StatusCode.INTERNAL


async def test_a_fault_in_one_call_leaves_the_others_alone(grpc_edge: MakeEdge) -> None:
    class Mixed:
        async def send(self, call: Call) -> Reply:
            await asyncio.sleep(0.001)
            if call.request_id.startswith("bad"):
                raise asyncio.CancelledError
            return Reply(ANSWER)

    async with grpc_edge(Mixed()) as edge, asyncio.timeout(60):
        calls = [edge.infer(metadata=(("x-request-id", f"{'bad' if n % 2 else 'good'}-{n}"),)) for n in range(400)]
        codes = [await call.code() for call in calls]
        assert codes[0::2] == [grpc.StatusCode.OK] * 200
        assert codes[1::2] == [grpc.StatusCode.INTERNAL] * 200
        assert edge.events.faults == 200


async def test_background_jobs_cancelled_by_a_stranger_come_back_and_no_call_notices(grpc_edge: MakeEdge) -> None:
    starts = 0

    async def job() -> None:
        nonlocal starts
        starts += 1
        await asyncio.Event().wait()

    class Quick:
        async def send(self, call: Call) -> Reply:
            await asyncio.sleep(0)
            return Reply(ANSWER)

    supervisor = Supervisor(restart_delay_s=0.001)
    supervisor.start("scrape", job)
    async with grpc_edge(Quick()) as edge, asyncio.timeout(60):
        for _ in range(20):
            calls = [edge.infer() for _ in range(5)]
            if supervisor.running("scrape"):
                supervisor._tasks["scrape"].cancel()
            assert [await call for call in calls] == [ANSWER] * 5
        while starts < 2:
            await asyncio.sleep(0.005)
    await supervisor.stop_all()
