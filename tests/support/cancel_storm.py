"""A pool of servers that die of cancels, under callers with short deadlines (field case FH-11), in virtual time.

The gateway is the product's assembly; the servers are the simulation's, in front of which calls leave either at the
face or as bytes through the product's own HTTP/2.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from gateway.assembly import Assembly, Parts
from gateway.core.call import Call
from gateway.core.errors import GatewayError
from gateway.core.outcome import Outcome
from gateway.decide.cancel_cap import CancelCapSettings
from gateway.decide.tuning import Tuning
from gateway.policy.keys import AnonymousAuthenticator
from gateway.policy.schema import (
    FleetPolicy,
    Health,
    Hedging,
    ModelPolicy,
    Objective,
    PolicySet,
    Pool,
    Replicas,
    Retries,
    StaticReplica,
)
from gateway.records.memory_store import MemoryStore
from gateway.runtime.chance import Chance
from gateway.runtime.workers import InlineWorkers
from tests.simulation.batcher import ModelSpec, Request
from tests.simulation.codec_network import CodecWays
from tests.simulation.house import NoFiles
from tests.simulation.loop import SimulationLoop, simulate
from tests.simulation.network import Network
from tests.simulation.run import VirtualClock
from tests.simulation.states import Process
from tests.simulation.trace import Trace
from tests.simulation.triton import Triton

MODEL = "m"
DEATH_S = 5.0
CANCELS_MAX = 50
"""More than so many within one second kill a server."""
SPEC = ModelSpec(
    MODEL, max_batch_size=0, instances=32, dynamic_batching=False, s0_s=0.010, s1_s=0.0, noise=2.0, load_s=0.1
)
"""20 ms, give or take 10, of each call by itself."""
SETTLE_S = 2.0
"""The pool is warm by then."""


class Mortal(Triton):
    """Dies for `DEATH_S` when it sees more than `CANCELS_MAX` cancels in one second."""

    def __init__(self, *how: Any) -> None:
        super().__init__(*how)
        self.deaths: list[float] = []
        self.dying = False
        self.cancels: deque[float] = deque()
        self.cancelled = self.cancels_at_most = 0

    def cancel(self, request: Request) -> None:
        super().cancel(request)
        if request.done is None or self.dying:
            return  # the cancel came too late to be one
        now_s = self.now_s()
        self.cancelled += 1
        self.cancels.append(now_s)
        while self.cancels[0] <= now_s - 1.0:
            self.cancels.popleft()
        self.cancels_at_most = max(self.cancels_at_most, len(self.cancels))
        if len(self.cancels) > CANCELS_MAX:
            self.cancels.clear()
            self.deaths.append(now_s)
            self._loop.call_soon(self.die)

    def die(self) -> None:
        if self.process is not Process.DOWN:
            self.dying = True
            self.crash()
            self._loop.call_later(DEATH_S, self.rise)

    def rise(self) -> None:
        if self.process is Process.DOWN:
            self.dying = False
            self.start()


@dataclass
class Outcomes:
    """What became of the calls, and of the servers."""

    calls: int = 0
    good: int = 0
    late: int = 0
    """Answers after their deadline."""
    ends: Counter[str] = field(default_factory=Counter)
    attempts: Counter[str] = field(default_factory=Counter)
    durations_s: list[float] = field(default_factory=list)
    attempts_at_s: list[float] = field(default_factory=list)
    deaths: dict[str, list[float]] = field(default_factory=dict)
    cancels_at_most: int = 0
    cancelled: int = 0
    left: int = 0
    statistics: dict[str, Any] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    @property
    def attempts_per_call(self) -> float:
        return self.attempts.total() / self.calls

    def quantile_s(self, share: float) -> float:
        return sorted(self.durations_s)[int(share * len(self.durations_s))]

    @property
    def good_share(self) -> float:
        return self.good / self.calls


@dataclass(frozen=True)
class Storm:
    """`deadline_s` of a call is drawn by the call's own chance. `leaves_s`: instants after the start at which as many
    clients as `leaving` close their sockets within 50 ms.
    """

    deadline_s: Callable[[random.Random], float]
    seconds: float = 120.0
    rate_per_s: float = 300.0
    replicas: int = 3
    codecs: bool = False
    hedging: bool = True
    leaves_s: tuple[float, ...] = ()
    leaving: int = 200
    kills_s: tuple[float, ...] = ()
    """Instants at which the first server dies whatever it sees."""
    cancels: CancelCapSettings = field(default_factory=CancelCapSettings)
    seed: int = 1


def blow(storm: Storm) -> Outcomes:
    return simulate(lambda loop: _blow(storm, loop), seed=storm.seed, time_limit_s=storm.seconds + 60.0)


class _World:
    def __init__(self, storm: Storm, loop: SimulationLoop) -> None:
        self.outcomes = Outcomes()
        self.loop = loop
        self.clock = VirtualClock(loop)
        self.trace = Trace(loop.time)
        self.network = Network(loop, str(storm.seed), self.trace)
        self.scenario = SimpleNamespace(seed=storm.seed, lateness_s=0.0)
        self.report = SimpleNamespace(violate=self.outcomes.violations.append, cancels_made_s={})
        self.servers = {
            address: Mortal(address.partition(":")[0], (SPEC,), loop, str(storm.seed), self.trace)
            for address in (f"10.0.0.{number + 1}:8001" for number in range(storm.replicas))
        }
        self.network.machines.update(self.servers)


def _policies(storm: Storm, addresses: list[str]) -> PolicySet:
    replicas = tuple(StaticReplica(grpc=each, http=each.replace("8001", "8000"), metrics="") for each in addresses)
    policy = ModelPolicy(
        model=MODEL,
        pool="gpu",
        objective=Objective(p99_ms=100),
        ladder="none",
        impact="A test fails.",
        read_only=True,
        hedging=Hedging(enabled=storm.hedging),
        retries=Retries(max=1),
    )
    fleet = FleetPolicy(pools={"gpu": Pool(replicas=Replicas(static=replicas), health=Health())})
    return PolicySet(revision="r", base_dir="/sim", fleet=fleet, models={MODEL: policy})


async def _blow(storm: Storm, loop: SimulationLoop) -> Outcomes:
    world = _World(storm, loop)
    outcomes, clock, network = world.outcomes, world.clock, world.network
    chance = Chance(storm.seed)
    ways: Any = network
    if storm.codecs:
        ways = CodecWays(world, clock, chance.stream("ways"))  # type: ignore[arg-type]
    assembly = Assembly(
        _policies(storm, list(world.servers)),
        Parts(
            clock=clock,
            chance=chance,
            connector_of=lambda pool: ways,
            resolver=network,
            files=NoFiles(),
            workers=InlineWorkers(),
            record_workers=InlineWorkers(),
            record_store=MemoryStore(),
            authenticator=AnonymousAuthenticator(),
            tuning=Tuning(cancels=storm.cancels),
        ),
    )
    for server in world.servers.values():
        server.start()
    assembly.start()
    await asyncio.sleep(SETTLE_S)
    draw = random.Random(storm.seed)
    out: dict[asyncio.Task[None], Call] = {}
    begin_s = loop.time()
    for at_s in storm.kills_s:
        first = next(iter(world.servers.values()))
        loop.call_at(begin_s + at_s, first.die)
    leaves = list(storm.leaves_s)
    number = 0
    while loop.time() < begin_s + storm.seconds:
        await asyncio.sleep(draw.expovariate(storm.rate_per_s))
        number += 1
        _start(assembly, outcomes, out, number, storm.deadline_s(draw), loop)
        if leaves and loop.time() >= begin_s + leaves[0]:
            leaves.pop(0)
            leavers = []
            for _ in range(storm.leaving):
                number += 1
                leavers.append(_start(assembly, outcomes, out, number, 1.0, loop))
            for task in leavers:
                loop.call_later(0.005 + 0.050 * draw.random(), _leave, out, task)
    if out:
        await asyncio.wait(out)
    await asyncio.sleep(DEATH_S + 2.0)
    now_s = loop.time()
    outcomes.statistics = dict(assembly.statistics(now_s))
    for name, server in world.servers.items():
        outcomes.deaths[name] = [round(each - begin_s, 2) for each in server.deaths]
        outcomes.cancels_at_most = max(outcomes.cancels_at_most, server.cancels_at_most)
        outcomes.cancelled += server.cancelled
    outcomes.attempts_at_s = [each - begin_s for each in outcomes.attempts_at_s]
    for name, versions in outcomes.statistics["admission"].items():
        for row in versions.values():
            if row["in_flight"] or row["waiting"]:
                outcomes.violations.append(f"{name}: {row['in_flight']} in flight, {row['waiting']} wait at the end")
    if len(assembly.wheel):
        outcomes.violations.append(f"{len(assembly.wheel)} timers are left")
    await assembly.aclose()
    return outcomes


def _start(
    assembly: Assembly,
    outcomes: Outcomes,
    out: dict[asyncio.Task[None], Call],
    number: int,
    timeout_s: float,
    loop: SimulationLoop,
) -> asyncio.Task[None]:
    message = pb.ModelInferRequest(model_name=MODEL, id=f"id-{number}")
    message.inputs.add(name="x", datatype="UINT8", shape=[8])
    message.raw_input_contents.append(b"%08d" % number)
    now_s = loop.time()
    call = Call(f"r-{number}", MODEL, "", now_s, 0.0, message.SerializeToString(), body_bytes=1, timeout_s=timeout_s)

    async def run() -> None:
        outcomes.calls += 1
        try:
            reply = await assembly.service.send(call)
        except GatewayError as error:
            outcomes.ends[error.reason.label] += 1
        except asyncio.CancelledError:
            outcomes.ends["left"] += 1
        else:
            ended_s = loop.time()
            outcomes.good += 1
            outcomes.durations_s.append(ended_s - now_s)
            outcomes.late += ended_s > call.deadline_s
            await reply.aclose(Outcome.OK)
        for attempt in call.trail.attempts:
            outcomes.attempts[attempt.kind] += 1
            outcomes.attempts_at_s.append(attempt.started_s)
            outcomes.left += attempt.rest is not None

    task = loop.create_task(run())
    out[task] = call
    task.add_done_callback(out.pop)
    return task


def _leave(out: dict[asyncio.Task[None], Call], task: asyncio.Task[None]) -> None:
    call = out.get(task)
    if call is not None:
        call.abandoned = True
        task.cancel()
