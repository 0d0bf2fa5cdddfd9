"""Floods end in ENHANCE_YOUR_CALM; honest traffic that looks a little like one does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.wire.hpack import literal
from gateway.wire.http2 import ErrorCode, Http2Limits
from gateway.wire.http2.flood import Allowance
from tests.unit.http2_driving import (
    ACK,
    CONTINUATION,
    DATA,
    END,
    END_HEADERS,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    REQUEST,
    RESPONSE,
    RST,
    SETTINGS,
    TRAILERS,
    WINDOW,
    ClientSide,
    ServerSide,
    Side,
    block,
    frame,
    goaway,
    number,
    request,
    settings,
)

CALM = ErrorCode.ENHANCE_YOUR_CALM
LIMITS = Http2Limits(idle_frames_burst=1000, idle_frames_per_s=100.0, resets_burst=200, resets_per_s=50.0)

IDLE_FLOODS: list[tuple[str, bytes]] = [
    ("PING", frame(PING, 0, 0, b"12345678")),
    ("answers to no PING", frame(PING, ACK, 0, b"12345678")),
    ("SETTINGS", settings()),
    ("SETTINGS acknowledged", frame(SETTINGS, ACK, 0)),
    ("PRIORITY", frame(PRIORITY, 0, 1, b"\0" * 5)),
    ("PRIORITY of idle streams", frame(PRIORITY, 0, 99, b"\0" * 5)),
    ("an unknown type", frame(0xEE, 0, 0)),
    ("WINDOW_UPDATE", number(WINDOW, 0, 1)),
    ("WINDOW_UPDATE of a stream", number(WINDOW, 1, 1)),
    ("WINDOW_UPDATE of a stream that is gone", number(WINDOW, 3, 1)),
    ("RST_STREAM of a stream that is gone", number(RST, 3, 8)),
    ("empty DATA", frame(DATA, 0, 1)),
    ("DATA of padding", frame(DATA, PADDED, 1, b"\x03abc")),
    ("empty DATA of a stream that is gone", frame(DATA, END, 3)),
    ("HEADERS of a stream that is gone", frame(HEADERS, END_HEADERS | END, 3, TRAILERS)),
    ("GOAWAY", goaway(0x7FFFFFFF, 0)),
]


def flooded(side: Side, piece: bytes, most: int) -> int:
    """How many pieces it takes until the connection has had enough; `most` if it never has."""
    for count in range(most):
        side.feed(piece)
        if side.connection.closed:
            assert side.connection.fault is not None
            assert side.connection.fault.code == CALM
            return count
    return most


def prepared_server(limits: Http2Limits) -> Side:
    side = ServerSide(limits)
    side.feed(request(1), request(3))
    side.server.reset(side.streams[1], ErrorCode.CANCEL)
    return side


def prepared_client(limits: Http2Limits) -> Side:
    side = ClientSide(limits)
    side.open(b"hello", False)
    side.open(b"hello")
    side.feed(frame(HEADERS, END_HEADERS, 1, RESPONSE))
    side.feed(frame(HEADERS, END_HEADERS | END, 3, RESPONSE))
    return side


@pytest.mark.parametrize("prepared", [prepared_server, prepared_client])
@pytest.mark.parametrize("piece", [piece for _, piece in IDLE_FLOODS], ids=[text for text, _ in IDLE_FLOODS])
def test_frames_that_carry_nothing(prepared: Callable[[Http2Limits], Side], piece: bytes) -> None:
    assert 900 <= flooded(prepared(LIMITS), piece, 2000) <= 1100


@pytest.mark.parametrize("piece", [piece for _, piece in IDLE_FLOODS], ids=[text for text, _ in IDLE_FLOODS])
def test_the_same_at_a_slow_pace_is_no_flood(piece: bytes) -> None:
    side = prepared_server(LIMITS)
    for _ in range(3000):
        side.now_s += 0.02
        side.feed(piece)
    assert side.connection.fault is None


def test_settings_cost_by_their_length() -> None:
    side = prepared_server(LIMITS)
    assert flooded(side, settings(*[(4, 100)] * 2700), 100) < 5


def test_rapid_reset() -> None:
    side = ServerSide(LIMITS)
    stream_id = 1
    while not side.server.closed:
        side.feed(request(stream_id) + number(RST, stream_id, 8))
        stream_id += 2
        assert stream_id < 2000
    assert side.server.fault is not None
    assert side.server.fault.code == CALM
    assert 200 <= len(side.streams) <= 210
    assert all(stream.was_reset for stream in side.streams)


PROVOKED: list[tuple[str, bytes]] = [
    ("a malformed request", frame(HEADERS, END_HEADERS, 0, RESPONSE)),
    ("DATA after the end", frame(HEADERS, END_HEADERS | END, 0, REQUEST) + frame(DATA, 0, 0, b"a")),
    ("a window update of nothing", frame(HEADERS, END_HEADERS, 0, REQUEST) + number(WINDOW, 0, 0)),
    ("a window that is too large", frame(HEADERS, END_HEADERS, 0, REQUEST) + number(WINDOW, 0, 0x7FFFFFFF)),
    ("trailers without an end", frame(HEADERS, END_HEADERS, 0, REQUEST) + frame(HEADERS, END_HEADERS, 0, TRAILERS)),
    ("a short PRIORITY", frame(HEADERS, END_HEADERS, 0, REQUEST) + frame(PRIORITY, 0, 0, b"\0")),
    ("a head that is too large", frame(HEADERS, END_HEADERS, 0, REQUEST + literal(b"x", b"y" * 16_000))),
    ("more data than allowed", frame(HEADERS, END_HEADERS, 0, REQUEST) + frame(DATA, 0, 0, b"a" * 1001)),
]


def on_stream(stream: int, frames: bytes) -> bytes:
    """The same frames on another stream."""
    moved = b""
    while frames:
        stop = 9 + int.from_bytes(frames[:3], "big")
        moved += frames[:5] + stream.to_bytes(4, "big") + frames[9:stop]
        frames = frames[stop:]
    return moved


@pytest.mark.parametrize("piece", [piece for _, piece in PROVOKED], ids=[text for text, _ in PROVOKED])
def test_resets_that_a_client_provokes(piece: bytes) -> None:
    limits = Http2Limits(window_bytes=1000, header_list_max_bytes=15_000, resets_burst=200, resets_per_s=50.0)
    side = ServerSide(limits)
    for count in range(400):
        side.feed(on_stream(2 * count + 1, piece))
        if side.server.closed:
            break
    assert side.server.fault is not None
    assert side.server.fault.code == CALM
    assert 200 <= count <= 210
    told = [stream for stream in side.streams if stream.calls]
    assert all(stream.is_over and stream.calls[-1][0] == "reset" for stream in told)


def test_refused_streams_are_counted_once_the_client_knows_the_bound() -> None:
    limits = Http2Limits(streams_max=1, resets_burst=200, resets_per_s=50.0, idle_frames_burst=1000)
    early, late = ServerSide(limits, b""), ServerSide(limits)
    early.feed(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings())
    early.feed(*(request(2 * i + 1) for i in range(500)))
    assert early.server.fault is None
    late.feed(*(request(2 * i + 1) for i in range(500)))
    assert late.server.fault is not None
    assert late.server.fault.code == CALM


def test_answered_calls_earn_the_right_to_cancel_others() -> None:
    """Short deadlines: half of all calls are cancelled, at a rate above `resets_per_s`."""
    side = ServerSide(LIMITS)
    stream_id = 1
    for _ in range(5000):
        side.feed(request(stream_id, end=True), request(stream_id + 2, end=True) + number(RST, stream_id + 2, 8))
        side.server.send_message(side.streams[-2], RESPONSE, b"abc", TRAILERS)
        side.written()
        stream_id += 4
    assert side.server.fault is None


def test_cancels_within_the_rate_are_no_flood() -> None:
    side = ServerSide(LIMITS)
    for count in range(2000):
        side.now_s += 0.02
        side.feed(request(2 * count + 1) + number(RST, 2 * count + 1, 8))
    assert side.server.fault is None


def test_acknowledgements_of_real_traffic_are_no_flood() -> None:
    """A careful peer returns both windows for each message, and measures the path by PING, all without a pause."""
    side = ServerSide(LIMITS)
    side.feed(request(1))
    (stream,) = side.streams
    side.server.send_headers(stream, RESPONSE, False)
    for _ in range(5000):
        side.server.send_data(stream, b"token", False)
        side.feed(number(WINDOW, 0, 5) + number(WINDOW, 1, 5), frame(PING, 0, 0, b"12345678"))
    assert side.server.fault is None
    client = ClientSide(LIMITS)
    for count in range(2000):  # Triton's errors, six times over
        client.open(b"hello")
        client.feed((frame(HEADERS, END_HEADERS | END, 2 * count + 1, RESPONSE) + number(RST, 2 * count + 1, 0)) * 6)
    assert client.client.fault is None


def test_answers_that_nobody_reads_are_bounded() -> None:
    side = ServerSide(Http2Limits(acks_waiting_max=50))
    for _ in range(51):
        assert side.server.fault is None
        side.server.receive(frame(PING, 0, 0, b"12345678"), 0.0)
    assert side.connection.fault is not None
    assert side.connection.fault.code == CALM
    assert side.server.statistics().output_pieces == 51, "fifty answers and the GOAWAY"


def test_a_reader_that_keeps_up_is_never_too_slow() -> None:
    side = ServerSide(Http2Limits(acks_waiting_max=50))
    for _ in range(50):
        side.feed(frame(PING, 0, 0, b"12345678") * 50)
    assert side.server.fault is None


@pytest.mark.parametrize("size", [0, 1, 5000])
def test_continuations_are_bounded_in_number_and_bytes(size: int) -> None:
    side = ServerSide(Http2Limits(continuations_max=32, header_block_max_bytes=65_536))
    side.feed(frame(HEADERS, 0, 1, REQUEST))
    count = 0
    while not side.server.closed:
        side.feed(frame(CONTINUATION, 0, 1, literal(b"x", b"y" * size)[:size]))
        count += 1
        assert side.server.statistics().partial_bytes <= 65_536
    assert count == (33 if size < 5000 else 14)
    assert side.server.fault is not None
    assert side.server.fault.code == CALM


def test_an_endless_interim_answer_is_a_flood() -> None:
    side = ClientSide(LIMITS)
    side.open(b"hello")
    assert flooded(side, frame(HEADERS, END_HEADERS, 1, block((b":status", b"103"))), 2000) <= 1100


def test_an_allowance_is_refilled_by_time_and_work() -> None:
    credit = Allowance(10, 2.0, 3)

    def spend(cost: int, now_s: float, work: int = 0) -> bool:
        credit.left -= cost
        return credit.left >= 0 or credit.refill(now_s, work)

    credit.start(100.0)
    assert spend(10, 100.0)
    assert not spend(1, 100.0)
    assert spend(1, 101.0), "-1 - 1 + 2 is 0"
    assert not spend(1, 101.0)
    assert spend(1, 101.5, 1), "-1 - 1 + 1 + 3 is 2"
    assert spend(2, 101.5, 1)
    assert not spend(1, 101.5, 1)
    assert spend(1, 1000.0, 1), "now there is the whole burst, and no more"
    assert spend(10, 1000.0, 1)
    assert not spend(1, 1000.0, 1)


def test_a_credit_that_lasts_for_long_is_not_lost_at_the_first_refill() -> None:
    side = ServerSide(Http2Limits(idle_frames_burst=100, idle_frames_per_s=1.0), b"")
    side.now_s = 5e6
    side.feed(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings())
    for _ in range(500):
        side.now_s += 1.0
        side.feed(frame(PING, 0, 0, b"12345678"))
    assert side.server.fault is None
