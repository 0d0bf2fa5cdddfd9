"""A client's bytes into `gateway.wire.http2.Http2Server`. The first byte chooses limits and what its user does."""

from __future__ import annotations

import random

from gateway.wire.http2 import ErrorCode, Http2Server
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
    Accepting,
    Conversation,
    UserStream,
    fields_block,
)
from tests.fuzz.target import Target, assert_same, cuttings

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD = fields_block(*RESPONSE_FIELDS)
LARGE = bytes(100_000)


class Answering(Accepting):
    """Answers in one of several ways, by the stream's number."""

    def __init__(self, options: int) -> None:
        super().__init__(options)
        self.connection: Http2Server = Http2Server(self.limits, self.make_stream)
        self.finished: set[int] = set()
        """Numbers of streams on which everything was sent."""

    def way(self, stream: UserStream) -> int:
        return (stream.number + self.shift) % 7

    def on_headers(self, stream: UserStream, end: bool) -> None:
        connection = self.connection
        way = self.way(stream)
        if self.grows and not end:
            connection.grow_window(stream, 50_000)
        if way == 1:
            connection.send_headers(stream, connection.encoder.encode(RESPONSE_FIELDS) + TAIL, True)
        elif way == 2:
            connection.send_headers(stream, connection.encoder.encode(RESPONSE_FIELDS), False)
        elif way == 3:
            self.reset(stream)
        elif way == 4:
            self.sent_bytes += len(LARGE)
            connection.send_message(stream, HEAD, memoryview(LARGE), TAIL)
        elif way == 5:
            connection.send_headers(stream, HEAD, False)
            self.send(stream, LARGE[:1500], False)
        if end:
            self.on_end(stream)

    def got(self, stream: UserStream, data: bytes) -> None:
        if self.way(stream) == 2 and data:
            self.send(stream, data * 3, False)

    def on_writable(self, stream: UserStream) -> None:
        if self.way(stream) == 5 and stream.number not in self.finished and self.sent_bytes < 300_000:
            self.send(stream, LARGE[:2000], False)

    def on_end(self, stream: UserStream) -> None:
        connection = self.connection
        way = self.way(stream)
        if way == 0:
            self.sent_bytes += 50
            connection.send_message(stream, HEAD, LARGE[:50], TAIL)
        elif way in (2, 5):
            self.finished.add(stream.number)
            connection.send_headers(stream, TAIL, True)
        elif way == 6 and self.drains:
            connection.drain()
        elif way == 6 and stream.number > 8:
            connection.goaway(ErrorCode.NO_ERROR, "enough")


def check(data: bytes) -> None:
    options, stream = (data[0] if data else 0), data[1:]
    user = Answering(options)
    if user.large_frames and stream.startswith(PREFACE):
        stream = PREFACE + stretched(stream[len(PREFACE) :], STRETCH)
    whole = Conversation(user).run([stream])
    for pieces in cuttings(stream):
        user = Answering(options)
        cut = Conversation(user).run(pieces)
        if not user.takes:
            assert_same(whole, cut, pieces)


REQUEST = fields_block(*REQUEST_FIELDS)
OPENING = PREFACE + setting((2, 0), (3, 0), (4, 4194304), (5, 4194304), (6, 16384), (0xFE03, 1))
ACKNOWLEDGED = frame(SETTINGS, 1, 0)


def call(stream: int, *parts: bytes) -> bytes:
    """A request, ended by the last of its parts."""
    frames = frame(HEADERS, END_HEADERS | (END if not parts else 0), stream, REQUEST)
    for number, part in enumerate(parts):
        frames += frame(DATA, END if number == len(parts) - 1 else 0, stream, part)
    return frames


def padded(stream: int, size: int) -> bytes:
    """A request whose one part has padding."""
    return frame(HEADERS, END_HEADERS, stream, REQUEST) + frame(DATA, END | 8, stream, b"\x64" + bytes(size))


TRAILERS = fields_block((b"x-a", b"b"))
PIECES = (
    frame(HEADERS, END_HEADERS | END, 1, TRAILERS),
    frame(HEADERS, END, 1, REQUEST[:20]) + frame(9, 0, 1, REQUEST[20:30]) + frame(9, END_HEADERS, 1, REQUEST[30:]),
    frame(HEADERS, END_HEADERS | 0x28, 1, b"\x02\0\0\0\1\xff" + REQUEST + b"\0\0"),
    frame(HEADERS, END_HEADERS, 1, fields_block(*REQUEST_FIELDS, (b"x-big", b"v" * 600))),
    frame(HEADERS, END_HEADERS, 1, fields_block(*REQUEST_FIELDS, (b"Upper", b"a"))),
    frame(HEADERS, END_HEADERS, 1, REQUEST + b"\x40\x01a\x01b\xbe"),
    frame(HEADERS, END_HEADERS, 1, b"\x3f\xe1\x1f" + REQUEST),
    frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff"),
    frame(DATA, 8, 1, b"\x03abc\0\0\0"),
    frame(DATA, 0, 1, b""),
    frame(DATA, END, 1, b"hello"),
    frame(DATA, 0, 1, bytes(400)),
    frame(RST, 0, 1, b"\0\0\0\x08"),
    frame(WINDOW, 0, 0, b"\0\1\0\0"),
    frame(WINDOW, 0, 1, b"\x7f\xff\xff\xff"),
    frame(PING, 0, 0, b"12345678"),
    frame(PING, 1, 0, b"are you?"),
    frame(PING, 1, 0, b"\x00drain\x00\x00"),
    frame(7, 0, 0, b"\0\0\0\0\0\0\0\0bye"),
    frame(2, 0, 1, b"\0\0\0\0\x10"),
    frame(0x42, 0, 1, b"unknown"),
    frame(5, 0, 1, b"\0\0\0\2" + REQUEST),
    setting((4, 0)), setting((4, 2**31 - 1)), setting((5, 2**24 - 1)), setting((1, 0)), setting((1, 4096), (4, 100)),
    ACKNOWLEDGED,
)  # fmt: skip


def seeds() -> list[bytes]:
    calls = b"".join(call(number, b"\0\0\0\0\5hello") for number in range(1, 30, 2))
    window = frame(WINDOW, 0, 0, b"\0\x3e\xff\xff")
    made = [bytes((options,)) + OPENING + window + ACKNOWLEDGED + calls for options in range(0, 256, 13)]
    made += [
        bytes((options,)) + OPENING + ACKNOWLEDGED + call(1, b"a") + piece + call(3, b"b", b"c") + piece
        for options, piece in enumerate(PIECES)
    ]
    made += [bytes((options,)) + OPENING + call(1) + call(3, bytes(900), bytes(900)) for options in range(16)]
    made += [
        bytes((0xC0 | options,)) + OPENING + ACKNOWLEDGED + call(1, bytes(400), bytes(900)) + padded(3, 500) + call(5)
        for options in range(0, 64, 6)
    ]
    return made


def mutate(data: bytes, chance: random.Random) -> bytes:
    if chance.random() < 0.1:
        return bytes((chance.randrange(256),)) + data[1:]
    start = 1 + len(PREFACE)
    if not data[1:].startswith(PREFACE) or chance.random() < 0.03:
        start = 1
    return data[:start] + change_frames(data[start:], chance, PIECES)


TARGET = Target(seeds, check, mutate)
