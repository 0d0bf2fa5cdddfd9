"""`python -m load protections`: what each protection costs a call that does not need it, one switched off at a time."""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, get_args, get_type_hints

from msgspec import Struct

from gateway.policy.schema import FleetPolicy, ModelPolicy
from gateway.runtime import loop
from gateway.runtime.collector import settle
from load import accounting
from load.callgrind import require_valgrind
from load.errors import UsageError
from load.instructions import count_reading
from load.instructions_child import BURST, CALL, whole_bursts
from load.options import positive_int, require_json_folder, tell
from load.sluice import merged
from load.stage_house import SEED, stage_house
from load.stages import Caller, whole
from load.verdict import spread

WARM_CALLS = 1000
"""Enough for what deciders have to know before they work: a hedge's trigger, the pace."""

EXAMPLE = """\
examples:
  python -m load protections
  python -m load protections --instructions --rounds 31 --json protections.json
  python -m load protections --only hedging lanes --instructions

The whole gateway but for its ports, in this process, in front of replicas that answer at once (as `stages`): once with
every protection switched on, and once for each of them with that one switched off. What a protection costs is the
difference: median over the rounds, in which the order changes. Calls are such as need none of them, none is hedged or
refused, so this is the price that every call pays, not that of a hedge.

With --instructions user-space instructions are counted as well, as `instructions` does it and with what it needs: on a
shared machine the one column to be believed.

exit codes: 0 it ran to its end; 1 not; 2 wrong usage, or valgrind is not installed; 130 interrupted"""


@dataclass(frozen=True, slots=True)
class Protection:
    """One that can be switched off. `key` is that of a model's policy (of `fleet.yaml`, where `of_fleet` is true)
    without which there is no such protection in this gateway.
    """

    name: str
    key: tuple[str, ...]
    on: Mapping[str, Any] = field(default_factory=dict)
    off: Mapping[str, Any] = field(default_factory=dict)
    of_fleet: bool = False
    with_it: tuple[str, ...] = ()
    """Others that mean nothing without it, and are switched off with it."""

    @property
    def known(self) -> bool:
        """Whether this gateway has it."""
        return _has(FleetPolicy if self.of_fleet else ModelPolicy, self.key)


PROTECTIONS: tuple[Protection, ...] = (
    Protection("hedging", ("hedging",), {"hedging": {"enabled": True}}, {"hedging": {"enabled": False}}),
    Protection("retries", ("retries",), {"retries": {"max": 1}}, {"retries": {"max": 0}}),
    Protection(
        "all second attempts", ("read_only",), {"read_only": True}, {"read_only": False}, with_it=("hedging", "retries")
    ),
    Protection(
        "adaptive limit",
        ("admission", "limit"),
        {"admission": {"limit": {"adaptive": True}}},
        {"admission": {"limit": {"adaptive": False}}},
    ),
    Protection("ejection", ("ejection", "enabled"), {"ejection": {"enabled": True}}, {"ejection": {"enabled": False}}),
    Protection(
        "quotas", ("quotas",), {"quotas": {"default": {"rate_per_s": 1e6, "concurrency_max": 100_000}}}, of_fleet=True
    ),
    Protection(
        "stage budgets",
        ("deadline", "stages"),
        {"deadline": {"stages": {"ingress_ms": 500, "inference_ms": 4000, "postprocessing_ms": 500}}},
    ),
    Protection("caps of size", ("limits", "batch_max"), {"limits": {"batch_max": 64, "input_length_max": 4096}}),
    Protection("units of work", ("work",), {"work": {"by": "elements", "unit": 12}}, with_it=("lanes",)),
    Protection("lanes", ("lanes",), {"lanes": {"larger": [{"name": "large", "work_above": 8}]}}),
)
"""Each with what switches it on and off. `off` empty: it is off where `on` is not said."""

EVERYTHING = "everything on"
NOTHING = "everything off"


def _has(kind: Any, key: tuple[str, ...]) -> bool:
    """Whether a schema has this key."""
    for step in key:
        hints = get_type_hints(kind) if kind is not None else {}
        if step not in hints:
            return False
        kind = _struct_in(hints[step])
    return True


def _struct_in(hint: Any) -> Any:
    """The struct that a key holds, None beside it or not; None if it holds something else."""
    if isinstance(hint, type) and issubclass(hint, Struct):
        return hint
    return next((found for each in get_args(hint) if (found := _struct_in(each)) is not None), None)


@dataclass(frozen=True, slots=True)
class Variant:
    """A gateway that is measured: what its policies say."""

    name: str
    policy: Mapping[str, Any]
    fleet: Mapping[str, Any]


def variants(chosen: Sequence[Protection], known: Sequence[Protection]) -> list[Variant]:
    """Everything on, then each of `chosen` off, then all of `known` off."""
    return [
        _variant(EVERYTHING, known, ()),
        *(_variant(each.name, known, {each.name, *each.with_it}) for each in chosen),
        _variant(NOTHING, known, {each.name for each in known}),
    ]


def _variant(name: str, known: Sequence[Protection], off: Any) -> Variant:
    policy: dict[str, Any] = {}
    fleet: dict[str, Any] = {}
    for each in known:
        said = each.off if each.name in off else each.on
        if each.of_fleet:
            fleet = merged(fleet, said)
        else:
            policy = merged(policy, said)
    return Variant(name, policy, fleet)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.epilog = EXAMPLE
    parser.add_argument("--only", nargs="+", choices=[each.name.replace(" ", "-") for each in PROTECTIONS],
                        metavar="NAME", help="these protections (default: all that there are)")  # fmt: skip
    parser.add_argument("--rounds", type=positive_int, default=15, metavar="N", help="default: 15")
    parser.add_argument("--calls", type=positive_int, default=4000, metavar="N",
                        help="of each gateway in each round (default: 4000)")  # fmt: skip
    parser.add_argument("--rps", type=positive_int, default=5000, metavar="N", help="calls a second (default: 5000)")
    parser.add_argument("--replicas", type=positive_int, default=2, metavar="N",
                        help="replicas to choose from (default: 2)")  # fmt: skip
    parser.add_argument("--instructions", action="store_true", help="count instructions, too")
    parser.add_argument("--counted-calls", type=positive_int, default=960, metavar="N",
                        help="calls whose instructions are counted, of each gateway (default: 960)")  # fmt: skip
    parser.add_argument("--loop", choices=loop.LOOPS, default="uvloop", help="event loop (default: uvloop)")
    parser.add_argument("--json", metavar="OUT", help="write the figures as JSON to this file; - is stdout")


def run(arguments: argparse.Namespace) -> int:
    """Measure. Returns the command's exit code."""
    require_json_folder(arguments.json)
    if arguments.instructions:
        require_valgrind()
    known = [each for each in PROTECTIONS if each.known]
    asked = [each for each in PROTECTIONS if not arguments.only or each.name.replace(" ", "-") in arguments.only]
    missing = [each.name for each in asked if not each.known]
    if arguments.only and missing:
        raise UsageError(f"this gateway has no {missing[0]} yet")
    found = variants([each for each in asked if each.known], known)
    rounds = [_round(found, arguments, number) for number in range(1, arguments.rounds + 1)]
    counts = _counts(found, arguments) if arguments.instructions else {}
    setting = {name: getattr(arguments, name) for name in ("rounds", "calls", "rps", "replicas", "loop")}
    setting |= {"missing": missing, "machine": accounting.machine_name()}
    tell(document(found, rounds, counts, setting), arguments.json, table)
    return 0


def _round(found: Sequence[Variant], arguments: argparse.Namespace, number: int) -> dict[str, float]:
    """Microseconds of CPU per call of each gateway. One runs at a time: at rest they take CPU, too."""
    order = list(found)
    random.Random(f"{SEED}/{number}").shuffle(order)
    reading = {each.name: loop.run(_measure(each, arguments), arguments.loop) for each in order}
    print(f"round {number}/{arguments.rounds}: {reading[EVERYTHING]:.1f} us", file=sys.stderr, flush=True)
    return reading


async def _measure(variant: Variant, arguments: argparse.Namespace) -> float:
    with tempfile.TemporaryDirectory(prefix="sluice-protections-") as folder:
        async with stage_house(
            Path(folder) / "house",
            replicas=arguments.replicas,
            slots=BURST,
            policy=variant.policy,
            fleet=variant.fleet,
        ) as house:
            settle()
            caller, depth = Caller(house, rps=arguments.rps, burst=BURST), whole(house)
            await caller.drive(depth, WARM_CALLS)
            await house.records_written()
            return (await caller.measure(depth, arguments.calls)).process


def _counts(found: Sequence[Variant], arguments: argparse.Namespace) -> dict[str, float]:
    """Instructions per call of each gateway."""
    bursts = whole_bursts(arguments.counted_calls)
    counts = {}
    for number, each in enumerate(found, 1):
        more = ["--replicas", str(arguments.replicas)]
        more += ["--policy", json.dumps(each.policy), "--fleet", json.dumps(each.fleet)]
        label = f"{number}/{len(found)} {each.name}"
        counts[each.name] = count_reading(CALL, bursts, arguments.loop, label, more) / (bursts * BURST)
        print(f"{label}: {counts[each.name]:,.0f} instructions a call", file=sys.stderr, flush=True)
    return counts


def document(
    found: Sequence[Variant],
    rounds: Sequence[Mapping[str, float]],
    counts: Mapping[str, float],
    setting: Mapping[str, Any],
) -> dict[str, Any]:
    """The JSON: what a call costs with everything on and off, and what each protection adds."""
    rows = []
    for each in found[1:]:
        costs = spread([reading[EVERYTHING] - reading[each.name] for reading in rounds])
        counted = round(counts[EVERYTHING] - counts[each.name]) if counts else None
        rows.append(
            {
                "name": "all of them" if each.name == NOTHING else each.name,
                "us": round(costs.median, 2),
                "low": round(costs.low, 2),
                "high": round(costs.high, 2),
                "instructions": counted,
            }
        )
    return {
        "protections": rows,
        "everything_on": _of(EVERYTHING, rounds, counts),
        "everything_off": _of(NOTHING, rounds, counts),
        "setting": dict(setting),
        "rounds": [{name: round(us, 2) for name, us in sorted(reading.items())} for reading in rounds],
    }


def _of(name: str, rounds: Sequence[Mapping[str, float]], counts: Mapping[str, float]) -> dict[str, Any]:
    us = round(median(reading[name] for reading in rounds), 2)
    return {"us": us, "instructions": round(counts[name]) if counts else None}


def table(result: Mapping[str, Any]) -> str:
    """The figures for people."""
    lines = [f"{'per call':<24} {'us CPU':>8} {'95 % interval':>18} {'instructions':>13}"]
    for each in result["protections"]:
        interval = f"{each['low']:.1f} to {each['high']:.1f}"
        lines.append(f"{each['name']:<24} {each['us']:>8.1f} {interval:>18} {_count(each['instructions']):>13}")
    for name in ("everything_on", "everything_off"):
        each = result[name]
        lines.append(f"{name.replace('_', ' '):<24} {each['us']:>8.1f} {'':>18} {_count(each['instructions']):>13}")
    if result["setting"]["missing"]:
        lines.append(f"not there yet: {', '.join(result['setting']['missing'])}")
    return "\n".join(lines)


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
