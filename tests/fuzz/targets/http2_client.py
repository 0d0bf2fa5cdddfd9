"""A server's bytes into `gateway.wire.http2.Http2Client`. The first byte chooses limits and what its user does."""

from __future__ import annotations

import random
from functools import partial

from gateway.wire.http2 import ErrorCode, Http2Client, StreamUnavailable
from tests.fuzz.frames import (
    DATA,
    END,
    END_HEADERS,
    HEADERS,
    PING,
    RST,
    SETTINGS,
    WINDOW,
    change_frames,
    frame,
    setting,
    stretched,
)
from tests.fuzz.http2_user import (
    REQUEST_FIELDS,
    RESPONSE_FIELDS,
    STRETCH,
    TAIL,
    Conversation,
    User,
    UserStream,
    fields_block,
)
from tests.fuzz.target import Target, assert_same, cuttings

REQUEST = fields_block(*REQUEST_FIELDS)
LARGE = bytes(100_000)
STREAMS_MAX = 40


class Asking(User):
    """Opens streams in several ways, some at once and some as others end."""

    def __init__(self, options: int) -> None:
        super().__init__(options)
        self.connection: Http2Client = Http2Client(self.limits)
        for _ in range(6):
            self.open()

    def open(self) -> None:
        if len(self.streams) >= STREAMS_MAX:
            return
        connection = self.connection
        stream = self.make_stream()
        way = (stream.number + self.shift) % 6
        head = partial(connection.encoder.encode, (*REQUEST_FIELDS, (b"x-number", b"%d" % (stream.number % 3))))
        body = (b"hello", b"", LARGE, b"begun", LARGE[:3000], b"x" * 50)[way]
        available = connection.available
        try:
            connection.open(stream, head if way % 2 else REQUEST, body, way not in (1, 3))
        except StreamUnavailable:
            assert not available
            self.streams.remove(stream)
            return
        assert available
        self.sent_bytes += len(body)
        if way == 3:
            self.send(stream, b"more", False)
        elif way == 5:
            self.reset(stream)

    def on_headers(self, stream: UserStream, end: bool) -> None:
        if self.grows and not end:
            self.connection.grow_window(stream, 50_000)
        if (stream.number + self.shift) % 6 in (1, 3):
            self.send(stream, b"the rest", True)
        if end:
            self.on_end(stream)

    def got(self, stream: UserStream, data: bytes) -> None:
        if data.endswith(b"cancel"):
            self.reset(stream)

    def on_end(self, stream: UserStream) -> None:
        if self.drains and stream.number == 3:
            self.connection.drain()
        elif self.shift == 3 and stream.number == 5:
            self.connection.goaway(ErrorCode.NO_ERROR, "enough")
        self.open()
        if stream.number == 1:
            self.open()

    def on_gone(self, stream: UserStream) -> None:
        if stream.number % 2:
            self.open()


def check(data: bytes) -> None:
    options, stream = (data[0] if data else 0), data[1:]
    user = Asking(options)
    if user.large_frames:
        stream = stretched(stream, STRETCH)
    whole = Conversation(user).run([stream])
    for pieces in cuttings(stream):
        user = Asking(options)
        cut = Conversation(user).run(pieces)
        if not user.takes:
            assert_same(whole, cut, pieces)


RESPONSE = fields_block(*RESPONSE_FIELDS)
OPENING = setting((3, 100), (4, 4194304), (5, 4194304), (6, 16384)) + frame(SETTINGS, 1, 0)


def answer(stream: int, data: bytes = b"\0\0\0\0\2ok") -> bytes:
    return (
        frame(HEADERS, END_HEADERS, stream, RESPONSE)
        + (frame(DATA, 0, stream, data) if data else b"")
        + frame(HEADERS, END_HEADERS | END, stream, TAIL)
    )


PIECES = (
    answer(1),
    frame(HEADERS, END_HEADERS | END, 1, RESPONSE + TAIL) + frame(RST, 0, 1, bytes(4)) * 4,
    frame(HEADERS, END_HEADERS, 1, fields_block((b":status", b"100"))) + answer(1),
    frame(HEADERS, 0, 1, RESPONSE[:1]) + frame(9, END_HEADERS, 1, RESPONSE[1:]),
    frame(HEADERS, END_HEADERS | 8, 1, b"\2" + RESPONSE + b"\0\0"),
    frame(HEADERS, END_HEADERS, 1, fields_block((b":status", b"200"), (b"x", b"v" * 600))),
    frame(HEADERS, END_HEADERS, 1, RESPONSE + b"\x40\x01a\x01b\xbe"),
    frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff"),
    frame(DATA, END, 1, b"x"),
    frame(DATA, 0, 1, b"please cancel"),
    frame(DATA, 8, 1, b"\x03abc\0\0\0"),
    frame(DATA, 0, 1, b""),
    frame(DATA, 0, 1, bytes(400)),
    frame(RST, 0, 1, b"\0\0\0\0"),
    frame(RST, 0, 1, b"\0\0\0\x07"),
    frame(WINDOW, 0, 0, b"\0\4\0\0"),
    frame(WINDOW, 0, 1, b"\0\4\0\0"),
    frame(WINDOW, 0, 1, b"\x7f\xff\xff\xff"),
    frame(PING, 0, 0, b"12345678"),
    frame(PING, 1, 0, b"are you?"),
    frame(7, 0, 0, b"\x7f\xff\xff\xff\0\0\0\0"),
    frame(7, 0, 0, b"\0\0\0\3\0\0\0\x0btoo_many_pings"),
    frame(5, END_HEADERS, 1, b"\0\0\0\2" + REQUEST),
    frame(0x42, 0, 1, b"unknown"),
    setting((3, 0)), setting((3, 2)), setting((4, 0)), setting((4, 2**31 - 1)), setting((5, 2**24 - 1)),
    setting((1, 0)), setting((1, 0), (1, 4096)), frame(SETTINGS, 1, 0),
)  # fmt: skip


def seeds() -> list[bytes]:
    answers = b"".join(answer(number) for number in range(1, 20, 2))
    window = frame(WINDOW, 0, 0, b"\0\x3e\xff\xff")
    made = [bytes((options,)) + OPENING + window + answers for options in range(0, 256, 13)]
    made += [
        bytes((options,)) + OPENING + answer(1) + piece + answer(3) + piece for options, piece in enumerate(PIECES)
    ]
    made.append(
        b"\1" + setting((3, 1)) + frame(SETTINGS, 1, 0) + b"".join(answer(n, bytes(900)) for n in range(1, 30, 2))
    )
    made += [
        bytes((0xC0 | options,)) + OPENING + b"".join(answer(n, bytes(300 * n)) for n in (1, 3, 5))
        for options in range(0, 64, 6)
    ]
    return made


def mutate(data: bytes, chance: random.Random) -> bytes:
    if chance.random() < 0.1:
        return bytes((chance.randrange(256),)) + data[1:]
    return data[:1] + change_frames(data[1:], chance, PIECES)


TARGET = Target(seeds, check, mutate)
