"""How calls end when something beside them fails: one record, nothing held, the right words."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest

from gateway.core.call import Attempt, Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.core.permit import Permit
from gateway.core.reply import Reply
from gateway.decide.split import newest
from gateway.layers.record import RecordLayer
from gateway.layers.track import TrackLayer
from gateway.runtime.clock import SystemClock
from gateway.runtime.supervisor import Supervisor
from gateway.runtime.wheel import Timer, TimerWheel
from tests.support.calls import make_call
from tests.support.clock import ManualClock
from tests.support.service import ScriptedService

Ended = tuple[Outcome, Reason | None]


class Sink:
    def __init__(self) -> None:
        self.ended: list[Ended] = []

    def call_ended(
        self, call: Call, outcome: Outcome, error: GatewayError | None, answer: bytes | None, now_s: float
    ) -> None:
        self.ended.append((outcome, None if error is None else error.reason))


class BrokenSink:
    def call_ended(
        self, call: Call, outcome: Outcome, error: GatewayError | None, answer: bytes | None, now_s: float
    ) -> None:
        raise ZeroDivisionError("a defect of this sink")


@pytest.mark.parametrize("kind", [asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit, ValueError])
async def test_every_closer_of_a_reply_runs_whatever_another_one_raises(kind: type[BaseException]) -> None:
    closed: list[str] = []

    def explode(outcome: Outcome) -> None:
        raise kind

    reply = Reply(b"")
    reply.on_close(lambda outcome: closed.append("first"))
    reply.on_close(explode)
    reply.on_close(lambda outcome: closed.append("last"))
    with pytest.raises(kind):
        await reply.aclose(Outcome.OK)
    assert closed == ["first", "last"]


async def test_a_closed_reply_is_freed_without_the_garbage_collector() -> None:
    class Message(bytes):
        freed = 0

        def __del__(self) -> None:
            Message.freed += 1

    subject = RecordLayer(ScriptedService(lambda call: Reply(Message(b"big"))), ManualClock(), (Sink(),))
    gc.collect()
    gc.disable()
    try:
        reply = await subject.send(make_call())
        await reply.aclose(Outcome.OK)
        del reply
        assert Message.freed == 1
    finally:
        gc.enable()


async def test_a_sink_with_a_defect_costs_neither_the_record_nor_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    sink = Sink()
    layer = RecordLayer(ScriptedService(lambda call: Reply(b"yes")), ManualClock(), (BrokenSink(), sink))
    with caplog.at_level(logging.ERROR):
        reply = await layer.send(make_call())
        await reply.aclose(Outcome.OK)
    assert sink.ended == [(Outcome.OK, None)]
    assert "BrokenSink" in caplog.text


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (Outcome.EXPIRED, Reason.DEADLINE),
        (Outcome.BROKEN, Reason.UPSTREAM_BROKEN),
        (Outcome.CALLER_FAULT, Reason.BAD_REQUEST),
        (Outcome.GATEWAY_FAULT, Reason.INTERNAL),
        (Outcome.ABANDONED, None),
    ],
)
async def test_an_answer_that_the_edge_could_not_give_is_recorded_with_its_reason(
    outcome: Outcome, reason: Reason | None
) -> None:
    sink, call = Sink(), make_call()
    reply = await RecordLayer(ScriptedService(lambda call: Reply(b"yes")), ManualClock(), (sink,)).send(call)
    await reply.aclose(outcome)
    assert sink.ended == [(outcome, reason)]
    assert call.trail.reason is reason


async def test_a_call_that_a_stopping_gateway_cuts_off_is_neither_abandoned_nor_a_fault() -> None:
    sink, inner, call = Sink(), ScriptedService(), make_call()
    call.permit = Permit("gpu/a", 1)
    subject = RecordLayer(TrackLayer(inner, ManualClock()), ManualClock(), (sink,))
    async with asyncio.timeout(10):
        task = asyncio.ensure_future(subject.send(call))
        await inner.arrivals.get()
        call.cut = GatewayError(Reason.DRAINING, "stopping")
        task.cancel()
        await asyncio.wait((task,))
    assert sink.ended == [(Outcome.OVERLOAD, Reason.DRAINING)]
    (attempt,) = call.trail.attempts
    assert isinstance(attempt, Attempt)
    assert attempt.outcome is Outcome.ABANDONED


async def test_a_timer_that_a_timer_of_the_same_tick_cancels_does_not_fire() -> None:
    clock = SystemClock()
    wheel = TimerWheel(clock, tick_s=0.01)
    at_s = clock.now_s() + 0.01
    fired: list[str] = []
    later: list[Timer] = []

    def first() -> None:
        fired.append("first")
        later[0].cancel()

    wheel.call_at(at_s, first)
    later.append(wheel.call_at(at_s, lambda: fired.append("cancelled")))
    done = asyncio.Event()
    wheel.call_at(at_s + 0.02, done.set)
    async with asyncio.timeout(10):
        await done.wait()
    assert fired == ["first"]


async def test_a_job_comes_back_although_an_earlier_stop_of_its_name_was_itself_cancelled() -> None:
    supervisor = Supervisor(restart_delay_s=0.001)
    started, again = asyncio.Event(), asyncio.Event()
    runs = 0

    async def waiting() -> None:
        started.set()
        await asyncio.Event().wait()

    async def failing() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise OSError("once")
        again.set()

    async with asyncio.timeout(10):
        supervisor.start("job", waiting)
        await started.wait()
        stopping = asyncio.ensure_future(supervisor.stop("job"))
        await asyncio.sleep(0)
        stopping.cancel()
        await asyncio.wait((stopping,))
        while supervisor.running("job"):
            await asyncio.sleep(0)
        supervisor.start("job", failing)
        await again.wait()
        await supervisor.stop_all()


def test_a_version_that_is_no_number_stops_nobody_elses_calls() -> None:
    assert newest(("v0.1", "9", "10"), None) == "10"
    assert newest(("v0.1",), None) == "v0.1"
