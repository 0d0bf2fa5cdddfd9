"""Makes an input that fails smaller."""

from __future__ import annotations

import traceback

from tests.fuzz.target import Target


def failure(target: Target, data: bytes) -> Exception | None:
    """What the target raises for the input."""
    try:
        target.check(data)
    except Exception as error:
        return error
    return None


def _place(error: Exception) -> tuple[str, str, int]:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return type(error).__name__, last.filename, last.lineno or 0


def shrink(target: Target, data: bytes) -> bytes:
    """The smallest input found by leaving pieces out, and then by making bytes zero, that fails in the same place."""
    first = failure(target, data)
    assert first is not None
    place = _place(first)

    def fails(candidate: bytes) -> bool:
        found = failure(target, candidate)
        return found is not None and _place(found) == place

    before = b""
    while data != before:
        before = data
        for size in [len(data) >> shift for shift in range(1, 20) if len(data) >> shift > 16] + list(range(16, 0, -1)):
            at = 0
            while at < len(data):
                candidate = data[:at] + data[at + size :]
                if fails(candidate):
                    data = candidate
                else:
                    at += size if size > 16 else 1
    for at in range(len(data)):
        candidate = data[:at] + b"\0" + data[at + 1 :]
        if data[at] and fails(candidate):
            data = candidate
    return data
