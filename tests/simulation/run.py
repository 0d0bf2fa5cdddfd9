"""One run of one scenario: a fleet is built, the gateway's stack in front of it, calls are made, faults happen.

What is observed goes into a `Report`, over which `checks.py` holds its invariants afterwards; only what cannot be seen
afterwards (a slot taken beyond its number, a call sent where the model is long gone) is judged on the spot.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Protocol

from tritonclient.grpc import service_pb2 as pb

from gateway.core.service import Service
from gateway.runtime.chance import Chance
from tests.simulation.entrance import enter
from tests.simulation.loop import START_S, SimulationLoop, simulate
from tests.simulation.network import Network
from tests.simulation.report import ErrorLog, Report
from tests.simulation.scenario import HOST, POOL, RECOVERY_S, CallPlan, Event, Scenario
from tests.simulation.trace import Trace
from tests.simulation.triton import Lie, Metrics, Process, Triton

QUIET_EVERY = 16
"""The waiting places are looked at each so-many-th time that nothing is ready: each time would double a run's cost."""

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

    async def start(self) -> None: ...

    async def stop(self) -> None:
        """Orderly shutdown: refuse what comes, finish what is in flight, end every background job."""
        ...

    def closed(self) -> bool:
        """It takes no new clients any more."""
        ...

    def accept(self) -> asyncio.Protocol | None:
        """The edge's end of a new client connection; None if this house has no edge that bytes can enter by."""
        ...

    def knows(self, model: str) -> bool:
        """Whether it has heard of any version of the model in the fleet."""
        ...

    def slots(self, machine: str, model: str, version: str) -> int | None:
        """How many calls the gateway may have in flight there; None if it says nothing about the pair now."""
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
    "slow": World.slow,
    "lie": World.lie,
    "metrics": World.metrics,
    "unload": lambda world, machine, model: world.machines[machine].unload(model),
    "reload": World.reload,
    "load": lambda world, machine, model, version, broken, keep: world.machines[machine].load(
        model, version, broken=broken, keep_old=keep
    ),
}


class Watch:
    """Sees every inference leave the gateway and end, and judges what only shows at that moment."""

    def __init__(self, world: World, house: House) -> None:
        self._world = world
        self._house = house
        self._out: Counter[tuple[str, str, str]] = Counter()
        self._quiet = 0

    def begin(self, machine: str, message: bytes) -> object:
        world = self._world
        request = pb.ModelInferRequest.FromString(message)
        question = request.raw_input_contents[0] if request.raw_input_contents else b""
        if not question.startswith(b"call-"):
            return None  # a warm-up's: it holds no slot
        report, key = world.report, (machine, request.model_name, request.model_version)
        name = question[:10].decode()
        world.trace.add("send", name, *key)
        report.sends[question] += 1
        self._out[key] += 1
        slots = self._house.slots(*key)
        if slots is not None and self._out[key] > slots:
            report.violate(f"{name}: {self._out[key]} calls in flight on {' '.join(key)}, which has {slots} slots")
        gone_s = world.machines[machine].gone_s(*key[1:], black_hole=world.network.black_since_s.get(machine))
        if gone_s is not None and gone_s > world.scenario.detection_s:
            report.violate(
                f"{name} was sent to {' '.join(key)}, which has not been able to answer for {gone_s:.3f} s; "
                f"it should have been noticed within {world.scenario.detection_s:.3f} s"
            )
        return key, question

    def end(self, token: object) -> None:
        if isinstance(token, tuple):
            key, question = token
            self._out[key] -= 1
            self._world.report.out_until_s[question] = self._world.loop.time()

    def quiet(self) -> None:
        """Nothing is ready: whoever holds a slot has sent, and nobody waits beside a free one."""
        self._quiet += 1
        if self._quiet % QUIET_EVERY:
            return
        out: Counter[tuple[str, str]] = Counter()
        for (_, model, version), count in self._out.items():
            out[model, version] += count
        for model, version, state in self._house.waiting_places():
            in_flight, waiting = state["in_flight"], state["waiting"]
            if in_flight != out[model, version]:
                text = f"{in_flight} slots are held, but {out[model, version]} calls are out"
                self._world.report.violate(f"{model} {version}: {text}")
            if waiting and in_flight < state["limit"] and self._has_free_slot(model, version, state):
                self._world.report.violate(f"{model} {version}: {waiting} calls wait although a slot is free")

    def recovered(self) -> None:
        """All faults are over for long enough: every machine that can be found must take calls of all its versions."""
        world = self._world
        for machine in world.machines:
            if machine.partition(":")[0] not in world.network.names[HOST]:
                continue
            for spec in world.scenario.specs:
                for version in spec.versions:
                    if self._house.slots(machine, spec.name, version) is None:
                        text = f"{machine} gets no calls of {spec.name} {version} yet"
                        world.report.violate(f"{text}, {RECOVERY_S:g} s after the last fault")

    def _has_free_slot(self, model: str, version: str, state: Mapping[str, Any]) -> bool:
        held: Mapping[str, int] = state["in_flight_by_replica"]
        for machine in self._world.machines:
            slots = self._house.slots(machine, model, version)
            if slots is not None and held.get(f"{POOL}/{machine}", 0) < slots:
                return True
        return False


async def play(world: World, build: Builder) -> Report:
    """Run the scenario from boot to shutdown."""
    scenario, loop, report = world.scenario, world.loop, world.report
    house = build(world)
    watch = Watch(world, house)
    loop.on_quiet = watch.quiet
    world.network.on_infer, world.network.on_infer_end = watch.begin, watch.end
    for triton in world.machines.values():
        triton.start()
    origin_s = world.trace.origin_s
    for event in scenario.events:
        loop.call_at(origin_s + event.at_s, world.happen, event)
    await house.start()
    entrance = enter(loop, report, world.clock, house)
    tasks: list[asyncio.Task[None]] = []
    all_made = asyncio.Event()

    def make(plan: CallPlan) -> None:
        report.known_at[plan.number] = house.knows(plan.model)
        tasks.append(loop.create_task(entrance.client(plan)))
        if len(tasks) == len(scenario.calls):
            all_made.set()

    for plan in scenario.calls:
        loop.call_at(max(loop.time(), origin_s + plan.at_s), make, plan)
    if scenario.shutdown_s is None:
        loop.call_at(origin_s + scenario.calm_s + RECOVERY_S, watch.recovered)
    else:
        await asyncio.sleep(max(0.0, origin_s + scenario.shutdown_s - loop.time()))
        world.trace.add("shutdown")
        await house.stop()
    await all_made.wait()
    await asyncio.gather(*tasks)
    await entrance.close()
    if scenario.shutdown_s is None:
        world.trace.add("shutdown")
        await house.stop()
    for text in house.left_behind():
        report.violate(f"left behind: {text}")
    # What travels on the network or runs on a machine may end in its own time.
    await asyncio.sleep(scenario.latency_s * 4)
    if world.network.open_calls:
        report.violate(f"{world.network.open_calls} upstream calls are still out after the shutdown")
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
