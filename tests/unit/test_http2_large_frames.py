"""DATA frames that are longer than any peer may send unasked: handed on as they come, or received to their place."""

from __future__ import annotations

import gc

import pytest

from gateway.wire.http2 import ErrorCode, Http2Limits
from tests.unit.http2_driving import (
    DATA,
    END,
    END_HEADERS,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    RST,
    WINDOW,
    ClientSide,
    Frame,
    Probe,
    ServerSide,
    block,
    frame,
    request,
    settings,
)

FRAME_MAX = 100_000
LIMITS = Http2Limits(frame_max_bytes=FRAME_MAX, window_bytes=4 * FRAME_MAX, connection_window_bytes=4 * FRAME_MAX)
PAYLOAD = bytes(number * 7 % 251 for number in range(60_000))


class Placed(Probe):
    """Has a place for what it is sent."""

    __slots__ = ("memory", "received")

    def place(self, size: int) -> memoryview | None:
        self.memory = bytearray(min(size, 10_000))
        return memoryview(self.memory)

    def on_placed(self, size: int) -> None:
        self._note("data", bytes(self.memory[:size]), False)
        self.connection.acknowledge(self, size)


def opened(limits: Http2Limits = LIMITS) -> ServerSide:
    side = ServerSide(limits)
    side.feed(request(1))
    return side


def padded(payload: bytes, padding: int, flags: int = 0) -> bytes:
    return frame(DATA, PADDED | flags, 1, bytes((padding,)) + payload + bytes(padding))


@pytest.mark.parametrize("padding", [None, 0, 1, 200])
@pytest.mark.parametrize("end", [0, END])
def test_every_cut_brings_the_same_payload_once(padding: int | None, end: int) -> None:
    large = frame(DATA, end, 1, PAYLOAD) if padding is None else padded(PAYLOAD, padding, end)
    behind = frame(PING, 0, 0, b"12345678")
    data = large + behind
    cuts = [1, 5, 8, 9, 10, 11, 100, 30_000, len(large) - 201, len(large) - 200, len(large) - 1, len(large), len(data)]
    for first in cuts:
        for second in cuts:
            side = opened()
            pieces = [data[:first], data[first : first + second], data[first + second :]]
            written = side.feed(*(piece for piece in pieces if piece))
            (stream,) = side.streams
            assert side.server.fault is None
            assert stream.body == PAYLOAD
            assert stream.ended is bool(end)
            assert [call[2] for call in stream.calls if call[0] == "data"].count(True) == bool(end)
            assert any(each.kind == PING for each in written), "what stands behind it is taken"
            assert not side.server.mid_frame


def test_a_large_frame_is_handed_on_as_it_comes_and_not_kept() -> None:
    side = opened()
    data = frame(DATA, 0, 1, PAYLOAD)
    side.feed(data[:20_000])
    (stream,) = side.streams
    assert stream.body == PAYLOAD[: 20_000 - 9]
    assert side.server.statistics().partial_bytes == 0
    assert side.server.mid_frame
    assert side.server.rest_bytes == len(data) - 20_000


def received(side: ServerSide | ClientSide, data: bytes) -> int:
    """Give the connection what an event loop would receive, where it wants it; how many bytes were received to their
    place.
    """
    connection, to_place = side.connection, 0
    while data:
        place = connection.place()
        if place is None:
            size = min(len(data), connection.rest_bytes + 20 if connection.rest_bytes else 50)
            connection.receive(data[:size], 0.0)
        else:
            size = min(len(place), len(data))
            place[:size] = data[:size]
            connection.placed(size, 0.0)
            to_place += size
        data = data[size:]
    return to_place


def placing_server(limits: Http2Limits = LIMITS) -> ServerSide:
    side = ServerSide(limits)
    side.server._make_stream = lambda: side.streams.append(Placed(side.server)) or side.streams[-1]  # type: ignore[func-returns-value]
    side.feed(request(1))
    return side


@pytest.mark.parametrize("end", [0, END])
def test_what_is_received_to_its_place_is_the_same_payload_and_the_window_is_returned(end: int) -> None:
    side = placing_server()
    count = 40
    frames = [frame(DATA, 0, 1, PAYLOAD)] * (count - 1) + [frame(DATA, end, 1, PAYLOAD)]
    assert received(side, b"".join(frames)) > count * len(PAYLOAD) * 0.99
    (stream,) = side.streams
    assert side.server.fault is None, "all of it was more than one window"
    assert stream.body == PAYLOAD * count
    assert stream.ended is bool(end)
    assert {each.stream for each in side.written() if each.kind == WINDOW} == {0, 1}


def test_padding_is_not_received_to_the_place() -> None:
    side = placing_server()
    received(side, padded(PAYLOAD, 255) * 3)
    assert side.streams[0].body == PAYLOAD * 3


def test_a_client_receives_to_places_too_and_the_end_ends_the_stream() -> None:
    side = ClientSide(LIMITS)
    stream = Placed(side.client)
    side.client.open(stream, block((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/")))
    side.feed(frame(HEADERS, END_HEADERS, 1, block((b":status", b"200"))))
    assert received(side, frame(DATA, 0, 1, PAYLOAD) + frame(DATA, END, 1, PAYLOAD)) > 100_000
    assert stream.body == PAYLOAD * 2
    assert stream.ended
    assert stream.is_over


def test_a_stream_that_is_over_gets_nothing_more_and_the_rest_of_its_frame_is_dropped() -> None:
    side = placing_server()
    data = frame(DATA, END, 1, PAYLOAD)
    received(side, data[:30_000])
    (stream,) = side.streams
    before = len(stream.calls)
    side.server.reset(stream, ErrorCode.CANCEL)
    assert side.server.place() is None
    written = side.feed(data[30_000:] + frame(PING, 0, 0, b"12345678"))
    assert len(stream.calls) == before
    assert side.server.fault is None
    assert [each.kind for each in written] == [RST, PING]


def test_a_frame_for_a_stream_that_has_ended_is_dropped_however_it_is_cut() -> None:
    side = opened()
    side.server.reset(side.streams[0], ErrorCode.CANCEL)
    side.feed(frame(DATA, 0, 1, PAYLOAD)[:20_000])
    side.feed(frame(DATA, 0, 1, PAYLOAD)[20_000:] + request(3))
    assert side.server.fault is None
    assert [stream.body for stream in side.streams] == [b"", b""]


def test_more_than_the_window_is_refused_at_the_head_of_the_frame() -> None:
    side = opened(Http2Limits(frame_max_bytes=FRAME_MAX, window_bytes=65_535))
    side.streams[0].acknowledges = False
    side.feed(frame(DATA, 0, 1, PAYLOAD))
    written = side.feed(frame(DATA, 0, 1, PAYLOAD)[:9])
    assert side.streams[0].was_reset == ("reset", ErrorCode.FLOW_CONTROL_ERROR, False, False)
    assert side.server.fault is None
    assert [each.kind for each in written if each.kind != WINDOW] == [RST]


@pytest.mark.parametrize("at", [9, 20, 20_009])
def test_only_data_and_header_blocks_may_be_large(at: int) -> None:
    data = frame(PING, 0, 0, bytes(20_000))
    side = opened()
    side.feed(data[:at])
    fault = side.server.fault
    assert fault is not None
    assert fault.code is ErrorCode.ENHANCE_YOUR_CALM
    side = opened(Http2Limits(frame_max_bytes=FRAME_MAX, header_block_max_bytes=30_000))
    side.feed(frame(HEADERS, END_HEADERS, 3, bytes(40_000))[:at])
    assert side.server.fault is not None


@pytest.mark.parametrize("size", [9, 50_000])
def test_a_frame_over_our_settings_is_a_fault(size: int) -> None:
    side = opened()
    written = side.feed(frame(DATA, 0, 1, bytes(FRAME_MAX + 1))[:size])
    assert [Frame(*each).code for each in written if each.kind == GOAWAY] == [ErrorCode.FRAME_SIZE_ERROR]


def test_data_before_settings_or_inside_a_header_block_is_a_fault() -> None:
    side = ServerSide(LIMITS, b"")
    side.feed(PREFACE + frame(DATA, 0, 1, PAYLOAD)[:100])
    assert side.server.fault is not None
    side = opened()
    side.feed(frame(HEADERS, 0, 3, b""), frame(DATA, 0, 1, PAYLOAD)[:100])
    fault = side.server.fault
    assert fault is not None
    assert "interrupted" in fault.text


def test_data_on_stream_0_and_on_one_that_is_not_open_are_faults() -> None:
    for stream in (0, 5):
        side = ServerSide(LIMITS, settings())
        side.feed(frame(DATA, 0, stream, PAYLOAD)[:100])
        assert side.server.fault is not None


def test_a_stream_that_is_given_up_within_its_frame_is_let_go_of() -> None:
    side = opened()
    stream = side.streams[0]
    side.feed(frame(DATA, 0, 1, PAYLOAD)[: 9 + 20_000])
    assert side.connection.rest_bytes > 0
    side.connection.reset(stream, ErrorCode.CANCEL)
    assert side.connection.place() is None
    assert stream not in gc.get_referents(side.connection)
    side.feed(frame(DATA, 0, 1, PAYLOAD)[9 + 20_000 :])
    assert side.connection.rest_bytes == 0
    side.feed(request(3))
    assert len(side.streams) == 2


def test_a_connection_that_ends_within_a_frame_owes_nothing_of_it() -> None:
    side = opened()
    side.feed(frame(DATA, 0, 1, PAYLOAD)[: 9 + 20_000])
    side.connection.lost("gone")
    assert not side.connection.mid_frame
    assert side.connection.place() is None
