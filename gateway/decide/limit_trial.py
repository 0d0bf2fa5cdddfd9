"""Does another limit change the throughput? One experiment of the adaptive limit.

The guard against upward drift. Where all slots are taken and latency is no judge (a batching server answers two calls
as fast as one; a baseline may be too high), only throughput tells whether a slot more is work done or a call that
waits. failsafe-go correlates what the last 50 windows happened to hold, and Uber's Cinnamon takes the covariance of
in-flight and throughput; both are blind while the limit stands still, and take a rise of the *offered* load for a gain
by concurrency. Here the limiter moves the limit itself, in windows in which all slots are taken, and compares before
and after:

    elasticity = (change of throughput, as a share) / (change of the limit, as a share)

1: every slot does work. 0: none does; each only makes calls wait.
"""

from __future__ import annotations

from typing import Literal

PAYS = 0.5
"""The elasticity from which a slot is worth having."""
EARLY = 0.25
"""How far from `PAYS` one window must lie to end the trial: what hurts is ended early, what seems to pay is asked
twice."""
WINDOWS = 2

Finding = Literal["more", "keep", "back"]


class Trial:
    """`before` and `tried` are limits, up or down; `rate` is the throughput under `before`, above 0, in any unit."""

    __slots__ = ("_rate", "_rates", "before", "tried")

    def __init__(self, before: float, tried: float, rate: float) -> None:
        self.before = before
        self.tried = tried
        self._rate = rate
        self._rates: list[float] = []

    def window(self, rate: float) -> Finding:
        """A window passed in which all slots were taken: keep the limit tried, go back, or see more?"""
        self._rates.append(rate)
        change = sum(self._rates) / len(self._rates) / self._rate - 1
        elasticity = change / (self.tried / self.before - 1)
        upwards = self.tried > self.before
        if len(self._rates) < WINDOWS:
            hurts = elasticity < PAYS - EARLY if upwards else elasticity > PAYS + EARLY
            return "back" if hurts else "more"
        return "keep" if (elasticity >= PAYS) == upwards else "back"
