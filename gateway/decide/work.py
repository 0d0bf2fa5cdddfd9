"""Work: what a call costs beside a usual call of its model, in units that the policy defines.

A call is 1 unit unless its model's policy says how its work is measured. Everything that weighs calls weighs them by
it: service times are learnt per unit, fair shares are of units, large calls are told from small ones (`lanes.py`), and
memory is counted by it (`memory_budget.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

NEAR = 0.05
"""A call that is within this of one unit is one, a usual call: most calls of most models are, and nothing need be
weighed or written down of them.
"""

Measure = Literal["batch", "elements", "bytes", "parameter", "value"]
"""batch: rows of an input. elements: of its shape. bytes: of its data. parameter: a number among the request's
parameters. value: the sum of an input's numbers, for models that are told how much to do.
"""

WORK_MIN = 0.01
"""No call counts as less: it has a head and an answer like any other."""


@dataclass(frozen=True, slots=True)
class WorkSettings:
    """Raises ValueError for what makes no sense."""

    by: Measure
    input: str = ""
    """Which input; "" for the first (`batch`), or all together (`elements`, `bytes`)."""
    parameter: str = ""
    unit: float = 1.0
    """So much of what is measured is one unit of work."""
    default: float = 1.0
    """Units of a call that does not tell."""
    most: float = 1_000_000.0
    """No call counts as more."""

    def __post_init__(self) -> None:
        if not 0 < self.unit < math.inf:
            raise ValueError(f"unit must be positive and finite, not {self.unit}")
        if not WORK_MIN <= self.default <= self.most < math.inf:
            raise ValueError(f"{WORK_MIN} <= default <= most, not {self.default}, {self.most}")
        if (self.by == "parameter") != bool(self.parameter):
            raise ValueError("a parameter is named where it is what is measured, and only there")
        if self.input and self.by == "parameter":
            raise ValueError("a parameter is of the request, not of an input")
        if self.by == "value" and not self.input:
            raise ValueError("values are those of one input, which must be named")


def units(amount: float | None, settings: WorkSettings) -> float:
    """Units of work for what was measured; None, what is no number, and less than nothing count as the default, and
    nearly one as one.
    """
    if amount is None or not amount >= 0.0:
        return settings.default
    work = amount / settings.unit
    if 1.0 - NEAR <= work <= 1.0 + NEAR:
        work = 1.0
    return min(max(WORK_MIN, work), settings.most)


def rounds(work: float, fills: float) -> float:
    """How many rounds of batches a call of that much work lasts where `fills` units fill a batch: small calls share
    one, and a large call's batch is as long as it is.
    """
    return work / fills if work > fills >= 1.0 else 1.0
