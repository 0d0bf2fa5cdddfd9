"""QuotaLeases: the one job that asks the shared store on behalf of all quotas of a gateway.

Calls only note which quotas they were counted in (`touch`); the job wakes, gathers what there is to ask, sends it
together, and tells each quota what came. It sleeps while no limited call comes and none is under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from gateway.decide.quota import Quota
from gateway.decide.quota_cell import Ask
from gateway.decide.quota_lease import LeasedQuota, LeaseSettings
from gateway.decide.quota_table import Key, Quotas
from gateway.stores.face import QuotaQuestion, QuotaStore

BATCH_MAX = 64
"""Questions sent together: about a millisecond of the loop, and 20 batches a second. With more tenants than that asks
for, the others keep to their share until their turn comes.
"""
TOUCHED_MAX = 10_000
"""Quotas that wait for their turn; of more it is not noted that they were used."""
RENEW_S = 0.1
"""Slots in use are looked at this often, well before they lapse."""

Work = tuple[Key, LeasedQuota, Ask]


class QuotaLeases:
    """`run` is the job. It must be started after the quotas were made, and they must be `LeasedQuota`s."""

    def __init__(
        self, quotas: Quotas, store: QuotaStore, now_s: Callable[[], float], *, gateway: str, lease: LeaseSettings
    ) -> None:
        """`gateway`: a name that no other gateway has, nor this one in another life."""
        self._quotas = quotas
        self._store = store
        self._now_s = now_s
        self._gateway = gateway
        self._lease = lease
        self._touched: dict[Key, Quota] = {}
        self._wake = asyncio.Event()
        self._renewed_s = 0.0
        self._overlooked = 0

    def touch(self, key: Key, quota: Quota) -> None:
        """A call was counted there, or refused."""
        touched = self._touched
        if key in touched:
            return
        if len(touched) >= TOUCHED_MAX:
            self._overlooked += 1
            return
        touched[key] = quota
        if len(touched) == 1:
            self._wake.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            if not self._touched and not self._quotas.any_busy:
                self._wake.clear()
                await self._wake.wait()
            if await self._store.ready():
                work = self._gather(self._now_s())
                if work:
                    await self._ask(work)
            else:
                # Who is used again is noted again; the share serves meanwhile.
                self._touched.clear()
            await asyncio.sleep(self._lease.gap_s)

    def _gather(self, now_s: float) -> list[Work]:
        work: list[Work] = []
        touched = self._touched
        while touched and len(work) < BATCH_MAX:
            key = next(iter(touched))
            self._add(work, key, touched.pop(key), now_s)
        if now_s - self._renewed_s >= RENEW_S:
            self._renewed_s = now_s
            for key, quota in self._quotas.busy():
                if len(work) >= BATCH_MAX:
                    self.touch(key, quota)
                else:
                    self._add(work, key, quota, now_s)
        return work

    @staticmethod
    def _add(work: list[Work], key: Key, quota: Quota, now_s: float) -> None:
        if isinstance(quota, LeasedQuota):
            ask = quota.ask(now_s)
            if ask is not None:
                work.append((key, quota, ask))

    async def _ask(self, work: list[Work]) -> None:
        quotas = self._quotas
        questions = [QuotaQuestion(*key, quotas.settings_of(*key), quotas.share, ask) for key, _, ask in work]
        answered = 0
        try:
            grants = await self._store.lease(self._gateway, questions)
            now_s = self._now_s()
            for (_, quota, ask), grant in zip(work, grants, strict=True):
                if grant is None:
                    quota.lost(ask.number)
                else:
                    quota.answered(ask.number, grant, now_s)
                answered += 1
        finally:
            for _, quota, ask in work[answered:]:
                quota.lost(ask.number)

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        return {"waiting": len(self._touched), "overlooked": self._overlooked}
