"""What a valid request becomes."""

from __future__ import annotations

import pytest

from gateway.wire.http1 import (
    AfterResponse,
    BodyChunk,
    Eof,
    Event,
    Http1Limits,
    Http1Server,
    Phase,
    ProtocolFault,
    RequestEnd,
    RequestHead,
)
from tests.unit.http1_driving import feed

INFER = (
    b"POST /v2/models/fraud/infer?trace=1 HTTP/1.1\r\n"
    b"Host: localhost:8000\r\n"
    b"Content-Type:application/json  \t\r\n"
    b"X-Request-ID:  a b\r\n"
    b"Content-Length: 5\r\n\r\nhello"
)


def only_head(data: bytes) -> RequestHead:
    events = feed(Http1Server(Http1Limits()), data)
    assert type(events[0]) is RequestHead, events
    return events[0]


def body_of(events: list[Event]) -> bytes:
    return b"".join(event.data for event in events if type(event) is BodyChunk)


def test_a_request_in_one_read_gives_head_body_and_end() -> None:
    events = feed(Http1Server(Http1Limits()), INFER)

    assert [type(event) for event in events] == [RequestHead, BodyChunk, RequestEnd]
    head = events[0]
    assert isinstance(head, RequestHead)
    assert (head.method, head.target, head.http_minor) == (b"POST", b"/v2/models/fraud/infer?trace=1", 1)
    assert head.headers == [
        (b"host", b"localhost:8000"),
        (b"content-type", b"application/json"),
        (b"x-request-id", b"a b"),
        (b"content-length", b"5"),
    ]
    assert head.get(b"x-request-id") == b"a b"
    assert head.get(b"absent") is None
    assert (head.content_length, head.chunked, head.expect_continue, head.keep_alive) == (5, False, False, True)
    assert body_of(events) == b"hello"


def test_a_request_without_length_has_no_body() -> None:
    events = feed(Http1Server(Http1Limits()), b"POST /v2 HTTP/1.1\r\nHost: x\r\n\r\n")

    assert [type(event) for event in events] == [RequestHead, RequestEnd]
    assert isinstance(events[0], RequestHead)
    assert events[0].content_length is None


def test_repeated_headers_are_joined_for_lookup_and_kept_apart_in_the_list() -> None:
    head = only_head(b"GET / HTTP/1.1\r\nHost: x\r\nA: 1\r\na: 2\r\n\r\n")

    assert head.get(b"a") == b"1, 2"
    assert head.headers == [(b"host", b"x"), (b"a", b"1"), (b"a", b"2")]


def test_a_chunked_body_is_decoded_and_its_trailers_are_no_headers() -> None:
    server = Http1Server(Http1Limits())
    events = feed(
        server,
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n"
        b'5;name="v"\r\nhello\r\n00A\r\n0123456789\r\n0\r\nHost: evil\r\nX-Late: yes\r\n\r\n',
    )

    head = events[0]
    assert isinstance(head, RequestHead)
    assert head.chunked
    assert head.headers == [(b"host", b"x"), (b"transfer-encoding", b"Chunked")]
    assert body_of(events) == b"hello0123456789"
    assert type(events[-1]) is RequestEnd


def test_many_chunks_of_one_read_are_one_event() -> None:
    body = b"".join(b"1\r\n%c\r\n" % letter for letter in b"abcdefgh")
    events = feed(
        Http1Server(Http1Limits()),
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n",
    )

    assert [type(event) for event in events] == [RequestHead, BodyChunk, RequestEnd]
    assert body_of(events) == b"abcdefgh"


def test_a_large_piece_of_a_body_is_passed_on_without_a_copy() -> None:
    server = Http1Server(Http1Limits())
    whole_read = b"x" * 100_000
    feed(server, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n")
    (first,) = feed(server, whole_read)
    second = feed(server, whole_read + b"GET /")[0]

    assert isinstance(first, BodyChunk)
    assert first.data is whole_read
    assert isinstance(second, BodyChunk)
    assert type(second.data) is memoryview
    assert second.data == whole_read


@pytest.mark.parametrize(
    ("version", "connection", "keep_alive"),
    [
        (b"1.1", None, True),
        (b"1.1", b"keep-alive", True),
        (b"1.1", b"close", False),
        (b"1.1", b"Close", False),
        (b"1.1", b"keep-alive, TE,\tCLOSE", False),
        (b"1.1", b"closed", True),
        (b"1.0", None, False),
        (b"1.0", b"Keep-Alive", True),
        (b"1.0", b"keep-alive, close", False),
    ],
)
def test_the_connection_header_decides_about_keep_alive(
    version: bytes, connection: bytes | None, keep_alive: bool
) -> None:
    line = b"" if connection is None else b"Connection: " + connection + b"\r\n"
    assert only_head(b"GET / HTTP/" + version + b"\r\nHost: x\r\n" + line + b"\r\n").keep_alive is keep_alive


@pytest.mark.parametrize(
    ("target", "seen"),
    [
        (b"http://example.org/v2?x", b"/v2?x"),
        (b"HTTPS://example.org:80/v2", b"/v2"),
        (b"http://[::1]:8000", b"/"),
        (b"http://example.org?x=1", b"/?x=1"),
        (b"/v2/models/a%2Fb", b"/v2/models/a%2Fb"),
        (b"//v2", b"//v2"),
        (b'/odd{}|^"<>`\\', b'/odd{}|^"<>`\\'),
    ],
)
def test_the_target_is_seen_in_origin_form(target: bytes, seen: bytes) -> None:
    assert only_head(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n").target == seen


def test_options_may_ask_about_the_whole_server() -> None:
    assert only_head(b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n").target == b"*"


@pytest.mark.parametrize("host", [b"a", b"a.b-c_d:8000", b"127.0.0.1", b"[::1]:80", b"a:"])
def test_these_hosts_are_valid(host: bytes) -> None:
    assert only_head(b"GET / HTTP/1.1\r\nHost: " + host + b"\r\n\r\n").get(b"host") == host


def test_an_http_1_0_request_needs_no_host() -> None:
    assert only_head(b"GET / HTTP/1.0\r\n\r\n").http_minor == 0


def test_an_upgrade_to_h2c_is_answered_as_plain_http_and_its_body_is_a_body() -> None:
    server = Http1Server(Http1Limits())
    upgrade = (
        b"POST /a HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        b"HTTP2-Settings: AAMAAABkAAQAAP__\r\nContent-Length: 3\r\n\r\nabc"
    )
    events = feed(server, upgrade + b"GET /b HTTP/1.1\r\nHost: x\r\n\r\n")

    assert [type(event) for event in events] == [RequestHead, BodyChunk, RequestEnd]
    assert body_of(events) == b"abc"
    assert server.respond(200).startswith(b"HTTP/1.1 200 OK\r\n")
    assert server.after_response() is AfterResponse.KEEP
    following = server.resume()[0]
    assert isinstance(following, RequestHead)
    assert following.target == b"/b"


def test_empty_lines_before_a_request_are_skipped() -> None:
    assert only_head(b"\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n").target == b"/"


@pytest.mark.parametrize(("value", "length"), [(b"0", 0), (b"007", 7), (b"0" * 19 + b"7", 7)])
def test_leading_zeros_of_a_length_are_harmless(value: bytes, length: int) -> None:
    data = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: " + value + b"\r\n\r\n" + b"x" * length
    events = feed(Http1Server(Http1Limits()), data)

    assert body_of(events) == b"x" * length
    assert type(events[-1]) is RequestEnd


@pytest.mark.parametrize(
    ("fed", "answer", "meaning"),
    [
        (b"", False, Eof.CLEAN),
        (b"\r\n", False, Eof.CLEAN),
        (b"GET / HT", False, Eof.TRUNCATED),
        (INFER[:-1], False, Eof.TRUNCATED),
        (INFER, False, Eof.HALF_CLOSED),
        (INFER, True, Eof.CLEAN),
        (INFER + b"GET", True, Eof.TRUNCATED),
        (b"GET / HTTP/9.9\r\n", False, Eof.HALF_CLOSED),
    ],
)
def test_the_end_of_input_means_different_things(fed: bytes, answer: bool, meaning: Eof) -> None:
    server = Http1Server(Http1Limits())
    feed(server, fed)
    if answer:
        server.respond(200)
        server.after_response()
        server.resume()

    assert server.eof() is meaning


def test_after_a_half_close_held_requests_are_answered_and_the_last_answer_closes() -> None:
    server = Http1Server(Http1Limits())
    one = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    feed(server, one + one)
    assert server.eof() is Eof.HALF_CLOSED

    assert b"connection" not in server.respond(200)
    assert server.after_response() is AfterResponse.KEEP
    assert [type(event) for event in server.resume()] == [RequestHead, RequestEnd]
    assert b"connection: close\r\n" in server.respond(200)
    assert server.after_response() is AfterResponse.CLOSE


def test_after_a_half_close_a_held_request_with_a_body_is_complete() -> None:
    server = Http1Server(Http1Limits())
    feed(server, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + INFER)
    assert server.eof() is Eof.HALF_CLOSED
    server.respond(200)
    assert server.after_response() is AfterResponse.KEEP

    assert [type(event) for event in server.resume()] == [RequestHead]
    assert [type(event) for event in server.resume()] == [BodyChunk, RequestEnd]


@pytest.mark.parametrize("rest", [b"GET / HT", INFER[:-1]])
def test_after_a_half_close_a_held_piece_of_a_request_is_a_fault(rest: bytes) -> None:
    server = Http1Server(Http1Limits())
    feed(server, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + rest)
    server.eof()
    server.respond(200)
    assert server.after_response() is AfterResponse.KEEP

    fault = feed(server, b"")[-1]
    assert isinstance(fault, ProtocolFault)
    assert fault.status == 400
    assert b"connection: close\r\n" in server.respond(fault.status)
    assert server.after_response() is AfterResponse.CLOSE


def test_the_phase_names_what_is_waited_for() -> None:
    server = Http1Server(Http1Limits())
    phases = [server.phase]
    for data in (INFER[:10], INFER[10:-2], INFER[-2:]):
        feed(server, data)
        phases.append(server.phase)
    server.respond(200)
    server.after_response()
    phases.append(server.phase)
    feed(server, INFER[:-2])
    server.respond(404)
    server.after_response()
    phases.append(server.phase)
    feed(server, INFER[-2:] + b"\x00")
    phases.append(server.phase)

    assert phases == [
        Phase.IDLE,
        Phase.HEAD,
        Phase.BODY,
        Phase.ANSWER,
        Phase.IDLE,
        Phase.DRAIN,
        Phase.CLOSED,
    ]
