"""The clock: the only place that reads time (a test holds the rest of the house to that)."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two readings. Deadlines and durations use `now_s`; only records and file names use `wall_s`."""

    def now_s(self) -> float:
        """Monotonic seconds. The zero is arbitrary; never goes back."""
        ...

    def wall_s(self) -> float:
        """Seconds since the epoch. May jump."""
        ...


class SystemClock:
    """The machine's clocks. `now_s` is not the event loop's time: uvloop's is cached per turn and counts
    milliseconds.
    """

    __slots__ = ("now_s", "wall_s")

    def __init__(self) -> None:
        # Held by the object: what is loaded from it and then called is found at once, a static method is looked for.
        self.now_s = time.monotonic
        self.wall_s = time.time
