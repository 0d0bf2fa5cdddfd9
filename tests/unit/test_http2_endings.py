"""How streams and connections end: resets, GOAWAY in both directions, drains, a lost transport."""

from __future__ import annotations

import pytest

from gateway.wire.http2 import CONNECTION_LOST, ErrorCode, Http2Limits, StreamUnavailable
from tests.unit.http2_driving import (
    ACK,
    DATA,
    END,
    END_HEADERS,
    GOAWAY,
    HEADERS,
    PING,
    RESPONSE,
    RST,
    TRAILERS,
    ClientSide,
    Probe,
    ServerSide,
    frame,
    goaway,
    number,
    parse,
    request,
    settings,
)

E = ErrorCode
MAX_ID = 0x7FFFFFFF


def finish(stream: int) -> bytes:
    """A trailers-only answer."""
    return frame(HEADERS, END_HEADERS | END, stream, RESPONSE)


# ---------------------------------------------------------------------- resets


@pytest.mark.parametrize(
    ("code", "unprocessed"), [(E.CANCEL, False), (E.REFUSED_STREAM, True), (E.NO_ERROR, False), (0xFFFFFFFF, False)]
)
def test_a_reset_of_the_peer_is_told_with_its_code(code: int, unprocessed: bool) -> None:
    server, client = ServerSide(), ClientSide()
    server.feed(request(1), number(RST, 1, code))
    stream = client.open(b"hello")
    client.feed(number(RST, 1, code))
    for probe in (server.streams[0], stream):
        assert probe.calls[-1] == ("reset", code, True, unprocessed)
        assert probe.is_over


def test_a_reset_of_ours_is_silent() -> None:
    server, client = ServerSide(), ClientSide()
    server.feed(request(1))
    server.server.reset(server.streams[0], E.CANCEL)
    server.server.reset(server.streams[0], E.CANCEL)
    assert server.written() == parse(number(RST, 1, E.CANCEL))
    stream = client.open(b"hello")
    client.written()
    client.client.reset(stream, E.CANCEL)
    assert client.feed(finish(1), number(RST, 1, 0)) == parse(number(RST, 1, E.CANCEL))
    assert [call[0] for call in server.streams[0].calls + stream.calls] == ["headers"]


def test_streams_may_be_reset_and_opened_from_callbacks() -> None:
    side = ClientSide()
    opened: list[Probe] = []

    def again(stream: Probe, call: tuple[object, ...]) -> None:
        if call[0] == "headers":
            side.client.reset(stream, E.CANCEL)
        opened.append(side.open(b"again"))
        opened[-1].when_called = again

    side.open(b"hello").when_called = again
    for stream_id in range(1, 40, 2):
        refusal = number(RST, stream_id, 8)
        side.feed(frame(HEADERS, END_HEADERS, stream_id, RESPONSE) + refusal if stream_id % 4 == 1 else refusal)
    assert len(opened) == 20
    assert side.client.fault is None
    assert side.client.streams_open == 1


def test_ids_of_ended_streams_are_kept_within_a_bound() -> None:
    side = ServerSide(Http2Limits(ended_streams_kept=10))
    for stream_id in range(1, 201, 2):
        side.feed(request(stream_id))
        side.server.reset(side.streams[-1], E.CANCEL)
    assert side.server.statistics().ended_kept == 10
    side.written()
    assert side.feed(frame(DATA, 0, 1, b"late"), frame(DATA, 0, 199, b"late")) == []
    assert side.server.fault is None, "what has been forgotten gets the benefit of the doubt"


# -------------------------------------------------------- GOAWAY of the server


def test_a_client_learns_what_was_not_processed() -> None:
    side = ClientSide(server_settings=settings((3, 3)))
    streams = [side.open(b"hello") for _ in range(5)]
    side.feed(goaway(3, E.NO_ERROR, b"bye"))
    assert [stream.was_reset for stream in streams] == [
        None,
        None,
        *[("reset", E.REFUSED_STREAM, True, True)] * 3,
    ]
    assert side.client.peer_goaway == (E.NO_ERROR, "bye")
    assert not side.client.available
    with pytest.raises(StreamUnavailable, match="going away"):
        side.open(b"hello")
    closed = []
    for stream_id in (1, 3):
        side.feed(finish(stream_id))
        closed.append(side.client.closed)
    assert closed == [False, True]
    assert side.client.fault is None
    assert [stream.ended for stream in streams[:2]] == [True, True]


def test_a_goaway_in_two_steps() -> None:
    side = ClientSide()
    streams = [side.open(b"hello") for _ in range(3)]
    side.written()
    assert side.feed(goaway(MAX_ID, 0) + frame(PING, 0, 0, b"12345678")) == parse(frame(PING, ACK, 0, b"12345678"))
    assert not any(stream.calls for stream in streams)
    assert not side.client.available
    side.feed(goaway(3, 0))
    assert [bool(stream.calls) for stream in streams] == [False, False, True]
    side.feed(goaway(5, 0), finish(1), finish(3))
    assert side.client.closed


def test_what_was_not_processed_sends_no_more() -> None:
    side = ClientSide(server_settings=settings((3, 2)))
    for _ in range(3):
        side.open(b"x" * 100_000)
    side.written()
    side.feed(goaway(0, 0))
    statistics = side.client.statistics()
    assert (statistics.streams_in_line, statistics.queued_bytes, statistics.streams_waiting) == (0, 0, 0)


def test_too_many_pings_can_be_read_from_the_goaway() -> None:
    side = ClientSide()
    stream = side.open(b"hello")
    side.feed(goaway(1, E.ENHANCE_YOUR_CALM, b"too_many_pings"))
    assert side.client.peer_goaway == (E.ENHANCE_YOUR_CALM, "too_many_pings")
    assert not stream.calls, "what it still processes may go on"
    side.connection.lost("closed")
    assert stream.was_reset == ("reset", CONNECTION_LOST, False, False)


def test_a_goaway_text_is_kept_within_a_bound() -> None:
    side = ClientSide()
    side.open(b"hello")
    side.feed(goaway(1, 0, b"\xff" * 10_000))
    assert side.client.peer_goaway is not None
    assert len(side.client.peer_goaway[1]) == 256


def test_an_idle_client_is_closed_by_a_goaway() -> None:
    side = ClientSide()
    side.feed(goaway(0, 0))
    assert side.client.closed


def test_streams_may_not_be_opened_from_the_callback_of_a_goaway() -> None:
    side = ClientSide()
    refused: list[str] = []

    def again(stream: Probe, call: tuple[object, ...]) -> None:
        with pytest.raises(StreamUnavailable):
            side.open(b"again")
        refused.append(str(call[0]))

    for _ in range(3):
        side.open(b"hello").when_called = again
    side.feed(goaway(0, 0))
    assert refused == ["reset"] * 3


# ---------------------------------------------------------------------- drains


def test_a_server_drains_in_two_steps() -> None:
    side = ServerSide()
    side.feed(request(1, end=True))
    side.server.drain()
    side.server.drain()
    first, ping = side.written()
    assert first == parse(goaway(MAX_ID, 0))[0]
    assert (ping.kind, ping.flags) == (PING, 0)
    side.feed(request(3, end=True))
    assert len(side.streams) == 2, "it was under way"
    assert side.feed(frame(PING, ACK, 0, ping.payload)) == parse(goaway(3, 0))
    assert side.feed(request(5), frame(DATA, END, 5, b"late")) == []
    assert len(side.streams) == 2
    for stream in side.streams:
        assert not side.server.closed
        side.server.send_message(stream, RESPONSE, b"abc", TRAILERS)
    assert side.server.closed
    assert side.server.fault is None
    assert [f.stream for f in side.written() if f.flags & END and f.kind == HEADERS] == [1, 3]


def test_a_drain_does_not_wait_for_ever() -> None:
    side = ServerSide()
    side.server.finish_drain()
    assert side.written() == [], "nothing was begun"
    side.server.drain()
    side.server.finish_drain()
    side.server.finish_drain()
    assert [f.kind for f in side.written()] == [GOAWAY, PING, GOAWAY]
    assert side.server.closed


def test_a_drained_server_ends_with_what_is_queued() -> None:
    side = ServerSide()
    side.feed(request(1, end=True))
    side.server.send_message(side.streams[0], RESPONSE, b"x" * 70_000, TRAILERS)
    side.server.drain()
    side.server.finish_drain()
    side.written()
    assert not side.server.closed
    side.feed(number(8, 0, 100_000), number(8, 1, 100_000))
    assert side.server.closed


@pytest.mark.parametrize("end", ["reset here", "reset there", "fault"])
def test_a_drain_ends_however_the_last_stream_ends(end: str) -> None:
    side = ServerSide()
    side.feed(request(1))
    side.server.drain()
    side.server.finish_drain()
    if end == "reset here":
        side.server.reset(side.streams[0], E.CANCEL)
    else:
        side.feed(number(RST, 1, 8) if end == "reset there" else frame(HEADERS, END_HEADERS, 1, TRAILERS))
    assert side.server.closed


def test_a_fault_behind_a_drain_does_not_tell_a_higher_id() -> None:
    side = ServerSide()
    side.feed(request(1))
    side.server.drain()
    side.server.finish_drain()
    side.written()
    last = side.feed(request(3), request(5), frame(PING, 0, 1))
    assert last[-1] == parse(goaway(1, E.PROTOCOL_ERROR, last[-1].payload[8:]))[0]


def test_a_client_drains() -> None:
    side = ClientSide(server_settings=settings((3, 1)))
    first, second = side.open(b"hello"), side.open(b"hello")
    side.written()
    side.client.drain()
    assert side.written() == parse(goaway(0, 0))
    assert second.was_reset == ("reset", E.REFUSED_STREAM, False, True)
    assert not side.client.available
    assert [side.client.closed] == [False]
    side.feed(finish(1))
    assert first.ended
    assert side.client.closed
    idle = ClientSide()
    idle.client.drain()
    assert idle.client.closed
    assert idle.written() == parse(goaway(0, 0))


# ------------------------------------------------------- abrupt ends of it all


def test_goaway_ends_everything_at_once() -> None:
    side = ServerSide()
    side.feed(request(1), request(3))
    side.server.goaway(E.ENHANCE_YOUR_CALM, "enough")
    side.server.goaway(E.ENHANCE_YOUR_CALM, "enough")
    assert side.written() == parse(goaway(3, E.ENHANCE_YOUR_CALM, b"enough"))
    assert side.server.closed
    assert [s.was_reset for s in side.streams] == [("reset", E.ENHANCE_YOUR_CALM, False, False)] * 2
    client = ClientSide()
    client.open(b"hello")
    client.written()
    client.client.goaway(E.INTERNAL_ERROR)
    assert client.written() == parse(goaway(0, E.INTERNAL_ERROR))


def test_a_lost_transport_ends_all_streams_and_what_never_left_may_be_sent_again() -> None:
    side = ClientSide(server_settings=settings((3, 2)))
    streams = [side.open(b"hello") for _ in range(4)]
    side.client.lost("reset by peer")
    side.client.lost("reset by peer")
    assert [len(stream.calls) for stream in streams] == [1, 1, 1, 1]
    assert [stream.was_reset for stream in streams] == [
        *[("reset", CONNECTION_LOST, False, False)] * 2,
        *[("reset", E.REFUSED_STREAM, False, True)] * 2,
    ]
    assert not side.client.wants_write
    assert side.client.closed
    with pytest.raises(StreamUnavailable, match="closed"):
        side.open(b"hello")


def test_a_closed_connection_takes_and_gives_nothing() -> None:
    side = ServerSide()
    side.feed(request(1))
    side.server.lost("gone")
    side.server.drain()
    side.server.finish_drain()
    side.server.goaway(0)
    side.server.ping(b"12345678")
    side.server.send_message(side.streams[0], RESPONSE, b"abc", TRAILERS)
    assert side.feed(request(3)) == []
    assert len(side.streams) == 1


def test_a_callback_may_end_the_connection() -> None:
    side = ServerSide()
    side.when_called = lambda stream, call: side.server.goaway(E.INTERNAL_ERROR) if call[0] == "headers" else None
    written = side.feed(request(1) + frame(DATA, 0, 1, b"abc") + request(3) + frame(DATA, 0, 3, b"abc"))
    assert [f.kind for f in written] == [GOAWAY]
    assert len(side.streams) == 1
    assert [call[0] for call in side.streams[0].calls] == ["headers", "reset"]
