"""A fleet of in-memory Tritons with the real directory, catalogue and transport in front, on the virtual loop."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.faces import Endpoints, FleetObserver
from gateway.core.snapshot import FleetSnapshot, ModelState, ReplicaState, ReplicaView
from gateway.fleet.catalogue import FleetCatalogue
from gateway.fleet.directory import Directory
from gateway.fleet.transport import ReplicaTransport
from gateway.fleet.warmer import WarmRequest
from gateway.policy.schema import (
    DnsReplicas,
    FileReplicas,
    FleetPolicy,
    Health,
    ModelPolicy,
    Objective,
    PolicySet,
    Pool,
    Replicas,
    Scrape,
    StaticReplica,
    Warmup,
)
from gateway.runtime.chance import Chance
from gateway.runtime.supervisor import Supervisor
from gateway.runtime.workers import InlineWorkers
from tests.simulation.batcher import ModelSpec
from tests.simulation.loop import SimulationLoop, simulate
from tests.simulation.network import Network
from tests.simulation.run import VirtualClock
from tests.simulation.trace import Trace
from tests.simulation.triton import Triton
from tests.support.calls import call_sent_to
from tests.support.pace import SteadyCalls

POOL = "gpu"


class MemoryFiles:
    """Files in a dictionary."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}

    async def read(self, path: str) -> bytes:
        if path not in self.contents:
            raise FileNotFoundError(2, "No such file or directory", path)
        return self.contents[path]


def model_policy(name: str, **fields: Any) -> ModelPolicy:
    fields = {"objective": Objective(p99_ms=100), "ladder": "none", "impact": "the answer is missing", **fields}
    return ModelPolicy(model=name, pool=POOL, **fields)


def static(*hosts: str) -> Replicas:
    return Replicas(static=tuple(StaticReplica(grpc=f"{h}:8001", http=f"{h}:8000", metrics=f"{h}:8002") for h in hosts))


class FleetWorld:
    """`hosts` are machines `<host>:8001`, started; the pool's addresses are theirs unless `replicas` says otherwise."""

    def __init__(
        self,
        loop: SimulationLoop,
        specs: Sequence[ModelSpec],
        hosts: Sequence[str] = ("10.0.0.1", "10.0.0.2"),
        *,
        replicas: Replicas | None = None,
        policies: Mapping[str, Mapping[str, Any]] | None = None,
        health: Health | None = None,
        replicas_max: int = 64,
        base_dir: str = "/policies",
        warm_request: WarmRequest | None = None,
        observer: FleetObserver | None = None,
    ) -> None:
        self.loop = loop
        self.clock = VirtualClock(loop)
        self.trace = Trace(loop.time)
        self.network = Network(loop, "7", self.trace)
        self.specs = tuple(specs)
        self.tritons: dict[str, Triton] = {}
        for host in hosts:
            self.add(host)
        self.files = MemoryFiles()
        self.supervisor = Supervisor()
        pool = Pool(
            replicas=static(*hosts) if replicas is None else replicas,
            health=health or Health(),
            scrape=Scrape(interval_ms=500),
            replicas_max=replicas_max,
        )
        models = {spec.name: model_policy(spec.name, **(policies or {}).get(spec.name, {})) for spec in specs}
        self.policies = PolicySet(revision="r", base_dir=base_dir, fleet=FleetPolicy(pools={POOL: pool}), models=models)
        self.directory = Directory(
            self.policies,
            lambda pool: self.network,
            clock=self.clock,
            chance=Chance(7),
            supervisor=self.supervisor,
            workers=InlineWorkers(),
            resolver=self.network,
            files=self.files,
            warm_request=warm_request,
            observer=observer,
        )
        self.catalogue = FleetCatalogue(self.directory, self.policies)
        self.transport = ReplicaTransport(self.directory, self.clock)
        self.snapshots: list[FleetSnapshot] = []
        self.directory.subscribe(self.snapshots.append)
        self._ids = itertools.count()

    def add(self, host: str, *, specs: Sequence[ModelSpec] | None = None, start: bool = True) -> Triton:
        triton = Triton(host, self.specs if specs is None else tuple(specs), self.loop, "7", self.trace)
        self.tritons[host] = self.network.machines[f"{host}:8001"] = triton
        if start:
            triton.start()
        return triton

    def replica(self, host: str) -> ReplicaView | None:
        wanted = f"{POOL}/{host}:8001"
        return next((each for each in self.directory.snapshot.replicas if each.id == wanted), None)

    def state(self, host: str) -> ReplicaState | None:
        replica = self.replica(host)
        return None if replica is None else replica.state

    def model_state(self, host: str, model: str, version: str = "1") -> ModelState | None:
        replica = self.replica(host)
        view = None if replica is None else replica.models.get((model, version))
        return None if view is None else view.state

    def takers(self, model: str, version: str = "1") -> set[str]:
        """Hosts that take calls of a model version."""
        candidates = self.directory.snapshot.candidates(POOL, model, version)
        return {each.replica.removeprefix(f"{POOL}/").removesuffix(":8001") for each in candidates}

    async def until(self, condition: Callable[[], bool], limit_s: float = 20.0) -> float:
        """Let time pass until `condition` holds; returns how long that took. Fails after `limit_s`."""
        started_s = self.loop.time()
        while not condition():
            assert self.loop.time() - started_s < limit_s, f"not so after {limit_s} s\n" + "\n".join(
                self.trace.lines(20)
            )
            await asyncio.sleep(0.01)
        return self.loop.time() - started_s

    def call(self, host: str, model: str, version: str = "1", *, timeout_s: float = 5.0) -> Call:
        """A call that was routed and admitted to one host."""
        message = request(model, f"q{next(self._ids)}".encode())
        return call_sent_to(f"{POOL}/{host}:8001", model, version, message, self.loop.time(), timeout_s)


class Load(SteadyCalls):
    """Calls of one model version; each goes to the next of those that take calls at that moment."""

    def __init__(self, world: FleetWorld, model: str, version: str = "1", every_s: float = 0.005) -> None:
        super().__init__(every_s)
        self.answered: Counter[str] = Counter()
        """Good answers by host."""
        self.failed: list[tuple[float, str, Reason]] = []
        """When each failed call was sent, to which host ("" if there was none), and why it failed."""
        self.sent_s: dict[str, float] = {}
        """When the last call was sent, by host."""
        self._world = world
        self._key = (model, version)
        self._turn = 0

    async def _one(self) -> None:
        world, now_s = self._world, self._world.loop.time()
        candidates = world.directory.snapshot.candidates(POOL, *self._key)
        if not candidates:
            self.failed.append((now_s, "", Reason.NO_REPLICA))
            return
        self._turn += 1
        host = candidates[self._turn % len(candidates)].replica.removeprefix(f"{POOL}/").removesuffix(":8001")
        self.sent_s[host] = now_s
        try:
            await world.transport.send(world.call(host, *self._key))
        except GatewayError as error:
            self.failed.append((now_s, host, error.reason))
        else:
            self.answered[host] += 1


def request(model: str, question: bytes, version: str = "") -> bytes:
    message = pb.ModelInferRequest(model_name=model, model_version=version)
    message.inputs.add(name="x", datatype="UINT8", shape=[1, len(question)])
    message.raw_input_contents.append(question)
    return bytes(message.SerializeToString())


def run(
    main: Callable[[FleetWorld], Awaitable[None]],
    *specs: ModelSpec,
    hosts: Sequence[str] = ("10.0.0.1", "10.0.0.2"),
    seed: int = 1,
    start: bool = True,
    **options: Any,
) -> None:
    """`main(world)` on the virtual loop with a started directory; whatever it leaves behind is an error."""

    async def body(loop: SimulationLoop) -> None:
        world = FleetWorld(loop, specs or (ModelSpec("m"),), hosts, **options)
        if start:
            world.directory.start()
        try:
            await main(world)
        finally:
            await world.directory.stop()
        assert not world.supervisor.statistics(0.0)["running"]
        assert all(client.closed for client in world.network.clients), "a connection was left open"

    simulate(body, seed=seed)


def dns(host: str = "pool.test", refresh_s: float = 2.0) -> Replicas:
    return Replicas(dns=DnsReplicas(host=host, refresh_s=refresh_s))


def watched(path: str = "replicas.yaml", refresh_s: float = 1.0) -> Replicas:
    return Replicas(file=FileReplicas(path=path, refresh_s=refresh_s))


__all__ = [
    "POOL",
    "Endpoints",
    "FleetWorld",
    "Load",
    "Warmup",
    "dns",
    "model_policy",
    "request",
    "run",
    "static",
    "watched",
]
