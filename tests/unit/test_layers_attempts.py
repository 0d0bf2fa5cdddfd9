"""attempts: a second attempt where it is safe, one answer, and every slot comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.core.call import SequenceStep
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply
from gateway.layers.attempts import REPLAY_MAX_BYTES
from gateway.runtime.scope import DeadlinePassed, DeadlineScope
from tests.support.attempts import House, kinds
from tests.support.cancel import cancel_at_every_await

# --- retries ---------------------------------------------------------------------------------------------------------


async def test_a_failed_call_is_answered_by_another_replica() -> None:
    house = House("a", "b", hedging=False)
    call = house.call()
    task = house.send(call)
    first = await house.upstream.next()
    first.fail()
    second = await house.upstream.next()
    assert {first.replica, second.replica} == {"gpu/a", "gpu/b"}
    second.answer(b"good")
    assert (await task).message == b"good"
    assert kinds(call) == [("primary", Outcome.BROKEN), ("retry", Outcome.OK)]
    await house.settled()


async def test_a_call_has_one_retry() -> None:
    house = House("a", "b", "c", hedging=False)
    call = house.call()
    task = house.send(call)
    for _ in range(2):
        (await house.upstream.next()).fail()
    with pytest.raises(GatewayError, match="failed"):
        await task
    assert kinds(call) == [("primary", Outcome.BROKEN), ("retry", Outcome.BROKEN)]
    await house.settled()


@pytest.mark.parametrize(
    "outcome",
    [Outcome.CALLER_FAULT, Outcome.REFUSED, Outcome.EXPIRED, Outcome.GATEWAY_FAULT],
    ids=lambda each: each.value,
)
async def test_what_no_other_replica_can_better_is_final(outcome: Outcome) -> None:
    house = House("a", "b", hedging=False)
    call = house.call()
    task = house.send(call)
    (await house.upstream.next()).fail(outcome)
    with pytest.raises(GatewayError, match="failed"):
        await task
    assert kinds(call) == [("primary", outcome)]
    await house.settled()


@pytest.mark.parametrize(
    ("text", "attempts"),
    [("NOT_FOUND: Request for unknown model: 'fraud' is not found", 1), ("UNAVAILABLE: Server exiting", 2)],
)
async def test_a_model_that_is_unknown_is_asked_for_once_one_that_is_not_ready_twice(text: str, attempts: int) -> None:
    house = House("a", "b", hedging=False)
    call = house.call()
    task = house.send(call)
    for _ in range(attempts):
        (await house.upstream.next()).fail(Outcome.NOT_LOADED, text=text)
    with pytest.raises(GatewayError, match="failed"):
        await task
    assert len(call.trail.attempts) == attempts
    await house.settled()


async def test_retries_stay_within_the_budget_however_many_calls_fail() -> None:
    house = House("a", "b", hedging=False, deposit=0.05)
    for _ in range(100):
        task = house.send(house.call())
        while not task.done():
            get = asyncio.ensure_future(house.upstream.next())
            await asyncio.wait((get, task), return_when=asyncio.FIRST_COMPLETED)
            if get.done():
                get.result().fail(sent=False)
            else:
                get.cancel()
        assert isinstance(task.exception(), GatewayError)
    assert 1 <= len(house.upstream.sent) - 100 <= 10
    await house.settled()


async def test_no_retry_is_made_where_no_other_replica_has_an_idle_slot() -> None:
    house = House("a", "b", slots=1, hedging=False)
    others = house.send(house.call())
    busy = await house.upstream.next()
    task = house.send(house.call())
    (await house.upstream.next()).fail()
    with pytest.raises(GatewayError, match="failed"):
        await task
    busy.answer()
    await others
    await house.settled()


async def test_what_may_not_go_twice_does_not() -> None:
    house = House("a", "b", hedging=False)
    large, step = house.call(b"x" * (REPLAY_MAX_BYTES + 1)), house.call()
    step.sequence = SequenceStep(7, start=True, end=False)
    decoupled = house.call()
    decoupled.decoupled = True
    for call in (large, step, decoupled):
        task = house.send(call)
        (await house.upstream.next()).fail()
        with pytest.raises(GatewayError, match="failed"):
            await task
        assert len(call.trail.attempts) == 1
    await house.settled()


# --- deaths ----------------------------------------------------------------------------------------------------------


async def test_all_that_a_replica_took_with_it_is_sent_again_beside_the_budget() -> None:
    house = House("a", "b", slots=8, hedging=False, deposit=0.0)
    calls = [house.call(b"request %d" % number) for number in range(8)]
    tasks = [house.send(call) for call in calls]
    first = [await house.upstream.next() for _ in calls]
    dead = [sent for sent in first if sent.replica == "gpu/a"]
    assert len(dead) == 4
    for sent in dead:
        sent.fail(Outcome.TRANSPORT)
    for _ in dead:
        again = await house.upstream.next()
        assert again.replica == "gpu/b"
    for sent in house.upstream.sent:
        sent.answer()
    await asyncio.gather(*tasks)
    await house.settled()


async def test_an_input_that_was_in_flight_at_two_deaths_is_refused() -> None:
    house = House("a", "b", "c", hedging=False)
    task = house.send(house.call(b"poison"))
    for _ in range(2):
        (await house.upstream.next()).fail(Outcome.TRANSPORT)
    with pytest.raises(GatewayError, match="failed"):
        await task
    assert len(house.upstream.sent) == 2, "it is not carried through the pool"
    with pytest.raises(GatewayError) as refused:
        await house.admit.send(house.call(b"poison"))
    assert refused.value.reason is Reason.QUARANTINED
    house.upstream.answers = True
    assert (await house.admit.send(house.call(b"other"))).message == b"answer"
    await house.settled()


async def test_an_input_that_is_answered_after_a_death_was_not_its_cause() -> None:
    house = House("a", "b", "c", hedging=False)
    for _ in range(3):
        task = house.send(house.call(b"same"))
        (await house.upstream.next()).fail(Outcome.TRANSPORT)
        (await house.upstream.next()).answer()
        await task
    assert house.attempts.quarantine.idle
    await house.settled()


# --- hedges ----------------------------------------------------------------------------------------------------------


async def test_a_slow_call_is_answered_by_whoever_is_first_and_the_other_is_cancelled() -> None:
    for winner in (0, 1):
        house = await House("a", "b").taught()
        call = house.call()
        task = house.send(call)
        both = [await house.upstream.next(), await house.upstream.next()]
        assert both[0].replica != both[1].replica
        both[winner].answer(b"won")
        assert (await task).message == b"won"
        await house.settled()
        assert both[1 - winner].cancelled
        outcomes = [Outcome.OK, Outcome.SUPERSEDED]
        assert kinds(call) == [("primary", outcomes[winner]), ("hedge", outcomes[1 - winner])]
        assert task.cancelling() == 0


async def test_a_loser_is_closed_before_the_answer_goes_up() -> None:
    house = await House("a", "b").taught()
    call = house.call()

    async def asked() -> list[tuple[str, Outcome | None]]:
        await house.admit.send(call)
        return kinds(call)

    task = asyncio.ensure_future(asked())
    first, second = await house.upstream.next(), await house.upstream.next()
    assert second.attempt.kind == "hedge"
    first.answer()
    assert await task == [("primary", Outcome.OK), ("hedge", Outcome.SUPERSEDED)]
    await house.settled()


async def test_if_one_of_two_fails_the_other_is_awaited() -> None:
    for failing in (0, 1):
        house = await House("a", "b").taught()
        call = house.call()
        task = house.send(call)
        both = [await house.upstream.next(), await house.upstream.next()]
        both[failing].fail()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not task.done()
        both[1 - failing].answer(b"late but good")
        assert (await task).message == b"late but good"
        await house.settled()


async def test_if_both_fail_so_does_the_call_without_a_third_attempt() -> None:
    house = await House("a", "b", "c").taught()
    call = house.call()
    task = house.send(call)
    both = [await house.upstream.next(), await house.upstream.next()]
    for sent in both:
        sent.fail()
    with pytest.raises(GatewayError, match="failed"):
        await task
    assert len(call.trail.attempts) == 2
    await house.settled()


async def test_no_hedge_is_sent_while_calls_wait_and_it_is_told_why() -> None:
    house = await House("a", "b", slots=1).taught()
    calls = [house.call() for _ in range(3)]
    tasks = [house.send(call) for call in calls]
    running = [await house.upstream.next(), await house.upstream.next()]
    while not calls[0].trail.notes:
        await asyncio.sleep(0.001)
    note = calls[0].trail.notes[0]
    assert (note.decider, note.word, note.saw["waiting"], note.saw["slots"]) == ("hedge", "queue", 1, 2)
    for sent in running:
        sent.answer()
    (await house.upstream.next()).answer()
    await asyncio.gather(*tasks)
    assert len(house.upstream.sent) == 3
    await house.settled()


async def test_the_deadline_ends_both_attempts() -> None:
    house = await House("a", "b").taught()
    call = house.call()
    reached = asyncio.Event()

    async def sent() -> Reply:
        call.deadline_s = house.clock.now_s() + 2.0
        with DeadlineScope(house.wheel, call.deadline_s):
            reached.set()
            return await house.admit.send(call)

    task = asyncio.ensure_future(sent())
    both = [await house.upstream.next(), await house.upstream.next()]
    with pytest.raises(DeadlinePassed):
        await task
    assert kinds(call) == [("primary", Outcome.EXPIRED), ("hedge", Outcome.EXPIRED)]
    await house.settled()
    assert all(each.cancelled for each in both)


async def test_a_caller_who_leaves_when_the_hedge_has_won_is_gone_all_the_same() -> None:
    house = await House("a", "b").taught()
    task = house.send(house.call())
    await house.upstream.next()
    (await house.upstream.next()).answer()
    await asyncio.sleep(0)  # the hedge has its answer, and has cancelled the first attempt
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()
    await house.settled()


@pytest.mark.parametrize(
    "plan", ["primary answers", "hedge answers", "primary fails", "both fail", "hedge fails first"]
)
async def test_cancelled_at_any_await_it_leaves_no_slot_no_timer_and_no_task(plan: str) -> None:
    made: list[House] = []

    def scenario() -> tuple[Awaitable[Any], Callable[[], None]]:
        house = houses.pop()
        made.append(house)
        acts = {
            "primary answers": [(0, "answer")],
            "hedge answers": [(1, "answer")],
            "primary fails": [(0, "fail"), (1, "answer")],
            "both fail": [(0, "fail"), (1, "fail")],
            "hedge fails first": [(1, "fail"), (0, "answer")],
        }[plan]

        def step() -> None:
            for bucket in (*house.wheel._buckets.values(), *house.wheel._spans.values()):
                for waiting in tuple(bucket):
                    del bucket[waiting]
                    waiting.fire()  # the first attempt counts as slow as soon as it is out
            if len(house.upstream.sent) < 2 or not acts:
                return
            number, act = acts[0]
            if not house.upstream.sent[number].end.done():
                acts.pop(0)
                getattr(house.upstream.sent[number], act)()

        return house.admit.send(house.call()), step

    houses = [await House("a", "b").taught() for _ in range(40)]
    points = await cancel_at_every_await(scenario, lambda: None)
    assert points >= 3
    for house in made:
        await house.settled()
        assert not house.attempts.statistics(0.0)["hedges_running"]
