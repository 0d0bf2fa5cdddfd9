"""The ordered trace of a run: what two runs of one seed must agree on, and what a failing seed shows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

Event = tuple[float, str, tuple[object, ...]]


class Trace:
    """Events with virtual times, kept as tuples and rendered only when asked for.

    Fields must render the same in every run: no memory addresses, no task names of the stdlib's counter.
    """

    __slots__ = ("events", "now_s", "origin_s")

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.now_s = now_s
        self.origin_s = now_s()
        self.events: list[Event] = []

    def add(self, kind: str, *fields: object) -> None:
        """Note that `kind` happened now."""
        self.events.append((self.now_s(), kind, fields))

    def lines(self, last: int | None = None) -> list[str]:
        """The events as text, or the `last` ones; times in milliseconds since the start."""
        events = self.events if last is None else self.events[-last:]
        return [
            f"{(at_s - self.origin_s) * 1000.0:12.4f} ms  {kind:<12} {' '.join(map(str, fields))}"
            for at_s, kind, fields in events
        ]

    def digest(self) -> str:
        """SHA-256 over all events, times at full precision."""
        return hashlib.sha256("\n".join(map(repr, self.events)).encode()).hexdigest()
