"""One timer for all the time-outs of a connection.

Deadlines of a connection move with every request, and nearly none is ever reached. The timer is therefore set anew
only when something becomes due earlier than it stands; when it fires, the deadlines are looked at, and it is set to
the next. A request that comes and goes in time costs no timer.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.runtime.wheel import Timer, TimerWheel

FOREVER = float("inf")


def _forever() -> float:
    return FOREVER


class LazyTimer:
    """`next_s` gives the next deadline (monotonic seconds, `FOREVER` for none), `look` acts on those that passed.
    `due_s` is when it fires: who knows that no deadline is earlier need not say that they have changed.
    """

    __slots__ = ("_look", "_next_s", "_timer", "_wheel", "due_s")

    def __init__(self, wheel: TimerWheel, next_s: Callable[[], float], look: Callable[[], object]) -> None:
        self._wheel = wheel
        self._next_s = next_s
        self._look = look
        self._timer: Timer | None = None
        self.due_s = FOREVER

    def watch(self) -> None:
        """Deadlines have changed."""
        due_s = self._next_s()
        if due_s < self.due_s:
            if self._timer is not None:
                self._timer.cancel()
            self.due_s = due_s
            self._timer = self._wheel.call_at(due_s, self._fire)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.due_s = FOREVER

    def close(self) -> None:
        """Cancel for good, and let go of the owner: with its own bound methods here, only the collector of cycles
        would free it.
        """
        self.cancel()
        self._next_s, self._look = _forever, _forever

    def _fire(self) -> None:
        self._timer, self.due_s = None, FOREVER
        self._look()
