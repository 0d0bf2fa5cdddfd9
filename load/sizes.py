"""`python -m load sizes`: what a call costs against the size of its tensor, both ways."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import uvloop

from load import accounting
from load.closed_loop import answers, ask
from load.compare import others_cores, sample
from load.connection import Connection
from load.errors import LoadError
from load.figures import OTHERS_CORES_MAX
from load.grpc_connection import GrpcConnection
from load.http_connection import HttpConnection
from load.inputs import Calls
from load.large_inputs import TensorInputs
from load.loop_lag import lag_buckets, over_ms
from load.options import positive_int, require_json_folder, tell
from load.ratios import check_words, columns, count_check, ratio_figures, ratio_words
from load.rig import Protocol, Rig, Side, rig
from load.verdict import ROUNDS_MIN

KB, MB = 1000, 1_000_000
SIZES: Mapping[str, int] = {
    "1kB": KB, "16kB": 16 * KB, "256kB": 256 * KB, "1MB": MB, "16MB": 16 * MB, "64MB": 64 * MB
}  # fmt: skip
BYTES_MAX = 80 * MB
DEADLINE_MS = 30_000
SETTLE_S = 30.0
SLOTS = 16
CALLS_LEAST = 3

EXAMPLE = """\
examples:
  python -m load sizes --protocol http
  python -m load sizes --protocol grpc --peer envoy --sizes 1kB,1MB,64MB --rounds 3 --json sizes.json

One caller sends one call after the other to `identity`, which gives each tensor back; over HTTP tensors are binary in
both directions. In each round every size goes every way, one right after the other, the order changing from round to
round. Every tensor is a different one, and every answer is compared with what was sent. Besides Sluice and Triton
itself, --peer envoy adds Envoy.

CPU is that of the proxy's process, per call and per MB of the tensor (which travels twice). Memory is the most that the
process had resident during the calls of a round, over what it had before them. The event loop's lag is known by the
buckets of the metrics page: it was over the figure and at most the next bound, and timers fire only now and then, so a
short stall may hide between two of them. gRPC callers are grpcio's, in this process, and share the CPUs.

exit codes: 0 all answers right; 1 not; 2 wrong usage; 130 interrupted"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.epilog = EXAMPLE
    parser.add_argument("--protocol", choices=("http", "grpc"), required=True, help="what the caller speaks")
    parser.add_argument("--peer", choices=("envoy", "direct"), default="direct",
                        help="envoy adds it to the ways; the direct one is always there (default: direct)")  # fmt: skip
    parser.add_argument("--sizes", type=sizes_of, default=list(SIZES), metavar="SIZE,...",
                        help=f"of {', '.join(SIZES)} (default: all)")  # fmt: skip
    parser.add_argument("--rounds", type=positive_int, default=ROUNDS_MIN, metavar="N", help="default: 7")
    parser.add_argument("--calls", type=positive_int, default=200, metavar="N",
                        help="of each size each way in each round at most (default: 200)")  # fmt: skip
    parser.add_argument("--megabytes", type=positive_int, default=192, metavar="MB",
                        help=f"and so much of each size, but at least {CALLS_LEAST} calls (default: 192)")  # fmt: skip
    parser.add_argument("--keep", action="store_true", help="keep the folder of policies, records and logs")
    parser.add_argument("--json", metavar="OUT", help="write the figures as JSON to this file; - is stdout")


def sizes_of(text: str) -> list[str]:
    """Names of sizes. Raises argparse.ArgumentTypeError for one that there is not."""
    names = list(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in SIZES:
            raise argparse.ArgumentTypeError(f"{name or text!r} is none of {', '.join(SIZES)}")
    return names


def calls_of(size: int, most: int, megabytes: int) -> int:
    """How many calls of one size go one way in one round."""
    return max(CALLS_LEAST, min(most, megabytes * MB // size))


def run(arguments: argparse.Namespace) -> int:
    """Measure. Returns the command's exit code."""
    require_json_folder(arguments.json)
    up = rig(
        arguments.peer,
        TensorInputs.model,
        slots=SLOTS,
        deadline_ms=DEADLINE_MS,
        envoy_workers=os.cpu_count() or 1,
        bytes_max=BYTES_MAX,
        keep=arguments.keep,
    )
    with up as ready, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        rounds = runner.run(_rounds(ready, arguments))
    setting = {name: getattr(arguments, name) for name in ("peer", "rounds", "calls", "megabytes")}
    result = document(arguments.protocol, rounds, {**setting, "machine": accounting.machine_name()})
    tell(result, arguments.json, table)
    return 1 if result["verdict"] == "fail" else 0


@dataclass(frozen=True, slots=True)
class SizeReading:
    """One size, one way, in one round. CPU and memory are the proxy's; None where there is no proxy."""

    calls: int
    error_kinds: dict[str, int]
    p50_ms: float | None
    cpu_us_per_call: float | None
    rss_growth_mb: float | None
    lag_over_ms: float | None
    """Of Sluice's event loop."""
    others_cores: float

    @property
    def disturbed(self) -> bool:
        """True if the machine was too busy with something else."""
        return self.others_cores > OTHERS_CORES_MAX


SizeRound = Mapping[str, Mapping[str, SizeReading]]
"""Name of the size to the name of the way to its reading."""


async def _rounds(ready: Rig, arguments: argparse.Namespace) -> list[SizeRound]:
    calls = Calls(random.getrandbits(32), DEADLINE_MS)
    ways = list(ready.ways().values())
    for side in ways:
        await _settle(side, arguments.protocol, calls)
    rounds: list[SizeRound] = []
    for number in range(1, arguments.rounds + 1):
        order = ways[number % len(ways) :] + ways[: number % len(ways)]
        done: dict[str, dict[str, SizeReading]] = {}
        for name in arguments.sizes:
            inputs = TensorInputs(SIZES[name])
            count = calls_of(inputs.size, arguments.calls, arguments.megabytes)
            readings = {side.name: await _measure(ready, side, arguments.protocol, inputs, calls, count)
                        for side in order}  # fmt: skip
            done[name] = {side.name: readings[side.name] for side in ways}
            words = ", ".join(f"{way} {each.p50_ms or 0:.2f} ms" for way, each in done[name].items())
            print(f"round {number}/{arguments.rounds}, {name}: {words}", file=sys.stderr, flush=True)
        rounds.append(done)
    return rounds


def _connection(side: Side, protocol: Protocol, inputs: TensorInputs) -> Connection:
    make = HttpConnection if protocol == "http" else GrpcConnection
    return make(side.address(protocol), inputs)


async def _settle(side: Side, protocol: Protocol, calls: Calls) -> None:
    connection = _connection(side, protocol, TensorInputs(KB))
    try:
        error = await answers(connection, calls, SETTLE_S)
    finally:
        await connection.aclose()
    if error:
        raise LoadError(f"{side.name} gives no right answer over {protocol}: {error}; see its log with --keep")


async def _measure(
    ready: Rig, side: Side, protocol: Protocol, inputs: TensorInputs, calls: Calls, count: int
) -> SizeReading:
    ours = side.name == "sluice"
    connection = _connection(side, protocol, inputs)
    errors: dict[str, int] = {}
    times_ms: list[float] = []
    try:
        first = await ask(connection, calls.next())  # opens the connection
        if first:
            errors[first] = 1
        lag = await lag_buckets(ready.metrics) if ours else {}
        resident = 0
        if side.pid is not None:
            accounting.forget_peak(side.pid)
            resident = accounting.rss_bytes(side.pid)
        before = sample(ready, side)
        for _ in range(count):
            begun_s = time.perf_counter()
            error = await ask(connection, calls.next())
            if error:
                errors[error] = errors.get(error, 0) + 1
            else:
                times_ms.append((time.perf_counter() - begun_s) * 1000)
        after = sample(ready, side)
    finally:
        await connection.aclose()
    return SizeReading(
        calls=count,
        error_kinds=errors,
        p50_ms=median(times_ms) if times_ms else None,
        cpu_us_per_call=None if side.pid is None else (after.proxy_s - before.proxy_s) * 1e6 / count,
        rss_growth_mb=None if side.pid is None else max(0, accounting.peak_rss_bytes(side.pid) - resident) / MB,
        lag_over_ms=over_ms(lag, await lag_buckets(ready.metrics)) if ours else None,
        others_cores=others_cores(before, after),
    )


RATIOS = {"cpu": "cpu_us_per_call", "p50": "p50_ms"}


def document(protocol: str, rounds: Sequence[SizeRound], setting: dict[str, Any]) -> dict[str, Any]:
    """The JSON: per size each way's medians over the rounds (sums of calls and errors, the largest growth of memory and
    lag), and the medians of the rounds' own ratios, Sluice over each other way. There is no limit to judge: the verdict
    is "fail" if a call failed or was answered wrongly, else "none".
    """
    rows: list[dict[str, Any]] = []
    errors = 0
    for name in rounds[0] if rounds else ():
        ways = {way: [each[name][way] for each in rounds] for way in rounds[0][name]}
        sides = {way: _side(SIZES[name], readings) for way, readings in ways.items()}
        errors += sum(side["errors"] for side in sides.values())
        ratios: dict[str, dict[str, Any]] = {}
        for way in (each for each in ways if each != "sluice"):
            pairs = list(zip(ways["sluice"], ways[way], strict=True))
            disturbed = sum(ours.disturbed or theirs.disturbed for ours, theirs in pairs)
            ratios[way] = {
                ratio: ratio_figures(
                    [
                        getattr(ours, figure) / getattr(theirs, figure)
                        for ours, theirs in pairs
                        if getattr(ours, figure) is not None and getattr(theirs, figure)
                    ],
                    disturbed,
                )
                for ratio, figure in RATIOS.items()
            }
        rows.append({"size": name, "bytes": SIZES[name], "sides": sides, "ratios": ratios})
    verdict, check = count_check("every call answered, and right", errors)
    return {
        "protocol": protocol,
        "verdict": "fail" if verdict == "fail" else "none",
        "checks": [check],
        "sizes": rows,
        "setting": setting,
        "rounds": [
            {size: {way: asdict(r) for way, r in ways.items()} for size, ways in each.items()} for each in rounds
        ],
    }


def _side(size: int, readings: Sequence[SizeReading]) -> dict[str, Any]:
    def of(name: str) -> list[float]:
        return [value for each in readings if (value := getattr(each, name)) is not None]

    cpu, p50, growth, lag = (of(name) for name in ("cpu_us_per_call", "p50_ms", "rss_growth_mb", "lag_over_ms"))
    kinds: dict[str, int] = {}
    for each in readings:
        for kind, count in each.error_kinds.items():
            kinds[kind] = kinds.get(kind, 0) + count
    return {
        "calls": sum(each.calls for each in readings),
        "errors": sum(kinds.values()),
        "error_kinds": kinds,
        "cpu_us_per_call": round(median(cpu), 1) if cpu else None,
        "cpu_us_per_mb": round(median(cpu) / (size / MB), 1) if cpu else None,
        "p50_ms": round(median(p50), 3) if p50 else None,
        "rss_growth_mb": round(max(growth), 1) if growth else None,
        "lag_over_ms": max(lag) if lag else None,
        "others_cores": round(median(of("others_cores")), 3),
    }


def table(result: dict[str, Any]) -> str:
    """The figures for people."""
    rows = [["size", "way", "calls", "CPU us/call", "CPU us/MB", "p50 ms", "memory MB", "lag over ms", "others' CPUs",
             "Sluice's CPU ratio", "p50 ratio"]]  # fmt: skip
    names = ("calls", "cpu_us_per_call", "cpu_us_per_mb", "p50_ms", "rss_growth_mb", "lag_over_ms", "others_cores")
    for row in result["sizes"]:
        for way, side in row["sides"].items():
            found = row["ratios"].get(way, {})
            cells = ["-" if side[name] is None else f"{side[name]:.10g}" for name in names]
            ratios = [ratio_words(found[name]) if name in found else "" for name in RATIOS]
            rows.append([row["size"], way, *cells, *ratios])
    lines = columns(rows)
    kinds = {f"{row['size']} {way}": side["error_kinds"] for row in result["sizes"]
             for way, side in row["sides"].items() if side["error_kinds"]}  # fmt: skip
    if kinds:
        lines.append(f"errors: {kinds}")
    lines += map(check_words, result["checks"])
    lines.append(f"verdict: {result['verdict']}; {len(result['rounds'])} rounds; a ratio with ? is inconclusive")
    return "\n".join(lines)
