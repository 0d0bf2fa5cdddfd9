"""Messages of a call: however the bytes are cut, whatever their prefixes claim, nothing but messages and faults."""

from __future__ import annotations

import random
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.codes import Code
from gateway.wire.grpc import GrpcFault, Message, MessageReader, MessageRefused, MessageTooLarge, message_prefix

LIMIT = 1000
MIB = 1024 * 1024


def framed(payload: bytes, flag: int = 0) -> bytes:
    return struct.pack(">BI", flag, len(payload)) + payload


class Read(NamedTuple):
    """All that a reader made of some bytes; `fault` is its kind, code and text."""

    messages: list[Message]
    fault: tuple[type[GrpcFault], Code, str] | None
    idle: bool
    missing_bytes: int


def read(pieces: Iterable[bytes], limit: int = LIMIT, reserve: Callable[[int], bool] | None = None) -> Read:
    """Feed the pieces, each in the middle of other bytes, as the payload of a frame is."""
    reader = MessageReader(limit, reserve)
    messages: list[Message] = []
    fault: GrpcFault | None = None
    for piece in pieces:
        around = b"\x00\xff\x01head" + piece + b"\x01tail"
        try:
            messages += reader.feed(around, 7, 7 + len(piece))
        except GrpcFault as error:
            assert fault is None, "one fault is enough"
            fault = error
            messages += error.before
    told = None if fault is None else (type(fault), fault.code, fault.text)
    return Read(messages, told, reader.idle, reader.missing_bytes)


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    at = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[start:stop] for start, stop in pairwise(at)]


def test_a_frame_that_is_one_message() -> None:
    reader = MessageReader(LIMIT)
    data = b"xx" + framed(b"hello") + b"yy"
    assert list(reader.feed(data, 2, len(data) - 2)) == [(False, b"hello")]
    assert list(reader.feed(framed(b"zip", 1), 0, 8)) == [(True, b"zip")]
    assert list(reader.feed(framed(b""), 0, 5)) == [(False, b"")]
    assert list(reader.feed(data, 4, 4)) == []
    assert reader.idle
    reader.end()


def test_a_message_is_bytes_of_its_own() -> None:
    reader = MessageReader(LIMIT)
    first = reader.feed(framed(b"hello")[:7], 0, 7), reader.feed(b"llo" + framed(b"next")[:6], 0, 9)
    second = reader.feed(b"ext", 0, 3)
    assert (list(first[0]), list(first[1]), list(second)) == ([], [(False, b"hello")], [(False, b"next")])
    assert all(type(message) is bytes for _, message in (*first[1], *second))


MESSAGES = [(False, b"hello"), (True, b""), (False, b""), (False, b"a" * 40), (True, b"bcd")]
STREAM = b"".join(framed(message, flag) for flag, message in MESSAGES)


@pytest.mark.parametrize("at", range(len(STREAM) + 1))
def test_every_cut_of_a_stream_in_two_and_in_three_gives_the_same_messages(at: int) -> None:
    for second in range(at, len(STREAM) + 1):
        assert read([STREAM[:at], STREAM[at:second], STREAM[second:]]) == Read(MESSAGES, None, True, 0)


@pytest.mark.parametrize("size", range(1, 12))
def test_pieces_of_every_size_give_the_same_messages(size: int) -> None:
    pieces = [STREAM[start : start + size] for start in range(0, len(STREAM), size)]
    assert read(pieces) == Read(MESSAGES, None, True, 0)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.binary(max_size=300)), max_size=8),
    st.lists(st.integers(0, 3000), max_size=12),
    st.integers(0, 3000),
)
def test_what_is_framed_is_read_back_in_any_pieces(messages: list[Message], cuts: list[int], end: int) -> None:
    data = b"".join(message_prefix(len(message), flag) + message for flag, message in messages)
    assert read(cut(data, cuts)) == Read(messages, None, True, 0)
    data = data[: end % (len(data) + 1)]
    whole = read([data])
    assert read(cut(data, cuts)) == whole
    assert whole.messages == messages[: len(whole.messages)]


PREFIXES = st.builds(
    lambda flag, length, body: struct.pack(">BI", flag, length) + body,
    st.sampled_from([0, 0, 1, 1, 2, 255]),
    st.sampled_from([0, 1, 3, 40, LIMIT, LIMIT + 1, 2**31, 2**32 - 1]),
    st.binary(max_size=60),
)
ANYTHING = st.one_of(st.binary(max_size=60), st.lists(PREFIXES, max_size=6).map(b"".join))


@settings(max_examples=500, deadline=None)
@given(ANYTHING, st.lists(st.integers(0, 500), max_size=8), st.integers(0, 60))
def test_the_cut_of_any_bytes_changes_nothing(data: bytes, cuts: list[int], room: int) -> None:
    def some_room() -> Callable[[int], bool]:
        left = [room]

        def reserve(length: int) -> bool:
            left[0] -= length
            return left[0] >= 0

        return reserve

    for reserve in (None, some_room):
        results = [
            read(pieces, LIMIT, reserve() if reserve else None)
            for pieces in ([data], cut(data, cuts), [data[at : at + 1] for at in range(len(data))])
        ]
        assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("flag", [2, 3, 127, 128, 255])
@pytest.mark.parametrize("size", [0, 4, LIMIT + 1])
def test_a_flag_that_is_none_is_a_fault(flag: int, size: int) -> None:
    assert read([framed(bytes(size), flag)]).fault == (
        GrpcFault,
        Code.INTERNAL,
        "a message begins with neither 0 nor 1",
    )


def test_the_limit_is_the_last_size_that_is_taken() -> None:
    assert read([framed(bytes(LIMIT))]).messages == [(False, bytes(LIMIT))]
    told = read([framed(bytes(LIMIT + 1))]).fault
    assert told == (MessageTooLarge, Code.RESOURCE_EXHAUSTED, "Received message larger than max (1001 vs. 1000)")


@pytest.mark.parametrize("at", range(len(framed(b"good")) + 7))
def test_what_came_whole_in_front_of_a_fault_is_handed_on_and_what_comes_behind_it_dropped(at: int) -> None:
    data = framed(b"good") + b"\x00\xff\xff\xff\xff" + framed(b"never")
    seen = read([data[:at], data[at:], framed(b"nor this")])
    assert seen.messages == [(False, b"good")]
    assert seen.fault is not None
    assert seen.fault[0] is MessageTooLarge
    assert (seen.idle, seen.missing_bytes) == (False, 0)


def test_a_fault_says_both_numbers() -> None:
    with pytest.raises(MessageTooLarge) as caught:
        MessageReader(5).feed(framed(b"123456"), 0, 11)
    assert (caught.value.length, caught.value.limit_bytes, caught.value.before) == (6, 5, [])


def test_room_is_asked_for_once_a_message_before_it_is_kept_and_never_for_what_is_too_large() -> None:
    asked: list[int] = []

    def reserve(length: int) -> bool:
        asked.append(length)
        return length != 77

    reader = MessageReader(LIMIT, reserve)
    reader.feed(framed(b"12345"), 0, 10)
    assert (asked, reader.reserved_bytes) == ([5], 0)
    reader.feed(framed(bytes(300))[:4], 0, 4)
    assert (asked, reader.reserved_bytes, reader.missing_bytes) == ([5], 0, 0)
    reader.feed(framed(bytes(300))[4:20], 0, 16)
    assert (asked, reader.reserved_bytes, reader.missing_bytes) == ([5, 300], 300, 285)
    assert len(reader.feed(bytes(285) + framed(b"67"), 0, 292)) == 2
    assert (asked, reader.reserved_bytes) == ([5, 300, 2], 0)
    with pytest.raises(MessageRefused) as caught:
        reader.feed(framed(b"a") + framed(bytes(77)), 0, 88)
    assert (caught.value.code, caught.value.length, caught.value.before) == (
        Code.RESOURCE_EXHAUSTED,
        77,
        [(False, b"a")],
    )
    assert (asked, reader.reserved_bytes) == ([5, 300, 2, 1, 77], 0)
    assert list(reader.feed(framed(b"b"), 0, 6)) == []

    reader = MessageReader(LIMIT, reserve)
    reader.feed(framed(bytes(9)), 0, 8)
    with pytest.raises(GrpcFault, match="inside a message"):
        reader.end()
    assert reader.reserved_bytes == 9, "still to be given back"
    assert list(reader.feed(bytes(6), 0, 6)) == []
    asked.clear()
    reader = MessageReader(76, reserve)
    with pytest.raises(MessageTooLarge):
        reader.feed(framed(bytes(78)), 0, 83)
    with pytest.raises(MessageRefused):
        MessageReader(LIMIT, reserve).feed(framed(bytes(77)), 0, 82)
    assert asked == [77]


def test_an_end_inside_a_message_is_a_fault_and_elsewhere_none() -> None:
    borders = [0]
    for _, message in MESSAGES:
        borders.append(borders[-1] + 5 + len(message))
    for size in range(len(STREAM) + 1):
        reader = MessageReader(LIMIT)
        reader.feed(STREAM, 0, size)
        assert reader.idle == (size in borders)
        if size not in borders:
            with pytest.raises(GrpcFault) as caught:
                reader.end()
            assert (caught.value.code, reader.idle) == (Code.INTERNAL, False)
        reader.end()  # no fault, or told once


def test_a_prefix_for_more_than_its_field_holds_is_our_own_error() -> None:
    assert message_prefix(2**32 - 1, True) == b"\x01\xff\xff\xff\xff"
    with pytest.raises(struct.error):
        message_prefix(2**32)


def held_bytes(work: Callable[[], object]) -> tuple[int, int]:
    """What is allocated when `work` has returned, its result included, and at most in between."""
    tracemalloc.start()
    try:
        result = work()
        held, peak = tracemalloc.get_traced_memory()
        del result
        return held, peak
    finally:
        tracemalloc.stop()


def test_a_liar_about_the_length_costs_what_he_sends() -> None:
    part = bytes(16384)

    def lied(sent: int) -> MessageReader:
        reader = MessageReader(64 * MIB)
        reader.feed(message_prefix(64 * MIB), 0, 5)
        for _ in range(sent // len(part)):
            reader.feed(part, 0, len(part))
        return reader

    assert held_bytes(lambda: lied(0))[1] < 10_000
    assert held_bytes(lambda: lied(MIB))[1] < 1.3 * MIB
    assert held_bytes(lambda: [lied(0) for _ in range(1000)])[1] < 1000 * 1000


def test_a_large_message_is_held_once_while_it_comes_and_when_it_is_whole() -> None:
    payload = random.Random(1).randbytes(8 * MIB)
    data = framed(payload)
    frames = [data[start : start + 16384] for start in range(0, len(data), 16384)]
    held, peak = held_bytes(lambda: read_plainly(frames))
    assert peak < 8 * MIB * 1.3
    assert held < 8 * MIB * 1.01
    assert read_plainly(frames) == [(False, payload)]


def read_plainly(frames: list[bytes]) -> list[Message]:
    reader = MessageReader(64 * MIB)
    return [message for frame in frames for message in reader.feed(frame, 0, len(frame))]


def test_bytes_that_come_one_by_one_take_linear_time() -> None:
    data = framed(bytes(150_000)) + framed(b"") * 30_000
    started = time.process_time()
    reader = MessageReader(MIB)
    count = sum(len(reader.feed(data, at, at + 1)) for at in range(len(data)))
    assert count == 30_001
    assert time.process_time() - started < 20


def test_very_many_empty_messages_in_one_frame_take_linear_time() -> None:
    data = framed(b"") * 300_000
    started = time.process_time()
    assert len(MessageReader(LIMIT).feed(data, 0, len(data))) == 300_000
    assert time.process_time() - started < 20
