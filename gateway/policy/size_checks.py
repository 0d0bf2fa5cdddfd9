"""What must hold between the keys that tell calls apart by size, as `checks.py` holds for the others."""

from __future__ import annotations

from typing import Any

from gateway.policy.decode import Document
from gateway.policy.problems import Path, Problems
from gateway.policy.schema import FleetPolicy, ModelPolicy

Fleet = Document[FleetPolicy]
Model = Document[ModelPolicy]


def check_sizes(model: Model, fleet: Fleet, problems: Problems) -> None:
    _work(model, problems)
    _lanes(model, problems)
    _length(model, problems)
    _memory(model, fleet, problems)


def _add(problems: Problems, document: Document[Any], path: Path, message: str, remedy: str) -> None:
    problems.add(document.file, document.where(*path), path, message, remedy)


def _work(model: Model, problems: Problems) -> None:
    by = model.get("work", "by")
    if by is None:
        return
    named, parameter = model.get("work", "input"), model.get("work", "parameter")
    if by == "parameter":
        if parameter == "":
            message = "`by: parameter` does not say which"
            _add(problems, model, ("work", "by"), message, "name it: `parameter: …`")
        if named:
            message = "a parameter is of the whole request, not of an input"
            _add(problems, model, ("work", "input"), message, "remove `input`")
    elif parameter:
        message = f"with `by: {by}` no parameter is looked at"
        _add(problems, model, ("work", "parameter"), message, "remove it, or write `by: parameter`")
    if by == "value" and named == "":
        message = "`by: value` does not say of which input"
        _add(problems, model, ("work", "by"), message, "name it: `input: …`")
    default, most = model.get("work", "default"), model.get("work", "max")
    if default is not None and most is not None and default > most:
        path: Path = ("work", "default") if model.given("work", "default") else ("work", "max")
        message = f"`default` ({default:g}) is more than `max` ({most:g})"
        _add(problems, model, path, message, "raise `max`, or lower `default`")


def _lanes(model: Model, problems: Problems) -> None:
    larger = model.get("admission", "lanes", "larger")
    if not isinstance(larger, list):
        return
    here: Path = ("admission", "lanes", "larger")
    if not model.given("work"):
        message = "lanes tell calls apart by their work, and all calls count as 1 without `work`"
        _add(
            problems, model, ("admission", "lanes"), message, "say how the work of a call is measured: `work: {by: …}`"
        )
    seen: set[str] = {"small"}
    below = 0.0
    for i in range(len(larger)):
        name, above = model.get(*here, i, "name"), model.get(*here, i, "work_above")
        if name is not None:
            if name in seen:
                message = f"two lanes are named `{name}`" if name != "small" else "`small` is the first lane's name"
                _add(problems, model, (*here, i, "name"), message, "give each lane a name of its own")
            seen.add(name)
        if above is not None:
            if above <= below:
                message = f"{above:g} is not above the lane before it ({below:g})"
                _add(problems, model, (*here, i, "work_above"), message, "list the lanes by rising `work_above`")
            below = max(below, above)
    most = model.get("work", "max")
    if most is not None and below >= most:
        message = f"no call counts as more than {most:g} (`work.max`), so the last lane is never used"
        path: Path = (*here, len(larger) - 1, "work_above")
        _add(problems, model, path, message, "raise `work.max`, or lower `work_above`")


def _length(model: Model, problems: Problems) -> None:
    limits = ("limits", "input_length_of")
    if model.get(*limits) and model.get("limits", "input_length_max") is None and model.given(*limits):
        message = "`input_length_of` names an input, and no `input_length_max` limits it"
        _add(problems, model, limits, message, "give `input_length_max`, or remove this key")


def _memory(model: Model, fleet: Fleet, problems: Problems) -> None:
    if not model.given("memory"):
        return
    fixed, unit = model.get("memory", "fixed_bytes"), model.get("memory", "bytes_per_unit")
    if not fixed and not unit:
        return
    pool = model.get("pool")
    pools = fleet.get("pools")
    if not isinstance(pools, dict) or not isinstance(pools.get(pool), dict):
        return
    limit = fleet.get("pools", pool, "memory_bytes")
    if limit is None:
        if not fleet.given("pools", pool, "memory_bytes"):
            message = f"pool `{pool}` has no `memory_bytes` in fleet.yaml, so nothing is counted"
            _add(problems, model, ("memory",), message, "give the pool its limit, or remove this key")
        return
    if fixed is not None and unit is not None and fixed + unit > limit:
        message = f"a usual call needs {int(fixed + unit)} bytes with the model, and pool `{pool}` has {limit}"
        _add(problems, model, ("memory",), message, "lower the figures, or raise `memory_bytes` of the pool")
