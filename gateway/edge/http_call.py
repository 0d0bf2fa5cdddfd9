"""One inference call over HTTP: from its head, through the service, to one answer.

The call's task is started when the head is complete, so that identity, quotas and sizes are decided before the body
has arrived; the body is waited for where the service asks for it (`receive`), and an `Expect: 100-continue` is granted
there and nowhere else. Whatever the service raises, even what no service should, the caller gets exactly one outcome
in bounded time (field case FH-14): an answer, or the end of the connection.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.faces import BodyLimits
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply
from gateway.edge.headers import ClientHeaders
from gateway.edge.http_answer import HttpAnswer, Refusal
from gateway.edge.http_coding import InflatingBody, arriving_bytes_max, no_memory, request_coding
from gateway.edge.http_kit import CallKit
from gateway.edge.status import internal_error, status_of
from gateway.wire.content_coding import IDENTITY
from gateway.wire.http1 import RequestHead
from gateway.wire.http_path import PathMatch
from gateway.wire.kserve.http_raw import decode_raw_infer
from gateway.wire.kserve.http_request import (
    ALL_JSON,
    OutputPlan,
    decode_http_infer,
    is_raw,
    parse_header_length,
)
from gateway.wire.kserve.http_response import encode_http_infer

_log = logging.getLogger("sluice.edge")

UNKNOWN_MODEL_LIMITS = BodyLimits(64 * 1024, 64 * 1024)
"""The limit for a model that no policy names: its call is refused before the body matters."""

_OUTCOME_OF_UNRENDERED = {
    Reason.UPSTREAM_BROKEN: Outcome.BROKEN,
    Reason.BAD_REQUEST: Outcome.CALLER_FAULT,
    Reason.DEADLINE: Outcome.EXPIRED,
}
CLIENT_LEFT = 499
"""What stands for a status where nobody is left to be told one: nginx's word for it."""


class Outlet(Protocol):
    """What a call needs of its connection."""

    def may_write(self, call: HttpCall) -> bool:
        """It is this call's turn and the client takes what it is sent."""
        ...

    def write(self, call: HttpCall, answer: HttpAnswer) -> None: ...

    def begin(self, call: HttpCall, answer: HttpAnswer) -> None:
        """Begin an answer whose length is not known; `answer` holds its first part. Only when `may_write`."""
        ...

    def part(self, call: HttpCall, data: bytes) -> None:
        """The next part of it, which leaves at once."""
        ...

    def end(self, call: HttpCall) -> None:
        """It is complete."""
        ...

    def want_body(self, call: HttpCall) -> None:
        """The service waits for the body: read on, and grant what the client expects."""
        ...

    def abort(self) -> None:
        """End the connection at once: its state can no longer be trusted."""
        ...


class HttpCall:
    """One inference request. The connection feeds it the body and asks `answer` for what is ready to be written."""

    __slots__ = (
        "_arriving_max",
        "_body_bytes",
        "_complete",
        "_fault",
        "_head",
        "_inflating",
        "_kit",
        "_named",
        "_outlet",
        "_pieces",
        "_plan",
        "_reserved",
        "_route",
        "_started",
        "_task",
        "_turn",
        "_waiter",
        "answer",
        "answered",
        "body_limit",
        "call",
        "limits",
        "wanted",
    )

    def __init__(
        self,
        kit: CallKit,
        outlet: Outlet,
        head: RequestHead,
        match: PathMatch,
        client: ClientHeaders,
        arrived_s: float,
        fault: Refusal | None,
    ) -> None:
        """`fault` is what is wrong with the head: the service will hear of it when it asks for the body."""
        self._kit = kit
        self._outlet = outlet
        self._head = head
        assert match.route is not None, "what has no route is no call"
        self._route = match.route
        clock = kit.clock
        coding = None if fault is not None else request_coding(head)
        self.call = Call(
            request_id=client.request_id,
            model=match.model,
            version=match.version,
            arrived_s=arrived_s,
            arrived_wall_s=clock.wall_s() - (clock.now_s() - arrived_s),
            receive=self.receive,
            # How large a compressed body will be, nobody has said.
            body_bytes=None if head.chunked or coding else head.content_length or 0,
            credentials=client.credentials,
            metadata=client.metadata,
            timeout_s=client.timeout_s,
            explain=client.explain,
            protocol="http",
        )
        self.limits = limits = kit.limits_of(match.model) or UNKNOWN_MODEL_LIMITS
        self._named = named = head.get(b"inference-header-content-length")
        # Without that header all of the body is JSON.
        self.body_limit = limits.body if named is not None else min(limits.body, limits.json)
        """Of the body as it is to be read: decompressed."""
        self._arriving_max = self.body_limit
        self._inflating: InflatingBody | None = None
        if coding:
            self._arriving_max = arriving_bytes_max(self.body_limit)
            self._inflating = InflatingBody(kit.coding.workers, kit.budget, self.body_limit, self._bomb)
        self.answer: HttpAnswer | None = None
        """An error that waits for its turn. A good answer never waits here: its task does."""
        self.answered = False
        self.wanted = False
        self._pieces: list[bytes | memoryview] = []
        self._body_bytes = 0
        self._reserved = 0
        self._complete = False
        self._started = False
        self._fault = fault
        self._plan: OutputPlan = ALL_JSON
        self._waiter: asyncio.Future[None] | None = None
        self._turn: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        task = loop.create_task(self._run())
        self._task = task
        self._kit.tasks[task] = None
        task.add_done_callback(self._over)

    # ------------------------------------------------------------ the body

    @property
    def waits_for_client(self) -> bool:
        """Whether it is the client's turn: it has been asked for the body if it wants to be, and the body is good so
        far.
        """
        return self._fault is None and (self.wanted or not self._head.expect_continue)

    @property
    def held_bytes(self) -> int:
        """Body bytes that wait for the service to want them."""
        return 0 if self.wanted else self._body_bytes

    def feed(self, data: bytes | memoryview) -> None:
        """Part of the body."""
        if self._fault is not None or self.answered:
            return
        size = self._body_bytes + len(data)
        self._body_bytes = size
        if size > self._arriving_max:
            self.fail_body(self._too_large(f"the body has more than {self._arriving_max} bytes"))
        elif size > self._reserved and not self._reserve(size):
            self.fail_body(no_memory())
        else:
            self._pieces.append(data)
            if self._inflating is not None:
                _wake(self._waiter)

    def end_body(self) -> None:
        """The body is complete."""
        self._complete = True
        _wake(self._waiter)

    def fail_body(self, error: GatewayError, status: int = 0) -> None:
        """The body will not come, or not be kept: `receive` raises `error`. The first one counts. `status` is the HTTP
        status, 0 for the error's own.
        """
        if self._fault is None:
            self._fault = Refusal(error, status)
            self._pieces.clear()
            self._release()
            _wake(self._waiter)

    async def receive(self) -> None:
        """Wait for the body, decode it, and fill in the call. Raises `GatewayError`."""
        if self.call.message is not None:
            return
        declared = self._head.content_length
        if declared is not None and self._fault is None:
            if declared > self._arriving_max:
                self.fail_body(self._too_large(f"the body has {declared} bytes"))
            elif declared > self._reserved and not self._reserve(declared):
                self.fail_body(no_memory())
        if not self._complete and self._fault is None:
            self.wanted = True
            self._outlet.want_body(self)
        if self._inflating is not None:
            await self._inflate(self._inflating)
        while not self._complete and self._fault is None:
            await self._more()
        if self._fault is not None:
            raise self._fault.error
        pieces = self._pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces = []
        self._decode(body)
        self.call.trail.received_s = self._kit.clock.now_s()

    async def _more(self) -> None:
        """Wait until something has happened to the body."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    async def _inflate(self, inflating: InflatingBody) -> None:
        """Put the decompressed body in the place of the one that arrives, as it arrives. What is wrong with it fails
        the body.
        """
        try:
            while self._fault is None:
                pieces, self._pieces = self._pieces, []
                await inflating.add(pieces)
                if self._pieces or self._fault is not None:
                    continue
                if self._complete:
                    inflating.end()
                    self._pieces = list(inflating.pieces)
                    self._kit.budget.release(self._reserved)  # the compressed bytes are gone
                    self._reserved = 0
                    return
                await self._more()
        except GatewayError as error:
            self.fail_body(error)

    def _bomb(self) -> GatewayError:
        return self._too_large(f"the body decompresses to more than {self.body_limit} bytes")

    def _decode(self, body: bytes | memoryview) -> None:
        length = None if self._named is None else parse_header_length(self._named, len(body))
        if length is not None and length > self.limits.json:
            raise GatewayError(Reason.TOO_LARGE, f"the JSON part has {length} bytes; {self._json_takes()}")
        if is_raw(body, length):
            config = self._kit.config_of(self.call.model, self.call.version)
            request = decode_raw_infer(body, config.inputs, config.max_batch_size)
        else:
            request = decode_http_infer(body, length)
        self._plan = request.plan
        self.call.body_id = request.id
        self.call.message = request.message
        self.call.sequence = request.sequence
        self.call.classified = request.classified

    def _reserve(self, size: int) -> bool:
        if not self._kit.budget.try_reserve(size - self._reserved):
            return False
        self._reserved = size
        return True

    def _release(self) -> None:
        if self._reserved:
            self._kit.budget.release(self._reserved)
            self._reserved = 0
        if self._inflating is not None:
            self._inflating.close()
            self._inflating = None  # it knows this call: a circle

    def _too_large(self, what: str) -> GatewayError:
        if self._named is None and self.body_limit < self.limits.body:
            return GatewayError(Reason.TOO_LARGE, f"{what}, all of it JSON; {self._json_takes()}")
        return GatewayError(Reason.TOO_LARGE, f"{what}; this model takes at most {self.body_limit}")

    def _json_takes(self) -> str:
        return f"this model takes at most {self.limits.json} of JSON: send large tensors as binary data"

    # ---------------------------------------------------------- the answer

    def take_turn(self) -> None:
        """The connection can take this call's answer now."""
        _wake(self._turn)

    def abandon(self) -> None:
        """The caller left: nothing will be written; what was begun is cancelled and freed."""
        self.call.abandoned = True
        self.answer = None
        self._pieces.clear()
        self._release()
        if self._task is not None:
            self._task.cancel()

    def cut(self, error: GatewayError) -> None:
        """End the call with `error`, because the gateway stops."""
        if self.answered or self.answer is not None:
            return
        self.call.cut = error
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        call, kit = self.call, self._kit
        reply: Reply | None = None
        outcome = Outcome.GATEWAY_FAULT
        error: GatewayError | None = None
        try:
            self._started = True
            reply = await kit.service.send(call)
            outcome = await self._deliver(reply)
        except GatewayError as raised:
            error = raised
            outcome = _OUTCOME_OF_UNRENDERED.get(raised.reason, Outcome.GATEWAY_FAULT)
        except asyncio.CancelledError as raised:
            if call.abandoned:
                outcome = Outcome.ABANDONED
            else:
                error = self.call.cut or self._internal(raised)
        except BaseException as raised:
            # Even KeyboardInterrupt and SystemExit: raised inside a call they are a fault of one call, and must not
            # take the loop with all the others down. The process is stopped by signals, in `app.py`.
            error = self._internal(raised)
        finally:
            if error is not None and not call.abandoned:
                self._fail(error)
            error = None  # it holds its traceback, which holds this frame
            if reply is not None:
                await self._close(reply, outcome)
            self._end()

    async def _deliver(self, reply: Reply) -> Outcome:
        """Write the answer when its turn comes; how that ended. Raises `GatewayError` for what is to be told."""
        rendered = encode_http_infer(reply.message, self._plan, self.call.body_id)
        coding = self._kit.coding.chosen(self._head.get(b"accept-encoding"))
        if coding != IDENTITY:
            rendered = await self._kit.coding.encode(rendered, coding, self._expired)
        if not await self._may_begin():
            return Outcome.ABANDONED
        self._outlet.write(self, self._kit.answers.inferred(self.call, rendered, self._story()))
        return Outcome.OK

    async def _may_begin(self) -> bool:
        """Wait for this call's turn; False if nobody is left to write to. Raises `GatewayError` (DEADLINE)."""
        if not self._outlet.may_write(self):
            await self._my_turn()
        if self._left():
            return False
        if self._expired():
            raise GatewayError(Reason.DEADLINE, "the deadline passed before the answer could be written")
        return True

    def _story(self, error: GatewayError | None = None) -> str:
        call, kit = self.call, self._kit
        return kit.explainer.explain(call, kit.clock.now_s(), error) if call.explain else ""

    def _over(self, task: asyncio.Task[None]) -> None:
        """The task is done. If it was cancelled before its first step, nothing of `_run` has run, its `finally`
        included.
        """
        self._kit.tasks.pop(task, None)
        self._task = None
        if not self._started:
            # The service never saw it, so there is no record: what leaves no record is counted.
            status = CLIENT_LEFT
            if not self.call.abandoned:
                error = self.call.cut or self._internal(asyncio.CancelledError("before the call had begun"))
                status = status_of(error)
                self._fail(error)
            self._kit.observer.request_without_call("http", self._route.template, str(status))
            self._end()

    def _expired(self) -> bool:
        return self._kit.clock.now_s() > self.call.deadline_s

    def _left(self) -> bool:
        return self.call.abandoned

    async def _my_turn(self) -> None:
        # Asked again after a cancellation that the service swallowed: there may be nobody to write to.
        while not self._left() and not self._outlet.may_write(self):
            self._turn = asyncio.get_running_loop().create_future()
            try:
                await self._turn
            finally:
                self._turn = None

    def _fail(self, error: GatewayError) -> None:
        """Answer with `error`, now or when the turn comes. Never raises."""
        if self.answered:
            self._outlet.abort()  # part of a good answer may be on its way
            return
        call, kit = self.call, self._kit
        try:
            story = self._story(error)
            known = self._fault is not None and error is self._fault.error
            answer = kit.answers.call_failed(call, self._fault if known and self._fault else Refusal(error), story)
            if self._outlet.may_write(self):
                self._outlet.write(self, answer)
            else:
                self.answer = answer
        except BaseException as raised:
            self._internal(raised)
            self._outlet.abort()

    async def _close(self, reply: Reply, outcome: Outcome) -> None:
        try:
            await reply.aclose(outcome)
        except BaseException as raised:
            self._internal(raised)

    def _end(self) -> None:
        """Free what the call held, and break its circles, so that it is gone without the garbage collector."""
        self._pieces.clear()
        self._release()
        self.call.receive = None
        self._fault = self.call.cut = None

    def _internal(self, cause: BaseException) -> GatewayError:
        self._kit.observer.internal_fault("http")
        _log.error(
            "request %s: an internal fault ended the call",
            self.call.request_id,
            exc_info=(type(cause), cause, cause.__traceback__),
        )
        return internal_error()


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
