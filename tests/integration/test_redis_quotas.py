"""Quotas shared through a real Redis: the script does as the cell does; and a Redis that is slow, frozen, restarted,
flushed, full or gone fails no call and delays none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from gateway.core.call import Call, Identity
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply
from gateway.decide.quota import QuotaSettings
from gateway.decide.quota_cell import Ask, Grant, QuotaCell
from gateway.decide.quota_lease import LeasedQuota, LeaseSettings
from gateway.decide.quota_table import UNLIMITED, Quotas
from gateway.layers.quota import QuotaLayer
from gateway.runtime.clock import SystemClock
from gateway.stores.face import QuotaQuestion
from gateway.stores.quota_leases import QuotaLeases
from gateway.stores.redis_quota import CELL, RedisQuotaStore, arguments, key_of
from tests.support.calls import make_call
from tests.support.redis_server import RedisServer, redis_server
from tests.support.service import ScriptedService

LEASE = LeaseSettings(answer_s=0.25)
"""More patient than the default: the machine of the tests may be busy, the figures are not about that."""
CLOCK = SystemClock()
DELAY_MAX_S = 2.0
"""No real-time test here knows a smaller bound; a call that waited for the store would take seconds."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def own(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


def question(limits: QuotaSettings, ask: Ask, share: float = 0.5, tenant: str = "a") -> QuotaQuestion:
    return QuotaQuestion(tenant, "", limits, share, ask)


# --- the script -------------------------------------------------------------------------------------------------------


ASKS = st.tuples(
    st.sampled_from("abc"),
    st.integers(0, 30),
    st.sampled_from((0.0, 0.5, 1.0, 7.0, 400.0)),
    st.integers(0, 12),
    st.integers(0, 12),
    st.sampled_from((0.0, 0.004, 0.3, 0.999, 1.0, 5.0, -0.2, -30.0)),
)
LIMITS = st.builds(
    QuotaSettings,
    rate_per_s=st.sampled_from((None, 0.1, 3.0, 40.0)),
    burst=st.sampled_from((None, 1.0, 9.5)),
    concurrency_max=st.sampled_from((None, 1, 5, 16)),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
@given(events=st.lists(ASKS, min_size=1, max_size=25), limits=st.lists(LIMITS, min_size=1, max_size=2))
def test_the_script_answers_as_the_cell_does_with_any_clock(
    shared: RedisServer, events: list[tuple[Any, ...]], limits: list[QuotaSettings]
) -> None:
    with Redis.from_url(shared.url, protocol=2) as redis:
        redis.flushall()
        script = "local now = tonumber(ARGV[12])" + CELL
        cell = QuotaCell(limits[0], 0.5, 1.0)
        now_s = 1_800_000_000.0
        for number, (gateway, tokens, owed, slots, in_flight, step_s) in enumerate(events):
            now_s = round(now_s + step_s, 6)
            mine = limits[number % len(limits)]
            asked = question(mine, Ask(number, tokens, owed, slots, in_flight))
            words = [str(each) for each in (*arguments(gateway, asked, 1.0), f"{now_s:.6f}")]
            answer = redis.eval(script, 1, key_of("a", ""), *words)
            cell.replace(mine, 0.5)
            assert Grant(*answer) == cell.answer(gateway, asked.ask, now_s), (number, now_s)


async def test_it_is_asked_in_one_go_and_forgets_what_says_nothing_any_more(shared: RedisServer) -> None:
    shared.say("FLUSHALL")
    store = RedisQuotaStore(shared.url, CLOCK.now_s, lease_s=1.0, answer_s=1.0)
    assert await store.ready()
    limits = QuotaSettings(rate_per_s=1000, burst=1000, concurrency_max=7)
    began_s = CLOCK.now_s()
    answers = await store.lease("g", [question(limits, Ask(1, 10, 0.0, 9, 0), tenant=name) for name in "ab"])
    assert answers == [Grant(10, 7), Grant(10, 7)]
    (again,) = await store.lease("h", [question(limits, Ask(1, 10, 990.0, 9, 0))])
    assert again is not None
    assert again.slots == 0
    assert again.tokens <= 1000 * (CLOCK.now_s() - began_s) + 1, "what has flowed in meanwhile, and no more"
    ttl_ms = int(shared.say("PTTL", key_of("a", ""))[1:])
    assert 1000 < ttl_ms <= 2100, "a second until the bucket is full and the leases are over, and one more"
    assert b"team-a" not in key_of("team-a", "").encode(), "Redis must not learn who calls"
    await store.aclose()
    assert store.statistics(0.0)["questions"]["ok"] == 2


# --- calls and the illnesses of Redis ---------------------------------------------------------------------------------


class Gateway:
    """The quota layer with its leases, over a service that answers at once."""

    def __init__(self, url: str, limits: QuotaSettings, share: float) -> None:
        self.store = RedisQuotaStore(url, CLOCK.now_s, lease_s=LEASE.lease_s, answer_s=LEASE.answer_s)
        self.quotas = Quotas(
            lambda tenant, model: UNLIMITED if model else limits,
            share,
            make=lambda limits, share: LeasedQuota(limits, share, LEASE),
        )
        self.leases = QuotaLeases(self.quotas, self.store, CLOCK.now_s, gateway=f"g{id(self)}", lease=LEASE)
        self.layer = QuotaLayer(ScriptedService(lambda call: Reply(b"yes")), self.quotas, CLOCK, self.leases)
        self.granted = 0
        self.slowest_s = 0.0
        self.last_error: GatewayError | None = None

    async def call(self) -> bool:
        call: Call = make_call()
        call.identity = Identity("team-a")
        began_s = time.monotonic()
        try:
            reply = await self.layer.send(call)
        except GatewayError as error:
            if error.reason is not Reason.QUOTA:
                raise  # nothing else may refuse a call here
            self.last_error = error
            return False
        finally:
            self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)
        await reply.aclose(Outcome.OK)
        self.granted += 1
        return True

    async def load(self, calls_per_s: float, seconds: float) -> int:
        """How many of so many evenly spaced calls were granted."""
        before, began_s = self.granted, time.monotonic()
        for number in range(int(calls_per_s * seconds)):
            delay_s = began_s + number / calls_per_s - time.monotonic()
            if delay_s > 0:
                await asyncio.sleep(delay_s)
            await self.call()
        return self.granted - before

    def state(self) -> str:
        figures = [quota.statistics(CLOCK.now_s()) for _, quota in self.quotas.recent(1)]
        return str(figures[0]["store"]) if figures else ""

    @property
    def up(self) -> bool:
        return bool(self.store.statistics(CLOCK.now_s())["up"])


@asynccontextmanager
async def gateways(
    server: RedisServer, limits: QuotaSettings, count: int = 1, share: float = 1.0
) -> AsyncIterator[list[Gateway]]:
    made = [Gateway(server.url, limits, share) for _ in range(count)]
    jobs = [asyncio.create_task(each.leases.run()) for each in made]
    try:
        yield made
        for job in jobs:
            assert not job.done(), "the job must outlive whatever Redis does"
        for each in made:
            assert each.slowest_s < DELAY_MAX_S
            assert not each.quotas.any_busy
    finally:
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        for each in made:
            await each.store.aclose()


async def until(what: Callable[[], bool], gateway: Gateway, limit_s: float = 30.0) -> None:
    """Calls go on meanwhile: without any, nobody asks the store."""
    end_s = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < end_s, gateway.store.statistics(CLOCK.now_s())
        await gateway.call()
        await asyncio.sleep(0.02)


async def test_two_gateways_share_one_quota_and_either_may_have_all_of_it(shared: RedisServer) -> None:
    shared.say("FLUSHALL")
    limits = QuotaSettings(rate_per_s=60, burst=60)
    async with gateways(shared, limits, 2, 0.5) as (one, other):
        began_s = time.monotonic()
        await asyncio.gather(one.load(150, 4.0), other.load(150, 4.0))
        took_s = time.monotonic() - began_s
        both = one.granted + other.granted
        assert both <= 60 + 60 * (took_s + LEASE.lease_s) + 2 * 30, "burst, rate, and the slack that is documented"
        assert both >= 60 * took_s * 0.8, "and no much less: five times as much was asked for"
        await asyncio.sleep(1.5)
        alone = await one.load(50, 4.0)
        assert alone >= 160, "four fifths of what one gateway asked for, more than its share of 120 and a burst of 30"


async def test_slots_are_shared_too(shared: RedisServer) -> None:
    shared.say("FLUSHALL")
    limits = QuotaSettings(concurrency_max=10)
    async with gateways(shared, limits, 2, 0.5) as (one, other):
        held: list[Reply] = []
        end_s = time.monotonic() + 10
        while len(held) < 10 and time.monotonic() < end_s:
            call = make_call()
            call.identity = Identity("team-a")
            try:
                held.append(await one.layer.send(call))
            except GatewayError:
                await asyncio.sleep(0.02)
        assert len(held) == 10, "alone it gets all, once it has asked"
        assert not await one.call()
        await asyncio.sleep(2.5)
        assert not await one.call(), "what is held is renewed as long as calls are under way"
        granted = [await other.call() for _ in range(3)]
        assert other.last_error is None or other.last_error.retry_after_s
        assert sum(granted) <= 3
        for reply in held:
            await reply.aclose(Outcome.OK)
        await until(lambda: other.granted > 3, other)


Change = Callable[[RedisServer], object]


def fill(server: RedisServer) -> None:
    """No memory for anything that is written."""
    server.say("CONFIG", "SET", "maxmemory-policy", "noeviction")
    server.say("CONFIG", "SET", "maxmemory", "1")


def restart(*arguments: str) -> Change:
    def change(server: RedisServer) -> None:
        server.kill()
        server.start(*arguments)

    return change


def tell(*words: str) -> Change:
    return lambda server: server.say(*words)


ILLS: dict[str, tuple[Change, Change]] = {
    "frozen": (RedisServer.freeze, RedisServer.thaw),
    "slow": (tell("CLIENT", "PAUSE", "60000", "ALL"), restart()),
    "gone": (RedisServer.kill, RedisServer.start),
    "full": (fill, tell("CONFIG", "SET", "maxmemory", "0")),
    "read only": (tell("REPLICAOF", "127.0.0.1", "1"), tell("REPLICAOF", "NO", "ONE")),
    "wants a password": (restart("--requirepass", "secret"), restart()),
}


@pytest.mark.parametrize("ill", ILLS)
async def test_whatever_ails_redis_calls_go_on_within_the_share_and_all_is_well_again_after(
    own: RedisServer, ill: str
) -> None:
    fall_ill, recover = ILLS[ill]
    limits = QuotaSettings(rate_per_s=40, burst=40)
    async with gateways(own, limits, 1, 0.5) as (gateway,):
        await until(lambda: gateway.up and gateway.state() == "leased", gateway)
        await asyncio.to_thread(fall_ill, own)
        await until(lambda: not gateway.up, gateway)
        await asyncio.sleep(1.2)  # what was leased has lapsed
        began_s, granted = time.monotonic(), await gateway.load(100, 3.0)
        took_s = time.monotonic() - began_s
        assert granted <= 20 + 20 * took_s + 1, "its half of rate and burst, and no more"
        assert granted >= 20 * took_s * 0.8, "and no less: a Redis that is ill refuses nobody"
        assert gateway.slowest_s < DELAY_MAX_S
        await asyncio.to_thread(recover, own)
        await until(lambda: gateway.up and gateway.state() == "leased", gateway)


async def test_a_flush_and_a_restart_cost_a_burst_and_no_call(own: RedisServer) -> None:
    limits = QuotaSettings(rate_per_s=40, burst=20)
    async with gateways(own, limits) as (gateway,):
        await until(lambda: gateway.up, gateway)
        began_s, before = time.monotonic(), gateway.granted
        for lose in (lambda: own.say("FLUSHALL"), lambda: own.say("SCRIPT", "FLUSH"), own.kill):
            await gateway.load(150, 1.0)
            await asyncio.to_thread(lose)
        await gateway.load(150, 1.0)
        await asyncio.to_thread(own.start)
        await until(lambda: gateway.up, gateway)
        took_s = time.monotonic() - began_s
        granted = gateway.granted - before
        losses = 3
        assert granted <= (1 + losses) * 20 + 40 * (took_s + LEASE.lease_s) + 20 + 40 * took_s
        assert granted >= 40 * took_s * 0.5


async def test_an_answer_that_comes_late_is_never_taken_for_the_next_one(own: RedisServer) -> None:
    """The connection on which it is still to come is not used again."""
    store = RedisQuotaStore(own.url, CLOCK.now_s, lease_s=1.0, answer_s=0.2)
    few, many = QuotaSettings(rate_per_s=1, burst=1), QuotaSettings(rate_per_s=1000, burst=1000)
    assert await store.ready()
    assert await store.lease("g", [question(few, Ask(1, 1, 0, 0, 0), tenant="few")]) == [Grant(1, 0)]
    own.freeze()
    assert await store.lease("g", [question(many, Ask(2, 900, 0, 0, 0), tenant="many")]) == [None]
    own.thaw()
    end_s = time.monotonic() + 20
    while not await store.ready():
        assert time.monotonic() < end_s
        await asyncio.sleep(0.05)
    assert await store.lease("g", [question(few, Ask(3, 1, 0, 0, 0), tenant="few")]) == [Grant(0, 0)]
    await store.aclose()


async def test_a_question_that_is_cancelled_leaves_a_store_that_works(own: RedisServer) -> None:
    store = RedisQuotaStore(own.url, CLOCK.now_s, lease_s=1.0, answer_s=5.0)
    limits = QuotaSettings(concurrency_max=3)
    assert await store.ready()
    own.freeze()
    work: Coroutine[Any, Any, Any] = store.lease("g", [question(limits, Ask(1, 0, 0, 3, 0))])
    task = asyncio.create_task(work)
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    own.thaw()
    assert await store.ready()
    assert await store.lease("h", [question(limits, Ask(2, 0, 0, 9, 0), tenant="b")]) == [Grant(0, 3)]
    await store.aclose()
