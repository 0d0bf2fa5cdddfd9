"""`python -m load chaos`: faults under open-loop load, on real Tritons through Sluice, with a verdict."""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import uvloop

from load.attempts import read_records
from load.capacity import best_goodput_rps
from load.chaos_figures import Evidence, Reading, add_evidence
from load.drive import drive, request_ids
from load.errors import UsageError
from load.executions import Calls, read_log
from load.faults import Span, blackholed, plan
from load.injector import Injector
from load.open_loop import Moment, OpenLoopResult
from load.options import not_negative, positive, require_json_folder, require_pictures_folder, tell
from load.replica_figures import inferences, since
from load.run import ATTEMPTS, ProgressLine, listed, of_stand, setting_of, stand_for
from load.run_figures import disturbed, judge_run, run_figures
from load.run_pictures import write_pictures
from load.run_report import distributions, result_json, text
from load.scenario import LoadedScenario, find_scenario, load_scenario
from load.stand import SPARE_FILES, Stand, allow_files
from load.tallies import NS
from load.verdict import EXIT_CODES

EXAMPLE = """\
examples:
  python -m load chaos --list
  python -m load chaos kill --json out.json --pictures out/
  python -m load chaos overload --seconds 60
  python -m load chaos my/scenario.yaml --keep

Faults happen to real processes at the times that the scenario says, while calls are sent at theirs. docs/load.md tells
how to write faults and checks, and what the figures mean.

exit codes: 0 all checks kept; 1 a check missed, or the run itself failed; 2 wrong usage or a wrong scenario;
3 inconclusive: twice the generator itself was too late; 130 interrupted"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.epilog = EXAMPLE
    parser.add_argument("scenario", nargs="?", metavar="SCENARIO", help="a name that --list shows, or a .yaml file")
    parser.add_argument("--list", action="store_true", help="show the scenarios that come with the lab, and end")
    parser.add_argument("--scale", type=positive, default=1.0, metavar="X", help="so many times the rates")
    parser.add_argument("--seconds", type=positive, metavar="S",
                        help="instead of the scenario's duration_s; faults and windows must fit in")  # fmt: skip
    parser.add_argument("--warm-up", type=not_negative, metavar="S", help="instead of the scenario's warm_up_s")
    parser.add_argument("--seed", type=int, metavar="N", help="instead of the scenario's seed")
    parser.add_argument("--json", metavar="OUT", help="write the result as JSON to this file; - is stdout")
    parser.add_argument("--pictures", metavar="FOLDER", help="write pictures (SVG) into this folder")
    parser.add_argument("--keep", action="store_true", help="keep the folders of policies, records and logs")


def run(arguments: argparse.Namespace) -> int:
    """Run a scenario. Returns the command's exit code."""
    if arguments.list:
        print(listed())
        return 0
    if arguments.scenario is None:
        raise UsageError("name a scenario; python -m load chaos --list shows them")
    require_json_folder(arguments.json)
    scenario = load_scenario(find_scenario(arguments.scenario)).changed(
        scale=arguments.scale, duration_s=arguments.seconds, warm_up_s=arguments.warm_up, seed=arguments.seed
    )
    require_pictures_folder(arguments.pictures)
    allow_files(scenario.spec.in_flight_max + SPARE_FILES)
    result = judged(scenario, scale=arguments.scale, keep=arguments.keep)
    tell(result, arguments.json, text)
    if arguments.pictures:
        for path in write_pictures(result, Path(arguments.pictures)):
            print(f"picture: {path}", file=sys.stderr)
    return EXIT_CODES[result["verdict"]]


@dataclass(frozen=True, slots=True)
class Done:
    """A run that has been made."""

    found: OpenLoopResult
    figures: dict[str, Any]
    spans: list[Span]
    died: list[int]
    """Replicas that ended by themselves: it was not the run that was meant."""
    attempts: int = 1
    counters: Mapping[str, float] = field(default_factory=dict)
    """What whatever stands in front of the fleet counted itself; empty if nobody asked it."""

    @property
    def disturbed(self) -> str:
        """Why this run says nothing, or ""."""
        if self.died:
            return f"replica {', '.join(map(str, self.died))} ended by itself (--keep leaves its log)"
        return disturbed(self.figures)


def judged(scenario: LoadedScenario, *, scale: float = 1.0, keep: bool = False) -> dict[str, Any]:
    """Run a scenario, its baseline first. Returns the JSON. `scale`: what the rates were multiplied by, to be told."""

    def with_sluice(which: LoadedScenario, capacity_rps: float | None) -> Done:
        return attempts(which, lambda: start_sluice(which, keep=keep), capacity_rps)

    setting = setting_of(scenario, "sluice", scale=scale, replicas=scenario.spec.target.replicas)
    before = scenario.before()
    baseline: Done | None = None
    if before is not None:
        print("first the baseline", file=sys.stderr)
        baseline = with_sluice(before, None)
    capacity_rps = None if baseline is None else baseline.figures["capacity_rps"]  # the same rates for both
    return document(scenario, with_sluice(scenario, capacity_rps), baseline, setting)


def document(scenario: LoadedScenario, done: Done, baseline: Done | None, setting: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON of a run, with its verdict."""
    before_figures: Mapping[str, Any] | None = None if baseline is None else baseline.figures
    reading = Reading(done.figures, done.found.seconds.rows, done.spans, before_figures)
    why = done.disturbed
    if baseline is not None and not why and baseline.disturbed:
        why = f"in the baseline {baseline.disturbed}"
    verdict, checks = judge_run(scenario.spec.checks, done.figures, reading.measure, void=bool(why))
    more = {"attempts": done.attempts, "disturbed": why, "faults": [asdict(span) for span in done.spans]}
    result = result_json(scenario, verdict, checks, done.figures, done.found, {**setting, **more})
    result["baseline"] = None
    if baseline is not None:
        result["baseline"] = {
            "figures": baseline.figures,
            "attempts": baseline.attempts,
            "distribution": distributions(baseline.found),
        }
    return result


def start_sluice(scenario: LoadedScenario, *, keep: bool) -> AbstractContextManager[Stand]:
    """What a scenario wants to be started, with Sluice in front."""
    blackholes = blackholed(scenario.spec.faults, scenario.spec.target.replicas)
    return stand_for(scenario, keep=keep, blackholes=blackholes)


def attempts(
    scenario: LoadedScenario,
    start: Callable[[], AbstractContextManager[Stand]],
    capacity_rps: float | None,
    counters: Callable[[Stand], Mapping[str, float]] | None = None,
) -> Done:
    """Run a scenario, and once more if the generator spoiled it; each time everything is started anew. `capacity_rps`
    None: as the scenario says. `counters` is asked at the end of the run.
    """
    progress = ProgressLine(scenario)
    for attempt in range(1, ATTEMPTS + 1):
        with start() as up:
            try:
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    done = runner.run(_once(scenario, up, progress, capacity_rps))
            finally:
                progress.end()
            done = replace(done, attempts=attempt, counters={} if counters is None else counters(up))
        if not done.disturbed or done.figures["wrong"]:  # what was wrong once is not made good by a second run
            break
        if attempt < ATTEMPTS:
            print(f"{done.disturbed}: the run says nothing and is done once more", file=sys.stderr)
    return done


async def _once(scenario: LoadedScenario, up: Stand, progress: ProgressLine, capacity_rps: float | None) -> Done:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    target = of_stand(up)
    capacity = scenario.spec.capacity
    if capacity is not None and capacity_rps is None:
        capacity_rps = capacity.rps
        if capacity.callers is not None:
            capacity_rps = await best_goodput_rps(scenario.spec.traffic[0], target, capacity)
            print(f"capacity: {capacity_rps:.0f} calls/s in a closed loop", file=sys.stderr)
    if capacity is not None and capacity_rps is not None:
        scenario = scenario.changed(scale=capacity_rps / capacity.rps)
    servers = list(up.fleet)
    injector = Injector(plan(scenario.spec.faults, len(servers)), servers, up.blackholes)

    def second(moment: Moment) -> None:
        injector.on_second(moment)
        progress.show(moment)

    run = random.getrandbits(31)
    before = [inferences(server.spec.http_address) for server in servers]
    try:
        injector.begin()
        found, machine = await drive(scenario, target, run=run, on_second=second)
    finally:
        await injector.finish()
    after = [inferences(server.spec.http_address) for server in servers]
    figures = run_figures(found, machine)
    counted = [since(*pair) for pair in zip(before, after, strict=True)]
    add_evidence(figures, await _evidence(scenario, up, found, run, counted), capacity_rps)
    return Done(found, figures, injector.spans, injector.died)


RECORDS_WRITTEN_S = 0.5
"""Ten times the gateway's `flush_interval_ms`: after that the records of ended calls are in their files."""


async def _evidence(
    scenario: LoadedScenario, up: Stand, found: OpenLoopResult, run: int, counted: list[int | None]
) -> Evidence:
    await asyncio.sleep(RECORDS_WRITTEN_S)
    start_s = found.start_ns / NS
    start_unix_s = time.time() - time.monotonic() + start_s
    traffic = scenario.spec.traffic
    prefixes = tuple(request_ids(run, index) for index, _ in enumerate(traffic))
    addresses = {address: index for index, address in enumerate(up.grpc_addresses)}
    logs = enumerate(server.spec.execution_log for server in up.fleet)
    return Evidence(
        [each for index, log in logs for each in read_log(log, index, start_s)],
        list(read_records(up.directory / "policies" / "records", addresses, start_unix_s, prefixes)),
        counted,
        Calls(
            {
                each.name: [(at_ns - found.start_ns) / NS for at_ns in times]
                for each, times in zip(traffic, found.intended, strict=True)
            },
            {each.name: each.deadline_ms / 1000 for each in traffic},
            {each.name: each.distinct_inputs for each in traffic},
        ),
    )
