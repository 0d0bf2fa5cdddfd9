"""Runs seeds, judges them, and says how to replay the one that failed.

Every seed is run twice in fresh loops and must give the same trace: a difference means that something beside the seed
(a clock, a hash order, a memory address) decides what the gateway does.

Exit codes: 0 all well, 1 a seed failed, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.simulation.checks import violations
from tests.simulation.house import build
from tests.simulation.report import Report
from tests.simulation.run import Builder, run
from tests.simulation.scenario import scenario
from tests.simulation.trace import Trace

PINNED = Path(__file__).with_name("pinned_seeds.txt")
TRACE_LINES = 40
SHOWN_MAX = 10
"""Violations of one seed that are printed; the rest is counted."""


@dataclass(slots=True)
class Verdict:
    """What became of one seed."""

    seed: int
    digest: str = ""
    violations: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    """The last lines, kept for seeds that failed."""
    calls: int = 0
    answered: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    virtual_s: float = 0.0


def judge(seed: int, build_house: Builder = build, *, calls: int | None = None, full_trace: bool = False) -> Verdict:
    """Run `seed` twice and hold every invariant over it."""
    verdict = Verdict(seed)
    plan = scenario(seed, calls)
    verdict.tags = plan.tags
    try:
        report = run(plan, build_house)
        again = run(plan, build_house)
    except Exception as error:
        verdict.violations.append(f"the run ended with {type(error).__name__}: {error}")
        trace = getattr(error, "trace", None)
        if trace is not None:
            verdict.trace = trace.lines(None if full_trace else TRACE_LINES)
        return verdict
    verdict.violations += violations(report)
    verdict.digest = report.trace.digest()
    if again.trace.digest() != verdict.digest:
        verdict.violations.append(f"two runs of one seed differ: {_first_difference(report, again)}")
    verdict.calls = len(report.scenario.calls)
    verdict.statuses = dict(Counter(ending.status for endings in report.endings.values() for ending in endings))
    verdict.answered = verdict.statuses.get("ok", 0)
    verdict.virtual_s = report.virtual_s
    if full_trace:
        verdict.trace = report.trace.lines()
    elif verdict.violations:
        verdict.trace = _telling(report.trace, verdict.violations)
    return verdict


def _telling(trace: Trace, found: Sequence[str]) -> list[str]:
    """The lines about the first call that a violation names, and the last ones of all."""
    lines = trace.lines()
    named = re.search(r"call-\d{5}", "\n".join(found))
    about = [line for line in lines[:-TRACE_LINES] if named and named[0] in line][-TRACE_LINES:]
    return [*about, *lines[-TRACE_LINES:]]


def _first_difference(first: Report, second: Report) -> str:
    for one, other in zip(first.trace.events, second.trace.events, strict=False):
        if one != other:
            return f"first {one}, then {other}"
    return f"{len(first.trace.events)} events, then {len(second.trace.events)}"


def pinned() -> list[int]:
    """The seeds of `pinned_seeds.txt`."""
    lines = (line.partition("#")[0].split() for line in PINNED.read_text().splitlines())
    return [int(fields[0]) for fields in lines if fields]


def explain(verdict: Verdict) -> str:
    """A failed seed, with what to type to see it again."""
    lines = [f"seed {verdict.seed} FAILED ({', '.join(verdict.tags) or 'no faults'})"]
    lines += [f"  {text}" for text in verdict.violations[:SHOWN_MAX]]
    if len(verdict.violations) > SHOWN_MAX:
        lines.append(f"  and {len(verdict.violations) - SHOWN_MAX} more")
    if verdict.trace:
        lines.append(f"  the last {len(verdict.trace)} events:")
        lines += [f"    {line}" for line in verdict.trace]
    lines.append(f"  replay: python -m tests.simulation --seed {verdict.seed} --trace")
    return "\n".join(lines)


def _worker(seed: int) -> Verdict:
    return judge(seed)


def _start_worker() -> None:
    # What the imports left is never garbage: without this every run's collection would walk over it.
    gc.collect()
    gc.freeze()


def judge_all(seeds: Sequence[int], jobs: int) -> list[Verdict]:
    """All verdicts in the order of `seeds`; progress on a terminal."""
    show = sys.stderr.isatty()
    verdicts: list[Verdict] = []
    context = multiprocessing.get_context("spawn")
    if jobs > 1 and len(seeds) > 8:
        with context.Pool(jobs, initializer=_start_worker) as pool:
            for verdict in pool.imap(_worker, seeds, chunksize=8):
                verdicts.append(verdict)
                if show:
                    print(f"\r{len(verdicts)}/{len(seeds)} seeds", end="", file=sys.stderr, flush=True)
    else:
        _start_worker()
        for seed in seeds:
            verdicts.append(judge(seed))
            if show:
                print(f"\r{len(verdicts)}/{len(seeds)} seeds", end="", file=sys.stderr, flush=True)
    if show:
        print("\r", end="", file=sys.stderr)
    return verdicts


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation",
        description="Deterministic simulation of the whole gateway on virtual time, before a fleet that breaks.",
        epilog="examples: python -m tests.simulation --seeds 1000 (many); --seed 17 --trace (replay one)",
    )
    parser.add_argument("--seeds", type=int, metavar="N", help="run seeds 0 to N-1, and the pinned ones")
    parser.add_argument("--first", type=int, default=0, metavar="S", help="begin at this seed instead of 0")
    parser.add_argument("--seed", type=int, metavar="S", help="run this one seed")
    parser.add_argument("--trace", action="store_true", help="with --seed: print every event")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes (default 2)")
    parser.add_argument("--json", metavar="OUT", help="write the verdicts to this file ('-': standard output)")
    options = parser.parse_args(arguments)
    if (options.seeds is None) == (options.seed is None):
        parser.error("say either --seeds N or --seed S")
    if options.seeds is not None and options.seeds < 1:
        parser.error("--seeds must be 1 or more")
    if options.trace and options.seed is None:
        parser.error("--trace is for one seed: say --seed S")
    if options.json and options.json != "-":
        try:
            Path(options.json).touch()
        except OSError as error:
            parser.error(f"--json: {options.json} cannot be written ({error.strerror})")
    tell = sys.stderr if options.json == "-" else sys.stdout
    began_s = time.monotonic()
    if options.seed is not None:
        verdicts = [judge(options.seed, full_trace=options.trace)]
        if options.trace:
            print("\n".join(verdicts[0].trace), file=tell)
            verdicts[0].trace = []
    else:
        wanted = range(options.first, options.first + options.seeds)
        extra = [seed for seed in pinned() if seed not in wanted]
        verdicts = judge_all([*extra, *wanted], options.jobs)
    failed = [verdict for verdict in verdicts if verdict.violations]
    for verdict in failed[:3]:
        print(explain(verdict), file=tell)
    if len(failed) > 3:
        print(f"and {len(failed) - 3} more failed: {[verdict.seed for verdict in failed[3:40]]}", file=tell)
    took_s = time.monotonic() - began_s
    summary = _summary(verdicts, took_s)
    print(summary, file=tell)
    if options.seed is not None:
        print(f"trace hash {verdicts[0].digest}", file=tell)
    if options.json:
        body = json.dumps({"failed": len(failed), "took_s": round(took_s, 3), "seeds": [asdict(v) for v in verdicts]})
        if options.json == "-":
            print(body)
        else:
            Path(options.json).write_text(body + "\n")
    return 1 if failed else 0


def _summary(verdicts: Sequence[Verdict], took_s: float) -> str:
    statuses: Counter[str] = Counter()
    tags: Counter[str] = Counter()
    for verdict in verdicts:
        statuses.update(verdict.statuses)
        tags.update(verdict.tags)
    failed = sum(bool(verdict.violations) for verdict in verdicts)
    virtual_s = sum(verdict.virtual_s for verdict in verdicts)
    calls = sum(verdict.calls for verdict in verdicts)
    return (
        f"{len(verdicts)} seeds, {failed} failed; {calls} calls, each twice, over {virtual_s:.0f} virtual seconds "
        f"in {took_s:.1f} s\n"
        f"endings: {', '.join(f'{name} {count}' for name, count in statuses.most_common())}\n"
        f"met: {', '.join(f'{name} {count}' for name, count in tags.most_common())}"
    )
