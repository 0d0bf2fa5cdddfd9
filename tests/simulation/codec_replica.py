"""A simulated replica's gRPC server: bytes of the gateway's connections to the in-memory Triton, and back.

What happens to the process happens to its connections: one that is frozen reads and says nothing while its kernel goes
on taking bytes, one that dies resets them, one that is told to stop says GOAWAY (at once for good, or in two steps, as
gRPC does) or goes on to answer in its own words until it ends.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from tritonclient.grpc import service_pb2 as pb

from gateway.core.codes import Code
from gateway.core.faults import UpstreamFault
from tests.simulation import descriptions
from tests.simulation.batcher import Request, fault
from tests.simulation.grpc_bytes import SERVICE, Deframer, end_fields, framed, timeout_s
from tests.simulation.http2_end import CANCEL, ENHANCE_YOUR_CALM, ID_MAX, INTERNAL_ERROR, EndStream, Fields, Http2End
from tests.simulation.http2_end import Manners as Manners
from tests.simulation.intake import STOPPING, ServerStream
from tests.simulation.states import Process
from tests.simulation.triton import Triton

if TYPE_CHECKING:
    from tests.simulation.codec_network import CodecWays

STREAM_NUMBER = b"x-simulated-stream"
"""Metadata by which the simulation knows which of the gateway's streams this is."""
EXITING = "Server exiting"
INFER, STREAM_INFER = SERVICE + b"ModelInfer", SERVICE + b"ModelStreamInfer"
HEAD: Fields = [(b":status", b"200"), (b"content-type", b"application/grpc")]


def replica_manners(chance: random.Random) -> Manners:
    """Of one connection's server."""
    return Manners(
        window=chance.choice((65_535, 65_535, 4 << 20, 700, 60)),
        next_window=chance.choice((None, None, None, 65_535, 300)),
        table=chance.choice((4096, 4096, 0, 100)),
        streams_max=chance.choice((None, 100, 100, 3, 1)),
        frame_max=chance.choice((16_384, 16_384, 64)),
        block_max=chance.choice((16_384, 16_384, 16_384, 24)),
        huffman=chance.random() < 0.5,
        padding=chance.choice((0, 0, 0, 7)),
    )


class ReplicaConnection(Http2End):
    """The replica's end of one connection."""

    def __init__(self, ways: CodecWays, address: str, machine: Triton) -> None:
        chance = ways.chance
        self.ways = ways
        self.address = address
        self.machine = machine
        self.compresses = chance.random() < 0.15
        self._at_stop = chance.choice(("words", "words", "goaway", "two goaways"))
        self._leaving = False
        super().__init__(ways.network.loop, replica_manners(chance), self._is_wrong, lambda: ReplicaCall(self))
        machine.on_death.append(self._died)
        machine.on_stop.append(self._stops)

    def _is_wrong(self, text: str) -> None:
        self.ways.wrong(f"{self.address}: {text}")

    # A frozen process does nothing of this before it thaws.

    def begin(self) -> None:
        self.machine.arrive(super().begin)

    def data_received(self, data: bytes) -> None:
        self.machine.arrive(lambda: self._read(data))

    def _read(self, data: bytes) -> None:
        if not self.over:
            super().data_received(data)

    def eof_received(self) -> bool:
        self.machine.arrive(self._heard_end)
        return True

    def _heard_end(self) -> None:
        self.lose("the gateway closed the connection")
        self._close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._heard_loss()
        for heard, hear in ((self.machine.on_death, self._died), (self.machine.on_stop, self._stops)):
            if hear in heard:
                heard.remove(hear)

    def cut_off(self) -> None:
        """Something on the way resets the connection."""
        self._heard_loss()
        if self.transport is not None:
            self.transport.abort()

    def _heard_loss(self) -> None:
        self.machine.arrive(lambda: self.lose("the connection is lost"))

    # The process.

    def _died(self) -> None:
        transport = self.transport
        if self.machine.ended_in_order:
            self.say_goaway(None)
            self.flush()
            self.lose("the server has ended")
            self._close()
        else:
            self.lose("the server was killed")
            if transport is not None:
                transport.abort()

    def _stops(self) -> None:
        if self._at_stop == "goaway":
            self._leave()
        elif self._at_stop == "two goaways":
            self.say_goaway(ID_MAX)
            self.ping(lambda: self.machine.arrive(self._leave))

    def _leave(self) -> None:
        if not self.over and not self._leaving:
            self._leaving = True
            self.say_goaway(None)
            self.on_idle()

    def on_idle(self) -> None:
        if self._leaving and not self.streams and not self.over:
            self.flush()
            self.lose("the server is leaving")
            self._close()

    def _close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    @property
    def end_offset(self) -> int:
        """Where in all that this end writes its output so far ends."""
        return 0 if self.transport is None else self.transport.written_bytes + len(self._out)


class ReplicaCall(EndStream):
    """One RPC inside the server."""

    __slots__ = ("_connection", "_deframer", "_done", "_path", "_request", "_said_head", "_told_s", "message", "stream")

    def __init__(self, connection: ReplicaConnection) -> None:
        super().__init__()
        self._connection = connection
        self._deframer = Deframer()
        self._path = b""
        self._request: Request | None = None
        self._said_head = False
        self._told_s = math.inf
        self._done = False
        self.message: bytes | None = None
        """Of an RPC that has one."""
        self.stream: ServerStream | None = None
        """Of a ModelStreamInfer."""

    # What comes.

    def on_headers(self, fields: Fields, end: bool) -> None:
        connection, found = self._connection, dict(fields)
        self._check(found)
        self._path = found.get(b":path", b"")
        if b"grpc-timeout" in found:
            self._told_s = timeout_s(found[b"grpc-timeout"])
            connection.machine.after(self._told_s, self._late)
        if self._path == STREAM_INFER:
            number = int(found[STREAM_NUMBER])
            if not connection.machine.listening:
                self.fail(fault(Code.UNAVAILABLE, STOPPING))
                return
            tell = connection.ways.stream_reached(number, self)
            self.stream = ServerStream(connection.machine, lambda message, over: self._say(message, over, tell))
        if end:
            self._said_all()

    def _check(self, found: dict[bytes, bytes]) -> None:
        wanted = {
            b":method": b"POST",
            b":scheme": b"http",
            b":authority": self._connection.address.encode(),
            b"te": b"trailers",
            b"content-type": b"application/grpc",
        }
        for name, value in wanted.items():
            if found.get(name) != value:
                self._connection.ways.wrong(f"a request to a replica has {name!r} {found.get(name)!r}")

    def on_data(self, data: bytes, end: bool) -> None:
        connection = self._connection
        if self._done:
            return
        for message in self._deframer.feed(data):
            if self.stream is not None:
                self.stream.take(message)
            elif self.message is not None:
                connection.ways.wrong("a second message came on a unary call")
            else:
                self.message = message
        connection.take(self, len(data))
        if end:
            self._said_all()

    def _said_all(self) -> None:
        if not self._deframer.idle:
            self._connection.ways.wrong("a request ended inside a message")
        if self.stream is not None:
            self.stream.half_close(self._end_well)
        elif self.message is None:
            self._connection.ways.wrong("a request without a message")
        elif not self._done:
            self._begin(self.message)

    def on_reset(self, code: int | None, text: str) -> None:
        if code is not None and code not in (0, CANCEL):
            self._connection.ways.wrong(f"a call to a replica was reset with code {code}")
        if code == CANCEL and self._path == INFER and self.message is not None and b"call-" in self.message:
            self._connection.ways.network.on_cancel(self._connection.address)
        self._give_up()

    def _give_up(self) -> None:
        """Nobody waits for it any more."""
        if not self._done:
            self._done = True
            if self._request is not None:
                self._connection.machine.cancel(self._request)
            if self.stream is not None:
                self.stream.cancel()

    def _late(self) -> None:
        """What gRPC's server does when the caller's time is over."""
        if not self._done:
            self._give_up()
            self._fail(fault(Code.DEADLINE_EXCEEDED, "Deadline Exceeded"))

    def cut(self, orderly: bool) -> None:
        """Something between here and the gateway ends it, or resets the whole connection."""
        if self._done:
            return
        if not orderly and self._connection.ways.chance.random() < 0.5:
            self._connection.cut_off()
            return
        self._done = True
        if self.stream is not None:
            self._connection.machine.arrive(self.stream.cancel)
        if orderly:
            self._end_well_now()
        else:
            self._connection.reset(
                self, self._connection.ways.chance.choice((INTERNAL_ERROR, CANCEL, ENHANCE_YOUR_CALM))
            )

    # What is done.

    def _begin(self, message: bytes) -> None:
        machine = self._connection.machine
        if self._path == INFER:
            self._connection.ways.network.on_told(self._connection.address, message, self._told_s)
            if machine.process is Process.UP:
                self._request = machine.infer(message, self._answered)
            else:
                self.fail(fault(Code.UNAVAILABLE, STOPPING))
            return
        question = QUESTIONS.get(self._path.removeprefix(SERVICE))
        if question is None:
            self._connection.ways.wrong(f"a replica is asked for {self._path!r}")
        elif machine.process is not Process.UP:
            self.fail(fault(Code.UNAVAILABLE, EXITING))
        else:
            try:
                answer = question(machine, message)
            except UpstreamFault as raised:
                self.fail(raised)
            else:
                self._answer(answer)

    def _answered(self, result: bytes | UpstreamFault) -> None:
        if isinstance(result, UpstreamFault):
            self.fail(result)
        else:
            self._answer(result)

    # What is said.

    def _head(self) -> None:
        if not self._said_head:
            self._said_head = True
            fields = [*HEAD, (b"grpc-encoding", b"gzip")] if self._connection.compresses else list(HEAD)
            self._connection.send_headers(self, fields, False)

    def _answer(self, message: bytes) -> None:
        if not self._done:
            self._head()
            self._connection.send_data(self, framed(message, compressed=self._connection.compresses), False)
            self._end_well()

    def _say(self, message: bytes, over: int, tell: Callable[[int], None]) -> None:
        if not self._done:
            self._head()
            tell(over)
            self._connection.send_data(self, framed(message, compressed=self._connection.compresses), False)

    def _end_well(self) -> None:
        if not self._done:
            self._done = True
            self._end_well_now()

    def _end_well_now(self) -> None:
        self._head()
        self._connection.send_headers(self, end_fields(Code.OK, ""), True)
        self._told()

    def fail(self, raised: UpstreamFault) -> None:
        if not self._done:
            self._done = True
            self._fail(raised)

    def _fail(self, raised: UpstreamFault) -> None:
        fields = end_fields(raised.code, raised.text)
        self._connection.send_headers(self, fields if self._said_head else [*HEAD, *fields], True)
        self._told()

    def _told(self) -> None:
        """The last word is written, unless windows hold it up."""
        if self.message is not None and self.sent_end and self._path == INFER:
            self._connection.ways.told(self._connection, self.message)


def _live(machine: Triton, message: bytes) -> bytes:
    return bytes(pb.ServerLiveResponse(live=True).SerializeToString())


def _ready(machine: Triton, message: bytes) -> bytes:
    return bytes(pb.ServerReadyResponse(ready=machine.server_ready()).SerializeToString())


def _server_metadata(machine: Triton, message: bytes) -> bytes:
    extensions = ["classification", "sequence", "model_repository", "system_shared_memory", "cuda_shared_memory"]
    return bytes(pb.ServerMetadataResponse(name="triton", version="2.51.0", extensions=extensions).SerializeToString())


def _index(machine: Triton, message: bytes) -> bytes:
    answer = pb.RepositoryIndexResponse()
    for entry in descriptions.index(machine):
        answer.models.add(name=entry.name, version=entry.version, state=entry.state, reason=entry.reason)
    return bytes(answer.SerializeToString())


def _statistics(machine: Triton, message: bytes) -> bytes:
    asked = pb.ModelStatisticsRequest.FromString(message)
    return machine.statistics(asked.name, asked.version)


def _model_ready(machine: Triton, message: bytes) -> bytes:
    asked = pb.ModelReadyRequest.FromString(message)
    ready = not isinstance(machine.find(asked.name, asked.version), UpstreamFault)
    return bytes(pb.ModelReadyResponse(ready=ready).SerializeToString())


def _metadata(machine: Triton, message: bytes) -> bytes:
    asked = pb.ModelMetadataRequest.FromString(message)
    return descriptions.metadata(machine, asked.name, asked.version)


def _config(machine: Triton, message: bytes) -> bytes:
    asked = pb.ModelConfigRequest.FromString(message)
    return descriptions.config(machine, asked.name, asked.version).proto


QUESTIONS: dict[bytes, Callable[[Triton, bytes], bytes]] = {
    b"ServerLive": _live,
    b"ServerReady": _ready,
    b"ServerMetadata": _server_metadata,
    b"RepositoryIndex": _index,
    b"ModelStatistics": _statistics,
    b"ModelReady": _model_ready,
    b"ModelMetadata": _metadata,
    b"ModelConfig": _config,
}
