"""Messages that look like one before: what a record shows of them, without reading them again.

Calls of one model mostly differ in nothing but the elements of their tensors. A message whose size, and whose bytes
outside of the elements, are those of a message that was read has its elements in the same places; all else that is
shown of its tensors is the same too. Finding that out costs one comparison per tensor.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import orjson

from gateway.records.tensors import (
    FIRST_VALUES,
    FORMATS,
    SIZES,
    SUMMED_MAX,
    Tensor,
    figures,
    plain_figures,
    spread,
    step_of,
)

ENTRIES_MAX = 1024
CONSTANT_BYTES_MAX = 4096
"""Of one message, outside of its elements. With more, reading it again is the smaller evil."""
MISSES_MAX = 16
"""So many messages of one size that look otherwise, and the layout is given up for that of the next one."""

_PLAIN = 1e15
"""Numbers nearer to zero than this are written alike by all encoders."""
_dumps = orjson.dumps
_encode = msgspec.json.Encoder().encode

Numbers = tuple[Any, ...]
Unpack = Callable[[bytes, int], tuple[Numbers, Numbers]]
Numeric = tuple[str, Unpack | None, int, bool]
"""A tensor of numbers: what is always shown of it; what reads the first few, and those that a summary is of; where they
are; and whether the first few may be others than those.
"""


class Summed(msgspec.Struct, gc=False, frozen=True):
    """One tensor's summary. The first member brings along what is always the same: datatype, shape and count."""

    name: msgspec.Raw
    first: Sequence[object]
    min: object
    max: object
    mean: float


class Layout:
    """One kind of message."""

    __slots__ = ("_first", "_numeric", "_others", "_shown", "misses")

    def __init__(self, constants: Sequence[tuple[int, bytes]], shown: str | None, numeric: Sequence[Numeric]) -> None:
        """`constants` are the pieces outside of the elements, the first one at 0. `shown` is what is shown of all
        tensors; None: it depends on the numbers of `numeric`.
        """
        self._first = constants[0][1]
        self._others = tuple(constants[1:])
        self._shown = shown
        self._numeric = tuple(numeric)
        self.misses = 0

    def fits(self, message: bytes) -> bool:
        """Whether `message`, which has the size of the one this was learned from, is like it."""
        if not message.startswith(self._first):
            return False
        for at, constant in self._others:  # noqa: SIM110 - a generator costs more than what it would ask
            if not message.startswith(constant, at):
                return False
        return True

    def tensors(self, message: bytes) -> msgspec.Raw | list[Summed | dict[str, Any]]:
        """What a record shows of the tensors of a message that fits."""
        if self._shown is not None:
            return msgspec.Raw(self._shown.encode())
        shown: list[Summed | dict[str, Any]] = []
        for named, unpack, at, sampled in self._numeric:
            head = msgspec.Raw(named.encode())
            if unpack is None:
                shown.append({"name": head})
                continue
            first, numbers = unpack(message, at)
            found = plain_figures(numbers)
            if found is None or (sampled and not all(map(math.isfinite, first))):
                shown.append({"name": head, **figures(numbers, first)})
            else:
                shown.append(Summed(head, first, *found))
        return shown

    def json(self, message: bytes) -> str:
        """The same as finished JSON."""
        shown = self._shown
        if shown is not None:
            return shown
        parts: list[str] = []
        for head, unpack, at, sampled in self._numeric:
            if unpack is None:
                parts.append(f'{{"name":{head}}}')
                continue
            some, numbers = unpack(message, at)
            found = plain_figures(numbers)
            if (
                found is None
                or not -_PLAIN < found[0] <= found[1] < _PLAIN
                or (sampled and not all(map(_is_plain, some)))
            ):
                return _encode(self.tensors(message)).decode()
            low, high, mean, first = _dumps((*found, some)).decode().split(",", 3)
            parts.append(f'{{"name":{head},"first":{first[:-1]},"min":{low[1:]},"max":{high},"mean":{mean}}}')
        return f"[{','.join(parts)}]"


class Layouts:
    """The layouts of one side (requests or answers), by model and size. Bounded. `summary`: the elements are summed up,
    not only the shapes shown.
    """

    __slots__ = ("_known", "raw_field", "summary")

    def __init__(self, raw_field: int, *, summary: bool) -> None:
        self.raw_field = raw_field
        """The field of the message that holds the elements."""
        self.summary = summary
        self._known: dict[tuple[str, int], Layout | None] = {}
        """None: seen once. Sizes that come once are not worth learning."""

    def find(self, model: str, message: bytes) -> Layout | None:
        """The layout of `message`, if it is one that is known."""
        layout = self._known.get((model, len(message)))
        if layout is None or layout.fits(message):
            return layout
        layout.misses += 1
        return None

    def learn(self, model: str, message: bytes, tensors: Sequence[Tensor], count: int) -> None:
        """`message`, which no layout fitted, was read. `count` is how many tensors it has."""
        known, key = self._known, (model, len(message))
        if key not in known:
            if len(known) >= ENTRIES_MAX:
                known.clear()
            known[key] = None
            return
        layout = known[key]
        if layout is None or layout.misses >= MISSES_MAX:
            known[key] = _layout(message, tensors, count, self.summary)


def _layout(message: bytes, tensors: Sequence[Tensor], count: int, summary: bool) -> Layout | None:
    constants: list[tuple[int, bytes]] = []
    numeric: list[Numeric] = []
    at = 0
    for tensor in tensors:
        if tensor.raw is None:
            return None
        constants.append((at, message[at : tensor.start]))
        at = tensor.start + len(tensor.raw)
        if summary:
            row = _numeric(tensor)
            if row is None:
                return None
            numeric.append(row)
    constants.append((at, message[at:]))
    if count > len(tensors) or sum(len(constant) for _, constant in constants) > CONSTANT_BYTES_MAX:
        return None
    shown = None
    if not summary:
        shown = _dumps([tensor.description.shown for tensor in tensors]).decode()
    return Layout([constants[0], *(each for each in constants[1:] if each[1])], shown, numeric)


def _numeric(tensor: Tensor) -> Numeric | None:
    """None for a tensor of something else than plain numbers."""
    assert tensor.raw is not None
    code, size = FORMATS.get(tensor.description.datatype), SIZES.get(tensor.description.datatype)
    if code is None or size is None:
        return None
    count = len(tensor.raw) // size
    shown: dict[str, Any] = {**tensor.description.shown, "count": count}
    if count > SUMMED_MAX:
        shown["summary_cut"] = True
    # Finished JSON may be more than its member's value: the members that follow it.
    head = _dumps(shown).decode()[len('{"name":') : -1]
    if not count:
        return head, None, tensor.start, False
    if count <= SUMMED_MAX:
        return head, _whole(count, code), tensor.start, False
    return head, _sampled(count, size, code), tensor.start, True


def _is_plain(number: float) -> bool:
    return -_PLAIN < number < _PLAIN


def _whole(count: int, code: str) -> Unpack:
    unpack = struct.Struct(f"<{count}{code}").unpack_from

    def read(message: bytes, at: int) -> tuple[Numbers, Numbers]:
        numbers = unpack(message, at)
        return numbers[:FIRST_VALUES], numbers

    return read


def _sampled(count: int, size: int, code: str) -> Unpack:
    first = struct.Struct(f"<{FIRST_VALUES}{code}").unpack_from
    some = struct.Struct(f"<{len(range(0, count, step_of(count)))}{code}").unpack
    length = count * size

    def read(message: bytes, at: int) -> tuple[Numbers, Numbers]:
        return first(message, at), some(spread(memoryview(message)[at : at + length], count, size))

    return read
