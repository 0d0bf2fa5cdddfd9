"""Restraint: whom the client of a replica asks before it cancels a call there.

A cancel that races with its own completion has crashed Triton servers (field case FH-11), so they are counted and
capped (`decide/cancel_cap.py`). What may not be cancelled is left to run out on the replica, and its answer is thrown
away.
"""

from __future__ import annotations

from typing import Protocol


class Restraint(Protocol):
    """Of one replica. Synchronous; never raises."""

    guarded: bool
    """Cancels have become frequent: ask `slack_s` with each call. May be True for a while after that is over."""

    def may_cancel(self, *, again: bool = False) -> bool:
        """Whether an inference may be cancelled on the replica now; True is one that is made. `again`: it was asked
        about this one before, and has been left to run out since.
        """
        ...

    def cancelled(self) -> None:
        """One was cancelled there without asking: a stream, or a call whose time the replica keeps by itself."""
        ...

    def slack_s(self) -> float:
        """How much longer than its own the time limit of a call is that the replica is told, seconds. A replica cancels
        a call by itself when the time that it was told is over.
        """
        ...


class Free:
    """Nobody is asked."""

    __slots__ = ()

    guarded = False

    def may_cancel(self, *, again: bool = False) -> bool:
        return True

    def cancelled(self) -> None:
        return None

    def slack_s(self) -> float:
        return 0.0
