"""How long a replica takes for one unit of work, judged by the calls it has answered: peak-EWMA.

A duration longer than the estimate is believed at once, a shorter one draws the estimate down slowly, with the time
that has passed (Finagle's `PeakEwma.scala`; tau 10 s there and in linkerd2-proxy). Reading is a projection that changes
nothing (linkerd2-proxy, `linkerd/ewma`). What is different here, and why:

- **The line before a call is taken out of its duration** (`per_unit`). With batching the duration rises with load by
  design: a call that finds the slots of a replica taken waits for one batch and runs in the next. A picker that
  multiplies such durations by the calls in flight counts the load twice: it shuns whoever is busy, then floods it. The
  slots of a replica are two rounds of work (one that runs, one that fills), so a call that was sent as number r of K
  had (r - 1) / K of a round before it, and its duration is divided by 1 + (r - 1) / K. What is left rises only as a
  batch of many takes longer than a batch of one, and that is the same for all replicas that are equally full.
- **Per unit of work**: one long prompt must not look like a slow replica.
- **Failures are penalised** (linkerd2-proxy, `load-biaser`, 2026): a replica that fails fast must not look fast. The
  penalty is max(hint of the replica, 5 s, 10 times the pool's estimate): 5 s is nothing for a pool whose calls take
  ten. It is a peak: it never lowers an estimate.
- **A duration that was cut short** only raises.
- **Many observations weigh more than little time.** With tau alone one straggler, 20 times as slow, would spoil a
  replica for half a minute, in a small pool a good part of what it can carry. So each observation weighs a sixteenth
  at least, and a good answer where there is doubt three quarters (`KEEP_TRY`): it is the freshest that is known.
- **Without observations the reading drifts to the pool's**, not to zero: zero, next to a pool of 20 ms, would send
  everything to the replica that nobody has heard of for longest. Who is tried again, and when, is the picker's
  (`standing.py`).
- **Less than a hundredth of tau is no time** (`STILL`): between the calls of a busy replica nothing fades or drifts,
  and no exponential need be computed.

Memory: four numbers for each replica. Everything is O(1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

COST_MIN_S = 1e-6
"""No estimate is lower: of two replicas that take no time at all, the busier one must still have the higher score."""

COST_MAX_S = 86_400.0
"""No estimate is higher."""

KEEP_MAX = 15 / 16
"""What an observation below the estimate leaves of the difference, at most."""

KEEP_TRY = 1 / 4
"""The same for a good answer where there is doubt (`standing.py`)."""

STILL = 1 / 100
"""Below this share of tau, nothing fades."""


@dataclass(frozen=True, slots=True)
class ServiceTimeSettings:
    """How service times are estimated. Raises ValueError for what makes no sense."""

    tau_s: float = 10.0
    """Memory where observations are rare (Finagle, linkerd: 10 s)."""
    seed_s: float = 0.0
    """The profiled time of a batch of one, stands in until something is observed; 0: not profiled, then the first
    observation is taken as it is.
    """
    penalty_s: float = 5.0
    """What a failure counts as, at least (linkerd 2026: 5 s)."""
    penalty_ratio: float = 10.0
    """And at least this many times the pool's estimate. Own choice: well above what makes a replica suspect."""
    hint_max_s: float = 300.0
    """A replica's own hint (`retry-after`) is believed up to this (linkerd 2026: 300 s)."""

    def __post_init__(self) -> None:
        for name, least in (("tau_s", 1e-3), ("seed_s", 0), ("penalty_s", 0), ("penalty_ratio", 1), ("hint_max_s", 0)):
            if not least <= getattr(self, name) <= COST_MAX_S:
                raise ValueError(f"{name} must lie between {least} and {COST_MAX_S}, not {getattr(self, name)}")

    def penalty(self, reference_s: float, hint_s: float = 0.0) -> float:
        """What a failure counts as, seconds, where the pool's estimate is `reference_s`."""
        hint_s = min(hint_s, self.hint_max_s) if hint_s > 0 else 0.0
        return _bounded(max(hint_s, self.penalty_s, self.penalty_ratio * reference_s))


def _bounded(cost_s: float) -> float:
    # Also for what is not a number: that is never greater.
    return min(cost_s, COST_MAX_S) if cost_s > COST_MIN_S else COST_MIN_S


def per_unit(elapsed_s: float, *, work: float = 1.0, in_flight: int = 1, slots: int = 1) -> float:
    """Seconds of service per unit of work, of a call that took `elapsed_s` and was number `in_flight` (itself included)
    on a replica of so many `slots` when it was sent. `work` below 1 is 1. Always finite and above 0.
    """
    rounds = 1.0 + (in_flight - 1) / slots if in_flight > 1 and slots > 0 else 1.0
    return _bounded(elapsed_s / ((work if 1.0 < work < math.inf else 1.0) * rounds))


class PeakEwma:
    """The estimate for one replica."""

    __slots__ = ("_still_s", "_tau_s", "cost_s", "stamp_s")

    def __init__(self, tau_s: float = 10.0, seed_s: float = 0.0) -> None:
        """`seed_s`: what to believe until something is observed; 0 for nothing."""
        self._tau_s = tau_s
        self._still_s = STILL * tau_s
        self.stamp_s = -math.inf
        """When it was last told something new; minus infinity while only the seed is known."""
        self.cost_s: float | None = _bounded(seed_s) if seed_s > 0 else None
        """Seconds per unit of work as of the last evidence; None if nothing is known. For reading."""

    def at(self, now_s: float, toward_s: float | None = None) -> float | None:
        """The reading now: the last evidence, drifting to `toward_s` (the pool's) with tau; None if nothing is known.
        Changes nothing.
        """
        if self.cost_s is None or toward_s is None:
            return self.cost_s
        left = self._faded(now_s)
        return toward_s * (1.0 - left) + self.cost_s * left

    def _faded(self, now_s: float) -> float:
        """What is left of a difference after the time since the last evidence, in [0, 1]."""
        gap_s = now_s - self.stamp_s  # infinite while only the seed is known: that does not grow old
        return 1.0 if gap_s < self._still_s or gap_s == math.inf else math.exp(-gap_s / self._tau_s)

    def observe(
        self, cost_s: float, now_s: float, *, toward_s: float | None = None, keep_max: float = KEEP_MAX
    ) -> None:
        """A call was answered. Afterwards the estimate is at least this, and no observation below the reading raises
        the reading.
        """
        cost_s = _bounded(cost_s)
        last_s, reading_s = self.cost_s, self.at(now_s, toward_s)
        if last_s is None or reading_s is None or cost_s >= last_s or cost_s >= reading_s:
            self.cost_s = cost_s
        else:
            self.cost_s = min(reading_s, cost_s + (last_s - cost_s) * min(keep_max, self._faded(now_s)))
        self.stamp_s = max(now_s, self.stamp_s)

    def raise_to(self, cost_s: float, now_s: float, *, toward_s: float | None = None) -> bool:
        """It takes at least so long: a penalty, or a call that was cut short. Never lowers the reading. True if it
        raised it.
        """
        cost_s = _bounded(cost_s)
        reading_s = self.at(now_s, toward_s)
        if reading_s is not None and cost_s <= reading_s:
            return False
        self.cost_s = cost_s
        self.stamp_s = max(now_s, self.stamp_s)
        return True
