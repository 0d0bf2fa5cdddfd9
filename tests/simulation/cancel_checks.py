"""Cancels: no replica sees more of them than its cap allows, whatever happens to the calls."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.report import Report
from tests.simulation.tuning import EAGER

ARRIVAL_S = 0.02
"""They arrive by so much nearer to one another, or farther away, than they were sent."""
HELD_BACK = {"black_hole", "freeze"}
"""What happens to a machine that afterwards gets much at once."""


def cancels_stay_under_the_cap(report: Report) -> Iterator[str]:
    """A burst, and what the rate gives for the time, over any stretch; of single calls, which alone are capped."""
    cap = EAGER.cancels
    held = {event.machine for event in report.scenario.events if event.what in HELD_BACK}
    grace_s = ARRIVAL_S + 2 * report.scenario.lateness_s
    for address, at_s in report.cancels_at_s.items():
        if address in held:
            continue
        for first, begin_s in enumerate(at_s):
            for last in range(first, len(at_s)):
                count, passed_s = last - first + 1, at_s[last] - begin_s
                if count > cap.burst + cap.per_s * (passed_s + grace_s):
                    yield f"{address} was sent {count} cancels within {passed_s:.3f} s"
                    return
