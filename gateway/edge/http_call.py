"""One inference call over HTTP: from its head, through the service, to one answer.

The call's task is started when the head is complete, so that identity, quotas and sizes are decided before the body
has arrived; the body is waited for where the service asks for it (`receive`), and an `Expect: 100-continue` is granted
there and nowhere else. Whatever the service raises, even what no service should, the caller gets exactly one outcome
in bounded time (field case FH-14): an answer, or the end of the connection.
"""

from __future__ import annotations

import asyncio
import logging
import types
from collections.abc import Generator
from typing import Protocol

from gateway.core.call import Call
from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply
from gateway.edge.expiry import expires
from gateway.edge.headers import ClientHeaders
from gateway.edge.http_answer import HttpAnswer, Refusal
from gateway.edge.http_body import ArrivingBody, BodySource, wake
from gateway.edge.http_kit import CallKit
from gateway.edge.http_steps import in_steps
from gateway.edge.http_words import HeadWords
from gateway.edge.status import internal_error, status_of
from gateway.wire.content_coding import IDENTITY
from gateway.wire.http_path import PathMatch, Route
from gateway.wire.kserve.http_filling import FillingRequest
from gateway.wire.kserve.http_raw import decode_raw_infer
from gateway.wire.kserve.http_request import (
    ALL_JSON,
    HttpInferRequest,
    OutputPlan,
    decode_http_infer,
    decode_in_pieces,
    form_in_pieces,
    is_raw,
    parse_header_length,
)
from gateway.wire.kserve.http_response import encode_http_infer, encode_in_steps
from gateway.wire.kserve.json_steps import STEP_BYTES, decode_in_steps

_log = logging.getLogger("sluice.edge")

DECOUPLED = "HTTP end point doesn't support models with decoupled transaction policy"
"""Triton's own words."""
_FAULTS_OF_REQUESTS = frozenset({Reason.BAD_REQUEST, Reason.UNSUPPORTED, Reason.TOO_LARGE})

_OUTCOME_OF_UNRENDERED = {
    Reason.UPSTREAM_BROKEN: Outcome.BROKEN,
    Reason.BAD_REQUEST: Outcome.CALLER_FAULT,
    Reason.DEADLINE: Outcome.EXPIRED,
}
_OK, _GATEWAY_FAULT = Outcome.OK, Outcome.GATEWAY_FAULT
"""A member of an enumeration is found by code in Python (3.11): 650 instructions; a name of the module is not."""
CLIENT_LEFT = 499
"""What stands for a status where nobody is left to be told one: nginx's word for it."""


class Outlet(BodySource, Protocol):
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

    def abort(self) -> None:
        """End the connection at once: its state can no longer be trusted."""
        ...


class HttpCall(ArrivingBody):
    """One inference request. The connection feeds it the body and asks `answer` for what is ready to be written."""

    __slots__ = ("_plan", "_route", "_started", "_task", "_turn", "answer", "call")

    _outlet: Outlet

    def __init__(
        self,
        kit: CallKit,
        outlet: Outlet,
        words: HeadWords,
        declared: int | None,
        match: PathMatch,
        client: ClientHeaders,
        arrived_s: float,
        fault: Refusal | None,
    ) -> None:
        """`declared` is the length of the body, None if that was not told. `fault` is what is wrong with the head: the
        service will hear of it when it asks for the body."""
        super().__init__(kit, outlet, words, declared, kit.limits_of(match.model), fault)
        assert match.route is not None, "what has no route is no call"
        self._route = match.route
        wall_s, now_s = kit.clock.wall_s, kit.clock.now_s
        # By position: names cost as much again as the call itself.
        self.call = Call(
            client.request_id,
            match.model,
            match.version,
            arrived_s,
            wall_s() - (now_s() - arrived_s),
            None,  # the message is still to come
            self.receive,
            # How large a compressed body will be, nobody has said.
            None if words.chunked or self._inflating is not None else declared or 0,
            client.credentials,
            client.metadata,
            client.timeout_s,
            client.explain,
            "http",
            None,
            client.priority,
        )
        self.answer: HttpAnswer | None = None
        """An error that waits for its turn. A good answer never waits here: its task does."""
        self._started = False
        self._plan: OutputPlan = ALL_JSON
        self._turn: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        work = self._run()
        # Into its `try`: a task that is cancelled before its first step runs nothing of a coroutine that has not begun.
        work.send(None)
        self._task = task = loop.create_task(work)
        self._kit.tasks[task] = None

    async def receive(self) -> None:
        """Wait for the body, decode it, and fill in the call. Raises `GatewayError`."""
        if self.call.message is not None:
            return
        try:
            if not self._complete or self._fault is not None or self._inflating is not None:
                await self._arrive()
            pieces, self._pieces = self._pieces, []
            if self._filling is not None:
                filling, self._filling = self._filling, None
                self._take(filling.request())
            else:
                steps = self._decode(pieces)
                if steps is not None:
                    self._take(await in_steps(steps))
        except GatewayError as error:
            # Triton looks at that first. Here a good body's call goes on, and Triton says it itself.
            if error.reason in _FAULTS_OF_REQUESTS and self._is_of_streams_alone():
                raise GatewayError(Reason.BAD_REQUEST, DECOUPLED, Code.UNIMPLEMENTED) from None
            raise
        now_s = self._kit.clock.now_s
        self.call.trail.received_s = now_s()

    def _decode(self, pieces: list[bytes | memoryview]) -> Generator[None, None, HttpInferRequest] | None:
        """Decode the body; where that would take long, the steps that do it come back."""
        size = len(pieces[0]) if len(pieces) == 1 else sum(map(len, pieces))
        if self._named is None and 0 < size <= STEP_BYTES:
            self._take(decode_http_infer(pieces[0] if len(pieces) == 1 else b"".join(pieces)))
            return None
        length = None if self._named is None else parse_header_length(self._named, size)
        if is_raw(size, length):
            config = self._kit.config_of(self.call.model, self.call.version)
            self._take(decode_raw_infer(b"".join(pieces), config.inputs, config.max_batch_size))
        elif length is None:
            return decode_in_steps(b"".join(pieces))
        elif length > self.limits.json:
            raise GatewayError(Reason.TOO_LARGE, f"the JSON part has {length} bytes; {self._json_takes()}")
        else:
            self._take(decode_in_pieces(pieces, length))
        return None

    def _json_bytes(self, declared: int) -> int:
        try:
            length = 0 if self._named is None else parse_header_length(self._named, declared)
        except GatewayError:
            return 0  # `_decode` will say what is wrong, when the body is there
        return 0 if length > self.limits.json else length

    def _begin_filling(self) -> None:
        declared, length, self._fill_at = self._declared, self._fill_at, 0
        assert declared is not None
        try:
            form, tail = form_in_pieces(self._pieces, length, declared)
        except GatewayError:
            return  # as above
        if form.sizes:
            self._filling = FillingRequest(form, tail)
            self._pieces.clear()

    def _take(self, request: HttpInferRequest) -> None:
        call = self.call
        self._plan = request.plan
        call.body_id = request.id
        call.message = request.message
        call.sequence = request.sequence
        call.classified = request.classified

    def _is_of_streams_alone(self) -> bool:
        """Whether this is `infer` of a decoupled model. Of an unknown version it is not known."""
        if self._route is not Route.MODEL_INFER:
            return False
        try:
            return self._kit.config_of(self.call.model, self.call.version).decoupled
        except GatewayError:
            return False

    # ---------------------------------------------------------- the answer

    def take_turn(self) -> None:
        """The connection can take this call's answer now."""
        wake(self._turn)

    def abandon(self) -> None:
        """The caller left: nothing will be written; what was begun is cancelled and freed."""
        call = self.call
        if expires(call, self._kit.clock.now_s()):
            call.cut = _left_in_time()
        call.abandoned = True
        self.answer = None
        self._drop()
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
        outcome = _GATEWAY_FAULT
        error: GatewayError | None = None
        try:
            await _first_step()
            self._started = True
            reply = await kit.service.send(call)
            outcome = _OK if self._deliver_now(reply) else await self._deliver(reply)
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
            try:
                status = CLIENT_LEFT
                if error is not None and not call.abandoned:
                    status = status_of(error)
                    self._fail(error)
                error = None  # it holds its traceback, which holds this frame
                if reply is not None:
                    try:
                        await reply.aclose(outcome)
                    except BaseException as raised:
                        self._internal(raised)
                if not self._started:
                    # The service never saw it, so there is no record: what leaves no record is counted.
                    kit.observer.request_without_call("http", self._route.template, str(status))
                self._end()
            finally:
                self._forget()  # whatever happens: the port waits for what stands among the tasks before it closes

    def _forget(self) -> None:
        """The call's task has nothing left to do."""
        task, self._task = self._task, None
        if task is not None:
            del self._kit.tasks[task]

    def _deliver_now(self, reply: Reply) -> bool:
        """Write the answer at once, if there is nothing to wait for. Raises `GatewayError` for what is to be told."""
        call, kit = self.call, self._kit
        accepts = self.words.accepts
        if accepts is not None and kit.coding.chosen(accepts) != IDENTITY:
            return False
        if len(reply.message) > STEP_BYTES or call.abandoned or not self._outlet.may_write(self):
            return False
        rendered = encode_http_infer(reply.message, self._plan, call.body_id)
        now_s = kit.clock.now_s
        if now_s() > call.deadline_s:
            raise _too_late()
        self._outlet.write(self, kit.answers.inferred(call, rendered, self._story() if call.explain else ""))
        return True

    async def _deliver(self, reply: Reply) -> Outcome:
        """Write the answer when its turn comes; how that ended. Raises `GatewayError` for what is to be told."""
        steps = encode_in_steps(reply.message, self._plan, self.call.body_id)
        rendered = await in_steps(steps, self._in_time)
        coding = self._kit.coding.chosen(self.words.accepts)
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
        self._in_time()
        return True

    def _story(self, error: GatewayError | None = None) -> str:
        call, kit = self.call, self._kit
        return kit.explainer.explain(call, kit.clock.now_s(), error) if call.explain else ""

    def _expired(self) -> bool:
        return self._kit.clock.now_s() > self.call.deadline_s

    def _in_time(self) -> None:
        """Raises `GatewayError` (DEADLINE) if it is too late to write an answer."""
        if self._expired():
            raise _too_late()

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

    def _end(self) -> None:
        """Free what the call held, and break its circles, so that it is gone without the garbage collector."""
        self._done_with = True
        if self._pieces or self._filling is not None or self._inflating is not None:
            self._drop()
        elif self._reserved:
            self._kit.budget.release(self._reserved)
            self._reserved = 0
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


@types.coroutine
def _first_step() -> Generator[None, None, None]:
    """Wait for the first step of the task."""
    yield


def _left_in_time() -> GatewayError:
    return GatewayError(Reason.DEADLINE, "the deadline passed, and the client left, before there was an answer")


def _too_late() -> GatewayError:
    return GatewayError(Reason.DEADLINE, "the deadline passed before the answer could be written")
