"""Quotas in a simulation: the policy of some seeds, a shared store that obeys Redis's rules, and a second gateway.

The other gateway is not simulated whole: it is the same table of quotas, with the same job that asks the store, under a
load of its own. The store forgets, falls silent, or loses answers to what it has paid for, until the run calms down.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gateway.decide.quota import QuotaVerdict
from gateway.decide.quota_cell import Grant
from gateway.decide.quota_lease import LeasedQuota, LeaseSettings
from gateway.decide.quota_table import Held
from gateway.policy.quota_schema import Quota, Quotas, TenantQuota
from gateway.stack import quotas_of
from gateway.stores.face import QuotaQuestion
from gateway.stores.memory import MemoryQuotaStore
from gateway.stores.quota_leases import QuotaLeases

if TYPE_CHECKING:
    from tests.simulation.report import Report
    from tests.simulation.run import World
    from tests.simulation.scenario import Scenario

LEASE = LeaseSettings(lease_s=0.4, ahead_s=0.1, probe_s=0.3)
SHARE = 8
"""Seeds with this remainder by 11 have quotas: none of the pinned ones is such a one. Few of
them have the crowd that classes bring too: a quota turns most of that away before anything else sees it.
"""
TENANT = "anonymous"
GATEWAYS = 2
_OTHER_HOLDS_S = (0.001, 0.02, 0.4)


def quotas_policy(seed: int, model: str) -> Quotas:
    """Not drawn with the rest, so that the seeds that once found something still mean what they meant."""
    if seed % 11 != SHARE:
        return Quotas()
    draw = random.Random(f"quotas/{seed}")
    own = {model: Quota(concurrency_max=draw.choice((8, 12)))} if draw.random() < 0.5 else None
    limits = TenantQuota(
        rate_per_s=draw.choice((20.0, 20.0, 60.0)),
        burst=draw.choice((12.0, 30.0)),
        concurrency_max=draw.choice((10, 16)),
        models=own,
    )
    return Quotas(tenants={TENANT: limits}, gateways=GATEWAYS)


def shares_a_store(scenario: Scenario) -> bool:
    """Else each gateway keeps to its share."""
    return not scenario.policies.fleet.quotas.limits_nothing() and scenario.seed % 33 != SHARE


class SimulatedStore:
    """`QuotaStore` with the answers of the real one. Well until told otherwise: `well`, `late` (what it pays for is
    lost), `deaf`, `gone`.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._draw = random.Random(f"quota store/{world.scenario.seed}")
        self._cells = MemoryQuotaStore(world.clock.now_s, lease_s=LEASE.lease_s)
        self.mood = "well"
        self.losses = 0

    def schedule(self) -> None:
        """Its illnesses; the last one is over by the time the run is to be calm."""
        scenario, loop = self._world.scenario, self._world.loop
        origin_s = self._world.trace.origin_s
        if not scenario.seed % 2:
            return  # an even seed's is well all the time, so that the tighter bound holds
        for _ in range(self._draw.choice((1, 2, 4))):
            at_s = self._draw.random() * max(0.1, scenario.calm_s - 0.6)
            mood = self._draw.choice(("late", "deaf", "gone", "forget"))
            loop.call_at(origin_s + at_s, self._fall_ill, mood)
            loop.call_at(origin_s + at_s + self._draw.choice((0.05, 0.5)), self._fall_ill, "well")

    def _fall_ill(self, mood: str) -> None:
        self._world.trace.add("store", mood)
        if mood == "forget":
            self.losses += 1
            self._cells.forget()
        else:
            self.mood = mood

    async def ready(self) -> bool:
        return self.mood != "gone"

    async def lease(self, gateway: str, questions: Sequence[QuotaQuestion]) -> Sequence[Grant | None]:
        await asyncio.sleep(self._draw.choice((0.0003, 0.002)))
        if self.mood in ("deaf", "gone"):
            await asyncio.sleep(LEASE.answer_s)
            return [None] * len(questions)
        answers = self._cells.answer(gateway, questions)
        if self.mood == "late":
            await asyncio.sleep(LEASE.answer_s)
            return [None] * len(questions)
        return answers

    async def aclose(self) -> None:
        return None

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        return {**self._cells.statistics(now_s), "up": int(self.mood == "well")}


class OtherGateway:
    """A second gateway over the same store, with calls of the same tenant."""

    def __init__(self, world: World, store: SimulatedStore) -> None:
        self._world = world
        self._draw = random.Random(f"other gateway/{world.scenario.seed}")
        quotas = quotas_of(world.scenario.policies, lambda settings, share: LeasedQuota(settings, share, LEASE))
        assert quotas is not None
        self.quotas = quotas
        self._leases = QuotaLeases(quotas, store, world.clock.now_s, gateway="other", lease=LEASE)
        self._tasks: list[asyncio.Task[None]] = []
        self._out: set[Held] = set()

    def start(self) -> None:
        loop = self._world.loop
        self._tasks = [loop.create_task(self._leases.run()), loop.create_task(self._call())]

    async def _call(self) -> None:
        scenario, loop, report = self._world.scenario, self._world.loop, self._world.report
        limits = (scenario.policies.fleet.quotas.tenants or {})[TENANT]
        model = next(iter(scenario.policies.models))
        until_s = self._world.trace.origin_s + scenario.calm_s
        while loop.time() < until_s:
            await asyncio.sleep(self._draw.expovariate(self._draw.choice((0.5, 3.0)) * (limits.rate_per_s or 1.0)))
            held = self.quotas.take(TENANT, model, 1.0, loop.time())
            for key, quota in self.quotas.of(TENANT, model):
                self._leases.touch(key, quota)
            if not isinstance(held, QuotaVerdict):
                report.granted_elsewhere_s.append(loop.time())
                self._out.add(held)
                loop.call_later(self._draw.choice(_OTHER_HOLDS_S), self._end, held)

    def _end(self, held: Held) -> None:
        if held in self._out:
            self._out.remove(held)
            self.quotas.give_back(held)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for held in tuple(self._out):
            self._end(held)


def quotas_are_kept(report: Report) -> Iterator[str]:
    """Over any span of time no more calls were let in, here and by the other gateway, than is documented; and only
    calls of limited tenants are refused.
    """
    limits = (report.scenario.policies.fleet.quotas.tenants or {}).get(TENANT)
    refused = [number for number, call in report.calls.items() if _refused(call)]
    if limits is None or limits.rate_per_s is None:
        for number in refused:
            yield f"call-{number:05d}: refused by a quota, and there is none"
        return
    for number in refused:
        if report.calls[number].trail.attempts:
            yield f"call-{number:05d}: refused by its quota after it was sent"
    rate, burst = limits.rate_per_s, limits.burst or max(1.0, limits.rate_per_s)
    shares = GATEWAYS * max(1.0, burst / GATEWAYS)
    here_s = [report.entered_s[number] for number, call in report.calls.items() if _let_in(call)]
    elsewhere_s = report.granted_elsewhere_s
    if not shares_a_store(report.scenario):
        yield from _too_many("here", here_s, rate / GATEWAYS, max(1.0, burst / GATEWAYS))
        return
    slack = burst + rate * max(LEASE.lease_s, 1 / rate) + shares
    both_s = [*here_s, *elsewhere_s]
    if report.scenario.seed % 2:
        yield from _too_many("by both", both_s, 2 * rate, slack + report.store_losses * burst)
    else:
        yield from _too_many("by both", both_s, rate, slack)


def concurrency_is_kept(report: Report) -> Iterator[str]:
    """No more calls of the tenant are inside at a time than its quota lets in, whatever the store says."""
    limits = (report.scenario.policies.fleet.quotas.tenants or {}).get(TENANT)
    if limits is None or limits.concurrency_max is None:
        return
    most = limits.concurrency_max if shares_a_store(report.scenario) else limits.concurrency_max // GATEWAYS
    changes = [(report.entered_s[number], 1) for number, call in report.calls.items() if _let_in(call)]
    changes += [
        (report.done_s[number], -1)
        for number, call in report.calls.items()
        if _let_in(call) and number in report.done_s
    ]
    inside = 0
    for at_s, change in sorted(changes):
        inside += change
        if inside > most:
            yield f"{inside} calls were inside at {at_s:.6f} s, and {most} may be"
            return


def _too_many(where: str, granted_s: list[float], rate_per_s: float, burst: float) -> Iterator[str]:
    least, most = float("inf"), 0.0
    for number, at_s in enumerate(sorted(granted_s)):
        least = min(least, number - rate_per_s * at_s)
        most = max(most, number + 1 - rate_per_s * at_s - least)
    if most > burst + 1e-6:
        yield f"{most:.1f} calls beyond {rate_per_s:g} a second were let in {where} at once; {burst:g} may be"


def _refused(call: Any) -> bool:
    return any(note.decider == "quota" and note.word != "granted" for note in call.trail.notes or ())


def _let_in(call: Any) -> bool:
    """It got as far as the deadline, which is behind the quota."""
    return bool(call.deadline_s != float("inf") or call.first_response_by_s != float("inf"))


QUOTA_CHECKS = (quotas_are_kept, concurrency_is_kept)
