"""The program that `python -m load instructions` and `python -m load protections` count: calls of one end of the
gateway, at one depth of it, or (`CALL`) through all layers of a gateway with other policies.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from pathlib import Path

from gateway.edge import grpc_connection
from gateway.runtime import loop
from gateway.runtime.collector import settle
from load.callgrind import Switch
from load.errors import LoadError
from load.options import positive_int
from load.stage_ends import Ends
from load.stage_house import StageHouse, stage_house
from load.stages import Caller, Depth, depths, whole

BURST = 16
"""Calls that come in together, as in `stages`."""
WARM_BURSTS = 20
RPS_WITHOUT_WAITS = 1_000_000
"""Nothing is as fast as that under valgrind, so each burst follows the one before at once. A loop that waits is woken
by timers, and they would be counted.
"""
TURN_S = 60.0
"""An edge that has worked for longer than a few milliseconds gives its turn to others. By the clock, valgrind makes all
work fifty times as long: bursts that take one turn would take several, and what that costs would be counted."""


def whole_bursts(calls: int) -> int:
    """Bursts that hold at least so many calls."""
    return -(-calls // BURST)


CALL = "call"
"""The reading of a call through all layers that there are."""


async def _work(arguments: argparse.Namespace, switch: Switch) -> None:
    reading, bursts = arguments.reading, arguments.bursts
    async with stage_house(
        arguments.folder,
        replicas=arguments.replicas,
        slots=BURST,
        policy=json.loads(arguments.policy),
        fleet=json.loads(arguments.fleet),
    ) as house:
        if reading == CALL:
            settle()
            await _drive(house, whole(house), bursts, switch)
            return
        ends = Ends(house, BURST)
        settle()
        if reading in ends.ends:
            await _end(ends, reading, bursts, switch)
        else:
            await _depth(house, reading, bursts, switch)
        await ends.aclose()


async def _end(ends: Ends, name: str, bursts: int, switch: Switch) -> None:
    end = ends.ends[name]
    warm, counted = end.prepare(WARM_BURSTS), end.prepare(bursts)
    for number in range(WARM_BURSTS):
        await end.burst(warm, number)
    gc.collect()
    before = ends.answered[name]
    switch.turn()
    for number in range(bursts):
        await end.burst(counted, number)
    switch.turn()
    if ends.answered[name] - before != bursts * BURST:
        raise LoadError(f"{name}: {ends.answered[name] - before} of {bursts * BURST} calls were answered rightly")


async def _depth(house: StageHouse, name: str, bursts: int, switch: Switch) -> None:
    (depth,) = [each for each in depths(house) if each.name == name]
    await _drive(house, depth, bursts, switch)


async def _drive(house: StageHouse, depth: Depth, bursts: int, switch: Switch) -> None:
    caller = Caller(house, rps=RPS_WITHOUT_WAITS, burst=BURST)
    await caller.drive(depth, WARM_BURSTS * BURST)
    await house.records_written()
    gc.collect()
    switch.turn()
    await caller.drive(depth, bursts * BURST)
    await house.records_written()
    switch.turn()


def main() -> int:
    """Run the calls. Returns the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("reading")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--bursts", type=positive_int, required=True)
    parser.add_argument("--loop", choices=loop.LOOPS, required=True)
    parser.add_argument("--replicas", type=positive_int, default=1)
    parser.add_argument("--policy", default="{}")
    parser.add_argument("--fleet", default="{}")
    parser.add_argument("--port", type=positive_int, required=True)
    arguments = parser.parse_args()
    grpc_connection.TURN_S = TURN_S
    switch = Switch(arguments.port)
    try:
        loop.run(_work(arguments, switch), arguments.loop)
    except LoadError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        switch.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
