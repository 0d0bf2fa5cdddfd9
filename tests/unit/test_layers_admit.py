"""admit: permits come back in every case, and nobody waits who could run."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.reply import Reply
from gateway.layers.admit import AdmitLayer
from gateway.layers.track import TrackLayer
from gateway.runtime.wheel import TimerWheel
from tests.support.calls import make_call, permitted
from tests.support.cancel import cancel_at_every_await
from tests.support.clock import ManualClock
from tests.support.fleet import HandFleet, replica
from tests.support.service import ScriptedService

KEY = ("fraud", "2")


def layer(fleet: HandFleet, inner: Any, queue_max: int | None = None) -> AdmitLayer:
    return AdmitLayer(
        TrackLayer(inner, ManualClock()), model="fraud", pool="gpu", fleet=fleet, queue_max=queue_max,
        clock=ManualClock(), wheel=TimerWheel(ManualClock()), chance=random.Random(4),
    )  # fmt: skip


def routed(version: str = "2") -> Call:
    call = make_call()
    call.trail.version_routed = version
    return call


def books(subject: AdmitLayer) -> tuple[int, int]:
    stats = subject.statistics(0.0).get("2", {"in_flight": 0, "waiting": 0})
    return stats["in_flight"], stats["waiting"]


async def settle() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


async def test_a_call_goes_down_with_a_permit_and_comes_back_without() -> None:
    inner = ScriptedService()
    subject = layer(HandFleet(replica("a", {KEY: 1})), inner)
    call = routed()
    task = asyncio.ensure_future(subject.send(call))
    arrival = await inner.arrivals.get()
    assert [attempt.replica for attempt in call.trail.attempts] == ["gpu/a"]
    assert books(subject) == (1, 0)
    arrival.answer()
    await task
    assert permitted(call) == ""
    assert books(subject) == (0, 0)


async def test_a_waiting_call_runs_when_a_slot_is_free() -> None:
    inner = ScriptedService()
    subject = layer(HandFleet(replica("a", {KEY: 1})), inner)
    first = asyncio.ensure_future(subject.send(routed()))
    arrival = await inner.arrivals.get()
    waiting = routed()
    second = asyncio.ensure_future(subject.send(waiting))
    await settle()
    assert books(subject) == (1, 1)
    assert waiting.trail.queued_s > 0
    arrival.answer()
    await first
    (await inner.arrivals.get()).answer()
    await second
    assert books(subject) == (0, 0)


async def test_an_error_below_gives_the_slot_back() -> None:
    inner = ScriptedService()
    subject = layer(HandFleet(replica("a", {KEY: 1})), inner)
    task = asyncio.ensure_future(subject.send(routed()))
    (await inner.arrivals.get()).fail(GatewayError(Reason.UPSTREAM_BROKEN, "broke"))
    with pytest.raises(GatewayError, match="broke"):
        await task
    assert books(subject) == (0, 0)


async def test_a_second_permit_that_nobody_took_is_the_one_that_goes_back() -> None:
    class Below:
        async def send(self, call: Call) -> Reply:
            first = call.permit
            assert first is not None
            assert first.desk is not None
            call.permit = first.desk.another("retry", (first.replica,))
            assert call.permit is not None
            first.desk.give_back(first)
            raise GatewayError(Reason.UPSTREAM_BROKEN, "broke")

    subject = AdmitLayer(
        Below(), model="fraud", pool="gpu", fleet=HandFleet(replica("a", {KEY: 1}), replica("b", {KEY: 1})),
        queue_max=None, clock=ManualClock(), wheel=TimerWheel(ManualClock()), chance=random.Random(4),
    )  # fmt: skip
    with pytest.raises(GatewayError, match="broke"):
        await subject.send(routed())
    assert books(subject) == (0, 0)


async def test_a_full_queue_refuses_with_a_hint_when_to_come_back() -> None:
    inner = ScriptedService()
    subject = layer(HandFleet(replica("a", {KEY: 1})), inner, queue_max=0)
    task = asyncio.ensure_future(subject.send(routed()))
    await inner.arrivals.get()
    with pytest.raises(GatewayError) as refused:
        await subject.send(routed())
    assert refused.value.reason is Reason.QUEUE_FULL
    assert refused.value.retry_after_s
    task.cancel()
    await asyncio.wait((task,))
    assert books(subject) == (0, 0)


async def test_a_call_that_a_full_queue_refuses_remembers_how_many_were_ahead_of_it() -> None:
    inner = ScriptedService()
    subject = layer(HandFleet(replica("a", {KEY: 1})), inner, queue_max=2)
    waiting = [asyncio.ensure_future(subject.send(routed())) for _ in range(3)]
    await inner.arrivals.get()
    await asyncio.sleep(0)
    refused = routed()
    with pytest.raises(GatewayError, match=r"^2 calls wait already"):
        await subject.send(refused)
    assert refused.trail.queued_ahead == 2
    assert not refused.trail.queued_s, "it has not waited"
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    assert books(subject) == (0, 0)


async def test_no_replica_is_said_at_once_and_leaves_nothing_behind() -> None:
    subject = layer(HandFleet(), ScriptedService())
    for version in range(1, 500):
        with pytest.raises(GatewayError) as refused:
            await subject.send(routed(str(version)))
        assert refused.value.reason is Reason.NO_REPLICA
    assert subject.statistics(0.0) == {}, "versions that nobody has must not grow the table"


async def test_the_last_replica_leaving_tells_those_who_wait() -> None:
    inner = ScriptedService()
    fleet = HandFleet(replica("a", {KEY: 1}))
    subject = layer(fleet, inner)
    running = asyncio.ensure_future(subject.send(routed()))
    arrival = await inner.arrivals.get()
    waiting = asyncio.ensure_future(subject.send(routed()))
    await settle()
    fleet.publish()
    with pytest.raises(GatewayError) as refused:
        await waiting
    assert refused.value.reason is Reason.NO_REPLICA
    arrival.answer()
    await running
    fleet.publish()
    assert subject.statistics(0.0) == {}


async def test_a_replica_that_joins_serves_those_who_wait() -> None:
    inner = ScriptedService()
    fleet = HandFleet(replica("a", {KEY: 1}))
    subject = layer(fleet, inner)
    first = asyncio.ensure_future(subject.send(routed()))
    one = await inner.arrivals.get()
    second = asyncio.ensure_future(subject.send(routed()))
    await settle()
    fleet.publish(replica("a", {KEY: 1}), replica("b", {KEY: 1}))
    two = await inner.arrivals.get()
    assert two.call.trail.attempts[0].replica == "gpu/b"
    one.answer()
    two.answer()
    await asyncio.gather(first, second)
    assert books(subject) == (0, 0)


async def test_a_grant_that_meets_a_cancellation_in_the_same_turn_goes_to_the_next() -> None:
    inner = ScriptedService()
    subject = layer(HandFleet(replica("a", {KEY: 1})), inner)
    first = asyncio.ensure_future(subject.send(routed()))
    arrival = await inner.arrivals.get()
    second = asyncio.ensure_future(subject.send(routed()))
    third = asyncio.ensure_future(subject.send(routed()))
    await settle()
    arrival.answer()
    second.cancel()
    await settle()
    (await inner.arrivals.get()).answer()
    await third
    await first
    assert second.cancelled()
    assert books(subject) == (0, 0)


@pytest.mark.parametrize("slots", [1, 2])
async def test_cancelled_at_any_await_it_leaves_no_slot_and_no_waiter(slots: int) -> None:
    made: list[AdmitLayer] = []
    others: list[asyncio.Task[Reply]] = []

    def scenario() -> tuple[Awaitable[Any], Callable[[], None]]:
        inner = ScriptedService()
        subject = layer(HandFleet(replica("a", {KEY: slots})), inner)
        made.append(subject)
        others.append(asyncio.ensure_future(subject.send(routed())))

        def step() -> None:
            while not inner.arrivals.empty():
                arrival = inner.arrivals.get_nowait()
                if not arrival.cancelled and not arrival._end.done():
                    arrival.answer()

        return subject.send(routed()), step

    def check() -> None:
        others[-1].cancel()

    async with asyncio.timeout(20):
        points = await cancel_at_every_await(scenario, check)
        await asyncio.gather(*others, return_exceptions=True)
    assert points >= 2
    assert all(books(subject) == (0, 0) for subject in made)
