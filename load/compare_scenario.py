"""`python -m load compare --scenario`: a scenario's traffic, fleet and faults through Sluice and through Envoy."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from load import accounting, chaos
from load.chaos import Done
from load.compare_pictures import write_comparison
from load.compare_scenario_figures import RATIOS, ScenarioRound, document, table, without_records
from load.environment import ensure_envoy
from load.envoy_tuned import Tuning, hedges, tuning_of
from load.errors import UsageError
from load.options import require_json_folder, require_pictures_folder, tell
from load.peer_stand import counted, start_envoy
from load.run_figures import total
from load.scenario import LoadedScenario, find_scenario, load_scenario
from load.stand import SPARE_FILES, allow_files
from load.verdict import EXIT_CODES, UNJUDGED

ROUNDS = 3
CALIBRATION_S = 10.0
HEDGE_QUANTILE = 0.97
"""The same as Sluice's trigger (DESIGN.md, section 7)."""


def run(arguments: argparse.Namespace) -> int:
    """Run the comparison. Returns the command's exit code."""
    require_json_folder(arguments.json)
    limits = _limits(arguments)
    scenario = load_scenario(find_scenario(arguments.scenario)).changed(
        protocol=arguments.protocol, duration_s=arguments.seconds, warm_up_s=arguments.warm_up, seed=arguments.seed
    )
    require_pictures_folder(arguments.pictures)
    allow_files(scenario.spec.in_flight_max + SPARE_FILES)
    tuning = tuning_of(scenario, arguments.envoy_overload)
    compared = Compared(scenario, ensure_envoy(), arguments)
    tuning, capacity_rps = compared.calibrate(tuning)
    rounds = [compared.round(number, tuning, capacity_rps) for number in range(1, compared.rounds + 1)]
    result = document(scenario, rounds, compared.setting(tuning, capacity_rps), limits)
    tell(result, arguments.json, table)
    if arguments.pictures:
        for path in write_comparison(result, Path(arguments.pictures)):
            print(f"picture: {path}", file=sys.stderr)
    return 0 if result["verdict"] == UNJUDGED else EXIT_CODES[result["verdict"]]


def _limits(arguments: argparse.Namespace) -> dict[str, float]:
    for name in ("rps", "concurrency", "deadline_ms"):
        if getattr(arguments, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} does not go with --scenario, which says it")
    if arguments.peer != "envoy":
        raise UsageError("--scenario goes with --peer envoy: nothing stands in front of a direct call")
    limits = dict(arguments.limit)
    if unknown := set(limits) - set(RATIOS):
        raise UsageError(f"--limit {min(unknown)}: with --scenario it is one of {', '.join(RATIOS)}")
    return limits


class Compared:
    """The runs of one comparison. Each has a fleet of its own, so that nothing is left of the one before."""

    def __init__(self, scenario: LoadedScenario, binary: Path, arguments: argparse.Namespace) -> None:
        self._scenario = scenario
        self._binary = binary
        self._arguments = arguments
        self.rounds = int(arguments.rounds or ROUNDS)
        self._load_average = round(os.getloadavg()[0], 2)
        self._calibration_disturbed = ""
        self._started = datetime.now(UTC).isoformat(timespec="seconds")

    def calibrate(self, tuning: Tuning) -> tuple[Tuning, float | None]:
        """The time-out at which Envoy hedges, and the capacity that both sides' rates go by: from a run through an
        Envoy without either, before anything is broken. Where neither is asked for nothing is run.
        """
        given_ms = self._arguments.per_try_timeout_ms
        wanted = hedges(self._scenario) and given_ms is None
        spec = self._scenario.spec
        if wanted or spec.capacity is not None:
            print("first a run without faults through a plain Envoy", file=sys.stderr)
            calm = replace(
                self._scenario,
                spec=msgspec.structs.replace(
                    spec, faults=(), checks=(), duration_s=min(CALIBRATION_S, spec.duration_s)
                ),
            )
            done = self._envoy(calm, tuning, None)
            self._calibration_disturbed = done.disturbed
            capacity_rps = done.figures["capacity_rps"]
            latency = total(done.found.traffic).latency
            if wanted and latency.count:
                given_ms = max(1, round(latency.quantile_ns(HEDGE_QUANTILE) / 1e6))
        else:
            capacity_rps = None
        if hedges(self._scenario) and given_ms is not None:
            tuning = replace(tuning, per_try_timeout_ms=given_ms)
            print(f"Envoy hedges after {given_ms} ms", file=sys.stderr)
        return tuning, capacity_rps

    def round(self, number: int, tuning: Tuning, capacity_rps: float | None) -> ScenarioRound:
        """Both sides with the same arrivals and faults, one after the other; who is first changes from round to
        round, and the seed with each.
        """
        each = self._scenario.changed(seed=(self._scenario.spec.seed + number - 1) % 2**32)
        done: dict[str, Done] = {}
        for side in ("sluice", "envoy") if number % 2 else ("envoy", "sluice"):
            if side == "sluice":
                done[side] = chaos.attempts(
                    each, lambda: chaos.start_sluice(each, keep=self._arguments.keep), capacity_rps
                )
            else:
                done[side] = self._envoy(each, tuning, capacity_rps)
            print(f"round {number}/{self.rounds}: {side} {_words(done[side])}", file=sys.stderr, flush=True)
        return ScenarioRound(done["sluice"], done["envoy"])

    def _envoy(self, scenario: LoadedScenario, tuning: Tuning, capacity_rps: float | None) -> Done:
        arguments = self._arguments

        def start() -> Any:
            return start_envoy(scenario, tuning, self._binary, workers=arguments.envoy_workers, keep=arguments.keep)

        done = chaos.attempts(scenario, start, capacity_rps, counted)
        without_records(done.figures)
        return done

    def setting(self, tuning: Tuning, capacity_rps: float | None) -> dict[str, Any]:
        """How it was made."""
        spec = self._scenario.spec
        return {
            "peer": "envoy",
            "started": self._started,
            "machine": accounting.machine_name(),
            "load_average_before": self._load_average,
            "duration_s": spec.duration_s,
            "warm_up_s": spec.warm_up_s,
            "seed": spec.seed,
            "replicas": spec.target.replicas,
            "capacity_rps": capacity_rps,
            "calibration_disturbed": self._calibration_disturbed,
            "envoy_workers": self._arguments.envoy_workers,
            "envoy_per_try_timeout_ms": tuning.per_try_timeout_ms,
            "envoy_calls_max": tuning.calls_max,
            "envoy_top_calls_max": tuning.top_calls_max,
            "envoy_top_class": tuning.top_class,
            "envoy_overload": tuning.overload,
            "traffic": {
                each.name: {"model": each.model, "protocol": each.protocol, "deadline_ms": each.deadline_ms}
                for each in spec.traffic
            },
        }


def _words(done: Done) -> str:
    figures: Mapping[str, Any] = done.figures
    p99 = "no right answer" if figures["p99_ms"] is None else f"p99 {figures['p99_ms']:.1f} ms"
    failed = figures["offered"] - figures["right"]
    note = f" (says nothing: {done.disturbed})" if done.disturbed else ""
    return f"{figures['goodput_rps']:.0f}/s, {p99}, {failed} of {figures['offered']} failed{note}"
