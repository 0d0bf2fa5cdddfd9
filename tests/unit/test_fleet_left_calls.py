"""Calls that may not be cancelled on their replica: given up at once here, left to run out there, and bounded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.core.call import Attempt
from gateway.core.codes import Code
from gateway.core.faults import UpstreamFault
from gateway.fleet import http2_unary
from gateway.fleet.replica_calls import RUN_OUT_AGAIN_S, RUN_OUT_S
from gateway.wire.grpc import message_prefix
from gateway.wire.http2 import ErrorCode
from tests.support.replica_clients import TRANSPORTS
from tests.unit.fleet_peer import Peer
from tests.unit.http2_world import ServerStream, World, run
from tests.unit.replica_clients import LIMIT_S, Clients, action

MIB = 1024 * 1024


class Asked:
    """A `Restraint` of which the test says how many cancels it still allows."""

    def __init__(self, allowed: int = 0, slack_s: float = 0.0) -> None:
        self.allowed = allowed
        self.guarded = slack_s > 0
        self.refused = self.made = 0
        self._slack_s = slack_s

    def may_cancel(self, *, again: bool = False) -> bool:
        if not self.allowed:
            self.refused += not again
            return False
        self.allowed -= 1
        self.made += 1
        return True

    def cancelled(self) -> None:
        self.made += 1

    def slack_s(self) -> float:
        return self._slack_s


def told_s(stream: ServerStream) -> float:
    told = stream.fields[b"grpc-timeout"]
    return int(told[:-1]) * {b"n": 1e-9, b"u": 1e-6, b"m": 1e-3, b"S": 1.0}[told[-1:]]


class Case:
    """One call of a world whose replica holds what it gets."""

    def __init__(self, world: World, restraint: Asked) -> None:
        self.world = world
        self.held: list[ServerStream] = []
        self.attempt = Attempt("gpu/a", world.now_s())
        self.ended_s = 0.0
        world.replica.on_end = self.held.append
        world.client.restrain(restraint)

    async def out(self, timeout_s: float = 60.0, message: bytes = b"x") -> asyncio.Task[bytes]:
        before = len(self.held)
        task = asyncio.ensure_future(self.world.client.infer(message, (), timeout_s, b"", self.attempt))
        await self.world.until(lambda: len(self.held) > before)
        return task

    def ended(self) -> None:
        self.ended_s = self.world.now_s()

    def figures(self) -> Any:
        return self.world.client.statistics(self.world.now_s())


ANSWERS: dict[str, Any] = {
    "an answer": lambda each: each.answer(b"late"),
    "an answer of several frames": lambda each: each.answer(bytes(3 * MIB)),
    "an error": lambda each: each.refuse(13, "broken"),
    "a reset": lambda each: each.reset(ErrorCode.INTERNAL_ERROR),
    "an unprocessed call": lambda each: each.reset(ErrorCode.REFUSED_STREAM),
    "an end without trailers": lambda each: (each.head(), each.raw(message_prefix(1) + b"a", True)),
    "the death of the replica": lambda each: each.connection.abort(),
}


@pytest.mark.parametrize("how", ANSWERS)
@pytest.mark.parametrize("by", ["its caller", "its time limit"])
def test_what_may_not_be_cancelled_ends_at_once_here_and_in_its_own_time_there(how: str, by: str) -> None:
    async def main(world: World) -> None:
        await world.infer()
        restraint = Asked()
        case = Case(world, restraint)
        task = await case.out(0.5 if by == "its time limit" else 60.0)
        if by == "its caller":
            task.cancel()
        await asyncio.wait((task,))
        if by == "its caller":
            assert task.cancelled()
        else:
            fault = task.exception()
            assert isinstance(fault, UpstreamFault)
            assert (fault.code, fault.from_peer, fault.sent) == (Code.DEADLINE_EXCEEDED, False, True)
        rest = case.attempt.rest
        assert rest is not None
        rest.on_end(case.ended)
        await asyncio.sleep(0.2)
        assert not rest.over
        assert not any(each.reset_code for each in case.held), "the replica was told nothing"
        assert case.figures()["left_now"] == 1
        ANSWERS[how](case.held[0])
        await world.until(lambda: rest.over)
        assert case.ended_s > 0
        if how != "the death of the replica":
            assert case.held[0].reset_code is None
        figures = case.figures()
        assert (figures["left"], figures["left_now"], figures["cancelled"]) == (1, 0, 0)
        assert (restraint.refused, len(case.held)) == (1, 1), "it is not sent again"
        world.replica.on_end = lambda each: each.answer(b"next")
        if how == "the death of the replica":
            await asyncio.sleep(2.0)
        assert await world.infer() == b"next"

    run(main)


@pytest.mark.parametrize("allowed", [0, 1])
def test_a_call_that_is_given_up_twice_in_one_turn_is_left_once(allowed: int) -> None:
    async def main(world: World) -> None:
        await world.infer()
        restraint = Asked()
        case = Case(world, restraint)
        task = await case.out(0.5)
        fire = http2_unary.UnaryCall.fire

        def and_its_caller_leaves(call: http2_unary.UnaryCall) -> None:
            fire(call)
            restraint.allowed = allowed
            task.cancel()

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(http2_unary.UnaryCall, "fire", and_its_caller_leaves)
            await asyncio.wait((task,))
        assert task.cancelled()
        rest = case.attempt.rest
        assert rest is not None
        assert (case.figures()["left"], case.figures()["left_now"], restraint.allowed) == (1, 1, allowed)
        case.held[0].answer(b"")
        await world.until(lambda: rest.over)
        assert case.figures()["left_now"] == 0

    run(main)


def test_what_may_be_cancelled_is() -> None:
    async def main(world: World) -> None:
        await world.infer()
        case = Case(world, Asked(allowed=1))
        task = await case.out()
        task.cancel()
        await asyncio.wait((task,))
        await world.until(lambda: case.held[0].reset_code == ErrorCode.CANCEL)
        assert case.attempt.rest is None

    run(main)


def test_a_question_of_the_gateway_itself_is_always_given_up() -> None:
    async def main(world: World) -> None:
        await world.infer()
        restraint = Asked()
        case = Case(world, restraint)
        with pytest.raises(UpstreamFault):
            await world.client.server_live(0.2)
        await world.until(lambda: case.held[0].reset_code == ErrorCode.CANCEL)
        assert restraint.refused == 0

    run(main)


def test_a_half_sent_answer_is_let_go_of_and_the_rest_thrown_away() -> None:
    async def main(world: World) -> None:
        await world.infer()
        case = Case(world, Asked())
        task = await case.out()
        case.held[0].head()
        case.held[0].raw(message_prefix(3 * MIB) + bytes(MIB))
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.wait((task,))
        case.held[0].raw(bytes(2 * MIB))
        case.held[0].end()
        rest = case.attempt.rest
        assert rest is not None
        await world.until(lambda: rest.over)

    run(main)


def test_one_that_says_more_than_any_answer_is_cancelled_whatever_the_cap_says() -> None:
    async def main(world: World) -> None:
        await world.infer()
        restraint = Asked()
        case = Case(world, restraint)
        task = await case.out()
        task.cancel()
        await asyncio.wait((task,))
        case.held[0].head()
        for _ in range(4):
            case.held[0].raw(bytes(MIB))
        await world.until(lambda: case.held[0].reset_code == ErrorCode.CANCEL)
        assert case.attempt.rest is not None
        assert case.attempt.rest.over
        assert restraint.made == 1

    run(main, message_bytes_max=2 * MIB)


def test_one_that_does_not_end_is_cancelled_after_its_time_once_that_is_allowed() -> None:
    async def main(world: World) -> None:
        await world.infer()
        restraint = Asked()
        case = Case(world, restraint)
        task = await case.out()
        task.cancel()
        await asyncio.wait((task,))
        left_s = world.now_s()
        await asyncio.sleep(RUN_OUT_S + 1.0)
        assert case.held[0].reset_code is None
        assert restraint.refused == 1, "it is one call, however often it is asked about"
        restraint.allowed = 1
        rest = case.attempt.rest
        assert rest is not None
        await world.until(lambda: rest.over)
        assert world.now_s() - left_s <= RUN_OUT_S + 1.0 + 2 * RUN_OUT_AGAIN_S
        await world.until(lambda: case.held[0].reset_code == ErrorCode.CANCEL)

    run(main)


def test_no_more_are_left_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2_unary, "LEFT_MAX", 2)

    async def main(world: World) -> None:
        await world.infer()
        restraint = Asked()
        case = Case(world, restraint)
        attempts = []
        for _ in range(3):
            case.attempt = Attempt("gpu/a", world.now_s())
            attempts.append(case.attempt)
            task = await case.out()
            task.cancel()
            await asyncio.wait((task,))
        assert [each.rest is None for each in attempts] == [False, False, True]
        await world.until(lambda: case.held[2].reset_code == ErrorCode.CANCEL)
        assert restraint.made == 1, "it counts all the same"
        for each in case.held[:2]:
            each.answer(b"")
        await world.until(lambda: case.figures()["left_now"] == 0)

    run(main)


@pytest.mark.parametrize(("code", "after_s", "made"), [(4, 0.5, 1), (4, 0.2, 0), (13, 0.5, 0)])
def test_one_that_the_replica_ends_at_its_own_limit_was_cancelled_there(code: int, after_s: float, made: int) -> None:
    async def main(world: World) -> None:
        await world.infer()
        restraint = Asked()
        case = Case(world, restraint)
        task = await case.out(0.5)
        task.cancel()
        await asyncio.wait((task,))
        await asyncio.sleep(after_s)
        case.held[0].refuse(code, "Deadline Exceeded")
        rest = case.attempt.rest
        assert rest is not None
        await world.until(lambda: rest.over)
        assert (restraint.made, case.figures()["left_now"]) == (made, 0)

    run(main)


def test_closing_the_client_ends_what_was_left() -> None:
    async def main(world: World) -> None:
        await world.infer()
        case = Case(world, Asked())
        task = await case.out()
        task.cancel()
        await asyncio.wait((task,))
        await world.client.aclose()
        assert case.attempt.rest is not None
        assert case.attempt.rest.over

    run(main)


def test_while_cancels_are_frequent_the_replica_is_told_a_later_limit_and_ours_stays() -> None:
    async def main(world: World) -> None:
        await world.infer()
        case = Case(world, Asked(slack_s=10.0))
        begin_s = world.now_s()
        task = await case.out(0.5)
        assert 10.5 <= told_s(case.held[0]) <= 10.5 * 1.05
        await asyncio.wait((task,))
        assert isinstance(task.exception(), UpstreamFault)
        assert 0.5 <= world.now_s() - begin_s <= 0.502
        case.held[0].answer(b"")
        with pytest.raises(UpstreamFault):
            await world.client.server_live(0.5)
        assert told_s(case.held[1]) <= 0.53, "the gateway's own questions are not left to run"

    run(main)


# --- both transports, on sockets -------------------------------------------------------------------------------------


@pytest.fixture(params=TRANSPORTS)
def clients(request: pytest.FixtureRequest) -> Clients:
    return Clients(request.param)


@pytest.mark.parametrize("by", ["its caller", "its time limit"])
async def test_over_either_transport_no_reset_goes_out_and_the_answer_is_thrown_away(clients: Clients, by: str) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def act(peer: Peer, stream: int) -> None:
        reached.set()
        await go_on.wait()
        peer.answer(stream, b"late")

    async with clients.served(act) as (listener, client):
        client.restrain(Asked(slack_s=60.0))
        attempt = Attempt("gpu/a", 0.0)
        task = asyncio.ensure_future(client.infer(b"", (), 0.5 if by == "its time limit" else 60.0, b"", attempt))
        await reached.wait()
        if by == "its caller":
            task.cancel()
        await asyncio.wait((task,))
        if by == "its time limit":
            fault = task.exception()
            assert isinstance(fault, UpstreamFault)
            assert (fault.code, fault.from_peer) == (Code.DEADLINE_EXCEEDED, False)
        rest = attempt.rest
        assert rest is not None
        ended = asyncio.Event()
        rest.on_end(ended.set)
        assert not rest.over
        go_on.set()
        async with asyncio.timeout(LIMIT_S):
            await ended.wait()
        assert not listener.peers[0].reset_codes


async def test_over_either_transport_what_is_left_ends_with_its_connection(clients: Clients) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def act(peer: Peer, stream: int) -> None:
        reached.set()
        await go_on.wait()
        peer.reset_connection()

    async with clients.served(act) as (_, client):
        client.restrain(Asked())
        attempt = Attempt("gpu/a", 0.0)
        task = asyncio.ensure_future(client.infer(b"", (), 60.0, b"", attempt))
        await reached.wait()
        task.cancel()
        await asyncio.wait((task,))
        assert attempt.rest is not None
        ended = asyncio.Event()
        attempt.rest.on_end(ended.set)
        go_on.set()
        async with asyncio.timeout(LIMIT_S):
            await ended.wait()


async def test_over_either_transport_a_limit_that_the_replica_keeps_counts_as_a_cancel(clients: Clients) -> None:
    async with clients.served(action()) as (_, client):
        restraint = Asked(allowed=1)
        client.restrain(restraint)
        with pytest.raises(UpstreamFault):
            await client.infer(b"", (), 0.3, b"", Attempt("gpu/a", 0.0))
        assert restraint.made == 1
