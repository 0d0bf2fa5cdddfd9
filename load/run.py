"""`python -m load run`: a scenario as open-loop load on real Tritons through Sluice, or on whatever has an address."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvloop

from deploy.local import LocalFleet, free_ports
from deploy.local.processes import group_members
from load import accounting
from load.drive import Target, drive
from load.errors import UsageError
from load.open_loop import Moment, OpenLoopResult
from load.options import not_negative, positive, require_json_folder, require_pictures_folder, tell
from load.run_figures import disturbed, judge_run, run_figures
from load.run_pictures import write_pictures
from load.run_report import result_json, text
from load.scenario import LoadedScenario, find_scenario, load_scenario, scenario_names
from load.scenario_faults import needs_chaos
from load.sluice import model_policy
from load.stand import SPARE_FILES, Stand, allow_files, stand
from load.verdict import EXIT_CODES

ATTEMPTS = 2
"""A run that the generator itself spoiled is repeated once (DESIGN.md, section 5)."""

EXAMPLE = """\
examples:
  python -m load run --list
  python -m load run steady --json out.json --pictures out/
  python -m load run steady --protocol grpc --scale 5 --seconds 10
  python -m load run my/scenario.yaml --target direct
  python -m load run steady --address 127.0.0.1:8000

Calls are sent at the times that the scenario says, whatever has become of those before, and each latency counts from
the intended time. docs/load.md tells how to write a scenario and what the figures mean.

exit codes: 0 all checks kept; 1 a check missed, or the run itself failed; 2 wrong usage or a wrong scenario;
3 inconclusive: twice the generator itself was too late; 130 interrupted"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.epilog = EXAMPLE
    parser.add_argument("scenario", nargs="?", metavar="SCENARIO", help="a name that --list shows, or a .yaml file")
    parser.add_argument("--list", action="store_true", help="show the scenarios that come with the lab, and end")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--target", choices=("sluice", "direct"), default="sluice",
                       help="start Tritons with Sluice in front (default), or one Triton alone")  # fmt: skip
    where.add_argument("--address", action="append", default=[], metavar="[PROTOCOL=]HOST:PORT",
                       help="start nothing, use what runs there; http=… and grpc=… for both")  # fmt: skip
    parser.add_argument("--protocol", choices=("http", "grpc"), help="all calls over this one")
    parser.add_argument("--scale", type=positive, default=1.0, metavar="X", help="so many times the rates")
    parser.add_argument("--seconds", type=positive, metavar="S", help="instead of the scenario's duration_s")
    parser.add_argument("--warm-up", type=not_negative, metavar="S", help="instead of the scenario's warm_up_s")
    parser.add_argument("--seed", type=int, metavar="N", help="instead of the scenario's seed")
    parser.add_argument("--json", metavar="OUT", help="write the result as JSON to this file; - is stdout")
    parser.add_argument("--pictures", metavar="FOLDER", help="write pictures (SVG) into this folder")
    parser.add_argument("--keep", action="store_true", help="keep the folder of policies, records and logs")


def run(arguments: argparse.Namespace) -> int:
    """Run a scenario. Returns the command's exit code."""
    if arguments.list:
        print(listed())
        return 0
    if arguments.scenario is None:
        raise UsageError("name a scenario; python -m load run --list shows them")
    require_json_folder(arguments.json)
    scenario = load_scenario(find_scenario(arguments.scenario)).changed(
        protocol=arguments.protocol,
        scale=arguments.scale,
        duration_s=arguments.seconds,
        warm_up_s=arguments.warm_up,
        seed=arguments.seed,
    )
    why = needs_chaos(scenario.spec)
    if why:
        raise UsageError(f"{scenario.name}: {why}, which takes: python -m load chaos {arguments.scenario}")
    require_pictures_folder(arguments.pictures)
    with _target(scenario, arguments) as target:
        result = _run(scenario, target, arguments)
    tell(result, arguments.json, text)
    if arguments.pictures:
        for path in write_pictures(result, Path(arguments.pictures)):
            print(f"picture: {path}", file=sys.stderr)
    return EXIT_CODES[result["verdict"]]


def _run(scenario: LoadedScenario, target: Target, arguments: argparse.Namespace) -> dict[str, Any]:
    replicas = None if arguments.address else scenario.spec.target.replicas
    setting = setting_of(scenario, target.name, scale=arguments.scale, replicas=replicas)
    progress = ProgressLine(scenario)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                found, figures = runner.run(_once(scenario, target, progress))
            finally:
                progress.end()
            why = disturbed(figures)
            if not why or figures["wrong"]:  # what was wrong once is not made good by a second run
                break
            if attempt < ATTEMPTS:
                print(f"{why}: the run says nothing and is done once more", file=sys.stderr)
    verdict, checks = judge_run(scenario.spec.checks, figures)
    return result_json(scenario, verdict, checks, figures, found, {**setting, "attempts": attempt, "disturbed": why})


async def _once(
    scenario: LoadedScenario, target: Target, progress: ProgressLine
) -> tuple[OpenLoopResult, dict[str, Any]]:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    found, machine = await drive(scenario, target, run=random.getrandbits(31), on_second=progress.show)
    return found, run_figures(found, machine)


@contextmanager
def _target(scenario: LoadedScenario, arguments: argparse.Namespace) -> Iterator[Target]:
    spec = scenario.spec
    if arguments.address:
        addresses = _addresses(arguments.address, scenario.protocols)
        allow_files(spec.in_flight_max + SPARE_FILES)
        yield Target(" and ".join(sorted(set(addresses.values()))), addresses)
        return
    wanted = spec.target
    if arguments.target == "direct" and wanted.replicas > 1:
        raise UsageError(
            f"--target direct is one Triton, and {scenario.name} wants {wanted.replicas}; take another scenario"
        )
    allow_files(spec.in_flight_max + SPARE_FILES)
    models = list(scenario.models)
    if arguments.target == "direct":
        with LocalFleet(1, models, ports=free_ports(1), environment=wanted.server_environment) as fleet:
            yield _of_fleet("direct", fleet, fleet["triton-0"].spec.http_address, fleet["triton-0"].spec.grpc_address)
        return
    with stand_for(scenario, keep=arguments.keep) as up:
        yield of_stand(up)


def stand_for(scenario: LoadedScenario, *, keep: bool, blackholes: Sequence[int] = ()) -> AbstractContextManager[Stand]:
    """What a scenario wants to be started."""
    wanted = scenario.spec.target
    policies = {
        model: model_policy(model, deadline_ms=scenario.deadline_ms(model), override=scenario.overrides.get(model))
        for model in scenario.models
    }
    return stand(
        wanted.replicas,
        scenario.models,
        slots=None,
        deadline_ms=1000,  # `policies` has each model's own
        overrides=policies,
        environment=wanted.server_environment,
        blackholes=blackholes,
        keep=keep,
    )


def of_stand(up: Stand) -> Target:
    """Where calls go if they go through what was started in front of the fleet."""
    return _of_fleet(up.name, up.fleet, up.http, up.grpc, up.pid)


def _of_fleet(name: str, fleet: LocalFleet, http: str, grpc: str, pid: int | None = None) -> Target:
    def server_pids() -> list[int]:
        runs = [each.run for each in fleet]  # taken once: a server may be killed by another thread meanwhile
        return [pid for run in runs if run is not None for pid in group_members(run.server.pid)]

    return Target(name, {"http": http, "grpc": grpc}, pid, server_pids)


def _addresses(given: list[str], protocols: tuple[str, ...]) -> dict[str, str]:
    """The addresses by protocol."""
    found: dict[str, str] = {}
    for each in given:
        protocol, named, address = each.rpartition("=")
        if not named:
            if len(protocols) > 1:
                raise UsageError("the scenario speaks http and grpc; write --address http=… --address grpc=…")
            protocol = protocols[0]
        host, _, port = address.rpartition(":")
        if protocol not in ("http", "grpc") or not host or not port.isdecimal():
            raise UsageError(f"--address {each}: write as 127.0.0.1:8000 or grpc=127.0.0.1:8001")
        found[protocol] = address
    for protocol in protocols:
        if protocol not in found:
            raise UsageError(f"the scenario speaks {protocol}; add --address {protocol}=HOST:PORT")
    return found


class ProgressLine:
    """One line on a terminal that is written over each second; nothing elsewhere."""

    def __init__(self, scenario: LoadedScenario) -> None:
        self._name = scenario.name
        self._duration_s = scenario.spec.duration_s
        self._terminal = sys.stderr.isatty()

    def show(self, moment: Moment) -> None:
        """Show where the run stands."""
        if self._terminal:
            print(f"\r\x1b[K{self.line(moment)}", end="", file=sys.stderr, flush=True)

    def line(self, moment: Moment) -> str:
        """The line."""
        if moment.elapsed_s < 0:
            return f"{self._name}: warming up, {-moment.elapsed_s:.0f} s left"
        latency = "" if moment.p50_ms is None else f", last second p50 {moment.p50_ms:.1f} p99 {moment.p99_ms:.1f} ms"
        return (
            f"{self._name}: {moment.elapsed_s:.0f}/{self._duration_s:g} s, offered {moment.offered}, "
            f"done {moment.ended}, failed {moment.failed}, in flight {moment.in_flight}{latency}"
        )

    def end(self) -> None:
        """Leave the terminal as it was."""
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def setting_of(scenario: LoadedScenario, target: str, *, scale: float, replicas: int | None) -> dict[str, Any]:
    """What a run's JSON says of how it was made."""
    spec = scenario.spec
    return {
        "target": target,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": accounting.machine_name(),
        "load_average_before": round(os.getloadavg()[0], 2),
        "duration_s": spec.duration_s,
        "warm_up_s": spec.warm_up_s,
        "in_flight_max": spec.in_flight_max,
        "seed": spec.seed,
        "scale": scale,
        "replicas": replicas,
        "traffic": {
            each.name: {"model": each.model, "protocol": each.protocol, "deadline_ms": each.deadline_ms}
            for each in spec.traffic
        },
    }


def listed() -> str:
    """The scenarios that come with the lab, a line each."""
    lines = []
    for name in scenario_names():
        spec = load_scenario(find_scenario(name)).spec
        lines.append(f"{name:<12} {spec.duration_s:g} s; {spec.description}")
    return "\n".join(lines)
