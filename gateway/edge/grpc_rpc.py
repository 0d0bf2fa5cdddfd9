"""One RPC over our own HTTP/2: from its head to what answers it.

What needs no model server is answered at once. An inference and a question to the model servers get a task each
(`grpc_unary`), a stream of inferences a task and a port (`grpc_streaming`). Whatever happens, an RPC gets one answer,
or its client has left.
"""

from __future__ import annotations

import logging
import struct
from typing import TYPE_CHECKING, Protocol

from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason
from gateway.edge.grpc_answers import refused
from gateway.edge.grpc_blocks import OPENING, error_alone, good_end, not_grpc, request_id_block
from gateway.edge.grpc_call import expired
from gateway.edge.grpc_intake import Intake, Piece
from gateway.edge.grpc_kit import least
from gateway.edge.grpc_methods import REFUSED, SERVICE
from gateway.edge.grpc_rpc_head import CALL, CONTROL, STREAM, UNSERVED, RpcHead
from gateway.edge.grpc_stream_kit import Unkept
from gateway.edge.status import internal_error
from gateway.runtime.wheel import Timer
from gateway.wire.content_coding import IDENTITY
from gateway.wire.grpc.errors import GrpcFault, MessageTooLarge
from gateway.wire.grpc.framing import message_prefix
from gateway.wire.hpack import HeaderBlock
from gateway.wire.http2 import Stream
from gateway.wire.http2.stream import QUEUED

if TYPE_CHECKING:
    from gateway.edge.grpc_connection import GrpcConnection

_log = logging.getLogger("sluice.edge.grpc")

JOIN_BYTES_MAX = 64 * 1024
"""A message up to this size is put into one piece with its prefix; a larger one is not copied."""
TOO_MANY = "Concurrent RPC limit exceeded!"
"""The words of gRPC's own library."""

NEW, MESSAGE, WORK, OVER = range(4)
"""Phases: no head yet; the request's message is waited for; the answer is made; it was given or the client left."""

_PREFIX = struct.Struct(">BI")
_prefix_at, _pack_prefix = _PREFIX.unpack_from, _PREFIX.pack


class Part(Protocol):
    """What takes over the frames of an RPC that is more than a message and its answer."""

    def data(self, data: bytes, start: int, stop: int) -> None: ...

    def ended(self) -> None:
        """The client has said its last."""
        ...

    def left(self) -> None:
        """The client is gone, or was cut off."""
        ...

    def writable(self) -> None: ...

    def cut(self, error: GatewayError) -> None:
        """The gateway stops."""
        ...


class Rpc(Stream):
    """The stream that the codec calls, and all of an RPC but its work, which who derives from it does."""

    __slots__ = ("arrived_s", "connection", "head", "intake", "late", "part", "phase", "request_id", "reserved")

    def __init__(self, connection: GrpcConnection) -> None:
        self.connection = connection
        self.arrived_s = connection.now_s
        """When its head came: its time limit counts from here."""
        self.phase = NEW
        self.head: RpcHead
        self.request_id: str
        self.intake: Intake | None = None
        self.late: Timer | None = None
        """Ends the wait for a message that did not come with the head."""
        self.reserved = 0
        """Of the budget, for the request's message."""
        self.part: Part | None = None
        """The stream that this RPC is; None for all that has one message."""

    # ------------------------------------------------- the codec's callbacks

    def on_headers(self, block: HeaderBlock, end: bool) -> None:
        connection = self.connection
        note = block.note
        head = note if isinstance(note, RpcHead) else connection.heads.read(block)
        self.head = head
        self.request_id = head.headers.request_id if head.named else connection.kit.reader.new_request_id()
        if not connection.port.admit(self):
            self.refuse(GatewayError(Reason.QUEUE_FULL, TOO_MANY, retry_after_s=1.0))
        elif head.fault is not None or head.kind == UNSERVED:
            self.phase = WORK
            self._begin(b"")
        elif head.kind == STREAM:
            try:
                self.open_stream()
            except Exception as raised:
                self._broken(raised)
            if end:
                self._request_ended()
        else:
            self.phase = MESSAGE
            connection.awaiting[self] = self.arrived_s
            if end:
                self._request_ended()

    def on_data(self, data: bytes, start: int, stop: int, end: bool) -> None:
        if self.phase == MESSAGE and self.intake is None:
            body = start + 5
            if body <= stop:
                flag, length = _prefix_at(data, start)
                connection = self.connection
                # The usual case: one message, whole, plain, and there is memory for it.
                if (
                    length == stop - body
                    and not flag
                    and length <= connection.kit.message_bytes_max
                    and connection.kit.budget.try_reserve(length)
                ):
                    self.reserved = length
                    self.phase = WORK
                    del connection.awaiting[self]
                    if self.late is not None:
                        self._in_time()
                    self._begin(data[body:stop])
                    return
        self._more(data, start, stop)
        if end:
            self._request_ended()

    def place(self, size: int) -> memoryview | None:
        return None if self.intake is None else self.intake.place(size)

    def on_placed(self, size: int) -> None:
        connection, intake = self.connection, self.intake
        assert intake is not None
        del connection.awaiting[self]
        connection.awaiting[self] = connection.now_s
        intake.placed(size)

    def on_trailers(self, block: HeaderBlock) -> None:
        self._request_ended()

    def on_head_too_large(self, end: bool) -> bool:
        connection = self.connection
        self.request_id = connection.kit.reader.new_request_id()
        limit = connection.kit.limits.header_list_bytes_max
        connection.kit.observer.protocol_fault("grpc", "too_large")
        connection.kit.observer.request_without_call("grpc", "", Code.RESOURCE_EXHAUSTED.name)
        connection.port.admit(self)
        error = GatewayError(Reason.TOO_LARGE, f"the metadata of this call is over the limit of {limit} bytes")
        self.refuse(error, counted=True)
        return True

    def on_reset(self, code: int, text: str, from_peer: bool, unprocessed: bool) -> None:
        part, works = self.part, self.phase == WORK
        self.close()
        self.connection.forget(self)
        if part is not None:
            part.left()
        elif works:
            self.caller_left()
        else:
            self.release()

    def cut_off(self) -> None:
        """The client took nothing of the answer for too long, and the stream is reset."""
        part = self.part
        self.close()
        if part is not None:
            part.left()

    def on_writable(self) -> None:
        if self.part is not None:
            self.part.writable()

    # ------------------------------------------------------------ the request

    def _more(self, data: bytes, start: int, stop: int) -> None:
        """Part of a message, or of several."""
        if self.part is not None:
            self.part.data(data, start, stop)
            return
        if self.phase != MESSAGE:
            return  # behind the one message: of no meaning, and gone with the stream
        connection, intake = self.connection, self.intake
        if intake is None:
            kit = connection.kit
            intake = self.intake = Intake(
                kit.message_bytes_max, kit.budget, self._message_begun, keep_heads=self.head.encoding == IDENTITY
            )
        del connection.awaiting[self]
        connection.awaiting[self] = connection.now_s
        pieces = intake.feed(data, start, stop)
        if pieces:
            first = pieces[0]
            for piece in pieces[1:]:
                if isinstance(piece, Piece):
                    connection.kit.budget.release(piece.reserved)
            self._message_is_there()
            if isinstance(first, Unkept):
                self.begin_unkept(first)
                return
            self.reserved = first.reserved
            if first.compressed:
                self.begin_compressed(first.message)
            else:
                self._begin(first.message)
        elif intake.fault is not None:
            self.refuse_fault(intake.fault)

    def _message_begun(self, length: int) -> None:
        """There is memory for it: let all of it come at once."""
        over = length + 5 - self.connection.window_bytes
        if over > 0:
            self.connection.codec.grow_window(self, over)

    def _message_is_there(self) -> None:
        self.phase = WORK
        del self.connection.awaiting[self]
        if self.late is not None:
            self._in_time()
        if self.intake is not None:
            self.intake.close()
            self.intake = None

    def _request_ended(self) -> None:
        if self.part is not None:
            self.part.ended()
        elif self.phase == MESSAGE:
            text = "the request has no message"
            if self.intake is not None and not self.intake.idle:
                text = "the request ended inside a message"
            self.refuse_fault(GrpcFault(Code.INTERNAL, text))

    def _begin(self, message: bytes) -> None:
        """The message is there. How many RPCs of one connection may begin in one turn has a bound."""
        if self.connection.may_begin():
            self.begin(message)
        else:
            self.connection.defer(self, message)

    def begin(self, message: bytes) -> None:
        """Begin the work. A fault of ours in it is one RPC's, and not its connection's with all the others."""
        head = self.head
        kind = head.kind
        try:
            if head.fault is not None:
                self._refuse_head(head.fault, head.status)
            elif kind == CALL:
                self.begin_call(message)
            elif kind == CONTROL:
                self._answer(message)
            elif kind == UNSERVED:
                name = head.method.removeprefix(SERVICE) or "other"
                self.refuse(self.connection.kit.desk.refuse(name, REFUSED.get(head.method, "")), counted=True)
            else:
                self.ask(message)
        except Exception as raised:
            self._broken(raised)

    def slow(self, timeout_ms: int) -> None:
        """The client has sent nothing of its message for so long."""
        self.connection.kit.observer.protocol_fault("grpc", "slow_body")
        error = GatewayError(Reason.SLOW_BODY, f"no part of the message arrived for {timeout_ms} ms")
        if self.part is not None:
            self.part.cut(error)
        else:
            self.refuse(error)

    def watch_message(self) -> None:
        """The message did not come with the head: see to it that the wait has an end, whatever comes in between."""
        if self.phase == MESSAGE and self.late is None:
            wait_s = least(self.head.timeout_s, self.connection.kit.limits.message_timeout_ms / 1000)
            assert wait_s is not None
            self.late = self.connection.port.wheel.call_at(self.arrived_s + wait_s, self._late)

    def _in_time(self) -> None:
        """Nothing is waited for any more."""
        assert self.late is not None
        self.late.cancel()
        self.late = None

    def _late(self) -> None:
        """The message has not come, or not all of it."""
        self.late = None
        limit_ms = self.connection.kit.limits.message_timeout_ms
        timeout_s = self.head.timeout_s
        if timeout_s is not None and timeout_s * 1000 <= limit_ms:
            self.refuse(expired(timeout_s))
            return
        self.connection.kit.observer.protocol_fault("grpc", "slow_body")
        self.refuse(GatewayError(Reason.SLOW_BODY, f"the message did not arrive within {limit_ms} ms"))

    def left_s(self) -> float | None:
        """How long the caller still waits; None: it did not say. Raises `GatewayError` if that is over."""
        timeout_s = self.head.timeout_s
        if timeout_s is None:
            return None
        left_s = self.arrived_s + timeout_s - self.connection.kit.clock.now_s()
        if left_s <= 0:
            raise expired(timeout_s)
        return left_s

    # --------------------------------------------------------------- the work

    def begin_call(self, message: bytes) -> None:
        raise NotImplementedError

    def begin_unkept(self, unkept: Unkept) -> None:
        raise NotImplementedError

    def begin_compressed(self, payload: bytes) -> None:
        raise NotImplementedError

    def ask(self, message: bytes) -> None:
        raise NotImplementedError

    def open_stream(self) -> None:
        raise NotImplementedError

    def caller_left(self) -> None:
        """While the answer was being made."""
        raise NotImplementedError

    def cut(self, error: GatewayError) -> None:
        """End it with `error`, because the gateway stops. No work on it has begun."""
        if self.part is not None:
            self.part.cut(error)
        elif self.phase != OVER:
            self.refuse(error)

    # ------------------------------------------------------------- the answer

    def _answer(self, message: bytes) -> None:
        """A question that is answered from what is known."""
        desk, head = self.connection.kit.desk, self.head
        try:
            with desk.counting(head.method):
                self.left_s()
                answer = desk.answer(head.method, message, head.headers)
        except GatewayError as error:
            self.refuse(error, counted=True)
        else:
            self.answer(OPENING + request_id_block(self.request_id), answer, good_end())

    def answer(self, head: bytes, message: bytes, tail: bytes) -> None:
        """A good answer, whole."""
        codec, size = self.connection.codec, len(message)
        if size <= JOIN_BYTES_MAX:
            codec.send_message(self, head, _pack_prefix(0, size) + message, tail)
        else:
            codec.send_headers(self, head, False)
            codec.send_data(self, message_prefix(size), False)
            codec.send_data(self, message, False)
            codec.send_headers(self, tail, True)
        self._answered()

    def refuse(self, error: GatewayError, *, counted: bool = False) -> None:
        """The answer to what is no call: `error` alone. Not `counted`: it is counted here."""
        if not counted:
            self.connection.kit.observer.request_without_call("grpc", self._route(), error.code.name)
        self.end_with(
            error_alone(error.code, error.message, refused(self.request_id, error, self.connection.kit.chance))
        )

    def refuse_fault(self, fault: GrpcFault) -> None:
        """The client broke gRPC's rules."""
        text = f"SERVER: {fault.text}" if isinstance(fault, MessageTooLarge) else fault.text
        reason = Reason.TOO_LARGE if isinstance(fault, MessageTooLarge) else Reason.BAD_REQUEST
        kind = "too_large" if reason is Reason.TOO_LARGE else "malformed"
        self.connection.kit.observer.protocol_fault("grpc", kind)
        self.refuse(GatewayError(reason, text, fault.code))

    def end_with(self, block: bytes) -> None:
        """An answer that is one block, or the end of one that has begun."""
        self.connection.codec.send_headers(self, block, True)
        self._answered()

    def _broken(self, cause: Exception) -> None:
        error = self.internal(cause)
        if self.phase != OVER:
            self.refuse(error)

    def internal(self, cause: BaseException) -> GatewayError:
        """Note a fault of the gateway itself; what the caller is told of it."""
        self.connection.kit.observer.internal_fault("grpc")
        _log.error(
            "request %s: an internal fault ended it",
            self.request_id,
            exc_info=(type(cause), cause, cause.__traceback__),
        )
        return internal_error()

    def _refuse_head(self, error: GatewayError, status: int) -> None:
        self.connection.kit.observer.protocol_fault("grpc", "malformed")
        if not status:
            self.refuse(error)
            return
        self.connection.kit.observer.request_without_call("grpc", "", str(status))
        text = error.message.encode()
        self.connection.codec.send_headers(self, not_grpc(status, text), False)
        self.connection.codec.send_data(self, text, True)
        self._answered()

    def _route(self) -> str:
        return self.head.method.removeprefix(SERVICE)

    def _answered(self) -> None:
        if self.state & QUEUED:
            self.connection.written(self)
        self.close()
        if self.reserved:
            self.release()

    def close(self) -> None:
        """Nothing more of the request is wanted. What work still goes on ends by itself."""
        if self.phase == OVER:
            return
        connection = self.connection
        if self.phase == MESSAGE:
            connection.awaiting.pop(self, None)
            if self.late is not None:
                self._in_time()
        self.phase = OVER
        now_s = connection.kit.clock.now_s
        connection.active_s = now_s()
        if self.intake is not None:
            self.intake.close()
            self.intake = None
        connection.port.rpcs.pop(self, None)

    def release(self) -> None:
        """Give back the memory of the request's message."""
        if self.reserved:
            self.connection.kit.budget.release(self.reserved)
            self.reserved = 0
