"""DeadlineScope: cut a piece of work short at an absolute instant, on the timer wheel.

The behaviour of `asyncio.timeout_at`, which costs a loop timer per use and reads the loop's clock. The scope cancels
the current task when the instant has passed and turns that cancellation, and no other, into `DeadlinePassed`: if the
task was cancelled from outside as well, the outside wins.
"""

from __future__ import annotations

import asyncio
from asyncio import current_task
from types import TracebackType

from gateway.runtime.wheel import NOWHERE, TimerWheel, Waiting

_INFINITY = float("inf")


class DeadlinePassed(Exception):
    """The scope's instant passed before its body ended."""


class DeadlineScope(Waiting):
    """`with DeadlineScope(wheel, at_s): await ...`: raises `DeadlinePassed` if the body is still running at `at_s`.

    The body must let CancelledError through. Synchronous to enter and to leave: an exit never awaits. It waits on the
    wheel itself: a timer besides would be one more object per call, and know this one, which is a circle.

    It begins when it is made. Where `with` is too dear, `end` is to be called at the end of the body, whatever that is;
    of a body that raised nothing, while it has not `fired`, it is enough to take it out of its `bucket`.
    """

    __slots__ = ("_cancelling", "_task", "fired")

    def __init__(self, wheel: TimerWheel, at_s: float) -> None:
        self.bucket = NOWHERE
        self.fired = False
        """The instant passed inside the body."""
        task = current_task()
        if task is None:
            raise RuntimeError("a deadline scope must be entered inside a task: it works by cancelling it")
        self._task: asyncio.Task[object] | None = task
        self._cancelling = task.cancelling()
        if at_s != _INFINITY:
            wheel.place(self, at_s)

    def __enter__(self) -> DeadlineScope:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.end(error):
            raise DeadlinePassed from error

    def end(self, error: BaseException | None) -> bool:
        """The body has ended, by `error` if not None. Whether that is because the instant passed."""
        self.bucket.pop(self, None)
        task, self._task = self._task, None
        if not self.fired:
            return False
        assert task is not None
        # The wheel cancelled once; what is left above the count at entry is somebody else's and must go on.
        return task.uncancel() <= self._cancelling and type(error) is asyncio.CancelledError

    def fire(self) -> None:
        self.fired = True
        assert self._task is not None
        self._task.cancel()
