"""The directory: all pools' replicas, their connections and background jobs, and the snapshot made of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from gateway.core.faces import (
    Backlog,
    Connector,
    Endpoints,
    Files,
    FleetObserver,
    NoBacklog,
    ReplicaClient,
    Resolver,
    SilentFleetObserver,
)
from gateway.core.restraint import Restraint
from gateway.core.snapshot import FleetSnapshot, ReplicaState, ReplicaView
from gateway.fleet.connection import Connection
from gateway.fleet.departure import KEPT_S, needed, shown
from gateway.fleet.member import Member, Tools
from gateway.fleet.model_record import Description, Key
from gateway.fleet.prober import Prober
from gateway.fleet.replica import Replica
from gateway.fleet.roster import Roster
from gateway.fleet.scraper import Scraper
from gateway.fleet.sources import source_of
from gateway.fleet.warmer import WarmRequest, from_policies
from gateway.policy.schema import ModelPolicy, PolicySet, Pool
from gateway.runtime.chance import Chance
from gateway.runtime.clock import Clock
from gateway.runtime.supervisor import Supervisor
from gateway.runtime.workers import Workers

_log = logging.getLogger("sluice.fleet")

DRAIN_LIMIT_S = 60.0
"""A connection of a removed replica is closed after this long even if calls are still out on it."""
SHOWN_WITHIN_S = 0.25
"""A first answer is shown at most this much later: no call is steered by it, and after a start there is one for each
model on each replica.
"""


class Directory:
    """Implements `core.faces.SnapshotSource`.

    Everything runs on one event loop. `connector_of` gives the connector of a pool (bounds differ per pool);
    `warm_request` replaces the requests that the policies name.
    """

    def __init__(
        self,
        policies: PolicySet,
        connector_of: Callable[[Pool], Connector],
        *,
        clock: Clock,
        chance: Chance,
        supervisor: Supervisor,
        workers: Workers,
        resolver: Resolver,
        files: Files,
        warm_request: WarmRequest | None = None,
        observer: FleetObserver | None = None,
        backlog: Backlog | None = None,
        restraint_of: Callable[[str], Restraint] | None = None,
    ) -> None:
        """`restraint_of` a replica, by its id: what its client asks before it cancels calls."""
        self._clock = clock
        self._chance = chance
        self._supervisor = supervisor
        self._members: dict[str, Member] = {}
        self._departing: dict[str, asyncio.TimerHandle] = {}
        """Members whose address is gone, by id, the first to lose it first; the timer ends their stay."""
        self._leaving: dict[Connection, None] = {}
        self._views: dict[str, ReplicaView] = {}
        self._dirty: dict[str, None] = {}
        self._jobs: dict[str, None] = {}
        self._listeners: list[Callable[[FleetSnapshot], None]] = []
        self._snapshot = FleetSnapshot(0, ())
        self._publishing = False
        self._showing: asyncio.TimerHandle | None = None
        """Publishes what may wait a little."""
        self._stopped = False
        self._count = 0
        self._cut = 0
        watcher: FleetObserver = SilentFleetObserver() if observer is None else observer
        make = from_policies(policies) if warm_request is None else warm_request
        self.tools = Tools(
            clock, workers, self._start_job, self._member_changed, self._retire, make, watcher, backlog or NoBacklog()
        )
        self._pools = policies.fleet.pools
        self._models: dict[str, dict[str, ModelPolicy]] = {name: {} for name in self._pools}
        for model in policies.models.values():
            self._models[model.pool][model.model] = model
        self._restraint_of = restraint_of
        self._connectors = {name: connector_of(pool) for name, pool in self._pools.items()}
        self._rosters = {
            name: Roster(name, pool.replicas_max, source_of(pool, policies.base_dir, resolver, files, workers))
            for name, pool in self._pools.items()
        }

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to look for replicas. Inside the event loop."""
        for pool in self._pools:
            self._start_job(f"addresses/{pool}", self._follow(pool))

    async def stop(self) -> None:
        """End all jobs and close all connections, whatever is out on them."""
        self._stopped = True
        if self._showing is not None:
            self._showing.cancel()
        await self._supervisor.stop(*self._jobs)
        for timer in self._departing.values():
            timer.cancel()
        for member in self._members.values():
            member.removed = True
            self._leaving[member.connection] = None
        closing, self._leaving = tuple(self._leaving), {}
        closed = (connection.client.aclose() for connection in closing)
        for error in await asyncio.gather(*closed, return_exceptions=True):
            if isinstance(error, Exception):
                _log.error("a connection could not be closed in order", exc_info=error)

    def _start_job(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        async def job() -> None:
            await work()
            self._jobs.pop(name, None)  # Not in a `finally`: what failed is started again under the same name.

        if not self._stopped:
            self._jobs[name] = None
            self._supervisor.start(name, job)

    def _follow(self, pool: str) -> Callable[[], Awaitable[None]]:
        roster, chance = self._rosters[pool], self._chance.stream(f"fleet/addresses/{pool}")

        async def job() -> None:
            while True:
                await self._refresh(roster)
                if roster.refresh_s == float("inf"):
                    return
                await asyncio.sleep(roster.refresh_s * (0.9 + 0.1 * chance.random()))

        return job

    async def _refresh(self, roster: Roster) -> None:
        """One look at a pool's addresses. A failed or empty answer changes nothing but the alarm."""
        in_use = tuple(member.replica.endpoints for member in self._of(roster.pool))
        wanted = await roster.look(in_use, self._clock.now_s())
        if wanted is None:
            return
        keep, there = set(wanted), set[Endpoints]()
        for member in self._of(roster.pool):
            if member.replica.endpoints in keep:
                there.add(member.replica.endpoints)
                self._stay(member)
            elif member.replica.id not in self._departing:
                self._depart(member)
        for endpoints in wanted:
            if endpoints not in there:
                same = self._members.get(f"{roster.pool}/{endpoints.grpc}")
                if same is not None:  # One of its other ports has changed; two of one id cannot be.
                    self._remove(same)
                self._add(roster.pool, endpoints)
        self._let_go()
        kept = [self._members[each] for each in self._departing]
        kept = [member for member in kept if member.replica.pool == roster.pool]
        for member in kept[: -self._pools[roster.pool].replicas_max]:
            self._remove(member)

    def _of(self, pool: str) -> list[Member]:
        return [member for member in self._members.values() if member.replica.pool == pool]

    def _add(self, pool: str, endpoints: Endpoints) -> None:
        replica_id = f"{pool}/{endpoints.grpc}"
        self._count += 1
        policy, connector, restraint_of = self._pools[pool], self._connectors[pool], self._restraint_of

        def connect() -> ReplicaClient:
            client = connector.connect(endpoints)
            if restraint_of is not None:
                client.restrain(restraint_of(replica_id))
            return client

        replica = Replica(
            replica_id,
            pool,
            endpoints,
            policy.health,
            self._clock.now_s(),
            lambda key: self._is_last(pool, replica_id, key),
        )
        member = Member(
            replica,
            policy,
            self._models[pool],
            connect,
            self._chance.stream(f"fleet/{replica_id}"),
            self.tools,
            self._count,
        )
        self._members[replica_id] = member
        _log.info("replica %s: seen", replica_id)
        self._member_changed(member)
        self._start_job(f"probe/{member.name}", Prober(member).run)
        self._start_job(f"scrape/{member.name}", Scraper(member).run)

    def _depart(self, member: Member) -> None:
        """Its address is gone: it stays only for what nobody else serves (`_let_go`)."""
        timer = asyncio.get_running_loop().call_later(KEPT_S, self._remove, member)
        self._departing[member.replica.id] = timer

    def _stay(self, member: Member) -> None:
        """Its address is there (again)."""
        timer = self._departing.pop(member.replica.id, None)
        if timer is not None:
            timer.cancel()
            member.kept_for = None
            _log.info("replica %s: its address is back", member.replica.id)
            self._member_changed(member)

    def _let_go(self) -> None:
        """Remove the departing members that are needed for nothing (any more)."""
        if not self._departing or self._stopped:
            return
        found = needed((member.replica for member in self._members.values()), self._departing)
        for replica_id, keys in found.items():
            member = self._members[replica_id]
            if not keys:
                self._remove(member)
            elif keys != member.kept_for:
                if member.kept_for is None:
                    _log.info(
                        "replica %s: its address is gone; it stays at most %g s, until others serve what it serves",
                        replica_id,
                        KEPT_S,
                    )
                member.kept_for = keys
                self._member_changed(member)

    def _remove(self, member: Member) -> None:
        """No new calls from this moment on; those that are out may finish. Nothing of what is known of it stays."""
        replica_id = member.replica.id
        del self._members[replica_id]
        timer = self._departing.pop(replica_id, None)
        if timer is not None:
            timer.cancel()
        member.removed = True
        self._views.pop(replica_id, None)
        self._dirty.pop(replica_id, None)
        self._publish_soon()
        _log.info("replica %s: its address is gone; it drains", replica_id)
        suffix = f"/{member.name}"
        names = [name for name in self._jobs if name.endswith(suffix) or f"{suffix}/" in name]

        async def end() -> None:
            await self._supervisor.stop(*names)
            for name in names:
                self._jobs.pop(name, None)

        self._start_job(f"end/{member.name}", end)
        self._retire(member.name, member.connection)

    def _retire(self, name: str, connection: Connection) -> None:
        self._leaving[connection] = None
        self._count += 1

        async def job() -> None:
            cut = await connection.drain(DRAIN_LIMIT_S)
            self._leaving.pop(connection, None)
            if cut:
                self._cut += cut
                _log.warning("%d calls were cut off when the connection to %s was closed", cut, name)

        self._start_job(f"drain/{name}.{self._count}", job)

    def renew(self, pool: str) -> None:
        """What connections to this pool are made from has changed: replace each, once its successor has answered."""
        for member in self._of(pool):
            self._count += 1
            self._start_job(f"renew/{member.name}.{self._count}", member.renew)

    def _is_last(self, pool: str, replica_id: str, key: Key) -> bool:
        others = (member.replica for member in self._of(pool) if member.replica.id != replica_id)
        return not any(other.serves(key) for other in others)

    # -- the snapshot -------------------------------------------------------------------------------------------------

    @property
    def snapshot(self) -> FleetSnapshot:
        return self._snapshot

    def subscribe(self, listener: Callable[[FleetSnapshot], None]) -> None:
        """Not told of snapshots that steer every call as the one before: what is shown of a replica (figures, errors,
        phases) changes all the time, and every model has a listener.
        """
        self._listeners.append(listener)

    def _member_changed(self, member: Member) -> None:
        if not member.removed:
            self._dirty[member.replica.id] = None
            self._publish_soon()

    def _publish_soon(self) -> None:
        """All changes of one loop turn make one snapshot."""
        if not self._publishing and not self._stopped:
            self._publishing = True
            asyncio.get_running_loop().call_soon(self._publish)

    def _publish_in_a_while(self) -> None:
        """All changes until then make one snapshot, which is an earlier one if there is an earlier one."""
        if self._showing is None and not self._stopped:
            self._showing = asyncio.get_running_loop().call_later(SHOWN_WITHIN_S, self._publish)

    def _publish(self) -> None:
        self._let_go()
        self._publishing = False
        if self._showing is not None:
            self._showing.cancel()
            self._showing = None
        before = self._snapshot
        for replica_id in self._dirty:
            member = self._members[replica_id]
            member.replica.changed = False
            view = member.replica.view()
            view = view if member.kept_for is None else shown(view, member.kept_for)
            if view != self._views.get(replica_id):
                self._views[replica_id] = view
        self._dirty.clear()
        replicas = tuple(self._views[replica_id] for replica_id in sorted(self._views))
        if replicas == before.replicas:
            return
        self._snapshot = snapshot = FleetSnapshot(before.number + 1, replicas, before)
        if snapshot.steers_like(before):
            return
        for listener in self._listeners:
            try:
                listener(snapshot)
            except Exception:
                _log.exception("a listener failed on snapshot %d; the others still hear of it", snapshot.number)

    def hint(self, replica: str, model: str, version: str) -> None:
        member = self._members.get(replica)
        if member is not None:
            member.hint(model, version)

    def note_answer(self, replica: str, connection: Connection, model: str, version: str, now_s: float) -> None:
        """A good answer came over `connection`. If that is not the replica's any more it says nothing about who is at
        its address now.
        """
        member = self._members.get(replica)
        if member is not None and member.connection is connection:
            member.replica.answered((model, version), now_s)
            if member.replica.changed:
                self._dirty[replica] = None
                self._publish_in_a_while()

    def refused(self, replica: str, model: str, version: str, asked_s: float, text: str) -> None:
        """The replica answered a call that was sent at `asked_s` by saying that it does not have this version. Out of
        service at once if others serve it: the call that was refused frees its slot next, and nobody else must get it.
        """
        member = self._members.get(replica)
        if member is not None and member.replica.refused((model, version), asked_s, self._clock.now_s(), text):
            member.changed()
            self._publish()

    # -- for the transport and the catalogue --------------------------------------------------------------------------

    def connection(self, replica: str) -> Connection | None:
        """The connection for new calls to a replica; None if its address is gone."""
        member = self._members.get(replica)
        return None if member is None else member.connection

    def everyone(self) -> tuple[Member, ...]:
        """Every replica of the fleet, in whatever state, those included that stay although their address is gone."""
        return tuple(self._members.values())

    def description(self, pool: str, model: str, version: str) -> Description | None:
        """What a replica that serves this version says of it."""
        for candidate in self._snapshot.candidates(pool, model, version):
            member = self._members.get(candidate.replica)
            record = None if member is None else member.replica.models.get((model, version))
            if record is not None and record.description is not None:
                return record.description
        return None

    def server_metadata(self) -> bytes | None:
        """What a live replica says of itself, or None if there is none."""
        for replica_id in sorted(self._members):
            replica = self._members[replica_id].replica
            if replica.state is ReplicaState.LIVE and replica.server_metadata:
                return replica.server_metadata
        return None

    # -- for operators ------------------------------------------------------------------------------------------------

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        """Of replicas that are going or gone."""
        return {
            "calls_cut_off": self._cut,
            "connections_leaving": len(self._leaving),
            "replicas_kept": len(self._departing),
        }

    def pools(self, now_s: float) -> Mapping[str, Mapping[str, Any]]:
        """By pool: how its addresses are found."""
        return {name: roster.statistics(now_s) for name, roster in self._rosters.items()}

    def members(self) -> Mapping[str, Mapping[str, Any]]:
        """By replica: what is known of it and does not stand in the snapshot."""
        return {replica_id: member.statistics() for replica_id, member in self._members.items()}
