"""Whatever is done to a good policy, the loader answers with a set or a `PolicyError` that points at what was done."""

from __future__ import annotations

import copy
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.policy.decode import decode
from gateway.policy.files import POLICY_BYTES_MAX
from gateway.policy.later import FileKind
from gateway.policy.load import load_policies
from gateway.policy.problems import PolicyError, PolicyProblem, Problems
from gateway.policy.schema import FleetPolicy, ModelPolicy
from gateway.policy.yaml_tree import parse
from tests.unit.policy_tree import TreePath, dump, problems_of, write


def _full(value: Any) -> Any:
    """Plain data with every default written out, less the keys that have none."""
    if isinstance(value, dict):
        return {key: _full(inner) for key, inner in value.items() if inner is not None}
    return [_full(inner) for inner in value] if isinstance(value, list | tuple) else value


REPLICA = {"grpc": "10.0.0.7:8001", "http": "10.0.0.7:8000", "metrics": "10.0.0.7:8002"}
POOLS = {"pools": {"cpu": {"replicas": {"static": [REPLICA]}, "memory_bytes": 2_000_000, "in_flight_max": 64}}}
FLEET_DATA: dict[str, Any] = _full(msgspec.to_builtins(msgspec.convert(POOLS, FleetPolicy)))
MODEL_DATA: dict[str, Any] = _full(
    msgspec.to_builtins(
        msgspec.convert(
            {
                "model": "fraud",
                "pool": "cpu",
                "objective": {"p99_ms": 50},
                "ladder": "none",
                "impact": "Payments wait for a manual review",
                "deadline": {"default_ms": 500},
                "versions": ["1", "2"],
                "split": {"1": 5, "2": 95},
                "limits": {"batch_max": 8, "input_length_max": 512},
                "work": {"by": "elements", "input": "ids"},
                "memory": {"fixed_bytes": 1000, "bytes_per_unit": 10},
                "admission": {"slots_per_replica": 8, "queue_max": 32},
            },
            ModelPolicy,
        )
    )
)


def _paths(data: Any, path: TreePath = ()) -> list[TreePath]:
    steps: list[tuple[str | int, Any]] = []
    if isinstance(data, dict):
        steps = list(data.items())
    elif isinstance(data, list):
        steps = list(enumerate(data))
    return [found for step, inner in steps for found in ((*path, step), *_paths(inner, (*path, step)))]


FILES: dict[str, tuple[FileKind, Any, dict[str, Any]]] = {
    "fleet.yaml": ("fleet", FleetPolicy, FLEET_DATA),
    "models/fraud.yaml": ("model", ModelPolicy, MODEL_DATA),
}
PLACES = [(file, path) for file, (_, _, data) in FILES.items() for path in _paths(data)]
WRONG: list[Any] = [
    None,
    True,
    -1,
    1.5,
    10.0,
    "5s",
    "",
    "zz",
    [],
    ["a"],
    {},
    {"a": 1},
    [[[]]],
    10**30,
    1e300,
    "x" * 600,
]


def _inside(data: Any, path: TreePath) -> Any:
    for step in path:
        data = data[step]
    return data


def _problems(file: str, data: Any) -> tuple[tuple[PolicyProblem, ...], dict[TreePath, int]]:
    """The problems that a changed file has on its own account, and the lines of its keys."""
    text, lines = dump(data)
    with tempfile.TemporaryDirectory() as folder:
        good_fleet, good_model = dump(FLEET_DATA)[0], dump(MODEL_DATA)[0]
        if file == "fleet.yaml":
            write(Path(folder), fleet=text, model=good_model)
        else:
            write(Path(folder), fleet=good_fleet, model=text)
        found = problems_of(Path(folder))
        return tuple(problem for problem in found if problem.file == f"{folder}/{file}"), lines


def _beginning(path: TreePath, lines: dict[TreePath, int]) -> set[int]:
    """Lines where the mapping at a path may be said to be: its key's, and its own first one."""
    below = [line for other, line in lines.items() if other[: len(path)] == path and len(other) > len(path)]
    return {lines.get(path, 1), min(below, default=lines.get(path, 1))}


def test_the_data_that_is_changed_is_good() -> None:
    for file, (_, _, data) in FILES.items():
        assert _problems(file, data)[0] == ()
    assert len(PLACES) > 60


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(PLACES))
def test_a_renamed_key_is_reported_where_it_stands(place: tuple[str, TreePath]) -> None:
    file, path = place
    data = copy.deepcopy(FILES[file][2])
    parent, name = _inside(data, path[:-1]), path[-1]
    if not isinstance(name, str):
        return
    new = f"{name}_Zq_"
    entries = [(new if key == name else key, value) for key, value in parent.items()]
    parent.clear()
    parent.update(entries)
    problems, lines = _problems(file, data)
    here = lines[(*path[:-1], new)]
    assert here in {problem.line for problem in problems}
    assert {problem.line for problem in problems} <= {here} | _beginning(path[:-1], lines)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(PLACES), st.sampled_from(WRONG))
def test_a_changed_value_is_reported_where_it_stands_or_is_good(place: tuple[str, TreePath], wrong: Any) -> None:
    file, path = place
    data = copy.deepcopy(FILES[file][2])
    _inside(data, path[:-1])[path[-1]] = wrong
    problems, lines = _problems(file, data)
    inside = {line for other, line in lines.items() if other[: len(path)] == path}
    # Limits of two keys that contradict each other are reported at the one that was not changed, too.
    related = set() if not isinstance(wrong, float | int) or isinstance(wrong, bool) else set(lines.values())
    assert {problem.line for problem in problems} <= inside | related
    if wrong is None:
        assert [problem.line for problem in problems] == [lines[path]]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(PLACES))
def test_a_deleted_key_is_reported_in_its_mapping_or_has_a_default(place: tuple[str, TreePath]) -> None:
    file, path = place
    data = copy.deepcopy(FILES[file][2])
    del _inside(data, path[:-1])[path[-1]]
    problems, lines = _problems(file, data)
    siblings = {line for other, line in lines.items() if other[: len(path) - 1] == path[:-1]}
    if path[0] == "versions":  # a weight may lose its version
        siblings |= {line for other, line in lines.items() if other[0] == "split"}
    assert {problem.line for problem in problems} <= siblings | _beginning(path[:-1], lines)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(PLACES), st.sampled_from(WRONG))
def test_the_walker_and_msgspec_agree_on_what_is_good(place: tuple[str, TreePath], value: Any) -> None:
    file, path = place
    kind, type_, original = FILES[file]
    data = copy.deepcopy(original)
    _inside(data, path[:-1])[path[-1]] = value
    problems = Problems()
    document = decode(parse(dump(data)[0].encode(), file, POLICY_BYTES_MAX, problems), type_, kind, file, problems)
    if document.value is None:
        with pytest.raises(PolicyError) as caught:
            problems.raise_if_any()
        assert "please report" not in str(caught.value)
    else:
        assert document.value == msgspec.convert(data, type_)


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.text(max_size=200),
        st.text(alphabet="ab:-?[]{}&*!|>'\"%@`#,\n\t 01.<~\\x", max_size=120),
        st.binary(max_size=100),
    )
)
def test_any_content_of_a_file_is_a_set_or_a_policy_error(content: str | bytes) -> None:
    data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
    problems = Problems()
    root = parse(data, "f.yaml", POLICY_BYTES_MAX, problems)
    decode(root, ModelPolicy, "model", "f.yaml", problems)
    with pytest.raises(PolicyError) as caught:
        problems.raise_if_any()
    lines = data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for problem in caught.value.problems:
        assert 1 <= problem.line <= len(lines) + 1
        assert problem.column >= 1


BOMB = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{name}: &{name} [{','.join(['*' + before] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (BOMB, "is an alias"),
        ("x: [" + "[" * 100_000, "nested deeper than"),
        ("x: " + "{a: " * 50_000, "nested deeper than"),
        ("- " * 50_000, "nested deeper than"),
        ("? " * 50_000, "nested deeper than"),
        ("versions: [" + "1," * 100_000, "too many values"),
        ("model: fraud\n" * 800_000, "larger than 262144 bytes"),
        (b"\x00" * 10_000_000, "larger than 262144 bytes"),
        (b"\xff" * 1000, "not UTF-8"),
        ("model: fraud\n" * 10_000, "the key stands twice"),
        ("".join(f"k{i}: 1\n" for i in range(10_000)), "more problems"),
    ],
    ids=[
        "aliases",
        "brackets",
        "braces",
        "dashes",
        "keys in keys",
        "commas",
        "10 MB",
        "10 MB of zeros",
        "no text",
        "doubles",
        "unknown",
    ],
)
def test_a_hostile_file_is_refused_and_soon(content: str | bytes, said: str, tmp_path: Path) -> None:
    write(tmp_path, model=content)
    began = time.process_time()
    with pytest.raises(PolicyError) as caught:
        load_policies(str(tmp_path))
    assert time.process_time() - began < 20
    text = str(caught.value)
    assert said in text
    assert len(text) < 200_000
