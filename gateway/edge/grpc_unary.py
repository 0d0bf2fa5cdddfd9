"""The work of an RPC with one message and one answer: an inference, or a question to the model servers.

It is a task of its own from the moment its message is there. Whatever the service raises, even what no service should,
the caller gets exactly one answer in bounded time (field case FH-14). A client that leaves cancels the task; a
cancellation that comes from anywhere else is a fault of ours and is told as one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from gateway.core.call import Call
from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply
from gateway.edge.expiry import expires
from gateway.edge.grpc_answers import failed
from gateway.edge.grpc_blocks import OPENING, error_alone, good_end, request_id_block
from gateway.edge.grpc_call import grpc_call, no_memory, read_unkept, refusal
from gateway.edge.grpc_inflate import inflate
from gateway.edge.grpc_kit import too_late
from gateway.edge.grpc_rpc import OVER, Rpc
from gateway.edge.grpc_rpc_head import ASK, CALL
from gateway.edge.grpc_stream_kit import Unkept
from gateway.edge.grpc_streaming import ServerStream
from gateway.runtime.scope import DeadlinePassed, DeadlineScope

if TYPE_CHECKING:
    from gateway.edge.grpc_connection import GrpcConnection

_OK, _GATEWAY_FAULT = Outcome.OK, Outcome.GATEWAY_FAULT
"""A member of an enumeration is found by code in Python (3.11): 650 instructions; a name of the module is not."""


class ServedRpc(Rpc):
    """What the codec makes for each request."""

    __slots__ = ("_call", "_cut", "_started", "_task")

    def __init__(self, connection: GrpcConnection) -> None:
        Rpc.__init__(self, connection)  # `super` would look for it for each call
        self._call: Call | None = None
        self._cut: GatewayError | None = None
        self._started = False
        self._task: asyncio.Task[None] | None = None

    # ------------------------------------------------------------- its begin

    def begin_call(self, message: bytes) -> None:
        call = self._read(message)
        if call is not None:
            self._begin_task(self._run(call))

    def begin_unkept(self, unkept: Unkept) -> None:
        if self.head.kind != CALL:
            self.refuse(no_memory())
            return
        call = self._new_call(unkept.length)
        read_unkept(call, unkept.head)
        self._refuse_early(call)
        self._begin_task(self._run(call))

    def begin_compressed(self, payload: bytes) -> None:
        self._begin_task(self._inflate(payload))

    def ask(self, message: bytes) -> None:
        self._begin_task(self._ask(message))

    def open_stream(self) -> None:
        ServerStream.open(self)

    def _new_call(self, size: int) -> Call:
        head = self.head
        self._call = call = grpc_call(head.headers, size, self.connection.kit.clock, self.arrived_s, head.timeout_s)
        call.request_id = self.request_id
        return call

    def _read(self, message: bytes) -> Call | None:
        """The call; None if the bytes are no message: then that was told, and the RPC is over."""
        kit, head = self.connection.kit, self.head
        call = self._new_call(len(message))
        try:
            kit.calls.read(call, message)
        except GatewayError as error:
            # It never became a call: no model, no record, only this count.
            kit.observer.request_without_call("grpc", "ModelInfer", error.code.name)
            self._fail(call, error)
            return None
        if head.headers.fault is not None:
            self._refuse_early(call)
        return call

    def _refuse_early(self, call: Call) -> None:
        fault = self.head.headers.fault
        if fault is not None:
            call.message, call.receive = None, refusal(fault)

    def _begin_task(self, work: Coroutine[Any, Any, None]) -> None:
        connection = self.connection
        self._task = task = connection.loop.create_task(work, name="rpc")  # a number in it would cost as much as a call
        connection.port.tasks[task] = self
        task.add_done_callback(self._never_started)

    def _start(self) -> None:
        """The first step of the task. From here on it sees to its end itself: to be called back for that would cost a
        turn of the loop for each call.
        """
        self._started = True
        if self._task is not None:
            self._task.remove_done_callback(self._never_started)

    def _never_started(self, task: asyncio.Task[None]) -> None:
        """It was cancelled before its first step, and nothing of it has run, its `finally` included."""
        # The service never saw it, so there is no record: what leaves no record is counted.
        if self.phase != OVER:
            self.refuse(self._cut or self.internal(asyncio.CancelledError("before the work had begun")))
        else:
            self._count_left()
        self._end()

    # -------------------------------------------------------------- its work

    async def _run(self, call: Call) -> None:
        kit = self.connection.kit
        reply: Reply | None = None
        outcome = _GATEWAY_FAULT
        error: GatewayError | None = None
        if not self._started:
            self._start()
        try:
            reply = await kit.service.send(call)
            if self.connection.write_paused:
                await self._my_turn(call, reply)
            if self.phase == OVER:
                outcome = Outcome.ABANDONED if call.abandoned else Outcome.EXPIRED
            else:
                now_s = kit.clock.now_s
                if now_s() > call.deadline_s:
                    raise too_late()
                blocks = self.connection.port.blocks
                story = kit.story(call) if call.explain else ""
                head, tail, message = blocks.head(call), blocks.tail(call, story), reply.message
                if len(message) > kit.limits.message_bytes_max:
                    raise self._too_large_to_send(len(message))
                # First: a reply that cannot be closed in good order is a fault, and the caller is told so.
                closing, reply = reply, None
                await closing.aclose(_OK)
                self.answer(head, message, tail)
        except GatewayError as raised:
            error = raised
            if raised.reason is Reason.DEADLINE:
                outcome = Outcome.EXPIRED
        except asyncio.CancelledError as raised:
            if call.abandoned:
                outcome = Outcome.ABANDONED
            else:
                error = call.cut or self.internal(raised)
        except BaseException as raised:
            # Even KeyboardInterrupt and SystemExit: raised inside a call they are a fault of one call, and must not
            # take the loop with all the others down. The process is stopped by signals, in `app.py`.
            error = self.internal(raised)
        finally:
            try:
                if error is not None:
                    self._fail(call, error)
                    error = None  # it holds its traceback, which holds this frame
            finally:
                if reply is not None:
                    await self._close(reply, outcome)
                self._end()

    async def _my_turn(self, call: Call, reply: Reply) -> None:
        """Wait until the client takes what it is sent, for as long as the call may last. What waits for that is counted
        against the memory for bodies. Raises `GatewayError` if there is none, or the deadline passes.
        """
        connection, size = self.connection, len(reply.message)
        if not connection.kit.budget.try_reserve(size):
            # Whoever uses it up: the other calls of this connection have no part in it.
            raise no_memory()
        try:
            with DeadlineScope(connection.port.wheel, call.deadline_s):
                # Asked again after a cancellation that the service swallowed: there may be nobody to write to.
                while self.phase != OVER and connection.write_paused:
                    await connection.writable()
        except DeadlinePassed:
            raise too_late() from None
        finally:
            connection.kit.budget.release(size)

    async def _ask(self, message: bytes) -> None:
        if not self._started:
            self._start()
        desk, head = self.connection.kit.desk, self.head
        try:
            with desk.counting(head.method):
                answer = await desk.ask(head.method, message, head.headers, self.left_s())
            if self.phase != OVER:
                self.answer(OPENING + request_id_block(self.request_id), answer, good_end())
        except GatewayError as error:
            if self.phase != OVER:
                self.refuse(error, counted=True)
        except asyncio.CancelledError as raised:
            if self.phase != OVER:
                self.refuse(self._cut or self.internal(raised), counted=True)
        except BaseException as raised:
            fault = self.internal(raised)
            if self.phase != OVER:
                self.refuse(fault, counted=True)
        finally:
            self._end()

    async def _inflate(self, payload: bytes) -> None:
        """Decompress the message, and go on as for any other."""
        self._start()
        call: Call | None = None
        try:
            message = await inflate(self.connection.kit, self.head.encoding, payload)
            self.release()
            self.reserved = len(message)
            if self.phase != OVER:
                if self.head.kind == CALL:
                    call = self._read(message)
                elif self.head.kind == ASK:
                    await self._ask(message)
                else:
                    self.begin(message)
        except GatewayError as error:
            if self.phase != OVER:
                self.refuse(error)
        except asyncio.CancelledError as raised:
            if self.phase != OVER:
                self.refuse(self._cut or self.internal(raised))
            else:
                self._count_left()
        except BaseException as raised:
            fault = self.internal(raised)
            if self.phase != OVER:
                self.refuse(fault)
        del payload
        if call is not None:
            await self._run(call)
        else:
            self._end()

    # --------------------------------------------------------------- its end

    def caller_left(self) -> None:
        call, task = self._call, self._task
        if task is None:
            # Its turn to begin had not come.
            self._count_left()
            self.release()
            return
        if call is None or not expires(call, self.connection.kit.clock.now_s()):
            if call is not None:
                call.abandoned = True
            task.cancel()
        # Otherwise the deadline is passing this moment: the call's own scope ends it, and is right about the reason.

    def cut(self, error: GatewayError) -> None:
        if self._task is None:
            super().cut(error)
            return
        self._cut = error
        if self._call is not None:
            self._call.cut = error
        self._task.cancel()

    def _fail(self, call: Call, error: GatewayError) -> None:
        """Answer a call with `error`. Never raises."""
        if self.phase == OVER:
            return
        kit = self.connection.kit
        try:
            block = error_alone(error.code, error.message, failed(call, error, kit.story(call, error), kit.chance))
        except BaseException as raised:
            error = self.internal(raised)
            block = error_alone(error.code, error.message, ())
        self.end_with(block)

    async def _close(self, reply: Reply, outcome: Outcome) -> None:
        try:
            await reply.aclose(outcome)
        except BaseException as raised:
            self.internal(raised)

    def _end(self) -> None:
        """The last step of the task. Free what the call held, and break its circles, so that it is gone without the
        garbage collector.
        """
        task, self._task = self._task, None
        if task is not None:
            del self.connection.port.tasks[task]
        if self.reserved:
            self.release()
        call, self._call = self._call, None
        if call is not None:
            call.receive = call.cut = None
        self._cut = None

    def _count_left(self) -> None:
        self.connection.kit.observer.request_without_call("grpc", self._route(), Code.CANCELLED.name)

    def _too_large_to_send(self, size: int) -> GatewayError:
        limit = self.connection.kit.limits.message_bytes_max
        return GatewayError(Reason.ANSWER_TOO_LARGE, f"SERVER: Sent message larger than max ({size} vs. {limit})")
