"""CoDel: is there a queue that stands, and which of those in it have waited too long to be served.

Meta's form of it (`folly/executors/Codel.cpp`; Maurer, "Fail at Scale", ACM Queue 2015), after Nichols and Jacobson's
CoDel (2012): at the end of each interval the queue counts as overloaded if even the shortest wait seen in it was above
the target. While overloaded, who waited for more than twice the target is dropped as its turn comes; the first of an
interval never is. A burst that drains within an interval loses nobody.

Target and interval follow the batch time of the model. A queue in front of a batching server holds everybody for up
to one batch even when all is well, and a target below that would drop all of them. Nor is a wait that leaves the
model's objective within reach a reason to drop anybody: many callers who each wait for their answer make a queue that
stands and hurts nobody. The target is at least half of what may be waited, so that who is dropped would have missed
the objective.

One of ours: the verdict ends with the queue. When nothing came out for a whole interval, or the queue was seen empty,
there is no overload, whatever the last samples were; folly keeps it until the next sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CodelSettings:
    target_s: float = 0.005
    """A wait that is no sign of overload; at least one batch time, and half of what is bearable, is taken instead. 5 ms
    is folly's default.
    """
    interval_s: float = 0.1
    """How long the shortest wait must stay above the target; at least ten batch times are taken instead. 100 ms is
    folly's default.
    """

    def __post_init__(self) -> None:
        if not (0 < self.target_s < self.interval_s < 3600):
            raise ValueError(f"0 < target_s < interval_s < 3600 must hold, not {self.target_s}, {self.interval_s}")


DEFAULTS = CodelSettings()

INTERVAL_BATCHES = 10
SLOUGH = 2.0
"""Times the target: folly's slough timeout."""


class Codel:
    """The state of one queue: five numbers. All methods are O(1)."""

    __slots__ = ("_drops", "_end_s", "_interval_s", "_least_s", "_overloaded", "_settings", "_target_s")

    def __init__(self, settings: CodelSettings = DEFAULTS) -> None:
        self._settings = settings
        self._target_s = settings.target_s
        self._interval_s = settings.interval_s
        self._end_s: float | None = None
        """Of the running interval; None before the first sample."""
        self._least_s = 0.0
        """The shortest wait of the running interval."""
        self._overloaded = False
        """The verdict of the interval before."""
        self._drops = 0

    def drops(self, waited_s: float, now_s: float, batch_s: float, bearable_s: float = 0.0) -> bool:
        """Somebody's turn has come after `waited_s`: should it be dropped? `batch_s` is the time of a full batch (0
        while nobody knows), `bearable_s` how long a call may wait and still keep the objective.
        """
        end_s = self._end_s
        if end_s is None or now_s >= end_s:
            self._overloaded = self.overloaded(now_s)
            settings = self._settings
            self._target_s = max(settings.target_s, batch_s, bearable_s / SLOUGH)
            self._interval_s = max(settings.interval_s, INTERVAL_BATCHES * batch_s, self._target_s)
            self._end_s = now_s + self._interval_s
            self._least_s = waited_s
            return False
        if waited_s < self._least_s:
            self._least_s = waited_s
        if self._overloaded and waited_s > SLOUGH * self._target_s:
            self._drops += 1
            return True
        return False

    def emptied(self) -> None:
        """The queue is empty: it does not stand, and the verdict ends."""
        self._least_s = 0.0
        self._overloaded = False

    def overloaded(self, now_s: float) -> bool:
        """The verdict of the last interval that has ended. Changes nothing."""
        end_s = self._end_s
        if end_s is None:
            return False
        if now_s < end_s:
            return self._overloaded
        return self._least_s > self._target_s and now_s < end_s + self._interval_s

    @property
    def interval_s(self) -> float:
        """Of the running interval: a verdict may be this late."""
        return self._interval_s

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        return {
            "overloaded": self.overloaded(now_s),
            "target_s": self._target_s,
            "interval_s": self._interval_s,
            "least_wait_s": self._least_s,
            "drops": self._drops,
        }
