"""Properties: how bytes are cut changes nothing, dribbling costs no more, our two roles agree, no input breaks it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sized
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire.hpack import HpackEncoder, literal
from gateway.wire.http2 import ErrorCode, Http2Client, Http2Connection, Http2Limits, Http2Server, StreamUnavailable
from tests.unit.http2_driving import (
    ACK,
    CONTINUATION,
    DATA,
    END,
    END_HEADERS,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    PRIORITY,
    PUSH,
    REQUEST,
    REQUEST_FIELDS,
    RESPONSE,
    RST,
    SETTINGS,
    TRAILERS,
    WINDOW,
    Call,
    ClientSide,
    Probe,
    ServerSide,
    Side,
    block,
    cut,
    frame,
    number,
    pump,
    request,
)
from tests.unit.http2_driving import settings as settings_frame

SMALL = Http2Limits(
    streams_max=5,
    window_bytes=400,
    connection_window_bytes=70_000,
    header_list_max_bytes=600,
    header_block_max_bytes=1000,
    continuations_max=3,
    acks_waiting_max=50,
    idle_frames_burst=60,
    resets_burst=10,
    ended_streams_kept=8,
    waiting_max=3,
)

# ------------------------------------------------------------------ any frames

IDS = st.sampled_from([0, 1, 1, 1, 2, 3, 5, 7, 9, 11, 13, 101, 0x7FFFFFFF, 0x80000001])
BLOCKS = st.sampled_from(
    [
        REQUEST,
        REQUEST,
        RESPONSE,
        TRAILERS,
        b"",
        b"\x80",
        REQUEST + literal(b"x", b"y" * 600),
        HpackEncoder(4096).encode(REQUEST_FIELDS),
        b"\x40\x01a\x01b",
        b"\x82\x86\x84\xbe",
        b"\x3f\xff\xff\xff\xff\xff",
    ]
)
VALUES = st.sampled_from([0, 1, 7, 100, 65_535, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """One frame, mostly a valid one."""
    kind = draw(st.sampled_from([DATA, DATA, HEADERS, HEADERS, HEADERS, *range(11)]))
    stream = draw(IDS)
    flags = draw(st.sampled_from([0, 1, 4, 5, 5, 5, 8, 0x20, 0x2D, 0xFF]))
    if kind == DATA:
        return frame(kind, flags, stream, draw(st.sampled_from([b"", b"\0", b"\x02abc", b"x" * 100, b"x" * 401])))
    if kind in (HEADERS, CONTINUATION, PUSH):
        extra = b"\0" * 5 if flags & 0x20 else b""
        return frame(kind, flags, stream, (b"\0" if flags & 8 else b"") + extra + draw(BLOCKS))
    if kind in (RST, WINDOW):
        return number(kind, stream, draw(VALUES))
    if kind == SETTINGS:
        pairs = draw(st.lists(st.tuples(st.integers(0, 9), VALUES), max_size=3))
        return settings_frame(*pairs) if flags != ACK else frame(SETTINGS, ACK, 0)
    if kind == PING:
        return frame(PING, flags & 1, 0, b"12345678")
    if kind == GOAWAY:
        return frame(GOAWAY, 0, 0, draw(IDS).to_bytes(4, "big") + b"\0\0\0\0text")
    if kind == PRIORITY:
        return frame(PRIORITY, 0, stream, b"\0\0\0\1\x10")
    return frame(kind, flags, stream, draw(st.binary(max_size=20)))


def reset_some(stream: Probe, call: Call) -> None:
    """Ends some streams when their request has."""
    if call[0] != "reset" and call[-1] is True and stream.id % 3 == 0:
        stream.connection.reset(stream, ErrorCode.CANCEL)


def answer(stream: Probe, call: Call) -> None:
    """Answers requests when they have ended; some answers are large."""
    reset_some(stream, call)
    if call[0] != "reset" and call[-1] is True and stream.id % 3:
        body = b"x" * 70_000 if stream.id % 5 == 0 else b"abc"
        stream.connection.send_message(stream, RESPONSE, body, TRAILERS)


def run(
    serve: bool, pieces: list[bytes], when_called: Callable[[Probe, Call], None]
) -> tuple[list[list[Call]], bytes, str]:
    """What a fresh connection does with this input: the calls of its streams, its output, and its fault."""
    side: Side
    if serve:
        side = ServerSide(SMALL, b"")
        side.when_called = when_called
        streams = side.streams
    else:
        side = client = ClientSide(SMALL, b"")
        streams = [client.open(b"hello", stream != 2) for stream in range(5)]
        side.written()
    output = b""
    for count, piece in enumerate(pieces, 1):
        side.connection.receive(piece, 0.0)
        if count % 16 == 0 or count == len(pieces):
            check_bounds(side.connection)
        while side.connection.wants_write:
            output += b"".join(side.connection.take())
    fault = side.connection.fault
    return [stream.calls for stream in streams], output, "" if fault is None else fault.text


def check_bounds(connection: Http2Connection) -> None:
    """Nothing inside has grown beyond what the limits of these tests allow."""
    for kind in type(connection).__mro__:
        for name in getattr(kind, "__slots__", ()):
            value = getattr(connection, name)
            if isinstance(value, Sized):
                most = 17_500 if name == "_partial" else 2000
                assert len(value) <= most, name
    statistics = connection.statistics()
    assert statistics.streams_open <= 5
    assert statistics.ended_kept <= 8
    assert statistics.acks_waiting <= 51
    assert statistics.partial_bytes <= 16_384 + 1000


@settings(deadline=None, max_examples=60)
@given(
    serve=st.booleans(),
    parts=st.lists(frames(), min_size=1, max_size=25),
    places=st.lists(st.integers(0, 10_000), max_size=20),
)
def test_how_the_bytes_are_cut_changes_nothing(serve: bool, parts: list[bytes], places: list[int]) -> None:
    # Without answers: what is queued leaves at the driver's pace, and a fault in the same read drops it.
    data = (PREFACE if serve else b"") + settings_frame() + frame(SETTINGS, ACK, 0) + b"".join(parts)
    at = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    whole = run(serve, [data], reset_some)
    assert run(serve, [data[start:stop] for start, stop in pairwise(at)], reset_some) == whole
    assert run(serve, [data[i : i + 1] for i in range(len(data))], reset_some) == whole


@pytest.mark.parametrize("serve", [True, False])
def test_dribbled_bytes_are_looked_at_once(serve: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte is handed to the parser once, as part of its whole frame, and is kept until then, no longer."""
    side: Side = ServerSide() if serve else ClientSide()
    parsed = 0
    run_frames = Http2Connection._run

    def counted(self: Http2Connection, data: bytes, pos: int) -> None:
        nonlocal parsed
        parsed += len(data) - pos
        run_frames(self, data, pos)

    monkeypatch.setattr(Http2Connection, "_run", counted)
    data = frame(0xEE, 0, 0, b"x" * 5000) * 2 + frame(PING, 0, 0, b"12345678")
    most = 0
    for i in range(len(data)):
        side.connection.receive(data[i : i + 1], 0.0)
        most = max(most, side.connection.statistics().partial_bytes)
    assert parsed <= len(data) + 3, "the first byte of each frame is seen twice"
    assert most == 5000 + 8
    assert [f.kind for f in side.written()] == [PING]


# ------------------------------------------------------- our client, our server


class Pair:
    """A client and a server of ours with random limits, and dice."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)

        def limits() -> Http2Limits:
            return Http2Limits(
                streams_max=chance.choice((1, 3, 100)),
                window_bytes=chance.choice((200, 700, 20_000, 65_535, 1_000_000)),
                connection_window_bytes=chance.choice((65_535, 200_000)),
                frame_max_bytes=chance.choice((16_384, 100_000)),
                header_table_bytes=chance.choice((0, 200, 4096)),
                frame_out_max_bytes=chance.choice((100, 5000, 100_000)),
                small_bytes=chance.choice((1, 1000, 16_384)),
                burst_bytes=chance.choice((1000, 100_000)),
                high_water_bytes=chance.choice((10, 10_000)),
                streams_before_settings=chance.choice((1, 100)),
            )

        self.server = Http2Server(limits(), self._make, HpackEncoder(4096))
        self.client = Http2Client(limits(), HpackEncoder(4096))
        self.served: dict[int, Probe] = {}
        self.arrived: list[Probe] = []
        self.called: list[Probe] = []
        self.sent: dict[Probe, bytearray] = {}
        self.ended: set[Probe] = set()
        self.reset_by_us: set[Probe] = set()
        self.owed: dict[Probe, int] = {}

    def _make(self) -> Probe:
        stream = Probe(self.server)
        stream.acknowledges = False
        self.arrived.append(stream)
        return stream

    def payload(self) -> bytes:
        return self.chance.randbytes(8) * self.chance.choice((0, 1, 30, 700, 5000))

    def carry(self) -> bool:
        ours = b"".join(self.client.take())
        theirs = b"".join(self.server.take())
        for piece in cut(ours, self.chance):
            self.server.receive(piece, 0.0)
        for piece in cut(theirs, self.chance):
            self.client.receive(piece, 0.0)
        assert self.server.fault is None
        assert self.client.fault is None
        for stream in self.arrived:
            self.served[stream.id] = stream
        self.arrived.clear()
        return bool(ours or theirs)

    def open(self) -> None:
        stream = Probe(self.client)
        stream.acknowledges = False
        fields = (*REQUEST_FIELDS, (b"x-tenant", b"%d" % self.chance.randrange(5)))
        body = self.payload()
        end = self.chance.random() < 0.5
        self.client.open(stream, lambda: self.client.encoder.encode(fields), body, end)
        self.called.append(stream)
        self.sent[stream] = bytearray(body)
        if end:
            self.ended.add(stream)

    def send(self, stream: Probe, end: bool) -> None:
        if stream in self.ended or stream.state & 128:
            return
        connection = stream.connection
        body = self.payload()
        first = stream not in self.sent
        sent = self.sent.setdefault(stream, bytearray())
        sent += body
        if end:
            self.ended.add(stream)
        if isinstance(connection, Http2Server):
            head = connection.encoder.encode(((b":status", b"200"), (b"x-own", b"v"))) if first else b""
            if end:
                connection.send_message(stream, head, body, TRAILERS if self.chance.random() < 0.7 else b"")
                return
            if first:
                connection.send_headers(stream, head, False)
        connection.send_data(stream, body, end)

    def acknowledge(self, stream: Probe) -> None:
        size = len(stream.body) - self.owed.get(stream, 0)
        if size:
            self.owed[stream] = self.owed.get(stream, 0) + size
            if self.chance.random() < 0.05 and not stream.is_over:
                stream.connection.grow_window(stream, self.chance.randint(1, 1000))
            stream.connection.acknowledge(stream, size)

    def step(self) -> None:
        streams = [*self.called[-8:], *list(self.served.values())[-8:]]
        dice = self.chance.random()
        if dice < 0.1 or not streams:
            self.open()
        elif dice < 0.35:
            self.carry()
        elif dice < 0.65:
            self.send(self.chance.choice(streams), self.chance.random() < 0.4)
        elif dice < 0.95:
            self.acknowledge(self.chance.choice(streams))
        elif dice < 0.97:
            stream = self.chance.choice(streams)
            if not stream.is_over:
                self.reset_by_us.add(stream)
                stream.connection.reset(stream, ErrorCode.CANCEL)
        else:  # a peer may shut all windows for a while
            side, usual = (self.client, self.server) if dice < 0.985 else (self.server, self.client)
            side.receive(b"", 0.0)
            if side._expects >= 0:
                side.receive(settings_frame((4, 0)), 0.0)
                side.receive(settings_frame((4, usual._limits.window_bytes)), 0.0)

    def finish(self) -> None:
        for _ in range(20_000):
            moved = self.carry()
            for stream in [*self.called, *self.served.values()]:
                self.acknowledge(stream)
                if not stream.is_over and stream not in self.ended:
                    self.send(stream, True)
                    moved = True
            if not moved and not self.client.wants_write and not self.server.wants_write:
                return
        raise AssertionError("it never comes to rest")

    def check(self) -> None:
        for stream in self.called:
            assert stream.is_over
            served = self.served.get(stream.id)
            if served is None:
                assert stream in self.reset_by_us or stream.was_reset
                continue
            assert bytes(self.sent[stream]).startswith(served.body)
            assert bytes(self.sent.get(served, b"")).startswith(stream.body)
            if not {stream, served} & self.reset_by_us:
                assert stream.was_reset is served.was_reset is None
                assert stream.body == self.sent[served]
                assert stream.ended
        for connection in (self.client, self.server):
            statistics = connection.statistics()
            assert statistics.streams_open == statistics.streams_waiting == statistics.streams_in_line == 0
            assert statistics.queued_bytes == statistics.partial_bytes == statistics.output_pieces == 0


@pytest.mark.parametrize("seed", range(20))
def test_our_client_and_our_server_in_a_random_conversation(seed: int) -> None:
    pair = Pair(seed)
    for _ in range(120):
        try:
            pair.step()
        except StreamUnavailable:
            pair.carry()
    pair.finish()
    pair.check()


# ------------------------------------------------------------------------ fuzz


def traffic(chance: random.Random, serve: bool) -> bytes:
    """Valid frames of a peer, in a plausible order."""
    encoder = HpackEncoder(4096)
    data = settings_frame((3, 100), (4, chance.choice((0, 100, 65_535)))) + frame(SETTINGS, ACK, 0)
    for stream in range(1, 2 * chance.randint(2, 8), 2):
        fields = REQUEST_FIELDS if serve else ((b":status", b"200"), (b"x-own", b"%d" % stream))
        head = encoder.encode(fields)
        middle = chance.randrange(len(head))
        data += chance.choice(
            (
                frame(HEADERS, END_HEADERS, stream, head),
                frame(HEADERS, 0, stream, head[:middle]) + frame(CONTINUATION, END_HEADERS, stream, head[middle:]),
                frame(HEADERS, 0x2C, stream, b"\x02" + b"\0" * 5 + head + b"\0\0"),
            )
        )
        data += frame(DATA, 0, stream, b"x" * chance.choice((1, 100, 300)))
        data += number(WINDOW, chance.choice((0, stream)), chance.choice((1, 100_000)))
        data += chance.choice(
            (
                frame(DATA, END, stream, b"y"),
                frame(DATA, 8 | END, stream, b"\x03yyyy\0\0\0"),
                frame(HEADERS, END_HEADERS | END, stream, TRAILERS),
                number(RST, stream, 8),
                b"",
            )
        )
        data += chance.choice((b"", frame(PING, 0, 0, b"12345678"), frame(PRIORITY, 0, stream, b"\0" * 5)))
    return data


def damaged(chance: random.Random, data: bytes) -> bytes:
    """The same with a few places changed."""
    out = bytearray(data)
    for _ in range(chance.randint(0, 6)):
        at = chance.randrange(len(out))
        kind = chance.randrange(6)
        if kind == 0:
            out[at] = chance.randrange(256)
        elif kind == 1:
            out[at] ^= 1 << chance.randrange(8)
        elif kind == 2:
            del out[at : at + chance.choice((1, 2, 9, 100))]
        elif kind == 3:
            out[at:at] = chance.randbytes(chance.choice((1, 4, 30)))
        elif kind == 4:
            out[at:at] = out[at : at + chance.choice((9, 13, 50))] * chance.choice((1, 1, 100))
        else:
            out[at:at] = frame(chance.randrange(11), chance.randrange(256), chance.randrange(20), chance.randbytes(8))
        if not out:
            break
    return bytes(out)


@pytest.mark.parametrize("serve", [True, False], ids=["server", "client"])
def test_no_input_breaks_it(serve: bool) -> None:
    for seed in range(1000):
        chance = random.Random(seed)
        data = (PREFACE if serve else b"") + damaged(chance, traffic(chance, serve))
        calls, output, fault = run(serve, list(cut(data, chance)), answer)
        assert len(output) <= 70_100 * 20 + 20 * len(data), (seed, fault)
        for stream in calls:
            assert [call[0] for call in stream].count("reset") <= 1, seed
            assert "reset" not in [call[0] for call in stream[:-1]], seed


@pytest.mark.parametrize("serve", [True, False], ids=["server", "client"])
def test_after_a_fault_every_stream_has_heard_of_its_end(serve: bool) -> None:
    for seed in range(200):
        chance = random.Random(seed)
        side: Side
        if serve:
            side = server = ServerSide(SMALL)
            streams = server.streams
        else:
            side = client = ClientSide(SMALL)
            streams = [client.open(b"hello") for _ in range(5)]
        data = damaged(chance, traffic(chance, serve))
        side.feed(data, frame(PING, 0, 1, b""))
        if side.connection.closed:
            assert all(stream.is_over for stream in streams)
            assert all(stream.ended or stream.was_reset for stream in streams if stream.calls)
        pump(side.connection, side.connection)


def test_a_block_without_fields_is_no_request() -> None:
    side = ServerSide()
    side.feed(request(1, head=block()))
    assert side.streams == []
