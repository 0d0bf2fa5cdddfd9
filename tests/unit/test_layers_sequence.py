"""sequence: one replica and one version for all steps, in order, and an honest error when they are gone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from gateway.core.call import Call, SequenceStep
from gateway.core.errors import GatewayError, Reason
from gateway.core.faces import BodyLimits
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply, Response, StreamReply
from gateway.core.service import Service
from gateway.core.session import Session
from gateway.decide.sequences import place
from gateway.decide.split import Split
from gateway.layers.admit import AdmitLayer
from gateway.layers.deadline import StreamLimits
from gateway.layers.route import CurrentRoutes, ModelRoute, RouteLayer, RouteTable
from gateway.layers.sequence import SequenceLayer
from gateway.layers.track import TrackLayer
from gateway.runtime.wheel import TimerWheel
from tests.support.calls import make_call
from tests.support.cancel import cancel_at_every_await
from tests.support.clock import ManualClock
from tests.support.fleet import HandFleet, replica
from tests.support.service import Arrival, ScriptedService

ONE, TWO = ("chat", "1"), ("chat", "2")
NAMES = ("a", "b", "c")


def fleet_of(*names: str, slots: int = 4, keys: tuple[tuple[str, str], ...] = (ONE,)) -> HandFleet:
    return HandFleet(*(server(name, slots, keys) for name in names))


def server(name: str, slots: int = 4, keys: tuple[tuple[str, str], ...] = (ONE,)) -> Any:
    return replica(name, dict.fromkeys(keys, slots), sequence_idle_s=5.0)


@dataclass
class House:
    """route, sequence and admit over a scripted transport."""

    fleet: HandFleet
    inner: ScriptedService
    service: Service
    admission: AdmitLayer
    sequences: SequenceLayer
    routes: CurrentRoutes
    clock: ManualClock

    def books(self) -> tuple[int, int, int]:
        """Calls that hold a slot, wait for one, and wait for their turn."""
        rows = self.admission.statistics(0.0).values()
        waiting = self.sequences.statistics(self.clock.now_s())["waiting"]
        return sum(row["in_flight"] for row in rows), sum(row["waiting"] for row in rows), waiting


def house(
    fleet: HandFleet,
    inner: ScriptedService | None = None,
    *,
    split: dict[str, float] | None = None,
    live_max: int = 100,
    waiting_max: int = 8,
) -> House:
    clock, transport = ManualClock(), inner or ScriptedService()
    admission = AdmitLayer(
        TrackLayer(transport, clock), model="chat", pool="gpu", fleet=fleet, queue_max=None,
        clock=clock, wheel=TimerWheel(clock), chance=random.Random(4),
    )  # fmt: skip
    sequences = SequenceLayer(
        admission, model="chat", pool="gpu", fleet=fleet, live_max=live_max, waiting_max=waiting_max, idle_s=None,
        clock=clock,
    )  # fmt: skip
    routes = CurrentRoutes(table(admission, sequences, split))
    service = RouteLayer(routes, fleet, clock, random.Random(1))
    return House(fleet, transport, service, admission, sequences, routes, clock)


def table(admission: AdmitLayer, sequences: SequenceLayer, split: dict[str, float] | None) -> RouteTable:
    route = ModelRoute(
        model="chat",
        pool="gpu",
        service=admission,
        default_deadline_s=1.0,
        max_deadline_s=10.0,
        limits=BodyLimits(1000, 1000),
        stream=StreamLimits(1.0, 1.0),
        split=None if split is None else Split(split),
        sequences=sequences,
    )
    return RouteTable("r1", {"chat": route})


def call_of(
    sequence_id: int | str | None = 7, kind: str = "mid", version: str = "", session: Session | None = None
) -> Call:
    call = make_call("chat", version)
    call.session = session
    if sequence_id is not None:
        call.sequence = SequenceStep(sequence_id, kind in ("start", "one"), kind in ("end", "one"))
    return call


def send(made: House, call: Call) -> asyncio.Task[Reply]:
    async def sent() -> Reply:
        return await made.service.send(call)

    return asyncio.ensure_future(sent())


async def settle() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


async def step(made: House, sequence_id: int | str = 7, kind: str = "mid", version: str = "") -> Call:
    """A step from its sending to its good end."""
    call = call_of(sequence_id, kind, version)
    task = send(made, call)
    (await arrival(made)).answer()
    await task
    return call


async def arrival(made: House) -> Arrival:
    async with asyncio.timeout(10):
        return await made.inner.arrivals.get()


async def refusal(task: Awaitable[Reply]) -> GatewayError:
    with pytest.raises(GatewayError) as raised:
        async with asyncio.timeout(10):
            await task
    return raised.value


async def test_all_steps_of_a_sequence_run_on_the_replica_that_the_hash_names() -> None:
    made = house(fleet_of(*NAMES))
    ids = ["gpu/" + name for name in NAMES]
    for sequence_id in (1, 2, 3, "1", "2"):
        for kind in ("start", "mid", "mid", "end"):
            call = await step(made, sequence_id, kind)
            assert call.pinned == place("chat", sequence_id, ids)
    assert made.books() == (0, 0, 0)
    assert made.sequences.statistics(0.0)["live"] == 0


async def test_a_replica_that_joins_takes_no_live_sequence() -> None:
    made = house(fleet_of("a"))
    for sequence_id in range(1, 21):
        assert (await step(made, sequence_id, "start")).pinned == "gpu/a"
    made.fleet.publish(*(server(name) for name in NAMES))
    for sequence_id in range(1, 21):
        assert (await step(made, sequence_id)).pinned == "gpu/a"
    moved = [(await step(made, sequence_id, "start")).pinned for sequence_id in range(1, 21)]
    assert set(moved) == {"gpu/a", "gpu/b", "gpu/c"}


async def test_a_new_version_or_new_weights_move_no_live_sequence() -> None:
    made = house(fleet_of("a", "b", keys=(ONE,)), split={"1": 100})
    call = await step(made, 7, "start")
    assert (call.trail.version_routed, call.trail.routed_by) == ("1", "split")
    made.fleet.publish(server("a", keys=(ONE, TWO)), server("b", keys=(ONE, TWO)))
    made.routes.table = table(made.admission, made.sequences, {"1": 0, "2": 100})
    call = await step(made, 7)
    assert (call.trail.version_routed, call.trail.routed_by) == ("1", "sequence")
    call = await step(made, 8, "start")
    assert call.trail.version_routed == "2"
    call = await step(made, 7, "start")
    assert call.trail.version_routed == "2", "begun anew it is a new sequence"
    assert (await step(made, 7)).trail.version_routed == "2"


async def test_two_gateways_draw_the_same_version_for_a_sequence() -> None:
    fleet = fleet_of("a", keys=(ONE, TWO))
    one, other = (house(fleet, split={"1": 50, "2": 50}) for _ in range(2))
    drawn = [(await step(one, number, "start")).trail.version_routed for number in range(1, 41)]
    assert set(drawn) == {"1", "2"}
    for number, version in enumerate(drawn, 1):
        assert (await step(other, number)).trail.version_routed == version


async def test_a_model_without_sequences_takes_the_id_for_a_parameter_like_any_other() -> None:
    made = house(HandFleet(*(replica(name, {ONE: 2}) for name in NAMES)))
    for _ in range(20):
        assert (await step(made, 7, "start")).pinned == ""
    assert {call.trail.version_routed for call in made.inner.seen} == {"1"}
    assert made.sequences.statistics(0.0)["started"] == 0


async def test_when_its_replica_goes_a_sequence_is_lost_until_it_is_started_again() -> None:
    made = house(fleet_of(*NAMES))
    homes = {number: (await step(made, number, "start")).pinned for number in range(1, 31)}
    gone = "gpu/b"
    made.fleet.publish(server("a"), server("c"))
    for number, home in homes.items():
        if home != gone:
            assert (await step(made, number)).pinned == home
            continue
        error = await refusal(send(made, call_of(number)))
        assert error.reason is Reason.SEQUENCE_LOST
        assert f"sequence {number} " in error.message
        assert "start" in error.message
    made.fleet.publish(*(server(name) for name in NAMES))
    for number, home in homes.items():
        if home == gone:
            error = await refusal(send(made, call_of(number)))
            assert error.reason is Reason.SEQUENCE_LOST, "the replica is back, its state is not"
            assert (await step(made, number, "start")).pinned == gone
            assert (await step(made, number, "end")).pinned == gone
    assert made.sequences.statistics(0.0)["lost"] == sum(home == gone for home in homes.values()) > 0
    assert made.books() == (0, 0, 0)


async def test_where_the_whole_fleet_went_a_live_sequence_is_lost_and_a_new_one_finds_no_replica() -> None:
    made = house(fleet_of("a"))
    await step(made, 7, "start")
    made.fleet.publish()
    assert (await refusal(send(made, call_of(7)))).reason is Reason.SEQUENCE_LOST
    assert (await refusal(send(made, call_of(8, "start")))).reason is Reason.NO_REPLICA


@pytest.mark.parametrize("reason", [Reason.UPSTREAM_LOST, Reason.UPSTREAM_NOT_LOADED])
async def test_a_step_that_loses_its_replica_names_the_sequence(reason: Reason) -> None:
    made = house(fleet_of(*NAMES))
    await step(made, "abc", "start")
    task = send(made, call_of("abc"))
    (await arrival(made)).fail(GatewayError(reason, "gone"))
    error = await refusal(task)
    assert error.reason is Reason.SEQUENCE_LOST
    assert "'abc'" in error.message
    assert (await refusal(send(made, call_of("abc")))).reason is Reason.SEQUENCE_LOST
    await step(made, "abc", "start")
    await step(made, "abc")


async def test_a_start_that_loses_its_replica_keeps_its_own_error_and_what_follows_is_lost() -> None:
    made = house(fleet_of(*NAMES))
    task = send(made, call_of(7, "start"))
    (await arrival(made)).fail(GatewayError(Reason.UPSTREAM_LOST, "gone"))
    assert (await refusal(task)).reason is Reason.UPSTREAM_LOST
    assert (await refusal(send(made, call_of(7)))).reason is Reason.SEQUENCE_LOST


async def test_an_error_of_the_replica_passes_and_the_sequence_stays_where_it_is() -> None:
    made = house(fleet_of("a"))
    await step(made, 7, "start")
    made.fleet.publish(*(server(name) for name in NAMES))
    for reason in (Reason.UPSTREAM_INVALID, Reason.UPSTREAM_BROKEN, Reason.DEADLINE):
        task = send(made, call_of(7))
        (await arrival(made)).fail(GatewayError(reason, "Triton's text"))
        error = await refusal(task)
        assert (error.reason, error.message) == (reason, "Triton's text")
    assert (await step(made, 7, "end")).pinned == "gpu/a"
    assert made.sequences.statistics(0.0)["live"] == 0


async def test_a_call_waits_for_the_one_before_it_without_holding_a_slot() -> None:
    made = house(fleet_of("a"))
    tasks = [send(made, call_of(7, kind)) for kind in ("start", "mid", "end")]
    await settle()
    assert made.books() == (1, 0, 2)
    for number in range(3):
        here = await arrival(made)
        assert made.inner.arrivals.empty(), "one at a time"
        assert here.call is made.inner.seen[number]
        here.answer()
        await tasks[number]
    assert made.books() == (0, 0, 0)


async def test_sequences_do_not_wait_for_one_another() -> None:
    made = house(fleet_of("a", slots=8))
    tasks = [send(made, call_of(sequence_id, "start")) for sequence_id in (1, "1", 2)]
    arrivals = [await arrival(made) for _ in tasks]
    for each in arrivals:
        each.answer()
    await asyncio.gather(*tasks)


async def test_a_step_that_failed_lets_the_next_one_go() -> None:
    made = house(fleet_of("a"))
    first, second = send(made, call_of(7, "start")), send(made, call_of(7))
    (await arrival(made)).fail(GatewayError(Reason.UPSTREAM_BROKEN, "broke"))
    await refusal(first)
    (await arrival(made)).answer()
    await second


async def test_too_many_waiting_steps_are_refused_with_a_hint_when_to_come_back() -> None:
    made = house(fleet_of("a"), waiting_max=1)
    tasks = [send(made, call_of(7, "start")), send(made, call_of(7))]
    await settle()
    error = await refusal(send(made, call_of(7)))
    assert error.reason is Reason.QUEUE_FULL
    assert error.retry_after_s
    for task in tasks:
        (await arrival(made)).answer()
        await task


async def test_where_every_remembered_sequence_is_under_way_a_new_one_is_refused() -> None:
    made = house(fleet_of("a"), live_max=1)
    first = send(made, call_of(1, "start"))
    here = await arrival(made)
    assert (await refusal(send(made, call_of(2, "start")))).reason is Reason.QUEUE_FULL
    here.answer()
    await first
    await step(made, 2, "start")
    assert made.sequences.statistics(0.0)["evicted"] == 1


async def test_a_silent_sequence_is_forgotten_a_second_after_triton_forgets_it() -> None:
    made = house(fleet_of("a"))
    await step(made, 7, "start")
    made.clock.advance(5.9)
    assert made.sequences.statistics(made.clock.now_s())["live"] == 1
    made.clock.advance(0.2)
    assert made.sequences.statistics(made.clock.now_s())["live"] == 0


async def test_a_pinned_call_waits_for_its_own_replica_and_is_told_when_that_leaves() -> None:
    made = house(fleet_of("a", slots=1))
    await step(made, 7, "start")
    other = send(made, call_of(None))
    there = await arrival(made)
    made.fleet.publish(server("a", 1), server("b", 1))
    waiting = send(made, call_of(7))
    await settle()
    assert made.books()[1] == 1
    made.fleet.publish(server("b", 1))
    assert (await refusal(waiting)).reason is Reason.SEQUENCE_LOST
    there.answer()
    await other


def stream_answer(here: Arrival, finished: bool = False) -> StreamReply:
    async def no_more() -> Response | None:
        return None

    reply = StreamReply(Response(b"answer"), no_more, ordered=True, finished=finished)
    here._end.set_result(reply)
    return reply


async def test_steps_of_one_stream_follow_each_other_as_soon_as_they_are_sent() -> None:
    made, session = house(fleet_of("a", slots=8)), Session()
    calls = [call_of(7, kind, session=session) for kind in ("start", "mid", "end")]
    tasks = [send(made, call) for call in calls]
    arrivals = []
    for call in calls:
        here = await arrival(made)
        assert here.call is call
        assert made.inner.arrivals.empty(), "nobody goes before the one in front was sent"
        assert call.on_sent is not None
        call.on_sent()
        arrivals.append(here)
    for here, task in zip(arrivals, tasks, strict=True):
        stream_answer(here)
        reply = await task
        await reply.aclose(Outcome.OK)
    assert made.books() == (0, 0, 0)
    assert made.sequences.statistics(0.0)["ended"] == 1


async def test_a_call_beside_the_stream_waits_until_the_streams_reply_is_closed() -> None:
    made, session = house(fleet_of("a")), Session()
    first = send(made, call_of(7, "start", session=session))
    here = await arrival(made)
    assert here.call.on_sent is not None
    here.call.on_sent()
    beside = send(made, call_of(7))
    stream_answer(here)
    reply = await first
    await settle()
    assert made.inner.arrivals.empty()
    await reply.aclose(Outcome.OK)
    (await arrival(made)).answer()
    await beside


@pytest.mark.parametrize(
    ("failure", "expected"), [(Reason.UPSTREAM_LOST, Reason.SEQUENCE_LOST), (Reason.UPSTREAM_BROKEN, None)]
)
async def test_a_stream_that_breaks_in_the_middle_loses_the_sequence_and_one_that_fails_does_not(
    failure: Reason, expected: Reason | None
) -> None:
    made, session = house(fleet_of("a")), Session()
    first = send(made, call_of(7, "start", session=session))
    reply = stream_answer(await arrival(made))
    await first
    reply.failure = GatewayError(failure, "in the middle")
    await reply.aclose(Outcome.GATEWAY_FAULT)
    if expected is None:
        await step(made, 7)
    else:
        assert (await refusal(send(made, call_of(7)))).reason is expected


@pytest.mark.parametrize("position", [0, 1, 2])
async def test_cancelled_at_any_await_it_leaves_no_slot_and_lets_the_next_step_go(position: int) -> None:
    houses: list[House] = []
    others: list[asyncio.Task[Reply]] = []

    def scenario() -> tuple[Awaitable[Any], Callable[[], None]]:
        made = house(fleet_of("a", slots=2))
        houses.append(made)
        others.extend(send(made, call_of(7, "start")) for _ in range(position))

        def on() -> None:
            while not made.inner.arrivals.empty():
                here = made.inner.arrivals.get_nowait()
                if not here.cancelled and not here._end.done():
                    here.answer()

        async def work() -> None:
            await made.service.send(call_of(7))

        return work(), on

    def check() -> None:
        made = houses[-1]
        others.append(send(made, call_of(7, "end")))

    async with asyncio.timeout(30):
        points = await cancel_at_every_await(scenario, check)
        while not all(task.done() for task in others):
            for made in houses:
                while not made.inner.arrivals.empty():
                    here = made.inner.arrivals.get_nowait()
                    if not here.cancelled and not here._end.done():
                        here.answer()
            await asyncio.sleep(0)
    assert points >= 1
    assert all(task.exception() is None for task in others)
    assert all(made.books() == (0, 0, 0) for made in houses)
