"""FH-14, a cancellation at every point at which a call can wait: the whole stack, call by call of each kind, cancelled
after its first step, its second, and so on to its end, by a caller who leaves and by the gateway's cut.

However far it got, it leaves one record, no slot, no timer and no task, and every replica that still had it was told,
or runs it out where too many were told already.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from gateway.core.call import Call, SequenceStep
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply, Response, StreamReply
from gateway.core.session import Session
from gateway.decide.attempt_budget import AttemptBudgetSettings
from gateway.decide.cancel_cap import CancelCapSettings
from gateway.decide.hedge import HedgeSettings
from gateway.decide.tuning import Tuning
from gateway.layers.cancels import Cancels
from gateway.policy.keys import AnonymousAuthenticator
from gateway.policy.schema import FleetPolicy, Hedging, ModelPolicy, Objective, PolicySet
from gateway.runtime.wheel import TimerWheel
from gateway.stack import build_stack, quotas_of
from tests.simulation.loop import simulate
from tests.support.attempts import KEY, LoopClock, Sent, Upstream
from tests.support.fleet import HandFleet, replica

STEPS_MAX = 80
STEP_S = 0.02


class Sink:
    def __init__(self) -> None:
        self.ended: list[tuple[Call, Outcome]] = []

    def call_ended(
        self, call: Call, outcome: Outcome, error: GatewayError | None, answer: bytes | None, now_s: float
    ) -> None:
        self.ended.append((call, outcome))


class Streaming(Upstream):
    """Of a call with a session: a stream of three responses, each of which the replica gives in its own time."""

    async def send(self, call: Call) -> Reply:
        if call.session is None:
            return await super().send(call)
        first = (await super().send(call)).message
        count = 0

        async def following() -> Response | None:
            nonlocal count
            await asyncio.sleep(STEP_S)
            count += 1
            return Response(b"more") if count < 3 else None

        return StreamReply(Response(first), following, ordered=False)


class Refusing(Cancels):
    """Hedges are let through, and no cancel is."""

    def may_cancel(self, replica: str, *, again: bool = False) -> bool:
        return False


class Stack:
    """The product's stack over replicas of which the plan says how each attempt ends."""

    def __init__(self, slots: int, *, capped: bool, kind: str) -> None:
        self.clock = LoopClock()
        self.wheel = TimerWheel(self.clock)
        idle_s = 10.0 if kind == "a sequence" else None
        self.fleet = HandFleet(*(replica(name, {KEY: slots}, sequence_idle_s=idle_s) for name in "abc"))
        self.sink = Sink()
        self.cancels = Refusing(self.clock) if capped else Cancels(self.clock, CancelCapSettings(per_s=1e6, burst=1000))
        self.upstream = Streaming(self.clock, self.cancels)
        policies = self.policies(kind)
        tuning = Tuning(
            hedge=HedgeSettings(samples_min=1, load_max=1.0, load_tau_s=1e-4, refresh_s=1e-6),
            budget=AttemptBudgetSettings(hedge_deposit=1.0),
        )
        self.stack = build_stack(
            policies, transport=self.upstream, fleet=self.fleet, authenticator=AnonymousAuthenticator(),
            sinks=(self.sink,), reserve_record=object, clock=self.clock, wheel=self.wheel,
            pick_chance=random.Random(1), split_chance=random.Random(2), limit_chance=random.Random(3), tuning=tuning,
            quotas=quotas_of(policies), cancels=self.cancels,
        )  # fmt: skip

    def policies(self, kind: str) -> PolicySet:
        policy = ModelPolicy(
            model="fraud",
            pool="gpu",
            objective=Objective(p99_ms=1000),
            ladder="none",
            impact="x",
            read_only=kind != "never left",
            hedging=Hedging(enabled=kind.startswith("hedged")),
        )
        return PolicySet(revision="r", base_dir="/", fleet=FleetPolicy(pools={}), models={"fraud": policy})

    def call(self) -> Call:
        now_s = self.clock.now_s()
        return Call("r", "fraud", "", now_s, 0.0, b"request", body_bytes=7, timeout_s=1.0)

    def other(self) -> Call:
        """One that takes a slot before."""
        return self.call()

    def left_over(self) -> str:
        """What somebody still holds, beside slots."""
        return ""

    async def taught(self) -> None:
        """One quick call for each replica, so that a slow one is known."""
        self.upstream.answers = True
        await self.read(self.call())
        self.upstream.answers = False
        await asyncio.sleep(STEP_S)
        for layer in self.stack.admissions.values():
            for desk in layer._desks.values():
                desk.hedge_delay_s(1.0, self.clock.now_s())
        await asyncio.sleep(STEP_S)
        self.upstream.sent.clear()
        self.sink.ended.clear()

    async def read(self, call: Call) -> None:
        reply = await self.stack.service.send(call)
        outcome = Outcome.ABANDONED
        try:
            if isinstance(reply, StreamReply):
                while await reply.next() is not None:
                    pass
            outcome = Outcome.OK
        finally:
            await reply.aclose(outcome)


Plan = Callable[[list[Sent]], None]


def _act(number: int, act: Callable[[Sent], None]) -> Plan:
    def plan(sent: list[Sent]) -> None:
        if len(sent) > number and not sent[number].end.done():
            act(sent[number])

    return plan


def answers(number: int) -> Plan:
    return _act(number, lambda each: each.answer())


def fails(number: int, outcome: Outcome = Outcome.BROKEN, *, sent: bool = True) -> Plan:
    return _act(number, lambda each: each.fail(outcome, sent=sent))


def slow(then: Plan) -> Plan:
    """Only once a second attempt is out."""
    return lambda sent: then(sent) if len(sent) > 1 else None


LOST = Outcome.TRANSPORT
KINDS: dict[str, tuple[Plan, ...]] = {
    "answered": (answers(0),),
    "failed": (fails(0, Outcome.CALLER_FAULT),),
    "retried": (fails(0), answers(1)),
    "retried in vain": (fails(0), fails(1)),
    "hedged, the first wins": (slow(answers(0)),),
    "hedged, the second wins": (slow(answers(1)),),
    "hedged, the first fails": (slow(fails(0)), slow(answers(1))),
    "hedged, both fail": (slow(fails(1)), slow(fails(0))),
    "sent again after a death": (fails(0, LOST), answers(1)),
    "two deaths": (fails(0, LOST), fails(1, LOST)),
    "never left": (fails(0, LOST, sent=False), answers(1)),
    # Those that were there before have the first numbers.
    "queued": (answers(0), answers(3)),
    "queued after a death": (fails(2, LOST), answers(0), answers(3)),
    "a stream": (answers(0),),
    "a sequence": (answers(0),),
}


async def _steps(
    subject: Stack, plans: list[Plan], steps: int, done: Callable[[], bool], *, timed: bool = False
) -> bool:
    """Let so much happen. True if the call ended within it. `timed`: each step takes time."""
    for number in range(steps):
        await asyncio.sleep(STEP_S if timed or number % 4 == 3 else 0)
        if number % 2 and plans:
            before = [each.end.done() for each in subject.upstream.sent]
            plans[0](subject.upstream.sent)
            if [each.end.done() for each in subject.upstream.sent] != before:
                plans.pop(0)
        if done():
            return True
    return False


async def once(kind: str, steps: int, how: str, *, capped: bool, made: type[Stack] = Stack) -> bool:
    """The call of this kind, cancelled after so many steps. True if it had ended by itself before."""
    queued = kind.startswith("queued")
    subject = made(1 if queued else 4, capped=capped, kind=kind)
    await subject.taught()
    others: list[asyncio.Task[None]] = []
    if queued:
        # Every slot is taken; for the one that waits after a death, all but one.
        others += [asyncio.ensure_future(subject.read(subject.other())) for _ in range(3 if kind == "queued" else 2)]
        while len(subject.upstream.sent) < len(others):
            await asyncio.sleep(0)
    call = subject.call()
    if kind == "a stream":
        call.session = Session()
    if kind == "a sequence":
        call.sequence = SequenceStep(7, start=True, end=True)
    seconds = ["primary", *{"hedged": ["hedge"], "retried": ["retry"]}.get(kind.split(",")[0].split(" ")[0], [])]
    if "death" in kind or kind == "never left":
        seconds = ["primary", "retry"]
    late = how == "late"
    if late:
        call.timeout_s = steps * STEP_S / 4  # within steps, and with them
    held = [each.attempt for each in subject.upstream.sent]
    begun = asyncio.Event()

    async def read() -> None:
        begun.set()
        await subject.read(call)

    task = asyncio.ensure_future(read())
    await begun.wait()
    over = await _steps(subject, list(KINDS[kind]), STEPS_MAX if late else steps, task.done, timed=late)
    if late:
        assert over, f"{kind}: the call outlived its deadline"
        # With too little time there may be no second attempt.
        over = [each.kind for each in call.trail.attempts] == seconds and call.trail.reason is not Reason.DEADLINE
    elif not over:
        if how == "left":
            call.abandoned = True
        else:
            call.cut = GatewayError(Reason.DRAINING, "the gateway stops")
        task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()
    # What the others have out is answered now; those of ours that are still out must have been told, or run out.
    mine = [each for each in call.trail.attempts if each not in held]
    for attempt in mine:
        assert attempt.outcome is not None, f"{kind}, after {steps} steps: an attempt is left open"
    await asyncio.sleep(0)
    for sent in subject.upstream.out._queue:  # type: ignore[attr-defined]
        if sent.attempt in mine:
            told = sent.cancelled or sent.attempt.rest is not None or sent.end.done()
            assert told, f"{kind}, after {steps} steps: {sent.replica} was not told"
            if sent.attempt.rest is not None:
                assert capped
                sent.attempt.rest.end()
        else:
            sent.answer()
    while not all(each.done() for each in others):
        await asyncio.sleep(STEP_S)
        for sent in subject.upstream.out._queue:  # type: ignore[attr-defined]
            sent.answer()
    for _ in range(8):
        await asyncio.sleep(0)
    ended = [outcome for each, outcome in subject.sink.ended if each is call]
    assert len(ended) == 1, f"{kind}, after {steps} steps: {len(ended)} records"
    if over:
        assert [each.kind for each in call.trail.attempts] == seconds, "it is what it is called"
    elif not late:
        assert ended[0] in (Outcome.ABANDONED, Outcome.OVERLOAD, Outcome.OK), ended
    assert call.timeout_s is not None
    points = {call.deadline_s, call.first_response_by_s} - {float("inf")}
    assert points <= {call.arrived_s + call.timeout_s}, "a stage has kept what it narrowed"
    for layer in subject.stack.admissions.values():
        for row in layer.statistics(0.0).values():
            assert (row["in_flight"], row["waiting"], row["hedging"]["out"]) == (0, 0, 0), f"{kind}, {steps}: {row}"
    assert not subject.left_over(), f"{kind}, {steps}: {subject.left_over()}"
    for attempts in subject.stack.attempts.values():
        figures = attempts.statistics(subject.clock.now_s())
        assert not figures.get("hedges_running")
        assert min(figures["budget"]["hedge_tokens"], figures["budget"]["retry_tokens"]) >= 0
    for sequences in subject.stack.sequences.values():
        row = sequences.statistics(subject.clock.now_s())
        assert not row["waiting"]
        assert not over or row["ended"] == (kind == "a sequence")
    assert not len(subject.wheel), f"{kind}, after {steps} steps: {len(subject.wheel)} timers"
    return over


@pytest.mark.parametrize("capped", [False, True], ids=["cancels allowed", "cancels capped"])
@pytest.mark.parametrize("how", ["left", "cut", "late"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_call_can_be_cancelled_wherever_it_stands(kind: str, how: str, capped: bool) -> None:
    for steps in range(1, STEPS_MAX):
        if simulate(lambda loop, steps=steps: once(kind, steps, how, capped=capped)):  # type: ignore[misc]
            assert steps >= 2
            return
    raise AssertionError(f"{kind} did not end within {STEPS_MAX} steps")
