"""attempts and admit as time passes: deaths that are told late, deadlines that are near, replicas and versions that go
and come, pauses that end while nobody calls. In virtual time.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from gateway.core.call import Attempt, Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply
from gateway.core.snapshot import ReplicaState
from gateway.fleet.transport import MARGIN_S
from gateway.layers.attempts import _Race
from tests.simulation.loop import simulate
from tests.support.attempts import KEY, House, LoopClock, Sent, kinds
from tests.support.fleet import replica

LOST, BROKEN, OK = Outcome.TRANSPORT, Outcome.BROKEN, Outcome.OK


def played(act: Callable[[], Coroutine[Any, Any, None]]) -> None:
    simulate(lambda loop: act())


def house(*names: str, **how: Any) -> House:
    return House(*names, clock=LoopClock(), **how)


async def eject(subject: House, name: str) -> None:
    """Calls fail on this replica until none comes there any more."""
    for _ in range(5):
        failing: list[Sent] = []
        tasks: list[asyncio.Task[Reply]] = []
        while not any(sent.replica == f"gpu/{name}" for sent in failing):
            tasks.append(subject.send(subject.call()))
            failing.append(await subject.upstream.next())
        for sent in failing:
            if sent.replica == f"gpu/{name}":
                sent.fail(Outcome.BROKEN)
            else:
                sent.answer()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert subject.admit.statistics(0.0)["2"]["ejection"]["by_replica"][f"gpu/{name}"]["standing"] == "ejected"


# --- deaths ----------------------------------------------------------------------------------------------------------


def test_one_death_is_one_death_however_long_the_second_attempt_takes_to_fail() -> None:
    async def act() -> None:
        subject = house("a", "b", hedging=False)
        call = subject.call(b"innocent")
        task = subject.send(call)
        (await subject.upstream.next()).fail(LOST)
        second = await subject.upstream.next()
        await asyncio.sleep(2.0)
        second.fail(BROKEN)
        with pytest.raises(GatewayError):
            await task
        assert kinds(call) == [("primary", LOST), ("retry", BROKEN)]
        figures = subject.attempts.statistics(LoopClock().now_s())
        assert figures["quarantine"]["quarantined"] == 0
        assert figures["allowance"]["opened"] == 1
        subject.upstream.answers = True
        await subject.admit.send(subject.call(b"innocent"))

    played(act)


def test_a_death_that_is_told_late_is_the_one_that_others_told_of() -> None:
    async def act() -> None:
        subject = await house("a", "b", slots=4).taught()
        late = subject.send(subject.call(b"same"))
        first, hedge = await subject.upstream.next(), await subject.upstream.next()
        others = [subject.send(subject.call(b"same")) for _ in range(2)]
        sent = [await subject.upstream.next() for _ in others]
        beside, apart = sorted(sent, key=lambda each: each.replica != first.replica)
        assert (beside.replica, apart.replica) == (first.replica, hedge.replica)
        apart.answer()
        await asyncio.sleep(0)
        for each in (first, beside):
            each.fail(LOST)
        (await subject.upstream.next()).fail(BROKEN)  # the other's second attempt
        await asyncio.sleep(2.0)  # the hedge takes its time
        hedge.fail(BROKEN)
        ends = await asyncio.gather(late, *others, return_exceptions=True)
        assert sum(isinstance(end, GatewayError) for end in ends) == 2
        figures = subject.attempts.statistics(LoopClock().now_s())["quarantine"]
        assert (figures["suspected"], figures["quarantined"]) == (1, 0)

    played(act)


def test_a_replica_that_was_found_down_before_its_calls_were_lost_had_its_slots_all_the_same() -> None:
    async def act() -> None:
        subject = house("a", "b", slots=8, hedging=False, deposit=0.0)
        tasks = [subject.send(subject.call(b"%d" % number)) for number in range(8)]
        sent = [await subject.upstream.next() for _ in tasks]
        subject.fleet.publish(replica("a", {}, state=ReplicaState.DOWN), replica("b", {KEY: 8}))
        lost = [each for each in sent if each.replica == "gpu/a"]
        assert len(lost) == 4
        for each in lost:
            each.fail(LOST)
        for _ in lost:
            assert (await subject.upstream.next()).replica == "gpu/b"
        for each in subject.upstream.sent:
            each.answer()
        await asyncio.gather(*tasks)
        await subject.settled()

    played(act)


def frozen(name: str) -> Any:
    return replica(name, {}, state=ReplicaState.DOWN)


def test_what_is_out_on_a_replica_that_freezes_is_sent_elsewhere_in_that_moment_beside_the_budget() -> None:
    async def act() -> None:
        subject = house("a", "b", slots=8, hedging=False, deposit=0.0)
        calls = [subject.call(b"%d" % number) for number in range(8)]
        tasks = [subject.send(call) for call in calls]
        for _ in tasks:
            await subject.upstream.next()
        subject.fleet.publish(frozen("a"), replica("b", {KEY: 8}))
        for _ in range(4):
            again = await subject.upstream.next()
            assert (again.replica, again.attempt.kind) == ("gpu/b", "hedge")
        for sent in subject.upstream.sent:
            if sent.replica == "gpu/b":
                sent.answer()
        await asyncio.gather(*tasks)
        for call in calls:
            rescued = [("primary", Outcome.SUPERSEDED), ("hedge", OK)]
            assert kinds(call) == (rescued if call.trail.attempts[0].replica == "gpu/a" else [("primary", OK)])
        await subject.settled()
        assert not subject.attempts.races

    played(act)


def test_it_waits_for_an_idle_slot_and_takes_the_first_answer_even_that_of_the_replica_that_came_to() -> None:
    async def act() -> None:
        subject = house("a", "b", slots=1, hedging=False, deposit=0.0)
        tasks = [subject.send(subject.call()) for _ in range(2)]
        sent = {each.replica: each for each in [await subject.upstream.next() for _ in tasks]}
        subject.fleet.publish(frozen("a"), replica("b", {KEY: 1}))
        await asyncio.sleep(0.3)
        assert len(subject.upstream.sent) == 2, "no slot is idle"
        sent["gpu/b"].answer()
        again = await subject.upstream.next()
        assert again.replica == "gpu/b"
        sent["gpu/a"].answer(b"awake")
        assert b"awake" in [reply.message for reply in await asyncio.gather(*tasks)]
        await subject.settled()
        assert again.cancelled
        assert again.attempt.outcome is Outcome.SUPERSEDED

    played(act)


def test_a_second_attempt_whose_replica_goes_down_is_not_followed_by_a_third() -> None:
    async def act() -> None:
        for failing in (True, False):
            subject = await house("a", "b", "c", hedging=not failing).taught()
            task = subject.send(subject.call())
            first = await subject.upstream.next()
            if failing:
                first.fail(BROKEN)
            second = await subject.upstream.next()
            others = [name for name in "abc" if f"gpu/{name}" != second.replica]
            subject.fleet.publish(frozen(second.replica[-1]), *(replica(name, {KEY: 2}) for name in others))
            await asyncio.sleep(0.3)
            assert len(subject.upstream.sent) == 2
            (second if failing else first).answer()
            await task
            await subject.settled()

    played(act)


# --- what is sent twice, and what is not -----------------------------------------------------------------------------


def test_a_retry_for_which_the_deadline_is_too_near_is_not_tried_again_and_again() -> None:
    async def act() -> None:
        subject = house("a", "b", hedging=False)
        subject.upstream.answers = True
        for _ in range(20):
            await subject.admit.send(subject.call())
        subject.upstream.answers = False
        while not subject.upstream.out.empty():
            subject.upstream.out.get_nowait()
        sound = subject.upstream.send

        async def near(call: Call) -> Reply:
            if call.deadline_s - LoopClock().now_s() <= MARGIN_S:
                call.trail.attempts.pop()
                raise GatewayError(Reason.DEADLINE, "nothing was sent")
            return await sound(call)

        subject.upstream.send = near  # type: ignore[method-assign]
        call = subject.call()
        task = subject.send(call)
        first = await subject.upstream.next()
        call.deadline_s = LoopClock().now_s() + MARGIN_S
        first.fail(BROKEN, sent=False)
        with pytest.raises(GatewayError, match="nothing was sent"):
            await task
        assert kinds(call) == [("primary", BROKEN)]
        assert subject.attempts.budget.statistics(0.0)["retries"] == 1
        await subject.settled()

    played(act)


@pytest.mark.parametrize("final", [0, 1])
def test_of_two_that_fail_the_callers_own_fault_is_told_and_ends_it(final: int) -> None:
    async def act() -> None:
        subject = await house("a", "b", "c").taught()
        call = subject.call()
        task = subject.send(call)
        both = [await subject.upstream.next(), await subject.upstream.next()]
        both[1 - final].fail(LOST)
        await asyncio.sleep(0.001)
        both[final].fail(Outcome.CALLER_FAULT)
        with pytest.raises(GatewayError, match=f"{both[final].replica} failed"):
            await task
        assert len(call.trail.attempts) == 2, "no third replica is asked for what is wrong anywhere"
        await subject.settled()

    played(act)


def errors_and_races() -> list[object]:
    return [each for each in gc.get_objects() if isinstance(each, GatewayError | _Race)]


@pytest.mark.parametrize("hedging", [False, True])
@pytest.mark.parametrize("answered", [False, True])
def test_attempts_that_failed_leave_nothing_to_the_collector(hedging: bool, answered: bool) -> None:
    async def act() -> None:
        subject = await house("a", "b", hedging=hedging, retries=0).taught()

        async def fails(call: Call) -> Reply:
            attempt = call.trail.attempts[-1]
            is_first = attempt.kind == "primary"
            await asyncio.sleep(0.1 if is_first else 0.001)
            if answered and is_first:
                return Reply(b"answer")
            attempt.outcome, attempt.ended_s = (BROKEN if is_first else Outcome.CALLER_FAULT), LoopClock().now_s()
            raise GatewayError(Reason.UPSTREAM_BROKEN, attempt.kind)

        subject.upstream.send = fails  # type: ignore[method-assign]
        before = errors_and_races()
        call = subject.call()
        told = ""
        try:
            await subject.admit.send(call)
        except GatewayError as error:
            told = error.message
        assert told == ("" if answered else "hedge" if hedging else "primary")
        assert len(call.trail.attempts) == 1 + hedging
        await asyncio.sleep(0.001)
        assert [each for each in errors_and_races() if each not in before] == []
        await subject.settled()

    played(act)  # which collects nothing while it runs


def test_a_call_that_has_failed_does_not_prove_an_ejected_replica() -> None:
    async def act() -> None:
        subject = house("a", "b", "c", hedging=False, retries=0, slots=8)
        await eject(subject, "a")
        await asyncio.sleep(1.5)
        desk = subject.admit._desks["2"]
        held = [desk.another("retry", ("gpu/b",)) for _ in range(2)]
        assert [permit.replica for permit in held if permit] == ["gpu/c", "gpu/c"]
        for permit in held:
            assert permit is not None
            desk.give_back(permit)
        task = subject.send(subject.call())
        assert (await subject.upstream.next()).replica == "gpu/a", "an ordinary call does"
        subject.upstream.sent[-1].answer()
        await task

    played(act)


def test_the_slot_of_what_may_not_be_cancelled_comes_back_when_the_replica_has_ended_it() -> None:
    async def act() -> None:
        subject = await house("a", "b").taught()
        call = subject.call()
        task = subject.send(call)
        first, second = await subject.upstream.next(), await subject.upstream.next()
        for _ in range(10):
            subject.cancels.note(first.replica)
        second.answer(b"the hedge's")
        assert (await task).message == b"the hedge's"
        assert not first.cancelled
        assert kinds(call) == [("primary", Outcome.SUPERSEDED), ("hedge", OK)]
        ended_s = first.attempt.ended_s
        await asyncio.sleep(0.5)
        held = subject.admit.statistics(0.0)["2"]["in_flight_by_replica"]
        assert held == {first.replica: 1}, "the replica is still busy with it"
        assert first.attempt.rest is not None
        first.attempt.rest.end()
        assert first.attempt.ended_s == ended_s
        await subject.settled()

    played(act)


def test_no_hedge_goes_where_cancels_climb() -> None:
    async def act() -> None:
        subject = await house("a", "b").taught()
        first = subject.call()
        task = subject.send(first)
        primary = await subject.upstream.next()
        other = {"gpu/a": "gpu/b", "gpu/b": "gpu/a"}[primary.replica]
        for _ in range(50):
            subject.cancels.note(other)
        await asyncio.sleep(0.55)  # the cap itself has room again
        assert subject.cancels.may_cancel(other)
        await asyncio.sleep(0.05)
        assert first.trail.notes is not None
        assert [(note.decider, note.word) for note in first.trail.notes] == [("hedge", "cancels_capped")]
        assert len(first.trail.attempts) == 1
        primary.answer()
        await task
        await subject.settled()

    played(act)


# --- a fleet that changes --------------------------------------------------------------------------------------------


def test_a_call_between_two_attempts_gets_no_slot_at_a_desk_that_was_given_up() -> None:
    async def act() -> None:
        subject = house("a", "b", slots=1, hedging=False)
        call = subject.call()
        task = subject.send(call)
        (await subject.upstream.next()).fail(BROKEN)
        for _ in range(3):
            await asyncio.sleep(0)
        assert not task.done(), "it waits before its second attempt"
        both = (replica("a", {KEY: 1}), replica("b", {KEY: 1}))
        subject.fleet.publish()
        subject.fleet.publish(*both)
        others = [subject.send(subject.call()) for _ in range(2)]
        running = [await subject.upstream.next() for _ in others]
        with pytest.raises(GatewayError):
            await task
        assert len(subject.upstream.sent) == 3, "both slots are taken"
        for each in running:
            each.answer()
        await asyncio.gather(*others)
        await subject.settled()

    played(act)


def test_replicas_that_were_down_and_have_left_are_not_counted_any_more() -> None:
    async def act() -> None:
        subject = house("a", "b", "c", "d", "e", hedging=False)
        subject.upstream.answers = True
        await subject.admit.send(subject.call())
        alive = (replica("a", {KEY: 2}), replica("b", {KEY: 2}))
        subject.fleet.publish(*alive, *(replica(name, {}, state=ReplicaState.DOWN) for name in "cde"))

        def seen() -> tuple[bool, bool]:
            ejection = subject.admit._desks["2"].admission.balance.ejection
            return ejection.panic, ejection.calm

        assert seen() == (True, True), "those that are left are well: they are asked nothing"
        subject.fleet.publish(*alive)
        assert seen() == (False, True)

    played(act)


def test_a_pause_that_ends_while_nobody_comes_back_lets_a_waiting_call_prove_the_replica() -> None:
    async def act() -> None:
        subject = house("a", "b", slots=1, hedging=False, retries=0)
        await eject(subject, "a")
        long = subject.send(subject.call())
        busy = await subject.upstream.next()
        assert busy.replica == "gpu/b"
        began_s = LoopClock().now_s()
        waiting = subject.send(subject.call())
        probe = await subject.upstream.next()
        assert probe.replica == "gpu/a"
        assert LoopClock().now_s() - began_s <= 1.2
        probe.answer()
        await waiting
        busy.answer()
        await long
        await subject.settled()

    played(act)


def test_streams_that_last_prove_their_replica_by_their_first_response() -> None:
    async def act() -> None:
        subject = house("a", "b", slots=8, hedging=False, retries=0)
        await eject(subject, "a")
        await asyncio.sleep(1.0)
        desk = subject.admit._desks["2"]
        admission, now_s = desk.admission, LoopClock().now_s
        for _ in range(3):
            permit = admission.take(now_s() + 3600.0, now_s())
            assert permit is not None
            assert permit.replica == "gpu/a"
            assert permit.special is not None
            assert permit.special.probe is not None
            permit.attempt = Attempt(permit.replica, now_s())
            await asyncio.sleep(0.01)
            permit.attempt.answered_s = now_s()
            desk.answered(permit)
            assert permit.special.probe is None, "its end is no second proof"
        standing = admission.statistics(now_s())["ejection"]["by_replica"]["gpu/a"]["standing"]
        assert standing == "slow_start"

    played(act)


def test_probes_of_a_slow_model_have_the_time_that_its_calls_take() -> None:
    async def act() -> None:
        subject = house("a", "b", slots=4, hedging=False, retries=0)
        for _ in range(2):
            tasks = [subject.send(subject.call()) for _ in range(2)]
            sent = [await subject.upstream.next() for _ in tasks]
            await asyncio.sleep(15.0)
            for each in sent:
                each.answer()
            await asyncio.gather(*tasks)
        await eject(subject, "a")
        await asyncio.sleep(1.0)
        for _ in range(3):
            task = subject.send(subject.call())
            probe = await subject.upstream.next()
            assert probe.replica == "gpu/a"
            await asyncio.sleep(15.0)
            probe.answer()
            await task
        figures = subject.admit.statistics(LoopClock().now_s())["2"]["ejection"]
        assert figures["moves"]["probe_expired"] == 0
        assert figures["moves"]["probes_good"] == 1

    played(act)
