"""`python -m load soak`: steady load of every kind for a long time; what grows?"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import uvloop

from deploy.local.processes import group_members
from load import accounting
from load.arrivals import schedule
from load.clock import KernelClock
from load.closed_loop import answers
from load.errors import LoadError, UsageError
from load.grpc_connection import GrpcConnection
from load.http_connection import HttpConnection
from load.inputs import Calls, IdentityInputs
from load.open_loop import Moment, OpenLoopResult, run_open_loop
from load.options import require_json_folder, require_pictures_folder, tell
from load.soak_figures import Sample, SoakLimits, document, summary
from load.soak_pictures import write_pictures
from load.soak_traffic import MODELS, Kind, arrivals_of, kinds, traffic_of
from load.stand import GatewayReading, Stand, read_gateway, stand
from load.verdict import EXIT_CODES, Verdict

REPLICAS = 2
SLOTS = 16
IN_FLIGHT_MAX = 1000
WARM_UP_S = 5.0
SETTLE_S = 20.0
GONE_TIMEOUT_S = 30.0
PROGRESS_EVERY_S = 30
SAMPLES_WANTED = 360

EXAMPLE = """\
examples:
  python -m load soak --seconds 1800 --json soak.json --pictures .
  python -m load soak --seconds 180 --rps 80

Starts two real Tritons and Sluice, and sends calls to five models over both protocols at independent random times:
JSON and binary, slow and quick, over kept and over fresh connections, streams, sessions and sequences, with callers'
mistakes, unknown models, and clients that leave before the answer. Every few seconds it reads the gateway's memory,
descriptors, tasks, calls in flight and prediction records. The last quarter of the run is compared with the second.

exit codes: 0 all checks passed; 1 one failed; 2 wrong usage; 3 inconclusive (a run that is too short, or too much other
work on the machine); 130 interrupted"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    limits = SoakLimits()
    parser.epilog = EXAMPLE
    parser.add_argument("--seconds", type=float, default=1800.0, metavar="S", help="default: 1800")
    parser.add_argument("--rps", type=float, default=100.0, metavar="N", help="calls per second (default: 100)")
    parser.add_argument(
        "--every", type=float, metavar="S", help="between two readings (default: 1 to 5 s by --seconds)"
    )
    parser.add_argument("--kinds", metavar="NAME,...", help="only these kinds of traffic, to find which of them grows: "
                        + ", ".join(kind.name for kind in kinds()))  # fmt: skip
    parser.add_argument("--deadline-ms", type=int, default=5000, metavar="MS", help="of each call (default: 5000)")
    parser.add_argument("--mb-per-hour-max", type=float, default=limits.rss_mb_per_hour, metavar="MB",
                        help=f"limit of memory's slope (default: {limits.rss_mb_per_hour:g})")  # fmt: skip
    parser.add_argument("--mb-growth-max", type=float, default=limits.rss_mb_growth, metavar="MB",
                        help=f"limit of memory's growth (default: {limits.rss_mb_growth:g})")  # fmt: skip
    parser.add_argument("--drift-max", type=float, default=limits.drift, metavar="RATIO",
                        help=f"limit of the latency's drift (default: {limits.drift:g})")  # fmt: skip
    parser.add_argument("--keep", action="store_true", help="keep the folder of policies, records and logs")
    parser.add_argument("--pictures", metavar="FOLDER", help="write pictures of memory, counts and latency there")
    parser.add_argument("--json", metavar="OUT", help="write samples and figures as JSON to this file; - is stdout")


def run(arguments: argparse.Namespace) -> int:
    """Run the soak. Returns its exit code."""
    every_s = min(5.0, max(1.0, arguments.seconds / SAMPLES_WANTED)) if arguments.every is None else arguments.every
    if not (arguments.seconds >= 10 and arguments.rps > 0 and 0.5 <= every_s <= arguments.seconds):
        raise UsageError("--seconds is at least 10, --rps above 0, --every from 0.5 to --seconds")
    require_json_folder(arguments.json)
    chosen = _chosen(arguments.kinds)
    require_pictures_folder(arguments.pictures)
    up = stand(REPLICAS, MODELS, slots=SLOTS, deadline_ms=arguments.deadline_ms, keep=arguments.keep)
    with up as ready, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        soak = Soak(ready, arguments.seconds, arguments.rps, every_s, arguments.deadline_ms, chosen)
        runner.run(soak.run())
    result = soak.document(
        SoakLimits(arguments.mb_per_hour_max, arguments.mb_growth_max, arguments.drift_max),
    )
    tell(result, arguments.json, summary)  # before the pictures, whose folder may turn out to be unusable
    if arguments.pictures:
        for path in write_pictures(result, Path(arguments.pictures)):
            print(f"picture: {path}", file=sys.stderr)
    return EXIT_CODES[cast(Verdict, result["verdict"])]


def _chosen(words: str | None) -> list[Kind]:
    """The kinds of traffic that are asked for; together they have the whole rate."""
    every = {kind.name: kind for kind in kinds()}
    names = list(every) if words is None else words.split(",")
    unknown = [name for name in names if name not in every]
    if unknown:
        raise UsageError(f"--kinds: there is no {', '.join(unknown)}; there are {', '.join(every)}")
    total = sum(every[name].share for name in names)
    return [replace(every[name], share=every[name].share / total) for name in names]


@dataclass(frozen=True, slots=True)
class _Usage:
    at_s: float
    ours_s: float
    machine_s: float


class Soak:
    """One run on a stand that is up."""

    def __init__(
        self,
        ready: Stand,
        seconds: float,
        rps: float,
        every_s: float,
        deadline_ms: int,
        chosen: Sequence[Kind],
        progress: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
    ) -> None:
        self._stand = ready
        self._seconds = seconds
        self._rps = rps
        self._every_s = every_s
        self._deadline_ms = deadline_ms
        self._progress = progress
        self._kinds = tuple(chosen)
        self._run = random.getrandbits(32)
        self._samples: list[Sample] = []
        self._result: OpenLoopResult | None = None
        self._idle: GatewayReading | None = None
        self._end: GatewayReading | None = None
        self._began_s: float | None = None

    async def run(self) -> None:
        """Wait for right answers, drive, and wait until the gateway is at rest again. Raises LoadError."""
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        await self._settle()
        self._idle = await self._read()
        traffic = [
            traffic_of(kind, self._stand.http, self._stand.grpc, self._run + index, self._deadline_ms)
            for index, kind in enumerate(self._kinds)
        ]
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)  # a collection makes sends late
        sampling = asyncio.ensure_future(self._sample())
        try:
            self._result = await run_open_loop(
                schedule([arrivals_of(kind, self._rps) for kind in self._kinds], seed=self._run, warm_up_s=WARM_UP_S),
                traffic,
                clock=KernelClock(),
                duration_s=self._seconds,
                in_flight_max=IN_FLIGHT_MAX,
                on_second=self._second,
            )
        finally:
            sampling.cancel()
            await asyncio.wait((sampling,))
            await asyncio.gather(*(each.sender.aclose() for each in traffic))
            gc.collect()  # a closed channel of grpcio keeps its connection while calls of its own, in circles, hold it
        if not sampling.cancelled() and (error := sampling.exception()) is not None:
            raise error
        self._end = await self._at_rest(self._idle)

    def document(self, limits: SoakLimits) -> dict[str, Any]:
        """The JSON of a run that has ended."""
        assert self._result is not None
        assert self._end is not None
        assert self._idle is not None
        late = self._result.timer_late
        setting = {
            "rps": self._rps,
            "every_s": self._every_s,
            "deadline_ms": self._deadline_ms,
            "replicas": REPLICAS,
            "models": list(MODELS),
            "shares": {kind.name: kind.share for kind in self._kinds},
            "machine": accounting.machine_name(),
            "load_average": round(os.getloadavg()[0], 2),
            "late_sends": self._result.late_sends,
            "sends": self._result.sends,
            "timer_late_p99_ms": round(late.quantile_ns(0.99) / 1e6, 3) if late.count else None,
        }
        return document(
            self._seconds,
            self._samples,
            self._result.seconds.rows,
            self._result.traffic,
            {kind.name: kind.endings for kind in self._kinds},
            self._end,
            self._idle,
            limits,
            setting,
        )

    async def _settle(self) -> None:
        calls = Calls(self._run ^ 0x80000000, self._deadline_ms)
        for connection in (
            HttpConnection(self._stand.http, IdentityInputs()),
            GrpcConnection(self._stand.grpc, IdentityInputs()),
        ):
            try:
                error = await answers(connection, calls, SETTLE_S)
            finally:
                await connection.aclose()
            if error:
                raise LoadError(f"sluice gives no right answer: {error}; run it again with --keep and read the logs")

    def _second(self, moment: Moment) -> None:
        if self._began_s is None and moment.elapsed_s >= 0:
            self._began_s = time.monotonic() - moment.elapsed_s
        at = round(moment.elapsed_s)
        if at > 0 and at % PROGRESS_EVERY_S == 0 and self._samples:
            last = self._samples[-1].gateway
            self._progress(
                f"{at} of {self._seconds:g} s: {moment.ended} calls, p50 {moment.p50_ms} ms, p99 {moment.p99_ms} ms; "
                f"{last.rss_bytes / 1e6:.1f} MB, {last.descriptors} descriptors, {last.tasks} tasks, "
                f"{last.in_flight} in flight"
            )

    async def _sample(self) -> None:
        before = self._usage()
        while True:
            await asyncio.sleep(self._every_s)
            reading, after = await self._read(), self._usage()
            began_s = self._began_s
            at_s = -1.0 if began_s is None else time.monotonic() - began_s
            busy = (after.machine_s - before.machine_s) - (after.ours_s - before.ours_s)
            others = max(0.0, busy / max(0.001, after.at_s - before.at_s))
            before = after
            if 0 <= at_s <= self._seconds:
                self._samples.append(Sample(round(at_s, 2), reading, round(others, 3)))

    def _usage(self) -> _Usage:
        pids = [self._stand.pid]
        for server in self._stand.fleet:
            if server.run is None:
                raise LoadError(f"{server.spec.name} has ended; see {server.spec.log}")
            pids += group_members(server.run.server.pid)
        ours_s = accounting.cpu_s_of(pids) + time.process_time()
        return _Usage(time.monotonic(), ours_s, accounting.machine_busy_s())

    async def _read(self) -> GatewayReading:
        return await asyncio.to_thread(read_gateway, self._stand.pid, self._stand.metrics)

    async def _at_rest(self, idle: GatewayReading) -> GatewayReading:
        """Read until nothing is in flight, connected or unwritten, or the time is up."""
        end_s = time.monotonic() + GONE_TIMEOUT_S
        while True:
            await asyncio.sleep(0.7)  # the page is made at most twice a second
            reading = await self._read()
            rest = reading.in_flight + reading.queued == 0 and reading.connections <= idle.connections
            written = reading.records_written + reading.records_dropped >= reading.calls
            if (rest and written and reading.tasks <= idle.tasks) or time.monotonic() > end_s:
                return reading
