"""What a fuzz target is, and what all of them share."""

from __future__ import annotations

import importlib
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest

BYTE_BY_BYTE_MAX = 300
"""Inputs up to this size are also fed one byte at a time, some of them: it costs the most time."""
CONTEXT_CHARS = 300
"""Of two results that differ: so much is shown around the first difference."""


@dataclass(frozen=True, slots=True)
class Target:
    """One codec under test. An input is bytes; often its first byte chooses limits and what the codec's user does.

    `seeds` are inputs of valid traffic. `check` feeds an input to the codec and raises whatever the codec's contract
    does not name, AssertionError where an answer is wrong, a bound is broken, or another cut of the same bytes gives
    something else. `mutate` changes an input in ways that know its form.
    """

    seeds: Callable[[], list[bytes]]
    check: Callable[[bytes], None]
    mutate: Callable[[bytes, random.Random], bytes]


TARGETS = ("hpack", "http2_server", "http2_client", "grpc_messages", "grpc_fields", "http1_server", "kserve")
PLANTED = "planted"
"""A target with a fault in it: what proves that faults are found."""


def load(name: str) -> Target:
    """The target of that name; its codec is imported now, and not before."""
    module = importlib.import_module(f"tests.fuzz.targets.{name}")
    target = module.TARGET
    assert isinstance(target, Target)
    return target


def cuttings(data: bytes) -> list[list[bytes]]:
    """The bytes in pieces, in one or two ways that depend on nothing but them."""
    chance = random.Random(zlib.crc32(data))
    places = sorted(chance.randrange(len(data) + 1) for _ in range(chance.choice((1, 2, 5, 20))))
    ways = [[data[start:stop] for start, stop in zip([0, *places], [*places, len(data)], strict=True)]]
    if len(data) <= BYTE_BY_BYTE_MAX and chance.random() < 0.2:
        ways.append([data[at : at + 1] for at in range(len(data))])
    return ways


def looked_at(pieces: list[bytes]) -> tuple[int, ...]:
    """Behind which of the pieces to look at what is held: looking costs more than feeding."""
    count = len(pieces)
    return (count - 1,) if count < 3 else (count // 2, count - 1)


def assert_same(whole: object, cut: object, pieces: list[bytes]) -> None:
    """Both are what came of the same bytes, at once and in pieces."""
    if whole != cut:
        first, second = repr(whole), repr(cut)
        at = next(place for place, pair in enumerate(zip_longest(first, second)) if pair[0] != pair[1])
        shown = slice(max(0, at - CONTEXT_CHARS), at + CONTEXT_CHARS)
        sizes = [len(piece) for piece in pieces[:50]]
        raise AssertionError(f"cut into {sizes}:\n  at once   …{first[shown]}\n  in pieces …{second[shown]}")
