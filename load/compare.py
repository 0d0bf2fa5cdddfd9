"""`python -m load compare`: Sluice and a peer in front of one real Triton, in interleaved rounds."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import uvloop

from load import accounting, compare_scenario, compare_scenario_figures
from load.closed_loop import ClosedLoop, Measured, answers
from load.connection import Connection
from load.envoy_tuned import OVERLOAD
from load.errors import LoadError, UsageError
from load.figures import RATIOS, Reading, Round, comparison, table
from load.grpc_connection import GrpcConnection
from load.http_connection import HttpConnection
from load.inputs import Calls, IdentityInputs, Inputs
from load.options import positive, positive_int, require_json_folder, tell
from load.rated_loop import RatedLoop
from load.raw_grpc_connection import RawGrpcConnection
from load.rig import Rig, Side, rig
from load.verdict import EXIT_CODES, ROUNDS_MIN, UNJUDGED

SETTLE_S = 15.0
SLOTS_MIN = 16

EXAMPLE = """\
examples:
  python -m load compare --peer envoy --protocol http --limit cpu=1.0
  python -m load compare --peer direct --protocol grpc --concurrency 16 --rounds 7 --seconds 3 --json -
  python -m load compare --peer envoy --protocol grpc --rps 500 --seconds 10 --limit p99=1.0
  python -m load compare --peer envoy --scenario stragglers --json out.json --pictures out/

Each round drives both sides for --seconds, one right after the other, who comes first changing from round to round.
Callers are a closed loop: each sends its next call when its last one has ended. With --rps they are an open loop: both
sides get the same calls at the same times of each round, and latency counts from when a call was due. Every call has
inputs of its own, a deadline, x-request-id and traceparent, and every answer is compared with what it must be.

Ratios are Sluice's figure over the peer's, medians over the rounds. One whose rounds are fewer than seven, mostly
disturbed, or too far apart is marked inconclusive, and so is a --limit that they can neither keep nor miss clearly.
Without any --limit no ratio is judged: the verdict is "none", or "fail" if a call failed or was answered wrongly.

With --scenario a scenario's traffic, fleet and faults (python -m load chaos --list) go through Sluice and through an
Envoy that is configured as well as it can be for it, in an open loop, with the same arrivals and the same faults at the
same times, each time on fresh servers; who comes first changes from round to round.

exit codes: 0 all answers right and every --limit kept; 1 not; 2 wrong usage; 3 a --limit is inconclusive;
130 interrupted"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.epilog = EXAMPLE
    parser.add_argument("--peer", choices=("envoy", "direct"), required=True, help="what Sluice is compared with")
    parser.add_argument("--protocol", choices=("http", "grpc"),
                        help="what the callers speak; with --scenario it says that itself")  # fmt: skip
    parser.add_argument("--scenario", metavar="NAME", help="a scenario of `chaos` or `run`, or a .yaml file")
    parser.add_argument("--rounds", type=positive_int, metavar="N",
                        help="default: 7; with --scenario, whose rounds are whole runs, 3")  # fmt: skip
    parser.add_argument("--limit", type=_limit, action="append", default=[], metavar="RATIO=LIMIT",
                        help=f"judge a ratio, of {', '.join(RATIOS)}, with --scenario also of p999: at most the limit, "
                        "rps at least; may be repeated")  # fmt: skip
    parser.add_argument("--concurrency", type=positive_int, metavar="N",
                        help="callers, each with a connection of its own (default: 16)")  # fmt: skip
    parser.add_argument("--rps", type=positive, metavar="N",
                        help="send so many calls a second at random times, whatever has become of those before, "
                        "not a closed loop; --concurrency connections stand ready, more come if needed")  # fmt: skip
    parser.add_argument("--client", choices=("raw", "grpcio"), default="raw",
                        help="gRPC callers: raw sends what grpcio sends, at a tenth of its cost (default)")  # fmt: skip
    parser.add_argument("--seconds", type=positive, metavar="S",
                        help="each side in each round (default: 3, or the scenario's duration_s)")  # fmt: skip
    parser.add_argument("--warm-up", type=positive, metavar="S",
                        help="before that, not measured (default: 0.5, or the scenario's warm_up_s)")  # fmt: skip
    parser.add_argument("--deadline-ms", type=positive_int, metavar="MS",
                        help="of each call (default: 2000)")  # fmt: skip
    parser.add_argument("--envoy-workers", type=positive_int, default=os.cpu_count() or 1, metavar="N",
                        help="Envoy's worker threads (default: one per CPU, as Envoy's own)")  # fmt: skip
    parser.add_argument("--seed", type=int, metavar="N", help="with --scenario: instead of its seed")
    parser.add_argument("--per-try-timeout-ms", type=positive_int, metavar="MS",
                        help="with --scenario: when Envoy hedges (default: the best, see below)")  # fmt: skip
    parser.add_argument("--envoy-overload", choices=OVERLOAD,
                        help="with --scenario: what refuses calls in Envoy, see below (default: the best)")  # fmt: skip
    parser.add_argument("--no-trials", action="store_true",
                        help="with --scenario: take the first Envoy, not the best of a few")  # fmt: skip
    parser.add_argument("--pictures", metavar="FOLDER", help="with --scenario: write pictures (SVG) into this folder")
    parser.add_argument("--keep", action="store_true", help="keep the folder of policies, records and logs")
    parser.add_argument("--json", metavar="OUT", help="write the figures as JSON to this file; - is stdout")


def run(arguments: argparse.Namespace) -> int:
    """Run the comparison. Returns its exit code."""
    if arguments.scenario is not None:
        return compare_scenario.run(arguments)
    require_json_folder(arguments.json)
    _complete(arguments)
    limits = dict(arguments.limit)
    if "cpu" in limits and arguments.peer == "direct":
        raise UsageError("--limit cpu: calls without a proxy have no proxy CPU to compare with; use --peer envoy")
    setting = _setting(arguments)
    up = rig(
        arguments.peer,
        IdentityInputs.model,
        slots=max(SLOTS_MIN, arguments.concurrency),
        deadline_ms=arguments.deadline_ms,
        envoy_workers=arguments.envoy_workers,
        keep=arguments.keep,
    )
    with up as ready, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        rounds = runner.run(_rounds(Comparison(ready, arguments), arguments.rounds))
    result = comparison(arguments.peer, arguments.protocol, arguments.concurrency, rounds, setting, limits)
    tell(result, arguments.json, table)
    return 0 if result["verdict"] == UNJUDGED else EXIT_CODES[result["verdict"]]


DEFAULTS = {"rounds": ROUNDS_MIN, "concurrency": 16, "seconds": 3.0, "warm_up": 0.5, "deadline_ms": 2000}
"""Without a scenario, which has its own."""


def _complete(arguments: argparse.Namespace) -> None:
    """Set what was not given. Raises UsageError for what goes with --scenario alone."""
    if arguments.protocol is None:
        raise UsageError("--protocol http or --protocol grpc is needed, or a --scenario")
    for name in ("seed", "per_try_timeout_ms", "envoy_overload", "pictures"):
        if getattr(arguments, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} goes with --scenario alone")
    for name, value in DEFAULTS.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    for name, _ in arguments.limit:
        if name not in RATIOS:
            raise UsageError(f"--limit {name}: without --scenario it is one of {', '.join(RATIOS)}")


@dataclass(frozen=True, slots=True)
class Sample:
    """What the kernel says at one edge of a window."""

    proxy_s: float
    triton_s: float
    generator_s: float
    all_ours_s: float
    machine_s: float
    at_s: float


class Comparison:
    """The rounds of one comparison on a rig that is up."""

    def __init__(self, ready: Rig, arguments: argparse.Namespace, inputs: Inputs | None = None) -> None:
        self._rig = ready
        self._arguments = arguments
        self._inputs: Inputs = IdentityInputs() if inputs is None else inputs
        self._calls = Calls(random.getrandbits(32), arguments.deadline_ms)

    async def settle(self) -> None:
        """Return when both sides give right answers. Raises LoadError."""
        for side in self._rig.sides:
            (connection,) = self._connections(side, 1)
            try:
                error = await answers(connection, self._calls, SETTLE_S)
            finally:
                await connection.aclose()
            if error:
                raise LoadError(
                    f"{side.name} gives no right answer over {self._arguments.protocol}: {error}; "
                    "run it again with --keep and read the logs"
                )

    async def round(self, number: int) -> Round:
        """Drive both sides, one after the other; who is first changes from round to round."""
        sides = self._rig.sides if number % 2 else self._rig.sides[::-1]
        readings = {side.name: await self._drive(side, number) for side in sides}
        sluice, peer = (readings[side.name] for side in self._rig.sides)
        return Round(sluice, peer, round(os.getloadavg()[0], 2))

    async def _drive(self, side: Side, number: int) -> Reading:
        arguments = self._arguments
        connections = self._connections(side, arguments.concurrency)
        loop: ClosedLoop | RatedLoop = ClosedLoop(connections, self._calls)
        if arguments.rps is not None:
            make = partial(self._connection, side)
            loop = RatedLoop(connections, make, self._calls, arguments.rps, number)
        before = self._rig.executed(self._inputs.model)
        try:
            measured = await loop.run(arguments.warm_up, arguments.seconds, partial(sample, self._rig, side))
        finally:
            await asyncio.gather(*(connection.aclose() for connection in connections))
        after = self._rig.executed(self._inputs.model)
        found = reading(measured, None if side.pid is None else accounting.rss_bytes(side.pid), side.pid is not None)
        return replace(found, inferences=after[0] - before[0], executions=after[1] - before[1])

    def _connections(self, side: Side, count: int) -> list[Connection]:
        return [self._connection(side) for _ in range(count)]

    def _connection(self, side: Side) -> Connection:
        make: Callable[[str, Inputs], Connection]
        make = HttpConnection
        if self._arguments.protocol == "grpc":
            make = RawGrpcConnection if self._arguments.client == "raw" else GrpcConnection
        return make(side.address(self._arguments.protocol), self._inputs)


def sample(ready: Rig, side: Side) -> Sample:
    """What has been used up to now; `proxy_s` is this side's."""
    triton_s = accounting.cpu_s_of(ready.triton_pids())
    generator_s = time.process_time()
    proxies_s = accounting.cpu_s_of(ready.proxy_pids())
    return Sample(
        proxy_s=0.0 if side.pid is None else accounting.cpu_s(side.pid),
        triton_s=triton_s,
        generator_s=generator_s,
        all_ours_s=triton_s + generator_s + proxies_s,
        machine_s=accounting.machine_busy_s(),
        at_s=time.perf_counter(),
    )


def others_cores(before: Sample, after: Sample) -> float:
    """CPUs that processes which are not ours took between two samples."""
    others_s = (after.machine_s - before.machine_s) - (after.all_ours_s - before.all_ours_s)
    return max(0.0, others_s / (after.at_s - before.at_s))


def reading(measured: Measured[Sample], rss_bytes: int | None, has_proxy: bool) -> Reading:
    """The figures of one window."""
    tally, before, after = measured.tally, measured.before, measured.after
    calls = max(1, tally.calls)
    errors = sum(tally.errors.values())
    right = tally.latency.count
    late = tally.timer_late
    return Reading(
        calls=tally.calls,
        errors=errors,
        rps=right / measured.seconds,
        p50_ms=tally.latency.quantile_ns(0.5) / 1e6 if right else None,
        p99_ms=tally.latency.quantile_ns(0.99) / 1e6 if right else None,
        cpu_us_per_call=(after.proxy_s - before.proxy_s) * 1e6 / calls if has_proxy else None,
        rss_mb=None if rss_bytes is None else rss_bytes / 1e6,
        triton_cpu_us_per_call=(after.triton_s - before.triton_s) * 1e6 / calls,
        generator_cpu_us_per_call=(after.generator_s - before.generator_s) * 1e6 / calls,
        others_cores=others_cores(before, after),
        timer_late_p99_ms=late.quantile_ns(0.99) / 1e6 if late.count else measured.seconds * 1000,
        error_kinds=dict(tally.errors),
        sent=measured.sent,
    )


async def _rounds(compare: Comparison, count: int) -> list[Round]:
    """All rounds; one that was disturbed by other work on the machine is done once more."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await compare.settle()
    rounds: list[Round] = []
    for number in range(1, count + 1):
        done = await compare.round(number)
        if done.disturbed:
            _progress(number, count, done)
            done = await compare.round(number)
        _progress(number, count, done)
        rounds.append(done)
    return rounds


def _progress(number: int, count: int, done: Round) -> None:
    def words(each: Reading) -> str:
        cpu = "" if each.cpu_us_per_call is None else f", {each.cpu_us_per_call:.0f} us CPU/call"
        errors = f", {each.errors} errors" if each.errors else ""
        return f"{each.rps:.0f}/s{cpu}{errors}"

    note = " (disturbed)" if done.disturbed else ""
    print(
        f"round {number}/{count}: sluice {words(done.sluice)}; peer {words(done.peer)}; "
        f"load average {done.load_average}{note}",
        file=sys.stderr,
        flush=True,
    )


def _setting(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "peer": arguments.peer,
        "client": arguments.client if arguments.protocol == "grpc" else None,
        "rps": arguments.rps,
        "seconds": arguments.seconds,
        "warm_up_s": arguments.warm_up,
        "deadline_ms": arguments.deadline_ms,
        "envoy_workers": arguments.envoy_workers if arguments.peer == "envoy" else None,
        "model": IdentityInputs.model,
        "machine": accounting.machine_name(),
        "load_average_before": round(os.getloadavg()[0], 2),
    }


def _limit(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    known = dict.fromkeys((*RATIOS, *compare_scenario_figures.RATIOS))
    if name not in known:
        raise argparse.ArgumentTypeError(f"{name or text!r} is none of {', '.join(known)}; write for example cpu=1.0")
    return name, positive(value)
