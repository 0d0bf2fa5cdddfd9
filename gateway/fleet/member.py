"""Member: one replica of a pool with its connection and its background jobs."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.core.faces import Backlog, FleetObserver, ReplicaClient
from gateway.core.faults import UpstreamFault
from gateway.core.outcome import Outcome
from gateway.core.snapshot import ModelState, ReplicaState
from gateway.fleet.connection import Connection
from gateway.fleet.model_record import Key
from gateway.fleet.nudge import Nudge
from gateway.fleet.replica import Replica
from gateway.fleet.warmer import Backoff, Unwarmable, WarmRequest, finished, limit_s, request_for, try_once
from gateway.policy.schema import ModelPolicy, Pool
from gateway.runtime.clock import Clock
from gateway.runtime.workers import Workers

_log = logging.getLogger("sluice.fleet")

TRIAL_INTERVAL_S = 1.0
RENEW_TIMEOUT_S = 5.0
_TELLING = frozenset({Outcome.NOT_LOADED, Outcome.BROKEN})
"""How a test call on a version in service must end to speak against it; load and lost connections do not."""


@dataclass(frozen=True, slots=True)
class Tools:
    """What a member works with. `start` runs a background job until it ends; `changed` is told of every change."""

    clock: Clock
    workers: Workers
    start: Callable[[str, Callable[[], Awaitable[None]]], None]
    changed: Callable[[Member], None]
    retire: Callable[[str, Connection], None]
    warm_request: WarmRequest
    observer: FleetObserver
    backlog: Backlog


class Member:
    """One replica: the state machine, the connection, and what runs for them."""

    def __init__(
        self,
        replica: Replica,
        pool: Pool,
        models: Mapping[str, ModelPolicy],
        connect: Callable[[], ReplicaClient],
        chance: random.Random,
        tools: Tools,
        number: int,
    ) -> None:
        self.replica = replica
        self.pool = pool
        self.models = models
        """The models that policies give to this pool; no others are looked at."""
        self.chance = chance
        self.tools = tools
        self.number = number
        """Tells two members of one address apart, one after the other."""
        self.nudge = Nudge()
        self.removed = False
        self.kept_for: frozenset[Key] | None = None
        """The model versions for which it still takes calls although its address is gone; None while it is there."""
        self.scrapes_failed = 0
        self.scrape_error = ""
        self._connect = connect
        self.connection = Connection(connect())
        self._doubts: dict[Key, None] = {}
        self._working: set[str] = set()
        self._tried_s: dict[Key, float] = {}

    @property
    def name(self) -> str:
        return f"{self.replica.id}#{self.number}"

    def statistics(self) -> Mapping[str, Any]:
        """What an operator sees besides the replica's view."""
        return {
            "http_address": self.replica.endpoints.http,
            "metrics_address": self.replica.endpoints.metrics,
            "in_flight": self.connection.in_flight,
            "scrape_error": self.scrape_error,
            "address_gone": self.kept_for is not None,
        }

    def changed(self) -> None:
        """Tell the directory, if there is something to tell."""
        for each in self.replica.take_transitions():
            why = f" ({each.reason})" if each.reason else ""
            # Formats of their own: the log's limit counts lines by format, and many models must not hide one replica.
            if each.key is not None:
                _log.info(
                    "model %r version %s on %s: %s -> %s%s", *each.key, self.replica.id, each.before, each.after, why
                )
            elif each.after == ReplicaState.DOWN.value:
                _log.warning("replica %s is down, it was %s%s", self.replica.id, each.before, why)
            else:
                _log.info("replica %s: %s -> %s%s", self.replica.id, each.before, each.after, why)
        if self.replica.changed:
            self.tools.changed(self)

    def reconnect(self) -> None:
        """A new connection in place of one that does not answer: in a network that swallowed packets the old one may
        take minutes to notice that they flow again. Calls that are out stay on the old one.
        """
        if self.removed:
            return  # Nobody would close the new one.
        old, self.connection = self.connection, Connection(self._connect())
        self.tools.retire(self.name, old)

    async def renew(self) -> None:
        """A new connection that is made as the policies say now, in place of the old one once it has answered. If it
        does not answer, the old one stays: what is wrong with a new certificate must not take away what works.
        """
        client = self._connect()
        try:
            await client.server_live(RENEW_TIMEOUT_S)
        except UpstreamFault as fault:
            _log.error(
                "replica %s: no answer over a connection with the new TLS files, the old one stays in use: %s",
                self.replica.id,
                fault,
            )
            await client.aclose()
            return
        except asyncio.CancelledError:
            await client.aclose()
            raise
        if self.removed:
            await client.aclose()
            return
        old, self.connection = self.connection, Connection(client)
        self.tools.retire(self.name, old)
        _log.info("replica %s: a connection with the new TLS files is in use", self.replica.id)

    def hint(self, model: str, version: str) -> None:
        """Something is wrong with the replica, or with one model version on it: look soon."""
        key = (model, version)
        if key in self.replica.models:
            self._doubts[key] = None
        self.nudge.give()

    # -- jobs per model version ---------------------------------------------------------------------------------------

    def start_work(self) -> None:
        """After a probe: warm what is to be warmed, try what is in doubt."""
        for key, epoch in self.replica.to_warm():
            self._start("warm", key, epoch, self._warm)
        doubts, self._doubts = self._doubts, {}
        now_s = self.tools.clock.now_s()
        for key in doubts:
            record = self.replica.models.get(key)
            if record is None or record.state is not ModelState.WARMED:
                continue
            if now_s - self._tried_s.get(key, float("-inf")) >= TRIAL_INTERVAL_S:
                self._start("try", key, record.epoch, self._try)

    def _start(self, kind: str, key: Key, epoch: int, work: Callable[[Key, int], Awaitable[None]]) -> None:
        """Once per epoch: a call of an earlier epoch may hang until its time limit, which must not hold up the next."""
        name = f"{kind}/{self.name}/{key[0]}/{key[1]}@{epoch}"
        if name in self._working:
            return
        self._working.add(name)

        async def job() -> None:
            await work(key, epoch)
            self._working.discard(name)  # Not in a `finally`: what failed is started again under the same name.
            self.nudge.give()

        self.tools.start(name, job)

    async def _warm(self, key: Key, epoch: int) -> None:
        replica, clock, policy = self.replica, self.tools.clock, self.models[key[0]]
        description = replica.models[key].description if not finished(replica, key, epoch) else None
        if description is None:
            return
        try:
            request = request_for(self.tools.warm_request, policy, description)
        except Unwarmable as reason:
            replica.warmed(key, epoch, f"not warmed: {reason}", clock.now_s())
            self.changed()
            return
        backoff, left = Backoff(), policy.warmup.calls
        note = f"{left} calls"
        while left and not self.removed and not finished(replica, key, epoch):
            wait_s = limit_s(policy, description)
            trial = await try_once(self.connection, key, request, wait_s, decoupled=description.summary.decoupled)
            self.tools.observer.warmup_call(key[0], ok=trial.good)
            if trial.good:
                left -= 1
                backoff.failures = 0
            elif trial.final:
                note, left = f"not warmed: the request was refused: {trial.text}", 0
            elif description.summary.sequence and trial.outcome is Outcome.EXPIRED:
                note, left = f"not warmed: a sequence of its own found no place within {wait_s:g} s", 0
            else:
                replica.not_warmed(key, epoch, trial.text)
                self.changed()
                if trial.outcome is Outcome.TRANSPORT:
                    self.nudge.give()
                await asyncio.sleep(backoff.next_s(self.chance.random()))
        if not self.removed:
            replica.warmed(key, epoch, note, clock.now_s())
            self.changed()

    async def _try(self, key: Key, epoch: int) -> None:
        """Index and readiness may be good while calls fail (a dead Python stub, a half-loaded model): a call tells."""
        replica, clock, policy, health = self.replica, self.tools.clock, self.models[key[0]], self.pool.health
        description = replica.models[key].description if not finished(replica, key, epoch) else None
        if description is None:
            return
        try:
            request = request_for(self.tools.warm_request, policy, description)
        except Unwarmable:
            return
        for turn in range(health.failures_to_unready):
            if turn:
                await asyncio.sleep(health.recheck_ms / 1000)
            if self.removed or finished(replica, key, epoch):
                break
            asked_s = clock.now_s()
            trial = await try_once(
                self.connection, key, request, policy.warmup.timeout_ms / 1000, decoupled=description.summary.decoupled
            )
            if trial.good or trial.outcome in _TELLING:
                replica.tried(key, epoch, trial.good, trial.text, asked_s)
                self.changed()
            if trial.outcome not in _TELLING:
                break
        if key in replica.models:
            self._tried_s[key] = clock.now_s()
        for gone in [each for each in self._tried_s if each not in replica.models]:
            del self._tried_s[gone]
