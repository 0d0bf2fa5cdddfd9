"""What an open loop counts: per kind of traffic, and per second."""

from __future__ import annotations

from dataclasses import dataclass, field

from load.connection import WRONG_ANSWER
from load.histogram import Histogram

NS = 1_000_000_000
REFUSALS = frozenset({"status 429", "status 503", "code RESOURCE_EXHAUSTED", "code UNAVAILABLE"})
"""Endings by which a server says that it will not take a call."""


@dataclass(slots=True)
class TrafficTally:
    """One kind of traffic, warm-up left out. offered = right + wrong + the errors + not_sent, at the end."""

    name: str
    offered: int = 0
    """Calls that were meant to be sent."""
    held: int = 0
    """Of them, sent later than meant because `in_flight_max` calls were out already."""
    not_sent: int = 0
    """Of them, held until their deadline had passed, so never sent."""
    right: int = 0
    wrong: int = 0
    overdue: int = 0
    """Of the right answers, those that came after the call's deadline."""
    errors: dict[str, int] = field(default_factory=dict)
    """Other endings, by kind."""
    latency: Histogram = field(default_factory=Histogram)
    """Of right answers, from the intended send time: a quick refusal is not a quick answer."""
    failure: Histogram = field(default_factory=Histogram)
    """How long calls that failed had taken, those that were not sent included."""
    refusal: Histogram = field(default_factory=Histogram)
    """Of them, those that the server refused (429, 503 and what they are over gRPC)."""
    first: Histogram = field(default_factory=Histogram)
    """Streams: from the intended send time to the first response."""
    between: Histogram = field(default_factory=Histogram)
    """Streams: from one response to the next."""
    leaf: Histogram = field(default_factory=Histogram)
    """Tasks of several calls: each right answer of one of them, from the intended send time."""

    @property
    def failed(self) -> int:
        """Everything that did not end in a right answer."""
        return self.wrong + self.not_sent + sum(self.errors.values())

    def ended(self, error: str, latency_ns: int, deadline_ns: int) -> None:
        """Count the end of a call that was sent."""
        if not error:
            self.right += 1
            self.latency.record(latency_ns)
            if latency_ns > deadline_ns:
                self.overdue += 1
            return
        self.failure.record(latency_ns)
        if error == WRONG_ANSWER:
            self.wrong += 1
        else:
            self.errors[error] = self.errors.get(error, 0) + 1
            if error in REFUSALS:
                self.refusal.record(latency_ns)


@dataclass(slots=True)
class WindowTally:
    """What became of the calls that were meant to be sent from `from_s` on and before `to_s`."""

    from_s: float
    to_s: float
    traffic: list[TrafficTally]

    def holds(self, offset_ns: int) -> bool:
        return self.from_s * NS <= offset_ns < self.to_s * NS


@dataclass(slots=True)
class Second:
    """One second of a run. Latencies are those of the calls that were meant to be sent in it; `ended` and `failed`
    count what ended in it.
    """

    at_s: int
    offered: int = 0
    ended: int = 0
    failed: int = 0
    p50_ms: float | None = None
    p99_ms: float | None = None
    max_ms: float | None = None


class Seconds:
    """The seconds of a run. A histogram is kept only for those whose calls may still be out."""

    def __init__(self) -> None:
        self.rows: list[Second] = []
        self._open: dict[int, Histogram] = {}

    def row(self, offset_ns: int) -> Second:
        """The row that an offset lies in; those before it exist then as well."""
        index = max(0, offset_ns // NS)
        while len(self.rows) <= index:
            self.rows.append(Second(len(self.rows)))
        return self.rows[index]

    def answered(self, offset_ns: int, latency_ns: int) -> None:
        """A call that was meant to be sent at this offset got its right answer."""
        index = max(0, offset_ns // NS)
        histogram = self._open.get(index)
        if histogram is None:
            histogram = self._open[index] = Histogram()
        histogram.record(latency_ns)

    def settle(self, before_ns: int) -> None:
        """No call of the seconds that ended before this offset is out any more."""
        for index in [each for each in self._open if (each + 1) * NS <= before_ns]:
            histogram = self._open.pop(index)
            row = self.row(index * NS)
            row.p50_ms = quantile_ms(histogram, 0.5)
            row.p99_ms = quantile_ms(histogram, 0.99)
            row.max_ms = round(histogram.largest_ns / 1e6, 3)


def quantile_ms(histogram: Histogram, share: float) -> float | None:
    """A quantile in milliseconds; None if nothing was recorded."""
    return round(histogram.quantile_ns(share) / 1e6, 3) if histogram.count else None
