"""A YAML file as a tree whose every node knows its line and column, built from the parser's events.

Only the plain part of YAML is taken: mappings with text keys, lists, scalars. Anchors, aliases, merge keys, tags,
directives and second documents are refused by name, so there is nothing that could expand, and nothing whose meaning
depends on the version of YAML. Nesting, size and number of nodes are bounded. Values are resolved in `scalars.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
    StreamStartEvent,
)

from gateway.policy.problems import START, Path, Position, Problems, Step, printable
from gateway.policy.scalars import Kind, Plain, resolve

DEPTH_MAX = 24
BYTES_PER_NODE = 8
"""A file denser than this is no policy: the bound on its size bounds its nodes too, and so the time to read it."""
_UNREADABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


@dataclass(slots=True)
class Scalar:
    where: Position
    text: str
    quoted: bool
    kind: Kind
    value: Plain


@dataclass(slots=True)
class Broken:
    """A node that was refused already: whoever reads the tree stays silent about it."""

    where: Position


@dataclass(slots=True)
class Sequence:
    where: Position
    items: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class Mapping:
    where: Position
    entries: dict[str, tuple[Scalar, Node]] = field(default_factory=dict)
    """By the key's text: the key, and the value."""


Node = Scalar | Sequence | Mapping | Broken


class _Refused(Exception):
    """The rest of the file cannot be read."""


def parse(data: bytes, file: str, bytes_max: int, problems: Problems) -> Node | None:
    """The tree of a file, or None if it has none. Everything that is wrong goes to `problems`."""
    text = _decode(data, file, bytes_max, problems)
    if text is None:
        return None
    reader = _Reader(file, text, bytes_max // BYTES_PER_NODE, problems)
    try:
        return reader.read()
    except _Refused:
        return None


def find(root: Node | None, path: Path) -> Node | None:
    """The node at a path, or None."""
    node = root
    for step in path:
        if isinstance(node, Mapping) and isinstance(step, str) and step in node.entries:
            node = node.entries[step][1]
        elif isinstance(node, Sequence) and isinstance(step, int) and 0 <= step < len(node.items):
            node = node.items[step]
        else:
            return None
    return node


def position(root: Node | None, path: Path, *, of_key: bool = False) -> Position:
    """Where the value (or the key) at a path stands; of a path that is not in the file, where its deepest known part
    stands, by its key.
    """
    where = root.where if root is not None else START
    node = root
    for depth, step in enumerate(path):
        if isinstance(node, Mapping) and isinstance(step, str) and step in node.entries:
            key, value = node.entries[step]
            last = depth == len(path) - 1
            where = value.where if last and not of_key else key.where
            node = value
        elif isinstance(node, Sequence) and isinstance(step, int) and 0 <= step < len(node.items):
            node = node.items[step]
            where = node.where
        else:
            return where
    return where


def _decode(data: bytes, file: str, bytes_max: int, problems: Problems) -> str | None:
    if len(data) > bytes_max:
        message = f"the file is larger than {bytes_max} bytes"
        problems.add(file, START, (), message, "nothing of it was read; split it, or remove what does not belong here")
        return None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8")
        message = f"the file is not UTF-8 (byte 0x{data[error.start]:02x})"
        problems.add(file, _place(before, len(before)), (), message, "save it as UTF-8")
        return None
    # A byte order mark at the very start is legal YAML and invisible in editors: taken, and not counted as a column.
    text = text.removeprefix("\ufeff")
    bad = _UNREADABLE.search(text)
    if bad is not None:
        message = f"character U+{ord(bad[0]):04X} may not stand in a policy file"
        problems.add(file, _place(text, bad.start()), (), message, "remove it (in quoted text it can be escaped)")
        return None
    return text


def _place(text: str, index: int) -> Position:
    before = text[:index].replace("\r\n", "\n").replace("\r", "\n")
    return Position(before.count("\n") + 1, len(before) - before.rfind("\n"))


class _Reader:
    """Turns one file's events into a tree, refusing what this dialect leaves out."""

    def __init__(self, file: str, text: str, nodes_max: int, problems: Problems) -> None:
        self._file = file
        self._text = text
        self._nodes_left = nodes_max
        self._depth = 0
        self._problems = problems
        self._path: list[Step] = []

    def read(self) -> Node | None:
        events = self._events()
        root: Node | None = None
        documents = 0
        for event in events:
            if isinstance(event, StreamStartEvent | StreamEndEvent | DocumentEndEvent):
                continue
            if isinstance(event, DocumentStartEvent):
                documents += 1
                if documents > 1:
                    message = "a second document begins here (`---`)"
                    self._refuse(event, message, "keep one document per file")
                    break
                if event.version is not None or event.tags:
                    line = next((i for i, line in enumerate(self._text.splitlines(), 1) if line.startswith("%")), 1)
                    message = "a `%` directive stands before `---`"
                    self._problems.add(
                        self._file, Position(line, 1), (), message, "remove it: files are read as YAML 1.2"
                    )
                continue
            root = self._node(event, events)
        if root is None or (isinstance(root, Scalar) and root.kind == "null"):
            self._problems.add(self._file, START, (), "the file is empty", "fill it in, or remove the file")
            return None
        return root

    def _events(self) -> Iterator[Any]:
        try:
            yield from YAML(typ="safe", pure=True).parse(self._text)
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            where = START if mark is None else Position(mark.line + 1, mark.column + 1)
            self._problems.add(self._file, where, (), *self._explain(error, where))
            raise _Refused from error
        except (YAMLError, ValueError, OverflowError) as error:
            # Escapes such as "\UFFFFFFFF" reach chr() unchecked in the library, so ValueError is an answer too.
            message = f"not YAML: {printable(str(error).splitlines()[0] if str(error) else type(error).__name__, 200)}"
            self._problems.add(self._file, START, (), message, "look for wrong escapes in double-quoted text")
            raise _Refused from error

    def _explain(self, error: MarkedYAMLError, where: Position) -> tuple[str, str]:
        lines = re.split(r"\r\n|\r|\n", self._text)
        line = lines[where.line - 1] if where.line <= len(lines) else ""
        said = str(error.problem or error.context or "syntax error")
        if "'\\t'" in said or ("\t" in line[: where.column] and not line[: where.column].strip()):
            return "a tab stands where YAML takes only spaces", "replace it by spaces"
        remedy = ""
        if "mapping values are not allowed" in said:
            remedy = "put the text in quotes if it contains `: `, or check the indentation"
        elif "cannot start any token" in said:
            remedy = "put the text in quotes"
        elif "expected <block end>" in said:
            remedy = "check the indentation of this line and those above"
        elif "unexpected end of stream" in said:
            remedy = "close the quote"
        elif "could not find expected ':'" in said:
            remedy = "write `key: value`, with a space after the colon"
        elif "but got" in said or "expected the node content" in said:
            remedy = "close the bracket, or check the line above"
        return f"not YAML: {printable(said, 200)}", remedy or "check this line and the one above"

    def _refuse(self, event: Any, message: str, remedy: str) -> None:
        self._problems.add(self._file, _where(event), tuple(self._path), message, remedy)

    def _node(self, event: Any, events: Iterator[Any]) -> Node:
        where = _where(event)
        self._nodes_left -= 1
        if self._nodes_left < 0:
            self._refuse(event, "the file has too many values", "the rest was not read; split it")
            raise _Refused
        if isinstance(event, AliasEvent):
            self._refuse(
                event, f"`*{printable(str(event.anchor))}` is an alias", "write the value out: no aliases here"
            )
            return Broken(where)
        if event.anchor is not None:
            self._refuse(
                event, f"`&{printable(str(event.anchor))}` is an anchor", "remove it: there are no aliases here"
            )
        tagged = event.tag is not None
        if tagged:
            self._refuse(event, f"`{printable(str(event.tag))}` is a tag", "remove it: types follow from the key")
        if isinstance(event, ScalarEvent):
            if tagged:
                return Broken(where)
            quoted = not event.implicit[0]
            if quoted:
                return Scalar(where, event.value, True, "text", event.value)
            return Scalar(where, event.value, False, *resolve(event.value))
        if self._depth >= DEPTH_MAX:
            self._refuse(event, f"nested deeper than {DEPTH_MAX} levels", "no policy needs this")
            raise _Refused
        self._depth += 1
        if isinstance(event, SequenceStartEvent):
            node: Node = self._sequence(Sequence(where), events)
        else:
            assert isinstance(event, MappingStartEvent)
            node = self._mapping(Mapping(where), events)
        self._depth -= 1
        return node

    def _sequence(self, node: Sequence, events: Iterator[Any]) -> Sequence:
        for event in events:
            if isinstance(event, SequenceEndEvent):
                break
            self._path.append(len(node.items))
            node.items.append(self._node(event, events))
            self._path.pop()
        return node

    def _mapping(self, node: Mapping, events: Iterator[Any]) -> Mapping:
        for event in events:
            if isinstance(event, MappingEndEvent):
                break
            key = self._node(event, events)
            name = key.text if isinstance(key, Scalar) else ""
            self._path.append(name)
            value = self._node(next(events), events)
            if isinstance(value, Scalar) and not value.text and not value.quoted:
                value.where = key.where  # the parser places what is not there behind all that follows it
            self._enter(node, key, value)
            self._path.pop()
        return node

    def _enter(self, node: Mapping, key: Node, value: Node) -> None:
        path = tuple(self._path)
        if isinstance(key, Broken):
            return
        if not isinstance(key, Scalar):
            self._problems.add(self._file, key.where, path[:-1], "a key that is a list or a mapping", "keys are text")
            return
        if key.text == "<<" and not key.quoted:
            message = "`<<` is a merge key"
            self._problems.add(self._file, key.where, path[:-1], message, "write the keys out: no merging here")
            return
        earlier = node.entries.get(key.text)
        if earlier is not None:
            message = f"the key stands twice, first in line {earlier[0].where.line}"
            self._problems.add(self._file, key.where, path, message, "keep one of the two")
            return
        node.entries[key.text] = (key, value)


def _where(event: Any) -> Position:
    return Position(event.start_mark.line + 1, event.start_mark.column + 1)
