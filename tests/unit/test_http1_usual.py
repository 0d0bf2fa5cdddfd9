"""The short ways of the codec for the usual request: when they are taken, and that they end where the long ones do."""

from __future__ import annotations

import pytest

from gateway.wire.http1 import (
    AfterResponse,
    BodyChunk,
    Eof,
    Http1Limits,
    Http1Server,
    Phase,
    ProtocolFault,
    RequestEnd,
    RequestHead,
)
from tests.unit.http1_driving import feed

POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
BLOCK = b"content-type: application/json\r\n"


def whole(server: Http1Server, data: bytes) -> RequestHead:
    head = server.receive_request(data)
    if isinstance(head, tuple):
        form, values, body = head
        return form.request(values, body)
    assert isinstance(head, RequestHead)
    return head


@pytest.mark.parametrize(
    ("data", "body"),
    [
        (POST, b"hello"),
        (GET, b""),
        (b"GET / HTTP/1.0\r\n\r\n", b""),
        (GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), b""),
        (POST.replace(b"5", b"100000").replace(b"hello", bytes(100_000)), bytes(100_000)),
    ],
)
def test_one_whole_request_in_one_read_is_one_head_with_its_body(data: bytes, body: bytes) -> None:
    server = Http1Server(Http1Limits())

    head = whole(server, data)

    assert head.body == body
    assert server.resume() == []
    assert server.held_bytes == 0
    assert server.phase is (Phase.ANSWER if head.keep_alive else Phase.CLOSED)


@pytest.mark.parametrize(
    "data",
    [
        POST[:-1],
        POST[:20],
        POST + GET,
        POST + b"\r\n",
        b"\r\n" + POST,
        POST.replace(b"5", b"6"),
        POST.replace(b"5", b"4"),
        POST.replace(b"Content-Length: 5", b"Content-Length: 5\r\nExpect: 100-continue"),
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        POST.replace(b"Host: x", b"Host: x y"),
        b"",
    ],
)
def test_anything_else_is_events_as_ever(data: bytes) -> None:
    limits = Http1Limits(pipeline_max=2)
    short, long = Http1Server(limits), Http1Server(limits)

    received = short.receive_request(data)

    assert isinstance(received, list)
    assert list(map(repr, received)) == list(map(repr, long.receive(data)))
    assert (short.held_bytes, short.phase) == (long.held_bytes, long.phase)
    assert list(map(repr, short.resume())) == list(map(repr, long.resume()))


def test_behind_an_open_request_or_a_part_of_one_there_is_no_short_way() -> None:
    server = Http1Server(Http1Limits(pipeline_max=2))
    whole(server, POST)
    assert isinstance(server.receive_request(POST), list)

    server = Http1Server(Http1Limits())
    assert server.receive_request(POST[:30]) == []
    events = server.receive_request(POST[30:])
    assert isinstance(events, list)
    assert isinstance(events[0], RequestHead)
    assert events[0].body is None
    assert [type(event) for event in server.resume()] == [BodyChunk, RequestEnd]


def test_a_fault_is_told_once_whichever_way_it_comes() -> None:
    server = Http1Server(Http1Limits())

    events = server.receive_request(b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n")

    assert isinstance(events, list)
    assert [type(event) for event in events] == [ProtocolFault]
    assert server.phase is Phase.CLOSED
    assert server.answer(400, BLOCK, b"{}") == b""
    assert b"connection: close" in server.respond(400)


def test_the_short_answer_is_the_long_one_and_its_end() -> None:
    for status, body in ((200, b"{}"), (200, b""), (404, b"no"), (599, b"?")):
        short, long = Http1Server(Http1Limits()), Http1Server(Http1Limits())
        for server in (short, long):
            whole(server, POST)

        assert short.answer(status, BLOCK, body) == long.respond(status, body=body, block=BLOCK)
        assert long.after_response() is AfterResponse.KEEP
        assert short.phase is long.phase is Phase.IDLE
        assert whole(short, POST).body == b"hello"


@pytest.mark.parametrize(
    "data",
    [
        GET.replace(b"GET", b"HEAD"),
        b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"),
        POST[:-2],
        POST + POST,
        POST + GET[:7],
        POST + GET + GET,
    ],
)
def test_where_anything_but_going_on_follows_the_short_answer_does_nothing(data: bytes) -> None:
    server = Http1Server(Http1Limits(pipeline_max=2))
    feed(server, data)
    before = server.phase

    assert server.answer(200, BLOCK, b"{}") == b""

    assert server.phase is before
    assert server.respond(200).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_that_has_no_body_goes_the_long_way(status: int) -> None:
    server = Http1Server(Http1Limits())
    whole(server, GET)
    assert server.answer(status, BLOCK, b"") == b""
    assert b"content-length" not in server.respond(status)


def test_after_the_end_of_the_clients_bytes_and_without_a_request_there_is_no_short_answer() -> None:
    server = Http1Server(Http1Limits())
    assert server.answer(200, BLOCK, b"{}") == b""
    whole(server, GET)
    assert server.eof() is Eof.HALF_CLOSED
    assert server.answer(200, BLOCK, b"{}") == b""
    server.respond(200)
    assert server.answer(200, BLOCK, b"{}") == b""
    assert server.after_response() is AfterResponse.CLOSE


def test_what_is_remembered_of_lines_and_hosts_is_bounded_and_never_what_is_wrong() -> None:
    from gateway.wire.http1 import head

    for number in range(3000):
        whole(Http1Server(Http1Limits()), b"GET /%d HTTP/1.1\r\nHost: h%d\r\n\r\n" % (number, number))
        refused = Http1Server(Http1Limits()).receive_request(
            b"GET /%d HTTP/1.1\r\nHost: h %d\r\n\r\n" % (number, number)
        )
        assert isinstance(refused, list)
    whole(Http1Server(Http1Limits()), b"GET /" + b"a" * 4000 + b" HTTP/1.1\r\nHost: " + b"b" * 2000 + b"\r\n\r\n")
    assert len(head._lines) <= 512
    assert len(head._hosts) <= 512
    assert max(map(len, head._lines)) <= 256
    assert not any(host is None or b" " in host or len(host) > 64 for host in head._hosts)
