"""`python -m load beside`: what small calls feel of one caller beside them that sends large tensors both ways."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

import uvloop

from deploy.local.layout import ROOT
from load import accounting
from load.arrivals import Poisson, schedule
from load.child import Child
from load.clock import KernelClock
from load.closed_loop import answers
from load.compare import others_cores, sample
from load.connection import Sender
from load.drive import few_collections
from load.errors import LoadError, UsageError
from load.figures import OTHERS_CORES_MAX, TIMER_LATE_MS_MAX
from load.http_connection import HttpConnection
from load.inputs import Calls, IdentityInputs
from load.large_caller import DEADLINE_MS as LARGE_DEADLINE_MS
from load.open_loop import Traffic, run_open_loop
from load.options import positive, positive_int, require_json_folder, tell
from load.ratios import check_words, columns, count_check, ratio_check, ratio_figures, ratio_words
from load.raw_grpc_connection import RawGrpcConnection
from load.rig import Protocol, Rig, Side, rig
from load.run_figures import LATE_SHARE_MAX
from load.senders import Multiplexed, Pool
from load.sizes import BYTES_MAX, MB
from load.verdict import EXIT_CODES, ROUNDS_MIN, UNCHANGED_RATIO_MAX, Limit, Verdict, worst

SETTLE_S = 15.0
WARM_UP_S = 0.5
LARGE_LEAD_S = 1.5
"""The caller beside has so long to start and to send its first call."""
IN_FLIGHT_MAX = 512
SMALL_DEADLINE_MS = 10_000
CONNECTIONS = 4
SLOTS = 256
"""As many as arrive while a large tensor holds Triton up: nothing is to wait in, or be shed by, one side alone."""
ALONE, BESIDE = "alone", "beside"

EXAMPLE = f"""\
examples:
  python -m load beside --protocol grpc
  python -m load beside --protocol http --rps 100 --seconds 10 --rounds 7 --megabytes 64 --json beside.json

Small calls arrive at random at --rps, in an open loop: latency counts from the intended send time. In each round they
go through Sluice and directly to Triton, each once alone and once beside one caller, in a process of its own, that
sends a tensor of --megabytes to `identity` and gets it back, call after call; the order changes from round to round.
All answers are compared with what they must be, the large ones too.

Large tensors keep Triton and the CPUs busy as well, and `identity` has one instance, so direct calls are slower beside
them, too. What is judged is therefore a ratio of ratios: p99 beside over p99 alone through Sluice, over the same of
direct calls, at most --limit. Memory is the most that the gateway's process had resident in a round, over what it had
before it.

exit codes: 0 all answers right and the limit kept; 1 not; 2 wrong usage; 3 inconclusive (fewer than {ROUNDS_MIN} rounds
among the reasons); 130 interrupted"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.epilog = EXAMPLE
    parser.add_argument("--protocol", choices=("http", "grpc"), required=True, help="what all callers speak")
    parser.add_argument("--rps", type=positive, default=100.0, metavar="N", help="small calls a second (default: 100)")
    parser.add_argument("--seconds", type=positive, default=10.0, metavar="S",
                        help="each of the four parts of a round (default: 10)")  # fmt: skip
    parser.add_argument("--rounds", type=positive_int, default=ROUNDS_MIN, metavar="N", help="default: 7")
    parser.add_argument("--megabytes", type=positive_int, default=64, metavar="MB",
                        help="the large tensor, at most 72 (default: 64)")  # fmt: skip
    parser.add_argument("--limit", type=positive, default=UNCHANGED_RATIO_MAX, metavar="RATIO",
                        help=f"see above (default: {UNCHANGED_RATIO_MAX:g})")  # fmt: skip
    parser.add_argument("--keep", action="store_true", help="keep the folder of policies, records and logs")
    parser.add_argument("--json", metavar="OUT", help="write the figures as JSON to this file; - is stdout")


def run(arguments: argparse.Namespace) -> int:
    """Measure. Returns the command's exit code."""
    require_json_folder(arguments.json)
    if arguments.megabytes > 72:
        raise UsageError(f"--megabytes {arguments.megabytes}: at most 72, which the gateway is set up to take here")
    up = rig(
        "direct",
        IdentityInputs.model,
        slots=SLOTS,
        deadline_ms=LARGE_DEADLINE_MS,
        envoy_workers=1,
        bytes_max=BYTES_MAX,
        keep=arguments.keep,
    )
    with up as ready, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        rounds = runner.run(_rounds(ready, arguments))
    setting = {name: getattr(arguments, name) for name in ("protocol", "rps", "seconds", "rounds", "megabytes")}
    result = document(rounds, {**setting, "machine": accounting.machine_name()}, arguments.limit)
    tell(result, arguments.json, table)
    return EXIT_CODES[result["verdict"]]


@dataclass(frozen=True, slots=True)
class PartReading:
    """Small calls one way in one round, alone or beside the large ones."""

    calls: int
    error_kinds: dict[str, int]
    """Of the small calls and, with "large: " before them, of the large ones."""
    p50_ms: float | None
    p99_ms: float | None
    max_ms: float | None
    large_calls: int
    rss_growth_mb: float | None
    """Of the gateway; None on the direct way."""
    late_share: float
    """Of sends over 5 ms late, that is by the generator's own fault."""
    timer_late_p99_ms: float
    others_cores: float

    @property
    def disturbed(self) -> bool:
        """True if the generator or the machine was too busy with something else."""
        late = self.late_share > LATE_SHARE_MAX or self.timer_late_p99_ms > TIMER_LATE_MS_MAX
        return late or self.others_cores > OTHERS_CORES_MAX


@dataclass(frozen=True, slots=True)
class WayReading:
    """One way in one round."""

    alone: PartReading
    beside: PartReading

    @property
    def disturbed(self) -> bool:
        return self.alone.disturbed or self.beside.disturbed

    @property
    def slowdown(self) -> float | None:
        """p99 beside over p99 alone."""
        alone, beside = self.alone.p99_ms, self.beside.p99_ms
        return beside / alone if alone and beside is not None else None


@dataclass(frozen=True, slots=True)
class BesideRound:
    """All four parts."""

    sluice: WayReading
    direct: WayReading

    @property
    def disturbed(self) -> bool:
        return self.sluice.disturbed or self.direct.disturbed

    @property
    def excess(self) -> float | None:
        """Sluice's slowdown over that of direct calls."""
        ours, theirs = self.sluice.slowdown, self.direct.slowdown
        return ours / theirs if ours is not None and theirs else None


async def _rounds(ready: Rig, arguments: argparse.Namespace) -> list[BesideRound]:
    run_id = random.getrandbits(32)
    ways = ready.ways()
    for side in ways.values():
        sender = _sender(side, arguments.protocol)
        try:
            error = await answers(sender, Calls(run_id ^ 0x80000000, SMALL_DEADLINE_MS), SETTLE_S)
        finally:
            await sender.aclose()
        if error:
            raise LoadError(f"{side.name} gives no right answer over {arguments.protocol}: {error}; see --keep")
    rounds: list[BesideRound] = []
    for number in range(1, arguments.rounds + 1):
        parts = [(way, part) for way in ("sluice", "direct") for part in (ALONE, BESIDE)]
        parts = parts if number % 2 else parts[::-1]
        found: dict[tuple[str, str], PartReading] = {}
        for way, part in parts:
            run_id += 1
            found[way, part] = await _part(ready, ways[way], part == BESIDE, arguments, run_id)
        done = BesideRound(
            *(WayReading(found[way, ALONE], found[way, BESIDE]) for way in ("sluice", "direct")),
        )
        rounds.append(done)
        words = ", ".join(f"{way} {part} p99 {found[way, part].p99_ms or 0:.1f} ms" for way, part in sorted(found))
        note = " (disturbed)" if done.disturbed else ""
        print(f"round {number}/{arguments.rounds}: {words}{note}", file=sys.stderr, flush=True)
    return rounds


def _sender(side: Side, protocol: Protocol) -> Sender:
    address, inputs = side.address(protocol), IdentityInputs()
    if protocol == "http":
        return Pool(partial(HttpConnection, address, inputs))
    return Multiplexed(partial(RawGrpcConnection, address, inputs), CONNECTIONS)


async def _part(ready: Rig, side: Side, beside: bool, arguments: argparse.Namespace, run_id: int) -> PartReading:
    resident = 0
    if side.pid is not None:
        accounting.forget_peak(side.pid)
        resident = accounting.rss_bytes(side.pid)
    sender = _sender(side, arguments.protocol)
    large = _large_caller(ready, side, arguments) if beside else None
    large_s = 0.0
    try:
        if large is not None:
            await asyncio.sleep(LARGE_LEAD_S)
            large_s = accounting.cpu_s(large.pid)
        before = sample(ready, side)
        with few_collections():
            result = await run_open_loop(
                schedule([("small", Poisson(arguments.rps))], seed=run_id, warm_up_s=WARM_UP_S),
                [Traffic("small", sender, Calls(run_id, SMALL_DEADLINE_MS))],
                clock=KernelClock(),
                duration_s=arguments.seconds,
                in_flight_max=IN_FLIGHT_MAX,
            )
        after = sample(ready, side)
        if large is not None:
            large_s = accounting.cpu_s(large.pid) - large_s
    finally:
        await sender.aclose()
        code = 0 if large is None else await asyncio.to_thread(large.stop)
    large_calls, kinds = 0, dict[str, int]()
    if large is not None:
        large_calls, kinds = read_large(large.log.read_text(encoding="utf-8", errors="replace"), code)
    (tally,) = result.traffic
    kinds |= tally.errors
    if tally.wrong:
        kinds["wrong answer"] = tally.wrong
    if tally.not_sent:
        kinds["not sent"] = tally.not_sent
    late = result.timer_late
    return PartReading(
        calls=tally.offered,
        error_kinds=kinds,
        p50_ms=tally.latency.quantile_ns(0.5) / 1e6 if tally.right else None,
        p99_ms=tally.latency.quantile_ns(0.99) / 1e6 if tally.right else None,
        max_ms=tally.latency.largest_ns / 1e6 if tally.right else None,
        large_calls=large_calls,
        rss_growth_mb=None if side.pid is None else max(0, accounting.peak_rss_bytes(side.pid) - resident) / MB,
        late_share=result.late_sends / max(1, result.sends),
        timer_late_p99_ms=late.quantile_ns(0.99) / 1e6 if late.count else arguments.seconds * 1000,
        others_cores=max(0.0, others_cores(before, after) - large_s / (after.at_s - before.at_s)),
    )


def _large_caller(ready: Rig, side: Side, arguments: argparse.Namespace) -> Child:
    words = [arguments.protocol, side.address(arguments.protocol), str(arguments.megabytes * MB)]
    argv = [sys.executable, "-m", "load.large_caller", *words]
    return Child("large caller", argv, log=ready.directory / "large-caller.log", cwd=ROOT)


def read_large(said: str, code: int) -> tuple[int, dict[str, int]]:
    """Calls and errors of a large caller that has ended, from what it printed. Raises LoadError if it failed or got no
    call through, for then nothing was beside the small ones.
    """
    try:
        found = json.loads(said.strip().rpartition("\n")[2])
        calls, errors = int(found["calls"]), {f"large: {kind}": int(count) for kind, count in found["errors"].items()}
    except (ValueError, KeyError, TypeError):
        raise LoadError(f"the caller of large tensors ended with {code} and said: {said[-2000:]}") from None
    if code or not calls:
        raise LoadError(f"the caller of large tensors ended with {code} after {calls} calls; take more --seconds")
    return calls, errors


def document(rounds: Sequence[BesideRound], setting: dict[str, Any], limit: float) -> dict[str, Any]:
    """The JSON: medians per way and part, each way's slowdown, and the verdict over the ratio of the two."""
    disturbed = sum(each.disturbed for each in rounds)
    ways = {
        way: {part: _part_figures([getattr(getattr(each, way), part) for each in rounds]) for part in (ALONE, BESIDE)}
        for way in ("sluice", "direct")
    }
    slowdowns = {
        way: ratio_figures([found for each in rounds if (found := getattr(each, way).slowdown) is not None], disturbed)
        for way in ways
    }
    excess = [found for each in rounds if (found := each.excess) is not None]
    errors = sum(figures["errors"] for parts in ways.values() for figures in parts.values())
    kept, right = count_check("every call answered, and right, the large ones too", errors)
    judged, check = ratio_check(
        f"slowdown of p99 through Sluice over that of direct calls at most {limit:g}", excess, Limit(limit), disturbed
    )
    verdicts: list[Verdict] = [kept, judged]
    return {
        "verdict": worst(verdicts),
        "checks": [right, check],
        "ways": ways,
        "slowdowns": slowdowns,
        "excess": ratio_figures(excess, disturbed),
        "disturbed_rounds": disturbed,
        "setting": setting,
        "rounds": [asdict(each) for each in rounds],
    }


def _part_figures(readings: Sequence[PartReading]) -> dict[str, Any]:
    kinds: dict[str, int] = {}
    for each in readings:
        for kind, count in each.error_kinds.items():
            kinds[kind] = kinds.get(kind, 0) + count
    growth = [each.rss_growth_mb for each in readings if each.rss_growth_mb is not None]
    figures: dict[str, Any] = {
        "calls": sum(each.calls for each in readings),
        "errors": sum(kinds.values()),
        "error_kinds": kinds,
        "large_calls": sum(each.large_calls for each in readings),
        "rss_growth_mb": round(max(growth), 1) if growth else None,
    }
    for name in ("p50_ms", "p99_ms", "max_ms", "late_share", "timer_late_p99_ms", "others_cores"):
        values = [value for each in readings if (value := getattr(each, name)) is not None]
        figures[name] = round(median(values), 4) if values else None
    return figures


def table(result: dict[str, Any]) -> str:
    """The figures for people."""
    names = ("calls", "errors", "large_calls", "p50_ms", "p99_ms", "max_ms", "rss_growth_mb", "others_cores")
    rows = [["way", "", "calls", "errors", "large", "p50 ms", "p99 ms", "max ms", "memory MB", "others' CPUs",
             "slowdown of p99"]]  # fmt: skip
    for way, parts in result["ways"].items():
        for part, figures in parts.items():
            cells = ["-" if figures[name] is None else f"{figures[name]:.10g}" for name in names]
            rows.append([way, part, *cells, ratio_words(result["slowdowns"][way]) if part == BESIDE else ""])
    lines = columns(rows)
    lines += [
        f"errors {way} {part}: {figures['error_kinds']}"
        for way, parts in result["ways"].items()
        for part, figures in parts.items()
        if figures["error_kinds"]
    ]
    lines += map(check_words, result["checks"])
    count, disturbed = len(result["rounds"]), result["disturbed_rounds"]
    lines.append(f"verdict: {result['verdict']}; {count} rounds, {disturbed} of them disturbed by other work")
    return "\n".join(lines)
