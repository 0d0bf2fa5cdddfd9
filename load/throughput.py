"""`python -m load throughput`: inferences per second through Sluice over direct ones, by two generators."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

from load import accounting
from load.compare import Comparison, others_cores, sample
from load.figures import OTHERS_CORES_MAX, Reading
from load.options import positive, positive_int, require_json_folder, tell
from load.perf_analyzer import SLOTS_MIN, WINDOWS, options
from load.perf_tool import PerfAnalyzer, PerfAnalyzerHung, ensure_perf_analyzer, run_perf_analyzer
from load.ratios import check_words, columns, count_check, ratio_check, ratio_figures, ratio_words
from load.rig import Rig, Side, rig
from load.scored_inputs import ROWS, ScoredInputs, scored_inputs
from load.verdict import EXIT_CODES, ROUNDS_MIN, UNJUDGED, Limit, Verdict, worst

DEADLINE_MS = 5000
WARM_UP_S = 0.5
PERF_TIMEOUT_S = 60.0
ANY_STABILITY = 999
"""Percent. So it takes just the least number of windows, and their mean."""
PERF, OWN = "perf_analyzer", "own"

EXAMPLE = f"""\
examples:
  python -m load throughput --protocol grpc --limit 1.0
  python -m load throughput --protocol grpc --concurrency 16,64 --requests 20000 --rounds 7 --json throughput.json

Each round drives Triton directly and through Sluice, one right after the other, who comes first changing from round to
round, at each concurrency, with NVIDIA's unmodified perf_analyzer and with our own callers (a closed loop; gRPC callers
are the raw ones, a connection each). The model is `fraud-lite`, which batches what waits and costs microseconds; both
generators send the same {ROWS:,} distinct rows of twelve FP32 values. Our own callers compare every answer with the one
that Triton itself gave beforehand; perf_analyzer looks at none, and ends with an error if a call fails.

perf_analyzer runs twice each time: once in windows of --seconds, which gives the rate, its own figure; and once for
exactly --requests calls, around which Triton's counts of inferences and executions tell the size of its batches. (Where
it is told a number of calls it takes its time in whole seconds, so that run has no rate.) What Triton counted must be
equal to the calls that were sent, by either generator.

exit codes: 0 all answers right, counts equal, and the --limit kept; 1 not; 2 wrong usage; 3 the --limit is
inconclusive; 130 interrupted"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.epilog = EXAMPLE
    parser.add_argument("--protocol", choices=("http", "grpc"), default="grpc", help="default: grpc")
    parser.add_argument("--concurrency", type=counts, default=[16, 64], metavar="N,...",
                        help="calls out at a time (default: 16,64)")  # fmt: skip
    parser.add_argument("--rounds", type=positive_int, default=ROUNDS_MIN, metavar="N", help="default: 7")
    parser.add_argument("--requests", type=positive_int, default=5_000, metavar="N",
                        help="of perf_analyzer's counted runs (default: 5000)")  # fmt: skip
    parser.add_argument("--seconds", type=positive, default=3.0, metavar="S",
                        help="our own callers, and each window of perf_analyzer (default: 3)")  # fmt: skip
    parser.add_argument("--limit", type=positive, metavar="RATIO",
                        help="judge every ratio of rates, Sluice over direct: at least this")  # fmt: skip
    parser.add_argument("--keep", action="store_true", help="keep the folder of policies, records and logs")
    parser.add_argument("--json", metavar="OUT", help="write the figures as JSON to this file; - is stdout")


def counts(text: str) -> list[int]:
    """Whole numbers from 1, each once. Raises argparse.ArgumentTypeError for anything else."""
    return list(dict.fromkeys(positive_int(word) for word in text.split(",")))


@dataclass(frozen=True, slots=True)
class RateReading:
    """One generator on one way in one round."""

    rps: float
    sent: int
    inferences: int
    """By Triton's own count meanwhile."""
    executions: int
    errors: int
    p50_ms: float | None
    p99_ms: float | None
    others_cores: float

    @property
    def disturbed(self) -> bool:
        """True if the machine was too busy with something else."""
        return self.others_cores > OTHERS_CORES_MAX


@dataclass(frozen=True, slots=True)
class RatePair:
    """Both ways in one round."""

    sluice: RateReading
    direct: RateReading

    @property
    def disturbed(self) -> bool:
        return self.sluice.disturbed or self.direct.disturbed

    @property
    def ratio(self) -> float | None:
        """Sluice's rate over the direct one."""
        return self.sluice.rps / self.direct.rps if self.direct.rps else None


Runs = dict[tuple[str, int], list[RatePair]]
"""Generator and concurrency to a pair per round."""


def run(arguments: argparse.Namespace) -> int:
    """Measure. Returns the command's exit code."""
    require_json_folder(arguments.json)
    tool = ensure_perf_analyzer()
    up = rig(
        "direct",
        ScoredInputs.model,
        slots=max(SLOTS_MIN, *arguments.concurrency),
        deadline_ms=DEADLINE_MS,
        envoy_workers=1,
        keep=arguments.keep,
    )
    with up as ready, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        inputs = scored_inputs(ready.triton.spec.http_address)
        data = ready.directory / "rows.json"
        data.write_text(inputs.perf_analyzer_data(), encoding="utf-8")
        runs: Runs = {}
        for number in range(1, arguments.rounds + 1):
            for concurrency in arguments.concurrency:
                perf = _perf_pair(tool, ready, arguments, concurrency, data, number)
                own = runner.run(_own_pair(ready, arguments, concurrency, inputs, number))
                for generator, pair in ((PERF, perf), (OWN, own)):
                    runs.setdefault((generator, concurrency), []).append(pair)
                    print(
                        f"round {number}/{arguments.rounds}, {generator} x {concurrency}: sluice {pair.sluice.rps:.0f}"
                        f"/s, direct {pair.direct.rps:.0f}/s{' (disturbed)' if pair.disturbed else ''}",
                        file=sys.stderr,
                        flush=True,
                    )
    setting = {name: getattr(arguments, name) for name in ("rounds", "requests", "seconds")}
    setting |= {"model": ScoredInputs.model, "rows": ROWS, "machine": accounting.machine_name()}
    result = document(arguments.protocol, runs, setting, arguments.limit)
    tell(result, arguments.json, table)
    return 0 if result["verdict"] == UNJUDGED else EXIT_CODES[result["verdict"]]


def _perf_pair(
    tool: PerfAnalyzer, ready: Rig, arguments: argparse.Namespace, concurrency: int, data: Path, number: int
) -> RatePair:
    ways = ready.ways()
    names = ["sluice", "direct"] if number % 2 else ["direct", "sluice"]
    found = {name: _perf(tool, ready, ways[name], arguments, concurrency, data) for name in names}
    return RatePair(found["sluice"], found["direct"])


def _perf(
    tool: PerfAnalyzer, ready: Rig, side: Side, arguments: argparse.Namespace, concurrency: int, data: Path
) -> RateReading:
    words = options(
        model=ScoredInputs.model,
        address=side.address(arguments.protocol),
        protocol=arguments.protocol,
        streaming=False,
        concurrency=concurrency,
        interval_ms=round(arguments.seconds * 1000),
        stability_percent=ANY_STABILITY,
        trials=WINDOWS,
        more=["--input-data", str(data)],
    )
    timeout_s = PERF_TIMEOUT_S + WINDOWS * arguments.seconds
    before, children_s = sample(ready, side), _children_s()
    figures = run_perf_analyzer(tool, words, timeout_s=timeout_s)
    after, children_s = sample(ready, side), _children_s() - children_s
    inferences, executions = _counted(tool, ready, [*words, "--request-count", str(arguments.requests)], timeout_s)
    return RateReading(
        rps=figures.inferences_per_s,
        sent=arguments.requests,
        inferences=inferences,
        executions=executions,
        errors=0,  # one would have ended it
        p50_ms=None if figures.p50_us is None else figures.p50_us / 1000,
        p99_ms=None if figures.p99_us is None else figures.p99_us / 1000,
        others_cores=max(0.0, others_cores(before, after) - children_s / (after.at_s - before.at_s)),
    )


def _counted(tool: PerfAnalyzer, ready: Rig, words: Sequence[str], timeout_s: float) -> tuple[int, int]:
    """What Triton counted during a run; one that hangs is done once more."""
    for again in (True, False):
        before = ready.executed(ScoredInputs.model)
        try:
            run_perf_analyzer(tool, words, timeout_s=timeout_s)
        except PerfAnalyzerHung:
            if not again:
                raise
            print("perf_analyzer did not end and was killed; once more", file=sys.stderr, flush=True)
            continue
        break
    after = ready.executed(ScoredInputs.model)
    return after[0] - before[0], after[1] - before[1]


def _children_s() -> float:
    """CPU seconds of child processes that have ended and were waited for; perf_analyzer is one."""
    used = os.times()
    return used.children_user + used.children_system


async def _own_pair(
    ready: Rig, arguments: argparse.Namespace, concurrency: int, inputs: ScoredInputs, number: int
) -> RatePair:
    callers = argparse.Namespace(
        protocol=arguments.protocol,
        client="raw",
        concurrency=concurrency,
        rps=None,
        warm_up=WARM_UP_S,
        seconds=arguments.seconds,
        deadline_ms=DEADLINE_MS,
    )
    comparison = Comparison(ready, callers, inputs)
    await comparison.settle()
    done = await comparison.round(number)
    return RatePair(_own(done.sluice), _own(done.peer))


def _own(found: Reading) -> RateReading:
    return RateReading(
        rps=found.rps,
        sent=found.sent,
        inferences=found.inferences,
        executions=found.executions,
        errors=found.errors,
        p50_ms=found.p50_ms,
        p99_ms=found.p99_ms,
        others_cores=found.others_cores,
    )


def document(protocol: str, runs: Runs, setting: dict[str, Any], limit: float | None = None) -> dict[str, Any]:
    """The JSON: for each generator and concurrency both sides' medians, sums of the counts, the mean batch, and the
    median of the rounds' own ratios.
    """
    rows: list[dict[str, Any]] = []
    errors = extra = 0
    verdicts: list[Verdict] = []
    checks: list[dict[str, Any]] = []
    for (generator, concurrency), pairs in runs.items():
        ratios = [pair.ratio for pair in pairs if pair.ratio is not None]
        disturbed = sum(pair.disturbed for pair in pairs)
        sides = {"sluice": _side([pair.sluice for pair in pairs]), "direct": _side([pair.direct for pair in pairs])}
        errors += sum(side["errors"] for side in sides.values())
        extra += sum(abs(each.inferences - each.sent) for pair in pairs for each in (pair.sluice, pair.direct))
        rows.append(
            {
                "generator": generator,
                "concurrency": concurrency,
                "sides": sides,
                "ratio": ratio_figures(ratios, disturbed),
                "disturbed_rounds": disturbed,
            }
        )
        if limit is not None:
            name = f"{generator} x {concurrency}, rate ratio at least {limit:g}"
            verdict, check = ratio_check(name, ratios, Limit(limit, at_most=False), disturbed)
            verdicts.append(verdict)
            checks.append(check)
    for name, measured in (
        ("every call answered, and right", errors),
        ("Triton executed every call, and each once", extra),
    ):
        verdict, check = count_check(name, measured)
        verdicts.append(verdict)
        checks.insert(0, check)
    return {
        "protocol": protocol,
        "verdict": worst(verdicts) if limit is not None or "fail" in verdicts else UNJUDGED,
        "checks": checks,
        "generators": rows,
        "setting": setting,
        "rounds": [
            {"generator": generator, "concurrency": concurrency, "pairs": [asdict(pair) for pair in pairs]}
            for (generator, concurrency), pairs in runs.items()
        ],
    }


def _side(readings: Sequence[RateReading]) -> dict[str, Any]:
    figures: dict[str, Any] = {
        name: sum(getattr(each, name) for each in readings) for name in ("sent", "errors", "inferences", "executions")
    }
    figures["batch"] = round(figures["inferences"] / figures["executions"], 3) if figures["executions"] else None
    for name in ("rps", "p50_ms", "p99_ms", "others_cores"):
        values = [value for each in readings if (value := getattr(each, name)) is not None]
        figures[name] = round(median(values), 3) if values else None
    return figures


def table(result: dict[str, Any]) -> str:
    """The figures for people."""
    rows = [["generator", "callers", "way", "inferences/s", "p50 ms", "p99 ms", "batch", "sent", "executed", "ratio"]]
    names = ("rps", "p50_ms", "p99_ms", "batch", "sent", "inferences")
    for row in result["generators"]:
        for way, side in row["sides"].items():
            cells = ["-" if side[name] is None else f"{side[name]:.2f}".removesuffix(".00") for name in names]
            ratio = ratio_words(row["ratio"]) if way == "sluice" else ""
            rows.append([row["generator"], str(row["concurrency"]), way, *cells, ratio])
    lines = columns(rows)
    lines += map(check_words, result["checks"])
    lines.append(f"verdict: {result['verdict']}; {result['setting']['rounds']} rounds; a ratio with ? is inconclusive")
    return "\n".join(lines)
