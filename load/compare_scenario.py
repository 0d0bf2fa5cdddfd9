"""`python -m load compare --scenario`: a scenario's traffic, fleet and faults through Sluice and through Envoy."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Mapping, Sequence
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
from load.envoy_tuned import Tuning, candidates, hedges, sheds, top_traffic, tuning_of
from load.errors import UsageError
from load.fault_schema import fault_of
from load.options import require_json_folder, require_pictures_folder, tell
from load.peer_stand import counted, start_envoy
from load.run_figures import total
from load.scenario import LoadedScenario, find_scenario, load_scenario
from load.stand import SPARE_FILES, allow_files
from load.verdict import EXIT_CODES, UNJUDGED

ROUNDS = 3
CALIBRATION_S = 10.0
TRIAL_S = 20.0
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
    tuning = tuning_of(scenario, arguments.envoy_overload or "breakers")
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
        self.trials: list[dict[str, Any]] = []
        self.chosen = ""
        self._started = datetime.now(UTC).isoformat(timespec="seconds")

    def calibrate(self, tuning: Tuning) -> tuple[Tuning, float | None]:
        """The best Envoy for the scenario, and the capacity that both sides' rates go by: from a run through a plain
        Envoy before anything is broken, and from trials. What needs no run gets none.
        """
        arguments = self._arguments
        healthy_ms, capacity_rps = self._healthy(tuning)
        if arguments.per_try_timeout_ms is not None and hedges(self._scenario):
            return replace(tuning, per_try_timeout_ms=arguments.per_try_timeout_ms), capacity_rps
        found = candidates(self._scenario, tuning, healthy_ms)
        if arguments.envoy_overload is not None and sheds(self._scenario):
            return tuning, capacity_rps
        if arguments.no_trials or len(found) == 1:
            return found[0][1], capacity_rps
        return self._best(found, capacity_rps), capacity_rps

    def _healthy(self, tuning: Tuning) -> tuple[int | None, float | None]:
        """The healthy p97 in milliseconds where Envoy may hedge and nobody said when, and the capacity."""
        wanted = hedges(self._scenario) and self._arguments.per_try_timeout_ms is None
        spec = self._scenario.spec
        if not wanted and spec.capacity is None:
            return None, None
        print("first a run without faults through a plain Envoy", file=sys.stderr, flush=True)
        calm = self._short(CALIBRATION_S)
        done = self._envoy(replace(calm, spec=msgspec.structs.replace(calm.spec, faults=())), tuning, None)
        self._note(done)
        latency = total(done.found.traffic).latency
        healthy_ms = max(1, round(latency.quantile_ns(HEDGE_QUANTILE) / 1e6)) if wanted and latency.count else None
        return healthy_ms, done.figures["capacity_rps"]

    def _best(self, found: Sequence[tuple[str, Tuning]], capacity_rps: float | None) -> Tuning:
        """Try each on the scenario, faults and all, for a short time."""
        trials: list[tuple[tuple[float, float], int]] = []
        for number, (words, tuning) in enumerate(found):
            done = self._envoy(self._short(TRIAL_S), tuning, capacity_rps)
            self._note(done)
            self.trials.append({"tuning": words, **{name: done.figures[name] for name in TRIED}})
            trials.append((score(self._scenario, done.figures), number))
            print(f"trial of Envoy, {words}: {_words(done)}", file=sys.stderr, flush=True)
        words, tuning = found[min(trials)[1]]
        self.chosen = words
        print(f"the best Envoy for it: {words}", file=sys.stderr, flush=True)
        return tuning

    def _short(self, seconds: float) -> LoadedScenario:
        """The beginning of the scenario, with the faults that begin in it."""
        spec = self._scenario.spec
        length_s = min(seconds, spec.duration_s)
        faults = tuple(each for each in spec.faults if fault_of(each)[1].at_s < length_s)
        return replace(
            self._scenario, spec=msgspec.structs.replace(spec, faults=faults, checks=(), duration_s=length_s)
        )

    def _note(self, done: Done) -> None:
        self._calibration_disturbed = self._calibration_disturbed or done.disturbed

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
            "envoy_trials": self.trials,
            "envoy_chosen": self.chosen,
            "envoy_retry_percent": tuning.retry_percent,
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


TRIED = ("offered", "error_share", "goodput_rps", "p50_ms", "p99_ms", "extra_execution_share")
"""Figures of a trial that are told."""


def score(scenario: LoadedScenario, figures: Mapping[str, Any]) -> tuple[float, float]:
    """How badly an Envoy did; the lowest is the best. Differences of failed calls below a thousandth (of the top class
    under overload: a hundredth) are chance, and then the tail decides, or what was got done.
    """
    if sheds(scenario):
        failed = [figures["traffic"][name]["error_share"] or 0.0 for name in top_traffic(scenario)]
        return round(max(failed, default=0.0), 2), -float(figures["goodput_rps"])
    p99_ms = figures["p99_ms"]
    return round(figures["error_share"] or 0.0, 3), math.inf if p99_ms is None else float(p99_ms)


def _words(done: Done) -> str:
    figures: Mapping[str, Any] = done.figures
    p99 = "no right answer" if figures["p99_ms"] is None else f"p99 {figures['p99_ms']:.1f} ms"
    failed = figures["offered"] - figures["right"]
    note = f" (says nothing: {done.disturbed})" if done.disturbed else ""
    return f"{figures['goodput_rps']:.0f}/s, {p99}, {failed} of {figures['offered']} failed{note}"
