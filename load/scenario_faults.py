"""What the schema cannot say of faults, windows, baselines and checks: how they have to fit one another and the run."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from typing import Any

from gateway.policy.decode import Document
from gateway.policy.yaml_tree import Mapping as MappingNode
from gateway.policy.yaml_tree import find
from load.chaos_figures import CHAOS_FIGURES, RECOVERY, SHARE_FIGURES
from load.chaos_figures import WHOLE_RUN as WHOLE_CHAOS
from load.errors import UsageError
from load.fault_schema import FAULT_KINDS
from load.faults import clash, plan
from load.replica_figures import REPLICA_FIGURES
from load.replica_figures import WHOLE_RUN as WHOLE_REPLICA
from load.run_figures import RUN_FIGURES, TRAFFIC_FIGURES
from load.scenario_schema import CheckSpec, Scenario

Add = Callable[..., None]
"""Takes path, message, remedy and what is allowed."""
REPLICA = "replica-"
STREAM_FIGURES = frozenset(name for name in TRAFFIC_FIGURES if name.startswith(("first_", "between_")))
WINDOWED = frozenset({"gateway_cpu_us_per_call"})
"""Figures of the run alone that windows have, too."""
OF_TRAFFIC = (*TRAFFIC_FIGURES, *SHARE_FIGURES)
OF_RUN = (*RUN_FIGURES, *CHAOS_FIGURES)


def check_faults(document: Document[Scenario], add: Add) -> None:
    """The entries of `faults`, where the schema found each right."""
    replicas = document.get("target", "replicas")
    for index, _ in enumerate(document.get("faults") or ()):
        at = ("faults", index)
        node = find(document.root, at)
        if not isinstance(node, MappingNode) or set(node.entries) - set(FAULT_KINDS):
            continue
        given = [kind for kind in FAULT_KINDS if kind in node.entries]
        if len(given) != 1:
            message = f"{' and '.join(given)} stand in one entry" if given else "no kind of fault is given"
            add(at, message, "give exactly one in each entry", FAULT_KINDS)
            continue
        known = document.get(*at, given[0])
        if not isinstance(known, dict):
            continue
        here = (*at, given[0])
        if (known.get("replica") is not None) == bool(known.get("all")):
            add(here, "a fault has exactly one of `replica` and `all: true`", "say which replica it is for")
        elif known.get("replica") is not None and replicas is not None and known["replica"] >= replicas:
            add((*here, "replica"), f"there is no replica {known['replica']}", f"write 0 to {replicas - 1}")


def check_baseline(document: Document[Scenario], names: list[str | None], add: Add) -> None:
    """Which traffic the baseline leaves out."""
    left_out = document.get("baseline", "without_traffic") or ()
    for index, name in enumerate(left_out):
        if name is not None and name not in names and None not in names:
            known = tuple(sorted(each for each in names if each))
            add(("baseline", "without_traffic", index), f"there is no traffic `{name}`", "", known)
    if names and None not in names and set(names) <= set(left_out):
        add(("baseline", "without_traffic"), "nothing is left", "leave at least one kind of traffic in")


def check_check(document: Document[Scenario], index: int, names: list[str | None], add: Add) -> None:
    """One entry of `checks`. `names` are those of the traffic, None for what was refused."""
    node = find(document.root, ("checks", index))
    keys = set(node.entries) if isinstance(node, MappingNode) else set()
    if keys <= set(CheckSpec.__struct_fields__) and ("max" in keys) == ("min" in keys):
        add(("checks", index), "a check has exactly one of `max` and `min`", "write one of them")
    known = document.get("checks", index) or {}
    if known.get("times_baseline") and not document.given("baseline"):
        add(("checks", index, "times_baseline"), "the scenario has no `baseline`", "add one, or remove the key")
    figure = known.get("figure")
    if figure is None:
        return
    at = ("checks", index, "figure")
    if (figure == RECOVERY) != ("recovery" in keys):
        add(at, f"`{RECOVERY}` and the key `recovery` need each other", "add the one or remove the other")
    _check_recovery(document, index, keys, add)
    owner, dot, name = figure.rpartition(".")
    if owner.startswith(REPLICA):
        replicas = document.get("target", "replicas")
        word = owner.removeprefix(REPLICA)
        if replicas is not None and not (word.isdecimal() and int(word) < replicas):
            add(at, f"there is no `{owner}`", "", tuple(f"{REPLICA}{number}" for number in range(replicas)))
            return
        figures, whole = tuple(REPLICA_FIGURES), WHOLE_REPLICA
    elif dot:
        if owner not in names:
            if None not in names and names:
                add(at, f"there is no traffic `{owner}`", "", tuple(sorted(each for each in set(names) if each)))
            return
        if known.get("times_baseline") and owner in (document.get("baseline", "without_traffic") or ()):
            add(at, f"the baseline has no traffic `{owner}`", "leave it in there, or remove `times_baseline`")
        figures, whole = OF_TRAFFIC, STREAM_FIGURES
    else:
        figures, whole = OF_RUN, STREAM_FIGURES | WHOLE_CHAOS | set(RUN_FIGURES) - set(TRAFFIC_FIGURES) - WINDOWED
    if name not in figures:
        near = difflib.get_close_matches(name, figures, n=1)
        add(at, f"there is no figure `{name}`", f"did you mean `{near[0]}`?" if near else "", figures)
    elif name in whole and "window" in keys:
        add(("checks", index, "window"), f"`{name}` exists for the whole run only", "remove the window")


def _check_recovery(document: Document[Scenario], index: int, keys: set[str], add: Add) -> None:
    known = document.get("checks", index, "recovery")
    if "recovery" not in keys or not isinstance(known, dict):
        return
    at = ("checks", index, "recovery")
    given = {key for key, value in known.items() if value is not None}
    if len(given & {"after_s", "after_fault"}) != 1:
        add(at, "a recovery has exactly one of `after_s` and `after_fault`", "write one of them")
    if len(given & {"p99_ms", "times"}) != 1:
        add(at, "a recovery has exactly one of `p99_ms` and `times`", "write one of them")
    if ("times" in given) != ("before_s" in given):
        add(at, "`times` and `before_s` need each other", "add the one or remove the other")
    faults = document.get("faults") or ()
    if known.get("after_fault") is not None and known["after_fault"] >= len(faults):
        add((*at, "after_fault"), f"there is no fault {known['after_fault']}", "they are counted from 0")


def misfits(spec: Scenario) -> Iterator[tuple[tuple[str | int, ...], str, str]]:
    """What in a scenario that is right by itself does not fit its length: path, what is wrong, what to do."""
    length = f"and the run ends at {spec.duration_s:g} s"
    for each in plan(spec.faults, spec.target.replicas):
        if each.begin_s >= spec.duration_s:
            yield ("faults", each.index), f"it begins at {each.begin_s:g} s, {length}", "let it begin before"
    found = clash(plan(spec.faults, spec.target.replicas))
    if found is not None:
        first, second = found
        yield (
            ("faults", second.index),
            f"replica {second.replica} has the fault {first.index} ({first.kind}) at that time",
            "let one end before the other",
        )
    for index, check in enumerate(spec.checks):
        window, recovery = check.window, check.recovery
        if window is not None:
            end_s = spec.duration_s if window.to_s is None else window.to_s
            if not window.from_s < end_s <= spec.duration_s:
                yield (
                    ("checks", index, "window"),
                    f"it is from {window.from_s:g} s to {end_s:g} s, {length}",
                    "let it begin before it ends, within the run",
                )
        if recovery is not None and max(recovery.after_s or 0, recovery.before_s or 0) >= spec.duration_s:
            yield ("checks", index, "recovery"), f"it is later than the run, {length}", "write an earlier time"


def require_fit(spec: Scenario) -> None:
    """Raises UsageError if a length that was asked for is too short for the scenario."""
    for path, message, _ in misfits(spec):
        where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
        raise UsageError(f"{where}: {message}; ask for a longer run")


def needs_chaos(spec: Scenario) -> str:
    """Why `load run` cannot run a scenario, or "" if it can."""
    if spec.faults:
        return "it has faults"
    if spec.baseline is not None or spec.capacity is not None:
        return "it has a baseline or a capacity"
    for check in spec.checks:
        owner, _, name = check.figure.rpartition(".")
        if owner.startswith(REPLICA) or name in CHAOS_FIGURES:
            return f"it checks {check.figure}"
    return ""


def windows(spec: Scenario) -> list[tuple[float, float]]:
    """The windows of its checks, each once."""
    found: dict[tuple[float, float], Any] = {}
    for check in spec.checks:
        if check.window is not None:
            found[check.window.from_s, spec.duration_s if check.window.to_s is None else check.window.to_s] = None
    return list(found)
