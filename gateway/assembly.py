"""The assembly: everything of the gateway but its ports, from policies and parts.

The parts are what a simulation replaces: time, chance, the network, files, workers, the place where records go. With
the real ones this is the gateway that `app.py` puts ports on; with others it is the same gateway in a world that a
test controls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.core.call import Call
from gateway.core.errors import GatewayError
from gateway.core.faces import Authenticator, Connector, Files, Resolver
from gateway.core.outcome import Outcome
from gateway.core.service import Service
from gateway.decide.bytebudget import ByteBudget
from gateway.decide.quota import TenantQuota
from gateway.decide.quota_lease import LeasedQuota, LeaseSettings
from gateway.decide.tuning import Tuning
from gateway.fleet.catalogue import FleetCatalogue
from gateway.fleet.directory import Directory
from gateway.fleet.http2_client import Http2ReplicaClient
from gateway.fleet.transport import ReplicaTransport
from gateway.layers.backlog import Backlogs
from gateway.layers.cancels import Cancels
from gateway.observe.attempt_readings import attempt_readings, cancel_readings
from gateway.observe.lag import watch_loop
from gateway.observe.metrics import Metrics
from gateway.observe.readings import (
    AdmissionRow,
    admission_readings,
    balance_readings,
    fleet_readings,
    job_readings,
    lane_readings,
    quota_readings,
    sequence_readings,
    shared_readings,
    stage_readings,
    store_readings,
    upstream_readings,
)
from gateway.observe.table import Reading
from gateway.policy.schema import ModelPolicy, PolicySet, Pool
from gateway.records.log import RecordLog, Reservation
from gateway.records.record import PredictionRecord
from gateway.records.store import RecordStore
from gateway.runtime.chance import Chance
from gateway.runtime.clock import Clock
from gateway.runtime.supervisor import Supervisor
from gateway.runtime.wheel import TimerWheel
from gateway.runtime.workers import Workers
from gateway.stack import Stack, build_stack, quotas_of
from gateway.stores.face import QuotaStore
from gateway.stores.quota_leases import QuotaLeases

VERSION = "0.1.0"
_OK = Outcome.OK
LOOP_LAG_INTERVAL_S = 0.25


@dataclass(frozen=True, slots=True)
class Parts:
    """What the assembly is made of and does not make itself. `connector_of` gives the connector for a pool's bounds."""

    clock: Clock
    chance: Chance
    connector_of: Callable[[Pool], Connector]
    resolver: Resolver
    files: Files
    workers: Workers
    record_workers: Workers
    """Of their own: a disk that hangs must not delay a look-up."""
    record_store: RecordStore
    authenticator: Authenticator
    replica_key: bytes = b""
    """Makes the replica labels of the public metrics page unguessable, and the same over restarts."""
    breathe: Callable[[], None] | None = None
    """Called by the record writer between lines, so that it lets go of the interpreter."""
    quota_store: QuotaStore | None = None
    """What gateways share their quotas through; None: each keeps to its share. Used only where the policies limit a
    tenant, and closed with the assembly.
    """
    lease: LeaseSettings = field(default_factory=LeaseSettings)
    tuning: Tuning = field(default_factory=Tuning)
    wrap_transport: Callable[[Service], Service] = lambda service: service
    """For tests: put something between track and transport."""


class _Records:
    """Turns ended calls into prediction records."""

    def __init__(self, log: RecordLog, models: Mapping[str, ModelPolicy]) -> None:
        self._log = log
        self._models = models

    def call_ended(
        self, call: Call, outcome: Outcome, error: GatewayError | None, answer: bytes | None, now_s: float
    ) -> None:
        policy = self._models.get(call.model)
        reservation, call.reservation = call.reservation, None
        try:
            record = PredictionRecord(
                call,
                outcome,
                error,
                answer,
                now_s,
                "none" if policy is None else policy.records.tensors,
                "" if policy is None or outcome is _OK else policy.impact,
            )
        except BaseException:
            if isinstance(reservation, Reservation):
                reservation.release()
            raise
        if isinstance(reservation, Reservation):
            reservation.use(record)
        else:
            self._log.offer(record)


class Assembly:
    """The gateway without ports. `service` answers calls, `catalogue` answers what is asked about them."""

    def __init__(self, policies: PolicySet, parts: Parts) -> None:
        self.policies = policies
        self.parts = parts
        self.draining = False
        clock, chance = parts.clock, parts.chance
        self.wheel = TimerWheel(clock)
        self.supervisor = Supervisor()
        self.body_budget = ByteBudget(policies.fleet.gateway.body_memory_bytes)
        self.metrics = Metrics(
            {name: policy.objective.p99_ms / 1000 for name, policy in policies.models.items()},
            policies.fleet.pools,
            version=VERSION,
            revision=policies.revision,
            replica_key=parts.replica_key or chance.stream("observe.replica_key").randbytes(32),
        )
        self.record_log = RecordLog(
            policies.fleet.records, clock, parts.record_workers, parts.record_store, breathe=parts.breathe
        )
        self.backlogs = Backlogs()
        self.cancels = Cancels(clock, parts.tuning.cancels)
        self.directory = Directory(
            policies,
            parts.connector_of,
            clock=clock,
            chance=chance,
            supervisor=self.supervisor,
            workers=parts.workers,
            resolver=parts.resolver,
            files=parts.files,
            observer=self.metrics,
            backlog=self.backlogs,
            restraint_of=self.cancels.of,
        )
        self.catalogue = FleetCatalogue(self.directory, policies, lambda: self.draining)
        self.transport = ReplicaTransport(self.directory, clock)
        store, lease = parts.quota_store, parts.lease
        quotas = quotas_of(
            policies, TenantQuota if store is None else lambda settings, share: LeasedQuota(settings, share, lease)
        )
        self.quota_leases: QuotaLeases | None = None
        if quotas is not None and store is not None:
            name = f"{chance.stream('stores.gateway').getrandbits(64):016x}"
            self.quota_leases = QuotaLeases(quotas, store, clock.now_s, gateway=name, lease=lease)
        self.stack: Stack = build_stack(
            policies,
            transport=parts.wrap_transport(self.transport),
            fleet=self.directory,
            authenticator=parts.authenticator,
            sinks=(self.metrics, _Records(self.record_log, policies.models)),
            reserve_record=self.record_log.reserve,
            clock=clock,
            wheel=self.wheel,
            pick_chance=chance.stream("decide.pick"),
            split_chance=chance.stream("decide.split"),
            limit_chance=chance.stream("decide.limit"),
            tuning=parts.tuning,
            quotas=quotas,
            leases=self.quota_leases,
            cancels=self.cancels,
        )
        self.service: Service = self.stack.service
        self.backlogs.admissions = self.stack.admissions
        self.directory.subscribe(lambda snapshot: self.metrics.fleet_changed(snapshot, clock.now_s()))
        self.metrics.add_source("fleet", lambda now_s: fleet_readings(self.directory.snapshot, self.metrics, now_s))
        self.metrics.add_source(
            "admission", lambda now_s: admission_readings(self._admission_rows(now_s), self.metrics)
        )
        self.metrics.add_source("balance", lambda now_s: balance_readings(self._balance_rows(now_s), self.metrics))
        self.metrics.add_source("lanes", lambda now_s: lane_readings(self._lane_rows(now_s), self.metrics))
        self.metrics.add_source("shared", lambda now_s: shared_readings(self._shared_rows(now_s), self.metrics))
        self.metrics.add_source(
            "sequences",
            lambda now_s: sequence_readings(
                ((name, layer.statistics(now_s)) for name, layer in self.stack.sequences.items()), self.metrics
            ),
        )
        self.metrics.add_source(
            "stages",
            lambda now_s: stage_readings(
                ((name, layer.statistics(now_s)) for name, layer in self.stack.stages.items()), self.metrics
            ),
        )
        self.metrics.add_source(
            "attempts",
            lambda now_s: attempt_readings(
                ((name, layer.statistics(now_s)) for name, layer in self.stack.attempts.items()), self.metrics
            ),
        )
        self.metrics.add_source(
            "cancels",
            lambda now_s: cancel_readings(self.directory.snapshot, self.cancels.statistics(now_s), self.metrics),
        )
        self.metrics.add_source("upstream", lambda now_s: upstream_readings(self._upstream_rows(now_s), self.metrics))
        self.metrics.add_source("records", self.record_log.readings)
        self.metrics.add_source("jobs", lambda now_s: job_readings(self.supervisor.statistics(now_s)["restarts"]))
        self.metrics.add_source("gateway", self._gateway_readings)
        if self.stack.quota is not None:
            self.metrics.add_source("quotas", self._quota_readings)

    def start(self) -> None:
        """Begin to look for replicas and to write records. Inside the event loop."""
        self.record_log.start(self.supervisor)
        self.directory.start()
        if self.quota_leases is not None:
            self.supervisor.start("quota-leases", self.quota_leases.run)
        clock = self.parts.clock
        self.supervisor.start("loop-lag", lambda: watch_loop(clock.now_s, self.metrics.loop_lag, LOOP_LAG_INTERVAL_S))

    async def aclose(self) -> Mapping[str, Any]:
        """Stop looking, close all connections, write the last records. Calls must have ended. Returns the record log's
        last figures, which balance: offered = written + dropped.
        """
        await self.catalogue.aclose()
        await self.directory.stop()
        figures = await self.record_log.aclose()
        await self.supervisor.stop_all()
        if self.parts.quota_store is not None:
            await self.parts.quota_store.aclose()
        self.wheel.close()
        return figures

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        """What an operator may see besides the fleet, for the admin port."""
        return {
            "connections": self.directory.statistics(now_s),
            "admission": {name: layer.statistics(now_s) for name, layer in sorted(self.stack.admissions.items())},
            "attempts": {name: layer.statistics(now_s) for name, layer in sorted(self.stack.attempts.items())},
            "cancels": self.cancels.statistics(now_s),
            "shared": {pool: each.statistics(now_s) for pool, each in sorted(self.stack.commons.items())},
            "sequences": {name: layer.statistics(now_s) for name, layer in sorted(self.stack.sequences.items())},
            "stages": {name: layer.statistics(now_s) for name, layer in sorted(self.stack.stages.items())},
            "records": self.record_log.statistics(now_s),
            "body_memory": self.body_budget.statistics(now_s),
            "background": self.supervisor.statistics(now_s),
            "transport": self.transport.statistics(now_s),
            "quotas": None if self.stack.quota is None else self.stack.quota.statistics(now_s),
            "stores": [] if self.parts.quota_store is None else [self.parts.quota_store.statistics(now_s)],
        }

    def _quota_readings(self, now_s: float) -> Iterable[Reading]:
        if self.stack.quota is not None:
            yield from quota_readings(self.stack.quota.counts(now_s))
        if self.parts.quota_store is not None:
            yield from store_readings(self.parts.quota_store.statistics(now_s))

    def _admission_rows(self, now_s: float) -> Iterable[AdmissionRow]:
        for name, layer in self.stack.admissions.items():
            pool = self.policies.models[name].pool
            for version, row in layer.statistics(now_s).items():
                yield pool, name, version, row["in_flight"], row["waiting"], row["limit"], row["adaptive"]

    def _balance_rows(self, now_s: float) -> Iterable[tuple[str, str, str, Mapping[str, Any]]]:
        for name, layer in self.stack.admissions.items():
            pool = self.policies.models[name].pool
            for version, row in layer.judgements(now_s).items():
                yield pool, name, version, row

    def _lane_rows(self, now_s: float) -> Iterable[tuple[str, Mapping[str, Mapping[str, int]]]]:
        for name, layer in self.stack.admissions.items():
            if self.policies.models[name].admission.lanes is not None:
                for row in layer.statistics(now_s).values():
                    yield name, row["lanes"]

    def _shared_rows(self, now_s: float) -> Iterable[tuple[str, Mapping[str, Any]]]:
        for pool, each in self.stack.commons.items():
            if each.shared is not None:
                yield pool, each.shared.statistics(now_s)

    def _upstream_rows(self, now_s: float) -> Iterable[tuple[str, str, Mapping[str, float]]]:
        """Pool, replica and what its client counts. The client of `transport: grpcio` counts nothing."""
        for member in self.directory.everyone():
            client = member.connection.client
            if isinstance(client, Http2ReplicaClient):
                yield member.replica.pool, member.replica.id, client.statistics(now_s)

    def _gateway_readings(self, now_s: float) -> Iterable[Reading]:
        yield "sluice_ready", (), float(self.catalogue.server_ready())
        yield "sluice_draining", (), float(self.draining)
        figures = self.body_budget.statistics(now_s)
        yield "sluice_body_memory_bytes", (), figures["used_bytes"]
        yield "sluice_body_memory_limit_bytes", (), figures["total_bytes"]
