"""Messages in the payloads of DATA frames (`gateway.wire.grpc.framing`), against a reader of whole inputs."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from gateway.wire.grpc import GrpcFault, Message, MessageReader, MessageRefused, MessageTooLarge
from tests.fuzz.footprint import footprint
from tests.fuzz.mutations import NUMBERS, change
from tests.fuzz.target import Target, assert_same, cuttings, looked_at

LIMITS = (0, 64, 1000, 2**32 - 1)
ROOM = 3000
OVERHEAD_BYTES = 600
"""What a reader holds besides a part of a message, which may be allocated an eighth larger than it is."""


class Read(NamedTuple):
    """`fault` is the kind of fault; `open` tells whether the input ended inside a message."""

    messages: list[Message]
    fault: type[GrpcFault] | None
    open: bool


def check(data: bytes) -> None:
    options, stream = (data[0] if data else 0), data[1:]
    limit = LIMITS[options & 3]
    room = ROOM if options & 4 else None
    expected = by_the_book(stream, limit, room)
    for pieces in ([stream], *cuttings(stream)):
        assert_same(expected, read(pieces, limit, room), pieces)


def by_the_book(stream: bytes, limit: int, room: int | None) -> Read:
    """What the specification says, with all the bytes at hand."""
    messages: list[Message] = []
    at = 0
    while len(stream) - at >= 5:
        flag, length = stream[at], int.from_bytes(stream[at + 1 : at + 5], "big")
        if flag > 1:
            return Read(messages, GrpcFault, False)
        if length > limit:
            return Read(messages, MessageTooLarge, False)
        if room is not None:
            room -= length
            if room < 0:
                return Read(messages, MessageRefused, False)
        if len(stream) - at - 5 < length:
            return Read(messages, None, True)
        messages.append((flag == 1, stream[at + 5 : at + 5 + length]))
        at += 5 + length
    return Read(messages, None, at < len(stream))


def read(pieces: list[bytes], limit: int, room: int | None) -> Read:
    left = ROOM
    reserved = 0

    def reserve(length: int) -> bool:
        nonlocal left, reserved
        left -= length
        reserved += length if left >= 0 else 0
        return left >= 0

    asked: Callable[[int], bool] | None = None if room is None else reserve
    reader = MessageReader(limit, asked)
    messages: list[Message] = []
    fault: GrpcFault | None = None
    fed = 0
    looked = looked_at(pieces)
    for number, piece in enumerate(pieces):
        frame = b"\xff\x01" + piece + b"\x01\x02\x03"
        try:
            messages += reader.feed(frame, 2, 2 + len(piece))
        except GrpcFault as error:
            assert fault is None
            messages += error.before
            fault = error
        fed += len(piece)
        if number in looked:
            assert footprint(reader).size <= fed * 9 // 8 + OVERHEAD_BYTES
        if asked:
            assert reserved == sum(len(payload) for _, payload in messages) + reader.reserved_bytes
        assert reader.missing_bytes <= limit
    is_open = False
    try:
        reader.end()
    except GrpcFault:
        is_open = True
    return Read(messages, None if fault is None else type(fault), is_open)


def seeds() -> list[bytes]:
    messages = [b"\0\0\0\0\5hello", b"\1\0\0\0\0", b"\0\0\0\1\0" + bytes(256), b"\0\0\0\2\x80" + b"x" * 640]
    return [
        *(bytes((options,)) + b"".join(messages) for options in range(8)),
        *(b"\2" + message for message in messages),
        b"\3\0\xff\xff\xff\xff" + b"liar",
        b"\6" + messages[3] * 6,
        b"\2\2\0\0\0\1a",
    ]


def mutate(data: bytes, chance: random.Random) -> bytes:
    """A length changed, a message put in, or any bytes."""
    if chance.random() < 0.4 and len(data) > 5:
        at = chance.randrange(1, len(data) - 4)
        length = chance.choice(NUMBERS) if chance.random() < 0.5 else chance.randrange(len(data) + 8)
        return data[:at] + chance.choice((b"\0", b"\1", b"\0", b"\2")) + length.to_bytes(4, "big") + data[at + 5 :]
    return change(
        data, chance, (b"\0\0\0\0\0", b"\1\0\0\0\2zz", b"\0\0\0\0\1a\0\0\0\0\1b", b"\2", b"\0\xff\xff\xff\xff")
    )


TARGET = Target(seeds, check, mutate)
