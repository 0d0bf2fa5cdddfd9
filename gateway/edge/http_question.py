"""One control query over HTTP for which the model servers must be asked: from its head to one answer.

It stands in the line of its connection as an inference call does: answers leave in the order of requests, and a client
that leaves takes its question back. What needs no model server is answered at once (`http_control.py`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from gateway.core.call import Identity
from gateway.core.errors import GatewayError, Reason
from gateway.edge.headers import ClientHeaders
from gateway.edge.http_answer import HttpAnswer
from gateway.edge.http_call import CLIENT_LEFT, HttpCall
from gateway.edge.http_control import ASKED, ControlDesk
from gateway.edge.http_generate import ROUTES, HttpGenerate
from gateway.edge.http_kit import CallKit
from gateway.edge.http_words import HeadWords
from gateway.edge.patience import patience_s, within
from gateway.edge.status import internal_error
from gateway.wire.http1 import RequestHead
from gateway.wire.http_path import PathMatch, Route

if TYPE_CHECKING:
    from gateway.edge.http_connection import HttpConnection
    from gateway.edge.http_server import HttpServer

_log = logging.getLogger("sluice.edge")

BODY_BYTES_MAX = 4096
"""Of the only question that has a body; it knows one word. Not counted against the memory for bodies: a connection's
headers may take more.
"""


class QuestionOutlet(Protocol):
    """What a question needs of its connection."""

    def may_write(self, call: HttpCall | HttpQuestion) -> bool: ...

    def write(self, call: HttpCall | HttpQuestion, answer: HttpAnswer) -> None: ...

    def abort(self) -> None: ...


class HttpQuestion:
    """Fed and asked by its connection in the same words as `HttpCall`."""

    __slots__ = (
        "_abandoned",
        "_body",
        "_client",
        "_complete",
        "_cut",
        "_desk",
        "_expects",
        "_fault",
        "_identity",
        "_kit",
        "_match",
        "_outlet",
        "_started",
        "_status",
        "_takes_body",
        "_task",
        "_waiter",
        "answer",
        "answered",
        "wanted",
    )

    def __init__(
        self,
        kit: CallKit,
        desk: ControlDesk,
        outlet: QuestionOutlet,
        head: RequestHead,
        match: PathMatch,
        client: ClientHeaders,
    ) -> None:
        self._kit = kit
        self._desk = desk
        self._outlet = outlet
        self._match = match
        self._client = client
        self._takes_body = match.route is Route.REPOSITORY_INDEX
        self._expects = head.expect_continue
        self._body = bytearray()
        self._complete = False
        self._identity: Identity | None = None
        self._fault: tuple[GatewayError, int] | None = None
        self._cut: GatewayError | None = None
        self._abandoned = False
        self._started = False
        self._status = 0
        """Of the answer; 0 as long as there is none."""
        self._waiter: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self.answer: HttpAnswer | None = None
        """The answer that waits for its turn."""
        self.answered = False
        self.wanted = False

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Who may not ask is told so at once, without the body and without a word to the model servers."""
        admitted = self._desk.admit(self._match, self._client)
        if isinstance(admitted, HttpAnswer):
            self._count(admitted.status)
            self.answer = admitted
            return
        self._identity = admitted
        self.wanted = self._takes_body
        self._task = task = loop.create_task(self._run())
        self._kit.tasks[task] = None
        task.add_done_callback(self._over)

    # ------------------------------------------------------------ the body

    @property
    def waits_for_client(self) -> bool:
        return self.wanted and not self._complete and self._fault is None

    @property
    def held_bytes(self) -> int:
        return 0

    def feed(self, data: bytes | memoryview) -> None:
        """Part of the body. That of a question which has none is dropped."""
        if not self._takes_body or self._fault is not None:
            return
        if len(self._body) + len(data) > BODY_BYTES_MAX:
            self.fail_body(GatewayError(Reason.TOO_LARGE, f"the body has more than {BODY_BYTES_MAX} bytes"))
        else:
            self._body += data

    def place(self, size: int) -> memoryview | None:
        """Its body is small."""
        return None

    def placed(self, size: int) -> None:
        raise AssertionError("no place was given")

    def end_body(self) -> None:
        self._complete = True
        self._wake()

    def fail_body(self, error: GatewayError, status: int = 0) -> None:
        """The body will not come, or not be kept. The first fault counts."""
        if self._fault is None:
            self._fault = (error, status)
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _arrived(self) -> None:
        while self._takes_body and not self._complete and self._fault is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._fault is not None:
            raise self._fault[0]

    # ---------------------------------------------------------- the answer

    def take_turn(self) -> None:
        """Nothing to do: the answer is taken from `answer` when it is there."""

    def abandon(self) -> None:
        """The caller left."""
        self._abandoned = True
        self.answer = None
        if self._task is not None:
            self._task.cancel()

    def cut(self, error: GatewayError) -> None:
        """End the question with `error`, because the gateway stops."""
        if self._status == 0 and self._task is not None:
            self._cut = error
            self._task.cancel()

    async def _run(self) -> None:
        self._started = True
        try:
            answer = await within(patience_s(self._client.timeout_s), self._ask)
        except GatewayError as error:
            answer = self._refused(error)
        except asyncio.CancelledError as raised:
            if self._abandoned:
                return
            answer = self._refused(self._cut or self._internal(raised))
        except BaseException as raised:
            # As for calls: whatever it is, it is the fault of one request, and must not take the loop with it.
            answer = self._refused(self._internal(raised))
        try:
            self._give(answer)
        except BaseException as raised:
            self._internal(raised)
            self._outlet.abort()

    async def _ask(self) -> HttpAnswer:
        await self._arrived()
        assert self._identity is not None, "a question is asked by somebody"
        return await self._desk.ask(self._match, self._client, self._identity, bytes(self._body))

    def _refused(self, error: GatewayError) -> HttpAnswer:
        status = self._fault[1] if self._fault is not None and self._fault[0] is error else 0
        return self._desk.refused(self._match, self._client, error, status)

    def _give(self, answer: HttpAnswer) -> None:
        if self._abandoned:
            return
        self._count(answer.status)
        if self._outlet.may_write(self):
            self._outlet.write(self, answer)
        else:
            self.answer = answer

    def _count(self, status: int) -> None:
        self._status = status
        route = self._match.route
        self._kit.observer.request_without_call("http", route.template if route is not None else "", str(status))

    def _over(self, task: asyncio.Task[None]) -> None:
        """The task is done. If it was cancelled before its first step, nothing of `_run` has run."""
        self._kit.tasks.pop(task, None)
        self._task = None
        if self._status == 0 and self._abandoned:
            self._count(CLIENT_LEFT)
        elif not self._started:
            self._give(self._refused(self._cut or self._internal(asyncio.CancelledError("before it had begun"))))

    def _internal(self, cause: BaseException) -> GatewayError:
        self._kit.observer.internal_fault("http")
        _log.error(
            "request %s: an internal fault ended a question to the model servers",
            self._client.request_id,
            exc_info=(type(cause), cause, cause.__traceback__),
        )
        return internal_error()


_INFER = Route.MODEL_INFER

Exchange = HttpCall | HttpQuestion
"""What waits in a connection's line for an answer that is still being made."""


def exchange_for(
    server: HttpServer,
    outlet: HttpConnection,
    head: RequestHead,
    match: PathMatch,
    client: ClientHeaders,
    arrived_s: float,
) -> Exchange | None:
    """What is to be started for a request that was not refused; None if it can be answered at once."""
    if match.route is _INFER or match.route in ROUTES:
        kind = HttpCall if match.route is _INFER else HttpGenerate
        fault = server.desk.fault(head, match, client)
        return kind(server.kit, outlet, HeadWords(head), head.content_length, match, client, arrived_s, fault)
    if match.route in ASKED:
        return HttpQuestion(server.kit, server.desk, outlet, head, match, client)
    return None
