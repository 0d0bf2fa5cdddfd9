"""What has to hold in every seed: one sentence for each way in which it did not.

The checks of a scenario that allow nothing at all (`max: 0`) are asked of every run by itself, and so is what must be
true whatever a scenario is about: each call ends exactly once, no later than a tick of the wheel after its deadline,
with the right answer or in an error, and nothing is left behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from load.connection import WRONG_ANSWER
from load.scenario import LoadedScenario
from load.scenario_faults import REPLICA
from load.scenario_schema import CheckSpec
from load.tallies import REFUSALS
from tests.simulation.stress.callers import TICK_S, Ended
from tests.simulation.stress.play import Played

SHOWN_MAX = 2
"""Calls that a sentence names."""
_SLACK_S = 1e-6

Bad = Callable[[Ended, float], bool]
"""Whether an ended call counts against a check; takes the deadline of its traffic, seconds."""


def late(ended: Ended, deadline_s: float) -> bool:
    """It was answered, after its deadline."""
    return not ended.error and ended.took_s > deadline_s + _SLACK_S


_OF_CALLS: Mapping[str, Bad] = {
    "error_share": lambda ended, deadline_s: bool(ended.error),
    "unclear": lambda ended, deadline_s: bool(ended.error) and ended.error not in REFUSALS,
    "late_answers": late,
    "wrong": lambda ended, deadline_s: ended.error == WRONG_ANSWER,
}
_OF_REPLICAS = ("attempts", "executions")


def broken(scenario: LoadedScenario, played: Played) -> Iterator[str]:
    """What was not as it must be in a run. Raises KeyError for a check of nothing at all that is not known here."""
    yield from played.wrong
    yield from one_ending(played)
    yield from in_time(scenario, played)
    for check in (CheckSpec(name="no wrong answer", figure="wrong", max=0), *scenario.spec.checks):
        if check.max == 0 and check.recovery is None:
            yield from _nothing(scenario, check, played)


def one_ending(played: Played) -> Iterator[str]:
    """Every call ends once. (That each has one record is asked at the shutdown, see `house.py`.)"""
    times = Counter(each.number for each in played.ended)
    for number in range(1, played.made + 1):
        if times[number] != 1:
            yield f"call {number} has ended {times[number]} times"


def in_time(scenario: LoadedScenario, played: Played) -> Iterator[str]:
    """No caller waits longer than it said, whatever it gets."""
    deadlines_s = [each.deadline_ms / 1000 for each in scenario.spec.traffic]
    slow = [each for each in played.ended if each.took_s > deadlines_s[each.traffic] + TICK_S + _SLACK_S]
    if slow:
        yield f"{len(slow)} calls have ended after their deadline: {_calls(slow)}"


def _nothing(scenario: LoadedScenario, check: CheckSpec, played: Played) -> Iterator[str]:
    from_s = 0.0 if check.window is None else check.window.from_s
    to_s = scenario.spec.duration_s if check.window is None or check.window.to_s is None else check.window.to_s
    owner, _, figure = check.figure.rpartition(".")
    if owner.startswith(REPLICA):
        replica = int(owner.removeprefix(REPLICA))
        assert figure in _OF_REPLICAS, check.figure
        found = sent_to(played, replica) if figure == "attempts" else ran_on(played, replica)
        inside = [at_s for at_s in found if from_s <= at_s < to_s]
        if inside:
            yield f"{check.name}: {len(inside)} {figure} on it, the last at {inside[-1]:.3f} s"
        return
    bad, names = _OF_CALLS[figure], [each.name for each in scenario.spec.traffic]
    deadlines_s = [each.deadline_ms / 1000 for each in scenario.spec.traffic]
    against = [
        each
        for each in played.ended
        if from_s <= each.offset_s < to_s
        and (not owner or names[each.traffic] == owner)
        and bad(each, deadlines_s[each.traffic])
    ]
    if against:
        yield f"{check.name}: {len(against)} calls: {_calls(against)}"


def sent_to(played: Played, replica: int) -> list[float]:
    """When something was sent to a replica."""
    address = played.addresses[replica]
    found = (sent for each in played.ended for sent in each.attempts if sent.replica == address)
    return sorted(sent.started_s - played.start_s for sent in found)


def ran_on(played: Played, replica: int) -> list[float]:
    """When it began to execute something."""
    return [each.began_s for each in played.executions if each.replica == replica]


def _calls(against: Sequence[Ended]) -> str:
    shown = ", ".join(
        f"call {each.number} of {each.offset_s:.3f} s ended after {each.took_s * 1000:.1f} ms"
        f" {each.error or 'answered'} {each.text.partition(':')[0]}".rstrip()
        for each in against[:SHOWN_MAX]
    )
    return shown + (f" and {len(against) - SHOWN_MAX} more" if len(against) > SHOWN_MAX else "")
