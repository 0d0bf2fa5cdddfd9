"""Finished lines of calls that ended one after the other, made in one go while what that needs is in the caches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from gateway.records.record import FIXED_BYTES, PredictionRecord

_log = logging.getLogger("sluice.records")

QUICK_MAX = 64
"""Lines made in one turn of the loop: half a millisecond."""
QUICK_BODIES_MAX = 256 * 1024
"""Bytes of bodies that lines are made of in one turn: the last one may begin below and end above it."""


class Block:
    """Lines of several calls. `ended_s` is the first one's."""

    __slots__ = ("ended_s", "lines", "records", "size_bytes")

    def __init__(self, lines: list[bytes], ended_s: float) -> None:
        self.lines = b"".join(lines)
        self.records = len(lines)
        self.ended_s = ended_s
        self.size_bytes = max(len(self.lines), self.records * FIXED_BYTES)


Waiting = PredictionRecord | Block
"""What stands in the queue: lines, or a record whose line is the worker's to make."""


def record_count(item: Waiting) -> int:
    return item.records if isinstance(item, Block) else 1


def made_together(fresh: Sequence[PredictionRecord], quick: Callable[[PredictionRecord], bytes]) -> list[Waiting]:
    """The same calls in the same order. Of the first `QUICK_MAX`, as far as `QUICK_BODIES_MAX` goes, those have lines
    now of which `quick` makes one, and not b"". The others have let go of what their lines do not show.
    """
    found: list[Waiting] = []
    lines: list[bytes] = []
    ended_s = 0.0
    room = QUICK_BODIES_MAX
    for number, record in enumerate(fresh):
        line = b""
        if number < QUICK_MAX and room > 0:
            try:
                line = quick(record)
            except Exception:
                # The worker tries again, and says in the record what it could not show.
                _log.exception("a prediction record could not be rendered at once (request %s)", record.request_id)
        if line:
            room -= record.size_bytes - FIXED_BYTES
            if not lines:
                ended_s = record.ended_s
            lines.append(line)
            continue
        if lines:
            found.append(Block(lines, ended_s))
            lines = []
        record.keep()
        found.append(record)
    if lines:
        found.append(Block(lines, ended_s))
    return found
