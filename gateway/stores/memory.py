"""MemoryQuotaStore: the shared store in the memory of one process.

The same answers as Redis gives (`redis_quota` says them in its own language; a test holds the two together), for
gateways that live in one process: the simulation's and the tests'.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gateway.decide.quota_cell import Grant, QuotaCell
from gateway.stores.face import QuotaQuestion

Key = tuple[str, str]


class MemoryQuotaStore:
    """Keeps at most `cells_max` quotas; the one that was not asked of for longest is forgotten, which is worth one
    burst.
    """

    def __init__(self, now_s: Callable[[], float], *, lease_s: float = 1.0, cells_max: int = 10_000) -> None:
        self._now_s = now_s
        self._lease_s = lease_s
        self._cells_max = cells_max
        self._cells: OrderedDict[Key, QuotaCell] = OrderedDict()
        self._asked = 0

    async def ready(self) -> bool:
        return True

    async def lease(self, gateway: str, questions: Sequence[QuotaQuestion]) -> Sequence[Grant | None]:
        return self.answer(gateway, questions)

    def answer(self, gateway: str, questions: Sequence[QuotaQuestion]) -> list[Grant | None]:
        """The same at once."""
        now_s = self._now_s()
        self._asked += len(questions)
        return [self._cell(question).answer(gateway, question.ask, now_s) for question in questions]

    def _cell(self, question: QuotaQuestion) -> QuotaCell:
        key = (question.tenant, question.model)
        cell = self._cells.get(key)
        if cell is None:
            if len(self._cells) >= self._cells_max:
                self._cells.popitem(last=False)
            cell = self._cells[key] = QuotaCell(question.settings, question.share, self._lease_s)
        else:
            self._cells.move_to_end(key)
            cell.replace(question.settings, question.share)
        return cell

    def forget(self) -> None:
        """Lose everything, as a Redis does that is flushed."""
        self._cells.clear()

    async def aclose(self) -> None:
        return None

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        return {"kind": "memory", "up": 1, "questions": {"ok": self._asked}, "cells": len(self._cells)}
