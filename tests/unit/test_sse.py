"""Server-sent events: the frames that are written, and the events made of bytes however they are cut (FH-13)."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.sse import SseDecoder, SseEvent, SseTooLarge, encode_event


def events(*reads: bytes, end: bool = False, decoder: SseDecoder | None = None) -> list[SseEvent]:
    decoder = decoder or SseDecoder()
    found = [event for read in reads for event in decoder.feed(read)]
    last = decoder.end() if end else None
    return [*found, last] if last is not None else found


def data(*reads: bytes, end: bool = False, decoder: SseDecoder | None = None) -> list[bytes]:
    return [event.data for event in events(*reads, end=end, decoder=decoder)]


TEXTS = [":\n\n", "data: x", "\r\n", "é", "😀", "a" * 200_000, "", " leading", "\n", "a\rb"]


@pytest.mark.parametrize("text", TEXTS)
def test_a_frame_has_data_on_each_line_and_one_blank_line_and_comes_back(text: str) -> None:
    frame = encode_event(text.encode())
    assert frame.endswith(b"\n\n")
    lines = frame[:-2].split(b"\n")
    assert all(line.startswith(b"data: ") for line in lines)
    assert b"\r" not in frame
    # Line ends are all one in this format: what must keep them escapes them, as JSON does.
    assert data(frame) == [text.replace("\r\n", "\n").replace("\r", "\n").encode()]


def test_one_line_goes_out_as_triton_writes_it() -> None:
    assert encode_event(b'{"s":"a"}') == b'data: {"s":"a"}\n\n'


@pytest.mark.parametrize("newline", [b"\n", b"\r", b"\r\n"])
def test_every_line_end_is_read(newline: bytes) -> None:
    stream = newline.join([b"data: a", b"data: b", b"", b"data: c", b"", b""])
    assert data(stream) == [b"a\nb", b"c"]
    assert data(*(stream[index : index + 1] for index in range(len(stream)))) == [b"a\nb", b"c"]


def test_a_line_feed_after_a_carriage_return_belongs_to_it_across_reads() -> None:
    assert data(b"data: a\r", b"\ndata: b\r", b"\n\r", b"\ndata: c\n\n") == [b"a\nb", b"c"]
    assert data(b"data: a\r", b"\r") == [b"a"], "two carriage returns are two line ends"
    assert data(b"data: a\r", b"", b"\n\n") == [b"a"]


def test_comments_and_unknown_fields_are_neither_events_nor_text() -> None:
    stream = b": ping\n\n:\n\ndata: a\n: between\ndata: b\nfoo: bar\nfoo\n\n: ping\n\nevent: x\n\n: end"
    assert data(stream) == [b"a\nb"]


def test_fields_are_read_as_the_standard_says() -> None:
    decoder = SseDecoder()
    found = decoder.feed(
        b"event: add\nid: 7\nretry: 250\ndata: a\n\ndata\ndata:b\ndata:  c\n\nid: a\0b\nretry: 1x\nretry\ndata: d\n\n"
        b"id\ndata:e\n\n"
    )
    assert found == [
        SseEvent(b"a", "add", "7"),
        SseEvent(b"\nb\n c", "message", "7"),
        SseEvent(b"d", "message", "7"),
        SseEvent(b"e", "message", ""),
    ]
    assert decoder.retry_ms == 250


def test_an_event_without_its_blank_line_is_given_at_the_end_and_only_if_asked_for() -> None:
    assert data(b"data: a\n\ndata: b\n") == [b"a"]
    assert data(b"data: a\n\ndata: b\n", end=True) == [b"a", b"b"]
    assert data(b"data: a\n\ndata: b", end=True) == [b"a", b"b"]
    assert data(b"data: a\n\n", end=True) == [b"a"]
    assert data(b"", end=True) == []
    assert data(b"\xef\xbb", end=True) == []


def test_a_byte_order_mark_is_skipped_once_and_only_in_front() -> None:
    mark = b"\xef\xbb\xbf"
    assert data(mark + b"data: a\n\n") == [b"a"]
    assert data(*(bytes((byte,)) for byte in mark + b"data: a\n\n")) == [b"a"]
    assert data(mark + mark + b"data: a\n\n") == []
    assert data(b"data: " + mark + b"\n\n") == [mark]


def test_bytes_that_are_no_text_are_handed_on_and_a_cut_character_is_whole_again() -> None:
    face = "😀".encode()
    assert data(b"data: " + face[:2], face[2:] + b"\n\n") == [face]
    (event,) = events(b"data: \xff\xfe\n\n")
    assert event.data == b"\xff\xfe"
    assert event.text == "\ufffd\ufffd"


def test_what_is_held_for_one_event_is_bounded() -> None:
    decoder = SseDecoder(100)
    for _ in range(50):
        assert len(decoder.feed(b"data: 123456\n\n")) == 1
    with pytest.raises(SseTooLarge, match="100 bytes"):
        SseDecoder(100).feed(b"data: " + b"a" * 100)
    with pytest.raises(SseTooLarge):
        data(*[b"data: a\n"] * 10, decoder=SseDecoder(50))
    decoder = SseDecoder(100)
    for _ in range(1000):
        assert decoder.feed(b": keep-alive\n") == []


_LINES = st.sampled_from(
    [
        b"data: a",
        b"data:",
        b"data: \xf0\x9f\x98\x80",
        b": ping",
        b"event: x",
        b"id: 3",
        b"",
        b"",
        b"retry: 5",
        b"\xff",
        b"data: \xc3",
    ]
)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    lines = draw(st.lists(st.tuples(_LINES, st.sampled_from([b"\n", b"\r", b"\r\n"])), max_size=12))
    return b"".join(line + end for line, end in lines)


@given(streams(), st.lists(st.integers(0, 200), max_size=8))
def test_no_cut_changes_the_events(stream: bytes, cuts: list[int]) -> None:
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    reads = [stream[start:stop] for start, stop in itertools.pairwise(places)]
    assert events(*reads, end=True) == events(stream, end=True)
    assert events(*(bytes((byte,)) for byte in stream), end=True) == events(stream, end=True)


@given(st.lists(st.binary(max_size=30), max_size=6))
def test_whatever_is_framed_comes_back_but_for_the_kind_of_line_ends(payloads: list[bytes]) -> None:
    stream = b"".join(map(encode_event, payloads))
    if stream.startswith(b"data: \xef"):
        stream = b":\n" + stream
    assert data(stream) == [payload.replace(b"\r\n", b"\n").replace(b"\r", b"\n") for payload in payloads]
