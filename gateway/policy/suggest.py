"""What somebody who wrote an unknown key probably meant."""

from __future__ import annotations

import difflib
from functools import cache
from typing import Any, NamedTuple

from msgspec import inspect

from gateway.policy.later import FileKind, later_key
from gateway.policy.problems import Path
from gateway.policy.scalars import UNIT_NAMES, convert, dimension, unit_of
from gateway.policy.schema import FleetPolicy, ModelPolicy
from gateway.policy.words import bare
from gateway.policy.yaml_tree import Node, Scalar


class Hint(NamedTuple):
    message: str
    remedy: str
    allowed: tuple[str, ...]
    meant: str = ""
    """The known key of the same mapping that was probably meant."""


def unknown_key(kind: FileKind, path: Path, known: tuple[str, ...], value: Node) -> Hint:
    """How to put right an unknown key. `known` are the keys of the mapping it stands in."""
    name = str(path[-1])
    reason = later_key(kind, path)
    if reason:
        return Hint("not available yet", reason, ())
    meant = _same_stem(name, known)
    if meant:
        return Hint("unknown key", _unit_remedy(name, meant, value), known, meant)
    if len(path) == 1 and kind != "keys" and name in _places("fleet" if kind == "model" else "model"):
        return Hint("unknown key", _elsewhere(kind, path, name), known)  # more certain than one that looks like it
    spelled = name.lower().replace("-", "_").replace(" ", "_")
    near = difflib.get_close_matches(spelled[:80], known, n=1, cutoff=0.6)
    if near:
        return Hint("unknown key", f"did you mean `{near[0]}`?", known, near[0])
    elsewhere = _elsewhere(kind, path, name)
    return Hint("unknown key", elsewhere, known)


def _words(key: str) -> tuple[list[str], list[str]]:
    """A key's words, and the units among them, both in lower case."""
    words = [word for word in key.lower().replace("-", "_").split("_") if word]
    units = [word for word in words[1:] if dimension(word)]
    return sorted(word for i, word in enumerate(words) if i == 0 or not dimension(word)), units


def _same_stem(name: str, known: tuple[str, ...]) -> str:
    """The known key that differs from `name` only in its unit, or in where the unit stands."""
    stem, _ = _words(name[:80])
    return next((key for key in known if unit_of(key) and _words(key)[0] == stem), "")


def _unit_remedy(name: str, meant: str, value: Node) -> str:
    unit = unit_of(meant)
    remedy = f"did you mean `{meant}` ({UNIT_NAMES[unit]})?"
    _, units = _words(name[:80])
    if units and isinstance(value, Scalar) and value.kind in ("int", "float"):
        number = convert(value.text, units[0], unit)
        if number is not None:
            return f"{remedy} Write `{meant}: {number}`"
    return remedy


@cache
def _places(kind: FileKind) -> dict[str, Path]:
    """Where each key of a kind of file belongs; a name that has several places is left out."""
    found: dict[str, Path] = {}
    twice: set[str] = set()

    def walk(info: Any, path: Path) -> None:
        info = bare(info)
        if isinstance(info, inspect.DictType):
            walk(info.value_type, (*path, "<name>"))
        elif isinstance(info, inspect.StructType):
            for field in info.fields:
                here = (*path, field.encode_name)
                if field.encode_name in found:
                    twice.add(field.encode_name)
                found[field.encode_name] = here
                walk(field.type, here)

    walk(inspect.type_info(ModelPolicy if kind == "model" else FleetPolicy), ())
    return {name: path for name, path in found.items() if name not in twice}


def _elsewhere(kind: FileKind, path: Path, name: str) -> str:
    if kind not in ("fleet", "model"):
        return ""
    place = _places(kind).get(name)
    if place is not None and place[:-1] != path[:-1]:
        inside = ".".join(str(step) for step in place[:-1])
        return f"it belongs under `{inside}`" if inside else "it belongs at the top of the file"
    other: FileKind = "fleet" if kind == "model" else "model"
    place = _places(other).get(name)
    if place is None:
        return ""
    file = "fleet.yaml" if other == "fleet" else "the model's file under models/"
    return f"it belongs in {file}, as `{'.'.join(str(step) for step in place)}`"
