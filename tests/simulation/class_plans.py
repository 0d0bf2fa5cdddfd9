"""Classes of calls in a scenario: tenants' rights, models' defaults, what callers ask for, and a crowd that not all of
can be served.

Two seeds in seven have them; nothing here is drawn from the generator of the rest, so all other seeds mean what they
meant.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from gateway.core.criticality import CLASS_NAMES
from gateway.policy.classes import Classes
from gateway.policy.identity_schema import IdentityPolicy
from gateway.policy.schema import PolicySet
from tests.simulation.batcher import ModelSpec
from tests.simulation.plans import CallPlan, SessionPlan

WORDS: tuple[str | None, ...] = (None, *CLASS_NAMES)


class ClassPlans:
    """What `seed` says of classes. `on`: there are several."""

    def __init__(self, seed: int) -> None:
        self.on = seed % 7 in (0, 1)  # none of the pinned seeds
        self._draw = random.Random(f"classes/{seed}")

    def crowd(self, specs: Sequence[ModelSpec], first: int, loaded_s: float, end_s: float) -> list[CallPlan]:
        """Calls to one model in less time than it has for them, numbered from `first`."""
        draw = self._draw
        self.crowded = spec = draw.choice(specs)
        begin_s = loaded_s + draw.random() * (end_s - loaded_s) * 0.5
        lasts_s = draw.choice((0.05, 0.5, 2.0, 2.0))
        times = sorted(begin_s + draw.random() * lasts_s for _ in range(draw.randint(50, 110)))
        if draw.random() < 0.5:
            times = [round(at_s, 1) for at_s in times]  # in waves
        return [
            CallPlan(
                number=first + index,
                at_s=at_s,
                kind="good",
                model=spec.name,
                rows=1,
                timeout_s=draw.choice((None, 0.1, 0.5, 2.0)),
                leaves_after_s=draw.random() * 0.2 if draw.random() < 0.05 else None,
            )
            for index, at_s in enumerate(times)
        ]

    def policies(self, policies: PolicySet) -> PolicySet:
        """With a highest class for everybody, defaults of the models, and hardly a slot for the crowd."""
        draw = self._draw
        for name, policy in policies.models.items():
            kind = draw.choice(("none", "none", "default", "interactive", "latency_critical"))
            if kind == "default":
                policy = replace(policy, classes=Classes(default=draw.choice(CLASS_NAMES)))
            elif kind != "none":
                policy = replace(policy, **{kind: kind == "latency_critical"})
            if name == self.crowded.name:
                slots, waiting = draw.choice((1, 2)), draw.choice((3, 12, None, None))
                few = replace(policy.admission, slots_per_replica=slots, queue_max=waiting)
                policy = replace(policy, admission=few)
            policies.models[name] = policy
        highest = draw.choice(("critical_plus", "critical_plus", *CLASS_NAMES[:3]))
        return replace(policies, fleet=replace(policies.fleet, identity=IdentityPolicy(highest_class=highest)))

    def wishes(self, calls: Iterable[CallPlan]) -> tuple[CallPlan, ...]:
        """With what their callers ask for; of those on a stream the stream says it."""
        draw = self._draw
        return tuple(
            plan if plan.kind == "must" or plan.session is not None else dataclasses.replace(plan, priority=_word(draw))
            for plan in calls
        )

    def sessions(self, sessions: Iterable[SessionPlan]) -> tuple[SessionPlan, ...]:
        draw = self._draw
        return tuple(plan if plan.must else dataclasses.replace(plan, priority=_word(draw)) for plan in sessions)


def _word(draw: random.Random) -> str | None:
    return draw.choice(WORDS)
