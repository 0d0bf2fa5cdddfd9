"""What a target can give at most, measured: the best goodput of closed loops of different sizes."""

from __future__ import annotations

import asyncio

from load.closed_loop import ClosedLoop
from load.drive import Target, connecting
from load.errors import LoadError
from load.fault_schema import Capacity
from load.histogram import Histogram
from load.inputs import Calls
from load.scenario_schema import TrafficSpec

WARM_UP_S = 1.0


async def best_goodput_rps(each: TrafficSpec, target: Target, capacity: Capacity) -> float:
    """Right answers per second, within the deadline, with the best number of callers. Raises LoadError if there are
    none at all.
    """
    best = 0.0
    for callers in capacity.callers or ():
        connections = [connecting(each, target.addresses[each.protocol])() for _ in range(callers)]
        try:
            loop = ClosedLoop(connections, Calls(0, each.deadline_ms))
            measured = await loop.run(WARM_UP_S, capacity.each_s, lambda: None)
        finally:
            await asyncio.gather(*(connection.aclose() for connection in connections))
        best = max(best, _within(measured.tally.latency, each.deadline_ms) / measured.seconds)
    if not best:
        raise LoadError(f"no call of the traffic {each.name} was answered while its capacity was measured")
    return round(best, 1)


def _within(latency: Histogram, deadline_ms: int) -> int:
    return sum(count for lowest, _, count in latency.buckets() if lowest <= deadline_ms * 1_000_000)
