"""How answers are framed, and what becomes of the connection after them (field case FH-03)."""

from __future__ import annotations

import pytest

from gateway.wire.http1 import (
    AfterResponse,
    BodyChunk,
    Http1Limits,
    Http1Server,
    Http1UsageError,
    ProtocolFault,
    RequestEnd,
    RequestHead,
    header_block,
)
from tests.unit.http1_driving import feed

HIDDEN = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
TRUE = b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n"


def asked(head: bytes, limits: Http1Limits | None = None) -> Http1Server:
    server = Http1Server(limits or Http1Limits())
    feed(server, head)
    return server


def request(method: bytes = b"GET", version: bytes = b"1.1", extra: bytes = b"") -> bytes:
    return method + b" / HTTP/" + version + b"\r\nHost: x\r\n" + extra + b"\r\n"


# ------------------------------------------------------------------ framing


def test_a_whole_answer_has_its_length() -> None:
    server = asked(request())
    block = header_block([(b"content-type", b"application/json")])

    answer = server.respond(200, [(b"x-request-id", b"7")], b"{}", block=block)

    assert answer == (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-request-id: 7\r\ncontent-length: 2\r\n\r\n{}"
    )
    assert server.after_response() is AfterResponse.KEEP


def test_an_empty_answer_says_so() -> None:
    assert asked(request()).respond(200) == b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


def test_an_answer_of_unknown_length_is_chunked() -> None:
    server = asked(request())
    assert server.response(200) == b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    assert server.answer_has_body
    assert server.chunk(b"x" * 26) == b"1a\r\n" + b"x" * 26 + b"\r\n"
    assert server.chunk(b"") == b""
    assert server.end() == b"0\r\n\r\n"
    assert server.after_response() is AfterResponse.KEEP


@pytest.mark.parametrize("connection", [b"", b"Connection: keep-alive\r\n"])
def test_an_http_1_0_client_gets_no_chunks_and_the_body_ends_with_the_connection(connection: bytes) -> None:
    server = asked(request(version=b"1.0", extra=connection))
    assert server.response(200) == b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"
    assert server.chunk(b"data: x\n\n") == b"data: x\n\n"
    assert server.end() == b""
    assert feed(server, TRUE) == []
    assert server.after_response() is AfterResponse.CLOSE


def test_an_http_1_0_client_keeps_its_connection_if_it_asks_and_the_length_is_known() -> None:
    server = asked(request(version=b"1.0", extra=b"Connection: keep-alive\r\n"))
    assert server.respond(200, (), b"x").endswith(b"content-length: 1\r\nconnection: keep-alive\r\n\r\nx")
    assert server.after_response() is AfterResponse.KEEP

    server = asked(request(version=b"1.0"))
    assert b"connection: close\r\n" in server.respond(200)
    assert server.after_response() is AfterResponse.CLOSE


def test_a_head_request_is_told_the_length_and_gets_no_body() -> None:
    server = asked(request(b"HEAD"))
    assert server.respond(200, (), b"hello") == b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"
    assert server.after_response() is AfterResponse.KEEP

    server = asked(request(b"HEAD"))
    assert server.response(200) == b"HTTP/1.1 200 OK\r\n\r\n"
    assert not server.answer_has_body
    assert server.chunk(b"x") == b""
    assert server.end() == b""
    assert server.after_response() is AfterResponse.KEEP


@pytest.mark.parametrize("status", [204, 304])
def test_these_statuses_have_neither_body_nor_framing(status: int) -> None:
    server = asked(request())
    answer = server.respond(status, (), b"ignored")
    assert answer.endswith(b"\r\n\r\n")
    assert b"content-length" not in answer
    assert b"transfer-encoding" not in answer
    assert server.after_response() is AfterResponse.KEEP


def test_a_status_without_a_registered_phrase_is_written_too() -> None:
    assert asked(request()).respond(599).startswith(b"HTTP/1.1 599 \r\n")


def test_a_stream_that_is_given_up_closes_the_connection() -> None:
    server = asked(request() + TRUE)
    server.response(200)
    server.chunk(b"half")
    assert server.after_response() is AfterResponse.CLOSE
    assert server.resume() == []


@pytest.mark.parametrize(
    "header",
    [
        (b"a", b"b\r\nc: d"),
        (b"a", b"b\nc"),
        (b"a", b"b\rc"),
        (b"a", b"b\x00"),
        (b"a", b"\x1b[31m"),
        (b"a", b"\x7f"),
        (b"a\r\nb", b"c"),
        (b"a b", b"c"),
        (b"a:", b"c"),
        (b"", b"c"),
        (b"\xc3\xa4", b"c"),
        (b"Content-Length", b"1"),
        (b"transfer-encoding", b"chunked"),
        (b"Connection", b"close"),
    ],
)
def test_headers_that_would_break_the_framing_are_a_defect_of_the_caller(header: tuple[bytes, bytes]) -> None:
    server = asked(request())
    with pytest.raises(Http1UsageError):
        server.respond(200, [(b"good", b"1"), header])
    assert server.respond(500) == b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n"


def test_obs_text_and_tabs_in_values_are_passed_on() -> None:
    assert header_block([(b"a", b"\xc3\xbc\tb"), (b"c", b"")]) == b"a: \xc3\xbc\tb\r\nc: \r\n"
    assert header_block([]) == b""


def test_calls_out_of_order_are_a_defect_of_the_caller() -> None:
    server = Http1Server(Http1Limits())
    with pytest.raises(Http1UsageError, match="no request"):
        server.respond(200)
    with pytest.raises(Http1UsageError, match="no answer"):
        server.after_response()
    feed(server, request())
    with pytest.raises(Http1UsageError, match="no answer"):
        server.after_response()
    with pytest.raises(Http1UsageError, match="no answer"):
        server.chunk(b"x")
    with pytest.raises(Http1UsageError, match="not a final"):
        server.respond(100)
    server.respond(200)
    with pytest.raises(Http1UsageError, match="already"):
        server.respond(200)
    with pytest.raises(Http1UsageError, match="declared length"):
        server.chunk(b"x")


# ------------------------------------------------------------ early answers


def early(head: bytes, body: bytes, limits: Http1Limits | None = None) -> tuple[bytes, AfterResponse, list[bytes]]:
    """Answer 404 after the head; then let the body and a true request come. The targets seen afterwards."""
    server = asked(head, limits)
    answer = server.respond(404, (), b"{}")
    verdict = server.after_response()
    events = server.resume()
    for data in (body[:7], body[7:] + TRUE):
        events += feed(server, data)
    assert not any(isinstance(event, BodyChunk | ProtocolFault) for event in events)
    return answer, verdict, [event.target for event in events if isinstance(event, RequestHead)]


def test_a_small_rest_of_a_body_is_drained_and_the_connection_kept() -> None:
    head = b"POST /v2/models/absent/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(HIDDEN)
    answer, verdict, seen = early(head, HIDDEN)

    assert b"connection" not in answer
    assert verdict is AfterResponse.DRAIN
    assert seen == [b"/v2/health/ready"]


def test_a_body_that_arrived_partly_is_drained_from_there() -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(HIDDEN)
    _, verdict, seen = early(head + HIDDEN[:9], HIDDEN[9:], Http1Limits(drain_max_bytes=len(HIDDEN) - 9))

    assert verdict is AfterResponse.DRAIN
    assert seen == [b"/v2/health/ready"]


def test_a_rest_over_the_drain_limit_announces_the_close() -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(HIDDEN)
    answer, verdict, seen = early(head, HIDDEN, Http1Limits(drain_max_bytes=len(HIDDEN) - 1))

    assert b"connection: close\r\n" in answer
    assert verdict is AfterResponse.CLOSE
    assert seen == []


def test_a_chunked_rest_of_unknown_size_announces_the_close() -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer, verdict, seen = early(head, b"%x\r\n%b\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN))

    assert b"connection: close\r\n" in answer
    assert verdict is AfterResponse.CLOSE
    assert seen == []


def test_a_body_withheld_for_a_100_announces_the_close_whether_it_is_sent_or_not() -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(HIDDEN)
    for body in (HIDDEN, b""):
        answer, verdict, seen = early(head, body)
        assert answer.startswith(b"HTTP/1.1 404 ")
        assert b"connection: close\r\n" in answer
        assert verdict is AfterResponse.CLOSE
        assert seen == []


def test_a_client_that_expects_100_but_sends_at_once_keeps_its_connection() -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(HIDDEN)
    answer, verdict, seen = early(head + HIDDEN[:5], HIDDEN[5:])

    assert b"connection" not in answer
    assert verdict is AfterResponse.DRAIN
    assert seen == [b"/v2/health/ready"]


def on_the_spot(data: bytes, limits: Http1Limits | None = None) -> tuple[bytes, AfterResponse, list[bytes]]:
    """Answer the first head 404 while its body and a true request have already been read with it."""
    server = Http1Server(limits or Http1Limits())
    events = server.receive(data + TRUE)
    assert [type(event) for event in events] == [RequestHead]
    assert server.continue_100() == b""
    answer = server.respond(404, (), b"{}")
    verdict = server.after_response()
    events = feed(server, b"")
    assert not any(isinstance(event, BodyChunk | ProtocolFault) for event in events)
    return answer, verdict, [event.target for event in events if isinstance(event, RequestHead)]


COUNTED = b"Content-Length: %d\r\n" % len(HIDDEN)
IN_CHUNKS = b"%x\r\n%b\r\n0\r\nA: b\r\n\r\n" % (len(HIDDEN), HIDDEN)


@pytest.mark.parametrize(
    "data",
    [
        request(b"POST", extra=COUNTED) + HIDDEN,
        request(b"POST", extra=COUNTED + b"Expect: 100-continue\r\n") + HIDDEN,
        request(b"POST", extra=b"Transfer-Encoding: chunked\r\n") + IN_CHUNKS,
    ],
    ids=["counted", "expected", "chunked"],
)
def test_a_body_read_together_with_its_head_is_dropped_when_the_head_is_answered_on_the_spot(data: bytes) -> None:
    answer, verdict, seen = on_the_spot(data, Http1Limits(drain_max_bytes=0))

    assert b"connection" not in answer
    assert verdict is AfterResponse.KEEP
    assert seen == [b"/v2/health/ready"]


@pytest.mark.parametrize(
    "data",
    [
        request(b"POST", extra=b"Content-Length: %d\r\n" % (len(HIDDEN) + len(TRUE) + 2)) + HIDDEN,
        request(b"POST", extra=b"Transfer-Encoding: chunked\r\n") + IN_CHUNKS[:-2] + b"C: d\r\nGET",
        request(b"POST", extra=b"Transfer-Encoding: chunked\r\n") + IN_CHUNKS.replace(b"\r\n0", b"x0"),
        request(b"POST", extra=COUNTED + b"Connection: close\r\n") + HIDDEN,
    ],
    ids=["longer", "damaged trailer", "damaged chunk", "close asked for"],
)
def test_a_body_that_cannot_be_dropped_at_once_announces_the_close(data: bytes) -> None:
    answer, verdict, seen = on_the_spot(data, Http1Limits(drain_max_bytes=1))

    assert b"connection: close\r\n" in answer
    assert verdict is AfterResponse.CLOSE
    assert seen == []


def test_the_body_that_ends_while_the_early_answer_streams_leaves_nothing_to_drain() -> None:
    server = asked(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhe")
    server.response(404, body_len=2)
    assert feed(server, b"llo" + TRUE) == []
    assert server.after_response() is AfterResponse.KEEP
    assert [type(event) for event in server.resume()] == [RequestHead, RequestEnd]


def test_a_fault_inside_a_body_ends_its_request_and_is_answered_in_its_place() -> None:
    server = asked(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
    (fault,) = feed(server, b"zz\r\n")
    assert isinstance(fault, ProtocolFault)
    assert server.respond(fault.status).startswith(b"HTTP/1.1 400 ")
    assert server.after_response() is AfterResponse.CLOSE


# ------------------------------------------------------------- 100-continue

EXPECTING = b"Expect: 100-Continue\r\nContent-Length: 5\r\n"


def test_100_is_given_once_and_never_after_a_final_answer() -> None:
    server = asked(request(b"POST", extra=EXPECTING))
    assert server.continue_100() == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert server.continue_100() == b""
    assert [type(event) for event in feed(server, b"hello")] == [BodyChunk, RequestEnd]
    assert b"connection" not in server.respond(200)
    assert server.after_response() is AfterResponse.KEEP

    server = asked(request(b"POST", extra=EXPECTING))
    server.respond(503)
    assert server.continue_100() == b""


def test_after_a_given_100_an_early_answer_drains_as_usual() -> None:
    server = asked(request(b"POST", extra=EXPECTING))
    server.continue_100()
    server.respond(503)
    assert server.after_response() is AfterResponse.DRAIN


@pytest.mark.parametrize(
    "head",
    [
        request(b"POST", extra=b"Content-Length: 5\r\n"),
        request(b"POST", extra=b"Expect: 100-continue\r\nContent-Length: 0\r\n"),
        request(b"POST", extra=b"Expect: 100-continue\r\n"),
        request(b"POST", version=b"1.0", extra=EXPECTING),
        request(b"POST", version=b"1.0", extra=b"Expect: teapot\r\nContent-Length: 5\r\n"),
        request(b"POST", extra=EXPECTING) + b"he",
        request(b"POST", extra=EXPECTING) + b"hello",
        b"",
    ],
    ids=["not expected", "no bytes", "no body", "1.0", "1.0 unknown", "body begun", "body complete", "no request"],
)
def test_no_100_is_given_where_none_is_due(head: bytes) -> None:
    server = asked(head)
    assert server.continue_100() == b""


def test_a_chunked_body_can_be_expected_too() -> None:
    server = asked(request(b"POST", extra=b"Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n"))
    assert server.continue_100() != b""


def test_a_pipelined_request_gets_its_100_only_when_its_turn_has_come() -> None:
    server = asked(request() + request(b"POST", extra=EXPECTING), Http1Limits(pipeline_max=2))
    assert server.continue_100() == b""
    server.respond(200)
    server.after_response()
    assert server.continue_100() != b""
