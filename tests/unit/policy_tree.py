"""Policy directories for tests: written from text, or dumped from plain data with the line of every key known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gateway.policy.load import load_policies
from gateway.policy.problems import PolicyError, PolicyProblem

FLEET = """pools:
  cpu:
    replicas:
      static:
        - {grpc: "127.0.0.1:18001", http: "127.0.0.1:18000"}
"""
"""Five lines: what a test appends begins in line 6."""

MODEL = """model: fraud
pool: cpu
objective: {p99_ms: 50}
ladder: none
impact: Payments wait for a manual review
"""
"""Five lines too."""

TreePath = tuple[str | int, ...]


def write(folder: Path, *, fleet: str | bytes = FLEET, model: str | bytes = MODEL, **others: str | bytes) -> Path:
    """A policy directory with fleet.yaml and models/fraud.yaml. In the keywords of other files `__` means `/`, and
    `_dot_` means `.`.
    """
    names = {name.replace("__", "/").replace("_dot_", "."): text for name, text in others.items()}
    for name, content in {"fleet.yaml": fleet, "models/fraud.yaml": model, **names}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    return folder


def problems_of(folder: Path) -> tuple[PolicyProblem, ...]:
    """The problems of a directory, none if it loads."""
    try:
        load_policies(str(folder))
    except PolicyError as error:
        return error.problems
    return ()


def dump(data: Any) -> tuple[str, dict[TreePath, int]]:
    """Block YAML with every key in a line of its own, and the line of each path."""
    lines: list[str] = []
    where: dict[TreePath, int] = {}

    def emit(value: Any, path: TreePath, indent: str) -> None:
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        for step, inner in entries:
            head = (
                f"{indent}{step if str(step).isidentifier() else json.dumps(step)}:"
                if isinstance(step, str)
                else f"{indent}-"
            )
            where[(*path, step)] = len(lines) + 1
            if isinstance(inner, dict | list) and inner:
                lines.append(head)
                emit(inner, (*path, step), indent + "  ")
            else:
                lines.append(f"{head} {json.dumps(inner)}")

    emit(data, (), "")
    return "\n".join(lines) + "\n", where
