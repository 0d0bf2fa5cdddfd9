"""bounds: calls of a model with lanes, and of models that share their replicas, through the real layers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.reply import Reply
from gateway.decide.lanes import LaneSettings, LanesSettings
from gateway.decide.memory_budget import ModelMemory
from gateway.decide.shared_bounds import SharedBounds
from gateway.decide.ticket import Granted, Queued, Ticket
from gateway.layers.admit import AdmitLayer
from gateway.layers.bounds import Bounds, Commons
from gateway.layers.track import TrackLayer
from gateway.runtime.wheel import TimerWheel
from tests.support.calls import make_call
from tests.support.cancel import cancel_at_every_await
from tests.support.clock import ManualClock
from tests.support.fleet import HandFleet, replica
from tests.support.service import Arrival, ScriptedService

FRAUD, RANKER = ("fraud", "2"), ("ranker", "2")
LANES = LanesSettings((LaneSettings("large", 10),))


class House:
    """Two models over one pool; `fraud` has lanes."""

    def __init__(self, fleet: HandFleet, shared: SharedBounds | None = None, *, lanes: bool = True) -> None:
        self.inner = ScriptedService()
        self.commons = Commons("gpu", shared)
        self.commons.on_snapshot(fleet.snapshot)
        fleet.subscribe(self.commons.on_snapshot)
        self.fraud = self._layer("fraud", fleet, LANES if lanes else None)
        self.ranker = self._layer("ranker", fleet, None)

    def _layer(self, model: str, fleet: HandFleet, lanes: LanesSettings | None) -> AdmitLayer:
        bounds = Bounds(model=model, queue_max=None, lanes=lanes, commons=self.commons)
        return AdmitLayer(
            TrackLayer(self.inner, ManualClock()), model=model, pool="gpu", fleet=fleet, queue_max=None,
            clock=ManualClock(), wheel=TimerWheel(ManualClock()), chance=random.Random(4), bounds=bounds,
        )  # fmt: skip

    def start(
        self, model: str = "fraud", work: float = 1.0, *, explain: bool = False
    ) -> tuple[Call, asyncio.Task[Reply]]:
        call = make_call(model)
        call.trail.version_routed = "2"
        call.work, call.explain = work, explain
        layer = self.fraud if model == "fraud" else self.ranker
        return call, asyncio.ensure_future(layer.send(call))

    async def arrived(self) -> list[Arrival]:
        for _ in range(6):
            await asyncio.sleep(0)
        found = []
        while not self.inner.arrivals.empty():
            found.append(self.inner.arrivals.get_nowait())
        return found

    def books(self) -> tuple[int, int]:
        rows = [row for layer in (self.fraud, self.ranker) for row in layer.statistics(0.0).values()]
        return sum(row["in_flight"] for row in rows), sum(row["waiting"] for row in rows)


async def test_a_small_call_that_waits_is_woken_when_the_large_one_ends() -> None:
    house = House(HandFleet(replica("a", {FRAUD: 2})))
    large, first = house.start(work=20)
    (running,) = await house.arrived()
    _, second = house.start()
    assert await house.arrived() == []
    running.answer()
    (small,) = await house.arrived()
    assert small.call.work == 1.0
    small.answer()
    await asyncio.gather(first, second)
    assert house.books() == (0, 0)
    assert [note[:2] for note in large.trail.notes or ()] == [("lane", "large")]


async def test_a_large_call_that_gives_up_lets_go_of_what_was_kept_for_it() -> None:
    house = House(HandFleet(replica("a", {FRAUD: 2})))
    _, first = house.start()
    (running,) = await house.arrived()
    _, large = house.start(work=20)
    _, behind = house.start()
    assert await house.arrived() == []
    large.cancel()
    (second,) = await house.arrived()
    running.answer()
    second.answer()
    await asyncio.gather(first, behind)
    assert house.books() == (0, 0)


async def test_the_lane_of_a_small_call_is_told_to_who_asks() -> None:
    house = House(HandFleet(replica("a", {FRAUD: 2})))
    call, task = house.start(explain=True)
    (running,) = await house.arrived()
    running.answer()
    await task
    assert call.trail.notes == [("lane", "small", {"work": 1.0})]
    plain, task = house.start()
    (running,) = await house.arrived()
    running.answer()
    await task
    assert plain.trail.notes is None


async def test_what_one_model_frees_of_the_ceiling_wakes_the_other_which_says_why_it_waited() -> None:
    fleet = HandFleet(replica("a", {FRAUD: 4, RANKER: 4}))
    house = House(fleet, SharedBounds(in_flight_max=1, memory_bytes=None, models={}))
    _, first = house.start()
    (running,) = await house.arrived()
    call, second = house.start("ranker")
    assert await house.arrived() == []
    running.answer()
    (other,) = await house.arrived()
    other.answer()
    await asyncio.gather(first, second)
    assert call.trail.notes == [("memory", "ceiling", {"work": 1.0, "waiting": 1.0})]
    assert house.commons.statistics(0.0)["in_flight"] == {}
    assert house.commons.statistics(0.0)["desks_waiting"] == 0


async def test_a_call_that_no_replica_could_hold_is_told_so() -> None:
    shared = SharedBounds(in_flight_max=None, memory_bytes=100, models={"fraud": ModelMemory(50, 10)})
    house = House(HandFleet(replica("a", {FRAUD: 4})), shared, lanes=False)
    call, task = house.start(work=6)
    with pytest.raises(GatewayError, match="6 units of work needs more memory than any replica has") as refused:
        await task
    assert refused.value.reason is Reason.TOO_LARGE
    assert call.trail.notes == [("memory", "too_large", {"work": 6.0})]
    assert house.books() == (0, 0)


async def test_a_replica_that_joins_serves_both_lanes() -> None:
    fleet = HandFleet(replica("a", {FRAUD: 1}))
    house = House(fleet)
    _, first = house.start()
    await house.arrived()
    tasks = [first, house.start(work=20)[1], house.start()[1]]
    fleet.publish(*(replica(name, {FRAUD: 1}) for name in "abc"))
    while house.books() != (0, 0):
        for each in await house.arrived():
            each.answer()
        if house.books()[0] and all(task.done() for task in tasks[1:]):
            break
    first.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert house.books() == (0, 0)
    fleet.publish()
    assert house.fraud.statistics(0.0) == {}


@pytest.mark.parametrize("work", [1.0, 20.0])
@pytest.mark.parametrize("ceiling", [1, 8])
async def test_cancelled_at_any_await_it_leaves_nothing_in_any_book(work: float, ceiling: int) -> None:
    made: list[House] = []
    others: list[asyncio.Task[Reply]] = []

    def scenario() -> tuple[Awaitable[Any], Callable[[], None]]:
        shared = SharedBounds(in_flight_max=ceiling, memory_bytes=100, models={"fraud": ModelMemory(10, 2)})
        house = House(HandFleet(replica("a", {FRAUD: 2})), shared)
        made.append(house)
        others.extend(house.start(work=each)[1] for each in (1.0, 20.0))

        def step() -> None:
            while not house.inner.arrivals.empty():
                arrival = house.inner.arrivals.get_nowait()
                if not arrival.cancelled and not arrival._end.done():
                    arrival.answer()

        call = make_call()
        call.trail.version_routed, call.work = "2", work
        return house.fraud.send(call), step

    def check() -> None:
        for task in others:
            task.cancel()

    async with asyncio.timeout(20):
        points = await cancel_at_every_await(scenario, check)
        await asyncio.gather(*others, return_exceptions=True)
    assert points >= 2
    for house in made:
        assert house.books() == (0, 0)
        told = house.commons.statistics(0.0)
        assert told["in_flight"] == {}
        assert told["memory"]["gpu/a"]["in_flight_bytes"] == 0
        assert told["desks_waiting"] == 0


async def test_what_is_loaded_counts_and_the_books_change_only_when_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, Any]] = []
    sound = SharedBounds.update

    def update(self: SharedBounds, replicas: Any) -> None:
        told.append(dict(replicas))
        sound(self, replicas)

    monkeypatch.setattr(SharedBounds, "update", update)
    shared = SharedBounds(
        in_flight_max=None, memory_bytes=100, models={"fraud": ModelMemory(30), "ranker": ModelMemory(20)}
    )
    fleet = HandFleet(replica("a", {FRAUD: 4, ("fraud", "1"): 4}))
    house = House(fleet, shared, lanes=False)

    def fixed() -> dict[str, int]:
        return {name: each["fixed_bytes"] for name, each in house.commons.statistics(0.0)["memory"].items()}

    assert fixed() == {"gpu/a": 60}
    fleet.publish(replica("a", {FRAUD: 2, ("fraud", "1"): 4}))
    assert len(told) == 1, "only the slots are others"
    fleet.publish(replica("a", {FRAUD: 2}), replica("b", {RANKER: 1}), replica("c", {RANKER: 1}, pool="cpu"))
    assert fixed() == {"gpu/a": 30, "gpu/b": 20}
    fleet.publish(replica("b", {RANKER: 1}))
    assert fixed() == {"gpu/b": 20}
    assert len(told) == 3


async def test_what_was_kept_for_a_call_is_for_the_one_that_overtakes_it_in_its_line_at_once() -> None:
    models = {"fraud": ModelMemory(0, 10), "ranker": ModelMemory(0, 10)}
    shared = SharedBounds(in_flight_max=None, memory_bytes=100, models=models)
    house = House(HandFleet(replica("a", {FRAUD: 8, RANKER: 8})), shared, lanes=False)
    tasks = [house.start(work=6)[1]]
    await house.arrived()
    tasks.append(house.start(work=8)[1])
    tasks.append(house.start("ranker", work=2)[1])
    assert await house.arrived() == []
    assert house.commons.statistics(0.0)["kept"] == {"replica": "gpu/a", "bytes": 80}
    urgent = make_call()
    urgent.trail.version_routed, urgent.work, urgent.deadline_s = "2", 1.5, ManualClock().now_s() + 10
    tasks.append(asyncio.ensure_future(house.fraud.send(urgent)))
    assert [each.call.work for each in await house.arrived()] == [1.5]
    assert house.commons.statistics(0.0)["kept"] == {"replica": "gpu/a", "bytes": 80}, "it is the next again"
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert house.books() == (0, 0)
    assert house.commons.statistics(0.0)["kept"] is None
    assert house.commons.statistics(0.0)["waiting"] == 0


async def test_a_call_that_needs_less_and_is_the_next_runs_at_once() -> None:
    shared = SharedBounds(in_flight_max=None, memory_bytes=100, models={"ranker": ModelMemory(0, 10)})
    house = House(HandFleet(replica("a", {RANKER: 8}), replica("b", {RANKER: 8})), shared, lanes=False)
    tasks = [house.start("ranker", work=7)[1] for _ in range(2)]
    await house.arrived()
    tasks.append(house.start("ranker", work=8)[1])
    urgent = make_call("ranker")
    urgent.trail.version_routed, urgent.work, urgent.deadline_s = "2", 1.5, ManualClock().now_s() + 10
    tasks.append(asyncio.ensure_future(house.ranker.send(urgent)))
    assert [each.call.work for each in await house.arrived()] == [1.5]
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert house.books() == (0, 0)


async def test_a_large_call_whose_replica_went_down_waits_in_its_own_lane() -> None:
    house = House(HandFleet(replica("a", {FRAUD: 2}), replica("b", {FRAUD: 2})))
    _, first = house.start()
    _, other = house.start()
    small = await house.arrived()
    assert len(small) == 2
    desk = house.fraud._desks["2"]
    call = make_call("fraud")
    call.work = 20.0
    lane = desk.for_call(call)
    waiting = asyncio.ensure_future(lane.wait_again(call, ("gpu/z",)))
    assert await house.arrived() == []
    assert [each.admission.waiting for each in desk.desks()] == [0, 1]
    for each in small:
        each.answer()
    await asyncio.gather(first, other)
    permit = await waiting
    assert permit is not None
    assert permit.desk is lane
    assert permit.replica in ("gpu/a", "gpu/b")
    assert permit.special is not None
    assert (permit.special.kind, permit.special.work) == ("retry", 20.0)
    lane.give_back(permit)
    assert house.books() == (0, 0)


async def test_the_figures_of_a_version_are_those_of_all_its_lanes() -> None:
    house = House(HandFleet(replica("a", {FRAUD: 2})))
    _, first = house.start()
    (running,) = await house.arrived()
    _, large = house.start(work=20)
    assert await house.arrived() == []
    (row,) = house.fraud.statistics(0.0).values()
    assert (row["in_flight"], row["waiting"], row["granted"]) == (1, 1, 1)
    assert sum(each["waiting"] for each in row["classes"].values()) == 1
    running.answer()
    (second,) = await house.arrived()
    replica_id = second.call.trail.attempts[0].replica
    assert house.fraud.held(replica_id) == {"2": 1}, "once, although two lanes know of it"
    second.answer()
    await asyncio.gather(first, large)


async def test_a_call_whose_fate_is_decided_before_it_begins_to_wait_hears_of_it() -> None:
    house = House(HandFleet(replica("a", {FRAUD: 2})))
    _, first = house.start()
    (running,) = await house.arrived()
    desk = house.fraud._desks["2"]
    ticket = Ticket(0.0, 1e9)
    assert isinstance(desk.admission.offer(Ticket(0.0, 1e9), 0.0), Granted)
    assert isinstance(desk.admission.offer(ticket, 0.0), Queued)
    running.answer()
    await first
    assert ticket.permit is not None
    await asyncio.wait_for(desk.wait(ticket), 1.0)
