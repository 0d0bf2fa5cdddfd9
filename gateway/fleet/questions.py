"""Questions to the whole fleet: every live replica is asked at once, and what they say is made into one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from gateway.core.errors import GatewayError
from gateway.core.faces import IndexEntry, ReplicaClient
from gateway.core.faults import UpstreamFault
from gateway.core.snapshot import ModelState, ReplicaState, ReplicaView
from gateway.fleet.directory import Directory
from gateway.fleet.member import Member
from gateway.fleet.rounds import Rounds
from gateway.fleet.statistics_ledger import StatisticsLedger
from gateway.policy.schema import ModelPolicy
from gateway.wire.kserve.repository import merge_index, version_order
from gateway.wire.kserve.statistics import split_statistics, statistics_to_json, statistics_to_protobuf

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class StatisticsRow:
    """One model version, in both spellings: entries of which an answer is put together."""

    model: str
    version: str
    proto: bytes
    json: bytes


@dataclass(frozen=True, slots=True)
class StatisticsRound:
    """What one round brought: the sums in the order of model and version, and the pools of which somebody answered."""

    rows: tuple[StatisticsRow, ...]
    answered: frozenset[str]
    asked: int


@dataclass(frozen=True, slots=True)
class IndexRound:
    """What one round brought: the lines of each model, and how many replicas answered."""

    lines: Mapping[str, tuple[IndexEntry, ...]]
    answered: int
    asked: int


class FleetQuestions:
    """Asks live replicas in parallel, each under the time limit of its pool's probes. Only what `policies` (by model)
    open counts: a model is served by the pool of its policy, and by no other. Used on one event loop.

    Everything that many callers share is done once in a round, and in a worker: megabytes of counters take long enough
    to be felt by calls.
    """

    def __init__(self, directory: Directory, policies: Mapping[str, ModelPolicy]) -> None:
        self._directory = directory
        self._policies = policies
        self._clock, self._workers = directory.tools.clock, directory.tools.workers
        self._ledger = StatisticsLedger()
        self._statistics = Rounds(self._ask_statistics, self._clock)
        self._index = Rounds(self._ask_index, self._clock)

    async def statistics(self) -> StatisticsRound:
        """Asked after this was called."""
        return await self._statistics.fresh()

    async def index(self) -> IndexRound:
        """Asked after this was called."""
        return await self._index.fresh()

    async def aclose(self) -> None:
        """Cancel what is out."""
        await self._statistics.aclose()
        await self._index.aclose()

    # -- statistics ---------------------------------------------------------------------------------------------------

    async def _ask_statistics(self) -> StatisticsRound:
        members = self._directory.everyone()
        answers = await self._ask_all(
            members, "statistics", lambda client, limit_s: client.model_statistics("", "", limit_s)
        )
        rows, unread = await self._work(self._statistics, lambda: self._count(members, answers))
        for member, error in unread.items():
            self._note(member, f"statistics: an answer that makes no sense: {error}")
        answered = frozenset(member.replica.pool for member in answers if member not in unread)
        return StatisticsRound(rows, answered, len(members))

    def _count(
        self, members: tuple[Member, ...], answers: Mapping[Member, bytes]
    ) -> tuple[tuple[StatisticsRow, ...], dict[Member, GatewayError]]:
        unread: dict[Member, GatewayError] = {}
        for member, message in answers.items():
            pool = member.replica.pool
            try:
                parts = split_statistics(message)
                opened = {(pool, *key): part for key, part in parts.items() if self._opens(pool, *key)}
                self._ledger.record(member.replica.id, opened)
            except GatewayError as error:
                unread[member] = error
        self._ledger.settle({member.replica.id for member in members})
        totals = sorted(self._ledger.totals().values(), key=lambda each: (each.name, version_order(each.version)))
        rows = tuple(
            StatisticsRow(each.name, each.version, statistics_to_protobuf(each), statistics_to_json(each))
            for each in totals
        )
        return rows, unread

    def _opens(self, pool: str, model: str, version: str) -> bool:
        """Whether callers may reach this version, there. "" stands for a model that was never loaded."""
        policy = self._policies.get(model)
        if policy is None or policy.pool != pool:
            return False
        return not version or policy.versions is None or version in policy.versions

    # -- the repository index -----------------------------------------------------------------------------------------

    async def _ask_index(self) -> IndexRound:
        members = self._directory.everyone()
        answers = await self._ask_all(members, "index", lambda client, limit_s: client.repository_index(limit_s))
        replicas = {replica.id: replica for replica in self._directory.snapshot.replicas}
        lines = await self._work(self._index, lambda: self._merge(members, answers, replicas))
        return IndexRound(lines, len(answers), len(members))

    def _merge(
        self,
        members: tuple[Member, ...],
        answers: Mapping[Member, tuple[IndexEntry, ...]],
        replicas: Mapping[str, ReplicaView],
    ) -> dict[str, tuple[IndexEntry, ...]]:
        """The lines of each model. `replicas` is what the gateway itself knows, by id."""
        answered: dict[str, int] = {}
        silent: dict[str, int] = {}
        by_model: dict[str, list[list[IndexEntry]]] = {}
        known: dict[str, dict[str, None]] = {}
        for member in members:
            pool, entries = member.replica.pool, answers.get(member)
            view = replicas.get(member.replica.id)
            if entries is None:
                silent[pool] = silent.get(pool, 0) + 1
                for model, version in view.models if view is not None else ():
                    known.setdefault(model, {})[version] = None
                continue
            answered[pool] = answered.get(pool, 0) + 1
            mine: dict[str, list[IndexEntry]] = {}
            for entry in entries:
                if self._opens(pool, entry.name, entry.version):
                    mine.setdefault(entry.name, []).append(_as_served(entry, view))
            for model, found in mine.items():
                by_model.setdefault(model, []).append(found)
        lines: dict[str, tuple[IndexEntry, ...]] = {}
        for model in sorted(self._policies):
            pool, found_on = self._policies[model].pool, by_model.get(model, [])
            if pool in answered:
                without: list[list[IndexEntry]] = [[]] * (answered[pool] - len(found_on))
                lines[model] = tuple(merge_index(model, [*found_on, *without], silent.get(pool, 0)))
            else:
                versions = sorted(version for version in known.get(model, ()) if self._opens(pool, model, version))
                lines[model] = tuple(
                    IndexEntry(model, version, "UNAVAILABLE", "no model server of it answers")
                    for version in sorted(versions, key=version_order) or [""]
                )
        return lines

    # -- both ---------------------------------------------------------------------------------------------------------

    async def _work(self, rounds: Rounds[R], work: Callable[[], T]) -> T:
        """`work()` in a worker, to its end even if the round is cancelled: the ledger is the only copy of what replicas
        said before.
        """

        def timed() -> tuple[T, float]:
            began_s = self._clock.now_s()
            result = work()
            return result, self._clock.now_s() - began_s

        running = asyncio.ensure_future(self._workers.run(timed))
        try:
            result, work_s = await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait((running,))
            raise
        rounds.rest(work_s)
        return result

    async def _ask_all(
        self, members: tuple[Member, ...], what: str, ask: Callable[[ReplicaClient, float], Awaitable[T]]
    ) -> dict[Member, T]:
        """The answers of those that gave one. Replicas that are not live are not asked."""
        live = [member for member in members if member.replica.state is ReplicaState.LIVE]
        answers: dict[Member, T] = {}

        async def one(member: Member) -> None:
            try:
                answers[member] = await ask(member.connection.client, member.pool.health.timeout_ms / 1000)
            except UpstreamFault as fault:
                self._note(member, f"{what}: {fault.code.name}: {fault.text}")

        async with asyncio.TaskGroup() as group:
            for member in live:
                group.create_task(one(member))
        return answers

    @staticmethod
    def _note(member: Member, text: str) -> None:
        """For the operator: the caller hears of it only if nobody answers."""
        if not member.removed:
            member.replica.failed(text)
            member.changed()


def _as_served(entry: IndexEntry, view: ReplicaView | None) -> IndexEntry:
    """A replica's entry as callers are to see it: READY only if the gateway sends calls there."""
    model = None if view is None else view.models.get((entry.name, entry.version))
    if entry.state != "READY" or (model is not None and model.state is ModelState.WARMED):
        return entry
    coming = model is None or model.state in (ModelState.READY, ModelState.LOADING)
    why = f": {model.reason}" if model is not None and model.reason else ""
    reason = f"ready on the model server, not in service here{why}"
    return IndexEntry(entry.name, entry.version, "LOADING" if coming else "UNAVAILABLE", reason)
