"""The adaptive limit in the layers: what a call is told, what a cancellation leaves, the budget of second attempts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

from gateway.core.call import Call, Note
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply
from gateway.core.snapshot import ReplicaView
from gateway.decide.limit_settings import LimitSettings
from gateway.decide.slot_limit import LimitRule
from gateway.fleet.slots import batch_max, default_slots, places
from gateway.layers.admit import AdmitLayer
from gateway.layers.track import TrackLayer
from gateway.runtime.wheel import TimerWheel
from gateway.wire.kserve.model_config import ModelConfigSummary
from tests.support.attempts import House
from tests.support.calls import make_call
from tests.support.cancel import cancel_at_every_await
from tests.support.clock import ManualClock
from tests.support.fleet import HandFleet, replica

KEY = ("fraud", "2")
RULE = LimitRule(settings=LimitSettings(window_s=0.05, samples_min=10))


class Ends:
    """`Service`: each call ends as `outcome` says, after `waits` turns of the loop and 10 ms of the clock."""

    def __init__(self, clock: ManualClock, outcome: Outcome, waits: int = 0) -> None:
        self.clock, self.outcome, self.waits = clock, outcome, waits

    async def send(self, call: Call) -> Reply:
        for _ in range(self.waits):
            await asyncio.sleep(0)
        self.clock.advance(0.01)
        attempt = call.trail.attempts[-1]
        attempt.outcome, attempt.ended_s = self.outcome, self.clock.now_s()
        return Reply(b"")


def layer(clock: ManualClock, inner: Ends, slots: int = 4) -> AdmitLayer:
    return AdmitLayer(
        TrackLayer(inner, clock), model="fraud", pool="gpu", fleet=HandFleet(replica("a", {KEY: slots})),
        queue_max=None, clock=clock, wheel=TimerWheel(clock), chance=random.Random(4), limit=RULE,
    )  # fmt: skip


def routed(*, explain: bool = False) -> Call:
    call = make_call()
    call.trail.version_routed, call.explain = "2", explain
    return call


async def told(subject: AdmitLayer, *, explain: bool) -> list[tuple[str, str]]:
    call = routed(explain=explain)
    await (await subject.send(call)).aclose(Outcome.OK)
    return [(note.decider, note.word) for note in call.trail.notes or ()]


async def test_a_call_that_asks_is_told_why_the_limit_is_not_where_it_started() -> None:
    clock = ManualClock()
    inner = Ends(clock, Outcome.OVERLOAD)
    subject = layer(clock, inner)
    assert await told(subject, explain=True) == []
    for _ in range(40):
        await told(subject, explain=False)
    assert subject.statistics(clock.now_s())["2"]["limit"] == 2
    assert await told(subject, explain=False) == [], "it had a slot at once, and does not ask"
    call = routed(explain=True)
    await (await subject.send(call)).aclose(Outcome.OK)
    assert call.trail.notes == [Note("limit", "drops", {"limit": 2, "start": 4, "floor": 2, "cap": 16})]
    assert call.trail.limit_at_admit == 2


async def test_a_call_that_waits_for_a_slot_is_told_too() -> None:
    clock = ManualClock()
    subject = layer(clock, Ends(clock, Outcome.OVERLOAD))
    for _ in range(40):
        await told(subject, explain=False)
    subject._inner = TrackLayer(Ends(clock, Outcome.OK, waits=5), clock)
    found = await asyncio.gather(*(told(subject, explain=False) for _ in range(4)))
    assert sorted(found) == [[], [], [("limit", "drops")], [("limit", "drops")]]


async def test_cancelled_anywhere_a_call_leaves_no_slot_taken_and_no_drop() -> None:
    clock = ManualClock()
    subject = layer(clock, Ends(clock, Outcome.OK, waits=3), slots=1)

    def scenario() -> tuple[Awaitable[object], Callable[[], None]]:
        return told(subject, explain=True), lambda: None

    def check() -> None:
        state = subject.statistics(clock.now_s())["2"]
        assert (state["in_flight"], state["waiting"]) == (0, 0)
        assert state["adaptive"]["drops"] == 0

    await told(subject, explain=False)
    assert await cancel_at_every_await(scenario, check) >= 3


def batching(view: ReplicaView, largest: int) -> ReplicaView:
    models = {key: replace(each, batch_max=largest, places=largest) for key, each in view.models.items()}
    return replace(view, models=models)


async def test_the_budget_for_second_attempts_grows_with_the_largest_batch_that_is_served() -> None:
    setup = House("a", "b")

    def cap() -> float:
        return float(setup.attempts.statistics(0.0)["budget"]["cap"])

    plain = [replica(name, {KEY: 2}) for name in ("a", "b")]
    setup.fleet.publish(*plain)
    assert cap() == 20
    setup.fleet.publish(plain[0], batching(plain[1], 32))
    assert cap() == 4 * 32
    setup.fleet.publish(plain[0])
    assert cap() == 20


def test_what_fills_the_batches_is_told_by_the_configuration() -> None:
    busy = ModelConfigSummary(max_batch_size=8, instances=2, batches=True)
    alone = ModelConfigSummary(max_batch_size=8, instances=3, batches=False)
    assert (places(busy), batch_max(busy), default_slots(busy)) == (16, 8, 32)
    assert (places(alone), batch_max(alone), default_slots(alone)) == (3, 0, 6)
