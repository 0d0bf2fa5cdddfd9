"""The manual of the policies says what the code does, and its examples work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec import inspect

from gateway.policy import later
from gateway.policy.document import BAD_EXAMPLE, render
from gateway.policy.later import later_key, later_value
from gateway.policy.load import load_policies
from gateway.policy.schema import FleetPolicy, ModelPolicy
from gateway.policy.words import bare, wanted
from tests.unit.policy_tree import problems_of, write

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "policies.md").read_text("utf-8")


def _fields(info: Any) -> list[inspect.Field]:
    info = bare(info)
    if isinstance(info, inspect.DictType):
        return _fields(info.value_type)
    if isinstance(info, inspect.VarTupleType):
        return _fields(info.item_type)
    if not isinstance(info, inspect.StructType):
        return []
    return [found for field in info.fields for found in (field, *_fields(field.type))]


def test_the_page_is_what_the_schema_renders() -> None:
    assert render(ROOT / "policies") == PAGE, "run: python -m gateway.policy.document > docs/policies.md"


def test_the_examples_of_the_page_load(tmp_path: Path) -> None:
    fleet, model = re.findall(r"^```yaml\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)[:2]
    request = (ROOT / "policies" / "warmup" / "fraud.json").read_text("utf-8")
    policies = load_policies(str(write(tmp_path, fleet=fleet, model=model, warmup__fraud_dot_json=request)))
    assert set(policies.models) == {"fraud"}


def test_the_bad_example_is_answered_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "policies", model=BAD_EXAMPLE)
    monkeypatch.chdir(tmp_path)
    shown = "\n".join(map(str, problems_of(Path("policies"))))
    assert shown
    assert f"```\n{shown}\n```" in PAGE


@pytest.mark.parametrize("struct", [FleetPolicy, ModelPolicy])
def test_every_key_stands_in_the_page_with_its_meaning(struct: Any) -> None:
    fields = _fields(inspect.type_info(struct))
    assert len(fields) > 15
    for field in fields:
        assert wanted(field.type)
        assert isinstance(field.type, inspect.Metadata), f"{field.name} has no description"
        description = (field.type.extra_json_schema or {}).get("description", "")
        assert description, f"{field.name} has no description"
        assert f"| `{field.encode_name}` |" in PAGE
        assert description.replace("|", "\\|") in PAGE


def test_no_key_is_both_there_and_not_available_yet() -> None:
    for struct, keys in ((ModelPolicy, later.MODEL_KEYS), (FleetPolicy, later.FLEET_KEYS)):
        known = {field.encode_name for field in _fields(inspect.type_info(struct))}
        assert not known & {key.rpartition(".")[2] for key in keys}


@pytest.mark.parametrize("key", sorted(later.MODEL_KEYS))
def test_every_later_key_of_a_model_is_refused_by_name(key: str) -> None:
    assert later_key("model", tuple(key.split("."))) == later.MODEL_KEYS[key]
    assert f"| `{key}` | {later.MODEL_KEYS[key]} |" in PAGE


@pytest.mark.parametrize("key", sorted(later.FLEET_KEYS))
def test_every_later_key_of_the_fleet_is_refused_by_name(key: str) -> None:
    assert later_key("fleet", tuple(key.replace("*", "cpu").split("."))) == later.FLEET_KEYS[key]
    assert f"| `{key}` | {later.FLEET_KEYS[key]} |" in PAGE


@pytest.mark.parametrize(
    "key",
    [
        "freshness_s", "features", "cache", "breaker",
        "alias", "aliases", "cohorts", "override", "x-sluice-version", "manifest", "rollout", "shadow", "canary",
        "objective.cost_per_1k", "quotas", "scale",
    ],
)  # fmt: skip
def test_the_design_s_keys_that_need_later_layers_are_known(key: str) -> None:
    assert later_key("model", tuple(key.split(".")))


def test_the_design_s_values_that_need_later_layers_are_known() -> None:
    assert later_value("model", ("regime",), "async")
    assert later_value("model", ("regime",), "batch")
    assert later_value("model", ("ladder",), "anything")
    assert not later_value("model", ("regime",), "whatever")
