"""What the simulation finds over some seeds."""

from __future__ import annotations

from collections.abc import Sequence

from tests.simulation import runner
from tests.simulation.house import build
from tests.simulation.run import Builder


def verdict(seeds: Sequence[int], house: Builder = build) -> str:
    """Everything found over the seeds, as one text; "" if nothing was."""
    found: list[str] = []
    for seed in seeds:
        found += runner.judge(seed, house).violations
    return "\n".join(found)


def finds(text: str, seeds: Sequence[int], house: Builder = build) -> bool:
    """Whether any of the seeds finds something that says `text`; stops at the first."""
    return any(text in violation for seed in seeds for violation in runner.judge(seed, house).violations)
