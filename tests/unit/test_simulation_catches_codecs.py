"""The simulation finds faults planted where bytes are: in the codec, in the links to replicas, in the gRPC port."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateway.edge import grpc_head_plan, grpc_rpc_head
from gateway.edge.grpc_blocks import OPENING
from gateway.edge.grpc_port import GrpcPort
from gateway.edge.grpc_rpc import Rpc
from gateway.fleet.http2_channel import Http2Channel
from gateway.fleet.http2_link import Http2Link
from gateway.fleet.http2_unary import UnaryCall
from gateway.wire.hpack import HeaderBlock
from gateway.wire.http2 import Http2Client, Http2Connection, Http2Server, Stream
from gateway.wire.http2.frames import header_frames, pack_head
from tests.simulation.scenario import scenario
from tests.unit.simulation_findings import finds, verdict

CODECS = [seed for seed in range(80) if scenario(seed).codecs]
"""Every scenario is of one kind or the other by its seed alone."""
CUT = [2309, 2650, *(seed for seed in range(200) if {"codecs", "cut-streams"} <= set(scenario(seed).tags))]
"""Those in which something between the gateway and a replica resets what it passes on: first such in which that meets
calls that run.
"""

Patch = pytest.MonkeyPatch


def every(count: int) -> Callable[[], bool]:
    """True at each `count`-th asking."""
    asked = 0

    def ask() -> bool:
        nonlocal asked
        asked += 1
        return asked % count == 0

    return ask


def test_half_of_the_seeds_go_through_the_codecs_and_find_nothing_in_sound_ones() -> None:
    assert len(CODECS) == 40
    assert verdict(CODECS[:2]) == ""  # all of them are among the thousand


# -- links to replicas ------------------------------------------------------------------------------------------------


def test_a_link_that_loses_a_response_is_found(monkeypatch: Patch) -> None:
    sound, now = UnaryCall.on_trailers, every(30)

    def leaky(self: UnaryCall, block: HeaderBlock) -> None:
        if not now():
            sound(self, block)

    monkeypatch.setattr(UnaryCall, "on_trailers", leaky)
    assert finds("has come, and nobody has heard of it", CODECS)


def test_a_cancellation_that_does_not_leave_is_found(monkeypatch: Patch) -> None:
    def silent(self: Http2Link, stream: Stream, code: int) -> None:
        self.codec._forget(stream)

    monkeypatch.setattr(Http2Link, "reset", silent)
    assert finds("has not heard of it", CODECS)


def test_a_call_that_is_sent_again_although_it_may_have_run_is_found(monkeypatch: Patch) -> None:
    sound = UnaryCall.on_reset

    def bold(self: UnaryCall, code: int, text: str, from_peer: bool, unprocessed: bool) -> None:
        sound(self, code, text, from_peer, True)

    monkeypatch.setattr(UnaryCall, "on_reset", bold)
    assert finds("nothing_runs_oftener_than_it_was_sent", CUT)


def test_connections_to_replicas_that_stay_open_are_found(monkeypatch: Patch) -> None:
    async def open_end(self: Http2Channel, text: str) -> None:
        self._closed = True

    monkeypatch.setattr(Http2Channel, "aclose", open_end)
    assert finds("left behind: a connection to", CODECS[:2])


def test_more_calls_on_a_connection_than_its_replica_takes_are_found(monkeypatch: Patch) -> None:
    sound = Http2Client._apply_settings

    def deaf(self: Http2Client, body: bytes) -> None:
        sound(self, body)
        self._streams_max = 1000

    monkeypatch.setattr(Http2Client, "_apply_settings", deaf)
    assert finds("which are all that may be", CODECS)


def test_an_answer_that_is_taken_for_anothers_is_found(monkeypatch: Patch) -> None:
    sound, now = UnaryCall.on_data, every(20)
    last: list[UnaryCall] = []

    def astray(self: UnaryCall, data: bytes, start: int, stop: int, end: bool) -> None:
        sound(self, data, start, stop, end)
        if now() and last and self._answer is not None and last[0]._answer is not None:
            self._answer, last[0]._answer = last[0]._answer, self._answer
        last[:] = [self]

    monkeypatch.setattr(UnaryCall, "on_data", astray)
    assert finds("the_answer_is_the_questions_own", CODECS)


# -- the codec --------------------------------------------------------------------------------------------------------


def test_a_codec_that_swallows_a_reset_is_found(monkeypatch: Patch) -> None:
    def deaf(self: Http2Connection, stream_id: int, data: bytes, start: int, stop: int) -> None:
        return None

    monkeypatch.setattr(Http2Server, "_rst_stream_frame", deaf)
    assert finds("too long after its client left", CODECS)


def test_a_window_that_is_never_returned_is_found(monkeypatch: Patch) -> None:
    # Only streams of requests give windows back: it takes a scenario with enough of them on one connection.
    streaming = [seed for seed in range(80, 120) if scenario(seed).codecs]
    monkeypatch.setattr(Http2Server, "acknowledge", lambda self, stream, size: None)
    assert finds("must be answered", streaming)


def test_a_window_of_the_peer_that_is_not_kept_is_found(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Http2Connection, "_set_initial_window_out", lambda self, size: None)
    assert finds("bytes more than the window of stream", CODECS)


def test_a_window_update_that_is_swallowed_is_found(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Http2Server, "_window_update_frame", lambda self, stream_id, data, start, stop: None)
    assert finds("must be answered", CODECS)


def test_a_frame_that_is_lost_between_two_reads_is_found(monkeypatch: Patch) -> None:
    def forgetful(self: Http2Connection, data: bytes, pos: int) -> None:
        return None

    monkeypatch.setattr(Http2Client, "_keep", forgetful)
    assert finds("the other side ended the connection with code", CODECS)


# -- the port ---------------------------------------------------------------------------------------------------------


def test_a_port_that_answers_twice_is_found(monkeypatch: Patch) -> None:
    sound, now = Rpc.answer, every(10)

    def twice(self: Rpc, head: bytes, message: bytes, tail: bytes) -> None:
        sound(self, head, message, tail)
        if now():
            self.connection.codec._emit(header_frames(self.id, OPENING, 0, 16_384))

    monkeypatch.setattr(Rpc, "answer", twice)
    assert finds("HEADERS on stream", CODECS)


def test_data_behind_the_end_is_found(monkeypatch: Patch) -> None:
    sound, now = Rpc.end_with, every(5)

    def chatty(self: Rpc, block: bytes) -> None:
        sound(self, block)
        if now():
            self.connection.codec._emit(pack_head(5 << 8, 0, self.id) + bytes(5))

    monkeypatch.setattr(Rpc, "end_with", chatty)
    assert finds("DATA on stream", CODECS)


def test_memory_of_messages_that_is_not_given_back_is_found(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Rpc, "release", lambda self: None)
    assert finds("bytes of bodies", CODECS[:2])


def test_rpcs_that_are_never_over_are_found(monkeypatch: Patch) -> None:
    sound = GrpcPort.__init__

    class Kept(dict[Rpc, None]):
        def pop(self, rpc: Rpc, *default: None) -> None:  # type: ignore[override]
            """Nobody leaves."""

    def made(self: GrpcPort, *arguments: Any, **more: Any) -> None:
        sound(self, *arguments, **more)
        self.rpcs = Kept(self.rpcs)

    monkeypatch.setattr(GrpcPort, "__init__", made)
    assert finds("in the gRPC port", CODECS[:2])


def test_a_port_that_tells_nobody_that_it_goes_is_found(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Http2Server, "drain", lambda self: None)
    assert finds("streams had to be cut off", CODECS)


def test_a_time_limit_that_is_not_read_is_found(monkeypatch: Patch) -> None:
    for module in (grpc_rpc_head, grpc_head_plan):
        monkeypatch.setattr(module, "parse_timeout", lambda value: 1000.0)
    assert finds("the record says that it left", CODECS)
