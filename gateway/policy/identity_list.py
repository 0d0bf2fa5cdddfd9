"""Files that list identities: what callers show, and the tenants that stand for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.core.call import ANONYMOUS, Identity
from gateway.core.criticality import CLASS_OF
from gateway.policy.decode import decode
from gateway.policy.problems import Problems
from gateway.policy.schema import Strict
from gateway.policy.yaml_tree import Mapping, Sequence, parse


@dataclass(frozen=True, slots=True)
class ListKind:
    """One kind of such a file. Its entries have `field`, and `tenant`, `models`, `may_explain` and `highest_class`."""

    entry: type[Strict]
    field: str
    """The entry's key for what callers show."""
    noun: str
    first: str
    """How a list of them begins."""
    bytes_max: int
    empty_remedy: str
    anonymous_are: str
    """Who the reserved tenant stands for."""


def parse_identities(
    data: bytes, file_name: str, kind: ListKind, highest_class: int, canonical: Callable[[str], str] = str
) -> dict[str, Identity]:
    """A YAML list of entries: what is shown, in its `canonical` form, to whose it is. `highest_class` is of those
    that name none. Raises `PolicyError` with every problem found.
    """
    problems = Problems()
    found: dict[str, Identity] = {}
    root = parse(data, file_name, kind.bytes_max, problems)
    if isinstance(root, Mapping):
        message = f"a mapping stands where a list of {kind.noun}s is wanted"
        problems.add(file_name, root.where, (), message, f"begin with `- {kind.first}:`")
    elif root is not None:
        document = decode(root, tuple[kind.entry, ...], "keys", file_name, problems)  # type: ignore[name-defined]
        if isinstance(root, Sequence) and not root.items:
            problems.add(file_name, root.where, (), f"there is no {kind.noun} in it", kind.empty_remedy)
        lines: dict[str, int] = {}
        for i in range(len(root.items) if isinstance(root, Sequence) else 0):
            shown, tenant = document.get(i, kind.field), document.get(i, "tenant")
            models, explain = document.get(i, "models"), document.get(i, "may_explain")
            highest = CLASS_OF.get(document.get(i, "highest_class") or "", highest_class)
            if shown is not None:
                shown = canonical(shown)
            where = document.where(i, kind.field)
            if shown is not None and shown in lines:
                message = f"this {kind.noun} stands already in line {lines[shown]}"
                problems.add(file_name, where, (i, kind.field), message, f"each {kind.noun} stands once")
            if tenant is not None and tenant.lower() == ANONYMOUS.tenant:
                remedy = f"choose another name: it means {kind.anonymous_are}"
                problems.add(file_name, document.where(i, "tenant"), (i, "tenant"), f"`{tenant}` is reserved", remedy)
            if models is not None and not models:
                remedy = "name models, or remove the key `models` to allow all"
                problems.add(file_name, document.where(i, "models"), (i, "models"), "the list is empty", remedy)
            if shown is not None and tenant is not None:
                lines.setdefault(shown, where.line)
                allowed = None if models is None else frozenset(models)
                found[shown] = Identity(tenant, allowed, bool(explain), highest)
    problems.raise_if_any()
    return found
