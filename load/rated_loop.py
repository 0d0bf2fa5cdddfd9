"""Open-loop load with the face of a closed loop: calls at a given rate, whatever has become of those before, measured
as one window. For ratios of latency at the same load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from load import arrivals
from load.clock import KernelClock
from load.closed_loop import Measured, Tally
from load.connection import WRONG_ANSWER, Connection
from load.inputs import Calls
from load.open_loop import Moment, OpenLoopResult, Traffic, run_open_loop
from load.senders import Pool

S = TypeVar("S")

IN_FLIGHT_MAX = 512
"""Calls out at a time at the most; those beyond are held, and their latency counts from when they were due."""
NOT_SENT = "not sent: held until its deadline"
_NAME = "calls"


class RatedLoop:
    """Sends calls at random times (Poisson), `rps` a second on average. For one `run`.

    `ready`: connections for the first calls; `make` gives more where more calls than that are out at a time.
    """

    def __init__(
        self, ready: Sequence[Connection], make: Callable[[], Connection], calls: Calls, rps: float, seed: int
    ) -> None:
        self._pool = Pool(make, ready)
        self._calls = calls
        self._rps = rps
        self._seed = seed

    async def run(self, warm_up_s: float, seconds: float, sample: Callable[[], S]) -> Measured[S]:
        """Warm up, measure what was due within `seconds`, let it end."""
        before: list[S] = []
        numbered = self._calls.made

        def look(moment: Moment) -> None:
            if moment.elapsed_s >= 0 and not before:
                before.append(sample())

        process = arrivals.Poisson(self._rps)
        schedule = arrivals.schedule([(_NAME, process)], seed=self._seed, warm_up_s=warm_up_s, until_s=seconds)
        try:
            result = await run_open_loop(
                schedule,
                [Traffic(_NAME, self._pool, self._calls)],
                clock=KernelClock(),
                duration_s=seconds,
                in_flight_max=IN_FLIGHT_MAX,
                on_second=look,
            )
            after = sample()
        finally:
            await self._pool.aclose()
        return Measured(seconds, _tally(result), before[0], after, self._calls.made - numbered)


def _tally(result: OpenLoopResult) -> Tally:
    (traffic,) = result.traffic
    errors = dict(traffic.errors)
    for kind, count in ((WRONG_ANSWER, traffic.wrong), (NOT_SENT, traffic.not_sent)):
        if count:
            errors[kind] = errors.get(kind, 0) + count
    return Tally(traffic.offered, errors, traffic.latency, result.timer_late)
