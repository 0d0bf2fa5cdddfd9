"""Reply: the answer to a call, and what must be released when it is done with.

A unary call's reply is whole. A streaming call's (`StreamReply`) is its first response, with the way to the others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from gateway.core.errors import GatewayError
from gateway.core.outcome import Outcome

Closer = Callable[[Outcome], None]


class Reply:
    """The answer to a call: `message` is the serialized `inference.ModelInferResponse`. `streaming`: this is a
    `StreamReply`.

    Ends by `aclose(outcome)`, exactly once; a second close is an error of the caller's and raises. Closers hung on
    with `on_close` run in the order in which they were hung, which is from the inside out: what a layer took last is
    given back first, and the record, outermost, sees how everything ended. Each runs even if another failed, and the
    first failure is raised at the end.
    """

    __slots__ = ("_closed", "_closers", "message")

    streaming = False

    def __init__(self, message: bytes) -> None:
        self.message = message
        self._closers: list[Closer] | None = None
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def on_close(self, closer: Closer) -> None:
        """Have `closer` called with the outcome when the reply ends."""
        if self._closed:
            raise RuntimeError("the reply is closed already: nothing can be hung on it")
        if self._closers is None:
            self._closers = [closer]
        else:
            self._closers.append(closer)

    async def aclose(self, outcome: Outcome) -> None:
        """End the reply. Asynchronous because a stream's end may have to wait; a unary reply never does."""
        if self._closed:
            raise RuntimeError("a reply ends once; this one was closed twice")
        self._closed = True
        # Let go of the closers: one that refers to its reply would keep the message until the collector comes by.
        closers, self._closers = self._closers, None
        failure: BaseException | None = None
        for closer in closers or ():
            try:
                closer(outcome)
            except BaseException as error:
                failure = failure or error
        if failure is not None:
            raise failure


class Response(NamedTuple):
    """One response of a stream.

    `message` is the serialized `inference.ModelInferResponse`. With an `error`, the model reported one in place of a
    response, and `message` holds no outputs; more may follow, for an error inside a stream does not end it.
    """

    message: bytes
    error: GatewayError | None = None


Next = Callable[[], Awaitable[Response | None]]


class StreamReply(Reply):
    """Any number of responses, none included.

    `next()` gives them one after the other, the first one too, and None at the orderly end; after None it is not to be
    asked again. It raises `GatewayError` if the stream broke: what came before was not all. `message` is the first
    response's, b"" if there is none. Only one may wait in `next()` at a time, and it may be cancelled there.

    `failure` is the first error that came by, inside a response or instead of one, so that the record of a stream that
    began well tells how it ended. `count` is the number of responses that `next()` gave out, errors included.
    """

    __slots__ = ("_first", "_next", "_pending", "count", "failure", "finished", "ordered")

    streaming = True

    def __init__(self, first: Response | None, following: Next, *, ordered: bool, finished: bool = False) -> None:
        """`ordered`: the model gives one response per request, and on a shared stream callers expect these in the order
        of their requests. `finished`: the replica is done with the request; nothing is out any more.
        """
        super().__init__(b"" if first is None else first.message)
        self._first = first
        self._pending = True
        self._next = following
        self.ordered = ordered
        self.finished = finished
        self.count = 0
        self.failure: GatewayError | None = None

    @property
    def first(self) -> Response | None:
        """The first response, before or after it was taken; None if the stream ended without any."""
        return self._first

    def guard(self, guard: Callable[[Next], Next]) -> None:
        """Have a layer stand between the caller and the responses that are still to come (a time limit, say)."""
        self._next = guard(self._next)

    async def next(self) -> Response | None:
        """The next response, or None at the end. Raises `GatewayError`."""
        if self._pending:
            self._pending = False
            response = self._first
        else:
            try:
                response = await self._next()
            except GatewayError as error:
                self.failure = self.failure or error
                raise
        if response is not None:
            self.count += 1
            if response.error is not None:
                self.failure = self.failure or response.error
        return response
