"""The probe loop of one replica: liveness, index, readiness per model version, descriptions of what became ready."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from gateway.core.codes import Code
from gateway.core.errors import GatewayError
from gateway.core.faces import IndexEntry, ModelConfigBytes
from gateway.core.faults import STOPPING, UpstreamFault
from gateway.core.snapshot import ReplicaState
from gateway.fleet.member import Member
from gateway.fleet.model_record import Description, Key
from gateway.fleet.slots import guessed, slots_of
from gateway.wire.kserve.metadata import decode_model_metadata, decode_server_metadata
from gateway.wire.kserve.model_config import summarise_config

_log = logging.getLogger("sluice.fleet")

DESCRIPTION_REFRESH_S = 30.0
EAGER_S = 10.0
"""For this long a replica that is not there (any more) is asked at the pace of re-checks; after it, of probes."""

_UP = (ReplicaState.CONNECTED, ReplicaState.LIVE)


class Prober:
    """Asks one replica again and again. Intervals vary by up to a tenth: probes of many replicas must not align."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._replica = member.replica
        self._health = member.pool.health
        self._clock = member.tools.clock
        self._timeout_s = self._health.timeout_ms / 1000
        self._rounds = 0
        self._unanswered = 0
        self._silent: dict[str, dict[Key, int]] = {"readiness": {}, "description": {}}
        """By question: versions about which it was not answered the last time, with the round of that time."""

    async def run(self) -> None:
        """Until the member is removed. Returns then; raises only what is a defect."""
        member, health = self._member, self._health
        recheck_s = health.recheck_ms / 1000
        await member.nudge.sleep(member.chance.random() * min(0.1, health.interval_ms / 4000))
        while not member.removed:
            started_s = self._clock.now_s()
            await self.probe()
            self._tell_of_silence()
            now_s = self._clock.now_s()
            pace_s = self._pace_s(now_s) * (0.9 + 0.2 * member.chance.random())
            nudged = await member.nudge.sleep(max(0.001, started_s + pace_s - now_s))
            too_early_s = started_s + recheck_s - self._clock.now_s()
            if nudged and too_early_s > 0:
                await asyncio.sleep(too_early_s)

    def _tell_of_silence(self) -> None:
        """A replica that never answered has no change of state to tell of it: one line, after as many probes as would
        make a live one down.
        """
        if self._replica.state is not ReplicaState.SEEN:
            return
        self._unanswered += 1
        if self._unanswered == self._health.failures_to_down:
            _log.warning("replica %s has not answered yet: %s", self._replica.id, self._replica.last_error or "silence")

    def _pace_s(self, now_s: float) -> float:
        replica, health = self._replica, self._health
        since_s = replica.down_s if replica.state is ReplicaState.DOWN else replica.seen_s
        waiting = replica.state not in _UP and since_s is not None and now_s - since_s < EAGER_S
        undescribed = any(
            record.description is None for record in replica.models.values() if record.ready_s is not None
        )
        if waiting or replica.doubtful or undescribed:
            return min(health.recheck_ms, health.interval_ms) / 1000
        return health.interval_ms / 1000

    async def probe(self) -> None:
        """One round."""
        member, replica = self._member, self._replica
        try:
            await self._ask_liveness()
            member.changed()
            if replica.state is not ReplicaState.LIVE:
                return
            await self._ask_models()
        except UpstreamFault as fault:
            self._count("readiness")
            replica.failed(f"{fault.code.name}: {fault.text}")
        except GatewayError as error:
            self._count("readiness")
            replica.failed(f"an answer that makes no sense: {error}")
        member.start_work()
        member.changed()

    async def _ask_liveness(self) -> None:
        """Ask until an answer comes, or as many calls as make a replica down have failed.

        A call that is not answered in `recheck_ms` is joined by the next one: two calls that far apart are what makes a
        replica down, and waiting out the first one's time limit would only delay the finding.
        """
        replica, health, clock = self._replica, self._health, self._clock
        allowed = health.failures_to_down if replica.state in _UP else 1
        before, out = replica.state, dict[asyncio.Task[bool], float]()
        asked, next_s = 0, clock.now_s()
        try:
            while out or asked < allowed:
                now_s = clock.now_s()
                if asked < allowed and now_s >= next_s:
                    call = self._member.connection.client.server_live(self._timeout_s)
                    out[asyncio.get_running_loop().create_task(call)] = now_s
                    asked, next_s = asked + 1, now_s + health.recheck_ms / 1000
                wait_s = max(0.001, next_s - clock.now_s()) if asked < allowed else None
                if not out:
                    await asyncio.sleep(wait_s or 0.0)
                    continue
                await asyncio.wait(out, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in out if task.done()]:
                    if self._judge(task, out.pop(task)):
                        return
        finally:
            for task in out:
                task.cancel()
            if out:
                await asyncio.gather(*out, return_exceptions=True)
            if before in _UP and replica.state is ReplicaState.DOWN:
                self._member.reconnect()

    def _judge(self, task: asyncio.Task[bool], asked_s: float) -> bool:
        """One liveness call has ended. True if nothing more need be asked."""
        replica, now_s = self._replica, self._clock.now_s()
        error = task.exception()
        if error is None:
            if task.result():
                replica.live(now_s)
                return True
            self._count("liveness")
            replica.not_live("the server says that it is not live", asked_s, now_s, answered=True, lost=False)
        elif isinstance(error, UpstreamFault):
            self._count("liveness")
            stopping = error.from_peer and error.text.startswith(STOPPING)
            unreachable = not error.from_peer and not error.sent and error.code is not Code.DEADLINE_EXCEEDED
            text = f"liveness: {error.code.name}: {error.text}"
            replica.not_live(text, asked_s, now_s, answered=error.from_peer, lost=stopping or unreachable)
        else:
            raise error
        return replica.state is ReplicaState.DOWN

    def _count(self, probe: str) -> None:
        self._member.tools.observer.probe_failed(self._replica.id, probe)

    async def _ask_models(self) -> None:
        replica, client, clock = self._replica, self._member.connection.client, self._clock
        if not replica.server_metadata:
            metadata = await client.server_metadata(self._timeout_s)
            replica.identified(metadata, decode_server_metadata(metadata).version)
        asked_s = clock.now_s()
        entries = await self._index()
        listed = replica.index(entries, asked_s, clock.now_s())
        self._rounds += 1
        for silent in self._silent.values():
            for key in [key for key in silent if key not in replica.models]:
                del silent[key]
        await self._of_each("readiness", listed, self._ask_readiness)
        due = dict(replica.to_describe(clock.now_s(), DESCRIPTION_REFRESH_S))
        await self._of_each("description", due, lambda key: self._describe(key, due[key]))

    async def _of_each(self, question: str, keys: Iterable[Key], ask: Callable[[Key], Awaitable[None]]) -> None:
        """Ask it about one version after the other. A wrong answer about one is nothing against the others. Silence
        ends the asking, or ten silent versions would delay the next liveness call by ten time limits; who was silent is
        asked last in the next round, the latest behind the others, so that none of them holds up the rest.
        """
        silent = self._silent[question]
        for key in sorted(keys, key=lambda key: silent.get(key, 0)):
            try:
                await ask(key)
            except (UpstreamFault, GatewayError) as error:
                self._count("readiness")
                self._replica.failed(f"model {key[0]!r} version {key[1]}: {error}")
                if isinstance(error, UpstreamFault) and not error.from_peer:
                    silent[key] = self._rounds
                    return
            silent.pop(key, None)

    async def _ask_readiness(self, key: Key) -> None:
        asked_s = self._clock.now_s()
        ready = await self._ask_ready(key)
        self._replica.readiness(key, ready, asked_s, self._clock.now_s())

    async def _index(self) -> list[IndexEntry]:
        """The index of the models that matter. Where the server refuses it (a restricted API), the ready versions in
        each model's metadata stand in for it.
        """
        client, models = self._member.connection.client, self._member.models
        try:
            entries = await client.repository_index(self._timeout_s)
        except UpstreamFault as fault:
            if not fault.from_peer:
                raise
            self._count("index")
            self._replica.failed(f"index: {fault.code.name}: {fault.text}")
            return [entry for model in models for entry in await self._ready_versions(model)]
        return [entry for entry in entries if entry.name in models]

    async def _ready_versions(self, model: str) -> list[IndexEntry]:
        try:
            metadata = await self._member.connection.client.model_metadata(model, "", self._timeout_s)
        except UpstreamFault as fault:
            if not fault.from_peer:
                raise
            return []
        return [IndexEntry(model, version, "READY", "") for version in decode_model_metadata(metadata).versions]

    async def _ask_ready(self, key: Key) -> bool:
        try:
            return await self._member.connection.client.model_ready(*key, self._timeout_s)
        except UpstreamFault as fault:
            if not fault.from_peer:
                raise
            # Newer servers answer so for a version that is gone; a server that refuses the question says nothing by it.
            return fault.code is not Code.NOT_FOUND

    async def _describe(self, key: Key, epoch: int) -> None:
        client = self._member.connection.client
        metadata = await client.model_metadata(*key, self._timeout_s)
        config: ModelConfigBytes = await client.model_config(*key, self._timeout_s)
        decode_model_metadata(metadata)  # Unreadable metadata is found here, not when somebody needs it.
        description = Description(metadata, config, summarise_config(config.proto))
        policy = self._member.models[key[0]]
        slots = slots_of(policy, description.summary)
        record = self._replica.models.get(key)
        if guessed(policy, description.summary) and record is not None and record.description is None:
            _log.warning(
                "model %r version %s on %s is decoupled and its policy names no admission.slots_per_replica: %d "
                "streams at a time go there, more wait; write there how many its backend serves side by side",
                *key,
                self._replica.id,
                slots,
            )
        self._replica.described(key, epoch, description, slots, self._clock.now_s())
