"""The numbers of the adaptive limit. Its bounds are in `slot_limit.py`."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """Raises ValueError with the name of the number that is out of range."""

    window_s: float = 1.0
    """The shortest window (failsafe-go); it is at least three times the recent latency, so that slow calls are seen."""
    window_max_s: float = 30.0
    """What that may come to (failsafe-go)."""
    samples_min: int = 50
    """Fewer in a window change nothing (failsafe-go)."""
    quantile: float = 0.9
    """Of latency, recent and baseline (failsafe-go)."""
    drop_share: float = 0.1
    """From this share of drops the quantile lies among them: its latency has no bound."""
    calm_s: float = 4.0
    """Time constant with which the baseline follows calm windows: nine tenths of a change of speed in 9 s."""
    remeasure_s: float = 120.0
    """Under lasting load the baseline is measured again after this time at most, after half of it at least (Vegas
    draws from the same range).
    """
    remeasure_soon_s: float = 4.0
    """The same where the baseline is a guess or contradicts the throughput."""
    trial_step: float = 0.125
    """How far a trial moves the limit, as a share of it; at least log10 of it, and 1."""
    trial_wait: int = 20
    """Windows from a trial that failed to the next, doubled with each, up to 16-fold."""
    idle_s: float = 300.0
    """After so long a silence what was learnt of an overload is forgotten."""

    def __post_init__(self) -> None:
        for name in ("window_s", "window_max_s", "calm_s", "remeasure_s", "remeasure_soon_s", "idle_s", "trial_step"):
            value = getattr(self, name)
            if not (isfinite(value) and value > 0):
                raise ValueError(f"{name} must be a finite number above 0, not {value}")
        for name in ("quantile", "drop_share"):
            value = getattr(self, name)
            if not 0 < value < 1:
                raise ValueError(f"{name} must lie between 0 and 1, not {value}")
        if self.window_max_s < self.window_s:
            raise ValueError(f"window_max_s must be at least window_s ({self.window_s}), not {self.window_max_s}")
        if self.samples_min < 1 or self.trial_wait < 1:
            raise ValueError(f"samples_min ({self.samples_min}) and trial_wait ({self.trial_wait}) must be at least 1")
