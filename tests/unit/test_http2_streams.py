"""What a stream sees and sends when both sides behave: order of calls, shape of frames, the usual endings."""

from __future__ import annotations

import pytest

from gateway.wire.hpack import HpackEncoder, literal
from gateway.wire.http2 import ErrorCode, Http2Client, Http2Limits, Http2UsageError, StreamUnavailable
from tests.unit.http2_driving import (
    ACK,
    CONTINUATION,
    DATA,
    END,
    END_HEADERS,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    REQUEST,
    REQUEST_FIELDS,
    RESPONSE,
    RESPONSE_FIELDS,
    RST,
    SETTINGS,
    TRAILER_FIELDS,
    TRAILERS,
    WINDOW,
    ClientSide,
    Frame,
    Probe,
    ServerSide,
    block,
    frame,
    number,
    parse,
    pump,
    request,
    settings,
)


def answer(stream: int, body: bytes = b"abc") -> bytes:
    """A whole answer."""
    return (
        frame(HEADERS, END_HEADERS, stream, RESPONSE)
        + frame(DATA, 0, stream, body)
        + frame(HEADERS, END_HEADERS | END, stream, TRAILERS)
    )


def test_both_sides_begin_with_their_settings() -> None:
    limits = Http2Limits(streams_max=7, window_bytes=100_000, header_list_max_bytes=9000, header_table_bytes=512)
    server, client = ServerSide(limits, b""), ClientSide(limits, b"")
    common = [(1, 512), (4, 100_000), (5, 16_384), (6, 9000)]
    growth = Frame(WINDOW, 0, 0, (16 * 1024 * 1024 - 65_535).to_bytes(4, "big"))
    assert server.opening == [*parse(settings(*common, (3, 7))), growth]
    assert client.opening == [*parse(settings(*common, (2, 0))), growth]
    assert not server.server.settings_acknowledged
    assert server.feed(PREFACE + settings()) == parse(frame(SETTINGS, ACK, 0))
    server.feed(frame(SETTINGS, ACK, 0))
    assert server.server.settings_acknowledged


def test_a_client_sends_its_preface_first() -> None:
    assert b"".join(Http2Client(Http2Limits()).take()).startswith(PREFACE)


def test_a_unary_call_at_the_server() -> None:
    side = ServerSide()
    assert side.feed(request(1) + frame(DATA, END, 1, b"hello")) == []
    (stream,) = side.streams
    assert stream.id == 1
    assert stream.calls == [("headers", REQUEST_FIELDS, False), ("data", b"hello", True)]
    side.server.send_message(stream, RESPONSE, b"abc", TRAILERS)
    assert len(side.server.take()) == 1, "one piece"
    assert stream.is_over
    assert side.server.streams_open == 0


def test_the_frames_of_an_answer() -> None:
    side = ServerSide()
    side.feed(request(1, end=True))
    side.server.send_message(side.streams[0], RESPONSE, b"abc", TRAILERS)
    assert side.written() == parse(answer(1))


@pytest.mark.parametrize(
    ("head", "data", "tail", "expected"),
    [
        (RESPONSE, b"abc", b"", frame(HEADERS, 4, 1, RESPONSE) + frame(DATA, END, 1, b"abc")),
        (RESPONSE, b"", TRAILERS, frame(HEADERS, 4, 1, RESPONSE) + frame(HEADERS, 5, 1, TRAILERS)),
        (RESPONSE, b"", b"", frame(HEADERS, 5, 1, RESPONSE)),
        (RESPONSE, memoryview(b"xyz"), TRAILERS, answer(1, b"xyz")),
    ],
)
def test_parts_of_a_message_may_be_empty(head: bytes, data: bytes, tail: bytes, expected: bytes) -> None:
    side = ServerSide()
    side.feed(request(1, end=True))
    side.server.send_message(side.streams[0], head, data, tail)
    assert side.written() == parse(expected)
    assert side.server.streams_open == 0


def test_a_message_may_follow_a_head_that_was_sent() -> None:
    side = ServerSide()
    side.feed(request(1, end=True))
    side.server.send_headers(side.streams[0], RESPONSE, False)
    side.server.send_message(side.streams[0], b"", b"abc", TRAILERS)
    assert side.written() == parse(answer(1))


def test_a_stream_of_messages_both_ways() -> None:
    side = ServerSide()
    side.feed(request(1), frame(DATA, 0, 1, b"one"))
    (stream,) = side.streams
    side.server.send_headers(stream, RESPONSE, False)
    assert side.server.send_data(stream, b"uno", False)
    assert side.written() == parse(frame(HEADERS, 4, 1, RESPONSE) + frame(DATA, 0, 1, b"uno"))
    side.feed(frame(DATA, 0, 1, b"two"), frame(DATA, END, 1))
    side.server.send_headers(stream, TRAILERS, True)
    assert side.written() == parse(frame(HEADERS, 5, 1, TRAILERS))
    assert stream.calls[1:] == [("data", b"one", False), ("data", b"two", False), ("data", b"", True)]


def test_a_unary_call_at_the_client() -> None:
    side = ClientSide()
    stream = side.open(b"hello")
    assert len(side.client.take()) == 1, "one piece"
    assert side.feed(answer(1)) == []
    assert stream.calls == [
        ("headers", RESPONSE_FIELDS, False),
        ("data", b"abc", False),
        ("trailers", TRAILER_FIELDS),
    ]
    assert stream.is_over
    assert side.client.streams_open == 0
    assert [side.client.statistics().streams_opened, side.open().id, side.client.statistics().streams_opened] == [
        1,
        3,
        2,
    ]


def test_the_frames_of_a_request() -> None:
    side = ClientSide()
    side.open(b"hello")
    side.open(b"")
    side.open(b"part", end=False)
    expected = (
        request(1) + frame(DATA, END, 1, b"hello") + request(3, end=True) + request(5) + frame(DATA, 0, 5, b"part")
    )
    assert side.written() == parse(expected)


def test_a_request_in_parts() -> None:
    side = ClientSide()
    stream = side.open(b"", end=False)
    side.client.send_data(stream, b"one", False)
    side.client.send_data(stream, memoryview(b"two"), False)
    side.client.send_data(stream, b"", True)
    expected = request(1) + frame(DATA, 0, 1, b"one") + frame(DATA, 0, 1, b"two") + frame(DATA, END, 1)
    assert side.written() == parse(expected)


def test_a_trailers_only_answer() -> None:
    side = ClientSide()
    stream = side.open(b"hello")
    side.feed(frame(HEADERS, END_HEADERS | END, 1, RESPONSE))
    assert stream.calls == [("headers", RESPONSE_FIELDS, True)]
    assert stream.is_over


def test_interim_heads_are_swallowed() -> None:
    side = ClientSide()
    stream = side.open(b"hello")
    side.feed(frame(HEADERS, END_HEADERS, 1, block((b":status", b"103"))) * 3, answer(1))
    assert [call[0] for call in stream.calls] == ["headers", "data", "trailers"]


def test_tritons_repeated_trailers_do_no_harm() -> None:
    """After an error it sends the trailers and RST_STREAM again, four to six times over, in an indexed form too."""
    side = ClientSide()
    first, second = side.open(b"hello"), side.open(b"hello")
    encoder = HpackEncoder(4096)
    fields = [(b":status", b"200"), (b"grpc-status", b"4"), (b"grpc-message", b"Deadline Exceeded")]
    again = b"".join(frame(HEADERS, END_HEADERS | END, 1, encoder.encode(fields)) + number(RST, 1, 0) for _ in range(6))
    side.feed(again)
    assert first.calls == [("headers", tuple(fields), True)]
    side.feed(frame(HEADERS, END_HEADERS | END, 3, encoder.encode(fields)))
    assert second.calls == first.calls, "the blocks that were ignored have changed the table"


def test_an_answer_before_the_end_of_the_request_ends_the_stream_for_both() -> None:
    server, client = ServerSide(), ClientSide()
    server.feed(request(1), frame(DATA, 0, 1, b"part"))
    server.server.send_message(server.streams[0], RESPONSE, b"abc", TRAILERS)
    assert server.written() == parse(answer(1) + number(RST, 1, ErrorCode.NO_ERROR))
    assert server.feed(frame(DATA, 0, 1, b"more"), frame(DATA, END, 1, b"last")) == []
    assert [call[0] for call in server.streams[0].calls] == ["headers", "data"]

    stream = client.open(b"part", end=False)
    client.written()
    assert client.feed(answer(1)) == parse(number(RST, 1, ErrorCode.NO_ERROR))
    assert stream.calls[-1][0] == "trailers"
    assert client.client.send_data(stream, b"more", True), "what comes too late is dropped"
    assert client.written() == []


def test_what_an_early_answer_leaves_queued_goes_out_before_the_reset() -> None:
    side = ServerSide()
    side.feed(request(1))
    side.server.send_message(side.streams[0], RESPONSE, b"x" * 100_000, TRAILERS)
    first = side.written()
    assert RST not in {f.kind for f in first}
    assert side.server.streams_open == 1
    last = side.feed(number(WINDOW, 0, 100_000), number(WINDOW, 1, 100_000))
    assert [f.kind for f in last][-2:] == [HEADERS, RST]
    assert sum(len(f.payload) for f in first + last if f.kind == DATA) == 100_000


def test_padding_and_priority_are_stripped() -> None:
    side = ServerSide()
    side.feed(frame(HEADERS, 0x2C, 1, b"\x03" + b"\0\0\0\0\x10" + REQUEST + b"\0\0\0"))
    side.feed(frame(DATA, PADDED, 1, b"\x05hello" + b"\0" * 5), frame(DATA, PADDED | END, 1, b"\x00"))
    assert side.streams[0].calls == [
        ("headers", REQUEST_FIELDS, False),
        ("data", b"hello", False),
        ("data", b"", True),
    ]


@pytest.mark.parametrize("end", [False, True])
def test_a_block_in_many_frames(end: bool) -> None:
    side = ServerSide()
    pieces = [REQUEST[i : i + 20] for i in range(0, len(REQUEST), 20)]
    side.feed(frame(HEADERS, end, 1, pieces[0]))
    assert side.server.mid_frame
    side.feed(*(frame(CONTINUATION, 0, 1, piece) for piece in pieces[1:]))
    side.feed(frame(CONTINUATION, 0, 1))
    assert not side.streams
    side.feed(frame(CONTINUATION, END_HEADERS, 1))
    assert side.streams[0].calls == [("headers", REQUEST_FIELDS, end)]
    assert not side.server.mid_frame


def test_a_long_block_is_sent_in_frames_that_the_peer_takes() -> None:
    side = ServerSide()
    side.feed(request(1, end=True))
    head = RESPONSE + literal(b"x-long", b"y" * 40_000)
    side.server.send_message(side.streams[0], head, b"abc", TRAILERS)
    written = side.written()
    assert [(f.kind, f.flags, len(f.payload)) for f in written[:3]] == [
        (HEADERS, 0, 16_384),
        (CONTINUATION, 0, 16_384),
        (CONTINUATION, END_HEADERS, len(head) - 32_768),
    ]
    assert b"".join(f.payload for f in written[:3]) == head
    assert written[3:] == parse(answer(1))[1:]


def test_a_block_of_exactly_one_frame_needs_no_continuation() -> None:
    side = ServerSide()
    side.feed(request(1, end=True))
    head = RESPONSE + literal(b"x", b"y" * (16_384 - len(RESPONSE) - 7))
    assert len(head) <= 16_384
    side.server.send_headers(side.streams[0], head, True)
    assert [f.kind for f in side.written()] == [HEADERS]


def test_a_smaller_table_of_the_peer_is_confirmed_even_by_blocks_that_touch_none() -> None:
    side = ServerSide(client_settings=settings((1, 100)))
    side.feed(request(1, end=True), request(3, end=True))
    side.server.send_message(side.streams[0], RESPONSE, b"abc", TRAILERS)
    side.server.send_message(side.streams[1], RESPONSE, b"abc", TRAILERS)
    written = side.written()
    assert written[0].payload == b"\x3f\x45" + RESPONSE, "a table size update to 100"
    assert written[1:] == parse(answer(1))[1:] + parse(answer(3))


def test_settings_may_change_the_frame_size() -> None:
    side = ServerSide(client_settings=settings((5, 50_000), (4, 1 << 20)))
    side.feed(number(WINDOW, 0, 1 << 20), request(1, end=True))
    side.server.send_message(side.streams[0], RESPONSE, b"x" * 120_000, b"")
    assert [len(f.payload) for f in side.written() if f.kind == DATA] == [50_000, 50_000, 20_000]


def test_pings_are_answered_and_answers_are_told() -> None:
    side = ServerSide()
    assert side.feed(frame(PING, 0, 0, b"abcdefgh")) == parse(frame(PING, ACK, 0, b"abcdefgh"))
    seen: list[bytes] = []
    side.server.on_pong = seen.append
    side.server.ping(b"12345678")
    assert side.written() == parse(frame(PING, 0, 0, b"12345678"))
    side.feed(frame(PING, ACK, 0, b"12345678"))
    assert seen == [b"12345678"]


def test_the_driver_is_told_once_that_there_is_output() -> None:
    side = ServerSide()
    told: list[int] = []
    side.server.on_output = lambda: told.append(1)
    side.feed(frame(PING, 0, 0, b"abcdefgh") + frame(PING, 0, 0, b"abcdefgh"))
    assert told == [1]
    assert not side.server.wants_write
    side.feed(request(1, end=True))
    assert told == [1]
    side.server.send_message(side.streams[0], RESPONSE, b"abc", TRAILERS)
    assert told == [1, 1]
    assert side.server.wants_write


def test_streams_over_the_bound_are_refused() -> None:
    side = ServerSide(Http2Limits(streams_max=2))
    written = side.feed(request(1), request(3), request(5))
    assert written == parse(number(RST, 5, ErrorCode.REFUSED_STREAM))
    assert side.feed(frame(DATA, END, 5, b"abc")) == [], "its data was under way"
    side.server.send_message(side.streams[0], RESPONSE, b"abc", TRAILERS)
    side.written()
    side.feed(request(7))
    assert [stream.id for stream in side.streams] == [1, 3, 7]


def test_a_client_keeps_to_the_servers_bound() -> None:
    side = ClientSide(server_settings=settings((3, 2)))
    streams = [side.open(b"body %d" % i) for i in range(5)]
    assert [stream.id for stream in streams] == [1, 3, 0, 0, 0]
    assert side.client.streams_waiting == 3
    assert side.client.slots_free == 0
    side.client.reset(streams[3], ErrorCode.CANCEL)
    side.written()
    assert side.feed(answer(1)) == parse(request(5) + frame(DATA, END, 5, b"body 2"))
    assert side.feed(number(RST, 3, 8)) == parse(request(7) + frame(DATA, END, 7, b"body 4"))
    assert streams[3].calls == []
    assert side.feed(settings((3, 3)))[0].kind == SETTINGS
    assert side.client.slots_free == 1


def test_a_server_that_allows_no_streams_yet() -> None:
    side = ClientSide(server_settings=settings((3, 0)))
    stream = side.open(b"hello")
    assert side.written() == []
    written = side.feed(settings((3, 1)))
    assert written == parse(frame(SETTINGS, ACK, 0) + request(1) + frame(DATA, END, 1, b"hello"))
    assert stream.id == 1


def test_a_waiting_stream_may_be_written_to() -> None:
    side = ClientSide(server_settings=settings((3, 1)))
    side.open(b"first")
    second = side.open(b"", end=False)
    third = side.open(b"", end=True)
    assert side.client.send_data(second, b"one", False)
    assert side.client.send_data(second, b"two", True)
    with pytest.raises(Http2UsageError):
        side.client.send_data(third, b"x", True)
    side.written()
    assert side.feed(answer(1)) == parse(request(3) + frame(DATA, END, 3, b"onetwo"))
    assert side.feed(answer(3)) == parse(request(5, end=True))


def test_a_slot_is_used_again_only_when_the_server_can_know_that_it_is_free() -> None:
    """HEADERS in front of the RST_STREAM that makes room for them would be refused."""
    side = ClientSide(server_settings=settings((3, 1)))
    streams = [side.open(b"hello", end=stream != 2) for stream in range(4)]
    side.written()
    side.client.reset(streams[0], ErrorCode.CANCEL)
    assert side.written() == parse(number(RST, 1, ErrorCode.CANCEL) + request(3) + frame(DATA, END, 3, b"hello"))
    side.feed(frame(HEADERS, END_HEADERS, 3, TRAILERS))
    assert streams[1].was_reset is not None
    assert [f.kind for f in side.feed(answer(5))][:2] == [RST, HEADERS]


def test_a_window_may_be_lent_to_a_stream_that_waits() -> None:
    side = ClientSide(server_settings=settings((3, 1)))
    side.open(b"hello")
    stream = side.open(b"hello")
    side.client.grow_window(stream, 1000)
    side.written()
    assert side.feed(answer(1)) == parse(request(3) + number(WINDOW, 3, 1000) + frame(DATA, END, 3, b"hello"))
    assert stream.window_in == 65_535 + 1000


def test_blocks_of_an_encoder_are_made_in_the_order_of_sending() -> None:
    side = ClientSide(server_settings=settings((3, 1)))
    server = ServerSide()
    encoder = side.client.encoder
    fields = (*REQUEST_FIELDS, (b"x-tenant", b"blue"))
    streams = []
    for _ in range(4):
        streams.append(Probe(side.client))
        side.client.open(streams[-1], lambda: encoder.encode(fields), b"hello")
    side.client.reset(streams[1], ErrorCode.CANCEL)
    written = side.written()
    for stream_id in (1, 3, 5):
        server.feed(*(frame(*f) for f in written))
        assert server.streams[-1].calls[0] == ("headers", fields, False)
        written = side.feed(answer(stream_id))
    assert len(server.streams) == 3


def test_before_the_servers_settings_few_streams_are_opened() -> None:
    side = ClientSide(Http2Limits(streams_before_settings=3), server_settings=b"")
    streams = [side.open(b"hello") for _ in range(6)]
    assert [stream.id for stream in streams] == [1, 3, 5, 0, 0, 0]
    side.feed(settings())
    assert [stream.id for stream in streams] == [1, 3, 5, 7, 9, 11]


def test_waiting_is_bounded() -> None:
    side = ClientSide(Http2Limits(waiting_max=2), server_settings=settings((3, 1)))
    for _ in range(3):
        assert side.client.available
        side.open(b"hello")
    assert not side.client.available
    refused = Probe(side.client)
    with pytest.raises(StreamUnavailable, match="wait"):
        side.client.open(refused, REQUEST, b"hello", True)
    assert refused.is_over
    side.feed(answer(1))
    assert side.client.available


def test_stream_ids_run_out() -> None:
    side = ClientSide()
    side.client._next_id = 0x7FFFFFFF - 2
    for _ in range(2):
        side.open(b"hello")
    assert not side.client.available
    with pytest.raises(StreamUnavailable, match="ids"):
        side.open(b"hello")
    assert [f.stream for f in side.written() if f.kind == HEADERS] == [0x7FFFFFFD, 0x7FFFFFFF]
    stream_id = 0x7FFFFFFF
    server = ServerSide()
    server.feed(request(stream_id, end=True))
    assert server.streams[0].id == stream_id


@pytest.mark.parametrize("end", [False, True])
def test_a_request_with_too_large_a_head_can_be_answered(end: bool) -> None:
    side = ServerSide(Http2Limits(header_list_max_bytes=1000))
    large = REQUEST + literal(b"x-large", b"y" * 1000)
    seen: list[bool] = []

    def handled(stream: Probe, end: bool) -> bool:
        seen.append(end)
        side.server.send_headers(stream, RESPONSE, True)
        return True

    class Handling(Probe):
        __slots__ = ()

        def on_head_too_large(self, end: bool) -> bool:
            return handled(self, end)

    assert side.feed(request(1, end, large)) == parse(number(RST, 1, ErrorCode.ENHANCE_YOUR_CALM))
    assert side.streams[0].calls == []
    side.server._make_stream = lambda: Handling(side.server)
    written = side.feed(request(3, end, large))
    assert written[:1] == parse(frame(HEADERS, END_HEADERS | END, 3, RESPONSE))
    assert [f.kind for f in written[1:]] == ([] if end else [RST])
    assert seen == [end]
    assert side.server.streams_open == 0
    side.server._make_stream = side._make
    side.feed(request(5))
    assert side.streams[-1].calls[0] == ("headers", REQUEST_FIELDS, False), "the connection goes on"


def test_a_request_with_too_large_a_head_may_be_answered_later() -> None:
    side = ServerSide(Http2Limits(header_list_max_bytes=1000, streams_max=1))

    class Handling(Probe):
        __slots__ = ()

        def on_head_too_large(self, end: bool) -> bool:
            side.streams.append(self)
            return True

    side.server._make_stream = lambda: Handling(side.server)
    large = REQUEST + literal(b"x-large", b"y" * 1000)
    assert side.feed(request(1, True, large)) == []
    assert side.feed(request(3, True, large)) == parse(number(RST, 3, ErrorCode.REFUSED_STREAM)), "over streams_max"
    (stream,) = side.streams
    side.server.send_message(stream, RESPONSE, b"abc", TRAILERS)
    assert side.written() == parse(answer(1))


def test_too_large_blocks_elsewhere_end_their_stream_only() -> None:
    limits = Http2Limits(header_list_max_bytes=1000)
    large = literal(b"x-large", b"y" * 1000)
    server, client = ServerSide(limits), ClientSide(limits)
    server.feed(request(1))
    server.feed(frame(HEADERS, END_HEADERS | END, 1, large))
    assert server.streams[0].was_reset == ("reset", ErrorCode.ENHANCE_YOUR_CALM, False, False)
    streams = [client.open(b"hello") for _ in range(3)]
    client.feed(frame(HEADERS, END_HEADERS, 1, RESPONSE + large))
    client.feed(frame(HEADERS, END_HEADERS, 3, RESPONSE), frame(HEADERS, END_HEADERS | END, 3, large))
    client.feed(answer(5), frame(HEADERS, END_HEADERS | END, 5, large))
    assert [stream.was_reset is not None for stream in streams] == [True, True, False]
    assert server.server.fault is None
    assert client.client.fault is None


def test_using_a_stream_wrongly_is_an_error_of_the_caller() -> None:
    side = ServerSide()
    side.feed(request(1), request(3))
    one, two = side.streams
    with pytest.raises(Http2UsageError, match="before the head"):
        side.server.send_data(one, b"abc", False)
    side.server.send_headers(one, RESPONSE, False)
    with pytest.raises(Http2UsageError, match="trailers end"):
        side.server.send_headers(one, TRAILERS, False)
    side.server.send_data(one, b"x" * 100_000, True)
    with pytest.raises(Http2UsageError, match="after the end"):
        side.server.send_data(one, b"abc", False)
    with pytest.raises(Http2UsageError, match="after the end"):
        side.server.send_headers(one, TRAILERS, True)
    with pytest.raises(Http2UsageError):
        side.server.grow_window(two, 0)
    with pytest.raises(Http2UsageError):
        side.server.grow_window(two, 1 << 31)
    for payload in (b"", b"123456789", b"\x00drain\x00\x00"):
        with pytest.raises(Http2UsageError):
            side.server.ping(payload)


def test_sending_on_a_stream_that_is_over_is_dropped() -> None:
    side = ServerSide()
    side.feed(request(1), number(RST, 1, 8))
    (stream,) = side.streams
    assert stream.is_over
    side.server.send_headers(stream, RESPONSE, False)
    assert side.server.send_data(stream, b"abc", False)
    side.server.send_message(stream, RESPONSE, b"abc", TRAILERS)
    side.server.acknowledge(stream, 1 << 20)
    side.server.grow_window(stream, 1 << 20)
    side.server.reset(stream, ErrorCode.CANCEL)
    assert side.written() == []


def test_what_a_stream_raises_reaches_the_driver() -> None:
    side = ServerSide()

    def fail(stream: Probe, call: tuple[object, ...]) -> None:
        raise RuntimeError("a bug of the user")

    side.when_called = fail
    with pytest.raises(RuntimeError, match="a bug"):
        side.server.receive(request(1), 0.0)


def test_a_client_and_a_server_of_ours_understand_each_other() -> None:
    server = ServerSide(client_settings=b"")
    client = ClientSide(server_settings=b"")
    server.server.receive(PREFACE + b"".join(frame(*f) for f in client.opening), 0.0)
    client.client.receive(b"".join(frame(*f) for f in server.opening), 0.0)
    stream = client.open(b"hello")
    pump(server.server, client.client)
    server.server.send_message(server.streams[0], RESPONSE, b"abc", TRAILERS)
    pump(server.server, client.client)
    assert stream.body == b"abc"
    assert stream.ended
    assert server.server.settings_acknowledged
    assert client.client.settings_acknowledged
