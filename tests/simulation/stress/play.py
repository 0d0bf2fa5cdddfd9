"""One run of one row on one seed: a fleet, the gateway in front of it, calls, faults."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from load.arrivals import Arrival, Poisson, schedule
from load.executions import Execution
from load.faults import Span, plan
from load.scenario import LoadedScenario
from load.sluice import POOL
from tests.simulation.batcher import Request
from tests.simulation.loop import START_S, SimulationLoop, simulate
from tests.simulation.network import Network
from tests.simulation.stress.accel import AccelTriton, Untold
from tests.simulation.stress.callers import Callers, Ended
from tests.simulation.stress.faults import Faults
from tests.simulation.stress.house import StressHouse
from tests.simulation.stress.policies import LOAD_S, Setting

READY_S = LOAD_S + 5.0
"""By then all replicas take calls; else the run is not the one that was meant."""
LATENCY_S = 0.0001
"""Of a message between gateway and replica, half to one and a half times that."""
EPOCH_S = 1_800_000_000.0
AFTER_S = 3600.0


@dataclass(slots=True)
class Played:
    """What a run leaves. Times are seconds from the start of what is counted."""

    seed: int
    ended: list[Ended]
    """Every call, those of the warm-up (with negative offsets) included."""
    made: int
    """Calls, which have the numbers from 1 on."""
    executions: list[Execution]
    spans: list[Span]
    start_s: float
    """The start of what is counted, on the loop's clock."""
    addresses: tuple[str, ...]
    """Of the replicas, in the gateway's words."""
    wrong: list[str] = field(default_factory=list)
    """What must not be after any run: leftovers, errors in the log, records that do not balance."""


class VirtualClock:
    """The loop's time as the gateway's clock."""

    def __init__(self, loop: SimulationLoop) -> None:
        self.now_s = loop.time

    def wall_s(self) -> float:
        return EPOCH_S + self.now_s() - START_S


class _Errors(logging.Handler):
    """What the product logs as an error should not have happened."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        told = record.exc_info[1] if record.exc_info else None
        self.texts.append(f"logged by {record.name}: {record.getMessage()} {told or ''}".rstrip())


Act = Callable[[Callers, float], Awaitable[None]]
"""The clients' part, from a moment on that everything is up."""


def play(scenario: LoadedScenario, setting: Setting, seed: int) -> Played:
    """The scenario on one seed, open loop, from boot to shutdown. Raises `SimulationError` for what the loop finds."""
    arrivals = arrivals_of(scenario, seed)
    return _run(scenario, setting, seed, lambda callers, start_s: callers.come(arrivals, start_s))


def arrivals_of(scenario: LoadedScenario, seed: int) -> Iterator[Arrival]:
    """Every call of the scenario, in order; those of the warm-up have negative offsets."""
    spec = scenario.spec
    named = [(each.name, process) for each, process in zip(spec.traffic, scenario.arrivals, strict=True)]
    before = [(f"{name}/warm-up", Poisson(process.initial_rps())) for name, process in named]
    for each in schedule(before, seed=seed, until_s=spec.warm_up_s):
        yield each._replace(offset_s=each.offset_s - spec.warm_up_s)
    yield from schedule(named, seed=seed, until_s=spec.duration_s)


def play_closed(scenario: LoadedScenario, setting: Setting, seed: int, callers: int, length_s: float) -> Played:
    """So many callers of the first traffic for so long, after the warm-up, and no fault."""
    return _run(
        scenario.changed(),
        setting,
        seed,
        lambda clients, start_s: clients.ask_again(callers, start_s, start_s + length_s),
        faults=False,
    )


def _run(scenario: LoadedScenario, setting: Setting, seed: int, act: Act, *, faults: bool = True) -> Played:
    log, errors = logging.getLogger("sluice"), _Errors()
    level, propagate = log.level, log.propagate
    log.setLevel(logging.ERROR)
    log.propagate = False
    log.addHandler(errors)
    try:
        played = simulate(
            # In the order of a real loop, first in, first out: other orders are what the random seeds are for.
            lambda loop: _played(scenario, setting, seed, loop, act, faults),
            seed=None,
            time_limit_s=AFTER_S,
        )
    finally:
        log.removeHandler(errors)
        log.setLevel(level)
        log.propagate = propagate
    played.wrong += errors.texts
    return played


async def _played(
    scenario: LoadedScenario, setting: Setting, seed: int, loop: SimulationLoop, act: Act, faulty: bool
) -> Played:
    clock, trace = VirtualClock(loop), Untold(loop.time)
    network = Network(loop, str(seed), trace, LATENCY_S)
    machines = [AccelTriton(each, (setting.spec,), loop, str(seed), trace) for each in setting.machines]
    network.machines.update(zip(setting.machines, machines, strict=True))
    planned = plan(scenario.spec.faults, len(machines)) if faulty else []
    faults = Faults(planned, machines, setting.machines, network)
    faults.before()
    for machine in machines:
        machine.start()
    house = StressHouse(setting, seed, network, clock)
    house.start()
    while house.serving() < len(machines):
        if loop.time() >= START_S + READY_S:
            told = "; ".join(loop.failures) or "they are not ready"
            raise RuntimeError(f"seed {seed}: {house.serving()} of {len(machines)} replicas serve: {told}")
        await asyncio.sleep(0.05)
    start_s = loop.time() + scenario.spec.warm_up_s
    executions: list[Execution] = []
    for index, machine in enumerate(machines):
        machine.log = _log(executions, index, loop, start_s)
    faults.schedule(start_s, loop)
    callers = Callers(scenario, house.service, clock, loop)
    await act(callers, start_s)
    wrong = await house.stop(callers.made)
    await asyncio.sleep(4 * LATENCY_S)
    if network.open_calls:
        wrong.append(f"{network.open_calls} upstream calls are still out after the shutdown")
    addresses = tuple(f"{POOL}/{each}" for each in setting.machines)
    return Played(seed, callers.ended, callers.made, executions, faults.spans, start_s, addresses, wrong)


def _log(
    executions: list[Execution], replica: int, loop: SimulationLoop, start_s: float
) -> Callable[[list[Request], float], None]:
    def log(batch: list[Request], took_s: float) -> None:
        began_s = loop.time() - start_s
        called = [request for request in batch if request.id]  # the others are the gateway's own, of its warming up
        executions.extend(Execution(replica, request.id, began_s, took_s, len(batch)) for request in called)

    return log
