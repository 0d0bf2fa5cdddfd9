"""Several requests on one connection: order, bounds, and who waits for whom."""

from __future__ import annotations

import pytest

from gateway.wire.http1 import (
    AfterResponse,
    BodyChunk,
    Event,
    Http1Limits,
    Http1Server,
    Http1UsageError,
    ProtocolFault,
    RequestEnd,
    RequestHead,
)
from tests.unit.http1_driving import feed


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def post(path: str, body: bytes) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def targets(events: list[Event]) -> list[bytes]:
    return [event.target for event in events if isinstance(event, RequestHead)]


def test_by_default_one_request_is_parsed_at_a_time() -> None:
    server = Http1Server(Http1Limits())
    second = post("/2", b"two")
    events = feed(server, get("/1") + second + get("/3"))
    assert targets(events) == [b"/1"]
    assert server.held_bytes == len(second + get("/3"))
    assert server.resume() == []

    for expected in (b"/2", b"/3"):
        server.respond(200)
        assert server.after_response() is AfterResponse.KEEP
        assert targets(server.resume()) == [expected]
    server.respond(200)
    assert server.after_response() is AfterResponse.KEEP
    assert server.resume() == []
    assert server.held_bytes == 0


def test_up_to_pipeline_max_requests_are_parsed_before_the_first_answer() -> None:
    server = Http1Server(Http1Limits(pipeline_max=3))
    events = feed(server, b"".join(get(f"/{number}") for number in range(5)))
    assert targets(events) == [b"/0", b"/1", b"/2"]

    server.respond(200)
    server.after_response()
    assert targets(server.resume()) == [b"/3"]


def test_bytes_that_come_while_requests_are_held_keep_their_order() -> None:
    server = Http1Server(Http1Limits())
    feed(server, get("/1") + b"GET /")
    for piece in (b"2 HTTP/1.1\r", b"\nHost: x\r\n\r\n" + get("/3"), b"GET /4 HT"):
        assert feed(server, piece) == []
    seen = []
    for _ in range(2):
        server.respond(200)
        server.after_response()
        seen += targets(server.resume())
    server.respond(200)
    server.after_response()
    assert server.resume() == []
    seen += targets(feed(server, b"TP/1.1\r\nHost: x\r\n\r\n"))

    assert seen == [b"/2", b"/3", b"/4"]


def test_a_driver_that_forgets_to_resume_still_sees_requests_in_order() -> None:
    server = Http1Server(Http1Limits())
    feed(server, get("/1") + get("/2"))
    server.respond(200)
    server.after_response()

    assert targets(feed(server, get("/3"))) == [b"/2"]


def test_the_driver_is_asked_to_pause_when_the_bound_of_held_bytes_is_reached() -> None:
    server = Http1Server(Http1Limits(hold_max_bytes=1000))
    feed(server, get("/1"))
    paused = []
    while server.held_bytes < 1000:
        paused.append(server.paused)
        feed(server, get("/more"))
    assert not any(paused)

    at_the_bound = server.paused
    server.respond(200)
    server.after_response()
    server.resume()
    assert (at_the_bound, server.paused) == (True, False)


def test_a_driver_that_ignores_the_pause_is_stopped() -> None:
    server = Http1Server(Http1Limits(hold_max_bytes=1000))
    feed(server, get("/1") + b"x" * 1000)

    def flood() -> None:
        for _ in range(100):
            feed(server, b"x" * 65536)

    with pytest.raises(Http1UsageError, match="paused"):
        flood()


def test_a_fault_waits_for_its_turn_behind_the_requests_before_it() -> None:
    server = Http1Server(Http1Limits(pipeline_max=4))
    events = feed(server, get("/1") + get("/2") + b"BREW / HTTP/1.1\r\n\r\n" + get("/3"))
    assert [type(event) for event in events] == [
        RequestHead,
        RequestEnd,
        RequestHead,
        RequestEnd,
        ProtocolFault,
    ]

    for _ in range(2):
        assert b"connection" not in server.respond(200)
        assert server.after_response() is AfterResponse.KEEP
    assert b"connection: close\r\n" in server.respond(501)
    assert server.after_response() is AfterResponse.CLOSE


def test_nothing_behind_a_request_that_asked_to_close_is_a_request() -> None:
    server = Http1Server(Http1Limits(pipeline_max=4))
    events = feed(server, get("/1").replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + get("/2"))

    assert targets(events) == [b"/1"]
    assert server.held_bytes == 0
    assert server.discarded_bytes == len(get("/2"))
    assert b"connection: close\r\n" in server.respond(200)
    assert server.after_response() is AfterResponse.CLOSE


def test_a_forced_close_drops_parsed_and_held_requests() -> None:
    server = Http1Server(Http1Limits(pipeline_max=2))
    feed(server, get("/1") + get("/2") + get("/3"))
    server.respond(200, close=True)

    assert server.after_response() is AfterResponse.CLOSE
    assert server.resume() == []
    assert server.held_bytes == 0
    with pytest.raises(Http1UsageError, match="no request"):
        server.respond(200)


def test_a_chunked_body_ends_exactly_where_the_next_request_starts() -> None:
    server = Http1Server(Http1Limits())
    chunked = b"POST /1 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nA: b\r\n\r\n"
    events = feed(server, chunked + get("/2"))

    assert [type(event) for event in events] == [RequestHead, BodyChunk, RequestEnd]
    server.respond(200)
    server.after_response()
    assert targets(server.resume()) == [b"/2"]


def test_ten_thousand_pipelined_requests_are_handled_one_by_one() -> None:
    server = Http1Server(Http1Limits())
    events = feed(server, get("/") * 10_000)
    count = 0
    while events:
        count += 1
        server.respond(200)
        server.after_response()
        events = server.resume()

    assert count == 10_000
