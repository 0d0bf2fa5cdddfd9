"""Messages that look like one before: what a record shows of them, without reading them again.

Calls of one model mostly differ in nothing but the elements of their tensors. A message whose size, and whose bytes
outside of the elements, are those of a message that was read has its elements in the same places; all else that is
shown of its tensors is the same too. Finding that out costs one comparison per tensor.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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
_FEW = slice(FIRST_VALUES)


class Numeric(NamedTuple):
    """A tensor of numbers: what is always shown of it, which as finished JSON may be more than its first member's
    value; where its elements are; what reads all of them, or the first few and those that a summary is of. Neither: it
    has no elements.
    """

    head: str
    shown: orjson.Fragment
    at: int
    every: Callable[[bytes, int], Numbers] | None
    some: Callable[[bytes, int], tuple[Numbers, Numbers]] | None


class Summed(msgspec.Struct, gc=False, frozen=True):
    """One tensor's summary. The first member brings along what is always the same: datatype, shape and count."""

    name: msgspec.Raw
    first: Sequence[object]
    min: object
    max: object
    mean: float


class Layout:
    """One kind of message."""

    __slots__ = ("_numeric", "begin", "first", "misses", "others", "shown", "start")

    def __init__(
        self, size: int, constants: Sequence[tuple[int, bytes]], shown: bytes | None, numeric: Sequence[Numeric]
    ) -> None:
        """`size` is that of the messages. `constants` are the pieces outside of the elements, the first one at 0.
        `shown` is what is shown of all tensors; None: it depends on the numbers of `numeric`.
        """
        self.first = constants[0][1]
        self.start = slice(len(self.first))
        """A message that fits has `first` here. (To cut it out costs half of what `startswith` does.)"""
        self.others = tuple(constants[1:])
        self.shown = shown
        """What is shown of the tensors, as JSON; None: it depends on their numbers."""
        self._numeric = tuple(numeric)
        self.begin = b'{"bytes":%d,"digest":"' % size
        """A record's side of such a message, up to its digest."""
        self.misses = 0

    def fits(self, message: bytes) -> bool:
        """Whether `message`, which has the size of the one this was learned from, is like it."""
        if message[self.start] != self.first:
            return False
        for at, constant in self.others:  # noqa: SIM110 - a generator costs more than what it would ask
            if not message.startswith(constant, at):
                return False
        return True

    def tensors(self, message: bytes) -> msgspec.Raw | list[Summed | dict[str, Any]]:
        """What a record shows of the tensors of a message that fits."""
        if self.shown:
            return msgspec.Raw(self.shown)
        shown: list[Summed | dict[str, Any]] = []
        for each in self._numeric:
            head = msgspec.Raw(each.head.encode())
            if each.every is not None:
                numbers = each.every(message, each.at)
                first = numbers[_FEW]
            elif each.some is not None:
                first, numbers = each.some(message, each.at)
            else:
                shown.append({"name": head})
                continue
            found = plain_figures(numbers)
            if found is None or (each.some is not None and not all(map(math.isfinite, first))):
                shown.append({"name": head, **figures(numbers, first)})
            else:
                shown.append(Summed(head, first, *found))
        return shown

    def json(self, message: bytes) -> bytes:
        """The same as finished JSON."""
        if self.shown:
            return self.shown
        shown: list[object] = []
        for _, head, at, every, some in self._numeric:
            if every is not None:
                numbers = every(message, at)
                first = numbers[_FEW]
            elif some is not None:
                first, numbers = some(message, at)
                if not all(map(_is_plain, first)):
                    return _encode(self.tensors(message))
            else:
                shown.append({"name": head})
                continue
            found = plain_figures(numbers)
            if found is None:
                if len(numbers) > 1 or not _is_plain(numbers[0]):
                    return _encode(self.tensors(message))
                shown.append({"name": head, "first": first})
                continue
            low, high, mean = found
            if not -_PLAIN < low <= high < _PLAIN:
                return _encode(self.tensors(message))
            shown.append({"name": head, "first": first, "min": low, "max": high, "mean": mean})
        return _dumps(shown)


class Layouts:
    """The layouts of one side (requests or answers), by model and size. Bounded. `summary`: the elements are summed up,
    not only the shapes shown.
    """

    __slots__ = ("known", "raw_field", "summary")

    def __init__(self, raw_field: int, *, summary: bool) -> None:
        self.raw_field = raw_field
        """The field of the message that holds the elements."""
        self.summary = summary
        self.known: dict[tuple[str, int], Layout | None] = {}
        """None: seen once. Sizes that come once are not worth learning."""

    def find(self, model: str, message: bytes) -> Layout | None:
        """The layout of `message`, if it is one that is known."""
        layout = self.known.get((model, len(message)))
        if layout is None or layout.fits(message):
            return layout
        layout.misses += 1
        return None

    def learn(self, model: str, message: bytes, tensors: Sequence[Tensor], count: int) -> None:
        """`message`, which no layout fitted, was read. `count` is how many tensors it has."""
        known, key = self.known, (model, len(message))
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
        shown = _dumps([tensor.description.shown for tensor in tensors])
    return Layout(len(message), [constants[0], *(each for each in constants[1:] if each[1])], shown, numeric)


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
    every: Callable[[bytes, int], Numbers] | None = None
    some: Callable[[bytes, int], tuple[Numbers, Numbers]] | None = None
    if count > SUMMED_MAX:
        some = _sampled(count, size, code)
    elif count:
        every = struct.Struct(f"<{count}{code}").unpack_from
    return Numeric(head, orjson.Fragment(head), tensor.start, every, some)


def _is_plain(number: float) -> bool:
    return -_PLAIN < number < _PLAIN


def _sampled(count: int, size: int, code: str) -> Callable[[bytes, int], tuple[Numbers, Numbers]]:
    first = struct.Struct(f"<{FIRST_VALUES}{code}").unpack_from
    some = struct.Struct(f"<{len(range(0, count, step_of(count)))}{code}").unpack
    length = count * size

    def read(message: bytes, at: int) -> tuple[Numbers, Numbers]:
        return first(message, at), some(spread(memoryview(message)[at : at + length], count, size))

    return read
