"""One client's ModelStreamInfer: each message a call of its own, their responses back in the order that callers expect.

A stream may carry calls to several models, and sequences. Models that give one response per request answer in the
order of their requests, whatever order their replicas finish in; decoupled models answer as they come. An error is a
message in its place and the stream lives on, as Triton has it; where the caller asked for true statuses
(`triton_grpc_error`), the first failure of a model ends the stream.

Knows no gRPC library: the server gives it a port with `read`, `write` and `send_headers`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply, StreamReply
from gateway.core.session import Session
from gateway.edge.expiry import EXPIRY_GRACE_S
from gateway.edge.grpc_call import grpc_call, no_memory, read_unkept, refusal
from gateway.edge.grpc_stream_kit import StreamKit as StreamKit
from gateway.edge.grpc_stream_kit import StreamPort, Unkept
from gateway.edge.headers import ClientHeaders, response_headers
from gateway.edge.status import internal_error
from gateway.wire.kserve.stream_message import encode_streamed, encode_streamed_error

_log = logging.getLogger("sluice.edge.grpc")

TIME_IS_UP_S = 0.005
"""A call's deadline that passes so shortly before that of its whole stream is the stream's: the replica is told a limit
that ends a little before (`fleet/transport.py`), and timers have their ticks.
"""
OUTBOX_MAX = 16
"""Messages that may wait for a client that is slow to take them; at the bound its calls wait, and then the replicas."""
OUTBOX_BYTES_MAX = 1024 * 1024
"""And so many bytes, or one message that is larger."""
_CALLERS_OWN = frozenset(
    {Reason.BAD_REQUEST, Reason.UPSTREAM_INVALID, Reason.UNKNOWN_MODEL, Reason.UNKNOWN_VERSION, Reason.UNSUPPORTED}
)
"""Errors of the request itself: told in their place also to callers who ask for true statuses, as Triton does."""


class ClientStream:
    """`run` serves the stream to its end. `drain` and `cut` are the gateway's shutdown."""

    def __init__(
        self, kit: StreamKit, port: StreamPort, headers: ClientHeaders, deadline_s: float, *, true_status: bool
    ) -> None:
        """`true_status`: the first failure of a model ends the stream with its status."""
        self._kit = kit
        self._port = port
        self._headers = headers
        self._session = Session(headers.metadata, deadline_s=deadline_s)
        self._true_status = true_status
        self._tasks: dict[asyncio.Task[None], Call] = {}
        self._line: dict[Call, None] = {}
        """All calls that are out, in the order of their requests."""
        self._to_begin: dict[Call, asyncio.Future[None] | None] = {}
        """Those that have not begun, in the same order."""
        self._turns: dict[Call, asyncio.Future[None]] = {}
        self._outbox: deque[tuple[Call, GatewayError | None, bytes]] = deque()
        self._outbox_bytes = 0
        self._out: asyncio.Future[None] | None = None
        self._room: deque[asyncio.Future[None]] = deque()
        self._changed: asyncio.Future[None] | None = None
        self._received = 0
        self._said_all = False
        self._draining = False
        self._headers_sent = False
        self._writer_done = False
        self._failure: GatewayError | None = None
        self._expiring = False
        """Its time is as good as over: the port ends it within `TIME_IS_UP_S`."""

    @property
    def calls(self) -> int:
        return len(self._tasks)

    async def run(self) -> None:
        """Serve until all is said and answered. Raises `GatewayError` if the stream must end with a status, and
        CancelledError if the client left; `abandon` says which of the two a cancellation is.
        """
        loop = asyncio.get_running_loop()
        reader = loop.create_task(self._read(), name="stream-reader")
        writer = loop.create_task(self._write(), name="stream-writer")
        left = False
        try:
            while not self._over():
                self._changed = loop.create_future()
                await self._changed
        except asyncio.CancelledError:
            left = True
            raise
        finally:
            reader.cancel()
            if left:
                writer.cancel()  # calls may wait for room
            self._leave(expired=self._session.deadline_s - self._kit.clock.now_s() <= EXPIRY_GRACE_S)
            try:
                await self._calls_over(writer)
                self._finish_writing()
                if not left:
                    await asyncio.wait((writer,))
            finally:
                # Also if the client leaves only now.
                writer.cancel()
                await self._session.aclose()
        if self._failure is not None:
            raise self._failure

    async def _calls_over(self, writer: asyncio.Task[None]) -> None:
        """Wait until all calls have ended, and their records with them, also if the client leaves only now."""
        left: asyncio.CancelledError | None = None
        while self._tasks:
            try:
                await asyncio.wait(tuple(self._tasks))
            except asyncio.CancelledError as cancelled:
                left = cancelled
                writer.cancel()
        if left is not None:
            raise left

    def abandon(self) -> None:
        """The client left: what is out is for nobody."""
        for task, call in tuple(self._tasks.items()):
            call.abandoned = True
            task.cancel()

    def drain(self) -> None:
        """Take no further message. When what is out has been answered, the client is told to go elsewhere."""
        self._draining = True
        self._wake()

    def cut(self, error: GatewayError) -> None:
        """End everything that is out with `error`."""
        self._draining = True
        for task, call in tuple(self._tasks.items()):
            call.cut = error
            task.cancel()
        self._wake()

    def _over(self) -> bool:
        if self._failure is not None:
            return True
        if self._tasks or self._outbox or self._expiring:
            return False
        if self._said_all:
            return True
        if self._draining:
            self._failure = GatewayError(
                Reason.DRAINING, "the gateway is shutting down; open the stream again", retry_after_s=1.0
            )
            return True
        return False

    def _leave(self, *, expired: bool) -> None:
        """Nothing more is wanted of the calls that are still out: the time of the whole stream is over, or it ends."""
        for task, call in tuple(self._tasks.items()):
            if call.cut is None:
                if expired:
                    call.cut = GatewayError(Reason.DEADLINE, "the deadline of the whole stream passed")
                else:
                    call.abandoned = True
                task.cancel()

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def _fail(self, error: GatewayError) -> None:
        if self._failure is None:
            self._failure = error
        self._wake()

    # -- requests -----------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        kit = self._kit
        try:
            while not self._draining:
                if len(self._tasks) >= kit.calls_max:
                    await asyncio.wait(tuple(self._tasks), return_when=asyncio.FIRST_COMPLETED)
                    continue
                message = await self._port.read()
                if message is None:
                    self._said_all = True
                    self._wake()
                    return
                if self._stopping():
                    return  # read in the same turn as the shutdown began: it has not been begun, and the client is told
                self._begin(message)
                message = None  # a silent client's last one is not kept
        except GatewayError as error:
            kit.observer.request_without_call("grpc", "ModelStreamInfer", error.code.name)
            self._fail(error)
        except Exception as error:
            # The port's own word for a client that is gone; the server's handler is being cancelled as well.
            _log.debug("a stream could not be read any more: %s", error)
            self._fail(GatewayError(Reason.INTERNAL, "the stream could not be read"))

    def _stopping(self) -> bool:
        return self._draining

    def _begin(self, message: bytes | Unkept) -> None:
        kit, headers = self._kit, self._headers
        size = message.length if isinstance(message, Unkept) else len(message)
        call = grpc_call(headers, size, kit.clock, kit.clock.now_s(), headers.timeout_s, self._session)
        self._received += 1
        call.stream_position = self._received
        held = 0
        if isinstance(message, Unkept):
            read_unkept(call, message.head)
        else:
            kit.read_call(call, message)
            if kit.budget.try_reserve(size):
                held = size
            else:
                call.message, call.receive = None, refusal(no_memory())
        self._line[call] = self._to_begin[call] = None
        task = asyncio.get_running_loop().create_task(self._answer(call), name="stream-call")
        self._tasks[task] = call
        task.add_done_callback(lambda done: self._ended(done, call, held))

    def _ended(self, task: asyncio.Task[None], call: Call, held: int) -> None:
        del self._tasks[task]
        self._begun(call)
        if held:
            self._kit.budget.release(held)
        if call in self._line:
            # Cancelled before it began: nothing of it has run, its record included, so it is counted here.
            self._kit.observer.request_without_call("grpc", "ModelStreamInfer", "CANCELLED")
            self._leave_line(call)
        self._wake()

    # -- responses ----------------------------------------------------------------------------------------------------

    def _begun(self, call: Call) -> None:
        if self._to_begin.pop(call, self) is not self:
            waiter = next(iter(self._to_begin.values()), None)
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    async def _answer(self, call: Call) -> None:
        # In the order of the messages, whatever order the loop runs new tasks in: what is a sequence to its replica
        # is put in line by the layers before they first wait.
        if next(iter(self._to_begin)) is not call:
            waiter = self._to_begin[call] = asyncio.get_running_loop().create_future()
            await waiter
        self._begun(call)
        reply: StreamReply | None = None
        outcome = Outcome.GATEWAY_FAULT
        error: GatewayError | None = None
        try:
            answer = await self._kit.service.send(call)
            assert isinstance(answer, StreamReply), "a call of a session is answered by a stream of responses"
            reply = answer
            while (response := await reply.next()) is not None:
                if reply.ordered:
                    await self._turn(call)
                if self._kit.clock.now_s() > call.deadline_s:
                    raise _too_late()
                if response.error is not None:
                    await self._put_error(call, response.error, response.message)
                    if response.error is self._failure:
                        break  # it ends the whole stream
                else:
                    await self._put(call, None, encode_streamed(response.message))
            outcome = Outcome.OK
        except GatewayError as raised:
            error = raised
            if raised.reason is Reason.DEADLINE:
                outcome = Outcome.EXPIRED
        except asyncio.CancelledError as raised:
            if call.abandoned:
                outcome = Outcome.ABANDONED
            else:
                error = call.cut or self._internal(call, raised)
        except BaseException as raised:
            # Even KeyboardInterrupt and SystemExit: raised inside a call they are a fault of one call.
            error = self._internal(call, raised)
        if error is not None and reply is not None:
            if reply.failure is None:
                reply.failure = error  # made here, so the record has it from here
            closing, reply = reply, None  # now: what it holds must not wait for the client
            await self._close(call, closing, outcome)
        try:
            if error is not None:
                try:
                    await self._tell(call, error)
                except asyncio.CancelledError:
                    if call.cut is None or call.abandoned:
                        raise
                    # Cut short while it waited for its turn: the others give way to it now.
                    await self._tell(call, error)
        except asyncio.CancelledError:
            outcome = Outcome.ABANDONED
        finally:
            error = None
            self._leave_line(call)
            call.receive = None
            if reply is not None:
                await self._close(call, reply, outcome)

    async def _tell(self, call: Call, error: GatewayError) -> None:
        if not call.decoupled:
            await self._turn(call)
        await self._put_error(call, error, error.response, last=True)

    async def _close(self, call: Call, reply: Reply, outcome: Outcome) -> None:
        try:
            await reply.aclose(outcome)
        except BaseException as raised:
            self._internal(call, raised)

    async def _turn(self, call: Call) -> None:
        """Wait until every call to a not decoupled model that came before has said its last."""
        while self._first_in_line() is not call:
            turn = self._turns[call] = asyncio.get_running_loop().create_future()
            try:
                await turn
            finally:
                del self._turns[call]

    def _first_in_line(self) -> Call | None:
        # A call that has not been routed yet counts as one that takes its turn; it is routed in its first step.
        return next((call for call in self._line if not call.decoupled), None)

    def _leave_line(self, call: Call) -> None:
        del self._line[call]
        first = self._first_in_line()
        turn = None if first is None else self._turns.get(first)
        if turn is not None and not turn.done():
            turn.set_result(None)

    async def _put_error(self, call: Call, error: GatewayError, inner: bytes = b"", *, last: bool = False) -> None:
        if self._time_is_up(error):
            self._expiring = True
            return
        if self._true_status and error.reason not in _CALLERS_OWN:
            self._fail(error)
        await self._put(call, error, encode_streamed_error(error.message, call.body_id, inner), last=last)

    def _time_is_up(self, error: GatewayError) -> bool:
        """Whether it is the deadline of the whole stream that a call ran into, and heard of before the port's own timer
        fires. That is told by the stream's status and when it is due, as Triton does: a stream that ended in order now
        would look complete.
        """
        left_s = self._session.deadline_s - self._kit.clock.now_s()
        return error.reason is Reason.DEADLINE and left_s <= TIME_IS_UP_S

    async def _put(self, call: Call, error: GatewayError | None, message: bytes, *, last: bool = False) -> None:
        ends = error is not None and error is self._failure  # at once: its call ends with the stream, which begins now
        while self._outbox_full() and not self._writer_done and not ends:
            room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._room.append(room)
            # A call's last error is put when nothing is held any more, and waits for as long as the client makes it.
            left_s = None if last else self._left_s(call)
            try:
                async with asyncio.timeout(left_s):
                    await room
            except BaseException as raised:
                if room.done() and not room.cancelled():
                    self._make_room()  # it was this one's; now it is the next one's
                if isinstance(raised, TimeoutError):
                    raise _too_late() from None
                raise
        self._outbox.append((call, error, message))
        self._outbox_bytes += len(message)
        self._nudge()

    def _outbox_full(self) -> bool:
        return len(self._outbox) >= OUTBOX_MAX or self._outbox_bytes >= OUTBOX_BYTES_MAX

    def _left_s(self, call: Call) -> float | None:
        return None if call.deadline_s == math.inf else call.deadline_s - self._kit.clock.now_s()

    def _make_room(self) -> None:
        while self._room:
            room = self._room.popleft()
            if not room.done():
                room.set_result(None)
                return

    def _nudge(self) -> None:
        if self._out is not None and not self._out.done():
            self._out.set_result(None)

    def _finish_writing(self) -> None:
        self._writer_done = True
        self._nudge()

    async def _write(self) -> None:
        """The one task that writes: a library may end a stream whose writer is cancelled."""
        silent = False
        try:
            while True:
                if not self._outbox:
                    if self._writer_done:
                        return
                    self._out = asyncio.get_running_loop().create_future()
                    await self._out
                    continue
                call, error, message = self._outbox[0]
                if not self._headers_sent:
                    self._headers_sent = True
                    await self._port.send_headers(self._response_headers(call, error))
                # A failure that ends the stream is told by its status, and nothing comes behind it.
                silent = silent or (error is not None and error is self._failure)
                if not silent:
                    await self._write_in_time(message)
                self._outbox.popleft()
                self._outbox_bytes -= len(message)
                del call, error, message  # a silent stream's last one is not kept
                self._make_room()
                if not self._outbox:
                    self._wake()
        except GatewayError as error:
            if error.reason is Reason.DEADLINE:
                self._kit.observer.protocol_fault("grpc", "slow_reader")
            self._fail(error)
        except Exception as error:
            _log.debug("a stream could not be written any more: %s", error)
            self._fail(GatewayError(Reason.INTERNAL, "the stream could not be written"))
        finally:
            self._writer_done = True
            self._outbox.clear()
            self._outbox_bytes = 0
            while self._room:
                self._make_room()

    async def _write_in_time(self, message: bytes) -> None:
        """Raises `GatewayError` if the client does not take it: its calls must not hold slots as long as it likes."""
        limit_s = self._kit.write_timeout_s
        try:
            async with asyncio.timeout(limit_s) as scope:
                await self._port.write(message)
        except TimeoutError:
            if not scope.expired():
                raise
            raise GatewayError(Reason.DEADLINE, f"the client took no message of the stream for {limit_s:g} s") from None

    def _response_headers(self, call: Call, error: GatewayError | None) -> list[tuple[str, str]]:
        story = self._kit.explainer.explain(call, self._kit.clock.now_s(), error) if call.explain else ""
        return response_headers(call, error, story)

    def _internal(self, call: Call, cause: BaseException) -> GatewayError:
        self._kit.observer.internal_fault("grpc")
        _log.error(
            "message %d of stream %s: an internal fault ended the call",
            call.stream_position,
            call.request_id,
            exc_info=(type(cause), cause, cause.__traceback__),
        )
        return internal_error()


def _too_late() -> GatewayError:
    return GatewayError(Reason.DEADLINE, "the deadline passed before a response could be written")
