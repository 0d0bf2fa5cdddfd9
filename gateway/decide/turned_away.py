"""TurnedAway: the share of a class's calls that is refused for the length of the queue, whoever sends.

A queue that is kept short on arrival never stands for long, and no guard that looks at waits (`codel.py`) can tell
then that more comes than can be served. What tells is the share that is refused. It is told of the last interval that
has ended, the guard's, and forgotten when nothing came for a whole one.

By tenant, because fair turns already refuse whoever asks for more than its share: where another tenant is served as it
asks, to shed by cohort would take from that one too. So it is the least of the tenants' shares. Tenants with few calls
in an interval count as one together.

Memory: a row for each of at most `TENANTS_MAX` tenants of one interval. O(1) but for the end of an interval.
"""

from __future__ import annotations

FEW = 4
"""Calls in an interval that say nothing of their tenant by themselves."""
TENANTS_MAX = 64
"""As many as there are lines. Further ones count together."""


class TurnedAway:
    """Of one class of a waiting room."""

    __slots__ = ("_end_s", "_interval_s", "_rows", "_share")

    def __init__(self) -> None:
        self._rows: dict[str, list[int]] = {}
        """Of each tenant: calls, and those of them that were refused."""
        self._end_s: float | None = None
        self._interval_s = 0.0
        self._share = 0.0
        """Of the interval before."""

    def note(self, tenant: str, refused: bool, now_s: float, interval_s: float) -> None:
        """A call came, and was `refused` or not. `interval_s` is for the next interval."""
        end_s = self._end_s
        if end_s is None or now_s >= end_s:
            self._share = self.share(now_s)
            self._rows.clear()
            self._interval_s = interval_s
            self._end_s = now_s + interval_s
        rows = self._rows
        row = rows.get(tenant)
        if row is None:
            row = rows.setdefault(tenant if len(rows) < TENANTS_MAX else "", [0, 0])
        row[0] += 1
        row[1] += refused

    def share(self, now_s: float) -> float:
        """Of the last interval that has ended. Changes nothing."""
        end_s = self._end_s
        if end_s is None:
            return 0.0
        if now_s < end_s:
            return self._share
        return self._least() if now_s < end_s + self._interval_s else 0.0

    def _least(self) -> float:
        small, shares = [0, 0], []
        for calls, refused in self._rows.values():
            if calls < FEW:
                small[0] += calls
                small[1] += refused
            else:
                shares.append(refused / calls)
        if small[0] >= FEW:
            shares.append(small[1] / small[0])
        return min(shares, default=0.0)
