"""One end of an HTTP/2 connection, made of frames by hand: the other end of whatever the product's codec writes.

It shares no code with `gateway.wire` (HPACK is the `hpack` package's), so what the two sides understand of one another
is what RFC 9113 says. It is strict: whatever the product must not send is told to `wrong`. It goes on after a GOAWAY,
as gRPC does and the `h2` package does not, and it returns windows when its user says so, or never.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import hpack

from tests.simulation.pipe import PipeTransport

# Called for each number of each header block, where nobody listens.
logging.getLogger("hpack").setLevel(logging.INFO)

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS = 1, 1, 4
NO_ERROR, INTERNAL_ERROR, REFUSED_STREAM, CANCEL, ENHANCE_YOUR_CALM = 0, 2, 7, 8, 11
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 1, 2, 3, 4, 5
FRAME_MAX = 16_384
WINDOW = 65_535
ID_MAX = 2**31 - 1

Fields = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Manners:
    """How an end behaves, within the rules."""

    window: int = WINDOW
    """Of each stream, for what the product sends."""
    next_window: int | None = None
    """Told later, by a further SETTINGS in the middle of the traffic."""
    table: int = 4096
    streams_max: int | None = None
    frame_max: int = FRAME_MAX
    """Of the DATA frames that it sends."""
    block_max: int = FRAME_MAX
    """Of the HEADERS and CONTINUATION frames that it sends."""
    huffman: bool = True
    padding: int = 0

    @property
    def small_windows(self) -> bool:
        """The other side may have to wait for them."""
        return min(self.window, WINDOW if self.next_window is None else self.next_window) < WINDOW


class EndStream:
    """One stream. The user derives from it; the slots are the end's."""

    __slots__ = ("got_end", "got_head", "id", "queue", "sent_end", "settings", "window_in", "window_out")

    def __init__(self) -> None:
        self.id = 0
        self.got_head = self.got_end = self.sent_end = False
        self.window_in = self.window_out = 0
        self.settings = 0
        """How many SETTINGS its window takes into account."""
        self.queue: deque[tuple[bytes | Fields, bool]] = deque()
        """Data, and trailers behind it, that wait for the windows; and whether each is the end."""

    def on_headers(self, fields: Fields, end: bool) -> None: ...

    def on_data(self, data: bytes, end: bool) -> None: ...

    def on_trailers(self, fields: Fields) -> None: ...

    def on_reset(self, code: int | None, text: str) -> None:
        """It is over without an end; `code` is None if the connection is lost or leaves the stream out."""


class Http2End(asyncio.Protocol):
    """Either role. `make_stream` (a server's) gives what a request that comes belongs to."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        manners: Manners,
        wrong: Callable[[str], None],
        make_stream: Callable[[], EndStream] | None = None,
    ) -> None:
        self.manners = manners
        self.streams: dict[int, EndStream] = {}
        self.goaway: tuple[int, int, str] | None = None
        """Last stream, code and text of the last GOAWAY that came."""
        self.on_pong: Callable[[], None] | None = None
        self.over = False
        self.transport: PipeTransport | None = None
        self._loop = loop
        self._wrong = wrong
        self._make_stream = make_stream
        self._is_client = make_stream is None
        self._encoder = hpack.Encoder()
        self._decoder = hpack.Decoder()
        self._decoder.max_allowed_table_size = max(manners.table, 4096)
        self._next_id = 1
        self._last_id = 0
        self._refuses_after: int | None = None
        self._closed: dict[int, str] = {}
        """Streams that are over, and how they ended: `ended`, `reset` (by this end), `was reset`, `left out`."""
        self._in = bytearray()
        self._in_offset = 0
        """Of its first byte, in all that came."""
        self._frame_offset = 0
        self._preface_due = not self._is_client
        self._opened = self._acknowledged = False
        self._block: tuple[int, bool, bytes] | None = None
        self._out = bytearray()
        self._flushing = False
        self._window_in = self._window_out = WINDOW
        self._unreturned = 0
        self._initial_in = WINDOW
        self._initial_out = WINDOW
        self._told_windows: deque[int] = deque()
        """What SETTINGS said of them that have not been acknowledged."""
        self._settings_known = 0
        """How many have been."""
        self._peer_streams_max: int | None = None

    # -- asyncio's callbacks --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, PipeTransport)
        self.transport = transport
        self.begin()

    def begin(self) -> None:
        """Say the first words."""
        manners = self.manners
        if self._is_client:
            self._put(PREFACE)
        pairs = [(HEADER_TABLE_SIZE, manners.table), (INITIAL_WINDOW_SIZE, manners.window)]
        if self._is_client:
            pairs.append((ENABLE_PUSH, 0))
        if manners.streams_max is not None:
            pairs.append((MAX_CONCURRENT_STREAMS, manners.streams_max))
        self._settings(pairs)
        if manners.next_window is not None:
            self._loop.call_later(0.1, self._change_window, manners.next_window)

    def data_received(self, data: bytes) -> None:
        buffer, at = self._in, 0
        buffer += data
        if self._preface_due:
            if len(buffer) < len(PREFACE):
                return
            if not buffer.startswith(PREFACE):
                self._say("the connection does not begin with the preface")
            self._preface_due, at = False, len(PREFACE)
        while len(buffer) - at >= 9 and not self.over:
            length = int.from_bytes(buffer[at : at + 3], "big")
            start = at + 9
            if len(buffer) - start < length:
                break
            self._frame_offset = self._in_offset + at
            kind, flags = buffer[at + 3], buffer[at + 4]
            stream_id = int.from_bytes(buffer[at + 5 : start], "big") & ID_MAX
            at = start + length
            if length > FRAME_MAX:
                self._say(f"a frame of {length} bytes")
            self._frame(kind, flags, stream_id, bytes(buffer[start:at]))
        del buffer[:at]
        self._in_offset += at

    def eof_received(self) -> bool:
        self.lose("the connection was closed")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lose("the connection was closed" if exc is None else "the connection was reset")

    def lose(self, text: str) -> None:
        """Nothing more comes or goes."""
        if not self.over:
            self.over = True
            self._out.clear()
            streams, self.streams = self.streams, {}
            for stream in streams.values():
                stream.on_reset(None, text)

    @property
    def frame_offset(self) -> int:
        """Where in all that came the frame begins that is being read."""
        return self._frame_offset

    def _say(self, text: str) -> None:
        self._wrong(f"HTTP/2: {text}")

    # -- writing --------------------------------------------------------------------------------------------------

    def _put(self, data: bytes) -> None:
        if self.over:
            return
        self._out += data
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        self._flushing = False
        if self.transport is not None and self._out:
            data = bytes(self._out)
            self._out.clear()
            self.transport.write(data)

    def _put_frame(self, kind: int, flags: int, stream_id: int, payload: bytes = b"") -> None:
        self._put(len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream_id.to_bytes(4, "big") + payload)

    def _settings(self, pairs: Iterable[tuple[int, int]]) -> None:
        self._told_windows.append(dict(pairs).get(INITIAL_WINDOW_SIZE, self._initial_in))
        self._put_frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in pairs))

    def _change_window(self, size: int) -> None:
        if not self.over:
            self._settings([(INITIAL_WINDOW_SIZE, size)])

    def open(self, stream: EndStream, fields: Fields, end: bool) -> None:
        """Begin a request."""
        stream.id = self._next_id
        self._next_id += 2
        self._add(stream)
        self.send_headers(stream, fields, end)

    def _add(self, stream: EndStream) -> None:
        stream.window_in, stream.window_out = self._initial_in, self._initial_out
        stream.settings = self._settings_known
        if self._is_client and self._told_windows:
            # What was told before is known to the other side when it hears of the stream.
            stream.window_in = self._told_windows[-1]
            stream.settings += len(self._told_windows)
        self.streams[stream.id] = stream

    def send_headers(self, stream: EndStream, fields: Fields, end: bool) -> None:
        """Head or trailers; trailers stand behind the data that waits."""
        if stream.id in self.streams and not stream.sent_end:
            if stream.queue:
                stream.queue.append((fields, end))
            else:
                self._put_block(stream, fields, end)

    def _put_block(self, stream: EndStream, fields: Fields, end: bool) -> None:
        block = self._encoder.encode(fields, huffman=self.manners.huffman)
        size = self.manners.block_max
        pieces = [block[at : at + size] for at in range(0, len(block), size)] or [b""]
        for index, piece in enumerate(pieces):
            flags = END_HEADERS if index == len(pieces) - 1 else 0
            if index:
                self._put_frame(CONTINUATION, flags, stream.id, piece)
            else:
                self._put_frame(HEADERS, flags | (END_STREAM if end else 0), stream.id, piece)
        if end:
            self._sent_end(stream)

    def send_data(self, stream: EndStream, data: bytes, end: bool) -> None:
        if stream.id in self.streams and not stream.sent_end:
            stream.queue.append((data, end))
            self._pump(stream)

    def _pump(self, stream: EndStream) -> None:
        """Send what the windows allow."""
        queue = stream.queue
        while queue and stream.id in self.streams:
            (item, end), padding = queue[0], self.manners.padding
            if isinstance(item, list):
                queue.popleft()
                self._put_block(stream, item, end)
                continue
            room = min(self._window_out, stream.window_out)
            if room <= padding + 1:
                padding = 0  # it would keep the data from going
            size = max(0, min(len(item), room - padding - 1 if padding else room, self.manners.frame_max - padding - 1))
            if not size and item:
                return
            whole = size == len(item)
            if whole:
                queue.popleft()
            else:
                queue[0] = (item[size:], end)
            payload, flags = item[:size], END_STREAM if end and whole else 0
            if padding and size:
                payload, flags = bytes((padding,)) + payload + bytes(padding), flags | 8
            self._window_out -= len(payload)
            stream.window_out -= len(payload)
            self._put_frame(DATA, flags, stream.id, payload)
            if end and whole:
                self._sent_end(stream)

    def _pump_all(self) -> None:
        for stream in tuple(self.streams.values()):
            if stream.queue:
                self._pump(stream)

    def _sent_end(self, stream: EndStream) -> None:
        stream.sent_end = True
        # A server's end is the end: what the client has not said yet is not waited for.
        if stream.got_end or not self._is_client:
            self._forget(stream, "ended")

    def reset(self, stream: EndStream, code: int) -> None:
        """Give a stream up; nothing if it is over."""
        if stream.id in self.streams:
            self._put_frame(RST_STREAM, 0, stream.id, code.to_bytes(4, "big"))
            self._forget(stream, "reset")

    def take(self, stream: EndStream, size: int) -> None:
        """The user has taken so much of the stream's data: it may send more."""
        if size and stream.id in self.streams and not stream.got_end:
            stream.window_in += size
            self._put_frame(WINDOW_UPDATE, 0, stream.id, size.to_bytes(4, "big"))

    def ping(self, on_pong: Callable[[], None]) -> None:
        self.on_pong = on_pong
        self._put_frame(PING, 0, 0, b"simulate")

    def say_goaway(self, last_id: int | None, code: int = NO_ERROR, text: bytes = b"") -> None:
        """`last_id` None: nothing new will be begun from here on."""
        if last_id is None:
            self._refuses_after = last_id = self._last_id
        self._put_frame(GOAWAY, 0, 0, last_id.to_bytes(4, "big") + code.to_bytes(4, "big") + text)

    def _forget(self, stream: EndStream, how: str) -> None:
        self.streams.pop(stream.id, None)
        stream.queue.clear()
        self._closed[stream.id] = how
        if not self.streams:
            self.on_idle()

    def on_idle(self) -> None:
        """The last stream is over."""

    # -- reading --------------------------------------------------------------------------------------------------

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if not self._opened and (kind != SETTINGS or flags & ACK):
            self._say(f"a frame of kind {kind} comes before the first SETTINGS")
        if self._block is not None and (kind != CONTINUATION or stream_id != self._block[0]):
            self._say("a header block is interrupted")
        if kind == DATA:
            self._data(flags, stream_id, payload)
        elif kind in (HEADERS, CONTINUATION):
            self._headers(kind, flags, stream_id, payload)
        elif kind == RST_STREAM:
            self._rst_stream(stream_id, int.from_bytes(payload, "big"))
        elif kind == SETTINGS:
            self._settings_frame(flags, payload)
        elif kind == PING:
            if not flags & ACK:
                self._put_frame(PING, ACK, 0, payload)
            elif self.on_pong is not None:
                self.on_pong()
        elif kind == GOAWAY:
            self._goaway_frame(payload)
        elif kind == WINDOW_UPDATE:
            self._window_update(stream_id, int.from_bytes(payload, "big"))
        else:
            self._say(f"a frame of kind {kind}, which is never sent")

    def _data(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._window_in -= len(payload)
        if self._window_in < 0:
            self._say(f"{-self._window_in} bytes more than the connection's window")
        self._unreturned += len(payload)
        if self._unreturned > WINDOW // 2:
            self._window_in += self._unreturned
            self._put_frame(WINDOW_UPDATE, 0, 0, self._unreturned.to_bytes(4, "big"))
            self._unreturned = 0
        end = bool(flags & END_STREAM)
        stream = self._open_stream(stream_id, "DATA")
        if stream is None:
            return
        if not stream.got_head:
            self._say(f"DATA comes before the head of stream {stream_id}")
        stream.window_in -= len(payload)
        if stream.window_in < 0 and payload:
            self._say(f"{-stream.window_in} bytes more than the window of stream {stream_id}")
        if not payload and not end:
            self._say(f"an empty DATA frame on stream {stream_id}")
        if end:
            self._got_end(stream)
        stream.on_data(payload, end)

    def _open_stream(self, stream_id: int, what: str) -> EndStream | None:
        """The stream that a frame belongs to, if it is open for frames of the other side."""
        stream = self.streams.get(stream_id)
        if stream is not None and stream.got_end:
            self._say(f"{what} behind the end of stream {stream_id}")
            return None
        if stream is None and not self._expected_late(stream_id):
            self._say(f"{what} on stream {stream_id}, which is {self._closed.get(stream_id, 'not open')}")
        return stream

    def _expected_late(self, stream_id: int) -> bool:
        """Whether frames of a stream that is not open may have been under way."""
        if self._refuses_after is not None and stream_id > self._refuses_after:
            return True
        how = self._closed.get(stream_id)
        return how == "reset" or (how == "ended" and not self._is_client)

    def _got_end(self, stream: EndStream) -> None:
        stream.got_end = True
        if self._is_client and not stream.sent_end:
            self.reset(stream, CANCEL)
            self._closed[stream.id] = "ended"
        elif stream.sent_end:
            self._forget(stream, "ended")

    def _headers(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == HEADERS:
            if flags & ~(END_STREAM | END_HEADERS):
                self._say(f"HEADERS with flags {flags}")
            self._block = (stream_id, bool(flags & END_STREAM), payload)
        elif self._block is None:
            self._say("CONTINUATION without HEADERS")
            return
        else:
            self._block = (stream_id, self._block[1], self._block[2] + payload)
        if not flags & END_HEADERS:
            return
        _, end, block = self._block
        self._block = None
        try:
            fields = [(bytes(name), bytes(value)) for name, value in self._decoder.decode(block, raw=True)]
        except hpack.HPACKError as error:
            self._say(f"a header block cannot be read: {error}")
            return
        for name, _ in fields:
            if name != name.lower():
                self._say(f"a field name is not in lower case: {name!r}")
        if not self._is_client and stream_id > self._last_id:
            self._request(stream_id, fields, end)
            return
        stream = self._open_stream(stream_id, "HEADERS")
        if stream is None:
            return
        if stream.got_head and (not end or not self._is_client):
            self._say(f"a second head on stream {stream_id}")
        if self._is_client and not stream.got_head and fields[:1] != [(b":status", b"200")]:
            self._say(f"the answer on stream {stream_id} begins with {fields[:1]}")
        trailers, stream.got_head = stream.got_head, True
        if end:
            self._got_end(stream)
        if trailers:
            stream.on_trailers(fields)
        else:
            stream.on_headers(fields, end)

    def _request(self, stream_id: int, fields: Fields, end: bool) -> None:
        if stream_id % 2 == 0:
            self._say(f"a request on stream {stream_id}")
        if self._refuses_after is not None:
            return  # the client will hear of it, and that nothing was done for this
        self._last_id = stream_id
        most = self.manners.streams_max
        if most is not None and len(self.streams) >= most:
            if self._acknowledged:
                self._say(f"stream {stream_id} is opened beside {most} others, which are all that may be")
            self._closed[stream_id] = "reset"
            self._put_frame(RST_STREAM, 0, stream_id, REFUSED_STREAM.to_bytes(4, "big"))
            return
        assert self._make_stream is not None
        stream = self._make_stream()
        stream.id, stream.got_head, stream.got_end = stream_id, True, end
        self._add(stream)
        stream.on_headers(fields, end)

    def _rst_stream(self, stream_id: int, code: int) -> None:
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._forget(stream, "was reset")
            stream.on_reset(code, f"reset with code {code}")
        elif self._expected_late(stream_id):
            return
        elif self._closed.get(stream_id) != "ended":
            self._say(f"RST_STREAM on stream {stream_id}, which is {self._closed.get(stream_id, 'not open')}")
        elif code != NO_ERROR:
            self._say(f"RST_STREAM with code {code} behind the end of stream {stream_id}")

    def _settings_frame(self, flags: int, payload: bytes) -> None:
        if flags & ACK:
            if not self._told_windows:
                self._say("SETTINGS are acknowledged that were not sent")
                return
            window = self._told_windows.popleft()
            change, self._initial_in = window - self._initial_in, window
            if not self._acknowledged:
                self._decoder.max_allowed_table_size = self.manners.table
            self._acknowledged = True
            self._settings_known += 1
            for stream in self.streams.values():
                if stream.settings < self._settings_known:
                    stream.settings = self._settings_known
                    stream.window_in += change
            return
        self._opened = True
        for name, value in struct.iter_unpack(">HI", payload):
            if name == HEADER_TABLE_SIZE:
                self._encoder.header_table_size = min(value, 4096)
            elif name == MAX_CONCURRENT_STREAMS:
                self._peer_streams_max = value
            elif name == INITIAL_WINDOW_SIZE:
                change, self._initial_out = value - self._initial_out, value
                for stream in self.streams.values():
                    stream.window_out += change
        self._put_frame(SETTINGS, ACK, 0)
        self._pump_all()

    def _goaway_frame(self, payload: bytes) -> None:
        last_id, code = int.from_bytes(payload[:4], "big") & ID_MAX, int.from_bytes(payload[4:8], "big")
        text = payload[8:].decode(errors="replace")
        self.goaway = (last_id, code, text)
        if code != NO_ERROR:
            self._say(f"the other side ended the connection with code {code}: {text}")
        if self._is_client:
            for stream in [each for each in self.streams.values() if each.id > last_id]:
                self._forget(stream, "left out")
                stream.on_reset(None, "the other side is going away")
        self.on_goaway()

    def on_goaway(self) -> None:
        """A GOAWAY came."""

    def _window_update(self, stream_id: int, size: int) -> None:
        if not size or size > ID_MAX:
            self._say(f"a window update of {size}")
        if not stream_id:
            self._window_out += size
            self._pump_all()
            return
        stream = self.streams.get(stream_id)
        if stream is not None:
            stream.window_out += size
            if stream.window_out > ID_MAX:
                self._say(f"the window of stream {stream_id} is over 2^31-1")
            self._pump(stream)
        elif stream_id not in self._closed and not self._expected_late(stream_id):
            self._say(f"WINDOW_UPDATE on stream {stream_id}, which is not open")
