"""record, gate, deadline, route and track: what each adds to a call, and that nothing is lost on the way."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from gateway.core.call import ANONYMOUS, Call, Identity
from gateway.core.credentials import Credentials
from gateway.core.errors import GatewayError, Reason
from gateway.core.faces import BodyLimits
from gateway.core.outcome import Outcome
from gateway.core.permit import Permit
from gateway.core.reply import Reply
from gateway.core.snapshot import ModelState, ModelView
from gateway.decide.split import Split
from gateway.layers.deadline import DeadlineLayer, StreamLimits
from gateway.layers.gate import GateLayer
from gateway.layers.record import RecordLayer
from gateway.layers.route import CurrentRoutes, ModelRoute, RouteLayer, RouteTable
from gateway.layers.track import TrackLayer
from gateway.runtime.clock import SystemClock
from gateway.runtime.wheel import TimerWheel
from tests.support.calls import make_call
from tests.support.clock import ManualClock
from tests.support.fleet import HandFleet, replica
from tests.support.service import ScriptedService
from tests.unit.edge_driving import HandWheel, turns


class Sink:
    """Counts what it is told."""

    def __init__(self) -> None:
        self.ended: list[tuple[Call, Outcome, GatewayError | None, bytes | None]] = []

    def call_ended(
        self, call: Call, outcome: Outcome, error: GatewayError | None, answer: bytes | None, now_s: float
    ) -> None:
        self.ended.append((call, outcome, error, answer))


class Keys:
    def __init__(self, **identities: Identity) -> None:
        self._identities = identities

    def identify(self, credentials: Credentials) -> Identity:
        key = credentials.secret
        if key is None or key not in self._identities:
            raise GatewayError(Reason.UNAUTHENTICATED, "no such key")
        return self._identities[key]


class Nobody:
    def identify(self, credentials: Credentials) -> Identity:
        return ANONYMOUS


class Rules:
    def __init__(
        self, default_s: float = 1.0, max_s: float = 10.0, body_bytes_max: int | None = 100, default_class: int = 1
    ) -> None:
        self.table = RouteTable("rev", {})
        self.table.deadlines_s = lambda model: (default_s, max_s)
        self.table.gate = lambda model: None if body_bytes_max is None else (body_bytes_max, default_class)

    def stream_limits(self, model: str) -> StreamLimits:
        raise AssertionError("no call here is a stream")

    def never_routed(self, call: Call) -> None:
        pass


# --- record ---


async def test_an_answer_is_recorded_when_it_is_closed_and_not_before() -> None:
    sink = Sink()
    subject = RecordLayer(ScriptedService(lambda call: Reply(b"yes")), ManualClock(), (sink,))
    reply = await subject.send(make_call())
    assert sink.ended == []
    await reply.aclose(Outcome.OK)
    assert [(outcome, error, answer) for _, outcome, error, answer in sink.ended] == [(Outcome.OK, None, b"yes")]


async def test_an_answer_that_could_not_be_delivered_in_time_is_recorded_as_expired() -> None:
    sink = Sink()
    reply = await RecordLayer(ScriptedService(lambda call: Reply(b"yes")), ManualClock(), (sink,)).send(make_call())
    await reply.aclose(Outcome.EXPIRED)
    call, outcome, error, _ = sink.ended[0]
    assert outcome is Outcome.EXPIRED
    assert error is not None
    assert call.trail.reason is Reason.DEADLINE


@pytest.mark.parametrize("reason", list(Reason))
async def test_each_refusal_leaves_one_record_with_its_reason(reason: Reason) -> None:
    sink = Sink()

    def refuse(call: Call) -> Reply:
        raise GatewayError(reason, "no")

    with pytest.raises(GatewayError):
        await RecordLayer(ScriptedService(refuse), ManualClock(), (sink,)).send(make_call())
    assert len(sink.ended) == 1
    assert sink.ended[0][0].trail.reason is reason
    assert sink.ended[0][1] is not Outcome.OK


async def test_a_caller_who_leaves_and_a_cancellation_from_inside_are_told_apart() -> None:
    sink, inner = Sink(), ScriptedService()
    subject = RecordLayer(inner, ManualClock(), (sink,))
    for abandoned, outcome in ((True, Outcome.ABANDONED), (False, Outcome.GATEWAY_FAULT)):
        call = make_call()
        task = asyncio.ensure_future(subject.send(call))
        await inner.arrivals.get()
        call.abandoned = abandoned
        task.cancel()
        await asyncio.wait((task,))
        assert sink.ended[-1][1] is outcome


@pytest.mark.parametrize("error", [RuntimeError("x"), MemoryError(), GeneratorExit()])
async def test_whatever_is_raised_there_is_a_record(error: BaseException) -> None:
    sink = Sink()

    def explode(call: Call) -> Reply:
        raise error

    with pytest.raises(type(error)):
        await RecordLayer(ScriptedService(explode), ManualClock(), (sink,)).send(make_call())
    assert [outcome for _, outcome, _, _ in sink.ended] == [Outcome.GATEWAY_FAULT]


# --- gate ---


async def test_the_gate_asks_who_before_it_says_what_exists() -> None:
    subject = GateLayer(ScriptedService(), Keys(), Rules(body_bytes_max=None))
    call = make_call("no-such-model")
    with pytest.raises(GatewayError) as refused:
        await subject.send(call)
    assert refused.value.reason is Reason.UNAUTHENTICATED
    assert call.trail.policy_revision == "rev", "what is refused here was refused under these policies"


async def test_a_key_opens_only_its_models() -> None:
    inner = ScriptedService(lambda call: Reply(b""))
    subject = GateLayer(inner, Keys(k=Identity("shop", frozenset({"fraud"}))), Rules())
    await subject.send(make_call("fraud", api_key="k"))
    assert inner.seen[0].identity.tenant == "shop"
    with pytest.raises(GatewayError) as refused:
        await subject.send(make_call("ranker", api_key="k"))
    assert refused.value.reason is Reason.FORBIDDEN


@pytest.mark.parametrize(
    ("declared", "limit", "reason"),
    [(101, 100, Reason.TOO_LARGE), (1, None, Reason.UNKNOWN_MODEL)],
)
async def test_the_gate_refuses_before_the_body(declared: int, limit: int | None, reason: Reason) -> None:
    async def receive() -> None:
        raise AssertionError("the body must not be asked for")

    subject = GateLayer(ScriptedService(), Nobody(), Rules(body_bytes_max=limit))
    with pytest.raises(GatewayError) as refused:
        await subject.send(make_call(message=None, receive=receive, body_bytes=declared))
    assert refused.value.reason is reason


async def test_a_hostile_model_name_is_shown_harmlessly() -> None:
    subject = GateLayer(ScriptedService(), Nobody(), Rules(body_bytes_max=None))
    with pytest.raises(GatewayError) as refused:
        await subject.send(make_call("a\r\nb\x00" + "z" * 10_000))
    assert "\n" not in refused.value.message
    assert "\x00" not in refused.value.message
    assert len(refused.value.message) < 250


# --- deadline ---


@pytest.mark.parametrize(
    ("asked_s", "expected_s"),
    [(None, 1.0), (0.5, 0.5), (5.0, 5.0), (50.0, 10.0)],
    ids=["default", "less", "more", "cut"],
)
async def test_the_deadline_is_the_callers_wish_within_the_policy(asked_s: float | None, expected_s: float) -> None:
    clock = ManualClock()
    wheel = TimerWheel(clock)
    subject = DeadlineLayer(ScriptedService(lambda call: Reply(b"")), clock, wheel, Rules())
    call = make_call(timeout_s=asked_s)
    await subject.send(call)
    assert call.deadline_s == pytest.approx(1000.0 + expected_s)
    assert len(wheel) == 0, "no timer is left behind"


async def test_a_deadline_that_passed_before_anything_ran_is_refused_without_a_send() -> None:
    clock, inner = ManualClock(), ScriptedService()
    clock.advance(2)
    with pytest.raises(GatewayError) as refused:
        await DeadlineLayer(inner, clock, TimerWheel(clock), Rules()).send(make_call())
    assert refused.value.reason is Reason.DEADLINE
    assert inner.seen == []


async def test_what_is_below_is_cancelled_when_the_deadline_passes() -> None:
    clock, inner = ManualClock(), ScriptedService()
    wheel = HandWheel(clock)
    call = make_call(arrived_s=clock.now_s(), timeout_s=0.03)
    task = asyncio.ensure_future(DeadlineLayer(inner, clock, wheel, Rules()).send(call))
    arrival = await inner.arrivals.get()
    clock.advance(0.02)
    wheel.turn()
    await turns()
    assert not task.done()
    while clock.now_s() < call.deadline_s + 0.02:
        clock.advance(0.005)
        wheel.turn()
    with pytest.raises(GatewayError, match="30 ms passed before the call was sent") as refused:
        await asyncio.wait_for(task, 20)
    assert refused.value.reason is Reason.DEADLINE
    assert arrival.cancelled
    assert len(wheel) == 0


async def test_the_upload_counts_against_the_deadline() -> None:
    clock, asked = ManualClock(), asyncio.Event()
    wheel = HandWheel(clock)

    async def never() -> None:
        asked.set()
        await asyncio.Event().wait()

    call = make_call(arrived_s=clock.now_s(), timeout_s=0.02, message=None, receive=never)
    task = asyncio.ensure_future(DeadlineLayer(ScriptedService(), clock, wheel, Rules()).send(call))
    await asked.wait()
    clock.advance(0.1)
    wheel.turn()
    with pytest.raises(GatewayError, match="before the request body had arrived"):
        await asyncio.wait_for(task, 20)


async def test_a_cancellation_from_outside_is_not_mistaken_for_the_deadline() -> None:
    clock, inner = SystemClock(), ScriptedService()
    subject = DeadlineLayer(inner, clock, TimerWheel(clock), Rules())
    task = asyncio.ensure_future(subject.send(make_call(arrived_s=clock.now_s())))
    await inner.arrivals.get()
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()


async def test_an_answer_that_comes_in_spite_of_the_deadline_leaves_no_cancellation_behind() -> None:
    clock, asked = ManualClock(), asyncio.Event()
    wheel = HandWheel(clock)

    class Stubborn:
        async def send(self, call: Call) -> Reply:
            try:
                asked.set()
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return Reply(b"late")
            raise AssertionError

    call = make_call(arrived_s=clock.now_s(), timeout_s=0.02)
    task = asyncio.ensure_future(DeadlineLayer(Stubborn(), clock, wheel, Rules()).send(call))
    await asked.wait()
    clock.advance(0.1)
    wheel.turn()
    assert (await asyncio.wait_for(task, 20)).message == b"late"
    assert task.cancelling() == 0
    assert len(wheel) == 0


# --- route ---


def routes(inner: Any, **more: Any) -> CurrentRoutes:
    route = ModelRoute(
        model="fraud",
        pool="gpu",
        service=inner,
        default_deadline_s=1,
        max_deadline_s=10,
        limits=BodyLimits(100, 100),
        stream=StreamLimits(first_response_s=1.0, idle_s=1.0),
        **more,
    )
    return CurrentRoutes(RouteTable("rev", {"fraud": route}))


def router(inner: Any, fleet: HandFleet, **more: Any) -> RouteLayer:
    return RouteLayer(routes(inner, **more), fleet, ManualClock(), random.Random(1))


FLEET = HandFleet(replica("a", {("fraud", "1"): 1, ("fraud", "9"): 1, ("fraud", "10"): 1}))


async def test_without_a_version_the_newest_ready_one_answers() -> None:
    inner = ScriptedService(lambda call: Reply(b""))
    await router(inner, FLEET).send(make_call())
    trail = inner.seen[0].trail
    assert (trail.version_routed, trail.routed_by, trail.pool, trail.policy_revision) == ("10", "newest", "gpu", "rev")


async def test_the_split_decides_where_there_is_one() -> None:
    inner = ScriptedService(lambda call: Reply(b""))
    subject = router(inner, FLEET, split=Split({"1": 1, "9": 0}))
    for _ in range(200):
        await subject.send(make_call())
    assert {call.trail.version_routed for call in inner.seen} == {"1"}


async def test_unknown_version_and_no_replica_are_different_answers() -> None:
    inner = ScriptedService(lambda call: Reply(b""))
    with pytest.raises(GatewayError) as unknown:
        await router(inner, FLEET).send(make_call(version="7"))
    with pytest.raises(GatewayError) as listed:
        await router(inner, FLEET, allowed=frozenset({"1"})).send(make_call(version="9"))
    with pytest.raises(GatewayError) as nobody:
        await router(inner, HandFleet()).send(make_call())
    assert [e.value.reason for e in (unknown, listed, nobody)] == [
        Reason.UNKNOWN_VERSION,
        Reason.UNKNOWN_VERSION,
        Reason.NO_REPLICA,
    ]
    assert inner.seen == []


async def test_a_named_version_is_never_replaced_by_another() -> None:
    inner = ScriptedService(lambda call: Reply(b""))
    await router(inner, FLEET, split=Split({"10": 1})).send(make_call(version="1"))
    assert inner.seen[0].trail.version_routed == "1"
    assert inner.seen[0].trail.routed_by == "asked"


async def test_a_choice_is_kept_no_longer_than_the_policies_and_the_fleet() -> None:
    inner = ScriptedService(lambda call: Reply(b""))
    fleet, current = HandFleet(replica("a", {("fraud", "1"): 1})), routes(inner)
    subject = RouteLayer(current, fleet, ManualClock(), random.Random(1))

    async def chosen(version: str = "") -> tuple[str, str, str]:
        call = make_call(version=version)
        await subject.send(call)
        return call.trail.version_routed, call.trail.pool, call.trail.policy_revision

    assert [await chosen(), await chosen(), await chosen("1")] == [("1", "gpu", "rev")] * 3
    fleet.publish(replica("a", {("fraud", "1"): 1, ("fraud", "2"): 1}))
    assert await chosen() == ("2", "gpu", "rev")
    old = current.table.get("fraud")
    assert old is not None
    current.table = RouteTable("next", {"fraud": replace(old, allowed=frozenset({"1"}))})
    assert await chosen() == ("1", "gpu", "next")
    with pytest.raises(GatewayError, match="version 2 is not found"):
        await chosen("2")
    current.table = RouteTable("last", {})
    with pytest.raises(GatewayError) as gone:
        await chosen("1")
    assert gone.value.reason is Reason.UNKNOWN_MODEL


async def test_gate_and_deadline_ask_the_policies_in_force() -> None:
    clock = ManualClock()
    inner = ScriptedService(lambda call: Reply(b""))
    current = routes(inner)
    old = current.table.get("fraud")
    assert old is not None
    subject = GateLayer(DeadlineLayer(inner, clock, HandWheel(clock), current), Nobody(), current)
    before, after = (make_call(arrived_s=clock.now_s(), body_bytes=100) for _ in range(2))
    await subject.send(before)
    current.table = RouteTable(
        "next", {"fraud": replace(old, default_deadline_s=2, max_deadline_s=2, limits=BodyLimits(99, 99))}
    )
    with pytest.raises(GatewayError, match="takes at most 99"):
        await subject.send(make_call(arrived_s=clock.now_s(), body_bytes=100))
    after.body_bytes, after.timeout_s = 99, 5.0
    await subject.send(after)
    assert [call.deadline_s - clock.now_s() for call in (before, after)] == [1, 2]
    assert [call.trail.policy_revision for call in (before, after)] == ["rev", "next"]
    current.table = RouteTable("last", {})
    with pytest.raises(GatewayError) as gone:
        await subject.send(make_call(arrived_s=clock.now_s()))
    assert gone.value.reason is Reason.UNKNOWN_MODEL


async def test_classes_of_an_output_of_texts_are_refused() -> None:
    view = ModelView(name="fraud", version="1", state=ModelState.WARMED, slots=1, text_outputs=frozenset({"words"}))
    one = replace(replica("a", {}), models={("fraud", "1"): view})
    inner = ScriptedService(lambda call: Reply(b""))
    call = make_call("fraud")
    call.classified = ("scores", "words")
    with pytest.raises(GatewayError, match=r"'words'.*BYTES") as raised:
        await router(inner, HandFleet(one)).send(call)
    assert raised.value.reason is Reason.BAD_REQUEST
    call.classified = ("scores",)
    await router(inner, HandFleet(one)).send(call)
    assert len(inner.seen) == 1


# --- track ---


async def test_an_attempt_is_opened_and_closed_with_its_outcome() -> None:
    inner = ScriptedService(lambda call: Reply(b""))
    call = make_call()
    call.permit, call.trail.version_routed = Permit("gpu/a", 1), "2"
    await TrackLayer(inner, ManualClock()).send(call)
    (attempt,) = call.trail.attempts
    assert (attempt.replica, attempt.outcome, attempt.kind) == ("gpu/a", Outcome.OK, "primary")


@pytest.mark.parametrize(
    ("abandoned", "deadline_s", "outcome"),
    [(True, 2000.0, Outcome.ABANDONED), (False, 999.0, Outcome.EXPIRED), (False, 2000.0, Outcome.GATEWAY_FAULT)],
)
async def test_a_cut_attempt_says_why(abandoned: bool, deadline_s: float, outcome: Outcome) -> None:
    inner = ScriptedService()
    call = make_call(deadline_s=deadline_s)
    call.permit = Permit("gpu/a", 1)
    task = asyncio.ensure_future(TrackLayer(inner, ManualClock()).send(call))
    await inner.arrivals.get()
    call.abandoned = abandoned
    task.cancel()
    await asyncio.wait((task,))
    assert call.trail.attempts[0].outcome is outcome
    assert call.trail.attempts[0].ended_s > 0
