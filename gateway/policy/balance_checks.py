"""What must hold between the keys of `ejection` and of `affinity`."""

from __future__ import annotations

import re
from typing import Any

from gateway.core.header_names import TRACE_CONTEXT, never_forwarded
from gateway.policy.decode import Document
from gateway.policy.problems import Path, Problems, printable
from gateway.policy.schema import FleetPolicy, ModelPolicy

_HEADER = re.compile(r"[a-z0-9!#$%&'+.^_`|~-]+")
_NAME: Path = ("affinity", "name")


def check_balance(model: Document[ModelPolicy], fleet: Document[FleetPolicy], problems: Problems) -> None:
    """The pauses of `ejection`, and whether the key of `affinity` can ever be seen."""
    first, longest = model.get("ejection", "pause_ms"), model.get("ejection", "pause_max_ms")
    if first is not None and longest is not None and first > longest:
        path: Path = ("ejection", "pause_ms" if model.given("ejection", "pause_ms") else "pause_max_ms")
        message = f"the first pause (`pause_ms`, {first}) is longer than `pause_max_ms` ({longest})"
        problems.add(model.file, model.where(*path), path, message, "lower the one, or raise the other")
    by, name = model.get("affinity", "by"), model.get(*_NAME)
    if by is None or name is None:
        return

    def add(message: str, remedy: str) -> None:
        path = _NAME if model.given(*_NAME) else ("affinity",)
        problems.add(model.file, model.where(*path), path, message, remedy)

    shown = f"`{printable(name)}`"
    if by == "sequence":
        if name:
            add(f"{shown} means nothing with `by: sequence`", "remove it, or write `by: parameter`")
    elif not name:
        add(f"`by: {by}` does not say which {by}", f"write its name as `name: …` beside `by: {by}`")
    elif by == "header":
        _header(fleet, name, shown, add)


def _header(fleet: Document[FleetPolicy], name: str, shown: str, add: Any) -> None:
    if name != name.lower():
        add(f"{shown} has capitals", f"write `{printable(name.lower())}`")
    elif not _HEADER.fullmatch(name):
        add(f"{shown} is not a header's name", "write one name, without `*`")
    elif never_forwarded(name) and name not in TRACE_CONTEXT:
        add(f"{shown} belongs to one connection or is a credential", "name a header that callers send for this")
    elif name == fleet.get("identity", "header", "name"):
        add(f"{shown} names the tenant, and goes no further", "name another header")
    else:
        patterns = fleet.get("gateway", "forward_headers")
        if (
            patterns is not None
            and not any(_matches(pattern, name) for pattern in patterns)
            and name not in TRACE_CONTEXT
        ):
            add(f"{shown} is not among `gateway.forward_headers` of fleet.yaml, and so is not read", "add it there")


def _matches(pattern: str | None, name: str) -> bool:
    """A pattern that was refused is no reason for a second problem."""
    return pattern is None or pattern == name or (pattern.endswith("*") and name.startswith(pattern[:-1]))
