"""`python -m load stress`: every row of the stress table, one after the other, as one table with a picture each."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deploy.local import LocalFleetError
from deploy.local.layout import write_atomically
from load import accounting, chaos
from load.errors import LoadError, UsageError
from load.options import require_json_folder, require_pictures_folder
from load.run_pictures import distribution, latency_over_time
from load.scenario import find_scenario, load_scenario
from load.stand import SPARE_FILES, allow_files
from load.svg import write_charts
from load.verdict import EXIT_CODES, worst

Picture = Callable[[Mapping[str, Any]], str]

ROWS: Mapping[str, Picture] = {
    "stragglers": distribution,
    "busy": distribution,
    "slow-replica": distribution,
    "burst": latency_over_time,
    "overload": latency_over_time,
    "oversize": distribution,
    "kill": latency_over_time,
    "freeze": latency_over_time,
    "blackhole": latency_over_time,
    "all-down": latency_over_time,
    "expired": latency_over_time,
    "fan-out": distribution,
}
"""Scenario to its picture. In the order of the table (DESIGN.md, section 7); `fan-out` is what tails cost whoever makes
ten calls at once.
"""
START_S = 25.0
"""What a run takes besides, about: to start and to stop the servers."""

EXAMPLE = """\
examples:
  python -m load stress --json stress.json --pictures docs/pictures --table stress.md
  python -m load stress --only kill freeze --json stress.json
  python -m load stress --only overload --again --json stress.json --pictures docs/pictures

Each row is a scenario with its baseline, as `chaos` runs it, and its verdict is that of `chaos`. The JSON is written
after each row: started again with the same --json it goes on where it was stopped, and does once more what was
inconclusive or could not be run. A row that cannot be run does not keep the others from it.

exit codes: 0 all rows passed; 1 one failed, or could not be run; 2 wrong usage; 3 one is inconclusive;
130 interrupted"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.epilog = EXAMPLE
    parser.add_argument("--only", nargs="+", choices=tuple(ROWS), metavar="NAME",
                        help="these rows, instead of all")  # fmt: skip
    parser.add_argument("--again", action="store_true", help="run rows once more that the --json file has already")
    parser.add_argument("--json", metavar="OUT", required=True, help="write the rows to this file, and go on from it")
    parser.add_argument("--pictures", metavar="FOLDER", help="write a picture (SVG) of each row into this folder")
    parser.add_argument("--table", metavar="OUT", help="write the table (Markdown) to this file, and not to stdout")
    parser.add_argument("--keep", action="store_true", help="keep the folders of policies, records and logs")


def run(arguments: argparse.Namespace) -> int:
    """Run the rows. Returns the command's exit code."""
    if arguments.json == "-":
        raise UsageError("--json names a file here: the command goes on from it")
    require_json_folder(arguments.json)
    require_json_folder(arguments.table)
    require_pictures_folder(arguments.pictures)
    out = Path(arguments.json)
    names = [name for name in ROWS if not arguments.only or name in arguments.only]
    known = read(out)
    due = [name for name in names if arguments.again or not finished(known.get(name))]
    print(f"{len(due)} of {len(names)} rows, about {minutes(due):.0f} minutes", file=sys.stderr, flush=True)
    for place, name in enumerate(due, 1):
        print(f"{place}/{len(due)} {name} (about {minutes([name]):.0f} minutes)", file=sys.stderr, flush=True)
        known[name] = _row(name, arguments)
        write_atomically(out, json.dumps(document(known), indent=1) + "\n")
        print(f"{place}/{len(due)} {name}: {known[name]['verdict']}", file=sys.stderr, flush=True)
    result = document({name: known[name] for name in names})
    text = table(result)
    if arguments.table:
        Path(arguments.table).write_text(text, encoding="utf-8")
        print(f"{arguments.table}: {len(names)} rows; verdict: {result['verdict']}")
    else:
        print(text, end="")
    return EXIT_CODES[result["verdict"]]


def minutes(names: list[str]) -> float:
    """How long these rows take, about."""
    whole_s = 0.0
    for name in names:
        spec = load_scenario(find_scenario(name)).spec
        whole_s += (1 if spec.baseline is None else 2) * (spec.duration_s + spec.warm_up_s + START_S)
    return whole_s / 60


def read(out: Path) -> dict[str, dict[str, Any]]:
    """The rows of a run before; none if there was no such run. Raises UsageError for a file that is something else."""
    if not out.exists():
        return {}
    try:
        rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
        return {row["scenario"]: row for row in rows if row["scenario"] in ROWS}
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"--json: {out} is not what this command writes; name another file") from error


def finished(row: Mapping[str, Any] | None) -> bool:
    """Whether a row says something: it was run, and is not inconclusive."""
    return row is not None and not row["error"] and row["verdict"] != "inconclusive"


def _row(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    begun_s = time.monotonic()
    started = datetime.now(UTC).isoformat(timespec="seconds")
    scenario = load_scenario(find_scenario(name))
    allow_files(scenario.spec.in_flight_max + SPARE_FILES)
    try:
        result = chaos.judged(scenario, keep=arguments.keep)
    except (LoadError, LocalFleetError) as error:
        print(f"error: {name}: {error}", file=sys.stderr, flush=True)
        return failed(name, scenario.spec.description, started, str(error))
    picture = None
    if arguments.pictures:
        drawn = {f"stress-{name}": ROWS[name](result)}
        picture = next((path.name for path in write_charts(drawn, Path(arguments.pictures))), None)
    return row(scenario.spec.description, result, round(time.monotonic() - begun_s, 1), picture)


KEPT = ("offered", "right", "errors", "refused", "goodput_rps", "p50_ms", "p99_ms", "p999_ms", "capacity_rps",
        "attempts_per_call", "hedge_share", "retry_share", "extra_execution_share", "gateway_cpu_us_per_call",
        "late_share", "timer_late_p99_ms", "others_cores")  # fmt: skip
"""Figures that a row keeps of its run; the baseline's are those of them that it has, too."""


def row(description: str, result: Mapping[str, Any], took_s: float, picture: str | None) -> dict[str, Any]:
    """A row, from the JSON of `chaos`."""
    before = result["baseline"]
    return {
        "scenario": result["scenario"],
        "description": description,
        "verdict": result["verdict"],
        "error": "",
        "checks": result["checks"],
        "figures": {name: result["figures"].get(name) for name in KEPT},
        "baseline": None if before is None else {name: before["figures"].get(name) for name in KEPT},
        "started": result["setting"]["started"],
        "took_s": took_s,
        "disturbed": result["setting"]["disturbed"],
        "picture": picture,
    }


def failed(name: str, description: str, started: str, error: str) -> dict[str, Any]:
    """A row that could not be run."""
    nothing = dict.fromkeys(KEPT)
    return {
        "scenario": name,
        "description": description,
        "verdict": "fail",
        "error": error,
        "checks": [],
        "figures": nothing,
        "baseline": None,
        "started": started,
        "took_s": 0.0,
        "disturbed": "",
        "picture": None,
    }


def document(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The JSON: the rows in the table's order, and the verdict of all of them together."""
    found = [dict(rows[name]) for name in ROWS if name in rows]
    return {
        "verdict": worst(each["verdict"] for each in found),
        "rows": found,
        "machine": accounting.machine_name(),
    }


def table(result: Mapping[str, Any]) -> str:
    """The table as Markdown: a line for each check, what was measured beside its limit."""
    lines = ["| row | what | limit | measured | verdict | p50 / p99 ms | picture |", "|---|---|---|---|---|---|---|"]
    for each in result["rows"]:
        name, figures, before = each["scenario"], each["figures"], each["baseline"]
        shown = _pair(figures) + ("" if before is None else f" (baseline {_pair(before)})")
        picture = "" if each["picture"] is None else f"[{name}](pictures/{each['picture']})"
        first = (f"`{name}`", shown, picture)
        if each["error"]:
            line = each["error"].splitlines()[0].replace("|", "/")
            lines.append(f"| {first[0]} | could not be run: {line} | | | fail | | |")
        for check in each["checks"]:
            if check["figure"] == "wrong" and check["pass"]:
                continue
            word = {True: "kept", False: "**missed**", None: "inconclusive"}[check["pass"]]
            lines.append(
                f"| {first[0]} | {check['name'].replace('|', '/')} | {check['limit']:g} | {_number(check['measured'])} "
                f"| {word} | {first[1]} | {first[2]} |"
            )
            first = ("", "", "")
    return "\n".join([*lines, "", f"{result['machine']}; verdict of all rows: {result['verdict']}.", ""])


def _pair(figures: Mapping[str, Any]) -> str:
    return " / ".join("-" if figures[name] is None else f"{figures[name]:.1f}" for name in ("p50_ms", "p99_ms"))


def _number(value: float | None) -> str:
    return "nothing" if value is None else f"{value:.4g}"
