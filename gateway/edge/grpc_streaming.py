"""A client's ModelStreamInfer over our own HTTP/2: the port that `ClientStream` reads and writes, and its task.

*In*: messages wait for their reader in the stream's window, all of them reserved in the memory for bodies. The window
is returned as messages are taken. One that is larger than half of it gets room of its own, when none waits in front of
it: so a client that is not read from fills its window and one large message at the most.

*Out*: the writer waits while more than the codec's high-water mark is queued on the stream, or while the client takes
nothing from the connection.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque

from gateway.core.errors import GatewayError, Reason
from gateway.edge.grpc_answers import Pairs, refused, stream_opened
from gateway.edge.grpc_blocks import OPENING, bad_end, error_alone, good_end, pairs_block
from gateway.edge.grpc_inflate import inflate
from gateway.edge.grpc_intake import Intake, Piece
from gateway.edge.grpc_rpc import JOIN_BYTES_MAX, OVER, WORK, Rpc
from gateway.edge.grpc_stream import ClientStream
from gateway.edge.grpc_stream_kit import Unkept
from gateway.edge.headers import ClientHeaders
from gateway.runtime.wheel import Timer
from gateway.wire.content_coding import IDENTITY
from gateway.wire.grpc.errors import GrpcFault, MessageTooLarge
from gateway.wire.grpc.framing import PREFIX_BYTES, message_prefix

EXPIRED = "Deadline Exceeded"
"""The words of gRPC's own library."""


class ServerStream:
    """One stream: a `StreamPort` for its `ClientStream`, and the `Part` of its RPC that takes the frames."""

    __slots__ = (
        "_connection",
        "_cut",
        "_ended",
        "_expired",
        "_fault",
        "_headers_sent",
        "_intake",
        "_left",
        "_loan",
        "_queue",
        "_reader",
        "_rpc",
        "_started",
        "_stream",
        "_task",
        "_timer",
        "_writer",
    )

    def __init__(self, rpc: Rpc) -> None:
        connection = rpc.connection
        kit, head = connection.kit, rpc.head
        self._rpc = rpc
        self._connection = connection
        self._intake = Intake(
            kit.message_bytes_max, kit.budget, self._message_begun, keep_heads=head.encoding == IDENTITY
        )
        self._queue: deque[Piece | Unkept] = deque()
        self._loan = 0
        """Room that the message in work is to get when none waits in front of it."""
        self._ended = False
        self._left = False
        self._expired = False
        self._started = False
        self._headers_sent = False
        self._cut: GatewayError | None = None
        self._fault: GatewayError | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._timer: Timer | None = None
        self._task: asyncio.Task[None] | None = None
        deadline_s = math.inf if head.rpc_timeout_s is None else rpc.arrived_s + head.rpc_timeout_s
        self._stream: ClientStream | None = ClientStream(
            kit.streams, self, with_id(head.headers, rpc.request_id), deadline_s, true_status=head.true_status
        )
        if deadline_s != math.inf:
            self._timer = connection.port.wheel.call_at(deadline_s, self._expire)

    @classmethod
    def open(cls, rpc: Rpc) -> None:
        """Serve the stream that `rpc` asks for, or refuse it."""
        connection = rpc.connection
        rpc.phase = WORK
        try:
            connection.kit.check_stream(rpc.head.headers, draining=connection.port.draining)
        except GatewayError as error:
            rpc.refuse(error, counted=True)
            return
        rpc.part = served = cls(rpc)
        served._task = task = connection.loop.create_task(served._serve(), name="stream")
        connection.port.tasks[task] = rpc
        if served._stream is not None:
            connection.port.streams[served._stream] = None
        task.add_done_callback(served._over)

    # ---------------------------------------------------------- the RPC's part

    def data(self, data: bytes, start: int, stop: int) -> None:
        if self._rpc.phase == OVER or self._fault is not None or self._ended:
            return
        intake = self._intake
        self._queue.extend(intake.feed(data, start, stop))
        if intake.passed_bytes:
            passed, intake.passed_bytes = intake.passed_bytes, 0
            self._connection.codec.acknowledge(self._rpc, passed)
        self._took_in()

    def ended(self) -> None:
        if self._fault is None:
            self._intake.end()
        self._ended = True
        self._took_in()

    def left(self) -> None:
        self._left = True
        if self._task is not None:
            self._task.cancel()
        _wake(self._writer)
        self._intake.close()
        self._queue_dropped()

    def writable(self) -> None:
        _wake(self._writer)

    def cut(self, error: GatewayError) -> None:
        if error.reason is Reason.DRAINING:
            self._cut = error
            if self._stream is not None:
                self._stream.cut(error)
        elif self._fault is None:
            self._fault = error  # the reader finds it, and ends the stream with it
            self._queue_dropped()
            _wake(self._reader)

    def _took_in(self) -> None:
        fault = self._intake.fault
        if fault is not None and self._fault is None:
            self._fault = _told(fault)
            kind = "too_large" if isinstance(fault, MessageTooLarge) else "malformed"
            self._connection.kit.observer.protocol_fault("grpc", kind)
        awaiting = self._connection.awaiting
        awaiting.pop(self._rpc, None)
        if self._fault is None and not self._ended and not self._queue and not self._intake.idle:
            awaiting[self._rpc] = self._connection.now_s  # the client is in the middle of a message
        self._lend()
        _wake(self._reader)

    def _message_begun(self, length: int) -> None:
        if (length + PREFIX_BYTES) * 2 > self._connection.window_bytes:
            self._loan = length + PREFIX_BYTES

    def _lend(self) -> None:
        if self._loan and not self._queue:
            if not self._intake.idle:
                self._connection.codec.grow_window(self._rpc, self._loan)
            self._loan = 0

    # ----------------------------------------------------------- `StreamPort`

    async def read(self) -> bytes | Unkept | None:
        while not self._queue:
            if self._fault is not None:
                raise self._fault
            if self._ended:
                return None
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        piece = self._queue.popleft()
        codec, kit = self._connection.codec, self._connection.kit
        if isinstance(piece, Unkept):
            codec.acknowledge(self._rpc, PREFIX_BYTES)
            self._lend()
            return piece
        codec.acknowledge(self._rpc, PREFIX_BYTES + len(piece.message))
        self._lend()
        message, reserved = piece.message, piece.reserved
        if piece.compressed:
            del piece
            try:
                message = await inflate(kit, self._rpc.head.encoding, message)
            finally:
                kit.budget.release(reserved)
            reserved = len(message)
        kit.budget.release(reserved)
        return message

    async def send_headers(self, pairs: Pairs) -> None:
        self._headers_sent = True
        self._connection.codec.send_headers(self._rpc, OPENING + pairs_block(stream_opened(pairs)), False)

    async def write(self, message: bytes) -> None:
        connection, size = self._connection, len(message)
        limit = connection.kit.limits.message_bytes_max
        if size > limit:
            raise GatewayError(Reason.ANSWER_TOO_LARGE, f"SERVER: Sent message larger than max ({size} vs. {limit})")
        while connection.write_paused and not self._left:
            await connection.writable()
        if self._left:
            raise ConnectionResetError("the client left")
        codec, rpc = connection.codec, self._rpc
        if size <= JOIN_BYTES_MAX:
            roomy = codec.send_data(rpc, message_prefix(size) + message, False)
        else:
            codec.send_data(rpc, message_prefix(size), False)
            roomy = codec.send_data(rpc, message, False)
        connection.written(rpc)
        if not roomy:
            self._writer = connection.loop.create_future()
            try:
                await self._writer
            finally:
                self._writer = None

    # --------------------------------------------------------------- the task

    async def _serve(self) -> None:
        rpc, stream = self._rpc, self._stream
        assert stream is not None
        self._started = True
        error: GatewayError | None = None
        try:
            await stream.run()
        except GatewayError as raised:
            error = raised
        except asyncio.CancelledError as raised:
            if self._expired:
                error = GatewayError(Reason.DEADLINE, EXPIRED)
            elif not self._left:
                error = self._rpc.internal(raised)
        except BaseException as raised:
            error = self._rpc.internal(raised)
        finally:
            try:
                if rpc.phase != OVER:
                    self._end_with(error)
                error = None  # it holds its traceback, which holds this frame
            finally:
                self._close()

    def _end_with(self, error: GatewayError | None) -> None:
        rpc = self._rpc
        if error is not None:
            trailing = refused(rpc.request_id, error, self._connection.kit.chance)
            make = bad_end if self._headers_sent else error_alone
            rpc.end_with(make(error.code, error.message, trailing))
        elif self._headers_sent:
            rpc.end_with(good_end())
        else:
            rpc.end_with(OPENING + good_end())

    def _over(self, task: asyncio.Task[None]) -> None:
        self._connection.port.tasks.pop(task, None)
        if self._stream is not None:
            self._connection.port.streams.pop(self._stream, None)
            self._stream = None  # it knows this port: a circle
        self._task = None
        if not self._started:
            if self._rpc.phase != OVER:
                self._end_with(self._cut or self._rpc.internal(asyncio.CancelledError("before the stream had begun")))
            self._close()

    def _expire(self) -> None:
        if self._task is not None:
            self._expired = True
            self._task.cancel()

    def _close(self) -> None:
        """Free what was never read, and break the circles."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._connection.awaiting.pop(self._rpc, None)
        self._intake.close()
        self._queue_dropped()
        self._ended = True
        self._rpc.part = None

    def _queue_dropped(self) -> None:
        for piece in self._queue:
            if isinstance(piece, Piece):
                self._connection.kit.budget.release(piece.reserved)
        self._queue.clear()


def with_id(headers: ClientHeaders, request_id: str) -> ClientHeaders:
    """The headers of one RPC, of those that several share."""
    return ClientHeaders(
        request_id,
        headers.timeout_s,
        headers.credentials,
        headers.explain,
        headers.metadata,
        headers.priority,
        headers.dropped,
        headers.fault,
    )


def _told(fault: GrpcFault) -> GatewayError:
    if isinstance(fault, MessageTooLarge):
        return GatewayError(Reason.TOO_LARGE, f"SERVER: {fault.text}")
    return GatewayError(Reason.BAD_REQUEST, fault.text, fault.code)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
