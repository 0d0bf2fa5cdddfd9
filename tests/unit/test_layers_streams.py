"""Streams through the layers: what is held until the last response, and which limit ends which stream."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from gateway.core.call import ANONYMOUS, Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.core.permit import Permit, Special
from gateway.core.reply import Reply, Response, StreamReply
from gateway.core.session import Session
from gateway.decide.admission import Admission
from gateway.layers.admit import AdmitLayer
from gateway.layers.deadline import DeadlineLayer, StreamLimits
from gateway.layers.desk import AdmissionDesk
from gateway.layers.record import RecordLayer
from gateway.layers.route import RouteTable
from gateway.layers.track import TrackLayer
from gateway.runtime.clock import Clock
from gateway.runtime.wheel import TimerWheel
from tests.simulation.loop import SimulationLoop, simulate
from tests.support.calls import permitted
from tests.support.clock import ManualClock
from tests.support.fleet import HandFleet, replica

INFINITY = float("inf")


class Feed:
    """An innermost service whose stream the test feeds. `None` ends it, an error breaks it, a number is a pause in
    seconds.
    """

    def __init__(self, *pieces: bytes | GatewayError | float | None, finished: bool = False) -> None:
        self._pieces = list(pieces)
        self._finished = finished

    async def next(self) -> Response | None:
        while True:
            piece = self._pieces.pop(0)
            if isinstance(piece, GatewayError):
                raise piece
            if isinstance(piece, float):
                await asyncio.sleep(piece)
                continue
            return None if piece is None else Response(piece)

    async def send(self, call: Call) -> Reply:
        if call.receive is not None:
            await call.receive()
        return StreamReply(await self.next(), self.next, ordered=False, finished=self._finished)


class Sink:
    def __init__(self) -> None:
        self.ended: list[tuple[Call, Outcome, GatewayError | None, bytes | None]] = []
        self.attempts: list[tuple[Outcome | None, bool]] = []

    def call_ended(
        self, call: Call, outcome: Outcome, error: GatewayError | None, answer: bytes | None, now_s: float
    ) -> None:
        self.ended.append((call, outcome, error, answer))
        self.attempts += [(each.outcome, each.ended_s > 0) for each in call.trail.attempts]


class Rules:
    def __init__(self, limits: StreamLimits) -> None:
        self._limits = limits
        self.table = RouteTable("rev", {})  # a stream has limits of its own

    def stream_limits(self, model: str) -> StreamLimits:
        return self._limits

    def never_routed(self, call: Call) -> None:
        pass


def make_call(timeout_s: float | None = None, *, arrived_s: float = 1000.0, session_s: float = INFINITY) -> Call:
    call = Call(
        request_id="r",
        model="fraud",
        version="",
        arrived_s=arrived_s,
        arrived_wall_s=0.0,
        message=b"q",
        timeout_s=timeout_s,
        session=Session(deadline_s=session_s),
    )
    call.identity = ANONYMOUS
    call.trail.version_routed = "2"
    call.permit = Permit("gpu/a", 1)
    return call


async def read_all(reply: Reply) -> list[bytes]:
    assert isinstance(reply, StreamReply)
    found = []
    while (response := await reply.next()) is not None:
        found.append(response.message)
    return found


# --- what is held ---


def admitted(inner: Feed) -> AdmitLayer:
    fleet = HandFleet(replica("a", {("fraud", "2"): 1}))
    return AdmitLayer(
        TrackLayer(inner, ManualClock()),
        model="fraud",
        pool="gpu",
        fleet=fleet,
        queue_max=None,
        clock=ManualClock(),
        wheel=TimerWheel(ManualClock()),
        chance=random.Random(4),
    )


def in_flight(layer: AdmitLayer) -> int:
    return int(layer.statistics(0.0)["2"]["in_flight"])


async def test_a_slot_is_held_until_the_stream_is_closed() -> None:
    layer = admitted(Feed(b"1", b"2", None))
    call = make_call()
    reply = await layer.send(call)
    assert in_flight(layer) == 1
    assert call.trail.attempts[0].replica == "gpu/a"
    assert call.trail.attempts[0].outcome is None
    await read_all(reply)
    await reply.aclose(Outcome.OK)
    assert in_flight(layer) == 0
    assert permitted(call) == ""
    assert call.trail.attempts[0].outcome is Outcome.OK


async def test_a_slot_comes_back_at_once_where_the_replica_is_done() -> None:
    layer = admitted(Feed(b"1", None, finished=True))
    reply = await layer.send(make_call())
    assert in_flight(layer) == 0
    await reply.aclose(Outcome.OK)


async def test_a_stream_that_the_caller_leaves_gives_its_slot_back_and_its_attempt_is_closed() -> None:
    layer = admitted(Feed(b"1", b"2", None))
    call = make_call()
    reply = await layer.send(call)
    await reply.aclose(Outcome.ABANDONED)
    assert in_flight(layer) == 0
    assert call.trail.attempts[0].outcome is Outcome.ABANDONED


class HeardDesk(AdmissionDesk):
    """Remembers what it was told."""

    def __init__(self) -> None:
        super().__init__(Admission(random.Random(1)), ManualClock().now_s, TimerWheel(ManualClock()))
        self.heard: list[str] = []

    def answered(self, permit: Permit) -> None:
        self.heard.append("answered")

    def give_back(self, permit: Permit) -> None:
        self.heard.append("given back")


@pytest.mark.parametrize(
    ("special", "finished", "heard"),
    [
        (Special(probe="probe"), False, ["answered"]),
        (Special(probe="probe"), True, ["given back"]),
        (Special(opens=True), False, ["answered"]),
        (None, False, ["answered"]),
    ],
)
async def test_the_first_response_of_a_stream_that_lasts_is_told(
    special: Special | None, finished: bool, heard: list[str]
) -> None:
    call, desk = make_call(), HeardDesk()
    call.permit = permit = Permit("gpu/a", 1, special)
    permit.desk = desk
    reply = await TrackLayer(Feed(b"1", None, finished=finished), ManualClock()).send(call)
    assert desk.heard == heard
    await reply.aclose(Outcome.OK)
    assert desk.heard == [*heard, "given back"][: 1 + (heard == ["answered"])]


# --- the record ---


@pytest.mark.parametrize("wrong", [None, GatewayError(Reason.UPSTREAM_LOST, "gone")])
async def test_a_stream_leaves_one_record_that_tells_its_end(wrong: GatewayError | None) -> None:
    sink = Sink()
    subject = RecordLayer(admitted(Feed(b"1", b"2", wrong)), ManualClock(), (sink,))
    reply = await subject.send(make_call())
    assert sink.ended == []
    if wrong is None:
        assert await read_all(reply) == [b"1", b"2"]
        await reply.aclose(Outcome.OK)
    else:
        with pytest.raises(GatewayError):
            await read_all(reply)
        await reply.aclose(Outcome.GATEWAY_FAULT)
    ((call, outcome, error, answer),) = sink.ended
    assert call.trail.responses == 2
    assert answer == b"1"
    assert sink.attempts[0][1], "the record is made when everything below it has been closed"
    if wrong is None:
        assert (outcome, error) == (Outcome.OK, None)
    else:
        assert (outcome, error) == (Outcome.TRANSPORT, wrong)
        assert call.trail.reason is Reason.UPSTREAM_LOST


async def test_an_error_inside_a_stream_makes_the_call_a_failed_one() -> None:
    broken = GatewayError(Reason.UPSTREAM_BROKEN, "cuda fault 700")

    class Reports(Feed):
        async def next(self) -> Response | None:
            response = await super().next()
            return Response(b"", broken) if response is not None and response.message == b"bad" else response

    sink = Sink()
    reply = await RecordLayer(Reports(b"1", b"bad", b"3", None), ManualClock(), (sink,)).send(make_call())
    assert len(await read_all(reply)) == 3
    await reply.aclose(Outcome.OK)
    ((call, outcome, error, _),) = sink.ended
    assert (outcome, error, call.trail.responses) == (Outcome.BROKEN, broken, 3)


async def test_a_caller_who_leaves_in_the_middle_is_recorded_as_gone_whatever_came_before() -> None:
    sink = Sink()
    reply = await RecordLayer(Feed(b"1", None), ManualClock(), (sink,)).send(make_call())
    await reply.aclose(Outcome.ABANDONED)
    assert sink.ended[0][1:3] == (Outcome.ABANDONED, None)


# --- time ---


class LoopClock:
    def __init__(self, loop: SimulationLoop) -> None:
        self._loop = loop

    def now_s(self) -> float:
        return self._loop.time()

    def wall_s(self) -> float:
        return self._loop.time()


def in_virtual_time(test: Callable[[Clock, TimerWheel], Awaitable[None]]) -> None:
    async def run(loop: SimulationLoop) -> None:
        clock = LoopClock(loop)
        wheel = TimerWheel(clock)
        try:
            await test(clock, wheel)
        finally:
            wheel.close()

    simulate(run, seed=1, lateness_s=0.0, time_limit_s=600.0)


LIMITS = StreamLimits(first_response_s=2.0, idle_s=1.0, total_s=INFINITY)


@pytest.mark.parametrize(
    ("pieces", "timeout_s", "session_s", "after_s", "text"),
    [
        ((3.0, b"1", None), None, INFINITY, 2.0, "no response came within 2 s"),
        ((0.5, b"1", 1.5, b"2", None), None, INFINITY, 1.5, "no further response came within 1 s"),
        ((0.5, b"1", 0.8, b"2", 0.8, b"3", None), 1.6, INFINITY, 1.6, "the deadline of 1600 ms passed during"),
        ((3.0, b"1", None), 1.0, INFINITY, 1.0, "the deadline of 1000 ms passed"),
        ((0.5, b"1", 0.8, b"2", None), None, 1.2, 1.2, "the deadline of 1200 ms passed during"),
    ],
)
def test_each_limit_ends_the_stream_with_its_own_words(
    pieces: tuple[bytes | float | None, ...], timeout_s: float | None, session_s: float, after_s: float, text: str
) -> None:
    async def test(clock: Clock, wheel: TimerWheel) -> None:
        start_s = clock.now_s()
        call = make_call(timeout_s, arrived_s=start_s, session_s=start_s + session_s)
        with pytest.raises(GatewayError, match=text) as raised:
            await read_all(await DeadlineLayer(Feed(*pieces), clock, wheel, Rules(LIMITS)).send(call))
        assert raised.value.reason is Reason.DEADLINE
        assert clock.now_s() - start_s == pytest.approx(after_s, abs=0.05)

    in_virtual_time(test)


def test_a_good_stream_may_last_far_longer_than_its_first_response() -> None:
    async def test(clock: Clock, wheel: TimerWheel) -> None:
        pieces = [piece for number in range(60) for piece in (0.9, bytes([number]))]
        call = make_call(arrived_s=clock.now_s())
        reply = await DeadlineLayer(Feed(*pieces, None), clock, wheel, Rules(LIMITS)).send(call)
        assert len(await read_all(reply)) == 60
        await reply.aclose(Outcome.OK)

    in_virtual_time(test)


def test_the_policy_s_limit_on_the_whole_cannot_be_raised() -> None:
    async def test(clock: Clock, wheel: TimerWheel) -> None:
        limits = StreamLimits(first_response_s=2.0, idle_s=1.0, total_s=3.0)
        pieces = [piece for number in range(60) for piece in (0.9, bytes([number]))]
        call = make_call(100.0, arrived_s=clock.now_s())
        reply = await DeadlineLayer(Feed(*pieces, None), clock, wheel, Rules(limits)).send(call)
        with pytest.raises(GatewayError, match="3000 ms"):
            await read_all(reply)
        await reply.aclose(Outcome.GATEWAY_FAULT)

    in_virtual_time(test)


# --- what an attempt's end is called ---


class Silent:
    """A replica that says nothing, after the first response if there is one."""

    def __init__(self, first: bytes | None = None) -> None:
        self._first = first

    async def send(self, call: Call) -> Reply:
        if self._first is None:
            await asyncio.get_running_loop().create_future()
        return StreamReply(Response(self._first or b""), self.next, ordered=False)

    async def next(self) -> Response | None:
        await asyncio.get_running_loop().create_future()
        return None


def test_an_attempt_that_gives_no_first_response_in_time_has_expired() -> None:
    async def test(clock: Clock, wheel: TimerWheel) -> None:
        call = make_call(arrived_s=clock.now_s())
        with pytest.raises(GatewayError, match="no response came within 2 s"):
            await DeadlineLayer(TrackLayer(Silent(), clock), clock, wheel, Rules(LIMITS)).send(call)
        assert call.trail.attempts[0].outcome is Outcome.EXPIRED

    in_virtual_time(test)


async def test_an_attempt_that_the_gateway_s_own_end_cut_short_was_given_up() -> None:
    call = make_call()
    reply = await TrackLayer(Silent(b"1"), ManualClock()).send(call)
    call.cut = GatewayError(Reason.DRAINING, "shutting down")
    await reply.aclose(Outcome.GATEWAY_FAULT)
    assert call.trail.attempts[0].outcome is Outcome.ABANDONED
