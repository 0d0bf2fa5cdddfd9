"""stages: what is below sees inference's point as the deadline, and each stage answers for its own time."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from gateway.core.call import Call, SequenceStep
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply, Response, StreamReply
from gateway.core.session import Session
from gateway.decide.stage_budget import Stage, StageBudget, StageSettings
from gateway.layers.admit import AdmitLayer
from gateway.layers.stages import StagesLayer
from gateway.policy.keys import AnonymousAuthenticator
from gateway.policy.schema import Deadline, FleetPolicy, ModelPolicy, Objective, PolicySet, Stages
from gateway.runtime.wheel import TimerWheel
from gateway.stack import Stack, build_stack
from tests.simulation.house import RealHouse
from tests.simulation.loop import SimulationLoop, simulate
from tests.simulation.run import House, World
from tests.support.attempts import LoopClock
from tests.support.calls import make_call
from tests.support.cancel import cancel_at_every_await
from tests.support.clock import ManualClock
from tests.support.fleet import HandFleet, replica
from tests.support.service import ScriptedService
from tests.support.timed_world import call, played
from tests.unit.edge_driving import HandWheel

SPLIT: dict[Stage, float] = {"ingress": 0.015, "features": 0.040, "inference": 0.045, "postprocessing": 0.020}
NEVER = float("inf")
TICK_S = 0.0021
"""The timer wheel's, and a little."""


class Below:
    """What stands below: it takes its time, and keeps what it saw of the call's deadlines."""

    def __init__(self, clock: ManualClock, took_s: float = 0.0, error: BaseException | None = None) -> None:
        self._clock, self._took_s, self._error = clock, took_s, error
        self.saw: list[tuple[float, float]] = []

    async def send(self, call: Call) -> Reply:
        self.saw.append((call.deadline_s, call.first_response_by_s))
        self._clock.advance(self._took_s)
        if self._error is not None:
            raise self._error
        call.trail.answered_s = self._clock.now_s()
        if call.session is not None:
            return StreamReply(Response(b"first"), _no_more, ordered=True, finished=True)
        return Reply(b"answer")


async def _no_more() -> None:
    return None


def routed(clock: ManualClock, budget_s: float, upload_s: float = 0.0, *, stream: bool = False) -> Call:
    """A call whose upload took so long."""
    now_s = clock.now_s()
    call = make_call(arrived_s=now_s, deadline_s=now_s + budget_s)
    if stream:
        call.session, call.deadline_s, call.first_response_by_s = Session(deadline_s=NEVER), NEVER, now_s + budget_s
    clock.advance(upload_s)
    call.trail.received_s = call.trail.routed_s = clock.now_s()
    return call


def layer(below: Below | ScriptedService, clock: ManualClock) -> StagesLayer:
    return StagesLayer(below, StageBudget(StageSettings(SPLIT)), clock, HandWheel(clock))


def noted(call: Call) -> list[tuple[str, str]]:
    return [(note.word, str(note.saw.get("stage", ""))) for note in call.trail.notes or ()]


def counted(subject: StagesLayer) -> dict[str, int]:
    stages = subject.statistics(0.0)["stages"]
    return {name: row["overruns"] for name, row in stages.items() if row["overruns"]}


async def test_below_it_the_deadline_is_inferences_point_and_afterwards_the_calls_own_again() -> None:
    clock = ManualClock()
    below = Below(clock, 0.030)
    call = routed(clock, 0.120, upload_s=0.005)
    own_s = call.deadline_s
    reply = await layer(below, clock).send(call)
    ((deadline_s, first_by_s),) = below.saw
    assert deadline_s == pytest.approx(call.arrived_s + 0.100)
    assert first_by_s == NEVER
    assert (call.deadline_s, call.first_response_by_s) == (own_s, NEVER)
    await reply.aclose(Outcome.OK)
    assert call.trail.notes is None, "nothing unusual, and nobody asks"


async def test_of_a_stream_it_is_the_time_to_the_first_response_that_is_split() -> None:
    clock = ManualClock()
    below = Below(clock)
    call = routed(clock, 0.120, stream=True)
    first_by_s = call.first_response_by_s
    subject = layer(below, clock)
    reply = await subject.send(call)
    ((deadline_s, by_s),) = below.saw
    assert deadline_s == NEVER
    assert by_s == pytest.approx(call.arrived_s + 0.100)
    assert (call.deadline_s, call.first_response_by_s) == (NEVER, first_by_s)
    clock.advance(3.0)
    await reply.aclose(Outcome.OK)
    assert counted(subject) == {}, "its writing may last"


@pytest.mark.parametrize(
    ("upload_s", "work_s", "write_s", "guilty"),
    [
        (0.010, 0.050, 0.010, []),
        (0.020, 0.050, 0.010, ["ingress"]),
        (0.020, 0.079, 0.010, []),
        (0.001, 0.098, 0.021, []),
        (0.001, 0.098, 0.022, ["postprocessing"]),
        (0.020, 0.050, 0.060, ["ingress", "postprocessing"]),
    ],
)
async def test_each_stage_answers_for_its_own_time(
    upload_s: float, work_s: float, write_s: float, guilty: list[str]
) -> None:
    clock = ManualClock()
    call = routed(clock, 0.120, upload_s)
    subject = layer(Below(clock, work_s), clock)
    reply = await subject.send(call)
    clock.advance(write_s)
    await reply.aclose(Outcome.OK)
    if upload_s == 0.020 and not guilty:
        guilty = ["ingress"]
    assert noted(call) == [("overrun", stage) for stage in guilty]
    assert counted(subject) == dict.fromkeys(guilty, 1)


async def test_who_asks_is_told_the_points() -> None:
    clock = ManualClock()
    call = routed(clock, 0.120)
    call.explain = True
    await layer(Below(clock), clock).send(call)
    assert call.trail.notes is not None
    (note,) = call.trail.notes
    assert (note.decider, note.word) == ("stage", "split")
    assert note.saw == {"ingress_by_ms": 15.0, "inference_by_ms": 100.0, "postprocessing_by_ms": 120.0}


async def test_a_call_that_arrives_after_inferences_point_is_refused_and_takes_no_slot() -> None:
    clock = ManualClock()
    below = Below(clock)
    call = routed(clock, 0.120, upload_s=0.101)
    subject = layer(below, clock)
    with pytest.raises(
        GatewayError, match="nothing was sent; inference has 45 ms of the deadline of 120 ms"
    ) as refused:
        await subject.send(call)
    assert refused.value.reason is Reason.INFEASIBLE
    assert below.saw == []
    assert noted(call) == [("overrun", "ingress"), ("nothing_left", "inference")]
    assert counted(subject) == {"ingress": 1}, "inference is not to blame"


async def test_a_step_that_waited_for_its_turn_too_long_is_told_that_and_blames_nobody_else() -> None:
    clock = ManualClock()
    below = Below(clock)
    call = routed(clock, 0.120)
    call.sequence = SequenceStep(7, start=False, end=False)
    clock.advance(0.105)
    subject = layer(below, clock)
    with pytest.raises(GatewayError, match="was over while the step waited for the one before it: nothing was sent"):
        await subject.send(call)
    assert below.saw == []
    assert noted(call) == [("cut", "inference")]
    assert counted(subject) == {"inference": 1}


async def test_an_attempt_that_is_cut_at_inferences_point_is_said_to_be_that() -> None:
    clock = ManualClock()
    error = GatewayError(Reason.DEADLINE, "the deadline passed while the model server had the request")
    call = routed(clock, 0.120)
    subject = layer(Below(clock, 0.100, error), clock)
    with pytest.raises(GatewayError, match="the time for inference passed before the call was sent") as cut:
        await subject.send(call)
    assert cut.value.reason is Reason.DEADLINE
    assert noted(call) == [("cut", "inference")]
    assert counted(subject) == {"inference": 1}


@pytest.mark.parametrize("reason", [Reason.UPSTREAM_BROKEN, Reason.QUEUE_FULL, Reason.INFEASIBLE])
async def test_what_fails_otherwise_is_nobodys_overrun_and_passes_as_it_is(reason: Reason) -> None:
    clock = ManualClock()
    error = GatewayError(reason, "no")
    call = routed(clock, 0.120)
    subject = layer(Below(clock, 0.010, error), clock)
    with pytest.raises(GatewayError) as raised:
        await subject.send(call)
    assert raised.value is error
    assert call.trail.notes is None
    assert counted(subject) == {}
    assert call.deadline_s == call.arrived_s + 0.120


async def test_an_answer_that_could_not_be_written_in_time_is_postprocessings() -> None:
    clock = ManualClock()
    call = routed(clock, 0.120)
    subject = layer(Below(clock, 0.090), clock)
    reply = await subject.send(call)
    clock.advance(0.030)
    await reply.aclose(Outcome.EXPIRED)
    assert noted(call) == [("cut", "postprocessing")]


async def test_a_cancellation_at_any_point_leaves_the_deadline_as_it_was() -> None:
    clock = ManualClock()
    calls: list[Call] = []

    def scenario() -> tuple[Coroutine[Any, Any, Reply], Callable[[], None]]:
        inner = ScriptedService()
        calls.append(routed(clock, 0.120))

        def step() -> None:
            if not inner.arrivals.empty():
                inner.arrivals.get_nowait().answer()

        return layer(inner, clock).send(calls[-1]), step

    def check() -> None:
        assert calls[-1].deadline_s == calls[-1].arrived_s + 0.120
        assert calls[-1].first_response_by_s == NEVER

    assert await cancel_at_every_await(scenario, check) >= 2


# --- in the stack ----------------------------------------------------------------------------------------------------


def stack(deadline: Deadline, inner: ScriptedService, clock: LoopClock, wheel: TimerWheel) -> Stack:
    policy = ModelPolicy(
        model="fraud", pool="gpu", objective=Objective(p99_ms=50), ladder="none", impact="A test.", deadline=deadline
    )
    return build_stack(
        PolicySet(revision="r", base_dir="/", fleet=FleetPolicy(pools={}), models={"fraud": policy}),
        transport=inner, authenticator=AnonymousAuthenticator(), sinks=(), reserve_record=object, clock=clock,
        fleet=HandFleet(replica("a", {("fraud", "1"): 1})), wheel=wheel, pick_chance=random.Random(1),
        split_chance=random.Random(2), limit_chance=random.Random(3),
    )  # fmt: skip


def in_a_stack(act: Callable[[Stack, ScriptedService], Coroutine[Any, Any, None]], deadline: Deadline) -> None:
    async def main(loop: SimulationLoop) -> None:
        clock, inner = LoopClock(), ScriptedService()
        wheel = TimerWheel(clock)
        try:
            await act(stack(deadline, inner, clock, wheel), inner)
        finally:
            wheel.close()

    simulate(main)


WHOLE = Deadline(default_ms=120, stages=Stages(ingress_ms=15, features_ms=40, inference_ms=45, postprocessing_ms=20))


def test_a_policy_without_stages_has_none_of_it_in_its_stack() -> None:
    async def act(made: Stack, inner: ScriptedService) -> None:
        route = made.routes.table.get("fraud")
        assert route is not None
        assert made.stages == {}
        assert isinstance(route.service, AdmitLayer)
        assert route.never_routed is None

    in_a_stack(act, Deadline())


def test_an_upload_that_outlasts_the_deadline_is_ingresss() -> None:
    async def act(made: Stack, inner: ScriptedService) -> None:
        async def never() -> None:
            await asyncio.sleep(10)

        call = make_call(arrived_s=LoopClock().now_s(), message=None, receive=never)
        with pytest.raises(GatewayError, match="before the request body had arrived"):
            await made.service.send(call)
        assert noted(call) == [("cut", "ingress")]
        figures = made.stages["fraud"].statistics(0.0)
        assert (figures["most"], figures["stages"]["ingress"]["cut"]) == ("ingress", 1)
        assert figures["stages"]["inference"]["calls"] == 0

    in_a_stack(act, WHOLE)


def test_nobody_waits_for_a_slot_beyond_inferences_point() -> None:
    async def act(made: Stack, inner: ScriptedService) -> None:
        first = asyncio.ensure_future(made.service.send(make_call(arrived_s=LoopClock().now_s(), timeout_s=5.0)))
        arrival = await inner.arrivals.get()
        call = make_call(arrived_s=LoopClock().now_s())
        with pytest.raises(GatewayError, match="the time for inference passed while the call waited for a free slot"):
            await made.service.send(call)
        assert 0.1 <= LoopClock().now_s() - call.arrived_s <= 0.1 + TICK_S
        assert not call.trail.attempts
        assert noted(call) == [("cut", "inference")]
        arrival.answer()
        await (await first).aclose(Outcome.OK)

    in_a_stack(act, WHOLE)


# --- what is seen of it ----------------------------------------------------------------------------------------------


def test_which_stage_eats_the_budget_stands_in_record_statistics_and_metrics() -> None:
    houses: list[RealHouse] = []

    def kept(world: World) -> House:
        houses.append(RealHouse(world))
        return houses[0]

    split = Deadline(stages=Stages(ingress_ms=20, inference_ms=100, postprocessing_ms=50))
    plans = [call(0, rows=4, timeout_s=0.3), call(1, body_after_s=0.05, after_s=1.0, timeout_s=2.0)]
    report = played(plans, deadline=split, house=kept)
    (house,) = houses
    records = {each["request_id"]: each for each in map(json.loads, house.store.lines)}
    (cut,) = records["call-00000"]["decisions"]
    assert (cut["by"], cut["decided"], cut["saw"]["stage"]) == ("stage", "cut", "inference")
    assert cut["saw"]["own_ms"] == pytest.approx(230)
    (late,) = records["call-00001"]["decisions"]
    assert (late["by"], late["decided"], late["saw"]["stage"]) == ("stage", "overrun", "ingress")
    assert late["saw"]["over_ms"] == pytest.approx(30, abs=1)
    now_s = report.trace.now_s()
    figures = house.assembly.statistics(now_s)["stages"]["timed"]["stages"]
    assert {name: (row["overruns"], row["cut"]) for name, row in figures.items()} == {
        "ingress": (1, 0), "features": (0, 0), "inference": (1, 1), "postprocessing": (0, 0)
    }  # fmt: skip
    page = house.assembly.metrics.freeze(now_s).render().decode()
    for stage, count in (("ingress", 1), ("features", 0), ("inference", 1), ("postprocessing", 0)):
        assert f'sluice_stage_overruns_total{{model="timed",stage="{stage}"}} {count}.0' in page
