"""How long a call takes when none waits: the baseline of the adaptive limit.

A baseline that averages what it sees climbs with the queue, and a limit that is measured against it climbs after it
(Envoy 11579, concurrency-limits 165); one that keeps the least it ever saw never learns that the model became slower
(concurrency-limits 34). This one follows *calm* windows both ways: those with no more calls in flight, on average, than
run at once by design, so that by Little's law the mean call took no longer than at the floor. From others it
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp

from gateway.decide.limit_settings import LimitSettings

TOO_HIGH = 0.9
"""A busy window below this share of the baseline shows that it is too high; above lies the noise of percentiles."""
TOO_LOW = 0.5
"""A baseline below this share of what Little's law allows is wrong. A light load on a model with batches may well give
two thirds.
"""
AGAIN_FACTOR = 4
"""After a probe that came to nothing, in `remeasure_soon_s`."""


class Baseline:
    """`chance` gives uniform draws from [0, 1): one at first, one after each probe. O(1), of fixed size."""

    __slots__ = ("_asked_s", "_chance", "_jitter", "_measured_s", "_not_before_s", "_settings", "guessed", "value_s")

    def __init__(self, settings: LimitSettings, chance: Callable[[], float], now_s: float) -> None:
        self._settings = settings
        self._chance = chance
        self.value_s = 0.0
        """Seconds; 0 as long as nothing is known. For reading."""
        self.guessed = True
        """It was never measured where no call waits, or has been seen to be wrong since. For reading."""
        self._measured_s = now_s
        self._asked_s: float | None = None
        self._not_before_s = now_s
        self._jitter = self._draw()

    def _draw(self) -> float:
        return 0.5 + 0.5 * self._chance()  # Vegas' range

    def window(self, p90_s: float, recent_s: float, elapsed_s: float, *, calm: bool, now_s: float) -> None:
        """A window of `elapsed_s` ended. `p90_s` is its own percentile, `recent_s` the smoothed one; both above 0."""
        value_s = self.value_s
        if value_s <= 0:
            self.value_s = p90_s
            self.guessed = not calm
        elif calm:
            self.value_s += (p90_s - value_s) * (1 - exp(-elapsed_s / self._settings.calm_s))
            self.guessed = False
        elif recent_s < TOO_HIGH * value_s:
            self.value_s = (value_s + recent_s) / 2
            self.guessed = True
        if calm:
            self._measured_s = now_s

    def due(self, least_s: float, now_s: float) -> bool:
        """Whether to measure now. `least_s`: what a call takes at the floor by Little's law, floor / throughput."""
        if self.guessed or self.value_s < TOO_LOW * least_s:
            if self._asked_s is None:
                self._asked_s = now_s
            waited_s, wait_s = now_s - self._asked_s, self._settings.remeasure_soon_s
        else:
            self._asked_s = None
            waited_s, wait_s = now_s - self._measured_s, self._settings.remeasure_s
        return waited_s >= wait_s * self._jitter and now_s >= self._not_before_s

    def measured(self, value_s: float, now_s: float) -> None:
        """A probe gave `value_s`, above 0."""
        self.value_s = value_s
        self.guessed = False
        self._measured_s = now_s
        self._asked_s = None
        self._jitter = self._draw()

    def not_measured(self, now_s: float) -> None:
        """A probe came to nothing."""
        self._jitter = self._draw()
        self._not_before_s = now_s + AGAIN_FACTOR * self._settings.remeasure_soon_s * self._jitter

    def age_s(self, now_s: float) -> float:
        """Since it was last measured, by a calm window or a probe (or since the beginning)."""
        return now_s - self._measured_s
