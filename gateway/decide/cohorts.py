"""Cohorts: which users are shed under overload, so that the same ones are in or out from call to call.

DAGOR (Zhou et al., "Overload Control for Scaling WeChat Microservices", SoCC 2018): a call has a level, its class
times 128 and the cohort of its user, a hash of the user's key and the hour. A cursor stands on the levels; what is
above it is shed. Re-set every 250 ms: under overload so that 5 % less get in, else 1 % more. Why consistent: a task of
x calls at an acceptance of one half by chance succeeds in 0.5^x of cases, by cohort in nearly half. Re-hashed by the
hour, so that nobody is out for good.

The top class is never shed here: the cursor does not fall into its levels. The waiting room may still refuse a call of
it, for want of time before its deadline or when the top class alone overfills the room.

Ours, where DAGOR says nothing or would be slow:
- "5 % less" is of the calls that got a slot, not of those that the cursor let through. At three times the capacity one
  step then comes down to the capacity, where 5 % of three thirds take 22; and a backlog that drains while the cursor
  is right already does not pull it down further. No step takes away more than half of what got through.
- The signal of overload is late, up to two intervals of the guard that gives it (`settle_s`): nothing falls before a
  window of that length is full, lest the cursor fall several times for one cause.
- After four quiet re-sets in a row the step doubles with each further one: when an overload has ended, all are in
  again within 2.5 s instead of 17.
- Where the room keeps its queue short by itself no queue stands, and what tells of overload is the share that it
  refuses. Then a fifth more is let in than got slots, or the servers would idle each time that a few calls fewer come
  than usual; and the step doubles from the first quiet re-set on, for too many do no harm.

Memory: one row of 512 counts. O(1) but for the re-sets, O(512).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CLASSES = 4
COHORTS = 128
LEVELS = CLASSES * COHORTS

REFUSED_MAX = 0.25
"""A greater share that the room refuses is a sign of overload. Where few may wait some are refused at nearly full load,
too.
"""
REFUSED_MIN = 0.05
"""At a smaller share more may be let in again. Between the two the cursor stays: what is let in is a little more than
is served, and the room refuses the rest.
"""
QUIET = 4
"""Quiet re-sets before the step doubles: one second."""
OPEN_AFTER = 16
"""Re-sets without a single call after which all are let in."""
STALE = 8
"""Re-sets after which the last word on overload does not count any more."""


@dataclass(frozen=True, slots=True)
class CohortSettings:
    period_s: float = 0.25
    """Between two re-sets. DAGOR has one second or 2,000 calls; a quarter reacts within the second that the goal is."""
    fall_share: float = 0.05
    """DAGOR's alpha."""
    rise_share: float = 0.01
    """DAGOR's beta."""
    spare_share: float = 0.2
    """Where no queue stands and the room refuses what is too much: more than got slots, by so much, are let in all the
    same. Nothing else would keep the servers busy while a few calls fewer than usual come. Ours.
    """

    def __post_init__(self) -> None:
        if not (0 < self.period_s < 3600 and 0 < self.fall_share < 1 and 0 < self.rise_share < 1):
            raise ValueError(f"the period must be positive and below an hour, the shares between 0 and 1, not {self}")


DEFAULTS = CohortSettings()


def level(criticality: int, key: str, hour: int) -> int:
    """The level of a call: 0 is shed last, `LEVELS` - 1 first. `key` names the user, or the tenant where that is
    all that is known (then a tenant is in or out as a whole); `hour` counts hours of the wall clock. Every gateway
    gives the same. Raises ValueError for a class that there is not.
    """
    if not 0 <= criticality < CLASSES:
        raise ValueError(f"there is no class {criticality}")
    digest = hashlib.blake2b(f"{hour}:{key}".encode("utf-8", "surrogatepass"), digest_size=2).digest()
    return criticality * COHORTS + int.from_bytes(digest) % COHORTS


class Cohorts:
    """The cursor of one (pool, model, version)."""

    __slots__ = (
        "_admitted",
        "_admitted_by_class",
        "_holds",
        "_offered",
        "_overloaded",
        "_quiet",
        "_refused_by_class",
        "_settings",
        "_settle_s",
        "_stands",
        "_stood",
        "_tick_s",
        "_told_s",
        "_window_s",
        "cursor",
    )

    def __init__(self, settings: CohortSettings = DEFAULTS) -> None:
        self._settings = settings
        self.cursor = LEVELS - 1
        """The last level that is let in; `LEVELS` - 1 if all are. For reading."""
        self._offered = [0] * LEVELS
        self._admitted = 0
        """These two are of the running window."""
        self._window_s: float | None = None
        """Since when these counts run; None before the first call."""
        self._tick_s = 0.0
        """The last re-set."""
        self._overloaded = False
        self._stands = self._holds = False
        self._stood = True
        """The last fall was for a queue that stood."""
        self._told_s = 0.0
        self._settle_s = 0.0
        self._quiet = 0
        self._admitted_by_class = [0] * CLASSES
        self._refused_by_class = [0] * CLASSES

    def admits(self, level: int, now_s: float) -> bool:
        """A call arrives: is it let in? Counts it either way."""
        self._reset(now_s)
        self._offered[level] += 1
        if level <= self.cursor:
            return True
        self._refused_by_class[level // COHORTS] += 1
        return False

    def note_admitted(self, level: int) -> None:
        """A call that was let in got its slot."""
        self._admitted += 1
        self._admitted_by_class[level // COHORTS] += 1

    def overloaded(self, stands: bool, now_s: float, settle_s: float = 0.0, refused: float = 0.0) -> None:
        """What the guard of the queue says, and which share is `refused` for what is ahead of them; to be told at
        least once a re-set. `settle_s` is how late it may be.
        """
        self._reset(now_s)
        self._overloaded, self._stands = stands or refused > REFUSED_MAX, stands
        self._holds = not self._overloaded and refused > REFUSED_MIN
        self._told_s, self._settle_s = now_s, settle_s

    def _reset(self, now_s: float) -> None:
        window_s, period_s = self._window_s, self._settings.period_s
        if window_s is None:
            self._window_s = self._tick_s = now_s
            return
        passed_s = now_s - self._tick_s
        if passed_s < period_s:
            return
        self._tick_s = now_s
        if (self._overloaded or self._holds) and now_s - self._told_s <= max(STALE * period_s, self._settle_s):
            self._quiet = 0
            if now_s - window_s < self._settle_s:
                return
            if self._overloaded:
                self._fall()
        else:
            self._rise()
            for _ in range(min(int(passed_s / period_s) - 1, OPEN_AFTER)):
                self._offered = [0] * LEVELS
                self._rise()
        self._offered, self._admitted = [0] * LEVELS, 0
        self._window_s = now_s

    def _fall(self) -> None:
        """Down until what is let in is 5 % less than what got slots, of the calls of this window, or where no queue
        stands a fifth more; no further, even if one cohort is too heavy to come near it: servers that run idle help
        nobody, and the waiting room does the rest.
        """
        offered, cursor, settings = self._offered, self.cursor, self._settings
        let_in = sum(offered[: cursor + 1])
        self._stood = self._stands
        share = 1 - settings.fall_share if self._stands else 1 + settings.spare_share
        target = max(share * self._admitted, 0.5 * let_in)
        while cursor >= COHORTS and let_in - offered[cursor] >= target:
            let_in -= offered[cursor]
            cursor -= 1
        self.cursor = cursor

    def _rise(self) -> None:
        """Up until 1 % of all calls of this window more would have been let in, or more after a long quiet."""
        self._quiet += 1
        doublings = max(0, self._quiet - QUIET) if self._stood else self._quiet + 1
        share = min(1.0, self._settings.rise_share * 2.0 ** min(doublings, 10))
        offered, cursor = self._offered, self.cursor
        everybody = sum(offered)
        if not everybody:
            self.cursor = min(LEVELS - 1, cursor + max(1, int(share * LEVELS)))
            return
        more = share * everybody
        while more > 0 and cursor < LEVELS - 1:
            cursor += 1
            more -= offered[cursor]
        self.cursor = cursor

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        """`class` and `cohort` are those of the cursor: calls up to it are let in."""
        return {
            "cursor": self.cursor,
            "class": self.cursor // COHORTS,
            "cohort": self.cursor % COHORTS,
            "open": self.cursor == LEVELS - 1,
            "overloaded": self._overloaded,
            "admitted_by_class": {str(rank): count for rank, count in enumerate(self._admitted_by_class)},
            "refused_by_class": {str(rank): count for rank, count in enumerate(self._refused_by_class)},
        }
