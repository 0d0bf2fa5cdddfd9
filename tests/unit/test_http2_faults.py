"""What a peer may do wrong, one row each: the frames, and what RFC 9113 makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from gateway.wire.http2 import ErrorCode, Http2Limits
from tests.unit.http2_driving import (
    ACK,
    CONTINUATION,
    DATA,
    END,
    END_HEADERS,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH,
    REQUEST,
    RESPONSE,
    RST,
    SETTINGS,
    TRAILERS,
    WINDOW,
    ClientSide,
    Probe,
    ServerSide,
    Side,
    block,
    frame,
    number,
    request,
    settings,
)

E = ErrorCode


class Connection(NamedTuple):
    """A connection error: GOAWAY with this code."""

    code: int


class OfStream(NamedTuple):
    """A stream error: RST_STREAM with this code; the connection goes on."""

    stream: int
    code: int


class Fine(NamedTuple):
    """No error at all."""


FINE = Fine()
Expected = Connection | OfStream | Fine
Row = tuple[str, bytes, Expected]

# Streams of the server that every row starts from.
OPEN, HALF, RESET_HERE, RESET_BY_PEER, ANSWERED, ANSWERED_EARLY, SKIPPED, LAST = 1, 3, 5, 7, 9, 11, 13, 15
IDLE = 17

# Streams of the client, by what has come of the answer.
NOTHING, HEAD, FINISHED = 1, 3, 5
CLIENT_RESET, SERVER_RESET, UNFINISHED = 7, 9, 11


def opened_server() -> tuple[Side, dict[int, Probe]]:
    side = ServerSide()
    for stream_id in (OPEN, HALF, RESET_HERE, RESET_BY_PEER, ANSWERED, ANSWERED_EARLY, LAST):
        side.feed(request(stream_id, end=stream_id in (HALF, ANSWERED)))
    streams = {stream.id: stream for stream in side.streams}
    side.server.reset(streams[RESET_HERE], E.CANCEL)
    side.feed(number(RST, RESET_BY_PEER, E.CANCEL))
    for stream_id in (ANSWERED, ANSWERED_EARLY):
        side.server.send_message(streams[stream_id], RESPONSE, b"abc", TRAILERS)
    side.written()
    assert side.server.streams_open == 3
    return side, streams


def opened_client() -> tuple[Side, dict[int, Probe]]:
    side = ClientSide()
    streams = {stream_id: side.open(b"xyz", stream_id != UNFINISHED) for stream_id in range(1, IDLE, 2)}
    side.written()
    side.feed(headers(HEAD, RESPONSE), headers(FINISHED, RESPONSE), headers(FINISHED, TRAILERS, END_HEADERS | END))
    side.client.reset(streams[CLIENT_RESET], E.CANCEL)
    side.written()
    side.feed(number(RST, SERVER_RESET, E.INTERNAL_ERROR))
    return side, streams


def headers(stream: int, fields: bytes, flags: int = END_HEADERS) -> bytes:
    return frame(HEADERS, flags, stream, fields)


def data(stream: int, payload: bytes = b"abc", flags: int = 0) -> bytes:
    return frame(DATA, flags, stream, payload)


def judge(side: Side, streams: dict[int, Probe], fed: bytes, expected: Expected) -> None:
    """Feed the bytes and compare; whatever the case, each stream hears of its end once."""
    before = {stream_id: list(stream.calls) for stream_id, stream in streams.items()}
    open_before = [stream for stream in streams.values() if not stream.is_over]
    written = side.feed(fed)
    goaways = [f for f in written if f.kind == GOAWAY]
    resets = [(f.stream, f.number) for f in written if f.kind == RST]
    connection = side.connection
    if isinstance(expected, Connection):
        assert connection.fault is not None
        assert connection.fault.code == expected.code
        assert [f.code for f in goaways] == [expected.code]
        assert written[-1].kind == GOAWAY
        assert connection.closed
        assert connection.streams_open == 0
        for stream in open_before:
            assert stream.is_over
            assert len([call for call in stream.calls if call[0] == "reset"]) == 1
        return
    assert connection.fault is None
    assert not goaways
    assert not connection.closed
    if isinstance(expected, OfStream):
        assert resets == [(expected.stream, expected.code)]
        if expected.stream in streams:
            hurt = streams[expected.stream]
            told = [("reset", expected.code, False, False)] if hurt in open_before else []
            assert hurt.calls[len(before[expected.stream]) :][-1:] == told
    else:
        assert not resets
    pong = side.feed(frame(PING, 0, 0, b"12345678"))
    assert [f.payload for f in pong if f.kind == PING] == [b"12345678"], "the connection goes on"


LONG = b"\0" * 16_385

BOTH: list[Row] = [
    # Frames in general: sections 4.1, 4.2 and 5.5
    ("DATA longer than MAX_FRAME_SIZE", data(1, LONG), Connection(E.FRAME_SIZE_ERROR)),
    ("HEADERS longer than MAX_FRAME_SIZE", headers(1, LONG), Connection(E.FRAME_SIZE_ERROR)),
    ("the head alone of a frame that is too long", frame(0xEE, 0, 0, LONG)[:9], Connection(E.FRAME_SIZE_ERROR)),
    ("an unknown type", frame(0xEE, 0xFF, 0, b"abc"), FINE),
    ("an unknown type on an idle stream", frame(0x0A, 0, 99), FINE),
    # SETTINGS: 6.5
    ("SETTINGS on a stream", frame(SETTINGS, 0, 1), Connection(E.PROTOCOL_ERROR)),
    ("SETTINGS of five bytes", frame(SETTINGS, 0, 0, b"\0" * 5), Connection(E.FRAME_SIZE_ERROR)),
    ("SETTINGS acknowledged with a payload", frame(SETTINGS, ACK, 0, b"\0" * 6), Connection(E.FRAME_SIZE_ERROR)),
    ("SETTINGS acknowledged once more", frame(SETTINGS, ACK, 0), FINE),
    ("unknown settings", settings((0xFE03, 1), (0, 9)), FINE),
    ("an unknown flag on SETTINGS", frame(SETTINGS, 0xFE, 0), FINE),
    ("INITIAL_WINDOW_SIZE of 2^31", settings((4, 1 << 31)), Connection(E.FLOW_CONTROL_ERROR)),
    ("MAX_FRAME_SIZE too low", settings((5, 16_383)), Connection(E.PROTOCOL_ERROR)),
    ("MAX_FRAME_SIZE too high", settings((5, 1 << 24)), Connection(E.PROTOCOL_ERROR)),
    ("ENABLE_PUSH of 2", settings((2, 2)), Connection(E.PROTOCOL_ERROR)),
    (
        "SETTINGS that make a stream's window grow over 2^31-1",
        number(WINDOW, 1, 1000) + settings((4, 0x7FFFFFFF)),
        Connection(E.FLOW_CONTROL_ERROR),
    ),
    # PING: 6.7
    ("PING on a stream", frame(PING, 0, 1, b"\0" * 8), Connection(E.PROTOCOL_ERROR)),
    ("PING of seven bytes", frame(PING, 0, 0, b"\0" * 7), Connection(E.FRAME_SIZE_ERROR)),
    ("an acknowledgement of no PING", frame(PING, ACK, 0, b"\1" * 8), FINE),
    # GOAWAY: 6.8
    ("GOAWAY on a stream", frame(GOAWAY, 0, 1, b"\0" * 8), Connection(E.PROTOCOL_ERROR)),
    ("GOAWAY of seven bytes", frame(GOAWAY, 0, 0, b"\0" * 7), Connection(E.FRAME_SIZE_ERROR)),
    # WINDOW_UPDATE: 6.9
    ("WINDOW_UPDATE", number(WINDOW, 0, 5) + number(WINDOW, 1, 5), FINE),
    ("the connection's window at 2^31-1", number(WINDOW, 0, 0x7FFFFFFF - 65_535), FINE),
    ("a stream's window at 2^31-1", number(WINDOW, 1, 0x7FFFFFFF - 65_535), FINE),
    ("SETTINGS that bring a stream's window to 2^31-1", number(WINDOW, 1, 1) + settings((4, 0x7FFFFFFE)), FINE),
    ("WINDOW_UPDATE of three bytes", frame(WINDOW, 0, 0, b"\0\0\1"), Connection(E.FRAME_SIZE_ERROR)),
    ("WINDOW_UPDATE of nothing", number(WINDOW, 0, 0), Connection(E.PROTOCOL_ERROR)),
    ("WINDOW_UPDATE of nothing but the reserved bit", number(WINDOW, 0, 1 << 31), Connection(E.PROTOCOL_ERROR)),
    ("WINDOW_UPDATE of nothing on a stream", number(WINDOW, 1, 0), OfStream(1, E.PROTOCOL_ERROR)),
    ("the connection's window over 2^31-1", number(WINDOW, 0, 0x7FFFFFFF), Connection(E.FLOW_CONTROL_ERROR)),
    ("a stream's window over 2^31-1", number(WINDOW, 1, 0x7FFFFFFF), OfStream(1, E.FLOW_CONTROL_ERROR)),
    ("WINDOW_UPDATE on an idle stream", number(WINDOW, IDLE, 1), Connection(E.PROTOCOL_ERROR)),
    ("WINDOW_UPDATE on an even stream", number(WINDOW, 2, 1), Connection(E.PROTOCOL_ERROR)),
    # RST_STREAM: 6.4
    ("RST_STREAM of three bytes", frame(RST, 0, 1, b"\0" * 3), Connection(E.FRAME_SIZE_ERROR)),
    ("RST_STREAM on stream 0", number(RST, 0, 8), Connection(E.PROTOCOL_ERROR)),
    ("RST_STREAM on an idle stream", number(RST, IDLE, 8), Connection(E.PROTOCOL_ERROR)),
    ("RST_STREAM on an even stream", number(RST, 4, 8), Connection(E.PROTOCOL_ERROR)),
    ("RST_STREAM with an unknown code", number(RST, 1, 0xFFFF), FINE),
    ("RST_STREAM twice", number(RST, 1, 8) * 2, FINE),
    # PRIORITY: 6.3
    ("PRIORITY", frame(PRIORITY, 0, 1, b"\0\0\0\1\x10"), FINE),
    ("PRIORITY on an idle stream", frame(PRIORITY, 0, 77, b"\0\0\0\1\x10"), FINE),
    ("PRIORITY on stream 0", frame(PRIORITY, 0, 0, b"\0" * 5), Connection(E.PROTOCOL_ERROR)),
    ("PRIORITY of four bytes", frame(PRIORITY, 0, 1, b"\0" * 4), OfStream(1, E.FRAME_SIZE_ERROR)),
    ("PRIORITY of four bytes on an idle stream", frame(PRIORITY, 0, 77, b"\0" * 4), Connection(E.FRAME_SIZE_ERROR)),
    # CONTINUATION: 6.10 and 4.3
    ("CONTINUATION without HEADERS", frame(CONTINUATION, 4, 1), Connection(E.PROTOCOL_ERROR)),
    ("a block cut off by PING", headers(1, b"", 0) + frame(PING, 0, 0, b"\0" * 8), Connection(E.PROTOCOL_ERROR)),
    ("a block cut off by an unknown type", headers(1, b"", 0) + frame(0xEE, 0, 0), Connection(E.PROTOCOL_ERROR)),
    ("a block cut off by HEADERS", headers(1, b"", 0) + headers(1, b""), Connection(E.PROTOCOL_ERROR)),
    ("a block cut off by DATA", headers(1, b"", 0) + data(1), Connection(E.PROTOCOL_ERROR)),
    (
        "a block continued on another stream",
        headers(1, b"", 0) + frame(CONTINUATION, 4, 3),
        Connection(E.PROTOCOL_ERROR),
    ),
    # HEADERS: 6.2
    ("HEADERS on stream 0", headers(0, REQUEST), Connection(E.PROTOCOL_ERROR)),
    ("HEADERS on an even stream", headers(2, REQUEST), Connection(E.PROTOCOL_ERROR)),
    ("HEADERS with too much padding", headers(1, b"\x05abcd", END_HEADERS | PADDED), Connection(E.PROTOCOL_ERROR)),
    ("HEADERS without its pad length", headers(1, b"", END_HEADERS | PADDED), Connection(E.FRAME_SIZE_ERROR)),
    ("HEADERS without its priority", headers(1, b"\0" * 4, END_HEADERS | 0x20), Connection(E.FRAME_SIZE_ERROR)),
    ("a block with index 0", headers(1, b"\x80", END_HEADERS | END), Connection(E.COMPRESSION_ERROR)),
    ("a block that ends too early", headers(1, b"\x40\x05ab", END_HEADERS | END), Connection(E.COMPRESSION_ERROR)),
    ("a block of a stream long gone that is no HPACK", headers(5, b"\x80"), Connection(E.COMPRESSION_ERROR)),
    # DATA: 6.1
    ("DATA on stream 0", data(0), Connection(E.PROTOCOL_ERROR)),
    ("DATA on an idle stream", data(IDLE), Connection(E.PROTOCOL_ERROR)),
    ("DATA on an even stream", data(2), Connection(E.PROTOCOL_ERROR)),
    ("DATA with too much padding", data(3, b"\x04abc", PADDED), Connection(E.PROTOCOL_ERROR)),
    ("DATA without its pad length", data(3, b"", PADDED), Connection(E.PROTOCOL_ERROR)),
    # PUSH_PROMISE: 6.6 and 8.4
    ("PUSH_PROMISE", frame(PUSH, END_HEADERS, 1, b"\0\0\0\2" + REQUEST), Connection(E.PROTOCOL_ERROR)),
]

TRAILERS_END = END_HEADERS | END

AT_THE_SERVER: list[Row] = [
    ("ENABLE_PUSH of 1", settings((2, 1)), FINE),
    ("DATA of padding only", data(OPEN, b"\x03abc", PADDED), FINE),
    ("the reserved bit of the stream id", data(OPEN | 1 << 31, b"abc"), FINE),
    ("unknown flags on DATA", data(OPEN, b"abc", 0xF6), FINE),
    ("unknown flags on HEADERS", headers(IDLE, REQUEST, 0xD2 | END_HEADERS), FINE),
    ("HEADERS with priority and padding", headers(IDLE, b"\x02" + b"\0" * 5 + REQUEST + b"xx", 0x2C), FINE),
    ("trailers", headers(OPEN, TRAILERS, TRAILERS_END), FINE),
    ("trailers without an end", headers(OPEN, TRAILERS), OfStream(OPEN, E.PROTOCOL_ERROR)),
    ("trailers with a pseudo-field", headers(OPEN, RESPONSE, TRAILERS_END), OfStream(OPEN, E.PROTOCOL_ERROR)),
    # Section 5.1: half-closed (remote), closed, idle
    ("DATA after END_STREAM", data(HALF), OfStream(HALF, E.STREAM_CLOSED)),
    ("HEADERS after END_STREAM", headers(HALF, TRAILERS, TRAILERS_END), OfStream(HALF, E.STREAM_CLOSED)),
    ("WINDOW_UPDATE after END_STREAM", number(WINDOW, HALF, 1), FINE),
    ("RST_STREAM after END_STREAM", number(RST, HALF, 8), FINE),
    ("DATA on a stream that we reset", data(RESET_HERE), FINE),
    ("trailers on a stream that we reset", headers(RESET_HERE, TRAILERS, TRAILERS_END), FINE),
    ("RST_STREAM on a stream that we reset", number(RST, RESET_HERE, 8), FINE),
    ("WINDOW_UPDATE on a stream that we reset", number(WINDOW, RESET_HERE, 8), FINE),
    ("DATA after the peer's RST_STREAM", data(RESET_BY_PEER), OfStream(RESET_BY_PEER, E.STREAM_CLOSED)),
    (
        "HEADERS after the peer's RST_STREAM",
        headers(RESET_BY_PEER, TRAILERS, TRAILERS_END),
        OfStream(RESET_BY_PEER, E.STREAM_CLOSED),
    ),
    ("WINDOW_UPDATE after the peer's RST_STREAM", number(WINDOW, RESET_BY_PEER, 8), FINE),
    ("RST_STREAM after the peer's RST_STREAM", number(RST, RESET_BY_PEER, 8), FINE),
    ("DATA on a stream that both have ended", data(ANSWERED), Connection(E.STREAM_CLOSED)),
    ("HEADERS on a stream that both have ended", headers(ANSWERED, TRAILERS, 5), Connection(E.STREAM_CLOSED)),
    ("WINDOW_UPDATE on a stream that both have ended", number(WINDOW, ANSWERED, 8), FINE),
    ("RST_STREAM on a stream that both have ended", number(RST, ANSWERED, 8), FINE),
    ("DATA on a stream that was answered early", data(ANSWERED_EARLY), FINE),
    ("trailers on a stream that was answered early", headers(ANSWERED_EARLY, TRAILERS, 5), FINE),
    ("HEADERS on an id that was skipped", headers(SKIPPED, REQUEST), Connection(E.PROTOCOL_ERROR)),
    # Section 8.1.1: malformed requests. What a block may hold is in test_http2_blocks.
    ("a malformed request", headers(IDLE, RESPONSE), OfStream(IDLE, E.PROTOCOL_ERROR)),
    ("GOAWAY", frame(GOAWAY, 0, 0, b"\0" * 8), FINE),
]

AT_THE_CLIENT: list[Row] = [
    ("ENABLE_PUSH of 1", settings((2, 1)), Connection(E.PROTOCOL_ERROR)),
    ("HEADERS on an idle stream", headers(IDLE, RESPONSE), Connection(E.PROTOCOL_ERROR)),
    ("DATA before the head", data(NOTHING), OfStream(NOTHING, E.PROTOCOL_ERROR)),
    ("DATA before the final head", headers(NOTHING, block((b":status", b"100"))) + data(NOTHING), OfStream(1, 1)),
    ("a head without a status", headers(NOTHING, TRAILERS), OfStream(NOTHING, E.PROTOCOL_ERROR)),
    ("a status of two digits", headers(NOTHING, block((b":status", b"20"))), OfStream(NOTHING, E.PROTOCOL_ERROR)),
    ("status 101", headers(NOTHING, block((b":status", b"101"))), OfStream(NOTHING, E.PROTOCOL_ERROR)),
    ("an interim head that ends", headers(NOTHING, block((b":status", b"103")), 5), OfStream(NOTHING, 1)),
    ("trailers without an end", headers(HEAD, TRAILERS), OfStream(HEAD, E.PROTOCOL_ERROR)),
    ("trailers with a pseudo-field", headers(HEAD, RESPONSE, TRAILERS_END), OfStream(HEAD, E.PROTOCOL_ERROR)),
    ("a request as an answer", headers(NOTHING, REQUEST), OfStream(NOTHING, E.PROTOCOL_ERROR)),
    # Triton sends the trailers and RST_STREAM again, several times over.
    ("trailers once more", headers(FINISHED, TRAILERS, TRAILERS_END) * 5, FINE),
    ("RST_STREAM after the end", (headers(FINISHED, TRAILERS, 5) + number(RST, FINISHED, 0)) * 5, FINE),
    ("DATA after the end", data(FINISHED), FINE),
    ("WINDOW_UPDATE after the end", number(WINDOW, FINISHED, 1), FINE),
    ("DATA on a stream that we reset", data(CLIENT_RESET), FINE),
    ("HEADERS on a stream that we reset", headers(CLIENT_RESET, RESPONSE), FINE),
    ("trailers-only on a stream that we reset", headers(CLIENT_RESET, RESPONSE, TRAILERS_END), FINE),
    ("RST_STREAM on a stream that we reset", number(RST, CLIENT_RESET, 0), FINE),
    ("HEADERS on a stream that the server reset", headers(SERVER_RESET, RESPONSE, TRAILERS_END), FINE),
    ("DATA on a stream that the server reset", data(SERVER_RESET), FINE),
]


def rows(*tables: list[Row]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """All rows of the tables, each with its text as its name."""
    params = [pytest.param(fed, expected, id=text) for table in tables for text, fed, expected in table]
    return pytest.mark.parametrize(("fed", "expected"), params)


@rows(BOTH, AT_THE_SERVER)
def test_what_a_client_does_wrong(fed: bytes, expected: Expected) -> None:
    side, streams = opened_server()
    judge(side, streams, fed, expected)


@rows(BOTH, AT_THE_CLIENT)
def test_what_a_server_does_wrong(fed: bytes, expected: Expected) -> None:
    side, streams = opened_client()
    judge(side, streams, fed, expected)


@pytest.mark.parametrize(
    "fed",
    [
        pytest.param(b"GET / HTTP/1.1\r\n", id="HTTP/1.1"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01", id="TLS"),
        pytest.param(PREFACE[:23] + b"x", id="a wrong last byte"),
        pytest.param(b"X", id="one wrong byte"),
    ],
)
def test_a_server_knows_at_the_first_wrong_byte_that_it_is_not_http2(fed: bytes) -> None:
    side = ServerSide(client_settings=b"")
    side.feed(fed[:-1], fed[-1:])
    assert side.server.fault is not None
    assert side.server.fault.code == E.PROTOCOL_ERROR


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(request(1), id="HEADERS"),
        pytest.param(frame(SETTINGS, ACK, 0), id="an acknowledgement"),
        pytest.param(frame(PING, 0, 0, b"\0" * 8), id="PING"),
        pytest.param(frame(0xEE, 0, 0), id="an unknown type"),
        pytest.param(number(WINDOW, 0, 1), id="WINDOW_UPDATE"),
    ],
)
def test_a_connection_begins_with_settings(first: bytes) -> None:
    server = ServerSide(client_settings=b"")
    client = ClientSide(server_settings=b"")
    assert [f.code for f in server.feed(PREFACE + first) if f.kind == GOAWAY] == [E.PROTOCOL_ERROR]
    assert [f.code for f in client.feed(first) if f.kind == GOAWAY] == [E.PROTOCOL_ERROR]


def test_after_a_fault_everything_is_dropped() -> None:
    side, _ = opened_server()
    side.feed(frame(PING, 0, 1))
    assert side.feed(request(IDLE), settings()) == []
    assert side.connection.statistics().partial_bytes == 0
    side.connection.lost("closed")
    assert side.connection.fault is not None


def test_a_fault_text_holds_nothing_of_the_peer() -> None:
    side = ServerSide(client_settings=b"")
    (last,) = side.feed(b"\xff\x00secret")
    assert last.kind == GOAWAY
    assert b"secret" not in last.payload


def test_a_larger_frame_size_is_kept_to_exactly() -> None:
    side = ServerSide(Http2Limits(frame_max_bytes=32_768))
    side.feed(request(1), data(1, b"x" * 32_768))
    assert side.streams[0].body == b"x" * 32_768
    side.feed(data(1, b"x" * 32_769))
    assert side.server.fault is not None
    assert side.server.fault.code == E.FRAME_SIZE_ERROR
