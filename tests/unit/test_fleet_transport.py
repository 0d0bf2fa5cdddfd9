"""The transport: one call to one replica, what is written on its trail, and what is taught to the directory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from gateway.core.call import Attempt, Call, Metadata
from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason
from gateway.core.faces import ReplicaClient
from gateway.core.faults import UpstreamFault
from gateway.core.outcome import Outcome
from gateway.fleet.connection import Connection
from gateway.fleet.transport import ReplicaTransport
from gateway.wire.kserve.request_view import read_head
from tests.support.clock import ManualClock
from tests.unit.fleet_world import request

REPLICA = "gpu/h:1"
Infer = Callable[[bytes, Metadata, float, bytes], Awaitable[bytes]]


class HandClient:
    """A client whose `infer` the test writes."""

    def __init__(self, infer: Infer) -> None:
        self.infer = infer
        self.closed = False

    async def aclose(self) -> None:
        self.closed = True


class HandConnections:
    def __init__(self, infer: Infer) -> None:
        client: ReplicaClient = HandClient(infer)  # type: ignore[assignment]
        self.one: Connection | None = Connection(client)
        self.hints: list[tuple[str, str, str]] = []
        self.answers: list[tuple[str, str, str, float]] = []
        self.refusals: list[tuple[str, str, str, float, str]] = []

    def connection(self, replica: str) -> Connection | None:
        assert replica == REPLICA
        return self.one

    def hint(self, replica: str, model: str, version: str) -> None:
        self.hints.append((replica, model, version))

    def note_answer(self, replica: str, connection: Connection, model: str, version: str, now_s: float) -> None:
        if connection is self.one:
            self.answers.append((replica, model, version, now_s))

    def refused(self, replica: str, model: str, version: str, asked_s: float, text: str) -> None:
        self.refusals.append((replica, model, version, asked_s, text))


def answer(model: str = "m", version: str = "3") -> bytes:
    return bytes(pb.ModelInferResponse(model_name=model, model_version=version).SerializeToString())


def returns(message: bytes) -> Infer:
    async def infer(
        message_in: bytes, metadata: Metadata, timeout_s: float, tail: bytes = b"", attempt: object = None
    ) -> bytes:
        return message

    return infer


def raises(fault: UpstreamFault) -> Infer:
    async def infer(
        message: bytes, metadata: Metadata, timeout_s: float, tail: bytes = b"", attempt: object = None
    ) -> bytes:
        raise fault

    return infer


def make_call(deadline_s: float = 1010.0, message: bytes | None = None) -> Call:
    call = Call(
        request_id="r",
        model="m",
        version="",
        arrived_s=1000.0,
        arrived_wall_s=0.0,
        message=request("m", b"q") if message is None else message,
        metadata=(("traceparent", "00-ab"),),
    )
    call.deadline_s = deadline_s
    call.trail.version_routed = "3"
    call.trail.attempts.append(Attempt(REPLICA, 1000.0))
    return call


async def send(infer: Infer, call: Call) -> tuple[HandConnections, GatewayError | bytes]:
    connections = HandConnections(infer)
    transport = ReplicaTransport(connections, ManualClock())
    try:
        result: GatewayError | bytes = (await transport.send(call)).message
    except GatewayError as error:
        result = error
    assert connections.one is not None
    assert connections.one.in_flight == 0
    return connections, result


async def test_a_good_answer_is_returned_as_it_came_and_written_on_the_trail() -> None:
    call = make_call()
    connections, result = await send(returns(answer()), call)
    assert result == answer()
    attempt = call.trail.attempts[0]
    assert (attempt.outcome, attempt.ended_s, attempt.text) == (Outcome.OK, 1000.0, "")
    assert (call.trail.answered_s, call.trail.version_served) == (1000.0, "3")
    assert connections.answers == [(REPLICA, "m", "3", 1000.0)]
    assert not connections.hints


async def test_the_replica_sees_the_routed_model_and_version_and_the_time_that_is_left() -> None:
    seen: list[tuple[bytes, Metadata, float]] = []

    async def infer(
        message: bytes, metadata: Metadata, timeout_s: float, tail: bytes = b"", attempt: object = None
    ) -> bytes:
        seen.append((message + tail, metadata, timeout_s))
        return answer()

    await send(infer, make_call(message=request("alias", b"q", version="9")))
    message, metadata, timeout_s = seen[0]
    parsed = pb.ModelInferRequest.FromString(message)
    assert (parsed.model_name, parsed.model_version) == ("m", "3")
    assert parsed.raw_input_contents[0] == b"q"
    assert metadata == (("traceparent", "00-ab"),)
    assert 9.9 < timeout_s < 10.0


@given(st.text(min_size=1), st.text(max_size=5), st.text(max_size=5), st.binary(max_size=50))
def test_what_is_appended_wins_over_whatever_the_caller_named(
    model: str, asked: str, version: str, data: bytes
) -> None:
    from gateway.wire.kserve.request_view import override_model

    try:
        message = request(asked, data, version)
        appended = override_model(message, model, "7")
    except UnicodeEncodeError:
        return
    head = read_head(appended)
    assert (head.model_name, head.model_version) == (model, "7")


async def test_an_answer_that_is_no_message_is_said_to_be_that_and_not_another_version() -> None:
    call = make_call()
    connections, result = await send(returns(b"\xff\xff"), call)
    assert isinstance(result, GatewayError)
    assert result.reason is Reason.UPSTREAM_BROKEN
    assert "not a valid response" in result.message
    assert call.trail.attempts[0].outcome is Outcome.BROKEN
    assert connections.hints == [(REPLICA, "m", "3")]
    assert not connections.answers


async def test_a_message_is_not_copied_to_append_the_routed_names() -> None:
    seen: list[bytes] = []

    async def infer(
        message: bytes, metadata: Metadata, timeout_s: float, tail: bytes = b"", attempt: object = None
    ) -> bytes:
        seen.append(message)
        return answer()

    call = make_call(message=request("alias", b"q" * 1000))
    await send(infer, call)
    assert seen[0] is call.message


async def test_a_call_without_time_is_not_sent() -> None:
    async def infer(
        message: bytes, metadata: Metadata, timeout_s: float, tail: bytes = b"", attempt: object = None
    ) -> bytes:
        raise AssertionError("it was sent")

    for deadline_s in (999.0, 1000.0, 1000.0005):
        call = make_call(deadline_s)
        _, result = await send(infer, call)
        assert isinstance(result, GatewayError)
        assert result.reason is Reason.DEADLINE
        assert call.trail.attempts == [], "nothing was sent, so nothing was tried"


@pytest.mark.parametrize(
    ("wrong", "served"),
    [(answer(version="4"), "4"), (answer(model="other"), "3"), (answer(version=""), "")],
)
async def test_an_answer_that_is_not_the_routed_versions_is_not_used(wrong: bytes, served: str) -> None:
    call = make_call()
    connections, result = await send(returns(wrong), call)
    assert isinstance(result, GatewayError)
    assert result.reason is Reason.UPSTREAM_WRONG_ANSWER
    assert "h:1" not in result.message
    assert call.trail.attempts[0].outcome is Outcome.BROKEN
    assert call.trail.version_served == served
    assert connections.hints == [(REPLICA, "m", "3")]
    assert not connections.answers


PEER, LOCAL = True, False
FAULTS = [
    (Code.UNAVAILABLE, "Exceeds maximum queue size", PEER, Outcome.OVERLOAD, Reason.UPSTREAM_QUEUE_FULL, ()),
    (Code.UNAVAILABLE, "Request timeout expired", PEER, Outcome.OVERLOAD, Reason.UPSTREAM_QUEUE_TIMEOUT, ()),
    (Code.UNAVAILABLE, "x is not at ready state", PEER, Outcome.NOT_LOADED, Reason.UPSTREAM_NOT_LOADED, ("m", "3")),
    (Code.UNAVAILABLE, "Server is stopping, s", PEER, Outcome.NOT_LOADED, Reason.UPSTREAM_NOT_LOADED, ("m", "3")),
    (Code.NOT_FOUND, "Request for unknown model", PEER, Outcome.NOT_LOADED, Reason.UPSTREAM_NOT_LOADED, ("m", "3")),
    (Code.INVALID_ARGUMENT, "bad", PEER, Outcome.CALLER_FAULT, Reason.UPSTREAM_INVALID, ()),
    (Code.INTERNAL, "Unable to parse request", PEER, Outcome.CALLER_FAULT, Reason.UPSTREAM_INVALID, ()),
    (Code.INTERNAL, "boom", PEER, Outcome.BROKEN, Reason.UPSTREAM_BROKEN, ("m", "3")),
    (Code.UNAVAILABLE, "Exceeds maximum queue size", LOCAL, Outcome.TRANSPORT, Reason.UPSTREAM_LOST, ("", "")),
    (Code.DEADLINE_EXCEEDED, "Deadline Exceeded", LOCAL, Outcome.EXPIRED, Reason.DEADLINE, ()),
    (Code.DEADLINE_EXCEEDED, "Deadline Exceeded", PEER, Outcome.EXPIRED, Reason.DEADLINE, ()),
]


@pytest.mark.parametrize(("code", "text", "from_peer", "outcome", "reason", "hint"), FAULTS)
async def test_a_fault_becomes_an_outcome_an_error_and_a_lesson(
    code: Code, text: str, from_peer: bool, outcome: Outcome, reason: Reason, hint: tuple[str, ...]
) -> None:
    call = make_call()
    connections, result = await send(raises(UpstreamFault(code, text, from_peer=from_peer)), call)
    assert isinstance(result, GatewayError)
    assert result.reason is reason
    attempt = call.trail.attempts[0]
    assert (attempt.outcome, attempt.ended_s) == (outcome, 1000.0)
    assert text in attempt.text
    assert connections.hints == ([(REPLICA, *hint)] if hint else [])
    assert (call.trail.answered_s > 0) == from_peer


async def test_only_the_word_of_the_replica_itself_that_it_lacks_the_model_is_a_refusal() -> None:
    text = "Request for unknown model: 'm' version 3 is not at ready state"
    connections, _ = await send(raises(UpstreamFault(Code.UNAVAILABLE, text, from_peer=True)), make_call())
    assert connections.refusals == [(REPLICA, "m", "3", 1000.0, text)]
    assert connections.hints == [(REPLICA, "m", "3")]
    for fault in (
        UpstreamFault(Code.UNAVAILABLE, text, from_peer=False),
        UpstreamFault(Code.UNAVAILABLE, "Exceeds maximum queue size", from_peer=True),
        UpstreamFault(Code.INTERNAL, "dead", from_peer=True),
    ):
        connections, _ = await send(raises(fault), make_call())
        assert not connections.refusals


@pytest.mark.parametrize("good", [True, False])
async def test_what_comes_over_a_connection_that_was_replaced_says_nothing_of_who_is_there_now(good: bool) -> None:
    connections = HandConnections(returns(b""))

    async def infer(
        message: bytes, metadata: Metadata, timeout_s: float, tail: bytes = b"", attempt: object = None
    ) -> bytes:
        connections.one = HandConnections(returns(b"")).one
        if good:
            return answer()
        raise UpstreamFault(Code.NOT_FOUND, "Request for unknown model: 'm' is not found", from_peer=True)

    connections.one = HandConnections(infer).one
    transport = ReplicaTransport(connections, ManualClock())
    if good:
        assert (await transport.send(make_call())).message == answer()
    else:
        with pytest.raises(GatewayError):
            await transport.send(make_call())
    assert not connections.answers
    assert not connections.refusals


async def test_a_replica_that_was_removed_meanwhile_is_a_lost_connection() -> None:
    connections = HandConnections(returns(answer()))
    connections.one = None
    call = make_call()
    with pytest.raises(GatewayError) as caught:
        await ReplicaTransport(connections, ManualClock()).send(call)
    assert caught.value.reason is Reason.UPSTREAM_LOST
    assert call.trail.attempts[0].outcome is Outcome.TRANSPORT


async def test_a_cancel_reaches_the_replica_and_is_not_judged_here() -> None:
    cancelled = asyncio.Event()

    async def infer(
        message: bytes, metadata: Metadata, timeout_s: float, tail: bytes = b"", attempt: object = None
    ) -> bytes:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        raise AssertionError

    connections = HandConnections(infer)
    assert connections.one is not None
    call = make_call()
    task = asyncio.ensure_future(ReplicaTransport(connections, ManualClock()).send(call))
    await asyncio.sleep(0)
    assert connections.one.in_flight == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled.is_set()
    assert connections.one.in_flight == 0
    assert call.trail.attempts[0].outcome is None
    assert not connections.hints


async def test_counts_tell_how_attempts_ended() -> None:
    connections = HandConnections(returns(answer(version="4")))
    transport = ReplicaTransport(connections, ManualClock())
    with pytest.raises(GatewayError):
        await transport.send(make_call())
    connections.one = HandConnections(returns(answer())).one
    await transport.send(make_call())
    counts = transport.statistics(0.0)
    assert (counts["wrong_answers"], counts["outcomes"]["ok"], counts["outcomes"]["broken"]) == (1, 1, 1)


async def test_a_connection_is_closed_only_after_its_last_call_or_the_end_of_patience() -> None:
    idle = HandConnections(returns(b"")).one
    assert idle is not None
    assert await idle.drain(10.0) == 0
    busy = HandConnections(returns(b"")).one
    assert busy is not None
    busy.enter()
    busy.enter()
    draining = asyncio.ensure_future(busy.drain(30.0))
    await asyncio.sleep(0)
    busy.leave()
    await asyncio.sleep(0)
    assert not draining.done()
    busy.leave()
    assert await draining == 0
    stuck = HandConnections(returns(b"")).one
    assert stuck is not None
    stuck.enter()
    assert await stuck.drain(0.01) == 1
    assert stuck.client.closed  # type: ignore[attr-defined]
