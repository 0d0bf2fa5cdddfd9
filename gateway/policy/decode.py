"""A tree of nodes to a struct of the schema, strictly, finding every problem and not only the first.

msgspec would stop at the first mistake and knows no positions, so the tree is walked here against msgspec's own
description of the types; when nothing was found, msgspec builds the struct and has the last word.
"""

from __future__ import annotations

import math
import re
from functools import cache
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import inspect

from gateway.policy import addresses
from gateway.policy.later import FileKind, later_value
from gateway.policy.problems import START, Path, Position, Problems, printable
from gateway.policy.scalars import UNIT_NAMES, convert, plain_number, split_unit, unit_of, whole
from gateway.policy.schema import HOST_PORT, HOST_PORT_OR_EMPTY, VERSION
from gateway.policy.suggest import unknown_key
from gateway.policy.words import PATTERNS, bare, literals, span, wanted
from gateway.policy.yaml_tree import Broken, Mapping, Node, Scalar, Sequence, find, position

T = TypeVar("T")

_YES = {
    "yes": "true",
    "on": "true",
    "y": "true",
    "no": "false",
    "off": "false",
    "n": "false",
    "1": "true",
    "0": "false",
}
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]")
_GROUPED = re.compile(r"[-+]?[0-9]{1,3}([_,' ][0-9]{3})+")
_NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class Bad:
    """Stands where a value was refused."""

    def __repr__(self) -> str:
        return "BAD"


BAD = Bad()


class Document(Generic[T]):
    """One decoded file. `value` is None if the file has problems of its own; `get` still gives what was good, so that
    checks across fields need not wait for a second run.
    """

    def __init__(self, file: str, root: Node | None, facts: Any, value: T | None) -> None:
        self.file = file
        self.root = root
        self.value = value
        self._facts = facts

    def get(self, *path: str | int) -> Any:
        """The value at a path, the schema's default if it is not given, None if it was refused or has no default."""
        value = self._facts
        for step in path:
            if isinstance(value, dict):
                value = value.get(step)
            elif isinstance(value, list | tuple) and isinstance(step, int) and step < len(value):
                value = value[step]
            else:
                return None
        return value

    def given(self, *path: str | int) -> bool:
        """The file itself says something at this path."""
        return find(self.root, path) is not None

    def where(self, *path: str | int, of_key: bool = False) -> Position:
        return position(self.root, path, of_key=of_key)


@cache
def type_info(type_: Any) -> inspect.Type:
    return inspect.type_info(type_)


def decode(root: Node | None, type_: Any, kind: FileKind, file: str, problems: Problems) -> Document[Any]:
    """Decode a file's tree as `type_` (a struct, or a tuple of structs)."""
    if root is None:
        return Document(file, None, None, None)
    info = type_info(type_)
    walker = _Walker(kind, file, problems)
    raw = walker.value(root, info, (), "")
    facts = _complete(raw, info)
    if walker.refused:
        return Document(file, root, facts, None)
    try:
        return Document(file, root, facts, msgspec.convert(raw, type_, strict=True))
    except msgspec.ValidationError as error:
        problems.add(file, START, (), f"cannot be used: {printable(str(error), 300)}", "please report this message")
        return Document(file, root, facts, None)


def _complete(raw: Any, info: inspect.Type) -> Any:
    """Plain data with the schema's defaults filled in and None for what was refused."""
    info = bare(info)
    if raw is BAD:
        return None
    if isinstance(info, inspect.StructType):
        facts = {}
        for field in info.fields:
            if field.encode_name in raw:
                facts[field.encode_name] = _complete(raw[field.encode_name], field.type)
            elif field.required:
                facts[field.encode_name] = None
            else:
                facts[field.encode_name] = msgspec.to_builtins(field.default)
        return facts
    if isinstance(info, inspect.VarTupleType):
        return [_complete(item, info.item_type) for item in raw]
    if isinstance(info, inspect.DictType):
        return {key: _complete(value, info.value_type) for key, value in raw.items()}
    return raw


class _Walker:
    def __init__(self, kind: FileKind, file: str, problems: Problems) -> None:
        self._kind: FileKind = kind
        self._file = file
        self._problems = problems
        self.refused = False
        """Something in the tree was refused, here or by the reader before."""

    def _add(self, node: Node, path: Path, message: str, remedy: str = "", allowed: tuple[str, ...] = ()) -> Bad:
        self.refused = True
        self._problems.add(self._file, node.where, path, message, remedy, allowed)
        return BAD

    def value(self, node: Node, info: inspect.Type, path: Path, key: str) -> Any:
        """The plain value, or BAD. `key` is the nearest name on the path: it tells the unit."""
        info = bare(info)
        if isinstance(node, Broken):
            self.refused = True
            return BAD
        later = later_value(self._kind, path, _shown(node)) if _shown(node) not in literals(info) else ""
        if later and not (isinstance(node, Scalar) and node.kind == "null"):
            shown = f"`{printable(node.text)}`" if isinstance(node, Scalar) else _shown(node)
            return self._add(node, path, f"{shown} is not available yet", later, literals(info))
        if isinstance(info, inspect.StructType):
            return self._struct(node, info, path)
        if isinstance(info, inspect.VarTupleType):
            return self._list(node, info, path, key)
        if isinstance(info, inspect.DictType):
            return self._dict(node, info, path, key)
        if not isinstance(node, Scalar) or node.kind == "null":
            return self._wrong_type(node, info, path, key)
        if isinstance(info, inspect.IntType | inspect.FloatType):
            return self._number(node, info, path, key)
        if isinstance(info, inspect.BoolType):
            return self._bool(node, info, path, key)
        return self._text(node, info, path, key)

    def _wrong_type(self, node: Node, info: inspect.Type, path: Path, key: str) -> Bad:
        noun = wanted(info, unit_of(key))
        if isinstance(node, Scalar) and node.kind == "null":
            return self._add(node, path, "there is no value (null)", f"write {noun}", literals(info))
        if isinstance(node, Scalar):
            kinds = {"bool": "a truth value", "int": "a number", "float": "a number", "text": "text", "null": "null"}
            message = f"`{printable(node.text)}` is {kinds[node.kind]}"
        else:
            message = "a list stands here" if isinstance(node, Sequence) else "a mapping stands here"
        return self._add(node, path, message, f"write {noun}", literals(info))

    def _struct(self, node: Node, info: inspect.StructType, path: Path) -> Any:
        fields = {field.encode_name: field for field in info.fields}
        if not isinstance(node, Mapping):
            if isinstance(node, Scalar) and node.kind == "null":
                remedy = f"fill in some of its keys ({', '.join(fields)}), or remove it"
                return self._add(node, path, "there is no value (null)", remedy)
            noun = "a list" if isinstance(node, Sequence) else f"`{printable(_shown(node))}`"
            return self._add(node, path, f"{noun} stands where a mapping is wanted", "", tuple(fields))
        raw: dict[str, Any] = {}
        meant: set[str] = set()
        for name, (label, value) in node.entries.items():
            if name in fields:
                raw[name] = self.value(value, fields[name].type, (*path, name), name)
                continue
            hint = unknown_key(self._kind, (*path, name), tuple(fields), value)
            meant.add(hint.meant)
            self._add(label, (*path, name), hint.message, hint.remedy, hint.allowed)
        for name, field in fields.items():
            if field.required and name not in raw and name not in meant:
                raw[name] = BAD
                what = wanted(field.type, unit_of(name))
                description = description_of(field.type)
                self._add(node, path, f"the key `{name}` is missing", f"{description} Write {what}".strip())
        return raw

    def _list(self, node: Node, info: inspect.VarTupleType, path: Path, key: str) -> Any:
        if not isinstance(node, Sequence):
            if isinstance(node, Scalar) and node.kind != "null":
                return self._add(node, path, "a list is wanted", f"write `[{_quoted(node, info.item_type)}]`")
            return self._wrong_type(node, info, path, key)
        if not node.items and info.min_length:
            return self._add(node, path, "the list is empty", f"give at least {info.min_length}")
        return [self.value(item, info.item_type, (*path, i), key) for i, item in enumerate(node.items)]

    def _dict(self, node: Node, info: inspect.DictType, path: Path, key: str) -> Any:
        if not isinstance(node, Mapping):
            return self._wrong_type(node, info, path, key)
        if not node.entries and info.min_length:
            return self._add(node, path, "the mapping is empty", f"give at least {info.min_length} entry")
        raw: dict[Any, Any] = {}
        for name, (label, value) in node.entries.items():
            good = self.value(label, info.key_type, (*path, name), key) is not BAD
            decoded = self.value(value, info.value_type, (*path, name), key)
            raw[name] = decoded if good else BAD
        return raw

    def _number(self, node: Scalar, info: inspect.IntType | inspect.FloatType, path: Path, key: str) -> Any:
        value = node.value
        shown = printable(node.text)
        integral = isinstance(info, inspect.IntType)
        if isinstance(value, str):
            return self._number_as_text(node, info, path, key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return self._wrong_type(node, info, path, key)
        if _LEADING_ZERO.match(node.text) and "." not in node.text:
            remedy = f"write {plain_number(value)}: other readers of YAML take a leading zero as octal"
            return self._add(node, path, f"`{shown}` begins with a zero", remedy)
        if isinstance(value, float) and not math.isfinite(value):
            return self._add(node, path, f"`{shown}` is not a finite number", f"write {wanted(info, unit_of(key))}")
        if integral and isinstance(value, float):
            exact = whole(node.text)
            if exact is None:
                remedy = f"write {plain_number(value)}" if value == int(value) else "round it"
                return self._add(node, path, f"`{shown}` is not written as a whole number", remedy)
            value = exact
        if _outside(value, info):
            unit = UNIT_NAMES.get(unit_of(key), "")
            return self._add(
                node, path, f"{shown} is out of range", f"write {span(info)}" + (f" {unit}" if unit else "")
            )
        return value if integral else float(value)

    def _number_as_text(self, node: Scalar, info: inspect.Type, path: Path, key: str) -> Bad:
        unit = unit_of(key)
        shown = printable(node.text)
        text = node.text.strip()
        parts = split_unit(text)
        if parts is not None and len(parts[0]) <= 40:
            number = convert(*parts, unit)
            if number is not None:
                remedy = f"the key counts {UNIT_NAMES[unit]}: write {number}"
                return self._add(node, path, f"`{shown}` is text with a unit", remedy)
            if unit:
                remedy = f"the key counts {UNIT_NAMES[unit]}: write a bare number"
                return self._add(node, path, f"`{shown}` is text with another unit", remedy)
            return self._add(node, path, f"`{shown}` is text, not a number", f"write {parts[0]}")
        if _NUMBER.fullmatch(text):
            return self._add(node, path, f"`{shown}` is in quotes, so it is text", f"write {text} without quotes")
        if _GROUPED.fullmatch(text):
            remedy = f"write {re.sub('[^0-9+-]', '', text)}"
            return self._add(node, path, f"`{shown}` is text: numbers have no separators", remedy)
        return self._wrong_type(node, info, path, key)

    def _bool(self, node: Scalar, info: inspect.Type, path: Path, key: str) -> Any:
        if isinstance(node.value, bool):
            return node.value
        word = node.text.lower()
        meant = word if word in ("true", "false") else _YES.get(word)
        if meant is None:
            return self._wrong_type(node, info, path, key)
        what = "text" if node.kind == "text" else "a number"
        return self._add(
            node, path, f"`{printable(node.text)}` is {what} in YAML 1.2", f"write {meant}, without quotes"
        )

    def _text(self, node: Scalar, info: inspect.Type, path: Path, key: str) -> Any:
        value = node.value
        choices = literals(info)
        if not isinstance(value, str):
            if not choices:
                noun = "a number" if node.kind in ("int", "float") else "a truth value"
                remedy = f"write {_quoted(node, info)}"
                return self._add(node, path, f"`{printable(node.text)}` is {noun}, not text", remedy)
            return self._wrong_type(node, info, path, key)
        if choices:
            if value in choices:
                return value
            return self._add(node, path, f"`{printable(value)}` is not known", "", choices)
        control = _CONTROL.search(value)
        if control is not None:
            remedy = "keep it on one line" + ("; after `>` or `|` write `-`" if value.endswith("\n") else "")
            message = f"the text contains a line break or control character (U+{ord(control[0]):04X})"
            return self._add(node, path, message, remedy)
        if isinstance(info, inspect.StrType):
            fault = _text_fault(value, info)
            if fault is not None:
                return self._add(node, path, *fault)
        return value


def _outside(value: float, info: Any) -> bool:
    return bool(
        (info.ge is not None and value < info.ge)
        or (info.gt is not None and value <= info.gt)
        or (info.le is not None and value > info.le)
        or (info.lt is not None and value >= info.lt)
    )


def _text_fault(value: str, info: inspect.StrType) -> tuple[str, str] | None:
    if info.min_length is not None and len(value) < info.min_length:
        message = "the text is empty" if not value else f"the text is too short ({len(value)} characters)"
        return message, f"at least {info.min_length} characters"
    if info.max_length is not None and len(value) > info.max_length:
        return f"the text is too long ({len(value)} characters)", f"at most {info.max_length} characters"
    if info.pattern == HOST_PORT or (info.pattern == HOST_PORT_OR_EMPTY and value):
        fault = addresses.fault(value)
        if fault is not None:
            return f"`{printable(value)}`: {fault[0]}", fault[1]
    if info.pattern is not None and not re.fullmatch(info.pattern, value):
        meaning, remedy = PATTERNS[info.pattern]
        return f"`{printable(value)}` is not {meaning}", remedy
    return None


def _quoted(node: Scalar, item: inspect.Type) -> str:
    """The value as it should be written where text is wanted."""
    item = bare(item)
    text = printable(node.text)
    pattern = item.pattern if isinstance(item, inspect.StrType) else None
    if pattern == VERSION and isinstance(node.value, float) and math.isfinite(node.value):
        text = plain_number(node.value)
    if pattern in (HOST_PORT, HOST_PORT_OR_EMPTY) and isinstance(node.value, int):
        text = f"127.0.0.1:{text}"
    return f'"{text}"' if isinstance(item, inspect.StrType) else text


def _shown(node: Node) -> str:
    if isinstance(node, Scalar):
        return node.text
    return "a list" if isinstance(node, Sequence) else "a mapping"


def description_of(info: inspect.Type) -> str:
    """What the schema says of a key, "" if nothing."""
    if isinstance(info, inspect.Metadata) and info.extra_json_schema:
        return str(info.extra_json_schema.get("description", ""))
    return ""
