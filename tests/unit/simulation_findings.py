"""What the simulation finds over some seeds."""

from __future__ import annotations

from collections.abc import Sequence

from tests.simulation import runner
from tests.simulation.checks import violations
from tests.simulation.house import build
from tests.simulation.run import Builder, run
from tests.simulation.scenario import scenario


def verdict(seeds: Sequence[int], house: Builder = build) -> str:
    """Everything found over the seeds, each of which is run twice, as one text; "" if nothing was."""
    found: list[str] = []
    for seed in seeds:
        found += runner.judge(seed, house).violations
    return "\n".join(found)


def finds(text: str, seeds: Sequence[int], house: Builder = build) -> bool:
    """Whether any of the seeds finds something that says `text`; stops at the first.

    Each is run once: what the checks say is of one run, and that two runs differ is for `verdict` to see.
    """
    return any(text in violation for seed in seeds for violation in _found_in_one_run(seed, house))


def _found_in_one_run(seed: int, house: Builder) -> list[str]:
    try:
        return violations(run(scenario(seed), house))
    except Exception as error:  # a planted fault may end a run, which is something that was found too
        return [f"the run ended with {type(error).__name__}: {error}"]
