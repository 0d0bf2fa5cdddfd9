"""Requests on one connection (`gateway.wire.http1`). The first byte chooses limits and what the driver does."""

from __future__ import annotations

import random
from typing import NamedTuple

from gateway.wire.http1 import (
    AfterResponse,
    BodyChunk,
    Event,
    Http1Limits,
    Http1Server,
    ProtocolFault,
    RequestEnd,
    RequestHead,
)
from tests.fuzz.footprint import footprint
from tests.fuzz.mutations import change
from tests.fuzz.target import Target, assert_same, cuttings, looked_at

LIMITS = (
    Http1Limits(),
    Http1Limits(
        request_line_max_bytes=60,
        header_line_max_bytes=60,
        header_count_max=6,
        head_max_bytes=200,
        body_max_bytes=300,
        chunk_line_max_bytes=20,
        chunk_extensions_max_bytes=30,
        chunks_free=5,
        trailers_max_bytes=30,
        drain_max_bytes=100,
        hold_max_bytes=400,
    ),
    Http1Limits(pipeline_max=3, hold_max_bytes=1000, body_max_bytes=5000),
)
OVERHEAD_BYTES = 2000


class Driver:
    """Answers, and notes what it sees in a form that does not depend on how bodies are cut."""

    def __init__(self, options: int) -> None:
        self.limits = LIMITS[options % len(LIMITS)]
        self.early = options & 0x04 != 0 and self.limits.pipeline_max == 1
        """Answer some requests at their head, unread."""
        self.streamed = options & 0x08 != 0
        self.server = Http1Server(self.limits)
        self.seen: list[object] = []
        self.body = bytearray()
        self.unanswered = 0
        self.closed = False

    def feed(self, piece: bytes) -> None:
        self.take(self.server.receive(piece))

    def take(self, events: list[Event]) -> None:
        while events:
            for number, event in enumerate(events):
                self.note(event, last=number == len(events) - 1)
            while self.unanswered and not self.closed:
                self.unanswered -= 1
                self.answer(200)
            events = self.server.resume()

    def note(self, event: Event, last: bool) -> None:
        if isinstance(event, RequestHead):
            assert not self.body
            has_body = event.chunked or bool(event.content_length)
            assert last or not has_body, "whoever answers at a head must see nothing of the body"
            framing = (event.http_minor, event.content_length, event.chunked, event.expect_continue, event.keep_alive)
            self.seen.append(("head", event.method, event.target, tuple(event.headers), framing))
            if event.expect_continue:
                assert self.server.continue_100() in (
                    b"",
                    b"HTTP/1.1 100 Continue\r\n\r\n",
                )  # none if the body is there
            if self.early and has_body and len(event.target) % 2:
                self.seen.append("early")
                self.answer(413)
        elif isinstance(event, BodyChunk):
            assert event.data
            self.body += event.data
        elif isinstance(event, RequestEnd):
            self.seen.append(("body", bytes(self.body)))
            self.body.clear()
            self.unanswered += 1
        else:
            assert isinstance(event, ProtocolFault)
            assert 400 <= event.status <= 599
            self.seen.append(("fault", bytes(self.body), event.status, event.reason))
            self.body.clear()
            self.unanswered += 1

    def answer(self, status: int) -> None:
        server = self.server
        if self.streamed:
            out = server.response(status, [(b"a", b"b")])
            if server.answer_has_body:
                out += server.chunk(b"hello") + server.end()
        else:
            out = server.respond(status, [(b"a", b"b")], b"hello")
        after = server.after_response()
        self.seen.append(("answer", out, after.value))
        self.closed = self.closed or after is AfterResponse.CLOSE

    def end(self) -> None:
        self.seen.append(("eof", self.server.eof().value))
        self.take(self.server.resume())
        self.seen.append(("phase", self.server.phase.value, bytes(self.body)))


class Result(NamedTuple):
    seen: list[object]
    discarded: int


def drive(pieces: list[bytes], options: int) -> Result:
    driver = Driver(options)
    empty = footprint(driver.server).size
    looked = looked_at(pieces)
    for number, piece in enumerate(pieces):
        if driver.server.paused:
            break
        driver.feed(piece)
        if number in looked:
            limits = driver.limits
            bound = limits.head_max_bytes + limits.hold_max_bytes + len(piece) + OVERHEAD_BYTES
            assert footprint(driver.server).size - empty <= bound
    if options & 0x10:
        driver.end()
    return Result(driver.seen, driver.server.discarded_bytes)


def check(data: bytes) -> None:
    options, stream = (data[0] if data else 0), data[1:]
    whole = drive([stream], options)
    for pieces in cuttings(stream):
        # Pipelined requests come sooner or later with the cut; their order and content do not change.
        assert_same(normal(whole, options), normal(drive(pieces, options), options), pieces)


def normal(result: Result, options: int) -> object:
    """What must be the same in every cut.

    What becomes of a body that an answer did not wait for depends on how much of it has come: nothing behind counts.
    With several requests open at a time, answers stand elsewhere among the heads.
    """
    seen = result.seen[: result.seen.index("early")] if "early" in result.seen else result.seen
    if LIMITS[options % len(LIMITS)].pipeline_max == 1:
        return seen
    return [
        [item for item in seen if isinstance(item, tuple) and item[0] in kinds]
        for kinds in (("head", "body", "fault"), ("answer",))
    ]


REQUESTS = (
    b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
    b"POST /v2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n3\r\n012\r\n0\r\nX:1\r\n\r\n",
    b"POST /v2/m HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
    b"HEAD / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET http://localhost:8000/v2?x=1 HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n",
)


def seeds() -> list[bytes]:
    whole = b"".join(REQUESTS)
    return [
        *(bytes((options,)) + request for options in (0, 1, 12, 31) for request in REQUESTS),
        *(bytes((options,)) + whole for options in range(0, 32, 3)),
        b"\x04" + REQUESTS[1] * 20,
        b"\x02" + REQUESTS[0] * 20,
    ]


TOKENS = (
    *(b"\r", b"\n", b"\r\n", b"\r\n\r\n", b"\n\n", b" ", b"\t", b"\x00", b":", b",", b";", b"+", b"-1", b"\x80", b"%"),
    *(b"0", b"1", b"chunked", b"0\r\n\r\n", b"5\r\nhello\r\n", b"HTTP/1.0", b"HTTP/1.1", b"HTTP/2.0", b"fffffff"),
    *(b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip\r\n", b"Host: y\r\n"),
    *(b"Transfer-Encoding : chunked\r\n", b"Connection: close\r\n", b"Expect: 100-continue\r\n"),
    *(b"Upgrade: h2c\r\nConnection: upgrade\r\n", *REQUESTS),
)  # fmt: skip


def mutate(data: bytes, chance: random.Random) -> bytes:
    if chance.random() < 0.1:
        return bytes((chance.randrange(256),)) + data[1:]
    return data[:1] + change(data[1:], chance, TOKENS)


TARGET = Target(seeds, check, mutate)
