"""What must hold between the keys of `quotas`, and with the models that there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gateway.policy.decode import Document
from gateway.policy.problems import Path, Problems, printable
from gateway.policy.schema import FleetPolicy, ModelPolicy

Fleet = Document[FleetPolicy]


def check_quotas(fleet: Fleet, models: Sequence[Document[ModelPolicy]], problems: Problems) -> None:
    """Each limit means something, and stands on a model that a policy names."""
    known = [model.get("model") for model in models]
    for path in _tenants(fleet):
        _burst(fleet, path, problems)
        for name in _names(fleet.get(*path, "models")):
            here: Path = (*path, "models", name)
            _burst(fleet, here, problems)
            if None not in known and name not in known:
                where = fleet.where(*here, of_key=True)
                message = f"no policy names a model `{printable(name)}`"
                remedy = "name a model of models/*.yaml"
                problems.add(fleet.file, where, here, message, remedy, sorted(known)[:20])
            if not any(fleet.given(*here, key) for key in ("rate_per_s", "burst", "concurrency_max")):
                remedy = "give a limit, or remove the model here"
                problems.add(fleet.file, fleet.where(*here), here, "nothing is limited", remedy)


def _tenants(fleet: Fleet) -> Iterator[Path]:
    if isinstance(fleet.get("quotas", "default"), dict):
        yield ("quotas", "default")
    for name in _names(fleet.get("quotas", "tenants")):
        yield ("quotas", "tenants", name)


def _names(table: Any) -> tuple[str, ...]:
    return tuple(table) if isinstance(table, dict) else ()


def _burst(fleet: Fleet, path: Path, problems: Problems) -> None:
    if fleet.get(*path, "burst") is not None and not fleet.given(*path, "rate_per_s"):
        here: Path = (*path, "burst")
        message = "a burst without `rate_per_s` limits nothing"
        problems.add(fleet.file, fleet.where(*here), here, message, "give `rate_per_s` too, or remove it")
