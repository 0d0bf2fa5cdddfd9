"""What the tests of our own gRPC server share: a port over scripted parts, and a client in the test's hand.

The client is frames on a transport in memory, read with the `hpack` package; the clock and the timer wheel turn when
the test says so.
"""

from __future__ import annotations

import asyncio
import random
import struct
from typing import Any

import hpack
from tritonclient.grpc import service_pb2 as pb

from gateway.core.service import Service
from gateway.decide.bytebudget import ByteBudget
from gateway.edge.explain import Explainer
from gateway.edge.grpc_connection import GrpcConnection
from gateway.edge.grpc_kit import GrpcKit
from gateway.edge.grpc_port import GrpcPort
from gateway.edge.headers import HeaderReader
from gateway.policy.schema import GrpcLimits
from gateway.runtime.workers import Workers
from tests.support.clock import ManualClock
from tests.support.grpc_edge import AnyKey, Events, OneModel
from tests.unit.edge_driving import HandWheel, turns

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
INFER = b"/inference.GRPCInferenceService/ModelInfer"
STREAM_INFER = b"/inference.GRPCInferenceService/ModelStreamInfer"
CANCEL = b"\0\0\0\x08"
WINDOW_MOST = 2**31 - 1


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def settings(**values: int) -> bytes:
    """A SETTINGS frame: `window` is INITIAL_WINDOW_SIZE, `frame_max` MAX_FRAME_SIZE."""
    numbers = {"window": 4, "frame_max": 5}
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", numbers[name], value) for name, value in values.items()))


def head_block(path: bytes = INFER, *more: tuple[bytes, bytes], **replaced: bytes) -> bytes:
    """The head of a request, in literals. `replaced` names pseudo-fields without their colon, and `content_type`."""
    fields = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": path,
        b":authority": b"a",
        b"te": b"trailers",
        b"content-type": b"application/grpc",
    }
    for name, value in replaced.items():
        key = name.replace("_", "-").encode()
        fields[b":" + key if b":" + key in fields else key] = value
    return bytes(hpack.Encoder().encode([*fields.items(), *more], huffman=False))


def prefixed(message: bytes, flag: int = 0) -> bytes:
    return struct.pack(">BI", flag, len(message)) + message


def infer_message(model: str = "mine", size: int = 0, **fields: Any) -> bytes:
    """A serialized request with `size` bytes of tensor."""
    request = pb.ModelInferRequest(model_name=model, **fields)
    if size:
        request.raw_input_contents.append(bytes(size))
    return bytes(request.SerializeToString())


class Got:
    """One frame that the server sent."""

    def __init__(self, kind: int, flags: int, stream: int, payload: bytes, fields: dict[str, str] | None) -> None:
        self.kind = kind
        self.flags = flags
        self.stream = stream
        self.payload = payload
        self.fields = fields or {}

    @property
    def code(self) -> int:
        """Of an RST_STREAM or a GOAWAY."""
        at = 4 if self.kind == GOAWAY else 0
        return int.from_bytes(self.payload[at : at + 4], "big")

    def __repr__(self) -> str:
        return f"Got({self.kind}, {self.flags}, {self.stream}, {self.fields or self.payload[:40]!r})"


class HandClient(asyncio.Transport):
    """The client, and the transport between."""

    def __init__(self, connection: GrpcConnection) -> None:
        super().__init__()
        self.connection = connection
        self.sent = bytearray()
        self.paused = False
        self.closing = False
        self.aborted = False
        self.eof_sent = False
        self.lost = False
        self.stuck_bytes = 0
        """What the client has not taken; set by the test together with `stop_taking`."""
        self._unread = b""
        self._hpack = hpack.Decoder()

    # the client's side

    def feed(self, *data: bytes) -> None:
        self.connection.data_received(b"".join(data))

    def greet(self, *more: bytes, window: int = 65_535) -> None:
        """Take up HTTP/2, and acknowledge the server's settings. `window`: for each stream."""
        self.feed(PREFACE, settings(window=window), frame(SETTINGS, ACK, 0), *more)

    def call(self, stream: int, message: bytes, head: bytes | None = None) -> None:
        """A unary call, whole."""
        block = head_block() if head is None else head
        self.feed(frame(HEADERS, END_HEADERS, stream, block), frame(DATA, END_STREAM, stream, prefixed(message)))

    def open(self, stream: int, head: bytes | None = None) -> None:
        self.feed(frame(HEADERS, END_HEADERS, stream, head_block() if head is None else head))

    def say(self, stream: int, payload: bytes, *, end: bool = False) -> None:
        """Payload in frames of 16 KiB."""
        for at in range(0, len(payload), 16_384):
            last = end and at + 16_384 >= len(payload)
            self.feed(frame(DATA, END_STREAM if last else 0, stream, payload[at : at + 16_384]))

    def reset(self, stream: int) -> None:
        self.feed(frame(RST_STREAM, 0, stream, CANCEL))

    def stop_taking(self, size: int = 100_000) -> None:
        """The transport is full."""
        self.stuck_bytes = size
        self.connection.pause_writing()

    def take_again(self) -> None:
        self.stuck_bytes = 0
        self.connection.resume_writing()

    def leave(self) -> None:
        """The client's end of the connection, as asyncio tells it."""
        if not self.connection.eof_received():
            self.close()

    def frames(self, *kinds: int) -> list[Got]:
        """What the server has sent since this was asked last; only those `kinds`, if any are named."""
        data = self._unread + bytes(self.sent)
        self.sent.clear()
        found = []
        while len(data) >= 9:
            size = int.from_bytes(data[:3], "big")
            if len(data) < 9 + size:
                break
            kind, flags, stream = data[3], data[4], int.from_bytes(data[5:9], "big")
            payload, data = data[9 : 9 + size], data[9 + size :]
            fields = None
            if kind == HEADERS:
                fields = {str(name): str(value) for name, value in self._hpack.decode(payload)}
            if not kinds or kind in kinds:
                found.append(Got(kind, flags, stream, payload, fields))
        self._unread = data
        return found

    # the server's side

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closing, "written after close"
        self.sent += data

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.write(data)

    def get_write_buffer_size(self) -> int:
        return self.stuck_bytes

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.eof_sent = True

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        assert not self.paused
        self.paused = True

    def resume_reading(self) -> None:
        assert self.paused
        self.paused = False

    def reads(self) -> bool:
        """Whether the server takes bytes now. (A method: type checkers believe that attributes stay as they were.)"""
        return not self.paused

    def cut_off(self) -> bool:
        return self.aborted

    def ended(self) -> bool:
        return self.closing or self.aborted or self.eof_sent

    def close(self) -> None:
        self.closing = True
        if not self.stuck_bytes:
            asyncio.get_running_loop().call_soon(self._lose, None)

    def abort(self) -> None:
        self.aborted = self.closing = True
        asyncio.get_running_loop().call_soon(self._lose, None)

    def _lose(self, error: Exception | None) -> None:
        if not self.lost:
            self.lost = self.closing = True
            self.connection.connection_lost(error)


class Bench:
    """A port without a socket, and its parts at hand. Needs a running loop."""

    def __init__(
        self,
        service: Service,
        *,
        limits: GrpcLimits | None = None,
        memory_bytes: int = 1 << 20,
        receive_bytes_max: int = 1 << 26,
        workers: Workers | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        self.clock = clock or ManualClock()
        self.wheel = HandWheel(self.clock)
        self.events = Events()
        self.budget = ByteBudget(memory_bytes)
        self.catalogue = OneModel()
        self.limits = limits or GrpcLimits()
        self.kit = GrpcKit(
            service=service,
            catalogue=self.catalogue,
            authenticator=AnyKey(),
            reader=HeaderReader(("*",), random.Random(1)),
            explainer=Explainer(1),
            budget=self.budget,
            observer=self.events,
            limits=self.limits,
            receive_bytes_max=receive_bytes_max,
            chance=random.Random(2),
            clock=self.clock,
            workers=workers,
        )
        self.port = GrpcPort(self.kit, wheel=self.wheel)
        self._clients: list[HandClient] = []

    def connect(self) -> HandClient:
        connection = GrpcConnection(self.port)
        client = HandClient(connection)
        self._clients.append(client)
        connection.connection_made(client)
        return client

    def advance(self, seconds: float) -> None:
        """Move the clock in small steps, and fire what becomes due."""
        while seconds > 1e-9:
            step = min(seconds, 0.1)
            self.clock.advance(step)
            self.wheel.turn()
            seconds -= step

    def forget_clients(self) -> None:
        """A transport keeps its protocol; those of real sockets let go of it."""
        self._clients.clear()

    async def nothing_is_left(self) -> None:
        """After all clients have left: no call, no task, no byte, no timer."""
        for client in self._clients:
            if not client.lost:
                client.leave()
        await turns()
        statistics = self.port.statistics(0.0)
        assert statistics["calls"] == statistics["connections"] == 0
        assert not self.port.tasks
        assert not self.port.streams
        assert self.budget.used_bytes == 0
        assert len(self.wheel) == 0
