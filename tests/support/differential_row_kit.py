"""What the judges of rows share: their register, and what a comparison says in short."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.support.differential_compare import Comparison
from tests.support.differential_http import HttpSent

Aspects = frozenset[str]
Json = dict[str, Any]
NOTHING: Aspects = frozenset()
ANSWER: Aspects = frozenset(
    {
        "status",
        "type",
        "framing",
        "headers",
        "document",
        "head",
        "tensors",
        "form",
        "error",
        "code",
        "messages",
        "coding",
        "text",
    }
)
"""All that an answer says: for rows where one side refuses what the other serves."""
CONNECTION: Aspects = ANSWER | {"end", "interim"}

Row = Callable[[Comparison], Aspects]
ROWS: dict[str, Row] = {}


def row(name: str) -> Callable[[Row], Row]:
    def add(function: Row) -> Row:
        ROWS[name] = function
        return function

    return add


def is_http(c: Comparison) -> bool:
    return isinstance(c.sent, HttpSent)


def refused(c: Comparison, status: int, code: str = "") -> bool:
    """The gateway refused it with this status, or code."""
    if is_http(c):
        return bool(c.through.status == status and c.through.error)
    return bool(c.through.code == code)


def path_of(c: Comparison) -> str:
    return str(c.sent.target).partition("?")[0] if is_http(c) else ""


def entries(document: Any, member: str) -> Iterator[dict[str, Any]]:
    found = document.get(member) if isinstance(document, dict) else None
    for entry in found if isinstance(found, list) else ():
        if isinstance(entry, dict):
            yield entry


def parameters_of(entry: Any) -> dict[str, Any]:
    found = entry.get("parameters") if isinstance(entry, dict) else None
    return found if isinstance(found, dict) else {}
