"""Heads that come again: a head that is known by its form says what reading it says, and one that is not as good as
those before it is not known."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.wire.http1 import Http1Limits, Http1Server, RequestHead
from gateway.wire.http1 import server as module
from gateway.wire.http1.forms import HEAD_BYTES_MAX, HEADERS_MAX, HeadForms, form_of
from gateway.wire.http1.head import parse_head
from tests.unit.http1_driving import drive

LIMITS = Http1Limits()
PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
BEFORE = (b"Host: x\r\n", b"X-One:  1 \t\r\n", b"content-type:application/json\r\n")
VALUES = {
    b"X-Request-Id": st.one_of(
        st.text("abc-019", min_size=3, max_size=3).map(str.encode), st.binary(min_size=3, max_size=3)
    ),
    b"traceparent": st.sampled_from([PARENT, PARENT.upper(), PARENT[:-1] + b"\xff", PARENT[:-1] + b" ", b"0" * 55]),
    b"x-request-timeout-ms": st.sampled_from(
        [b"5000", b"0500", b"5 00", b"-100", b"9999", b"\t500", b"500\t", b"50\r\n"]
    ),
}


def request(parent: bytes, request_id: bytes, timeout: bytes, length: bytes = b"2", body: bytes = b"{}") -> bytes:
    return (
        b"POST /v2/models/m/infer HTTP/1.1\r\n%bX-Request-Id: %b\r\nContent-Length: %b\r\ntraceparent: %b \r\n"
        b"x-request-timeout-ms: %b\r\n\r\n%b"
    ) % (b"".join(BEFORE), request_id, length, parent, timeout, body)


FIRST = request(PARENT, b"r-1", b"5000")


@pytest.fixture(autouse=True)
def forms(monkeypatch: pytest.MonkeyPatch) -> HeadForms:
    """Nothing is known but what a test has shown."""
    fresh = HeadForms()
    monkeypatch.setattr(module, "_forms", fresh)
    return fresh


def shown(data: bytes, *, before: bytes = FIRST, limits: Http1Limits = LIMITS, same: bool = True) -> bool:
    """Whether `data` is known after `before`; whatever it is, it comes to what it comes to on the long way.
    `same`: over the same connection.
    """
    module._forms = HeadForms()
    server = Http1Server(limits)
    server.receive_request(before)
    server.answer(200, b"", b"x")
    received = (server if same else Http1Server(limits)).receive_request(data)
    assert drive([before, data], limits, shortly=True) == drive([before, data], limits)
    return isinstance(received, tuple)


@pytest.mark.parametrize("same", [True, False])
def test_a_head_that_differs_in_what_varies_is_known(same: bool) -> None:
    other = request(PARENT.replace(b"0af", b"fa0"), b"r-2", b"3000", b"9", b'{"a": 12}')
    assert shown(FIRST, same=same)
    assert shown(other, same=same)
    server = Http1Server(LIMITS)
    known = server.receive_request(other)
    assert isinstance(known, tuple)
    form, values, body = known
    long = parse_head(other[: -len(body)], LIMITS, 8192)
    made = form.request(values, body)
    assert made.headers == long.headers
    assert [made.get(name) for name, _ in long.headers] == [long.get(name) for name, _ in long.headers]
    assert (made.method, made.target, made.content_length, made.keep_alive) == (b"POST", b"/v2/models/m/infer", 9, True)
    assert body == b'{"a": 12}'


@given(VALUES[b"traceparent"], VALUES[b"X-Request-Id"], VALUES[b"x-request-timeout-ms"], st.booleans())
def test_whatever_the_values_are_they_are_read_as_ever(
    parent: bytes, request_id: bytes, timeout: bytes, same: bool
) -> None:
    known = shown(request(parent, request_id, timeout), same=same)
    assert known is all(0x21 <= byte <= 0x7E for byte in parent + request_id + timeout)


@given(st.integers(0, len(FIRST) - 1), st.integers(0, 255), st.booleans())
@example(len(FIRST) - 4, 0x0A, True)
def test_whichever_byte_is_another_it_is_read_as_ever(at: int, byte: int, same: bool) -> None:
    shown(FIRST[:at] + bytes((byte,)) + FIRST[at + 1 :], same=same)


@pytest.mark.parametrize("length", [b"1", b"3", b"+", b" ", b"\xb2", b"a"])
def test_a_length_that_is_not_the_bodys_is_not_known(length: bytes) -> None:
    assert not shown(request(PARENT, b"r-1", b"5000", length))
    assert not shown(request(PARENT, b"r-1", b"5000", b"02"), before=request(PARENT, b"r-1", b"5000", b"02"))


@pytest.mark.parametrize("cut", [1, 100, len(FIRST) - 2, len(FIRST) - 1])
def test_a_part_of_a_request_and_more_than_one_are_not_known(cut: int) -> None:
    assert not shown(FIRST[:cut])
    assert not shown(FIRST + FIRST[:cut])


@pytest.mark.parametrize(
    "more",
    [
        *(b"Connection: close", b"Expect: 100-continue", b"X-Request-Id: r-2", b"Content-Length: 2"),
        *(b"Transfer-Encoding: chunked", b"traceparent: ", b"x-request-timeout-ms: 1 0"),
    ],
)
def test_unusual_heads_have_no_form(more: bytes) -> None:
    data = FIRST.replace(b"Host: x", b"Host: x\r\n" + more)
    assert not shown(data, before=data)
    for odd in (FIRST.replace(b"POST", b"HEAD"), FIRST.replace(b"HTTP/1.1", b"HTTP/1.0")):
        assert not shown(odd, before=odd)


def test_limits_hold_for_known_heads_too() -> None:
    Http1Server(LIMITS).receive_request(FIRST)
    for limits in (
        Http1Limits(header_count_max=6),
        Http1Limits(header_line_max_bytes=40),
        Http1Limits(head_max_bytes=len(FIRST) - 3),
        Http1Limits(body_max_bytes=1),
    ):
        events = Http1Server(limits).receive_request(FIRST)
        assert isinstance(events, list)
        assert repr(events) == repr(Http1Server(limits).receive(FIRST))
        assert "ProtocolFault" in repr(events)


def test_what_is_remembered_is_bounded(forms: HeadForms) -> None:
    for number in range(100_000, 101_000):
        Http1Server(LIMITS).receive_request(FIRST.replace(b"Host: x", b"Host: h%d" % number))
    assert len(forms) == 16
    most = 0
    for number in range(5000):
        Http1Server(LIMITS).receive_request(FIRST.replace(b"/infer", b"/infer%d" % number))
        Http1Server(LIMITS).receive_request(FIRST.replace(b"/infer", b"/in%d" % number).replace(b"Host: x", b"Host: y"))
        assert len(forms) == sum(map(len, forms._of_line.values()))
        assert len(forms._unknown) == len(forms._of_line) <= 2048
        most = max(most, len(forms))
    assert most == 2048
    for length in (100, HEAD_BYTES_MAX):
        Http1Server(LIMITS).receive_request(FIRST.replace(b"Host: x", b"Host: x\r\na: " + b"b" * length))
    assert max(form.size for of_line in forms._of_line.values() for form in of_line) <= HEAD_BYTES_MAX


def test_heads_of_many_headers_have_no_form() -> None:
    for count, known in ((HEADERS_MAX, True), (HEADERS_MAX + 1, False)):
        more = b"".join(b"a%d: 1\r\n" % number for number in range(count - FIRST.count(b"\r\n") + 2))
        data = FIRST.replace(b"Content-Length", more + b"Content-Length")
        assert shown(data, before=data) is known


def test_heads_that_never_repeat_are_seldom_worth_a_form(forms: HeadForms) -> None:
    learned = set()
    for number in range(10_000, 11_000):
        Http1Server(LIMITS).receive_request(FIRST.replace(b"Host: x", b"Host: h%d" % number))
        learned |= {form.index[b"host"] for of_line in forms._of_line.values() for form in of_line}
    assert 16 < len(learned) < 60


def test_many_models_whose_heads_have_one_size_are_all_known(forms: HeadForms) -> None:
    heads = [FIRST.replace(b"/m/", b"/m%d/" % number) for number in range(100, 400)]
    for _ in range(2):
        received = [Http1Server(LIMITS).receive_request(head) for head in heads]
    assert all(isinstance(each, tuple) for each in received)
    assert len(forms) == 300


def test_only_what_was_read_from_these_bytes_has_a_form() -> None:
    head = FIRST[:-2]
    read = parse_head(head, LIMITS, 8192)
    assert form_of(head, read) is not None
    other = parse_head(head.replace(b"X-One:  1", b"X-One:  2"), LIMITS, 8192)
    assert form_of(head, other) is None
    fewer = RequestHead(b"POST", b"/", 1, read.headers[:-1], {}, 2, False, False, True)
    assert form_of(head, fewer) is None
