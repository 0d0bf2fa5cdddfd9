"""`python -m load fleet`: what a small call costs against the number of models and of replicas."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from gateway.runtime import loop
from gateway.runtime.collector import settle
from load import accounting
from load.options import positive, positive_int, require_json_folder, tell
from load.ratios import columns
from load.stage_house import SEED, stage_house
from load.stages import Caller, depths
from load.throughput import counts
from load.verdict import ROUNDS_MIN, spread

SLOTS = 16
FIRST_CALLS = 4
"""For each model on each replica, on average."""

EXAMPLE = """\
examples:
  python -m load fleet
  python -m load fleet --models 1,10,100 --replicas 1,4,16 --rounds 7 --json fleet.json

For each number of models and of replicas it assembles a gateway without ports in this process, with a policy of its own
for every model, and sends it --rps calls a second, 16 at a time, whose models take turns. The order of the fleets
changes from round to round, and figures are medians over the rounds. CPU is that of the whole process, the threads that
write records included.

What stands in for what: replicas that answer at once stand in for Tritons, since a hundred Python models on sixteen
servers would be 1,600 processes, which no small machine carries. So choosing a replica, the state of each model, the
probes and their bookkeeping are the gateway's own and at full size; sockets and codecs are not there, nor is what many
connections cost the kernel. `python -m load compare` measures those, over one replica.

At rest it is measured, too: the CPU of probes and other background work, without any call. That of the same length of
time is part of the cost per call.

exit codes: 0 it ran to its end; 1 not; 2 wrong usage; 130 interrupted"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.epilog = EXAMPLE
    parser.add_argument("--models", type=counts, default=[1, 10, 100], metavar="N,...", help="default: 1,10,100")
    parser.add_argument("--replicas", type=counts, default=[1, 4, 16], metavar="N,...", help="default: 1,4,16")
    parser.add_argument("--rounds", type=positive_int, default=ROUNDS_MIN, metavar="N", help="default: 7")
    parser.add_argument("--calls", type=positive_int, default=4000, metavar="N",
                        help="to each fleet in each round (default: 4000)")  # fmt: skip
    parser.add_argument("--rps", type=positive_int, default=4000, metavar="N", help="calls a second (default: 4000)")
    parser.add_argument("--rest", type=positive, default=1.0, metavar="S",
                        help="each fleet at rest in each round (default: 1)")  # fmt: skip
    parser.add_argument("--settle", type=positive, default=2.0, metavar="S",
                        help="after a fleet's start, before it is measured (default: 2)")  # fmt: skip
    parser.add_argument("--json", metavar="OUT", help="write the figures as JSON to this file; - is stdout")


@dataclass(frozen=True, slots=True)
class FleetReading:
    """One fleet in one round."""

    us_per_call: float
    """CPU of the process, background work included."""
    rest_us_per_s: float
    """CPU of a second without calls."""
    first_us_per_call: float
    """The same as `us_per_call` of the first calls, in which replicas answer for a model for the first time."""


Fleet = tuple[int, int]
"""Models, replicas."""


def run(arguments: argparse.Namespace) -> int:
    """Measure. Returns the command's exit code."""
    require_json_folder(arguments.json)
    rounds = loop.run(_rounds(arguments), "uvloop")
    setting = {name: getattr(arguments, name) for name in ("rounds", "calls", "rps", "rest", "settle")}
    tell(document(rounds, {**setting, "machine": accounting.machine_name()}), arguments.json, table)
    return 0


async def _rounds(arguments: argparse.Namespace) -> list[Mapping[Fleet, FleetReading]]:
    fleets = [(models, replicas) for models in arguments.models for replicas in arguments.replicas]
    chance, order = random.Random(SEED), list(fleets)
    rounds: list[Mapping[Fleet, FleetReading]] = []
    for number in range(1, arguments.rounds + 1):
        chance.shuffle(order)
        found = {fleet: await _measure(fleet, arguments) for fleet in order}
        rounds.append({fleet: found[fleet] for fleet in fleets})
        words = ", ".join(
            f"{models}x{replicas} {found[models, replicas].us_per_call:.1f}" for models, replicas in fleets
        )
        print(f"round {number}/{arguments.rounds}, us per call: {words}", file=sys.stderr, flush=True)
    return rounds


async def _measure(fleet: Fleet, arguments: argparse.Namespace) -> FleetReading:
    models, replicas = fleet
    with tempfile.TemporaryDirectory(prefix="sluice-fleet-") as folder:
        async with stage_house(Path(folder) / "house", replicas=replicas, slots=SLOTS, models=models) as house:
            settle()
            caller = Caller(house, rps=arguments.rps, burst=SLOTS)
            whole = depths(house)[-1]
            await asyncio.sleep(arguments.settle)  # what follows a start is no part of a call's cost
            first = await caller.measure(whole, max(200, FIRST_CALLS * models * replicas))  # warms up, too
            cpu = await caller.measure(whole, arguments.calls)
            begun_s, begun_ns = time.monotonic(), time.process_time_ns()
            await asyncio.sleep(arguments.rest)
            rest_ns, seconds = time.process_time_ns() - begun_ns, time.monotonic() - begun_s
            return FleetReading(cpu.process, rest_ns / 1000 / seconds, first.process)


def document(rounds: Sequence[Mapping[Fleet, FleetReading]], setting: dict[str, Any]) -> dict[str, Any]:
    """The JSON: each fleet's medians with their intervals, beside the first fleet's cost of the same rounds."""
    fleets: list[dict[str, Any]] = []
    first = next(iter(rounds[0]))
    for fleet in rounds[0]:
        cost = spread([each[fleet].us_per_call for each in rounds])
        over = spread([each[fleet].us_per_call / each[first].us_per_call for each in rounds])
        rest = spread([each[fleet].rest_us_per_s for each in rounds])
        fleets.append(
            {
                "models": fleet[0],
                "replicas": fleet[1],
                "us_per_call": round(cost.median, 2),
                "low": round(cost.low, 2),
                "high": round(cost.high, 2),
                "over_first": round(over.median, 3),
                "rest_us_per_s": round(rest.median, 1),
                "first_us_per_call": round(median(each[fleet].first_us_per_call for each in rounds), 2),
            }
        )
    return {
        "fleets": fleets,
        "setting": setting,
        "rounds": [
            [{"models": fleet[0], "replicas": fleet[1], **asdict(reading)} for fleet, reading in each.items()]
            for each in rounds
        ],
    }


def table(result: dict[str, Any]) -> str:
    """The figures for people."""
    rows = [
        ["models", "replicas", "us per call", "95 % interval", "over the first", "at rest, us per s", "first calls, us"]
    ]
    for row in result["fleets"]:
        interval = f"{row['low']:.1f} to {row['high']:.1f}"
        figures = (f"{row['over_first']:.2f}", f"{row['rest_us_per_s']:.0f}", f"{row['first_us_per_call']:.1f}")
        rows.append([str(row["models"]), str(row["replicas"]), f"{row['us_per_call']:.1f}", interval, *figures])
    return "\n".join(columns(rows))
