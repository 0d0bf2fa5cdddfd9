"""The simulation finds faults planted in the product's streams and sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateway.core.call import Attempt, Call
from gateway.core.outcome import Outcome
from gateway.core.permit import Permit
from gateway.core.reply import Next, Reply, Response, StreamReply
from gateway.core.session import Session
from gateway.decide.sequences import Sequences, Step, Turn
from gateway.edge.grpc_stream import ClientStream
from gateway.edge.http_generate import HttpGenerate
from gateway.fleet import stream_exchange, stream_lane
from gateway.fleet.stream_exchange import StreamExchange
from gateway.fleet.stream_lane import Flow, Lane
from gateway.layers.admit import AdmitLayer
from gateway.layers.deadline import DeadlineLayer
from gateway.layers.record import RecordLayer
from gateway.layers.track import TrackLayer
from gateway.wire.kserve.parameters import Kind, entry_field
from gateway.wire.kserve.stream_message import StreamedResponse
from tests.unit.simulation_findings import finds

SEEDS = range(40)
BYTES = range(1, 60, 2)

Patch = pytest.MonkeyPatch


def every(count: int) -> Callable[[], bool]:
    """True at each `count`-th asking."""
    asked = 0

    def ask() -> bool:
        nonlocal asked
        asked += 1
        return asked % count == 0

    return ask


# -- responses --------------------------------------------------------------------------------------------------------


def test_a_response_that_is_dropped_is_found(monkeypatch: Patch) -> None:
    sound, now = Flow.put, every(15)

    def leaky(self: Flow, response: StreamedResponse) -> None:
        if response.empty or not now():
            sound(self, response)

    monkeypatch.setattr(Flow, "put", leaky)
    assert finds("shown as complete with", SEEDS)


def test_a_response_that_is_given_twice_is_found(monkeypatch: Patch) -> None:
    sound, now = Flow.put, every(15)

    def doubled(self: Flow, response: StreamedResponse) -> None:
        sound(self, response)
        if now():
            sound(self, response)

    monkeypatch.setattr(Flow, "put", doubled)
    assert finds("responses_are_ones_own_and_in_order", SEEDS)


def test_responses_that_change_places_are_found(monkeypatch: Patch) -> None:
    def last_first(self: Flow, response: StreamedResponse) -> None:
        self._responses.appendleft(response)
        self._wake()

    monkeypatch.setattr(Flow, "put", last_first)
    assert finds("responses_are_ones_own_and_in_order", SEEDS)


def test_a_response_that_goes_to_another_call_is_found(monkeypatch: Patch) -> None:
    sound, now = Lane._deliver, every(10)

    def astray(self: Lane, response: StreamedResponse) -> Flow | None:
        if len(self._flows) > 1 and now():
            response.id = next(each for each in self._flows if each != response.id)
        return sound(self, response)

    monkeypatch.setattr(Lane, "_deliver", astray)
    assert finds("responses_are_ones_own_and_in_order", SEEDS)


def test_a_request_id_that_is_not_given_back_is_found(monkeypatch: Patch) -> None:
    sound = Lane.send

    def forgetful(self: Lane, message: bytes, request_id: str) -> Flow:
        flow = sound(self, message, request_id)
        flow.id = flow.wire_id
        return flow

    monkeypatch.setattr(Lane, "send", forgetful)
    assert finds("a response bears the id", SEEDS)


def test_a_lane_on_which_two_calls_share_an_id_is_found(monkeypatch: Patch) -> None:
    sound = Lane.send

    def careless(self: Lane, message: bytes, request_id: str) -> Flow:
        self._flows.pop(request_id, None)
        return sound(self, message, request_id)

    monkeypatch.setattr(Lane, "send", careless)
    assert finds("and its last response has not come", range(60))


def test_a_stream_cut_short_that_is_shown_as_complete_is_found(monkeypatch: Patch) -> None:
    sound = Flow.end
    monkeypatch.setattr(Flow, "end", lambda self, fault: sound(self, None))
    assert finds("shown as complete with", range(36, 80))


def test_an_error_of_the_model_that_is_swallowed_is_found(monkeypatch: Patch) -> None:
    sound = StreamExchange._response

    def mute(self: StreamExchange, streamed: StreamedResponse) -> Response | None:
        return None if streamed.error else sound(self, streamed)

    monkeypatch.setattr(StreamExchange, "_response", mute)
    assert finds("shown as complete with", SEEDS)


def test_a_step_that_was_cancelled_and_is_taken_for_an_answer_is_found(monkeypatch: Patch) -> None:
    sound = StreamExchange._response

    def credulous(self: StreamExchange, streamed: StreamedResponse) -> Response | None:
        streamed.empty = streamed.empty and self._call.decoupled
        return sound(self, streamed)

    monkeypatch.setattr(StreamExchange, "_response", credulous)
    assert finds("answered without having been executed", range(620, 630))


def test_an_answer_that_overtakes_an_earlier_one_is_found(monkeypatch: Patch) -> None:
    async def at_once(self: ClientStream, call: Call) -> None:
        return None

    monkeypatch.setattr(ClientStream, "_turn", at_once)
    assert finds("its answer overtook", range(120))


# -- the end ----------------------------------------------------------------------------------------------------------


def test_an_end_that_was_asked_for_and_is_not_told_is_found(monkeypatch: Patch) -> None:
    sound = StreamExchange._response

    def silent(self: StreamExchange, streamed: StreamedResponse) -> Response | None:
        self._call.wants_end = False
        return sound(self, streamed)

    monkeypatch.setattr(StreamExchange, "_response", silent)
    assert finds("0 messages are marked as the last one", SEEDS)


def test_an_end_that_is_told_unasked_is_found(monkeypatch: Patch) -> None:
    sound = StreamExchange._response

    def chatty(self: StreamExchange, streamed: StreamedResponse) -> Response | None:
        self._call.wants_end = True
        return sound(self, streamed)

    monkeypatch.setattr(StreamExchange, "_response", chatty)
    assert finds("which was not asked for", SEEDS)


def test_an_upstream_end_that_is_not_asked_for_leaves_calls_waiting_and_is_found(monkeypatch: Patch) -> None:
    monkeypatch.setattr(stream_exchange, "with_end_wanted", lambda message: message)
    assert finds("must be answered", SEEDS)


def test_true_statuses_that_are_not_given_are_found(monkeypatch: Patch) -> None:
    sound = ClientStream.__init__

    def deaf(self: ClientStream, kit: Any, port: Any, headers: Any, deadline_s: float, *, true_status: bool) -> None:
        sound(self, kit, port, headers, deadline_s, true_status=False)

    monkeypatch.setattr(ClientStream, "__init__", deaf)
    assert finds("and the stream ended well", range(100))


def test_events_that_end_in_order_after_a_failure_are_found(monkeypatch: Patch) -> None:
    def fail(self: HttpGenerate, error: Any) -> None:
        if self._begun and not self._ended:
            self._ended = True
            self._outlet.end(self)
        else:
            super(HttpGenerate, self)._fail(error)

    monkeypatch.setattr(HttpGenerate, "_fail", fail)
    assert finds("shown as complete with", range(1, 120, 2))


# -- what is held -----------------------------------------------------------------------------------------------------


def test_a_permit_of_a_stream_that_is_forgotten_is_found(monkeypatch: Patch) -> None:
    sound, now = TrackLayer._end_later, every(40)

    def forgetful(self: TrackLayer, reply: Reply, call: Call, permit: Permit, attempt: Attempt) -> None:
        if not now():
            sound(self, reply, call, permit, attempt)

    monkeypatch.setattr(TrackLayer, "_end_later", forgetful)
    assert finds("slots are held, but", SEEDS)


def test_a_permit_that_is_given_back_at_the_first_response_is_found(monkeypatch: Patch) -> None:
    sound = StreamReply.__init__

    def done(self: StreamReply, first: Any, following: Next, *, ordered: bool, finished: bool = False) -> None:
        sound(self, first, following, ordered=ordered, finished=True)

    monkeypatch.setattr(StreamReply, "__init__", done)
    assert finds("is said to be finished, and its last response has not come", SEEDS)


def test_an_upstream_stream_that_is_never_cancelled_is_found(monkeypatch: Patch) -> None:
    def lazy(self: Lane, flow: Flow) -> None:
        if not flow.ended:
            self._dropped += 1
        self.room()

    monkeypatch.setattr(Lane, "released", lazy)
    assert finds("an upstream stream is open for", SEEDS)


def test_an_upstream_stream_that_outlives_its_client_is_found(monkeypatch: Patch) -> None:
    async def open_end(self: Session) -> None:
        self._closed = True

    monkeypatch.setattr(Session, "aclose", open_end)
    assert finds("a stream of its is open upstream", SEEDS)


def test_a_reader_that_is_never_woken_again_is_found(monkeypatch: Patch) -> None:
    monkeypatch.setattr(stream_lane, "BUFFERED_MAX", 2)
    monkeypatch.setattr(Lane, "room", lambda self: None)
    assert finds("must be answered", SEEDS)


def test_memory_of_messages_that_is_not_given_back_is_found(monkeypatch: Patch) -> None:
    sound = ClientStream._ended

    def forgetful(self: ClientStream, task: Any, call: Call, held: int) -> None:
        sound(self, task, call, 0)

    monkeypatch.setattr(ClientStream, "_ended", forgetful)
    assert finds("bytes of bodies", range(4))


# -- limits and records -----------------------------------------------------------------------------------------------


def test_a_pause_limit_that_is_not_kept_is_found(monkeypatch: Patch) -> None:
    monkeypatch.setattr(DeadlineLayer, "_watched", lambda self, call, following, idle_s: following)
    assert finds("for a further response", range(120))


def test_a_limit_of_the_whole_that_begins_anew_with_the_first_response_is_found(monkeypatch: Patch) -> None:
    sound = DeadlineLayer._watched

    def late(self: DeadlineLayer, call: Call, following: Next, idle_s: float) -> Next:
        call.deadline_s += 0.5 + self._now_s() - call.arrived_s
        return sound(self, call, following, idle_s)

    monkeypatch.setattr(DeadlineLayer, "_watched", late)
    assert finds("limits_of_streams_hold", range(36, 120))


def test_a_record_that_calls_a_broken_stream_good_is_found(monkeypatch: Patch) -> None:
    def rosy(self: RecordLayer, call: Call, reply: StreamReply, outcome: Outcome) -> None:
        call.trail.responses = reply.count
        self._end(call, outcome, None, reply.message)

    monkeypatch.setattr(RecordLayer, "_stream_ended", rosy)
    assert finds("the_record_of_a_stream_says_what_its_client_saw", SEEDS)


def test_a_record_for_the_first_call_of_a_stream_alone_is_found(monkeypatch: Patch) -> None:
    sound = RecordLayer._stream_ended

    def first_only(self: RecordLayer, call: Call, reply: StreamReply, outcome: Outcome) -> None:
        if call.stream_position < 2:
            sound(self, call, reply, outcome)

    monkeypatch.setattr(RecordLayer, "_stream_ended", first_only)
    assert finds("records are missing, 0 dropped", SEEDS)


# -- sequences --------------------------------------------------------------------------------------------------------


def test_a_sequence_that_is_moved_to_another_replica_is_found(monkeypatch: Patch) -> None:
    sound, now = Sequences.turn, every(7)

    def restless(self: Sequences, step: Step, replicas: Any) -> Turn:
        turn = sound(self, step, replicas)
        others = [replica for replica in replicas if replica != turn.replica]
        return Turn(others[0]) if others and not step.start and now() else turn

    monkeypatch.setattr(Sequences, "turn", restless)
    assert finds("lives on", range(100))


def test_a_sequence_that_is_begun_again_in_silence_is_found(monkeypatch: Patch) -> None:
    sound = Sequences.turn
    start = entry_field(4, "sequence_start", Kind.BOOL, True)

    def forgiving(self: Sequences, step: Step, replicas: Any) -> Turn:
        turn = sound(self, step, replicas)
        if turn.lost and replicas:
            restarted.add(step.id)
            return Turn(next(iter(replicas)))
        return turn

    restarted: set[int | str] = set()
    send = AdmitLayer.send

    async def with_start(self: AdmitLayer, call: Call) -> Reply:
        if call.sequence is not None and call.sequence.id in restarted and call.message is not None:
            restarted.discard(call.sequence.id)
            call.message += start
        return await send(self, call)

    monkeypatch.setattr(Sequences, "turn", forgiving)
    monkeypatch.setattr(AdmitLayer, "send", with_start)
    assert finds("which was answered before it", range(28, 300))


def test_steps_that_overtake_one_another_are_found(monkeypatch: Patch) -> None:
    def last_first(self: Sequences, entry: Any) -> list[Step]:
        waiting = [step for step in entry.steps if not step.gone]
        if not waiting or not self._may_go(entry, entry.steps.index(waiting[0])):
            return []
        waiting[-1].gone = True
        self._waiting -= 1
        return waiting[-1:]

    monkeypatch.setattr(Sequences, "_let_go", last_first)
    assert finds("sequences_keep_their_state_their_place_and_their_order", range(30, 130))


def test_a_sequence_that_forgets_its_replica_is_found(monkeypatch: Patch) -> None:
    sound, now = Sequences.leave, every(9)

    def forgetful(self: Sequences, step: Step, *rest: Any) -> list[Step]:
        entry = step._entry
        free = sound(self, step, *rest)
        if entry is not None and now():
            entry.lost = True
        return free

    monkeypatch.setattr(Sequences, "leave", forgetful)
    assert finds("and nothing ever happened to the fleet", range(24, 120))


def test_a_step_that_waits_for_ever_is_found(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Sequences, "_let_go", lambda self, entry: [])
    assert finds("waits, and nothing is before it", SEEDS)
