"""What the tests of the HTTP/2 codec share: frames by hand, streams that note their calls, linked connections."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple

from gateway.wire.hpack import HeaderBlock, literal
from gateway.wire.http2 import Http2Client, Http2Connection, Http2Limits, Http2Server, Stream

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END, ACK, END_HEADERS, PADDED, WITH_PRIORITY = 1, 1, 4, 8, 0x20

Fields = tuple[tuple[bytes, bytes], ...]


class Frame(NamedTuple):
    """One frame as it was on the wire."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def number(self) -> int:
        """The code of an RST_STREAM, or the increment of a WINDOW_UPDATE."""
        return int.from_bytes(self.payload[:4], "big")

    @property
    def code(self) -> int:
        """The code of a GOAWAY."""
        return int.from_bytes(self.payload[4:8], "big")


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame, right or wrong."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def number(kind: int, stream: int, value: int) -> bytes:
    """RST_STREAM or WINDOW_UPDATE."""
    return frame(kind, 0, stream, value.to_bytes(4, "big"))


def settings(*pairs: tuple[int, int]) -> bytes:
    """A SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in pairs))


def goaway(last: int, code: int, text: bytes = b"") -> bytes:
    """A GOAWAY frame."""
    return frame(GOAWAY, 0, 0, last.to_bytes(4, "big") + code.to_bytes(4, "big") + text)


def block(*fields: tuple[bytes, bytes]) -> bytes:
    """A header block that touches no table."""
    return b"".join(literal(name, value) for name, value in fields)


def parse(data: bytes) -> list[Frame]:
    """All frames; the data must end with one."""
    frames = []
    while data:
        stop = 9 + int.from_bytes(data[:3], "big")
        assert len(data) >= stop, "a frame is cut off"
        frames.append(Frame(data[3], data[4], int.from_bytes(data[5:9], "big"), data[9:stop]))
        data = data[stop:]
    return frames


REQUEST_FIELDS: Fields = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/inference.GRPCInferenceService/ModelInfer"),
    (b":authority", b"localhost:8001"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
)
RESPONSE_FIELDS: Fields = ((b":status", b"200"), (b"content-type", b"application/grpc"))
TRAILER_FIELDS: Fields = ((b"grpc-status", b"0"),)
REQUEST, RESPONSE, TRAILERS = block(*REQUEST_FIELDS), block(*RESPONSE_FIELDS), block(*TRAILER_FIELDS)


def request(stream: int, end: bool = False, head: bytes = REQUEST) -> bytes:
    """A HEADERS frame that opens a stream."""
    return frame(HEADERS, END_HEADERS | end, stream, head)


Call = tuple[object, ...]


class Probe(Stream):
    """Notes what it is called with; acknowledges at once unless told otherwise."""

    __slots__ = ("acknowledges", "calls", "connection", "when_called")

    def __init__(self, connection: Http2Connection) -> None:
        self.connection = connection
        self.calls: list[Call] = []
        self.acknowledges = True
        self.when_called: Callable[[Probe, Call], None] | None = None

    def _note(self, *call: object) -> None:
        self.calls.append(call)
        if self.when_called is not None:
            self.when_called(self, call)

    def on_headers(self, block: HeaderBlock, end: bool) -> None:
        self._note("headers", block.fields, end)

    def on_data(self, data: bytes, start: int, stop: int, end: bool) -> None:
        if self.acknowledges:
            self.connection.acknowledge(self, stop - start)
        self._note("data", data[start:stop], end)

    def on_trailers(self, block: HeaderBlock) -> None:
        self._note("trailers", block.fields)

    def on_reset(self, code: int, text: str, from_peer: bool, unprocessed: bool) -> None:
        self._note("reset", code, from_peer, unprocessed)

    def on_writable(self) -> None:
        self._note("writable")

    @property
    def body(self) -> bytes:
        """All payload so far."""
        return b"".join(call[1] for call in self.calls if call[0] == "data" and isinstance(call[1], bytes))

    @property
    def ended(self) -> bool:
        """Whether the peer's side ended in good order."""
        return any(call[0] == "trailers" or (call[0] in ("headers", "data") and call[2]) for call in self.calls)

    @property
    def was_reset(self) -> Call | None:
        """The on_reset call, if it came."""
        return next((call for call in self.calls if call[0] == "reset"), None)


class Side:
    """One connection with what was seen of it."""

    def __init__(self, connection: Http2Connection) -> None:
        self.connection = connection
        self.now_s = 0.0

    def feed(self, *pieces: bytes) -> list[Frame]:
        """Feed the pieces one after the other; what the connection then writes."""
        for piece in pieces:
            self.connection.receive(piece, self.now_s)
        return self.written()

    def written(self) -> list[Frame]:
        """All that the connection writes now."""
        data = b""
        while self.connection.wants_write:
            data += b"".join(self.connection.take())
        return parse(data.removeprefix(PREFACE))


class ServerSide(Side):
    """A server and its streams, in the order of opening."""

    def __init__(self, limits: Http2Limits | None = None, client_settings: bytes | None = None) -> None:
        self.streams: list[Probe] = []
        self.server = Http2Server(limits or Http2Limits(), self._make)
        super().__init__(self.server)
        self.when_called: Callable[[Probe, Call], None] | None = None
        self.opening = self.written()
        if client_settings is None:
            client_settings = settings()
        if client_settings:
            self.feed(PREFACE + client_settings + frame(SETTINGS, ACK, 0))

    def _make(self) -> Probe:
        stream = Probe(self.server)
        stream.when_called = self.when_called
        self.streams.append(stream)
        return stream


class ClientSide(Side):
    """A client and what it has opened."""

    def __init__(self, limits: Http2Limits | None = None, server_settings: bytes | None = None) -> None:
        self.client = Http2Client(limits or Http2Limits())
        super().__init__(self.client)
        self.opening = self.written()
        if server_settings is None:
            server_settings = settings()
        if server_settings:
            self.feed(server_settings + frame(SETTINGS, ACK, 0))

    def open(self, data: bytes = b"", end: bool = True) -> Probe:
        """A stream with the usual head."""
        stream = Probe(self.client)
        self.client.open(stream, REQUEST, data, end)
        return stream


def pump(one: Http2Connection, other: Http2Connection, chance: random.Random | None = None) -> None:
    """Carry bytes both ways, in random pieces if `chance` is given, until both are quiet."""
    while one.wants_write or other.wants_write:
        for source, sink in ((one, other), (other, one)):
            data = b"".join(source.take())
            for piece in cut(data, chance):
                sink.receive(piece, 0.0)


def cut(data: bytes, chance: random.Random | None) -> Iterable[bytes]:
    """The data in pieces: mostly a few large ones, now and then many of a byte or two, but some hundred at most."""
    if not data:
        return
    if chance is None:
        yield data
        return
    most = max(chance.choice((1, 3, 10, 200, 5000, 100_000)), len(data) // 200)
    pos = 0
    while pos < len(data):
        size = chance.randint(1, most)
        yield data[pos : pos + size]
        pos += size
