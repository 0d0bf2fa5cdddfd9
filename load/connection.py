"""What a generator sends through: one caller with one connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from load.inputs import LoadCall

Done = Callable[[str], None]
"""Told how a call ended: an empty string for a right answer, else the kind of the error."""

WRONG_ANSWER = "wrong answer"
NO_ANSWER = "no answer"
CONNECTION = "connection"
NO_HEADERS: Mapping[str, str] = {}
GRACE_S = 1.0
"""How long after a call's deadline its caller still waits before it counts as `NO_ANSWER`."""

Part = Callable[[], None]
"""Told of each response of a stream, the last one included, when it has come."""


class Connection(Protocol):
    """One caller: one call at a time, on a connection that is opened again when it breaks."""

    def send(self, call: LoadCall, done: Done) -> None:
        """Send a call. `done` is called once, at the latest `GRACE_S` after the call's deadline if `check` is called
        meanwhile.
        """

    def check(self, now_s: float) -> None:
        """Give up a call that has got no answer for too long."""

    async def aclose(self) -> None:
        """Close the connection; a call that is out ends with an error."""


class Sender(Protocol):
    """Many calls at a time, over as many connections as that takes."""

    def send(self, call: LoadCall, done: Done, part: Part | None = None) -> None:
        """Send a call at once. `done` is called once, as a `Connection` does it; `part` before it for each response of
        a stream, and never for a call that has one answer.
        """

    def check(self, now_s: float) -> None:
        """Give up calls that have got no answer for too long. `now_s` is the running loop's time."""

    async def aclose(self) -> None:
        """Close all connections; calls that are out end with an error."""
