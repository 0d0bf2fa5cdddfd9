"""A gRPC caller on a raw asyncio protocol: a tenth of what grpcio costs, so that the servers keep the CPUs.

It speaks as much HTTP/2 as a unary call needs, from RFC 9113 and without the gateway's codec: a mistake in that must
show. Header blocks are those of grpcio's clients: what repeats is sent once and then named by its index, what differs
from call to call (`x-request-id`, `traceparent`) goes as literals that stay out of the table.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from typing import cast

from hpack import Decoder
from hpack.exceptions import HPACKError

from load.connection import CONNECTION, GRACE_S, NO_ANSWER, NO_HEADERS, WRONG_ANSWER, Done
from load.inputs import Inputs, LoadCall

CONNECT_TIMEOUT_S = 5.0
WINDOW_BYTES = 1 << 24
STREAM_ID_LAST = 2**31 - 1

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _ACK, _END_HEADERS, _PADDED = 1, 1, 4, 8
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE = 4, 5
_HEAD = struct.Struct(">BHBBI")
_CODES = ("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
          "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
          "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED")  # fmt: skip


class RawGrpcConnection:
    """A `Connection` to host:port that can also carry many calls at a time, each smaller than a frame and a window
    (16 KiB). `headers` go with every call, so their names are lower case.
    """

    def __init__(self, address: str, inputs: Inputs, headers: Mapping[str, str] = NO_HEADERS) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host, int(port)
        self._inputs = inputs
        self._fixed = fixed_fields(address, headers)
        self._wire: GrpcWire | None = None
        self._leaving: list[GrpcWire] = []
        """Connections that take no more calls: the peer said that it goes away."""
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: dict[LoadCall, tuple[Done, float]] = {}
        """Calls for which there is no connection yet; each with the loop's time at which it is given up."""

    def send(self, call: LoadCall, done: Done) -> None:
        give_up_s = asyncio.get_running_loop().time() + call.deadline_ms / 1000 + GRACE_S
        wire = self._wire
        if wire is not None and wire.open:
            wire.send(call, done, give_up_s)
            return
        self._waiting[call] = (done, give_up_s)
        if self._connecting is None:
            self._connecting = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, wire = await loop.create_connection(
                    lambda: GrpcWire(self._fixed, self._inputs), self._host, self._port
                )
        except OSError:  # TimeoutError is one
            self._end_waiting()
            return
        finally:
            self._connecting = None
        if self._wire is not None:
            self._leaving = [each for each in (*self._leaving, self._wire) if not each.closed.is_set()]
        self._wire = wire
        waiting, self._waiting = self._waiting, {}
        for call, (done, give_up_s) in waiting.items():
            wire.send(call, done, give_up_s)

    def _end_waiting(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for done, _ in waiting.values():
            done(CONNECTION)

    def check(self, now_s: float) -> None:
        for call, (done, give_up_s) in tuple(self._waiting.items()):
            if now_s > give_up_s:
                del self._waiting[call]
                done(NO_ANSWER)
        for wire in self._wires():
            wire.check(now_s)

    def _wires(self) -> list[GrpcWire]:
        return self._leaving if self._wire is None else [*self._leaving, self._wire]

    async def aclose(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait((self._connecting,))
        self._end_waiting()
        for wire in self._wires():
            wire.abort()
            await wire.closed.wait()


def fixed_fields(address: str, headers: Mapping[str, str] = NO_HEADERS) -> list[tuple[bytes, bytes]]:
    """The fields that are the same in all calls."""
    return [
        (b":path", b"/inference.GRPCInferenceService/ModelInfer"),
        (b":authority", address.encode()),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", b"sluice-load"),
        *((name.encode(), value.encode()) for name, value in headers.items()),
    ]


class _Out:
    """One call that is out."""

    __slots__ = ("call", "done", "give_up_s", "message")

    def __init__(self, call: LoadCall, done: Done, give_up_s: float) -> None:
        self.call, self.done, self.give_up_s = call, done, give_up_s
        self.message = b""


class GrpcWire(asyncio.Protocol):
    """One TCP connection."""

    def __init__(self, fixed: list[tuple[bytes, bytes]], inputs: Inputs) -> None:
        self._fixed, self._inputs = fixed, inputs
        self._transport: asyncio.Transport | None = None
        self._out: dict[int, _Out] = {}
        self._next_id = 1
        self._buffer = b""
        self._decoder = Decoder()
        self._known: dict[bytes, dict[bytes, bytes]] = {}
        """Decoded header blocks; good as long as the decoder's table does not change."""
        self._unreturned = 0
        self.open = False
        self.closed = asyncio.Event()
        first = len(fixed) - 1
        self._heads = {
            False: b"\x83\x86" + b"".join(b"\x40" + _string(name) + _string(value) for name, value in fixed),
            # Newest first in the table, which begins at 62 behind the static one.
            True: b"\x83\x86" + bytes(0x80 | (62 + first - index) for index in range(len(fixed))),
        }

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's do not inherit from it
        self.open = True
        settings = struct.pack(">HIHI", 2, 0, _INITIAL_WINDOW_SIZE, WINDOW_BYTES)  # 2: no server push
        self._transport.write(
            _PREFACE + frame(_SETTINGS, 0, 0, settings) + frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", WINDOW_BYTES))
        )

    def data_received(self, data: bytes) -> None:
        try:
            self._read(self._buffer + data if self._buffer else data)
        except (HPACKError, IndexError, struct.error):
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False
        self.closed.set()
        out, self._out = self._out, {}
        for each in out.values():
            each.done(CONNECTION)

    # calls

    def send(self, call: LoadCall, done: Done, give_up_s: float) -> None:
        stream_id = self._next_id
        self._next_id = stream_id + 2
        if self._next_id > STREAM_ID_LAST - 2:
            self.open = False
        self._out[stream_id] = _Out(call, done, give_up_s)
        message = self._inputs.grpc_message(call.row)
        varying = (
            b"\x00\x0cgrpc-timeout" + _string(b"%dm" % call.deadline_ms)
            + b"\x00\x0cx-request-id" + _string(call.request_id.encode())
            + b"\x00\x0btraceparent" + _string(call.traceparent.encode())
        )  # fmt: skip
        block = self._heads[stream_id > 1] + varying
        assert self._transport is not None
        self._transport.write(
            frame(_HEADERS, _END_HEADERS, stream_id, block)
            + frame(_DATA, _END_STREAM, stream_id, b"\0" + len(message).to_bytes(4, "big") + message)
        )

    def check(self, now_s: float) -> None:
        late = [stream_id for stream_id, each in self._out.items() if now_s > each.give_up_s]
        for stream_id in late:
            self._reset(stream_id)
            self._out.pop(stream_id).done(NO_ANSWER)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # frames

    def _read(self, data: bytes) -> None:
        at, end = 0, len(data)
        while end - at >= 9:
            high, low, kind, flags, stream_id = _HEAD.unpack_from(data, at)
            stop = at + 9 + (high << 16 | low)
            if stop > end:
                break
            payload = data[at + 9 : stop]
            at = stop
            if kind == _DATA:
                self._data(stream_id, payload, flags)
            elif kind == _HEADERS:
                self._headers(stream_id, payload, flags)
            elif kind == _RST_STREAM:
                self._end(stream_id, f"reset {int.from_bytes(payload, 'big')}")
            elif kind == _SETTINGS and not flags & _ACK:
                self._write(frame(_SETTINGS, _ACK, 0, b""))
            elif kind == _PING and not flags & _ACK:
                self._write(frame(_PING, _ACK, 0, payload))
            elif kind == _GOAWAY:
                self.open = False
        self._buffer = data[at:]

    def _data(self, stream_id: int, payload: bytes, flags: int) -> None:
        self._unreturned += len(payload)
        if self._unreturned > WINDOW_BYTES // 2:
            self._write(frame(_WINDOW_UPDATE, 0, 0, self._unreturned.to_bytes(4, "big")))
            self._unreturned = 0
        if flags & _PADDED:
            payload = payload[1 : len(payload) - payload[0]]
        out = self._out.get(stream_id)
        if out is not None:
            out.message = out.message + payload if out.message else payload
            if flags & _END_STREAM:
                self._end(stream_id, "no status")

    def _headers(self, stream_id: int, payload: bytes, flags: int) -> None:
        if not flags & _END_HEADERS:
            raise IndexError("a header block in several frames; no server of the lab sends one")
        fields = self._decoded(payload)
        if not flags & _END_STREAM:
            return
        out = self._out.get(stream_id)
        status = fields.get(b"grpc-status")
        if status != b"0":
            number = int(status) if status is not None and status.isdigit() else 2
            self._end(stream_id, f"code {_CODES[number] if number < len(_CODES) else number}")
        elif out is not None:
            message = out.message
            whole = len(message) >= 5 and message[0] == 0 and int.from_bytes(message[1:5], "big") == len(message) - 5
            call = out.call
            right = whole and (not call.checked or self._inputs.grpc_right(message[5:], call.row))
            self._end(stream_id, "" if right else WRONG_ANSWER)

    def _decoded(self, block: bytes) -> dict[bytes, bytes]:
        fields = self._known.get(block)
        if fields is None:
            table = self._decoder.header_table
            before = (len(table.dynamic_entries), table.dynamic_entries[0] if table.dynamic_entries else None)
            fields = {bytes(name): bytes(value) for name, value in self._decoder.decode(block, raw=True)}
            if before == (len(table.dynamic_entries), table.dynamic_entries[0] if table.dynamic_entries else None):
                if len(self._known) < 1000:
                    self._known[block] = fields
            else:
                self._known.clear()
        return fields

    def _end(self, stream_id: int, error: str) -> None:
        out = self._out.pop(stream_id, None)
        if out is not None:
            out.done(error)

    def _reset(self, stream_id: int) -> None:
        self._write(frame(_RST_STREAM, 0, stream_id, b"\0\0\0\x08"))  # CANCEL

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    size = len(payload)
    return _HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream_id) + payload


def _string(text: bytes) -> bytes:
    """An HPACK string without Huffman coding."""
    if len(text) < 127:
        return bytes((len(text),)) + text
    rest, found = len(text) - 127, bytearray(b"\x7f")
    while rest > 127:
        found.append(rest & 127 | 128)
        rest >>= 7
    found.append(rest)
    return bytes(found) + text
