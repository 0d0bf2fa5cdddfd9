"""Pacer: how fast the servers of one model version work, as the waiting room wants to know it (`waiting_room.Pace`).

What it knows comes from calls that were answered, and from those cut short as lower bounds:

- *A round*: the time of one full batch, S(b*). The slots of a replica are two rounds of work, one that runs and one
  that fills, so a call that was sent as number r of K slots took 1 + (r - 1) / K of them (`service_time.per_unit`). It
  is a mean, not a median: work is conserved, and stragglers are a part of what must be waited for. At little load
  batches are small and short, and nobody waits; so what counts is what was seen when more than half of a replica's
  slots were taken, however long ago: else the first calls of each burst would be told far too short a wait.
- *What a call needs* from send to reply: the 95th percentile of the last half minute, but at most twice the median: a
  call waits for one batch at most before its own, and what is beyond is bad luck. Were one call in ten a straggler,
  the percentile alone would refuse everybody who can't afford to be one.
- *The least that a call needs*: the 10th percentile. Where slots are free and nobody waits, to try costs nobody
  anything, and half of the calls that have just the median's time left are answered.

Nothing is told before `samples_min` calls are known, and then the room refuses nobody for want of time. The estimate
is read anew every `refresh_s`; between, the same object is told again.

Bounded by its window of quantiles. O(1) for a call, but for the refresh.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.decide.quantiles import FRESH_MAX, QuantileSettings, QuantileWindow
from gateway.decide.service_time import per_unit
from gateway.decide.waiting_room import ROUNDS, Pace
from gateway.decide.work import rounds

LEAST = 0.1
"""The share of calls that are quicker than `Pacer.least_s`."""


@dataclass(frozen=True, slots=True)
class PacerSettings:
    """Raises ValueError for what makes no sense."""

    samples_min: int = 50
    """Fewer calls in the window teach nothing (the same as the limiter's)."""
    refresh_s: float = 0.25
    """How old an estimate may get: a re-set of the cohorts."""
    memory: int = 64
    """Calls over which the mean of a round forgets: a few batches."""
    window: QuantileSettings = field(default_factory=QuantileSettings)

    def __post_init__(self) -> None:
        if self.samples_min < 1 or self.memory < 1:
            raise ValueError(f"samples_min ({self.samples_min}) and memory ({self.memory}) must be at least 1")
        if not 0 < self.refresh_s < math.inf:
            raise ValueError(f"refresh_s must be positive and finite, not {self.refresh_s}")


class Mean:
    """A plain mean of the first values, then one that forgets, over `memory` of them; 0 before the first."""

    __slots__ = ("_memory", "_seen", "value")

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._seen = 0
        self.value = 0.0

    def take_in(self, fresh: list[float]) -> None:
        """These all count alike. Empties the list."""
        count = len(fresh)
        if count:
            share = max(count / (self._seen + count), 1.0 - (1.0 - 1.0 / self._memory) ** count)
            self.value += (sum(fresh) / count - self.value) * share
            self._seen = min(self._memory, self._seen + count)
            fresh.clear()


class Pacer:
    """Of one (pool, model, version)."""

    __slots__ = (
        "_any",
        "_filled",
        "_pace",
        "_settings",
        "_slots",
        "batch_max",
        "due_s",
        "filled",
        "least_s",
        "median_s",
        "need_s",
        "rounds",
        "window",
    )

    def __init__(self, settings: PacerSettings | None = None) -> None:
        self._settings = settings or PacerSettings()
        self.window = QuantileWindow(self._settings.window)
        """From send to reply. For reading."""
        self.rounds: list[float] = []
        """Of calls that are in no mean yet, the time of a round. A hot path may append here, together with
        `window.fresh`, and has to call `fold` at `FRESH_MAX` of them.
        """
        self.filled: list[float] = []
        """Of those, the ones of calls that found more than half of their replica's slots taken. To be appended to as
        well.
        """
        self._any = Mean(self._settings.memory)
        self._filled = Mean(self._settings.memory)
        self._slots = 0
        self.batch_max = 1
        """The largest batch of any replica. To be set when the fleet changes."""
        self._pace = Pace(1, 0.0, 0.0, 0.0)
        self.due_s = -math.inf
        """When what is told here is too old. For reading, as what follows."""
        self.need_s = 0.0
        """Of the last `pace`."""
        self.least_s = 0.0
        """Hardly any call takes less, from send to reply; 0 while nothing is known."""
        self.median_s = 0.0
        """From send to reply, as of the last refresh; 0 while nothing is known."""

    def answered(self, duration_s: float, in_flight: int, slots: int, now_s: float, work: float = 1.0) -> None:
        """A call of so much work took so long from send to reply, as number `in_flight` on a replica of so many
        slots.
        """
        self.window.record(duration_s, now_s)
        lasted = rounds(work, slots / ROUNDS)
        round_s = per_unit(duration_s, work=lasted, in_flight=in_flight, slots=slots)
        self.rounds.append(round_s)
        if in_flight * ROUNDS > slots:
            self.filled.append(round_s)
        if len(self.rounds) >= FRESH_MAX:
            self.fold()

    def cut_short(self, elapsed_s: float, now_s: float) -> None:
        """A call was given up after so long: it would have taken longer."""
        self.window.record(elapsed_s, now_s, at_least=True)

    def fold(self) -> None:
        """Take in what is fresh."""
        self.window.fold()
        self._any.take_in(self.rounds)
        self._filled.take_in(self.filled)

    @property
    def worst_s(self) -> float:
        """S(b*) at the worst, of the last `pace`."""
        return self._pace.worst_s

    def pace(self, slots: int, now_s: float) -> Pace:
        """As of now, for servers with `slots` in all. The same object until something changed. O(1), O(buckets in use)
        every `refresh_s`.
        """
        if now_s >= self.due_s or slots != self._slots:
            self._refresh(slots, now_s)
        return self._pace

    def pace_of(self, slots: int, now_s: float) -> Pace:
        """Of one replica with `slots`, for what is pinned to it."""
        pace = self.pace(self._slots, now_s)
        return Pace(max(1, slots // ROUNDS), pace.batch_s, pace.service_s, pace.need_s, pace.worst_s)

    def _refresh(self, slots: int, now_s: float) -> None:
        self.due_s = now_s + self._settings.refresh_s
        self._slots = slots
        self.fold()
        found = None
        if self.window.count(now_s) >= self._settings.samples_min:
            found = self.window.quantiles((LEAST, 0.5, 0.95), now_s)
        instances = max(1, slots // ROUNDS)
        if found is None:
            self.least_s = self.median_s = self.need_s = 0.0
            self._pace = Pace(instances, 0.0, 0.0, 0.0)
        else:
            self.least_s, self.median_s, late_s = found
            self.need_s = need_s = min(late_s, ROUNDS * self.median_s)
            filled_s = self._filled.value
            round_s = filled_s or self._any.value
            # A batch of n takes no longer than n batches of one.
            self._pace = Pace(instances, round_s, need_s, need_s, filled_s or round_s * max(1, self.batch_max))

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        """As of the last refresh; 0 while nothing is known."""
        return {
            "samples": self.window.count(now_s),
            "round_s": self._pace.batch_s,
            "least_s": self.least_s,
            "median_s": self.median_s,
            "need_s": self._pace.need_s,
        }
