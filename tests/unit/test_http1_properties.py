"""Properties of the codec: independence of how bytes arrive, agreement with h11, and no input that breaks it."""

from __future__ import annotations

import re

import h11
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.wire.http1 import Http1Limits
from tests.unit.http1_driving import Seen, cut, drive

SMALL = Http1Limits(
    request_line_max_bytes=60,
    header_line_max_bytes=60,
    header_count_max=6,
    head_max_bytes=200,
    body_max_bytes=300,
    chunk_line_max_bytes=20,
    chunk_extensions_max_bytes=30,
    chunks_free=5,
    trailers_max_bytes=30,
)
WIDE = Http1Limits()

TOKEN = st.text("abcXYZ019!#$%&'*+-.^_`|~", min_size=1, max_size=12).map(str.encode)
VALUE = st.binary(max_size=30).map(lambda raw: re.sub(rb"[\x00-\x1f\x7f]", b".", raw).strip(b" \t"))
TARGET = st.text("abz019/%?=&.-_~", max_size=30).map(lambda text: b"/" + text.encode())
RESERVED = {b"host", b"content-length", b"transfer-encoding", b"expect", b"connection", b"upgrade"}
HEADERS = st.lists(st.tuples(TOKEN.filter(lambda name: name.lower() not in RESERVED), VALUE), max_size=5)


@st.composite
def valid_requests(draw: st.DrawFn) -> bytes:
    """One valid request with any kind of body."""
    method = draw(st.sampled_from([b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH"]))
    lines = [method + b" " + draw(TARGET) + b" HTTP/1.1", b"Host: localhost:8000"]
    lines += [
        name + b":" + draw(st.sampled_from([b"", b" ", b"\t "])) + value + draw(st.sampled_from([b"", b" \t"]))
        for name, value in draw(HEADERS)
    ]
    kind = draw(st.sampled_from(["none", "length", "chunked"]))
    if kind == "none":
        return b"\r\n".join([*lines, b"", b""])
    body = draw(st.binary(max_size=200))
    if kind == "length":
        lines.insert(draw(st.integers(1, len(lines))), b"Content-Length: %d" % len(body))
        return b"\r\n".join([*lines, b"", body])
    lines.insert(draw(st.integers(1, len(lines))), b"transfer-encoding: chunked")
    coded = bytearray()
    for chunk in cut(body, draw(st.lists(st.integers(0, 200), max_size=4))):
        if chunk:
            extension = draw(st.sampled_from([b"", b";a", b';a="b c"']))
            coded += b"%x" % len(chunk) + extension + b"\r\n" + chunk + b"\r\n"
    trailers = draw(st.sampled_from([b"", b"X-Sum: 1\r\n", b"Host: evil\r\nX-Late: 7\r\n"]))
    return b"\r\n".join([*lines, b"", b""]) + bytes(coded) + b"0\r\n" + trailers + b"\r\n"


# Pieces that smuggling and confusion are made of.
WORDS = [
    *(b"\r", b"\n", b"\r\n", b"\r\n\r\n", b"\n\n", b"\r\n ", b" ", b"\t", b"\x0b", b"\x00", b":", b",", b";", b"+"),
    *(b"0", b"1", b"chunked", b"0\r\n\r\n", b"5\r\nhello\r\n", b"HTTP/1.0", b"Content-Length: 5\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: x\r\n", b"Transfer-Encoding : chunked\r\n"),
    *(b"Connection: close\r\n", b"Expect: 100-continue\r\n", b"Upgrade: h2c\r\nConnection: upgrade\r\n"),
    *(b"Host: y\r\n", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
]
FRAGMENTS = st.one_of(st.binary(min_size=1, max_size=6), st.sampled_from(WORDS))


@st.composite
def mutated_requests(draw: st.DrawFn) -> bytes:
    """Valid requests with a few places damaged."""
    data = bytearray(b"".join(draw(st.lists(valid_requests(), min_size=1, max_size=3))))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        drop = draw(st.sampled_from([0, 0, 1, 2, 9]))
        data[at : at + drop] = draw(st.one_of(st.just(b""), FRAGMENTS))
    return bytes(data)


CUTS = st.lists(st.integers(0, 2000), max_size=8)
ANY_INPUT = st.one_of(mutated_requests(), st.binary(max_size=300), st.lists(FRAGMENTS, max_size=20).map(b"".join))


def by_h11(data: bytes) -> Seen | str:
    """The first request as h11 reads it, or its complaint; '' if it waits for more."""
    peer = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    peer.receive_data(data)
    head = None
    body = bytearray()
    while True:
        try:
            event = peer.next_event()
        except h11.RemoteProtocolError as error:
            return str(error)
        if isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            assert head is not None
            return Seen(
                head.method, head.target, tuple(head.headers), (0, None, False, False, False), bytes(body), True, None
            )
        elif event is h11.NEED_DATA:
            return ""


@settings(max_examples=150, deadline=None)
@given(st.lists(valid_requests(), min_size=1, max_size=5), CUTS)
def test_valid_requests_are_read_as_h11_reads_them_however_they_arrive(requests: list[bytes], cuts: list[int]) -> None:
    seen = drive(cut(b"".join(requests), cuts), WIDE)

    assert len(seen) == len(requests)
    for ours, raw in zip(seen, requests, strict=True):
        theirs = by_h11(raw)
        assert isinstance(theirs, Seen), theirs
        assert ours.complete
        assert ours[:3] == theirs[:3]
        assert ours.body == theirs.body


@settings(max_examples=400, deadline=None)
@given(ANY_INPUT, CUTS, st.sampled_from([SMALL, WIDE]))
@example(b"GET / HTTP/1.1\r\nHost: " + b"a" * 54 + b"\r\r\n\r\n", [79], SMALL)
@example(b"GET / HTTP/1.1\r\nHost: " + b"a" * 55 + b"\n\r\n\r\n", [77], SMALL)
@example(b"POST / HTTP/1.1\r\nHost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\nA: \x00" + b"b" * 50, [61], SMALL)
@example(b"POST / HTTP/1.1\r\nHost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\nA: " + b"b" * 28 + b"\x00", [61], SMALL)
def test_the_cut_of_the_input_never_changes_what_is_seen(data: bytes, cuts: list[int], limits: Http1Limits) -> None:
    whole = drive([data], limits)

    assert drive(cut(data, cuts), limits) == whole
    assert drive([data[at : at + 1] for at in range(len(data))], limits) == whole


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(st.lists(valid_requests(), min_size=1, max_size=4), st.lists(ANY_INPUT, min_size=1, max_size=3)),
    st.sampled_from([SMALL, WIDE, Http1Limits(pipeline_max=3)]),
)
def test_the_short_ways_see_what_the_long_ones_see(reads: list[bytes], limits: Http1Limits) -> None:
    assert drive(reads, limits, shortly=True) == drive(reads, limits)


@settings(max_examples=400, deadline=None)
@given(ANY_INPUT)
def test_what_is_accepted_is_read_the_same_by_h11(data: bytes) -> None:
    """So whatever h11 refuses as ambiguous is refused here, and no body ends elsewhere than h11 thinks."""
    seen = drive([data], WIDE)
    if not seen or not seen[0].complete:
        return
    ours = seen[0]
    theirs = by_h11(data.lstrip(b"\r\n"))  # h11 takes no empty lines in front

    assert isinstance(theirs, Seen), theirs
    assert (ours.method, ours.body) == (theirs.method, theirs.body)
    # h11 writes a transfer coding in lower case
    assert [(name, value.lower()) for name, value in ours.headers] == [
        (name, value.lower()) for name, value in theirs.headers
    ]
    assert theirs.target.endswith(ours.target)


@settings(max_examples=150, deadline=None)
@given(st.lists(valid_requests(), min_size=1, max_size=6), CUTS, st.integers(2, 4))
def test_the_depth_of_the_pipeline_changes_no_request(requests: list[bytes], cuts: list[int], depth: int) -> None:
    data = b"".join(requests)

    assert drive(cut(data, cuts), Http1Limits(pipeline_max=depth)) == drive([data], WIDE)


@settings(max_examples=100, deadline=None)
@given(valid_requests(), st.integers(0, 2000))
def test_a_truncated_request_is_never_complete(request: bytes, at: int) -> None:
    seen = drive([request[: at % len(request)]], WIDE)

    assert not any(one.complete for one in seen)
    assert all(one.fault is None for one in seen)
