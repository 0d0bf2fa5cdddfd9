"""StageBudget: by when each stage of a call should be over.

The policy names stages and their seconds (ingress 0.015, features 0.040, inference 0.045, postprocessing 0.020, say).
For a call with an absolute deadline they become points on its line from arrival to deadline: a stage should be over by
its point, whenever it began. So time that a stage did not use passes on to the next one by itself (notes 5.1).

- The deadline is shorter than the sum: all stages shrink in proportion.
- It is longer: the rest goes to inference, the one stage whose time varies and cannot be had back.
- A stage without seconds has no point and no overrun: its time comes out of the next one's.

What comes after inference keeps its share, because inference ends at its point, and not at the deadline.

An overrun is blamed on the stage that made it. One that began late because the one before it overran is late too, but
overruns only by what it takes beyond its own seconds: else all stages after the culprit would look guilty.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Stage = Literal["ingress", "features", "inference", "postprocessing"]
STAGES: tuple[Stage, ...] = ("ingress", "features", "inference", "postprocessing")
"""In the order in which a call goes through them. ingress: first header byte to the choice of a version. features: the
fetch of what the model needs. inference: the wait for a slot and the model server's work. postprocessing: to the last
byte written.
"""
_INFERENCE = STAGES.index("inference")


@dataclass(frozen=True, slots=True)
class StageSettings:
    """What a policy declares."""

    seconds: Mapping[Stage, float] = field(default_factory=dict)
    """Seconds for some stages or all."""

    def __post_init__(self) -> None:
        for stage, seconds in self.seconds.items():
            if stage not in STAGES:
                raise ValueError(f"{stage!r} is no stage; stages are {', '.join(STAGES)}")
            if not 0 < seconds < math.inf:
                raise ValueError(f"the budget of {stage} must be positive and finite, not {seconds}")


class StageBudget:
    """The split that a policy declares. Immutable, shared by all calls; every method is O(1)."""

    __slots__ = ("_before_s", "_own_s", "total_s")

    def __init__(self, settings: StageSettings) -> None:
        seconds = settings.seconds
        self._own_s = tuple(seconds.get(stage) for stage in STAGES)
        self._before_s = tuple(math.fsum(seconds.get(each, 0.0) for each in STAGES[:n]) for n in range(len(STAGES) + 1))
        """Seconds before each stage; the last is the sum."""
        self.total_s = self._before_s[-1]

    def line(self, arrived_s: float, deadline_s: float) -> CallLine:
        """The points of one call. `deadline_s` may be infinite (a stream without a limit): then so are the points from
        inference on, and what is left for them.
        """
        return CallLine(self, arrived_s, deadline_s)


class CallLine:
    """One call's line. Times are monotonic seconds."""

    __slots__ = ("_arrived_s", "_budget", "_deadline_s", "_rest_s", "_scale")

    def __init__(self, budget: StageBudget, arrived_s: float, deadline_s: float) -> None:
        self._budget = budget
        self._arrived_s = arrived_s
        self._deadline_s = max(deadline_s, arrived_s)
        total_s, span_s = budget.total_s, self._deadline_s - arrived_s
        self._scale = 1.0 if span_s >= total_s else span_s / total_s
        """Of the declared seconds."""
        self._rest_s = max(0.0, span_s - total_s)
        """Beyond them: inference's."""

    def by_s(self, stage: Stage) -> float:
        """When this stage should be over at the latest. Never after the deadline, never before the stage before it.
        A stage without seconds should be over when the one before it is (inference: has what no other needs).
        """
        index, budget = STAGES.index(stage), self._budget
        if index >= _INFERENCE:
            # Reckoned from the end, so that the last point is the deadline exactly.
            after_s = budget.total_s - budget._before_s[index + 1]
            return max(self._deadline_s - after_s * self._scale, self._point_s(_INFERENCE))
        return self._point_s(index + 1)

    def _point_s(self, stages: int) -> float:
        """The end of the first so many stages, without the rest that is inference's."""
        return min(self._arrived_s + self._budget._before_s[stages] * self._scale, self._deadline_s)

    def own_s(self, stage: Stage) -> float | None:
        """The stage's own seconds on this line; None if it has none."""
        index = STAGES.index(stage)
        own_s = self._budget._own_s[index]
        if own_s is None:
            return None
        return own_s * self._scale + (self._rest_s if index == _INFERENCE else 0.0)

    def overrun_s(self, stage: Stage, started_s: float, ended_s: float) -> float:
        """By how much the stage was too long: it may use what was passed on to it, and its own seconds even if it began
        late. 0.0 where it was not, or has no budget.
        """
        own_s = self.own_s(stage)
        if own_s is None:
            return 0.0
        may_end_s = max(self.by_s(stage), started_s + own_s)
        return ended_s - may_end_s if ended_s > may_end_s else 0.0


class StageOverruns:
    """How often, and by how much, each stage was too long. Bounded by the names of the schema."""

    __slots__ = ("_calls", "_cut", "_over", "_over_s", "_worst_s")

    def __init__(self, names: Iterable[Stage] = STAGES) -> None:
        self._calls: dict[Stage, int] = dict.fromkeys(names, 0)
        self._over: dict[Stage, int] = dict.fromkeys(self._calls, 0)
        self._cut: dict[Stage, int] = dict.fromkeys(self._calls, 0)
        self._over_s: dict[Stage, float] = dict.fromkeys(self._calls, 0.0)
        self._worst_s: dict[Stage, float] = dict.fromkeys(self._calls, 0.0)

    def note(self, stage: Stage, over_s: float, *, cut: bool = False) -> None:
        """A call has been through this stage; `over_s` is what `CallLine.overrun_s` said. `cut`: its time was up there,
        so that nobody knows how much longer it would have taken; that is an overrun, however short. Raises ValueError
        for a name that is not one of them.
        """
        if stage not in self._calls:
            raise ValueError(f"{stage!r} is not one of the stages {', '.join(self._calls)}")
        self._calls[stage] += 1
        self._cut[stage] += cut
        if cut or over_s > 0.0:
            self._over[stage] += 1
            self._over_s[stage] += over_s
            if over_s > self._worst_s[stage]:
                self._worst_s[stage] = over_s

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        """`most` names the stage with the most overruns, "" if there are none. By number and not by time: of what was
        cut short only the number is known.
        """
        most = max(self._over, key=lambda stage: (self._over[stage], self._over_s[stage]), default=None)
        return {
            "stages": {
                stage: {
                    "calls": calls,
                    "overruns": self._over[stage],
                    "cut": self._cut[stage],
                    "over_s": self._over_s[stage],
                    "worst_s": self._worst_s[stage],
                }
                for stage, calls in self._calls.items()
            },
            "most": most if most is not None and self._over[most] else "",
        }
