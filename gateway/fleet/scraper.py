"""The scrape loop of one replica: Triton's metrics page into figures per model version and GPU."""

from __future__ import annotations

import asyncio

from gateway.core.faults import UpstreamFault
from gateway.core.snapshot import ReplicaState
from gateway.fleet.member import Member
from gateway.fleet.metrics_text import read_page

FAILURES_TO_FORGET = 3


class Scraper:
    """Reads one page per interval for all models: the page costs the server time. Independent of probing."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._policy = member.pool.scrape
        self._models = frozenset(member.models)
        self._shared = False
        """Calls of others waited there when it was last asked."""

    async def run(self) -> None:
        """Until the member is removed."""
        member, interval_s = self._member, self._policy.interval_ms / 1000
        if not member.replica.endpoints.metrics:
            return
        await asyncio.sleep(member.chance.random() * interval_s / 2)
        while not member.removed:
            if member.replica.state is ReplicaState.LIVE:
                await self.scrape()
            # What others do there changes as fast as calls come: it is followed while there is something to follow.
            next_s = min(interval_s, self._policy.shared_interval_ms / 1000) if self._shared else interval_s
            await asyncio.sleep(next_s * (0.9 + 0.2 * member.chance.random()))

    async def scrape(self) -> None:
        """One reading. After `FAILURES_TO_FORGET` failures in a row the last figures count for nothing."""
        member, replica, policy = self._member, self._member.replica, self._policy
        backlog, self._shared = member.tools.backlog, False
        before = backlog.held(replica.id)
        try:
            text = await member.connection.client.scrape(policy.timeout_ms / 1000)
        except UpstreamFault as fault:
            self._failed(f"{fault.code.name}: {fault.text}")
            return
        if len(text) > policy.page_bytes_max:
            self._failed(f"the metrics page has more than {policy.page_bytes_max} bytes")
            return
        asked_s, after = member.tools.clock.now_s(), backlog.held(replica.id)
        # Megabytes of text take long enough to be felt by calls.
        page = await member.tools.workers.run(lambda: read_page(text, self._models))
        member.scrapes_failed = 0
        member.scrape_error = ""
        replica.scraped(page, member.tools.clock.now_s())
        pending = {key: int(figures.pending) for key, figures in page.models.items() if figures.pending}
        # While the page was made some of ours ended and others came: what may have been ours is.
        held = {key: max(before.get(key, 0), after.get(key, 0)) for key in pending}
        self._shared = backlog.told(replica.id, pending, held, asked_s)
        member.changed()

    def _failed(self, text: str) -> None:
        member = self._member
        member.scrapes_failed += 1
        member.tools.observer.probe_failed(member.replica.id, "scrape")
        member.scrape_error = text
        if member.scrapes_failed == FAILURES_TO_FORGET:
            member.replica.forget_figures()
            member.changed()
