"""One run of one scenario: a fleet is built, the gateway's stack in front of it, calls are made, faults happen.

What is observed goes into a `Report`, over which `checks.py` holds its invariants afterwards; only what cannot be seen
afterwards (a slot taken beyond its number, a call sent where the model is long gone) is judged on the spot.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Protocol

from gateway.core.service import Service
from gateway.edge.grpc_port import GrpcPort
from gateway.runtime.chance import Chance
from gateway.stack import Stack
from tests.simulation.clients import Clients, clients_ways, without_streams
from tests.simulation.codec_network import CodecWays
from tests.simulation.loop import START_S, SimulationLoop, simulate
from tests.simulation.network import Network
from tests.simulation.plans import Event
from tests.simulation.report import ErrorLog, Report
from tests.simulation.scenario import HOST, POOL, RECOVERY_S, Scenario
from tests.simulation.stream_entrance import StreamDoor
from tests.simulation.trace import Trace
from tests.simulation.triton import Lie, Metrics, Process, Triton
from tests.simulation.watch import Watch

EPOCH_S = 1_800_000_000.0
"""Wall-clock seconds at the start of every run."""


class VirtualClock:
    """The loop's time as the gateway's clock."""

    def __init__(self, loop: SimulationLoop) -> None:
        self.now_s = loop.time

    def wall_s(self) -> float:
        return EPOCH_S + self.now_s() - START_S


class House(Protocol):
    """The gateway under test, composed over the simulated faces."""

    service: Service

    @property
    def stack(self) -> Stack:
        """The product's own layers."""
        ...

    streams: StreamDoor | None
    """Where streams come in; None if this house has no such door."""
    grpc: GrpcPort | None
    """The gRPC port, where calls and streams come in as bytes; None if it has none."""

    async def start(self) -> None: ...

    async def stop(self) -> None:
        """Orderly shutdown: refuse what comes, finish what is in flight, end every background job."""
        ...

    def closed(self) -> bool:
        """It takes no new clients any more."""
        ...

    def accept(self) -> asyncio.BaseProtocol | None:
        """The edge's end of a new client connection; None if this house has no edge that bytes can enter by."""
        ...

    def knows(self, model: str) -> bool:
        """Whether it has heard of any version of the model in the fleet."""
        ...

    def slots(self, machine: str, model: str, version: str) -> int | None:
        """How many calls the gateway may have in flight there; None if it says nothing about the pair now."""
        ...

    def held_until_s(self, machine: str, model: str, version: str) -> float:
        """Until when it keeps the version out of service there on purpose; minus infinity if it does not."""
        ...

    def stuck_steps(self) -> Iterable[str]:
        """Steps of sequences that wait although all before them is over, in words."""
        ...

    def waiting_places(self) -> Iterable[tuple[str, str, Mapping[str, Any]]]:
        """(model, version, statistics of its admission) for each that exists now."""
        ...

    def left_behind(self) -> list[str]:
        """Permits, waiters, timers and bytes that are still held. Called after `stop`."""
        ...


Builder = Callable[["World"], House]


class World:
    """Fleet, network, clock and chance of one run; `Builder`s compose a house from it."""

    def __init__(self, scenario: Scenario, loop: SimulationLoop) -> None:
        self.scenario = scenario
        self.loop = loop
        self.clock = VirtualClock(loop)
        self.chance = Chance(scenario.seed)
        self.trace = Trace(loop.time)
        self.report = Report(scenario, self.trace)
        self.error_log = ErrorLog(self.report)
        logging.getLogger("sluice").addHandler(self.error_log)
        self.network = Network(loop, str(scenario.seed), self.trace, scenario.latency_s)
        self.ways: CodecWays | None = None
        """Where calls leave as bytes; set by a house that lets them."""
        self.machines = {
            address: Triton(address.partition(":")[0], scenario.specs, loop, str(scenario.seed), self.trace)
            for address in scenario.machines
        }
        self.network.machines.update(self.machines)
        self.network.names[HOST] = _hosts(scenario.listed)

    def at_s(self) -> float:
        return self.loop.time() - self.trace.origin_s

    # -- events of the fleet ----------------------------------------------------------------------------------------

    def happen(self, event: Event) -> None:
        """Apply one event. Events that make no sense any more (a crash of what is down) do nothing."""
        self.trace.add("event", event.what, event.machine, *map(_shown, event.arguments))
        _EVENTS[event.what](self, event.machine, *event.arguments)

    def list_(self, _: str, *machines: str) -> None:
        self.network.names[HOST] = _hosts(machines)

    def start(self, machine: str) -> None:
        if self.machines[machine].process is Process.DOWN:
            self.machines[machine].start()

    def crash(self, machine: str) -> None:
        if self.machines[machine].process is not Process.DOWN:
            self.machines[machine].crash()

    def reload(self, machine: str, model: str) -> None:
        """Back to what the repository says: its versions loaded, others gone."""
        triton = self.machines[machine]
        if triton.process is Process.UP:
            for version in triton.specs[model].versions:
                triton.load(model, version, keep_old=True)
            triton.unload_others(model)

    def slow(self, machine: str, factor: float) -> None:
        self.machines[machine].slowness = factor

    def lie(self, machine: str, lie: Lie) -> None:
        self.machines[machine].lie = lie

    def metrics(self, machine: str, metrics: Metrics) -> None:
        self.machines[machine].metrics = metrics


_EVENTS: dict[str, Callable[..., None]] = {
    "list": World.list_,
    "start": World.start,
    "crash": World.crash,
    "stop": lambda world, machine: world.machines[machine].stop(),
    "freeze": lambda world, machine: world.machines[machine].freeze(),
    "thaw": lambda world, machine: world.machines[machine].thaw(),
    "black_hole": lambda world, machine: world.network.black_hole(machine),
    "heal": lambda world, machine: world.network.heal(machine),
    "cut_streams": lambda world, machine, orderly: world.network.cut_streams(machine, orderly),
    "slow": World.slow,
    "lie": World.lie,
    "metrics": World.metrics,
    "unload": lambda world, machine, model: world.machines[machine].unload(model),
    "reload": World.reload,
    "load": lambda world, machine, model, version, broken, keep: world.machines[machine].load(
        model, version, broken=broken, keep_old=keep
    ),
}


async def play(world: World, build: Builder) -> Report:
    """Run the scenario from boot to shutdown."""
    scenario, loop, report = world.scenario, world.loop, world.report
    house = build(world)
    if house.streams is None and house.grpc is None:
        scenario = report.scenario = without_streams(scenario)
    report.by_stream = {plan.number for plan in scenario.calls if plan.goes_by_stream}
    world.trace.add("ways", *clients_ways(scenario, house))
    watch = Watch(world, house)
    loop.on_quiet = watch.quiet
    report.on_call_ended, report.on_session_ended = watch.call_ended, watch.session_ended
    report.on_call_finished = watch.call_finished
    report.sequence_logs = [triton.sequences for triton in world.machines.values()]
    world.network.on_limit, world.network.on_told = watch.limited, watch.told
    world.network.on_infer, world.network.on_infer_end = watch.begin, watch.end
    world.network.on_infer_left = watch.left
    world.network.on_cancel = lambda address: report.cancels_at_s.setdefault(address, []).append(loop.time())
    for triton in world.machines.values():
        triton.start()
    origin_s = world.trace.origin_s
    for event in scenario.events:
        loop.call_at(origin_s + event.at_s, world.happen, event)
    await house.start()
    clients = Clients(world, house)
    clients.schedule()
    if scenario.shutdown_s is None:
        loop.call_at(origin_s + scenario.calm_s + RECOVERY_S, watch.recovered)
    else:
        await asyncio.sleep(max(0.0, origin_s + scenario.shutdown_s - loop.time()))
        world.trace.add("shutdown")
        await house.stop()
    await clients.finish()
    if scenario.shutdown_s is None:
        world.trace.add("shutdown")
        await house.stop()
    for text in house.left_behind():
        report.violate(f"left behind: {text}")
    # What travels on the network or runs on a machine may end in its own time.
    await asyncio.sleep(scenario.latency_s * 4)
    if world.network.open_calls:
        report.violate(f"{world.network.open_calls} upstream calls are still out after the shutdown")
    for text in () if world.ways is None else world.ways.left_behind():
        report.violate(f"left behind: {text}")
    for triton in world.machines.values():
        report.executed.update(triton.executed)
    report.virtual_s = world.at_s()
    report.callbacks = loop.callbacks_run
    return report


def run(scenario: Scenario, build: Builder) -> Report:
    """One run in a fresh loop. Raises `SimulationError` for what the loop itself finds."""
    worlds: list[World] = []

    def main(loop: SimulationLoop) -> Coroutine[Any, Any, Report]:
        worlds.append(World(scenario, loop))
        return play(worlds[0], build)

    log = logging.getLogger("sluice")
    level, propagate = log.level, log.propagate
    log.setLevel(logging.ERROR)
    log.propagate = False
    try:
        return simulate(main, seed=scenario.seed, lateness_s=scenario.lateness_s, time_limit_s=120.0)
    except Exception as error:
        error.trace = worlds[0].trace  # type: ignore[attr-defined]
        raise
    finally:
        for world in worlds:
            log.removeHandler(world.error_log)
        log.setLevel(level)
        log.propagate = propagate


def _hosts(machines: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(machine.partition(":")[0] for machine in machines)


def _shown(value: object) -> str:
    return str(getattr(value, "name", value))


__all__ = ["POOL", "House", "Report", "World", "run"]
