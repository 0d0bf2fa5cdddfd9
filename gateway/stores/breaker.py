"""DependencyBreaker: the one adapter around pybreaker, for what a gateway depends on besides its replicas.

pybreaker keeps the count of failures in a row and the state. The adapter adds what it lacks (reference: its 1.4
source): outcomes are told after the fact, so that a cancellation is never taken for a failure and nothing is awaited
inside it; time is the gateway's monotonic clock, not the wall's; half open lets one trial through, not everybody.
Replicas have breakers of their own (`decide/breaker.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pybreaker

_WALL_NEVER_S = 10**9
"""pybreaker's own pause, by the wall clock; ours decides long before."""


class _FailedError(Exception):
    """What stands for a failure in pybreaker's eyes."""


class DependencyBreaker:
    """Opens after `failures_max` failures in a row; after `pause_s` lets one trial through, and again each `pause_s`
    until one succeeds.
    """

    def __init__(self, name: str, *, failures_max: int = 3, pause_s: float = 1.0) -> None:
        self._pause_s = pause_s
        self._since_s = 0.0
        """When it opened, or last let a trial through."""
        self._opened = 0
        self._breaker = pybreaker.CircuitBreaker(
            fail_max=failures_max, reset_timeout=_WALL_NEVER_S, name=name, throw_new_error_on_trip=False
        )

    @property
    def closed(self) -> bool:
        return self._breaker.current_state == pybreaker.STATE_CLOSED

    def allows(self, now_s: float) -> bool:
        """Whether the dependency may be asked now. While it is not closed, at most once in `pause_s`."""
        if self.closed:
            return True
        if now_s - self._since_s < self._pause_s:
            return False
        self._since_s = now_s
        self._breaker.half_open()
        return True

    def succeeded(self) -> None:
        """It answered. What was asked before it opened may do so late: that closes it too."""
        if self._breaker.current_state == pybreaker.STATE_OPEN:
            self._breaker.half_open()
        self._breaker.call(_nothing)

    def failed(self, now_s: float) -> None:
        """It did not answer, or answered that it cannot."""
        if self._breaker.current_state == pybreaker.STATE_OPEN:
            return
        try:
            self._breaker.call(_fail)
        except _FailedError:
            if self._breaker.current_state == pybreaker.STATE_OPEN:
                self._since_s = now_s
                self._opened += 1

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        return {"state": self._breaker.current_state, "opened": self._opened, "failures": self._breaker.fail_counter}


def _nothing() -> None:
    return None


def _fail() -> None:
    raise _FailedError
