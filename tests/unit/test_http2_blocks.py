"""Which header blocks are good (RFC 9113 section 8): one row each."""

from __future__ import annotations

import random

import pytest

from gateway.wire.hpack import HpackDecoder, literal
from gateway.wire.http2 import ErrorCode
from gateway.wire.http2.blocks import GOOD_REQUEST, judge_request, request_fault
from tests.unit.http2_driving import (
    END,
    END_HEADERS,
    HEADERS,
    REQUEST_FIELDS,
    RESPONSE,
    RST,
    ClientSide,
    ServerSide,
    block,
    frame,
    number,
    parse,
    request,
)

Fields = tuple[tuple[bytes, bytes], ...]
PSEUDO = REQUEST_FIELDS[:4]
METHOD, SCHEME, PATH, AUTHORITY = PSEUDO


def raw(*fields: tuple[bytes, bytes]) -> bytes:
    """A block of literals, whatever they are."""
    return b"".join(
        b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value if len(name) + len(value) < 100 else b""
        for name, value in fields
    )


REGULAR: list[tuple[str, Fields, bool]] = [
    ("none", (), True),
    ("usual ones", ((b"content-type", b"application/grpc"), (b"grpc-timeout", b"1S")), True),
    ("an own name", ((b"x-own_name.9", b"v"),), True),
    ("a -bin value", ((b"x-own-bin", b"AAEC/+="),), True),
    ("an empty value", ((b"x-own", b""),), True),
    ("a value beyond ASCII", ((b"x-own", b"\xc3\xa4\xff"),), True),
    ("blanks around a value, which gRPC allows", ((b"x-own", b" a b\t"),), True),
    ("the same name twice", ((b"x-own", b"1"), (b"x-own", b"2")), True),
    ("te: trailers", ((b"te", b"trailers"),), True),
    ("te: gzip", ((b"te", b"gzip"),), False),
    ("te: trailers, gzip", ((b"te", b"trailers, gzip"),), False),
    ("a capital", ((b"X-Own", b"v"),), False),
    ("an empty name", ((b"", b"v"),), False),
    ("a blank in a name", ((b"x own", b"v"),), False),
    ("a colon in a name", ((b"x:own", b"v"),), False),
    ("a control character in a name", ((b"x\x01", b"v"),), False),
    ("a name beyond ASCII", ((b"x\xe4", b"v"),), False),
    ("a line feed at the end of a name", ((b"content-type\n", b"v"),), False),
    ("a line feed in a value", ((b"x-own", b"a\nb"),), False),
    ("a line feed that ends a value", ((b"x-own", b"a\n"),), False),
    ("a line feed as a value", ((b"x-own", b"\n"),), False),
    ("a carriage return in a value", ((b"x-own", b"a\rb"),), False),
    ("a zero in a value", ((b"x-own", b"a\0b"),), False),
    ("a line feed in a usual field", ((b"user-agent", b"a\nb"),), False),
    ("connection", ((b"connection", b"close"),), False),
    ("proxy-connection", ((b"proxy-connection", b"x"),), False),
    ("keep-alive", ((b"keep-alive", b"x"),), False),
    ("transfer-encoding", ((b"transfer-encoding", b"chunked"),), False),
    ("upgrade", ((b"upgrade", b"h2c"),), False),
    ("a pseudo-field behind", ((b"x-own", b"v"), (b":path", b"/x")), False),
    ("an unknown pseudo-field", ((b":own", b"v"),), False),
    ("a colon alone", ((b":", b"v"),), False),
]

REQUESTS: list[tuple[str, Fields, bool]] = [
    *((text, (*PSEUDO, *fields), good) for text, fields, good in REGULAR),
    ("in another order", (PATH, AUTHORITY, METHOD, SCHEME), True),
    ("no authority", (METHOD, SCHEME, PATH), True),
    ("no method", (SCHEME, PATH, AUTHORITY), False),
    ("no scheme", (METHOD, PATH, AUTHORITY), False),
    ("no path", (METHOD, SCHEME, AUTHORITY), False),
    ("an empty path", (METHOD, SCHEME, (b":path", b""), AUTHORITY), False),
    ("an empty method", ((b":method", b""), SCHEME, PATH, AUTHORITY), False),
    ("a method twice", (METHOD, *PSEUDO), False),
    ("a path twice", (*PSEUDO, PATH), False),
    ("an authority twice", (*PSEUDO, AUTHORITY), False),
    ("a status", (*PSEUDO, (b":status", b"200")), False),
    ("a protocol", (*PSEUDO, (b":protocol", b"websocket")), False),
    ("a line feed in the path", (METHOD, SCHEME, (b":path", b"/\nx"), AUTHORITY), False),
    ("CONNECT", ((b":method", b"CONNECT"), AUTHORITY), True),
    ("CONNECT with a path", ((b":method", b"CONNECT"), AUTHORITY, PATH), False),
    ("CONNECT without an authority", ((b":method", b"CONNECT"),), False),
    ("nothing at all", (), False),
]

STATUS = (b":status", b"200")
RESPONSES: list[tuple[str, Fields, bool]] = [
    *((text, (STATUS, *fields), good) for text, fields, good in REGULAR),
    ("a status of 503", ((b":status", b"503"),), True),
    ("a status twice", (STATUS, STATUS), False),
    ("no status", ((b"content-type", b"x"),), False),
    ("a status that does not come first", ((b"content-type", b"x"), STATUS), False),
    ("a status of four digits", ((b":status", b"2000"),), False),
    ("a status with a line feed", ((b":status", b"200\n"),), False),
    ("a status below 100", ((b":status", b"099"),), False),
    ("a status in words", ((b":status", b"abc"),), False),
    ("a path", (STATUS, PATH), False),
    ("nothing at all", (), False),
]


def ids(table: list[tuple[str, Fields, bool]]) -> list[str]:
    return [text for text, _, _ in table]


@pytest.mark.parametrize(("fields", "good"), [row[1:] for row in REQUESTS], ids=ids(REQUESTS))
def test_requests(fields: Fields, good: bool) -> None:
    side = ServerSide()
    for stream_id in (1, 3):  # a bad block is bad again, though the decoder remembers it
        written = side.feed(request(stream_id, end=True, head=raw(*fields)))
        assert written == ([] if good else parse(number(RST, stream_id, ErrorCode.PROTOCOL_ERROR)))
    assert [stream.calls for stream in side.streams] == ([[("headers", fields, True)]] * 2 if good else [])
    assert side.server.streams_open == (2 if good else 0)


@pytest.mark.parametrize(("fields", "good"), [row[1:] for row in RESPONSES], ids=ids(RESPONSES))
def test_responses(fields: Fields, good: bool) -> None:
    side = ClientSide()
    for stream_id in (1, 3):
        stream = side.open(b"hello")
        side.feed(frame(HEADERS, END_HEADERS, stream_id, raw(*fields)))
        expected = ("headers", fields, False) if good else ("reset", ErrorCode.PROTOCOL_ERROR, False, False)
        assert stream.calls == [expected]


@pytest.mark.parametrize(("fields", "good"), [row[1:] for row in REGULAR], ids=ids(REGULAR))
def test_trailers(fields: Fields, good: bool) -> None:
    server, client = ServerSide(), ClientSide()
    server.feed(request(1), frame(HEADERS, END_HEADERS | END, 1, raw(*fields)))
    stream = client.open(b"hello")
    client.feed(frame(HEADERS, END_HEADERS, 1, RESPONSE), frame(HEADERS, END_HEADERS | END, 1, raw(*fields)))
    expected = ("trailers", fields) if good else ("reset", ErrorCode.PROTOCOL_ERROR, False, False)
    assert server.streams[0].calls[1:] == [expected]
    assert stream.calls[1:] == [expected]


def test_a_block_that_was_good_as_trailers_is_not_good_as_a_head() -> None:
    side = ServerSide()
    trailers = block((b"content-type", b"application/grpc"))
    side.feed(request(1), frame(HEADERS, END_HEADERS | END, 1, trailers))
    assert side.feed(request(3, head=trailers)) == parse(number(RST, 3, ErrorCode.PROTOCOL_ERROR))
    side.feed(request(5), frame(HEADERS, END_HEADERS | END, 5, block(*REQUEST_FIELDS)))
    assert side.streams[-1].was_reset == ("reset", ErrorCode.PROTOCOL_ERROR, False, False)


def test_an_interim_head_stays_interim_when_it_comes_again() -> None:
    side = ClientSide()
    interim = block((b":status", b"100")) + literal(b"link", b"x")
    for stream_id in (1, 3):
        stream = side.open(b"hello")
        side.feed(*[frame(HEADERS, END_HEADERS, stream_id, interim)] * 2)
        assert stream.calls == []


NAMES = (b"x-one", b"x-two")
VALUES = (b"plain", b"12345", b"a\0bcd", b"a\rbcd", b"a\nbcd", b"ab\xff c", b"     ", b"\n\n\n\n\n")


@pytest.mark.parametrize("ruled", [(), ((b":authority", b"local"),), ((b"te", b"trailers"),)])
def test_blocks_of_one_layout_are_judged_as_if_each_were_the_first(ruled: Fields) -> None:
    """`ruled` is a literal too: its value varies, as far as a layout can tell, and has a rule of its own."""
    decoder, chance = HpackDecoder(), random.Random(3)
    pseudo: Fields = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/"))
    laid_out = shortened = 0
    for _ in range(300):
        mine = tuple((name, bytes(chance.choices(b"\0\r\n/trailers", k=len(value)))) for name, value in ruled)
        own = (ruled if chance.random() < 0.5 else mine) + tuple((name, chance.choice(VALUES)) for name in NAMES)
        decoded = decoder.decode(b"\x83\x86\x84" + raw(*own))
        laid_out += decoded.layout is not None
        shortened += decoded.layout is not None and decoded.layout.verdict is GOOD_REQUEST

        assert judge_request(decoded) == request_fault(pseudo + own)
        assert (decoded.verdict is GOOD_REQUEST) == (request_fault(pseudo + own) == "")

    assert laid_out > 250
    assert shortened > 250 if not ruled else not shortened
