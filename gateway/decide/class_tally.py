"""Who was refused admission, by class and why: what an operator looks at to see that the right ones are turned away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.core.criticality import CLASS_NAMES


class ClassTally:
    """Of one (pool, model, version). As many counts as there are classes and words of refusal."""

    __slots__ = ("_refused",)

    def __init__(self) -> None:
        self._refused: tuple[dict[str, int], ...] = tuple({} for _ in CLASS_NAMES)

    def refused(self, criticality: int, why: str) -> None:
        counts = self._refused[criticality]
        counts[why] = counts.get(why, 0) + 1

    def statistics(self, waiting_by_class: Mapping[str, int]) -> Mapping[str, Any]:
        """By the classes' words. `waiting_by_class` is the waiting room's, by their numbers."""
        return {
            name: {"waiting": waiting_by_class[str(rank)], "refused": dict(sorted(self._refused[rank].items()))}
            for rank, name in enumerate(CLASS_NAMES)
        }
