"""The user of an HTTP/2 connection under test: streams that hold the codec to its contract while they work."""

from __future__ import annotations

from gateway.wire.hpack import HeaderBlock, HpackDecoder, literal
from gateway.wire.http2 import ErrorCode, Http2Connection, Http2Limits, Stream
from tests.fuzz.footprint import Footprint, footprint
from tests.fuzz.frames import split_frames
from tests.fuzz.target import looked_at

LIMITS = (
    Http2Limits(),
    Http2Limits(
        streams_max=4,
        window_bytes=1000,
        connection_window_bytes=65_535,
        header_table_bytes=200,
        header_list_max_bytes=500,
        header_block_max_bytes=1000,
        continuations_max=3,
        acks_waiting_max=20,
        idle_frames_burst=40,
        idle_frames_per_s=0,
        idle_frames_per_message=1,
        resets_burst=5,
        resets_per_s=0,
        ended_streams_kept=3,
        streams_before_settings=3,
        waiting_max=3,
        high_water_bytes=500,
        small_bytes=100,
        reserve_bytes=50,
        overtake_max_bytes=300,
        frame_out_max_bytes=200,
        burst_bytes=700,
    ),
    Http2Limits(frame_max_bytes=65_536, window_bytes=200_000, connection_window_bytes=1_000_000),
)
"""The last lets the peer send frames that are handed on before they are whole: what is told depends on the cut then."""
PLACE_BYTES = 5000
STRETCH = 60
DATA, HEADERS, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 5, 6, 7, 8, 9
TAKES_MAX = 5000
HELD_BYTES = 400_000
"""What a connection may hold besides what is proportional to what it was given: memories of header blocks."""
HELD_ELEMENTS = 5000


def fields_block(*fields: tuple[bytes, bytes]) -> bytes:
    return b"".join(literal(name, value) for name, value in fields)


TAIL = fields_block((b"grpc-status", b"0"), (b"grpc-message", b"fine"))
REQUEST_FIELDS = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/a.B/C"),
    (b":authority", b"a"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
)
RESPONSE_FIELDS = ((b":status", b"200"), (b"content-type", b"application/grpc"))


class UserStream(Stream):
    """Checks the order of its callbacks, and notes them."""

    __slots__ = ("ended", "gone", "had_head", "number", "user")

    def __init__(self, user: User) -> None:
        self.user = user
        self.number = user.count()
        self.had_head = False
        self.ended = False  # the receiving side is complete
        self.gone = False  # nothing may be called any more

    def _called(self, name: str, last: bool, *more: object) -> None:
        assert not self.gone, f"{name} after the end"
        assert name in ("on_reset", "on_writable") or not self.ended, f"{name} after the end of the receiving side"
        assert last or not self.is_over, f"{name} on a stream that is over"
        self.user.seen.append((self.number, name, *more))
        self.ended = self.ended or last
        self.gone = self.is_over and last

    def on_headers(self, block: HeaderBlock, end: bool) -> None:
        assert not self.had_head
        self.had_head = True
        self._called("on_headers", end, block.fields, end)
        self.user.on_headers(self, end)

    def on_data(self, data: bytes, start: int, stop: int, end: bool) -> None:
        assert self.had_head
        assert 0 <= start <= stop <= len(data)
        assert start < stop or end
        self._called("on_data", end, data[start:stop], end)
        if self.user.large_frames:
            self.user.join_data()
        self.user.on_data(self, data, start, stop, end)

    def place(self, size: int) -> memoryview | None:
        assert self.had_head
        assert not self.ended
        return memoryview(self.user.place)[: min(size, PLACE_BYTES)] if self.number % 2 else None

    def on_placed(self, size: int) -> None:
        self.on_data(bytes(self.user.place[:size]), 0, size, False)

    def on_trailers(self, block: HeaderBlock) -> None:
        assert self.had_head
        self._called("on_trailers", True, block.fields)
        self.user.on_end(self)

    def on_head_too_large(self, end: bool) -> bool:
        assert not self.had_head
        self.had_head = True
        self._called("on_head_too_large", end, end)
        handles = self.user.handles_large_heads
        self.ended = self.ended or not handles
        self.gone = self.gone or not handles
        if handles:
            self.user.on_headers(self, end)
        return handles

    def on_reset(self, code: int, text: str, from_peer: bool, unprocessed: bool) -> None:
        assert self.is_over
        self._called("on_reset", True, code, text, from_peer, unprocessed)
        self.gone = True
        self.user.on_gone(self)

    def on_writable(self) -> None:
        self._called("on_writable", False)
        self.user.on_writable(self)


class User:
    """What is done on one connection; the two roles add what they do on their streams."""

    connection: Http2Connection

    def __init__(self, options: int) -> None:
        self.large_frames = options & 0xC1 == 0xC0
        self.limits = LIMITS[2 if self.large_frames else options & 1]
        self.place = bytearray(PLACE_BYTES)
        self.acknowledges = options & 2 == 0
        self.takes = options & 4 != 0
        """Take the output behind each read, as a driver does. How much waits depends on the cut then."""
        self.grows = options & 8 != 0
        self.handles_large_heads = options & 16 != 0
        self.drains = options & 32 != 0
        self.shift = options >> 6
        self.seen: list[object] = []
        self.streams: list[UserStream] = []
        self.sent_bytes = 0
        self._count = 0

    def count(self) -> int:
        self._count += 1
        return self._count

    def join_data(self) -> None:
        """What was just told of a stream's data, and what was told before it, are one."""
        now = self.seen[-1]
        before = self.seen[-2] if len(self.seen) > 1 else None
        assert isinstance(now, tuple)
        if isinstance(before, tuple) and before[:2] == now[:2] and not before[3]:
            self.seen[-2:] = [(*now[:2], before[2] + now[2], now[3])]

    def make_stream(self) -> UserStream:
        stream = UserStream(self)
        self.streams.append(stream)
        return stream

    # What the roles do.

    def on_headers(self, stream: UserStream, end: bool) -> None: ...

    def on_end(self, stream: UserStream) -> None: ...

    def on_writable(self, stream: UserStream) -> None: ...

    def on_gone(self, stream: UserStream) -> None: ...

    def got(self, stream: UserStream, data: bytes) -> None: ...

    def on_data(self, stream: UserStream, data: bytes, start: int, stop: int, end: bool) -> None:
        if self.acknowledges:
            self.connection.acknowledge(stream, stop - start)
        self.got(stream, data[start:stop])
        if end:
            self.on_end(stream)

    def reset(self, stream: UserStream) -> None:
        if not stream.is_over:
            stream.gone = stream.ended = True
        self.connection.reset(stream, ErrorCode.CANCEL)

    def send(self, stream: UserStream, data: bytes, end: bool) -> bool:
        self.sent_bytes += len(data)
        return self.connection.send_data(stream, data, end)


_at_first: dict[tuple[type, int], Footprint] = {}


def _footprint_at_first(user: User) -> Footprint:
    """Of a connection that has received nothing; the same for all with these limits."""
    key = (type(user), LIMITS.index(user.limits))
    if key not in _at_first:
        _at_first[key] = footprint(user.connection)
    return _at_first[key]


class Conversation:
    """One input, fed in pieces, and all that came of it."""

    def __init__(self, user: User) -> None:
        self.user = user
        self.connection = user.connection
        self.out = bytearray()
        self.empty = _footprint_at_first(user)
        self.fed = 0

    def run(self, pieces: list[bytes]) -> object:
        connection, user = self.connection, self.user
        looked = looked_at(pieces)
        connection.on_pong = user.seen.append
        connection.ping(b"are you?")
        for number, piece in enumerate(pieces):
            self.receive(piece)
            self.fed += len(piece)
            if user.takes:
                self.out += b"".join(connection.take())
            if number in looked:
                self.look()
            if connection.closed:
                assert not connection.mid_frame
        self.take_all()
        fault = connection.fault
        result = (
            list(user.seen),
            None if fault is None else (fault.code, fault.text),
            b"" if user.large_frames else without_returns(bytes(self.out)),
            connection.closed,
        )
        self.end()
        return result

    def receive(self, piece: bytes) -> None:
        """As a driver does that receives to the place there is for what comes."""
        connection = self.connection
        while piece and (place := connection.place()) is not None:
            size = min(len(place), len(piece))
            place[:size] = piece[:size]
            connection.placed(size, 0.0)
            piece = piece[size:]
        if piece:
            connection.receive(piece, 0.0)

    def look(self) -> None:
        held = footprint(self.connection)
        given = self.fed + self.user.sent_bytes
        assert held.size - self.empty.size <= 20 * given + HELD_BYTES
        assert held.elements - self.empty.elements <= 10 * given + HELD_ELEMENTS
        statistics = self.connection.statistics()
        assert statistics.streams_open <= self.user.limits.streams_max or not isinstance(self.user, Accepting)
        assert statistics.ended_kept <= self.user.limits.ended_streams_kept
        assert statistics.acks_waiting <= self.user.limits.acks_waiting_max + 1
        assert statistics.queued_bytes <= self.user.sent_bytes
        assert statistics.window_out >= 0

    def take_all(self) -> None:
        for _ in range(TAKES_MAX):
            if not self.connection.wants_write:
                return
            self.out += b"".join(self.connection.take())
        raise AssertionError("the output has no end")

    def end(self) -> None:
        """The transport goes away: every stream has had its last word, and no output breaks the protocol."""
        check_output(bytes(self.out))
        self.connection.lost("gone")
        assert self.connection.closed
        assert not self.connection.wants_write
        assert self.connection.statistics().streams_open == 0
        for stream in self.user.streams:
            assert stream.is_over, f"stream {stream.number} was forgotten"


class Accepting(User):
    """A server's user: the number of streams is its own side's to bound."""


def without_returns(out: bytes) -> bytes:
    """The output without windows returned to streams. Padding is returned once for all frames of a read, and not at all
    if the stream is over by then: that depends on the cut.
    """
    at = 24 if out.startswith(b"PRI * HTTP/2.0") else 0
    kept = [each for each in split_frames(out[at:]) if each[3] != WINDOW or each[5:9] == bytes(4)]
    return out[:at] + b"".join(kept)


def check_output(out: bytes) -> None:
    """Whole frames, whose header blocks can be read, and none behind the end of its stream."""
    decoder = HpackDecoder(65536, 1 << 30)
    ended: set[int] = set()
    at = 24 if out.startswith(b"PRI * HTTP/2.0") else 0
    first = True
    in_block = 0
    block = b""
    while at < len(out):
        assert len(out) - at >= 9, "half a frame head is sent"
        length, kind, flags = int.from_bytes(out[at : at + 3], "big"), out[at + 3], out[at + 4]
        stream = int.from_bytes(out[at + 5 : at + 9], "big")
        payload = out[at + 9 : at + 9 + length]
        assert len(payload) == length, "half a frame is sent"
        at += 9 + length
        assert kind == SETTINGS or not first, "the first frame is not SETTINGS"
        first = False
        assert not in_block or (kind == CONTINUATION and stream == in_block), "a header block is interrupted"
        if kind in (HEADERS, DATA):
            assert stream not in ended, f"frame {kind} behind the end of stream {stream}"
        if kind in (HEADERS, CONTINUATION):
            block += payload
            in_block = 0 if flags & 4 else stream
            if not in_block:
                decoder.decode(block)
                block = b""
        if kind == RST or (kind in (HEADERS, DATA) and flags & 1):
            ended.add(stream)
    assert not in_block
