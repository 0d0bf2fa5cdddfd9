"""What is refused, and with which status: one row per form. Each row also runs byte by byte, and tells the same."""

from __future__ import annotations

import pytest

from gateway.wire.http1 import AfterResponse, Event, Http1Limits, Http1Server, ProtocolFault, RequestEnd, RequestHead
from tests.unit.http1_driving import feed

LIMITS = Http1Limits(
    request_line_max_bytes=200,
    header_line_max_bytes=300,
    header_count_max=10,
    head_max_bytes=1000,
    leading_blank_lines_max=2,
    body_max_bytes=1000,
    chunk_line_max_bytes=40,
    chunk_extensions_max_bytes=60,
    chunks_free=4,
    chunk_average_min_bytes=10,
    trailers_max_bytes=100,
)
GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


def line(text: bytes) -> bytes:
    return text + b"\r\nHost: x\r\n\r\n"


HEADS = [
    # Host
    ("no Host in HTTP/1.1", b"GET / HTTP/1.1\r\nA: b\r\n\r\n", 400),
    ("no header at all", b"GET / HTTP/1.1\r\n\r\n", 400),
    ("two Hosts", GET + b"Host: y\r\n\r\n", 400),
    ("the same Host twice", GET + b"host: x\r\n\r\n", 400),
    ("an empty Host", b"GET / HTTP/1.1\r\nHost:\r\n\r\n", 400),
    ("a Host with a path", b"GET / HTTP/1.1\r\nHost: x/y\r\n\r\n", 400),
    ("a Host with user information", b"GET / HTTP/1.1\r\nHost: u@x\r\n\r\n", 400),
    ("a Host with a space", b"GET / HTTP/1.1\r\nHost: x y\r\n\r\n", 400),
    ("a Host with a port that is no number", b"GET / HTTP/1.1\r\nHost: x:8o\r\n\r\n", 400),
    ("a Host of raw UTF-8", b"GET / HTTP/1.1\r\nHost: \xc3\xbc\r\n\r\n", 400),
    ("a malformed Host in HTTP/1.0", b"GET / HTTP/1.0\r\nHost: x y\r\n\r\n", 400),
    # the length of the body
    ("CL before TE", POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    ("TE before CL", POST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", 400),
    ("CL and an unknown TE", POST + b"Content-Length: 3\r\nTransfer-Encoding: gzip\r\n\r\n", 400),
    ("repeated equal CL", POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\n", 400),
    ("repeated different CL", POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\n", 400),
    ("a list of CL", POST + b"Content-Length: 3, 3\r\n\r\n", 400),
    ("CL with plus", POST + b"Content-Length: +1\r\n\r\n", 400),
    ("CL with minus", POST + b"Content-Length: -1\r\n\r\n", 400),
    ("CL in hexadecimal", POST + b"Content-Length: 0x10\r\n\r\n", 400),
    ("CL with a fraction", POST + b"Content-Length: 1.0\r\n\r\n", 400),
    ("CL with an underscore", POST + b"Content-Length: 1_0\r\n\r\n", 400),
    ("CL with inner space", POST + b"Content-Length: 1 0\r\n\r\n", 400),
    ("an empty CL", POST + b"Content-Length:\r\n\r\n", 400),
    ("CL that is no number", POST + b"Content-Length: abc\r\n\r\n", 400),
    ("CL over the limit", POST + b"Content-Length: 1001\r\n\r\n", 413),
    ("CL of 2**63", POST + b"Content-Length: 9223372036854775808\r\n\r\n", 413),
    ("CL of 2**64", POST + b"Content-Length: 18446744073709551616\r\n\r\n", 413),
    ("CL of 2**64 + 3", POST + b"Content-Length: 18446744073709551619\r\n\r\n", 413),
    ("CL of 20 digits and more zeros", POST + b"Content-Length: " + b"0" * 20 + b"5\r\n\r\n", 400),
    ("CL of 250 digits", POST + b"Content-Length: " + b"9" * 250 + b"\r\n\r\n", 413),
    # transfer codings
    ("TE gzip, chunked", POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501),
    ("TE gzip", POST + b"Transfer-Encoding: gzip\r\n\r\n", 501),
    ("TE identity", POST + b"Transfer-Encoding: identity\r\n\r\n", 501),
    ("TE xchunked", POST + b"Transfer-Encoding: xchunked\r\n\r\n", 501),
    ("TE chunked, gzip", POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n", 400),
    ("TE chunked, identity", POST + b"Transfer-Encoding: chunked, identity\r\n\r\n", 400),
    ("TE chunked twice", POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n", 400),
    ("two TE headers", POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    ("TE split over two headers", POST + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n", 501),
    ("an empty TE", POST + b"Transfer-Encoding:\r\n\r\n", 400),
    ("TE of commas", POST + b"Transfer-Encoding: , chunked\r\n\r\n", 400),
    ("TE with a vertical tab", POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n", 400),
    ("TE quoted", POST + b'Transfer-Encoding: "chunked"\r\n\r\n', 501),
    ("TE with a space before the colon", POST + b"Transfer-Encoding : chunked\r\n\r\n", 400),
    ("TE on a folded line", POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n", 400),
    ("TE in HTTP/1.0", b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    # header lines
    ("a space before the colon", GET + b"A : b\r\n\r\n", 400),
    ("a tab before the colon", GET + b"A\t: b\r\n\r\n", 400),
    ("obs-fold with a space", GET + b"A: b\r\n c\r\n\r\n", 400),
    ("obs-fold with a tab", GET + b"A: b\r\n\tc\r\n\r\n", 400),
    ("a space before the first header", b"GET / HTTP/1.1\r\n Host: x\r\n\r\n", 400),
    ("NUL in a value", GET + b"A: b\x00c\r\n\r\n", 400),
    ("a control byte in a value", GET + b"A: b\x1bc\r\n\r\n", 400),
    ("DEL in a value", GET + b"A: b\x7fc\r\n\r\n", 400),
    ("NUL in a name", GET + b"A\x00: b\r\n\r\n", 400),
    ("a bare CR in a value", GET + b"A: b\rC: d\r\n\r\n", 400),
    ("a bare LF in a value", GET + b"A: b\nC: d\r\n\r\n", 400),
    ("a bare LF behind a value", GET + b"A: b\n\r\n", 400),
    ("bare LF everywhere", b"GET / HTTP/1.1\nHost: x\n\n", 400),
    ("CR CR LF", GET + b"A: b\r\r\n\r\n", 400),
    ("LF CR", GET + b"A: b\n\rC: d\r\n\r\n", 400),
    ("an empty name", GET + b": b\r\n\r\n", 400),
    ("no colon", GET + b"A\r\n\r\n", 400),
    ("a space in a name", GET + b"A b: c\r\n\r\n", 400),
    ("a slash in a name", GET + b"A/b: c\r\n\r\n", 400),
    ("a bracket in a name", GET + b"A(: c\r\n\r\n", 400),
    ("a raw UTF-8 name", GET + b"\xc3\xa4: c\r\n\r\n", 400),
    ("a line of blanks", GET + b"  \r\n\r\n", 400),
    # the request line
    ("HTTP/0.9", b"GET /\r\n", 400),
    ("HTTP/0.9 with a bare LF", b"GET /\nHost: x\r\n\r\n", 400),
    ("HTTP/0.9 spelled out", line(b"GET / HTTP/0.9"), 505),
    ("HTTP/1.2", line(b"GET / HTTP/1.2"), 505),
    ("HTTP/2.0", line(b"GET / HTTP/2.0"), 505),
    ("HTTP/3.0", line(b"GET / HTTP/3.0"), 505),
    ("the preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    ("HTTP/11", line(b"GET / HTTP/11"), 400),
    ("HTTP/1", line(b"GET / HTTP/1"), 400),
    ("HTTP/1.10", line(b"GET / HTTP/1.10"), 400),
    ("a version in lower case", line(b"GET / http/1.1"), 400),
    ("another protocol", line(b"GET / RTSP/1.0"), 400),
    ("ICE", line(b"SOURCE / ICE/1.0"), 400),
    ("two spaces behind the method", line(b"GET  / HTTP/1.1"), 400),
    ("two spaces behind the target", line(b"GET /  HTTP/1.1"), 400),
    ("a space behind the version", line(b"GET / HTTP/1.1 "), 400),
    ("a space in front", line(b" GET / HTTP/1.1"), 400),
    ("a tab as separator", line(b"GET\t/ HTTP/1.1"), 400),
    ("a vertical tab as separator", line(b"GET\x0b/ HTTP/1.1"), 400),
    ("blanks only", line(b"   "), 400),
    ("a method with a bracket", line(b"G(T / HTTP/1.1"), 400),
    ("a method of raw UTF-8", line(b"G\xc3\x84T / HTTP/1.1"), 400),
    ("a method in lower case", line(b"get / HTTP/1.1"), 501),
    ("an unknown method", line(b"BREW / HTTP/1.1"), 501),
    ("a method that only llhttp knows", line(b"PROPFIND / HTTP/1.1"), 501),
    ("CONNECT in authority-form", line(b"CONNECT x:443 HTTP/1.1"), 501),
    ("CONNECT in origin-form", line(b"CONNECT / HTTP/1.1"), 501),
    ("authority-form", line(b"GET x:80 HTTP/1.1"), 400),
    ("a target without slash", line(b"GET v2 HTTP/1.1"), 400),
    ("asterisk-form with GET", line(b"GET * HTTP/1.1"), 400),
    ("another scheme", line(b"GET ftp://x/ HTTP/1.1"), 400),
    ("absolute-form with user information", line(b"GET http://u:p@x/ HTTP/1.1"), 400),
    ("absolute-form without authority", line(b"GET http:///v2 HTTP/1.1"), 400),
    ("a fragment", line(b"GET /v2#x HTTP/1.1"), 400),
    ("raw UTF-8 in the target", line(b"GET /\xc3\xbc HTTP/1.1"), 400),
    ("NUL in the target", line(b"GET /a\x00b HTTP/1.1"), 400),
    ("DEL in the target", line(b"GET /a\x7fb HTTP/1.1"), 400),
    ("a tab in the target", line(b"GET /a\tb HTTP/1.1"), 400),
    ("a space in the target", line(b"GET /a b HTTP/1.1"), 400),
    ("a form feed in the target", line(b"GET /a\x0cb HTTP/1.1"), 400),
    # in front of the request line
    ("too many empty lines", b"\r\n\r\n\r\n" + GET + b"\r\n", 400),
    ("an empty line of LF", b"\n" + GET + b"\r\n", 400),
    ("a CR alone", b"\r" + GET + b"\r\n", 400),
    ("NUL in front", b"\x00" + GET + b"\r\n", 400),
    ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    ("SSH", b"SSH-2.0-OpenSSH_9.2p1\r\n", 400),
    # expectations
    ("an unknown expectation", POST + b"Expect: teapot\r\nContent-Length: 3\r\n\r\n", 417),
    ("one expectation known, one not", POST + b"Expect: 100-continue, teapot\r\nContent-Length: 3\r\n\r\n", 417),
    ("an empty expectation", POST + b"Expect:\r\nContent-Length: 3\r\n\r\n", 417),
    ("an expectation over the body limit", POST + b"Expect: 100-continue\r\nContent-Length: 2000\r\n\r\n", 413),
    # limits
    ("a long target", line(b"GET /" + b"a" * 200 + b" HTTP/1.1"), 414),
    ("a long target that never ends", b"GET /" + b"a" * 300, 414),
    ("a long method", b"G" * 300, 414),
    ("a long header", GET + b"A: " + b"a" * 300 + b"\r\n\r\n", 431),
    ("a long header that never ends", GET + b"A: " + b"a" * 400, 431),
    ("a long name that never ends", GET + b"A" * 400, 431),
    ("many headers", GET + b"A: b\r\n" * 10 + b"\r\n", 431),
    ("many headers without end", GET + b"A: b\r\n" * 30, 431),
    ("a large head", GET + (b"A: " + b"a" * 200 + b"\r\n") * 5 + b"\r\n", 431),
    ("a large head without end", GET + (b"A: " + b"a" * 200 + b"\r\n") * 9, 431),
]

BODIES = [
    ("an empty size", CHUNKED + b"\r\n", 400),
    ("a size with sign", CHUNKED + b"+5\r\nhello\r\n0\r\n\r\n", 400),
    ("a negative size", CHUNKED + b"-5\r\nhello\r\n0\r\n\r\n", 400),
    ("a size with prefix", CHUNKED + b"0x5\r\nhello\r\n0\r\n\r\n", 400),
    ("a size that is no number", CHUNKED + b"xyz\r\nhello\r\n", 400),
    ("a space in front of a size", CHUNKED + b" 5\r\nhello\r\n0\r\n\r\n", 400),
    ("a space behind a size", CHUNKED + b"5 \r\nhello\r\n0\r\n\r\n", 400),
    ("a space in front of an extension", CHUNKED + b"5 ;a=b\r\nhello\r\n0\r\n\r\n", 400),
    ("a size line ended by LF", CHUNKED + b"5\nhello\r\n0\r\n\r\n", 400),
    ("a bare CR in a size line", CHUNKED + b"5\rX\r\nhello\r\n0\r\n\r\n", 400),
    ("a bare CR in an extension", CHUNKED + b"5;a\rb\r\nhello\r\n0\r\n\r\n", 400),
    ("a LF in an extension", CHUNKED + b"5;a\nb\r\nhello\r\n0\r\n\r\n", 400),
    ("NUL in an extension", CHUNKED + b"5;a\x00\r\nhello\r\n0\r\n\r\n", 400),
    ("a size of 65 bits", CHUNKED + b"10000000000000005\r\nhello\r\n0\r\n\r\n", 400),
    ("zeros beyond 64 bits", CHUNKED + b"00000000000000005\r\nhello\r\n0\r\n\r\n", 400),
    ("a size of 64 bits", CHUNKED + b"FFFFFFFFFFFFFFFF\r\nhello\r\n0\r\n\r\n", 413),
    ("a size over the limit", CHUNKED + b"3E9\r\n", 413),
    ("sizes that add up over the limit", CHUNKED + b"3E8\r\n" + b"x" * 1000 + b"\r\n1\r\n", 413),
    ("a chunk longer than its size", CHUNKED + b"3\r\nhello\r\n0\r\n\r\n", 400),
    ("a chunk ended by LF", CHUNKED + b"5\r\nhello\n0\r\n\r\n", 400),
    ("a chunk ended by CR", CHUNKED + b"5\r\nhello\r0\r\n\r\n", 400),
    ("a long size line", CHUNKED + b"5;" + b"e" * 50 + b"\r\nhello\r\n", 400),
    ("a long size line without end", CHUNKED + b"5;" + b"e" * 500, 400),
    ("many extensions", CHUNKED + (b"9;" + b"e" * 30 + b"\r\n123456789\r\n") * 3, 400),
    ("many tiny chunks", CHUNKED + b"1\r\nx\r\n" * 20, 400),
    ("large trailers", CHUNKED + b"0\r\n" + b"A: bbbbbbbbbbbbbbb\r\n" * 9 + b"\r\n", 431),
    ("a trailer without end", CHUNKED + b"0\r\nA: " + b"b" * 500, 431),
    ("a trailer without colon", CHUNKED + b"0\r\nA\r\n\r\n", 400),
    ("a trailer with a space before the colon", CHUNKED + b"0\r\nA : b\r\n\r\n", 400),
    ("Content-Length as trailer", CHUNKED + b"0\r\nContent-length: 5\r\n\r\n", 400),
    ("Transfer-Encoding as trailer", CHUNKED + b"0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    ("a folded trailer", CHUNKED + b"0\r\nA: b\r\n c\r\n\r\n", 400),
    ("a trailer ended by LF", CHUNKED + b"0\r\nA: b\n\r\n", 400),
    ("a body ended by LF", CHUNKED + b"0\r\n\n", 400),
    ("a body ended by CR", CHUNKED + b"0\r\n\rX", 400),
    ("a request as trailer", CHUNKED + b"0\r\nGET / HTTP/1.1\r\n\r\n", 400),
]


def fault_of(events: list[Event]) -> ProtocolFault:
    assert isinstance(events[-1], ProtocolFault), events
    return events[-1]


def bytewise(data: bytes) -> list[Event]:
    server = Http1Server(LIMITS)
    events: list[Event] = []
    for at in range(len(data)):
        events += feed(server, data[at : at + 1])
    return events


@pytest.mark.parametrize(("data", "status"), [row[1:] for row in HEADS], ids=[row[0] for row in HEADS])
def test_a_bad_head_is_refused_before_anything_of_it_is_seen(data: bytes, status: int) -> None:
    events = feed(Http1Server(LIMITS), data)

    assert len(events) == 1
    assert fault_of(events).status == status
    one_by_one = bytewise(data)
    assert len(one_by_one) == 1
    assert (fault_of(one_by_one).status, fault_of(one_by_one).reason) == (status, fault_of(events).reason)


@pytest.mark.parametrize(("data", "status"), [row[1:] for row in BODIES], ids=[row[0] for row in BODIES])
def test_a_bad_chunked_body_is_refused_and_never_complete(data: bytes, status: int) -> None:
    for events in (feed(Http1Server(LIMITS), data), bytewise(data)):
        assert isinstance(events[0], RequestHead)
        assert fault_of(events).status == status
        assert not any(isinstance(event, RequestEnd) for event in events)
    assert fault_of(bytewise(data)).reason == fault_of(feed(Http1Server(LIMITS), data)).reason


@pytest.mark.parametrize("rows", [HEADS, BODIES])
def test_the_answer_to_a_fault_announces_the_close_and_nothing_after_it_is_a_request(
    rows: list[tuple[str, bytes, int]],
) -> None:
    for _, data, status in rows:
        server = Http1Server(LIMITS)
        feed(server, data)
        assert feed(server, b"\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n") == []
        answer = server.respond(status, (), b"{}")
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert b"\r\nconnection: close\r\n" in answer
        assert server.after_response() is AfterResponse.CLOSE
        assert server.resume() == []
        assert feed(server, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") == []


def test_the_fault_of_a_head_request_is_answered_without_a_body() -> None:
    server = Http1Server(LIMITS)
    feed(server, b"HEAD / HTTP/1.1\r\n\r\n")

    assert server.respond(400, (), b"{}").endswith(b"content-length: 2\r\nconnection: close\r\n\r\n")


def test_the_fault_of_another_request_behind_a_head_request_is_answered_with_a_body() -> None:
    server = Http1Server(Http1Limits(pipeline_max=2))
    feed(server, b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\nGET /\r\n")
    assert server.respond(200, (), b"{}").endswith(b"\r\n\r\n")
    server.after_response()

    assert server.respond(400, (), b"{}").endswith(b"\r\n\r\n{}")


def test_a_reason_never_holds_bytes_of_the_client() -> None:
    for marker in (b"\xf0\x9f\x90\xb4", b"mark3r"):
        for place in (b"GET /%b\r\n", b"%b / HTTP/1.1\r\n", GET + b"%b\r\n\r\n", GET + b"Host: %b\r\n\r\n"):
            reason = fault_of(feed(Http1Server(LIMITS), place % marker)).reason
            assert reason.isascii()
            assert reason.isprintable()
            assert "mark3r" not in reason


@pytest.mark.parametrize(
    ("data", "chunks"),
    [
        (b"GET /" + b"a" * (200 - 14) + b" HTTP/1.1\r\nHost: x\r\n\r\n", 2),
        (GET + b"A: " + b"a" * 297 + b"\r\n\r\n", 2),
        (GET + b"A: b\r\n" * 9 + b"\r\n", 2),
        (b"\r\n\r\n" + GET + b"\r\n", 2),
        (POST + b"Content-Length: 1000\r\n\r\n" + b"x" * 1000, 3),
        (CHUNKED + b"3E8\r\n" + b"x" * 1000 + b"\r\n0\r\n\r\n", 3),
        (CHUNKED + b"5;" + b"e" * 38 + b"\r\nhello\r\n0\r\n\r\n", 3),
        (CHUNKED + b"1\r\nx\r\n" * 4 + b"0\r\n\r\n", 3),
        (CHUNKED + b"0\r\nA: " + b"b" * 97 + b"\r\n\r\n", 2),
    ],
    ids=["line", "header", "count", "blank", "CL", "chunked", "size", "tiny", "trailer"],
)
def test_what_is_exactly_at_a_limit_passes_and_one_more_does_not(data: bytes, chunks: int) -> None:
    assert len(feed(Http1Server(LIMITS), data)) == chunks


def test_a_head_of_exactly_the_largest_size_passes() -> None:
    filler = b"A: " + b"a" * 200 + b"\r\n"
    used = len(GET) + 4 * len(filler) + len(b"A: \r\n\r\n")
    head = GET + 4 * filler + b"A: " + b"a" * (1000 - used) + b"\r\n\r\n"
    assert len(head) == 1000

    assert isinstance(feed(Http1Server(LIMITS), head)[0], RequestHead)
    larger = head.replace(b"A: a", b"A: aa", 1)
    assert fault_of(feed(Http1Server(LIMITS), larger)).status == 431


def test_the_default_limits_are_refused_when_they_make_no_sense() -> None:
    with pytest.raises(ValueError, match="pipeline_max is 0"):
        Http1Limits(pipeline_max=0)
    with pytest.raises(ValueError, match="drain_max_bytes is -1"):
        Http1Limits(drain_max_bytes=-1)
