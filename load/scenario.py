"""A scenario's file to a `LoadedScenario`, strictly: whatever is wrong is listed with file, line, column and remedy.

Reading and decoding are the gateway's own (`gateway.policy`), so a scenario is as strict as a policy, and what it says
about policies is checked by the schema of policies, with the scenario's lines.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from deploy.local import MODELS
from gateway.policy.checks import check_model
from gateway.policy.decode import Document, decode
from gateway.policy.files import read_bounded, reason
from gateway.policy.problems import PolicyError, Position, Problems
from gateway.policy.schema import FleetPolicy, ModelPolicy
from gateway.policy.yaml_tree import Mapping as MappingNode
from gateway.policy.yaml_tree import Node, Scalar, Sequence, find, parse
from load import arrivals
from load.arrivals import Arrivals
from load.errors import UsageError
from load.scenario_faults import REPLICA, check_baseline, check_check, check_faults, misfits, require_fit
from load.scenario_schema import DEADLINE_MS_MAX, ArrivalsSpec, Scenario
from load.sluice import model_policy
from load.trace import TraceError, read_trace

SCENARIOS_DIR = Path(__file__).resolve().parent / "scenarios"
SCENARIO_BYTES_MAX = 256 * 1024
KINDS = ("constant", "poisson", "burst", "step", "trace")


@dataclass(frozen=True, slots=True)
class LoadedScenario:
    """A scenario that can be run."""

    name: str
    spec: Scenario
    arrivals: tuple[Arrivals, ...]
    """Of each traffic."""
    overrides: Mapping[str, Mapping[str, Any]]
    """What the policies of its models say differently, by name."""
    baseline_overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The same in its baseline, for the models for which that says something."""

    @property
    def models(self) -> tuple[str, ...]:
        """All models that the target has to have."""
        return tuple(dict.fromkeys([*(each.model for each in self.spec.traffic), *(self.spec.target.models or ())]))

    @property
    def protocols(self) -> tuple[str, ...]:
        """What its callers speak."""
        return tuple(sorted({each.protocol for each in self.spec.traffic}))

    def deadline_ms(self, model: str) -> int:
        """The longest deadline of a model's traffic; a second for a model without traffic."""
        return max((each.deadline_ms for each in self.spec.traffic if each.model == model), default=1000)

    def changed(
        self,
        *,
        protocol: str | None = None,
        scale: float = 1.0,
        duration_s: float | None = None,
        warm_up_s: float | None = None,
        seed: int | None = None,
    ) -> LoadedScenario:
        """The same with all calls over one protocol, `scale` times the rates, or another length or seed. Raises
        UsageError for a length that its faults and windows do not fit in.
        """
        traffic = self.spec.traffic
        if protocol is not None:
            traffic = tuple(msgspec.structs.replace(each, protocol=protocol) for each in traffic)
        given = {"duration_s": duration_s, "warm_up_s": warm_up_s, "seed": seed}
        changes = {key: value for key, value in given.items() if value is not None}
        spec = msgspec.structs.replace(self.spec, traffic=traffic, **changes)
        require_fit(spec)
        return replace(
            self,
            spec=spec,
            arrivals=tuple(each.faster(scale) for each in self.arrivals) if scale != 1.0 else self.arrivals,
        )

    def before(self) -> LoadedScenario | None:
        """The run that its baseline is; None if it has none."""
        baseline = self.spec.baseline
        if baseline is None:
            return None
        kept = [index for index, each in enumerate(self.spec.traffic) if each.name not in baseline.without_traffic]
        return replace(
            self,
            spec=msgspec.structs.replace(
                self.spec,
                traffic=tuple(self.spec.traffic[index] for index in kept),
                faults=() if baseline.without_faults else self.spec.faults,
            ),
            arrivals=tuple(self.arrivals[index] for index in kept),
            overrides={**self.overrides, **self.baseline_overrides},
        )


def scenario_names() -> list[str]:
    """The scenarios that come with the lab."""
    return sorted(path.stem for path in SCENARIOS_DIR.glob("*.yaml"))


def find_scenario(word: str) -> Path:
    """The file of a scenario that is named, or given as a path. Raises UsageError with what there is."""
    path = Path(word)
    if path.suffix in (".yaml", ".yml") or "/" in word:
        if not path.is_file():
            raise UsageError(f"there is no scenario file {word}")
        return path
    names = scenario_names()
    if word not in names:
        near = difflib.get_close_matches(word, names, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UsageError(f"there is no scenario {word}; {hint}there are {', '.join(names)}, or give a path to a .yaml")
    return SCENARIOS_DIR / f"{word}.yaml"


def load_scenario(path: Path) -> LoadedScenario:
    """Read a scenario. Raises UsageError with all that is wrong, each as file:line:column: what; what to do."""
    problems = Problems()
    shown = _shown(path)
    try:
        data = read_bounded(str(path), SCENARIO_BYTES_MAX)
    except OSError as error:
        raise UsageError(f"{shown} cannot be read: {reason(error)}") from error
    root = parse(data, shown, SCENARIO_BYTES_MAX, problems)
    policies = dict(_take_policies(root, "target"))
    before = {
        model: _over(policies[model], node) if model in policies else node
        for model, node in _take_policies(root, "baseline")
    }
    # "keys": a kind of file of which the gateway knows no keys that are yet to come.
    document: Document[Scenario] = decode(root, Scenario, "keys", shown, problems)
    # Whatever the schema refused above, the rest is looked at too: all that is wrong is told at once.
    loaded = list(_arrivals(document, path, problems))
    _check(document, problems)
    overrides, baseline_overrides = (
        {model: _override(model, node, _deadline_ms(document, model), shown, problems) for model, node in each.items()}
        for each in (policies, before)
    )
    try:
        problems.raise_if_any()
        assert document.value is not None
        for path_in_it, message, remedy in misfits(document.value):
            problems.add(document.file, document.where(*path_in_it), path_in_it, message, remedy)
        problems.raise_if_any()
    except PolicyError as error:
        raise UsageError(f"the scenario cannot be used\n{error}") from error
    return LoadedScenario(path.stem, document.value, tuple(loaded), overrides, baseline_overrides)


def _shown(path: Path) -> str:
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _take_policies(root: Node | None, part: str) -> Iterator[tuple[str, MappingNode]]:
    """Take what stands under `<part>.models.<name>.policy` out of the tree: another schema's."""
    node = root
    for key in (part, "models"):
        entry = node.entries.get(key) if isinstance(node, MappingNode) else None
        node = None if entry is None else entry[1]
    if isinstance(node, MappingNode):
        for name, (_, model) in node.entries.items():
            if isinstance(model, MappingNode) and "policy" in model.entries:
                label, policy = model.entries["policy"]
                if isinstance(policy, MappingNode):
                    model.entries["policy"] = (label, MappingNode(policy.where))
                    yield name, policy


def _override(model: str, given: Node, deadline_ms: int, file: str, problems: Problems) -> Mapping[str, Any]:
    """What the scenario says of a policy, after checking the whole policy that it makes."""
    assert isinstance(given, MappingNode)
    base = model_policy(model, deadline_ms=deadline_ms)
    for key in ("model", "pool"):
        if key in given.entries:
            problems.add(file, given.entries[key][0].where, (key,), "the lab sets this key", "remove it")
    whole = _over(_node(base, given.where), given)
    nothing: Document[FleetPolicy] = Document(file, None, None, None)
    check_model(decode(whole, ModelPolicy, "model", file, problems), nothing, problems)
    return _plain(given)  # type: ignore[no-any-return]


def _node(value: Any, where: Position) -> Node:
    if isinstance(value, Mapping):
        made = MappingNode(where)
        for key, inner in value.items():
            made.entries[key] = (Scalar(where, key, False, "text", key), _node(inner, where))
        return made
    kind = "int" if isinstance(value, int) else "text"
    return Scalar(where, str(value), False, kind, value)  # type: ignore[arg-type]


def _over(base: Node, given: Node) -> Node:
    if not (isinstance(base, MappingNode) and isinstance(given, MappingNode)):
        return given
    merged = MappingNode(given.where, dict(base.entries))
    for key, (label, value) in given.entries.items():
        below = base.entries.get(key)
        merged.entries[key] = (label, value if below is None else _over(below[1], value))
    return merged


def _plain(node: Node) -> Any:
    if isinstance(node, MappingNode):
        return {key: _plain(value) for key, (_, value) in node.entries.items()}
    if isinstance(node, Sequence):
        return [_plain(item) for item in node.items]
    return node.value if isinstance(node, Scalar) else None


def _traffic(document: Document[Scenario]) -> list[dict[str, Any]]:
    """What is known of each kind of traffic, defaults included; None where a value was refused."""
    return [each or {} for each in document.get("traffic") or ()]


def _deadline_ms(document: Document[Scenario], model: str) -> int:
    """As `LoadedScenario.deadline_ms`; the largest possible while it is not known what all traffic is."""
    traffic = _traffic(document)
    if not traffic or any(each.get("model") is None or each.get("deadline_ms") is None for each in traffic):
        return DEADLINE_MS_MAX
    return max((each["deadline_ms"] for each in traffic if each["model"] == model), default=1000)


def _arrivals(document: Document[Scenario], path: Path, problems: Problems) -> Iterator[Arrivals]:
    traffic = _traffic(document)
    names = [each.get("name") for each in traffic]
    for index, each in enumerate(traffic):
        at = ("traffic", index, "arrivals")
        node = find(document.root, at)
        if not isinstance(node, MappingNode) or set(node.entries) - set(KINDS):
            continue  # the schema has refused it
        given = [kind for kind in KINDS if kind in node.entries]
        if len(given) != 1:
            message = f"{' and '.join(given)} stand side by side" if given else "no kind of arrivals is given"
            problems.add(document.file, document.where(*at), at, message, "give exactly one", KINDS)
            continue
        known = document.get(*at, given[0])
        if not _whole(known) or each.get("name") is None or (given[0] == "trace" and None in names):
            continue  # so has it a part of it, or a name that the rows of a trace may bear
        try:
            spec = msgspec.convert({given[0]: known}, ArrivalsSpec)
            yield make_arrivals(spec, each["name"], [name for name in names if name], path.parent)
        except (ValueError, TraceError) as error:
            here = (*at, given[0])
            for told in error.args if isinstance(error, TraceError) else (str(error),):
                problems.add(document.file, document.where(*here), here, told)


def _whole(known: Any) -> bool:
    """Whether no part of it was refused. Arrivals have no keys without a value."""
    if isinstance(known, dict):
        return all(map(_whole, known.values()))
    return all(map(_whole, known)) if isinstance(known, list) else known is not None


def make_arrivals(spec: ArrivalsSpec, traffic: str, names: list[str], folder: Path) -> Arrivals:
    """The process that a traffic's `arrivals` say. Raises ValueError for times that make no sense, and TraceError for a
    trace that cannot be used.
    """
    if spec.constant is not None:
        return arrivals.Constant(spec.constant.rps)
    if spec.poisson is not None:
        return arrivals.Poisson(spec.poisson.rps)
    if (burst := spec.burst) is not None:
        return arrivals.Burst(
            burst.base_rps, burst.burst_rps, burst.burst_s, burst.every_s, burst.first_s, burst.spacing
        )
    if (step := spec.step) is not None:
        return arrivals.Step(tuple((each.start_s, each.rps) for each in step.steps), step.spacing)
    assert spec.trace is not None
    return arrivals.Trace(read_trace(folder / spec.trace.file, traffic, names))


def _check(document: Document[Scenario], problems: Problems) -> None:
    def add(path: tuple[str | int, ...], message: str, remedy: str, allowed: tuple[str, ...] = ()) -> None:
        problems.add(document.file, document.where(*path), path, message, remedy, allowed)

    traffic = _traffic(document)
    names = [each.get("name") for each in traffic]
    for name, count in Counter(name for name in names if name is not None).items():
        if count > 1:
            last = max(index for index, each in enumerate(names) if each == name)
            add(("traffic", last, "name"), f"`{name}` names {count} kinds of traffic", "give each a name of its own")
    for index, each in enumerate(traffic):
        if each.get("name") == "all":
            add(("traffic", index, "name"), "`all` is the sum of all traffic", "take another name")
        elif (each.get("name") or "").startswith(REPLICA):
            add(("traffic", index, "name"), f"`{REPLICA}…` names figures of replicas", "take another name")
        protocol, model = each.get("protocol"), each.get("model")
        for key in _idle_keys(protocol, model) if protocol and model else ():
            if document.given("traffic", index, key):
                add(("traffic", index, key), f"means nothing with {protocol} and {model}", "remove it")
    for part in ("target", "baseline"):
        for model, known in (document.get(part, "models") or {}).items():
            if model not in MODELS and known is not None:
                add((part, "models", model), "there is no such model", "", tuple(MODELS))
    check_faults(document, add)
    check_baseline(document, names, add)
    for index, check in enumerate(document.get("checks") or ()):
        if check is not None:
            check_check(document, index, names, add)


def _idle_keys(protocol: str, model: str) -> Iterator[str]:
    if protocol == "grpc" or model == "streamer":
        yield "body"
    if protocol == "http" or model == "streamer":
        yield "connections"
    if model == "streamer":
        yield from ("check_share", "fan_out")
    else:
        yield from ("responses", "response_gap_ms")
    if model != "accel":
        yield "work"
