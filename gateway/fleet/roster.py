"""A pool's roster: which addresses are in use, out of what the source says."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from gateway.core.faces import Endpoints
from gateway.fleet.sources import AddressSource

_log = logging.getLogger("sluice.fleet")


class Roster:
    """Keeps the last good set when the source fails, says nothing, or says too much; counts each as an alarm."""

    def __init__(self, pool: str, replicas_max: int, source: AddressSource) -> None:
        self.pool = pool
        self.refresh_s = source.refresh_s
        self._source = source
        self._replicas_max = replicas_max
        self._looks = self._failures = self._empty = 0
        self._unused = 0
        self._alarm = ""
        self._looked_s: float | None = None
        self._good_s: float | None = None

    async def look(self, current: tuple[Endpoints, ...], now_s: float) -> tuple[Endpoints, ...] | None:
        """The set to use from now on, or None to leave `current` as it is. Of more than `replicas_max` addresses those
        in use are kept first, so that an order that changes moves nothing.
        """
        self._looks += 1
        self._looked_s = now_s
        try:
            answer = await self._source.addresses()
        except (OSError, ValueError) as error:
            self._failures += 1
            self._raise(f"its addresses cannot be had: {error}", current)
            return None
        if not answer:
            self._empty += 1
            self._raise("the source says that it has no replicas", current)
            return None
        self._good_s = now_s
        chosen = answer
        self._unused = max(0, len(answer) - self._replicas_max)
        if self._unused:
            old = set(current)
            chosen = tuple(sorted(answer, key=lambda each: each not in old)[: self._replicas_max])
            self._raise(f"{len(answer)} addresses, of which {self._replicas_max} are used (replicas_max)", chosen)
        elif self._alarm:
            _log.warning("pool %s: all is well again with its addresses", self.pool)
            self._alarm = ""
        return chosen

    def _raise(self, text: str, kept: tuple[Endpoints, ...]) -> None:
        if text != self._alarm:
            _log.warning("pool %s: %s; %d replicas are in use", self.pool, text, len(kept))
            self._alarm = text

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        return {
            "alarm": self._alarm,
            "lookups": self._looks,
            "lookups_failed": self._failures,
            "lookups_empty": self._empty,
            "addresses_unused": self._unused,
            "looked_age_s": _age(now_s, self._looked_s),
            "good_answer_age_s": _age(now_s, self._good_s),
        }


def _age(now_s: float, then_s: float | None) -> float | None:
    return None if then_s is None else round(now_s - then_s, 3)
