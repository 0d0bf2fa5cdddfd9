"""`python -m load perf-analyzer`: NVIDIA's own load generator, unmodified, through Sluice and directly."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from statistics import median
from typing import Any, Literal

from deploy.local import MODELS
from load import accounting
from load.errors import UsageError
from load.options import positive_int, require_json_folder, tell
from load.perf_inputs import ONLY_STREAMING, model_words
from load.perf_tool import PerfAnalyzer, PerfFigures, ensure_perf_analyzer, run_perf_analyzer
from load.rig import Peer, Side, rig

DEADLINE_MS = 5000
SLOTS_MIN = 16
TRIALS = 10
WINDOWS = 3
"""perf_analyzer ends when so many windows in a row agree."""

EXAMPLE = """\
examples:
  python -m load perf-analyzer --peer sluice --protocol grpc --concurrency 16
  python -m load perf-analyzer --peer direct sluice --protocol grpc --streaming --rounds 3 --json -
  python -m load perf-analyzer --peer sluice --protocol http -- --input-tensor-format json

What stands after -- goes to perf_analyzer as it is. Its random inputs suit not every demo model: those that need other
shapes or values get them from the lab, unless --shape or --input-data stands after --. streamer needs --streaming.
With several peers their runs are interleaved, and figures are medians over the rounds. A call that fails ends
perf_analyzer with an error, and so this command.

exit codes: 0 it ran to its end everywhere; 1 not; 2 wrong usage; 130 interrupted"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.epilog = EXAMPLE
    parser.add_argument("--peer", choices=("direct", "sluice", "envoy"), nargs="+", required=True,
                        help="what it drives: Triton itself, Triton through Sluice, or through Envoy")  # fmt: skip
    parser.add_argument("--protocol", choices=("http", "grpc"), required=True, help="what it speaks")
    parser.add_argument("--streaming", action="store_true", help="ModelStreamInfer; needs gRPC")
    parser.add_argument("--concurrency", type=positive_int, default=16, metavar="N", help="calls out (default: 16)")
    parser.add_argument("--model", choices=MODELS, default="fraud-lite", help="default: fraud-lite")
    parser.add_argument("--interval-ms", type=positive_int, default=2000, metavar="MS",
                        help=f"one window; it measures {WINDOWS} or more (default: 2000)")  # fmt: skip
    parser.add_argument("--stability-percent", type=positive_int, default=10, metavar="P",
                        help=f"windows may differ by this; {TRIALS} windows at most (default: 10)")  # fmt: skip
    parser.add_argument("--rounds", type=positive_int, default=1, metavar="N", help="runs of each peer (default: 1)")
    parser.add_argument("--keep", action="store_true", help="keep the folder of policies, records and logs")
    parser.add_argument("--json", metavar="OUT", help="write the figures as JSON to this file; - is stdout")
    parser.add_argument("options", nargs="*", metavar="-- OPTION", help="more options for perf_analyzer")


def run(arguments: argparse.Namespace) -> int:
    """Run perf_analyzer. Returns the command's exit code."""
    if arguments.streaming and arguments.protocol != "grpc":
        raise UsageError("--streaming is ModelStreamInfer, which only gRPC has; add --protocol grpc")
    if arguments.model in ONLY_STREAMING and not arguments.streaming:
        raise UsageError(f"{arguments.model} is decoupled; add --protocol grpc --streaming")
    require_json_folder(arguments.json)
    peers = list(dict.fromkeys(arguments.peer))
    tool = ensure_perf_analyzer()
    beside: Peer = "envoy" if "envoy" in peers else "direct"
    up = rig(
        beside,
        arguments.model,
        slots=max(SLOTS_MIN, arguments.concurrency),
        deadline_ms=DEADLINE_MS,
        envoy_workers=1,
        keep=arguments.keep,
    )
    runs: dict[str, list[PerfFigures]] = {peer: [] for peer in peers}
    with up as ready, model_words(arguments.model, arguments.options) as inputs:
        sides = ready.ways()
        for number in range(1, arguments.rounds + 1):
            for peer in peers if number % 2 else peers[::-1]:
                found = _drive(tool, sides[peer], arguments, inputs)
                runs[peer].append(found)
                line = f"{peer} {found.inferences_per_s:.0f}/s, p99 {found.p99_us} us"
                print(f"round {number}/{arguments.rounds}: {line}", file=sys.stderr, flush=True)
    result = document(arguments.protocol, arguments.streaming, arguments.concurrency, arguments.model, runs)
    tell(result, arguments.json, table)
    return 0


def options(
    *,
    model: str,
    address: str,
    protocol: Literal["http", "grpc"],
    streaming: bool,
    concurrency: int,
    interval_ms: int,
    stability_percent: int,
    trials: int = TRIALS,
    more: Sequence[str] = (),
) -> list[str]:
    """perf_analyzer's options for a closed loop of `concurrency` calls. `more` comes last, so it wins."""
    words = ["-m", model, "-u", address, "-i", protocol, "--concurrency-range", str(concurrency)]
    words += ["--measurement-interval", str(interval_ms), "--stability-percentage", str(stability_percent)]
    words += ["--max-trials", str(trials)]
    if streaming:
        words += ["--streaming", "--async"]  # its synchronous mode has no streams
    return [*words, *more]


def _drive(tool: PerfAnalyzer, side: Side, arguments: argparse.Namespace, inputs: list[str]) -> PerfFigures:
    words = options(
        model=arguments.model,
        address=side.address(arguments.protocol),
        protocol=arguments.protocol,
        streaming=arguments.streaming,
        concurrency=arguments.concurrency,
        interval_ms=arguments.interval_ms,
        stability_percent=arguments.stability_percent,
        more=[*inputs, *arguments.options],
    )
    return run_perf_analyzer(tool, words, timeout_s=60 + arguments.interval_ms / 1000 * (TRIALS + 2))


def document(
    protocol: str, streaming: bool, concurrency: int, model: str, runs: dict[str, list[PerfFigures]]
) -> dict[str, Any]:
    """The JSON: medians over the runs of each peer, their rates' ratio to the direct one if that is among them, and
    all runs.
    """
    sides: dict[str, dict[str, float | None]] = {}
    for peer, found in runs.items():
        figures: dict[str, float | None] = {}
        for field in fields(PerfFigures):
            values = [value for each in found if (value := getattr(each, field.name)) is not None]
            figures[field.name] = round(median(values), 3) if values else None
        sides[peer] = figures
    ratios = {}
    if "direct" in runs:
        ratios = {
            peer: round(
                median(a.inferences_per_s / b.inferences_per_s for a, b in zip(found, runs["direct"], strict=True)), 3
            )
            for peer, found in runs.items()
            if peer != "direct"
        }
    return {
        "protocol": protocol,
        "streaming": streaming,
        "concurrency": concurrency,
        "model": model,
        "machine": accounting.machine_name(),
        "sides": sides,
        "rate_ratios_to_direct": ratios,
        "runs": {peer: [asdict(each) for each in found] for peer, found in runs.items()},
    }


def table(result: dict[str, Any]) -> str:
    """The figures for people."""
    columns = ("inferences_per_s", "p50_us", "p99_us", "server_queue_us", "server_compute_us")
    rows = [["", *columns]]
    for peer, side in result["sides"].items():
        rows.append([peer, *("-" if side[name] is None else f"{side[name]:.0f}" for name in columns)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines += [f"{peer} / direct: {ratio:.2f}" for peer, ratio in result["rate_ratios_to_direct"].items()]
    return "\n".join(lines)
