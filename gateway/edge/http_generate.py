"""`generate` and `generate_stream` over HTTP: calls whose reply is a stream of responses.

`generate` waits for all of it, which must be one response, and answers it whole. `generate_stream` writes each
response as one event as soon as it comes. Its status is that of the first response, so nothing is written before that;
a failure after it is told by an event `{"error": …}`, the last one, since by then the status has been said. A stream is
ended as a whole body only behind its last response or such an event; if not even that can be written, the connection
is cut off, so that no client takes a part for all.

The client sets the pace: no response is asked for while it does not take what it was sent, and if it leaves, the call
is cancelled at once, also when the model is silent.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason
from gateway.core.header_names import TRACEPARENT, TRACESTATE
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply, Response, StreamReply
from gateway.core.session import Session
from gateway.edge.headers import ClientHeaders
from gateway.edge.http_answer import Refusal
from gateway.edge.http_call import HttpCall, Outlet
from gateway.edge.http_kit import CallKit
from gateway.edge.http_words import HeadWords
from gateway.edge.status import error_body
from gateway.wire.http_path import PathMatch, Route
from gateway.wire.kserve.generate_request import decode_generate
from gateway.wire.kserve.generate_response import encode_generate
from gateway.wire.kserve.http_response import JSON_TYPE, HttpInferResponse
from gateway.wire.sse import CONTENT_TYPE, encode_event

ROUTES = frozenset({Route.MODEL_GENERATE, Route.MODEL_GENERATE_STREAM})

_TRACE = frozenset({TRACEPARENT, TRACESTATE})
_EVENT_STREAM = CONTENT_TYPE.decode("ascii")


class HttpGenerate(HttpCall):
    """One request to either route. It is the only call of its session."""

    __slots__ = ("_begun", "_ended", "_session")

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
        # Triton makes parameters of forwarded headers, but not on these routes.
        client = replace(client, metadata=tuple(pair for pair in client.metadata if pair[0] in _TRACE))
        super().__init__(kit, outlet, words, declared, match, client, arrived_s, fault)
        self._session = self.call.session = Session(client.metadata)
        self._begun = False
        """The head of a stream is written."""
        self._ended = False
        """And so is its end."""
        # The whole body is JSON, whatever that header says.
        self._named = None
        self._arriving_max = self.body_limit = min(self.limits.body, self.limits.json)

    def _decode(self, pieces: list[bytes | memoryview]) -> None:
        call = self.call
        # First: of an unknown model is told that, and not what is wrong with the body.
        config = self._kit.config_of(call.model, call.version)
        request = decode_generate(b"".join(pieces), config)
        call.body_id = request.id
        call.message = request.message
        call.sequence = request.sequence

    def _json_takes(self) -> str:
        return f"this model takes at most {self.limits.json} of JSON: call infer with large tensors as binary data"

    def cut(self, error: GatewayError) -> None:
        if not self._begun:
            super().cut(error)
        elif not self._ended:
            self.call.cut = error
            if self._task is not None:
                self._task.cancel()

    async def _run(self) -> None:
        try:
            await super()._run()
        finally:
            try:
                await self._session.aclose()
            finally:
                super()._forget()

    def _forget(self) -> None:
        """Not yet: the session is still to be closed."""

    def _deliver_now(self, reply: Reply) -> bool:
        return False  # the responses that follow must be waited for

    async def _deliver(self, reply: Reply) -> Outcome:
        assert isinstance(reply, StreamReply), "a call with a session is answered by a stream of responses"
        try:
            if self._route is Route.MODEL_GENERATE:
                return await self._whole(reply)
            return await self._stream(reply)
        except GatewayError as error:
            if self._left():
                return Outcome.ABANDONED
            self._fail(error)
            error.with_traceback(None)  # the reply keeps the error, and its traceback holds frames that hold the reply
            outcome = Outcome.EXPIRED if error.reason is Reason.DEADLINE else Outcome.OK
            if reply.failure is None:
                reply.failure = error  # made here, so the record has it from here
                if error.reason is Reason.UPSTREAM_BROKEN:
                    outcome = Outcome.BROKEN
            return outcome
        except asyncio.CancelledError:
            if self.call.cut is not None and reply.failure is None:
                reply.failure = self.call.cut
            raise

    async def _whole(self, reply: StreamReply) -> Outcome:
        first = await self._next(reply)
        second = None if first is None else await self._next(reply)
        if first is None or second is not None:
            raise _not_one(self.call.model)
        document = encode_generate(first.message, self.call.body_id)
        if not await self._may_begin():
            return Outcome.ABANDONED
        rendered = HttpInferResponse([document], len(document), JSON_TYPE, None)
        self._outlet.write(self, self._kit.answers.inferred(self.call, rendered, self._story()))
        return Outcome.OK

    async def _stream(self, reply: StreamReply) -> Outcome:
        response = await self._next(reply)
        frame = b"" if response is None else self._frame(response)
        if not await self._may_begin():
            return Outcome.ABANDONED
        rendered = HttpInferResponse([frame], len(frame), _EVENT_STREAM, None)
        answer = self._kit.answers.inferred(self.call, rendered, self._story())
        self._begun = True
        self._outlet.begin(self, answer)
        while response is not None:
            if not self._outlet.may_write(self):
                await self._my_turn()
            response = await self._next(reply)
            if self._left():
                return Outcome.ABANDONED
            if response is not None:
                self._outlet.part(self, self._frame(response))
        self._ended = True
        self._outlet.end(self)
        return Outcome.OK

    async def _next(self, reply: StreamReply) -> Response | None:
        """The next response. Raises `GatewayError`, also for one that the model put in a response's place: that ends
        the call.
        """
        response = await reply.next()
        if response is None:
            return None
        if response.error is not None:
            raise response.error
        if self._expired():
            raise GatewayError(Reason.DEADLINE, "the deadline passed before a response could be written")
        return response

    def _frame(self, response: Response) -> bytes:
        return encode_event(encode_generate(response.message, self.call.body_id))

    def _fail(self, error: GatewayError) -> None:
        if not self._begun:
            super()._fail(error)
            return
        if self._ended:
            self._outlet.abort()
            return
        try:
            self._outlet.part(self, encode_event(error_body(error.message)))
            self._ended = True
            self._outlet.end(self)
        except BaseException as raised:
            self._internal(raised)
            self._outlet.abort()


def _not_one(model: str) -> GatewayError:
    """Triton's own words. The status is 500 by what is promised to callers, although the fault is theirs: the route
    does not fit the model.
    """
    return GatewayError(
        Reason.BAD_REQUEST,
        "generate expects model to produce exactly 1 response, use generate stream for model that generates various "
        "number of responses",
        Code.INTERNAL,
    )
