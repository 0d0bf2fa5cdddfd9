"""The job that asks the shared store: on virtual time, with several gateways over one store that misbehaves."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.decide.quota import QuotaSettings, QuotaVerdict
from gateway.decide.quota_cell import Ask, Grant, QuotaCell
from gateway.decide.quota_lease import LeasedQuota, LeaseSettings
from gateway.decide.quota_table import UNLIMITED, Held, Quotas
from gateway.stores import quota_leases
from gateway.stores.face import QuotaQuestion
from gateway.stores.memory import MemoryQuotaStore
from gateway.stores.quota_leases import BATCH_MAX, QuotaLeases
from tests.simulation.loop import SimulationLoop, simulate

LEASE = LeaseSettings()


class Store(MemoryQuotaStore):
    """Answers after `delay_s`; loses what it is told to lose."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        super().__init__(now_s, lease_s=LEASE.lease_s)
        self.delay_s = 0.001
        self.mood = "well"
        self.batches: list[int] = []

    async def ready(self) -> bool:
        return self.mood != "gone"

    async def lease(self, gateway: str, questions: Sequence[QuotaQuestion]) -> Sequence[Grant | None]:
        self.batches.append(len(questions))
        await asyncio.sleep(self.delay_s)
        if self.mood == "deaf":
            return [None] * len(questions)
        answers = self.answer(gateway, questions)
        if self.mood == "mute":
            await asyncio.sleep(LEASE.answer_s)
            return [None] * len(questions)
        if self.mood == "broken":
            raise RuntimeError("a fault of the store's own")
        return answers


class Gateway:
    def __init__(self, store: Store, limits: QuotaSettings, share: float, name: str, loop: SimulationLoop) -> None:
        self.now_s = loop.time
        self.quotas = Quotas(lambda tenant, model: UNLIMITED if model else limits, share, make=LeasedQuota)
        self.leases = QuotaLeases(self.quotas, store, loop.time, gateway=name, lease=LEASE)
        self.granted_s: list[float] = []

    def take(self, tenant: str = "a") -> Held | None:
        held = self.quotas.take(tenant, "m", 1.0, self.now_s())
        for key, quota in self.quotas.of(tenant, "m"):
            self.leases.touch(key, quota)
        if isinstance(held, QuotaVerdict):
            return None
        self.granted_s.append(self.now_s())
        return held

    def call(self, tenant: str = "a") -> bool:
        held = self.take(tenant)
        if held is not None:
            self.quotas.give_back(held)
        return held is not None


Main = Callable[[Store, list[Gateway], SimulationLoop], Coroutine[Any, Any, None]]


def play(main: Main, limits: QuotaSettings, count: int = 1, share: float = 1.0) -> list[Gateway]:
    """Run gateways with their jobs around `main`."""
    made: list[Gateway] = []

    async def whole(loop: SimulationLoop) -> None:
        store = Store(loop.time)
        made.extend(Gateway(store, limits, share, f"g{number}", loop) for number in range(count))
        jobs = [loop.create_task(each.leases.run()) for each in made]
        await main(store, made, loop)
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)

    simulate(whole)
    return made


def test_the_job_sleeps_while_nobody_is_limited_and_nobody_calls() -> None:
    async def main(store: Store, made: list[Gateway], loop: SimulationLoop) -> None:
        await asyncio.sleep(1.0)
        before = loop.callbacks_run
        await asyncio.sleep(600.0)
        assert loop.callbacks_run - before < 10, "no tick of its own"
        assert store.batches == []
        made[0].call()
        await asyncio.sleep(0.01)
        assert store.batches == [1], "a first call is asked for at once"
        await asyncio.sleep(5.0)
        before = loop.callbacks_run
        await asyncio.sleep(600.0)
        assert loop.callbacks_run - before < 10

    play(main, QuotaSettings(rate_per_s=10))


def test_slots_of_a_call_that_lasts_are_renewed_without_another_call() -> None:
    async def main(store: Store, made: list[Gateway], loop: SimulationLoop) -> None:
        one, other = made
        held = []
        for _ in range(200):
            got = one.take()
            if got is not None:
                held.append(got)
            await asyncio.sleep(0.02)
        assert len(held) == 10
        granted = 0
        for _ in range(400):
            granted += other.call()
            await asyncio.sleep(0.02)
        for each in held:
            one.quotas.give_back(each)
        assert granted <= 5, "in its first moment it may have its share; then it knows"

    play(main, QuotaSettings(concurrency_max=10), 2, 0.5)


def test_many_tenants_are_asked_for_in_batches_and_each_gets_its_turn() -> None:
    async def main(store: Store, made: list[Gateway], loop: SimulationLoop) -> None:
        for number in range(3 * BATCH_MAX + 5):
            made[0].call(f"tenant-{number}")
        await asyncio.sleep(0.5)
        assert store.batches == [BATCH_MAX, BATCH_MAX, BATCH_MAX, 5]

    play(main, QuotaSettings(rate_per_s=10))


def test_what_waits_for_its_turn_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_leases, "TOUCHED_MAX", 7)

    async def main(store: Store, made: list[Gateway], loop: SimulationLoop) -> None:
        for number in range(20):
            assert made[0].call(f"tenant-{number}"), "who is not noted keeps to the share"
        assert made[0].leases.statistics(0.0) == {"waiting": 7, "overlooked": 13}

    play(main, QuotaSettings(rate_per_s=10))


def test_a_store_that_raises_loses_the_question_and_the_job_is_started_again() -> None:
    async def main(store: Store, made: list[Gateway], loop: SimulationLoop) -> None:
        gateway = made[0]
        job = loop.create_task(gateway.leases.run())
        store.mood = "broken"
        gateway.call()
        await asyncio.wait((job,))
        assert isinstance(job.exception(), RuntimeError)
        figures = next(gateway.quotas.recent(1))[1].statistics(loop.time())
        assert (figures["store"], figures["losses"]) == ("ill", 1)

    async def alone(loop: SimulationLoop) -> None:
        store = Store(loop.time)
        await main(store, [Gateway(store, QuotaSettings(rate_per_s=10), 1.0, "g", loop)], loop)

    simulate(alone)


MOODS = st.sampled_from(("well", "deaf", "mute", "gone", "flush", "slow"))


def most(granted_s: list[float], rate_per_s: float) -> float:
    """The most calls, over all spans of time, beyond what the rate allows in the span."""
    most, least = 0.0, float("inf")
    for number, at_s in enumerate(sorted(granted_s)):
        least = min(least, number - rate_per_s * at_s)
        most = max(most, number + 1 - rate_per_s * at_s - least)
    return most


@settings(deadline=None, max_examples=60)
@given(
    moods=st.lists(MOODS, min_size=1, max_size=8),
    rate_per_s=st.sampled_from((2.0, 20.0, 60.0)),
    burst=st.sampled_from((1.0, 5.0, 40.0)),
    count=st.integers(1, 3),
    seed=st.integers(0, 999),
)
def test_over_any_time_all_gateways_together_keep_to_what_is_documented(
    moods: list[str], rate_per_s: float, burst: float, count: int, seed: int
) -> None:
    draw = random.Random(seed)
    losses = 0

    async def main(store: Store, made: list[Gateway], loop: SimulationLoop) -> None:
        nonlocal losses
        for mood in moods:
            store.mood, store.delay_s = mood, 0.2 if mood == "slow" else 0.001
            if mood == "flush":
                losses += 1
                store.forget()
            load = [draw.choice((0, 1, 3)) for _ in made]
            for _ in range(60):
                for gateway, calls in zip(made, load, strict=True):
                    for _ in range(calls):
                        gateway.call()
                await asyncio.sleep(0.02)

    made = play(main, QuotaSettings(rate_per_s=rate_per_s, burst=burst), count, 1 / count)
    granted_s = [at_s for gateway in made for at_s in gateway.granted_s]
    lease_s = max(LEASE.lease_s, count / rate_per_s)
    shares = count * max(1.0, burst / count)
    well = all(mood in ("well",) for mood in moods)
    if well:
        assert most(granted_s, rate_per_s) <= burst + rate_per_s * lease_s + shares + 1e-6
    assert most(granted_s, 2 * rate_per_s) <= (1 + losses) * burst + rate_per_s * lease_s + shares + 1e-6


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("burst", [1.0, 3.0, 20.0])
@pytest.mark.parametrize("rate_per_s", [0.1, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("load", [0.5, 0.9, 1.0])
def test_at_slow_rates_too_a_gateway_with_all_the_traffic_gets_all_of_the_limit(
    rate_per_s: float, burst: float, load: float, count: int
) -> None:
    """What it leased must not lapse just before the next call comes."""
    pause_s = 1 / (rate_per_s * load)
    calls = min(200, int(3000 / pause_s))
    refused = 0

    async def main(store: Store, made: list[Gateway], loop: SimulationLoop) -> None:
        nonlocal refused
        for _ in range(calls):
            refused += not made[0].call()
            await asyncio.sleep(pause_s)

    play(main, QuotaSettings(rate_per_s=rate_per_s, burst=burst), count, 1 / count)
    assert refused <= 0.05 * calls


def test_a_clock_that_is_set_back_refuses_nobody_for_long() -> None:
    """The store's clock is a wall clock: an hour too far and then set right must not mean an hour of refusals."""
    cell = QuotaCell(QuotaSettings(rate_per_s=10, burst=10, concurrency_max=4), 0.5, 1.0)
    assert cell.answer("a", Ask(1, 10, 0.0, 4, 0), 5000.0) == Grant(10, 4)
    assert cell.answer("b", Ask(1, 10, 0.0, 4, 0), 1400.0) == Grant(0, 0)
    assert cell.answer("b", Ask(2, 10, 0.0, 4, 0), 1401.1) == Grant(10, 4)
