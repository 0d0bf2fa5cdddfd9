"""What does a call take when none waits? The adaptive limit goes to its floor for a moment and looks.

Under lasting overload no call is ever seen without a queue, so a baseline could only be guessed from queued ones.
Envoy pins its limit to a minimum and measures there (`gradient_controller.cc`); so does this. The minimum is the
limiter's own floor, at which batches still fill: work goes on, and who waits in the gateway waits a little longer.
"""

from __future__ import annotations

from math import ceil
from typing import Literal

from gateway.core.outcome import Verdict
from gateway.decide.latency_histogram import LEAST_S, MOST_S

SAMPLES_MIN, SAMPLES_MAX = 20, 512

Progress = Literal["more", "measured", "given_up"]


class Probe:
    """First what is too much must end (no more than `floor` calls in flight), then two waves of calls that were sent
    since (`floor` each, within [20, 512] samples) are measured. Given up after `patience_s`, or when more than
    `drop_share` of that number were drops. Bounded by the number of samples.
    """

    __slots__ = ("_began_s", "_drops", "_drops_max", "_floor", "_need", "_patience_s", "_since_s", "_taken")

    def __init__(self, floor: int, now_s: float, patience_s: float, drop_share: float) -> None:
        self._floor = floor
        self._began_s = now_s
        self._patience_s = patience_s
        self._since_s: float | None = None
        self._need = min(max(2 * floor, SAMPLES_MIN), SAMPLES_MAX)
        self._taken: list[float] = []
        self._drops = 0
        self._drops_max = drop_share * self._need

    def ended(self, verdict: Verdict, started_s: float, duration_s: float, in_flight: int, now_s: float) -> Progress:
        """O(1). `in_flight`: those that were out, the ended one included."""
        if now_s - self._began_s > self._patience_s:
            return "given_up"
        if verdict is Verdict.FAILURE:
            self._drops += 1
            if self._drops > self._drops_max:
                return "given_up"
        if self._since_s is None:
            if in_flight - 1 <= self._floor:
                self._since_s = now_s
        elif verdict is Verdict.SUCCESS and started_s >= self._since_s:
            self._taken.append(duration_s if duration_s < MOST_S else MOST_S)
            if len(self._taken) >= self._need:
                return "measured"
        return "more"

    def latency_s(self, quantile: float) -> float:
        """Of the calls measured, within the bounds of the histogram: above 0 and finite. Raises ValueError if there
        are none.
        """
        if not self._taken:
            raise ValueError("nothing was measured")
        ordered = sorted(self._taken)
        return max(LEAST_S, ordered[min(max(1, ceil(quantile * len(ordered))), len(ordered)) - 1])
