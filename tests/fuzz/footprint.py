"""How much an object of the gateway holds: every byte and every element that can be reached from it."""

from __future__ import annotations

import sys
from collections import deque
from io import BytesIO
from types import MethodType
from typing import Any, NamedTuple

COUNTED = "gateway."
"""What classes of these modules hold is counted; of a class that is derived from one, what it has inherited."""


class Footprint(NamedTuple):
    """Bytes of strings and buffers, as allocated; elements of containers."""

    size: int
    elements: int


def footprint(root: object) -> Footprint:
    """What `root` holds. What is shared is counted once; limits, classes and functions are not counted."""
    seen: set[int] = set()
    waiting: list[Any] = [root]
    size = elements = 0
    while waiting:
        item = waiting.pop()
        cls = type(item)
        kind = _kinds.get(cls) or _learn(cls)
        if kind == _IGNORED or id(item) in seen:
            continue
        seen.add(id(item))
        if kind == _TEXT:
            size += len(item)
        elif kind == _OBJECT:
            waiting += [getattr(item, name, None) for name in _slots[cls]]
            if cls.__module__.startswith(COUNTED):
                waiting += getattr(item, "__dict__", {}).values()
        elif kind == _LIST:
            elements += len(item)
            waiting += item
        elif kind == _DICT:
            elements += len(item)
            waiting += item.keys()
            waiting += item.values()
        elif kind == _BUFFER:
            size += sys.getsizeof(item)
        else:
            waiting.append(item.__self__ if kind == _METHOD else item.obj)
    return Footprint(size, elements)


_IGNORED, _TEXT, _OBJECT, _LIST, _DICT, _BUFFER, _METHOD, _VIEW = range(1, 9)
_OF_TYPE: tuple[tuple[tuple[type, ...], int], ...] = (
    ((bytes, str), _TEXT),
    ((bytearray, BytesIO), _BUFFER),
    ((memoryview,), _VIEW),
    ((dict,), _DICT),
    ((list, tuple, deque, set, frozenset), _LIST),
    ((MethodType,), _METHOD),
)
_kinds: dict[type, int] = {}
_slots: dict[type, tuple[str, ...]] = {}


def _learn(cls: type) -> int:
    kind = next((kind for classes, kind in _OF_TYPE if issubclass(cls, classes)), _IGNORED)
    bases = [base for base in cls.__mro__ if base.__module__.startswith(COUNTED)]
    if kind == _IGNORED and bases and not cls.__name__.endswith("Limits"):
        kind = _OBJECT
        _slots[cls] = tuple(name for base in bases for name in getattr(base, "__slots__", ()))
    _kinds[cls] = kind
    return kind
