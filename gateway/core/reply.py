"""Reply: the whole answer to a unary call, and what must be released when it is done with."""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.outcome import Outcome

Closer = Callable[[Outcome], None]


class Reply:
    """The answer to a call: `message` is the serialized `inference.ModelInferResponse`.

    Ends by `aclose(outcome)`, exactly once; a second close is an error of the caller's and raises. Closers hung on
    with `on_close` run last in, first out; each runs even if another failed, and the first failure is raised at the
    end.
    """

    __slots__ = ("_closed", "_closers", "message")

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
        for closer in reversed(closers or ()):
            try:
                closer(outcome)
            except BaseException as error:
                failure = failure or error
        if failure is not None:
            raise failure
