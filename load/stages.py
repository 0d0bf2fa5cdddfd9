"""`python -m load stages`: CPU of one call, stage by stage, beside the budget of each."""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

from gateway.core.call import Attempt, Call
from gateway.core.outcome import Outcome
from gateway.core.permit import Permit
from gateway.core.reply import Reply
from gateway.core.service import Service
from gateway.layers.record import CallSink, RecordLayer
from gateway.runtime import loop
from gateway.runtime.collector import settle
from load import accounting
from load.inputs import Calls, IdentityInputs
from load.options import positive_int, require_json_folder, tell
from load.stage_ends import BUDGETS_US as END_BUDGETS_US
from load.stage_ends import Ends
from load.stage_house import DEADLINE_MS, SEED, VERSION, StageHouse, stage_house
from load.verdict import spread

DISTINCT = 4096
PREPARATIONS = 2000

EXAMPLE = """\
examples:
  python -m load stages
  python -m load stages --rounds 31 --rps 2000 --json stages.json

Assembles a gateway without ports in this process, in front of replicas that answer at once, and sends it --rps calls a
second, --burst at a time. What enters one layer further in costs less: a stage is the difference between two such
depths, measured one right after the other in each round, and the figure is the median over the rounds. CPU is that of
the whole process, the threads that write records included, so nothing is shifted out of sight; a machine that is busy
with something else still shows in it, as does a slower clock rate of its processors.

exit codes: 0 it ran to its end; 1 not; 2 wrong usage; 130 interrupted"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.epilog = EXAMPLE
    parser.add_argument("--rounds", type=positive_int, default=15, metavar="N", help="default: 15")
    parser.add_argument("--calls", type=positive_int, default=2000, metavar="N",
                        help="of each depth in each round (default: 2000)")  # fmt: skip
    parser.add_argument("--rps", type=positive_int, default=5000, metavar="N", help="calls a second (default: 5000)")
    parser.add_argument("--burst", type=positive_int, default=16, metavar="N",
                        help="calls that start in one turn of the loop (default: 16)")  # fmt: skip
    parser.add_argument("--replicas", type=positive_int, default=1, metavar="N",
                        help="replicas to choose from (default: 1)")  # fmt: skip
    parser.add_argument("--loop", choices=loop.LOOPS, default="uvloop", help="event loop (default: uvloop)")
    parser.add_argument("--json", metavar="OUT", help="write the figures as JSON to this file; - is stdout")


def run(arguments: argparse.Namespace) -> int:
    """Measure. Returns the command's exit code."""
    require_json_folder(arguments.json)
    setting = {name: getattr(arguments, name) for name in ("rounds", "calls", "rps", "burst", "replicas", "loop")}
    with tempfile.TemporaryDirectory(prefix="sluice-stages-") as folder:
        rounds, ends = loop.run(_measure(Path(folder), arguments), arguments.loop)
    result = document(rounds, ends, {**setting, "machine": accounting.machine_name()})
    tell(result, arguments.json, table)
    return 0


# --- what is measured -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cpu:
    """Microseconds per call: of the whole process, and of the event loop's thread in it."""

    process: float
    loop: float

    @property
    def others(self) -> float:
        return self.process - self.loop


Round = Mapping[str, Cpu]
"""One reading of each depth, by its name."""

EndRound = Mapping[str, float]
"""Microseconds per call of each end."""

Part = Literal["process", "loop", "others"]


@dataclass(frozen=True, slots=True)
class Stage:
    """A row of the budget: what the depth `outer` costs more than `inner`, in one part of the process."""

    name: str
    group: str
    outer: str
    inner: str
    part: Part = "process"

    def us(self, reading: Round) -> float:
        """Its cost in one round."""
        outer: float = getattr(reading[self.outer], self.part)
        inner: float = getattr(reading[self.inner], self.part)
        return outer - inner


LAYERS, AFTER = "layers", "record and metrics"

BUDGETS_US: Mapping[str, float] = {LAYERS: 25.0, AFTER: 15.0}
"""By group, microseconds per call (DESIGN.md, section 7)."""

STAGES: tuple[Stage, ...] = (
    Stage("transport, without its client", LAYERS, "transport", "client"),
    Stage("track", LAYERS, "track", "transport"),
    Stage("admit", LAYERS, "admit", "track"),
    Stage("route", LAYERS, "route", "admit"),
    Stage("deadline", LAYERS, "deadline", "route"),
    Stage("gate", LAYERS, "gate", "deadline"),
    Stage("record, without its sinks", LAYERS, "record", "gate"),
    Stage("metrics", AFTER, "with metrics", "record"),
    Stage("prediction record, on the loop", AFTER, "with records", "with metrics", "loop"),
    Stage("prediction record, its writer", AFTER, "with records", "with metrics", "others"),
)
"""From the inside out. A stage that is added needs a depth in `depths`, and its group a budget."""


@dataclass(frozen=True, slots=True)
class Depth:
    """A place to enter the stack. `prepare` writes on a call what the layers further out would have."""

    name: str
    send: Callable[[Call], Awaitable[Reply]]
    prepare: Callable[[Call], object]


def depths(house: StageHouse) -> tuple[Depth, ...]:
    """From the inside out, the client of a replica first: what is below all of the gateway's own work."""
    assembly = house.assembly
    record = assembly.service
    gate, deadline, route = _below(record), _below(_below(record)), _below(_below(_below(record)))
    admit: Service = assembly.stack.admissions[IdentityInputs.model]
    track = _below(admit)
    transport = _below(track)
    client, clock = house.client, house.clock
    (replica, *_) = house.candidates
    sinks: tuple[CallSink, ...] = (assembly.metrics,)

    async def ask(call: Call) -> Reply:
        assert call.message is not None
        return Reply(await client.infer(call.message, call.metadata, 1.0))

    def nothing(call: Call) -> None:
        return None

    def timed(call: Call) -> None:
        call.deadline_s = call.arrived_s + DEADLINE_MS / 1000
        call.trail.received_s = call.arrived_s

    def routed(call: Call) -> None:
        timed(call)
        call.trail.version_routed = VERSION

    def admitted(call: Call) -> None:
        routed(call)
        call.permit = Permit(replica, 1)

    def tracked(call: Call) -> None:
        admitted(call)
        call.trail.attempts.append(Attempt(replica, call.arrived_s))

    return (
        Depth("client", ask, nothing),
        Depth("transport", transport.send, tracked),
        Depth("track", track.send, admitted),
        Depth("admit", admit.send, routed),
        Depth("route", route.send, timed),
        Depth("deadline", deadline.send, nothing),
        Depth("gate", gate.send, nothing),
        Depth("record", RecordLayer(gate, clock, ()).send, nothing),
        Depth("with metrics", RecordLayer(gate, clock, sinks).send, nothing),
        Depth("with records", record.send, nothing),
    )


def whole(house: StageHouse) -> Depth:
    """From outside of all layers, whatever there are."""
    return Depth("call", house.assembly.service.send, lambda call: None)


def _below(service: Service) -> Service:
    inner: Service = getattr(service, "_inner")  # noqa: B009 - the face has no such member, every layer has
    return inner


# --- how --------------------------------------------------------------------------------------------------------------


class Caller:
    """Makes calls as an edge does, a task for each; the models of the house take turns."""

    def __init__(self, house: StageHouse, *, rps: int, burst: int) -> None:
        self._house = house
        self._interval_s = burst / rps
        self._burst = burst
        inputs, supply = IdentityInputs(), Calls(SEED, DEADLINE_MS)
        calls = [supply.next() for _ in range(DISTINCT)]
        names = house.models
        self._rows = [
            (
                names[number % len(names)],
                each.request_id,
                inputs.message_to(names[number % len(names)], each.row),
                (("traceparent", each.traceparent),),
            )
            for number, each in enumerate(calls)
        ]
        self._number = 0

    def _call(self) -> Call:
        clock = self._house.clock
        self._number += 1
        model, request_id, message, metadata = self._rows[self._number % DISTINCT]
        return Call(
            request_id=request_id,
            model=model,
            version="",
            arrived_s=clock.now_s(),
            arrived_wall_s=clock.wall_s(),
            message=message,
            body_bytes=len(message),
            metadata=metadata,
            timeout_s=DEADLINE_MS / 1000,
            protocol="grpc",
        )

    async def measure(self, depth: Depth, calls: int) -> Cpu:
        """CPU per call at this depth: with that of the task and of the call itself, without that of the preparation."""
        gc.collect()
        begun_process, begun_loop = time.process_time_ns(), time.thread_time_ns()
        done = await self.drive(depth, calls)
        await self._house.records_written()
        process, thread = time.process_time_ns() - begun_process, time.thread_time_ns() - begun_loop
        prepared_us = self._prepared_us(depth)
        return Cpu(process / done / 1000 - prepared_us, thread / done / 1000 - prepared_us)

    async def drive(self, depth: Depth, calls: int) -> int:
        """Make whole bursts of calls, at least so many. Returns how many."""
        started_s, interval_s, burst = time.monotonic(), self._interval_s, self._burst
        bursts = -(-calls // burst)
        running = asyncio.get_running_loop()
        for number in range(bursts):
            wait_s = started_s + number * interval_s - time.monotonic()
            await asyncio.sleep(max(0.0, wait_s))
            tasks = [running.create_task(self._one(depth)) for _ in range(burst)]
            for task in tasks:
                await task
        return bursts * burst

    async def _one(self, depth: Depth) -> None:
        call = self._call()
        depth.prepare(call)
        reply = await depth.send(call)
        await reply.aclose(Outcome.OK)

    def _prepared_us(self, depth: Depth) -> float:
        prepare = depth.prepare
        calls = [self._call() for _ in range(PREPARATIONS)]
        begun = time.thread_time_ns()
        for call in calls:
            prepare(call)
        return (time.thread_time_ns() - begun) / PREPARATIONS / 1000


async def _measure(folder: Path, arguments: argparse.Namespace) -> tuple[list[Round], list[EndRound]]:
    rounds: list[Round] = []
    ends: list[EndRound] = []
    async with stage_house(folder, replicas=arguments.replicas, slots=arguments.burst) as house:
        settle()
        caller = Caller(house, rps=arguments.rps, burst=arguments.burst)
        found, chance, outer = list(depths(house)), random.Random(SEED), Ends(house, arguments.burst)
        for number in range(arguments.rounds + 1):
            chance.shuffle(found)
            reading = {depth.name: await caller.measure(depth, arguments.calls) for depth in found}
            at_ends = await outer.measure(arguments.calls)
            if number:  # the first one warms up
                rounds.append(reading)
                ends.append(at_ends)
                whole = reading["with records"].process - reading["client"].process
                print(f"round {number}/{arguments.rounds}: {whole:.1f} us", file=sys.stderr, flush=True)
        await outer.aclose()
    return rounds, ends


# --- what is told -----------------------------------------------------------------------------------------------------


def document(rounds: Sequence[Round], ends: Sequence[EndRound], setting: dict[str, Any]) -> dict[str, Any]:
    """The JSON: `stages` and `ends` with medians and their 95 % intervals, `groups` with budgets, the floor, and all
    readings.
    """
    stages = []
    for stage in STAGES:
        found = spread([stage.us(reading) for reading in rounds])
        stages.append(
            {
                "name": stage.name,
                "group": stage.group,
                "us": round(found.median, 2),
                "low": round(found.low, 2),
                "high": round(found.high, 2),
            }
        )
    outer = []
    for name, budget_us in END_BUDGETS_US.items():
        found = spread([reading[name] for reading in ends])
        outer.append(
            {
                "name": name,
                "us": round(found.median, 2),
                "low": round(found.low, 2),
                "high": round(found.high, 2),
                "budget_us": budget_us,
            }
        )
    groups = {}
    for group, budget_us in BUDGETS_US.items():
        sums = [sum(stage.us(reading) for stage in STAGES if stage.group == group) for reading in rounds]
        groups[group] = {"us": round(median(sums), 2), "budget_us": budget_us}
    return {
        "ends": outer,
        "stages": stages,
        "groups": groups,
        "floor_us": round(median(reading["client"].process for reading in rounds), 2),
        "setting": setting,
        "rounds": [
            {name: {"process": round(cpu.process, 2), "loop": round(cpu.loop, 2)} for name, cpu in sorted(each.items())}
            | {name: round(us, 2) for name, us in at_ends.items()}
            for each, at_ends in zip(rounds, ends, strict=True)
        ],
    }


def table(result: dict[str, Any]) -> str:
    """The figures for people."""
    lines = [f"{'us per call':<34} {'median':>7} {'95 % interval':>15} {'budget':>7}"]
    for group, sums in result["groups"].items():
        for stage in result["stages"]:
            if stage["group"] == group:
                interval = f"{stage['low']:.1f} to {stage['high']:.1f}"
                lines.append(f"  {stage['name']:<32} {stage['us']:>7.1f} {interval:>15}")
        lines.append(f"{group:<34} {sums['us']:>7.1f} {'':>15} {sums['budget_us']:>7.1f}")
    for end in result["ends"]:
        interval = f"{end['low']:.1f} to {end['high']:.1f}"
        lines.append(f"{end['name']:<34} {end['us']:>7.1f} {interval:>15} {end['budget_us']:>7.1f}")
    lines.append(f"below the layers, a task, a call and an answer at once: {result['floor_us']:.1f} us")
    return "\n".join(lines)
