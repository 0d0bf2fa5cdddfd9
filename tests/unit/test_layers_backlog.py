"""What waits in Triton beside our own calls: told by its metrics page, and avoided while it is fresh."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from gateway.core.call import Call
from gateway.core.faces import Endpoints
from gateway.core.reply import Reply
from gateway.core.snapshot import ReplicaState
from gateway.fleet.member import Member
from gateway.fleet.scraper import Scraper
from gateway.layers.admit import AdmitLayer
from gateway.layers.backlog import Backlogs
from gateway.layers.track import TrackLayer
from gateway.policy.schema import Scrape
from gateway.runtime.wheel import TimerWheel
from gateway.runtime.workers import InlineWorkers
from tests.simulation.loop import simulate
from tests.support.attempts import LoopClock
from tests.support.calls import make_call
from tests.support.fleet import HandFleet, replica

KEY = ("fraud", "2")


class Upstream:
    """Holds each call until the test lets it go."""

    def __init__(self) -> None:
        self.out: list[asyncio.Event] = []
        self.went: Counter[str] = Counter()

    async def send(self, call: Call) -> Reply:
        self.went[call.trail.attempts[-1].replica] += 1
        gate = asyncio.Event()
        self.out.append(gate)
        await gate.wait()
        return Reply(b"")


class House:
    """A gateway's admission over two replicas, and what scrapes `gpu/a`."""

    def __init__(self, **policy: Any) -> None:
        clock = LoopClock()
        self.clock, self.upstream = clock, Upstream()
        self.layer = AdmitLayer(
            TrackLayer(self.upstream, clock), model="fraud", pool="gpu",
            fleet=HandFleet(*(replica(name, {KEY: 8}) for name in "ab")), queue_max=None,
            clock=clock, wheel=TimerWheel(clock), chance=random.Random(4),
        )  # fmt: skip
        self.backlogs = Backlogs()
        self.backlogs.admissions = {"fraud": self.layer}
        self.pending = 0
        self.scrapes: list[float] = []
        self.scraper = Scraper(cast(Member, FakeMember(self, Scrape(**policy))))

    def call(self) -> asyncio.Task[Reply]:
        call = make_call()
        call.trail.version_routed = "2"
        return asyncio.ensure_future(self.layer.send(call))

    async def calls(self, count: int) -> Counter[str]:
        """So many, one after the other: where they went."""
        before = self.upstream.went.copy()
        for _ in range(count):
            task = self.call()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.upstream.out.pop().set()
            await task
        return self.upstream.went - before


class FakeMember:
    """As much of a `Member` as the scraper uses."""

    def __init__(self, house: House, policy: Scrape) -> None:
        self.house = house
        self.models = {"fraud": None}
        self.chance = random.Random(1)
        self.removed = False
        self.scrapes_failed, self.scrape_error = 0, ""
        self.pool = self.connection = self.client = self.replica = self.tools = self
        self.scrape_policy = policy
        self.endpoints = Endpoints("a", "a", "a:8002")
        self.state, self.id = ReplicaState.LIVE, "gpu/a"
        self.backlog, self.clock, self.workers = house.backlogs, house.clock, InlineWorkers()
        self.page: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    async def scrape(self, timeout_s: float) -> str:
        self.house.scrapes.append(self.house.clock.now_s())
        await asyncio.sleep(0.002)
        return f'nv_inference_pending_request_count{{model="fraud",version="2"}} {self.house.pending}\n'

    def scraped(self, page: Any, now_s: float) -> None:
        self.page.append(page)

    def changed(self) -> None: ...


def played(act: Callable[[], Coroutine[Any, Any, None]]) -> None:
    simulate(lambda loop: act())


@pytest.fixture(autouse=True)
def _policy_of_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """`member.pool.scrape` is the policy, `client.scrape` the question: the fake is both pool and client."""
    sound = Scraper.__init__

    def init(self: Scraper, member: Any) -> None:
        class Pool:
            scrape = member.scrape_policy

        member.pool = Pool
        sound(self, member)

    monkeypatch.setattr(Scraper, "__init__", init)


def test_a_replica_that_others_use_is_avoided_until_the_count_is_old() -> None:
    async def act() -> None:
        house = House()
        assert set(await house.calls(40)) == {"gpu/a", "gpu/b"}
        house.pending = 5
        await house.scraper.scrape()
        assert await house.calls(40) == {"gpu/b": 40}
        await asyncio.sleep(0.6)
        assert set(await house.calls(40)) == {"gpu/a", "gpu/b"}

    played(act)


def test_our_own_calls_that_wait_in_triton_are_no_others() -> None:
    async def act() -> None:
        house = House()
        tasks = [house.call() for _ in range(12)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        house.pending = 6
        scrape = asyncio.ensure_future(house.scraper.scrape())
        await asyncio.sleep(0.001)
        for gate in house.upstream.out:  # they end while the page is made
            gate.set()
        house.upstream.out.clear()
        await asyncio.gather(*tasks, scrape)
        known = house.layer._desks["2"].admission.balance.picker._known
        assert not any(row.foreign for row in known.rows)
        assert known.level, "picks keep to the short way"
        house.pending = 7
        await house.scraper.scrape()
        assert [row.foreign for row in known.rows] == [7, 0]

    played(act)


def test_a_shared_replica_is_read_more_often_and_only_while_it_is_shared() -> None:
    async def act() -> None:
        house = House(interval_ms=2000, shared_interval_ms=250)
        await house.calls(2)
        task = asyncio.ensure_future(house.scraper.run())
        await asyncio.sleep(20.0)
        alone = len(house.scrapes)
        assert 9 <= alone <= 12
        house.pending = 3
        await asyncio.sleep(20.0)
        shared = len(house.scrapes) - alone
        assert 65 <= shared <= 95
        went = await house.calls(20)
        assert went == {"gpu/b": 20}, "there is always a fresh count"
        house.pending = 0
        await asyncio.sleep(20.0)
        assert len(house.scrapes) - alone - shared <= 13
        task.cancel()
        await asyncio.wait((task,))

    played(act)


def test_counts_of_models_and_versions_that_nobody_serves_are_passed_over() -> None:
    async def act() -> None:
        house = House()
        assert not house.backlogs.told("gpu/a", {("other", "1"): 5, ("fraud", "9"): 5}, {}, 1.0)
        assert house.backlogs.held("gpu/a") == {}
        await house.calls(1)
        task = house.call()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        held = {**house.backlogs.held("gpu/a"), **house.backlogs.held("gpu/b")}
        assert held == {KEY: 1}
        task.cancel()
        await asyncio.wait((task,))

    played(act)
