"""DeadlineScope: cut a piece of work short at an absolute instant, on the timer wheel.

The behaviour of `asyncio.timeout_at`, which costs a loop timer per use and reads the loop's clock. The scope cancels
the current task when the instant has passed and turns that cancellation, and no other, into `DeadlinePassed`: if the
task was cancelled from outside as well, the outside wins.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from gateway.runtime.wheel import NOWHERE, TimerWheel, Waiting

_INFINITY = float("inf")


class DeadlinePassed(Exception):
    """The scope's instant passed before its body ended."""


class DeadlineScope(Waiting):
    """`with DeadlineScope(wheel, at_s): await ...`: raises `DeadlinePassed` if the body is still running at `at_s`.

    The body must let CancelledError through. Synchronous to enter and to leave: an exit never awaits. It waits on the
    wheel itself: a timer besides would be one more object per call, and know this one, which is a circle.
    """

    __slots__ = ("_at_s", "_cancelling", "_fired", "_task", "_wheel")

    def __init__(self, wheel: TimerWheel, at_s: float) -> None:
        self.bucket = NOWHERE
        self._wheel = wheel
        self._at_s = at_s
        self._fired = False
        self._task: asyncio.Task[object] | None = None

    def __enter__(self) -> DeadlineScope:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a deadline scope must be entered inside a task: it works by cancelling it")
        self._task = task
        self._cancelling = task.cancelling()
        if self._at_s != _INFINITY:
            self._wheel.place(self, self._at_s)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.bucket.pop(self, None)
        task, self._task = self._task, None
        if self._fired:
            assert task is not None
            # The wheel cancelled once; what is left above the count at entry is somebody else's and must go on.
            if task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
                raise DeadlinePassed from error

    def fire(self) -> None:
        self._fired = True
        assert self._task is not None
        self._task.cancel()
