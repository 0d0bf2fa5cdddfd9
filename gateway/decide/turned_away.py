"""TurnedAway: are calls of a class refused for the length of the queue, and not those of one greedy tenant alone?

A queue that is kept short on arrival never stands for long, and no guard that looks at waits (`codel.py`) can tell
then that more comes than can be served. What tells is the share that is refused. The verdict follows the guard's
interval: it is that of the last interval that has ended, and ends itself when nothing was asked for a whole one.

By tenant, because fair turns already refuse whoever asks for more than its share: where another tenant is served as it
asks, to shed by cohort would take from that one too. Tenants with few calls in an interval count as one together.

Memory: a row for each of at most `TENANTS_MAX` tenants of one interval. O(1) but for the end of an interval.
"""

from __future__ import annotations

SHARE = 0.05
"""Of the calls, those refused: as much as the cohorts take away at a step. Below it the room alone will do."""
FEW = 4
"""Calls in an interval that say nothing of their tenant by themselves."""
TENANTS_MAX = 64
"""As many as there are lines. Further ones count together."""


class TurnedAway:
    """Of one class of a waiting room."""

    __slots__ = ("_end_s", "_interval_s", "_overloaded", "_rows")

    def __init__(self) -> None:
        self._rows: dict[str, list[int]] = {}
        """Of each tenant: calls, and those of them that were refused."""
        self._end_s: float | None = None
        self._interval_s = 0.0
        self._overloaded = False

    def note(self, tenant: str, refused: bool, now_s: float, interval_s: float) -> None:
        """A call found no free slot, and was `refused` or let in to wait. `interval_s` is for the next interval."""
        end_s = self._end_s
        if end_s is None or now_s >= end_s:
            self._overloaded = self.overloaded(now_s)
            self._rows.clear()
            self._interval_s = interval_s
            self._end_s = now_s + interval_s
        rows = self._rows
        row = rows.get(tenant)
        if row is None:
            row = rows.setdefault(tenant if len(rows) < TENANTS_MAX else "", [0, 0])
        row[0] += 1
        row[1] += refused

    def overloaded(self, now_s: float) -> bool:
        """The verdict of the last interval that has ended. Changes nothing."""
        end_s = self._end_s
        if end_s is None:
            return False
        if now_s < end_s:
            return self._overloaded
        return now_s < end_s + self._interval_s and self._all_are()

    def _all_are(self) -> bool:
        """Whether too large a share was refused, of every tenant's calls."""
        small = [0, 0]
        for calls, refused in self._rows.values():
            if calls < FEW:
                small[0] += calls
                small[1] += refused
            elif refused <= SHARE * calls:
                return False
        if small[0] >= FEW:
            return small[1] > SHARE * small[0]
        return len(self._rows) > 0 and any(calls >= FEW for calls, _ in self._rows.values())
