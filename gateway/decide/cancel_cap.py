"""CancelCap: how many calls may be cancelled on a replica, so that cancelling does not bring it down.

A cancel that races with its own completion has crashed Triton servers; with many short deadlines the crash raises
latency elsewhere, which makes more callers give up, and the pool goes down (field case FH-11; Triton issue 7368). So
cancels are counted for each replica and capped by a token bucket, a burst and a steady rate. Above the cap the loser of
a hedge, or a call whose deadline has passed, is left to run out, and its answer is thrown away. Its caller is answered
at once all the same, and its slot is given back when it has truly ended.

What that costs: of a call that runs, little, because Triton stops only those that wait in its own queue, and tells the
others' backends, few of which look. Its queue is one batch deep at most, since slots are what fills a batch twice. So a
cancel that is not made costs one call's share of a batch, and keeps its slot for at most two executions.

A deadline that is told upstream is a cancel too: the replica makes it by itself when the time is over. So while cancels
are frequent (`guarded`) calls are told a later one than the gateway's own. Those that were sent before that keep the
deadline they were told; they are no more than the replica has slots.

`climbing` tells hedges to stop: every hedge ends in a cancel, of itself or of its rival. It looks at a few seconds, not
at the instant: one slow batch makes a burst of hedges, and the next slow one must still get its own.

Bounded: the instants of one window's cancels, `burst` + `per_s` * `window_s` of them. O(1), but for instants that leave
the window: each is removed once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CancelCapSettings:
    """Raises ValueError for rates, shares and times that are not positive and finite, and a burst below 1."""

    per_s: float = 20.0
    """Cancels per second and replica that are made however long it lasts. Field case FH-11 has servers that die of more
    than fifty in one second. With the burst, no second has more than thirty: three fifths of that.
    """
    burst: int = 10
    """Cancels that are made at once after a quiet time: most of the calls behind one slow batch of eight."""
    climbing_share: float = 0.5
    """Hedges stop when the cancels of the window come to this share of `per_s`: the rest is left to calls whose callers
    have gone, which nobody can stop.
    """
    window_s: float = 5.0
    """The time over which `rate` is taken. Longer than a burst takes to pass, shorter than a server takes to come back.
    """
    slack_s: float = 10.0
    """While cancels are frequent, calls are told a time limit that is so much later: more than calls are left to run
    (`fleet.replica_calls.RUN_OUT_S`), and no more than a replica may work for a gateway that has stopped dead.
    """

    def __post_init__(self) -> None:
        for name in ("per_s", "climbing_share", "window_s", "slack_s"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be positive and finite, not {value}")
        if self.burst < 1:
            raise ValueError(f"burst must be at least 1, not {self.burst}")


DEFAULTS = CancelCapSettings()


class CancelCap:
    """The cap of one replica, over all models: it is the server that dies."""

    __slots__ = ("_at_s", "_counts", "_guarded_until_s", "_made", "_settings", "_tokens")

    def __init__(self, settings: CancelCapSettings = DEFAULTS) -> None:
        self._settings = settings
        self._tokens = float(settings.burst)
        self._at_s = 0.0
        """When the tokens were last counted."""
        most = settings.burst + settings.per_s * settings.window_s
        self._made: deque[float] = deque(maxlen=math.ceil(most) + 1)
        """When cancels were made, within the window."""
        self._counts = {"cancelled": 0, "let_run": 0}
        self._guarded_until_s = 0.0

    def may_cancel(self, now_s: float, *, again: bool = False) -> bool:
        """Whether a call may be cancelled on this replica now; True takes one. False: let it run out. `again`: it runs
        out already, and is counted.
        """
        self._refill(now_s)
        if self._tokens < 1.0:
            self._counts["let_run"] += not again
            return False
        self._tokens -= 1.0
        self._note(now_s)
        return True

    def cancelled(self, now_s: float) -> None:
        """One was made that nobody could forbid: it counts as all do."""
        self._refill(now_s)
        self._tokens = max(0.0, self._tokens - 1.0)
        self._note(now_s)

    def _note(self, now_s: float) -> None:
        self._made.append(now_s)
        self._counts["cancelled"] += 1
        if self._tokens < self._settings.burst / 2:
            self._guarded_until_s = now_s + self._settings.window_s

    def guarded(self, now_s: float) -> bool:
        """Whether cancels are so frequent that the replica should not keep the time of calls by itself: half of a burst
        was used up, no longer ago than a window. A few each second, which every busy model has, do not come to that.
        """
        return now_s < self._guarded_until_s

    def capped(self, now_s: float) -> bool:
        """Whether the next one would be refused."""
        self._refill(now_s)
        return self._tokens < 1.0

    def _refill(self, now_s: float) -> None:
        if now_s > self._at_s:
            gained = (now_s - self._at_s) * self._settings.per_s
            self._tokens = min(float(self._settings.burst), self._tokens + gained)
            self._at_s = now_s

    def rate(self, now_s: float) -> float:
        """Cancels made per second, over the last `window_s`."""
        made, oldest_s = self._made, now_s - self._settings.window_s
        while made and made[0] <= oldest_s:
            made.popleft()
        return len(made) / self._settings.window_s

    def climbing(self, now_s: float) -> bool:
        """Whether cancels have become so many that no hedge should add to them."""
        return self.rate(now_s) >= self._settings.climbing_share * self._settings.per_s

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        """`let_run` counts calls that were not cancelled for the cap."""
        self._refill(now_s)
        return {
            "rate_per_s": self.rate(now_s),
            "cap_per_s": self._settings.per_s,
            "tokens": self._tokens,
            "climbing": self.climbing(now_s),
            "guarded": self.guarded(now_s),
            **self._counts,
        }
