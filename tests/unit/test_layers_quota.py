"""The gate's quota layer: who is refused and how, and that what a call holds goes back once, whatever happens."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.core.call import Call, Identity
from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply, StreamReply
from gateway.decide.quota import Quota
from gateway.decide.quota_lease import LeasedQuota
from gateway.decide.quota_table import Key, Quotas
from gateway.edge.explain import Explainer
from gateway.edge.grpc_answers import failed
from gateway.edge.status import retry_after_s, status_of
from gateway.layers.quota import QuotaLayer, settings_of
from gateway.policy import quota_schema
from gateway.policy.quota_schema import TenantQuota
from gateway.stack import quotas_of
from tests.simulation.scenario import scenario
from tests.support.calls import make_call
from tests.support.cancel import cancel_at_every_await
from tests.support.clock import ManualClock
from tests.support.service import ScriptedService

POLICY = quota_schema.Quotas(
    tenants={
        "shop": TenantQuota(rate_per_s=10, burst=2, models={"fraud": quota_schema.Quota(concurrency_max=1)}),
        "free": TenantQuota(),
    },
    default=TenantQuota(concurrency_max=2),
)


class Touched:
    """Stands where the leases are."""

    def __init__(self) -> None:
        self.keys: list[Key] = []

    def touch(self, key: Key, quota: Quota) -> None:
        self.keys.append(key)

    def statistics(self, now_s: float) -> dict[str, Any]:
        return {}


class World:
    def __init__(
        self, inner: ScriptedService | None = None, policy: quota_schema.Quotas = POLICY, share: float = 1.0
    ) -> None:
        self.clock = ManualClock()
        self.inner = inner or ScriptedService(lambda call: Reply(b"yes"))
        self.quotas = Quotas(settings_of(policy), share)
        self.layer = QuotaLayer(self.inner, self.quotas, self.clock)

    async def refused(self, tenant: str, model: str = "fraud", *, explain: bool = False) -> GatewayError:
        with pytest.raises(GatewayError) as caught:
            await self.layer.send(call_of(tenant, model, explain=explain))
        assert caught.value.reason is Reason.QUOTA
        return caught.value


def call_of(tenant: str, model: str = "fraud", *, explain: bool = False) -> Call:
    call = make_call(model)
    call.identity = Identity(tenant)
    call.explain = explain
    return call


async def test_over_its_rate_a_tenant_is_told_when_there_is_room_and_then_served() -> None:
    world = World()
    for _ in range(2):
        await (await world.layer.send(call_of("shop"))).aclose(Outcome.OK)
    error = await world.refused("shop")
    assert error.code is Code.RESOURCE_EXHAUSTED
    assert status_of(error) == 429
    assert error.retry_after_s == pytest.approx(0.1)
    assert error.message == "this caller's quota of 10 calls a second is used up; try again later"
    assert 1 <= retry_after_s(error, random.Random(1)) <= 2
    pushback = dict(failed(call_of("shop"), error, "", random.Random(1)))["grpc-retry-pushback-ms"]
    assert 100 <= int(pushback) <= 150
    world.clock.advance(0.1)
    await (await world.layer.send(call_of("shop"))).aclose(Outcome.OK)
    assert len(world.inner.seen) == 3, "who is refused goes no further"


async def test_a_limit_on_a_model_holds_besides_and_says_so() -> None:
    world = World()
    reply = await world.layer.send(call_of("shop"))
    error = await world.refused("shop")
    assert error.message == "this caller's quota for model 'fraud' of 1 calls at a time is in use; try again later"
    assert error.retry_after_s == 1.0
    other = await world.layer.send(call_of("shop", "ranker"))
    await reply.aclose(Outcome.OK)
    await other.aclose(Outcome.OK)
    assert not world.quotas.any_busy


async def test_a_tenant_that_is_not_named_has_the_default_of_its_own_and_one_that_is_named_has_nothing_of_it() -> None:
    world = World()
    held = [await world.layer.send(call_of("one")) for _ in range(2)]
    await world.refused("one")
    held += [await world.layer.send(call_of("two")) for _ in range(2)]
    held += [await world.layer.send(call_of("free")) for _ in range(20)]
    for reply in held:
        await reply.aclose(Outcome.OK)
    assert not world.quotas.any_busy
    assert len(world.quotas) == 2, "of a tenant without limits nothing is remembered"


async def test_a_stream_holds_its_place_until_it_ends() -> None:
    async def nothing() -> None:
        return None

    world = World(ScriptedService(lambda call: StreamReply(None, nothing, ordered=True)))
    streams = [await world.layer.send(call_of("one")) for _ in range(2)]
    await world.refused("one")
    await streams[0].aclose(Outcome.ABANDONED)
    assert await world.layer.send(call_of("one"))


@pytest.mark.parametrize("error", [GatewayError(Reason.DEADLINE, "late"), RuntimeError("a fault of ours")])
async def test_an_error_gives_back_what_the_call_held(error: Exception) -> None:
    def fail(call: Call) -> Reply:
        raise error

    world = World(ScriptedService(fail))
    for _ in range(5):
        with pytest.raises(type(error)):
            await world.layer.send(call_of("one"))
    assert not world.quotas.any_busy


async def test_a_cancellation_at_any_await_gives_back_what_the_call_held() -> None:
    worlds: list[World] = []

    def run() -> tuple[Awaitable[Any], Callable[[], None]]:
        world = World(ScriptedService())
        worlds.append(world)

        async def whole() -> None:
            reply = await world.layer.send(call_of("one"))
            try:
                await asyncio.sleep(0)
            finally:
                await reply.aclose(Outcome.OK)

        def step() -> None:
            if not world.inner.arrivals.empty():
                world.inner.arrivals.get_nowait().answer()

        return whole(), step

    points = await cancel_at_every_await(run, lambda: None)
    assert points >= 3
    assert len(worlds) == points + 1
    for world in worlds:
        assert not world.quotas.any_busy
        assert world.quotas.statistics(0.0)["busy"] == 0


async def test_the_record_and_the_explanation_tell_what_was_seen() -> None:
    world = World()
    call = call_of("shop", explain=True)
    await world.layer.send(call)
    assert call.trail.notes is not None
    note = call.trail.notes[0]
    assert (note.decider, note.word) == ("quota", "granted")
    assert note.saw == {
        "share": 1.0, "in_flight": 1, "tokens": 1.0, "model_share": 1.0, "model_in_flight": 1, "model_slots": 1,
    }  # fmt: skip
    refused = call_of("shop")
    with pytest.raises(GatewayError):
        await world.layer.send(refused)
    told = json.loads(Explainer(1).explain(refused, 1000.0))["decisions"]
    assert [(each["by"], each["decided"], each["limit"], each["retry_after_s"]) for each in told] == [
        ("quota", "concurrency", "model", 1.0)
    ]
    plain = call_of("one")
    await world.layer.send(plain)
    assert plain.trail.notes is None, "nothing is noted of a plain call"


async def test_who_finds_no_room_in_the_table_is_told_that_it_is_not_its_fault() -> None:
    world = World(ScriptedService(lambda call: Reply(b"yes")))
    world.quotas = Quotas(settings_of(POLICY), entries_max=2)
    world.layer = QuotaLayer(world.inner, world.quotas, world.clock)
    for tenant in ("one", "two"):
        await world.layer.send(call_of(tenant))
    error = await world.refused("three")
    assert error.message.startswith("too many tenants have calls under way")


async def test_the_leases_hear_of_every_quota_that_was_asked_refusals_included() -> None:
    touched, clock = Touched(), ManualClock()
    quotas = Quotas(settings_of(POLICY), 0.5, make=LeasedQuota)
    layer = QuotaLayer(ScriptedService(lambda call: Reply(b"yes")), quotas, clock, touched)
    await layer.send(call_of("shop"))
    with pytest.raises(GatewayError):
        await layer.send(call_of("shop"))
    await layer.send(call_of("free"))
    assert touched.keys == [("shop", ""), ("shop", "fraud")] * 2


async def test_the_statistics_name_the_tenants_and_the_counts_do_not() -> None:
    world = World()
    await world.layer.send(call_of("shop"))
    await world.layer.send(call_of("free"))
    await world.refused("shop")
    counts = world.layer.counts(0.0)
    assert counts["granted"] == 2
    assert counts["refused"] == {"rate": 0, "concurrency": 1, "table_full": 0}
    assert "shop" not in json.dumps(counts)
    shown = world.layer.statistics(1000.0)["used_last"]
    assert [(each["tenant"], each.get("model", "")) for each in shown] == [("shop", ""), ("shop", "fraud")]


def test_where_no_limit_is_declared_there_is_no_quota_on_the_path() -> None:
    policies = scenario(0).policies
    assert policies.fleet.quotas.limits_nothing()
    assert quotas_of(policies) is None
    assert quota_schema.Quotas(tenants={"a": TenantQuota()}, default=TenantQuota()).limits_nothing()
    assert not POLICY.limits_nothing()
    only = quota_schema.Quotas(tenants={"a": TenantQuota(models={"m": quota_schema.Quota(rate_per_s=1)})})
    assert not only.limits_nothing()
