"""Flow control both ways, and whose turn it is when many want to send."""

from __future__ import annotations

import pytest

from gateway.wire.http2 import ErrorCode, Http2Limits, Http2UsageError
from tests.unit.http2_driving import (
    ACK,
    DATA,
    END,
    END_HEADERS,
    HEADERS,
    PADDED,
    PING,
    RESPONSE,
    RST,
    SETTINGS,
    TRAILERS,
    WINDOW,
    Frame,
    Probe,
    ServerSide,
    frame,
    number,
    parse,
    request,
    settings,
)

BIG = 1 << 30


def answering(limits: Http2Limits | None = None, streams: int = 1, *pairs: tuple[int, int]) -> ServerSide:
    """A server with so many requests, each of whose answers has begun."""
    side = ServerSide(limits, settings(*pairs))
    side.feed(*(request(2 * i + 1, end=True) for i in range(streams)))
    for stream in side.streams:
        side.server.send_headers(stream, RESPONSE, False)
    side.written()
    return side


def returned(side: ServerSide) -> None:
    """The peer takes a byte and returns it while most of its window is open: it does so in time."""
    side.server.send_data(side.streams[0], b"x", False)
    side.written()
    side.feed(number(WINDOW, 0, 1))


def data_of(frames: list[Frame], stream: int | None = None) -> int:
    """Bytes of payload, of one stream or of all."""
    return sum(len(f.payload) for f in frames if f.kind == DATA and stream in (None, f.stream))


# ------------------------------------------------------------------ receiving


def test_a_stream_window_is_returned_by_halves_as_its_user_acknowledges() -> None:
    side = ServerSide(Http2Limits(window_bytes=100_000))
    side.feed(request(1))
    (stream,) = side.streams
    stream.acknowledges = False
    assert side.feed(*(frame(DATA, 0, 1, b"x" * 10_000) for _ in range(9))) == []
    side.server.acknowledge(stream, 49_999)
    assert side.written() == []
    side.server.acknowledge(stream, 1)
    assert side.written() == parse(number(WINDOW, 1, 50_000))
    side.server.acknowledge(stream, 40_000)
    assert side.feed(*(frame(DATA, 0, 1, b"x" * 10_000) for _ in range(6))) == []
    assert stream.window_in == 0
    assert side.feed(frame(DATA, 0, 1, b"x")) == parse(number(RST, 1, ErrorCode.FLOW_CONTROL_ERROR))
    assert stream.calls[-1] == ("reset", ErrorCode.FLOW_CONTROL_ERROR, False, False)


def test_windows_do_not_drift() -> None:
    side = ServerSide(Http2Limits(window_bytes=1000))
    side.feed(request(1))
    (stream,) = side.streams
    for _ in range(100):
        side.feed(frame(DATA, 0, 1, b"x" * 700), frame(DATA, 0, 1, b"x" * 37))
        assert stream.window_in + stream.unacknowledged == 1000


def test_nothing_is_returned_for_a_stream_whose_peer_is_done() -> None:
    side = ServerSide()
    side.feed(request(1), frame(DATA, END, 1, b"x" * 16_000))
    side.server.acknowledge(side.streams[0], 65_535)
    assert side.written() == []


def test_the_last_byte_of_a_window_is_good_and_the_next_is_not() -> None:
    side = ServerSide(Http2Limits(window_bytes=1000))
    side.feed(request(1))
    side.streams[0].acknowledges = False
    assert side.feed(frame(DATA, 0, 1, b"x" * 1000)) == []
    assert side.feed(frame(DATA, 0, 1)) == [], "an empty frame needs no window"
    (reset,) = side.feed(frame(DATA, 0, 1, b"x"))
    assert (reset.kind, reset.number) == (RST, ErrorCode.FLOW_CONTROL_ERROR)


def test_padding_counts_against_the_window_and_its_share_comes_back_alone() -> None:
    side = ServerSide(Http2Limits(window_bytes=1000))
    side.feed(request(1))
    side.streams[0].acknowledges = False
    padded = b"\x63" + b"x" * 900 + bytes(99)
    assert side.feed(frame(DATA, PADDED, 1, padded)) == parse(number(WINDOW, 1, 100))
    (reset,) = side.feed(frame(DATA, PADDED, 1, b"\x63" + b"x" + bytes(99)))
    assert (reset.kind, reset.number) == (RST, ErrorCode.FLOW_CONTROL_ERROR)


def test_padding_is_given_back_by_itself() -> None:
    side = ServerSide(Http2Limits(window_bytes=1000))
    side.feed(request(1))
    (stream,) = side.streams
    for _ in range(20):
        side.feed(frame(DATA, PADDED, 1, b"\xff" + b"x" + b"\0" * 255))
    assert stream.body == b"x" * 20
    assert side.server.fault is None
    assert not stream.is_over


def test_the_padding_of_one_read_comes_back_once_for_each_stream() -> None:
    side = ServerSide(Http2Limits(acks_waiting_max=3))
    side.feed(request(1), request(3), request(5))
    one, two, done = side.streams
    padded = b"\1x\0"
    both = frame(DATA, PADDED, 1, padded) + frame(DATA, PADDED, 3, padded)
    written = side.feed(both * 1000 + frame(DATA, PADDED, 5, padded) + frame(DATA, END, 5, b"x"))
    assert written == parse(number(WINDOW, 1, 2000) + number(WINDOW, 3, 2000))
    assert (one.body, two.body, done.body) == (b"x" * 1000, b"x" * 1000, b"xx")
    for stream in (one, two):
        assert stream.window_in + stream.unacknowledged == side.server._initial_window_in


def test_a_smaller_window_binds_the_peer_when_it_has_acknowledged_it() -> None:
    side = ServerSide(Http2Limits(window_bytes=1000), settings() + b"")
    early = ServerSide(Http2Limits(window_bytes=1000), b"")
    early.feed(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings() + request(1))
    (stream,) = early.streams
    stream.acknowledges = False
    assert early.feed(*(frame(DATA, 0, 1, b"x" * 10_000) for _ in range(6))) == []
    early.feed(frame(SETTINGS, ACK, 0))
    assert stream.window_in == 1000 - 60_000
    early.server.acknowledge(stream, 60_000)
    assert early.written() == parse(number(WINDOW, 1, 60_000))
    assert stream.window_in == 1000
    side.feed(request(1), frame(DATA, 0, 1, b"x" * 1001))
    assert side.streams[0].was_reset == ("reset", ErrorCode.FLOW_CONTROL_ERROR, False, False)


def test_a_window_can_be_lent_for_one_large_message() -> None:
    side = ServerSide(Http2Limits(window_bytes=1000))
    side.feed(request(1))
    (stream,) = side.streams
    stream.acknowledges = False
    side.feed(frame(DATA, 0, 1, b"x" * 1000))
    side.server.grow_window(stream, 9000)
    assert side.written() == parse(number(WINDOW, 1, 9000))
    assert side.feed(frame(DATA, 0, 1, b"x" * 9000)) == []
    side.server.acknowledge(stream, 9000)
    assert side.written() == [], "that was the loan"
    side.server.acknowledge(stream, 1000)
    assert side.written() == parse(number(WINDOW, 1, 1000))
    assert stream.window_in == 1000


def test_acknowledging_more_than_has_come_is_an_error_of_the_caller() -> None:
    side = ServerSide()
    side.feed(request(1))
    with pytest.raises(Http2UsageError, match="acknowledged"):
        side.server.acknowledge(side.streams[0], 0x7FFFFFFF)


def test_the_connection_window_is_returned_whoever_reads() -> None:
    side = ServerSide(Http2Limits(connection_window_bytes=100_000, window_bytes=1 << 20))
    side.feed(request(1), request(3))
    for stream in side.streams:
        stream.acknowledges = False
    written = side.feed(*(frame(DATA, 0, 1, b"x" * 10_000) for _ in range(24)))
    assert written == parse(number(WINDOW, 0, 50_000) * 4)
    side.server.reset(side.streams[0], ErrorCode.CANCEL)
    side.written()
    written = side.feed(*(frame(DATA, 0, 1, b"x" * 10_000) for _ in range(6)))
    assert written == parse(number(WINDOW, 0, 50_000) * 2), "bytes of streams that are gone count too"
    assert side.feed(frame(DATA, END, 3, b"abc")) == []


def test_a_frame_larger_than_the_whole_connection_window_is_a_fault() -> None:
    side = ServerSide(Http2Limits(connection_window_bytes=65_535, window_bytes=1 << 20, frame_max_bytes=70_000))
    side.feed(request(1), frame(DATA, 0, 1, b"x" * 65_536))
    assert side.server.fault is not None
    assert side.server.fault.code == ErrorCode.FLOW_CONTROL_ERROR


# -------------------------------------------------------------------- sending


def test_data_stops_at_the_streams_window_and_goes_on_with_it() -> None:
    side = answering(None, 1, (4, 1000))
    assert side.server.send_data(side.streams[0], b"a" * 600 + b"b" * 600, False)
    side.server.send_headers(side.streams[0], TRAILERS, True)
    assert side.written() == parse(frame(DATA, 0, 1, b"a" * 600 + b"b" * 400))
    assert not side.server.wants_write
    assert side.feed(number(WINDOW, 1, 50)) == parse(frame(DATA, 0, 1, b"b" * 50))
    expected = frame(DATA, 0, 1, b"b" * 150) + frame(HEADERS, END_HEADERS | END, 1, TRAILERS)
    assert side.feed(number(WINDOW, 1, 5000)) == parse(expected)


def test_data_stops_at_the_connections_window() -> None:
    side = answering(None, 2, (4, BIG))
    side.server.send_data(side.streams[0], b"x" * 100_000, True)
    side.server.send_data(side.streams[1], b"y" * 100_000, True)
    assert data_of(side.written()) <= 65_535
    told: list[int] = []
    side.server.on_output = lambda: told.append(1)
    side.server.receive(number(WINDOW, 0, BIG), 0.0)
    assert told == [1]
    last = side.written()
    assert [f.stream for f in last if f.flags & END] in ([1, 3], [3, 1])


def test_an_empty_end_needs_no_window() -> None:
    side = answering(None, 1, (4, 0))
    side.server.send_data(side.streams[0], b"", True)
    assert side.written() == parse(frame(DATA, END, 1))


def test_a_lowered_setting_makes_windows_negative() -> None:
    side = answering(None, 2, (4, 10_000))
    one, two = side.streams
    side.server.send_data(one, b"x" * 20_000, True)
    side.server.send_data(two, b"y" * 4000, False)
    assert data_of(side.written()) == 14_000
    side.feed(settings((4, 1000)))
    assert (one.window_out, two.window_out) == (-9000, -3000)
    assert side.feed(number(WINDOW, 1, 9000)) == []
    side.server.send_data(two, b"y", False)
    assert side.written() == []
    assert data_of(side.feed(number(WINDOW, 1, 10))) == 10
    assert data_of(side.feed(settings((4, 2000)))) == 1000, "the first stream's; the second is still below zero"
    assert data_of(side.feed(settings((4, 50_000)))) == 8990 + 1


def test_a_stream_in_line_leaves_it_when_a_setting_shuts_its_window() -> None:
    side = answering(None, 1, (4, BIG))
    side.server.send_data(side.streams[0], b"x" * 20_000, True)
    side.server.receive(settings((4, 0)), 0.0)
    assert data_of(side.written()) == 0
    assert side.server.statistics().streams_in_line == 0
    assert data_of(side.feed(settings((4, BIG)))) == 20_000


def test_two_large_messages_share_frame_by_frame() -> None:
    side = answering(None, 3, (4, BIG), (5, 20_000))
    side.feed(number(WINDOW, 0, BIG))
    for stream in side.streams:
        side.server.send_data(stream, b"x" * 100_000, True)
    assert [f.stream for f in side.written()] == [1, 3, 5] * 5


def test_a_small_message_waits_for_one_burst_at_most() -> None:
    side = answering(Http2Limits(burst_bytes=50_000), 2, (4, BIG))
    side.feed(number(WINDOW, 0, BIG))
    side.server.send_data(side.streams[0], b"x" * 1_000_000, True)
    first = b"".join(side.server.take())
    assert 50_000 <= data_of(parse(first)) < 50_000 + 16_384
    side.server.send_message(side.streams[1], b"", b"small", TRAILERS)
    assert [f.stream for f in parse(b"".join(side.server.take()))][:2] == [3, 3]


def test_a_queued_small_message_overtakes_large_ones() -> None:
    side = answering(None, 3, (4, BIG))
    side.server.send_data(side.streams[0], b"x" * 1_000_000, True)
    side.server.send_data(side.streams[1], b"x" * 1_000_000, True)
    side.written()
    side.server._window_out = 0
    side.server.send_data(side.streams[2], b"small", True)
    assert next(f.stream for f in side.feed(number(WINDOW, 0, 20_000))) == 5


def test_a_large_message_leaves_the_last_part_of_the_window_to_small_ones() -> None:
    side = answering(None, 2, (4, BIG))
    returned(side)
    side.server.send_data(side.streams[0], b"x" * 100_000, True)
    assert data_of(side.written()) == 65_535 - 65_535 // 8
    assert not side.server.wants_write
    side.server.send_data(side.streams[1], b"y" * 5000, True)
    assert data_of(side.written()) == 5000


def test_a_large_message_that_only_the_reserve_holds_up_gets_it_after_a_while() -> None:
    """A peer that returns nothing before its whole window is used up would be waited for for ever."""
    side = answering(None, 1, (4, BIG))
    returned(side)
    side.server.send_data(side.streams[0], b"x" * 100_000, True)
    assert data_of(side.written()) == 65_535 - 65_535 // 8
    pong = frame(PING, ACK, 0, b"12345678")
    assert side.feed(pong) == []
    side.now_s = 0.9
    assert side.feed(pong) == []
    side.now_s = 1.0
    assert data_of(side.feed(pong)) == 65_535 // 8
    side.now_s = 9.0
    assert side.feed(pong) == []
    assert data_of(side.feed(number(WINDOW, 0, 65_535))) == 100_000 - 65_535


def test_a_peer_that_returns_its_window_late_is_not_waited_for() -> None:
    """nghttp2 with a connection's window of 4095 returns 2 KiB whenever it has had as much, once the first 61,440 bytes
    are gone: always less than the reserve would be.
    """
    side = answering(None, 2, (4, BIG))
    first, second = side.streams
    side.server.send_data(first, b"x" * 100_000, True)
    sent = data_of(side.written())
    assert sent == 65_535
    while sent < 100_000:
        more = data_of(side.feed(number(WINDOW, 0, 2048)))
        assert more, "it has never to wait"
        sent += more
    side.server.send_data(second, b"y" * 100_000, True)
    assert data_of(side.written()) == 65_535 + 17 * 2048 - 100_000
    assert data_of(side.feed(number(WINDOW, 0, 2048))) == 2048
    # Small ones have their part as soon as there is much room.
    assert data_of(side.feed(number(WINDOW, 0, 65_535 // 8 * 2))) == 65_535 // 8
    assert not side.server.wants_write


def test_a_wait_for_the_reserve_that_a_reset_ended_does_not_count_for_the_next() -> None:
    side = answering(None, 2, (4, BIG))
    returned(side)
    first, second = side.streams
    side.server.send_data(first, b"x" * 100_000, True)
    side.written()
    pong = frame(PING, ACK, 0, b"12345678")
    side.now_s = 1.0
    assert side.feed(pong) == []
    side.now_s = 1.5
    assert side.feed(number(RST, first.id, 8)) == []
    side.server.send_data(second, b"y" * 100_000, True)
    assert side.written() == []
    side.now_s = 9.0
    assert side.feed(pong) == []


def test_a_large_message_gets_its_turn_however_many_small_ones_there_are() -> None:
    limits = Http2Limits(overtake_max_bytes=10_000)
    side = answering(limits, 2, (4, BIG))
    returned(side)
    bulk, small = side.streams
    side.server.send_data(bulk, b"x" * 200_000, True)
    side.written()
    sent = 0
    for _ in range(300):
        side.server.send_data(small, b"y" * 100, False)
        # The peer returns no more than the small ones use: without its turn the large one would wait for ever.
        sent += data_of(side.feed(number(WINDOW, 0, 100)), bulk.id)
    assert sent >= 2 * 1000
    assert data_of(side.feed(number(WINDOW, 0, BIG)), bulk.id) > 100_000


def test_small_ones_that_wait_keep_their_order() -> None:
    side = answering(None, 3, (4, BIG))
    side.server._window_out = 50
    one, two, three = side.streams
    side.server.send_data(one, b"x" * 100, True)
    side.server.send_data(two, b"y" * 10, True)
    side.server.send_data(three, b"z" * 60, True)
    assert [(f.stream, len(f.payload)) for f in side.written()] == [(1, 50)]
    assert [(f.stream, len(f.payload)) for f in side.feed(number(WINDOW, 0, 1000))] == [(3, 10), (5, 60), (1, 50)]


def test_queued_pieces_leave_together() -> None:
    side = answering(None, 1, (4, 0))
    for i in range(100):
        side.server.send_data(side.streams[0], b"%02d" % i, False)
    side.server.send_data(side.streams[0], b"", True)
    assert side.written() == []
    expected = b"".join(b"%02d" % i for i in range(100))
    assert side.feed(number(WINDOW, 1, 1000)) == parse(frame(DATA, END, 1, expected))


def test_large_payload_is_not_copied() -> None:
    side = answering(None, 1, (4, BIG))
    side.feed(number(WINDOW, 0, BIG))
    payload = bytearray(b"x" * 200_000)
    side.server.send_data(side.streams[0], memoryview(payload), True)
    pieces = side.server.take()
    views = [piece for piece in pieces if isinstance(piece, memoryview)]
    assert sum(len(view) for view in views) == 200_000
    assert all(view.obj is payload for view in views)


def test_a_full_stream_is_told_when_it_may_go_on() -> None:
    side = answering(Http2Limits(high_water_bytes=10_000), 1, (4, 0))
    (stream,) = side.streams
    assert side.server.send_data(stream, b"x" * 10_000, False)
    assert not side.server.send_data(stream, b"x", False)
    assert not side.server.send_data(stream, b"x", False)
    side.feed(number(WINDOW, 1, 5000))
    assert ("writable",) not in stream.calls
    side.feed(number(WINDOW, 1, 3))
    assert stream.calls.count(("writable",)) == 1
    side.feed(number(WINDOW, 1, 10_000))
    assert stream.calls.count(("writable",)) == 1


def test_a_user_may_send_more_from_on_writable() -> None:
    side = answering(Http2Limits(high_water_bytes=10_000), 1, (4, BIG))
    side.feed(number(WINDOW, 0, BIG))
    (stream,) = side.streams
    left = 20

    def more(stream: Probe, call: tuple[object, ...]) -> None:
        nonlocal left
        while call == ("writable",) and left:
            left -= 1
            if not side.server.send_data(stream, b"x" * 20_000, not left):
                break

    stream.when_called = more
    more(stream, ("writable",))
    assert data_of(side.written()) == 400_000
    assert left == 0
    assert stream.is_over


def test_a_reset_drops_what_is_queued() -> None:
    side = answering(None, 2, (4, BIG))
    for stream in side.streams:
        side.server.send_data(stream, b"x" * 500_000, True)
    side.written()
    assert side.server.statistics().queued_bytes > 900_000
    side.server.reset(side.streams[0], ErrorCode.CANCEL)
    side.feed(number(RST, 3, 8))
    statistics = side.server.statistics()
    assert (statistics.queued_bytes, statistics.streams_in_line, statistics.streams_open) == (0, 0, 0)
    assert data_of(side.feed(number(WINDOW, 0, BIG))) == 0


def test_streams_that_are_queued_and_reset_leave_nothing_behind() -> None:
    side = answering(None, 1)
    side.server._window_out = 0
    for i in range(200):
        side.feed(request(2 * i + 3, end=True))
        stream = side.streams[-1]
        side.server.send_message(stream, RESPONSE, b"x" * 100_000, TRAILERS)
        side.server.reset(stream, ErrorCode.CANCEL)
    assert side.server.statistics().streams_in_line == 0
    assert len(side.server._bulk) == len(side.server._quick) == 0
