"""Which version answers a call that names none: weights, or the newest that is ready."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


class Split:
    """Draws a version by weight. Weight 0 means not one call, ever; weights need not add up to anything."""

    __slots__ = ("_bounds", "_total", "versions")

    def __init__(self, weights: Mapping[str, float]) -> None:
        """Raises ValueError for a negative or non-finite weight, and if no weight is above zero."""
        for version, weight in weights.items():
            if not (math.isfinite(weight) and weight >= 0):
                raise ValueError(f"the weight of version {version} must be a finite number of at least 0, not {weight}")
        self.versions = tuple(version for version, weight in weights.items() if weight > 0)
        if not self.versions:
            raise ValueError("at least one version must have a weight above 0")
        bounds: list[float] = []
        total = 0.0
        for version in self.versions:
            total += weights[version]
            bounds.append(total)
        self._bounds = tuple(bounds)
        self._total = total

    def draw(self, chance: float) -> str:
        """The version for `chance`, a uniform draw from [0, 1)."""
        point = chance * self._total
        for version, bound in zip(self.versions, self._bounds, strict=True):
            if point < bound:
                return version
        return self.versions[-1]  # rounding put the point on the last bound


def newest(versions: Sequence[str], allowed: frozenset[str] | None) -> str | None:
    """The numerically highest of `versions` that `allowed` (None: all) lets through: Triton's own rule for calls
    without a version.
    """
    chosen = [version for version in versions if allowed is None or version in allowed]
    return max(chosen, key=_number, default=None)


def _number(version: str) -> tuple[int, str]:
    # A server that is no Triton may have other versions, `v0.1` say. They come last, and stop nobody else's.
    return (int(version), "") if version.isdecimal() else (-1, version)
