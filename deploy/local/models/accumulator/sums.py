"""The running sums of sequences, by correlation id: plain arithmetic and bookkeeping."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

CorrelationId = int | str
INT64_MAX = 2**63 - 1


class SequenceError(ValueError):
    """A request that does not fit what is known of its sequence."""


@dataclass(slots=True)
class Running:
    """One sequence: what was added, how often, and when it was last heard of."""

    sum: int = 0
    count: int = 0
    heard_s: float = 0.0


class Sums:
    """All sequences of one model instance. Times are seconds of a clock that never goes back.

    Triton does not tell a model that a sequence has been given up for its silence; so sequences that were silent for
    longer than `idle_s` are dropped here as well.
    """

    def __init__(self, idle_s: float) -> None:
        self._idle_s = idle_s
        self._running: OrderedDict[CorrelationId, Running] = OrderedDict()

    def __len__(self) -> int:
        return len(self._running)

    def add(self, sequence: CorrelationId, value: int, *, start: bool, end: bool, now_s: float) -> tuple[int, int]:
        """Add a value; returns sum and count. `start` begins the sequence anew, `end` forgets it after this value.

        Raises SequenceError for a sequence that is not known and for a sum outside INT64; the latter adds nothing.
        """
        self._drop_silent(now_s)
        running = Running() if start else self._running.get(sequence)
        if running is None:
            raise SequenceError(f"no sequence {sequence!r} is known here; its first request must say start")
        total = running.sum + value
        if not -INT64_MAX - 1 <= total <= INT64_MAX:
            raise SequenceError(f"the sum of sequence {sequence!r} leaves INT64")
        running.sum, running.count, running.heard_s = total, running.count + 1, now_s
        self._running[sequence] = running
        self._running.move_to_end(sequence)
        if end:
            del self._running[sequence]
        return running.sum, running.count

    def _drop_silent(self, now_s: float) -> None:
        while self._running:
            sequence, oldest = next(iter(self._running.items()))
            if now_s - oldest.heard_s <= self._idle_s:
                return
            del self._running[sequence]
