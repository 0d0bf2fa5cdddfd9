"""Calls over a shared stream to a replica: who gets which response, what an error inside means, who is cancelled."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest
from tritonclient.grpc import service_pb2 as pb

from gateway.core.call import Attempt, Call, SequenceStep
from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason
from gateway.core.faces import ReplicaClient
from gateway.core.faults import UpstreamFault
from gateway.core.outcome import Outcome
from gateway.core.reply import StreamReply
from gateway.core.session import Session
from gateway.fleet.connection import Connection
from gateway.fleet.stream_exchange import StreamExchange
from gateway.fleet.stream_lane import BUFFERED_BYTES_MAX, BUFFERED_MAX, DROPPED_MAX, Flow, Lane, Lanes
from gateway.fleet.transport import ReplicaTransport
from tests.support.clock import ManualClock
from tests.support.replica_stream import HandStream, HandStreamClient

REPLICA = "gpu/h:1"


class Peer:
    """A transport in front of one scripted replica."""

    def __init__(self) -> None:
        self.client = HandStreamClient()
        face: ReplicaClient = self.client  # type: ignore[assignment]
        self.connection_used = Connection(face)
        self.refusals: list[str] = []
        self.hints: list[str] = []
        self.transport = ReplicaTransport(self, ManualClock())
        self.sessions: list[Session] = []

    def connection(self, replica: str) -> Connection | None:
        return self.connection_used

    def hint(self, replica: str, model: str, version: str) -> None:
        self.hints.append(replica)

    def note_answer(self, replica: str, connection: Connection, model: str, version: str, now_s: float) -> None:
        return None

    def refused(self, replica: str, model: str, version: str, asked_s: float, text: str) -> None:
        self.refusals.append(text)

    @property
    def stream(self) -> HandStream:
        return self.client.streams[-1]

    def session(self) -> Session:
        session = Session((("x-tenant", "t"),))
        self.sessions.append(session)
        return session

    def send(self, call: Call) -> asyncio.Task[StreamReply]:
        async def ask() -> StreamReply:
            reply = await self.transport.send(call)
            assert isinstance(reply, StreamReply)
            return reply

        return asyncio.get_running_loop().create_task(ask())


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    async with asyncio.timeout(10):
        peer = Peer()
        yield peer
        for session in peer.sessions:
            await session.aclose()
        assert peer.connection_used.in_flight == 0, "a call was not counted off its connection"
        assert all(stream.cancelled for stream in peer.client.streams), "a stream was left open"
        names = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert "stream-lane" not in names


def make_call(session: Session, request_id: str = "", *, decoupled: bool = True, wants_end: bool = False) -> Call:
    message = pb.ModelInferRequest(model_name="m", id=request_id).SerializeToString()
    call = Call(
        request_id="r",
        model="m",
        version="",
        arrived_s=1000.0,
        arrived_wall_s=0.0,
        message=message,
        session=session,
    )
    call.body_id = request_id
    call.decoupled = decoupled
    call.wants_end = wants_end
    call.trail.version_routed = "3"
    call.trail.attempts.append(Attempt(REPLICA, 1000.0))
    return call


async def rest(reply: StreamReply) -> list[bytes]:
    """The data of all responses that are still to come, then the reply closed. b"" stands for an empty response."""
    found = []
    while (response := await reply.next()) is not None:
        assert response.error is None
        message = pb.ModelInferResponse.FromString(response.message)
        found.append(message.raw_output_contents[0] if message.raw_output_contents else b"")
    await reply.aclose(Outcome.OK)
    return found


async def test_responses_come_until_the_replica_says_that_one_was_the_last(peer: Peer) -> None:
    call = make_call(peer.session(), "a")
    sending = peer.send(call)
    await asyncio.sleep(0)
    request = await peer.stream.request(0)
    assert request.parameters["triton_enable_empty_final_response"].bool_param
    assert (request.model_name, request.model_version, request.id) == ("m", "3", "a")
    peer.stream.respond("a", b"1")
    reply = await sending
    peer.stream.respond("a", b"2")
    peer.stream.respond("a", None, final=True)
    assert await rest(reply) == [b"1", b"2"]
    assert call.trail.attempts[0].outcome is Outcome.OK
    assert call.trail.version_served == "3"


async def test_the_end_is_told_by_an_empty_response_to_a_caller_who_asked_for_it(peer: Peer) -> None:
    sending = peer.send(make_call(peer.session(), "a", wants_end=True))
    await asyncio.sleep(0)
    peer.stream.respond("a", b"1")
    peer.stream.respond("a", None, final=True)
    assert await rest(await sending) == [b"1", b""]


async def test_no_response_at_all_is_a_good_answer(peer: Peer) -> None:
    call = make_call(peer.session(), "a")
    sending = peer.send(call)
    await asyncio.sleep(0)
    peer.stream.respond("a", None, final=True)
    reply = await sending
    assert reply.first is None
    assert await rest(reply) == []
    assert call.trail.attempts[0].outcome is Outcome.OK
    assert call.trail.version_served == "3"


async def test_calls_of_one_session_share_a_stream_and_each_gets_its_own_responses(peer: Peer) -> None:
    session = peer.session()
    first, second = peer.send(make_call(session, "a")), peer.send(make_call(session, "b"))
    await asyncio.sleep(0)
    peer.stream.respond("b", b"B")
    peer.stream.respond("a", b"A")
    peer.stream.respond("a", None, final=True)
    peer.stream.respond("b", None, final=True)
    assert await rest(await first) == [b"A"]
    assert await rest(await second) == [b"B"]
    assert len(peer.client.streams) == 1
    assert peer.stream.metadata == (("x-tenant", "t"),)


@pytest.mark.parametrize("request_id", ["", "same"])
async def test_calls_with_the_same_id_are_told_apart_and_get_their_id_back(peer: Peer, request_id: str) -> None:
    session = peer.session()
    calls = [peer.send(make_call(session, request_id)) for _ in range(3)]
    await asyncio.sleep(0)
    on_the_wire = [(await peer.stream.request(number)).id for number in range(3)]
    assert on_the_wire[0] == request_id
    assert len(set(on_the_wire)) == 3
    for number in (2, 0, 1):
        peer.stream.respond(on_the_wire[number], bytes([number]), final=True)
    for number, call in enumerate(calls):
        reply = await call
        assert reply.first is not None
        response = pb.ModelInferResponse.FromString(reply.first.message)
        assert (response.id, response.raw_output_contents[0]) == (request_id, bytes([number]))
        assert await rest(reply) == [bytes([number])]


async def test_an_id_may_be_used_again_once_its_call_has_ended(peer: Peer) -> None:
    session = peer.session()
    for number in range(3):
        call = peer.send(make_call(session, "a"))
        assert (await _written(peer, number)).id == "a"
        peer.stream.respond("a", b"x", final=True)
        assert await rest(await call) == [b"x"]


async def _written(peer: Peer, number: int) -> pb.ModelInferRequest:
    await asyncio.sleep(0)
    return await peer.stream.request(number)


@pytest.mark.parametrize(
    ("text", "final", "outcome", "reason", "code"),
    [
        ("Exceeds maximum queue size", None, Outcome.OVERLOAD, Reason.UPSTREAM_QUEUE_FULL, Code.RESOURCE_EXHAUSTED),
        ("Request timeout expired", True, Outcome.OVERLOAD, Reason.UPSTREAM_QUEUE_TIMEOUT, Code.DEADLINE_EXCEEDED),
        ("Request for unknown model: 'm'", None, Outcome.NOT_LOADED, Reason.UPSTREAM_NOT_LOADED, Code.UNAVAILABLE),
        ("unexpected inference input 'x'", None, Outcome.CALLER_FAULT, Reason.UPSTREAM_INVALID, Code.INVALID_ARGUMENT),
        ("cuda fault 700", True, Outcome.BROKEN, Reason.UPSTREAM_BROKEN, Code.INTERNAL),
    ],
)
async def test_an_error_inside_the_stream_is_the_failure_that_its_text_tells(
    peer: Peer, text: str, final: bool | None, outcome: Outcome, reason: Reason, code: Code
) -> None:
    session = peer.session()
    call, other = make_call(session, "a"), make_call(session, "b")
    sending, waiting = peer.send(call), peer.send(other)
    await asyncio.sleep(0)
    peer.stream.report(text, "a", final=final)
    with pytest.raises(GatewayError) as raised:
        await sending
    assert (raised.value.reason, raised.value.code) == (reason, code)
    assert call.trail.attempts[0].outcome is outcome
    peer.stream.respond("b", b"fine", final=True)
    assert await rest(await waiting) == [b"fine"], "other calls of the stream are untouched"


async def test_a_model_that_reports_an_error_may_go_on_and_the_call_has_failed_all_the_same(peer: Peer) -> None:
    call = make_call(peer.session(), "a", wants_end=True)
    sending = peer.send(call)
    await asyncio.sleep(0)
    peer.stream.respond("a", b"1")
    reply = await sending
    peer.stream.report("cuda fault 700", "a", final=False)
    peer.stream.respond("a", None, final=True)
    assert (await reply.next()) is reply.first
    second = await reply.next()
    assert second is not None
    assert second.error is not None
    assert second.error.reason is Reason.UPSTREAM_BROKEN
    last = await reply.next()
    assert last is not None
    assert last.error is None
    assert await reply.next() is None
    assert reply.failure is second.error
    await reply.aclose(Outcome.OK)
    assert call.trail.attempts[0].outcome is Outcome.BROKEN
    assert reply.count == 3


@pytest.mark.parametrize("how", ["error inside", "stream breaks", "caller leaves"])
async def test_what_failed_is_freed_without_the_garbage_collector(peer: Peer, how: str) -> None:
    async def fail() -> None:
        sending = peer.send(make_call(peer.session(), "a"))
        await asyncio.sleep(0)
        if how == "caller leaves":
            sending.cancel()
        elif how == "stream breaks":
            peer.stream.end(UpstreamFault(Code.UNAVAILABLE, "Socket closed", from_peer=False))
        else:
            peer.stream.report("cuda fault 700", "a", final=True)
        await asyncio.wait([sending])  # not raised here: the traceback would hold this frame, and that the task
        assert sending.cancelled() or isinstance(sending.exception(), GatewayError)
        await peer.sessions.pop().aclose()
        peer.client.streams.clear()

    gc.collect()
    gc.disable()
    try:
        await fail()
        await asyncio.sleep(0)
        kinds = (StreamExchange, Flow, Lane)
        assert [each for each in gc.get_objects() if isinstance(each, kinds)] == []
    finally:
        gc.enable()


async def test_a_stream_that_breaks_fails_every_call_that_is_out_on_it(peer: Peer) -> None:
    session = peer.session()
    begun, waiting = peer.send(make_call(session, "a")), peer.send(make_call(session, "b"))
    await asyncio.sleep(0)
    peer.stream.respond("a", b"1")
    reply = await begun
    peer.stream.end(UpstreamFault(Code.UNAVAILABLE, "Socket closed", from_peer=False))
    with pytest.raises(GatewayError) as raised:
        await waiting
    assert raised.value.reason is Reason.UPSTREAM_LOST
    assert str(raised.value) == "the connection to the model server broke before it answered"
    await reply.next()
    with pytest.raises(GatewayError) as broken:
        await reply.next()
    assert broken.value.reason is Reason.UPSTREAM_LOST
    assert str(broken.value) == "the connection to the model server broke after 1 response"
    assert reply.failure is broken.value
    await reply.aclose(Outcome.GATEWAY_FAULT)
    assert peer.hints == [REPLICA, REPLICA]


async def test_a_stream_that_breaks_says_how_many_responses_had_come(peer: Peer) -> None:
    sending = peer.send(make_call(peer.session(), "a"))
    await asyncio.sleep(0)
    for number in range(7):
        peer.stream.respond("a", b"%d" % number)
    reply = await sending
    peer.stream.end(UpstreamFault(Code.UNAVAILABLE, "Socket closed", from_peer=False))
    for _ in range(7):
        assert await reply.next() is not None
    with pytest.raises(GatewayError, match=r"broke after 7 responses$"):
        await reply.next()
    await reply.aclose(Outcome.GATEWAY_FAULT)


async def test_an_orderly_end_before_the_last_response_is_a_broken_stream(peer: Peer) -> None:
    sending = peer.send(make_call(peer.session(), "a"))
    await asyncio.sleep(0)
    peer.stream.respond("a", b"1")
    reply = await sending
    peer.stream.end()
    await reply.next()
    with pytest.raises(GatewayError) as raised:
        await reply.next()
    assert raised.value.reason is Reason.UPSTREAM_LOST
    await reply.aclose(Outcome.GATEWAY_FAULT)


async def test_after_a_broken_stream_the_next_call_opens_another(peer: Peer) -> None:
    session = peer.session()
    first = peer.send(make_call(session, "a"))
    await asyncio.sleep(0)
    peer.stream.end(UpstreamFault(Code.UNAVAILABLE, "Socket closed", from_peer=False))
    with pytest.raises(GatewayError):
        await first
    second = peer.send(make_call(session, "a"))
    await _written(peer, 0)
    assert len(peer.client.streams) == 2
    peer.stream.respond("a", b"x", final=True)
    assert await rest(await second) == [b"x"]


async def test_the_last_caller_to_leave_cancels_the_stream_on_the_replica(peer: Peer) -> None:
    session = peer.session()
    first, second = peer.send(make_call(session, "a")), peer.send(make_call(session, "b"))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait((first,))
    assert not peer.stream.cancelled, "somebody else is out on it"
    second.cancel()
    await asyncio.wait((second,))
    for _ in range(3):
        await asyncio.sleep(0)
    assert peer.stream.cancelled


async def test_what_comes_for_a_caller_who_left_is_thrown_away(peer: Peer) -> None:
    session = peer.session()
    first, second = peer.send(make_call(session, "a")), peer.send(make_call(session, "b"))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait((first,))
    for _ in range(3 * BUFFERED_MAX):
        peer.stream.respond("a", b"late")
    peer.stream.respond("a", None, final=True)
    peer.stream.respond("b", b"B", final=True)
    assert await rest(await second) == [b"B"]


async def test_a_stream_that_mostly_works_for_nobody_is_cancelled(peer: Peer) -> None:
    session = peer.session()
    staying = peer.send(make_call(session, "stay"))
    await asyncio.sleep(0)
    for number in range(DROPPED_MAX + 1):
        leaving = peer.send(make_call(session, f"leave-{number}"))
        await _written(peer, number + 1)
        leaving.cancel()
        await asyncio.wait((leaving,))
    with pytest.raises(GatewayError) as raised:
        await staying
    assert raised.value.reason is Reason.UPSTREAM_LOST


async def test_a_slow_caller_holds_up_the_replica_and_not_the_memory(peer: Peer) -> None:
    sending = peer.send(make_call(peer.session(), "a"))
    await asyncio.sleep(0)
    for number in range(5 * BUFFERED_MAX):
        peer.stream.respond("a", bytes([number]))
    peer.stream.respond("a", None, final=True)
    reply = await sending
    for _ in range(10 * BUFFERED_MAX):
        await asyncio.sleep(0)
    assert peer.stream.reads <= BUFFERED_MAX + 2
    assert await rest(reply) == [bytes([number]) for number in range(5 * BUFFERED_MAX)]


async def test_an_answer_of_another_version_is_never_passed_on(peer: Peer) -> None:
    call = make_call(peer.session(), "a")
    sending = peer.send(call)
    await asyncio.sleep(0)
    peer.stream.respond("a", b"x", version="2")
    with pytest.raises(GatewayError) as raised:
        await sending
    assert raised.value.reason is Reason.UPSTREAM_WRONG_ANSWER
    assert call.trail.attempts[0].outcome is Outcome.BROKEN


async def test_bytes_that_are_no_response_break_the_stream(peer: Peer) -> None:
    sending = peer.send(make_call(peer.session(), "a"))
    await asyncio.sleep(0)
    peer.stream.raw(b"\xff\xff\xff")
    with pytest.raises(GatewayError) as raised:
        await sending
    assert raised.value.reason is Reason.UPSTREAM_BROKEN


async def test_a_sequence_goes_over_the_stream_in_order_and_is_not_asked_for_an_empty_end(peer: Peer) -> None:
    session = peer.session()
    calls = []
    sent: list[int] = []
    for number in range(3):
        call = make_call(session, "", decoupled=False)
        call.sequence = SequenceStep(7, start=number == 0, end=number == 2)
        call.on_sent = lambda number=number: sent.append(number)
        calls.append(peer.send(call))
    await asyncio.sleep(0)
    ids = [(await peer.stream.request(number)).id for number in range(3)]
    assert not any(request.parameters for request in peer.stream.written)
    assert sent == [0, 1, 2]
    for number, wire_id in enumerate(ids):
        peer.stream.respond(wire_id, bytes([number]), final=True)
    for number, pending in enumerate(calls):
        reply = await pending
        assert reply.ordered
        assert await rest(reply) == [bytes([number])]


async def test_a_stream_on_which_only_callers_who_left_are_out_is_cancelled_when_the_last_other_call_ends(
    peer: Peer,
) -> None:
    session = peer.session()
    leaving, staying = peer.send(make_call(session, "a")), peer.send(make_call(session, "b"))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait((leaving,))
    peer.stream.respond("b", b"B", final=True)
    assert await rest(await staying) == [b"B"]
    for _ in range(3):
        await asyncio.sleep(0)
    assert peer.stream.cancelled, "the replica works for a caller who left"


async def test_what_comes_at_once_behind_an_error_is_not_lost(peer: Peer) -> None:
    call = make_call(peer.session(), "a", wants_end=True)
    sending = peer.send(call)
    await asyncio.sleep(0)
    peer.stream.report("cuda fault 700", "a", final=False)
    peer.stream.respond("a", b"2")
    peer.stream.respond("a", None, final=True)
    reply = await sending
    found = []
    while (response := await reply.next()) is not None:
        found.append(response.error is not None)
    assert found == [True, False, False]
    await reply.aclose(Outcome.OK)
    assert call.trail.attempts[0].outcome is Outcome.BROKEN


async def test_the_reply_says_whether_the_replica_is_done_with_the_request(peer: Peer) -> None:
    session = peer.session()
    calls = [make_call(session, request_id) for request_id in "abc"]
    pending_replies = [peer.send(call) for call in calls]
    await asyncio.sleep(0)
    peer.stream.respond("a", b"A", final=True)
    peer.stream.respond("b", b"B")
    peer.stream.respond("c", b"C")
    first, second, third = [await pending for pending in pending_replies]
    assert [reply.finished for reply in (first, second, third)] == [True, False, False]
    assert calls[0].trail.attempts[0].outcome is Outcome.OK, "an attempt ends when the replica is done"
    peer.stream.respond("b", None, final=True)
    peer.stream.respond("c", None, final=True)
    assert [await rest(reply) for reply in (first, second, third)] == [[b"A"], [b"B"], [b"C"]]


async def test_a_stream_that_breaks_after_an_error_inside_it_is_one_failed_attempt(peer: Peer) -> None:
    call = make_call(peer.session(), "a")
    sending = peer.send(call)
    await asyncio.sleep(0)
    peer.stream.respond("a", b"1")
    reply = await sending
    peer.stream.report("cuda fault 700", "a", final=False)
    peer.stream.end(UpstreamFault(Code.UNAVAILABLE, "Socket closed", from_peer=False))
    assert await reply.next() is not None
    assert await reply.next() is not None
    with pytest.raises(GatewayError):
        await reply.next()
    await reply.aclose(Outcome.GATEWAY_FAULT)
    assert call.trail.attempts[0].outcome is Outcome.BROKEN
    assert sum(peer.transport.statistics(0.0)["outcomes"].values()) == 1


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize(
    "text", ["the door is not ready", "Request for unknown model: 'x'", "Server exiting", "protocol is restricted"]
)
async def test_a_model_s_own_words_never_say_that_the_replica_has_not_got_it(
    peer: Peer, text: str, final: bool
) -> None:
    sending = peer.send(make_call(peer.session(), "a"))
    await asyncio.sleep(0)
    peer.stream.report(text, "a", final=final)
    if not final:
        peer.stream.respond("a", None, final=True)
        reply = await sending
        assert reply.first is not None
        error = reply.first.error
        await reply.aclose(Outcome.OK)
    else:
        with pytest.raises(GatewayError) as raised:
            await sending
        error = raised.value
    assert error is not None
    assert error.reason is Reason.UPSTREAM_BROKEN
    assert peer.refusals == [], "a caller could have a model say this, and take the replica from everybody"


async def test_an_error_s_text_names_the_request_as_its_caller_does(peer: Peer) -> None:
    session = peer.session()
    out = [peer.send(make_call(session, "same")) for _ in range(2)]
    await asyncio.sleep(0)
    wire_id = (await peer.stream.request(1)).id
    peer.stream.report(f"[request id: {wire_id}] unexpected inference input 'x'", wire_id)
    with pytest.raises(GatewayError) as raised:
        await out[1]
    assert raised.value.message == "[request id: same] unexpected inference input 'x'"
    peer.stream.respond("same", b"x", final=True)
    assert await rest(await out[0]) == [b"x"]


async def test_a_lane_that_is_over_is_not_kept(peer: Peer) -> None:
    session = peer.session()
    sending = peer.send(make_call(session, "a"))
    await asyncio.sleep(0)
    lanes = session.part(peer.transport, Lanes)
    assert len(lanes) == 1
    peer.stream.end(UpstreamFault(Code.UNAVAILABLE, "Socket closed", from_peer=False))
    with pytest.raises(GatewayError):
        await sending
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(lanes) == 0


@pytest.mark.parametrize("request_id", ["a\0b", "\0", "\0\0a"])
async def test_an_id_that_triton_would_cut_off_finds_its_way_back(peer: Peer, request_id: str) -> None:
    session = peer.session()
    out = [peer.send(make_call(session, each)) for each in (request_id, request_id.replace("\0", "?"))]
    await asyncio.sleep(0)
    wire_ids = [(await peer.stream.request(number)).id for number in range(2)]
    assert len(set(wire_ids)) == 2
    assert "\0" not in "".join(wire_ids)
    for wire_id in wire_ids:
        peer.stream.respond(wire_id, wire_id.encode(), final=True)
    for sending, wire_id in zip(out, wire_ids, strict=True):
        assert await rest(await sending) == [wire_id.encode()]


async def test_a_slow_caller_of_large_responses_holds_few_of_them(peer: Peer) -> None:
    sending = peer.send(make_call(peer.session(), "a"))
    await asyncio.sleep(0)
    for _ in range(BUFFERED_MAX):
        peer.stream.respond("a", bytes(BUFFERED_BYTES_MAX))
    peer.stream.respond("a", None, final=True)
    reply = await sending
    for _ in range(10 * BUFFERED_MAX):
        await asyncio.sleep(0)
    assert peer.stream.reads <= 4
    assert len(await rest(reply)) == BUFFERED_MAX


async def test_one_large_response_holds_nobody_up_whose_turn_comes_first(peer: Peer) -> None:
    session = peer.session()
    calls = [make_call(session, each, decoupled=False) for each in ("first", "second")]
    for number, call in enumerate(calls):
        call.sequence = SequenceStep(number + 1, True, True)
    first, second = map(peer.send, calls)
    await asyncio.sleep(0)
    await peer.stream.request(1)
    peer.stream.respond("second", bytes(2 * BUFFERED_BYTES_MAX), final=True)
    peer.stream.respond("first", b"x", final=True)
    assert await rest(await first) == [b"x"]
    assert len(await rest(await second)) == 1


async def test_a_session_that_ends_with_nothing_out_ends_its_streams_in_good_order(peer: Peer) -> None:
    session = peer.session()
    sending = peer.send(make_call(session, "a"))
    await asyncio.sleep(0)
    peer.stream.respond("a", b"x", final=True)
    assert await rest(await sending) == [b"x"]
    await session.aclose()
    assert peer.stream.half_closed
    assert not peer.stream.cancelled_early, "a cancellation costs the replica more than an end"


async def test_a_session_that_ends_while_a_call_is_out_cancels_it_on_the_replica(peer: Peer) -> None:
    session = peer.session()
    sending = peer.send(make_call(session, "a"))
    await asyncio.sleep(0)
    peer.stream.respond("a", b"x")
    reply = await sending
    await session.aclose()
    assert peer.stream.cancelled_early
    await reply.aclose(Outcome.ABANDONED)


async def test_a_replica_that_does_not_end_its_stream_is_not_waited_for_long(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.fleet.stream_lane.END_S", 0.01)
    session = peer.session()
    sending = peer.send(make_call(session, "a"))
    await asyncio.sleep(0)
    peer.stream.respond("a", b"x", final=True)
    await rest(await sending)
    peer.stream.half_close = lambda: None  # type: ignore[method-assign]
    await session.aclose()
    assert peer.stream.cancelled_early
