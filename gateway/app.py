"""The application: an assembly with ports on it, from the first address to the last record.

The order of the start: everything that can be wrong with the machine first (records, keys, ports), then readiness.
The order of the end, on SIGTERM, SIGINT or SIGHUP: say "not ready" and go on serving for `drain.announce_s`, so that
balancers look elsewhere; then take nothing new and let calls in flight end, for `drain.finish_s` at the most; then
write the last records. A second signal ends at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gateway.admin.fleet import FleetState
from gateway.admin.health import MetricsPage
from gateway.admin.server import AdminServers
from gateway.admin.server import start as start_admin
from gateway.admin.token import TokenError, ensure_token
from gateway.assembly import VERSION, Assembly, Parts
from gateway.core.criticality import CLASS_OF
from gateway.core.faces import Authenticator, Connector
from gateway.decide.quota_lease import LeaseSettings
from gateway.edge.explain import Explainer
from gateway.edge.grpc_kit import GrpcKit
from gateway.edge.grpc_servers import grpc_server
from gateway.edge.headers import HeaderReader
from gateway.edge.http_server import HttpServer
from gateway.edge.identity import IdentityDesk
from gateway.edge.tls_door import PortDoor
from gateway.edge.tls_files import PortTls, watch_port_tls
from gateway.edge.tls_peers import TransportPeers
from gateway.fleet.dns import SystemResolver
from gateway.fleet.grpcio_client import GrpcioConnector, GrpcioOptions
from gateway.fleet.http2_channel import Http2Options
from gateway.fleet.http2_client import Http2Connector
from gateway.fleet.tls import PoolTls
from gateway.observe.readings import file_readings
from gateway.observe.table import Reading
from gateway.policy.keys import AnonymousAuthenticator
from gateway.policy.problems import PolicyError
from gateway.policy.schema import PolicySet, Pool
from gateway.policy.tls_files import TlsMaterial
from gateway.policy.tls_schema import UpstreamTls
from gateway.records.file_store import FileStore, breathe
from gateway.runtime.chance import Chance
from gateway.runtime.clock import Clock, SystemClock
from gateway.runtime.collector import settle
from gateway.runtime.descriptors import raise_descriptor_limit
from gateway.runtime.files import SystemFiles
from gateway.runtime.listen import ListenError
from gateway.runtime.watched import Watched
from gateway.runtime.workers import ThreadWorkers
from gateway.stores.face import QuotaStore

_log = logging.getLogger("sluice")

FORCED_EXIT_CODE = 1
WORKER_THREADS = 4
ENVELOPE_BYTES = 64 * 1024
"""A message over a model's limit by no more than this reaches the gate, which refuses it in the gateway's own words."""
CLOSE_LIMIT_S = 2.0
RECORD_THREADS = 2
STORE_ANSWER_S = 0.1
"""What the shared store answers later counts as not answered. No call waits for it, so this may be longer than a call
may: a loop that is busy for a moment must not take a healthy store for an ill one.
"""
CODING_THREADS = 2


class StartError(Exception):
    """The gateway cannot start. The message says why and what to do."""


class App:
    """One gateway process."""

    def __init__(self, policies: PolicySet, token: str, redis_url: str = "") -> None:
        """`redis_url`: what gateways share their quotas through; "": nothing. Raises `StartError` if it is none."""
        self.policies = policies
        self.hanging = False
        """A thread will not end: the process must end without it."""
        self.unfinished = False
        """And it had work to do that is lost."""
        self._token = token
        self.clock = SystemClock()
        self.chance = Chance.from_system()
        lease = LeaseSettings(answer_s=STORE_ANSWER_S)
        store = _quota_store(policies, redis_url, self.clock, lease)
        self._workers = ThreadWorkers(WORKER_THREADS, "sluice-worker")
        self._record_workers = ThreadWorkers(RECORD_THREADS, "sluice-records")
        # Of their own: large bodies must not delay what is small.
        self._coding_workers = ThreadWorkers(CODING_THREADS, "sluice-coding")
        # One per name: a look-up that hangs holds up no other name, and nothing else.
        pools = policies.fleet.pools.values()
        names = {pool.replicas.dns.host for pool in pools if pool.replicas.dns is not None}
        names |= {each.grpc.rpartition(":")[0] for pool in pools for each in pool.replicas.static or ()}
        self._resolver_workers = ThreadWorkers(max(1, len(names)), "sluice-resolver")
        self._files = SystemFiles(self._workers)
        records = policies.fleet.records
        self._store = FileStore(
            self._path(records.dir),
            file_bytes_max=records.file_bytes_max,
            files_max=records.files_max,
            wall_s=self.clock.wall_s,
        )
        self._watched: dict[str, Watched[Any]] = {}
        """Files that are read again and again, by the name that they have in the metrics."""
        self._identity: IdentityDesk | None = None
        identity = policies.fleet.identity
        if identity.mode != "none":
            self._identity = IdentityDesk(
                identity, self._named, files=self._files, workers=self._workers, clock=self.clock
            )
            self._watched.update(self._identity.watched)
        authenticator: Authenticator = (
            AnonymousAuthenticator(CLASS_OF[identity.highest_class]) if self._identity is None else self._identity
        )
        self._pool_tls = {name: self._tls_of(name, pool.tls) for name, pool in policies.fleet.pools.items() if pool.tls}
        self._watched.update({f"pool:{name}": tls.watched for name, tls in self._pool_tls.items()})
        self.assembly = Assembly(
            policies,
            Parts(
                clock=self.clock,
                chance=self.chance,
                connector_of=self._connector_of,
                resolver=SystemResolver(self._resolver_workers),
                files=self._files,
                workers=self._workers,
                record_workers=self._record_workers,
                record_store=self._store,
                authenticator=authenticator,
                replica_key=hashlib.sha256(b"replica labels" + token.encode()).digest(),
                breathe=breathe,
                quota_store=store,
                lease=lease,
            ),
        )
        gateway, assembly = policies.fleet.gateway, self.assembly
        header = "" if self._identity is None else self._identity.header
        reader = HeaderReader(gateway.forward_headers, self.chance.stream("edge.request_id"), header)
        port_tls = self._port_tls()
        peers = None if self._identity is None else self._identity.peers
        explainer = Explainer(self.chance.stream("edge.explain").getrandbits(256))
        self.http = HttpServer(
            service=assembly.service,
            catalogue=assembly.catalogue,
            authenticator=authenticator,
            limits=gateway.http,
            reader=reader,
            explainer=explainer,
            wheel=assembly.wheel,
            clock=self.clock,
            chance=self.chance,
            limits_of=assembly.stack.routes.body_limits,
            body_budget=assembly.body_budget,
            observer=assembly.metrics,
            coding_workers=self._coding_workers,
            tls=self._http_door(port_tls),
            peers=None if peers is None else TransportPeers(**peers),
        )
        self.grpc = grpc_server(
            GrpcKit(
                service=assembly.service,
                catalogue=assembly.catalogue,
                authenticator=authenticator,
                reader=reader,
                explainer=explainer,
                budget=assembly.body_budget,
                observer=assembly.metrics,
                limits=gateway.grpc,
                receive_bytes_max=max(model.limits.body_bytes_max for model in policies.models.values())
                + ENVELOPE_BYTES,
                chance=self.chance.stream("edge.grpc.retry_after"),
                clock=self.clock,
                workers=self._coding_workers,
            ),
            wheel=assembly.wheel,
            tls=gateway.listen.tls,
            files=None if port_tls is None else lambda: port_tls.value,
            peers=peers,
        )
        assembly.metrics.add_source("files", self._file_readings)
        self._admin: AdminServers | None = None
        assembly.metrics.add_source("loop", lambda now_s: (("sluice_event_loop_tasks", (), len(asyncio.all_tasks())),))

    async def start(self) -> None:
        """Open everything. Raises `StartError`; what was opened by then is closed again."""
        try:
            for watched in self._watched.values():
                await watched.load()
            if self._identity is not None:
                await self._identity.load()
            for name, watched in self._watched.items():
                self.assembly.supervisor.start(f"watch/{name}", watched.run)
            await self._record_workers.run(self._store.open)
            self.assembly.start()
            await self._listen()
        except (OSError, ListenError, PolicyError) as error:
            await self.aclose()
            # Our own texts stand in `strerror`; `str` would put "[Errno 11]" before them.
            ours = isinstance(error, OSError) and error.filename is None and error.strerror
            raise StartError(ours or str(error)) from error
        except BaseException:
            await self.aclose()
            raise

    async def _listen(self) -> None:
        listen = self.policies.fleet.gateway.listen
        page = MetricsPage(self.assembly.metrics, self.clock, self._workers, breathe=breathe)
        self._admin = await start_admin(
            metrics_address=listen.metrics,
            admin_address=listen.admin,
            token=self._token,
            page=page.get,
            ready=self.assembly.catalogue.server_ready,
            fleet=self._fleet_state,
            metrics_id=self.assembly.metrics.replica_label,
            workers=self._workers,
        )
        http = await self.http.start(listen.http)
        grpc = await self.grpc.start(listen.grpc)
        _log.info(
            "serving: http %s, grpc %s, metrics %s, admin %s, policy revision %s",
            http, grpc, listen.metrics, listen.admin, self.policies.revision,
        )  # fmt: skip

    async def drain(self) -> bool:
        """The orderly end of serving. Returns whether every call in flight ended by itself."""
        drain = self.policies.fleet.gateway.drain
        self.assembly.draining = True
        _log.info("draining: not ready, still serving for %g s", drain.announce_s)
        await asyncio.sleep(drain.announce_s)
        self.http.begin_drain()
        self.grpc.begin_drain()
        clean = await asyncio.gather(self.http.wait_closed(drain.finish_s), self.grpc.wait_closed(drain.finish_s))
        return all(clean)

    async def aclose(self) -> Mapping[str, Any]:
        """Close what is open and write the last records. Returns the record log's last figures."""
        self.http.begin_drain()
        await self.http.wait_closed(0.0)
        await self.grpc.aclose()
        figures = await self.assembly.aclose()
        if self._admin is not None:
            await self._admin.aclose()
        pools = (self._resolver_workers, self._record_workers, self._workers, self._coding_workers)
        looked_up, *ended = await asyncio.gather(*(pool.aclose(CLOSE_LIMIT_S) for pool in pools))
        if not looked_up:
            _log.warning("a look-up of a name hangs in the operating system; ending without its answer")
            self.hanging = True
        if not all(ended):
            _log.error(
                "a worker thread hangs in the operating system (a disk that does not answer?); ending without it"
            )
            self.hanging = self.unfinished = True
        return figures

    def _fleet_state(self) -> FleetState:
        """What the admin port shows of this instant."""
        now_s = self.clock.now_s()
        statistics = {
            **self.assembly.statistics(now_s),
            "http": self.http.statistics(now_s),
            "grpc": self.grpc.statistics(now_s),
            "identity": None if self._identity is None else self._identity.statistics(now_s),
            "files": {name: watched.statistics(now_s) for name, watched in self._watched.items()},
        }
        return FleetState(
            snapshot=self.assembly.directory.snapshot,
            now_s=now_s,
            wall_s=self.clock.wall_s(),
            state="draining" if self.assembly.draining else "serving",
            policy_revision=self.policies.revision,
            version=VERSION,
            pools=self.assembly.directory.pools(now_s),
            members=self.assembly.directory.members(),
            statistics=statistics,
        )

    def _path(self, relative: str) -> Path:
        return resolve(self.policies, relative)

    def _named(self, relative: str) -> str:
        return str(self._path(relative))

    def _tls_of(self, pool: str, policy: UpstreamTls) -> PoolTls:
        return PoolTls(
            pool,
            policy,
            self._named,
            files=self._files,
            workers=self._workers,
            clock=self.clock,
            changed=lambda: self.assembly.directory.renew(pool),
        )

    def _port_tls(self) -> Watched[PortTls] | None:
        """TLS of the two client ports, from one set of files."""
        policy = self.policies.fleet.gateway.listen.tls
        if policy is None:
            return None
        watched = watch_port_tls(policy, self._named, files=self._files, workers=self._workers, clock=self.clock)
        self._watched["listen_tls"] = watched
        return watched

    def _http_door(self, watched: Watched[PortTls] | None) -> PortDoor | None:
        policy = self.policies.fleet.gateway.listen.tls
        if watched is None or policy is None:
            return None
        return PortDoor(
            lambda: watched.value.http,
            handshake_timeout_s=policy.handshake_timeout_ms / 1000,
            wheel=self.assembly.wheel,
            observer=self.assembly.metrics,
        )

    def _file_readings(self, now_s: float) -> Iterable[Reading]:
        rows = []
        for name, watched in self._watched.items():
            value = watched.value if watched.loads else None
            material = value.material if isinstance(value, PortTls) else value
            expires_s = material.not_after_s if isinstance(material, TlsMaterial) else 0.0
            rows.append((name, watched.loads, bool(watched.failure), expires_s))
        yield from file_readings(rows)
        if self._identity is not None:
            yield "sluice_token_verifications_total", (), self._identity.tally.verifications

    def _connector_of(self, pool: Pool) -> Connector:
        name = next(name for name, each in self.policies.fleet.pools.items() if each is pool)
        sizes = {"message_bytes_max": pool.message_bytes_max, "page_bytes_max": pool.scrape.page_bytes_max}
        tls = self._pool_tls.get(name)
        if pool.transport == "grpcio":
            return GrpcioConnector(GrpcioOptions(**sizes), self.clock, tls)
        return Http2Connector(
            Http2Options(**sizes),
            self.clock,
            self.chance.stream(f"fleet.connect/{name}"),
            tls,
            resolver=SystemResolver(self._resolver_workers),
            workers=self._coding_workers,
        )


def resolve(policies: PolicySet, relative: str) -> Path:
    """A path of the policies: relative ones start at the directory of fleet.yaml."""
    return Path(os.path.normpath(Path(policies.base_dir) / relative))


def _quota_store(policies: PolicySet, url: str, clock: Clock, lease: LeaseSettings) -> QuotaStore | None:
    """Redis, where there is one and something to share. That it answers is not asked: it may come and go."""
    if not url:
        return None
    # The library takes a quarter of a second and some megabytes to import: only where it is used.
    from gateway.stores.redis_link import BadRedisUrlError
    from gateway.stores.redis_quota import RedisQuotaStore

    try:
        store = RedisQuotaStore(url, clock.now_s, lease_s=lease.lease_s, answer_s=lease.answer_s)
    except BadRedisUrlError as error:
        raise StartError(f"SLUICE_REDIS_URL cannot be used: {error}; write redis://host:6379/0, or unset it") from error
    return None if policies.fleet.quotas.limits_nothing() else store


async def serve(policies: PolicySet, redis_url: str = "") -> int:
    """Run a gateway until a signal ends it. Returns the exit code: 0 if all was orderly, 1 if calls were cut off or
    records lost. Raises `StartError`.
    """
    try:
        token = ensure_token(resolve(policies, policies.fleet.gateway.state_dir))
    except TokenError as error:
        raise StartError(str(error)) from error
    gateway = policies.fleet.gateway
    descriptors = raise_descriptor_limit()
    connections_max = gateway.http.connections_max + gateway.grpc.connections_max
    if descriptors < connections_max:
        _log.warning(
            "this process may open %d files, fewer than the connections_max of gateway.http and gateway.grpc (%d); "
            "connections beyond that wait unaccepted: raise the limit (ulimit -n, LimitNOFILE=, --ulimit nofile=) or "
            "lower the keys",
            descriptors, connections_max,
        )  # fmt: skip
    app = App(policies, token, redis_url)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        if stop.is_set():
            _log.warning("%s again: ending at once; calls in flight are lost", number.name)
            logging.shutdown()
            os._exit(FORCED_EXIT_CODE)
        _log.info("%s: orderly end; send it again to end at once", number.name)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)

    def on_hangup() -> None:
        # The terminal is gone, or somebody hopes that it reads the policies again; unhandled it would cut calls off.
        # Never a second signal: a shell that ends sends it once more.
        if not stop.is_set():
            on_signal(signal.SIGHUP)

    loop.add_signal_handler(signal.SIGHUP, on_hangup)
    await app.start()
    settle()
    await stop.wait()
    clean = False
    try:
        clean = await app.drain()
    except Exception:
        _log.exception("draining failed; the last records are written all the same")
    figures = await app.aclose()
    _log.info("ended: %s", figures)
    whole = figures.get("balanced", True) and not figures.get("dropped", {}).get("unwritten")
    code = 0 if clean and whole and not app.unfinished else 1
    if app.hanging:
        logging.shutdown()
        os._exit(code)
    return code
