"""FH-19 · The deadline clock starts late, restarts per attempt, or is ignored on a side path.

The whole gateway in virtual time, bytes in and bytes out, so that 0.6 s are 0.6 s. What one part alone can show stands
with that part: forms of the header in `test_edge_headers.py` and `test_grpc_wire_timeout.py`, the limits of streams in
`test_layers_streams.py`, the split over stages in `test_layers_stages.py`; and over hundreds of seeds the simulation
holds that nobody is told more time than is left, or answered after the deadline
(`tests/simulation/deadline_checks.py`).

There are no paths through a cache, an activator or a shadow yet. A canary is a version of a `split`, and goes the same
way as any other.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace
from typing import cast

import pytest

from gateway.core.call import Attempt, Call, Metadata
from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason
from gateway.core.faces import BodyLimits, ReplicaClient
from gateway.core.faults import UpstreamFault
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply
from gateway.decide.attempt_budget import AttemptBudgetSettings
from gateway.decide.tuning import Tuning
from gateway.fleet.connection import Connection
from gateway.fleet.transport import MARGIN_S, ReplicaTransport
from gateway.layers.deadline import DeadlineLayer, StreamLimits
from gateway.layers.route import CurrentRoutes, ModelRoute, RouteTable
from gateway.policy.keys import AnonymousAuthenticator
from gateway.policy.schema import Deadline, FleetPolicy, Hedging, ModelPolicy, Objective, PolicySet, Stages
from gateway.runtime.wheel import TimerWheel
from gateway.stack import build_stack
from gateway.wire.grpc import encode_timeout, parse_timeout
from tests.simulation.grpc_callers import GrpcCallers
from tests.simulation.house import build
from tests.simulation.loop import SimulationLoop, simulate
from tests.simulation.plans import SessionPlan
from tests.simulation.report import Report
from tests.simulation.run import House, World
from tests.simulation.streamer import StreamOrder
from tests.support.attempts import LoopClock
from tests.support.calls import make_call
from tests.support.clock import ManualClock
from tests.support.fleet import HandFleet, replica
from tests.support.grpc_edge import ANSWER
from tests.support.timed_world import LOADED_S, call, one_ending, played, stream, took_s
from tests.unit.edge_clients import post
from tests.unit.edge_driving import Edge, HandWheel, turns
from tests.unit.grpc_driving import HEADERS, INFER, Bench, head_block, infer_message, prefixed

DEADLINE = Reason.DEADLINE.label
TICK_S = 0.0021
"""The timer wheel's, and a little."""


def ends_at(report: Report, number: int, at_s: float) -> None:
    """With 504 / DEADLINE_EXCEEDED, not after its deadline but for the wheel's tick, and at most the margin before."""
    ending = one_ending(report, number)
    assert ending.status == DEADLINE, ending.text
    assert at_s - MARGIN_S - 1e-6 <= took_s(report, number) <= at_s + TICK_S


# --- (a) the upload counts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entrance", ["http", "grpc"])
def test_a_body_that_drips_for_a_second_is_504_at_its_deadline_and_nothing_is_sent(entrance: str) -> None:
    report = played([call(0, body_after_s=1.0)], entrance=entrance)
    assert one_ending(report, 0).status == DEADLINE
    assert not report.sends
    if entrance == "http":
        ends_at(report, 0, 0.6)
    else:  # no call yet: over gRPC it becomes one with its message
        assert one_ending(report, 0).at_s - report.sent_at_s[0] == pytest.approx(0.6, abs=TICK_S)


# --- (b) each attempt is told what is left ---------------------------------------------------------------------------


class Failing:
    """Connections to replicas, each of which fails after a quarter of a second. A call has three attempts at most: the
    first, a retry of what failed, and one for what a replica took with it when it died.
    """

    def __init__(self) -> None:
        self.limits_s: list[float] = []
        self._connection = Connection(cast(ReplicaClient, self))

    async def infer(
        self, message: bytes, metadata: Metadata, timeout_s: float, tail: bytes = b"", attempt: Attempt | None = None
    ) -> bytes:
        self.limits_s.append(timeout_s)
        await asyncio.sleep(min(0.25, timeout_s))
        if timeout_s <= 0.25:
            raise UpstreamFault(Code.DEADLINE_EXCEEDED, "Deadline Exceeded", from_peer=False)
        if len(self.limits_s) == 1:
            raise UpstreamFault(Code.INTERNAL, "the model failed", from_peer=True)
        raise UpstreamFault(Code.UNAVAILABLE, "Connection reset by peer", from_peer=False)

    def connection(self, replica: str) -> Connection:
        return self._connection

    def hint(self, replica: str, model: str, version: str) -> None: ...

    def note_answer(self, replica: str, connection: Connection, model: str, version: str, now_s: float) -> None: ...

    def refused(self, replica: str, model: str, version: str, asked_s: float, text: str) -> None: ...


def attempted(deadline: Deadline) -> tuple[Failing, Call, GatewayError, float]:
    """One call of 600 ms: what was told, what it came to, and how long that took."""

    async def main(loop: SimulationLoop) -> tuple[Failing, Call, GatewayError, float]:
        failing, clock = Failing(), LoopClock()
        policy = ModelPolicy(
            model="fraud", pool="gpu", objective=Objective(p99_ms=50), ladder="none", impact="A test fails.",
            read_only=True, hedging=Hedging(enabled=False), deadline=deadline,
        )  # fmt: skip
        wheel = TimerWheel(clock)
        stack = build_stack(
            PolicySet(revision="r", base_dir="/", fleet=FleetPolicy(pools={}), models={"fraud": policy}),
            transport=ReplicaTransport(failing, clock), authenticator=AnonymousAuthenticator(), sinks=(),
            fleet=HandFleet(*(replica(name, {("fraud", "1"): 2}) for name in "abc")), reserve_record=object,
            clock=clock, wheel=wheel, pick_chance=random.Random(1), split_chance=random.Random(2),
            limit_chance=random.Random(3),
            tuning=Tuning(budget=AttemptBudgetSettings(retry_deposit=1.0, retry_reserve=0.0)),
        )  # fmt: skip
        call = make_call(arrived_s=clock.now_s(), timeout_s=0.6)
        try:
            await stack.service.send(call)
        except GatewayError as error:
            wheel.close()
            return failing, call, error, clock.now_s() - call.arrived_s
        raise AssertionError("nobody could answer it")

    return simulate(main)


def test_three_attempts_of_250_ms_are_told_600_350_and_100_ms_less_the_margin() -> None:
    failing, call, error, after_s = attempted(Deadline())
    assert [attempt.kind for attempt in call.trail.attempts] == ["primary", "retry", "retry"]
    left_s = [0.6 - (attempt.started_s - call.arrived_s) for attempt in call.trail.attempts]
    assert left_s == pytest.approx([0.6, 0.35, 0.1], abs=0.011), "a back-off comes out of it too, 10 ms at most"
    assert failing.limits_s == pytest.approx([left - MARGIN_S for left in left_s], abs=1e-9)
    told_s = [parse_timeout(encode_timeout(limit_s)) for limit_s in failing.limits_s]
    assert all(limit <= told <= left for limit, told, left in zip(failing.limits_s, told_s, left_s, strict=True))
    assert error.reason is Reason.DEADLINE
    assert 0.6 - MARGIN_S - 1e-6 <= after_s <= 0.6 + TICK_S
    assert [attempt.outcome for attempt in call.trail.attempts][-1] is Outcome.EXPIRED


def test_with_a_share_for_what_comes_afterwards_each_is_told_that_much_less() -> None:
    failing, call, error, after_s = attempted(Deadline(stages=Stages(inference_ms=45, postprocessing_ms=20)))
    left_s = [0.58 - (attempt.started_s - call.arrived_s) for attempt in call.trail.attempts]
    assert failing.limits_s == pytest.approx([left - MARGIN_S for left in left_s], abs=1e-9)
    assert len(left_s) == 3
    assert error.reason is Reason.DEADLINE
    assert "inference has 580 ms of the deadline of 600 ms" in error.message
    assert after_s == pytest.approx(0.58, abs=TICK_S)
    assert call.deadline_s == call.arrived_s + 0.6, "the call's own deadline is what it was"
    (note,) = [note for note in call.trail.notes or () if note.decider == "stage"]
    assert (note.word, note.saw["stage"]) == ("cut", "inference")


# --- (c) the wait for a slot counts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("entrance", ["http", "grpc"])
def test_a_wait_of_400_ms_and_work_of_300_are_504_at_600(entrance: str) -> None:
    report = played([call(0, rows=4, timeout_s=2.0), call(1, rows=3, after_s=0.001)], entrance=entrance)
    assert one_ending(report, 0).status == "ok"
    ends_at(report, 1, 0.6)
    ((_, limit_s),) = report.limits[report.scenario.calls[1].question]
    assert limit_s == pytest.approx(0.2, abs=0.005)
    assert report.calls[1].trail.attempts[0].outcome is Outcome.EXPIRED


# --- (d) the same header on every path -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["", "1"])
@pytest.mark.parametrize("route", ["infer", "generate", "generate_stream"])
def test_the_header_holds_on_every_path_of_http(route: str, version: str) -> None:
    slow = StreamOrder(first_ms=1000)
    plan = call(0, rows=8) if route == "infer" else stream(0, slow, timeout_s=0.6, route=route)
    report = played([replace(plan, version=version)])
    ends_at(report, 0, 0.6)
    assert report.sends, "it was out when its time was up"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("version", ["", "1"])
def test_it_holds_for_a_single_call_over_grpc_as_either_header(seed: int, version: str) -> None:
    report = played([call(0, rows=8, version=version)], entrance="grpc", seed=seed)
    ending = one_ending(report, 0)
    assert ending.status in (DEADLINE, "expired"), "expired: the client itself noticed it first"
    assert ending.at_s - report.calls[0].arrived_s <= 0.6 + 0.05
    assert report.calls[0].trail.attempts[0].outcome is Outcome.EXPIRED
    assert report.out_until_s[report.scenario.calls[0].question] - report.calls[0].arrived_s <= 0.6 + TICK_S


@pytest.mark.parametrize("of_each_call", [True, False])
def test_it_holds_for_a_stream_over_grpc_as_the_calls_header_and_as_the_streams_own(of_each_call: bool) -> None:
    plan = call(0, rows=8, timeout_s=None, route="stream", session=0, position=1, driven=True)
    limits = {"call_timeout_s": 0.6} if of_each_call else {"timeout_s": 0.6, "true_status": True}
    session = SessionPlan(0, LOADED_S, ((0.0, 0),), **limits)  # type: ignore[arg-type]
    report = played([plan], entrance="grpc", sessions=[session])
    trail = report.calls[0].trail
    assert trail.reason is Reason.DEADLINE
    assert trail.attempts[0].outcome is Outcome.EXPIRED
    assert trail.attempts[0].ended_s - report.calls[0].arrived_s == pytest.approx(0.6, abs=0.005)


def test_the_header_only_shortens_what_the_policy_allows_and_without_it_the_default_holds() -> None:
    deadline = Deadline(default_ms=300, max_ms=500)
    plans = [call(0, rows=8, timeout_s=None), call(1, rows=8, timeout_s=0.2), call(2, rows=8, timeout_s=20.0)]
    report = played(plans, deadline=deadline, slots=8)
    for number, at_s in enumerate((0.3, 0.2, 0.5)):
        ends_at(report, number, at_s)


# --- (e) forms of the header -----------------------------------------------------------------------------------------


class Deep:
    """What stands below the deadline layer: it keeps the calls that came so far."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    async def send(self, call: Call) -> Reply:
        self.calls.append(call)
        return Reply(ANSWER)


def rules() -> CurrentRoutes:
    """Of a model with a second by default and thirty at most."""
    route = ModelRoute("mine", "gpu", Deep(), 1.0, 30.0, BodyLimits(1 << 20, 1 << 20), StreamLimits(1.0, 1.0))
    return CurrentRoutes(RouteTable("r", {"mine": route}))


@pytest.mark.parametrize(
    ("value", "status", "budget_s"),
    [
        (b"1n", "4", None),
        (b"0m", "4", None),
        (b"99999999H", "0", 30.0),
        (b"600m", "0", 0.6),
        (b"5x", "13", None),
        (b"", "13", None),
        (None, "0", 1.0),
    ],
)
async def test_forms_of_grpc_timeout(value: bytes | None, status: str, budget_s: float | None) -> None:
    """`5x` is INTERNAL, as gRPC's own server has it; what is no time, and what has passed, never gets further."""
    deep = Deep()
    clock = ManualClock()
    bench = Bench(DeadlineLayer(deep, clock, HandWheel(clock), rules()), clock=clock)
    client = bench.connect()
    client.greet()
    more = () if value is None else ((b"grpc-timeout", value),)
    client.open(1, head_block(INFER, *more))
    bench.advance(0.001)  # some time always passes
    client.say(1, prefixed(infer_message("mine")), end=True)
    await turns()
    (said,) = [got.fields for got in client.frames(HEADERS) if got.fields and "grpc-status" in got.fields]
    assert said["grpc-status"] == status
    assert [call.deadline_s - call.arrived_s for call in deep.calls] == pytest.approx(
        [] if budget_s is None else [budget_s]
    )
    await bench.nothing_is_left()


@pytest.mark.parametrize(
    ("value", "status", "budget_s"),
    [
        ("0", 400, None),
        ("-5", 400, None),
        ("1e3", 400, None),
        ("soon", 400, None),
        ("99999999999999999999", 400, None),
        ("86400000", 200, 30.0),
        ("600", 200, 0.6),
        (None, 200, 1.0),
    ],
)
async def test_forms_of_the_header_over_http(value: str | None, status: int, budget_s: float | None) -> None:
    deep, clock = Deep(), ManualClock()
    edge = Edge(DeadlineLayer(deep, clock, HandWheel(clock), rules()), clock=clock)
    client = edge.connect()
    headers: dict[str, str] = {} if value is None else {"X_Request_Timeout_Ms": value}
    client.feed(post("/v2/models/mine/infer", None, **headers))
    await turns()
    assert client.statuses == [status]
    assert [call.deadline_s - call.arrived_s for call in deep.calls] == pytest.approx(
        [] if budget_s is None else [budget_s]
    )


# --- (f) caller and gateway time out together ------------------------------------------------------------------------


@pytest.mark.parametrize("entrance", ["http", "grpc"])
def test_whoever_notices_first_it_is_a_time_out_of_that_replica(entrance: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller leaves when its own clock says that time is up: some milliseconds before the gateway's, or after. Over
    gRPC it resets its call, and not a connection on which others are.
    """
    leave = GrpcCallers._leave
    monkeypatch.setattr(GrpcCallers, "_leave", lambda self, number, stream, how: leave(self, number, stream, "reset"))
    chance = random.Random(19)
    outcomes = []
    for world in range(25):  # of few calls: after many time-outs calls are refused that can't be answered in time
        plans = [
            call(number, rows=8, after_s=number * 0.1, leaves_after_s=0.6 + chance.uniform(-0.005, 0.001))
            for number in range(8)
        ]
        report = played(plans, entrance=entrance, slots=40, seed=world)
        outcomes += [report.calls[plan.number].trail.attempts[0].outcome for plan in plans]
    assert outcomes.count(Outcome.EXPIRED) >= 0.95 * 200, Counter(outcomes)


# --- (g) streams ------------------------------------------------------------------------------------------------------


def test_a_stream_of_events_each_100_ms_ends_with_an_error_event_at_its_2_s() -> None:
    report = played([stream(0, StreamOrder(responses=100, first_ms=50, pause_ms=100), timeout_s=2.0)])
    ending = one_ending(report, 0)
    assert ending.status == "error"
    assert len(ending.parts) == 21
    assert [bool(part.error) for part in ending.parts] == [False] * (len(ending.parts) - 1) + [True]
    assert "the deadline of 2000 ms passed during the stream" in ending.parts[-1].error
    attempt = report.calls[0].trail.attempts[0]
    assert attempt.ended_s - report.calls[0].arrived_s == pytest.approx(2.0, abs=0.005)


def test_total_and_idle_limits_are_two_things() -> None:
    order = StreamOrder(responses=100, first_ms=50, pause_ms=100)
    quick = played([stream(0, order, timeout_s=None)], deadline=Deadline(idle_s=0.05))
    assert "no further response came within 0.05 s" in one_ending(quick, 0).parts[-1].error
    whole = played([stream(0, order, timeout_s=None)], deadline=Deadline(total_s=1.0))
    assert "the deadline of 1000 ms passed" in one_ending(whole, 0).parts[-1].error
    neither = played(
        [stream(0, StreamOrder(responses=30, pause_ms=100), timeout_s=None)], deadline=Deadline(idle_s=0.2)
    )
    assert one_ending(neither, 0).status == "ok", "three seconds, with a default deadline of one"


# --- (h) clocks that are wrong ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("off_s", [-3600.0, 3600.0])
def test_an_hour_between_the_clocks_changes_nothing(off_s: float) -> None:
    """Deadlines are spans on a monotonic clock: what time it is, there or here, is only for records."""

    def shifted(world: World) -> House:
        true = world.clock.wall_s
        world.clock.wall_s = lambda: true() + (off_s if world.at_s() > LOADED_S + 0.3 else 0.0)  # type: ignore[method-assign]
        return build(world)

    plans = [call(0, rows=4, timeout_s=2.0), call(1, rows=3, after_s=0.001)]
    usual, odd = played(plans), played(plans, house=shifted)
    assert [(one_ending(odd, number).status, took_s(odd, number)) for number in (0, 1)] == [
        (one_ending(usual, number).status, took_s(usual, number)) for number in (0, 1)
    ]


async def test_what_a_client_says_of_its_own_time_is_not_looked_at() -> None:
    deep, clock = Deep(), ManualClock()
    edge = Edge(DeadlineLayer(deep, clock, HandWheel(clock), rules()), clock=clock)
    client = edge.connect()
    client.feed(post("/v2/models/mine/infer", Date="Mon, 01 Jan 2001 00:00:00 GMT", X_Request_Timeout_Ms="600"))
    await turns()
    assert client.statuses == [200]
    assert deep.calls[0].deadline_s - deep.calls[0].arrived_s == pytest.approx(0.6)
